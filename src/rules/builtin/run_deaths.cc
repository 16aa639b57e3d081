// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/run_deaths.h"

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"

namespace telltale::rules {
namespace {

/// More processes than a training has; of a sweep those that ended well go first.
constexpr std::size_t kMostProcesses = 2048;
constexpr std::size_t kMostExceptions = 8;
/// A process that a signal has ended is seen a moment later than the exception that its end causes
/// in another one.
constexpr std::int64_t kSeenLateNs = 2'000'000'000;
/// Deaths of processes that have nothing to do with each other but the time.
constexpr std::int64_t kTogetherNs = 30'000'000'000;
/// A worker's exception comes up in the main process when its batch's turn comes.
constexpr std::int64_t kRaisedAgainNs = 600'000'000'000;

std::string Text(const nlohmann::json& data, const char* key) {
  const auto at = data.find(key);
  return at != data.end() && at->is_string() ? at->get<std::string>() : std::string();
}

template <class T>
std::optional<T> Number(const nlohmann::json& data, const char* key) {
  const auto at = data.find(key);
  return at != data.end() && at->is_number() ? std::optional(at->get<T>()) : std::nullopt;
}

bool Flag(const nlohmann::json& data, const char* key, bool otherwise) {
  const auto at = data.find(key);
  return at != data.end() && at->is_boolean() ? at->get<bool>() : otherwise;
}

nlohmann::json DataOf(const format::EventRow& event) {
  nlohmann::json data = ParseJson(event.data);
  return data.is_object() ? data : nlohmann::json::object();
}

bool IsWorker(const SeenProcess& process) { return process.kind == "worker"; }
bool Trains(const SeenProcess& process) { return process.kind == "trainer" || IsWorker(process); }

/// Its own doing, and no launcher's that ends the others.
bool IsOwnFault(const Death& death) {
  if (death.exception != nullptr || !death.process->end || !death.process->end->signal) {
    return false;
  }
  const SeenEnd& end = *death.process->end;
  switch (*end.signal) {
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
      return true;
    case SIGABRT:
      return IsWorker(*death.process);
    case SIGKILL:
      return IsWorker(*death.process) || end.oom_kills.value_or(0) > 0;
    default:
      return false;
  }
}

/// A signal by which whoever started a process ends it.
bool IsAsked(const Death& death) {
  if (death.exception != nullptr || !death.process->end || !death.process->end->signal) {
    return false;
  }
  const int signal = *death.process->end->signal;
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
}

std::int64_t OrderOf(const Death& death) {
  return death.time_ns - (IsOwnFault(death) ? kSeenLateNs : 0);
}

}  // namespace

SeenException ExceptionOf(const format::EventRow& event) {
  const nlohmann::json data = DataOf(event);
  SeenException seen;
  seen.time_ns = event.time_ns;
  seen.step = event.step;
  seen.rank = event.rank;
  seen.type = Text(data, "type");
  seen.text = Text(data, "message");
  seen.file = Text(data, "file");
  seen.function = Text(data, "function");
  seen.mode = Text(data, "mode");
  seen.thread = Text(data, "thread");
  seen.caused_by = Text(data, "caused_by");
  seen.raised_again = Text(data, "raised_again");
  seen.where = Text(data, "where");
  seen.line = Number<std::int64_t>(data, "line").value_or(0);
  seen.worker_id = Number<std::int32_t>(data, "worker_id").value_or(-1);
  seen.main_thread = Flag(data, "main_thread", true);
  seen.handled = Flag(data, "handled", false);
  if (const auto frames = data.find("frames"); frames != data.end() && frames->is_array()) {
    for (const nlohmann::json& frame : *frames) {
      if (frame.is_string()) seen.frames.push_back(frame.get<std::string>());
    }
  }
  return seen;
}

SeenEnd EndOf(const format::EventRow& event) {
  const nlohmann::json data = DataOf(event);
  SeenEnd end;
  end.time_ns = Number<std::int64_t>(data, "ended_ns").value_or(event.time_ns);
  end.code = Number<int>(data, "exit_code");
  end.signal = Number<int>(data, "signal");
  end.oom_kills = Number<double>(data, "oom_kills");
  end.host_oom_kills = Number<double>(data, "host_oom_kills");
  end.shm_size = Number<double>(data, "shm_size");
  end.shm_used = Number<double>(data, "shm_used");
  return end;
}

SeenProcess* RunDeaths::Of(std::uint32_t writer, std::int32_t pid) {
  const auto found = newest_.find({writer, pid});
  if (found != newest_.end()) return found->second;
  if (processes_.size() >= kMostProcesses) Forget();
  SeenProcess& process = processes_.emplace_back();
  process.writer = writer;
  process.pid = pid;
  newest_[{writer, pid}] = &process;
  return &process;
}

/// Of one process: that ended well if there is one, else the first.
void RunDeaths::Forget() {
  auto oldest = std::find_if(processes_.begin(), processes_.end(), [](const SeenProcess& process) {
    return process.end && !process.end->failed();
  });
  if (oldest == processes_.end()) oldest = processes_.begin();
  const auto known = newest_.find({oldest->writer, oldest->pid});
  if (known != newest_.end() && known->second == &*oldest) newest_.erase(known);
  processes_.erase(oldest);
}

const SeenProcess* RunDeaths::Find(std::uint32_t writer, std::int32_t pid) const {
  const auto found = newest_.find({writer, pid});
  return found == newest_.end() ? nullptr : found->second;
}

void RunDeaths::OnEvent(const format::EventRow& event, std::uint32_t writer) {
  if (event.kind == "run.attempt_start") {
    root_.pid = event.pid;
    root_.writer = writer;
    root_.root = true;
    root_.start_ns = event.time_ns;
  } else if (event.kind == "run.attempt_end") {
    const SeenEnd end = EndOf(event);
    any_ended_ = any_ended_ || end.known();
    const nlohmann::json data = DataOf(event);
    // A training that ended by a signal which no stop had sent may have crashed all the same.
    const auto stopped = data.find("stopped");
    if (stopped != data.end()) {
      stopped_ = stopped_ || !stopped->is_object() || !stopped->contains("other_signal") ||
                 stopped->at("other_signal") != true;
    }
    // Of several machines the one where it failed.
    if (!end_ || (!end_->failed() && end.failed())) end_ = root_.end = end;
  } else if (event.kind == "process.start") {
    const nlohmann::json data = DataOf(event);
    // Another one that has its number by now.
    if (const SeenProcess* former = Find(writer, event.pid); former != nullptr && former->end) {
      newest_.erase({writer, event.pid});
    }
    SeenProcess* process = Of(writer, event.pid);
    process->kind = Text(data, "kind");
    process->parent_pid = Number<std::int32_t>(data, "parent_pid").value_or(0);
    process->start_ns = Number<std::int64_t>(data, "process_start_ns").value_or(event.time_ns);
    process->rank = event.rank;
    process->root = writer == root_.writer && event.pid == root_.pid;
  } else if (event.kind == "worker.start") {
    const auto id = Number<std::int32_t>(DataOf(event), "worker_id");
    SeenProcess* process = Of(writer, event.pid);
    process->worker_id = id.value_or(-1);
    process->kind = "worker";
  } else if (event.kind == "process.exit") {
    SeenProcess* process = Of(writer, event.pid);
    process->end = EndOf(event);
    process->rank = event.rank;
    any_ended_ = any_ended_ || process->end->known();
  } else if (event.kind == "process.exception") {
    SeenProcess* process = Of(writer, event.pid);
    process->exceptions.push_back(ExceptionOf(event));
    if (process->exceptions.size() > kMostExceptions) process->exceptions.pop_front();
    process->rank = event.rank;
  }
}

void RunDeaths::OnStep(const format::StepRow& step, std::uint32_t writer) {
  if (step.mode != "TRAIN") return;
  SeenProcess* process = Of(writer, step.pid);
  if (process->kind.empty()) process->kind = "trainer";
  process->rank = step.rank;
  process->last_step = std::max(process->last_step, step.step);
}

void RunDeaths::OnMemory(std::uint32_t writer, std::int32_t pid, double rss) {
  const auto found = newest_.find({writer, pid});
  if (found != newest_.end() && !found->second->end) found->second->rss = rss;
}

std::size_t RunDeaths::ranks() const {
  std::set<std::int32_t> ranks;
  for (const SeenProcess& process : processes_) {
    if (process.kind == "trainer") ranks.insert(process.rank);
  }
  return ranks.size();
}

std::vector<Death> RunDeaths::All() const {
  std::vector<Death> deaths;
  for (const SeenProcess& process : processes_) {
    const SeenException* fatal = nullptr;
    const SeenException* of_thread = nullptr;
    for (const SeenException& seen : process.exceptions) {
      // What torch raises again, a loader's, is told by the main process too.
      if (seen.where == "worker" && seen.raised_again.empty()) continue;
      const bool of_main = seen.where != "thread" || !seen.raised_again.empty();
      (seen.main_thread && of_main ? fatal : of_thread) = &seen;
    }
    const bool known = process.end && process.end->known();
    if (known ? !process.end->failed() : fatal == nullptr) continue;
    const bool crashed = known && process.end->signal && *process.end->signal != SIGINT &&
                         *process.end->signal != SIGTERM;
    if (fatal == nullptr && of_thread != nullptr && !crashed) fatal = of_thread;
    const bool at_end = fatal == nullptr || fatal == of_thread;
    const Death death{&process, fatal, at_end ? process.end->time_ns : fatal->time_ns};
    // The process that it works for ends it with itself.
    if (IsWorker(process) && !IsOwnFault(death)) continue;
    deaths.push_back(death);
  }
  if (deaths.empty() && end_ && end_->failed()) deaths.push_back({&root_, nullptr, end_->time_ns});
  return deaths;
}

const SeenException* RunDeaths::ThreadBefore(const Death& death) {
  if (death.exception == nullptr || !death.exception->main_thread) return nullptr;
  std::string_view type = death.exception->type;
  type.remove_prefix(type.rfind('.') == std::string_view::npos ? 0 : type.rfind('.') + 1);
  if (type != "Empty" && type != "Full" && type != "TimeoutError" && type != "BrokenBarrierError") {
    return nullptr;
  }
  const SeenException* found = nullptr;
  for (const SeenException& seen : death.process->exceptions) {
    const bool of_thread = seen.where == "thread" && !seen.main_thread && seen.raised_again.empty();
    if (of_thread && seen.time_ns <= death.exception->time_ns) found = &seen;
  }
  return found;
}

bool RunDeaths::Descends(const SeenProcess& process, const SeenProcess& from) const {
  const SeenProcess* at = &process;
  for (int depth = 0; depth < 16 && at != nullptr; ++depth) {
    if (at->parent_pid == from.pid && at->writer == from.writer) return true;
    at = Find(at->writer, at->parent_pid);
  }
  return false;
}

bool RunDeaths::Related(const Death& earlier, const Death& later) const {
  const SeenProcess& a = *earlier.process;
  const SeenProcess& b = *later.process;
  if (b.start_ns > earlier.time_ns) return false;
  return a.rank != b.rank || Descends(a, b) || Descends(b, a) ||
         later.time_ns - earlier.time_ns < kTogetherNs;
}

std::vector<Death> RunDeaths::Last() const {
  std::vector<Death> deaths = All();
  // A helper that failed is minded only where no training process did.
  const bool trained = std::any_of(deaths.begin(), deaths.end(), [](const Death& death) {
    return death.process->last_step >= 0 || IsWorker(*death.process);
  });
  if (trained) {
    std::erase_if(deaths, [](const Death& death) {
      const bool spawned = death.exception != nullptr && death.exception->where == "spawn";
      return !Trains(*death.process) && !death.process->root && !spawned;
    });
  }
  // A process that calls sys.exit ends its children before it ends.
  const std::vector<Death> all = deaths;
  std::erase_if(deaths, [&](const Death& death) {
    return IsAsked(death) && std::any_of(all.begin(), all.end(), [&](const Death& parent) {
             return parent.exception == nullptr && !IsAsked(parent) &&
                    Descends(*death.process, *parent.process);
           });
  });
  std::stable_sort(deaths.begin(), deaths.end(),
                   [](const Death& a, const Death& b) { return OrderOf(a) < OrderOf(b); });
  // From the last one back to those that it follows from.
  std::vector<Death> last;
  for (auto death = deaths.rbegin(); death != deaths.rend(); ++death) {
    const bool related =
        last.empty() || std::any_of(last.begin(), last.end(),
                                    [&](const Death& later) { return Related(*death, later); });
    if (related) last.push_back(*death);
  }
  std::reverse(last.begin(), last.end());
  // A training that began after all of them went well: the command has failed by itself.
  const bool later = !last.empty() && end_ && end_->failed() &&
                     std::any_of(processes_.begin(), processes_.end(), [&](const auto& process) {
                       return process.kind == "trainer" && process.start_ns > last.back().time_ns;
                     });
  if (later) return {{&root_, nullptr, end_->time_ns}};
  return last;
}

const SeenException* RunDeaths::OriginOf(const SeenException& exception) const {
  if (exception.raised_again.empty()) return &exception;
  const SeenException* origin = &exception;
  for (const SeenProcess& process : processes_) {
    for (const SeenException& seen : process.exceptions) {
      const std::int64_t before = exception.time_ns - seen.time_ns;
      const bool fits = seen.raised_again.empty() && seen.where == exception.where &&
                        seen.type.ends_with(exception.type) && seen.line == exception.line &&
                        (exception.worker_id < 0 || seen.worker_id == exception.worker_id);
      if (fits && before >= 0 && before < kRaisedAgainNs) origin = &seen;
    }
  }
  return origin;
}

}  // namespace telltale::rules
