// SPDX-License-Identifier: Apache-2.0
// run.json: what a run is. Written by the supervisor alone, replaced atomically (on a full disk
// written over); read by everyone.
// Layout: docs/formats/run-directory.md.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace telltale::store {

inline constexpr int kRunFormatMajor = 1;
inline constexpr int kRunFormatMinor = 0;

struct Attempt {
  std::uint32_t number = 1;
  std::int64_t start_ns = 0;  ///< Unix ns.
  std::int64_t end_ns = 0;    ///< 0 while running.
  std::int32_t pid = 0;       ///< Root of the training's process tree.
  std::uint64_t pid_start_ticks = 0;
  std::optional<int> exit_code;
  std::optional<int> signal;
};

struct RunInfo {
  int format_major = kRunFormatMajor;
  int format_minor = kRunFormatMinor;
  std::string id;    ///< Folder name.
  std::string name;  ///< For people.
  std::vector<std::string> command;
  std::string cwd;
  std::string host;
  std::string boot_id;
  std::string pid_namespace;  ///< Of the pids below; empty: not known.
  std::string telltale_version;
  std::int32_t supervisor_pid = 0;
  std::uint64_t supervisor_start_ticks = 0;
  std::int64_t created_ns = 0;
  std::int64_t interval_ms = 500;
  double overhead_budget = 0.01;
  /// The capture plan at the start of the newest attempt, a JSON object (docs/formats/plan.md);
  /// empty: not known. What it became since: the events `plan`.
  std::string plan;
  /// The set of rules of the newest attempt, a JSON object (docs/formats/rules.md); empty: those
  /// that run by default.
  std::string rules;
  std::vector<Attempt> attempts;
  bool finished = false;  ///< The supervisor wrote the end itself.
};

/// Unknown keys are ignored; a newer format_major gives Code::kVersion ("written by format 3, this
/// telltale reads up to 1: install a newer telltale"); no file Code::kUnusable.
Result<RunInfo> ReadRunInfo(const std::filesystem::path& run);
Status WriteRunInfo(const std::filesystem::path& run, const RunInfo& info);

/// So old may the newest write of a run that is being recorded be; the agent writes several times a
/// second.
inline constexpr std::int64_t kMovingNs = 30'000'000'000;

/// The agent ended without its last word, and nobody followed it.
struct Unrecorded {
  std::string writer;         ///< Its folder; empty: no agent wrote anything.
  std::int64_t since_ns = 0;  ///< Run clock.
  friend bool operator==(const Unrecorded&, const Unrecorded&) = default;
};

/// State as the design names it: running, finished, failed, killed, lost. A run whose supervisor is
/// gone without an end is running while its training lives, and lost after (unless the agent saw
/// the exit). From another machine, boot or container, where its processes cannot be asked, it is
/// running while its files move.
struct RunState {
  std::string state;
  std::optional<int> exit_code;
  std::optional<int> signal;
  /// What follows on it is not known (store/recording_end.h); RunReader::state tells it.
  std::optional<Unrecorded> unrecorded{};
  /// The same of attempts before, where no later agent has said it (event recording.lost).
  std::vector<Unrecorded> unrecorded_before{};
};
/// True where the pids of the run mean the same processes to us.
bool CanAskProcesses(const RunInfo& info);
RunState DeriveRunState(const RunInfo& info, const std::filesystem::path& run);

}  // namespace telltale::store
