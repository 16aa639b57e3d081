// SPDX-License-Identifier: Apache-2.0
#include "cli/metrics_push.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"
#include "cli/output.h"
#include "telemetry/metric_set.h"
#include "telemetry/run_metrics.h"

namespace telltale::cli {
namespace {

using std::chrono::milliseconds;
using Clk = std::chrono::steady_clock;

constexpr int kBesideTraining = 10;  ///< Niceness.
constexpr milliseconds kSlice(200);
constexpr std::int64_t kTimeoutMs = 10'000;
/// Of the last push where a person ends it, who waits for that.
constexpr std::int64_t kLastTimeoutMs = 3'000;
/// A single push is tried so often, and the last of a run that was followed.
constexpr int kTries = 4;
constexpr std::int64_t kRetryMs = 1'000;
/// The run is over: so long the watcher's last word is waited for.
constexpr milliseconds kLastWords(10'000);
constexpr std::int64_t kLookMs = 1'000;
/// Of what is new, before that.
constexpr milliseconds kLastRead(1'500);
/// The same where the run is over: nobody waits for us, and beside other programs we get little.
constexpr milliseconds kLastReadOfRun(30'000);

/// Waits for a signal to end, which is blocked; true where one came.
bool StopWithin(std::int64_t ms) {
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&ends, signal);
  const timespec wait{ms / 1000, (ms % 1000) * 1'000'000};
  return ::sigtimedwait(&ends, nullptr, &wait) > 0;
}

class Push {
 public:
  Push(const PushOptions& options, telemetry::MetricSink* sink)
      : options_(options),
        sink_(sink),
        metrics_("", options.run, {.replay = options.parent == 0}) {}

  Result<PushReport> Run() {
    if (options_.parent != 0 && ::getppid() != options_.parent) return report_;
    return options_.follow ? Follow() : Once();
  }

 private:
  /// All that is there; false where a signal came first.
  Result<bool> Read() {
    while (true) {
      TELLTALE_ASSIGN_OR_RETURN(const bool more, metrics_.Advance(Clk::now() + kSlice));
      if (!more) return true;
      if (StopWithin(0)) return false;
    }
  }

  telemetry::Sent Send(std::int64_t timeout_ms) {
    telemetry::MetricSet set;
    metrics_.AddTo(Clock::System().RealtimeNs(), &set);
    telemetry::Sent sent = sink_->Send(set, timeout_ms);
    if (sent.status.ok()) {
      ++report_.pushes;
      report_.points = sent.points;
      report_.note = sent.note;
      failures_ = 0;
      if (!said_.empty()) Say("telltale export: metrics are taken again\n");
      said_.clear();
      // One that every push would say.
      if (!sent.note.empty() && sent.note != noted_) {
        Say("telltale export: {}\n", Printable(sent.note));
      }
      noted_ = sent.note;
    } else {
      ++report_.failures;
      ++failures_;
    }
    return sent;
  }

  void SayOnce(const Status& status) {
    if (status.message() == said_) return;
    said_ = status.message();
    Say("telltale export: {}: trying again\n", Printable(said_));
  }

  Result<PushReport> Once() {
    TELLTALE_ASSIGN_OR_RETURN(const bool whole, Read());
    if (!whole) return Status(Code::kIo, "ended by a signal before anything was sent");
    return Insist();
  }

  /// Tries some times, for there is no later.
  Result<PushReport> Insist() {
    telemetry::Sent sent;
    for (int i = 0; i < kTries; ++i) {
      sent = Send(kTimeoutMs);
      if (sent.status.ok()) return report_;
      if (!sent.retry || i + 1 == kTries) break;
      const std::int64_t pause = std::min<std::int64_t>(
          telemetry::PauseMs(kRetryMs, failures_, sent.retry_after_s), kTimeoutMs);
      if (StopWithin(pause)) break;
    }
    return sent.status;
  }

  Result<PushReport> Last() {
    const bool of_run = options_.parent != 0;
    TELLTALE_ASSIGN_OR_RETURN(const bool more,
                              metrics_.Advance(Clk::now() + (of_run ? kLastReadOfRun : kLastRead)));
    if (more) return report_;
    const telemetry::Sent sent = Send(of_run ? kTimeoutMs : kLastTimeoutMs);
    if (sent.status.ok()) return report_;
    return sent.status;
  }

  Result<PushReport> Follow() {
    Clk::time_point over_since{};
    while (true) {
      TELLTALE_ASSIGN_OR_RETURN(const bool whole, Read());
      if (!whole) return Last();
      if (metrics_.over()) {
        if (over_since == Clk::time_point{}) over_since = Clk::now();
        if (metrics_.judged() || Clk::now() - over_since >= kLastWords) return Insist();
        if (StopWithin(kLookMs)) return Last();
        continue;
      }
      over_since = {};
      const telemetry::Sent sent = Send(kTimeoutMs);
      if (!sent.status.ok()) {
        if (!sent.retry) return sent.status;
        SayOnce(sent.status);
      }
      TELLTALE_ASSIGN_OR_RETURN(
          const bool stopped,
          Pause(telemetry::PauseMs(options_.interval_ms, failures_, sent.retry_after_s)));
      if (stopped) return Last();
    }
  }

  /// Until the next push, or until the run is over; true where a signal came.
  Result<bool> Pause(std::int64_t ms) {
    const auto until = Clk::now() + milliseconds(ms);
    while (Clk::now() < until) {
      const auto left = std::chrono::duration_cast<milliseconds>(until - Clk::now()).count();
      if (StopWithin(std::clamp<std::int64_t>(left, 1, kLookMs))) return true;
      TELLTALE_ASSIGN_OR_RETURN(const bool over, IsOver());
      if (over) return false;
    }
    return false;
  }

  Result<bool> IsOver() const {
    TELLTALE_ASSIGN_OR_RETURN(const auto reader, store::RunReader::Open(options_.run));
    return reader->state().state != "running";
  }

  const PushOptions& options_;
  telemetry::MetricSink* const sink_;
  telemetry::RunMetrics metrics_;
  PushReport report_;
  int failures_ = 0;   ///< In a row.
  std::string said_;   ///< The error that was said last.
  std::string noted_;  ///< The note that was said last.
};

}  // namespace

Result<PushReport> PushMetrics(const PushOptions& options, telemetry::MetricSink* sink) {
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&ends, signal);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  if (options.parent != 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::setpriority(PRIO_PROCESS, 0, kBesideTraining);
  }
  return Push(options, sink).Run();
}

}  // namespace telltale::cli
