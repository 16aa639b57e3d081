// SPDX-License-Identifier: Apache-2.0
// Where there is no terminal for a status line: the same facts as a plain line of the log, once a
// minute.
// Thread safety: none; the supervisor's thread.
#pragma once
#include <cstdint>
#include <string>

#include "run/status_feed.h"

namespace telltale::run {

class PlainLines {
 public:
  static constexpr std::int64_t kPeriodNs = 60'000'000'000;

  /// `now_ns` is the monotonic time at which the run starts.
  explicit PlainLines(std::int64_t now_ns) : due_ns_(now_ns + kPeriodNs) {}

  /// The line that is due now, or nothing: too soon, or it would say what the last one said.
  /// `unix_ns` is the time that the line shows.
  std::string Due(std::int64_t now_ns, std::int64_t unix_ns, const StatusFacts& facts, bool colour);

 private:
  std::int64_t due_ns_;
  std::string last_;
};

}  // namespace telltale::run
