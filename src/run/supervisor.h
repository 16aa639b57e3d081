// SPDX-License-Identifier: Apache-2.0
// The supervisor: starts agent, watcher and training, holds every producer's descriptors, starts
// again what is ours, and never touches the training.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/status.h"
#include "run/errand.h"
#include "run/process.h"
#include "run/registry.h"
#include "run/run_directory.h"
#include "run/terminal.h"

namespace telltale::run {

struct SupervisorOptions {
  std::string program;               ///< This binary, for the helpers.
  std::filesystem::path python_dir;  ///< Folder with boot/ and the package telltale.
  std::vector<std::string> command;  ///< The training's, not empty.
  std::int64_t interval_ms = 500;
  double overhead_budget = 0.01;                ///< Fraction of step time.
  std::uint64_t look_back_bytes = 32ULL << 20;  ///< Of the agent's look-back ring; 0: none.
  bool exception_text = true;                   ///< The texts of exceptions are recorded.
  bool quiet = false;
  std::string otlp;  ///< Endpoint that the watcher pushes metrics to; empty: none.
  /// Arguments of `telltale stacks` behind the run; empty: no stacks are sampled.
  std::vector<std::string> stacks;
  bool serve = true;  ///< Start the live page; not where quiet, as nobody would get its link.
  /// The training's.
  GivenSignals signals;
};

struct Outcome {
  ProcessExit exit;           ///< Of the training.
  std::int64_t ended_ns = 0;  ///< CLOCK_MONOTONIC when it ended.
  /// What was not waited for, as a person calls it; empty: all is in the store.
  std::vector<std::string> left;
  bool skipped = false;       ///< Since the user did not want to wait: nor for anything else.
  bool store_answers = true;  ///< The store took what it was given last.
  /// Says whether it still does (RunDirectory::Answers). Nobody else may have the folder before
  /// RunDirectory::Release. Null: it is not known any more.
  RunDirectory* run = nullptr;
  StreamWriter stream{STDERR_FILENO};  ///< For the last words: Telltale's lines come in order.
  std::string undo;  ///< First on it: gives the terminal back, which has not taken that yet.
};

/// All that follows the training's end takes at most this time where the store does not answer, or
/// refuses, and where something has been left behind.
inline constexpr std::int64_t kEndBudgetNs = 30'000'000'000;

/// Runs one attempt to its end. A Status (kIo, kLimit) only where the training could not be started
/// for a reason of ours; then nothing runs. Exit codes 126 and 127 of a command that cannot be
/// executed are an Outcome. Once the training runs no exception leaves it: where ours fails, its
/// end is waited for all the same. It touches nothing in the run directory: what does is done by
/// helpers and by errands, which it can leave behind. `run` is not released. Must be called before
/// the process has other threads, and starts none. The signals that it reads (INT, TERM, HUP, QUIT
/// and others) stay blocked, and SIGPIPE: what is said after the training's end must not end us
/// otherwise than the training ended.
Result<Outcome> Supervise(const SupervisorOptions& options, RunDirectory* run, Registry registry);

/// Ends this process as the training ended: the same code, or the same signal raised again (without
/// a core of ours).
[[noreturn]] void ExitAs(const ProcessExit& exit);

}  // namespace telltale::run
