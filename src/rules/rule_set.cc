// SPDX-License-Identifier: Apache-2.0
// Rule sets between their texts and what the engine is made of.
#include "rules/rule_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/json.h"
#include "base/printable.h"
#include "base/toml_tree.h"
#include "rules/actions/kinds.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 7> kActionKinds = {"stop",    "webhook", "email",  "sms",
                                                          "program", "capture", "profile"};

/// What is wrong: "rules.DeadRelu.preset" "is ...".
struct KeyError {
  std::string key;
  std::string what;
};
using Wrong = std::optional<KeyError>;

std::optional<Severity> SeverityOf(std::string_view text) {
  for (const Severity s : {Severity::kInfo, Severity::kLow, Severity::kMedium, Severity::kHigh}) {
    if (Name(s) == text) return s;
  }
  return std::nullopt;
}

/// A value of a parameter as people write it.
std::optional<std::string> TextOf(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return JsonText(value);
  if (!value.is_array()) return std::nullopt;
  std::string out;
  for (const ordered_json& item : value) {
    const auto text = TextOf(item);
    if (!text) return std::nullopt;
    out += (out.empty() ? "" : ",") + *text;
  }
  return out;
}

Wrong ReadTexts(const ordered_json& in, const std::string& path,
                std::map<std::string, std::string>* out) {
  if (!in.is_object()) return KeyError{path, "is no table of parameters"};
  for (const auto& [key, value] : in.items()) {
    auto text = TextOf(value);
    if (!text) return KeyError{path + "." + key, "is no number, text or list of them"};
    (*out)[key] = std::move(*text);
  }
  return std::nullopt;
}

Wrong ReadSeverity(const ordered_json& in, const std::string& path, Severity* out) {
  const auto severity = in.is_string() ? SeverityOf(in.get<std::string>()) : std::nullopt;
  if (!severity) return KeyError{path, "is no severity: write info, low, medium or high"};
  *out = *severity;
  return std::nullopt;
}

Wrong ReadAction(const ordered_json& in, const std::string& path, ActionSpec* out) {
  if (!in.is_object()) return KeyError{path, "is no table"};
  for (const auto& [key, value] : in.items()) {
    const std::string at = path + "." + key;
    if (key == "kind") {
      const std::string kind = value.is_string() ? value.get<std::string>() : "";
      if (std::find(kActionKinds.begin(), kActionKinds.end(), kind) == kActionKinds.end()) {
        return KeyError{at, fmt::format("'{}' is no action: write one of {}", Printable(kind),
                                        fmt::join(kActionKinds, ", "))};
      }
      out->kind = kind;
    } else if (key == "from") {
      if (auto wrong = ReadSeverity(value, at, &out->from)) return wrong;
    } else if (key == "dry_run") {
      if (!value.is_boolean()) return KeyError{at, "is neither true nor false"};
      out->dry_run = value.get<bool>();
    } else {
      auto text = TextOf(value);
      if (!text) return KeyError{at, "is no number, text or list of them"};
      out->parameters[key] = std::move(*text);
    }
  }
  if (out->kind.empty()) {
    return KeyError{path,
                    fmt::format("has no kind: write one of {}", fmt::join(kActionKinds, ", "))};
  }
  return std::nullopt;
}

Wrong ReadActions(const ordered_json& in, const std::string& path, std::vector<ActionSpec>* out) {
  if (!in.is_array()) return KeyError{path, "is no list of tables: write [[actions]]"};
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (auto wrong = ReadAction(in[i], fmt::format("{}.{}", path, i), &out->emplace_back())) {
      return wrong;
    }
  }
  return std::nullopt;
}

Wrong ReadText(const ordered_json& in, const std::string& path, std::string* out) {
  if (!in.is_string()) return KeyError{path, "is no text"};
  *out = in.get<std::string>();
  return std::nullopt;
}

Wrong ReadRule(const std::string& name, const ordered_json& in, const std::string& path,
               RuleSpec* out) {
  out->name = name;
  if (name.empty() || name.size() > 200) return KeyError{path, "has no name of 1 to 200 bytes"};
  if (!in.is_object()) return KeyError{path, "is no table"};
  int sources = 0;
  for (const auto& [key, value] : in.items()) {
    const std::string at = path + "." + key;
    Wrong wrong;
    if (key == "rule") {
      wrong = ReadText(value, at, &out->rule);
      ++sources;
    } else if (key == "expression") {
      out->source = RuleSource::kExpression;
      wrong = ReadText(value, at, &out->rule);
      ++sources;
    } else if (key == "python") {
      out->source = RuleSource::kPython;
      wrong = ReadText(value, at, &out->rule);
      ++sources;
    } else if (key == "preset") {
      wrong = ReadText(value, at, &out->preset);
      if (!wrong && !out->preset.empty() && out->preset != "source") {
        wrong = KeyError{at,
                         "is no preset: write \"source\", or leave it out for the defaults of "
                         "the documentation"};
      }
    } else if (key == "parameters") {
      wrong = ReadTexts(value, at, &out->parameters);
    } else if (key == "actions") {
      wrong = ReadActions(value, at, &out->actions);
    } else if (key == "severity") {
      wrong = ReadSeverity(value, at, &out->severity);
    } else if (key == "message") {
      wrong = ReadText(value, at, &out->message);
    } else if (key == "advice") {
      wrong = ReadText(value, at, &out->advice);
    } else {
      wrong = KeyError{at,
                       "is unknown: a rule has rule, expression or python, preset, "
                       "parameters, actions, severity, message, advice"};
    }
    if (wrong) return wrong;
  }
  if (sources > 1) return KeyError{path, "has more than one of rule, expression, python"};
  if (sources == 0) out->rule = name;
  if (out->rule.empty()) return KeyError{path, "names no rule"};
  return std::nullopt;
}

Wrong ReadSet(const ordered_json& in, RuleSet* out) {
  if (!in.is_object()) return KeyError{"", "is no table"};
  for (const auto& [key, value] : in.items()) {
    Wrong wrong;
    if (key == "defaults") {
      if (!value.is_boolean()) return KeyError{key, "is neither true nor false"};
      out->defaults = value.get<bool>();
    } else if (key == "capture") {
      if (!value.is_boolean()) return KeyError{key, "is neither true nor false"};
      out->capture = value.get<bool>();
    } else if (key == "off") {
      if (!value.is_array()) return KeyError{key, "is no list of rules' names"};
      for (const ordered_json& name : value) {
        if (!name.is_string()) return KeyError{key, "is no list of rules' names"};
        out->off.push_back(name.get<std::string>());
      }
    } else if (key == "rules") {
      if (!value.is_object()) return KeyError{key, "is no table of rules: write [rules.NAME]"};
      for (const auto& [name, rule] : value.items()) {
        wrong = ReadRule(name, rule, "rules." + name, &out->rules.emplace_back());
        if (wrong) return wrong;
      }
    } else if (key == "actions") {
      wrong = ReadActions(value, key, &out->actions);
    } else if (key == "price_per_hour") {
      if (!value.is_number() || !(value.get<double>() >= 0)) {
        return KeyError{key, "is no price: write a number, in `currency` for all machines"};
      }
      out->price_per_hour = value.get<double>();
    } else if (key == "currency") {
      wrong = ReadText(value, key, &out->currency);
    } else {
      wrong = KeyError{key,
                       "is unknown: a rules file has defaults, off, rules, actions, capture, "
                       "price_per_hour, currency"};
    }
    if (wrong) return wrong;
  }
  return std::nullopt;
}

ordered_json ActionToJson(const ActionSpec& action) {
  ordered_json out = {
      {"kind", action.kind}, {"from", Name(action.from)}, {"dry_run", action.dry_run}};
  for (const auto& [key, value] : action.parameters) out[key] = value;
  return out;
}

ordered_json ActionsToJson(const std::vector<ActionSpec>& actions) {
  ordered_json out = ordered_json::array();
  for (const ActionSpec& action : actions) out.push_back(ActionToJson(action));
  return out;
}

std::string_view KeyOf(RuleSource source) {
  switch (source) {
    case RuleSource::kExpression:
      return "expression";
    case RuleSource::kPython:
      return "python";
    case RuleSource::kBuiltIn:
      break;
  }
  return "rule";
}

/// Names that are like a wrong one but for case and "Rule" at the end.
std::string Suggestion(std::string_view wrong) {
  const auto plain = [](std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (c != '_' && c != '-') out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    if (out.ends_with("rule")) out.resize(out.size() - 4);
    return out;
  };
  for (const RuleEntry& entry : Registry()) {
    if (plain(entry.desc->name) == plain(wrong)) {
      return fmt::format("write {}", entry.desc->name);
    }
  }
  return "see `telltale rules list`";
}

}  // namespace

Result<Parameters> ParametersOf(const RuleSpec& spec) {
  const RuleEntry* entry = FindRule(spec.rule);
  if (entry == nullptr) {
    return Status(Code::kUsage,
                  fmt::format("no rule '{}': {}", Printable(spec.rule), Suggestion(spec.rule)));
  }
  Parameters parameters(*entry->desc, spec.preset == "source");
  for (const auto& [name, value] : spec.parameters) {
    if (const Status set = parameters.SetText(name, value); !set.ok()) {
      return Status(set.code(), fmt::format("rule {}: {}", Printable(spec.name), set.message()));
    }
  }
  return parameters;
}

namespace {

/// StalledTrainingRule's own parameter is SageMaker's word for an action, one that acts.
/// REQUIRES: the parameters were checked.
void AddStopOnFire(RuleSpec* spec) {
  if (spec->source != RuleSource::kBuiltIn || spec->rule != "StalledTrainingRule") return;
  const auto parameters = ParametersOf(*spec);
  if (!parameters.ok() || parameters->Get("stop_training_on_fire") == 0) return;
  const bool stops = std::any_of(spec->actions.begin(), spec->actions.end(),
                                 [](const ActionSpec& action) { return action.kind == "stop"; });
  if (stops) return;
  spec->actions.push_back(ActionSpec{.kind = "stop", .dry_run = false});
}

}  // namespace

Result<std::vector<RuleSpec>> Resolve(const RuleSet& set) {
  std::map<std::string, RuleSpec, std::less<>> named;
  if (set.defaults) {
    for (const RuleEntry& entry : Registry()) {
      if (!entry.desc->by_default) continue;
      RuleSpec spec;
      spec.name = entry.desc->name;
      spec.rule = entry.desc->name;
      named.emplace(spec.name, std::move(spec));
    }
  }
  std::set<std::string, std::less<>> own;
  for (const RuleSpec& spec : set.rules) {
    if (!own.insert(spec.name).second) {
      return Status(Code::kUsage, fmt::format("two rules are called '{}': give one another name",
                                              Printable(spec.name)));
    }
    if (spec.source == RuleSource::kBuiltIn) {
      TELLTALE_RETURN_IF_ERROR(ParametersOf(spec).status());
    }
    named.insert_or_assign(spec.name, spec);
  }
  for (const std::string& name : set.off) {
    if (named.erase(name) == 0 && FindRule(name) == nullptr) {
      return Status(Code::kUsage,
                    fmt::format("off: no rule '{}': {}", Printable(name), Suggestion(name)));
    }
  }
  std::vector<RuleSpec> out;
  out.reserve(named.size());
  for (auto& [name, spec] : named) {
    if (spec.actions.empty()) spec.actions = set.actions;
    AddStopOnFire(&spec);
    for (const ActionSpec& action : spec.actions) {
      if (const Status checked = CheckAction(action); !checked.ok()) {
        return Status(checked.code(),
                      fmt::format("rule {}: {}", Printable(spec.name), checked.message()));
      }
    }
    out.push_back(std::move(spec));
  }
  return out;
}

std::string ToJson(const RuleSet& set) {
  ordered_json out = {{"defaults", set.defaults}, {"off", set.off}, {"capture", set.capture}};
  ordered_json rules = ordered_json::object();
  for (const RuleSpec& spec : set.rules) {
    ordered_json rule = {{KeyOf(spec.source), spec.rule}};
    if (!spec.preset.empty()) rule["preset"] = spec.preset;
    if (!spec.parameters.empty()) rule["parameters"] = spec.parameters;
    if (!spec.actions.empty()) rule["actions"] = ActionsToJson(spec.actions);
    if (spec.source == RuleSource::kExpression) {
      rule["severity"] = Name(spec.severity);
      rule["message"] = spec.message;
      rule["advice"] = spec.advice;
    }
    rules[spec.name] = std::move(rule);
  }
  out["rules"] = std::move(rules);
  out["actions"] = ActionsToJson(set.actions);
  out["price_per_hour"] = set.price_per_hour;
  out["currency"] = set.currency;
  return JsonText(out);
}

Result<RuleSet> RuleSetFromJson(std::string_view text) {
  RuleSet set;
  if (text.empty()) return set;
  try {
    const ordered_json tree = ParseOrderedJson(text);
    if (tree.is_discarded()) return Status(Code::kUsage, "the rules are no JSON");
    if (const Wrong wrong = ReadSet(tree, &set)) {
      return Status(Code::kUsage,
                    fmt::format("{} {}", wrong->key.empty() ? "it" : wrong->key, wrong->what));
    }
  } catch (const std::exception& error) {
    return Status(Code::kUsage, fmt::format("the rules cannot be read: {}", JsonTrouble(error)));
  }
  return set;
}

Result<RuleSet> RuleSetFromToml(std::string_view text, std::string_view where) {
  TELLTALE_ASSIGN_OR_RETURN(const TomlTree tree,
                            TomlTree::Parse(text, where, "docs/formats/rules.md"));
  RuleSet set;
  try {
    if (const Wrong wrong = ReadSet(tree.root(), &set)) {
      return Status(Code::kUsage, fmt::format("{}: {} {}", tree.PlaceOf(wrong->key),
                                              wrong->key.empty() ? "it" : wrong->key, wrong->what));
    }
  } catch (const std::exception& error) {
    return Status(Code::kUsage, fmt::format("{}: cannot be read: {}", where, JsonTrouble(error)));
  }
  return set;
}

Result<RuleSpec> ParseRule(std::string_view text) {
  RuleSpec spec;
  const auto colon = text.find(':');
  spec.name = text.substr(0, colon);
  spec.rule = spec.name;
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  while (!rest.empty()) {
    const auto equals = rest.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return Status(Code::kUsage, fmt::format("--rule '{}': '{}' is not parameter=value",
                                              Printable(text), Printable(rest)));
    }
    const std::string key(rest.substr(0, equals));
    rest.remove_prefix(equals + 1);
    std::string value;
    bool quoted = false;
    std::size_t used = 0;
    for (; used < rest.size() && (quoted || rest[used] != ','); ++used) {
      if (rest[used] == '"') {
        quoted = !quoted;
      } else {
        value += rest[used];
      }
    }
    if (quoted) {
      return Status(Code::kUsage,
                    fmt::format("--rule '{}': a quotation mark is not closed", Printable(text)));
    }
    rest.remove_prefix(std::min(used + 1, rest.size()));
    if (key == "preset") {
      spec.preset = value;
    } else {
      spec.parameters[key] = std::move(value);
    }
  }
  if (!spec.preset.empty() && spec.preset != "source") {
    return Status(Code::kUsage, fmt::format("--rule '{}': no preset '{}': write preset=source",
                                            Printable(text), Printable(spec.preset)));
  }
  TELLTALE_RETURN_IF_ERROR(ParametersOf(spec).status());
  return spec;
}

namespace {

/// Where it is "{parameter}" the text of that parameter.
std::string Filled(std::string_view text, const Parameters& parameters) {
  if (text.size() > 2 && text.front() == '{' && text.back() == '}') {
    return parameters.Text(text.substr(1, text.size() - 2));
  }
  return std::string(text);
}

void AddNeeds(const std::string& rule, const CaptureNeed& need, const Parameters& parameters,
              std::vector<Need>* out) {
  const std::string include = WithOurNames(Filled(need.include, parameters));
  if (need.collection.empty()) {
    if (!include.empty()) {
      out->push_back({rule, rule, include, std::string(need.take), need.interval,
                      need.eval_interval, need.asked_only});
    }
    return;
  }
  const std::string collections = Filled(need.collection, parameters);
  for (std::string_view rest = collections; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    std::string_view name = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (name.empty()) continue;
    out->push_back({rule, std::string(name), include, std::string(need.take), need.interval,
                    need.eval_interval, need.asked_only});
  }
}

}  // namespace

std::vector<Need> NeedsOf(const RuleSpec& spec) {
  std::vector<Need> out;
  if (spec.source != RuleSource::kBuiltIn) return out;
  const RuleEntry* const entry = FindRule(spec.rule);
  const auto parameters = ParametersOf(spec);
  if (entry == nullptr || !parameters.ok()) return out;
  for (const CaptureNeed& need : entry->desc->captures) {
    AddNeeds(spec.name, need, *parameters, &out);
  }
  return out;
}

std::vector<Need> NeedsOf(const RuleSet& set) {
  std::vector<Need> out;
  const auto specs = Resolve(set);
  if (!specs.ok()) return out;
  for (const RuleSpec& spec : *specs) {
    const bool asked = std::any_of(set.rules.begin(), set.rules.end(),
                                   [&](const RuleSpec& named) { return named.name == spec.name; });
    for (Need& need : NeedsOf(spec)) {
      if (asked || !need.asked_only) out.push_back(std::move(need));
    }
  }
  return out;
}

}  // namespace telltale::rules
