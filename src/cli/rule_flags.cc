// SPDX-License-Identifier: Apache-2.0
#include "cli/rule_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "base/printable.h"
#include "rules/rule_pack.h"
#include "rules/run_engine.h"
#include "store/folder.h"
#include "store/run_info.h"

namespace telltale::cli {
namespace {

constexpr std::uint64_t kMaxFileBytes = 8ULL << 20;  ///< Of a rules file.

Result<rules::RuleSet> ParseRuleSet(const std::string& file) {
  const auto text = store::ReadWholeFile(file, kMaxFileBytes);
  if (!text.ok()) {
    const Code code = text.status().code() == Code::kLimit ? Code::kLimit : Code::kUnusable;
    return Status(code, fmt::format("--rules '{}': {}: name a file of docs/formats/rules.md; a "
                                    "rule's name goes to --rule",
                                    Printable(file), text.status().message()));
  }
  if (!file.ends_with(".json")) return rules::RuleSetFromToml(*text, file);
  auto set = rules::RuleSetFromJson(*text);
  if (!set.ok()) {
    return Status(set.status().code(),
                  fmt::format("{}: {}", Printable(file), set.status().message()));
  }
  return set;
}

/// `path`: a file, or a folder with one and the Python files that it names.
Result<rules::RuleSet> ReadRuleSet(const std::string& path) {
  const std::string file = rules::RulesFileOf(path).string();
  TELLTALE_ASSIGN_OR_RETURN(rules::RuleSet set, ParseRuleSet(file));
  TELLTALE_RETURN_IF_ERROR(rules::CompleteRules(file, &set));
  return set;
}

}  // namespace

void AddRuleFlag(CLI::App* command, RuleFlags* flags) {
  AddOption(command, "--rule", flags->rules,
            "NAME[:parameter=value,...]: runs a rule too, or with other parameters, and "
            "captures what it needs; may be repeated")
      .OneEach();
}

void AddRuleFlags(CLI::App* command, RuleFlags* flags) {
  AddOption(command, "--rules", flags->file,
            "Rules file, TOML or (.json) JSON, or a folder with rules.toml: rules, "
            "parameters, actions, price (docs/formats/rules.md)");
  AddRuleFlag(command, flags);
  AddOption(command, "--no-rule", flags->off, "NAME: does not run; may be repeated").OneEach();
  AddOption(command, "--price", flags->price_per_hour,
            "Price of the machines together per hour, for what findings cost")
      .NotNegative();
}

Option AddPythonRulesFlag(CLI::App* command) {
  return AddFlag(
      command, "--python-rules", [] { UsePythonRules(rules::PythonRules::kAll); },
      "Runs the rules in Python that RUN names though you have not asked for them yourself: they "
      "are code, and run with your rights");
}

Option AddActionsFlag(CLI::App* command) {
  return AddFlag(
      command, "--actions",
      [] { ::setenv("TELLTALE_ACTIONS", "on", 1); },  // NOLINT(concurrency-mt-unsafe)
      "Carries out the actions that RUN names though you have not agreed to them yourself: they "
      "use "
      "your rights and your credentials");
}

void UsePythonRules(rules::PythonRules which) {
  const char* const value = which == rules::PythonRules::kAll    ? "on"
                            : which == rules::PythonRules::kNone ? "off"
                                                                 : "";
  ::setenv("TELLTALE_PYTHON_RULES", value, 1);  // NOLINT(concurrency-mt-unsafe)
  rules::SetForeignMaker(rules::ForeignRules(rules::ForeignOptionsOfEnvironment()));
}

Result<rules::RuleSet> RuleSetOf(const RuleFlags& flags, rules::RuleSet base) {
  rules::RuleSet set = std::move(base);
  if (!flags.file.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(set, ReadRuleSet(flags.file));
    if (const auto resolved = rules::Resolve(set); !resolved.ok()) {
      return Status(resolved.status().code(),
                    fmt::format("{}: {}", Printable(flags.file), resolved.status().message()));
    }
  }
  for (const std::string& text : flags.rules) {
    TELLTALE_ASSIGN_OR_RETURN(rules::RuleSpec spec, rules::ParseRule(text));
    // The last word holds; who asks for a rule wants it though the file has it off.
    std::erase_if(set.rules, [&](const rules::RuleSpec& r) { return r.name == spec.name; });
    std::erase(set.off, spec.name);
    set.rules.push_back(std::move(spec));
  }
  set.off.insert(set.off.end(), flags.off.begin(), flags.off.end());
  if (flags.price_per_hour >= 0) {
    if (!std::isfinite(flags.price_per_hour)) {
      return Status(Code::kUsage, "--price is no price: write for example --price 32.77");
    }
    set.price_per_hour = flags.price_per_hour;
  }
  if (const auto resolved = rules::Resolve(set); !resolved.ok()) return resolved.status();
  return set;
}

Result<rules::RuleSet> RuleSetOfRun(const RuleFlags& flags, const std::string& run) {
  rules::RuleSet base;
  if (const auto info = store::ReadRunInfo(run); info.ok()) {
    if (auto own = rules::RuleSetFromJson(info->rules); own.ok()) base = std::move(own).value();
  }
  return RuleSetOf(flags, std::move(base));
}

std::vector<rules::Need> NeedsOfAsked(rules::RuleSet set, bool defaults) {
  if (!set.capture) return {};
  if (!defaults) set.defaults = false;
  return rules::NeedsOf(set);
}

}  // namespace telltale::cli
