// SPDX-License-Identifier: Apache-2.0
#include "agent/agent.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "agent/capture.h"
#include "agent/exit_facts.h"
#include "agent/outbox.h"
#include "agent/own_cpu.h"
#include "agent/producer.h"
#include "agent/raw_values.h"
#include "agent/sample_schedule.h"
#include "agent/stopper.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/process.h"
#include "base/run_files.h"
#include "base/units.h"
#include "channel/registration.h"
#include "collect/sampler.h"
#include "store/folder.h"
#include "store/run_info.h"
#include "store/writer.h"

namespace telltale::agent {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kBusyPeriodNs = 50 * kMs;   ///< Between drains while there is much to do.
constexpr std::int64_t kIdlePeriodNs = 200 * kMs;  ///< Else: readers wait for the watermark.
constexpr std::uint64_t kManyRecords = 1000;       ///< Of one tick.
/// A sample so shortly before the next tick goes with it.
constexpr std::int64_t kTogetherNs = 20 * kMs;
constexpr std::int64_t kRefusedPeriodNs = 500 * kMs;
constexpr std::int64_t kStatusPeriodNs = 1000 * kMs;
constexpr std::int64_t kLedgerPeriodNs = 5000 * kMs;
/// Looks for the attempt after this one, while a SIGKILL is owed to processes of this one.
constexpr std::int64_t kNextAttemptPeriodNs = 500 * kMs;
constexpr std::int64_t kClockJumpNs = 50 * kMs;
/// Both clocks are read within this, where one of so many tries can.
constexpr std::int64_t kClockReadNs = kMs;
constexpr int kClockReads = 5;
/// A pidfd tells how a process ended once its parent has reaped it; so long it may take.
constexpr std::int64_t kReapPatienceNs = 1000 * kMs;
/// Of a process whose parent has died: the first of a container may look for such every 2 s only.
constexpr std::int64_t kOrphanReapPatienceNs = 5000 * kMs;
/// After the end of the training, so long its other processes may take to end.
constexpr std::int64_t kStragglerPatienceNs = 1000 * kMs;
/// So long the supervisor may take to hand over whom an agent before us recorded.
constexpr std::int64_t kHandOverPatienceNs = 2000 * kMs;
/// At the end, so long a full disk may take to be freed.
constexpr std::int64_t kFullDiskPatienceNs = 10'000 * kMs;
/// At the end, so long the values of tensors may take to the disk, and their files to be synced.
constexpr std::int64_t kValuesPatienceNs = 8'000 * kMs;
constexpr std::chrono::milliseconds kSealPatience{4'000};
/// Rows of one drain must fit one batch (format/batch.h), so that rows and positions are one unit.
constexpr std::size_t kDrainBytes = 12U << 10;
/// More than any arena holds: after that much, all that was there at the tick's begin is out.
constexpr std::size_t kMaxTickBytes = 64U << 20;
constexpr std::size_t kMaxPoolBytes = 1U << 20;
/// Spans of detail a second at a budget of all step time: each costs some 100 ns, so a fifth of it.
constexpr double kDetailPerBudget = 2e6;
constexpr double kMostDetail = 100'000;
/// Batches of kept spans in one tick.
constexpr int kKeptParts = 4;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

std::uint64_t CpuNs() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& t) {
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(t.tv_usec) * 1000U;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

Uuid UuidOf(const std::uint8_t (&bytes)[16]) {
  Uuid uuid;
  std::copy(std::begin(bytes), std::end(bytes), uuid.begin());
  return uuid;
}

class Agent {
 public:
  Agent(AgentOptions options, const std::filesystem::path& folder,
        std::unique_ptr<store::Writer> writer, std::unique_ptr<collect::Sampler> sampler)
      : options_(std::move(options)),
        writer_(std::move(writer)),
        sampler_(std::move(sampler)),
        offset_ns_(writer_->monotonic_to_run_ns()),
        supervisor_(options_.supervisor != 0 ? options_.supervisor : ::getppid()),
        raw_(folder, writer_->RecoveredPositions()),
        look_back_(options_.look_back_bytes),
        stopper_([this](const Uuid& name, std::uint16_t ring) { return Recovered(name, ring); }),
        exit_facts_(options_.system_root.empty() ? "/" : options_.system_root + "/",
                    [this] { return sampler_->OomKills(); }) {
    for (const format::RingPosition& position : writer_->RecoveredPositions()) {
      recovered_[position.producer].push_back(position);
    }
    // The first agent of a supervisor is handed no producer of an earlier one.
    if (options_.gap_from_monotonic_ns == 0) {
      for (const auto& [uuid, positions] : recovered_) {
        // An answered request stays answered.
        const bool request = std::any_of(positions.begin(), positions.end(),
                                         [](const auto& p) { return p.ring == kRequestMarkRing; });
        if (uuid != Uuid{} && !request) released_.push_back(uuid);
      }
    } else {
      for (const auto& [uuid, positions] : recovered_) {
        const bool ended = Marked(uuid, kProcessMarkRing, 2);
        if (Marked(uuid, kProcessMarkRing, 1) && !ended) expected_.insert(uuid);
      }
    }
  }

  /// kUsage, kLimit: the plan is none.
  Status Prepare();
  Status Run();

 private:
  std::int64_t RunNow() const { return Now() + offset_ns_; }
  bool Marked(const Uuid& uuid, std::uint16_t ring, std::uint64_t at_least) const;
  std::uint64_t Recovered(const Uuid& name, std::uint16_t ring) const;
  /// The supervisor has said whom there is to stop.
  bool KnowsWhom() const;
  /// Whom a stop concerns: the trainers that have a channel, and the root of the training.
  std::vector<Stopper::Target> StopTargets() const;

  /// Until then, or true where there is something to look at before.
  bool Wait(std::int64_t until_ns);
  /// For the next tick; the samples that are due before it wait for its batch.
  void WaitForTick(std::int64_t until_ns, SampleSchedule* samples);
  void ReceiveMessages();
  void Handle(const void* bytes, std::size_t size, std::vector<UniqueFd> fds);
  void Adopt(const channel::AddProducer& message, std::vector<UniqueFd> fds);
  void StartAttempt(std::uint32_t attempt, std::int32_t pid, std::int64_t ticks, UniqueFd pidfd);
  void EndAttempt(const ProcessExit& exit, bool known);
  void SayAttemptEnd();
  void MakeWay();
  template <class Message>
  bool Send(const Message& message);

  void SayStart();
  void SayLoss();
  static std::int64_t WallOffset();
  static std::int64_t AsleepNs();
  void UndoTerminal();
  void RemoveSocket();
  void NameTraining();
  void CheckClock();
  void CheckLives();
  void SayLeft();
  void Sample();
  void CountOwn();
  void CountOwnCpu();
  void SetDetail();
  bool WriteKept(format::Batch* batch, std::vector<Producer*>* in_batch);
  bool Tick(bool ledger);
  bool Append(format::Batch* batch);
  void Settle(bool taken, std::vector<Producer*>* in_batch);
  bool Flush(format::Batch* batch, std::vector<Producer*>* in_batch);
  void Release();
  void TellReleases();
  void SendStatus();
  bool Finished();
  void CloseValues();
  Status Close();

  AgentOptions options_;
  std::unique_ptr<store::Writer> writer_;
  std::unique_ptr<collect::Sampler> sampler_;
  std::unique_ptr<Capture> capture_;  ///< Not null once Prepare was ok.
  const std::int64_t offset_ns_;
  /// As it told us itself: where it died before we looked, our parent is another.
  const pid_t supervisor_;
  RawValues raw_;
  LookBack look_back_;
  std::uint32_t detail_rate_ = 0;  ///< As the control pages have it.
  bool detail_all_ = false;
  Stopper stopper_;
  std::uint64_t stop_syncs_ = 0;  ///< The journal has what this waits for; the disk is being asked.
  std::map<Uuid, std::vector<format::RingPosition>> recovered_;
  /// Processes that an agent before us recorded and that have not been handed over yet.
  std::set<Uuid> expected_;
  std::vector<std::unique_ptr<Producer>> producers_;
  std::vector<Uuid> releases_;  ///< Not yet told to the supervisor.
  /// The supervisor hands them to no agent any more: the next batch drops their positions.
  std::vector<Uuid> released_;

  ExitFacts exit_facts_;
  Outbox outbox_;
  Ledger ledger_;
  std::unique_ptr<StringPool> pool_ = std::make_unique<StringPool>();
  std::vector<format::MetricRow> metrics_;
  std::uint64_t samples_ = 0;

  std::uint32_t attempt_ = std::max(options_.attempt, 1U);  ///< Its number, once it is known.
  bool attempt_known_ = false;
  std::int64_t attempt_known_ns_ = 0;
  bool attempt_ended_ = false;  ///< The end is known, in the outbox or in the journal.
  /// Known, and said once all is read that the processes had said: what ended it may be there.
  struct AttemptEnd {
    PendingEvent event;
    ordered_json data;
    ProcessExit exit;
  };
  std::optional<AttemptEnd> attempt_end_;
  std::int64_t looked_for_next_ns_ = 0;  ///< For the attempt after this one.
  UniqueFd training_;                    ///< pidfd of CMD.
  bool training_sure_ = false;  ///< Of CMD indeed, and of no later process with its number.
  pid_t training_pid_ = 0;
  std::uint64_t training_ticks_ = 0;
  bool named_training_ = false;  ///< In run.json, in the supervisor's place.
  std::int64_t training_ended_at_ns_ = 0;
  bool end_run_ = false;  ///< The supervisor asked for the end.
  std::int64_t end_at_ns_ = 0;
  bool orphan_ = false;  ///< The supervisor is gone.
  UniqueFd terminal_;    ///< Where `undo_` belongs; only while there is something to undo.
  std::string undo_;

  bool refused_ = false;  ///< The journal took nothing at the last try.
  std::int64_t refused_since_ns_ = 0;
  /// The last tick found many records, a ring that fills, values of tensors or names that ask for
  /// an answer, or left something that waits for the next one.
  bool busy_ = false;
  std::int64_t period_ns_ = kBusyPeriodNs;
  std::int64_t clock_offset_ns_ = 0;  ///< Wall minus monotonic at the last anchor.
  std::int64_t wall_seen_ns_ = 0;  ///< The same without what the machine slept, at the last look.
  std::uint64_t append_refused_ = 0;
  std::uint64_t metrics_dropped_ = 0;
  std::uint64_t producers_refused_ = 0;  ///< By the supervisor, in this attempt.
  std::uint64_t not_adopted_ = 0;        ///< Producers that the agent itself refused.
  std::uint64_t producers_left_ = 0;     ///< Lived on when the recording ended.
  std::uint64_t dropped_by_gone_ = 0;    ///< Records dropped by producers that were released.
};

bool Agent::Marked(const Uuid& uuid, std::uint16_t ring, std::uint64_t at_least) const {
  const auto found = recovered_.find(uuid);
  if (found == recovered_.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(), [&](const auto& position) {
    return position.ring == ring && position.position >= at_least;
  });
}

std::uint64_t Agent::Recovered(const Uuid& name, std::uint16_t ring) const {
  const auto found = recovered_.find(name);
  if (found == recovered_.end()) return 0;
  for (const format::RingPosition& position : found->second) {
    if (position.ring == ring) return position.position;
  }
  return 0;
}

/// An agent before us knew some of them: without these a stop would be decided on those that have
/// come by chance.
bool Agent::KnowsWhom() const {
  if (end_run_) return true;  // All are handed over before that.
  if (!attempt_known_) return false;
  return expected_.empty() || Now() - attempt_known_ns_ > kHandOverPatienceNs;
}

std::vector<Stopper::Target> Agent::StopTargets() const {
  constexpr std::uint8_t kTrainer = 0;  // TT_PROCESS_TRAINER.
  std::vector<Stopper::Target> out;
  bool root_has_channel = false;
  for (const auto& producer : producers_) {
    const channel::ProducerInfo& info = producer->consumer().info();
    if (info.kind != kTrainer) continue;
    root_has_channel = root_has_channel || info.pid == training_pid_;
    out.push_back({producer->uuid(), info.pid, info.rank, producer->pidfd(), producer->ended()});
  }
  if (training_ && !root_has_channel) {
    const int pidfd = training_sure_ ? training_.get() : -1;
    out.push_back({{}, training_pid_, 0, pidfd, training_ended_at_ns_ != 0});
  }
  return out;
}

void Agent::SayStart() {
  PendingEvent event;
  event.time_ns = RunNow();
  event.kind = "agent.start";
  event.subject = "agent";
  event.pid = ::getpid();
  const bool again = options_.gap_from_monotonic_ns != 0;
  event.message = again ? "the agent was started again" : "the agent records";
  event.data = JsonText(ordered_json{{"pid", ::getpid()}, {"again", again}});
  outbox_.Add(event);
  if (!again) SayLoss();
  if (!again) capture_->SayPlan(RunNow(), &outbox_);
  if (Marked({}, kThinnedMarkRing, 1)) capture_->SayThinningEnded(RunNow(), &outbox_);
  if (!again) return;
  // Records waited in the rings; only what the agent itself would have sampled is missing.
  PendingEvent gap;
  gap.time_ns = RunNow();
  gap.kind = "gap";
  gap.severity = "low";
  gap.subject = "metrics";
  gap.message = "no samples while the agent was away";
  gap.data = JsonText(ordered_json{{"from_ns", options_.gap_from_monotonic_ns + offset_ns_},
                                   {"to_ns", gap.time_ns},
                                   {"cause", "agent restarted"}});
  outbox_.Add(std::move(gap));
}

/// The agent of an attempt before ended without its last word and had no successor: it was killed,
/// and its supervisor too.
void Agent::SayLoss() {
  const auto since_ns = writer_->unended_since_ns();
  if (!since_ns) return;
  PendingEvent event;
  event.time_ns = RunNow();
  event.kind = "recording.lost";
  event.severity = "medium";
  event.subject = "run";
  event.message =
      "an earlier attempt was not recorded to its end: its agent was killed or could not write its "
      "last records";
  event.data = JsonText(ordered_json{{"since_ns", *since_ns}});
  outbox_.Add(std::move(event));
  ledger_.Set({"run.agents_lost", "run"}, 1, {"agents", true, 0, 0});
}

/// The wall clock minus the monotonic one, at a moment at which little passes between the two
/// reads.
std::int64_t Agent::WallOffset() {
  const Clock& clock = Clock::System();
  std::int64_t best_ns = std::numeric_limits<std::int64_t>::max();
  std::int64_t offset = 0;
  for (int i = 0; i < kClockReads && best_ns > kClockReadNs; ++i) {
    const std::int64_t before = clock.MonotonicNs();
    const std::int64_t wall = clock.RealtimeNs();
    const std::int64_t took_ns = clock.MonotonicNs() - before;
    if (took_ns >= best_ns) continue;
    best_ns = took_ns;
    offset = wall - before - took_ns / 2;
  }
  return offset;
}

/// How long the machine has slept, which the monotonic clock does not count.
std::int64_t Agent::AsleepNs() {
  timespec boot{};
  timespec monotonic{};
  ::clock_gettime(CLOCK_MONOTONIC, &monotonic);
  ::clock_gettime(CLOCK_BOOTTIME, &boot);
  const std::int64_t ns =
      (boot.tv_sec - monotonic.tv_sec) * kSecond + (boot.tv_nsec - monotonic.tv_nsec);
  return ns < kSecond ? 0 : ns;  // What passed between the two.
}

void Agent::CheckClock() {
  const std::int64_t asleep = AsleepNs();
  const std::int64_t offset = WallOffset() - asleep;
  // Since the last look, a moment ago: what is set little by little (NTP) is no step.
  const std::int64_t last = std::exchange(wall_seen_ns_, offset);
  const bool stepped = last != 0 && std::llabs(offset - last) > kClockJumpNs;
  const std::int64_t step_ns = stepped ? offset - last : 0;
  if (clock_offset_ns_ != 0 && std::llabs(offset + asleep - clock_offset_ns_) <= kClockJumpNs)
    return;
  PendingEvent event;
  event.time_ns = RunNow();
  event.kind = "clock.anchor";
  event.subject = "clock";
  event.message = clock_offset_ns_ == 0 ? std::string("wall clock at the agent's start")
                  : !stepped ? std::string("the wall clock goes otherwise than the run's")
                             : fmt::format("the wall clock was set {} by {:.3f} s",
                                           step_ns < 0 ? "back" : "forward",
                                           std::abs(static_cast<double>(step_ns)) / 1e9);
  ordered_json data = {{"monotonic_ns", event.time_ns - offset_ns_},
                       {"realtime_ns", event.time_ns - offset_ns_ + offset + asleep},
                       {"run_ns", event.time_ns}};
  if (step_ns != 0) data["step_ns"] = step_ns;
  event.data = JsonText(data);
  outbox_.Add(std::move(event));
  clock_offset_ns_ = offset + asleep;
}

bool Agent::Wait(std::int64_t until_ns) {
  std::vector<pollfd> fds;
  if (!orphan_) fds.push_back({options_.link.get(), POLLIN, 0});
  if (training_ && training_ended_at_ns_ == 0) fds.push_back({training_.get(), POLLIN, 0});
  for (const auto& producer : producers_) {
    if (!producer->ended()) fds.push_back({producer->pidfd(), POLLIN, 0});
  }
  const std::int64_t left_ms = std::max<std::int64_t>(0, (until_ns - Now() + kMs - 1) / kMs);
  return ::poll(fds.data(), fds.size(), static_cast<int>(left_ms)) > 0;
}

void Agent::WaitForTick(std::int64_t until_ns, SampleSchedule* samples) {
  while (!Wait(std::min(until_ns, samples->next_ns())) && samples->Due()) {
    Sample();
    if (Now() + kTogetherNs >= until_ns) return;
  }
}

void Agent::ReceiveMessages() {
  alignas(8) char bytes[4096];
  while (!orphan_) {
    int raw[channel::kMaxMessageFds];
    int count = 0;
    const std::ptrdiff_t size =
        channel::ReceiveMessage(options_.link.get(), bytes, sizeof bytes, raw, &count);
    if (size == -EAGAIN) return;
    if (size <= 0) {
      orphan_ = true;
      std::fprintf(stderr, "agent: the supervisor is gone: recording until the training ends\n");
      return;
    }
    std::vector<UniqueFd> fds;
    for (int i = 0; i < count; ++i) fds.emplace_back(raw[i]);
    Handle(bytes, static_cast<std::size_t>(size), std::move(fds));
  }
}

void Agent::Handle(const void* bytes, std::size_t size, std::vector<UniqueFd> fds) {
  using channel::CheckMessage;
  using channel::MessageType;
  channel::AddProducer add;
  channel::AttemptStart start;
  channel::AttemptEnd end;
  channel::EndRun end_run;
  channel::Refused refused;
  channel::TerminalUndo undo;
  if (CheckMessage(bytes, size, MessageType::kAddProducer, &add)) {
    Adopt(add, std::move(fds));
  } else if (CheckMessage(bytes, size, MessageType::kAttemptStart, &start)) {
    StartAttempt(start.attempt, start.pid, start.start_time_ticks,
                 fds.empty() ? UniqueFd() : std::move(fds[0]));
  } else if (CheckMessage(bytes, size, MessageType::kAttemptEnd, &end)) {
    ProcessExit exit;
    if (end.signal != 0) {
      exit.signal = end.signal;
    } else {
      exit.exit_code = end.exit_code;
    }
    EndAttempt(exit, true);
  } else if (CheckMessage(bytes, size, MessageType::kEndRun, &end_run)) {
    end_run_ = true;
    end_at_ns_ = Now();
  } else if (CheckMessage(bytes, size, MessageType::kRefused, &refused)) {
    producers_refused_ = refused.count;
  } else if (CheckMessage(bytes, size, MessageType::kTerminalUndo, &undo)) {
    undo_.assign(undo.text, std::min<std::size_t>(undo.bytes, sizeof undo.text));
    terminal_ = fds.empty() ? UniqueFd() : std::move(fds[0]);
  } else {
    std::fprintf(stderr, "agent: ignored a message of %zu bytes from the supervisor\n", size);
  }
}

/// Gives the terminal back that a killed supervisor has left with a scroll region.
void Agent::UndoTerminal() {
  if (!orphan_ || !terminal_) return;
  // A terminal that was stopped (Ctrl-S) would hold us up: it is tried again.
  pollfd writable{terminal_.get(), POLLOUT, 0};
  if (::poll(&writable, 1, 0) == 0) return;
  [[maybe_unused]] const ssize_t n = ::write(terminal_.get(), undo_.data(), undo_.size());
  terminal_.reset();
}

/// A supervisor that was killed while the disk was busy has not said in run.json which process the
/// training is: without that the run would count as lost while it goes on.
void Agent::NameTraining() {
  // One that came to the end of the training has said so too, and what it had written may still be
  // on its way to the disk.
  if (!orphan_ || !attempt_known_ || named_training_ || end_run_ || ::getppid() == supervisor_) {
    return;
  }
  named_training_ = true;
  auto info = store::ReadRunInfo(options_.run);
  if (!info.ok() || info->attempts.empty()) return;
  store::Attempt& last = info->attempts.back();
  if (last.number == attempt_ && last.pid <= 0) {
    last.pid = training_pid_;
    last.pid_start_ticks = training_ticks_;
    if (const Status status = store::WriteRunInfo(options_.run, *info); !status.ok()) {
      std::fprintf(stderr, "agent: %s\n", status.message().c_str());
    }
  }
  // What the supervisor was about to put in its place.
  run_files::Remove({options_.run, fmt::format("run.json.{}.tmp", supervisor_)});
}

/// Removes the folder that a killed supervisor has left among the temporary files.
void Agent::RemoveSocket() {
  // A link that breaks says less: it does so a moment before, and may while the supervisor lives.
  if (!orphan_ || options_.socket.empty() || ::getppid() == supervisor_) return;
  ::unlink(options_.socket.c_str());
  ::rmdir(options_.socket.parent_path().c_str());
  options_.socket.clear();
}

void Agent::Adopt(const channel::AddProducer& message, std::vector<UniqueFd> fds) {
  const Uuid uuid = UuidOf(message.uuid);
  expected_.erase(uuid);
  const auto known = [&](const auto& producer) { return producer->uuid() == uuid; };
  if (std::any_of(producers_.begin(), producers_.end(), known)) return;
  // A process that has no descriptor left is given those that fit: the rest is lost on the way.
  auto adopted =
      fds.size() == 3 || fds.size() == 4
          ? Producer::Adopt(uuid, std::move(fds[0]), std::move(fds[1]), std::move(fds[2]))
          : Result<std::unique_ptr<Producer>>(
                Code::kLimit, fmt::format("{} of its 3 or 4 descriptors came: the limit of open "
                                          "files of the agent is reached: raise `ulimit -Hn`",
                                          fds.size()));
  if (!adopted.ok()) {
    PendingEvent event;
    event.time_ns = RunNow();
    event.kind = "producer.refused";
    event.severity = "medium";
    event.subject = fmt::format("proc:{}", message.pid);
    event.message = fmt::format("process {} is not recorded", message.pid);
    event.pid = message.pid;
    event.data = JsonText(ordered_json{{"reason", adopted.status().message()}});
    outbox_.Add(std::move(event));
    releases_.push_back(uuid);
    ++not_adopted_;
    return;
  }
  std::unique_ptr<Producer> producer = std::move(adopted).value();
  if (fds.size() == 4) producer->AttachSlab(std::move(fds[3]));
  if (const auto found = recovered_.find(uuid); found != recovered_.end()) {
    std::vector<format::RingPosition> rings;
    std::copy_if(found->second.begin(), found->second.end(), std::back_inserter(rings),
                 [](const auto& position) { return position.ring < kFirstMarkRing; });
    producer->consumer().SkipTo(rings);
  }
  capture_->Introduce(producer.get());
  producer->SetDetail(detail_rate_, detail_all_);
  producer->SkipMarks(Marked(uuid, kProcessMarkRing, 1), Marked(uuid, kProcessMarkRing, 2),
                      Marked(uuid, kDisabledMarkRing, 1), Marked(uuid, kLeftMarkRing, 1));
  if (!producer->start_said) outbox_.Add(producer->StartEvent(offset_ns_, RunNow()));
  producers_.push_back(std::move(producer));
}

void Agent::StartAttempt(std::uint32_t attempt, std::int32_t pid, std::int64_t ticks,
                         UniqueFd pidfd) {
  attempt_ = attempt;
  attempt_known_ = true;
  attempt_known_ns_ = Now();
  training_sure_ = pidfd.valid();
  training_ = training_sure_ ? std::move(pidfd) : OpenPidfd(pid);
  // By its number it may be another process, unless the number is still the one's that we know.
  if (!training_sure_ && training_) {
    training_sure_ = ticks > 0 && ProcessStartTicks(pid) == static_cast<std::uint64_t>(ticks);
  }
  training_pid_ = pid;
  training_ticks_ = static_cast<std::uint64_t>(std::max<std::int64_t>(0, ticks));
  sampler_->SetRoots({pid});
  exit_facts_.Begin();
  attempt_ended_ = Marked({}, kAttemptMarkRing, attempt * 2 + 1);
  if (Marked({}, kAttemptMarkRing, attempt * 2)) return;
  PendingEvent event;
  event.time_ns = RunNow();
  event.kind = "run.attempt_start";
  event.subject = "run";
  event.message = fmt::format("attempt {} started", attempt);
  event.pid = pid;
  ordered_json data = {{"attempt", attempt}, {"pid", pid}};
  if (const auto info = store::ReadRunInfo(options_.run); info.ok()) {
    data["command"] = info.value().command;
  }
  event.data = JsonText(data);
  event.marks = {{{}, kAttemptMarkRing, attempt * 2}};
  outbox_.Add(std::move(event));
}

void Agent::EndAttempt(const ProcessExit& exit, bool known) {
  if (attempt_ended_ || !attempt_known_) return;
  attempt_ended_ = true;
  PendingEvent event;
  event.time_ns = RunNow();
  event.kind = "run.attempt_end";
  event.subject = "run";
  ordered_json data = {{"attempt", attempt_}};
  if (exit.exit_code) {
    data["exit_code"] = *exit.exit_code;
    event.message = fmt::format("attempt {} ended with exit code {}", attempt_, *exit.exit_code);
  } else if (exit.signal) {
    data["signal"] = *exit.signal;
    event.message = fmt::format("attempt {} was ended by signal {}", attempt_, *exit.signal);
  } else {
    event.message = fmt::format("attempt {} ended, how is not known", attempt_);
  }
  data["by_supervisor"] = known;
  exit_facts_.AddTo(exit, &data);
  event.marks = {{{}, kAttemptMarkRing, attempt_ * 2 + 1}};
  attempt_end_ = AttemptEnd{std::move(event), std::move(data), exit};
}

void Agent::SayAttemptEnd() {
  if (!attempt_end_) return;
  auto [event, data, exit] = *std::exchange(attempt_end_, std::nullopt);
  stopper_.AddToEnd(exit, StopTargets(), &data, &event.message);
  event.data = JsonText(data);
  outbox_.Add(std::move(event));
}

/// The command has ended, and SIGKILL is still owed to processes of it: where the run's next
/// attempt begins on this machine, its agent cannot record before we have ended.
void Agent::MakeWay() {
  if (!end_run_ || !stopper_.owes_kill() || Now() - looked_for_next_ns_ < kNextAttemptPeriodNs) {
    return;
  }
  looked_for_next_ns_ = Now();
  const auto info = store::ReadRunInfo(options_.run);
  if (info.ok() && store::NewestAttempt(*info) > attempt_) stopper_.NextAttemptBegan(RunNow());
}

template <class Message>
bool Agent::Send(const Message& message) {
  return orphan_ ||
         channel::SendMessage(options_.link.get(), &message, sizeof message, nullptr, 0) == 0;
}

void Agent::CheckLives() {
  const std::int64_t now = Now();
  const std::int64_t patience_ns = orphan_ ? kOrphanReapPatienceNs : kReapPatienceNs;
  for (const auto& producer : producers_) {
    if (producer->PollEnded() && producer->ended_at_ns == 0) producer->ended_at_ns = now;
    if (producer->ended() && !producer->exit_said) {
      const auto exit = producer->Exit();
      if (exit || now - producer->ended_at_ns > patience_ns || end_run_) {
        outbox_.Add(
            producer->ExitEvent(exit, producer->ended_at_ns + offset_ns_, RunNow(), exit_facts_));
      }
    }
    if (auto event = producer->DisabledEvent(RunNow())) outbox_.Add(*std::move(event));
    if (auto event = producer->StacksEvent(now, RunNow())) outbox_.Add(*std::move(event));
  }
  if (training_ && training_ended_at_ns_ == 0 && PidfdEnded(training_.get())) {
    training_ended_at_ns_ = now;
  }
  if (orphan_ && training_ended_at_ns_ != 0 && !attempt_ended_) {
    const auto exit = PidfdExit(training_.get());
    if (exit || now - training_ended_at_ns_ > patience_ns) {
      EndAttempt(exit.value_or(ProcessExit{}), false);
    }
  }
}

/// The recording ends: names the processes that go on, for what they record now is lost.
void Agent::SayLeft() {
  for (const auto& producer : producers_) {
    if (producer->PollEnded()) continue;
    auto event = producer->LeftEvent(RunNow());
    if (!event) continue;
    outbox_.Add(*std::move(event));
    ++producers_left_;
  }
}

void Agent::Sample() {
  // While the disk refuses, samples are the one thing that is dropped: records wait in the rings.
  if (refused_) {
    metrics_dropped_ += metrics_.size();
    metrics_.clear();
  }
  const std::size_t before = metrics_.size();
  // Thinned, the samples between carry what no rule can do without.
  const bool whole = samples_ % capture_->sampling_stretch() == 0;
  ++samples_;
  sampler_->Sample(offset_ns_, pool_.get(), &metrics_,
                   whole ? collect::Sampler::Part::kAll : collect::Sampler::Part::kVital);
  for (collect::SystemEvent& said : sampler_->TakeEvents()) {
    PendingEvent event;
    event.time_ns = said.monotonic_ns + offset_ns_;
    event.kind = std::move(said.kind);
    event.severity = std::move(said.severity);
    event.subject = std::move(said.subject);
    event.message = std::move(said.message);
    event.data = std::move(said.data);
    outbox_.Add(std::move(event));
  }
  capture_->See(std::span(metrics_).subspan(before));
}

void Agent::CountOwn() {
  const store::WriterCounters& counters = writer_->counters();
  const auto set = [&](const char* name, std::uint64_t value, const char* unit, bool loss) {
    ledger_.Set({name, "agent"}, value, {unit, loss, 0, ::getpid()});
  };
  set("agent.rows", counters.rows, "records", false);
  set("agent.late_rows", counters.late_rows, "records", false);
  set("agent.append_refused", append_refused_, "records", false);
  set("agent.metrics_dropped", metrics_dropped_, "records", true);
  set("agent.journal_bytes", counters.journal_bytes, "bytes", false);
  set("agent.segment_bytes", counters.segment_bytes, "bytes", false);
  set("agent.salvaged_tails", counters.salvaged_tails, "records", false);
  set("agent.sync_failures", counters.sync_failures, "records", false);
  set("agent.write_failures", counters.write_failures, "records", false);
  const collect::SamplerCounters& sampled = sampler_->counters();
  set("collect.unreadable", sampled.unreadable, "records", false);
  set("collect.malformed", sampled.malformed, "records", false);
  set("collect.unanswered", sampled.unanswered, "records", false);
  set("collect.processes_skipped", sampled.processes_skipped, "records", true);
  set("collect.mounts_skipped", sampled.mounts_skipped, "records", false);
  set("run.producers_refused", not_adopted_, "processes", true);
  set("run.producers_left", producers_left_, "processes", true);
  // The supervisor's count: no new agent begins it again, so it is of no process.
  ledger_.Set({"run.producers_refused", "run"}, producers_refused_, {"processes", true, 0, 0});
  set("agent.cpu_ns", CpuNs(), "ns", false);
  set("agent.taken_ns", static_cast<std::uint64_t>(capture_->governor().own_ns()), "ns", false);
  set("agent.taken_of_ns", static_cast<std::uint64_t>(capture_->governor().own_wall_ns()), "ns",
      false);
  for (const auto& producer : producers_) producer->CountInto(&ledger_);
  raw_.CountInto(::getpid(), &ledger_);
  look_back_.CountInto(::getpid(), &ledger_);
}

bool Agent::Append(format::Batch* batch) {
  const Status status = writer_->Append(std::move(*batch));
  if (status.ok()) {
    refused_ = false;
    return true;
  }
  ++append_refused_;
  if (!refused_) {
    refused_ = true;
    refused_since_ns_ = Now();
    std::fprintf(stderr, "agent: %s\n", status.message().c_str());
    SendStatus();
  }
  return false;
}

/// After the journal's word on a batch: frees the rings it is from, or takes its drains back.
void Agent::Settle(bool taken, std::vector<Producer*>* in_batch) {
  for (Producer* producer : *in_batch) {
    taken ? producer->consumer().Commit() : producer->consumer().Rollback();
  }
  in_batch->clear();
  raw_.Settle(taken, attempt_);
  stopper_.Settle(taken);
  look_back_.Settle(taken);
  capture_->Settle(taken, RunNow(), &outbox_);
  if (taken) capture_->Publish(producers_, [this] { return RunNow(); });
}

/// Journals the batch, then frees the rings it was taken from. False: all is as before the drain.
bool Agent::Flush(format::Batch* batch, std::vector<Producer*>* in_batch) {
  const bool taken = Append(batch);
  Settle(taken, in_batch);
  *batch = {};
  return taken;
}

/// Tells the probes how much detail they may record: by the budget, all of it around a finding.
void Agent::SetDetail() {
  const bool on = look_back_.on() && !capture_->Strained(RunNow());
  const double wanted = on ? options_.overhead_budget * kDetailPerBudget : 0;
  const auto rate = static_cast<std::uint32_t>(std::min(wanted, kMostDetail));
  const bool all = on && look_back_.wants_all();
  if (rate == detail_rate_ && all == detail_all_) return;
  detail_rate_ = rate;
  detail_all_ = all;
  for (const auto& producer : producers_) producer->SetDetail(rate, all);
}

/// Spans that the look-back ring has given out, a part at each tick. False: the journal refused.
bool Agent::WriteKept(format::Batch* batch, std::vector<Producer*>* in_batch) {
  for (int parts = 0; parts < kKeptParts && look_back_.HasRows(); ++parts) {
    if (!in_batch->empty() && !Flush(batch, in_batch)) return false;
    look_back_.AddTo(attempt_, RunNow(), batch);
    if (!Flush(batch, in_batch)) return false;
  }
  return true;
}

/// One drain of every ring with everything else that waits. False when the journal refused it.
bool Agent::Tick(bool ledger) {
  const bool was_refused = refused_;
  // First, also where the journal takes nothing: a process whose end was not seen wakes every wait.
  CheckLives();
  const std::int64_t watermark = RunNow();
  std::uint64_t records = 0;
  bool busy = false;
  // The last batch of the tick carries the watermark, the events, the samples and the ledger.
  format::Batch batch;
  std::vector<Producer*> in_batch;
  for (const auto& producer : producers_) {
    std::size_t taken = 0;
    bool more = true;
    while (more) {
      // Commit frees all that was drained: this producer's last chunk must be journalled before its
      // next one is taken, else a kill between the two would lose it.
      if (!in_batch.empty() && in_batch.back() == producer.get() && !Flush(&batch, &in_batch)) {
        return false;
      }
      channel::Drained drained;
      const bool waiting =
          producer->consumer().Drain(kDrainBytes, offset_ns_, pool_.get(), &drained);
      producer->SeeTensors(drained.tensors, !waiting);
      busy = busy || !drained.tensors.empty() || drained.filling;
      more = waiting && taken < kMaxTickBytes;
      taken += kDrainBytes;
      records += drained.records;
      if (drained.records > 0) producer->NoteRecords(Now());
      if (drained.positions.empty()) break;
      if (!in_batch.empty() && !Flush(&batch, &in_batch)) {
        producer->consumer().Rollback();
        return false;
      }
      look_back_.Offer(drained.details, &drained.rows);
      StampAttempt(attempt_, &drained.rows);
      producer->See(drained.rows, drained.tensors);
      capture_->Offer(drained.rows);
      batch.rows = std::move(drained.rows);
      batch.positions = std::move(drained.positions);
      stopper_.Offer(batch.rows, producer->uuid(), &batch.positions);
      raw_.Offer(std::move(drained.tensors), producer->slab(), &batch);
      in_batch.push_back(producer.get());
    }
    producer->drained = !more;
    if (capture_->AnswerNames(producer.get())) busy = true;
  }
  if (!WriteKept(&batch, &in_batch)) return false;
  if (ledger) {
    CountOwn();
    ledger_.AddTo(attempt_, watermark, &batch);
  }
  SayAttemptEnd();
  outbox_.AddTo(attempt_, &batch);
  raw_.AddTo(ledger, &batch);
  for (const Uuid& uuid : released_) batch.positions.push_back({uuid, format::kReleasedRing, 0});
  batch.rows.metrics = metrics_;
  batch.watermark_ns = watermark;
  const bool journalled = Append(&batch);
  if (journalled) outbox_.Sent();
  const bool all_said = journalled && outbox_.empty();
  Settle(journalled, &in_batch);
  if (journalled) {
    std::vector<Uuid> read;
    for (const auto& producer : producers_) {
      if (producer->drained) read.push_back(producer->uuid());
    }
    stopper_.Drained(read);
  }
  // Nobody is signalled before the disk says so too. Nothing new is decided meanwhile.
  if (all_said && stopper_.waits_for() != 0 && stop_syncs_ == 0) {
    writer_->Sync();
    stop_syncs_ = stopper_.waits_for();
  }
  if (stop_syncs_ != 0 && writer_->Synced()) {
    stopper_.Journalled(std::exchange(stop_syncs_, 0), StopTargets(), RunNow(), &outbox_);
  }
  if (!journalled) return false;
  released_.clear();
  if (ledger) ledger_.Sent();
  metrics_.clear();
  // No row is left that has its texts there.
  if (pool_->bytes() > kMaxPoolBytes) pool_ = std::make_unique<StringPool>();
  busy_ = busy || records > kManyRecords || stop_syncs_ != 0 || stopper_.waits_for() != 0 ||
          !outbox_.empty() || capture_->waits() || look_back_.waits() || raw_.waits();
  if (was_refused) SendStatus();
  Release();
  return true;
}

/// Lets go of producers that are dead, empty and wholly in the journal.
void Agent::Release() {
  std::erase_if(producers_, [&](const std::unique_ptr<Producer>& producer) {
    // A tick looks for ends before it drains, so nothing has been written since.
    if (!producer->exit_said || !producer->drained || !outbox_.empty()) return false;
    if (producer->slab() != nullptr && producer->slab().use_count() > 1) return false;
    producer->CountInto(&ledger_);
    look_back_.Gone(producer->consumer().info().pid);
    dropped_by_gone_ += producer->consumer().counters().dropped;
    releases_.push_back(producer->uuid());
    return true;
  });
}

void Agent::TellReleases() {
  std::erase_if(releases_, [&](const Uuid& uuid) {
    auto message =
        channel::MakeMessage<channel::ReleaseProducer>(channel::MessageType::kReleaseProducer);
    std::copy(uuid.begin(), uuid.end(), message.uuid);
    if (!Send(message)) return false;
    released_.push_back(uuid);
    return true;
  });
}

void Agent::SendStatus() {
  auto message = channel::MakeMessage<channel::AgentStatus>(channel::MessageType::kAgentStatus);
  message.disk_full = refused_ ? 1 : 0;
  message.producers = static_cast<std::uint32_t>(producers_.size());
  message.rows = writer_->counters().rows;
  message.cpu_ns = CpuNs();
  message.dropped = dropped_by_gone_;
  for (const auto& producer : producers_)
    message.dropped += producer->consumer().counters().dropped;
  Send(message);  // A lost one is followed by the next.
}

bool Agent::Finished() {
  if (end_run_) {
    // Also those that outlive the command get the SIGKILL that was asked for.
    if (stopper_.owes_kill()) return false;
    return producers_.empty() || Now() - end_at_ns_ > kStragglerPatienceNs;
  }
  if (!orphan_) return false;
  if (!attempt_known_) return producers_.empty();
  return attempt_ended_ && !attempt_end_ && outbox_.empty() && producers_.empty();
}

/// What our processes and threads take from the training is a part of the budget.
void Agent::CountOwnCpu() {
  std::uint64_t cpu_ns = OwnCpuNs(supervisor_, training_pid_);
  if (capture_->TakesHistograms()) {
    std::vector<pid_t> pids;
    for (const auto& producer : producers_) {
      if (!producer->ended()) pids.push_back(producer->consumer().info().pid);
    }
    cpu_ns += HelperThreadsNs(pids);
  }
  capture_->CountOwn(cpu_ns, RunNow(), &outbox_);
}

Status Agent::Prepare() {
  CaptureOptions capture;
  capture.run = options_.run;
  capture.plan = options_.plan;
  capture.overhead_budget = options_.overhead_budget;
  capture.attempt = options_.attempt;
  capture.attempt_start_ns = options_.attempt_start_ns;
  const char* config = std::getenv("SMPROFILER_CONFIG_PATH");
  capture.profiler_config = config != nullptr ? config : "/opt/ml/input/config/profilerconfig.json";
  capture.stop = [this](const store::Request& request, std::int64_t now_ns, Outbox* outbox) {
    return stopper_.Take(request, now_ns, outbox);
  };
  capture.stop_begun = [this](const store::RequestId& id) { return stopper_.HasBegun(id); };
  capture.stop_answered = [this](const store::Request& request) { stopper_.Recall(request); };
  capture.look_back = [this](const store::Request& request, std::int64_t now_ns, Outbox* outbox) {
    return look_back_.Ask(request, now_ns, outbox);
  };
  TELLTALE_ASSIGN_OR_RETURN(capture_,
                            Capture::Create(std::move(capture), [this](const store::RequestId& id) {
                              return Marked(id, kRequestMarkRing, 1);
                            }));
  return {};
}

Status Agent::Run() {
  SayStart();
  SetDetail();
  // What a predecessor took over must hold before a producer is told of the plan.
  capture_->Poll(RunNow(), &outbox_);
  SampleSchedule samples(options_.interval_ms * kMs);
  std::int64_t next_ledger = Now() + kLedgerPeriodNs;
  std::int64_t next_status = Now();
  while (!Finished()) {
    ReceiveMessages();
    UndoTerminal();
    NameTraining();
    RemoveSocket();
    CheckClock();
    if (samples.Due()) Sample();
    capture_->Poll(RunNow(), &outbox_);
    look_back_.Poll(RunNow(), &outbox_);
    SetDetail();
    MakeWay();
    if (KnowsWhom()) stopper_.Poll(StopTargets(), RunNow(), &outbox_);
    const bool ledger = Now() >= next_ledger;
    if (ledger) {
      next_ledger = Now() + kLedgerPeriodNs;
      CountOwnCpu();
    }
    const bool taken = Tick(ledger);
    TellReleases();
    if (const Status status = writer_->Tick(); !status.ok()) {
      std::fprintf(stderr, "agent: %s\n", status.message().c_str());
    }
    if (Now() >= next_status) {
      SendStatus();
      next_status = Now() + kStatusPeriodNs;
    }
    period_ns_ = !taken  ? kRefusedPeriodNs
                 : busy_ ? kBusyPeriodNs
                         : std::min(period_ns_ + kBusyPeriodNs, kIdlePeriodNs);
    WaitForTick(Now() + period_ns_, &samples);
  }
  return Close();
}

/// Gives the values that are on their way the time that there is, and the journal their rows.
void Agent::CloseValues() {
  const std::int64_t deadline = Now() + kValuesPatienceNs;
  Tick(false);  // What was recorded last must be on its way before the last file is finished.
  raw_.Finish();
  while (!raw_.finished() && Now() < deadline) {
    Tick(false);
    SendStatus();
    Wait(Now() + kBusyPeriodNs);
    ReceiveMessages();
  }
  raw_.GiveUp();
}

Status Agent::Close() {
  Sample();
  CheckLives();
  // Else it stays unanswered, which says that nobody knows.
  if (KnowsWhom()) stopper_.Close(StopTargets(), RunNow(), &outbox_);
  look_back_.End();
  CloseValues();
  PendingEvent event;
  event.time_ns = RunNow();
  event.kind = "agent.stop";
  event.subject = "agent";
  event.message = "the agent has written everything";
  event.pid = ::getpid();
  outbox_.Add(std::move(event));
  const std::int64_t deadline = Now() + kFullDiskPatienceNs;
  // Twice: the first tick may find producers' last words, the second has the counters after them.
  for (int done = 0; done < 2;) {
    SayLeft();
    if (Tick(true)) {
      look_back_.Poll(RunNow(), &outbox_);
      if (!raw_.HasRows() && !look_back_.HasRows()) ++done;
      TellReleases();
    } else if (Now() < deadline) {
      Wait(Now() + kRefusedPeriodNs);
      ReceiveMessages();
    } else {
      break;
    }
  }
  RemoveSocket();
  SendStatus();  // The last sign of life: the seals may take a while.
  raw_.AwaitSeals(kSealPatience);
  return writer_->Close(true);
}

}  // namespace

Status RunAgent(AgentOptions options) {
  const std::string host = HostName();
  std::string name = std::string(store::kAgentPrefix) + host;
  std::replace(name.begin(), name.end(), '/', '_');
  TELLTALE_ASSIGN_OR_RETURN(std::unique_ptr<store::Writer> writer,
                            store::Writer::Open(options.run / name, name));
  collect::SamplerOptions sampling;
  sampling.node = host;
  if (!options.system_root.empty()) sampling.root = options.system_root;
  const std::filesystem::path folder = options.run / name;
  Agent agent(std::move(options), folder, std::move(writer), collect::Sampler::Create(sampling));
  TELLTALE_RETURN_IF_ERROR(agent.Prepare());
  return agent.Run();
}

}  // namespace telltale::agent
