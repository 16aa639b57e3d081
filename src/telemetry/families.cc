// SPDX-License-Identifier: Apache-2.0
#include "telemetry/families.h"

#include <fmt/format.h>

namespace telltale::telemetry {
namespace {

struct Unit {
  std::string_view ours;
  std::string_view suffix;  ///< Of the name.
  std::string_view ucum;
};
constexpr auto kUnits = std::to_array<Unit>({
    {"percent", "percent", "%"},
    {"bytes", "bytes", "By"},
    {"bytes/s", "per_second", "By/s"},
    {"1/s", "per_second", "1/s"},
    {"cores", "cores", "{core}"},
    {"MHz", "megahertz", "MHz"},
    {"W", "watts", "W"},
    {"C", "celsius", "Cel"},
    {"s", "seconds", "s"},
    {"ms", "milliseconds", "ms"},
});

}  // namespace

SystemFamily SystemFamilyOf(std::string_view metric, std::string_view unit) {
  std::string name = "telltale_system_" + MetricName(metric);
  std::string_view ucum = "1";
  for (const Unit& known : kUnits) {
    if (known.ours != unit) continue;
    constexpr std::string_view kRate = "_rate";
    if (known.suffix == "per_second" && name.ends_with(kRate)) {
      name.resize(name.size() - kRate.size());
    }
    if (!name.ends_with(fmt::format("_{}", known.suffix))) name += fmt::format("_{}", known.suffix);
    ucum = known.ucum;
  }
  return {std::move(name), std::string(ucum),
          fmt::format("The machine's {} by node and subject.", LabelText(metric))};
}

}  // namespace telltale::telemetry
