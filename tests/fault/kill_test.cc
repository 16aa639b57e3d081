// SPDX-License-Identifier: Apache-2.0
// kill -9 of every process of a run at a random step: what the oracle saw committed is in the store
// once, nothing twice, every byte of it is good, the state is true, helpers are back and write
// again, the training waits for nobody.
// TELLTALE_FAULT_ROUNDS sets how often each is done (3, KillAndSteps 5; `make fault` does 20).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "base/units.h"
#include "harness.h"
#include "rules/replay.h"
#include "store/folder.h"
#include "store/journal_reader.h"
#include "store/run_info.h"
#include "store/verify.h"

namespace telltale::fault {
namespace {

constexpr const char* kForever = "1000000";

int Rounds(int otherwise = 3) {
  const char* text = ::getenv("TELLTALE_FAULT_ROUNDS");
  return text != nullptr ? std::max(1, std::atoi(text)) : otherwise;
}

/// The promise of the design, not a wish of the test. It is held against what the product and the
/// kernel have noted, not against when a test that has much beside it comes to see it; and the
/// median of kToTell has to keep it, for a machine may always be late once: `make fault` has so
/// many, a program of one round, as ctest runs them, notes what it took.
constexpr std::int64_t kBackWithinNs = 5 * kSecond;
constexpr std::size_t kToTell = 3;

/// No step of a millisecond takes so long, not even on a machine that has much else to do; one that
/// waits for a helper to come back, or for a lock that a dead one holds, does.
constexpr std::int64_t kLongestStepNs = 2'000'000'000;

std::int64_t NowNs(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

template <class T>
T MedianOf(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.empty() ? T() : *middle;
}

class KillTest : public ::testing::Test {
 protected:
  static void TearDownTestSuite() {
    for (const auto& [killed, took] : back_ns_) {
      if (took.size() >= kToTell) {
        EXPECT_LE(MedianOf(took), kBackWithinNs) << killed << ", median of " << took.size();
      }
      RecordProperty(killed + "_back_ms", static_cast<int>(MedianOf(took) / kMs));
    }
    back_ns_.clear();
  }
  /// Starts a run of `steps` steps of a millisecond and waits for a random one.
  void Start(const char* steps, const char* end = "0", const char* phase = "") {
    std::random_device random;
    const auto at = std::uniform_int_distribution<std::uint64_t>(1, 400)(random);
    SCOPED_TRACE(fmt::format("random step {}", at));
    StartUpTo(at, steps, "1000", end, phase);
  }
  void StartUpTo(std::uint64_t at, const char* steps, const char* step_us, const char* end,
                 const char* phase) {
    oracle_ = Oracle::Map((scratch_ / "oracle").c_str());
    ASSERT_NE(oracle_, nullptr);
    run_ = scratch_ / "run";
    started_ = StartRun(run_, {}, {TrainerPath(), scratch_ / "oracle", steps, step_us, end, phase},
                        scratch_ / "err");
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
  /// Whether this watcher has read records of the run and said so.
  bool HasWatched(pid_t watcher) const {
    bool has = false;
    VisitRows<format::LedgerRow>([&](const format::LedgerRow& row) {
      has = has || (row.name == "watch.records_read" && row.pid == watcher && row.value > 0);
    });
    return has;
  }
  /// What the helper adds to the kernel's clock in its records.
  std::int64_t ClockOf(std::string_view kind) const {
    std::filesystem::path writer;
    for (const auto& entry : std::filesystem::directory_iterator(run_)) {
      if (entry.path().filename().string().starts_with(kind)) writer = entry.path();
    }
    const auto folder = store::ListFolder(writer);
    if (!folder.ok() || folder->journals.empty()) return 0;
    const auto journal =
        store::JournalFile::Open(writer / store::JournalFileName(folder->journals.back()));
    StringPool pool;
    store::JournalChunk chunk;
    if (!journal.ok() || !(*journal)->Read(false, 4096, &pool, &chunk).ok()) return 0;
    return chunk.header ? chunk.header->monotonic_to_run_ns : 0;
  }
  /// Kills the helper and waits until another does its work and the training has gone on beside it.
  void KillAndAwaitSuccessor(std::string_view kind) {
    const pid_t old = Helper(kind);
    std::int64_t clock_ns = 0;
    if (kind == "watch") {
      ASSERT_TRUE(Await([&] { return HasWatched(old); })) << started_.Err();
    }
    ASSERT_TRUE(Await([&] { return (clock_ns = ClockOf(kind)) != 0; }));
    const std::uint64_t before = oracle_->committed;
    const std::int64_t killed_ns = NowNs() + clock_ns;
    ASSERT_EQ(::kill(old, SIGKILL), 0);
    if (kind == "agent") killed_agents_ns_.push_back(killed_ns);
    const auto unseen = static_cast<std::int64_t>(oracle_->committed.load());
    ASSERT_TRUE(Await([&] {
      if (kind == "agent") return NewestMark() > unseen;
      // The one found first may be a child that the old one had, or the new one has, forked for an
      // import.
      const pid_t successor = FindHelper(kind, run_);
      if (successor == 0 || successor == old || !HasWatched(successor)) return false;
      new_watchers_.emplace_back(successor, killed_ns);
      return true;
    })) << "no new one does its work: "
        << started_.Err();
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
  std::string Said() const { return started_.Err() + TextOf(run_ / "logs" / "agent.log"); }
  void EndTraining() { ASSERT_EQ(::kill(oracle_->pid, SIGTERM), 0); }
  /// Reads the run once nobody writes to it any more, and checks every byte of it.
  void Read() {
    for (const char* kind : {"agent", "watch"}) {
      ASSERT_TRUE(Await([&] { return FindHelper(kind, run_) == 0; })) << kind;
    }
    ReadRun(run_, &recorded_);
    NoteHowSoonBack();
    // Whoever was killed, an agent has said its last word.
    for (const format::LedgerRow& row : recorded_.rows.ledger) {
      EXPECT_FALSE(row.name == "run.agents_lost" && row.value > 0) << "nothing was lost";
    }
    EXPECT_EQ(CountEvents(recorded_, "recording.lost"), 0U);
    const auto reader = store::RunReader::Open(run_);
    ASSERT_TRUE(reader.ok());
    EXPECT_FALSE((*reader)->state().unrecorded);
    const auto report = store::Verify(run_);
    ASSERT_TRUE(report.ok()) << report.status().message();
    for (const store::Problem& problem : report->problems) {
      ADD_FAILURE() << problem.file << ": " << problem.what;
    }
  }

  /// From each kill of an agent, or where the test did not note it from when the supervisor saw the
  /// death, to the start of the next; from each kill of a watcher to when the next had read records
  /// of the run and written so.
  void NoteHowSoonBack() {
    std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    test.resize(std::min(test.find('/'), test.size()));
    std::int64_t back_from_ns = 0;
    for (const format::EventRow& event : recorded_.rows.events) {
      if (event.kind != "gap") continue;
      const auto gap = ParseJson(event.data);
      auto from_ns = gap.at("from_ns").get<std::int64_t>();
      const auto to_ns = gap.at("to_ns").get<std::int64_t>();
      // The kills are a start of an agent apart at least.
      for (const std::int64_t killed_ns : killed_agents_ns_) {
        if (killed_ns > back_from_ns && killed_ns < from_ns) from_ns = killed_ns;
      }
      back_from_ns = to_ns;
      back_ns_[test + "_agent"].push_back(to_ns - from_ns);
    }
    for (const auto& [pid, killed_ns] : new_watchers_) {
      std::int64_t first_ns = std::numeric_limits<std::int64_t>::max();
      for (const format::LedgerRow& row : recorded_.rows.ledger) {
        if (row.name != "watch.records_read" || row.pid != pid || row.value == 0) continue;
        first_ns = std::min(first_ns, row.time_ns);
      }
      EXPECT_GT(first_ns, killed_ns) << "the clocks are not the same";
      back_ns_[test + "_watch"].push_back(first_ns - killed_ns);
    }
  }

  /// How a training ended whose supervisor was killed: known where the kernel tells it to those
  /// that are not its parent.
  void ExpectEnd(std::string_view state, std::optional<int> exit_code, std::optional<int> signal) {
    const bool told = EndOfAnOrphanIsTold();
    EXPECT_EQ(recorded_.state, told ? state : "lost");
    if (!told) return;
    EXPECT_EQ(recorded_.exit_code, exit_code);
    EXPECT_EQ(recorded_.signal, signal);
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
  /// That followed one that was killed, and when that was by the clock of the records.
  std::vector<std::pair<pid_t, std::int64_t>> new_watchers_;
  std::vector<std::int64_t> killed_agents_ns_;
  /// By test and helper, of all rounds.
  inline static std::map<std::string, std::vector<std::int64_t>> back_ns_;
};

class Kill : public KillTest, public ::testing::WithParamInterface<int> {};

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
    ASSERT_NO_FATAL_FAILURE(KillAndAwaitSuccessor("agent"));
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
  // One that outlived the training may have written all of it by the time it was killed.
  const std::size_t gaps = CountEvents(recorded_, "gap");
  EXPECT_TRUE(gaps == 1 || (gaps == 0 && !agent_first)) << gaps << ": " << started_.Err();
}

/// Rule, subject, severity, state, first and last step, cause, cost: the design's sense of equal.
using Said = std::tuple<std::string, std::string, std::string, std::string, std::int64_t,
                        std::int64_t, std::string, double>;

Said SaidBy(const format::FindingRow& row) {
  return {std::string(row.rule),  std::string(row.subject), std::string(row.severity),
          std::string(row.state), row.first_step,           row.last_step,
          std::string(row.cause), row.cost_seconds};
}

/// What the watchers have journalled, of each incident its newest revision.
std::vector<Said> SaidLive(const std::vector<format::FindingRow>& rows) {
  std::map<std::string_view, const format::FindingRow*> newest;
  for (const format::FindingRow& row : rows) {
    const format::FindingRow*& known = newest[row.incident];
    if (known == nullptr || known->revision < row.revision) known = &row;
  }
  std::vector<Said> said;
  for (const auto& [incident, row] : newest) said.push_back(SaidBy(*row));
  std::sort(said.begin(), said.end());
  return said;
}

/// What `telltale check` says of the finished run.
std::vector<Said> SaidAfterwards(const std::filesystem::path& run) {
  const auto replay = rules::ReplayRun(run);
  EXPECT_TRUE(replay.ok()) << replay.status().message();
  std::vector<Said> said;
  if (!replay.ok()) return said;
  for (const rules::Finding& finding : replay->findings)
    said.push_back(SaidBy(rules::ToRow(finding)));
  std::sort(said.begin(), said.end());
  return said;
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
  EXPECT_EQ(SaidLive(recorded_.rows.findings), SaidAfterwards(run_));
}

TEST_P(Kill, TheWatcherAgainAndAgain) {
  Start(kForever, "0", "wait");
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(KillAndAwaitSuccessor("watch"));
  EndTraining();
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
  Read();
  EXPECT_EQ(SaidLive(recorded_.rows.findings), SaidAfterwards(run_));
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
  ExpectEnd("failed", 5, std::nullopt);
  EXPECT_EQ(CountEvents(recorded_, "run.attempt_end"), 1U);
}

/// Whom to record the agent hears before the disk has taken anything.
TEST_P(Kill, TheSupervisorWhoseDiskIsBusy) {
  const std::filesystem::path gate = scratch_ / "gate";
  std::ofstream(gate).put('\n');
  {
    const ScopedVariable busy("SLOW_SYNC_GATE", gate.string());
    const Preload slow(TELLTALE_SLOW_SYNC);
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
  ExpectEnd("killed", std::nullopt, SIGKILL);
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

/// From the seventh death on, each a short time after its start, the pause is the longest there is.
TEST_F(KillTest, AHelperThatDiesManyTimesIsBackWithinFiveSeconds) {
  const std::int64_t tick_ns = kSecond / ::sysconf(_SC_CLK_TCK);
  const auto started_ns = [&](pid_t pid) {
    return static_cast<std::int64_t>(ProcessStartTicks(pid)) * tick_ns;
  };
  Start(kForever);
  pid_t watcher = Helper("watch");
  ASSERT_GT(watcher, 0);
  std::vector<std::int64_t> longest;
  for (int deaths = 1; deaths <= 9; ++deaths) {
    const pid_t old = watcher;
    const std::int64_t killed_ns = NowNs(CLOCK_BOOTTIME);
    ASSERT_EQ(::kill(old, SIGKILL), 0);
    ASSERT_TRUE(Await([&] {
      watcher = FindHelper("watch", run_);
      // A child of the old one or of the new one is not it.
      return watcher != 0 && watcher != old && started_ns(watcher) > killed_ns &&
             ProcessParent(watcher) == started_.pid;
    })) << deaths
        << started_.Err();
    if (deaths >= 7) longest.push_back(started_ns(watcher) - killed_ns);
  }
  EXPECT_LE(*std::min_element(longest.begin(), longest.end()), kBackWithinNs);
  EXPECT_GE(MedianOf(longest), kBackWithinNs / 2)
      << "the pause is no longer the longest: nothing was tried";
  EndTraining();
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
}

/// A training whose steps compute, beside a twin that nobody records and around which nothing dies:
/// what slows both is the machine's. In each round the median step of either before a kill and from
/// it on, by the clock and of the processor: the training's change in parts of the twin's. What
/// chance makes of that is seen in the same from the first half of the time before to the second.
class KillAndSteps : public KillTest, public ::testing::WithParamInterface<const char*> {
 protected:
  static constexpr const char* kStepUs = "2000";
  static constexpr std::uint64_t kFirst = 200;  ///< Everything of ours has started by then.
  static constexpr std::uint64_t kSteps = 400;
  /// Above this it was slowed, where chance does nothing and the rounds are enough to say so...
  static constexpr double kSlowed = 1.05;
  static constexpr int kEnough = 15;
  /// ...and above that in any case: where chance may do more the machine is too noisy to tell.
  static constexpr double kTelling = 1.3;
  /// So many standard deviations of the median of the rounds, in mean deviations of one.
  static constexpr double kSure = 3 * 1.25 * 1.25;

  /// Of two windows before the kill and one after it.
  using Three = std::array<double, 3>;
  struct Medians {
    Three wall_ns, cpu_ns;
  };

  static Medians Of(const Oracle& oracle, const std::array<std::int64_t, 4>& times_ns) {
    Medians out{};
    const std::uint64_t committed = std::min<std::uint64_t>(oracle.committed, Oracle::kMaxSteps);
    for (std::size_t window = 0; window < 3; ++window) {
      std::vector<std::int64_t> wall;
      std::vector<std::int64_t> cpu;
      for (std::uint64_t i = 1; i < committed; ++i) {
        if (oracle.end_ns[i - 1] < times_ns[window] || oracle.end_ns[i] > times_ns[window + 1]) {
          continue;
        }
        wall.push_back(oracle.end_ns[i] - oracle.end_ns[i - 1]);
        cpu.push_back(oracle.cpu_ns[i] - oracle.cpu_ns[i - 1]);
      }
      out.wall_ns[window] = static_cast<double>(MedianOf(wall));
      out.cpu_ns[window] = static_cast<double>(MedianOf(cpu));
    }
    return out;
  }

  /// Of one kind of time, a round each.
  struct Changes {
    std::vector<double> by_chance, by_kill;

    void Add(const Three& training, const Three& twin) {
      by_chance.push_back(training[1] / training[0] / (twin[1] / twin[0]));
      by_kill.push_back(training[2] / training[1] / (twin[2] / twin[1]));
    }
    double slowed() const { return MedianOf(by_kill); }
    double limit() const {
      double deviations = 0;
      for (const double change : by_chance) deviations += std::abs(std::log(change));
      const auto rounds = static_cast<double>(by_chance.size());
      return kSlowed * std::exp(kSure * deviations / rounds / std::sqrt(rounds));
    }
    std::string text() const {
      return fmt::format("{:.3f} (at most {:.3f}) of {:.3f}; by chance {:.3f}", slowed(), limit(),
                         fmt::join(by_kill, " "), fmt::join(by_chance, " "));
    }
  };

  static Started StartTwin(const std::string& oracle) {
    Started twin;
    const std::string program = TrainerPath();
    twin.pid = ::fork();
    if (twin.pid == 0) {
      ::setpgid(0, 0);
      ::execl(program.c_str(), program.c_str(), oracle.c_str(), kForever, kStepUs, "0", "compute",
              nullptr);
      ::_exit(99);
    }
    return twin;
  }
  void KillIt() {
    const std::string_view kind = GetParam();
    if (kind == "supervisor") {
      ASSERT_EQ(::kill(started_.pid, SIGKILL), 0);
      EXPECT_EQ(started_.Wait(), -SIGKILL);
      started_.pid = -1;
    } else {
      const pid_t helper = Helper(kind);
      ASSERT_GT(helper, 0);
      ASSERT_EQ(::kill(helper, SIGKILL), 0);
    }
  }
  void EndRound() {
    EndTraining();
    if (started_.pid > 0) {
      EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
    }
    for (const char* kind : {"agent", "watch"}) {
      ASSERT_TRUE(Await([&] { return FindHelper(kind, run_) == 0; })) << kind;
    }
    std::filesystem::remove_all(run_);
    std::filesystem::remove(scratch_ / "oracle");
  }
};

TEST_P(KillAndSteps, AreNotSlowed) {
  const int rounds = Rounds(5);
  Changes wall;
  Changes cpu;
  for (int round = 0; round < rounds; ++round) {
    const std::string twin_file = scratch_ / fmt::format("twin{}", round);
    const Oracle* twin = Oracle::Map(twin_file.c_str());
    ASSERT_NE(twin, nullptr);
    const Started twin_process = StartTwin(twin_file);
    ASSERT_NO_FATAL_FAILURE(StartUpTo(kFirst, kForever, kStepUs, "0", "compute"));
    std::array<std::int64_t, 4> times_ns{NowNs()};
    std::uint64_t before = 0;
    for (std::size_t window = 0; window < 3; ++window) {
      before = oracle_->committed;
      if (window == 2) {
        ASSERT_NO_FATAL_FAILURE(KillIt());
      }
      ASSERT_TRUE(Await([&] { return oracle_->committed >= before + kSteps; }));
      times_ns[window + 1] = NowNs();
    }
    EXPECT_LE(LongestStepNs(before, oracle_->committed), kLongestStepNs);
    const Medians training = Of(*oracle_, times_ns);
    const Medians alone = Of(*twin, times_ns);
    // One that had no step in a window was not given a core: the round says nothing.
    if (std::min(*std::min_element(training.wall_ns.begin(), training.wall_ns.end()),
                 *std::min_element(alone.wall_ns.begin(), alone.wall_ns.end())) > 0) {
      wall.Add(training.wall_ns, alone.wall_ns);
      cpu.Add(training.cpu_ns, alone.cpu_ns);
    }
    ASSERT_NO_FATAL_FAILURE(EndRound());
  }
  if (wall.by_kill.empty()) GTEST_SKIP() << "in no round both had a core";
  bool too_noisy = false;
  for (const auto& [name, changes] : {std::pair("wall", &wall), std::pair("cpu", &cpu)}) {
    RecordProperty(name, changes->text());
    const double limit = rounds < kEnough ? kTelling : std::min(changes->limit(), kTelling);
    if (changes->slowed() <= limit) continue;
    EXPECT_GT(changes->limit(), kTelling) << name << ": " << changes->text();
    too_noisy = true;
  }
  if (too_noisy && !HasFailure()) GTEST_SKIP() << "chance may do more here: " << wall.text();
}

INSTANTIATE_TEST_SUITE_P(Of, KillAndSteps, ::testing::Values("agent", "watch", "supervisor"),
                         [](const auto& of) { return std::string(of.param); });

INSTANTIATE_TEST_SUITE_P(Rounds, Kill, ::testing::Range(0, Rounds()));

}  // namespace
}  // namespace telltale::fault
