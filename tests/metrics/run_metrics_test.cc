// SPDX-License-Identifier: Apache-2.0
// A run as metrics: totals, newest values, findings and states of rules, and the bounds.
#include "telemetry/run_metrics.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/string_pool.h"
#include "base/units.h"
#include "rules/replay.h"
#include "store/run_info.h"
#include "store/writer.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"
#include "watch/watcher.h"

namespace telltale {
namespace {

namespace fs = std::filesystem;
using telemetry::MetricSet;
using telemetry::RunMetrics;
using Labels = std::vector<std::pair<std::string, std::string>>;

/// The value of the point with these labels beside `run`; none where there is none.
std::optional<double> ValueOf(const MetricSet& set, const std::string& name, const Labels& labels) {
  const auto family = set.families().find(name);
  if (family == set.families().end()) return std::nullopt;
  for (const auto& [key, point] : family->second.points) {
    Labels own = point.labels;
    if (!own.empty() && own.front().first == "run") own.erase(own.begin());
    if (own == labels) return point.value;
  }
  return std::nullopt;
}

std::size_t Count(const MetricSet& set, const std::string& name) {
  const auto family = set.families().find(name);
  return family == set.families().end() ? 0 : family->second.points.size();
}

class RunMetricsTest : public ::testing::Test {
 protected:
  /// All of the run, as of `now_ns`.
  static MetricSet Read(RunMetrics* metrics, std::int64_t now_ns = 0) {
    while (true) {
      const auto more =
          metrics->Advance(std::chrono::steady_clock::now() + std::chrono::seconds(1));
      EXPECT_TRUE(more.ok()) << more.status().message();
      if (!more.ok() || !*more) break;
    }
    MetricSet set;
    metrics->AddTo(now_ns, &set);
    return set;
  }
  void Watch() {
    auto watcher = watch::Watcher::Open(run_);
    ASSERT_TRUE(watcher.ok()) << watcher.status().message();
    for (int i = 0; i < 1000; ++i) {
      const auto over = (*watcher)->Poll();
      ASSERT_TRUE(over.ok()) << over.status().message();
      if (*over) return;
    }
    FAIL() << "the watcher comes to no end";
  }

  const testing::TempFolder folder_{"run-metrics"};
  const fs::path run_ = folder_.path() / "train";
  testing::SampleRun sample_;
};

TEST_F(RunMetricsTest, TotalsAreThoseOfTheRecords) {
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  Watch();
  RunMetrics metrics("one", run_);
  const MetricSet set = Read(&metrics);
  const Labels train = {{"mode", "TRAIN"}, {"rank", "0"}};
  EXPECT_EQ(ValueOf(set, "telltale_steps_total", train), 400);
  EXPECT_EQ(ValueOf(set, "telltale_samples_total", train), 400 * 32);
  EXPECT_EQ(ValueOf(set, "telltale_step", train), 399);
  EXPECT_EQ(ValueOf(set, "telltale_run_state", {{"state", "finished"}}), 1);
  EXPECT_EQ(ValueOf(set, "telltale_run_state", {{"state", "running"}}), 0);
  double phases = 0;
  for (const char* phase :
       {"data_wait", "comm_wait", "forward", "backward", "optimizer", "other"}) {
    Labels labels = train;
    labels.emplace_back("phase", phase);
    const auto value = ValueOf(set, "telltale_step_phase_time_seconds_total", labels);
    ASSERT_TRUE(value) << phase;
    phases += *value;
  }
  EXPECT_NEAR(phases, ValueOf(set, "telltale_step_time_seconds_total", train).value_or(0), 1e-6);
  ASSERT_TRUE(ValueOf(set, "telltale_loss", train));
  EXPECT_NEAR(*ValueOf(set, "telltale_loss", train), 2.31, 0.06);
  EXPECT_EQ(ValueOf(set, "telltale_scalar", {{"name", "lr"}, {"mode", "TRAIN"}, {"rank", "0"}}), 1);
  EXPECT_GT(ValueOf(set, "telltale_steps_per_second", train).value_or(0), 10);
  EXPECT_TRUE(
      ValueOf(set, "telltale_system_mem_used_bytes", {{"node", "sample"}, {"subject", "node"}}));
  // Of each core there is none.
  EXPECT_EQ(Count(set, "telltale_system_cpu_idle_percent"), 1U);
  EXPECT_EQ(ValueOf(set, "telltale_ledger_loss_total",
                    {{"name", "probe.records_dropped"}, {"unit", "records"}}),
            0);
  for (const auto& [name, family] : set.families()) {
    for (const auto& [key, point] : family.points) {
      EXPECT_EQ(point.labels.at(0), std::pair(std::string("run"), std::string("one"))) << name;
    }
  }
}

TEST_F(RunMetricsTest, FindingsAndRulesAreThoseOfTheReplay) {
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  const auto replay = rules::ReplayRun(run_);
  ASSERT_TRUE(replay.ok());
  ASSERT_FALSE(replay->findings.empty());
  // Nobody watched: without a replay there is nothing to say of rules.
  RunMetrics blind("", run_);
  EXPECT_EQ(Count(Read(&blind), "telltale_rule_state"), 0U);
  EXPECT_FALSE(blind.judged());
  RunMetrics judged("", run_, {.replay = true});
  const MetricSet by_replay = Read(&judged);
  EXPECT_TRUE(judged.judged());
  Watch();
  RunMetrics watched("", run_);
  const MetricSet by_watcher = Read(&watched);
  EXPECT_TRUE(watched.judged());
  for (const MetricSet* set : {&by_replay, &by_watcher}) {
    for (const rules::RuleState& state : replay->rules) {
      for (int i = 0; i <= static_cast<int>(rules::RuleStatus::kError); ++i) {
        const auto status = static_cast<rules::RuleStatus>(i);
        EXPECT_EQ(ValueOf(*set, "telltale_rule_state",
                          {{"rule", state.name}, {"status", std::string(rules::Name(status))}}),
                  status == state.status ? 1 : 0)
            << state.name;
      }
    }
    for (const rules::Finding& finding : replay->findings) {
      EXPECT_EQ(ValueOf(*set, "telltale_finding",
                        {{"rule", finding.rule},
                         {"kind", finding.rule},
                         {"subject", finding.incident.subject},
                         {"severity", std::string(rules::Name(finding.incident.severity))},
                         {"wrong_result", finding.wrong_result ? "true" : "false"}}),
                0)
          << finding.rule;
    }
    double closed = 0;
    for (const char* severity : {"info", "low", "medium", "high"}) {
      closed += ValueOf(*set, "telltale_findings", {{"severity", severity}, {"state", "closed"}})
                    .value_or(0);
    }
    EXPECT_EQ(closed, static_cast<double>(replay->findings.size()));
  }
}

TEST_F(RunMetricsTest, ARunIsFollowedAsItGrows) {
  sample_.start_ns = 1'800'000'000 * kSecond;
  fs::create_directories(run_);
  ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample_, false)).ok());
  auto writer = store::Writer::Open(run_ / "agent-sample", "agent-sample");
  ASSERT_TRUE(writer.ok());
  StringPool pool;
  std::vector<format::Batch> batches = testing::Cut(testing::MakeRows(sample_, &pool), kSecond);
  RunMetrics metrics("", run_);
  const Labels train = {{"mode", "TRAIN"}, {"rank", "0"}};
  double before = -1;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    ASSERT_TRUE((*writer)->Append(std::move(batches[i])).ok());
    if (i % 8 != 7) continue;
    const MetricSet set = Read(&metrics, sample_.start_ns + static_cast<std::int64_t>(i) * kSecond);
    const double steps = ValueOf(set, "telltale_steps_total", train).value_or(0);
    EXPECT_GT(steps, before);
    before = steps;
    EXPECT_EQ(ValueOf(set, "telltale_run_state", {{"state", "running"}}), 1);
  }
  EXPECT_GT(before, 0);
  // It hangs: nothing comes for ten minutes.
  const MetricSet late = Read(&metrics, sample_.start_ns + 1000 * kSecond);
  EXPECT_EQ(ValueOf(late, "telltale_steps_per_second", train), 0);
  EXPECT_GT(ValueOf(late, "telltale_last_step_age_seconds", train).value_or(0), 900);
}

TEST_F(RunMetricsTest, ARunRecordedAnewInTheSamePlaceIsAnother) {
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  RunMetrics metrics("", run_);
  const Labels train = {{"mode", "TRAIN"}, {"rank", "0"}};
  EXPECT_EQ(ValueOf(Read(&metrics), "telltale_steps_total", train), 400);
  fs::remove_all(run_);
  sample_.steps = 100;
  sample_.start_ns += kSecond;
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  EXPECT_EQ(ValueOf(Read(&metrics), "telltale_steps_total", train), 100);
}

/// A training that makes a name of each step, or has thousands of ranks, must not take the memory
/// of a server that keeps series, nor ours.
TEST_F(RunMetricsTest, TooManySeriesAreCountedAndLeftOut) {
  fs::create_directories(run_);
  ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample_, true)).ok());
  auto writer = store::Writer::Open(run_ / "agent-sample", "agent-sample");
  ASSERT_TRUE(writer.ok());
  StringPool pool;
  format::Batch batch;
  const std::int64_t at = sample_.start_ns;
  batch.watermark_ns = at + kSecond;
  for (int i = 0; i < 1'000; ++i) {
    format::ScalarRow row;
    row.time_ns = row.ord_ns = at;
    row.name = pool.Intern(fmt::format("loss of step {}", i));
    row.mode = "TRAIN";
    row.value = i;
    batch.rows.scalars.push_back(row);
    format::StepRow step;
    step.time_ns = at;
    step.ord_ns = at + 1;
    step.duration_ns = 1;
    step.mode = "TRAIN";
    step.rank = i;
    batch.rows.steps.push_back(step);
    format::MetricRow core;
    core.time_ns = core.ord_ns = at;
    core.node = "n";
    core.subject = pool.Intern(fmt::format("proc:{}", i));
    core.name = "proc.cpu";
    core.unit = "percent";
    batch.rows.metrics.push_back(core);
  }
  ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  ASSERT_TRUE((*writer)->Close(true).ok());
  RunMetrics metrics("", run_);
  const MetricSet set = Read(&metrics);
  EXPECT_EQ(Count(set, "telltale_scalar"), RunMetrics::kMaxScalars);
  EXPECT_EQ(Count(set, "telltale_steps_total"), static_cast<std::size_t>(RunMetrics::kMaxRanks));
  EXPECT_EQ(Count(set, "telltale_system_proc_cpu_percent"), 0U);
  EXPECT_EQ(ValueOf(set, "telltale_series_left_out", {}),
            1'000 - RunMetrics::kMaxScalars + 1'000 - RunMetrics::kMaxRanks);
  EXPECT_LT(set.points(), 3'000U);
}

TEST_F(RunMetricsTest, WhatIsNoRunIsAnError) {
  RunMetrics metrics("", folder_.path() / "none");
  const auto more = metrics.Advance(std::chrono::steady_clock::now());
  EXPECT_EQ(more.status().code(), Code::kUnusable);
  MetricSet set;
  metrics.AddTo(0, &set);
  EXPECT_EQ(set.points(), 0U);
}

}  // namespace
}  // namespace telltale
