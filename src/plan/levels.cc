// SPDX-License-Identifier: Apache-2.0
// The named levels: docs/guide/capture.md says what each takes and what it costs.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "plan/capture_plan.h"

namespace telltale::plan {
namespace {

constexpr std::uint32_t kInterval = 100;

Collection Every(std::string name, std::uint32_t interval, std::uint32_t take, bool all_modes) {
  Collection collection;
  collection.name = std::move(name);
  collection.take = take;
  collection.when[0].interval = interval;
  if (all_modes) collection.when.fill(collection.when[0]);
  return collection;
}

CapturePlan System() {
  CapturePlan plan;
  plan.level = "system";
  return plan;
}

/// Weights change in TRAIN alone and gradients are there alone; what a pass yields is of every
/// mode.
CapturePlan Tensors() {
  CapturePlan plan;
  plan.level = "tensors";
  for (const char* name : {"weights", "biases", "gradients"}) {
    plan.collections.push_back(Every(name, kInterval, kStats | kHistogram, false));
  }
  for (const char* name : {"losses", "outputs", "activations"}) {
    plan.collections.push_back(Every(name, kInterval, kStats | kHistogram, true));
  }
  return plan;
}

/// What steps say, and at times which operators and kernels they are made of. A window costs its
/// steps some tenths of a second; each thousandth step keeps that small.
CapturePlan Operators() {
  CapturePlan plan = DefaultPlan();
  plan.level = "operators";
  Window window;
  window.name = "operators";
  window.every = 1000;
  window.length = 2;
  window.detail = {"ops", "kernels", "shapes"};
  plan.windows.push_back(std::move(window));
  return plan;
}

CapturePlan All() {
  CapturePlan plan;
  plan.level = "all";
  plan.collections.push_back(Every("all", 1, kStats | kMore | kHistogram, true));
  return plan;
}

}  // namespace

CapturePlan DefaultPlan() {
  CapturePlan plan;
  plan.level = "steps";
  for (const char* name : {"weights", "biases", "gradients"}) {
    plan.collections.push_back(Every(name, kInterval, kStats, false));
  }
  return plan;
}

bool IsAsOfALevel(const Collection& collection) {
  const CapturePlan levels[] = {DefaultPlan(), Tensors(), All()};
  return std::any_of(std::begin(levels), std::end(levels), [&](const CapturePlan& level) {
    return std::any_of(level.collections.begin(), level.collections.end(), [&](const auto& own) {
      return own.name == collection.name && own.when == collection.when;
    });
  });
}

Result<CapturePlan> PlanOfLevel(std::string_view level) {
  if (level == "system") return System();
  if (level == "steps") return DefaultPlan();
  if (level == "tensors") return Tensors();
  if (level == "all") return All();
  if (level == "operators") return Operators();
  return Status(
      Code::kUsage,
      fmt::format("no level '{}': choose system, steps, tensors, operators or all", level));
}

}  // namespace telltale::plan
