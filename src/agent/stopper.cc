// SPDX-License-Identifier: Apache-2.0
#include "agent/stopper.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/json.h"

namespace telltale::agent {
namespace {

using nlohmann::ordered_json;

/// After SIGKILL; a process in uninterruptible sleep may take longer, and is then named.
constexpr std::int64_t kKillPatienceNs = 5'000'000'000;
constexpr double kMaxSeconds = 86'400;

int SendSignal(int pidfd, int signal) {
  return ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0 ? 0 : errno;
}

/// A number of seconds of the body as ns; none where it is no sensible one.
std::optional<std::int64_t> Seconds(const ordered_json& body, const char* key, double otherwise) {
  const auto found = body.find(key);
  if (found == body.end()) return static_cast<std::int64_t>(otherwise * 1e9);
  if (!found->is_number()) return {};
  const double seconds = found->get<double>();
  if (!std::isfinite(seconds) || seconds < 0 || seconds > kMaxSeconds) return {};
  return static_cast<std::int64_t>(seconds * 1e9);
}

std::string Text(const ordered_json& body, const char* key) {
  const auto found = body.find(key);
  return found != body.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// Of a stop.ready: what a telltale.trial says.
bool IsOfTrial(std::string_view data) {
  const ordered_json json = ParseOrderedJson(data);
  if (!json.is_object()) return false;
  const auto found = json.find("trial");
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

}  // namespace

Stopper::Stopper(MarkOf mark_of, Signal signal)
    : mark_of_(std::move(mark_of)), signal_(signal ? std::move(signal) : Signal(&SendSignal)) {}

StopMark Stopper::Mark(const Uuid& uuid) {
  const auto found = marks_.find(uuid);
  if (found != marks_.end()) return found->second;
  return marks_.emplace(uuid, mark_of_(uuid)).first->second;
}

void Stopper::Raise(const Uuid& uuid, StopMark mark) {
  if (mark > Mark(uuid)) marks_[uuid] = mark;
}

Stopper::Uuid Stopper::Name(const Target& target) const {
  return target.uuid == Uuid{} && stop_ ? stop_->id : target.uuid;
}

void Stopper::Offer(const format::Rows& rows, const Uuid& uuid,
                    std::vector<format::RingPosition>* marks) {
  for (const format::EventRow& row : rows.events) {
    StopMark mark = StopMark::kNone;
    if (row.kind == "stop.ready") {
      mark = StopMark::kReady;
    } else if (row.kind == "stop.saved" || row.kind == "stop.failed") {
      mark = StopMark::kSaved;
    } else if (row.kind == "stop.kept") {
      mark = StopMark::kKept;
    } else {
      continue;
    }
    if (mark == StopMark::kReady && IsOfTrial(row.data)) trials_.insert(uuid);
    // A mark counts up: one that was signalled stays so. But after a trial the next one may begin,
    // which this stop is not meant for.
    const bool again = mark == StopMark::kReady && Mark(uuid) == StopMark::kKept && !stop_;
    if (mark <= Mark(uuid) && !again) continue;
    offered_.push_back({uuid, mark});
    marks->push_back({uuid, kStopMarkRing, static_cast<std::uint64_t>(mark)});
  }
}

void Stopper::Settle(bool taken) {
  if (taken) {
    for (const Answer& answer : offered_) marks_[answer.uuid] = answer.mark;
  }
  offered_.clear();
}

Status Stopper::Take(const store::Request& request, std::int64_t now_ns, Outbox* outbox) {
  if (stop_) {
    return {Code::kRunning, fmt::format("the training is being stopped already, by request {}",
                                        store::Hex(stop_->id))};
  }
  Stop stop;
  stop.id = request.id;
  stop.who = request.who;
  try {
    const ordered_json body = ParseOrderedJson(request.body);
    if (!body.is_object()) return {Code::kUsage, "the request holds no JSON object"};
    stop.why = Text(body, "why");
    stop.rule = Text(body, "rule");
    stop.incident = Text(body, "incident");
    for (const auto& [key, value] :
         {std::pair("checkpoint", &stop.checkpoint), std::pair("kill", &stop.kill)}) {
      const auto found = body.find(key);
      if (found == body.end()) continue;
      if (!found->is_boolean()) {
        return {Code::kUsage, fmt::format("{} is neither true nor false", key)};
      }
      *value = found->get<bool>();
    }
    const auto checkpoint = Seconds(body, "checkpoint_seconds", 120);
    const auto grace = Seconds(body, "grace_seconds", 30);
    if (!checkpoint || !grace) {
      return {Code::kUsage, "checkpoint_seconds and grace_seconds are numbers of 0 to 86400"};
    }
    stop.checkpoint_ns = *checkpoint;
    stop.grace_ns = *grace;
  } catch (const std::exception& error) {
    return {Code::kUsage, fmt::format("the request cannot be read: {}", JsonTrouble(error))};
  }
  stop.begun_ns = now_ns;
  // Of an agent before us: whom it has signalled their marks say.
  if (Mark(stop.id) >= StopMark::kTermed) stop.termed_ns = now_ns;
  if (Mark(stop.id) >= StopMark::kKilled) stop.killed_ns = now_ns;
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "stop.begun";
  event.severity = "medium";
  event.subject = "run";
  event.message = fmt::format("{} stops the training: {}", stop.who,
                              stop.why.empty() ? "it does not say why" : stop.why);
  event.data = JsonText(ordered_json{{"id", store::Hex(stop.id)},
                                     {"who", stop.who},
                                     {"why", stop.why},
                                     {"rule", stop.rule},
                                     {"incident", stop.incident},
                                     {"again", stop.termed_ns != 0}});
  stop_ = std::move(stop);
  reason_ = JsonText(ordered_json{{"request", store::Hex(stop_->id)},
                                  {"who", stop_->who},
                                  {"why", stop_->why},
                                  {"rule", stop_->rule},
                                  {"incident", stop_->incident}});
  failures_.clear();
  outbox->Add(std::move(event));
  return {};
}

/// Whether some process is still saving.
bool Stopper::Waits(const std::vector<Target>& targets, std::int64_t now_ns) {
  if (now_ns - stop_->begun_ns >= stop_->checkpoint_ns) return false;
  return std::any_of(targets.begin(), targets.end(), [&](const Target& target) {
    if (target.ended || target.uuid == Uuid{}) return false;
    // A trial is given up also where nothing is to be saved.
    return Mark(target.uuid) == StopMark::kReady &&
           (stop_->checkpoint || trials_.contains(target.uuid));
  });
}

/// Whether every process that lives has given up a trial only: who began them then goes on too.
bool Stopper::OnlyTrials(const std::vector<Target>& targets) {
  bool trainers = false;
  for (const Target& target : targets) {
    if (target.ended || target.uuid == Uuid{}) continue;
    if (Mark(target.uuid) != StopMark::kKept) return false;
    trainers = true;
  }
  return trainers;
}

void Stopper::Announce(const std::vector<Target>& targets, StopMark mark, std::int64_t now_ns,
                       Outbox* outbox) {
  const bool kill = mark == StopMark::kKilled;
  const bool spare_root = OnlyTrials(targets);
  PendingEvent event;
  ordered_json pids = ordered_json::array();
  for (const Target& target : targets) {
    const Uuid name = Name(target);
    const bool root = target.uuid == Uuid{};
    if (target.ended || Mark(name) >= mark || (root && spare_root)) continue;
    if (Mark(name) == StopMark::kKept) continue;
    Raise(name, mark);
    event.marks.push_back({name, kStopMarkRing, static_cast<std::uint64_t>(mark)});
    to_send_.push_back({target.uuid, kill ? SIGKILL : SIGTERM});
    pids.push_back({{"pid", target.pid}, {"rank", target.rank}, {"root", root}});
  }
  if (pids.empty()) return;
  event.time_ns = now_ns;
  event.kind = "stop.signal";
  event.severity = "medium";
  event.subject = "run";
  event.message = fmt::format("{} to {} {}", kill ? "SIGKILL" : "SIGTERM", pids.size(),
                              pids.size() == 1 ? "process" : "processes");
  event.data = JsonText(ordered_json{{"id", store::Hex(stop_->id)},
                                     {"signal", kill ? SIGKILL : SIGTERM},
                                     {"processes", std::move(pids)}});
  outbox->Add(std::move(event));
}

void Stopper::Finish(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox) {
  ordered_json left = ordered_json::array();
  ordered_json kept = ordered_json::array();
  for (const Target& target : targets) {
    if (target.ended || target.uuid == Uuid{}) continue;
    (Mark(target.uuid) == StopMark::kKept ? kept : left).push_back(target.pid);
  }
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "request.done";
  event.subject = "run";
  if (!left.empty() || !failures_.empty()) {
    event.severity = "medium";
    event.message =
        fmt::format("the training is not stopped: {} of its processes here live on", left.size());
  } else if (!kept.empty()) {
    event.message = fmt::format("the trial is given up; {} {} on", kept.size(),
                                kept.size() == 1 ? "process goes" : "processes go");
    reason_.clear();
  } else {
    event.message = "the training is stopped here";
  }
  event.data = JsonText(ordered_json{{"id", store::Hex(stop_->id)},
                                     {"who", stop_->who},
                                     {"stopped", left.empty() && kept.empty()},
                                     {"left", std::move(left)},
                                     {"kept", std::move(kept)},
                                     {"failures", failures_}});
  event.marks = {{stop_->id, kRequestMarkRing, 1}};
  outbox->Add(std::move(event));
  stop_.reset();
  to_send_.clear();
}

void Stopper::Close(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox) {
  if (stop_) Finish(targets, now_ns, outbox);
}

void Stopper::Poll(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox) {
  // Nothing is said twice of what the journal has not taken yet.
  if (!stop_ || !stop_->begun || !to_send_.empty()) return;
  const bool spare_root = OnlyTrials(targets);
  const bool any = std::any_of(targets.begin(), targets.end(), [&](const Target& target) {
    if (target.ended || Mark(Name(target)) == StopMark::kKept) return false;
    return target.uuid != Uuid{} || !spare_root;
  });
  if (!any) {
    // All have ended, or go on by themselves.
    Finish(targets, now_ns, outbox);
    return;
  }
  if (stop_->killed_ns != 0) {
    if (now_ns - stop_->killed_ns >= kKillPatienceNs) Finish(targets, now_ns, outbox);
    return;
  }
  if (stop_->termed_ns == 0) {
    if (Waits(targets, now_ns)) return;
    stop_->termed_ns = now_ns;
  }
  // Also those that have come since: a launcher may have started them again.
  Announce(targets, StopMark::kTermed, now_ns, outbox);
  if (!to_send_.empty() || now_ns - stop_->termed_ns < stop_->grace_ns) return;
  if (!stop_->kill) {
    Finish(targets, now_ns, outbox);
    return;
  }
  stop_->killed_ns = now_ns;
  Announce(targets, StopMark::kKilled, now_ns, outbox);
}

void Stopper::Journalled(const std::vector<Target>& targets) {
  if (stop_) stop_->begun = true;
  for (const Sent& sent : std::exchange(to_send_, {})) {
    const auto target = std::find_if(targets.begin(), targets.end(),
                                     [&](const Target& each) { return each.uuid == sent.uuid; });
    if (target == targets.end() || target->ended) continue;
    if (target->pidfd < 0) {
      failures_.push_back(
          fmt::format("pid {}: not signalled, since the number alone does not say "
                      "whose it is",
                      target->pid));
      continue;
    }
    const int error = signal_(target->pidfd, sent.signal);
    if (error == 0 || error == ESRCH) continue;
    failures_.push_back(fmt::format("pid {}: {}", target->pid, std::strerror(error)));
  }
}

}  // namespace telltale::agent
