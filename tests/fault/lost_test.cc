// SPDX-License-Identifier: Apache-2.0
// Supervisor and agent are killed together, at a random moment: nobody records any more, and the
// run says so, from when on, on every face. What is missing an oracle knows, in which the trainer
// notes each step itself. TELLTALE_FAULT_ROUNDS sets how often (4; `make fault` does 200).
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "base/units.h"
#include "harness.h"
#include "store/reader.h"
#include "store/recording_end.h"
#include "store/run_info.h"

namespace telltale::fault {
namespace {

namespace fs = std::filesystem;

int Rounds() {
  const char* text = ::getenv("TELLTALE_FAULT_ROUNDS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 4;
}

struct Said {
  int code = -1;
  std::string text;
};

/// What a command says of the run on stdout, and with `errors` on stderr.
Said Ask(const std::string& command, const fs::path& run, const std::string& options = "",
         bool errors = true) {
  Said said;
  const std::string line = fmt::format("{} {} {} {} {}", TelltalePath(), command, run.string(),
                                       options, errors ? "2>&1" : "2>/dev/null");
  std::FILE* const pipe = ::popen(line.c_str(), "r");
  if (pipe == nullptr) return said;
  std::array<char, 4096> bytes;
  for (std::size_t got = 0; (got = std::fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) {
    said.text.append(bytes.data(), got);
  }
  const int status = ::pclose(pipe);
  said.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return said;
}

/// The first committed step that is not in the store; -1: none is missing.
std::int64_t FirstMissing(const Recorded& recorded, const Oracle& oracle, std::int64_t* missing) {
  std::set<std::int64_t> stored;
  for (const auto& row : recorded.rows.steps) {
    if (row.mode == "TRAIN") stored.insert(row.step);
  }
  std::int64_t first = -1;
  *missing = 0;
  const auto committed = static_cast<std::int64_t>(oracle.committed.load());
  for (std::int64_t step = 0; step < committed; ++step) {
    if (stored.contains(step)) continue;
    if (first < 0) first = step;
    ++*missing;
  }
  return first;
}

/// Whether a watcher is at work: one that comes only when the run is over does not see its end.
bool HasWatched(const fs::path& run) {
  auto reader = store::RunReader::Open(run);
  if (!reader.ok()) return false;
  bool has = false;
  store::Salvage salvage;
  const auto visit = [&](const std::string&, const format::Rows& rows) {
    for (const format::LedgerRow& row : rows.ledger) {
      has = has || row.name == "watch.records_read";
    }
    return !has;
  };
  const std::uint32_t ledger = store::MaskOf(format::TableId::kLedger);
  return (*reader)->Scan(ledger, visit, &salvage).ok() && has;
}

/// Who dies besides supervisor and agent.
enum Others : unsigned { kWatcher = 1, kTraining = 2 };

struct Round {
  unsigned others = 0;
  std::int64_t missing = 0;
  std::int64_t early_ns = 0;  ///< From the begin that was said to the first missing step.
};

void Play(int number, const Scratch& scratch, Round* round) {
  std::random_device random;
  const auto any = [&](int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(random);
  };
  round->others = static_cast<unsigned>(any(0, 3));
  const bool supervisor_first = any(0, 1) == 0;
  const auto pause = std::chrono::milliseconds(any(0, 900));
  SCOPED_TRACE(fmt::format("round {}: others {}, {} ms, {} first", number, round->others,
                           pause.count(), supervisor_first ? "supervisor" : "agent"));
  const std::string oracle_file = scratch / fmt::format("oracle{}", number);
  Oracle* const oracle = Oracle::Map(oracle_file.c_str());
  ASSERT_NE(oracle, nullptr);
  const fs::path run = scratch / fmt::format("run{}", number);
  Started started =
      StartRun(run, {"--no-serve"}, {TrainerPath(), oracle_file, "1200", "1000"}, scratch / "err");
  pid_t agent = 0;
  ASSERT_TRUE(Await([&] { return (agent = FindHelper("agent", run)) != 0; })) << started.Err();
  ASSERT_TRUE(Await([&] { return oracle->pid > 0; })) << started.Err();
  // It ends before anybody sees how, where it is ended too.
  const pid_t watcher = FindHelper("watch", run);
  std::this_thread::sleep_for(pause);  // The case itself.
  const bool watched = HasWatched(run);
  ::kill(supervisor_first ? started.pid : agent, SIGKILL);
  ::kill(supervisor_first ? agent : started.pid, SIGKILL);
  if ((round->others & kWatcher) != 0 && watcher > 0) ::kill(watcher, SIGKILL);
  if ((round->others & kTraining) != 0) ::kill(oracle->pid, SIGKILL);
  EXPECT_EQ(started.Wait(), -SIGKILL);
  if ((round->others & kTraining) == 0) {
    ASSERT_TRUE(Await([&] { return oracle->committed == 1200; })) << "the training must go on";
  }
  ASSERT_TRUE(Await([&] { return ProcessCommandLine(oracle->pid).empty(); }));
  const std::int64_t trained_until_ns =
      oracle->end_ns[oracle->committed > 0 ? oracle->committed - 1 : 0];
  for (const char* kind : {"agent", "watch"}) {
    ASSERT_TRUE(Await([&] { return FindHelper(kind, run) == 0; })) << kind;
  }

  auto reader = store::RunReader::Open(run);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  store::RunState state;
  // One that is about to end has no command line any more and is alive all the same.
  ASSERT_TRUE(Await([&] {
    state = (*reader)->state();
    return state.state != "running";
  }));
  ASSERT_TRUE(state.unrecorded) << "the run says nothing: " << state.state;
  EXPECT_EQ(state.state, "lost");
  Recorded recorded;
  ReadRun(run, &recorded);
  const std::int64_t first = FirstMissing(recorded, *oracle, &round->missing);
  // Run clock minus CLOCK_MONOTONIC.
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t to_run_ns = store::RunClockNow(run) - (now.tv_sec * kSecond + now.tv_nsec);
  if (first >= 0) {
    const std::int64_t at_ns = oracle->end_ns[first] + to_run_ns;
    EXPECT_LE(state.unrecorded->since_ns, at_ns) << "step " << first << " is missing before that";
    round->early_ns = at_ns - state.unrecorded->since_ns;
  }

  const Said check = Ask("check", run);
  EXPECT_EQ(check.code, 7) << check.text;
  EXPECT_NE(check.text.find(" not recorded"), std::string::npos) << check.text;
  EXPECT_EQ(check.text.find("Nothing to report"), std::string::npos) << check.text;
  const Said json = Ask("check", run, "--json", false);
  const auto document = ParseJson(json.text);
  ASSERT_TRUE(document.is_object()) << json.text;
  EXPECT_EQ(document["run"]["not_recorded_since_ns"], state.unrecorded->since_ns);
  EXPECT_EQ(document["losses"]["run.agents_lost"], 1);
  const Said report = Ask("report", run);
  EXPECT_EQ(report.code, 7) << report.text;
  EXPECT_NE(TextOf(run / "report.html").find(" not recorded"), std::string::npos);
  const Said listed = Ask("ls", run);
  EXPECT_EQ(listed.code, 7) << listed.text;
  EXPECT_NE(listed.text.find("end not recorded"), std::string::npos) << listed.text;
  const double elapsed = document["elapsed_seconds"].get<double>();
  if ((round->others & kWatcher) == 0 && watched && state.unrecorded->since_ns > 0 &&
      !state.unrecorded->writer.empty()) {
    // The watcher has seen the end: the run took no less than the training did.
    const auto info = (*reader)->info();
    const double trained =
        static_cast<double>(trained_until_ns + to_run_ns - info.attempts.back().start_ns) / 1e9;
    EXPECT_GE(elapsed, trained - 1) << check.text;
    EXPECT_EQ(listed.text.find("\u2265"), std::string::npos) << listed.text;
  } else if ((round->others & kWatcher) != 0) {
    EXPECT_NE(listed.text.find("\u2265"), std::string::npos)
        << "nobody saw the end, it took that long at least: " << listed.text;
  }
}

TEST(Lost, WhatIsMissingIsSaidWithItsBegin) {
  const int rounds = Rounds();
  std::map<unsigned, int> by_others;
  std::int64_t missing = 0;
  std::int64_t latest_ns = 0;
  int with_missing = 0;
  for (int number = 0; number < rounds && !::testing::Test::HasFailure(); ++number) {
    const Scratch scratch(fmt::format("lost{}", number));
    Round round;
    Play(number, scratch, &round);
    ++by_others[round.others];
    missing += round.missing;
    with_missing += round.missing > 0 ? 1 : 0;
    latest_ns = std::max(latest_ns, round.early_ns);
  }
  std::printf(
      "%d rounds: in %d steps were missing, %lld in all; each said so, with a begin at most "
      "%.2f s before the first missing step\n",
      rounds, with_missing, static_cast<long long>(missing), static_cast<double>(latest_ns) / 1e9);
  std::printf("supervisor and agent alone %d, and watcher %d, and training %d, all %d\n",
              by_others[0], by_others[kWatcher], by_others[kTraining],
              by_others[kWatcher | kTraining]);
  EXPECT_GT(with_missing, 0) << "nothing was tried";
}

/// An attempt after it says it of the one before, which is then not the newest any more.
TEST(Lost, AFurtherAttemptSaysItOfTheOneBefore) {
  const Scratch scratch("lost-again");
  Round round;
  Play(0, scratch, &round);
  const fs::path run = scratch / "run0";
  const store::RunState before = store::RunReader::Open(run).value()->state();
  ASSERT_TRUE(before.unrecorded);
  const bool wrote = !before.unrecorded->writer.empty();
  Oracle* const oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Started again = StartRun(run, {"--no-serve"}, {TrainerPath(), scratch / "oracle", "50", "1000"},
                           scratch / "err");
  EXPECT_EQ(again.Wait(), 0) << again.Err();
  Recorded recorded;
  ReadRun(run, &recorded);
  EXPECT_EQ(recorded.state, "finished");
  std::size_t said = 0;  // By the agent; the watcher of the attempt before has its own word.
  for (const auto& row : recorded.rows.events) {
    said += row.kind == "recording.lost" && row.attempt == 2 ? 1 : 0;
  }
  // One that was killed before its first record has left no journal to tell it by.
  EXPECT_EQ(said, wrote ? 1U : 0U);
  EXPECT_EQ(CheckStepsOnce(recorded, 50, 2), "");
  const Said check = Ask("check", run);
  EXPECT_EQ(check.code, 7) << check.text;
  EXPECT_NE(check.text.find("an earlier attempt"), std::string::npos) << check.text;
}

/// As above, on another machine: nobody comes to the folder of the first one's agent again. The
/// attempt was recorded to its end, the one before was not.
TEST(Lost, AFurtherAttemptOnAnotherMachineIsNotAccused) {
  constexpr int kNoOtherName = 97;
  const auto become_another = [] {
    if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname("another", 7) != 0) ::_exit(kNoOtherName);
  };
  const pid_t child = ::fork();
  if (child == 0) {
    become_another();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) == kNoOtherName) {
    GTEST_SKIP() << "the name of the machine cannot be changed here: not tested";
  }
  const Scratch scratch("lost-elsewhere");
  Round round;
  Play(0, scratch, &round);
  if (::testing::Test::HasFailure()) return;
  const fs::path run = scratch / "run0";
  Oracle* const oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Started again = StartRun(run, {"--no-serve"}, {TrainerPath(), scratch / "oracle", "50", "1000"},
                           scratch / "err", become_another);
  EXPECT_EQ(again.Wait(), 0) << again.Err();
  Recorded recorded;
  ReadRun(run, &recorded);
  EXPECT_EQ(recorded.state, "finished");
  EXPECT_EQ(CheckStepsOnce(recorded, 50, 2), "");
  const store::RunState state = store::RunReader::Open(run).value()->state();
  EXPECT_FALSE(state.unrecorded) << "the newest attempt was recorded to its end";
  const Said listed = Ask("ls", run);
  EXPECT_EQ(listed.text.find("end not recorded"), std::string::npos) << listed.text;
  const Said check = Ask("check", run);
  EXPECT_EQ(check.code, 7) << check.text;
  EXPECT_NE(check.text.find("an earlier attempt"), std::string::npos) << check.text;
}

TEST(Lost, AStopOfATrainingThatNobodyRecordsSaysSoAtOnce) {
  const Scratch scratch("lost-stop");
  const fs::path run = scratch / "run";
  Oracle* const oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Started started = StartRun(run, {"--no-serve"},
                             {TrainerPath(), scratch / "oracle", "60000", "1000"}, scratch / "err");
  pid_t agent = 0;
  ASSERT_TRUE(Await([&] { return (agent = FindHelper("agent", run)) != 0; })) << started.Err();
  ASSERT_TRUE(Await([&] { return oracle->pid > 0; })) << started.Err();
  ::kill(started.pid, SIGKILL);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(started.Wait(), -SIGKILL);
  ASSERT_TRUE(Await([&] { return FindHelper("agent", run) == 0; }));
  const auto begin = std::chrono::steady_clock::now();
  const Said said = Ask("stop", run, "--wait 60");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(said.code, 3) << said.text;
  EXPECT_NE(said.text.find("is not recorded any more"), std::string::npos) << said.text;
  ::kill(oracle->pid, SIGKILL);
  ASSERT_TRUE(Await([&] { return ProcessCommandLine(oracle->pid).empty(); }));
}

/// The agent can write nothing, each time that it comes, and is given up: the run's end is said,
/// and that nothing was recorded.
TEST(Lost, AnAttemptOfWhichNoAgentCouldWriteSaysSo) {
  const Scratch scratch("lost-silent");
  const fs::path run = scratch / "run";
  Oracle* const oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  const std::vector<std::string> command = {TrainerPath(), scratch / "oracle", "50", "1000"};
  ASSERT_EQ(StartRun(run, {"--no-serve"}, command, scratch / "err").Wait(), 0);
  EXPECT_EQ(Ask("check", run).code, 0);
  // Another holds the folder.
  const fs::path folder = run / ("agent-" + store::ReadRunInfo(run).value().host);
  const int held = ::open((folder / "lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(held, 0) << folder;
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  Started again = StartRun(run, {"--no-serve"}, command, scratch / "err");
  EXPECT_EQ(again.Wait(), 0) << again.Err();
  ::close(held);
  const store::RunState state = store::RunReader::Open(run).value()->state();
  EXPECT_EQ(state.state, "finished");
  ASSERT_TRUE(state.unrecorded) << "nothing of it was recorded";
  EXPECT_EQ(state.unrecorded->writer, "");
  EXPECT_TRUE(state.unrecorded_before.empty());
  const Said check = Ask("check", run);
  EXPECT_EQ(check.code, 7) << check.text;
  EXPECT_NE(check.text.find("Nothing was recorded of the"), std::string::npos) << check.text;
}

/// Nothing of it could be recorded, and an agent was there to the end.
TEST(Lost, AnAttemptWhoseCommandCannotBeStartedIsNoLoss) {
  const Scratch scratch("lost-command");
  const fs::path run = scratch / "run";
  const fs::path program = scratch / "no-program";
  std::ofstream(program) << "#!/nonexistent\n";
  fs::permissions(program, fs::perms::owner_all);
  ASSERT_EQ(StartRun(run, {"--no-serve"}, {"true"}, scratch / "err").Wait(), 0);
  EXPECT_FALSE(store::RunReader::Open(run).value()->state().unrecorded);
  EXPECT_EQ(StartRun(run, {"--no-serve"}, {program}, scratch / "err").Wait(), 127);
  ASSERT_EQ(store::ReadRunInfo(run).value().attempts.size(), 2U);
  const store::RunState state = store::RunReader::Open(run).value()->state();
  EXPECT_EQ(state.state, "failed");
  EXPECT_FALSE(state.unrecorded) << state.unrecorded->since_ns;
  EXPECT_TRUE(state.unrecorded_before.empty());
}

/// The folder of the socket is among the temporary files: nobody of the run is left to remove it.
TEST(Lost, TheNextRunRemovesTheSocketThatNobodyAnswers) {
  const Scratch scratch("lost-socket");
  const fs::path run = scratch / "run";
  Oracle* const oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Started started = StartRun(
      run, {"--no-serve"}, {TrainerPath(), scratch / "oracle", "100000", "1000"}, scratch / "err");
  pid_t agent = 0;
  ASSERT_TRUE(
      Await([&] { return (agent = FindHelper("agent", run)) != 0 && oracle->committed > 0; }));
  const fs::path socket = VariableOf(oracle->pid, "TELLTALE_SOCKET");
  ASSERT_TRUE(fs::exists(socket));
  ::kill(started.pid, SIGKILL);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(started.Wait(), -SIGKILL);
  ::kill(oracle->pid, SIGKILL);
  ASSERT_TRUE(Await([&] { return FindHelper("agent", run) == 0; }));
  ASSERT_TRUE(fs::exists(socket));
  // Older than one that is being made may be.
  const std::array<timespec, 2> old = {timespec{::time(nullptr) - 3600, 0},
                                       timespec{::time(nullptr) - 3600, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, socket.c_str(), old.data(), AT_SYMLINK_NOFOLLOW), 0);
  Started next = StartRun(scratch / "next", {"--quiet"}, {"true"}, scratch / "err");
  EXPECT_EQ(next.Wait(), 0) << next.Err();
  EXPECT_FALSE(fs::exists(socket.parent_path()));
}

}  // namespace
}  // namespace telltale::fault
