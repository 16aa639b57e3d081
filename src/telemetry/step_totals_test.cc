// SPDX-License-Identifier: Apache-2.0
#include "telemetry/step_totals.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace telltale::telemetry {
namespace {

constexpr std::int64_t kBegin = 1'800'000'000 * kSecond;

format::StepRow Step(std::int64_t step, std::int64_t begin_ns, std::int64_t duration_ns) {
  format::StepRow row;
  row.step = step;
  row.time_ns = begin_ns;
  row.duration_ns = duration_ns;
  row.data_wait_ns = duration_ns / 4;
  row.forward_ns = duration_ns - duration_ns / 4;
  row.batch_size = 32;
  return row;
}

TEST(StepTotals, TheLastMinuteForgetsWhatWasBefore) {
  StepTotals totals;
  std::int64_t now = kBegin;
  for (int i = 0; i < 60; ++i, now += kSecond) totals.Add(Step(i, now, kSecond));
  for (int i = 60; i < 300; ++i, now += kSecond / 2) totals.Add(Step(i, now, kSecond / 2));
  EXPECT_EQ(totals.all().steps, 300U);
  EXPECT_EQ(totals.all().duration_ns, 180 * kSecond);
  EXPECT_EQ(totals.newest_step(), 299);
  const StepTotals::Recent recent = totals.At(now);
  EXPECT_EQ(recent.mean_of.duration_ns,
            static_cast<std::int64_t>(recent.mean_of.steps) * kSecond / 2);
  EXPECT_EQ(recent.mean_of.phase_ns[0] * 4, recent.mean_of.duration_ns);
  EXPECT_NEAR(recent.steps_per_s, 2, 0.05);
  EXPECT_NEAR(recent.samples_per_s, 64, 2);
  EXPECT_EQ(recent.age_s, 0);
}

TEST(StepTotals, AHangIsSeen) {
  StepTotals totals;
  for (int i = 0; i < 100; ++i) totals.Add(Step(i, kBegin + i * kSecond, kSecond));
  const std::int64_t end = kBegin + 100 * kSecond;
  EXPECT_LT(totals.At(end + 30 * kSecond).steps_per_s, 0.6);
  const StepTotals::Recent late = totals.At(end + 600 * kSecond);
  EXPECT_EQ(late.steps_per_s, 0);
  EXPECT_EQ(late.samples_per_s, 0);
  EXPECT_EQ(late.age_s, 600);
  // How long steps took is still known.
  EXPECT_EQ(late.mean_of.steps, 1U);
  EXPECT_EQ(late.mean_of.duration_ns, kSecond);
}

TEST(StepTotals, StepsLongerThanAMinuteAreNoHang) {
  StepTotals totals;
  totals.Add(Step(0, kBegin, 300 * kSecond));
  const StepTotals::Recent recent = totals.At(kBegin + 500 * kSecond);
  EXPECT_DOUBLE_EQ(recent.steps_per_s, 1.0 / 300);
  EXPECT_EQ(totals.At(kBegin + 300 * kSecond + 901 * kSecond).steps_per_s, 0);
}

TEST(StepTotals, AStepThatIsReadLateChangesNoNewestValue) {
  StepTotals totals;
  totals.Add(Step(10, kBegin + 100 * kSecond, kSecond));
  totals.Add(Step(3, kBegin, kSecond));
  EXPECT_EQ(totals.newest_step(), 10);
  EXPECT_EQ(totals.all().steps, 2U);
  EXPECT_EQ(totals.At(kBegin + 101 * kSecond).mean_of.steps, 1U);
}

}  // namespace
}  // namespace telltale::telemetry
