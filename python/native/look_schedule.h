// SPDX-License-Identifier: Apache-2.0
//
// When a step is looked at, where a look takes some ten microseconds, which a short step would
// feel: the first steps, then each 16th; once there were many, of those only one in 0.2 s.
//
// Thread safety: used with the GIL held.
#pragma once

#include <cstdint>

#include "spans.h"
#include "telltale/probe.h"

namespace telltale::native {

class LookSchedule {
 public:
  static constexpr std::uint64_t kFirst = 16;
  static constexpr std::uint64_t kEvery = 16;
  /// After so many steps looks come by time.
  static constexpr std::uint64_t kOften = 1024;
  static constexpr std::uint64_t kAfterNs = 200'000'000;

  /// Whether the step of this number, counted from 1, is looked at. `closely`: the newest look has
  /// met what has to be seen again soon.
  bool Due(std::uint64_t number, bool closely = false) {
    if (number > kFirst && number % kEvery != 0) [[likely]]
      return false;
    return number <= kOften || closely || IsLate();
  }

 private:
  [[gnu::cold]] bool IsLate() {
    const std::uint64_t now = tt_now();
    if (now < due_) return false;
    due_ = now + Ticks(kAfterNs);
    return true;
  }

  std::uint64_t due_ = 0;
};

}  // namespace telltale::native
