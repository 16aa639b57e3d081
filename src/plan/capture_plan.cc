// SPDX-License-Identifier: Apache-2.0
// The plan as JSON. Plan files, requests and --collect all pass through the reader here, so that
// each key means the same everywhere and is checked once.
#include "plan/capture_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <iterator>
#include <utility>

#include "base/json.h"
#include "base/utf8.h"
#include "plan/key_readers.h"
#include "plan/plan_json.h"

namespace telltale::plan {
namespace {

using nlohmann::ordered_json;

constexpr std::uint32_t kDefaultInterval = 100;
constexpr std::size_t kMaxCollections = 256;
constexpr std::size_t kMaxSteps = 100'000;
constexpr std::size_t kMaxNameBytes = 256;
/// Of a histogram's sample, as the probe takes it.
constexpr std::uint32_t kSampleBlock = 64;
constexpr std::uint32_t kMaxSample = 262'144;
constexpr std::uint64_t kMaxSlabBytes = 16ULL << 30;  // Of channel/slab.h.

struct TakeWord {
  std::string_view word;
  std::uint32_t take;
};
constexpr TakeWord kTakeWords[] = {{"statistics", kStats},
                                   {"more", kMore},
                                   {"histogram", kHistogram},
                                   {"values", kRaw},
                                   {"shape", kShape}};

// What is not in tt_stats is derived from it where that is exact: variance, sum, abs_max, abs_mean,
// abs_sum and the norms of the absolute values. The smallest absolute value and the product are
// not.
constexpr Reduction kReductions[] = {{"min", kStats},
                                     {"max", kStats},
                                     {"mean", kStats},
                                     {"std", kStats},
                                     {"variance", kStats},
                                     {"sum", kStats},
                                     {"prod", kStats | kMore},
                                     {"abs_min", kStats | kMore},
                                     {"abs_max", kStats},
                                     {"abs_mean", kStats},
                                     {"abs_std", kStats | kMore},
                                     {"abs_variance", kStats | kMore},
                                     {"abs_sum", kStats},
                                     {"abs_prod", kStats | kMore},
                                     {"l1_norm", kStats},
                                     {"l2_norm", kStats},
                                     {"abs_l1_norm", kStats},
                                     {"abs_l2_norm", kStats},
                                     {"nan", kStats},
                                     {"inf", kStats},
                                     {"zeros", kStats},
                                     {"quantiles", kStats | kHistogram},
                                     {"histogram", kStats | kHistogram}};

constexpr std::string_view kModeKeys[] = {"train", "eval", "predict", "global"};
constexpr std::string_view kWhenKeys[] = {"interval", "start", "end", "steps"};
constexpr std::string_view kCollectionKeys[] = {"include", "exclude", "tensors",      "modules",
                                                "asked",   "take",    "max_elements", "reductions"};

constexpr std::uint64_t kMaxStep =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - 1;

/// Reads the keys of a When that are there.
Check ReadWhen(const ordered_json& in, const std::string& path, When* out) {
  bool interval = false;
  bool steps = false;
  for (const auto& [key, value] : in.items()) {
    const std::string where = path + key;
    Check wrong;
    if (key == "interval") {
      interval = true;
      wrong = ReadNumber(value, where, &out->interval, UINT32_MAX, "100, or 0 for the steps alone");
    } else if (key == "start") {
      wrong = ReadNumber(value, where, &out->start, kMaxStep, "0");
    } else if (key == "end") {
      wrong = ReadNumber(value, where, &out->end, kMaxStep, "1000 for the steps before it");
    } else if (key == "steps") {
      steps = true;
      if (!value.is_array() || value.size() > kMaxSteps) {
        return Wrong(where, fmt::format("is not a list of at most {} steps: write for example "
                                        "[0, 10, 500], or use interval, start and end",
                                        kMaxSteps));
      }
      for (const ordered_json& item : value) {
        std::int64_t step = 0;
        if (wrong = ReadNumber(item, where, &step, kMaxStep, "[0, 10, 500]"); wrong) break;
        out->steps.push_back(step);
      }
      std::sort(out->steps.begin(), out->steps.end());
      out->steps.erase(std::unique(out->steps.begin(), out->steps.end()), out->steps.end());
    }
    if (wrong) return wrong;
  }
  if (!interval) out->interval = steps ? 0 : kDefaultInterval;
  if (out->end != 0 && out->end <= out->start) {
    return Wrong(path + "end", fmt::format("is {}, not after start, which is {}: write a later "
                                           "one, or 0 to take no interval",
                                           out->end, out->start));
  }
  return {};
}

Check ReadTake(const ordered_json& in, const std::string& key, std::uint32_t* out) {
  std::vector<std::string> words;
  if (auto wrong = ReadTexts(in, key, &words); wrong) return wrong;
  *out = 0;
  for (const std::string& given : words) {
    const std::string_view word = given == "raw" ? "values" : std::string_view(given);
    const auto* const found =
        std::find_if(std::begin(kTakeWords), std::end(kTakeWords),
                     [&](const TakeWord& known) { return known.word == word; });
    if (found == std::end(kTakeWords)) {
      return Wrong(key, fmt::format("knows no '{}': write any of statistics, more, histogram, "
                                    "values, shape",
                                    word));
    }
    *out |= found->take;
  }
  return {};
}

Check ReadReductions(const ordered_json& in, const std::string& key, Collection* out,
                     std::uint32_t* take) {
  if (auto wrong = ReadTexts(in, key, &out->reductions); wrong) return wrong;
  for (const std::string& name : out->reductions) {
    const auto found = std::find_if(std::begin(kReductions), std::end(kReductions),
                                    [&](const Reduction& known) { return known.name == name; });
    if (found == std::end(kReductions)) {
      std::string names;
      for (const Reduction& known : kReductions) {
        names += (names.empty() ? "" : ", ") + std::string(known.name);
      }
      return Wrong(key, fmt::format("knows no '{}': write any of {}", name, names));
    }
    *take |= found->take;
  }
  return {};
}

ordered_json WhenToJson(const When& when) {
  ordered_json out = {{"interval", when.interval}};
  if (when.start != 0) out["start"] = when.start;
  if (when.end != kNoEnd) out["end"] = when.end;
  if (!when.steps.empty()) out["steps"] = when.steps;
  return out;
}

std::vector<std::string> TakeList(std::uint32_t take) {
  std::vector<std::string> out;
  for (const TakeWord& known : kTakeWords) {
    if ((take & known.take) != 0) out.emplace_back(known.word);
  }
  return out;
}

}  // namespace

bool When::Listed(std::int64_t step) const {
  return std::binary_search(steps.begin(), steps.end(), step);
}

bool When::Due(std::int64_t step) const {
  return Listed(step) || (interval != 0 && start <= step && step < end && step % interval == 0);
}

std::span<const Reduction> Reductions() { return kReductions; }

std::string TakeWords(std::uint32_t take, std::string_view separator) {
  std::string out;
  for (const std::string& word : TakeList(take)) {
    if (!out.empty()) out += separator;
    out += word;
  }
  return out;
}

Check CollectionFromJson(const std::string& name, const ordered_json& in, const std::string& path,
                         Collection* out) {
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (name.empty() || name.size() > kMaxNameBytes || control) {
    return Wrong(path, fmt::format("has a name that cannot be used: write 1 to {} printable bytes",
                                   kMaxNameBytes));
  }
  if (!in.is_object())
    return Wrong(path, "is not a table of keys: write for example interval = 10");
  *out = {};
  out->name = name;
  std::uint32_t take = 0;
  bool take_said = false;
  ordered_json flat = ordered_json::object();
  bool mode_said = false;
  for (const auto& [key, value] : in.items()) {
    const std::string where = path + "." + key;
    Check wrong;
    std::uint32_t read = 0;
    if (key == "include") {
      wrong = ReadTexts(value, where, &out->include);
    } else if (key == "exclude") {
      wrong = ReadTexts(value, where, &out->exclude);
    } else if (key == "tensors") {
      wrong = ReadTexts(value, where, &out->tensors);
    } else if (key == "modules") {
      wrong = ReadTexts(value, where, &out->modules);
    } else if (key == "take") {
      wrong = ReadTake(value, where, &read);
      take_said = true;
    } else if (key == "reductions") {
      wrong = ReadReductions(value, where, out, &read);
      take_said = true;
    } else if (key == "max_elements") {
      wrong = ReadNumber(value, where, &out->max_elements, kMaxSample, "65536");
      if (!wrong && (out->max_elements == 0 || out->max_elements % kSampleBlock != 0)) {
        wrong = Wrong(where, fmt::format("is not a multiple of {} from {} to {}: write 65536",
                                         kSampleBlock, kSampleBlock, kMaxSample));
      }
    } else if (key == "asked") {
      if (!value.is_boolean()) {
        wrong = Wrong(where, "is not true or false: write true, or leave it out");
      } else {
        out->asked = value.get<bool>();
      }
    } else if (IsOneOf(kWhenKeys, key)) {
      flat[key] = value;
    } else if (IsOneOf(kModeKeys, key)) {
      mode_said = true;
      if (!value.is_object())
        wrong = Wrong(where, fmt::format("is not a table: write for example {} = {{ interval = 1 }}"
                                         ", or with --collect {}.interval=1",
                                         key, key));
    } else {
      wrong =
          Wrong(where, fmt::format("is no key: write any of {}, {}, {}", JoinWords(kCollectionKeys),
                                   JoinWords(kWhenKeys), JoinWords(kModeKeys)));
    }
    if (wrong) return wrong;
    take |= read;
  }
  if (take_said) out->take = take;
  // Absolute values, products and histograms are read beside the statistics.
  if ((out->take & (kMore | kHistogram)) != 0) out->take |= kStats;
  if (out->take == 0) {
    return Wrong(path + ".take",
                 "is empty, so that nothing is taken: write [\"statistics\"], or leave "
                 "the collection out");
  }
  // Without a word about the time every mode has the default; where only a mode has one, the others
  // rest.
  if (!flat.empty() || !mode_said) {
    When when;
    if (auto wrong = ReadWhen(flat, path + ".", &when); wrong) return wrong;
    out->when.fill(when);
  }
  for (std::size_t mode = 0; mode < std::size(kModeKeys); ++mode) {
    const auto found = in.find(std::string(kModeKeys[mode]));
    if (found == in.end()) continue;
    const std::string where = fmt::format("{}.{}", path, kModeKeys[mode]);
    for (const auto& [key, value] : found->items()) {
      if (!IsOneOf(kWhenKeys, key)) {
        return Wrong(where + "." + key,
                     fmt::format("is no key: write any of {}", JoinWords(kWhenKeys)));
      }
    }
    out->when[mode] = {};
    if (auto wrong = ReadWhen(*found, where + ".", &out->when[mode]); wrong) return wrong;
  }
  return {};
}

ordered_json CollectionToJson(const Collection& collection) {
  ordered_json out = ordered_json::object();
  const auto list = [&](const char* key, const std::vector<std::string>& items) {
    if (!items.empty()) out[key] = items;
  };
  list("include", collection.include);
  list("exclude", collection.exclude);
  list("tensors", collection.tensors);
  list("modules", collection.modules);
  out["take"] = TakeList(collection.take);
  list("reductions", collection.reductions);
  if (collection.max_elements != 0) out["max_elements"] = collection.max_elements;
  if (collection.asked) out["asked"] = true;
  const auto& when = collection.when;
  const bool same =
      std::all_of(when.begin(), when.end(), [&](const When& w) { return w == when[0]; });
  if (same) {
    out.update(WhenToJson(when[0]));
    return out;
  }
  for (std::size_t mode = 0; mode < when.size(); ++mode) {
    if (when[mode] != When{}) out[std::string(kModeKeys[mode])] = WhenToJson(when[mode]);
  }
  return out;
}

namespace {

/// Adds them to those of the level.
Check ReadWindows(const ordered_json& in, CapturePlan* out) {
  if (!in.is_object() || in.size() > kMaxWindows) {
    return Wrong("windows", fmt::format("is not a table of at most {} windows", kMaxWindows));
  }
  CapturePlan more;
  for (const auto& [name, value] : in.items()) {
    Window window;
    if (auto wrong = WindowFromJson(name, value, "windows." + name, &window); wrong) return wrong;
    more.windows.push_back(std::move(window));
  }
  *out = Union(std::move(*out), more);
  return {};
}

}  // namespace

Check PlanFromJson(const ordered_json& in, Stands stands, CapturePlan* out) {
  if (!in.is_object()) return Wrong("", "is not an object: write {\"level\": \"tensors\"}");
  const auto level = in.find("level");
  const auto collections = in.find("collections");
  *out = {};
  out->level = "custom";
  if (level != in.end()) {
    if (!level->is_string()) return Wrong("level", "is not a text: write \"tensors\"");
    const std::string name = level->get<std::string>();
    if (name != "custom") {
      Result<CapturePlan> plan = PlanOfLevel(name);
      if (!plan.ok()) return Wrong("level", "cannot be used: " + plan.status().message());
      *out = std::move(plan).value();
    }
  } else if (collections == in.end() && stands == Stands::kAlone) {
    *out = DefaultPlan();
  }
  for (const auto& [key, value] : in.items()) {
    if (key == "level") continue;
    if (key == "slab_bytes") {
      std::uint64_t bytes = 0;
      if (auto wrong = ReadNumber(value, key, &bytes, kMaxSlabBytes, "268435456"); wrong) {
        return wrong;
      }
      out->slab_bytes = bytes;
    } else if (key == "windows") {
      if (auto wrong = ReadWindows(value, out); wrong) return wrong;
    } else if (key != "collections") {
      return Wrong(key, "is no key: write level, slab_bytes, collections and windows");
    }
  }
  if (collections == in.end()) return {};
  if (!collections->is_object() || collections->size() > kMaxCollections) {
    return Wrong("collections",
                 fmt::format("is not a table of at most {} collections", kMaxCollections));
  }
  CapturePlan more;
  for (const auto& [name, value] : collections->items()) {
    Collection collection;
    if (auto wrong = CollectionFromJson(name, value, "collections." + name, &collection); wrong) {
      return wrong;
    }
    more.collections.push_back(std::move(collection));
  }
  *out = Union(std::move(*out), more);
  return {};
}

ordered_json PlanToJson(const CapturePlan& plan) {
  ordered_json collections = ordered_json::object();
  for (const Collection& collection : plan.collections) {
    collections[collection.name] = CollectionToJson(collection);
  }
  ordered_json out = {{"level", plan.level}};
  if (plan.slab_bytes) out["slab_bytes"] = *plan.slab_bytes;
  out["collections"] = collections;
  if (!plan.windows.empty()) {
    ordered_json windows = ordered_json::object();
    for (const Window& window : plan.windows) windows[window.name] = WindowToJson(window);
    out["windows"] = windows;
  }
  return out;
}

namespace {

/// Adds each of `more`, or puts it in the place of the one of its name. Whether anything changed.
template <class Named>
bool PutByName(const std::vector<Named>& more, std::vector<Named>* all) {
  bool changed = false;
  for (const Named& one : more) {
    const auto same = std::find_if(all->begin(), all->end(),
                                   [&](const Named& other) { return other.name == one.name; });
    if (same == all->end()) {
      all->push_back(one);
      changed = true;
    } else if (!(*same == one)) {
      *same = one;
      changed = true;
    }
  }
  return changed;
}

}  // namespace

CapturePlan Union(CapturePlan plan, const CapturePlan& more) {
  const bool collections = PutByName(more.collections, &plan.collections);
  const bool windows = PutByName(more.windows, &plan.windows);
  if (more.slab_bytes) plan.slab_bytes = more.slab_bytes;
  if (collections || windows) plan.level = "custom";
  return plan;
}

std::string ToJson(const CapturePlan& plan) { return JsonText(PlanToJson(plan)); }

Result<CapturePlan> FromJson(std::string_view text, Stands stands) {
  try {
    const auto json = ParseOrderedJson(text);
    CapturePlan plan;
    const auto wrong =
        json.is_discarded() ? Check(Wrong("", "is not JSON")) : PlanFromJson(json, stands, &plan);
    if (wrong) {
      return Status(Code::kUsage,
                    wrong->key.empty()
                        ? fmt::format("capture plan: it {}", wrong->what)
                        : fmt::format("capture plan: {} {}", wrong->key, wrong->what));
    }
    return plan;
  } catch (const std::exception& error) {
    return Status(Code::kUsage,
                  fmt::format("capture plan: cannot be read: {}", JsonTrouble(error)));
  }
}

namespace {

/// At commas outside of brackets, so that a pattern may hold them.
std::vector<std::string> SplitOptions(std::string_view text) {
  std::vector<std::string> out(1);
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && i + 1 < text.size()) {
      out.back() += c;
      out.back() += text[++i];
      continue;
    }
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (c == ',' && depth <= 0) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

std::vector<std::string> SplitList(std::string_view text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == '+') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

/// A number where it is one, else the text, which the reader then refuses with its own word.
ordered_json NumberOf(const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return text;
  return number;
}

ordered_json ValueOf(std::string_view key, const std::string& text) {
  if (key == "steps") {
    ordered_json list = ordered_json::array();
    for (const std::string& item : SplitList(text)) list.push_back(NumberOf(item));
    return list;
  }
  // A plus belongs to the pattern there: several patterns are several keys.
  if (key == "include" || key == "exclude") return ordered_json::array({text});
  if (key == "interval" || key == "start" || key == "end" || key == "max_elements") {
    return NumberOf(text);
  }
  return SplitList(text);
}

}  // namespace

Result<Collection> ParseCollect(std::string_view text) {
  const auto colon = text.find(':');
  const std::string name(text.substr(0, colon));
  ordered_json json = ordered_json::object();
  const auto wrong_text = [&](std::string_view what) {
    return Status(Code::kUsage, fmt::format("--collect '{}': {}", text, what));
  };
  if (ValidUtf8Prefix(text) != text.size()) return wrong_text("is not UTF-8: write it so");
  std::string twice;
  const auto append = [&](ordered_json* object, const std::string& key, ordered_json value) {
    const auto found = object->find(key);
    if (found == object->end()) {
      (*object)[key] = std::move(value);
    } else if (found->is_array() && value.is_array()) {
      for (ordered_json& item : value) found->push_back(std::move(item));
    } else {
      twice = key;
    }
  };
  if (colon != std::string_view::npos) {
    for (const std::string& option : SplitOptions(text.substr(colon + 1))) {
      const auto equals = option.find('=');
      if (equals == std::string::npos) {
        append(&json, "take", ordered_json(SplitList(option)));
        continue;
      }
      const std::string key = option.substr(0, equals);
      const std::string value = option.substr(equals + 1);
      const auto dot = key.find('.');
      if (dot == std::string::npos) {
        append(&json, key, ValueOf(key, value));
        continue;
      }
      const std::string mode = key.substr(0, dot);
      const std::string inner = key.substr(dot + 1);
      if (!json.contains(mode)) json[mode] = ordered_json::object();
      if (json[mode].is_object()) append(&json[mode], inner, ValueOf(inner, value));
    }
  }
  if (!twice.empty()) {
    return wrong_text(fmt::format("says {} twice: write it once", twice));
  }
  Collection collection;
  try {
    if (const auto wrong = CollectionFromJson(name, json, name, &collection); wrong) {
      return wrong_text(fmt::format("{} {}", wrong->key, wrong->what));
    }
  } catch (const std::exception& error) {
    return wrong_text(JsonTrouble(error));
  }
  return collection;
}

}  // namespace telltale::plan
