// SPDX-License-Identifier: Apache-2.0
// Price tables from TOML: every key is checked, since a slip of the pen would choose a machine.
#include "rules/price_table.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/printable.h"
#include "base/toml_tree.h"

namespace telltale::rules {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kPage = "docs/formats/prices.md";
constexpr double kGiB = 1073741824;
constexpr double kMostNumber = 1e12;
constexpr std::size_t kMostText = 256;
constexpr std::size_t kMostBytes = std::size_t{1} << 20U;

/// A key of a machine that is a number.
struct NumberKey {
  std::string_view name;
  double MachinePrice::*field;
  double scale;
  bool positive;  ///< It must be said, and be above 0.
};
constexpr NumberKey kNumbers[] = {
    {"price_per_hour", &MachinePrice::price_per_hour, 1, true},
    {"cores", &MachinePrice::cores, 1, true},
    {"memory_gib", &MachinePrice::memory_bytes, kGiB, true},
    {"gpus", &MachinePrice::gpus, 1, false},
    {"gpu_memory_gib", &MachinePrice::gpu_memory_bytes, kGiB, false},
    {"gpu_speed", &MachinePrice::gpu_speed, 1, false},
    {"core_speed", &MachinePrice::core_speed, 1, false},
    {"disk_mb_s", &MachinePrice::disk_bytes_per_second, 1e6, false},
    {"network_gbit_s", &MachinePrice::network_bytes_per_second, 1e9 / 8, false},
};

Status Wrong(const TomlTree& tree, const std::string& key, std::string_view what) {
  return Status(Code::kUsage,
                fmt::format("{}: {} {} ({})", tree.PlaceOf(key), Printable(key), what, kPage));
}

Status ReadKey(const TomlTree& tree, const std::string& at, const std::string& name,
               const ordered_json& value, MachinePrice* machine) {
  const std::string key = at + "." + name;
  for (const NumberKey& number : kNumbers) {
    if (name != number.name) continue;
    const double given = value.is_number() ? value.get<double>() : -1;
    if (!std::isfinite(given) || given < 0 || given > kMostNumber ||
        (number.positive && given == 0)) {
      return Wrong(tree, key,
                   number.positive ? "must be a number above 0" : "must be a number, 0 or above");
    }
    machine->*number.field = given * number.scale;
    return {};
  }
  if (name == "name" || name == "gpu") {
    if (!value.is_string() || value.get_ref<const std::string&>().empty() ||
        value.get_ref<const std::string&>().size() > kMostText) {
      return Wrong(tree, key, "must be a text of 1 to 256 bytes");
    }
    (name == "name" ? machine->name : machine->gpu) = value.get<std::string>();
    return {};
  }
  if (name == "current") {
    if (!value.is_boolean()) return Wrong(tree, key, "must be true or false");
    machine->current = value.get<bool>();
    return {};
  }
  return Wrong(tree, key, "is no key of a machine");
}

Result<MachinePrice> ReadMachine(const TomlTree& tree, const std::string& at,
                                 const ordered_json& value) {
  if (!value.is_object()) return Wrong(tree, at, "must be a table");
  MachinePrice machine;
  for (const auto& [name, of] : value.items()) {
    TELLTALE_RETURN_IF_ERROR(ReadKey(tree, at, name, of, &machine));
  }
  if (machine.name.empty()) return Wrong(tree, at, "needs a name");
  for (const NumberKey& number : kNumbers) {
    if (number.positive && machine.*number.field <= 0) {
      return Wrong(tree, at, fmt::format("needs {}", number.name));
    }
  }
  if (machine.core_speed <= 0) return Wrong(tree, at + ".core_speed", "must be above 0");
  return machine;
}

}  // namespace

Result<PriceTable> PriceTableFromToml(std::string_view text, std::string_view where) {
  TELLTALE_ASSIGN_OR_RETURN(const TomlTree tree, TomlTree::Parse(text, where, kPage));
  PriceTable table;
  std::set<std::string> names;
  bool current = false;
  for (const auto& [key, value] : tree.root().items()) {
    if (key == "currency") {
      if (!value.is_string() || value.get_ref<const std::string&>().empty() ||
          value.get_ref<const std::string&>().size() > kMostText) {
        return Wrong(tree, key, "must be a text, as \"USD\"");
      }
      table.currency = value.get<std::string>();
      continue;
    }
    if (key != "machine") return Wrong(tree, key, "is no key of a price table: write [[machine]]");
    if (!value.is_array() || value.size() > PriceTable::kMostMachines) {
      return Wrong(tree, key, "must be a list of at most 1000 tables: write [[machine]]");
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string at = fmt::format("machine.{}", i);
      TELLTALE_ASSIGN_OR_RETURN(MachinePrice machine, ReadMachine(tree, at, value[i]));
      if (!names.insert(machine.name).second) return Wrong(tree, at, "has the name of another");
      if (machine.current && current) return Wrong(tree, at, "is the second with current = true");
      current = current || machine.current;
      table.machines.push_back(std::move(machine));
    }
  }
  if (table.machines.empty()) {
    return Status(Code::kUsage,
                  fmt::format("{}: no machine: write [[machine]] ({})", where, kPage));
  }
  return table;
}

Result<PriceTable> LoadPriceTable(const std::string& prices) {
  if (prices.find('=') != std::string::npos) return PriceTableFromToml(prices, "prices");
  std::ifstream in(prices, std::ios::binary);
  std::string text;
  if (in) {
    text.resize(kMostBytes + 1);
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(in.gcount()));
  }
  if (text.empty() || text.size() > kMostBytes) {
    return Status(
        Code::kUnusable,
        fmt::format("{}: cannot be read, or is empty or larger than 1 MiB: write the path "
                    "of a price table, or the table itself ({})",
                    Printable(prices), kPage));
  }
  return PriceTableFromToml(text, prices);
}

}  // namespace telltale::rules
