// SPDX-License-Identifier: Apache-2.0
// One run in the listing: what run.json says at once, steps and findings once its records are read.
// They are read in small pieces and once only; of a run that is over nothing is read again until
// its files change. Findings are those that `telltale check` gives: see LiveRun::Decide.
//
// Thread safety: none. Memory: of a run that is over its line of JSON alone.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "report/load.h"
#include "rules/watched_findings.h"
#include "store/follower.h"

namespace telltale::server {

/// What the records of a run tell its line of the listing.
struct CardFacts {
  std::int64_t steps = 0;
  std::int64_t duration_ns = 0;
  std::string verdict;
  std::map<std::string, int> findings;  ///< By severity.
  bool damaged = false;                 ///< Part of what was read for it.
};

/// The run as the listing shows it, as a JSON object.
std::string CardJson(const std::string& id, const report::RunData& data);

/// One run as its line has it, read in one go: no rule runs again where the run is over and its
/// watcher came to its own end. The summary then has steps and events alone.
Result<report::RunData> ReadCard(const std::filesystem::path& run);

class RunCard {
 public:
  /// Sees what a whole line was made from.
  using Seen = std::function<void(const report::RunData&)>;

  /// `retry`: after so long a run that there was no memory for is read again.
  RunCard(std::string id, std::filesystem::path path, Seen seen = {},
          std::chrono::steady_clock::duration retry = std::chrono::seconds(5))
      : id_(std::move(id)), path_(std::move(path)), seen_(std::move(seen)), retry_(retry) {}

  /// Looks what has changed; reads no records. Never throws, as Advance: see isolated.h.
  void Look();
  /// Reads on until the deadline, a piece at least; true where there is more.
  bool Advance(std::chrono::steady_clock::time_point deadline);
  /// Steps and findings are those of all that there was at the last look.
  bool whole() const { return whole_; }
  /// Why the rules could not read all records (the line then has what the watcher said), or why
  /// the run cannot be read at all (the line then says so).
  const Status& replay_status() const { return replay_status_; }

  const std::filesystem::path& path() const { return path_; }
  const std::string& json() const { return json_; }
  std::int64_t created_ns() const { return created_ns_; }

 private:
  struct Reading {
    explicit Reading(const std::filesystem::path& run) : watched(run) {}
    report::RunData data;
    std::uint32_t tables = 0;  ///< That are read.
    rules::WatchedFindings watched;
    std::vector<std::unique_ptr<store::WriterFollower>> writers;
    store::Salvage salvage;
    std::unique_ptr<rules::Replayer> replayer;  ///< Where the watcher has no end of its own.
    bool replayed = false;
  };
  void LookAtFiles();
  bool ReadOn(std::chrono::steady_clock::time_point deadline);
  /// The line says why; nothing more is read of it until the run changes. What there was no memory
  /// for is tried again after a while.
  void GiveUp(const Status& why);
  void Begin();
  /// True where there is more.
  bool ReadWriters(std::chrono::steady_clock::time_point deadline);
  bool Replay(std::chrono::steady_clock::time_point deadline);
  void OpenReplayer();
  void Finish();

  const std::string id_;
  const std::filesystem::path path_;
  const Seen seen_;
  const std::chrono::steady_clock::duration retry_;
  std::optional<std::chrono::steady_clock::time_point> retry_at_;
  Status replay_status_;
  std::string json_;
  std::int64_t created_ns_ = 0;
  std::uint64_t stamp_ = 0;
  bool looked_ = false;
  bool begun_ = false;  ///< To read what the last look found.
  bool whole_ = false;
  bool over_ = false;
  store::RunInfo info_;
  store::RunState state_;
  std::optional<CardFacts> facts_;
  std::unique_ptr<Reading> reading_;
};

}  // namespace telltale::server
