// SPDX-License-Identifier: Apache-2.0
// What the profiler rules sum up for the report, and their parameters under ProfilerReport; what
// they find is tested by scripts (tests/rules).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "rules/builtin/node_samples.h"
#include "rules/engine.h"
#include "rules/registry.h"

namespace telltale::rules {
namespace {

constexpr std::int64_t kStart = 1'800'000'000'000'000'000;

Engine Make(std::string_view name) {
  const RuleEntry* entry = FindRule(name);
  std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
  rules.emplace_back(entry->desc, entry->make(Parameters(*entry->desc)));
  return Engine(std::move(rules));
}

nlohmann::ordered_json SummaryOf(const Engine& engine) {
  return ParseOrderedJson(engine.rule_states().at(0).summary);
}

void FeedMetric(Engine* engine, std::int64_t at_ns, std::string_view name, std::string_view subject,
                double value) {
  format::MetricRow row;
  row.time_ns = row.ord_ns = kStart + at_ns;
  row.node = "n0";
  row.subject = subject;
  row.name = name;
  row.value = value;
  engine->Feed({row.ord_ns, 0, format::MetricRow::kTable, &row});
}

void FeedStep(Engine* engine, std::int64_t from_ns, std::int64_t duration_ns, std::int64_t step,
              std::string_view mode = "TRAIN") {
  format::StepRow row;
  row.time_ns = kStart + from_ns;
  row.ord_ns = row.time_ns + duration_ns;
  row.duration_ns = duration_ns;
  row.forward_ns = duration_ns / 4;
  row.backward_ns = duration_ns - row.forward_ns;
  row.step = step;
  row.mode = mode;
  row.pid = 100;
  row.attempt = 1;
  engine->Feed({row.ord_ns, 0, format::StepRow::kTable, &row});
}

void FeedSpan(Engine* engine, std::int64_t at_ns, std::string_view category, std::string_view name,
              std::int64_t duration_ns) {
  format::SpanRow row;
  row.time_ns = kStart + at_ns;
  row.ord_ns = row.time_ns + duration_ns;
  row.duration_ns = duration_ns;
  row.category = category;
  row.name = name;
  row.mode = "TRAIN";
  row.pid = 100;
  row.attempt = 1;
  engine->Feed({row.ord_ns, 0, format::SpanRow::kTable, &row});
}

TEST(ProfilerRulesTest, PercentilesAreLinearBetweenSamples) {
  EXPECT_EQ(PercentileOf({}, 0.5), 0);
  EXPECT_EQ(PercentileOf({7}, 0.95), 7);
  EXPECT_DOUBLE_EQ(PercentileOf({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(PercentileOf({10, 0}, 0.95), 9.5);
  EXPECT_EQ(PercentileOf({3, 1, 2}, 1), 3);
}

TEST(ProfilerRulesTest, UsageIsSummedUpByNodeAndDevice) {
  Engine engine = Make("OverallSystemUsage");
  for (int i = 1; i <= 100; ++i) {
    FeedMetric(&engine, i * kSecond, "cpu.busy", "node", i);
    FeedMetric(&engine, i * kSecond, "mem.used", "node", 25);
    FeedMetric(&engine, i * kSecond, "mem.total", "node", 100);
    FeedMetric(&engine, i * kSecond, "gpu.utilization", "gpu:1", 100);
    FeedMetric(&engine, i * kSecond, "gpu.memory_used", "gpu:1", 8e9);
    FeedMetric(&engine, i * kSecond, "gpu.memory_total", "gpu:1", 8e10);
  }
  engine.End();
  EXPECT_TRUE(engine.findings().empty());
  const auto summary = SummaryOf(engine);
  ASSERT_TRUE(summary.is_object());
  const auto& lines = summary.at("nodes").at("n0");
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0].at("metric").get<std::string>(), "CPU");
  EXPECT_EQ(lines[0].at("max").get<double>(), 100);
  EXPECT_EQ(lines[0].at("min").get<double>(), 1);
  // The table says p95 and means it.
  EXPECT_NEAR(lines[0].at("p95").get<double>(), 95, 1);
  EXPECT_NEAR(lines[0].at("p50").get<double>(), 50, 1);
  EXPECT_EQ(lines[1].at("metric").get<std::string>(), "CPU memory");
  EXPECT_EQ(lines[1].at("max").get<double>(), 25);
  EXPECT_EQ(lines[2].at("metric").get<std::string>(), "GPU");
  EXPECT_EQ(lines[2].at("device").get<std::string>(), "gpu:1");
  // A device at full load is no empty line.
  EXPECT_EQ(lines[2].at("p50").get<double>(), 100);
  EXPECT_EQ(lines[3].at("metric").get<std::string>(), "GPU memory");
  EXPECT_EQ(lines[3].at("max").get<double>(), 10);
}

TEST(ProfilerRulesTest, EachCategoryKeepsItsOwnOperations) {
  Engine engine = Make("OverallFrameworkMetrics");
  for (int i = 0; i < 10; ++i) {
    FeedSpan(&engine, i * kSecond, "cpu_op", "aten::copy_", kSecond / 10);
    FeedSpan(&engine, i * kSecond, "gpu_op", "gemm", kSecond / 2);
    FeedSpan(&engine, i * kSecond, "gpu_op", "relu", kSecond / 1000);
    FeedStep(&engine, i * kSecond, kSecond * 8 / 10, i);
  }
  FeedStep(&engine, 10 * kSecond, 2 * kSecond, 0, "EVAL");
  engine.End();
  EXPECT_TRUE(engine.findings().empty());
  const auto summary = SummaryOf(engine);
  ASSERT_TRUE(summary.is_object());
  const auto& operations = summary.at("operations");
  EXPECT_EQ(operations.at("cpu_op").at("seconds").get<double>(), 1);
  EXPECT_EQ(operations.at("cpu_op").at("list").at(0).at("name").get<std::string>(), "aten::copy_");
  // Below 2 % of its category: among the others.
  ASSERT_EQ(operations.at("gpu_op").at("list").size(), 1U);
  EXPECT_EQ(operations.at("gpu_op").at("list").at(0).at("name").get<std::string>(), "gemm");
  EXPECT_GT(operations.at("gpu_op").at("others_share").get<double>(), 0);
  // Ten steps of 0.8 s and an evaluation of 2 s in 12 s.
  EXPECT_NEAR(summary.at("modes").at(0).at("share").get<double>(), 2.0 / 12, 1e-3);
  EXPECT_NEAR(summary.at("modes").at(1).at("share").get<double>(), 8.0 / 12, 1e-3);
  EXPECT_NEAR(summary.at("between_steps_share").get<double>(), 2.0 / 12, 1e-3);
  EXPECT_NEAR(summary.at("phases").at("TRAIN").at("backward").get<double>(), 0.75, 1e-3);
}

TEST(ProfilerRulesTest, TheReportHasTheParametersOfItsParts) {
  const RuleEntry* report = FindRule("ProfilerReport");
  ASSERT_NE(report, nullptr);
  const Parameters defaults(*report->desc);
  const Parameters source(*report->desc, true);
  EXPECT_EQ(defaults.Get("CPUBottleneck_threshold"), 50);
  EXPECT_EQ(defaults.Get("MaxInitializationTime_threshold"), 20);
  EXPECT_EQ(defaults.Get("opt_out_telemetry"), 0);
  // Where SageMaker Debugger's documentation and its released code differ, both can be had.
  EXPECT_EQ(defaults.Get("LoadBalancing_threshold"), 0.5);
  EXPECT_EQ(source.Get("LoadBalancing_threshold"), 0.2);
  EXPECT_EQ(defaults.Get("StepOutlier_stddev"), 5);
  EXPECT_EQ(source.Get("StepOutlier_stddev"), 3);
  EXPECT_EQ(defaults.Get("GPUMemoryIncrease_increase"), 10);
  EXPECT_EQ(source.Get("GPUMemoryIncrease_increase"), 5);
  EXPECT_EQ(source.Get("CPUBottleneck_patience"), 1000);
  EXPECT_EQ(defaults.Get("BatchSize_patience"), 100);
  EXPECT_EQ(source.Get("BatchSize_patience"), 1000);
  EXPECT_EQ(source.Get("IOBottleneck_gpu_threshold"), 10);
  EXPECT_EQ(defaults.Text("StepOutlier_mode"), "TRAIN");
}

TEST(ProfilerRulesTest, TheReportSumsUpAllParts) {
  Engine engine = Make("ProfilerReport");
  for (int i = 1; i <= 20; ++i) {
    FeedMetric(&engine, i * kSecond, "cpu.busy", "node", 40);
    FeedStep(&engine, i * kSecond, kSecond, i);
  }
  engine.End();
  const auto summary = SummaryOf(engine);
  ASSERT_EQ(summary.size(), 11U);
  EXPECT_EQ(summary.at("BatchSize").at("incidents").get<int>(), 0);
  EXPECT_EQ(summary.at("OverallSystemUsage").at("summary").at("nodes").at("n0").size(), 1U);
  EXPECT_EQ(summary.at("OverallFrameworkMetrics").at("summary").at("modes").size(), 1U);
  EXPECT_FALSE(summary.at("LoadBalancing").contains("summary"));
}

}  // namespace
}  // namespace telltale::rules
