// SPDX-License-Identifier: Apache-2.0
// telltale advise RUN: what to do about a run's speed, by its trace and its records. The checks are
// those of src/rules/advice; docs/guide/advise.md.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/heap.h"
#include "base/json.h"
#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/run_or_trace.h"
#include "report/text.h"
#include "rules/advice/advise.h"
#include "rules/finding_json.h"

namespace telltale::cli {
namespace {

namespace advice = rules::advice;

constexpr std::size_t kWidth = 98;
constexpr std::size_t kIndent = 11;

struct Args {
  std::string run;
  std::vector<std::string> ranks;
  std::vector<std::string> checks;
  std::string format = "text";
  std::string fail_on;
  bool no_rules = false;
  bool list = false;
  bool json = false;
};

std::string List(bool json) {
  if (json) {
    auto out = nlohmann::ordered_json::array();
    for (const advice::Check* check : advice::Checks()) {
      out.push_back({{"name", check->name},
                     {"asks", check->asks},
                     {"peers", check->peers},
                     {"formula", check->formula},
                     {"rule", check->rule}});
    }
    return DocumentText({{"checks", std::move(out)}}) + "\n";
  }
  std::string out;
  for (const advice::Check* check : advice::Checks()) {
    out += fmt::format("{:<23}{}\n{:<23}{}{}\n", check->name, check->asks, "", check->peers,
                       check->rule.empty() ? "" : fmt::format(" (rule {})", check->rule));
  }
  return out;
}

/// Lines of `text`, broken at spaces, behind an indentation.
std::string Paragraph(std::string_view first, const std::string& text) {
  const std::string pad(kIndent, ' ');
  std::string out = pad + std::string(first);
  std::size_t column = kIndent + (first.empty() ? 0 : 2);
  std::size_t at = 0;
  bool begin = true;
  while (at < text.size()) {
    const std::size_t space = std::min(text.find(' ', at), text.size());
    // A number stays with its unit.
    const bool unit =
        text.compare(at, 1, "%") == 0 || (space - at <= 3 && space > at && text[space - 1] == 's');
    if (!begin && !unit && column + 1 + (space - at) > kWidth) {
      out += "\n" + pad + (first.empty() ? "" : "  ");
      column = kIndent + 2;
      begin = true;
    }
    if (!begin) out += ' ';
    out.append(text, at, space - at);
    column += space - at + 1;
    begin = false;
    at = space + 1;
  }
  return out + "\n";
}

std::string FindingText(const rules::Finding& finding) {
  const rules::Incident& i = finding.incident;
  const auto evidence = ParseOrderedJson(i.evidence);
  std::string cost;
  if (i.cost_seconds > 0) cost = report::Duration(i.cost_seconds);
  if (evidence.is_object() && evidence.contains("share") && evidence["share"].is_number()) {
    cost += fmt::format("{}{} of the time", cost.empty() ? "" : ", ",
                        report::Percent(evidence["share"].get<double>()));
  }
  std::string out = fmt::format(" {:<9} {}: {}: {}{}\n", rules::Name(i.severity),
                                Printable(finding.rule), Printable(i.message), Printable(i.subject),
                                cost.empty() ? "" : fmt::format(" ({})", cost));
  out += Paragraph("", Printable(i.cause));
  out += Paragraph("→ ", Printable(i.advice));
  if (i.cost_seconds > 0 && evidence.is_object() && evidence.contains("assumption") &&
      evidence["assumption"].is_string()) {
    out += Paragraph(
        "", fmt::format("The cost {}.", Printable(evidence["assumption"].get<std::string>())));
  }
  return out + "\n";
}

std::string Text(const advice::Advice& advice) {
  std::string out;
  if (advice.steps > 0) {
    out += fmt::format(
        "Trace of {} {}, {} of {}.\n\n", advice.steps, advice.steps == 1 ? "step" : "steps",
        report::Duration(advice.wall_seconds),
        advice.ranks == 1 ? std::string("one rank") : fmt::format("{} ranks", advice.ranks));
  }
  for (const rules::Finding& finding : advice.findings) out += FindingText(finding);
  if (advice.findings.empty()) out += "Nothing to advise.\n\n";
  std::size_t quiet = 0;
  std::string blind;
  for (const rules::RuleState& state : advice.checks) {
    if (state.status == rules::RuleStatus::kNoIssuesFound) ++quiet;
    if (state.status != rules::RuleStatus::kNoData || !state.rule.empty()) continue;
    blind += fmt::format("{}{}", blind.empty() ? "" : ", ", state.name);
  }
  out += fmt::format("{} checks and rules found nothing.", quiet);
  if (!blind.empty()) out += fmt::format(" Without data: {}.", blind);
  out += "\n";
  for (const std::string& note : advice.notes) out += Printable(note) + "\n";
  // It keeps number and unit on one line; terminals differ in its width.
  for (auto at = out.find(report::kSpace); at != std::string::npos;
       at = out.find(report::kSpace, at)) {
    out.replace(at, report::kSpace.size(), " ");
  }
  return out;
}

std::string Json(const Args& args, const advice::Advice& advice) {
  nlohmann::ordered_json out = {{"run", args.run},
                                {"ranks", advice.ranks},
                                {"steps", advice.steps},
                                {"wall_seconds", advice.wall_seconds},
                                {"findings", nlohmann::ordered_json::array()},
                                {"checks", nlohmann::ordered_json::array()},
                                {"notes", advice.notes}};
  for (const rules::Finding& one : advice.findings) out["findings"].push_back(rules::ToJson(one));
  for (const rules::RuleState& one : advice.checks) out["checks"].push_back(rules::ToJson(one));
  return DocumentText(out) + "\n";
}

int Advise(const Args& args) {
  const bool json = args.json || args.format == "json";
  if (args.list) {
    WriteOut(List(json));
    return 0;
  }
  if (args.run.empty()) {
    return Fail("advise", {Code::kUsage, "give a run directory or a profiler's trace, or --list"});
  }
  advice::AdviseOptions options;
  options.checks = args.checks;
  options.rules = !args.no_rules && args.checks.empty();
  for (const std::string& text : args.ranks) {
    std::int32_t rank = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), rank);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) {
      return Fail("advise", {Code::kUsage, fmt::format("--rank: '{}' is no whole number: give "
                                                       "numbers, as 0,1",
                                                       text)});
    }
    options.ranks.push_back(rank);
  }
  KeepFreedMemoryOfReading();
  RunsOrTraces traces;
  std::string run = args.run;
  if (const Status opened = traces.OpenRun("advise", &run); !opened.ok()) {
    return Fail("advise", opened);
  }
  const auto advice = advice::Advise(run, options);
  if (!advice.ok()) return Fail("advise", advice.status());
  WriteOut(json ? Json(args, *advice) : Text(*advice));

  if (!args.fail_on.empty()) {
    const auto limit = args.fail_on == "low"    ? rules::Severity::kLow
                       : args.fail_on == "high" ? rules::Severity::kHigh
                                                : rules::Severity::kMedium;
    const auto& findings = advice->findings;
    if (std::any_of(findings.begin(), findings.end(), [&](const rules::Finding& finding) {
          return finding.incident.severity >= limit;
        })) {
      return kExitFinding;
    }
    // A gate that could not look must not look open.
    if (advice->ranks == 0 && options.ranks.empty() && !args.checks.empty()) {
      return Fail("advise",
                  {Code::kUnusable,
                   fmt::format("{}: no check could judge: the run holds no trace", args.run)});
    }
  }
  const std::string damage = report::Damage(advice->salvage);
  if (damage.empty()) return traces.ExitCode("advise", 0);
  return Fail("advise", {Code::kPartial, fmt::format("{}: {}", args.run, damage)});
}

}  // namespace

void RegisterAdvise(CLI::App& app, Context* context) {
  CLI::App* command =
      AddCommand(app, "advise", "Say what to do about a run's speed, by its trace and its records",
                 "  telltale advise RUN\n"
                 "  telltale advise worker0.pt.trace.json.gz\n"
                 "  telltale advise RUN --fail-on medium      # exit code 10 where a finding is "
                 "medium or high\n"
                 "  telltale advise RUN --check InputPipeline,KernelLaunch --format json\n"
                 "  telltale advise --list                    # the checks, and whose they are",
                 {0, 3, 4, 7, 8, kExitFinding});
  auto args = std::make_shared<Args>();
  AddOption(command, "RUN", args->run, "Run directory, or a profiler's trace");
  AddOption(command, "--rank", args->ranks, "Of the trace, only these ranks").SeparatedBy(',');
  AddOption(command, "--check", args->checks, "Only these checks, and no rules").SeparatedBy(',');
  AddFlag(command, "--no-rules", args->no_rules,
          "Only the checks of the trace, not the rules about speed");
  AddOption(command, "--format", args->format, "text or json").OneOf({"text", "json"});
  AddOption(command, "--fail-on", args->fail_on,
            "Exit with 10 where a finding is at least this severe")
      .OneOf({"low", "medium", "high"});
  AddFlag(command, "--list", args->list, "Print the checks there are, and whose they are");
  AddJson(command, &args->json);
  OnRun(command, context, [args] { return Advise(*args); });
}

}  // namespace telltale::cli
