// SPDX-License-Identifier: Apache-2.0
#include "analysis/system_usage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace telltale::analysis {
namespace {

void Metric(SystemUsage* usage, std::string_view name, std::string_view subject, double value) {
  format::MetricRow row;
  row.node = "n";
  row.name = name;
  row.subject = subject;
  row.value = value;
  usage->OnRecord({0, 0, format::MetricRow::kTable, &row});
}

void Step(SystemUsage* usage, std::string_view mode = "TRAIN") {
  format::StepRow row;
  row.mode = mode;
  row.duration_ns = 1;
  usage->OnRecord({0, 0, format::StepRow::kTable, &row});
}

TEST(SystemUsageTest, GpuTimeIsUnderOneWordEach) {
  SystemUsage usage;
  Metric(&usage, "gpu.utilization", "gpu:0", 0);  // Initialization.
  EXPECT_EQ(usage.gpu_time().initialization, 1U);
  Step(&usage);
  Metric(&usage, "cpu.idle", "cpu:0", 50);
  Metric(&usage, "gpu.utilization", "gpu:0", 95);
  Metric(&usage, "gpu.utilization", "gpu:0", 90);
  Metric(&usage, "gpu.utilization", "gpu:0", 10);
  Metric(&usage, "cpu.idle", "cpu:0", 5);
  Metric(&usage, "gpu.utilization", "gpu:0", 10);
  Step(&usage, "EVAL");  // The loop is TRAIN's.
  EXPECT_EQ(usage.gpu_time().finalization, 4U) << "as far as is known";
  Step(&usage);
  Metric(&usage, "gpu.utilization", "gpu:0", 99);
  const GpuTime time = usage.gpu_time();
  EXPECT_EQ(time.initialization, 1U);
  EXPECT_EQ(time.high, 1U);
  EXPECT_EQ(time.suboptimal, 1U);
  EXPECT_EQ(time.low, 1U);
  EXPECT_EQ(time.cpu_bottleneck, 1U);
  EXPECT_EQ(time.finalization, 1U);
  EXPECT_EQ(time.all(), usage.gpus().samples);
}

TEST(SystemUsageTest, CountsSamplesAtZeroAndBelowAHalf) {
  SystemUsage usage;
  Step(&usage);
  for (const double idle : {100.0, 51.0, 50.0, 0.0, 100.7, -3.0}) {
    Metric(&usage, "cpu.idle", "cpu:1", idle);
  }
  Metric(&usage, "cpu.idle", "cpu:1", std::numeric_limits<double>::quiet_NaN());
  Metric(&usage, "cpu.idle", "node", 0);  // The node is its cores once more.
  Step(&usage);
  const UsageCounts cores = usage.cores();
  EXPECT_EQ(cores.samples, 6U);
  EXPECT_EQ(cores.zero, 2U);
  EXPECT_EQ(cores.below_half, 3U);
  EXPECT_EQ(cores.histogram.front(), 2U);
  EXPECT_EQ(cores.histogram.back(), 2U);
  EXPECT_EQ(usage.cores_in_loop().samples, 6U);
  EXPECT_EQ(usage.gpus().samples, 0U);
}

TEST(SystemUsageTest, GpusThatAreUsedUnlikeEachOther) {
  SystemUsage usage;
  EXPECT_TRUE(usage.unequal().empty());
  Step(&usage);
  for (int i = 0; i < 50; ++i) {
    Metric(&usage, "gpu.utilization", "gpu:0", 95 + i % 3);
    Metric(&usage, "gpu.utilization", "gpu:1", 95 + (i + 1) % 3);
    Metric(&usage, "gpu.utilization", "gpu:2", i % 5);
  }
  Step(&usage);
  const auto pairs = usage.unequal();
  ASSERT_EQ(pairs.size(), 2U);
  EXPECT_EQ(pairs[0].b, "gpu:2");
  EXPECT_EQ(pairs[1].b, "gpu:2");
  // Histograms without a bin in common: sqrt(ln 2).
  EXPECT_NEAR(pairs[0].distance, std::sqrt(std::log(2.0)), 1e-12);
}

}  // namespace
}  // namespace telltale::analysis
