// SPDX-License-Identifier: Apache-2.0
// Which passes (forwards of a root) have their spans of detail recorded: whole ones, so that a pass
// is seen as it was, and no more of them than the control page gives room for. A pass is paid for
// after it, by the spans that it had.
//
// Thread safety: Begins() is the stepping thread's; Wrote() may be called from any, and may lose a
// count then. Lives in memory that is zero at first.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "format/channel_layout.h"

namespace telltale::probe {

class DetailRate {
 public:
  struct Pass {
    bool wanted;
    std::uint32_t thinned;  ///< About so many spans are left out, going by the last pass.
  };

  void Init(std::uint64_t ticks_per_second) { ticks_per_second_ = ticks_per_second; }

  /// A pass begins; `flags`: of the control page; `now`: ticks.
  Pass Begins(std::uint32_t flags, std::uint64_t now) {
    const std::uint32_t wrote = wrote_.exchange(0, std::memory_order_relaxed);
    if (wrote > 0) last_ = wrote;
    if ((flags & format::kControlDetailAll) != 0) return {true, 0};
    const std::uint32_t rate = flags >> format::kControlDetailShift;
    if (rate == 0) return {false, 0};
    const auto second = static_cast<std::int64_t>(ticks_per_second_);
    const std::uint64_t passed = now > time_ ? now - time_ : 0;
    time_ = now;
    // No more is saved up than a tenth of a second gives, and none is owed for longer than a
    // second.
    credit_ += static_cast<std::int64_t>(std::min(passed, 2 * ticks_per_second_));
    credit_ -= static_cast<std::int64_t>(ticks_per_second_ / rate * std::min(wrote, 2 * rate));
    credit_ = std::clamp(credit_, -second, second / 10);
    if (credit_ > 0) return {true, 0};
    return {false, last_};
  }

  /// A span of detail was written.
  void Wrote() {
    wrote_.store(wrote_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

 private:
  std::uint64_t ticks_per_second_;
  std::uint64_t time_;                ///< Of the last pass.
  std::int64_t credit_;               ///< Ticks; below 0: owed.
  std::uint32_t last_;                ///< Spans of the last pass that had any.
  std::atomic<std::uint32_t> wrote_;  ///< Since the last pass began.
};

}  // namespace telltale::probe
