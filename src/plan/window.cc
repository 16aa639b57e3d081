// SPDX-License-Identifier: Apache-2.0
// The one reader of windows of detail: plan files, requests and --window pass through it.
#include "plan/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <functional>
#include <utility>

#include "base/json.h"
#include "base/utf8.h"
#include "format/channel_layout.h"
#include "plan/key_readers.h"
#include "plan/plan_json.h"

namespace telltale::plan {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kDetailWords[] = {"ops",    "kernels", "shapes",  "stacks",
                                             "memory", "flops",   "modules", "python"};
constexpr std::string_view kWindowModes[] = {"train", "eval", "predict"};
constexpr std::string_view kTimers[] = {"total", "cpu", "off_cpu"};
constexpr std::size_t kMaxRanges = 1024;
constexpr std::size_t kMaxRanks = 4096;
constexpr std::uint64_t kMaxRank = 100'000'000;
constexpr std::size_t kMaxWindowName = 64;
constexpr std::size_t kMaxExpression = 512;
constexpr std::uint64_t kMaxWindowStep = std::uint64_t{1} << 62;
constexpr std::uint64_t kMaxLength = 100'000;
constexpr std::uint64_t kMaxBytes = 16ULL << 30;
constexpr double kMaxSeconds = 1e9;
constexpr double kMaxUnixSeconds = 1e11;

std::vector<std::string> DefaultDetail() { return {"ops", "kernels", "shapes"}; }

/// A name becomes a folder of the run.
bool IsWindowName(std::string_view name) {
  if (name.empty() || name.size() > kMaxWindowName || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string> SplitAt(std::string_view text, char separator) {
  std::vector<std::string> out;
  while (true) {
    const auto at = text.find(separator);
    out.emplace_back(Trim(text.substr(0, at)));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}

bool ReadStepNumber(std::string_view text, std::int64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out >= 0 &&
         static_cast<std::uint64_t>(*out) < kMaxWindowStep;
}

/// A whole number from 0; one that we made ourselves may be of the signed kind.
bool IsBelow(const ordered_json& item, std::uint64_t limit) {
  return item.is_number_integer() && (item.is_number_unsigned() || item.get<std::int64_t>() >= 0) &&
         item.get<std::uint64_t>() < limit;
}

/// "100:105" or "100".
bool ReadRange(std::string_view text, StepRange* out) {
  const auto colon = text.find(':');
  if (!ReadStepNumber(Trim(text.substr(0, colon)), &out->begin)) return false;
  if (colon == std::string_view::npos) {
    out->end = out->begin + 1;
    return true;
  }
  return ReadStepNumber(Trim(text.substr(colon + 1)), &out->end) && out->end > out->begin;
}

Check ReadStepRanges(const ordered_json& in, const std::string& key, std::vector<StepRange>* out) {
  std::vector<StepRange> ranges;
  const auto wrong = [&] {
    return Wrong(key, fmt::format("is no list of at most {} steps and ranges of them: write for "
                                  "example [7, \"100:105\"] (105 is not of it)",
                                  kMaxRanges));
  };
  const auto add = [&](const ordered_json& item) {
    StepRange range;
    if (item.is_string()) {
      for (const std::string& part : SplitAt(item.get<std::string>(), ',')) {
        if (!ReadRange(part, &range)) return false;
        ranges.push_back(range);
      }
      return true;
    }
    if (!IsBelow(item, kMaxWindowStep)) return false;
    range.begin = item.get<std::int64_t>();
    range.end = range.begin + 1;
    ranges.push_back(range);
    return true;
  };
  if (in.is_array()) {
    if (in.empty() || in.size() > kMaxRanges) return wrong();
    for (const ordered_json& item : in) {
      if (!add(item)) return wrong();
    }
  } else if (!add(in)) {
    return wrong();
  }
  if (ranges.size() > kMaxRanges) return wrong();
  std::sort(ranges.begin(), ranges.end(),
            [](const StepRange& a, const StepRange& b) { return a.begin < b.begin; });
  out->clear();
  for (const StepRange& range : ranges) {
    if (!out->empty() && range.begin <= out->back().end) {
      out->back().end = std::max(out->back().end, range.end);
    } else {
      out->push_back(range);
    }
  }
  return {};
}

Check ReadReal(const ordered_json& in, const std::string& key, double least, double most,
               std::string_view example, double* out) {
  const double value = in.is_number() ? in.get<double>() : std::nan("");
  if (!(value >= least && value <= most)) {
    return Wrong(key, fmt::format("is not a number from {} to {}: write {}", least, most, example));
  }
  *out = value;
  return {};
}

Check ReadWord(const ordered_json& in, const std::string& key,
               std::span<const std::string_view> words, std::string* out) {
  if (!in.is_string() || !IsOneOf(words, in.get<std::string>())) {
    return Wrong(key, fmt::format("is unknown: write {}", JoinWords(words)));
  }
  *out = in.get<std::string>();
  return {};
}

Check ReadDetail(const ordered_json& in, const std::string& key, std::vector<std::string>* out) {
  std::vector<std::string> given;
  if (auto wrong = ReadTexts(in, key, &given); wrong) return wrong;
  std::vector<std::string> words;
  for (const std::string& text : given) {
    for (std::string& word : SplitAt(text, ',')) words.push_back(std::move(word));
  }
  for (const std::string& word : words) {
    if (!IsOneOf(kDetailWords, word)) {
      return Wrong(key,
                   fmt::format("knows no '{}': write any of {}", word, JoinWords(kDetailWords)));
    }
  }
  out->clear();
  for (const std::string_view word : kDetailWords) {
    if (std::find(words.begin(), words.end(), word) != words.end()) out->emplace_back(word);
  }
  if (out->empty()) {
    return Wrong(key, "is empty, so that nothing is recorded: write [\"ops\"], or leave it out");
  }
  return {};
}

Check ReadRanks(const ordered_json& in, const std::string& key, std::vector<std::int64_t>* out) {
  const auto rank = [](const ordered_json& item) { return IsBelow(item, kMaxRank); };
  out->clear();
  if (rank(in)) {
    out->push_back(in.get<std::int64_t>());
    return {};
  }
  if (!in.is_array() || in.size() > kMaxRanks || !std::all_of(in.begin(), in.end(), rank)) {
    return Wrong(key,
                 fmt::format("is no list of at most {} ranks: write for example [0]", kMaxRanks));
  }
  *out = in.get<std::vector<std::int64_t>>();
  std::sort(out->begin(), out->end());
  out->erase(std::unique(out->begin(), out->end()), out->end());
  return {};
}

using ReadKey = std::function<Check(const ordered_json&, const std::string&, Window*)>;

/// In the order in which they are written.
const std::vector<std::pair<std::string_view, ReadKey>>& WindowKeys() {
  static const std::vector<std::pair<std::string_view, ReadKey>> keys = {
      {"steps", [](const auto& in, const auto& key,
                   Window* w) { return ReadStepRanges(in, key, &w->steps); }},
      {"next", [](const auto& in, const auto& key,
                  Window* w) { return ReadNumber(in, key, &w->next, kMaxLength, "5"); }},
      {"every", [](const auto& in, const auto& key,
                   Window* w) { return ReadNumber(in, key, &w->every, UINT32_MAX, "1000"); }},
      {"every_seconds",
       [](const auto& in, const auto& key, Window* w) {
         return ReadReal(in, key, 0, kMaxSeconds, "600", &w->every_seconds);
       }},
      {"random", [](const auto& in, const auto& key,
                    Window* w) { return ReadReal(in, key, 0, 1, "0.001", &w->random); }},
      {"seed", [](const auto& in, const auto& key,
                  Window* w) { return ReadNumber(in, key, &w->seed, UINT32_MAX, "1"); }},
      {"start_time",
       [](const auto& in, const auto& key, Window* w) {
         return ReadReal(in, key, 0, kMaxUnixSeconds, "1700000000, a Unix time", &w->start_time);
       }},
      {"duration", [](const auto& in, const auto& key,
                      Window* w) { return ReadReal(in, key, 0, kMaxSeconds, "10", &w->duration); }},
      {"first_graph",
       [](const auto& in, const auto& key, Window* w) -> Check {
         if (!in.is_boolean()) return Wrong(key, "is neither true nor false");
         w->first_graph = in.template get<bool>();
         return {};
       }},
      {"when",
       [](const auto& in, const auto& key, Window* w) -> Check {
         if (!in.is_string() || in.template get<std::string>().size() > kMaxExpression) {
           return Wrong(key, fmt::format("is no expression of at most {} bytes: write for example "
                                         "\"step % 1000 < 3 and rank == 0\"",
                                         kMaxExpression));
         }
         w->when = in.template get<std::string>();
         return {};
       }},
      {"length",
       [](const auto& in, const auto& key, Window* w) -> Check {
         if (auto wrong = ReadNumber(in, key, &w->length, kMaxLength, "5"); wrong) return wrong;
         if (w->length == 0) return Wrong(key, "is 0 steps: write 1 or more");
         return {};
       }},
      {"mode", [](const auto& in, const auto& key,
                  Window* w) { return ReadWord(in, key, kWindowModes, &w->mode); }},
      {"ranks",
       [](const auto& in, const auto& key, Window* w) { return ReadRanks(in, key, &w->ranks); }},
      {"detail",
       [](const auto& in, const auto& key, Window* w) { return ReadDetail(in, key, &w->detail); }},
      {"timer", [](const auto& in, const auto& key,
                   Window* w) { return ReadWord(in, key, kTimers, &w->timer); }},
      {"seconds", [](const auto& in, const auto& key,
                     Window* w) { return ReadReal(in, key, 0.001, 86400, "60", &w->seconds); }},
      {"bytes", [](const auto& in, const auto& key,
                   Window* w) { return ReadNumber(in, key, &w->bytes, kMaxBytes, "67108864"); }},
      {"count", [](const auto& in, const auto& key,
                   Window* w) { return ReadNumber(in, key, &w->count, 10'000, "100"); }},
      {"asked_ns",
       [](const auto& in, const auto& key, Window* w) {
         return ReadNumber(in, key, &w->asked_ns, static_cast<std::uint64_t>(INT64_MAX),
                           "nothing: it is not for people");
       }},
  };
  return keys;
}

std::string RangeText(const StepRange& range) {
  return range.end == range.begin + 1 ? std::to_string(range.begin)
                                      : fmt::format("{}:{}", range.begin, range.end);
}

std::string RangesText(const std::vector<StepRange>& ranges) {
  std::string out;
  for (const StepRange& range : ranges) out += (out.empty() ? "" : ",") + RangeText(range);
  return out;
}

/// A value of --window as JSON: what reads as a number or as true is one.
ordered_json WindowValue(const std::string& key, const std::string& text) {
  if (key == "steps" || key == "when" || key == "mode" || key == "timer") return text;
  if (key == "detail") return SplitAt(text, ',');
  if (key == "ranks") {
    ordered_json list = ordered_json::array();
    for (const std::string& item : SplitAt(text, ',')) list.push_back(WindowValue("rank", item));
    return list;
  }
  ordered_json value = ordered_json::parse(text, nullptr, false);
  return value.is_number() || value.is_boolean() ? value : ordered_json(text);
}

}  // namespace

std::span<const std::string_view> DetailWords() { return kDetailWords; }

Check WindowFromJson(const std::string& name, const ordered_json& in, const std::string& path,
                     Window* out) {
  if (!IsWindowName(name)) {
    return Wrong(path,
                 fmt::format("has a name that cannot be used: write 1 to {} letters, digits, '-', "
                             "'_' and '.'",
                             kMaxWindowName));
  }
  if (!in.is_object()) {
    return Wrong(path, "is not a table of keys: write for example steps = \"100:105\"");
  }
  *out = {};
  out->name = name;
  out->detail = DefaultDetail();
  for (const auto& [key, value] : in.items()) {
    const std::string where = path + "." + key;
    const auto& keys = WindowKeys();
    const auto found = std::find_if(
        keys.begin(), keys.end(), [&name = key](const auto& known) { return known.first == name; });
    if (found == keys.end()) {
      std::vector<std::string_view> words;
      for (const auto& [word, read] : keys) {
        if (word != "asked_ns") words.push_back(word);
      }
      return Wrong(where, fmt::format("is no key: write any of {}", JoinWords(words)));
    }
    if (auto wrong = found->second(value, where, out); wrong) return wrong;
  }
  const bool timed = !out->steps.empty() || out->next != 0 || out->every != 0 ||
                     out->every_seconds != 0 || out->random != 0 || out->start_time != 0 ||
                     out->duration != 0 || out->first_graph || !out->when.empty();
  if (!timed) {
    return Wrong(path,
                 "says no time: write one of steps = \"100:105\", every = 1000, every_seconds, "
                 "random, start_time, duration, first_graph, when");
  }
  if (out->random != 0 && out->random * out->length > 1) {
    return Wrong(path + ".random", fmt::format("is a share of {} windows of {} steps each, more "
                                               "than all steps: write at most {}",
                                               out->random, out->length, 1.0 / out->length));
  }
  return {};
}

ordered_json WindowToJson(const Window& window) {
  const Window none;
  ordered_json out = ordered_json::object();
  const auto add = [&](const char* key, const auto& value, const auto& unsaid) {
    if (value != unsaid) out[key] = value;
  };
  if (!window.steps.empty()) out["steps"] = RangesText(window.steps);
  add("next", window.next, none.next);
  add("every", window.every, none.every);
  add("every_seconds", window.every_seconds, none.every_seconds);
  add("random", window.random, none.random);
  add("seed", window.seed, none.seed);
  add("start_time", window.start_time, none.start_time);
  add("duration", window.duration, none.duration);
  add("first_graph", window.first_graph, none.first_graph);
  add("when", window.when, none.when);
  add("length", window.length, none.length);
  add("mode", window.mode, none.mode);
  add("ranks", window.ranks, none.ranks);
  out["detail"] = window.detail;
  add("timer", window.timer, none.timer);
  add("seconds", window.seconds, none.seconds);
  add("bytes", window.bytes, none.bytes);
  add("count", window.count, none.count);
  add("asked_ns", window.asked_ns, none.asked_ns);
  return out;
}

Result<Window> ParseWindow(std::string_view text) {
  const auto wrong_text = [&](std::string_view what) {
    return Status(Code::kUsage, fmt::format("--window '{}': {}", text, what));
  };
  if (ValidUtf8Prefix(text) != text.size()) return wrong_text("is not UTF-8: write it so");
  std::string name = "window";
  std::string_view rest = text;
  if (const auto colon = text.find(':');
      colon != std::string_view::npos &&
      text.substr(0, colon).find('=') == std::string_view::npos) {
    name = Trim(text.substr(0, colon));
    rest = text.substr(colon + 1);
  }
  ordered_json json = ordered_json::object();
  for (const std::string& part : SplitAt(rest, ';')) {
    const auto equals = part.find('=');
    const std::string key =
        equals == std::string::npos ? "detail" : std::string(Trim(part.substr(0, equals)));
    const std::string value =
        equals == std::string::npos ? part : std::string(Trim(part.substr(equals + 1)));
    if (json.contains(key)) return wrong_text(fmt::format("says {} twice: write it once", key));
    if (key == "asked_ns") return wrong_text("asked_ns is no key for people: leave it out");
    json[key] = WindowValue(key, value);
  }
  Window window;
  try {
    if (const auto wrong = WindowFromJson(name, json, name, &window); wrong) {
      return wrong_text(fmt::format("{} {}", wrong->key, wrong->what));
    }
  } catch (const std::exception& error) {
    return wrong_text(JsonTrouble(error));
  }
  return window;
}

Result<std::string> WindowsText(const std::vector<Window>& windows) {
  if (windows.empty()) return std::string();
  ordered_json all = ordered_json::object();
  for (const Window& window : windows) all[window.name] = WindowToJson(window);
  std::string text = JsonText(all);
  if (text.size() > format::kMaxWindowsBytes) {
    return Status(
        Code::kLimit,
        fmt::format("the {} windows of the plan are {} bytes, above {}: ask for fewer, or "
                    "for ranges of steps instead of lists",
                    windows.size(), text.size(), format::kMaxWindowsBytes));
  }
  return text;
}

std::string WindowTimeWords(const Window& window) {
  std::string out;
  const auto add = [&](const std::string& words) { out += (out.empty() ? "" : ", ") + words; };
  for (std::size_t i = 0; i < window.steps.size() && i < 4; ++i) {
    const StepRange& range = window.steps[i];
    add(range.end == range.begin + 1 ? fmt::format("step {}", range.begin)
                                     : fmt::format("steps {} to {}", range.begin, range.end - 1));
  }
  if (window.steps.size() > 4) add(fmt::format("{} more", window.steps.size() - 4));
  const std::string length =
      window.length == 1 ? std::string() : fmt::format(" ({} steps each)", window.length);
  if (window.next != 0) add(fmt::format("the next {} steps", window.next));
  if (window.every != 0) add(fmt::format("every {} steps{}", window.every, length));
  if (window.every_seconds != 0) add(fmt::format("every {} s{}", window.every_seconds, length));
  if (window.random != 0) add(fmt::format("{} of all steps{}", window.random, length));
  if (window.start_time != 0 || window.duration != 0) {
    std::string words = window.start_time != 0 ? fmt::format("from Unix time {}", window.start_time)
                                               : std::string("at once");
    words += window.duration != 0 ? fmt::format(" for {} s", window.duration) : length;
    add(words);
  }
  if (window.first_graph) add("after a graph was compiled" + length);
  if (!window.when.empty()) add("when " + window.when + length);
  if (window.mode != "train") out += " of " + window.mode;
  return out;
}

}  // namespace telltale::plan
