// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metric_set.h"

#include <gtest/gtest.h>

#include <string>

#include "telemetry/families.h"

namespace telltale::telemetry {
namespace {

TEST(MetricSet, PointsOfTheSameLabelsAreOne) {
  MetricSet set;
  set.Begin("run", 1, 2);
  set.Add(kScalar, {{"name", "loss"}, {"mode", "TRAIN"}}, 1);
  set.Add(kScalar, {{"name", "loss"}, {"mode", "TRAIN"}}, 2);
  set.Add(kScalar, {{"name", "loss"}, {"mode", "EVAL"}}, 3);
  ASSERT_EQ(set.families().size(), 1U);
  EXPECT_EQ(set.points(), 2U);
  const Family& family = set.families().at("telltale_scalar");
  ASSERT_EQ(family.points.size(), 2U);
  for (const auto& [key, point] : family.points) {
    ASSERT_EQ(point.labels.size(), 3U);
    EXPECT_EQ(point.labels[0].first, "run");
    EXPECT_EQ(point.start_ns, 1);
    EXPECT_EQ(point.time_ns, 2);
    EXPECT_EQ(point.value, point.labels[2].second == "TRAIN" ? 2 : 3);
  }
}

TEST(MetricSet, TextOfATrainingIsCutBetweenCharacters) {
  EXPECT_EQ(LabelText("plain"), "plain");
  EXPECT_EQ(LabelText("a\xff"), "a\xEF\xBF\xBD");
  const std::string umlauts = [] {
    std::string out;
    for (int i = 0; i < 150; ++i) out += "ü";
    return out;
  }();
  EXPECT_EQ(LabelText(umlauts), umlauts.substr(0, 200));
  EXPECT_EQ(LabelText("a" + umlauts), "a" + umlauts.substr(0, 198));
  EXPECT_EQ(LabelText(std::string(1 << 20, 'x')).size(), MetricSet::kMaxLabelBytes);
}

TEST(MetricSet, NamesOfTheMachinesMetrics) {
  EXPECT_EQ(SystemFamilyOf("cpu.busy", "percent").name, "telltale_system_cpu_busy_percent");
  EXPECT_EQ(SystemFamilyOf("mem.used", "bytes").name, "telltale_system_mem_used_bytes");
  EXPECT_EQ(SystemFamilyOf("disk.read_bytes_rate", "bytes/s").name,
            "telltale_system_disk_read_bytes_per_second");
  EXPECT_EQ(SystemFamilyOf("net.errors_rate", "1/s").name, "telltale_system_net_errors_per_second");
  EXPECT_EQ(SystemFamilyOf("gpu.memory_percent", "percent").name,
            "telltale_system_gpu_memory_percent");
  EXPECT_EQ(SystemFamilyOf("gpu.power", "W").name, "telltale_system_gpu_power_watts");
  EXPECT_EQ(SystemFamilyOf("odd näme{}", "").name, "telltale_system_odd_n__me__");
  EXPECT_EQ(SystemFamilyOf("cpu.busy", "percent").unit, "%");
}

/// What counts ends in _total, and nothing else does; a family has one name.
TEST(MetricSet, TheTableIsSound) {
  MetricSet set;
  for (const FamilyDesc& desc : kFamilies) {
    EXPECT_EQ(desc.kind == Kind::kCounter, desc.name.ends_with("_total")) << desc.name;
    EXPECT_EQ(MetricName(desc.name), desc.name);
    EXPECT_FALSE(desc.help.empty());
    set.Add(desc, {}, 1);
  }
  EXPECT_EQ(set.families().size(), kFamilies.size());
}

}  // namespace
}  // namespace telltale::telemetry
