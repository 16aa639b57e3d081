// SPDX-License-Identifier: Apache-2.0
#include "plan/profiler_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json.h"

namespace telltale::plan {
namespace {

using nlohmann::ordered_json;

constexpr double kLatestStep = 4e18;

std::string LowerAscii(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

/// Keys in lower case, as smdebug makes them; what repeats one so is left out.
ordered_json LowerKeys(const ordered_json& in) {
  ordered_json out = ordered_json::object();
  for (const auto& [key, value] : in.items()) {
    const std::string lower = LowerAscii(key);
    if (!out.contains(lower)) out[lower] = value;
  }
  return out;
}

Status WrongConfig(const std::string& what) {
  return {Code::kUsage, "profilerconfig.json: " + what};
}

/// A part is an object, or a text with one: JSON, or what Python writes for a dictionary.
Result<ordered_json> PartOf(const std::string& name, const ordered_json& in) {
  if (in.is_object()) return LowerKeys(in);
  if (!in.is_string()) return WrongConfig(name + " is neither an object nor a text with one");
  std::string text = in.get<std::string>();
  if (text.find('"') == std::string::npos) std::replace(text.begin(), text.end(), '\'', '"');
  const ordered_json part = ParseOrderedJson(text);
  if (!part.is_object()) return WrongConfig(fmt::format("{} holds no dictionary: {}", name, text));
  return LowerKeys(part);
}

/// A number, or a text with one; none where the key is not there.
Result<std::optional<double>> NumberAt(const ordered_json& part, const std::string& name,
                                       const char* key) {
  const auto found = part.find(key);
  if (found == part.end() || found->is_null()) return std::optional<double>();
  double value = std::nan("");
  if (found->is_number()) value = found->get<double>();
  if (found->is_string()) {
    const auto& text = found->get_ref<const std::string&>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) value = std::nan("");
  }
  if (!(value >= 0 && value < kLatestStep)) {
    return WrongConfig(fmt::format("{}: {} is no number from 0", name, key));
  }
  return std::optional<double>(value);
}

/// The window's time. SageMaker's SDK writes Duration, smdebug reads DurationInSeconds: both count.
Status ReadTime(const ordered_json& part, const std::string& name, std::int64_t start,
                std::int64_t count, Window* out) {
  TELLTALE_ASSIGN_OR_RETURN(const auto step, NumberAt(part, name, "startstep"));
  TELLTALE_ASSIGN_OR_RETURN(const auto steps, NumberAt(part, name, "numsteps"));
  TELLTALE_ASSIGN_OR_RETURN(const auto time, NumberAt(part, name, "starttimeinsecsinceepoch"));
  TELLTALE_ASSIGN_OR_RETURN(auto duration, NumberAt(part, name, "durationinseconds"));
  if (!duration) {
    TELLTALE_ASSIGN_OR_RETURN(duration, NumberAt(part, name, "duration"));
  }
  if (time || duration) {
    if (step || steps) {
      return WrongConfig(name + ": a range of steps and one of time: give one of them");
    }
    out->start_time = std::min(time.value_or(0), 1e11);
    out->duration = std::min(duration.value_or(0), 1e9);
    // Its length is what was asked for: the bound of seconds is not to cut it.
    out->seconds = std::clamp(out->duration, out->seconds, 86400.0);
    return {};
  }
  if (step || steps) {
    start = static_cast<std::int64_t>(step.value_or(static_cast<double>(start)));
    count = static_cast<std::int64_t>(std::clamp(steps.value_or(1), 1.0, 1e9));
  }
  out->steps = {{start, start + count}};
  return {};
}

std::string TextAt(const ordered_json& part, const char* key) {
  const auto found = part.find(key);
  return found != part.end() && found->is_string() ? LowerAscii(found->get<std::string>()) : "";
}

Status AddDetailed(const ordered_json& part, std::vector<Window>* out) {
  Window window;
  window.name = std::string(kProfilerConfigPrefix) + "detailed";
  window.detail = {"ops", "kernels", "shapes"};
  TELLTALE_RETURN_IF_ERROR(ReadTime(part, "DetailedProfilingConfig", 5, 1, &window));
  out->push_back(std::move(window));
  return {};
}

/// The timer "default" takes the three of them in turn, a step each.
Status AddPython(const ordered_json& part, std::vector<Window>* out) {
  constexpr std::array<std::string_view, 3> kInTurn = {"total", "cpu", "off_cpu"};
  Window window;
  window.detail = {"python"};
  TELLTALE_RETURN_IF_ERROR(ReadTime(part, "PythonProfilingConfig", 9, 3, &window));
  std::string timer = TextAt(part, "cprofiletimer");
  if (timer.ends_with("_time")) timer.resize(timer.size() - 5);
  const bool one = std::find(kInTurn.begin(), kInTurn.end(), timer) != kInTurn.end();
  if (one || window.steps.empty()) {
    window.name = std::string(kProfilerConfigPrefix) + "python";
    if (one) window.timer = timer;
    out->push_back(std::move(window));
    return {};
  }
  constexpr std::int64_t kMostTurns = 300;
  const StepRange all = window.steps[0];
  for (std::size_t i = 0; i < kInTurn.size(); ++i) {
    Window of_timer = window;
    of_timer.name = fmt::format("{}python-{}", kProfilerConfigPrefix, kInTurn[i]);
    of_timer.timer = kInTurn[i];
    of_timer.steps.clear();
    for (std::int64_t step = all.begin + static_cast<std::int64_t>(i);
         step < std::min(all.end, all.begin + kMostTurns); step += 3) {
      of_timer.steps.push_back({step, step + 1});
    }
    if (!of_timer.steps.empty()) out->push_back(std::move(of_timer));
  }
  return {};
}

}  // namespace

Result<std::vector<Window>> WindowsOfProfilerConfig(std::string_view text) {
  try {
    const ordered_json parsed = ParseOrderedJson(text);
    if (!parsed.is_object()) return WrongConfig("it is no JSON object");
    const ordered_json config = LowerKeys(parsed);
    std::vector<Window> out;
    if (const auto off = config.find("disableprofiler"); off != config.end()) {
      if ((off->is_boolean() && off->get<bool>()) || TextAt(config, "disableprofiler") == "true") {
        return out;
      }
    }
    const auto found = config.find("profilingparameters");
    if (found == config.end() || !found->is_object()) return out;
    const ordered_json parameters = LowerKeys(*found);
    if (const auto part = parameters.find("detailedprofilingconfig"); part != parameters.end()) {
      TELLTALE_ASSIGN_OR_RETURN(const ordered_json keys, PartOf("DetailedProfilingConfig", *part));
      TELLTALE_RETURN_IF_ERROR(AddDetailed(keys, &out));
    }
    if (const auto part = parameters.find("pythonprofilingconfig"); part != parameters.end()) {
      TELLTALE_ASSIGN_OR_RETURN(const ordered_json keys, PartOf("PythonProfilingConfig", *part));
      TELLTALE_RETURN_IF_ERROR(AddPython(keys, &out));
    }
    return out;
  } catch (const std::exception& error) {
    return WrongConfig(fmt::format("cannot be read: {}", JsonTrouble(error)));
  }
}

}  // namespace telltale::plan
