// SPDX-License-Identifier: Apache-2.0
#include "stacks/phase_clock.h"

#include <gtest/gtest.h>

namespace telltale::stacks {
namespace {

class PhaseClockTest : public ::testing::Test {
 protected:
  void Span(std::string_view name, std::int64_t begin, std::int64_t end, std::int64_t step,
            std::string_view mode = "TRAIN") {
    format::SpanRow row;
    row.time_ns = begin;
    row.duration_ns = end - begin;
    row.name = name;
    row.category = "phase";
    row.step = step;
    row.mode = mode;
    row.rank = 3;
    clock_.AddSpan(row);
  }
  void Step(std::int64_t step, std::int64_t begin, std::int64_t end, std::int64_t other_ns,
            std::string_view mode = "TRAIN") {
    format::StepRow row;
    row.time_ns = begin;
    row.duration_ns = end - begin;
    row.step = step;
    row.mode = mode;
    row.rank = 3;
    row.other_ns = other_ns;
    clock_.AddStep(row);
  }
  PhaseClock clock_;
};

TEST_F(PhaseClockTest, TheInnermostSpanIsThePhase) {
  Step(7, 100, 200, 20);
  Span("forward", 110, 160, 7);
  Span("comm_wait", 120, 130, 7);
  Span("backward", 160, 190, 7);
  EXPECT_EQ(clock_.At(3, 115), (Moment{"forward", 7}));
  EXPECT_EQ(clock_.At(3, 125), (Moment{"comm_wait", 7}));
  EXPECT_EQ(clock_.At(3, 135), (Moment{"forward", 7}));
  EXPECT_EQ(clock_.At(3, 160), (Moment{"backward", 7}));
  EXPECT_EQ(clock_.At(3, 195), (Moment{"other", 7}));
}

TEST_F(PhaseClockTest, OutsideOfStepsItSaysWhatItKnows) {
  Step(0, 100, 200, 100);
  Step(1, 300, 400, 100);
  EXPECT_EQ(clock_.At(3, 99), (Moment{"initialization", -1}));
  EXPECT_EQ(clock_.At(3, 250), (Moment{"between steps", -1}));
  EXPECT_EQ(clock_.At(3, 400), (Moment{"between steps", -1}));
  EXPECT_EQ(clock_.At(0, 150), (Moment{"initialization", -1})) << "another rank";
}

TEST_F(PhaseClockTest, AStepWhoseSpansWereLeftOutHasNoKnownPhase) {
  Step(0, 100, 200, 10);
  EXPECT_EQ(clock_.At(3, 150), (Moment{"phase not recorded", 0}));
}

TEST_F(PhaseClockTest, EvaluationIsNamed) {
  Step(4, 100, 200, 10, "EVAL");
  Span("forward", 100, 190, 4, "EVAL");
  EXPECT_EQ(clock_.At(3, 150), (Moment{"EVAL forward", 4}));
  EXPECT_EQ(clock_.At(3, 195), (Moment{"EVAL other", 4}));
}

TEST_F(PhaseClockTest, WhatIsDroppedIsNotTheFirstStepsTime) {
  Step(0, 100, 200, 100);
  Step(1, 200, 300, 50);
  Span("forward", 210, 260, 1);
  clock_.DropBefore(280);
  EXPECT_EQ(clock_.At(3, 290), (Moment{"other", 1})) << "the step's spans are still there";
  EXPECT_EQ(clock_.At(3, 350), (Moment{"between steps", -1}));
  EXPECT_EQ(clock_.At(3, 50), (Moment{"initialization", -1}));
}

}  // namespace
}  // namespace telltale::stacks
