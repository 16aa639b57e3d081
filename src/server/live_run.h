// SPDX-License-Identifier: Apache-2.0
// One run directory, followed: records by the store's cursor, findings as soon as the watcher has
// journalled them. Reading is done by the loader's thread alone, outside the lock; the server's
// thread takes the lock to answer from memory and so waits for no disk. The report takes long to
// render: the loader makes it too, without the lock.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "report/stack_graph.h"
#include "rules/replay.h"
#include "rules/run_engine.h"
#include "rules/watched_findings.h"
#include "server/run_view.h"
#include "store/reader.h"

namespace telltale::server {

/// What was last made known of a run.
struct Snapshot {
  std::uint64_t version = 0;
  std::string overview;  ///< JSON; empty where `error` says why the run cannot be read.
  std::string error;
};

struct LiveRunOptions {
  /// One that there was no memory for is opened anew after so long.
  std::int64_t retry_ns = 5'000'000'000;
  /// Called before each look; tests make it throw.
  std::function<void()> before_look;
};

class LiveRun {
 public:
  LiveRun(std::string id, std::filesystem::path path, LiveRunOptions options = {});

  // Any thread.
  const std::string& id() const { return id_; }
  const std::filesystem::path& path() const { return path_; }
  std::shared_ptr<const Snapshot> snapshot() const;
  Result<std::string> Series(const SeriesQuery& query) const;
  /// JSON, or bytes where the query says so.
  Result<std::string> Heatmap(const HeatmapQuery& query) const;
  /// Asks for a report of what is known now; the loader makes it. What it returns is for Report.
  std::uint64_t AskReport() { return ++report_asked_; }
  /// As HTML; null until one was made that is no older than the asking. Why none could be made.
  Result<std::shared_ptr<const std::string>> Report(std::uint64_t asked) const;
  std::int64_t now_ns() const;
  std::int64_t watermark_ns() const { return watermark_ns_; }
  /// Somebody asked for it just now.
  void Want(std::int64_t now_ns) { wanted_ns_ = now_ns; }
  std::int64_t wanted_ns() const { return wanted_ns_; }
  /// Streams hold it open.
  void Hold() { ++held_; }
  void Release() { --held_; }
  bool held() const { return held_ > 0; }
  /// A page of it was asked for, whose script asks for the run soon.
  void ExpectPage() { page_expected_ = true; }
  bool page_expected() const { return page_expected_; }
  /// When a chart was answered last.
  std::chrono::steady_clock::time_point answered() const { return answered_; }
  /// It is followed for so long after somebody asked for it.
  static constexpr std::int64_t kWantedNs = 15'000'000'000;
  /// Of stacks, for the report: some 0.2 s.
  static constexpr report::StackBound kMostStacks{.file_bytes = 4 << 20, .slices = 200'000};
  bool followed(std::int64_t now_ns) const { return held() || now_ns - wanted_ns_ <= kWantedNs; }
  /// Another run has its id now: streams of this one end.
  void Retire() { retired_ = true; }
  bool retired() const { return retired_; }

  // The loader's thread.
  /// Reads what is new, for about `limit` at most; true where there is more to read at once.
  bool Advance(std::chrono::milliseconds limit);
  /// Makes known what has changed; true where there was something. At most twice a second, unless
  /// `now`.
  bool Publish(bool now);
  using Render = std::function<std::string(const report::RunData&)>;
  /// Makes the report, where one was asked for since the last; true where it did, or could not:
  /// Report() says why. While it does no other run is read, so of the stacks it has those that are
  /// read at once.
  bool MakeReport(const Render& render = WithFewStacks);
  /// Keeps no more points one by one than this.
  void LimitPoints(std::size_t points);
  const report::RunData& data() const { return view_.data; }
  /// What was written before it was opened is still being read.
  bool loading() const { return loading_; }

 private:
  static std::string WithFewStacks(const report::RunData& data);
  Status Open();
  /// Forgets all that was read: the next Advance opens the run anew.
  void Reset();
  bool ReadOn(std::chrono::milliseconds limit);
  /// The run threw what nobody expects: it says so, and nothing more is read until it is another.
  /// What there was no memory for is tried again after a while.
  void GiveUp(const Status& why);
  void ReadState(std::int64_t now);
  void ReadWatch();
  bool ReadRecords(std::chrono::steady_clock::time_point deadline);
  /// Whose findings stand once the run is over: the watcher's where it came to its own end, else
  /// those of a replay, as all others who read the run give them. True where there is more to read.
  bool Decide(std::chrono::steady_clock::time_point deadline);
  void TakeFindings();

  const std::string id_;
  const std::filesystem::path path_;
  const LiveRunOptions options_;
  std::atomic<std::int64_t> wanted_ns_{0};
  std::atomic<int> held_{0};
  std::atomic<bool> retired_{false};
  std::atomic<bool> page_expected_{false};
  mutable std::atomic<std::chrono::steady_clock::time_point> answered_{};
  std::atomic<std::int64_t> watermark_ns_{0};
  std::atomic<std::int64_t> begin_ns_{0};
  std::atomic<std::int64_t> to_run_ns_{0};    ///< From CLOCK_MONOTONIC to the run's clock.
  std::atomic<std::int64_t> ended_at_ns_{0};  ///< Run clock; 0 while it runs.

  std::atomic<std::uint64_t> report_asked_{0};

  mutable std::mutex mutex_;  ///< Guards snapshot_ and the report, and view_ against being changed.
  std::shared_ptr<const Snapshot> snapshot_;
  /// The newest.
  Result<std::shared_ptr<const std::string>> report_{std::shared_ptr<const std::string>()};
  std::uint64_t report_made_ = 0;  ///< How often it had been asked for by then.
  RunView view_;                   ///< Changed by the loader under the lock; read by it without.

  // The loader's.
  std::unique_ptr<store::RunReader> reader_;
  std::unique_ptr<store::Cursor> cursor_;
  std::unique_ptr<rules::WatchedFindings> watched_;
  /// Only while a run is loaded that was over before and whose watcher has no end of its own: one
  /// pass over the records serves both.
  std::unique_ptr<rules::RunEngine> engine_;
  std::unique_ptr<rules::Replayer> judge_;  ///< At work on a run that ended while it was followed.
  std::optional<rules::Replay> judged_;     ///< Its findings stand.
  bool decided_ = false;  ///< Nothing came since whose findings stand was decided.
  std::string error_;
  std::uint64_t version_ = 0;
  bool changed_ = true;
  bool loading_ = true;
  std::int64_t state_read_ns_ = 0;
  std::int64_t published_ns_ = 0;
  bool records_published_ = false;
  std::int64_t last_new_ns_ = 0;
  std::int64_t last_ord_ns_ = 0;
  std::int64_t watch_read_ns_ = 0;
  std::int64_t info_time_ = 0;
  bool gave_up_ = false;
  std::int64_t gave_up_at_ = 0;
  std::optional<std::int64_t> retry_at_ns_;  ///< By the clock of this machine; none: not by itself.
};

}  // namespace telltale::server
