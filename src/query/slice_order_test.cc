// SPDX-License-Identifier: Apache-2.0
#include "query/slice_order.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "query/slice_testing.h"
#include "store/folder.h"

namespace telltale::query {
namespace {

TEST(SliceOrder, EnclosingSlicesComeFirstAndHostsBeforeDevices) {
  SliceRun run;
  run.Device("kernel_a", 30, 20).correlation = 7;
  run.Host("op", "aten::relu", 20, 10);
  run.Host("op", "aten::linear", 10, 50);
  run.Host("op", "aten::addmm", 10, 40);
  run.Write();
  const auto order = SliceOrder::Load(run.path());
  ASSERT_TRUE(order.ok()) << order.status().message();
  ASSERT_EQ((*order)->lanes().size(), 2U);
  EXPECT_TRUE((*order)->lanes()[0].host());
  EXPECT_FALSE((*order)->lanes()[1].host());
  EXPECT_EQ((*order)->slices(), 4U);
  EXPECT_EQ((*order)->first_ns(), 10);
  std::vector<std::string> names;
  for (const Lane& lane : (*order)->lanes()) {
    ASSERT_TRUE((*order)
                    ->Visit(lane,
                            [&](const format::SliceRow& row) {
                              names.emplace_back(row.name);
                              return Status();
                            })
                    .ok());
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"aten::linear", "aten::addmm", "aten::relu", "kernel_a"}));
}

TEST(SliceOrder, TheSameOrderWhereMemoryIsTooSmall) {
  SliceRun run;
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    auto& row = run.Host("op", "op" + std::to_string(i % 17),
                         static_cast<std::int64_t>(random() % 1000), random() % 50);
    row.tid = random() % 3;
    row.args = run.Text(R"({"n": )" + std::to_string(i) + "}");
  }
  run.Write();
  const auto all = [&](std::size_t memory) {
    const auto order = SliceOrder::Load(run.path(), {.memory_bytes = memory});
    EXPECT_TRUE(order.ok());
    EXPECT_EQ((*order)->spilled_bytes() > 0, memory < 1 << 20);
    std::vector<std::string> out;
    for (const Lane& lane : (*order)->lanes()) {
      EXPECT_TRUE((*order)
                      ->Visit(lane,
                              [&](const format::SliceRow& row) {
                                out.push_back(std::to_string(row.tid) + " " +
                                              std::to_string(row.time_ns) + " " +
                                              std::to_string(row.duration_ns) + " " +
                                              std::string(row.name) + std::string(row.args));
                                return Status();
                              })
                      .ok());
    }
    return out;
  };
  const auto whole = all(64 << 20);
  EXPECT_EQ(whole.size(), 5000U);
  EXPECT_EQ(all(10'000), whole);
}

TEST(SliceOrder, NamesOfLanesStayWhileTextsAreAdded) {
  SliceRun run;
  constexpr int kWindows = 300;
  for (int i = 0; i < kWindows; ++i) {
    auto& row = run.Host("op", "op", i, 1);
    row.lane = {};
    row.window = run.Text("window " + std::to_string(i));
  }
  run.Write();
  const auto order = SliceOrder::Load(run.path());
  ASSERT_TRUE(order.ok()) << order.status().message();
  ASSERT_EQ((*order)->lanes().size(), static_cast<std::size_t>(kWindows));
  for (int i = 0; i < kWindows; ++i) {
    const Lane& lane = (*order)->lanes()[static_cast<std::size_t>(i)];
    EXPECT_TRUE(lane.name.empty()) << i;
    EXPECT_EQ(lane.window, "window " + std::to_string(i));
  }
}

TEST(SliceOrder, ADamagedLengthDoesNotOverflow) {
  format::SliceRow row;
  row.time_ns = 100;
  row.duration_ns = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(EndOf(row), std::numeric_limits<std::int64_t>::max());
  row.duration_ns = -5;
  EXPECT_EQ(EndOf(row), 100);
}

TEST(SliceOrder, SpansAndStepsOfALiveRun) {
  SliceRun run;
  format::SpanRow span;
  span.time_ns = 10;
  span.ord_ns = 30;
  span.duration_ns = 20;
  span.name = "forward";
  span.category = "phase";
  span.tid = 4;
  run.rows().spans.push_back(span);
  format::StepRow step;
  step.time_ns = 5;
  step.ord_ns = 50;
  step.duration_ns = 45;
  step.step = 3;
  step.mode = "TRAIN";
  run.rows().steps.push_back(step);
  run.Write();
  const auto order = SliceOrder::Load(run.path());
  ASSERT_TRUE(order.ok());
  std::vector<std::string> seen;
  for (const Lane& lane : (*order)->lanes()) {
    ASSERT_TRUE((*order)
                    ->Visit(lane,
                            [&](const format::SliceRow& row) {
                              seen.push_back(std::string(row.lane) + ": " + std::string(row.name) +
                                             " " + std::string(row.category));
                              return Status();
                            })
                    .ok());
  }
  EXPECT_EQ(seen,
            (std::vector<std::string>{"steps: TRAIN step 3 step", "thread 4: forward annotation"}));
  const auto without = SliceOrder::Load(run.path(), {.recorded = false});
  ASSERT_TRUE(without.ok());
  EXPECT_EQ((*without)->slices(), 0U);
}

TEST(SliceOrder, AProfilersOwnStepMarksStandForTheSteps) {
  SliceRun run;
  run.Host("step", "ProfilerStep#3", 5, 45);
  format::StepRow step;
  step.time_ns = step.ord_ns = 5;
  step.step = 3;
  run.rows().steps.push_back(step);
  run.Write();
  const auto order = SliceOrder::Load(run.path());
  ASSERT_TRUE(order.ok());
  EXPECT_EQ((*order)->slices(), 1U);
}

TEST(SliceOrder, FoldersOfWritersThatWereNotAskedForAreNotOpened) {
  SliceRun run;
  run.Host("op", "a", 10, 5);
  run.Write();
  const auto other = run.path() / "import-1";
  std::filesystem::create_directory(other);
  std::ofstream(other / store::SegmentFileName(format::TableId::kSlices, 1, 9)) << "no segment";
  std::ofstream(other / store::JournalFileName(1)) << "no journal";
  const auto whole = SliceOrder::Load(run.path());
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ((*whole)->slices(), 1U);
  EXPECT_TRUE((*whole)->salvage().any());
  using Writers = std::vector<std::string>;
  const auto one = SliceOrder::Load(run.path(), {.writers = Writers{"import-0"}});
  ASSERT_TRUE(one.ok());
  EXPECT_EQ((*one)->slices(), 1U);
  EXPECT_FALSE((*one)->salvage().any());
  const auto none = SliceOrder::Load(run.path(), {.writers = Writers{}});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ((*none)->slices(), 0U);
}

TEST(SliceOrder, OneStepAloneAndLanesOfSteps) {
  SliceRun run;
  run.Host("op", "a", 10, 5).step = 1;
  run.Host("op", "b", 20, 5).step = 2;
  run.Host("op", "c", 30, 5).step = 2;
  run.Write();
  const auto one = SliceOrder::Load(run.path(), {.step = 2});
  ASSERT_TRUE(one.ok());
  EXPECT_EQ((*one)->slices(), 2U);
  const auto by_step = SliceOrder::Load(run.path(), {.by_step = true});
  ASSERT_TRUE(by_step.ok());
  ASSERT_EQ((*by_step)->lanes().size(), 2U);
  EXPECT_EQ((*by_step)->lanes()[0].step, 1);
  EXPECT_EQ((*by_step)->lanes()[1].slices, 2U);
  EXPECT_EQ((*by_step)->steps(), 2U);
}

}  // namespace
}  // namespace telltale::query
