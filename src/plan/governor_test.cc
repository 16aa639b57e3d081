// SPDX-License-Identifier: Apache-2.0
#include "plan/governor.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"

namespace telltale::plan {
namespace {

PlannedRule Every(std::uint32_t interval, std::uint32_t take = kStats, bool core = true) {
  PlannedRule rule;
  rule.take = take;
  rule.core = core;
  rule.when[0].interval = interval;
  return rule;
}

/// A training of steps of 20 ms: what the governor decides is published as the next step begins.
struct Training {
  Governor governor;
  std::vector<PlannedRule> rules;
  std::int64_t base_ns = 10 * kUs;
  /// Of a step, without the probe.
  std::function<std::int64_t(std::int64_t step)> work = [](std::int64_t) { return 20 * kMs; };
  /// Cost of what is taken, by the bits that are left of a rule.
  std::function<std::int64_t(std::uint32_t take)> cost;
  std::int64_t step = 0;
  std::int64_t now_ns = 0;
  std::int64_t spent_ns = 0;
  std::int64_t worked_ns = 0;
  std::vector<Governor::Decision> decisions;
  int exceeded = 0;
  int captures = 0;

  Training(double budget, std::vector<PlannedRule> planned, std::int64_t capture_ns,
           std::int64_t run_begin_ns = 0)
      : governor(budget, planned, run_begin_ns),
        rules(std::move(planned)),
        cost([capture_ns](std::uint32_t take) { return take == 0 ? 0 : capture_ns; }) {}

  void Run(int steps) {
    for (int i = 0; i < steps; ++i, ++step) {
      const Thinning thinning = governor.thinning();
      std::int64_t probe = base_ns;
      for (std::size_t which = 0; which < rules.size(); ++which) {
        const PlannedRule& rule = rules[which];
        const std::uint32_t interval =
            Stretched(rule.when[0].interval, thinning.StretchOf(which, 0));
        const bool due = (interval != 0 && step < rule.when[0].end && step % interval == 0) ||
                         rule.when[0].Listed(step);
        captures += due ? 1 : 0;
        if (due) probe += cost(Left(thinning, rule, which));
      }
      const StepCost one{0, step, now_ns, work(step) + probe, probe};
      now_ns += one.duration_ns;
      spent_ns += probe;
      worked_ns += one.duration_ns;
      if (const auto decision = governor.Add(one)) {
        decisions.push_back(*decision);
        exceeded += decision->exceeded ? 1 : 0;
      }
      // As the agent does: what changes nothing is not published.
      if (governor.thinning() != thinning) governor.Published(now_ns);
    }
  }
  double Share() const { return static_cast<double>(spent_ns) / static_cast<double>(worked_ns); }
  void Restart() { spent_ns = worked_ns = 0; }
};

TEST(Governor, LeavesThePlanAloneInsideTheBudget) {
  Training training(0.01, {Every(100)}, 5 * kMs);
  training.Run(20'000);
  EXPECT_TRUE(training.decisions.empty());
}

TEST(Governor, TwentyTimesTheBudgetIsInsideItWithinTwentySteps) {
  Training training(0.01, {Every(1)}, 4 * kMs);  // 17 % of each step.
  training.Run(20);
  ASSERT_FALSE(training.decisions.empty());
  training.Restart();
  training.Run(2000);
  EXPECT_LT(training.Share(), 0.01);
  EXPECT_GT(training.Share(), 0.005) << "as much as the budget allows, not less";
}

TEST(Governor, KeepsTheBudgetAtStepsOfAnyLength) {
  for (const std::int64_t work_ns : {10 * kMs, 30 * kMs, 100 * kMs, 300 * kMs}) {
    for (const std::int64_t percent : {5, 30, 150}) {
      SCOPED_TRACE(std::to_string(work_ns / kMs) + " ms, " + std::to_string(percent) + " %");
      std::minstd_rand random(7);
      const auto about = [&](std::int64_t ns) {
        return ns * (80 + static_cast<std::int64_t>(random() % 41)) / 100;
      };
      Governor governor(0.01, std::vector<PlannedRule>{Every(1, kStats | kHistogram)});
      Thinning taken;  // As the training has it: 0.2 s after the decision.
      std::int64_t now = 0, publish_at = -1, spent = 0, worked = 0;
      for (std::int64_t step = 0; step < 6000; ++step) {
        const std::int64_t work = about(work_ns);
        const std::int64_t pause = step % 100 == 57 ? 5000 * kMs : 0;
        std::int64_t probe = step % 3 == 0 ? 27 * kUs : 0;  // A sample stands for others.
        if (step % taken.stretch == 0) {
          probe += about(work_ns * percent / 100) * (step == 0 ? 5 : 1);
        }
        const std::int64_t begin = now;
        now += work + pause + probe;
        if (governor.Add({0, step, begin, now - begin, probe})) publish_at = now + 200 * kMs;
        if (publish_at >= 0 && now >= publish_at) {
          taken = governor.thinning();
          governor.Published(now);
          publish_at = -1;
        }
        if (step < 200) continue;
        spent += probe;
        worked += work + probe;
      }
      const double share = static_cast<double>(spent) / static_cast<double>(worked);
      EXPECT_LT(share, 0.012);
      EXPECT_GT(share, 0.005);
    }
  }
}

TEST(Governor, APauseBetweenTwoStepsPaysForNothing) {
  Training training(0.01, {Every(1)}, 4 * kMs);
  // A checkpoint, an input stall, a paused process: each eighth step.
  training.work = [](std::int64_t step) { return step % 8 == 7 ? 2400 * kMs : 20 * kMs; };
  training.Run(200);
  training.Restart();
  training.Run(8000);
  EXPECT_LT(training.spent_ns, 8000 * 20 * kMs * 12 / 1000) << "of the work between the pauses";
  EXPECT_GT(training.spent_ns, 8000 * 20 * kMs * 5 / 1000);
}

TEST(Governor, AStallAmongTheFirstStepsHidesNoCost) {
  Training training(0.01, {Every(1)}, 4 * kMs);
  training.work = [](std::int64_t step) { return step == 3 ? 5000 * kMs : 20 * kMs; };
  training.Run(8);
  EXPECT_GE(training.governor.thinning().stretch, 20U);
}

TEST(Governor, AColdFirstCaptureIsNoAlarm) {
  Training training(0.01, {Every(100)}, 0);
  // 3 % of the first hundred steps, 0.5 % of all that follow.
  training.cost = [first = true](std::uint32_t) mutable {
    return std::exchange(first, false) ? 60 * kMs : 10 * kMs;
  };
  training.Run(5000);
  EXPECT_TRUE(training.decisions.empty());
}

TEST(Governor, OneCaptureThatWasKeptFromItsCoreDoesNotEndThemForMinutes) {
  // The second: of a probe that alone is above the budget.
  for (const std::int64_t base_ns : {kUs, 15 * kUs}) {
    for (const int dear : {3, 4, 5, 6, 9, 20}) {
      SCOPED_TRACE(std::to_string(base_ns) + " ns, capture " + std::to_string(dear));
      Training training(0.01, {Every(100)}, 0);
      training.work = [](std::int64_t) { return kMs; };
      training.base_ns = base_ns;
      int captures = 0;
      training.cost = [&](std::uint32_t) { return ++captures == dear ? 200 * kMs : 20 * kUs; };
      training.Run(100 * dear);
      EXPECT_GT(training.governor.thinning().stretch, 1U);
      EXPECT_LE(training.governor.thinning().stretch, 16U);
      const int before = captures;
      training.Run(2 * 1600);
      EXPECT_GE(captures, before + 2);
      training.Run(50'000);
      EXPECT_EQ(training.governor.thinning(), Thinning{});
      EXPECT_LE(training.decisions.size(), 8U);
    }
  }
}

TEST(Governor, OneCaptureOfSecondsShedsNothing) {
  Training training(0.01, {Every(100)}, 0);
  training.work = [](std::int64_t) { return kMs; };
  int captures = 0;
  training.cost = [&](std::uint32_t) { return ++captures == 3 ? 2000 * kMs : 20 * kUs; };
  training.Run(300);
  EXPECT_EQ(training.governor.thinning(), (Thinning{.stretch = 16, .shed = 0}));
}

TEST(Governor, WhatNoStretchIsEnoughForIsShed) {
  Training training(0.01, {Every(100)}, 2000 * kMs);
  training.work = [](std::int64_t) { return kMs; };
  training.Run(500'000);
  ASSERT_GE(training.decisions.size(), 4U);
  EXPECT_EQ(training.decisions[0].thinning, (Thinning{.stretch = 16, .shed = 0}));
  EXPECT_EQ(training.decisions[1].thinning, (Thinning{.stretch = 256, .shed = 0}));
  EXPECT_EQ(training.decisions[2].thinning, (Thinning{.stretch = 1024, .shed = 0}));
  EXPECT_EQ(training.decisions[3].thinning.stretch, 1024U);
  EXPECT_GT(training.decisions[3].thinning.shed, 0U);
}

TEST(Governor, AtTheLargestStretchOneCaptureJustAboveTheBudgetShedsNothing) {
  // Without the values it is inside, by a little: the first capture alone is not.
  Training training(0.01, {Every(100, kRaw | kStats)}, 0);
  training.work = [](std::int64_t) { return kMs; };
  training.base_ns = 0;
  bool first = true;
  training.cost = [&](std::uint32_t take) {
    if ((take & kRaw) != 0) return 2000 * kMs;
    return std::exchange(first, false) ? 1060 * kMs : 970 * kMs;
  };
  training.Run(1'500'000);
  EXPECT_EQ(training.governor.thinning(), (Thinning{.stretch = 1024, .shed = 1}));
}

TEST(Governor, OneDearCaptureOfWhatHasComeBackShedsNothingAgain) {
  PlannedRule listed = Every(0, kRaw | kStats);
  for (std::int64_t i = 0; i < 300; ++i) listed.when[0].steps.push_back(i);
  Training training(0.01, {listed, Every(100)}, 0);
  training.work = [](std::int64_t) { return kMs; };
  bool dear = false;
  training.cost = [&](std::uint32_t take) {
    if ((take & kRaw) != 0) return 4 * kMs;
    return dear ? 800 * kMs : 20 * kUs;
  };
  while (training.governor.thinning().shed == 0 && training.step < 1000) training.Run(1);
  ASSERT_EQ(training.governor.thinning().shed, 1U);
  while (training.governor.thinning().shed != 0 && training.step < 500'000) training.Run(1);
  ASSERT_EQ(training.governor.thinning(), (Thinning{.stretch = 64, .shed = 0}));
  dear = true;
  training.Run(6400);
  EXPECT_EQ(training.governor.thinning().shed, 0U);
  EXPECT_GT(training.governor.thinning().stretch, 64U);
}

TEST(Governor, WhatIsNearTheBudgetIsTakenBackAndStillJudged) {
  // 0.8 % of a hundred steps: at twice the interval there is no room to take back.
  std::int64_t cost = 16 * kMs;
  int captures = 0;
  Training training(0.01, {Every(100)}, 0);
  training.cost = [&](std::uint32_t) { return ++captures == 5 ? 2000 * kMs : cost; };
  training.Run(30'000);
  EXPECT_LE(training.governor.thinning().stretch, 2U);
  const std::size_t settled = training.decisions.size();
  training.Run(30'000);
  EXPECT_EQ(training.decisions.size(), settled);
  cost = 1000 * kMs;  // Now half of the time.
  training.Run(20'000);
  EXPECT_GT(training.governor.thinning().stretch, 30U);
}

TEST(Governor, ASecondDearCaptureIsEnoughWhereTheFirstStretchedTooLittle) {
  Training training(0.01, {Every(100)}, 600 * kMs);  // 30 % of a hundred steps' time.
  training.Run(1700);
  EXPECT_GE(training.governor.thinning().stretch, 45U);
  EXPECT_LE(training.governor.thinning().stretch, 75U);
}

TEST(Governor, WhereTheProbeAloneIsTooDearItDoesNotSwing) {
  std::minstd_rand random(7);
  Training training(0.01, {Every(100)}, 0);
  training.work = [](std::int64_t) { return kMs; };
  training.base_ns = 15 * kUs;
  training.cost = [&](std::uint32_t) {
    return static_cast<std::int64_t>(700 + random() % 600) * kUs;
  };
  training.Run(100'000);
  const std::size_t settled = training.decisions.size();
  EXPECT_GT(training.governor.thinning().stretch, 6U);
  EXPECT_LT(training.governor.thinning().stretch, 20U);
  training.Run(400'000);
  EXPECT_LE(training.decisions.size(), settled + 2);
}

TEST(Governor, EightCheapCapturesOfManyTakeNothingBack) {
  Training training(0.01, {Every(100)}, 0);
  training.work = [](std::int64_t) { return kMs; };
  training.base_ns = 25 * kUs;
  // 1.4 ms in the mean of sixteen, then 0.4 of eight.
  int captures = 0;
  training.cost = [&](std::uint32_t) {
    const int at = captures++ % 24;
    return at < 16 && at % 2 == 0 ? 2400 * kUs : 400 * kUs;
  };
  training.Run(100'000);
  const std::size_t settled = training.decisions.size();
  training.Run(500'000);
  EXPECT_EQ(training.decisions.size(), settled);
  // By a tenth of the budget, which is what the probe leaves: 1.07 % in the mean at no stretch.
  EXPECT_GE(training.governor.thinning().stretch, 8U);
  training.cost = [](std::uint32_t) { return 10 * kUs; };
  training.Run(300'000);
  EXPECT_EQ(training.governor.thinning(), Thinning{});
}

TEST(Governor, WhatIsTooDearAgainAndAgainIsStretchedAsFarAsItTakes) {
  Training training(0.01, {Every(10)}, 400 * kMs);  // Twice the time of the ten steps.
  training.Run(10'000);
  EXPECT_GE(training.governor.thinning().stretch, 200U);
  EXPECT_LE(training.governor.thinning().stretch, 400U);
  EXPECT_EQ(training.governor.thinning().shed, 0U);
  training.Restart();
  training.Run(100'000);
  EXPECT_LT(training.Share(), 0.01);
}

TEST(Governor, OneThatIsTooDearHoweverColdIsNotAwaitedTwice) {
  Training training(0.01, {Every(100)}, 300 * kMs);
  training.Run(20);
  EXPECT_FALSE(training.decisions.empty());
}

TEST(Governor, ColdStepsOfFurtherProcessesAreColdToo) {
  Governor governor(0.01, std::vector<PlannedRule>{Every(100)});
  for (std::int64_t step = 0; step < 20; ++step) {
    for (int rank = 0; rank < 8; ++rank) {
      const std::int64_t probe = step == 0 ? 60 * kMs : 10 * kUs;
      EXPECT_FALSE(governor.Add({0, step, step * 20 * kMs, 20 * kMs + probe, probe})) << step;
    }
  }
}

TEST(Governor, StretchesInProportion) {
  Training training(0.01, {Every(10)}, 7 * kMs);  // 3.4 %.
  training.Run(1000);
  ASSERT_FALSE(training.decisions.empty());
  EXPECT_GE(training.governor.thinning().stretch, 6U);
  EXPECT_LE(training.governor.thinning().stretch, 9U);
  EXPECT_EQ(training.governor.thinning().shed, 0U);
  // It settles at half the budget: what the probe cannot account for comes on top.
  training.Restart();
  training.Run(9000);
  EXPECT_GE(training.Share(), 0.0035);
  EXPECT_LE(training.Share(), 0.0055);
}

TEST(Governor, KnowsTheWholeIntervalFromOneStep) {
  // Step 0 is half of the first four steps and 0.9 % of a hundred.
  Training training(0.01, {Every(100)}, 18 * kMs);
  training.Run(1000);
  EXPECT_TRUE(training.decisions.empty());
}

TEST(Governor, SettlesInsteadOfSwinging) {
  Training training(0.01, {Every(10)}, 7 * kMs);
  training.Run(20'000);
  const std::size_t settled = training.decisions.size();
  EXPECT_LE(settled, 3U);
  training.Run(100'000);
  EXPECT_EQ(training.decisions.size(), settled);
}

TEST(Governor, TakesBackSlowlyWhenThereIsRoom) {
  Training training(0.01, {Every(10)}, 40 * kMs);
  training.Run(3000);
  const std::uint32_t stretched = training.governor.thinning().stretch;
  EXPECT_GT(stretched, 16U);
  training.cost = [](std::uint32_t) { return 100 * kUs; };
  training.Run(250);
  EXPECT_GE(training.governor.thinning().stretch, stretched / 2);
  training.Run(50'000);
  EXPECT_EQ(training.governor.thinning().stretch, 1U);
  EXPECT_FALSE(training.decisions.back().exceeded);
}

TEST(Governor, RulesOfTheSameIntervalAreTakenBackToo) {
  Training training(0.01, {Every(10), Every(10, kHistogram | kStats)}, 20 * kMs);
  training.Run(3000);
  EXPECT_GT(training.governor.thinning().stretch, 16U);
  training.cost = [](std::uint32_t) { return 100 * kUs; };
  training.Run(50'000);
  EXPECT_EQ(training.governor.thinning(), Thinning{});
}

TEST(Governor, SeveralRulesAreStretchedByOneFactor) {
  Training training(0.01, {Every(1), Every(100)}, 2 * kMs);
  training.Run(5000);
  training.Restart();
  training.Run(20'000);
  EXPECT_LT(training.Share(), 0.01);
  EXPECT_EQ(training.governor.thinning().shed, 0U);
}

TEST(Governor, WhereStretchingIsNotEnoughItShedsInOrder) {
  // Steps that were named one by one are not stretched.
  PlannedRule listed = Every(0, kRaw | kHistogram | kMore | kStats);
  for (std::int64_t i = 0; i < 5000; ++i) listed.when[0].steps.push_back(i);
  Training training(0.01, {listed}, 0);
  training.cost = [](std::uint32_t take) {
    return ((take & kRaw) != 0 ? 4 * kMs : 0) + ((take & kHistogram) != 0 ? 2 * kMs : 0) +
           ((take & kStats) != 0 ? 50 * kUs : 0);
  };
  training.Run(300);
  EXPECT_EQ(training.governor.thinning().shed, 2U) << "values, then histograms, and no more";
  ASSERT_EQ(training.decisions.size(), 2U);
  EXPECT_EQ(training.decisions[0].thinning.shed, 1U);
}

TEST(Governor, AListThatIsOverShedsNothing) {
  PlannedRule listed = Every(0, kRaw | kHistogram | kStats);
  for (std::int64_t i = 0; i < 16; ++i) listed.when[0].steps.push_back(i);
  Training training(0.01, {listed, Every(100)}, 0);
  training.cost = [](std::uint32_t take) { return (take & kRaw) != 0 ? 4 * kMs : 10 * kUs; };
  training.Run(5000);
  EXPECT_TRUE(training.decisions.empty()) << "it could not be cheaper any more";
  // The last steps of a list are not judged by what those before have cost either.
  for (std::int64_t i = 16; i < 40; ++i) listed.when[0].steps.push_back(i);
  Training longer(0.01, {listed}, 4 * kMs);
  longer.Run(300);
  EXPECT_EQ(longer.governor.thinning().shed, 1U) << "while steps were to come, and not after";
}

TEST(Governor, StepsThatAreCountedAnewAreDueAgain) {
  PlannedRule first = Every(1);
  first.when[0].end = 200;
  Training training(0.01, {first}, 10 * kUs);
  training.Run(300);
  EXPECT_TRUE(training.decisions.empty());
  training.cost = [](std::uint32_t) { return 4 * kMs; };
  training.step = 0;  // The workers were started again.
  training.Run(60);
  EXPECT_GT(training.governor.thinning().stretch, 1U);
}

TEST(Governor, WhatWasShedComesBackAfterAMinuteOfRoom) {
  PlannedRule listed = Every(0, kRaw | kStats);
  for (std::int64_t i = 0; i < 100; ++i) listed.when[0].steps.push_back(i);
  Training training(0.01, {listed}, 4 * kMs);
  training.cost = [](std::uint32_t take) { return (take & kRaw) != 0 ? 4 * kMs : 0; };
  training.Run(100);
  EXPECT_EQ(training.governor.thinning().shed, 1U);
  training.Run(2000);
  EXPECT_EQ(training.governor.thinning().shed, 1U) << "not within 40 s";
  training.Run(10'000);
  EXPECT_EQ(training.governor.thinning(), Thinning{});
}

TEST(Governor, WhatProvedTooDearAgainComesBackLaterEachTime) {
  PlannedRule listed = Every(0, kRaw | kStats);
  for (std::int64_t i = 0; i < 60'000; ++i) listed.when[0].steps.push_back(i);
  Training training(0.01, {listed}, 0);
  training.cost = [](std::uint32_t take) { return (take & kRaw) != 0 ? 4 * kMs : 0; };
  training.Run(60'000);  // Twenty minutes.
  int returns = 0;
  for (const Governor::Decision& decision : training.decisions) {
    returns += decision.thinning.shed == 0 ? 1 : 0;
  }
  EXPECT_GE(returns, 3);
  EXPECT_LE(returns, 5) << "after one, two, four and eight minutes";
  EXPECT_LT(training.Share(), 0.002);
}

TEST(Governor, ThatTheProbeAloneIsTooDearIsSaidOnce) {
  Training training(0.01, {}, 0);
  training.base_ns = 400 * kUs;
  training.Run(1000);
  EXPECT_EQ(training.exceeded, 1);
  training.base_ns = 300 * kUs;
  training.Run(1000);
  EXPECT_EQ(training.exceeded, 1);
  training.base_ns = 20 * kUs;
  training.Run(1000);
  training.base_ns = 300 * kUs;
  training.Run(1000);
  EXPECT_EQ(training.exceeded, 2) << "it was better between";
  EXPECT_EQ(training.governor.thinning(), Thinning{});
}

TEST(Governor, ThatItIsTooDearInOneModeIsSaidOnceHoweverOftenModesChange) {
  Governor governor(0.01, std::vector<PlannedRule>{});
  int exceeded = 0;
  std::int64_t now = 0;
  for (std::int64_t step = 0; step < 4000; ++step) {
    const unsigned mode = step / 100 % 2;
    const std::int64_t probe = mode == 0 ? 400 * kUs : 10 * kUs;
    const auto said = governor.Add({mode, step, now, 20 * kMs + probe, probe});
    exceeded += said && said->exceeded ? 1 : 0;
    now += 20 * kMs + probe;
  }
  EXPECT_EQ(exceeded, 1);
}

TEST(Governor, ADearProbeDoesNotEndAllStatistics) {
  Training training(0.01, {Every(100)}, 1 * kMs);
  training.base_ns = 400 * kUs;
  training.Run(5000);
  EXPECT_EQ(training.exceeded, 1);
  EXPECT_EQ(training.governor.thinning().shed, 0U);
  EXPECT_LT(training.governor.thinning().stretch, 1024U);
}

TEST(Governor, StepsOfTheOldRulesDoNotCount) {
  Governor governor(0.01, std::vector<PlannedRule>{Every(1)});
  std::int64_t now = 0;
  std::int64_t step = 0;
  const auto add = [&] {
    now += 24 * kMs;
    return governor.Add({0, step++, now - 24 * kMs, 24 * kMs, 4 * kMs});
  };
  int decisions = 0;
  for (int i = 0; i < 10; ++i) decisions += add() ? 1 : 0;
  EXPECT_EQ(decisions, 1);
  const std::uint32_t stretch = governor.thinning().stretch;
  governor.Published(now + 100 * 24 * kMs);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(add()) << "began before the rules were out";
  EXPECT_EQ(governor.thinning().stretch, stretch);
}

TEST(Governor, AnotherPlanBeginsAnew) {
  Training training(0.01, {Every(1)}, 4 * kMs);
  training.Run(100);
  EXPECT_GT(training.governor.thinning().stretch, 1U);
  const std::vector<PlannedRule> other = {Every(1000)};
  training.governor.SetRules(other);
  EXPECT_EQ(training.governor.thinning(), Thinning{});
}

TEST(Governor, StepsOfTheOldPlanSayNothingOfAnother) {
  const std::vector<PlannedRule> rules = {Every(1)};
  Governor governor(0.01, rules);
  governor.SetRules(rules);
  std::int64_t step = 0;
  const auto add = [&] {
    const std::int64_t begin = step * 24 * kMs;
    return governor.Add({0, step++, begin, 24 * kMs, 4 * kMs}).has_value();
  };
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(add()) << "the new rules are not out yet";
  governor.Published(step * 24 * kMs);
  int decisions = 0;
  for (int i = 0; i < 10; ++i) decisions += add() ? 1 : 0;
  EXPECT_EQ(decisions, 1);
}

TEST(Governor, ItsOwnProcessesTakeFromTheBudgetAndAreSampledLess) {
  Training training(0.01, {Every(100)}, 15 * kMs);  // 0.75 %.
  training.Run(1000);
  EXPECT_TRUE(training.decisions.empty());
  const auto decision = training.governor.AddOwn(0.008, 5000 * kMs);
  ASSERT_TRUE(decision.has_value());
  EXPECT_GT(decision->sampling_stretch, 1U);
  training.Run(1000);
  EXPECT_GT(training.governor.thinning().stretch, 1U);
  for (int i = 0; i < 5; ++i) training.governor.AddOwn(0.0, 5000 * kMs);
  EXPECT_EQ(training.governor.sampling_stretch(), 1U);
}

TEST(Governor, IsDeterministic) {
  const auto run = [] {
    Training training(0.01, {Every(1), Every(7, kHistogram | kStats)}, 3 * kMs);
    training.Run(5000);
    return training.decisions.size() * 10'000 + training.governor.thinning().stretch;
  };
  EXPECT_EQ(run(), run());
}

PlannedRule Asked(std::uint32_t interval, std::uint32_t take = kStats) {
  PlannedRule rule = Every(interval, take);
  rule.asked = true;
  return rule;
}

/// How many steps of a training of `steps` are captured, of one rule.
int CapturesOf(Training* training, int steps) {
  const int before = training->captures;
  training->Run(steps);
  return training->captures - before;
}

TEST(Governor, AShortRunGetsWhatWasAskedFor) {
  // 12 captures, each of 15 % of the time between two: without a word 2 of them would be taken.
  Training training(0.01, {Asked(5)}, 15 * kMs);
  EXPECT_EQ(CapturesOf(&training, 60), 12);
  Training without(0.01, {Every(5)}, 15 * kMs);
  EXPECT_LT(CapturesOf(&without, 60), 5);
}

TEST(Governor, WhatWasAskedForIsSpreadOverALongRun) {
  // 20, and from then on ten each time that the steps have doubled, whatever the budget.
  Training training(1e-9, {Asked(1)}, 3 * kMs);
  EXPECT_EQ(CapturesOf(&training, 20), 20);
  EXPECT_EQ(CapturesOf(&training, 20), 10);
  EXPECT_EQ(CapturesOf(&training, 40), 10);
  EXPECT_EQ(CapturesOf(&training, 80), 10);
  EXPECT_EQ(CapturesOf(&training, 160), 10);
}

TEST(Governor, ALongRunKeepsItsBudgetWithWhatWasAskedFor) {
  Training training(0.01, {Asked(1)}, 3 * kMs);
  training.Run(2000);
  training.Restart();
  training.Run(8000);
  EXPECT_LT(training.Share(), 0.012);
  EXPECT_GT(training.Share(), 0.004) << "as much as the budget allows, not less";
}

TEST(Governor, WhatWasNotAskedForPaysForItselfAlone) {
  // What is asked for costs 15 %, beyond the budget; the rest costs 0.5 % and stays as it is.
  Training training(0.01, {Asked(100, kRaw), Every(10)}, 1);
  training.cost = [](std::uint32_t take) {
    return take == kRaw ? 300 * kMs : take != 0 ? 1 * kMs : 0;
  };
  training.Run(1900);
  EXPECT_EQ(training.governor.thinning().stretch, 1U);
}

TEST(Governor, WhatWasAskedForTakesNoMoreThanAFifthOfTheRun) {
  // Each capture takes as long as ten steps.
  Training training(0.01, {Asked(1)}, 200 * kMs);
  training.Run(400);
  ASSERT_FALSE(training.decisions.empty());
  const auto& said = training.decisions.front().too_dear;
  ASSERT_TRUE(said.has_value()) << "what is taken instead is said as soon as it is known";
  EXPECT_GT(said->share, 0.5);
  EXPECT_NEAR(said->capture_ns, 200e6, 1e6);
  EXPECT_GE(said->stretch, 32U);
  training.Restart();
  training.Run(1000);
  EXPECT_LT(training.Share(), Governor::kAskedShare);
}

TEST(Governor, ASecondOfStartUpPaysForCapturesOfAShortRun) {
  // A fifth of the run: 20 captures of 20 ms are 0.4 s, the run is as old as 5 s.
  Training training(0.01, {Asked(1)}, 20 * kMs, 1);
  training.now_ns = 5000 * kMs;
  EXPECT_EQ(CapturesOf(&training, 20), 20);
}

TEST(Governor, OneCaptureThatWasKeptFromItsCoreTakesNothingFromTheOthers) {
  Training training(0.01, {Asked(100)}, 2 * kMs);
  training.cost = [&](std::uint32_t take) {
    return take == 0 ? 0 : training.step == 100 ? 3000 * kMs : 2 * kMs;
  };
  EXPECT_EQ(CapturesOf(&training, 1200), 12);
}

TEST(Governor, WhatIsAskedForKeepsItsValuesWhereTheRestIsShed) {
  Training training(0.01, {Asked(100, kRaw), Every(1, kRaw | kStats)}, 1);
  training.cost = [](std::uint32_t take) {
    return take == kRaw ? 10 * kMs : (take & kRaw) != 0 ? 60'000 * kMs : 0;
  };
  training.Run(1500);
  const Thinning& thinning = training.governor.thinning();
  ASSERT_GE(thinning.shed, 1U);
  EXPECT_EQ(Left(thinning, training.rules[0], 0), kRaw);
  EXPECT_EQ(Left(thinning, training.rules[1], 1) & kRaw, 0U);
}

TEST(Governor, TenMicrosecondsAStepAreNeverTooMuch) {
  Training training(0.01, {}, 0);
  training.work = [](std::int64_t) { return 200 * kUs; };
  training.base_ns = 9 * kUs;  // 4.3 % of a step.
  training.Run(10'000);
  EXPECT_EQ(training.exceeded, 0);
  training.base_ns = 12 * kUs;
  training.Run(40'000);
  EXPECT_EQ(training.exceeded, 1);
}

TEST(Governor, WhatIsExceededIsSoByTheShareOfAllSteps) {
  // Dear steps at the end of a long cheap run: the verdict says that the run has cost little.
  Training training(0.01, {}, 0);
  training.Run(10'000);
  training.base_ns = 400 * kUs;  // 2 %.
  training.Run(1000);
  EXPECT_EQ(training.exceeded, 0);
  training.Run(20'000);
  EXPECT_EQ(training.exceeded, 1);
  EXPECT_GT(training.decisions.back().so_far, 0.01);
}

}  // namespace
}  // namespace telltale::plan
