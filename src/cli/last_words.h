// SPDX-License-Identifier: Apache-2.0
// What `telltale run` says when its training has ended: report.html, the verdict, verdict.json. It
// is made in a child (run/errand.h), since it reads and writes the run directory, whose disk may
// not answer: our own end waits for no disk, and for the child only so long.
//
// Time: where the store does not answer, or something has been left behind, all that follows the
// training has run::kEndBudgetNs, the printing of the last line included. Else a report that makes
// progress may take kReportLimitNs after the training's end, and who reads our lines
// kReaderPatienceNs to take the verdict. A signal ends it at once.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>

#include "run/supervisor.h"

namespace telltale::cli {

inline constexpr std::int64_t kReportLimitNs = 120'000'000'000;
/// A report that has read nothing new for so long makes no progress.
inline constexpr std::int64_t kReportSilenceNs = 30'000'000'000;
inline constexpr std::int64_t kReaderPatienceNs = 30'000'000'000;

struct LastWordsOptions {
  std::filesystem::path run;  ///< As the user would type it.
  bool quiet = false;         ///< The report is written, and nothing is said of it.
  bool json = false;          ///< verdict.json too.
};

/// What the child does, and how long it may take. Nothing but a test gives another than this.
struct ReportTask {
  /// Writes what is to be said to stderr, and to `link` how many records it has read so far, a
  /// std::uint64_t each time. Empty: makes the report.
  std::function<int(int link)> work;
  std::int64_t limit_ns = kReportLimitNs;
  std::int64_t silence_ns = kReportSilenceNs;
  std::int64_t quiet_ns = 2'000'000'000;  ///< After that we say what takes so long.
};

/// Returns once all is said, or where the time is up, or at a signal. What was not done is one
/// line, with what to do. REQUIRES: we are one thread, and SIGINT, SIGTERM, SIGHUP and SIGQUIT are
/// blocked, as run::Supervise leaves them. `outcome`: its run is released, its stream
/// written to. Where that takes nothing until the time is up this does not return: we end as the
/// training.
void SayLastWords(const LastWordsOptions& options, run::Outcome& outcome,
                  const ReportTask& task = {});

}  // namespace telltale::cli
