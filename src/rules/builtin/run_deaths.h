// SPDX-License-Identifier: Apache-2.0
// What is known of how the processes of an attempt ended, and which of them died first: for RunEnd.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "format/records.gen.h"

namespace telltale::rules {

/// An event process.exception.
struct SeenException {
  std::int64_t time_ns = 0;
  std::int64_t step = -1;
  std::int32_t rank = 0;
  std::string type, text, file, function, mode, thread, caused_by, raised_again;
  std::string where;  ///< main, thread, worker or spawn.
  std::int64_t line = 0;
  std::int32_t worker_id = -1;
  bool main_thread = true;
  bool handled = false;
  std::vector<std::string> frames;
};
SeenException ExceptionOf(const format::EventRow& event);

/// What process.exit or run.attempt_end say.
struct SeenEnd {
  std::int64_t time_ns = 0;
  std::optional<int> code, signal;
  std::optional<double> oom_kills, host_oom_kills, shm_size, shm_used;

  bool known() const { return code || signal; }
  bool failed() const { return signal || (code && *code != 0); }
};
SeenEnd EndOf(const format::EventRow& event);

struct SeenProcess {
  std::uint32_t writer = 0;
  std::int32_t pid = 0;
  std::int32_t parent_pid = 0;
  std::int32_t rank = 0;
  std::string kind;  ///< trainer, worker, other; empty: it never registered.
  std::int32_t worker_id = -1;
  std::int64_t start_ns = 0;
  std::int64_t last_step = -1;  ///< TRAIN.
  bool root = false;            ///< The command itself.
  double rss = 0;               ///< At the newest sample.
  std::optional<SeenEnd> end;
  std::deque<SeenException> exceptions;  ///< The newest.
};

/// A process that ended otherwise than well.
struct Death {
  const SeenProcess* process = nullptr;
  const SeenException* exception = nullptr;  ///< Null: none is known, or it is not what ended it.
  std::int64_t time_ns = 0;
};

/// The processes of one attempt.
class RunDeaths {
 public:
  /// An event of one of them, or of the attempt; any other is ignored.
  void OnEvent(const format::EventRow& event, std::uint32_t writer);
  void OnStep(const format::StepRow& step, std::uint32_t writer);
  void OnMemory(std::uint32_t writer, std::int32_t pid, double rss);

  /// How the command ended; its time where that is known.
  const std::optional<SeenEnd>& end() const { return end_; }
  /// Telltale, or who asked it to, has stopped the training.
  bool stopped() const { return stopped_; }
  /// Any process, or the command, is known to have ended.
  bool any_ended() const { return any_ended_; }

  /// Those whose deaths belong to the end of the attempt, the one that died first in front; empty
  /// where all ended well. What happened long before (a trial of a sweep that failed) and helpers
  /// whose failure had no consequence do not belong to it.
  std::vector<Death> Last() const;
  /// All of them, whenever it was.
  std::vector<Death> All() const;
  /// Of an exception that a worker raised and the main process raised again: the worker's own, with
  /// its frames; else the same.
  const SeenException* OriginOf(const SeenException& exception) const;
  /// Of a main thread that gave up waiting (queue.Empty, TimeoutError): the exception that had
  /// ended another thread of its process before; null where there was none.
  static const SeenException* ThreadBefore(const Death& death);

  const std::list<SeenProcess>& processes() const { return processes_; }
  /// Ranks of trainers.
  std::size_t ranks() const;
  /// The newest process that has this number, alive or ended; null: it is not known.
  const SeenProcess* Find(std::uint32_t writer, std::int32_t pid) const;

 private:
  SeenProcess* Of(std::uint32_t writer, std::int32_t pid);
  void Forget();
  bool Descends(const SeenProcess& process, const SeenProcess& from) const;
  bool Related(const Death& earlier, const Death& later) const;

  std::list<SeenProcess> processes_;  ///< In the order in which they were heard of.
  std::map<std::pair<std::uint32_t, std::int32_t>, SeenProcess*> newest_;  ///< By pid.
  std::optional<SeenEnd> end_;
  SeenProcess root_;
  bool stopped_ = false;
  bool any_ended_ = false;
};

}  // namespace telltale::rules
