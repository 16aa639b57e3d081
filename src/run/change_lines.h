// SPDX-License-Identifier: Apache-2.0
// Where there is no terminal for a status line: what changes in findings, as lines of the log. A
// run whose findings change all the time fills no log: of many changes the first have a line, the
// others are counted. Thread safety: none; the supervisor's thread.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "run/status_feed.h"

namespace telltale::run {

class ChangeLines {
 public:
  /// So many lines at once, then one more each period.
  static constexpr int kBurst = 12;
  static constexpr std::int64_t kPeriodNs = 5'000'000'000;
  /// What was counted is told so often, and at the end.
  static constexpr std::int64_t kCountPeriodNs = 30'000'000'000;

  /// `run`: what the lines name it by.
  ChangeLines(std::int64_t now_ns, std::string run)
      : run_(std::move(run)), refilled_ns_(now_ns), counted_ns_(now_ns) {}

  /// The lines that are due now. `more`: changes that nobody told us; `last`: no call follows.
  std::vector<std::string> Due(std::int64_t now_ns, const std::vector<FindingChange>& changes,
                               std::uint64_t more, bool colour, bool last);

 private:
  const std::string run_;
  int left_ = kBurst;
  std::int64_t refilled_ns_;
  std::int64_t counted_ns_;
  std::uint64_t untold_ = 0;
};

}  // namespace telltale::run
