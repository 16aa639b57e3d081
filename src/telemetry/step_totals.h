// SPDX-License-Identifier: Apache-2.0
// Steps of one mode and rank as metrics: totals since the begin, and what the last minute was like.
//
// Thread safety: none. Memory: constant.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "analysis/summary.h"
#include "base/saturate.h"
#include "format/records.gen.h"

namespace telltale::telemetry {

class StepTotals {
 public:
  static constexpr std::int64_t kSlotNs = 5'000'000'000;
  static constexpr std::size_t kSlots = 12;

  struct Sums {
    std::uint64_t steps = 0;
    Sum duration_ns = 0;
    std::array<Sum, 6> phase_ns{};
    Sum samples = 0;
  };
  struct Recent {
    Sums mean_of;  ///< Steps of the last minute; the newest step alone where there are none.
    double steps_per_s = 0;
    double samples_per_s = 0;
    double age_s = 0;  ///< Since the newest step ended.
  };

  void Add(const format::StepRow& row);
  /// REQUIRES: a step was added. `now_ns`: Unix time.
  Recent At(std::int64_t now_ns) const;

  const Sums& all() const { return all_; }
  std::uint64_t skipped() const { return skipped_; }
  Sum probe_ns() const { return probe_ns_; }
  std::int64_t newest_step() const { return newest_step_; }
  std::int64_t last_end_ns() const { return last_end_ns_; }

 private:
  struct Slot {
    std::int64_t number = -1;  ///< end_ns / kSlotNs of its steps.
    Sums sums;
  };
  static void Add(const format::StepRow& row, Sums* sums);

  Sums all_;
  Sums last_;
  std::uint64_t skipped_ = 0;
  Sum probe_ns_ = 0;
  std::int64_t newest_step_ = -1;
  std::int64_t first_begin_ns_ = 0;
  std::int64_t last_end_ns_ = 0;
  std::array<Slot, kSlots> slots_;
};

}  // namespace telltale::telemetry
