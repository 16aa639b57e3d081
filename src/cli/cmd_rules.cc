// SPDX-License-Identifier: Apache-2.0
// telltale rules list | show NAME | status RUN | test FILE...
#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/run_or_trace.h"
#include "rules/finding_json.h"
#include "rules/foreign.h"
#include "rules/registry.h"
#include "rules/replay.h"
#include "rules/script.h"

namespace telltale::cli {
namespace {

void PrintJson(const nlohmann::ordered_json& out) { Print("{}\n", DocumentText(out)); }

int List(bool json) {
  if (json) {
    nlohmann::ordered_json out = {{"rules", nlohmann::ordered_json::array()}};
    for (const auto& entry : rules::Registry()) out["rules"].push_back(rules::ToJson(*entry.desc));
    PrintJson(out);
    return 0;
  }
  for (const auto& entry : rules::Registry()) {
    Print("{:<28} {}{}\n", entry.desc->name, entry.desc->summary,
          entry.desc->by_default ? "" : " [--rule]");
  }
  return 0;
}

int Show(const std::string& name, bool json, bool markdown) {
  const rules::RuleEntry* entry = rules::FindRule(name);
  if (entry == nullptr) {
    return Fail("rules",
                Status(Code::kUsage, fmt::format("no rule '{}': see `telltale rules list`", name)));
  }
  const rules::RuleDesc& desc = *entry->desc;
  if (json) {
    PrintJson(rules::ToJson(desc));
  } else if (markdown) {
    Print("{}", rules::ToMarkdown(desc));
  } else {
    Print("{}: {}\n\nWhat is computed\n  {}\n\nParameters\n", desc.name, desc.summary,
          desc.formula);
    for (const auto& p : desc.parameters) {
      const std::string value =
          p.text != nullptr ? fmt::format("\"{}\"", p.text) : fmt::format("{}", p.default_value);
      Print("  {:<22} {:>6} {:<6} {}{}\n", p.name, value, p.unit, p.doc,
            p.source ? fmt::format(" (preset=source: {})", *p.source) : "");
    }
    if (!desc.captures.empty()) Print("\nWhat it needs of tensors\n");
    for (const auto& need : desc.captures) {
      Print("  {:<22} {}, each {}{}{}\n", need.collection, need.take, rules::StepsOf(need),
            need.include.empty() ? "" : fmt::format(", names with {}", need.include),
            need.asked_only ? ", only where the rule is named" : "");
    }
    if (!desc.example.empty()) Print("\nExample\n  {}\n", desc.example);
    Print("\nWhat to do\n  {}\n", desc.how_to_fix);
  }
  return 0;
}

int RulesStatus(const std::string& run, bool json) {
  const auto loaded = report::Load(run);
  if (!loaded.ok()) return Fail("rules", loaded.status());
  const rules::Replay* replay = &loaded->replay;
  if (json) {
    nlohmann::ordered_json out = {{"run", RunJson(*loaded)},
                                  {"rules", nlohmann::ordered_json::array()}};
    for (const auto& state : replay->rules) out["rules"].push_back(rules::ToJson(state));
    PrintJson(out);
  } else {
    for (const auto& state : replay->rules) {
      Print("{:<28} {:<14} {} {}, {} records read{}\n", state.name, rules::Name(state.status),
            state.incidents, state.incidents == 1 ? "incident" : "incidents",
            state.records.value_or(0),
            !state.error.empty()     ? ": " + Printable(state.error)
            : !state.partial.empty() ? ": " + state.partial
            : !state.missing.empty() ? ": " + state.missing
                                     : std::string());
    }
  }
  if (!replay->salvage.any()) return 0;
  return Fail("rules", Status(Code::kPartial,
                              fmt::format("{}: part of the recording is damaged: the rest was "
                                          "used: see `telltale verify {}`",
                                          run, run)));
}

/// Exit code 10 where a script says that something is not as it expects.
int Test(const std::vector<std::string>& files, bool json) {
  nlohmann::ordered_json out = {{"scripts", nlohmann::ordered_json::array()}};
  std::size_t failed = 0;
  Status unreadable;
  rules::ForeignOptions foreign = rules::ForeignOptionsOfEnvironment();
  // A script is not a run: who runs it asks for the rules that it names.
  if (foreign.python_rules == rules::PythonRules::kAsked) {
    foreign.python_rules = rules::PythonRules::kAll;
  }
  const rules::Engine::ForeignMaker maker = rules::ForeignRules(foreign);
  for (const std::string& file : files) {
    const auto outcome = rules::RunScript(file, maker);
    if (!outcome.ok()) {
      if (unreadable.ok()) unreadable = outcome.status();
      continue;
    }
    failed += outcome->failures > 0 ? 1 : 0;
    if (json) {
      out["scripts"].push_back({{"file", file},
                                {"expectations", outcome->expectations},
                                {"failures", outcome->failures},
                                {"text", outcome->text}});
    } else if (outcome->failures > 0) {
      Print("{}: {} of {} expectations failed\n{}", Printable(file), outcome->failures,
            outcome->expectations, PrintableLines(outcome->text));
    }
  }
  if (json) {
    PrintJson(out);
  } else if (failed == 0 && unreadable.ok()) {
    Print("{} {}: as expected\n", files.size(), files.size() == 1 ? "script" : "scripts");
  }
  if (!unreadable.ok()) return Fail("rules", unreadable);
  return failed == 0 ? 0 : kExitFinding;
}

}  // namespace

void RegisterRules(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(app, "rules", "What the rules are and what they say of a run",
                                 "  telltale rules list\n"
                                 "  telltale rules show InputBound\n"
                                 "  telltale rules status telltale-runs/20261120-150412-train\n"
                                 "  telltale rules test my_rule.test",
                                 {0, 3, 7, 8, kExitFinding});
  NeedSubcommand(command);
  auto json = std::make_shared<bool>(false);
  auto markdown = std::make_shared<bool>(false);
  auto argument = std::make_shared<std::string>();

  CLI::App* list = AddCommand(*command, "list", "All rules, one line each",
                              "  telltale rules list\n  telltale rules list --json\n"
                              "Those with [--rule] run where they are asked for.",
                              {0});
  AddJson(list, json.get());
  OnRun(list, context, [json] { return List(*json); });

  CLI::App* show = AddCommand(*command, "show", "One rule: formula, parameters, what to do",
                              "  telltale rules show LossNotDecreasing", {0});
  AddOption(show, "NAME", *argument, "Rule name").Required();
  AddFlag(show, "--markdown", *markdown, "As the page in docs/rules");
  AddJson(show, json.get());
  OnRun(show, context, [json, markdown, argument] { return Show(*argument, *json, *markdown); });

  CLI::App* status = AddCommand(*command, "status", "What each rule says of a run",
                                "  telltale rules status telltale-runs/20261120-150412-train\n"
                                "  telltale rules status worker0.pt.trace.json.gz",
                                {0, 3, 7, 8});
  AddOption(status, "RUN", *argument, "Run directory, or a trace").Required();
  AddJson(status, json.get());
  OnRun(status, context, [json, argument] {
    return WithRun("rules", argument.get(), [&] { return RulesStatus(*argument, *json); });
  });

  CLI::App* test = AddCommand(
      *command, "test", "Runs rule scripts: records as text, and what rules must say of them",
      "  telltale rules test tests/*.test     # exit code 10 where something is not as expected\n"
      "The language: docs/formats/rule-scripts.md",
      {0, 3, kExitFinding});
  auto files = std::make_shared<std::vector<std::string>>();
  AddOption(test, "FILE", *files, "Rule scripts").Required();
  AddJson(test, json.get());
  OnRun(test, context, [json, files] { return Test(*files, *json); });
}

}  // namespace telltale::cli
