// SPDX-License-Identifier: Apache-2.0
// telltale check RUN: runs the rules over a recorded run. Equal to what fired live.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/junit.h"
#include "cli/output.h"
#include "cli/rule_flags.h"
#include "cli/run_or_trace.h"
#include "report/text.h"
#include "report/verdict.h"
#include "rules/foreign.h"
#include "rules/python_consent.h"
#include "rules/replay.h"

namespace telltale::cli {
namespace {

struct CheckOptions {
  std::string run;
  std::string fail_on;
  std::string junit;
  RuleFlags rules;
  bool no_python_rules = false;
  bool json = false;
};

int Check(const CheckOptions& options) {
  if (options.no_python_rules) UsePythonRules(rules::PythonRules::kNone);
  std::optional<rules::RuleSet> set;
  if (options.rules.any()) {
    auto asked = RuleSetOfRun(options.rules, options.run);
    if (!asked.ok()) return Fail("check", asked.status());
    set = std::move(asked).value();
    // A file that the user names takes the place of the run's rules, all of them are asked for.
    if (!options.rules.file.empty()) rules::PythonConsent::OfUser().Allow(*set);
  }
  auto loaded = report::Load(options.run, std::numeric_limits<std::int64_t>::max(), std::move(set));
  if (!loaded.ok()) return Fail("check", loaded.status());
  const report::RunData& data = *loaded;
  const rules::Replay& replay = data.replay;

  if (options.json) {
    Print("{}\n", CheckDocument(data));
  } else {
    report::VerdictOptions shown = report::VerdictOptions::For(stdout);
    shown.all = true;
    WriteOut(report::FormatVerdict(data, shown));
  }

  const auto limit = options.fail_on == "low"    ? rules::Severity::kLow
                     : options.fail_on == "high" ? rules::Severity::kHigh
                                                 : rules::Severity::kMedium;
  if (!options.junit.empty()) {
    const std::string xml = JUnitXml("check " + data.title(), CasesOf(data, limit));
    if (const Status written = WriteJUnit(options.junit, xml); !written.ok()) {
      return Fail("check", written);
    }
  }
  if (!options.fail_on.empty()) {
    const bool reached =
        std::any_of(replay.findings.begin(), replay.findings.end(),
                    [&](const rules::Finding& f) { return f.incident.severity >= limit; });
    if (reached) return kExitFinding;
    // A gate that could not look must not look open.
    for (const rules::RuleState& rule : replay.rules) {
      const bool blind =
          rule.status == rules::RuleStatus::kError || rule.status == rules::RuleStatus::kSuspended;
      if (!blind || rule.error == rules::kPythonLeftOut) continue;
      return Fail("check", Status(Code::kUnusable,
                                  fmt::format("the rule {} could not judge: {}: mend it, or leave "
                                              "it out with --no-rule",
                                              Printable(rule.name), Printable(rule.error))));
    }
  }
  const std::vector<std::int64_t> lost_before_ns = data.lost_before_ns();
  if (replay.state.unrecorded || !lost_before_ns.empty()) {
    const std::int64_t since_ns =
        replay.state.unrecorded ? replay.state.unrecorded->since_ns : lost_before_ns.front();
    return Fail("check", Status(Code::kPartial,
                                fmt::format("{}: what happened after {} was not recorded: the rest "
                                            "was used",
                                            options.run, report::Utc(since_ns))));
  }
  if (replay.salvage.any()) {
    return Fail("check", Status(Code::kPartial,
                                fmt::format("{}: part of the recording is damaged: the rest was "
                                            "used: see `telltale verify {}`",
                                            options.run, options.run)));
  }
  return 0;
}

}  // namespace

void RegisterCheck(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(
      app, "check", "Run the rules over a recorded run and print the verdict",
      "  telltale check telltale-runs/20261120-150412-train\n"
      "  telltale check RUN --fail-on medium     # exit code 10 where a finding is medium or high\n"
      "  telltale check RUN --fail-on medium --junit findings.xml     # for CI\n"
      "  telltale check RUN --rule DeadRelu --no-rule InputBound   # other rules than it ran with\n"
      "  telltale check RUN --json",
      {0, 3, 7, 8, kExitFinding});
  auto options = std::make_shared<CheckOptions>();
  AddOption(command, "RUN", options->run, "Run directory, or a trace").Required();
  AddOption(command, "--fail-on", options->fail_on,
            "Exit with 10 where a finding is at least this severe, with 3 where a rule "
            "could not judge")
      .OneOf({"low", "medium", "high"});
  AddOption(command, "--junit", options->junit,
            "Write the rules as test cases to this file, JUnit XML; those with a finding "
            "at or above --fail-on (medium where it is not given) have failed");
  AddRuleFlags(command, &options->rules);
  AddPythonRulesFlag(command);
  AddFlag(command, "--no-python-rules", options->no_python_rules,
          "Leaves out the rules in Python, also those that you have asked for yourself");
  AddJson(command, &options->json);
  OnRun(command, context,
        [options] { return WithRun("check", &options->run, [&] { return Check(*options); }); });
}

}  // namespace telltale::cli
