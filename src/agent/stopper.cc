// SPDX-License-Identifier: Apache-2.0
#include "agent/stopper.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/process.h"
#include "base/utf8.h"

namespace telltale::agent {
namespace {

using nlohmann::ordered_json;

/// After SIGKILL; a process in uninterruptible sleep may take longer, and is then named.
constexpr std::int64_t kKillPatienceNs = 5'000'000'000;
/// So long a stop waits for the journal to have what the processes say, and that a signal is about
/// to be sent.
constexpr std::int64_t kJournalPatienceNs = 5'000'000'000;
constexpr double kMaxSeconds = 86'400;
/// Answers to requests that this agent has not seen: a process may find a request before us.
constexpr std::size_t kMaxEarly = 256;
/// Those that have ended beyond it are forgotten: a launcher may start others for a day.
constexpr std::size_t kMaxProcesses = 2048;
/// That one event lists, and that its message names.
constexpr std::size_t kMostListed = 512;
constexpr std::size_t kMaxNamed = 8;
constexpr std::size_t kMaxTextBytes = 1000;
/// The mark of what an answered request did: the bits, and above them which is the newest.
constexpr int kDidBits = 8;
constexpr std::uint64_t kDidMask = (1U << kDidBits) - 1;
constexpr std::uint8_t kSignalBits = kSentTerm | kSentKill | kPerhapsTerm | kPerhapsKill;

/// Whose names keep the times of a request.
constexpr Stopper::Uuid kTermClock = {'S', 'I', 'G', 'T', 'E', 'R', 'M'};
constexpr Stopper::Uuid kKillClock = {'S', 'I', 'G', 'K', 'I', 'L', 'L'};
/// Whose name keeps which signals it has sent.
constexpr Stopper::Uuid kSentSignals = {'S', 'E', 'N', 'T'};
/// The same of what it has from the request whose place it took: when it took it, where that one
/// had decided SIGTERM; until when it waits for checkpoints; 1: for none; when SIGKILL comes at the
/// latest.
constexpr Stopper::Uuid kFollowsClock = {'F', 'O', 'L', 'L', 'O', 'W', 'S'};
constexpr Stopper::Uuid kWaitClock = {'W', 'A', 'I', 'T'};
constexpr Stopper::Uuid kAtOnce = {'A', 'T', 'O', 'N', 'C', 'E'};
constexpr Stopper::Uuid kKillByClock = {'K', 'I', 'L', 'L', 'B', 'Y'};
constexpr std::array kClocks = {kTermClock, kKillClock, kSentSignals, kFollowsClock,
                                kWaitClock, kAtOnce,    kKillByClock};

int SendSignal(int pidfd, int signal) {
  return ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0 ? 0 : errno;
}

const char* NameOfSignal(int signal) { return signal == SIGKILL ? "SIGKILL" : "SIGTERM"; }

std::string Processes(std::size_t count) {
  return fmt::format("{} {}", count, count == 1 ? "process" : "processes");
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

std::string Cut(std::string_view text) {
  return std::string(text.substr(0, ValidUtf8Prefix(text.substr(0, kMaxTextBytes))));
}

std::string Text(const ordered_json& body, const char* key) {
  const auto found = body.find(key);
  return found != body.end() && found->is_string() ? Cut(found->get_ref<const std::string&>())
                                                   : std::string();
}

/// Of a stop.ready: what a telltale.trial says.
bool IsOfTrial(const ordered_json& data) {
  if (!data.is_object()) return false;
  const auto found = data.find("trial");
  return found != data.end() && found->is_boolean() && found->get<bool>();
}

/// What a mark of the ring kStopReadyRing says. Agents that kept the signals of a process there too
/// wrote 1 ready, 2 saved, 3 goes on; their 4 and 5, SIGTERM and SIGKILL, say nothing of it.
std::uint8_t ReadyOf(std::uint64_t position) {
  switch (position) {
    case 1:
    case 2:
      return static_cast<std::uint8_t>(StopReady::kSaves);
    case 3:
    case 6:
      return static_cast<std::uint8_t>(StopReady::kTrial);
    case 7:
      return static_cast<std::uint8_t>(StopReady::kBoth);
    default:
      return 0;
  }
}

bool ReadyForTrial(std::uint8_t ready) {
  return (ready & static_cast<std::uint8_t>(StopReady::kTrial)) != 0;
}

Delivery DeliveryOf(std::uint64_t bits) {
  return static_cast<Delivery>(
      std::min(bits & 0xfU, static_cast<std::uint64_t>(Delivery::kUnknown)));
}

std::uint64_t PositionOfSignals(Delivery term, Delivery kill) {
  return static_cast<std::uint64_t>(term) | static_cast<std::uint64_t>(kill) << 4U;
}

/// In an account.
const char* Word(Delivery delivery) {
  switch (delivery) {
    case Delivery::kNone:
      return "none";
    case Delivery::kBegun:
    case Delivery::kUnknown:
      return "unknown";
    case Delivery::kSent:
      return "sent";
    case Delivery::kHadEnded:
      return "had ended";
    case Delivery::kFailed:
      return "failed";
  }
  return "none";
}

const char* Word(StopAnswer answer) {
  switch (answer) {
    case StopAnswer::kNone:
      return "none";
    case StopAnswer::kSaved:
      return "saved";
    case StopAnswer::kFailed:
      return "failed";
    case StopAnswer::kKept:
      return "kept";
  }
  return "none";
}

ordered_json ReasonFrom(const std::string& id, const std::string& who, const std::string& why,
                        const std::string& rule, const std::string& incident) {
  return {{"request", id}, {"who", who}, {"why", why}, {"rule", rule}, {"incident", incident}};
}

}  // namespace

struct Stopper::Account {
  ordered_json left = ordered_json::array();  ///< Pids.
  ordered_json kept = ordered_json::array();
  ordered_json processes = ordered_json::array();
  std::string names;         ///< Of some that are left.
  std::size_t going_on = 0;  ///< Left alone.
  bool any_sent = false;
  std::vector<format::RingPosition> released;  ///< What the journal need not keep any more.
};

Stopper::Uuid Stopper::NameOf(const store::RequestId& request, const Uuid& process) {
  std::array<std::uint8_t, 32> both{};
  std::copy(request.begin(), request.end(), both.begin());
  std::copy(process.begin(), process.end(), both.begin() + 16);
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(both.data(), both.size()));
  Uuid name{};
  static_assert(sizeof canonical.digest == sizeof name);
  std::memcpy(name.data(), canonical.digest, sizeof name);
  return name;
}

Stopper::Stopper(PositionOf position_of, Signal signal)
    : position_of_(std::move(position_of)),
      signal_(signal ? std::move(signal) : Signal(&SendSignal)) {}

/// What it has said, also in the batch that is being written.
std::uint8_t Stopper::Ready(const Uuid& uuid) {
  const auto offered = offered_ready_.find(uuid);
  if (offered != offered_ready_.end()) return offered->second;
  const auto found = ready_.find(uuid);
  if (found != ready_.end()) return found->second;
  return ready_.emplace(uuid, ReadyOf(position_of_(uuid, kStopReadyRing))).first->second;
}

/// What the journal has of it, or is about to have.
StopAnswer Stopper::AnswerTo(const store::RequestId& request, const Uuid& uuid) const {
  StopAnswer newest = StopAnswer::kNone;
  for (const std::vector<Answer>* answers : {&early_, &offered_}) {
    for (const Answer& each : *answers) {
      if (each.request == request && each.uuid == uuid) newest = std::max(newest, each.answer);
    }
  }
  if (!stop_ || stop_->id != request) return newest;
  const auto found = stop_->processes.find(uuid);
  return found != stop_->processes.end() ? std::max(newest, found->second.answer) : newest;
}

/// What it had said before the request was carried out by this agent.
StopAnswer Stopper::Answered(const store::RequestId& request, const Uuid& uuid) const {
  const std::uint64_t position = position_of_(NameOf(request, uuid), kStopAnswerRing);
  auto answer =
      static_cast<StopAnswer>(std::min(position, static_cast<std::uint64_t>(StopAnswer::kKept)));
  for (const Answer& early : early_) {
    if (early.request == request && early.uuid == uuid) answer = std::max(answer, early.answer);
  }
  return answer;
}

Stopper::Process& Stopper::Load(const Uuid& uuid) {
  const auto [at, fresh] = stop_->processes.try_emplace(uuid);
  Process& process = at->second;
  if (!fresh) return process;
  process.root = uuid == Uuid{};
  process.answer = Answered(stop_->id, uuid);
  const std::uint64_t signals = position_of_(NameOf(stop_->id, uuid), kStopSignalRing);
  process.term = DeliveryOf(signals);
  process.kill = DeliveryOf(signals >> 4U);
  return process;
}

void Stopper::Offer(const format::Rows& rows, const Uuid& uuid,
                    std::vector<format::RingPosition>* marks) {
  for (const format::EventRow& row : rows.events) {
    if (!row.kind.starts_with("stop.")) continue;
    if (row.kind == "stop.ready") {
      const std::uint8_t before = Ready(uuid);
      const StopReady more =
          IsOfTrial(ParseOrderedJson(row.data)) ? StopReady::kTrial : StopReady::kSaves;
      const auto ready = static_cast<std::uint8_t>(before | static_cast<std::uint8_t>(more));
      if (ready == before) continue;
      offered_ready_[uuid] = ready;
      marks->push_back({uuid, kStopReadyRing, ready});
      continue;
    }
    Answer answer;
    answer.uuid = uuid;
    if (row.kind == "stop.saved") {
      answer.answer = StopAnswer::kSaved;
    } else if (row.kind == "stop.failed") {
      answer.answer = StopAnswer::kFailed;
    } else if (row.kind == "stop.kept") {
      answer.answer = StopAnswer::kKept;
    } else {
      continue;
    }
    const ordered_json data = ParseOrderedJson(row.data);
    const auto request = data.is_object() ? data.find("request") : data.end();
    if (request != data.end() && request->is_string()) {
      const auto id = store::RequestIdOf(request->get_ref<const std::string&>());
      if (!id) continue;
      answer.request = *id;
    } else if (stop_) {
      answer.request = stop_->id;
    } else {
      continue;
    }
    if (stop_ && answer.request == stop_->id) {
      // Too late: it is being signalled.
      const Process& process = Load(uuid);
      const bool late = process.term != Delivery::kNone || process.kill != Delivery::kNone;
      if (answer.answer == StopAnswer::kKept && late) continue;
    } else if (answered_.contains(answer.request) || early_.size() + offered_.size() >= kMaxEarly) {
      continue;
    }
    if (answer.answer <= AnswerTo(answer.request, uuid)) continue;
    offered_.push_back(answer);
    marks->push_back(
        {NameOf(answer.request, uuid), kStopAnswerRing, static_cast<std::uint64_t>(answer.answer)});
  }
}

void Stopper::See(const Answer& answer) {
  if (!stop_ || answer.request != stop_->id) {
    early_.push_back(answer);
    return;
  }
  Process& process = Load(answer.uuid);
  process.answer = std::max(process.answer, answer.answer);
}

void Stopper::Settle(bool taken) {
  if (taken) {
    for (const auto& [uuid, ready] : offered_ready_) ready_[uuid] = ready;
    for (const Answer& answer : offered_) See(answer);
  }
  offered_ready_.clear();
  offered_.clear();
}

void Stopper::Drained(const std::vector<Uuid>& read) {
  if (stop_) stop_->read.insert(read.begin(), read.end());
}

bool Stopper::HasBegun(const store::RequestId& request) const {
  return position_of_(request, kStopClockRing) != 0;
}

Status Stopper::Take(const store::Request& request, std::int64_t now_ns, Outbox* outbox) {
  Result<Stop> stop = Read(request, now_ns);
  if (!stop.ok()) {
    Forget(request.id);
    return stop.status();
  }
  if (!stop_) {
    Begin(std::move(stop).value(), now_ns, outbox);
    return {};
  }
  Times before = TimesOf(*stop_);
  for (const Stop& each : stricter_) before = Stricter(before, each);
  if (!IsStricter(before, *stop)) {
    Forget(request.id);
    return {Code::kRunning, fmt::format("the training is being stopped already, by request {}, and "
                                        "this one ends it no sooner",
                                        store::Hex(stop_->id))};
  }
  // Not at once: what is about to be sent by the one before is sent first.
  stricter_.push_back(std::move(stop).value());
  return {};
}

/// It is answered: what processes say to it means nothing any more.
void Stopper::Forget(const store::RequestId& request) {
  answered_.insert(request);
  std::erase_if(early_, [&](const Answer& answer) { return answer.request == request; });
}

Result<Stopper::Stop> Stopper::Read(const store::Request& request, std::int64_t now_ns) const {
  Stop stop;
  stop.id = request.id;
  stop.who = Cut(request.who);
  std::int64_t checkpoint_ns = 0;
  try {
    const ordered_json body = ParseOrderedJson(request.body);
    if (!body.is_object()) return Status(Code::kUsage, "the request holds no JSON object");
    stop.why = Text(body, "why");
    stop.rule = Text(body, "rule");
    stop.incident = Text(body, "incident");
    for (const auto& [key, value] :
         {std::pair("checkpoint", &stop.checkpoint), std::pair("kill", &stop.kill)}) {
      const auto found = body.find(key);
      if (found == body.end()) continue;
      if (!found->is_boolean()) {
        return Status(Code::kUsage, fmt::format("{} is neither true nor false", key));
      }
      *value = found->get<bool>();
    }
    const auto checkpoint = Seconds(body, "checkpoint_seconds", 120);
    const auto grace = Seconds(body, "grace_seconds", 30);
    if (!checkpoint || !grace) {
      return Status(Code::kUsage, "checkpoint_seconds and grace_seconds are numbers of 0 to 86400");
    }
    checkpoint_ns = *checkpoint;
    stop.grace_ns = *grace;
  } catch (const std::exception& error) {
    return Status(Code::kUsage, fmt::format("the request cannot be read: {}", JsonTrouble(error)));
  }
  // An agent before us may have begun it: its times go on.
  const auto time = [&](const Uuid& name) {
    return static_cast<std::int64_t>(position_of_(name, kStopClockRing) & (~0ULL >> 1U));
  };
  const auto past = [&](const Uuid& name) { return std::min(now_ns, time(name)); };
  stop.begun_ns = past(stop.id);
  stop.again = stop.begun_ns != 0;
  if (!stop.again) stop.begun_ns = now_ns;
  stop.wait_until_ns = stop.begun_ns + checkpoint_ns;
  if (const std::int64_t wait = time(NameOf(stop.id, kWaitClock)); wait != 0) {
    stop.wait_until_ns = std::min(stop.wait_until_ns, wait);
  }
  stop.checkpoint = stop.checkpoint && time(NameOf(stop.id, kAtOnce)) == 0;
  if (const std::int64_t kill_by = time(NameOf(stop.id, kKillByClock)); kill_by != 0) {
    stop.kill_by_ns = kill_by;
  }
  stop.term_ns = past(NameOf(stop.id, kTermClock));
  stop.kill_ns = past(NameOf(stop.id, kKillClock));
  stop.sent = static_cast<std::uint8_t>(
      position_of_(NameOf(stop.id, kSentSignals), kStopClockRing) & (kSentTerm | kSentKill));
  const std::int64_t follows = past(NameOf(stop.id, kFollowsClock));
  stop.follows = follows != 0;
  if (stop.term_ns == 0) stop.term_ns = follows;
  stop.term_sent = stop.term_ns != 0;
  return stop;
}

/// `marks`: what else the journal is to have of it from here on.
void Stopper::Begin(Stop stop, std::int64_t now_ns, Outbox* outbox,
                    const store::RequestId& instead_of, std::vector<format::RingPosition> marks) {
  stop.taken_ns = now_ns;
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "stop.begun";
  event.severity = "medium";
  event.subject = "run";
  event.message = stop.again ? fmt::format("another agent goes on with the stop of {}", stop.who)
                             : fmt::format("{} stops the training", stop.who);
  event.message += ": " + (stop.why.empty() ? std::string("it does not say why") : stop.why);
  ordered_json data = {{"id", store::Hex(stop.id)}, {"who", stop.who},
                       {"why", stop.why},           {"rule", stop.rule},
                       {"incident", stop.incident}, {"again", stop.again}};
  if (instead_of != store::RequestId{}) {
    data["instead_of"] = store::Hex(instead_of);
    event.message += fmt::format("; it takes the place of request {}", store::Hex(instead_of));
  }
  event.data = JsonText(data);
  event.marks = std::move(marks);
  if (!stop.again) {
    event.marks.push_back({stop.id, kStopClockRing, static_cast<std::uint64_t>(stop.begun_ns)});
  }
  outbox->Add(std::move(event));
  stop_ = std::move(stop);
}

std::int64_t Stopper::KillBy(const Stop& stop) {
  if (!stop.kill) return stop.kill_by_ns;
  const std::int64_t term = stop.term_ns != 0 ? stop.term_ns : stop.wait_until_ns;
  return std::min(term + stop.grace_ns, stop.kill_by_ns);
}

Stopper::Times Stopper::TimesOf(const Stop& stop) {
  return {stop.term_ns != 0, stop.checkpoint, stop.wait_until_ns, KillBy(stop)};
}

Stopper::Times Stopper::Stricter(const Times& before, const Stop& next) {
  Times out;
  out.signalled = before.signalled;
  out.checkpoint = before.checkpoint && next.checkpoint;
  // SIGTERM that was sent is not taken back; from the request on they have the time that it gives.
  out.wait_until_ns =
      before.signalled ? next.begun_ns : std::min(before.wait_until_ns, next.wait_until_ns);
  out.kill_by_ns = before.kill_by_ns;
  if (next.kill) out.kill_by_ns = std::min(out.kill_by_ns, out.wait_until_ns + next.grace_ns);
  return out;
}

bool Stopper::IsStricter(const Times& before, const Stop& next) {
  if (!before.signalled && before.checkpoint && !next.checkpoint) return true;
  if (!before.signalled && next.wait_until_ns < before.wait_until_ns) return true;
  return Stricter(before, next).kill_by_ns < before.kill_by_ns;
}

/// The one before gets its answer, with what it has sent; what it has sent is not sent again.
void Stopper::TakePlace(std::int64_t now_ns, Outbox* outbox) {
  const Stop& before = *stop_;
  Stop next = std::move(stricter_.front());
  stricter_.pop_front();
  next.wait_until_ns = Stricter(TimesOf(before), next).wait_until_ns;
  next.kill_by_ns = KillBy(before);
  std::vector<format::RingPosition> marks;
  const auto keep = [&](const Uuid& clock, std::int64_t time_ns) {
    marks.push_back({NameOf(next.id, clock), kStopClockRing, static_cast<std::uint64_t>(time_ns)});
  };
  keep(kWaitClock, next.wait_until_ns);
  if (!before.checkpoint) {
    next.checkpoint = false;
    keep(kAtOnce, 1);
  }
  if (next.kill_by_ns != kNeverNs) keep(kKillByClock, next.kill_by_ns);
  if (before.term_ns != 0) {
    next.term_ns = now_ns;
    next.term_sent = true;
    next.follows = true;
    keep(kFollowsClock, now_ns);
  }
  for (const auto& [uuid, process] : before.processes) {
    Process& now = next.processes.emplace(uuid, process).first->second;
    now.answer = Answered(next.id, uuid);
    // It tries itself.
    if (now.term == Delivery::kFailed) now.term = Delivery::kNone;
    if (now.term != Delivery::kSent) continue;
    marks.push_back(
        {NameOf(next.id, uuid), kStopSignalRing, PositionOfSignals(now.term, now.kill)});
  }

  Account account = MakeAccount();
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "request.done";
  event.subject = "run";
  event.message = fmt::format("the stop of {} goes on as request {} of {}, which is stricter",
                              before.who, store::Hex(next.id), next.who);
  event.marks = std::move(account.released);
  event.marks.push_back({before.id, kRequestMarkRing, 1});
  // What it has sent may end them also after the other one has taken its place.
  if (const std::uint8_t did = WhatItDid(); (did & kSignalBits) != 0) {
    SetCause({before.id, ReasonOf(before), did}, &event);
  }
  event.data = JsonText(ordered_json{{"id", store::Hex(before.id)},
                                     {"who", before.who},
                                     {"stopped", false},
                                     {"goes_on_as", store::Hex(next.id)},
                                     {"left", std::move(account.left)},
                                     {"kept", std::move(account.kept)},
                                     {"failures", before.failures},
                                     {"processes", std::move(account.processes)}});
  outbox->Add(std::move(event));
  const store::RequestId id = before.id;
  Forget(id);
  Begin(std::move(next), now_ns, outbox, id, std::move(marks));
}

std::string Stopper::ReasonOf(const Stop& stop) {
  return JsonText(ReasonFrom(store::Hex(stop.id), stop.who, stop.why, stop.rule, stop.incident));
}

std::uint8_t Stopper::WhatItDid() const {
  std::uint8_t did = stop_->sent;
  for (const auto& [uuid, process] : stop_->processes) {
    const auto perhaps = [&, &uuid = uuid](Delivery delivery, int signal) {
      if (delivery != Delivery::kBegun) return delivery == Delivery::kUnknown;
      // Not where it is we who are about to send it.
      return sending_ != signal ||
             std::none_of(to_send_.begin(), to_send_.end(),
                          [&](const ToSend& each) { return each.uuid == uuid && !each.again; });
    };
    if (perhaps(process.term, SIGTERM)) did |= kPerhapsTerm;
    if (perhaps(process.kill, SIGKILL)) did |= kPerhapsKill;
    if (process.root) continue;
    if (AnswerTo(stop_->id, uuid) == StopAnswer::kSaved) {
      did |= kHasSaved;
    } else if (process.ended && process.pid != 0) {
      did |= kUnsaved;
    }
  }
  // That SIGTERM is of the one whose place it took.
  if (stop_->follows) did &= ~kPerhapsTerm;
  return did;
}

namespace {

/// The signal that ended a process; 0: none. A shell has that of its program in its exit code.
int SignalOf(const ProcessExit& exit) {
  if (exit.signal) return *exit.signal;
  return exit.exit_code && *exit.exit_code > 128 && *exit.exit_code < 128 + NSIG
             ? *exit.exit_code - 128
             : 0;
}

/// It ended by a signal that no stop of these has sent, nor may have.
bool ByAnotherSignal(std::uint8_t did, const ProcessExit& exit) {
  const int signal = SignalOf(exit);
  if (signal == SIGTERM) return (did & (kSentTerm | kPerhapsTerm)) == 0;
  if (signal == SIGKILL) return (did & (kSentKill | kPerhapsKill)) == 0;
  return signal != 0;
}

}  // namespace

Stopper::Ended Stopper::EndedBy(std::uint8_t did, const ProcessExit& exit) {
  const auto by = [&](int signal) { return SignalOf(exit) == signal; };
  const bool by_sent =
      ((did & kSentTerm) != 0 && by(SIGTERM)) || ((did & kSentKill) != 0 && by(SIGKILL));
  const bool by_perhaps =
      ((did & kPerhapsTerm) != 0 && by(SIGTERM)) || ((did & kPerhapsKill) != 0 && by(SIGKILL));
  if ((did & kLivesOn) != 0) {
    // It has lived through it: only the signal itself, where it came late, ends it.
    return by_sent ? Ended::kByIt : by_perhaps ? Ended::kPerhapsByIt : Ended::kOtherwise;
  }
  if ((did & (kSentTerm | kSentKill)) != 0) {
    // What it does about SIGTERM may fail, or it crashed for a reason of its own.
    return ByAnotherSignal(did, exit) ? Ended::kPerhapsByIt : Ended::kByIt;
  }
  if ((did & (kPerhapsTerm | kPerhapsKill)) != 0) {
    return by_perhaps || !exit.signal ? Ended::kPerhapsByIt : Ended::kOtherwise;
  }
  if ((did & kHasSaved) == 0 || exit.signal) return Ended::kOtherwise;
  // It ends itself once it has saved. Where it fails, one that has not saved may have failed.
  if (!exit.exit_code) return Ended::kPerhapsByIt;
  return *exit.exit_code == 0 || (did & kUnsaved) == 0 ? Ended::kByIt : Ended::kOtherwise;
}

void Stopper::SetCause(Cause cause, PendingEvent* event) {
  cause_ = std::move(cause);
  event->marks.push_back({cause_.id, kStopSignalRing, ++cause_number_ << kDidBits | cause_.did});
}

void Stopper::AddToEnd(const ProcessExit& exit, const std::vector<Target>& targets,
                       ordered_json* data, std::string* message) {
  Ended ended = EndedBy(cause_.did, exit);
  std::string reason = cause_.reason;
  bool by_another = ByAnotherSignal(cause_.did, exit);
  if (stop_) {
    Refresh(targets, stop_->taken_ns);
    std::uint8_t did = WhatItDid();
    if (stop_->follows) did &= kSignalBits;
    const Ended by_this = EndedBy(did, exit);
    // It is the newer one, so it counts where it is as sure, or where the end is by a signal that
    // it alone may have sent.
    const auto itself = [&](std::uint8_t bits) {
      return EndedBy(bits | kLivesOn, exit) != Ended::kOtherwise;
    };
    if (by_this != Ended::kOtherwise &&
        (by_this >= ended || (itself(did) && !itself(cause_.did)))) {
      ended = by_this;
      reason = ReasonOf(*stop_);
      by_another = ByAnotherSignal(did, exit);
    }
  }
  if (ended == Ended::kOtherwise) return;
  ordered_json stopped = ParseOrderedJson(reason);
  const std::string who = Text(stopped, "who");
  const std::string why = Text(stopped, "why");
  if (ended == Ended::kPerhapsByIt) stopped["perhaps"] = true;
  if (by_another) stopped["other_signal"] = true;
  *message += fmt::format(": {}stopped by {}{}{}", ended == Ended::kPerhapsByIt ? "perhaps " : "",
                          who.empty() ? "a request" : who, why.empty() ? "" : ": ", why);
  (*data)["stopped"] = std::move(stopped);
}

void Stopper::Recall(const store::Request& request) {
  Forget(request.id);
  const std::uint64_t mark = position_of_(request.id, kStopSignalRing);
  if (mark == 0 || mark >> kDidBits < cause_number_) return;
  const ordered_json body = ParseOrderedJson(request.body);
  if (!body.is_object()) return;
  cause_number_ = mark >> kDidBits;
  cause_ = {request.id,
            JsonText(ReasonFrom(store::Hex(request.id), Cut(request.who), Text(body, "why"),
                                Text(body, "rule"), Text(body, "incident"))),
            static_cast<std::uint8_t>(mark & kDidMask)};
}

/// Takes over who there is, and who has gone since.
void Stopper::Refresh(const std::vector<Target>& targets, std::int64_t now_ns) {
  std::map<Uuid, Process>& processes = stop_->processes;
  // The root may have got a channel: it goes on under its uuid, with what it has had.
  if (const auto root = processes.find(Uuid{}); root != processes.end() && !root->second.ended) {
    const auto now = std::find_if(targets.begin(), targets.end(), [&](const Target& target) {
      return target.pid == root->second.pid;
    });
    if (now != targets.end() && now->uuid != Uuid{}) {
      Process& process = Load(now->uuid);
      process.term = std::max(process.term, root->second.term);
      process.kill = std::max(process.kill, root->second.kill);
      for (ToSend& each : to_send_) {
        if (each.uuid == Uuid{}) each.uuid = now->uuid;
      }
      processes.erase(root);
    }
  }
  for (auto& [uuid, process] : processes) process.ended = true;
  for (const Target& target : targets) {
    // A root that had a channel is listed without it once all of that is read.
    if (target.ended && target.uuid == Uuid{} && !processes.contains(target.uuid) &&
        std::any_of(processes.begin(), processes.end(),
                    [&](const auto& each) { return each.second.pid == target.pid; })) {
      continue;
    }
    Process& process = Load(target.uuid);
    process.pid = target.pid;
    process.rank = target.rank;
    process.ended = target.ended;
    if (process.since_ns == 0) process.since_ns = stop_->begins ? stop_->taken_ns : now_ns;
  }
  if (processes.size() <= kMaxProcesses) return;
  std::erase_if(processes, [&](const auto& each) {
    return each.second.ended &&
           std::none_of(targets.begin(), targets.end(),
                        [&](const Target& target) { return target.uuid == each.first; });
  });
}

/// Whether some process is still saving.
bool Stopper::Waits(std::int64_t now_ns) {
  if (now_ns >= stop_->wait_until_ns) return false;
  return std::any_of(stop_->processes.begin(), stop_->processes.end(), [&](const auto& each) {
    const auto& [uuid, process] = each;
    if (process.ended || process.root || process.answer != StopAnswer::kNone) return false;
    const std::uint8_t ready = Ready(uuid);
    // A trial is given up also where nothing is to be saved.
    return ready != 0 && (stop_->checkpoint || ReadyForTrial(ready));
  });
}

bool Stopper::WaitsToRead(const std::vector<Target>& targets, std::int64_t now_ns) {
  // Those that come later are waited for as long as they may save.
  const bool may_save = stop_->term_ns == 0 && now_ns < stop_->wait_until_ns;
  if (!stop_->begins && !may_save) return false;
  const bool unread = std::any_of(targets.begin(), targets.end(), [&](const Target& target) {
    return target.uuid != Uuid{} && !stop_->read.contains(target.uuid) &&
           now_ns - stop_->processes[target.uuid].since_ns < kJournalPatienceNs;
  });
  if (!unread) stop_->begins = false;
  return unread;
}

/// Whether every process has given up a trial only: who began them then goes on too, also where the
/// process of a trial has ended since.
bool Stopper::OnlyTrials() const {
  bool trials = false;
  for (const auto& [uuid, process] : stop_->processes) {
    // One without a pid is no trainer: a worker that has answered.
    if (process.root || process.pid == 0) continue;
    if (process.answer == StopAnswer::kKept) {
      trials = true;
    } else if (!process.ended) {
      return false;
    }
  }
  return trials;
}

void Stopper::NextAttemptBegan(std::int64_t now_ns) {
  if (!owes_kill() || KillBy(*stop_) == kNeverNs) return;
  stop_->next_attempt = true;
  stop_->wait_until_ns = std::min(stop_->wait_until_ns, now_ns);
  stop_->kill_by_ns = std::min(stop_->kill_by_ns, now_ns);
}

bool Stopper::Spared(const Process& process, bool only_trials) const {
  if (process.ended || process.answer == StopAnswer::kKept) return true;
  return process.root && only_trials && process.term == Delivery::kNone;
}

bool Stopper::owes_kill() const {
  const auto kills = [](const Stop& stop) { return KillBy(stop) != kNeverNs; };
  if (!stop_ || !(kills(*stop_) || std::any_of(stricter_.begin(), stricter_.end(), kills))) {
    return false;
  }
  const bool only_trials = OnlyTrials();
  return std::any_of(stop_->processes.begin(), stop_->processes.end(),
                     [&](const auto& each) { return !Spared(each.second, only_trials); });
}

void Stopper::Decide(int signal, std::int64_t now_ns, Outbox* outbox) {
  const bool kill = signal == SIGKILL;
  const bool only_trials = OnlyTrials();
  PendingEvent event;
  ordered_json listed = ordered_json::array();
  std::size_t count = 0;
  for (auto& [uuid, process] : stop_->processes) {
    if (Spared(process, only_trials)) continue;
    Delivery& delivery = kill ? process.kill : process.term;
    if (delivery > Delivery::kBegun) continue;
    // Of an agent before us, which has not come to say what became of it.
    const bool again = delivery == Delivery::kBegun;
    to_send_.push_back({uuid, again});
    if (again) continue;
    delivery = Delivery::kBegun;
    event.marks.push_back(
        {NameOf(stop_->id, uuid), kStopSignalRing, PositionOfSignals(process.term, process.kill)});
    if (++count <= kMostListed) {
      listed.push_back({{"pid", process.pid}, {"rank", process.rank}, {"root", process.root}});
    }
  }
  if (to_send_.empty()) return;
  ++round_;
  sending_ = signal;
  decided_ns_ = now_ns;
  if (count == 0) return;
  event.marks.push_back({NameOf(stop_->id, kill ? kKillClock : kTermClock), kStopClockRing,
                         static_cast<std::uint64_t>(kill ? stop_->kill_ns : stop_->term_ns)});
  event.time_ns = now_ns;
  event.kind = "stop.decided";
  event.subject = "run";
  event.message =
      fmt::format("{} is about to be sent to {}{}", NameOfSignal(signal), Processes(count),
                  stop_->next_attempt ? ", since the next attempt of this run has begun" : "");
  event.data = JsonText(ordered_json{
      {"id", store::Hex(stop_->id)}, {"signal", signal}, {"processes", std::move(listed)}});
  outbox->Add(std::move(event));
}

Delivery Stopper::SendOne(const Target* target, std::string* why) const {
  if (target == nullptr || target->ended) return Delivery::kHadEnded;
  if (target->pidfd < 0) {
    *why = "the number alone does not say whose it is";
    return Delivery::kFailed;
  }
  // A process that nobody has waited for yet takes a signal, and has ended all the same.
  if (PidfdEnded(target->pidfd)) return Delivery::kHadEnded;
  const int error = signal_(target->pidfd, sending_);
  if (error == 0) return Delivery::kSent;
  if (error == ESRCH) return Delivery::kHadEnded;
  *why = std::strerror(error);
  return Delivery::kFailed;
}

void Stopper::Send(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox) {
  Refresh(targets, now_ns);
  const bool kill = sending_ == SIGKILL;
  PendingEvent event;
  ordered_json listed = ordered_json::array();
  std::size_t sent = 0, sent_again = 0, had_ended = 0, unknown = 0, failed = 0;
  bool any_again = false;
  for (const ToSend& each : std::exchange(to_send_, {})) {
    Process& process = Load(each.uuid);
    const auto target = std::find_if(targets.begin(), targets.end(),
                                     [&](const Target& one) { return one.uuid == each.uuid; });
    std::string why;
    Delivery delivery = SendOne(target == targets.end() ? nullptr : &*target, &why);
    // By the signal of the agent before, or by itself.
    if (delivery == Delivery::kHadEnded && each.again) delivery = Delivery::kUnknown;
    (kill ? process.kill : process.term) = delivery;
    event.marks.push_back({NameOf(stop_->id, each.uuid), kStopSignalRing,
                           PositionOfSignals(process.term, process.kill)});
    any_again = any_again || each.again;
    sent += delivery == Delivery::kSent ? 1 : 0;
    sent_again += delivery == Delivery::kSent && each.again ? 1 : 0;
    had_ended += delivery == Delivery::kHadEnded ? 1 : 0;
    unknown += delivery == Delivery::kUnknown ? 1 : 0;
    if (delivery == Delivery::kFailed) {
      ++failed;
      if (stop_->failures.size() < kMostListed) {
        stop_->failures.push_back(
            fmt::format("pid {}: {} not sent: {}", process.pid, NameOfSignal(sending_), why));
      }
    }
    if (listed.size() >= kMostListed) continue;
    ordered_json one = {{"pid", process.pid},
                        {"rank", process.rank},
                        {"root", process.root},
                        {"outcome", Word(delivery)}};
    if (!why.empty()) one["why"] = why;
    if (each.again) one["again"] = true;
    listed.push_back(std::move(one));
  }
  // From here on they have their time. Those that come later have what is left of it.
  if (kill) {
    stop_->kill_ns = now_ns;
  } else if (!stop_->term_sent || any_again) {
    stop_->term_ns = now_ns;
    stop_->term_sent = true;
  }
  event.marks.push_back({NameOf(stop_->id, kill ? kKillClock : kTermClock), kStopClockRing,
                         static_cast<std::uint64_t>(kill ? stop_->kill_ns : stop_->term_ns)});
  if (sent > 0) {
    stop_->sent |= kill ? kSentKill : kSentTerm;
    event.marks.push_back({NameOf(stop_->id, kSentSignals), kStopClockRing, stop_->sent});
  }
  event.time_ns = now_ns;
  event.kind = "stop.signal";
  event.severity = "medium";
  event.subject = "run";
  event.message = fmt::format("{} was sent to {}", NameOfSignal(sending_), Processes(sent));
  if (sent_again > 0) {
    event.message += fmt::format("; {} of them may have had it by an agent before", sent_again);
  }
  if (had_ended > 0) event.message += fmt::format("; {} had ended before", had_ended);
  if (unknown > 0) {
    event.message +=
        fmt::format("; {} had ended, perhaps by the signal of an agent before", unknown);
  }
  if (failed > 0) event.message += fmt::format("; it could not be sent to {}", failed);
  event.data = JsonText(ordered_json{
      {"id", store::Hex(stop_->id)}, {"signal", sending_}, {"processes", std::move(listed)}});
  outbox->Add(std::move(event));
}

Stopper::Account Stopper::MakeAccount() const {
  Account out;
  const bool only_trials = OnlyTrials();
  // Those that live on first: a list that is cut then lacks some that have ended.
  for (const bool ended : {false, true}) {
    for (const auto& [uuid, process] : stop_->processes) {
      if (process.ended != ended || process.pid == 0) continue;
      out.any_sent =
          out.any_sent || process.term == Delivery::kSent || process.kill == Delivery::kSent;
      out.released.push_back({NameOf(stop_->id, uuid), format::kReleasedRing, 0});
      const bool spared = Spared(process, only_trials);
      const char* state = ended ? "ended" : spared ? "kept" : "left";
      if (!ended && spared) {
        ++out.going_on;
        if (!process.root) out.kept.push_back(process.pid);
      } else if (!ended) {
        out.left.push_back(process.pid);
        if (out.left.size() <= kMaxNamed) {
          out.names += out.names.empty() ? ": " : ", ";
          out.names += process.root ? fmt::format("the command (pid {})", process.pid)
                                    : fmt::format("rank {} (pid {})", process.rank, process.pid);
        }
      }
      if (out.processes.size() >= kMostListed) continue;
      ordered_json one = {{"pid", process.pid},
                          {"rank", process.rank},
                          {"root", process.root},
                          {"state", state},
                          {"answer", Word(process.answer)},
                          {"sigterm", Word(process.term)},
                          {"sigkill", Word(process.kill)}};
      out.processes.push_back(std::move(one));
    }
  }
  if (out.left.size() > kMaxNamed) {
    out.names += fmt::format(" and {} more", out.left.size() - kMaxNamed);
  }
  for (const Uuid& clock : kClocks) {
    out.released.push_back({NameOf(stop_->id, clock), format::kReleasedRing, 0});
  }
  return out;
}

void Stopper::Finish(std::int64_t now_ns, Outbox* outbox) {
  Account account = MakeAccount();
  const std::size_t left = account.left.size();
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "request.done";
  event.subject = "run";
  if (left > 0) {
    event.severity = "medium";
    event.message = fmt::format("the training is not stopped: {} of its processes here {} on{}",
                                left, left == 1 ? "lives" : "live", account.names);
  } else if (account.going_on > 0) {
    event.message = fmt::format("the trial is given up; {} {} on", account.going_on,
                                account.going_on == 1 ? "process goes" : "processes go");
  } else {
    event.message =
        account.any_sent ? "the training is stopped here" : "the training has ended here";
  }
  event.data = JsonText(ordered_json{{"id", store::Hex(stop_->id)},
                                     {"who", stop_->who},
                                     {"stopped", left == 0 && account.going_on == 0},
                                     {"left", std::move(account.left)},
                                     {"kept", std::move(account.kept)},
                                     {"failures", stop_->failures},
                                     {"processes", std::move(account.processes)}});
  event.marks = std::move(account.released);
  event.marks.push_back({stop_->id, kRequestMarkRing, 1});
  if (account.going_on == 0 || left > 0) {
    std::uint8_t did = WhatItDid();
    if (left > 0) did |= kLivesOn;
    const bool signals = (did & kSignalBits) != 0;
    if (signals || (left == 0 && !stop_->follows && (did & kHasSaved) != 0)) {
      SetCause({stop_->id, ReasonOf(*stop_), did}, &event);
    } else if (left > 0 && stop_->follows && cause_.did != 0) {
      // They have lived through the signal of the one whose place it took.
      SetCause({cause_.id, cause_.reason, static_cast<std::uint8_t>(cause_.did | kLivesOn)},
               &event);
    }
  }
  outbox->Add(std::move(event));
  Forget(stop_->id);
  stop_.reset();
  to_send_.clear();
}

void Stopper::Close(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox) {
  if (!stop_) return;
  // Decided is decided: nobody comes after us.
  if (!to_send_.empty()) Send(targets, now_ns, outbox);
  Refresh(targets, now_ns);
  Finish(now_ns, outbox);
  for (Stop& next : std::exchange(stricter_, {})) {
    Begin(std::move(next), now_ns, outbox);
    Refresh(targets, now_ns);
    Finish(now_ns, outbox);
  }
}

void Stopper::Poll(const std::vector<Target>& targets, std::int64_t now_ns, Outbox* outbox) {
  if (!stop_) return;
  Refresh(targets, now_ns);
  if (WaitsToRead(targets, now_ns)) return;
  // Nothing more is decided while something waits for the journal.
  if (!to_send_.empty()) {
    if (now_ns - decided_ns_ >= kJournalPatienceNs) Send(targets, now_ns, outbox);
    return;
  }
  Advance(now_ns, outbox);
  if (stricter_.empty() || !to_send_.empty()) return;
  if (!stop_) {
    // The one before is over: this one takes nothing from it.
    Stop next = std::move(stricter_.front());
    stricter_.pop_front();
    Begin(std::move(next), now_ns, outbox);
  } else if (stop_->kill_ns == 0) {
    TakePlace(now_ns, outbox);
  }
}

void Stopper::Advance(std::int64_t now_ns, Outbox* outbox) {
  const bool only_trials = OnlyTrials();
  const bool any = std::any_of(stop_->processes.begin(), stop_->processes.end(),
                               [&](const auto& each) { return !Spared(each.second, only_trials); });
  if (!any) {
    // All have ended, or go on by themselves.
    Finish(now_ns, outbox);
    return;
  }
  if (stop_->kill_ns != 0) {
    Decide(SIGKILL, now_ns, outbox);
    if (to_send_.empty() && now_ns - stop_->kill_ns >= kKillPatienceNs) Finish(now_ns, outbox);
    return;
  }
  if (stop_->term_ns == 0) {
    if (Waits(now_ns)) return;
    stop_->term_ns = now_ns;
  }
  // Also those that have come since: a launcher may have started them again.
  Decide(SIGTERM, now_ns, outbox);
  if (!to_send_.empty()) return;
  const std::int64_t kill_by = KillBy(*stop_);
  if (now_ns < (kill_by != kNeverNs ? kill_by : stop_->term_ns + stop_->grace_ns)) return;
  if (kill_by == kNeverNs) {
    Finish(now_ns, outbox);
    return;
  }
  stop_->kill_ns = now_ns;
  Decide(SIGKILL, now_ns, outbox);
}

void Stopper::Journalled(std::uint64_t number, const std::vector<Target>& targets,
                         std::int64_t now_ns, Outbox* outbox) {
  if (stop_ && number == waits_for() && number != 0) Send(targets, now_ns, outbox);
}

}  // namespace telltale::agent
