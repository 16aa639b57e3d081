// SPDX-License-Identifier: Apache-2.0
// Scenarios of training loops → the steps that come out of the consumer.
#include "probe/step_machine.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/testing.h"

namespace telltale::probe {
namespace {

constexpr double kNoRate = std::numeric_limits<double>::quiet_NaN();

class StepMachineTest : public testing::Test {
 protected:
  StepMachineTest()
      : machine_(
            static_cast<StepMachine*>(::mmap(nullptr, sizeof(StepMachine), PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    machine_->Init(&*producer_);
    consumer_ = producer_.Attach();
  }

  void Fetch(std::int64_t batch) {
    machine_->FetchBegin();
    machine_->FetchEnd(batch);
  }
  void Forward(tt_mode mode = TT_MODE_TRAIN, std::int64_t batch = 0) {
    machine_->ForwardBegin(mode);
    machine_->ForwardEnd(batch);
  }
  void Backward(double loss = 1.0) {
    machine_->BackwardBegin();
    machine_->BackwardEnd(true, loss);
  }
  /// A backward whose loss is read later; what the loss is called then.
  std::uint64_t LateBackward() {
    const std::uint64_t loss = machine_->LossLater();
    machine_->BackwardBegin();
    machine_->BackwardEnd(false, 0);
    return loss;
  }
  void Optimize(std::uint64_t id = 1, bool skipped = false, double rate = kNoRate) {
    machine_->OptimizerBegin(id);
    machine_->OptimizerEnd(id, skipped, rate);
  }
  void TrainBatch(std::int64_t batch = 4, double loss = 1.0) {
    Fetch(batch);
    Forward();
    Backward(loss);
    Optimize();
  }

  /// Everything since the last call; checks what must hold for any step.
  const format::Rows& Rows() {
    drained_ = channel::DrainAll(consumer_.get(), &pool_);
    consumer_->Commit();
    for (const format::StepRow& step : drained_.rows.steps) {
      EXPECT_EQ(step.data_wait_ns + step.forward_ns + step.backward_ns + step.optimizer_ns +
                    step.comm_wait_ns + step.other_ns,
                step.duration_ns);
      EXPECT_GE(step.other_ns, 0);
    }
    EXPECT_EQ(consumer_->counters().malformed, 0u);
    return drained_.rows;
  }
  /// "TRAIN 0 m2 o1 b8" for each step: micro-steps, optimizer calls, batch.
  std::vector<std::string> Steps() {
    std::vector<std::string> out;
    for (const format::StepRow& step : Rows().steps) {
      out.push_back(std::string(step.mode) + " " + std::to_string(step.step) + " m" +
                    std::to_string(step.micro_steps) + " o" + std::to_string(step.optimizer_calls) +
                    " b" + std::to_string(step.batch_size) + (step.skipped ? " skipped" : ""));
    }
    return out;
  }
  std::vector<std::string> Scalars(const format::Rows& rows) {
    std::vector<std::string> out;
    for (const format::ScalarRow& scalar : rows.scalars) {
      out.push_back(std::string(scalar.name) + "@" + std::to_string(scalar.step) + "=" +
                    std::to_string(scalar.value).substr(0, 4));
    }
    return out;
  }

  using Lines = std::vector<std::string>;
  channel::TestProducer producer_;
  StepMachine* machine_;
  std::unique_ptr<channel::Consumer> consumer_;
  StringPool pool_;
  channel::Drained drained_;
};

TEST_F(StepMachineTest, APlainLoopHasOneStepABatch) {
  EXPECT_EQ(machine_->train_step(), -1);
  for (int i = 0; i < 3; ++i) TrainBatch(4, i);
  EXPECT_EQ(machine_->train_step(), 2);
  machine_->Finish();
  const format::Rows rows = Rows();
  ASSERT_EQ(rows.steps.size(), 3u);
  // Each begins where the one before ended.
  EXPECT_NEAR(rows.steps[0].time_ns + rows.steps[0].duration_ns, rows.steps[1].time_ns, 1);
  EXPECT_NEAR(rows.steps[1].time_ns + rows.steps[1].duration_ns, rows.steps[2].time_ns, 1);
  EXPECT_EQ(Scalars(rows), (Lines{"loss@0=0.00", "loss@1=1.00", "loss@2=2.00"}));
  ASSERT_EQ(rows.events.size(), 2u);
  EXPECT_EQ(rows.events[0].kind, "run.first_forward");
  EXPECT_EQ(rows.events[1].kind, "run.last_step");
  EXPECT_EQ(rows.events[1].step, 2);
}

TEST_F(StepMachineTest, PhaseSpansCarryTheStepTheyBelongTo) {
  for (int i = 0; i < 3; ++i) TrainBatch();
  machine_->Finish();
  Lines spans;
  for (const format::SpanRow& span : Rows().spans) {
    EXPECT_EQ(span.category, "phase");
    spans.push_back(std::string(span.name) + "@" + std::to_string(span.step));
  }
  EXPECT_EQ(spans, (Lines{"data_wait@0", "forward@0", "backward@0", "optimizer@0",  //
                          "data_wait@1", "forward@1", "backward@1", "optimizer@1",  //
                          "data_wait@2", "forward@2", "backward@2", "optimizer@2"}));
}

TEST_F(StepMachineTest, AccumulatedPassesAreMicroSteps) {
  for (int i = 0; i < 6; ++i) {
    Fetch(4);
    Forward();
    Backward(i);
    if (i % 3 == 2) Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m3 o1 b12", "TRAIN 1 m3 o1 b12"}));
  EXPECT_EQ(Scalars(drained_.rows), (Lines{"loss@0=1.00", "loss@1=4.00"}));
}

TEST_F(StepMachineTest, ALoaderThatIsOneBatchAheadGivesEachStepItsOwnBatch) {
  const std::vector<std::int64_t> sizes = {8, 8, 8, 3};
  Fetch(sizes[0]);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    // It knows which batch is the last one since it has asked for one more.
    Fetch(i + 1 < sizes.size() ? sizes[i + 1] : -1);
    Forward();
    Backward();
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b8", "TRAIN 1 m1 o1 b8", "TRAIN 2 m1 o1 b8",
                            "TRAIN 3 m1 o1 b3"}));
}

TEST_F(StepMachineTest, BatchesFetchedTogetherForOneUpdateAreAllCounted) {
  // A loader that is one batch ahead, of which three batches are taken for each update; the last
  // one has two.
  Fetch(4);
  for (const std::vector<std::int64_t>& next :
       {std::vector<std::int64_t>{4, 4, 4}, {4, 4, 4}, {2, -1}}) {
    for (const std::int64_t batch : next) Fetch(batch);
    for (std::size_t i = 0; i < next.size(); ++i) {
      Forward(TT_MODE_TRAIN, next.size() == 2 && i == 1 ? 2 : 4);
      Backward();
    }
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m3 o1 b12", "TRAIN 1 m3 o1 b12", "TRAIN 2 m2 o1 b6"}));
}

TEST_F(StepMachineTest, AnEvaluationDoesNotUseTheBatchThatTheLoaderIsAheadBy) {
  Fetch(8);
  for (int i = 0; i < 3; ++i) {
    Fetch(8);
    Forward(TT_MODE_TRAIN, 8);
    Backward();
    Optimize();
    Fetch(5);
    Forward(TT_MODE_EVAL, 5);
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b8", "EVAL 0 m1 o0 b5", "TRAIN 1 m1 o1 b8",
                            "EVAL 1 m1 o0 b5", "TRAIN 2 m1 o1 b8", "EVAL 2 m1 o0 b5"}));
}

TEST_F(StepMachineTest, TheLoaderTellsTheSizeWhereTheModelIsCalledWithSomethingElse) {
  for (int i = 0; i < 3; ++i) {
    Fetch(4);
    Forward(TT_MODE_TRAIN, 35);  // The sequence comes first.
    Backward();
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m1 o1 b4", "TRAIN 2 m1 o1 b4"}));
}

TEST_F(StepMachineTest, WithoutALoaderTheModelsInputTellsTheSizeAlsoBehindATrainingWithOne) {
  for (int i = 0; i < 2; ++i) TrainBatch(4);
  for (int i = 0; i < 2; ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      Forward(TT_MODE_TRAIN, 16);
      Backward();
    }
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m1 o1 b4", "TRAIN 2 m2 o1 b32",
                            "TRAIN 3 m2 o1 b32"}));
}

TEST_F(StepMachineTest, AnOptimizerMadeForAnotherFitHasStepsOfItsOwnAndGoesOnWithTheLoss) {
  for (std::uint64_t fit = 1; fit <= 3; ++fit) {
    machine_->OptimizerMade(fit);
    for (int i = 0; i < 4; ++i) {
      Forward();
      Backward(static_cast<double>(fit));
      Optimize(fit, false, 0.5);
    }
  }
  machine_->Finish();
  const Lines steps = Steps();
  ASSERT_EQ(steps.size(), 12u);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(steps[i], "TRAIN " + std::to_string(i) + " m1 o1 b0");
  Lines expected;
  for (int i = 0; i < 12; ++i) {
    expected.push_back("loss@" + std::to_string(i) + "=" + std::to_string(1 + i / 4) + ".00");
    // Each fit tells its rate anew.
    if (i % 4 == 0) expected.push_back("lr@" + std::to_string(i) + "=0.50");
  }
  EXPECT_EQ(Scalars(drained_.rows), expected);
}

TEST_F(StepMachineTest, TheNextFitOfAGanHasItsTwoLossesByTheSameNames) {
  for (std::uint64_t fit = 0; fit < 2; ++fit) {
    const std::uint64_t critic = 2 * fit + 1, generator = critic + 1;
    machine_->OptimizerMade(critic);
    machine_->OptimizerMade(generator);
    for (int i = 0; i < 2; ++i) {
      for (const std::uint64_t optimizer : {critic, generator}) {
        Forward();
        Backward(static_cast<double>(optimizer));
        Optimize(optimizer);
      }
    }
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m2 o2 b0", "TRAIN 1 m2 o2 b0", "TRAIN 2 m2 o2 b0",
                            "TRAIN 3 m2 o2 b0"}));
  EXPECT_EQ(Scalars(drained_.rows),
            (Lines{"loss@0=1.00", "loss.1@0=2.00", "loss@1=1.00", "loss.1@1=2.00", "loss@2=3.00",
                   "loss.1@2=4.00", "loss@3=3.00", "loss.1@3=4.00"}));
}

TEST_F(StepMachineTest, OptimizersMadeAtTheirFirstUseInOneStepHaveLossesOfTheirOwn) {
  for (int i = 0; i < 2; ++i) {
    Forward();
    Backward();
    for (const std::uint64_t optimizer : {1, 2}) {
      if (i == 0) machine_->OptimizerMade(optimizer);
      Optimize(optimizer, false, 0.5);
    }
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o2 b0", "TRAIN 1 m1 o2 b0"}));
  EXPECT_EQ(Scalars(drained_.rows),
            (Lines{"loss@0=1.00", "lr@0=0.50", "lr.1@0=0.50", "loss@1=1.00"}));
}

TEST_F(StepMachineTest, ALateOptimizerBesideAnotherThatGoesOnHasALossOfItsOwn) {
  machine_->OptimizerMade(1);
  machine_->OptimizerMade(2);
  for (int i = 0; i < 8; ++i) {
    Fetch(4);
    Forward();
    Backward(1);
    Optimize(1);
    if (i < 5) continue;
    Forward();
    Backward(2);
    Optimize(2);
  }
  machine_->Finish();
  const format::Rows& rows = Rows();
  EXPECT_EQ(rows.steps.size(), 8u);
  for (const format::ScalarRow& scalar : rows.scalars) {
    EXPECT_EQ(scalar.name, scalar.value == 1 ? "loss" : "loss.1");
  }
}

TEST_F(StepMachineTest, WhatAnAgentDoesLiesBetweenTheSteps) {
  for (int i = 0; i < 3; ++i) {
    for (int play = 0; play < 4; ++play) {
      Forward(TT_MODE_GLOBAL, 1);
      machine_->Acts();
    }
    for (int again = 0; again < 2; ++again) {
      for (const std::uint64_t optimizer : {1, 2}) {
        Forward(TT_MODE_GLOBAL, 64);  // Of the network that it learns from.
        Forward(TT_MODE_TRAIN, 8);
        Backward();
        Optimize(optimizer);
      }
    }
  }
  machine_->Finish();
  Lines expected;
  for (int i = 0; i < 6; ++i) expected.push_back("TRAIN " + std::to_string(i) + " m2 o2 b16");
  EXPECT_EQ(Steps(), expected);
  // The last act ends the step, and the next one begins at a pass of the training.
  const std::vector<format::StepRow>& steps = drained_.rows.steps;
  EXPECT_GT(steps[2].time_ns, steps[1].time_ns + steps[1].duration_ns);
}

TEST_F(StepMachineTest, TwoOptimizersOfAGanAreOneStep) {
  for (int i = 0; i < 3; ++i) {
    Fetch(8);
    Forward();
    Backward(1);
    Optimize(1);
    Forward();
    Backward(2);
    Optimize(2);
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m2 o2 b8", "TRAIN 1 m2 o2 b8", "TRAIN 2 m2 o2 b8"}));
  EXPECT_EQ(Scalars(drained_.rows), (Lines{"loss@0=1.00", "loss.1@0=2.00", "loss@1=1.00",
                                           "loss.1@1=2.00", "loss@2=1.00", "loss.1@2=2.00"}));
}

TEST_F(StepMachineTest, AGanWithoutALoaderIsCutWhereAnOptimizerComesRoundAgain) {
  for (int i = 0; i < 3; ++i) {
    for (const std::uint64_t optimizer : {1, 2}) {
      Forward();
      Backward();
      Optimize(optimizer);
    }
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m2 o2 b0", "TRAIN 1 m2 o2 b0", "TRAIN 2 m2 o2 b0"}));
}

TEST_F(StepMachineTest, AGeneratorThatStepsEverySecondBatchKeepsStepsAtFetches) {
  for (int i = 0; i < 4; ++i) {
    Fetch(8);
    Forward();
    Backward();
    Optimize(1);
    if (i % 2 == 1) {
      Forward();
      Backward();
      Optimize(2);
    }
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b8", "TRAIN 1 m2 o2 b8", "TRAIN 2 m1 o1 b8",
                            "TRAIN 3 m2 o2 b8"}));
}

TEST_F(StepMachineTest, ABatchThatAGeneratorLeavesOutHasItsOwnNumberFromItsFetch) {
  for (int i = 0; i < 12; ++i) {
    Fetch(4);
    EXPECT_EQ(machine_->step(), i);
    Forward();
    Backward();
    EXPECT_EQ(machine_->step(), i);
    Optimize(1);
    if (i % 5 == 0) {
      Forward();
      // While the first optimizer is the only one known, a second pass begins another step.
      EXPECT_EQ(machine_->step(), i == 0 ? 1 : i);
      Backward();
      Optimize(2);
    }
    EXPECT_EQ(machine_->step(), i);
  }
  machine_->Finish();
  EXPECT_EQ(Rows().steps.size(), 12u);
}

TEST_F(StepMachineTest, OptimizersWithBatchesOfTheirOwnShareTheNumberOfTheirStep) {
  for (int i = 0; i < 4; ++i) {
    for (const std::uint64_t optimizer : {1, 2}) {
      Fetch(4);
      Forward();
      Backward();
      // The first time nobody knows that the second batch is no next step.
      EXPECT_EQ(machine_->step(), i == 0 && optimizer == 2 ? 1 : i);
      Optimize(optimizer);
      EXPECT_EQ(machine_->step(), i);
    }
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m2 o2 b8", "TRAIN 1 m2 o2 b8", "TRAIN 2 m2 o2 b8",
                            "TRAIN 3 m2 o2 b8"}));
}

TEST_F(StepMachineTest, ASkippedOptimizerClosesItsStepToo) {
  TrainBatch();
  Fetch(4);
  Forward();
  Backward();
  Optimize(1, true);
  TrainBatch();
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m1 o1 b4 skipped", "TRAIN 2 m1 o1 b4"}));
}

TEST_F(StepMachineTest, AnIterationWhoseGradientsAreClearedUnusedIsASkippedStep) {
  for (int i = 0; i < 5; ++i) {
    machine_->GradientsCleared(1, false);
    Forward();
    Backward(i);
    if (i < 2) Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b0", "TRAIN 1 m1 o1 b0", "TRAIN 2 m1 o0 b0 skipped",
                            "TRAIN 3 m1 o0 b0 skipped", "TRAIN 4 m1 o0 b0 skipped"}));
  EXPECT_EQ(
      Scalars(drained_.rows),
      (Lines{"loss@0=0.00", "loss@1=1.00", "loss@2=2.00", "optimizer.skipped@2=1.00", "loss@3=3.00",
             "optimizer.skipped@3=1.00", "loss@4=4.00", "optimizer.skipped@4=1.00"}));
}

TEST_F(StepMachineTest, GradientsMayBeClearedAnywhereInTheLoop) {
  enum class Where { kBehindTheFetch, kBehindTheForward, kAtTheEnd };
  Lines expected;
  for (const Where where : {Where::kBehindTheFetch, Where::kBehindTheForward, Where::kAtTheEnd}) {
    for (int i = 0; i < 6; ++i) {
      const bool steps = i == 0 || i == 3 || i == 5;
      Fetch(4);
      if (where == Where::kBehindTheFetch) machine_->GradientsCleared(1, false);
      Forward();
      if (where == Where::kBehindTheForward) machine_->GradientsCleared(1, false);
      Backward(i);
      if (steps) Optimize();
      if (where == Where::kAtTheEnd) machine_->GradientsCleared(1, false);
      expected.push_back("TRAIN " + std::to_string(expected.size()) +
                         (steps ? " m1 o1 b4" : " m1 o0 b4 skipped"));
    }
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), expected);
}

TEST_F(StepMachineTest, GradientsClearedByTwoBetweenTheirOptimizersCallsAreNoSkippedStep) {
  for (int i = 0; i < 3; ++i) {
    for (const std::uint64_t optimizer : {1, 2}) {
      machine_->GradientsCleared(optimizer, false);
      Forward();
      Backward();
    }
    for (const std::uint64_t optimizer : {1, 2}) Optimize(optimizer);
  }
  machine_->Finish();
  for (const std::string& step : Steps()) EXPECT_EQ(step.find("skipped"), std::string::npos);
}

TEST_F(StepMachineTest, GradientsClearedBetweenPassesOfOneForwardAreTaken) {
  for (int i = 0; i < 3; ++i) {
    machine_->GradientsCleared(1, false);
    Forward();
    for (int task = 0; task < 3; ++task) {
      machine_->GradientsCleared(1, false);
      Backward();
    }
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m3 o1 b0", "TRAIN 1 m3 o1 b0", "TRAIN 2 m3 o1 b0"}));
}

TEST_F(StepMachineTest, AStepBehindClearedGradientsHasItsOptimizer) {
  for (int i = 0; i < 3; ++i) {
    machine_->GradientsCleared(1, false);
    Forward();
    Backward();
    machine_->GradientsCleared(1, false);
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b0", "TRAIN 1 m1 o1 b0", "TRAIN 2 m1 o1 b0"}));
}

TEST_F(StepMachineTest, GradientsThatTheProgramHasUsedAreNoSkippedStep) {
  for (int i = 0; i < 3; ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      machine_->GradientsCleared(1, true);
      Forward();
      Backward();
    }
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m2 o1 b0", "TRAIN 1 m2 o1 b0", "TRAIN 2 m2 o1 b0"}));
}

TEST_F(StepMachineTest, WithoutAnOptimizerAStepIsWhatTheProgramSays) {
  for (int i = 0; i < 4; ++i) {
    // Gradients of two passes are used together.
    for (int pass = 0; pass < 2; ++pass) {
      if (pass == 0 && i > 0) machine_->GradientsUsed();
      Fetch(4);
      Forward();
      Backward(i);
    }
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m2 o0 b8", "TRAIN 1 m2 o0 b8", "TRAIN 2 m2 o0 b8",
                            "TRAIN 3 m2 o0 b8"}));
  EXPECT_EQ(Scalars(drained_.rows),
            (Lines{"loss@0=0.00", "loss@1=1.00", "loss@2=2.00", "loss@3=3.00"}));
}

TEST_F(StepMachineTest, AnEvaluationBehindGradientsThatWereUsedIsNoPartOfTheStep) {
  for (int i = 0; i < 2; ++i) {
    Forward();
    Backward();
    machine_->GradientsUsed();
    Forward(TT_MODE_EVAL);
  }
  machine_->Finish();
  EXPECT_EQ(Steps(),
            (Lines{"TRAIN 0 m1 o0 b0", "EVAL 0 m1 o0 b0", "TRAIN 1 m1 o0 b0", "EVAL 1 m1 o0 b0"}));
}

TEST_F(StepMachineTest, OnceAnOptimizerIsKnownOnlyItsCallsMakeSteps) {
  TrainBatch();
  for (int i = 0; i < 4; ++i) {
    machine_->GradientsUsed();
    Fetch(4);
    Forward();
    Backward();
    if (i == 3) Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m4 o1 b16"}));
}

TEST_F(StepMachineTest, EvaluationBetweenEpochsHasStepsOfItsOwn) {
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int i = 0; i < 2; ++i) TrainBatch();
    Fetch(-1);
    for (int i = 0; i < 2; ++i) {
      Fetch(16);
      Forward(TT_MODE_EVAL);
    }
    Fetch(-1);
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m1 o1 b4", "EVAL 0 m1 o0 b16",
                            "EVAL 1 m1 o0 b16", "TRAIN 2 m1 o1 b4", "TRAIN 3 m1 o1 b4",
                            "EVAL 2 m1 o0 b16", "EVAL 3 m1 o0 b16"}));
}

TEST_F(StepMachineTest, EvaluationAfterAnUnfinishedAccumulationIsNotPartOfIt) {
  TrainBatch();
  Fetch(4);
  Forward();
  Backward();  // The epoch ends before the optimizer.
  Fetch(-1);
  Fetch(16);
  Forward(TT_MODE_EVAL);
  Fetch(-1);
  TrainBatch();
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "EVAL 0 m1 o0 b16", "TRAIN 1 m2 o1 b8"}));
}

TEST_F(StepMachineTest, ATrainingThatFollowsAnotherNumbersItsForwardsAtOnce) {
  std::int64_t expected = 0;
  // The address of one that is gone may be that of another later.
  for (const std::uint64_t optimizer : {1, 2, 1, 3, 2, 4, 5, 6, 7, 8, 9, 10}) {
    for (int i = 0; i < 3; ++i) {
      Forward();
      // What the forward gives is recorded under this number, before the optimizer is called.
      EXPECT_EQ(machine_->step(), expected) << "optimizer " << optimizer;
      Backward();
      Optimize(optimizer);
      EXPECT_EQ(machine_->step(), expected);
      ++expected;
    }
  }
  machine_->Finish();
  EXPECT_EQ(Rows().steps.size(), 36u);
}

TEST_F(StepMachineTest, TheWaitThatEndsAnEpochBelongsToTheNextStep) {
  TrainBatch();
  TrainBatch();
  machine_->FetchBegin();
  const std::uint64_t begin = producer_->Now();
  while (producer_->Now() - begin < 2'000'000) {
  }
  machine_->FetchEnd(-1);
  TrainBatch();
  machine_->Finish();
  const format::Rows rows = Rows();
  ASSERT_EQ(rows.steps.size(), 3u);
  const std::int64_t waited = rows.steps[2].data_wait_ns;
  EXPECT_GT(waited, 300'000);  // 2 M ticks at no more than 6 GHz.
  EXPECT_LT(rows.steps[1].data_wait_ns, waited);
  EXPECT_NEAR(rows.steps[1].time_ns + rows.steps[1].duration_ns, rows.steps[2].time_ns, 1);
}

TEST_F(StepMachineTest, ATeachersForwardIsPartOfTheStep) {
  for (int i = 0; i < 3; ++i) {
    Fetch(4);
    Forward(TT_MODE_EVAL);
    Forward();
    Backward();
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m1 o1 b4", "TRAIN 2 m1 o1 b4"}));
}

TEST_F(StepMachineTest, EachTeachersForwardHasANumberOfItsOwn) {
  for (std::int64_t i = 0; i < 3; ++i) {
    Fetch(4);
    Forward(TT_MODE_EVAL);
    EXPECT_EQ(machine_->mode(), std::uint8_t{TT_MODE_EVAL});
    EXPECT_EQ(machine_->step(), i);
    Forward();
    EXPECT_EQ(machine_->mode(), std::uint8_t{TT_MODE_TRAIN});
    EXPECT_EQ(machine_->step(), i);
    Backward();
    Optimize();
  }
}

TEST_F(StepMachineTest, AModelInEvalModeThatIsTrainedMakesTrainSteps) {
  for (int i = 0; i < 2; ++i) {
    Fetch(4);
    Forward(TT_MODE_EVAL);
    Backward();
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m1 o1 b4"}));
}

TEST_F(StepMachineTest, OneBatchTrainedOnAgainAndAgain) {
  Fetch(4);
  for (int i = 0; i < 3; ++i) {
    Forward();
    Backward();
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m1 o1 b0", "TRAIN 2 m1 o1 b0"}));
}

TEST_F(StepMachineTest, ALoopWithoutModulesIsCutAtBackward) {
  for (int i = 0; i < 3; ++i) {
    Backward();
    Optimize();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b0", "TRAIN 1 m1 o1 b0", "TRAIN 2 m1 o1 b0"}));
}

TEST_F(StepMachineTest, AClosureNestsInItsOptimizer) {
  for (int i = 0; i < 2; ++i) {
    Fetch(4);
    machine_->OptimizerBegin(1);
    for (int k = 0; k < 3; ++k) {
      Forward();
      Backward(k);
    }
    machine_->OptimizerEnd(1, false, kNoRate);
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m3 o1 b4", "TRAIN 1 m3 o1 b4"}));
  EXPECT_EQ(Scalars(drained_.rows), (Lines{"loss@0=1.00", "loss@1=1.00"}));
}

TEST_F(StepMachineTest, NestedPhasesCountExclusively) {
  const auto spin = [&](std::uint64_t ticks) {
    const std::uint64_t begin = producer_->Now();
    while (producer_->Now() - begin < ticks) {
    }
  };
  Fetch(4);
  machine_->ForwardBegin(TT_MODE_TRAIN);
  machine_->PhaseBegin(TT_PHASE_COMM_WAIT);
  spin(3'000'000);
  machine_->PhaseEnd(TT_PHASE_COMM_WAIT);
  machine_->ForwardEnd(0);
  Backward();
  Optimize();
  machine_->Finish();
  const format::Rows rows = Rows();
  ASSERT_EQ(rows.steps.size(), 1u);
  EXPECT_GT(rows.steps[0].comm_wait_ns, 0);
  std::int64_t wait = 0, forward = 0;
  for (const format::SpanRow& span : rows.spans) {
    if (span.name == "comm_wait") wait = span.duration_ns;
    if (span.name == "forward") forward = span.duration_ns;
  }
  EXPECT_NEAR(rows.steps[0].comm_wait_ns, wait, 2);
  EXPECT_NEAR(rows.steps[0].forward_ns, forward - wait, 4);
}

TEST_F(StepMachineTest, ExplicitStepsReplaceTheAutomaticOnes) {
  TrainBatch();
  machine_->ExplicitStep();
  for (int i = 0; i < 2; ++i) {
    TrainBatch();
    TrainBatch();
    machine_->ExplicitStep();
  }
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m2 o2 b8", "TRAIN 2 m2 o2 b8"}));
}

TEST_F(StepMachineTest, OnlyExplicitStepsWithNothingElse) {
  for (int i = 0; i < 3; ++i) machine_->ExplicitStep();
  EXPECT_EQ(machine_->train_step(), 2);
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m0 o0 b0", "TRAIN 1 m0 o0 b0"}));
}

TEST_F(StepMachineTest, AnExceptionInForwardLeavesNothingBehind) {
  TrainBatch();
  TrainBatch();
  Fetch(4);
  machine_->ForwardBegin(TT_MODE_TRAIN);  // Never ended.
  TrainBatch();
  TrainBatch();
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m1 o1 b4", "TRAIN 2 m1 o1 b4",
                            "TRAIN 3 m1 o1 b4"}));
}

TEST_F(StepMachineTest, TheLossIsNamedByItsOptimizerNotByItsTurn) {
  for (int i = 0; i < 2; ++i) {
    for (const std::uint64_t id : {1, 1, 2}) {
      Fetch(4);
      Forward();
      Backward(static_cast<double>(id));
      Optimize(id);
    }
  }
  machine_->Finish();
  for (const format::ScalarRow& scalar : Rows().scalars) {
    EXPECT_EQ(scalar.name, scalar.value == 1 ? "loss" : "loss.1");
  }
}

TEST_F(StepMachineTest, ALossReadLaterIsNamedAndNumberedAsOneReadAtOnce) {
  std::vector<std::pair<std::uint64_t, double>> late;
  for (int i = 0; i < 4; ++i) {
    // A critic that steps twice for each step of what it judges.
    for (const std::uint64_t optimizer : {1, 1, 2}) {
      const double loss = 10.0 * i + static_cast<double>(optimizer);
      Fetch(4);
      Forward();
      Backward(loss);
      late.emplace_back(LateBackward(), loss);
      Optimize(optimizer);
    }
  }
  for (const auto& [loss, value] : late) {
    EXPECT_NE(loss, 0u);
    machine_->LossArrived(loss, value);
  }
  machine_->Finish();
  Lines scalars = Scalars(Rows());
  std::sort(scalars.begin(), scalars.end());
  ASSERT_EQ(scalars.size(), 24u);
  for (std::size_t i = 0; i < scalars.size(); i += 2) EXPECT_EQ(scalars[i], scalars[i + 1]);
  EXPECT_EQ(std::count_if(scalars.begin(), scalars.end(),
                          [](const std::string& line) { return line.starts_with("loss.1@"); }),
            8);
}

TEST_F(StepMachineTest, LossesReadLaterAreRecordedAsTheirMeanOnceAllAreThere) {
  const std::uint64_t one = LateBackward();
  const std::uint64_t two = LateBackward();
  machine_->LossArrived(one, 1);
  Optimize();
  EXPECT_TRUE(Rows().scalars.empty());
  machine_->LossArrived(two, 4);
  EXPECT_EQ(Scalars(Rows()), (Lines{"loss@0=2.50"}));
  const std::uint64_t early = LateBackward();
  machine_->LossArrived(early, 7);
  EXPECT_TRUE(Rows().scalars.empty()) << "its optimizer is not known";
  Optimize(2);
  EXPECT_EQ(Scalars(Rows()), (Lines{"loss.1@0=7.00"}));
}

TEST_F(StepMachineTest, AtTheEndLossesThatHaveArrivedDoNotWaitForTheOthers) {
  const std::uint64_t one = LateBackward();
  const std::uint64_t two = LateBackward();
  Optimize();
  const std::uint64_t unused = LateBackward();  // No optimizer follows.
  machine_->LossArrived(one, 3);
  machine_->LossArrived(unused, 8);
  machine_->Finish();
  machine_->LossArrived(two, 9);
  EXPECT_EQ(Scalars(Rows()), (Lines{"loss@0=3.00"}));
}

TEST_F(StepMachineTest, LossesThatNeverArriveTakeNoMoreRoomThanThereIs) {
  std::vector<std::uint64_t> taken;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t loss = LateBackward();
    if (loss != 0) taken.push_back(loss);
    Optimize();
  }
  ASSERT_EQ(taken.size(), 64u);
  machine_->LossArrived(0, 1);
  machine_->LossArrived(taken.back() + 1, 1);
  EXPECT_TRUE(Rows().scalars.empty()) << "nobody was given these";
  machine_->LossArrived(taken.front(), 5);
  EXPECT_EQ(Scalars(Rows()), (Lines{"loss@0=5.00"}));
  EXPECT_NE(LateBackward(), 0u) << "there is room again";
}

TEST_F(StepMachineTest, ALossReadLaterBelongsToTheThreadThatSteps) {
  const std::uint64_t before = LateBackward();
  std::thread([this] {
    TrainBatch();  // It takes over: what went before was of no optimizer.
    TrainBatch();
  }).join();
  EXPECT_EQ(machine_->LossLater(), 0u);
  machine_->LossArrived(before, 9);
  machine_->Finish();
  Lines scalars = Scalars(Rows());
  std::sort(scalars.begin(), scalars.end());
  EXPECT_EQ(scalars, (Lines{"loss@0=1.00", "loss@1=1.00"}));
}

TEST_F(StepMachineTest, APrefetchersForwardDoesNotClaimTheSteps) {
  std::thread([this] {
    Fetch(4);
    Forward();
  }).join();
  for (int i = 0; i < 3; ++i) TrainBatch(4, i);
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4", "TRAIN 1 m1 o1 b4", "TRAIN 2 m1 o1 b4"}));
}

TEST_F(StepMachineTest, TrainingOnAnotherThreadTakesOverFromOneThatNeverTrained) {
  Forward();
  Backward();
  std::thread([this] {
    for (int i = 0; i < 3; ++i) TrainBatch(4, i);
  }).join();
  Forward();
  Backward();  // It does not come back.
  machine_->Finish();
  Lines steps = Steps();  // Of two rings, so in any order.
  std::sort(steps.begin(), steps.end());
  // The first fetch was still foreign.
  EXPECT_EQ(steps, (Lines{"TRAIN 0 m1 o1 b0", "TRAIN 1 m1 o1 b4", "TRAIN 2 m1 o1 b4"}));
}

TEST_F(StepMachineTest, ABackwardInsideTheOwnersDoesNotTakeOver) {
  Fetch(4);
  Forward();
  machine_->BackwardBegin();
  std::thread([this] { Backward(9.0); }).join();
  machine_->BackwardEnd(true, 1.0);
  Optimize();
  machine_->Finish();
  EXPECT_EQ(Steps(), (Lines{"TRAIN 0 m1 o1 b4"}));
}

TEST_F(StepMachineTest, LearningRateIsRecordedWhenItChanges) {
  for (int i = 0; i < 60; ++i) {
    Fetch(4);
    Forward();
    machine_->BackwardBegin();
    machine_->BackwardEnd(false, 0);
    Optimize(1, false, i < 3 ? 0.5 : 0.25);
  }
  machine_->Finish();
  EXPECT_EQ(Scalars(Rows()), (Lines{"lr@0=0.50", "lr@3=0.25", "lr@53=0.25"}));
}

}  // namespace
}  // namespace telltale::probe
