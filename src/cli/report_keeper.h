// SPDX-License-Identifier: Apache-2.0
// Keeps RUN/report.html true while the run goes on: `telltale report` in a child of idle priority,
// soon after the start, then each minute, and for a small share of one core at most.
//
// Thread safety: none.
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include "run/process.h"

namespace telltale::cli {

/// When the next report is due: a long run's takes long, so it is written less often.
class ReportSchedule {
 public:
  static constexpr std::int64_t kFirstNs = 5'000'000'000;
  static constexpr std::int64_t kLongestNs = 60'000'000'000;
  /// A pause is this many times the processor time that the report before it took: half a percent.
  static constexpr std::int64_t kPauseFactor = 200;

  explicit ReportSchedule(std::int64_t now_ns) : due_ns_(now_ns + kFirstNs) {}
  bool Due(std::int64_t now_ns) const { return now_ns >= due_ns_; }
  void Done(std::int64_t now_ns, std::int64_t cpu_ns) {
    pause_ns_ = std::min(2 * pause_ns_, kLongestNs);
    due_ns_ = now_ns + std::max(pause_ns_, kPauseFactor * cpu_ns);
  }

 private:
  std::int64_t pause_ns_ = kFirstNs;
  std::int64_t due_ns_;
};

class ReportKeeper {
 public:
  /// `program` is this binary.
  ReportKeeper(std::string program, std::filesystem::path run);
  ~ReportKeeper() { Stop(); }
  ReportKeeper(const ReportKeeper&) = delete;
  ReportKeeper& operator=(const ReportKeeper&) = delete;

  /// Starts what is due and takes note of what is done; never waits for it.
  void Tick();
  /// Ends a report in the making: it would lie over a newer one.
  void Stop();

 private:
  void Reap(int options);

  const std::string program_;
  const std::filesystem::path run_;
  ReportSchedule schedule_;
  run::Child child_;
};

/// This process writes a report beside a training: idle priority, and it ends with its parent.
/// False where that is gone already.
bool BecomeReportChild(int parent_pid);

}  // namespace telltale::cli
