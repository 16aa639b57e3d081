// SPDX-License-Identifier: Apache-2.0
// telltale rules list | show NAME | status RUN.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "rules/finding_json.h"
#include "rules/registry.h"
#include "rules/replay.h"

namespace telltale::cli {
namespace {

void PrintJson(const nlohmann::ordered_json& out) { Print("{}\n", JsonText(out)); }

int List(bool json) {
  if (json) {
    nlohmann::ordered_json out = {{"rules", nlohmann::ordered_json::array()}};
    for (const auto& entry : rules::Registry()) out["rules"].push_back(rules::ToJson(*entry.desc));
    PrintJson(out);
    return 0;
  }
  for (const auto& entry : rules::Registry()) {
    Print("{:<20} {}\n", entry.desc->name, entry.desc->summary);
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
      Print("  {:<22} {:>6} {:<6} {}\n", p.name, p.default_value, p.unit, p.doc);
    }
    if (!desc.captures.empty()) Print("\nWhat it needs of tensors\n");
    for (const auto& need : desc.captures) {
      Print("  {:<22} {}, each {} TRAIN steps\n", need.collection, need.take, need.interval);
    }
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
      Print("{:<20} {:<14} {} {}, {} records read{}\n", state.name, rules::Name(state.status),
            state.incidents, state.incidents == 1 ? "incident" : "incidents",
            state.records.value_or(0), state.error.empty() ? "" : ": " + Printable(state.error));
    }
  }
  if (!replay->salvage.any()) return 0;
  return Fail("rules", Status(Code::kPartial,
                              fmt::format("{}: part of the recording is damaged: the rest was "
                                          "used: see `telltale verify {}`",
                                          run, run)));
}

}  // namespace

void RegisterRules(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(app, "rules", "What the rules are and what they say of a run",
                                 "  telltale rules list\n"
                                 "  telltale rules show InputBound\n"
                                 "  telltale rules status telltale-runs/20261120-150412-train",
                                 {0, 3, 7, 8});
  command->require_subcommand(1);
  auto json = std::make_shared<bool>(false);
  auto markdown = std::make_shared<bool>(false);
  auto argument = std::make_shared<std::string>();

  CLI::App* list = AddCommand(*command, "list", "All rules, one line each",
                              "  telltale rules list\n  telltale rules list --json", {0});
  AddJson(list, json.get());
  OnRun(list, context, [json] { return List(*json); });

  CLI::App* show = AddCommand(*command, "show", "One rule: formula, parameters, what to do",
                              "  telltale rules show LossNotDecreasing", {0});
  show->add_option("NAME", *argument, "Rule name")->required();
  show->add_flag("--markdown", *markdown, "As the page in docs/rules");
  AddJson(show, json.get());
  OnRun(show, context, [json, markdown, argument] { return Show(*argument, *json, *markdown); });

  CLI::App* status =
      AddCommand(*command, "status", "What each rule says of a run",
                 "  telltale rules status telltale-runs/20261120-150412-train", {0, 3, 7, 8});
  status->add_option("RUN", *argument, "Run directory")->required();
  AddJson(status, json.get());
  OnRun(status, context, [json, argument] { return RulesStatus(*argument, *json); });
}

}  // namespace telltale::cli
