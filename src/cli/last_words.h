// SPDX-License-Identifier: Apache-2.0
// What `telltale run` says when its training has ended: report.html, the verdict, verdict.json. It
// is made in a child (run/errand.h), since it reads and writes the run directory, whose disk may
// not answer: our own end waits for no disk, and for the child only so long.
//
// Time: where the store does not answer, all that follows the training has run::kEndBudgetNs. Where
// it does, a report that makes progress may take kReportLimitNs after the training's end. A signal
// ends it at once.
#pragma once
#include <cstdint>
#include <filesystem>

#include "run/supervisor.h"

namespace telltale::cli {

inline constexpr std::int64_t kReportLimitNs = 120'000'000'000;
/// A report that has read nothing new for so long makes no progress.
inline constexpr std::int64_t kReportSilenceNs = 30'000'000'000;

struct LastWordsOptions {
  std::filesystem::path run;  ///< As the user would type it.
  bool quiet = false;         ///< The report is written, and nothing is said of it.
  bool json = false;          ///< verdict.json too.
};

/// Returns once all is said, or where the time is up, or at a signal. What was not done is one
/// line, with what to do. REQUIRES: we are one thread, and SIGINT, SIGTERM, SIGHUP and SIGQUIT are
/// blocked, as run::Supervise leaves them.
void SayLastWords(const LastWordsOptions& options, const run::Outcome& outcome);

}  // namespace telltale::cli
