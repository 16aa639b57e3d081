// SPDX-License-Identifier: Apache-2.0
// telltale compare A B: what is slower, larger or worse in B than in A, beyond chance. For a pull
// request: A is a run of the branch before, B of the change.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/comparison.h"
#include "base/printable.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/junit.h"
#include "cli/output.h"
#include "cli/run_or_trace.h"
#include "report/load.h"
#include "report/text.h"
#include "rules/rule_set.h"
#include "server/isolated.h"

namespace telltale::cli {
namespace {

using analysis::Change;
using analysis::Measure;
using nlohmann::ordered_json;

struct CompareFlags {
  std::string a;
  std::string b;
  std::string fail_on;
  std::string junit;
  double threshold_percent = 5;
  double alpha = 0.01;
  bool json = false;
};

/// No rule is run: the records alone are compared. Whatever happens says which of both it was.
Result<report::RunData> LoadRecords(const std::string& run) {
  rules::RuleSet none;
  none.defaults = false;
  return server::IsolatedResult(run, [&] {
    return report::Load(run, std::numeric_limits<std::int64_t>::max(), std::move(none));
  });
}

/// Plain spaces, so that columns are as wide as they are counted.
std::string Plain(std::string text) {
  for (auto at = text.find(report::kSpace); at != std::string::npos;
       at = text.find(report::kSpace, at)) {
    text.replace(at, report::kSpace.size(), " ");
  }
  return text;
}

std::string Value(const Measure& m, double value) {
  if (m.unit == "ns") return Plain(report::Duration(value / 1e9));
  if (m.unit == "bytes") return Plain(report::Bytes(value));
  return report::Significant(value) + (m.unit.empty() ? "" : " " + m.unit);
}

std::string ChangeWords(double change) {
  return fmt::format("{}{:.1f} %", change < 0 ? "−" : "+", std::abs(change) * 100);
}

std::string Significance(const Measure& m) {
  if (!m.p) return "not tested";
  return *m.p < 0.001 ? std::string("p < 0.001") : fmt::format("p = {:.3f}", *m.p);
}

/// "step time 50.0 ms → 60.0 ms, +20.0 %, p < 0.001".
std::string Line(const Measure& m) {
  std::string out = fmt::format("{} {} → {}, {}, {}", m.name, Value(m, m.a), Value(m, m.b),
                                ChangeWords(m.change), Significance(m));
  if (m.interval) {
    out += fmt::format(", B/A {:.3f} to {:.3f}", m.interval->low, m.interval->high);
  }
  if (m.delta) out += fmt::format(", Cliff's delta {:+.2f}", *m.delta);
  return out;
}

std::string Text(const report::RunData& a, const report::RunData& b,
                 const analysis::Comparison& comparison) {
  std::string out;
  const auto run = [&](std::string_view letter, const report::RunData& data) {
    out += fmt::format(" {}  {}   {}   {} steps\n", letter, Printable(data.title()),
                       report::StateWords(data.replay.state),
                       report::Thousands(data.summary.train_steps()));
  };
  run("A", a);
  run("B", b);
  out += fmt::format("\n {:<26} {:>14} {:>14} {:>10}  {:<16} {:<10} {:>6}\n", "", "A", "B",
                     "change", "B/A, 95 %", "p", "delta");
  for (const Measure& m : comparison.measures) {
    const std::string interval =
        m.interval ? fmt::format("{:.3f} to {:.3f}", m.interval->low, m.interval->high) : "";
    out += fmt::format(" {:<26} {:>14} {:>14} {:>10}  {:<16} {:<10} {:>6}  {}\n", Printable(m.name),
                       Value(m, m.a), Value(m, m.b), ChangeWords(m.change), interval,
                       Significance(m), m.delta ? fmt::format("{:+.2f}", *m.delta) : "",
                       m.verdict == Change::kUntested ? "" : analysis::Name(m.verdict));
  }
  if (!comparison.losses.empty()) {
    out += "\n Losses at equal steps\n";
    for (const analysis::LossAt& at : comparison.losses) {
      out += fmt::format(" {:<26} {:>14} {:>14}\n",
                         fmt::format("{}, step {}", at.name, report::Thousands(at.step)),
                         report::Significant(at.a), report::Significant(at.b));
    }
  }
  out += '\n';
  for (const std::string& note : comparison.notes) out += " " + note + "\n";
  out += comparison.regression() ? " B is worse than A.\n"
         : comparison.judged()   ? " B is not worse than A.\n"
                                 : " Nothing could be judged.\n";
  out += fmt::format(" {}\n", analysis::kCompareMethod);
  return out;
}

ordered_json MeasureJson(const Measure& m) {
  ordered_json out = {{"name", m.name},
                      {"unit", m.unit},
                      {"a", m.a},
                      {"b", m.b},
                      {"change", m.change},
                      {"blocks_a", m.blocks_a},
                      {"blocks_b", m.blocks_b},
                      {"p", nullptr},
                      {"delta", nullptr},
                      {"ratio_low", nullptr},
                      {"ratio_high", nullptr},
                      {"verdict", analysis::Name(m.verdict)},
                      {"gates", m.gates}};
  if (m.p) out["p"] = *m.p;
  if (m.delta) out["delta"] = *m.delta;
  if (m.interval) {
    out["ratio_low"] = m.interval->low;
    out["ratio_high"] = m.interval->high;
  }
  return out;
}

std::string Document(const report::RunData& a, const report::RunData& b,
                     const analysis::Comparison& comparison, const CompareFlags& flags) {
  ordered_json out = {{"a", RunJson(a)},
                      {"b", RunJson(b)},
                      {"regression", comparison.regression()},
                      {"judged", comparison.judged()},
                      {"threshold", flags.threshold_percent / 100},
                      {"alpha", flags.alpha},
                      {"method", analysis::kCompareMethod},
                      {"measures", ordered_json::array()},
                      {"losses", ordered_json::array()},
                      {"notes", comparison.notes}};
  for (const Measure& m : comparison.measures) out["measures"].push_back(MeasureJson(m));
  for (const analysis::LossAt& at : comparison.losses) {
    out["losses"].push_back({{"name", at.name}, {"step", at.step}, {"a", at.a}, {"b", at.b}});
  }
  return DocumentText(out);
}

std::vector<JUnitCase> Cases(const analysis::Comparison& comparison) {
  std::vector<JUnitCase> out;
  for (const Measure& m : comparison.measures) {
    JUnitCase one;
    one.name = m.name;
    one.text = Line(m) + "\n";
    if (m.gates && m.verdict == Change::kWorse) {
      one.failure = Line(m);
    } else if (m.gates && m.verdict == Change::kUntested) {
      one.skipped = "too few steps to tell a change from chance";
    }
    out.push_back(std::move(one));
  }
  if (!comparison.judged()) {
    JUnitCase none;
    none.name = "anything to compare";
    none.error = "nothing could be judged";
    for (const std::string& note : comparison.notes) none.text += note + "\n";
    out.push_back(std::move(none));
  }
  return out;
}

int Compare(const CompareFlags& flags) {
  RunsOrTraces traces;
  std::string run_a = flags.a;
  std::string run_b = flags.b;
  for (std::string* const path : {&run_a, &run_b}) {
    if (const Status opened = traces.OpenRun("compare", path); !opened.ok()) {
      return Fail("compare", opened);
    }
  }
  auto a = LoadRecords(run_a);
  if (!a.ok()) return Fail("compare", a.status());
  auto b = LoadRecords(run_b);
  if (!b.ok()) return Fail("compare", b.status());
  analysis::Comparison comparison = analysis::Compare(
      a->summary, b->summary, {.threshold = flags.threshold_percent / 100, .alpha = flags.alpha});
  for (const report::RunData* data : {&*a, &*b}) {
    const auto& state = data->replay.state;
    if (!data->replay.ended) {
      comparison.notes.push_back(fmt::format("{} still runs: what it has recorded is compared.",
                                             Printable(data->title())));
    } else if (state.signal || state.exit_code.value_or(0) != 0) {
      comparison.notes.push_back(fmt::format("{} {}: what it had recorded until then is compared.",
                                             Printable(data->title()), report::StateWords(state)));
    }
  }
  if (flags.json) {
    Print("{}\n", Document(*a, *b, comparison, flags));
  } else {
    WriteOut(Text(*a, *b, comparison));
  }
  if (!flags.junit.empty()) {
    const std::string xml = JUnitXml("compare " + a->title() + " " + b->title(), Cases(comparison));
    if (const Status written = WriteJUnit(flags.junit, xml); !written.ok()) {
      return Fail("compare", written);
    }
  }
  if (!flags.fail_on.empty()) {
    if (comparison.regression()) return kExitFinding;
    // A gate that could not look must not look open.
    if (!comparison.judged()) {
      return Fail("compare",
                  Status(Code::kUnusable,
                         fmt::format("{} and {}: nothing could be judged: record more steps of "
                                     "either, at least ten",
                                     flags.a, flags.b)));
    }
  }
  for (const auto& [data, run] : {std::pair(&*a, &flags.a), std::pair(&*b, &flags.b)}) {
    if (!data->replay.salvage.any()) continue;
    return Fail("compare", Status(Code::kPartial,
                                  fmt::format("{}: part of the recording is damaged: the rest was "
                                              "used: see `telltale verify {}`",
                                              *run, *run)));
  }
  return traces.ExitCode("compare", 0);
}

}  // namespace

void RegisterCompare(CLI::App& app, Context* context) {
  CLI::App* command =
      AddCommand(app, "compare", "Compare two runs: speed by phase, throughput, memory, losses",
                 "  telltale compare runs/main runs/change\n"
                 "  telltale compare A B --fail-on regression     # exit code 10 where B is worse\n"
                 "  telltale compare A B --fail-on regression --threshold 10 --junit speed.xml\n"
                 "  telltale compare before.pt.trace.json.gz after.pt.trace.json.gz",
                 {0, 3, 4, 7, 8, kExitFinding});
  auto flags = std::make_shared<CompareFlags>();
  AddOption(command, "A", flags->a, "Run directory, or a trace: before").Required();
  AddOption(command, "B", flags->b, "Run directory, or a trace: after").Required();
  AddOption(command, "--fail-on", flags->fail_on,
            "Exit with 10 where B is worse, with 3 where nothing could be judged")
      .OneOf({"regression"});
  AddOption(command, "--threshold", flags->threshold_percent,
            "Percent that a measure must change by, 5 where it is not given")
      .Between(0.0, 1000.0);
  AddOption(command, "--alpha", flags->alpha,
            "Largest p of a change that is no chance, 0.01 where it is not given")
      .Between(0.0, 1.0);
  AddOption(command, "--junit", flags->junit,
            "Write the measures as test cases to this file, JUnit XML");
  AddJson(command, &flags->json);
  OnRun(command, context, [flags] { return Compare(*flags); });
}

}  // namespace telltale::cli
