// SPDX-License-Identifier: Apache-2.0
// What /metrics answers: the runs below the served folders that go on, or ended a moment ago, as
// text for Prometheus. They are followed by a thread of its own, and only while somebody scrapes.
//
// Thread safety: all functions may be called from any thread and none of them waits for the disk.
// Memory: at most kMaxRuns runs, each bounded; all are forgotten when nobody scrapes any more.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/run_list.h"
#include "telemetry/prometheus_text.h"
#include "telemetry/run_metrics.h"

namespace telltale::server {

class MetricsBoard {
 public:
  static constexpr std::size_t kMaxRuns = 32;
  /// A run is shown for so long after it was seen to be over: its last values are scraped.
  static constexpr std::int64_t kLingerNs = 300'000'000'000;

  using Read = std::function<std::unique_ptr<telemetry::RunMetrics>(
      const std::string& id, const std::filesystem::path& run)>;

  /// `published` is called from the board's thread whenever an answer was made. `read` begins to
  /// read a run; tests make it throw.
  MetricsBoard(std::vector<std::filesystem::path> roots, std::function<void()> published,
               Read read = BeginToRead)
      : published_(std::move(published)), read_(std::move(read)), list_(std::move(roots)) {}
  ~MetricsBoard();
  MetricsBoard(const MetricsBoard&) = delete;
  MetricsBoard& operator=(const MetricsBoard&) = delete;

  /// Asks for what is known now. What it returns is for Answer.
  std::uint64_t Ask();
  /// Null until an answer was made that is no older than the asking.
  std::shared_ptr<const std::string> Answer(std::uint64_t asked,
                                            telemetry::TextFormat format) const;

 private:
  struct Texts {
    std::shared_ptr<const std::string> prometheus, open_metrics;
  };
  /// A run as the last look at its run.json found it.
  struct Known {
    std::filesystem::path path;
    std::int64_t written = 0;
    std::int64_t created_ns = 0;
    bool over = false;
    std::int64_t over_ns = 0;  ///< Unix time of its end, as far as it is known.
    std::unique_ptr<telemetry::RunMetrics> metrics;
    bool gave_up = false;  ///< It threw: nothing more is read of it until its run.json is another.
  };

  static std::unique_ptr<telemetry::RunMetrics> BeginToRead(const std::string& id,
                                                            const std::filesystem::path& run) {
    return std::make_unique<telemetry::RunMetrics>(id, run);
  }
  void Work();
  Texts Make();
  void FindRuns(std::int64_t now_ns);
  static void Look(Known* run, std::int64_t now_ns);
  /// Reads what is new in a run, until the deadline, and adds what it amounts to.
  void Take(const std::string& id, Known* run, std::chrono::steady_clock::time_point deadline,
            std::int64_t now_ns, telemetry::MetricSet* out) const;

  const std::function<void()> published_;
  const Read read_;
  mutable std::mutex mutex_;  ///< Guards what follows, up to the thread's own.
  std::condition_variable wake_;
  std::uint64_t asked_ = 0;
  std::uint64_t made_ = 0;
  Texts texts_;
  bool stop_ = false;
  bool started_ = false;

  // The thread's own.
  RunList list_;
  std::map<std::string, Known> runs_;  ///< By id.
  std::thread thread_;
};

}  // namespace telltale::server
