// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/loader_model.h"

#include <gtest/gtest.h>

namespace telltale::rules {
namespace {

constexpr double kMs = 1e6;

LoaderLoad Load(double compute_ms, double wait_ms, double cpu_ms) {
  LoaderLoad load;
  load.compute_ns = compute_ms * kMs;
  load.fetch_wait_ns = wait_ms * kMs;
  load.fetch_cpu_ns = cpu_ms * kMs;
  load.step_ns = load.compute_ns + load.fetch_ns();
  load.cores = 4;
  return load;
}

TEST(LoaderModelTest, ALoaderThatSleepsTakesMoreWorkersThanCores) {
  const LoaderLoad load = Load(1, 200, 1);
  const LoaderForecast best = BestForecast(load, 1);
  EXPECT_EQ(best.workers, 16);
  EXPECT_NEAR(best.step_ns, 201.5 / 16 * kMs, 0.1 * kMs);
  EXPECT_TRUE(Gains(load, best));
}

TEST(LoaderModelTest, ItTakesNoMoreThanTheModelCanUse) {
  const LoaderForecast best = BestForecast(Load(50, 200, 1), 1);
  EXPECT_LE(best.workers, 5);
  EXPECT_GE(best.workers, 4);
}

TEST(LoaderModelTest, ALoaderThatComputesTakesNoMoreThanTheFreeCores) {
  LoaderLoad load = Load(10, 0, 200);
  EXPECT_EQ(BestForecast(load, 1).workers, 4);
  load.others_cores = 2;
  EXPECT_EQ(BestForecast(load, 1).workers, 2);
  // Not below what both take of the cores.
  EXPECT_GE(BestForecast(load, 1).step_ns, 210 / 2 * kMs);
}

TEST(LoaderModelTest, WhereOthersHaveTheCoresNothingIsPromised) {
  LoaderLoad load = Load(30, 0, 60);
  load.cores = 2;
  load.others_cores = 1.9;
  EXPECT_FALSE(Gains(load, BestForecast(load, 1)));
}

TEST(LoaderModelTest, HandingOverATinyBatchCostsMoreThanMakingIt) {
  const LoaderLoad load = Load(1, 0, 0.36);
  for (int workers = 1; workers <= 4; ++workers) {
    EXPECT_FALSE(Gains(load, ForecastLoader(load, workers))) << workers;
  }
}

TEST(LoaderModelTest, WithoutWorkersNothingIsHandedOver) {
  LoaderLoad load = Load(1, 0, 0.36);
  load.step_ns = 3.5 * kMs;
  load.hand_over_ns = 2.4 * kMs;
  const LoaderForecast without = ForecastLoader(load, 0);
  EXPECT_DOUBLE_EQ(without.step_ns, 1.36 * kMs);
  EXPECT_TRUE(Gains(load, without));
}

TEST(LoaderModelTest, AGainBelowItsErrorIsNone) {
  const LoaderLoad load = Load(40, 0, 3);
  const LoaderForecast one = ForecastLoader(load, 1);
  EXPECT_LT(one.step_ns, load.step_ns);
  EXPECT_FALSE(Gains(load, one));
  // Nor is one that the step does not feel, however sure it is.
  LoaderForecast sure;
  sure.step_ns = 0.96 * load.step_ns;
  EXPECT_FALSE(Gains(load, sure));
}

TEST(LoaderModelTest, WorkersThatWaitForCoresAreNoMeasureOfMoreOfThem) {
  LoaderLoad load = Load(10, 0, 20);
  EXPECT_FALSE(Crowded(load));
  load.fetch_delay_ns = 60 * kMs;
  EXPECT_TRUE(Crowded(load));
  load.fetch_wait_ns = 200 * kMs;
  EXPECT_FALSE(Crowded(load));
}

}  // namespace
}  // namespace telltale::rules
