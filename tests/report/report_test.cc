// SPDX-License-Identifier: Apache-2.0
// The verdict and the page: bounded, self-contained, and whole for any run, hostile or damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "analysis/profile/tree.h"
#include "base/utf8.h"
#include "query/slice_order.h"
#include "report/causes.h"
#include "report/html.h"
#include "report/load.h"
#include "report/stack_graph.h"
#include "report/svg.h"
#include "report/text.h"
#include "report/verdict.h"
#include "rules/groups.h"
#include "rules/registry.h"
#include "store/folder.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"

namespace telltale::report {
namespace {

namespace fs = std::filesystem;

class ReportTest : public ::testing::Test {
 protected:
  RunData Make(const testing::SampleRun& sample) {
    const Status written = testing::WriteRun(run_, sample);
    EXPECT_TRUE(written.ok()) << written.message();
    auto data = Load(run_);
    EXPECT_TRUE(data.ok()) << data.status().message();
    return std::move(data).value();
  }

  const testing::TempFolder folder_{"report"};
  const fs::path run_ = folder_.path();
};

std::size_t Count(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Every element that is opened is closed, in order. Returns what is wrong, empty where nothing.
std::string Unbalanced(const std::string& html) {
  const std::vector<std::string> kVoid = {"meta", "path", "rect", "circle", "!DOCTYPE"};
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const auto end = html.find('>', at);
    if (end == std::string::npos) return "'<' without '>' at " + std::to_string(at);
    const bool closing = html[at + 1] == '/';
    const bool self = html[end - 1] == '/';
    const auto begin = at + (closing ? 2 : 1);
    const std::string name = html.substr(begin, html.find_first_of(" />", begin) - begin);
    if (self) continue;
    if (closing) {
      if (open.empty() || open.back() != name) {
        return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back());
      }
      open.pop_back();
    } else if (std::find(kVoid.begin(), kVoid.end(), name) == kVoid.end()) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

void ExpectSound(const std::string& html) {
  EXPECT_LT(html.size(), 1U << 20);
  EXPECT_EQ(Unbalanced(html), "");
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
  for (const char* request : {"<script", "http:", "https:", "src=", "url(", "@import", "<link"}) {
    EXPECT_EQ(html.find(request), std::string::npos) << request;
  }
  // No coordinate is not a number; a rule's parameter is called so.
  EXPECT_EQ(Count(html, "nan"), Count(html, "only_nan"));
  EXPECT_EQ(html.find("inf\""), std::string::npos);
  EXPECT_NE(html.find("What this report cannot say"), std::string::npos);
}

TEST_F(ReportTest, ASlowRunNamesItsCostAndWhatToDo) {
  const RunData data = Make({});
  const std::string html = RenderReport(data);
  ExpectSound(html);
  EXPECT_NE(html.find("Data loading takes 60 % of step time"), std::string::npos);
  EXPECT_NE(html.find("Loss does not decrease"), std::string::npos);
  EXPECT_NE(html.find("num_workers=2"), std::string::npos);
  EXPECT_EQ(Count(html, "<h1"), 1U);
  // SageMaker Debugger's order, in the words of the live page.
  std::size_t before = html.find("<h2 id=\"findings\">");
  for (const char* title : {"1 · The run", "2 · The machine", "3 · Where a step goes",
                            "4 · Longest operations", "5 · Rules", "6 · Progress"}) {
    const auto at = html.find(title);
    ASSERT_NE(at, std::string::npos) << title;
    EXPECT_GT(at, before) << title;
    before = at;
  }
  EXPECT_GT(html.find("<h3>Step time "), before) << "findings come before charts";
  const std::string verdict = FormatVerdict(data, {});
  // The title is the first finding; every finding of weight stands there with its rule and advice.
  EXPECT_LT(verdict.find(data.replay.findings.front().incident.message), verdict.find("◆"));
  for (const rules::Finding& finding : data.replay.findings) {
    if (finding.incident.severity < rules::Severity::kMedium) continue;
    const auto at = verdict.find("[" + finding.rule + "]");
    ASSERT_NE(at, std::string::npos) << finding.rule << "\n" << verdict;
    EXPECT_NE(verdict.find("→ ", at), std::string::npos) << finding.rule << "\n" << verdict;
  }
  EXPECT_EQ(verdict.find("--json"), std::string::npos) << verdict;
}

TEST_F(ReportTest, ATraceThatGaveNoAdviceIsSaid) {
  RunData data = Make({});
  const auto said = [&] {
    const std::vector<std::string> unknowns = Unknowns(data);
    return std::count_if(unknowns.begin(), unknowns.end(), [](const std::string& words) {
      return words.starts_with("There is no advice");
    });
  };
  EXPECT_EQ(said(), 0);
  data.advice_trouble = "it is too large";
  EXPECT_EQ(said(), 1);
  EXPECT_NE(FormatVerdict(data, {}).find("There is no advice from the trace: it is too large."),
            std::string::npos);
}

TEST_F(ReportTest, AHealthyRunSaysSo) {
  testing::SampleRun sample;
  sample.learns = true;
  sample.wait_share = 0.02;
  const RunData data = Make(sample);
  ExpectSound(RenderReport(data));
  const auto quiet = std::count_if(
      data.replay.rules.begin(), data.replay.rules.end(),
      [](const auto& rule) { return rule.status == rules::RuleStatus::kNoIssuesFound; });
  EXPECT_GE(quiet, 3);
  const auto blind =
      std::count_if(data.replay.rules.begin(), data.replay.rules.end(),
                    [](const auto& rule) { return rule.status == rules::RuleStatus::kNoData; });
  EXPECT_GE(blind, 3);
  EXPECT_EQ(Verdict(data), "Nothing to report: " + std::to_string(quiet) +
                               " rules found no trouble; " + std::to_string(blind) +
                               " could not judge.");
  const std::string verdict = FormatVerdict(data, {});
  const std::vector<std::string> unknowns = Unknowns(data);
  // The sample has no load of single processes, and no statistics: each is said once, with its
  // rules.
  EXPECT_TRUE(std::any_of(unknowns.begin(), unknowns.end(), [](const std::string& words) {
    return words.starts_with("No data for ") && words.ends_with(": no gradients were captured.") &&
           words.find("VanishingGradient") != std::string::npos;
  })) << verdict;
  for (const rules::RuleState& rule : data.replay.rules) {
    if (rule.status == rules::RuleStatus::kNoData) {
      EXPECT_NE(rule.missing, "") << rule.name;
    }
  }
  const std::string all = FormatVerdict(data, {.all = true});
  EXPECT_NE(all.find("Not for this run: "), std::string::npos) << all;
  for (const rules::RuleState& rule : data.replay.rules) {
    if (rule.name != "CPUBottleneck" && rule.name != "ExplodingTensor" &&
        rule.name != "VanishingGradient") {
      continue;
    }
    EXPECT_EQ(rule.status, rules::RuleStatus::kNoData) << rule.name;
  }
  EXPECT_NE(verdict.find(" Initialization "), std::string::npos) << verdict;
  EXPECT_NE(verdict.find(", training loop "), std::string::npos) << verdict;
}

rules::ActionTaken Taken(const rules::Finding& finding, const char* action, const char* outcome) {
  rules::ActionTaken taken;
  taken.action = action;
  taken.outcome = outcome;
  taken.rule = finding.rule;
  taken.incident = finding.id;
  return taken;
}

TEST_F(ReportTest, WhatAFindingHasSetOffIsSaidBesideIt) {
  RunData data = Make({});
  const auto found = std::find_if(data.replay.findings.begin(), data.replay.findings.end(),
                                  [](const auto& f) { return f.rule == "LossNotDecreasing"; });
  ASSERT_NE(found, data.replay.findings.end());
  data.replay.actions = {Taken(*found, "stop", "dry run"), Taken(*found, "webhook", "done"),
                         Taken(*found, "webhook", "done"), Taken(*found, "email", "failed")};
  data.replay.actions.back().detail = "no <b>answer</b>";
  const auto index = static_cast<std::size_t>(found - data.replay.findings.begin());
  EXPECT_EQ(ActionWords(data, {index}),
            "Would stop the training (dry run). Posted to a webhook (2 times). Could not send a "
            "mail: no <b>answer</b>.");
  const std::string html = RenderReport(data);
  ExpectSound(html);
  EXPECT_NE(html.find("Posted to a webhook (2 times)."), std::string::npos);
  EXPECT_NE(html.find("no &lt;b&gt;answer"), std::string::npos);
  EXPECT_NE(FormatVerdict(data, {}).find("Would stop the training (dry run)."), std::string::npos);
  // Each failure in other words: not all of them.
  data.replay.actions.assign(50, Taken(*found, "webhook", "failed"));
  for (std::size_t i = 0; i < data.replay.actions.size(); ++i) {
    data.replay.actions[i].detail = "answer " + std::to_string(i);
  }
  EXPECT_TRUE(ActionWords(data, {index}).ends_with("answer 5. And 44 more."));
  // What belongs to no finding that is shown is no finding's.
  data.replay.actions = {Taken(rules::Finding(), "stop", "done")};
  EXPECT_EQ(ActionWords(data, {index}), "");
}

TEST_F(ReportTest, ACostOrATimeThatMakesNoSenseIsNotLost) {
  RunData data = Make({});
  const double lost = data.lost_seconds();
  EXPECT_GT(lost, 0);
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  // As rules of the user's may report it.
  for (const auto& [cost, start_ns] : {std::pair(1e300, std::int64_t{0}),
                                       std::pair(std::numeric_limits<double>::infinity(), kMost),
                                       std::pair(5.0, kMost), std::pair(5.0, kLeast)}) {
    rules::Finding finding;
    finding.id = std::to_string(data.replay.findings.size());
    finding.rule = "mine";
    finding.incident.subject = "rank 0";
    finding.incident.cost_seconds = cost;
    finding.incident.start_ns = finding.incident.end_ns = start_ns;
    data.replay.findings.push_back(finding);
  }
  EXPECT_NEAR(data.lost_seconds(), lost, 1e-9);
}

TEST_F(ReportTest, WhoStoppedTheRunIsSaidFirst) {
  RunData data = Make({});
  EXPECT_EQ(StoppedWords(data), "");
  ASSERT_FALSE(data.summary.attempts.empty());
  auto& stopped = data.summary.attempts.rbegin()->second.stopped;
  stopped = analysis::StoppedBy{"watch", "LossNotDecreasing",
                                "LossNotDecreasing: Loss does not decrease"};
  const std::string words = "Stopped by the rule LossNotDecreasing: Loss does not decrease.";
  EXPECT_EQ(StoppedWords(data), words);
  EXPECT_NE(FormatVerdict(data, {}).find(words), std::string::npos);
  EXPECT_NE(RenderReport(data).find("<p class=\"lead\">" + words), std::string::npos);
  stopped = analysis::StoppedBy{"n1:4711", "", "too dear."};
  EXPECT_EQ(StoppedWords(data), "Stopped by n1:4711: too dear.");
  stopped = analysis::StoppedBy{};
  EXPECT_EQ(StoppedWords(data), "Stopped by a request.");
  stopped->perhaps = true;
  EXPECT_EQ(StoppedWords(data), "Perhaps stopped by a request.");
}

TEST_F(ReportTest, RulesThatGaveUpHaveJudgedNothing) {
  testing::SampleRun sample;
  sample.learns = true;
  sample.wait_share = 0.02;
  RunData data = Make(sample);
  for (rules::RuleState& rule : data.replay.rules) rule.status = rules::RuleStatus::kSuspended;
  data.replay.rules.front().error = "it took 5 s of processor time for one record";
  EXPECT_EQ(Verdict(data), "No rule had anything to judge.");
  const std::string said = "The rule " + data.replay.rules.front().name +
                           " is suspended: it took 5 s of processor time for one record.";
  EXPECT_NE(RenderReport(data).find(said), std::string::npos);
}

rules::RuleState StateWith(const std::string& rule, const std::string& summary) {
  rules::RuleState state;
  state.name = rule;
  state.rule = rule;
  state.summary = summary;
  return state;
}

TEST_F(ReportTest, WhatTheProfilerRulesSawIsInItsSections) {
  RunData data = Make({});
  data.replay.rules.clear();
  const std::string box =
      R"({"samples":9,"min":1,"p05":2,"p25":20,"p50":30,"p75":40,"p95":60,"max":65,)"
      R"("whisker_low":1,"whisker_high":65})";
  data.replay.rules = {
      StateWith("OverallSystemUsage",
                R"({"nodes":{"<n0>":[{"metric":"CPU","unit":"percent","p95":95,"p50":80}]}})"),
      StateWith("OverallFrameworkMetrics",
                R"({"modes":[{"mode":"TRAIN","share":0.5},{"mode":"EVAL","share":0.3}],)"
                R"("phases":{"TRAIN":{"forward":0.1,"backward":0.6}},"between_steps_share":0.2,)"
                R"("operations":{"gpu_op":{"seconds":2,"list":[{"name":"<gemm>","share":0.9},)"
                R"({"name":"relu","share":0.1}]}}})"),
      StateWith("LowGPUUtilization", R"({"gpus":{"gpu:0 on <n0>":)" + box + "}}"),
      StateWith("LoadBalancing",
                R"({"gpus":{"a":{"mean":9,"histogram":[1,2]},"b":{"mean":99,"histogram":[0,4]}},)"
                R"("pairs":[{"a":"a","b":"b","distance":0.4}]})"),
      StateWith("Dataloader",
                R"({"nodes":{"<n0>":{"cores":8,"workers":7,"loaders":[{"workers":7,)"
                R"("pin_memory":false}],"load_ms":{"count":5,"p25":1,"p50":2,"p95":3,)"
                R"("histogram":{"to_ms":4,"bins":[1,2,3]}}}}})"),
      StateWith("CPUBottleneck", R"({"nodes":{"training":{"samples":40,"bottlenecks":10}}})"),
      // What a rule of another version says, or one that is broken, must not break the page.
      StateWith("GPUMemoryIncrease", R"({"gpus":[1,2,null]})"),
      StateWith("BatchSize", R"({"nodes":{"n0":{"cpu":{},"gpus":7}}})"),
      StateWith("IOBottleneck", "no JSON"),
  };
  const std::string html = RenderReport(data);
  ExpectSound(html);
  std::size_t before = 0;
  for (const char* text :
       {"Cores are well used", "Of forward and backward together, backward takes",
        "The most expensive of gpu_op: &lt;gemm&gt;", "GPU utilization", "Workload balance",
        "7 workers (median) beside 8 cores", "CPU bottlenecks"}) {
    const auto at = html.find(text);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_GT(at, before) << text;
    before = at;
  }
  EXPECT_NE(html.find("is no training step"), std::string::npos) << "half of the time is not";
  EXPECT_NE(html.find("pin_memory=False"), std::string::npos);
  EXPECT_EQ(html.find("<gemm>"), std::string::npos);
  EXPECT_EQ(html.find("<n0>"), std::string::npos);
}

TEST_F(ReportTest, AnInitializationLongerThanTheLoopIsSaid) {
  RunData data = Make({});
  EXPECT_EQ(RenderReport(data).find("longer than the training loop"), std::string::npos);
  ASSERT_TRUE(data.summary.attempts.contains(1));
  data.summary.attempts[1].start_ns -= 3'600'000'000'000;
  const std::string html = RenderReport(data);
  ExpectSound(html);
  EXPECT_NE(html.find("longer than the training loop"), std::string::npos);
}

TEST_F(ReportTest, WhatABoostedModelHasLearnedIsInIt) {
  RunData data = Make({});
  EXPECT_EQ(RenderReport(data).find("Boosted model"), std::string::npos);
  data.replay.rules.push_back(StateWith("CreateXgboostReport", R"({"kind":"xgboost","models":[
      {"rank":0,"pid":7,"last_step":9,"objective":"binary:<x>",
       "loss":[{"name":"test-<loss>","steps":[0,5,9],"values":[0.7,0.5,0.25]},
               {"name":"empty","steps":[],"values":[]}],
       "feature_importance":{"gain":{"step":9,"of":2,"features":[
         {"feature":"<age>","share":0.75},{"feature":"height","share":0.25}]}},
       "step":9,"samples":4,
       "label_distribution":{"kind":"classes","counts":{"0":2,"1":2}},
       "confusion_matrix":{"classes":2,"counts":[[2,0],[1,1]]},
       "evaluation":{"accuracy":0.75,
         "classes":[{"class":0,"precision":0.6667,"recall":1,"f1":0.8,"support":2},
                    {"class":1,"precision":null,"recall":0.5,"f1":0.6667,"support":2}],
         "macro":{"precision":0.83,"recall":0.75,"f1":0.73}},
       "accuracy_by_step":[{"step":4,"accuracy":0.5,"by_class":[]},
                           {"step":9,"accuracy":0.75,"by_class":[]}],
       "roc":{"auc":0.75,"false_positive_rate":[0,0.5,1],"true_positive_rate":[0,0.5,1]}},
      {"rank":1,"pid":8,"objective":"reg:squarederror","step":9,"samples":3,
       "label_distribution":{"kind":"histogram","edges":[0,1,2],"counts":[1,2],"mean":1.2,"std":0.5},
       "residuals":{"kind":"histogram","edges":[-1,0,1],"counts":[2,1],"mean":-0.1,"std":0.4},
       "error_by_label":[{"from":0,"to":1,"count":3,"mean_absolute_error":null}]},
      7, {"loss":7,"feature_importance":[],"confusion_matrix":{"counts":{}},"roc":[],
          "evaluation":{"classes":{}},"accuracy_by_step":{},"error_by_label":{}}]})"));
  const std::string html = RenderReport(data);
  ExpectSound(html);
  for (const char* said :
       {"binary:&lt;x&gt;; rank 0, pid 7", "test-&lt;loss&gt;: 0.2500 at the last round",
        "&lt;age&gt;", "width:75.0%", "<td class=\"r\"><b>1</b></td>", "accuracy 75", "macro mean",
        "area 0.750", "Residuals", "Error by label", "reg:squarederror"}) {
    EXPECT_NE(html.find(said), std::string::npos) << said;
  }
  data.replay.rules.back().summary = "no object";
  ExpectSound(RenderReport(data));
}

TEST_F(ReportTest, WhatWasLoggedIsInATableWithItsSteps) {
  testing::SampleRun sample;
  sample.nan_at = 100;
  RunData data = Make(sample);
  const auto scalar = [&](std::int64_t step, double value) {
    format::ScalarRow row;
    row.ord_ns = row.time_ns = data.summary.last_ns;
    row.name = "<accuracy>";
    row.mode = "EVAL";
    row.step = step;
    row.value = value;
    data.summary.OnRecord({row.ord_ns, 0, format::ScalarRow::kTable, &row});
  };
  scalar(10, 0.5);
  scalar(20, 0.93);
  scalar(30, -2e-7);
  const std::string html = RenderReport(data);
  ExpectSound(html);
  const auto row = [](const std::string& name, const std::vector<std::string>& cells) {
    std::string out = "<tr><td>" + name + "</td>";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const char* kind = i == 0 ? "q" : i % 2 == 1 ? "r" : "r q";
      out += std::string("<td class=\"") + kind + "\">" + cells[i] + "</td>";
    }
    return out;
  };
  // Mode, then last, lowest and highest, each with its step, and how many.
  EXPECT_NE(html.find(row("&lt;accuracy&gt;",
                          {"EVAL", "−2e-07", "30", "−2e-07", "30", "0.9300", "20", "3"})),
            std::string::npos)
      << html.substr(html.find("id=\"values\""), 2000);
  EXPECT_NE(html.find(row("lr", {"TRAIN", "1.000", "399", "1.000", "0", "1.000", "0", "400"})),
            std::string::npos);
  EXPECT_NE(html.find("399, 1 not finite</td>"), std::string::npos) << "the loss";
  EXPECT_EQ(html.find("TRAIN of rank"), std::string::npos) << "there is only one";
  data.summary.ranks.insert(1);
  EXPECT_NE(RenderReport(data).find("Loss <small>TRAIN of rank 0, by step"), std::string::npos);
}

TEST_F(ReportTest, ProcessesAreNamedByWhatTheyDo) {
  RunData data = Make({});
  format::EventRow start;
  start.ord_ns = start.time_ns = data.summary.last_ns;
  start.kind = "process.start";
  start.data = "{\"kind\":\"worker\"}";
  start.pid = 4711;
  format::EventRow worker = start;
  worker.kind = "worker.start";
  worker.data = "{\"worker_id\":3}";
  format::MetricRow metric;
  metric.ord_ns = metric.time_ns = data.summary.last_ns;
  metric.node = "sample";
  metric.name = "proc.cpu";
  metric.subject = "proc:4711";
  metric.value = 42;
  metric.unit = "percent";
  data.summary.OnRecord({metric.ord_ns, 0, format::MetricRow::kTable, &metric});
  EXPECT_EQ(RenderReport(data).find(">4711<"), std::string::npos) << "it has not registered";
  data.summary.OnRecord({start.ord_ns, 0, format::EventRow::kTable, &start});
  data.summary.OnRecord({worker.ord_ns, 0, format::EventRow::kTable, &worker});
  data.summary.OnRecord({metric.ord_ns, 0, format::MetricRow::kTable, &metric});
  const std::string html = RenderReport(data);
  ExpectSound(html);
  EXPECT_NE(html.find("<td class=\"q\">worker 3 (4711)</td><td class=\"r\">42.0</td>"),
            std::string::npos);
}

TEST_F(ReportTest, TheCostIsWhatTelltaleAccountsFor) {
  const RunData data = Make({});
  EXPECT_TRUE(OwnCost(data).starts_with("Telltale accounts for 0.25")) << OwnCost(data);
  EXPECT_NE(FormatVerdict(data, {}).find("Telltale accounts for"), std::string::npos);
}

analysis::profile::NodeId Frames(analysis::profile::Tree* tree,
                                 const std::vector<std::string>& frames, double own_ns) {
  analysis::profile::NodeId at = analysis::profile::kRoot;
  for (const std::string& frame : frames) at = tree->Child(at, frame);
  tree->node(at).self.host_ns += own_ns;
  return at;
}

TEST(StackGraphTest, WidthsAreSharesAndTheWidestComeFirst) {
  analysis::profile::Tree tree;
  Frames(&tree, {"main", "a.py(1): f"}, 1e9);
  Frames(&tree, {"main", "b.py(2): g"}, 5e9);
  Frames(&tree, {"main", "b.py(2): g", "a.py(1): f"}, 2e9);
  Frames(&tree, {"main"}, 2e9);
  Frames(&tree, {"main", "never"}, 0);
  const StackGraph graph = MakeStackGraph(tree);
  ASSERT_EQ(graph.frames.size(), 5U);
  EXPECT_EQ(graph.frames[0].ns, 10e9);
  EXPECT_EQ(graph.frames[1].name, "main");
  EXPECT_EQ(graph.frames[2].name, "b.py(2): g");
  EXPECT_EQ(graph.frames[2].ns, 7e9);
  EXPECT_EQ(graph.frames[1].below, (std::vector<std::uint32_t>{2, 4}));
  EXPECT_EQ(graph.left_out, 0U);
  ASSERT_EQ(graph.by_own.size(), 3U);
  EXPECT_EQ(graph.by_own[0], (std::pair<std::string, double>{"b.py(2): g", 5e9}));
  EXPECT_EQ(graph.by_own[1].second, 3e9) << "wherever it was called";
  const std::string html = Draw(graph, "s0-");
  EXPECT_EQ(Unbalanced(html), "");
  EXPECT_NE(html.find("style=\"flex:70000\"><a id=\"s0-2\" href=\"#s0-2\""), std::string::npos)
      << html;
  EXPECT_NE(html.find(">g · b.py:2</a>"), std::string::npos) << html;
  EXPECT_NE(html.find("<i style=\"flex:20000\"></i>"), std::string::npos) << "main's own";
  EXPECT_TRUE(MakeStackGraph(analysis::profile::Tree()).frames.empty());
}

TEST_F(ReportTest, OfAsManyFindingsAsThereMayBeTheReportIsOnePage) {
  RunData data = Make({});
  const rules::Finding first = data.replay.findings.front();
  std::vector<rules::Finding> many;
  const std::int64_t begin_ns = data.summary.first_ns;
  // Each two overlap, and no others do; each costs half of its 2 ms.
  for (std::size_t i = 0; i < rules::kMostRanked; ++i) {
    rules::Finding& finding = many.emplace_back(first);
    finding.id = std::to_string(i);
    finding.rule = "StepOutlier";
    finding.wrong_result = false;
    finding.standing = {.theme = rules::Theme::kPauses, .order = static_cast<int>(i % 2)};
    finding.incident.subject = "rank 0";
    finding.incident.start_ns = begin_ns + static_cast<std::int64_t>(i / 2) * 3'000'000;
    finding.incident.end_ns = finding.incident.start_ns + 2'000'000;
    finding.incident.cost_seconds = 1e-3;
  }
  data.replay.findings = rules::Ranked(std::move(many));
  const std::vector<Explanation> groups = Explain(data);
  ASSERT_EQ(groups.size(), rules::kMostRanked / 2);
  for (const Explanation& group : groups) {
    EXPECT_EQ(group.findings.size(), 2U);
    EXPECT_NEAR(group.lost_seconds, 1e-3, 1e-9) << "they lost it to one thing";
  }
  EXPECT_NEAR(data.lost_seconds(), 1e-3 * static_cast<double>(groups.size()), 1e-6);
  ExpectSound(RenderReport(data));
}

TEST_F(ReportTest, AFlameGraphIsBoundedAndItsNamesAreShownNotRun) {
  const RunData data = Make({});
  EXPECT_EQ(RenderReport(data).find("id=\"stacks\""), std::string::npos) << "there are none";
  analysis::profile::Tree tree;
  for (int i = 0; i < 5000; ++i) {
    Frames(&tree, {"<b>\"'&\x1b", "f" + std::to_string(i % 600) + std::string(300, 'x')}, 1e6);
  }
  Frames(&tree, std::vector<std::string>(2000, "deep"), 1e9);
  StackGraph graph = MakeStackGraph(tree);
  graph.title = "Sampled stacks";
  EXPECT_LE(graph.frames.size(), StackGraph::kMostFrames);
  EXPECT_GT(graph.left_out, 0U);
  const std::string html = RenderReport(data, {graph});
  ExpectSound(html);
  EXPECT_NE(html.find("id=\"stacks\""), std::string::npos);
  EXPECT_EQ(html.find("<b>\"'"), std::string::npos);
  EXPECT_EQ(Count(html, "class=\"fn\""), graph.frames.size());
  StackGraph none;
  none.title = "Sampled stacks";
  none.why = "They are many.";
  EXPECT_NE(RenderReport(data, {none}).find("They are many."), std::string::npos);
}

/// Seconds of slices that `writer` recorded, each of `stacks` after the one before; a stack is the
/// names from the outermost on.
void WriteStacks(const fs::path& run, const std::string& writer,
                 const std::vector<std::vector<std::string>>& stacks, std::string_view window) {
  constexpr std::int64_t kBegin = 1'800'000'000'000'000'000;
  auto opened = store::Writer::Open(run / writer, writer);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  format::Batch batch;
  batch.watermark_ns = kBegin;
  for (const std::vector<std::string>& stack : stacks) {
    for (const std::string& name : stack) {
      format::SliceRow row;
      row.time_ns = batch.watermark_ns;
      row.duration_ns = 1'000'000'000;
      row.ord_ns = row.time_ns + row.duration_ns;
      row.name = name;
      row.category = "python";
      row.window = window;
      row.device = row.stream = -1;
      row.step = -1;
      batch.rows.slices.push_back(row);
    }
    batch.watermark_ns += 1'000'000'000;
  }
  ++batch.watermark_ns;
  ASSERT_TRUE((*opened)->Append(std::move(batch)).ok());
  ASSERT_TRUE((*opened)->Close(true).ok());
}

/// A segment of slices in `writer`'s folder that has so many bytes, and nothing in them.
void WriteEmptySegment(const fs::path& run, const std::string& writer, std::uintmax_t bytes) {
  fs::create_directories(run / writer);
  const fs::path file =
      run / writer / store::SegmentFileName(format::TableId::kSlices, 1'000'000, 2'000'000);
  std::ofstream(file).put('x');
  fs::resize_file(file, bytes);
}

TEST(StackGraphTest, ALongNameKeepsItsFunctionAndTheEndOfItsFile) {
  constexpr std::size_t kMost = StackGraph::kMostNameBytes;
  EXPECT_EQ(ShortFrameName("a.py(1): f<b>"), "a.py(1): f<b>");
  EXPECT_EQ(ShortFrameName(std::string(kMost, 'x')), std::string(kMost, 'x'));
  EXPECT_EQ(ShortFrameName(std::string(kMost + 1, 'x')), std::string(kMost - 3, 'x') + "…");
  const std::string cut = ShortFrameName("/" + std::string(5000, 'd') + "/deep.py(12): step");
  EXPECT_TRUE(cut.starts_with("…dd")) << cut;
  EXPECT_TRUE(cut.ends_with("d/deep.py(12): step")) << cut;
  // Between characters, whatever they become on the page.
  for (const std::string part : {"é", "€", "😀", "\"", "\xff", "\xe2\x82", "\x1b", "x(1): "}) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::string name(shift, 'a');
      while (name.size() < 10 * kMost) name += part;
      for (const std::string& whole : {name, name + "(7): " + name}) {
        const std::string cut_name = ShortFrameName(whole);
        EXPECT_LE(Escape(cut_name).size(), kMost) << part;
        EXPECT_GT(Escape(cut_name).size(), kMost / 2 - 12) << part;
        if (ValidUtf8Prefix(whole) == whole.size()) {
          EXPECT_EQ(ValidUtf8Prefix(cut_name), cut_name.size()) << part;
        }
      }
    }
  }
}

TEST_F(ReportTest, HugeNamesOfFramesLeaveThePageSmall) {
  Make({});
  for (const std::string part : {"x", "\"'", "\xff", "\x1b", "<i>"}) {
    std::string name;
    while (name.size() < 4'000) name += part;
    std::vector<std::vector<std::string>> stacks;
    for (int i = 0; i < 600; ++i) {
      stacks.push_back({"/" + name + "/" + std::to_string(i) + ".py(1): " + name});
    }
    for (const auto& [writer, window] :
         {std::pair("stacks", query::kSampledStacks),
          std::pair("windows-1-rank0", std::string_view("trace.json"))}) {
      fs::remove_all(run_ / writer);
      WriteStacks(run_, writer, stacks, window);
    }
    const auto graphs = StackGraphsOf(run_);
    ASSERT_EQ(graphs.size(), 2U);
    for (const StackGraph& graph : graphs) {
      EXPECT_EQ(graph.frames.size(), StackGraph::kMostFrames);
      EXPECT_EQ(graph.by_own.size(), 10U);
    }
    auto data = Load(run_);
    ASSERT_TRUE(data.ok());
    ExpectSound(RenderReport(*data, graphs));
  }
}

TEST_F(ReportTest, WhatIsReadForAllGraphsTogetherIsBoundedAndTheRestIsCounted) {
  Make({});
  WriteStacks(run_, "stacks", {{"main thread", "t.py(5): hot"}}, query::kSampledStacks);
  WriteStacks(run_, "windows-1-rank0", {{"w.py(1): one"}}, "trace.json");
  WriteStacks(run_, "windows-2-rank0", {{"w.py(2): two"}}, "trace.json");
  const auto names = [](const StackGraph& graph) {
    std::vector<std::string> out;
    for (const StackGraph::Frame& frame : graph.frames) out.push_back(frame.name);
    return out;
  };
  const auto all = StackGraphsOf(run_);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(names(all[1]), (std::vector<std::string>{"all", "w.py(1): one", "w.py(2): two"}));
  EXPECT_EQ(all[0].partly + all[1].partly, "");
  // One that is too large leaves those that are not, and nobody opens it: it would be damage.
  WriteEmptySegment(run_, "windows-1-rank0", StackBound().file_bytes);
  const auto without_one = StackGraphsOf(run_);
  ASSERT_EQ(without_one.size(), 2U);
  EXPECT_EQ(names(without_one[1]), (std::vector<std::string>{"all", "w.py(2): two"}));
  EXPECT_EQ(without_one[0].partly, "");
  EXPECT_NE(without_one[1].partly.find("1 of 2 recordings (128"), std::string::npos)
      << without_one[1].partly;
  EXPECT_EQ(without_one[1].partly.find("damaged"), std::string::npos) << without_one[1].partly;
  EXPECT_NE(Draw(without_one[1], "s1-").find("1 of 2 recordings (128"), std::string::npos);
  // What one graph has read the next has not.
  WriteEmptySegment(run_, "stacks", StackBound().file_bytes - 50'000);
  fs::remove_all(run_ / "windows-1-rank0");
  WriteEmptySegment(run_, "windows-2-rank0", 60'000);
  const auto first_alone = StackGraphsOf(run_);
  ASSERT_EQ(first_alone.size(), 2U);
  EXPECT_EQ(names(first_alone[0]).size(), 3U);
  EXPECT_NE(first_alone[0].partly.find("1 unreadable file"), std::string::npos)
      << first_alone[0].partly;
  EXPECT_TRUE(first_alone[1].frames.empty());
  EXPECT_NE(first_alone[1].why.find("1 of 1 recording ("), std::string::npos) << first_alone[1].why;
  EXPECT_NE(Draw(first_alone[1], "s1-").find("1 of 1 recording ("), std::string::npos);
}

TEST_F(ReportTest, SampledStacksOfTheRunAreInItsReport) {
  const RunData data = Make({});
  EXPECT_TRUE(StackGraphsOf(run_).empty());
  WriteStacks(run_, "stacks", {{"main thread", "forward", "t.py(5): hot"}}, query::kSampledStacks);
  const auto graphs = StackGraphsOf(run_);
  ASSERT_EQ(graphs.size(), 1U);
  EXPECT_EQ(graphs[0].title, "Sampled stacks");
  ASSERT_EQ(graphs[0].frames.size(), 4U);
  EXPECT_EQ(graphs[0].frames[3].name, "t.py(5): hot");
  const fs::path page = folder_.path() / "page.html";
  ASSERT_TRUE(WriteReport(data, page).ok());
  std::ifstream in(page);
  const std::string html((std::istreambuf_iterator<char>(in)), {});
  ExpectSound(html);
  EXPECT_NE(html.find(">hot · t.py:5</a>"), std::string::npos);
}

TEST_F(ReportTest, HostileTextIsShownNotRun) {
  testing::SampleRun sample;
  sample.name = "<img src=x onerror=alert(1)>\"'&\x1b[31m\xff";
  const RunData data = Make(sample);
  const std::string html = RenderReport(data);
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_NE(html.find("&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;"), std::string::npos);
  EXPECT_EQ(Unbalanced(html), "");
  // No escape sequence of a recorded text reaches the terminal.
  EXPECT_EQ(FormatVerdict(data, {}).find('\x1b'), std::string::npos);
}

TEST_F(ReportTest, ARunThatGoesOnSaysSoAndUntilWhen) {
  RunData data = Make({});
  EXPECT_EQ(RenderReport(data).find("till running"), std::string::npos);
  data.replay.ended = false;
  data.replay.state.state = "running";
  const std::string html = RenderReport(data);
  ExpectSound(html);
  EXPECT_NE(html.find("· still running · 400 steps"), std::string::npos);
  EXPECT_NE(html.find("Still running: this is what was recorded until 2027-01-15 08:00:"),
            std::string::npos);
}

TEST_F(ReportTest, ARuleUnderANameOfTheUsersIsShownAsItRan) {
  RunData data = Make({});
  rules::RuleSpec spec = rules::ParseRule("VanishingGradient:threshold=0.5").value();
  spec.name = "mine";
  data.replay.rule_set.rules.push_back(spec);
  rules::RuleState state;
  state.name = "mine";
  state.rule = "VanishingGradient";
  state.status = rules::RuleStatus::kSuspended;
  state.error = "it takes too long";
  data.replay.rules.push_back(state);
  const std::string html = RenderReport(data);
  ExpectSound(html);
  EXPECT_NE(html.find("it takes too long; VanishingGradient: threshold 0.5, "), std::string::npos);
  const auto unknowns = Unknowns(data);
  EXPECT_NE(
      std::find(unknowns.begin(), unknowns.end(), "The rule mine is suspended: it takes too long."),
      unknowns.end());
}

TEST_F(ReportTest, WhatWasSkippedIsToldWithItsReasonsAndSummedOnce) {
  RunData data = Make({});
  const std::string before = OwnCost(data);
  auto& ledger = data.summary.ledger;
  ledger["probe.skipped"] = {.value = 1215, .unit = "records", .loss = true};
  ledger["skipped.capture.subclass"] = {.value = 12, .unit = "records", .loss = false};
  ledger["skipped.<b>"] = {.value = 1200, .unit = "records", .loss = false};
  ledger["skipped.other"] = {.value = 3, .unit = "records", .loss = false};
  const auto is_told = [&](const std::string& line) {
    const auto unknowns = Unknowns(data);
    return std::find(unknowns.begin(), unknowns.end(), line) != unknowns.end();
  };
  EXPECT_TRUE(
      is_told("probe.skipped: 1,215 records lost (<b> 1,200, capture.subclass 12, other 3)."));
  EXPECT_NE(OwnCost(data).find("dropped 1,215 of "), std::string::npos) << OwnCost(data);
  EXPECT_NE(OwnCost(data), before);
  const std::string html = RenderReport(data);
  ExpectSound(html);
  auto at = html.find("id=\"own-cost\"");
  for (const char* row : {">probe.skipped</td>", ">&lt;b&gt;</td>", ">capture.subclass</td>",
                          ">other</td>", "</table>"}) {
    const auto next = html.find(row, at);
    ASSERT_NE(next, std::string::npos) << row;
    at = next;
  }
  EXPECT_LT(at - html.find("id=\"own-cost\""), 4000U) << "rows of one table";
  for (const char* more : {"skipped.x", "skipped.y", "skipped.z"}) {
    ledger[more] = {.value = 1, .unit = "records", .loss = false};
  }
  EXPECT_TRUE(is_told(
      "probe.skipped: 1,215 records lost (<b> 1,200, capture.subclass 12, other 3, x 1 and 2 "
      "more)."));
}

TEST_F(ReportTest, WhatWasFoundAndWhatWasWatchedHaveTheSameWordsEverywhere) {
  RunData data = Make({});
  ASSERT_EQ(data.replay.findings.size(), 2U);
  const std::string words = RulesWords(data);
  EXPECT_TRUE(words.starts_with(std::to_string(data.replay.rules.size() - 2) + " other rules: "))
      << words;
  EXPECT_NE(words.find(" without data"), std::string::npos) << words;
  rules::Finding finding = data.replay.findings[0];
  EXPECT_EQ(SinceWords(finding), "from the start");
  finding.incident.first_step = 18400;
  EXPECT_EQ(SinceWords(finding), "since step 18,400");
  finding.open = false;
  finding.until_end = true;
  finding.incident.last_step = 18401;
  EXPECT_EQ(SinceWords(finding), "in step 18,400");
  finding.until_end = false;
  finding.incident.last_step = 19000;
  EXPECT_EQ(SinceWords(finding), "steps 18,400 to 19,000, closed");
  finding.incident.first_step = -1;
  EXPECT_EQ(SinceWords(finding), "");
}

TEST_F(ReportTest, ADashAmongTheRulesSaysWhyNothingIsKnown) {
  RunData data = Make({});
  const std::string why = "title=\"Not known: the watcher of this run wrote no count.";
  const std::string html = RenderReport(data);
  EXPECT_EQ(html.find(why), std::string::npos);
  ASSERT_GT(data.replay.rules[0].records.value_or(0), 0U);
  data.replay.rules[0].records.reset();
  data.replay.rules[1].records = 0;
  const std::string older = RenderReport(data);
  ExpectSound(older);
  EXPECT_EQ(Count(older, why), 1U) << "nought is a number";
  const auto cell = older.find(why);
  EXPECT_EQ(older.substr(older.find('>', cell), 9), ">—</td>");
}

TEST_F(ReportTest, ALongNameStaysInItsPicture) {
  RunData data = Make({});
  data.replay.findings[0].incident.message = "NaN in " + std::string(300, 'x');
  data.replay.findings[0].incident.first_step = 300;
  const std::string html = RenderReport(data);
  EXPECT_NE(html.find("xxx…</text>"), std::string::npos);
  EXPECT_EQ(html.find(std::string(130, 'x') + "…"), std::string::npos) << "816 px";
}

TEST_F(ReportTest, ARunWithoutStepsOrRecordsHasAReport) {
  testing::SampleRun sample;
  sample.steps = 0;
  const RunData data = Make(sample);
  ExpectSound(RenderReport(data));
  EXPECT_EQ(Verdict(data), "No training step was recorded.");

  fs::remove_all(run_ / "agent-sample");
  const auto empty = Load(run_);
  ASSERT_TRUE(empty.ok()) << empty.status().message();
  ExpectSound(RenderReport(*empty));
  EXPECT_EQ(Verdict(*empty),
            "No training step was recorded. Nothing was recorded of the newest attempt: its agent "
            "wrote nothing.");
}

TEST_F(ReportTest, DamageIsToldAndTheRestIsUsed) {
  Make({});
  int damaged = 0;
  for (const auto& entry : fs::directory_iterator(run_ / "agent-sample")) {
    if (!entry.path().filename().string().starts_with("metrics-")) continue;
    fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
    ++damaged;
  }
  ASSERT_GT(damaged, 0);
  const auto data = Load(run_);
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_TRUE(data->replay.salvage.any());
  const std::string html = RenderReport(*data);
  ExpectSound(html);
  EXPECT_NE(html.find("Part of the recording is damaged"), std::string::npos);
  EXPECT_NE(FormatVerdict(*data, {}).find("Part of the recording is damaged"), std::string::npos);
  EXPECT_NE(FormatVerdict(*data, {}).find("Data loading takes"), std::string::npos);
}

TEST_F(ReportTest, TheVerdictShowsEveryFindingOfWeightWithinItsWidth) {
  testing::SampleRun sample;
  sample.nan_at = 100;
  RunData data = Make(sample);
  const std::vector<rules::Finding> few = data.replay.findings;
  ASSERT_GE(few.size(), 2U);
  // Each is about something else than the others.
  for (int i = 0; i < 20; ++i) data.replay.findings.emplace_back(few[0]).standing = {};
  const std::string html = RenderReport(data);
  ExpectSound(html);
  EXPECT_NE(html.find(" more</summary>"), std::string::npos);
  for (int width : {40, 60, 98}) {
    const std::string verdict = FormatVerdict(data, {.color = false, .width = width});
    std::size_t of_weight = 0;
    for (const rules::Finding& finding : data.replay.findings) {
      of_weight += finding.incident.severity >= rules::Severity::kMedium ? 1 : 0;
    }
    EXPECT_EQ(Count(verdict, "◆ ") + Count(verdict, "▲ "), of_weight) << verdict;
    if (width < 98) continue;
    std::size_t begin = 0;
    for (auto end = verdict.find('\n'); end != std::string::npos; end = verdict.find('\n', begin)) {
      const std::string line = verdict.substr(begin, end - begin);
      const auto columns = std::count_if(line.begin(), line.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
      });
      if (line.find("telltale ") == std::string::npos) {
        EXPECT_LE(columns, width) << line;
      }
      begin = end + 1;
    }
  }
  const std::string plain = FormatVerdict(data, {.color = false});
  const std::string colored = FormatVerdict(data, {.color = true});
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  EXPECT_NE(colored.find('\x1b'), std::string::npos);
}

TEST_F(ReportTest, TheFileIsReplacedWholeOrNotAtAll) {
  const RunData data = Make({});
  const fs::path out = run_ / "report.html";
  std::ofstream(out) << "old";
  ASSERT_TRUE(WriteReport(data, out).ok());
  EXPECT_EQ(fs::file_size(out), RenderReport(data).size());
  const Status failed = WriteReport(data, run_ / "no-such-folder" / "report.html");
  EXPECT_EQ(failed.code(), Code::kIo);
  for (const auto& entry : fs::directory_iterator(run_)) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

rules::Finding Cost(const std::string& rule, const std::string& subject, double from_s, double to_s,
                    double cost_s) {
  rules::Finding finding;
  finding.rule = rule;
  if (const rules::RuleEntry* entry = rules::FindRule(rule)) {
    finding.standing = entry->desc->standing;
  }
  finding.incident.subject = subject;
  finding.incident.start_ns = static_cast<std::int64_t>(from_s * 1e9);
  finding.incident.end_ns = static_cast<std::int64_t>(to_s * 1e9);
  finding.incident.cost_seconds = cost_s;
  return finding;
}

/// Seconds lost of a run of 100 s.
double Lost(std::set<std::int32_t> ranks, std::vector<rules::Finding> findings) {
  RunData data;
  data.summary.first_ns = 1;
  data.summary.last_ns = 100'000'000'001;
  data.summary.ranks = std::move(ranks);
  data.replay.findings = std::move(findings);
  return data.lost_seconds();
}

/// A run that was recorded for 10 s from here on.
RunData RecordedForTenSeconds() {
  constexpr std::int64_t kBegin = 1'700'000'000'000'000'000;
  RunData data;
  data.replay.ended = true;
  data.replay.state.state = "finished";
  data.replay.info.attempts.push_back({.number = 1, .start_ns = kBegin});
  data.summary.first_ns = kBegin + 1;
  data.summary.last_ns = kBegin + 10'000'000'000;
  return data;
}

TEST(ElapsedTest, AnEndByAClockThatWasSetCountsForNothing) {
  RunData data = RecordedForTenSeconds();
  std::int64_t& end_ns = data.replay.info.attempts[0].end_ns;
  const std::int64_t last_ns = data.summary.last_ns;
  end_ns = last_ns + 500'000'000;
  EXPECT_NEAR(data.elapsed_seconds(), 10.5, 1e-3) << "the supervisor's word is the exact one";
  end_ns = last_ns - 3'600'000'000'000;  // An hour back.
  EXPECT_NEAR(data.elapsed_seconds(), 10, 1e-3);
  data.summary.attempts[1].end_ns = last_ns - 1'000'000'000;
  EXPECT_NEAR(data.elapsed_seconds(), 9, 1e-3) << "the agent's where they differ";
  end_ns = last_ns + 315'360'000'000'000'000;  // Ten years forward.
  EXPECT_NEAR(data.elapsed_seconds(), 9, 1e-3);
  EXPECT_FALSE(data.end_unknown());
}

TEST(ElapsedTest, WhereNobodySawTheEndItIsAtLeastWhatWasRecorded) {
  RunData data = RecordedForTenSeconds();
  data.replay.state.state = "lost";
  data.replay.state.unrecorded = store::Unrecorded{"agent-n0", data.summary.last_ns};
  EXPECT_TRUE(data.end_unknown());
  EXPECT_TRUE(ElapsedWords(data).starts_with("\u2265")) << ElapsedWords(data);
  EXPECT_EQ(StateWords(data.replay.state), "lost, end not recorded");
  const std::string verdict = Verdict(data);
  EXPECT_NE(verdict.find("What happened after 2023-11-14 22:13:30 UTC was not recorded"),
            std::string::npos)
      << verdict;
  data.replay.seen_end_ns = data.summary.last_ns + 5'000'000'000;
  EXPECT_FALSE(data.end_unknown());
  EXPECT_NEAR(data.elapsed_seconds(), 15, 1e-3) << "the watcher saw it";
  data.replay.ended = false;
  data.replay.state.state = "running";
  EXPECT_EQ(StateWords(data.replay.state), "running, not recorded");
}

TEST(ElapsedTest, ALossOfAnAttemptBeforeIsNotKnownAndNoneOfTheNewest) {
  RunData data = RecordedForTenSeconds();
  data.replay.state.state = "finished";
  data.summary.lost_since_ns = {1'700'000'000'000'000'000};
  data.replay.state.unrecorded_before = {{"agent-n0", 1'700'000'060'000'000'000}};
  EXPECT_EQ(StateWords(data.replay.state), "finished");
  std::string unknown;
  for (const std::string& line : Unknowns(data)) unknown += line + "\n";
  for (const char* since : {"2023-11-14 22:13:20 UTC", "2023-11-14 22:14:20 UTC"}) {
    const std::string words = std::string("in an earlier attempt after ") + since;
    EXPECT_NE(unknown.find(words + " was not recorded"), std::string::npos) << unknown;
  }
}

TEST(LostTest, ATrainingThatIsWrongForTwoReasonsLosesItsTimeOnce) {
  const auto loss = Cost("LossNotDecreasing", "rank 0", 10, 70, 60);
  EXPECT_NEAR(Lost({0}, {loss}), 60, 1e-6);
  EXPECT_NEAR(Lost({0}, {loss, Cost("VanishingGradient", "rank 0", 10, 70, 30)}), 60, 1e-6);
  // Until 30 s half of it, then all of it; the name of a loss is no other rank.
  EXPECT_NEAR(Lost({0}, {Cost("VanishingGradient", "rank 0", 10, 50, 20),
                         Cost("LossNotDecreasing", "rank 0, loss_g", 30, 90, 60)}),
              10 + 60, 1e-6);
  EXPECT_NEAR(Lost({0}, {loss, Cost("ExplodingTensor", "rank 0", 80, 90, 10)}), 70, 1e-6);
}

TEST(LostTest, WaitsAddToWrongResultsAndNoSecondIsLostTwice) {
  const auto loss = Cost("LossNotDecreasing", "rank 0", 0, 100, 40);
  EXPECT_NEAR(Lost({0}, {loss, Cost("InputBound", "rank 0", 0, 100, 60)}), 100, 1e-6);
  EXPECT_NEAR(Lost({0}, {loss, Cost("InputBound", "rank 0", 0, 50, 10)}), 50, 1e-6);
  EXPECT_NEAR(Lost({0}, {Cost("LossNotDecreasing", "rank 0", 0, 80, 80),
                         Cost("CPUBottleneck", "rank 0", 20, 100, 40)}),
              80 + 10, 1e-6);
}

TEST(LostTest, RanksLoseTheSameTimeTogether) {
  EXPECT_NEAR(Lost({0, 1}, {Cost("InputBound", "rank 0", 0, 50, 20),
                            Cost("InputBound", "rank 1", 0, 50, 10)}),
              15, 1e-6);
  EXPECT_NEAR(Lost({0}, {Cost("LossNotDecreasing", "rank 0, pid 7", 0, 50, 50),
                         Cost("LossNotDecreasing", "rank 0, pid 8", 50, 90, 40)}),
              90, 1e-6);
  // One that has no length, or costs longer than it lasted.
  EXPECT_NEAR(Lost({0}, {Cost("StepOutlier", "rank 0", 5, 5, 2)}), 2, 1e-6);
  EXPECT_EQ(Lost({0}, {}), 0);
}

TEST(LostTest, WhatSpeaksOfOneThingCountsOnce) {
  EXPECT_NEAR(Lost({0}, {Cost("InputBound", "rank 0", 0, 50, 20),
                         Cost("CPUBottleneck", "rank 0", 0, 50, 15)}),
              20, 1e-6);
  // The device that the rank is on loses no further time.
  EXPECT_NEAR(Lost({0}, {Cost("InputBound", "rank 0", 0, 50, 20),
                         Cost("LowGPUUtilization", "gpu:0", 0, 50, 40)}),
              20, 1e-6);
  // One alone does, of each rank.
  EXPECT_NEAR(Lost({0, 1}, {Cost("LowGPUUtilization", "gpu:0", 0, 50, 40)}), 40, 1e-6);
  // Two things do not explain each other.
  EXPECT_NEAR(Lost({0}, {Cost("InputBound", "rank 0", 0, 50, 20),
                         Cost("StepOutlier", "rank 0", 0, 50, 10)}),
              30, 1e-6);
}

TEST(CausesTest, FindingsOfOneCauseAreOneGroupUnderWhatExplainsThem) {
  RunData data;
  data.replay.findings = {
      Cost("LossNotDecreasing", "rank 0", 0, 100, 60),
      Cost("LowGPUUtilization", "gpu:0", 5, 50, 40), Cost("mine", "rank 0", 10, 50, 20),
      Cost("CPUBottleneck", "rank 0", 10, 50, 10), Cost("InputBound", "rank 0", 70, 90, 5)};
  rules::RuleState mine;
  mine.name = "mine";
  mine.rule = "SmallReads";  // An instance of it.
  data.replay.rules = {mine};
  data.replay.findings[2].standing = rules::FindRule("SmallReads")->desc->standing;
  using Groups = std::vector<std::vector<std::size_t>>;
  // InputBound is of another time.
  EXPECT_EQ(GroupFindings(data), (Groups{{0}, {2, 3, 1}, {4}}));
  const std::vector<Explanation> all = Explain(data);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(BeneathWords(data, all[1]), "With it: CPUBottleneck, LowGPUUtilization (gpu:0).");
  EXPECT_EQ(BeneathWords(data, all[0]), "");
  // What is over explains nothing that lasts.
  data.replay.findings[1].open = data.replay.findings[3].open = true;
  data.replay.findings[2].open = false;
  EXPECT_EQ(GroupFindings(data)[1], (std::vector<std::size_t>{3, 1, 2}));
}

/// Steps of 20 ms, and of 60 from 4 to 10 s: what the loader takes.
RunData SlowInTheMiddle() {
  constexpr std::int64_t kMs = 1'000'000;
  RunData data;
  data.summary.ranks = {0};
  std::int64_t now = 1;
  for (int i = 0; i < 500; ++i) {
    const bool slow = i >= 200 && i < 300;
    format::StepRow row;
    row.step = i;
    row.mode = "TRAIN";
    row.attempt = 1;
    row.time_ns = now;
    row.data_wait_ns = slow ? 41 * kMs : kMs;
    row.forward_ns = 19 * kMs;
    row.duration_ns = row.data_wait_ns + row.forward_ns;
    now += row.duration_ns;
    row.ord_ns = now;
    data.trail.OnRecord({row.ord_ns, 0, format::StepRow::kTable, &row});
    data.summary.OnRecord({row.ord_ns, 0, format::StepRow::kTable, &row});
  }
  rules::Finding finding = Cost("StepTimeDrift", "rank 0", 4, 10, 4.2);
  finding.incident.first_step = 200;
  finding.incident.last_step = 299;
  finding.incident.cause = "cause not found";
  data.replay.findings = {finding};
  return data;
}

TEST(CausesTest, WhatAGroupLostIsOneFigureAndSaidToBeOfAllItsFindings) {
  RunData data;
  data.summary.first_ns = 1;
  data.summary.last_ns = 100'000'000'001;
  data.summary.ranks = {0};
  data.replay.findings = rules::Ranked(
      {Cost("InputBound", "rank 0", 0, 50, 20), Cost("CPUBottleneck", "rank 0", 20, 100, 40)});
  for (rules::Finding& finding : data.replay.findings) {
    finding.incident.severity = rules::Severity::kHigh;
    finding.incident.message = finding.rule;
  }
  const std::string figure = Duration(48);
  EXPECT_NE(Verdict(data).find(figure + " of "), std::string::npos) << Verdict(data);
  EXPECT_NE(Verdict(data).find("lost together."), std::string::npos) << Verdict(data);
  const std::string verdict = FormatVerdict(data, {.color = false});
  EXPECT_NE(verdict.find("48.0 s together\n"), std::string::npos) << verdict;
  EXPECT_EQ(verdict.find("20.0 s"), std::string::npos) << verdict;
  EXPECT_NE(GainWords(data, Explain(data)[0]).find("Lost " + figure + " together;"),
            std::string::npos);
  EXPECT_NE(RenderReport(data).find("lost together"), std::string::npos);

  // The first one's own cost is all of it.
  data.replay.findings[0].incident.end_ns = 100'000'000'000;
  data.replay.findings[0].incident.cost_seconds = 60;
  EXPECT_EQ(Verdict(data).find("together"), std::string::npos) << Verdict(data);
  EXPECT_EQ(FormatVerdict(data, {.color = false}).find("together"), std::string::npos);
}

TEST(CausesTest, ACauseThatCoversTheGapIsNamedAndWhatItCostsIsSaid) {
  RunData data = SlowInTheMiddle();
  data.replay.rule_set.price_per_hour = 3600;
  data.replay.rule_set.currency = "EUR";
  const std::vector<Explanation> all = Explain(data);
  ASSERT_EQ(all.size(), 1U);
  const Explanation& e = all[0];
  EXPECT_TRUE(e.cause_found);
  EXPECT_NE(e.cause.find("data wait is 100"), std::string::npos) << e.cause;
  EXPECT_EQ(e.basis, Basis::kWindows);
  EXPECT_NEAR(e.gain_seconds, 4, 0.2);
  EXPECT_LE(e.gain_seconds, e.lost_seconds);
  EXPECT_NEAR(*e.lost_money, 4.2, 1e-9);
  const std::string words = GainWords(data, e);
  EXPECT_NE(words.find("EUR"), std::string::npos) << words;
  EXPECT_NE(words.find("assumes that all steps take their normal 20"), std::string::npos) << words;
  const std::string html = RenderReport(data);
  ExpectSound(html);
  EXPECT_NE(html.find("What was different"), std::string::npos);
  EXPECT_EQ(html.find("No price is known"), std::string::npos);
  EXPECT_NE(FormatVerdict(data, {.all = true}).find("data wait is 100"), std::string::npos)
      << FormatVerdict(data, {.all = true});

  // A rule that proved its own cause keeps it, and what was different stands beside.
  data.replay.findings[0].incident.cause = "The disk is full.";
  EXPECT_EQ(Explain(data)[0].cause, "The disk is full.");
  EXPECT_NE(Explain(data)[0].difference.find("data wait"), std::string::npos);
  // A wrong result is no matter of step time.
  data.replay.findings[0].wrong_result = true;
  EXPECT_EQ(Explain(data)[0].basis, Basis::kNone);
}

TEST(CausesTest, WithoutNormalStepsNothingIsNamed) {
  RunData data = SlowInTheMiddle();
  data.replay.findings[0].incident.start_ns = 0;
  data.replay.findings[0].incident.end_ns = 100'000'000'000;
  const Explanation e = Explain(data)[0];
  EXPECT_FALSE(e.cause_found);
  EXPECT_EQ(e.cause, "cause not found");
  EXPECT_EQ(e.difference, "");
  EXPECT_FALSE(e.lost_money);
}

TEST(TextTest, NumbersHaveThreeSignificantDigits) {
  EXPECT_EQ(Significant(0), "0");
  EXPECT_EQ(Significant(9.996), "10.0");
  EXPECT_EQ(Significant(548.4), "548");
  EXPECT_EQ(Significant(78112), "78,100");
  EXPECT_EQ(Significant(0.05), "0.0500");
  EXPECT_EQ(Significant(-1.5), "−1.50");
  EXPECT_EQ(Significant(1.0 / 0.0), "—");
  EXPECT_EQ(Thousands(1234567), "1,234,567");
  EXPECT_EQ(Thousands(-999), "−999");
}

TEST(TextTest, DurationsHaveTwoParts) {
  const auto plain = [](double seconds) {
    std::string text = Duration(seconds);
    for (auto at = text.find(kSpace); at != std::string::npos; at = text.find(kSpace)) {
      text.replace(at, kSpace.size(), " ");
    }
    return text;
  };
  EXPECT_EQ(plain(0), "0 s");
  EXPECT_EQ(plain(1e300), "1.00e+300 s") << "what a rule may say that something costs";
  EXPECT_EQ(plain(-1e19), "−1.00e+19 s");
  EXPECT_EQ(plain(2.1e-5), "21.0 µs");
  EXPECT_EQ(plain(0.5484), "548 ms");
  EXPECT_EQ(plain(0.99999), "1.00 s");
  EXPECT_EQ(plain(59.99), "1 m 00 s");
  EXPECT_EQ(plain(3661), "1 h 01 m");
  EXPECT_EQ(plain(20567), "5 h 43 m");
  EXPECT_EQ(plain(200000), "2 d 7 h");
}

TEST(TextTest, EscapeKeepsGoodTextAndReplacesTheRest) {
  EXPECT_EQ(Escape("a<b>&\"'é—𝄞"), "a&lt;b&gt;&amp;&quot;&#39;é—𝄞");
  EXPECT_EQ(Escape("\xff"), "\xEF\xBF\xBD");
  EXPECT_EQ(Escape("\xC2\x9B\xE2\x80\xAE"), "\xEF\xBF\xBD\xEF\xBF\xBD")
      << "C1, a mark of direction";
  EXPECT_EQ(Escape(std::string_view("a\0b", 3)),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(Escape("\xe2\x82"), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace telltale::report
