// SPDX-License-Identifier: Apache-2.0
// Keeps what the probe costs the training inside the budget: it stretches the interval of
// statistics when the probe's own account of its time is above it, and takes the interval back when
// there is room. Where it cannot, it says so. It controls on what Telltale accounts for, never on a
// measured slow-down.
// Deterministic: decides from the steps it was given alone. Thread safety: none.
#pragma once
#include <cstdint>
#include <optional>

namespace telltale::plan {

class Governor {
 public:
  /// `budget` is a fraction of step time; `interval` the plan's, in steps, 0 for no statistics.
  Governor(double budget, std::uint32_t interval)
      : budget_(budget), planned_(interval), interval_(interval) {}

  struct Decision {
    std::uint32_t interval_steps;
    double probe_share;  ///< Of the steps that led to it.
    /// The probe costs more than the budget and nothing is left to stretch: the interval stays.
    bool exceeded;
  };

  /// A step that has ended. Gives a decision when enough steps were seen to make one and it changes
  /// the interval, or finds for the first time that the budget cannot be kept. That is found again
  /// only after the cost was clearly inside the budget.
  std::optional<Decision> Add(std::int64_t duration_ns, std::int64_t probe_ns);

  std::uint32_t interval() const { return interval_; }

 private:
  double budget_;
  std::uint32_t planned_;
  std::uint32_t interval_;
  std::int64_t steps_ = 0;
  std::int64_t duration_ns_ = 0;
  std::int64_t probe_ns_ = 0;
  bool exceeded_ = false;  ///< Said, and not clearly better since.
};

}  // namespace telltale::plan
