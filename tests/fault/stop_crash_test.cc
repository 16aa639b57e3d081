// SPDX-License-Identifier: Apache-2.0
// kill -9 of the agent's part of a stop at each point of its protocol, again and again: the
// journal, the processes and the signals are real, the clock is the test's own. What the processes
// were sent they note themselves. Each of them has had its signals, nobody else has had any, and
// after each kill every sentence of the journal is held against what had happened by then, that on
// the end of the training too: in some a training crashes by itself. In some a stricter request
// takes the place of the one that is carried out.
// TELLTALE_FAULT_ROUNDS: 50 kills each (2; `make fault` has 20).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "agent/stopper.h"
#include "base/json.h"
#include "base/process.h"
#include "base/units.h"
#include "store/store_testing.h"

#if defined(__SANITIZE_THREAD__)
// Libraries start a thread when they are loaded, so the children come from a process of several.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace telltale::agent {
namespace {

using nlohmann::json;

constexpr std::int64_t kT = 1'700'000'000 * kSecond;
constexpr std::int64_t kTickNs = 100 * kMs;
constexpr std::size_t kMostTargets = 9;
constexpr std::size_t kBystanders = 2;
constexpr std::size_t kMostRequests = 2;
constexpr int kEndedByTerm = 42;
/// The test's word to a process that it crashes.
constexpr int kCrash = SIGUSR1;
constexpr int kCrashes = SIGSEGV;
constexpr int kMostKillsARun = 4;
constexpr int kMostTicks = 10'000;
constexpr auto kWhy = "the loss is no number";

/// Where the agent may die.
enum Point : std::uint8_t {
  kTaken,         ///< It has taken the request, the journal has nothing.
  kIdle,          ///< It waits for checkpoints or for the end of those that were signalled.
  kDecided,       ///< It has decided something, the journal has nothing of it.
  kBatchMade,     ///< The journal is about to have it.
  kJournalled,    ///< The journal has it.
  kSynced,        ///< The disk has it.
  kBeforeSignal,  ///< Of each process.
  kAfterSignal,   ///< The same.
  kSignalled,     ///< All are sent, the journal has nothing of it.
  kAnswered,      ///< The journal has the answer.
  kTakesPlace,    ///< A stricter request takes the place of another, the journal has nothing of it.
  kTookPlace,     ///< The journal has it.
  kPoints
};
constexpr std::array<const char*, kPoints> kPointNames = {
    "request taken", "waiting",      "decided",       "batch made", "journalled",  "on the disk",
    "before signal", "after signal", "all signalled", "answered",   "takes place", "took place"};

/// The training ends by itself.
enum class Crash : std::uint8_t {
  kNever,
  kBeforeSigterm,   ///< While a checkpoint is waited for.
  kAfterTheAnswer,  ///< It has lived through the stop.
};

struct Scenario {
  const char* name;
  std::size_t ranks = 1;
  bool obeys = true;     ///< SIGTERM ends them.
  bool saves = false;    ///< They have said that they save a checkpoint...
  bool answers = false;  ///< ...and do.
  bool kill = false;     ///< Asked for in the request.
  std::size_t requests = 1;
  /// The first request is patient; so many ticks after it the second comes, which is stricter.
  std::optional<int> stricter_after{};
  Crash crash = Crash::kNever;
  std::size_t targets() const {
    return ranks + 1;
  }  ///< The last: the command, which has no channel.
  /// How the command ends.
  ProcessExit End() const {
    if (crash != Crash::kNever) return {.exit_code = {}, .signal = kCrashes};
    if (kill) return {.exit_code = {}, .signal = SIGKILL};
    return {.exit_code = kEndedByTerm, .signal = {}};
  }
};

/// Seen by the test, the processes and each agent.
struct Shared {
  std::atomic<std::int64_t> now_ns{kT};
  std::array<std::atomic<std::uint32_t>, kMostTargets + kBystanders> ready{};
  std::array<std::atomic<std::uint32_t>, kMostTargets + kBystanders> terms{};
  std::array<std::atomic<std::uint32_t>, kMostTargets + kBystanders> others{};
  /// What the rings of the processes hold: 1 that it is ready, then its answer to each request.
  std::array<std::atomic<std::uint32_t>, kMostTargets> said{};
  /// When the processes were asked first; 0: not yet.
  std::array<std::atomic<std::int64_t>, kMostRequests> asked_ns{};
  /// Signals that the kernel has taken, by request and process.
  std::array<std::array<std::atomic<std::uint32_t>, kMostTargets>, kMostRequests> term_sent{};
  std::array<std::array<std::atomic<std::uint32_t>, kMostTargets>, kMostRequests> kill_sent{};
  std::array<std::atomic<std::uint32_t>, kPoints> killed_at{};
};

template <class T>
class SharedMemory {
 public:
  SharedMemory()
      : here_(new (::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                          -1, 0)) T) {}
  ~SharedMemory() { ::munmap(here_, sizeof(T)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  T* operator->() const { return here_; }
  T& operator*() const { return *here_; }

 private:
  T* here_;
};

// Of a process that waits to be signalled.
Shared* in_target = nullptr;
std::size_t number_of_target = 0;
bool target_obeys = false;

void OnSignal(int signal) {
  if (signal == kCrash) {
    ::signal(kCrashes, SIG_DFL);
    ::raise(kCrashes);
  }
  if (signal != SIGTERM) {
    in_target->others[number_of_target].fetch_add(1);
    return;
  }
  in_target->terms[number_of_target].fetch_add(1);
  if (target_obeys) ::_exit(kEndedByTerm);
}

[[noreturn]] void BeTarget(Shared* shared, std::size_t number, bool obeys) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{};
  ::setrlimit(RLIMIT_CORE, &no_core);
  in_target = shared;
  number_of_target = number;
  target_obeys = obeys;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM}) {
    struct sigaction action {};
    action.sa_handler = OnSignal;
    ::sigaction(signal, &action, nullptr);
  }
  shared->ready[number] = 1;
  while (true) ::pause();
}

Stopper::Uuid UuidOfTarget(const Scenario& scenario, std::size_t number) {
  if (number == scenario.ranks) return {};  // The root.
  return {0xaa, static_cast<std::uint8_t>(number + 1)};
}

store::RequestId IdOf(std::size_t request) {
  return {0x10, static_cast<std::uint8_t>(request + 1)};
}

store::Request RequestOf(const Scenario& scenario, std::size_t number) {
  const bool patient = scenario.stricter_after && number == 0;
  store::Request request;
  request.id = IdOf(number);
  request.who = "test";
  request.kind = "stop";
  request.body = JsonText(json{{"why", kWhy},
                               {"kill", scenario.kill && !patient},
                               {"checkpoint", patient || !scenario.stricter_after},
                               {"checkpoint_seconds", patient ? 900 : 1},
                               {"grace_seconds", patient ? 900 : 1}});
  return request;
}

/// Whether a request sends it to every process.
bool Sends(const Scenario& scenario, std::size_t request, int signal) {
  const bool patient = scenario.stricter_after && request == 0;
  if (scenario.crash == Crash::kBeforeSigterm) return false;
  if (signal == SIGKILL) return scenario.kill && !patient;
  // What the first has sent the second does not send again.
  return !scenario.stricter_after || patient != scenario.saves;
}

/// Processes of a training, and others beside them.
class Processes {
 public:
  Processes(const Scenario& scenario, Shared* shared) {
    const std::size_t count = scenario.targets() + kBystanders;
    for (std::size_t i = 0; i < count; ++i) {
      const bool target = i < scenario.targets();
      const std::size_t number = target ? i : kMostTargets + i - scenario.targets();
      const pid_t pid = ::fork();
      if (pid == 0) BeTarget(shared, number, scenario.obeys || !target);
      pids.push_back(pid);
      pidfds.push_back(OpenPidfd(pid));
      while (shared->ready[number] == 0) ::usleep(100);
    }
  }
  ~Processes() { End(); }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  bool Ended(std::size_t i) const { return PidfdEnded(pidfds[i].get()); }
  /// Those of the training crash; returns once they have.
  void Crash(const Scenario& scenario) const {
    for (std::size_t i = 0; i < scenario.targets(); ++i) {
      ::syscall(SYS_pidfd_send_signal, pidfds[i].get(), kCrash, nullptr, 0);
      while (!Ended(i)) ::usleep(50);
    }
  }
  /// Ends those that live; how each ended.
  std::vector<int> End() {
    std::vector<int> statuses;
    for (const pid_t pid : std::exchange(pids, {})) {
      siginfo_t info{};
      // In this order: whoever has ended by itself is not hit.
      const bool ended =
          ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid == pid;
      if (!ended) ::kill(pid, SIGKILL);
      int status = -1;
      while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
      }
      statuses.push_back(ended ? status : -1);  // -1: it lived.
    }
    return statuses;
  }

  std::vector<pid_t> pids;
  std::vector<UniqueFd> pidfds;
};

/// What the agent does of a stop, with the death that is meant for it.
class AgentPart {
 public:
  AgentPart(const Scenario& scenario, const std::filesystem::path& run, const Processes& processes,
            Shared* shared, int point, std::uint32_t nth)
      : scenario_(scenario), processes_(processes), shared_(shared), point_(point), nth_(nth) {
    store::WriterOptions options;
    options.min_free_bytes = 0;
    auto writer = store::Writer::Open(run / "agent-a", "agent-a", options);
    if (!writer.ok()) {
      std::fprintf(stderr, "%s\n", writer.status().message().c_str());
      ::_exit(9);
    }
    writer_ = std::move(writer).value();
    for (const format::RingPosition& p : writer_->RecoveredPositions()) {
      recovered_[{p.producer, p.ring}] = p.position;
    }
    stopper_ = std::make_unique<Stopper>(
        [this](const Stopper::Uuid& name, std::uint16_t ring) { return Recovered(name, ring); },
        [this](int pidfd, int signal) { return Signal(pidfd, signal); });
    for (std::size_t i = 0; i < scenario.targets(); ++i) {
      read_.push_back(Recovered(UuidOfTarget(scenario, i), 0));
    }
  }

  /// Until every request is answered.
  void Run() {
    for (int tick = 0; tick < kMostTicks; ++tick) {
      now_ns_ = shared_->now_ns += kTickNs;
      // Nobody asks before they have said that they save.
      const bool early = scenario_.saves && *std::min_element(read_.begin(), read_.end() - 1) == 0;
      const bool open = early || TakeDue();
      if (!open && !CrashesNow() && !OwesEnd()) return;
      Tick();
    }
    ::_exit(8);
  }

 private:
  std::uint64_t Recovered(const Stopper::Uuid& name, std::uint16_t ring) const {
    const auto found = recovered_.find({name, ring});
    return found == recovered_.end() ? 0 : found->second;
  }

  void At(Point point) {
    if (point != point_ || --nth_ > 0) return;
    shared_->killed_at[point].fetch_add(1);
    ::kill(::getpid(), SIGKILL);
    while (true) ::pause();
  }

  /// Whether the training is to crash, since it has lived through the stop; it does.
  bool CrashesNow() const {
    if (scenario_.crash != Crash::kAfterTheAnswer || processes_.Ended(scenario_.ranks))
      return false;
    processes_.Crash(scenario_);
    return true;
  }

  bool EndIsSaid() const { return end_said_ || Recovered({}, kAttemptMarkRing) != 0; }
  /// The command has ended, and the journal does not say so yet.
  bool OwesEnd() const { return processes_.Ended(scenario_.ranks) && !EndIsSaid(); }

  /// As Agent::SayAttemptEnd has it.
  void SayEnd() {
    if (!OwesEnd()) return;
    PendingEvent event;
    event.time_ns = now_ns_;
    event.kind = "run.attempt_end";
    event.message = "attempt 1 ended";
    nlohmann::ordered_json data = {{"attempt", 1}};
    stopper_->AddToEnd(scenario_.End(), Targets(), &data, &event.message);
    event.data = JsonText(data);
    event.marks = {{{}, kAttemptMarkRing, 3}};
    outbox_.Add(std::move(event));
    end_said_ = true;
  }

  /// As Capture has it: those that an agent before has begun first. False: all are answered.
  bool TakeDue() {
    std::vector<std::size_t> due;
    bool open = false;
    for (std::size_t i = 0; i < scenario_.requests; ++i) {
      const store::RequestId id = IdOf(i);
      if (Recovered(id, kRequestMarkRing) != 0) {
        if (recalled_.insert(i).second) stopper_->Recall(RequestOf(scenario_, i));
        continue;
      }
      if (answered_.contains(id)) continue;
      open = true;
      if (!taken_.contains(i) && IsDue(i)) due.push_back(i);
      if (!scenario_.stricter_after) break;
    }
    std::stable_partition(due.begin(), due.end(),
                          [&](std::size_t i) { return stopper_->HasBegun(IdOf(i)); });
    for (const std::size_t i : due) {
      taken_.insert(i);
      if (!stopper_->Take(RequestOf(scenario_, i), now_ns_, &outbox_).ok()) ::_exit(7);
      if (shared_->asked_ns[i] == 0) shared_->asked_ns[i] = now_ns_;
      At(kTaken);
    }
    return open;
  }

  bool IsDue(std::size_t request) const {
    if (!scenario_.stricter_after) return !stopper_->active();
    if (request == 0) return true;
    const std::int64_t asked = shared_->asked_ns[0];
    return asked != 0 && now_ns_ >= asked + *scenario_.stricter_after * kTickNs;
  }

  /// The request that is being carried out.
  std::size_t Current() const { return stopper_->request() == IdOf(1) ? 1 : 0; }

  std::vector<Stopper::Target> Targets() const {
    std::vector<Stopper::Target> out;
    for (std::size_t i = 0; i < scenario_.targets(); ++i) {
      out.push_back({UuidOfTarget(scenario_, i), processes_.pids[i], static_cast<std::int32_t>(i),
                     processes_.pidfds[i].get(), processes_.Ended(i)});
    }
    return out;
  }

  /// The processes' part: what they say comes some time after they were asked, once.
  void Train() {
    if (!scenario_.saves) return;
    const std::size_t request = Current();
    const std::int64_t first = shared_->asked_ns[0];
    if (scenario_.crash == Crash::kBeforeSigterm && first != 0 && now_ns_ >= first + 3 * kTickNs &&
        !processes_.Ended(scenario_.ranks)) {
      processes_.Crash(scenario_);
    }
    for (std::size_t i = 0; i < scenario_.ranks; ++i) {
      std::uint32_t said = 1;
      const std::int64_t asked = shared_->asked_ns[request];
      const bool saved = scenario_.answers && asked != 0 && now_ns_ >= asked + 3 * kTickNs;
      if (saved) said += static_cast<std::uint32_t>(request) + 1;
      if (shared_->said[i] < said) shared_->said[i] = said;
    }
  }

  void Drain(format::Batch* batch) {
    for (std::size_t i = 0; i < scenario_.ranks; ++i) {
      if (read_[i] >= shared_->said[i]) continue;
      const std::uint64_t next = read_[i]++;
      format::Rows rows;
      format::EventRow row;
      row.ord_ns = row.time_ns = now_ns_;
      row.kind = next == 0 ? "stop.ready" : "stop.saved";
      data_.push_back(std::make_unique<std::string>(
          next == 0 ? "{}" : JsonText(json{{"request", store::Hex(IdOf(next - 1))}})));
      row.data = *data_.back();
      row.pid = processes_.pids[i];
      rows.events.push_back(row);
      batch->rows.events.push_back(row);
      batch->positions.push_back({UuidOfTarget(scenario_, i), 0, read_[i]});
      stopper_->Offer(rows, UuidOfTarget(scenario_, i), &batch->positions);
    }
  }

  /// As Agent::Run and Agent::Tick have it.
  void Tick() {
    Train();
    const store::RequestId before = stopper_->request();
    stopper_->Poll(Targets(), now_ns_, &outbox_);
    const store::RequestId after = stopper_->request();
    const bool takes_place =
        before != after && before != store::RequestId{} && after != store::RequestId{};
    if (takes_place) At(kTakesPlace);
    if (!outbox_.empty()) At(kDecided);
    format::Batch batch;
    data_.clear();
    Drain(&batch);
    SayEnd();
    outbox_.AddTo(1, &batch);
    batch.watermark_ns = now_ns_;
    bool answers = false;
    for (const format::RingPosition& position : batch.positions) {
      if (position.ring != kRequestMarkRing) continue;
      answers = true;
      answered_.insert(position.producer);
    }
    const bool idle = batch.rows.events.empty();
    At(idle ? kIdle : kBatchMade);
    if (!writer_->Append(std::move(batch)).ok()) ::_exit(6);
    outbox_.Sent();
    stopper_->Settle(true);
    std::vector<Stopper::Uuid> read;
    for (std::size_t i = 0; i < scenario_.ranks; ++i) read.push_back(UuidOfTarget(scenario_, i));
    stopper_->Drained(read);
    if (takes_place) At(kTookPlace);
    if (!idle) At(kJournalled);
    if (answers) At(kAnswered);
    if (const std::uint64_t number = stopper_->waits_for(); number != 0) {
      writer_->Sync();
      while (!writer_->Synced()) ::usleep(100);
      At(kSynced);
      stopper_->Journalled(number, Targets(), now_ns_, &outbox_);
      At(kSignalled);
    }
    if (!writer_->Tick().ok()) ::_exit(5);
  }

  int Signal(int pidfd, int signal) {
    std::size_t i = 0;
    while (i < scenario_.targets() && processes_.pidfds[i].get() != pidfd) ++i;
    if (i == scenario_.targets()) ::_exit(4);
    At(kBeforeSignal);
    const std::uint32_t before = shared_->terms[i];
    if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) != 0) return errno;
    auto& sent = signal == SIGKILL ? shared_->kill_sent : shared_->term_sent;
    sent[Current()][i].fetch_add(1);
    At(kAfterSignal);
    // The clock is ours: what follows from it has followed before it goes on.
    const bool ends = signal == SIGKILL || scenario_.obeys;
    while (!processes_.Ended(i) && (ends || shared_->terms[i] == before)) ::usleep(50);
    return 0;
  }

  const Scenario& scenario_;
  const Processes& processes_;
  Shared* shared_;
  const int point_;
  std::uint32_t nth_;
  std::unique_ptr<store::Writer> writer_;
  std::map<std::pair<Stopper::Uuid, std::uint16_t>, std::uint64_t> recovered_;
  std::unique_ptr<Stopper> stopper_;
  Outbox outbox_;
  std::set<store::RequestId> answered_;
  std::vector<std::uint64_t> read_;  ///< Of the ring of each process.
  std::vector<std::unique_ptr<std::string>> data_;
  std::set<std::size_t> taken_;     ///< Requests, by this agent.
  std::set<std::size_t> recalled_;  ///< Those that one before has answered.
  bool end_said_ = false;
  std::int64_t now_ns_ = 0;
};

/// Holds each sentence of the journal against what has happened so far.
class Sentences {
 public:
  Sentences(const Scenario& scenario, const std::filesystem::path& run, const Processes& processes,
            const Shared& shared, bool killed)
      : scenario_(scenario), processes_(processes), shared_(shared), killed_(killed) {
    everything_ = store::ReadEverything(run);
    for (const format::EventRow& row : everything_->rows.events) {
      SCOPED_TRACE(std::string(row.kind) + ": " + std::string(row.message) + " " +
                   std::string(row.data));
      Check(row);
    }
  }

  bool EndIsSaid() const { return end_said_; }
  bool Answered(std::size_t request) const { return done_.contains(store::Hex(IdOf(request))); }
  std::size_t count() const { return count_; }

 private:
  std::size_t NumberOf(const json& process) {
    const auto found =
        std::find(processes_.pids.begin(), processes_.pids.end(), process.value("pid", 0));
    const auto i = static_cast<std::size_t>(found - processes_.pids.begin());
    EXPECT_LT(i, scenario_.targets()) << "no process of the training";
    EXPECT_EQ(process.value("root", false), i == scenario_.ranks);
    return std::min(i, scenario_.targets() - 1);
  }

  void Check(const format::EventRow& row) {
    const json data = ParseJson(row.data);
    if (row.kind == "stop.ready" || row.kind == "stop.saved") return;
    ++count_;
    if (row.kind == "run.attempt_end") {
      End(row, data);
      return;
    }
    const std::string id = data.value("id", "");
    const std::size_t request = id == store::Hex(IdOf(0)) ? 0 : 1;
    ASSERT_EQ(id, store::Hex(IdOf(request)));
    EXPECT_FALSE(done_.contains(id)) << "nothing more is said of a request that is answered";
    if (row.kind == "stop.begun") {
      EXPECT_EQ(data.at("who"), "test");
      EXPECT_EQ(data.at("why"), kWhy);
      EXPECT_EQ(data.at("again").get<bool>(), begun_.contains(id));
      if (begun_.emplace(id, row.time_ns).second) {
        EXPECT_EQ(data.value("instead_of", ""),
                  scenario_.stricter_after && request == 1 ? store::Hex(IdOf(0)) : "");
        return;
      }
      EXPECT_TRUE(killed_);
      EXPECT_FALSE(data.contains("instead_of"));
    } else if (row.kind == "stop.decided") {
      Decided(row, data, request);
    } else if (row.kind == "stop.signal") {
      Signalled(row, data, request);
    } else if (row.kind == "request.done") {
      Done(row, data, request);
      done_.insert(id);
    } else {
      ADD_FAILURE() << "an event of no stop";
    }
  }

  /// Who ended the training.
  void End(const format::EventRow& row, const json& data) {
    EXPECT_FALSE(end_said_) << "it ends once";
    end_said_ = true;
    EXPECT_TRUE(processes_.Ended(scenario_.ranks));
    if (scenario_.crash != Crash::kNever) {
      EXPECT_FALSE(data.contains("stopped")) << "it has crashed by itself";
      EXPECT_EQ(row.message, "attempt 1 ended");
      return;
    }
    // Nothing else ends them: the newest request that has sent a signal to the command.
    std::size_t by = scenario_.requests - 1;
    const auto sent = [&](std::size_t request) {
      return Sent(request, scenario_.ranks, SIGTERM) + Sent(request, scenario_.ranks, SIGKILL);
    };
    while (by > 0 && sent(by) == 0) --by;
    EXPECT_GE(sent(by), 1U);
    const json stopped = data.value("stopped", json::object());
    EXPECT_EQ(stopped.value("request", ""), store::Hex(IdOf(by)));
    EXPECT_EQ(stopped.value("who", ""), "test");
    const bool perhaps = stopped.value("perhaps", false);
    EXPECT_TRUE(!perhaps || killed_) << "it knows what it has sent";
    EXPECT_EQ(row.message, std::string("attempt 1 ended: ") + (perhaps ? "perhaps " : "") +
                               "stopped by test: " + kWhy);
  }

  void Decided(const format::EventRow& row, const json& data, std::size_t request) {
    const int signal = data.at("signal").get<int>();
    EXPECT_TRUE(Sends(scenario_, request, signal));
    for (const json& process : data.at("processes")) {
      EXPECT_TRUE(decided_.emplace(request, NumberOf(process), signal).second)
          << "decided a second time";
    }
    const std::int64_t begun = begun_[data.at("id").get<std::string>()];
    if (scenario_.saves && !scenario_.answers && !scenario_.stricter_after) {
      EXPECT_GE(row.time_ns - begun, kSecond);
    }
    if (signal == SIGKILL) {
      EXPECT_GE(row.time_ns - std::max(begun, term_ns_), kSecond);
    }
    if (!scenario_.answers) return;
    // All have saved by then.
    std::size_t saved = 0;
    for (const format::EventRow& each : everything_->rows.events) {
      saved += each.kind == "stop.saved" && each.seq < row.seq ? 1 : 0;
    }
    EXPECT_GE(saved, scenario_.ranks * (request + 1));
  }

  void Signalled(const format::EventRow& row, const json& data, std::size_t request) {
    const int signal = data.at("signal").get<int>();
    EXPECT_TRUE(Sends(scenario_, request, signal));
    if (signal == SIGTERM) term_ns_ = row.time_ns;
    std::size_t sent = 0;
    for (const json& process : data.at("processes")) {
      const std::size_t i = NumberOf(process);
      EXPECT_TRUE(decided_.contains(std::tuple(request, i, signal)))
          << "sent before it was decided";
      const std::uint32_t taken = Sent(request, i, signal);
      const std::string outcome = process.value("outcome", "");
      if (process.value("again", false)) {
        EXPECT_TRUE(killed_);
      }
      if (outcome == "sent") {
        ++sent;
        const std::uint32_t said = ++said_sent_[std::tuple(request, i, signal)];
        EXPECT_LE(said, taken) << "it was not sent to " << i;
      } else {
        // Nothing else ends them, so an agent that died has sent it.
        EXPECT_EQ(outcome, process.value("again", false) ? "unknown" : "had ended");
        EXPECT_TRUE(processes_.Ended(i));
        EXPECT_GE(taken, 1U);
      }
    }
    EXPECT_TRUE(row.message.find(" was sent to " + std::to_string(sent) + " process") !=
                std::string_view::npos);
  }

  void Done(const format::EventRow& row, const json& data, std::size_t request) {
    // Another one takes its place: all live by then, and may have ended since.
    const bool goes_on = scenario_.stricter_after && request == 0;
    EXPECT_EQ(data.value("goes_on_as", ""), goes_on ? store::Hex(IdOf(1)) : "");
    std::set<int> left;
    std::set<std::size_t> listed;
    for (const json& process : data.at("processes")) {
      const std::size_t i = NumberOf(process);
      EXPECT_TRUE(listed.insert(i).second);
      const bool lives = goes_on || (!scenario_.obeys && !scenario_.kill &&
                                     scenario_.crash != Crash::kBeforeSigterm);
      EXPECT_EQ(process.value("state", ""), lives ? "left" : "ended");
      if (!goes_on && scenario_.crash != Crash::kAfterTheAnswer) {
        EXPECT_EQ(processes_.Ended(i), !lives);
      }
      if (lives) left.insert(processes_.pids[i]);
      const auto delivered = [&](const char* key, int signal) {
        const std::string word = process.value(key, "");
        // It has ended meanwhile, so nothing else than the signal of an agent that died ended it.
        if (word == "unknown") {
          EXPECT_TRUE(killed_ && !lives);
        }
        // What the one before has sent is in the account of the one that took its place.
        const bool taken_over =
            scenario_.stricter_after && request == 1 && Sends(scenario_, 0, signal);
        EXPECT_TRUE(word == "sent" || word == "had ended" || word == "unknown" ||
                    (word == "none" && !Sends(scenario_, request, signal) && !taken_over))
            << word;
        if (word != "none") {
          EXPECT_GE(Sent(taken_over ? 0 : request, i, signal), 1U);
        }
      };
      delivered("sigterm", SIGTERM);
      delivered("sigkill", SIGKILL);
      const bool saved = scenario_.answers && i < scenario_.ranks;
      EXPECT_EQ(process.value("answer", ""), saved ? "saved" : "none");
    }
    EXPECT_EQ(listed.size(), scenario_.targets());
    EXPECT_EQ(data.at("left").get<std::set<int>>(), left);
    EXPECT_EQ(data.at("kept").size(), 0U);
    EXPECT_EQ(data.at("failures").size(), 0U);
    EXPECT_EQ(data.at("stopped").get<bool>(), left.empty());
    const bool says_so = row.message == "the training is stopped here" ||
                         ((killed_ || scenario_.crash == Crash::kBeforeSigterm) &&
                          row.message == "the training has ended here");
    EXPECT_EQ(says_so, left.empty());
  }

  std::uint32_t Sent(std::size_t request, std::size_t i, int signal) const {
    return (signal == SIGKILL ? shared_.kill_sent : shared_.term_sent)[request][i];
  }

  const Scenario& scenario_;
  const Processes& processes_;
  const Shared& shared_;
  const bool killed_;
  std::unique_ptr<store::Everything> everything_;
  std::map<std::string, std::int64_t> begun_;
  std::set<std::tuple<std::size_t, std::size_t, int>> decided_;
  std::map<std::tuple<std::size_t, std::size_t, int>, std::uint32_t> said_sent_;
  std::set<std::string> done_;
  std::int64_t term_ns_ = 0;
  std::size_t count_ = 0;
  bool end_said_ = false;
};

struct Counts {
  std::array<std::uint32_t, kPoints> killed_at{};
  std::uint32_t kills = 0;
  std::uint32_t runs = 0;
  std::uint32_t signals = 0;
  std::uint32_t repeated = 0;
  std::size_t sentences = 0;
};

class StopCrashTest : public ::testing::Test {
 protected:
  /// A training, a stop, and the deaths of its agents; the first dies at the nth time at `point`.
  void Stop(const Scenario& scenario, int point, std::uint32_t nth, Counts* counts) {
    const store::TempFolder temp;
    const std::filesystem::path run = temp.path() / "run";
    ASSERT_NO_FATAL_FAILURE(store::MakeRun(run));
    const SharedMemory<Shared> shared;
    Processes processes(scenario, &*shared);
    ++counts->runs;
    bool killed = false;
    for (int died = 0;; ++died) {
      const pid_t agent = ::fork();
      ASSERT_GE(agent, 0);
      if (agent == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        AgentPart(scenario, run, processes, &*shared, point, nth).Run();
        ::_exit(0);
      }
      int status = -1;
      while (::waitpid(agent, &status, 0) < 0 && errno == EINTR) {
      }
      const bool dead = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      ASSERT_TRUE(dead || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
      killed = killed || dead;
      counts->kills += dead ? 1 : 0;
      const Sentences sentences(scenario, run, processes, *shared, killed);
      if (HasFailure()) return;
      if (!dead) {
        for (std::size_t i = 0; i < scenario.requests; ++i) EXPECT_TRUE(sentences.Answered(i));
        EXPECT_EQ(sentences.EndIsSaid(), processes.Ended(scenario.ranks));
        counts->sentences += sentences.count();
        break;
      }
      // The next one may die too.
      const bool again = died + 1 < kMostKillsARun && random_() % 2 == 0;
      point = again ? static_cast<int>(random_() % kPoints) : -1;
      nth = 1 + static_cast<std::uint32_t>(random_() % 4);
    }
    for (std::size_t i = 0; i < kPoints; ++i) counts->killed_at[i] += shared->killed_at[i];
    Account(scenario, *shared, processes.End(), counts);
    Leftovers(scenario, run);
  }

  /// Nobody has had too few signals, and nobody one that was not meant for it.
  static void Account(const Scenario& scenario, const Shared& shared,
                      const std::vector<int>& statuses, Counts* counts) {
    for (std::size_t i = 0; i < scenario.targets(); ++i) {
      SCOPED_TRACE("process " + std::to_string(i));
      EXPECT_EQ(shared.others[i], 0U);
      EXPECT_GE(shared.terms[i], scenario.crash == Crash::kBeforeSigterm ? 0U : 1U)
          << "SIGTERM is missing";
      for (std::size_t request = 0; request < scenario.requests; ++request) {
        for (const int signal : {SIGTERM, SIGKILL}) {
          const bool due = Sends(scenario, request, signal);
          const std::uint32_t sent =
              (signal == SIGKILL ? shared.kill_sent : shared.term_sent)[request][i];
          EXPECT_GE(sent, due ? 1U : 0U) << "signal " << signal << " is missing";
          if (!due) {
            EXPECT_EQ(sent, 0U) << "a wrong signal " << signal;
          }
          counts->signals += sent;
          counts->repeated += sent - (due ? 1 : 0);
        }
      }
      if (scenario.crash != Crash::kNever) {
        EXPECT_TRUE(WIFSIGNALED(statuses[i]) && WTERMSIG(statuses[i]) == kCrashes);
      } else if (scenario.kill) {
        EXPECT_TRUE(WIFSIGNALED(statuses[i]) && WTERMSIG(statuses[i]) == SIGKILL);
      } else if (scenario.obeys) {
        EXPECT_TRUE(WIFEXITED(statuses[i]) && WEXITSTATUS(statuses[i]) == kEndedByTerm);
      } else {
        EXPECT_EQ(statuses[i], -1) << "it has ended";
      }
    }
    for (std::size_t i = 0; i < kBystanders; ++i) {
      EXPECT_EQ(shared.terms[kMostTargets + i], 0U) << "a wrong SIGTERM";
      EXPECT_EQ(shared.others[kMostTargets + i], 0U) << "a wrong signal";
      EXPECT_EQ(statuses[scenario.targets() + i], -1) << "a bystander has ended";
    }
  }

  /// What the journal keeps of answered requests does not grow with the processes.
  static void Leftovers(const Scenario& scenario, const std::filesystem::path& run) {
    const auto writer = store::Writer::Open(run / "agent-a", "agent-a");
    ASSERT_TRUE(writer.ok());
    std::set<Stopper::Uuid> known = {{}};  // What is kept of the attempt.
    for (std::size_t i = 0; i < scenario.requests; ++i) known.insert(IdOf(i));
    for (std::size_t i = 0; i < scenario.ranks; ++i) known.insert(UuidOfTarget(scenario, i));
    for (const format::RingPosition& position : (*writer)->RecoveredPositions()) {
      EXPECT_TRUE(known.contains(position.producer)) << "ring " << position.ring;
    }
    ASSERT_TRUE((*writer)->Close(false).ok());
  }

  std::mt19937 random_{7};
};

std::vector<Scenario> StricterScenarios(std::size_t ranks) {
  return {{.name = "it waits for checkpoints, and is stopped at once",
           .ranks = ranks,
           .obeys = false,
           .saves = true,
           .kill = true,
           .requests = 2,
           .stricter_after = 3},
          {.name = "it waits for checkpoints, and obeys a stop that does not",
           .ranks = ranks,
           .saves = true,
           .requests = 2,
           .stricter_after = 0},
          {.name = "SIGKILL is asked for while SIGTERM is sent",
           .ranks = ranks,
           .obeys = false,
           .kill = true,
           .requests = 2,
           .stricter_after = 0},
          {.name = "it lives on, and SIGKILL is asked for",
           .ranks = ranks,
           .obeys = false,
           .kill = true,
           .requests = 2,
           .stricter_after = 8}};
}

std::vector<Scenario> Scenarios() {
  std::vector<Scenario> out;
  for (const std::size_t ranks : {1, 8}) {
    out.push_back({.name = "it obeys", .ranks = ranks});
    out.push_back({.name = "it lives on, and is stopped again",
                   .ranks = ranks,
                   .obeys = false,
                   .requests = 2});
    out.push_back({.name = "SIGKILL is asked for", .ranks = ranks, .obeys = false, .kill = true});
    out.push_back({.name = "it saves", .ranks = ranks, .saves = true, .answers = true});
    out.push_back({.name = "it does not come to save", .ranks = ranks, .saves = true});
    out.push_back({.name = "it saves, lives on, and is stopped again",
                   .ranks = ranks,
                   .obeys = false,
                   .saves = true,
                   .answers = true,
                   .requests = 2});
    out.push_back({.name = "it crashes while it is to save",
                   .ranks = ranks,
                   .obeys = false,
                   .saves = true,
                   .crash = Crash::kBeforeSigterm});
    out.push_back({.name = "it lives on, and crashes later",
                   .ranks = ranks,
                   .obeys = false,
                   .crash = Crash::kAfterTheAnswer});
    for (Scenario& scenario : StricterScenarios(ranks)) out.push_back(scenario);
  }
  return out;
}

TEST_F(StopCrashTest, EachProcessHasItsSignalsAndEachSentenceIsTrueWhereverTheAgentDies) {
  const char* rounds = ::getenv("TELLTALE_FAULT_ROUNDS");
  const std::uint32_t kills = 50U * (rounds != nullptr ? std::max(1, std::atoi(rounds)) : 2);
  const std::vector<Scenario> scenarios = Scenarios();
  std::vector<Scenario> stricter = StricterScenarios(1);
  for (const Scenario& scenario : StricterScenarios(8)) stricter.push_back(scenario);
  Counts counts;
  // Nobody dies.
  for (const Scenario& scenario : scenarios) {
    SCOPED_TRACE(scenario.name);
    Stop(scenario, -1, 0, &counts);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_EQ(counts.kills, 0U);
  EXPECT_EQ(counts.repeated, 0U) << "each signal is sent once where nobody dies";
  // At each point once, then anywhere.
  for (std::size_t i = 0; counts.kills < kills; ++i) {
    const auto point = static_cast<int>(i % kPoints);
    const std::size_t turn = i / kPoints;
    // These come in some scenarios alone, and once there.
    const bool rare = point == kTakesPlace || point == kTookPlace;
    const Scenario& scenario =
        rare ? stricter[(turn + i) % stricter.size()] : scenarios[(turn + i) % scenarios.size()];
    const std::uint32_t nth = turn == 0 || rare ? 1 : 1 + static_cast<std::uint32_t>(random_() % 9);
    SCOPED_TRACE(std::string(scenario.name) + ", " + std::to_string(scenario.ranks) + " ranks, " +
                 kPointNames[static_cast<std::size_t>(point)] + " " + std::to_string(nth));
    Stop(scenario, point, nth, &counts);
    ASSERT_FALSE(HasFailure());
    ASSERT_LT(i, 50U * kills) << "nobody dies";
  }
  for (std::size_t i = 0; i < kPoints; ++i) {
    EXPECT_GE(counts.killed_at[i], 1U) << kPointNames[i];
    std::printf("killed, %s: %u\n", kPointNames[i], counts.killed_at[i]);
  }
  std::printf(
      "counts: kills %u, stops %u, signals %u, of them repeated %u, sentences %zu, wrong or "
      "missing "
      "signals 0, untrue sentences 0\n",
      counts.kills, counts.runs, counts.signals, counts.repeated, counts.sentences);
}

}  // namespace
}  // namespace telltale::agent
