// SPDX-License-Identifier: Apache-2.0
// Numbers of another tool that cannot be: the nearest that can be is taken, and each is counted.
#include "interchange/run_maker.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "store/slice_segment.h"
#include "store/store_testing.h"

namespace telltale::interchange {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int32_t kMostIndex = 1 << 20;

TEST(RunMakerTest, NumbersThatCannotBeAreCountedOneByOne) {
  const store::TempFolder temp;
  auto made = RunMaker::Create(temp.path() / "run");
  ASSERT_TRUE(made.ok()) << made.status().message();
  RunMaker& maker = **made;
  format::SliceRow slice;
  slice.name = "op";
  slice.time_ns = kMost;
  slice.step = kMost;
  slice.bytes = std::numeric_limits<std::int64_t>::min();
  slice.device = std::numeric_limits<std::int32_t>::max();
  maker.Slice(slice);
  format::StepRow step;
  step.mode = "TRAIN";
  step.step = -5;
  step.duration_ns = -1;
  maker.Step(step);

  store::SliceBlock block;
  for (auto* column : {&block.time_ns, &block.duration_ns, &block.step, &block.correlation,
                       &block.external, &block.flow, &block.bytes}) {
    column->assign(2, 7);
  }
  block.flops.assign(2, 0);
  for (auto* codes : {&block.name, &block.category, &block.kind, &block.window}) {
    codes->assign(2, 0);
  }
  for (auto* words : {&block.names, &block.categories, &block.kinds, &block.windows}) {
    words->assign(1, "op");
  }
  block.lane = {0, 1};
  block.lanes.resize(2);
  block.lanes[0].rank = std::numeric_limits<std::int32_t>::min();
  block.lanes[1].device = kMostIndex + 1;
  block.args_end.assign(2, 0);
  maker.Put(0, maker.Place(0, 2), block);

  const auto summary = maker.Finish({.id = "run", .name = "run", .format = "chrome"});
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  ASSERT_EQ(summary->notes.size(), 1U);
  EXPECT_TRUE(summary->notes[0].starts_with("8 numbers that cannot be")) << summary->notes[0];
  ASSERT_EQ(summary->counters.size(), 1U);
  EXPECT_EQ(summary->counters[0].value, 8U);

  const auto all = store::ReadEverything(temp.path() / "run");
  EXPECT_FALSE(all->salvage.any());
  ASSERT_EQ(all->rows.steps.size(), 1U);
  EXPECT_EQ(all->rows.steps[0].step, -1);
  EXPECT_EQ(all->rows.steps[0].duration_ns, 0);
  ASSERT_EQ(all->rows.slices.size(), 3U);
  std::int64_t ranks = 0;
  std::int64_t devices = 0;
  for (const format::SliceRow& row : all->rows.slices) {
    ranks += row.rank;
    devices += row.device;
  }
  EXPECT_EQ(ranks, -1) << "the least that can be, and twice 0";
  EXPECT_EQ(devices, 2 * kMostIndex - 1) << "twice the most that can be, and that of the host";
}

}  // namespace
}  // namespace telltale::interchange
