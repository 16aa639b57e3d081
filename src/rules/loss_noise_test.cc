// SPDX-License-Identifier: Apache-2.0
// How often LossNotDecreasing speaks over seeded noise: next to never of a loss that falls slowly
// or had converged, nearly always of a flat one.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "rules/engine.h"

namespace telltale::rules {
namespace {

constexpr int kSeeds = 60;

/// Of kSeeds runs whose mean loss is `mean(step)`, with gaussian noise of `noise` times the mean,
/// in how many a finding of medium or high appears.
int Fires(int steps, double noise, const std::function<double(int)>& mean) {
  int fired = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    std::mt19937_64 random(static_cast<std::uint64_t>(seed) + 1);
    std::normal_distribution<double> gauss;
    const RuleEntry* entry = FindRule("LossNotDecreasing");
    std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
    rules.emplace_back(entry->desc, entry->make(Parameters(*entry->desc)));
    Engine engine(std::move(rules));
    for (int step = 0; step < steps; ++step) {
      format::ScalarRow row;
      row.step = step;
      row.time_ns = row.ord_ns = 100'000'000LL * (step + 1);
      row.attempt = 1;
      row.name = "loss";
      row.mode = "TRAIN";
      row.value = mean(step) * (1 + noise * gauss(random));
      engine.Feed({row.ord_ns, 0, format::ScalarRow::kTable, &row});
    }
    engine.End();
    bool any = false;
    for (const Finding& f : engine.findings()) {
      any = any || f.incident.severity >= Severity::kMedium;
    }
    fired += any ? 1 : 0;
  }
  return fired;
}

TEST(LossNoiseTest, SlowTrainingUnderNoiseIsHealthy) {
  EXPECT_LE(Fires(3000, 0.05, [](int s) { return 2.3 * (1 - 0.0001 * s); }), 1);
  EXPECT_LE(Fires(1500, 0.30, [](int s) { return 2.3 * (1 - 0.0005 * s); }), 1);
  EXPECT_LE(Fires(3000, 0.01, [](int s) { return 2.3 * (1 - 0.0001 * s); }), 1);
  EXPECT_LE(Fires(3000, 0.10, [](int s) { return 2.3 * (1 - 0.0002 * s); }), 1);
}

TEST(LossNoiseTest, ConvergedUnderNoiseIsHealthy) {
  EXPECT_LE(Fires(3000, 0.30, [](int s) { return 1.2 + 1.1 * std::exp(-s / 100.0); }), 1);
  // Resumed where it had converged.
  EXPECT_LE(Fires(3000, 0.30, [](int) { return 0.05; }), 1);
}

TEST(LossNoiseTest, FlatIsFoundOnceTheNoiseAllows) {
  EXPECT_GE(Fires(400, 0.01, [](int) { return 2.3; }), 57);
  EXPECT_GE(Fires(2000, 0.05, [](int) { return 2.3; }), 57);
  EXPECT_GE(Fires(1000, 0.05, [](int s) { return 2.3 * (1 + 0.002 * s); }), 57);
}

}  // namespace
}  // namespace telltale::rules
