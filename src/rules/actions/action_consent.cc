// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/action_consent.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/printable.h"
#include "rules/actions/kinds.h"

namespace telltale::rules {
namespace {

using nlohmann::ordered_json;

constexpr const char* kPassedOn = "TELLTALE_ACTIONS_AGREED";
/// A program can be started with no longer one.
constexpr std::size_t kMostPassedOnBytes = 64U << 10U;
constexpr std::size_t kMostShownBytes = 200;  ///< Of one value.

std::string Variable(const char* name) {
  // Nobody sets variables once threads run.
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? std::string() : std::string(value);
}

/// All that decides what is done, to whom and with what, on one line.
std::string LineOf(const ActionSpec& spec) {
  ordered_json line = ordered_json::object();
  line["action"] = spec.kind;
  line["from"] = Name(spec.from);
  line["parameters"] = ordered_json(spec.parameters);
  // A file that is named without its folder is another one elsewhere.
  const bool relative =
      std::any_of(spec.parameters.begin(), spec.parameters.end(), [](const auto& one) {
        return one.first.ends_with("_file") && !one.second.empty() && one.second.front() != '/';
      });
  if (relative) {
    std::error_code error;
    line["folder"] = std::filesystem::current_path(error).string();
  }
  return line.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
}

/// Of the actions that act, as a reader of the run will see them.
std::vector<std::string> LinesOf(const RuleSet& set) {
  const auto stored = RuleSetFromJson(ToJson(set));
  const auto rules = Resolve(stored.ok() ? *stored : set);
  if (!rules.ok()) return {};
  std::set<std::string> lines;
  for (const RuleSpec& rule : *rules) {
    for (const ActionSpec& spec : rule.actions) {
      if (!spec.dry_run) lines.insert(LineOf(spec));
    }
  }
  return {lines.begin(), lines.end()};
}

/// "url = http://..., token_file = /home/me/token": what was given, and the credentials that the
/// kind takes without being told.
std::string ParameterWords(const ActionSpec& spec) {
  std::map<std::string, std::string> shown = spec.parameters;
  if (const ActionKind* kind = FindActionKind(spec.kind)) {
    for (const ActionParameter& parameter : kind->parameters) {
      if (parameter.name.ends_with("_env") && !parameter.default_value.empty()) {
        shown.try_emplace(std::string(parameter.name), parameter.default_value);
      }
    }
  }
  std::string out;
  for (const auto& [name, value] : shown) {
    std::string text = Printable(value);
    if (text.size() > kMostShownBytes) text = Printable(text.substr(0, kMostShownBytes)) + "...";
    out += fmt::format("{}{} = {}", out.empty() ? "" : ", ", Printable(name), text);
  }
  return out;
}

}  // namespace

std::filesystem::path ActionConsent::File() { return Consent::FileOf("actions"); }

ActionConsent& ActionConsent::OfUser() {
  static ActionConsent consent(File());
  static const bool inherited = [] {
    std::vector<std::string> lines;
    std::string text = Variable(kPassedOn);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      lines.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    consent.consent_.Allow(lines);
    return true;
  }();
  (void)inherited;
  return consent;
}

bool ActionConsent::Asks(const RuleSet& set) { return !LinesOf(set).empty(); }

void ActionConsent::Allow(const RuleSet& set) { consent_.Allow(LinesOf(set)); }

Status ActionConsent::Remember(const RuleSet& set) { return consent_.Remember(LinesOf(set)); }

bool ActionConsent::PassOn(const RuleSet& set) {
  std::string text;
  for (const std::string& line : LinesOf(set)) text += line + "\n";
  if (text.empty()) return true;
  if (text.size() > kMostPassedOnBytes) return false;
  return ::setenv(kPassedOn, text.c_str(), 1) == 0;  // NOLINT(concurrency-mt-unsafe)
}

std::string_view ActionConsent::WhyNot(const ActionSpec& spec) const {
  const std::string which = Variable("TELLTALE_ACTIONS");
  if (which == "off") return kSwitchedOff;
  return which == "on" || consent_.Has(LineOf(spec)) ? std::string_view() : kNotAgreed;
}

std::vector<std::string> NotAgreedLines(const std::vector<RuleSpec>& rules,
                                        const ActionConsent& consent) {
  struct Action {
    std::string_view why;
    std::vector<std::string> rules;
  };
  std::map<std::string, Action> by_action;
  for (const RuleSpec& rule : rules) {
    for (const ActionSpec& spec : rule.actions) {
      const std::string_view why = spec.dry_run ? std::string_view() : consent.WhyNot(spec);
      if (why.empty()) continue;
      const std::string words = ParameterWords(spec);
      Action& action =
          by_action[fmt::format("{}{}{}", spec.kind, words.empty() ? "" : ": ", words)];
      action.why = why;
      action.rules.push_back(rule.name);
    }
  }
  std::vector<std::string> out;
  for (const auto& [words, action] : by_action) {
    out.push_back(fmt::format(
        "the run's action {} (of {}) is not carried out: {}", words,
        action.rules.size() == 1 ? "rule " + Printable(action.rules[0])
                                 : fmt::format("{} rules", action.rules.size()),
        action.why == kSwitchedOff
            ? "TELLTALE_ACTIONS=off switches all actions off"
            : "you have not agreed to it: --actions carries out what this run names, or "
              "TELLTALE_ACTIONS=on"));
  }
  return out;
}

}  // namespace telltale::rules
