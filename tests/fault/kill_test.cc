// SPDX-License-Identifier: Apache-2.0
// kill -9 of every process of a run at a random step: what the oracle saw committed is in the store
// once, nothing twice, every byte of it is good, the state is true, helpers are back and write
// again, the training waits for nobody.
// TELLTALE_FAULT_ROUNDS sets how often each is done (3; `make fault` does 20).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <type_traits>

#include "base/process.h"
#include "harness.h"
#include "store/run_info.h"
#include "store/verify.h"

namespace telltale::fault {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* kForever = "1000000";

int Rounds() {
  const char* text = ::getenv("TELLTALE_FAULT_ROUNDS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 3;
}

/// A variable of the environment, as long as this lives; one of the caller's goes on before it.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    const char* there = ::getenv(name);
    if (there != nullptr) before_ = there;
    ::setenv(name, (there != nullptr ? fmt::format("{}:{}", there, value) : value).c_str(), 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// The promise of the design, not a wish of the test.
constexpr std::chrono::seconds kBackWithin(5);

/// No step of a millisecond takes so long, not even on a machine that has much else to do; one that
/// waits for a helper to come back, or for a lock that a dead one holds, does.
constexpr std::int64_t kLongestStepNs = 2'000'000'000;

class Kill : public ::testing::TestWithParam<int> {
 protected:
  /// Starts a run of `steps` steps of a millisecond and waits for a random one.
  void Start(const char* steps, const char* end = "0", const char* phase = "") {
    oracle_ = Oracle::Map((scratch_ / "oracle").c_str());
    ASSERT_NE(oracle_, nullptr);
    run_ = scratch_ / "run";
    started_ = StartRun(run_, {}, {TrainerPath(), scratch_ / "oracle", steps, "1000", end, phase},
                        scratch_ / "err");
    std::random_device random;
    const auto at = std::uniform_int_distribution<std::uint64_t>(1, 400)(random);
    SCOPED_TRACE(fmt::format("random step {}", at));
    ASSERT_TRUE(Await([&] { return oracle_->committed >= at; })) << started_.Err();
    ASSERT_EQ(oracle_->recording, 2) << "the trainer is not recorded: " << started_.Err();
  }
  pid_t Helper(std::string_view kind) {
    pid_t pid = 0;
    EXPECT_TRUE(Await([&] { return (pid = FindHelper(kind, run_)) != 0; })) << started_.Err();
    return pid;
  }
  /// The rows of one table that the run holds while it goes on; `visit` sees each.
  template <class Row>
  void VisitRows(const std::function<void(const Row&)>& visit) const {
    auto reader = store::RunReader::Open(run_);
    if (!reader.ok()) return;
    StringPool pool;
    format::Rows rows;
    store::Salvage salvage;
    if (!(*reader)->ReadAll(store::MaskOf(Row::kTable), &pool, &rows, &salvage).ok()) return;
    format::ForEachTable(rows, [&]([[maybe_unused]] const auto& table) {
      using Table = std::remove_cvref_t<decltype(table)>;
      if constexpr (std::is_same_v<typename Table::value_type, Row>) {
        for (const Row& row : table) visit(row);
      }
    });
  }
  /// The highest mark that an agent has stored, -1 where there is none.
  std::int64_t NewestMark() const {
    std::int64_t newest = -1;
    VisitRows<format::ScalarRow>([&](const format::ScalarRow& row) {
      if (row.name == "mark") newest = std::max(newest, static_cast<std::int64_t>(row.value));
    });
    return newest;
  }
  /// The newest revision of a finding about the trainer's waiting, 0 where there is none.
  std::int64_t NewestRevision() const {
    std::int64_t newest = 0;
    VisitRows<format::FindingRow>([&](const format::FindingRow& row) {
      if (row.rule == "InputBound") newest = std::max<std::int64_t>(newest, row.revision);
    });
    return newest;
  }
  /// Waits until the agent that is there now has stored what was recorded after this call.
  void AwaitNewMark() {
    const auto next = static_cast<std::int64_t>(oracle_->committed.load());
    ASSERT_TRUE(Await([&] { return NewestMark() > next; })) << started_.Err();
  }
  /// Kills the helper and waits until another is there and the training has gone on beside it.
  void KillAndAwaitSuccessor(std::string_view kind) {
    const pid_t old = Helper(kind);
    const std::uint64_t before = oracle_->committed;
    const auto begin = steady_clock::now();
    ASSERT_EQ(::kill(old, SIGKILL), 0);
    ASSERT_TRUE(Await([&] {
      const pid_t now = FindHelper(kind, run_);
      return now != 0 && now != old;
    })) << started_.Err();
    EXPECT_LE(steady_clock::now() - begin, kBackWithin);
    ASSERT_TRUE(Await([&] { return oracle_->committed >= before + 300; }));
    const std::int64_t median_before = MedianStepNs(0, before);
    const std::int64_t median_after = MedianStepNs(before, oracle_->committed);
    // A training that is slowed in each step shows in the median, one that waited once does not.
    EXPECT_LE(median_after, 3 * median_before + 2'000'000);
    EXPECT_LE(LongestStepNs(before, oracle_->committed), kLongestStepNs);
    RecordProperty("median_step_us_before", static_cast<int>(median_before / 1000));
    RecordProperty("median_step_us_after", static_cast<int>(median_after / 1000));
  }
  /// What the supervisor and the agent said.
  std::string Said() const {
    std::ifstream log(run_ / "logs" / "agent.log");
    return started_.Err() + std::string(std::istreambuf_iterator<char>(log), {});
  }
  void EndTraining() { ASSERT_EQ(::kill(oracle_->pid, SIGTERM), 0); }
  /// Reads the run once nobody writes to it any more, and checks every byte of it.
  void Read() {
    for (const char* kind : {"agent", "watch"}) {
      ASSERT_TRUE(Await([&] { return FindHelper(kind, run_) == 0; })) << kind;
    }
    ReadRun(run_, &recorded_);
    const auto report = store::Verify(run_);
    ASSERT_TRUE(report.ok()) << report.status().message();
    for (const store::Problem& problem : report->problems) {
      ADD_FAILURE() << problem.file << ": " << problem.what;
    }
  }

  /// The longest time from the end of one step to the end of the next; steps `from` to `to`.
  std::int64_t LongestStepNs(std::uint64_t from, std::uint64_t to) const {
    std::int64_t longest = 0;
    to = std::min<std::uint64_t>(to, Oracle::kMaxSteps);
    for (std::uint64_t i = std::max<std::uint64_t>(from, 1); i < to; ++i) {
      longest = std::max(longest, oracle_->end_ns[i] - oracle_->end_ns[i - 1]);
    }
    return longest;
  }
  std::int64_t MedianStepNs(std::uint64_t from, std::uint64_t to) const {
    std::vector<std::int64_t> lengths;
    for (std::uint64_t i = std::max<std::uint64_t>(from, 1); i < to; ++i) {
      lengths.push_back(oracle_->end_ns[i] - oracle_->end_ns[i - 1]);
    }
    if (lengths.empty()) return 0;
    const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
    std::nth_element(lengths.begin(), middle, lengths.end());
    return *middle;
  }

  Scratch scratch_{"kill"};
  std::filesystem::path run_;
  Oracle* oracle_ = nullptr;
  Started started_;
  Recorded recorded_;
};

TEST_P(Kill, TheTraining) {
  Start(kForever);
  ASSERT_EQ(::kill(oracle_->pid, SIGKILL), 0);
  EXPECT_EQ(started_.Wait(), -SIGKILL) << started_.Err();
  Read();
  EXPECT_EQ(recorded_.state, "killed");
  EXPECT_EQ(recorded_.signal, SIGKILL);
  EXPECT_EQ(CheckOnce(recorded_, oracle_->committed), "");
  EXPECT_EQ(CountEvents(recorded_, "process.exit"), 1U);
}

TEST_P(Kill, TheAgent) {
  Start(kForever);
  AwaitNewMark();  // One that has said nothing yet has no start to be counted.
  KillAndAwaitSuccessor("agent");
  AwaitNewMark();
  EndTraining();
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
  Read();
  EXPECT_EQ(recorded_.state, "killed");
  EXPECT_EQ(CheckOnce(recorded_, oracle_->committed), "");
  EXPECT_EQ(CountEvents(recorded_, "agent.start"), 2U);
  EXPECT_EQ(CountEvents(recorded_, "gap"), 1U);
  for (const char* once :
       {"process.start", "process.exit", "run.attempt_start", "run.attempt_end"}) {
    EXPECT_EQ(CountEvents(recorded_, once), 1U) << once;
  }
}

/// With the supervisor stopped nobody comes in the agent's place: whatever the training waited for
/// would never come, and it would not make another step.
TEST_P(Kill, TheAgentAndTheTrainingGoesOnWithoutAny) {
  Start(kForever);
  const pid_t agent = Helper("agent");
  ASSERT_EQ(::kill(started_.pid, SIGSTOP), 0);
  ASSERT_EQ(::kill(agent, SIGKILL), 0);
  ASSERT_TRUE(Await([&] { return FindHelper("agent", run_) == 0; }));
  const std::uint64_t before = oracle_->committed;
  ASSERT_TRUE(Await([&] { return oracle_->committed >= before + 300; })) << "it waits for an agent";
  EXPECT_EQ(FindHelper("agent", run_), 0);
  ASSERT_EQ(::kill(started_.pid, SIGCONT), 0);
  Helper("agent");
  AwaitNewMark();
  EndTraining();
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
  Read();
  EXPECT_EQ(CheckOnce(recorded_, oracle_->committed), "");
}

TEST_P(Kill, TheAgentAgainAndAgain) {
  Start(kForever);
  for (int i = 0; i < 4; ++i) {
    KillAndAwaitSuccessor("agent");
    AwaitNewMark();
  }
  EndTraining();
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
  Read();
  EXPECT_EQ(CheckOnce(recorded_, oracle_->committed), "");
  EXPECT_EQ(CountEvents(recorded_, "process.start"), 1U);
}

TEST_P(Kill, TrainingAndAgentTogether) {
  Start(kForever);
  const pid_t agent = Helper("agent");
  const bool agent_first = GetParam() % 2 == 0;
  std::random_device random;
  const auto apart =
      std::chrono::microseconds(std::uniform_int_distribution<int>(0, 10'000)(random));
  ::kill(agent_first ? agent : oracle_->pid.load(), SIGKILL);
  std::this_thread::sleep_for(apart);  // The case itself, not a wait for something.
  ::kill(agent_first ? oracle_->pid.load() : agent, SIGKILL);
  EXPECT_EQ(started_.Wait(), -SIGKILL) << started_.Err();
  Read();
  EXPECT_EQ(recorded_.state, "killed");
  EXPECT_EQ(CheckOnce(recorded_, oracle_->committed), "") << started_.Err();
  EXPECT_EQ(CountEvents(recorded_, "process.exit"), 1U);
}

TEST_P(Kill, TheWatcher) {
  Start(kForever, "0", "wait");
  ASSERT_TRUE(Await([&] { return NewestRevision() > 0; })) << "nothing was found to lose";
  KillAndAwaitSuccessor("watch");
  const std::int64_t revision = NewestRevision();
  ASSERT_TRUE(Await([&] { return NewestRevision() > revision; }))
      << "the new watcher writes nothing: " << started_.Err();
  const auto watched = static_cast<std::int64_t>(oracle_->committed.load());
  EndTraining();
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
  Read();
  EXPECT_EQ(recorded_.state, "killed");
  EXPECT_EQ(CheckOnce(recorded_, oracle_->committed), "");
  std::set<std::string> incidents;
  std::set<std::uint32_t> revisions;
  const format::FindingRow* last = nullptr;
  for (const format::FindingRow& row : recorded_.rows.findings) {
    if (row.rule != "InputBound") continue;
    incidents.emplace(row.incident);
    EXPECT_TRUE(revisions.insert(row.revision).second) << row.revision << " is there twice";
    if (last == nullptr || row.revision > last->revision) last = &row;
  }
  EXPECT_EQ(incidents.size(), 1U) << "one and the same before the kill and after it";
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->state, "closed");
  EXPECT_GE(last->last_step, watched - 1);
}

TEST_P(Kill, TheSupervisor) {
  Start("1500", "5");
  const pid_t agent = Helper("agent");
  const std::uint64_t ticks = ProcessStartTicks(agent);
  const std::uint64_t before = oracle_->committed;
  ASSERT_EQ(::kill(started_.pid, SIGKILL), 0);
  EXPECT_EQ(started_.Wait(), -SIGKILL);
  ASSERT_TRUE(Await([&] {
    return oracle_->committed > before + 100 || oracle_->committed == 1500;
  })) << "the training must go on";
  EXPECT_EQ(ProcessStartTicks(agent), ticks) << "the agent must go on";
  ASSERT_TRUE(Await([&] { return oracle_->committed == 1500; }));
  ASSERT_TRUE(Await([&] { return ProcessStartTicks(agent) != ticks; })) << "and end with it";
  Read();
  EXPECT_EQ(CheckOnce(recorded_, 1500), "") << Said();
  // How it ended is known where the kernel tells those that are not its parent.
  EXPECT_TRUE((recorded_.state == "failed" && recorded_.exit_code == 5) ||
              recorded_.state == "lost")
      << recorded_.state;
  EXPECT_EQ(CountEvents(recorded_, "run.attempt_end"), 1U);
}

/// Whom to record the agent hears before the disk has taken anything.
TEST_P(Kill, TheSupervisorWhoseDiskIsBusy) {
  const std::filesystem::path gate = scratch_ / "gate";
  std::ofstream(gate).put('\n');
  {
    const Variable busy("SLOW_SYNC_GATE", gate.string());
    const Variable preload("LD_PRELOAD", TELLTALE_SLOW_SYNC);
    const Variable order("ASAN_OPTIONS", "verify_asan_link_order=0");
    Start(kForever);
  }
  ASSERT_TRUE(Await([&] { return NewestMark() >= 0; })) << Said();
  const auto info = store::ReadRunInfo(run_);
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->attempts.back().pid, 0) << "the disk has taken it: nothing was tried";
  ASSERT_EQ(::kill(started_.pid, SIGKILL), 0);
  EXPECT_EQ(started_.Wait(), -SIGKILL);
  // The agent says it in the supervisor's place; until then the run looks lost.
  ASSERT_TRUE(Await([&] {
    const auto now = store::ReadRunInfo(run_);
    return now.ok() && now->attempts.back().pid == oracle_->pid;
  }));
  EXPECT_EQ(store::DeriveRunState(*store::ReadRunInfo(run_), run_).state, "running");
  EndTraining();
  Read();
  EXPECT_EQ(CheckOnce(recorded_, oracle_->committed), "") << Said();
  EXPECT_EQ(CountEvents(recorded_, "run.attempt_end"), 1U);
}

TEST_P(Kill, SupervisorAndTrainingTogether) {
  Start(kForever);
  const pid_t agent = Helper("agent");
  const std::uint64_t ticks = ProcessStartTicks(agent);
  ::kill(started_.pid, SIGKILL);
  ::kill(oracle_->pid, SIGKILL);
  EXPECT_EQ(started_.Wait(), -SIGKILL);
  ASSERT_TRUE(Await([&] { return ProcessStartTicks(agent) != ticks; }));
  Read();
  EXPECT_EQ(CheckOnce(recorded_, oracle_->committed), "");
  EXPECT_TRUE((recorded_.state == "killed" && recorded_.signal == SIGKILL) ||
              recorded_.state == "lost")
      << recorded_.state;
}

TEST_P(Kill, ARealTorchTrainingAndItsAgent) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a plain Python cannot load a library under a sanitizer";
#endif
  if (std::system("/usr/bin/python3 -c 'import torch' 2>/dev/null") != 0) {
    GTEST_SKIP() << "/usr/bin/python3 has no torch: not tested here";
  }
  oracle_ = Oracle::Map((scratch_ / "oracle").c_str());
  ASSERT_NE(oracle_, nullptr);
  run_ = scratch_ / "run";
  started_ = StartRun(run_, {},
                      {"/usr/bin/python3", TELLTALE_TORCH_TRAINER, scratch_ / "oracle", "1000000"},
                      scratch_ / "err");
  std::random_device random;
  const auto at = std::uniform_int_distribution<std::uint64_t>(50, 500)(random);
  ASSERT_TRUE(Await([&] { return oracle_->committed >= at; })) << started_.Err();
  const pid_t agent = Helper("agent");
  ASSERT_EQ(::kill(agent, SIGKILL), 0);
  ASSERT_TRUE(Await([&] { return oracle_->committed >= at + 300; })) << started_.Err();
  ASSERT_EQ(::kill(oracle_->pid, SIGKILL), 0);
  EXPECT_EQ(started_.Wait(), -SIGKILL) << started_.Err();
  Read();
  EXPECT_EQ(recorded_.signal, SIGKILL);
  EXPECT_EQ(CheckStepsOnce(recorded_, oracle_->committed), "") << started_.Err();
}

INSTANTIATE_TEST_SUITE_P(Rounds, Kill, ::testing::Range(0, Rounds()));

}  // namespace
}  // namespace telltale::fault
