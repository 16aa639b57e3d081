// SPDX-License-Identifier: Apache-2.0
// A supervisor that gets no thread, no memory, no answer of the disk, no more bytes in a file: the
// training goes on, and our exit is its own.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/process.h"
#include "harness.h"
#include "store/run_info.h"

namespace telltale::fault {
namespace {

std::size_t CountOf(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

void AwaitHelpersEnd(const std::filesystem::path& run) {
  for (const char* kind : {"agent", "watch"}) {
    ASSERT_TRUE(Await([&] { return FindHelper(kind, run) == 0; })) << kind;
  }
}

TEST(Scarce, WithoutThreadsTheRunIsRecordedAllTheSame) {
  Scratch scratch("threads");
  Oracle* oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Started started;
  {
    const Preload none(TELLTALE_NO_THREADS);
    started = StartRun(scratch / "run", {}, {TrainerPath(), scratch / "oracle", "200", "1000", "3"},
                       scratch / "err");
  }
  EXPECT_EQ(started.Wait(), 3) << started.Err();
  EXPECT_EQ(CountOf(started.Err(), "no status line"), 0U) << started.Err();
  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(recorded.state, "failed");
  EXPECT_EQ(recorded.exit_code, 3);
  EXPECT_EQ(CheckOnce(recorded, 200), "");
}

TEST(Scarce, WithoutMemorySignalsAreStillPassedOnAndTheExitIsTheTrainings) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has an allocator of its own";
#endif
  Scratch scratch("memory");
  const std::filesystem::path gate = scratch / "gate";
  Oracle* oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Started started;
  {
    const ScopedVariable name("NO_MEMORY_GATE", gate.string());
    const Preload none(TELLTALE_NO_MEMORY);
    started = StartRun(scratch / "run", {}, {TrainerPath(), scratch / "oracle", "1000000", "1000"},
                       scratch / "err");
  }
  ASSERT_TRUE(Await([&] {
    Recorded recorded;
    ReadRun(scratch / "run", &recorded);
    // Its pid is there with its first step.
    return CountEvents(recorded, "process.start") == 1 && oracle->committed > 0;
  })) << started.Err();
  const std::filesystem::path socket = VariableOf(oracle->pid, "TELLTALE_SOCKET");
  ASSERT_TRUE(std::filesystem::exists(socket)) << socket;
  std::ofstream(gate).put('\n');
  // It gives up what it cannot do any more.
  ASSERT_TRUE(Await([&] { return !std::filesystem::exists(socket.parent_path()); }));
  const std::uint64_t committed = oracle->committed;
  ASSERT_TRUE(Await([&] { return oracle->committed > committed + 50; })) << "it must go on";
  ASSERT_EQ(::kill(started.pid, SIGTERM), 0);
  EXPECT_EQ(started.Wait(), -SIGTERM) << started.Err();
  AwaitHelpersEnd(scratch / "run");
  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(CheckOnce(recorded, oracle->committed), "");
  EXPECT_EQ(CountEvents(recorded, "run.attempt_end"), 1U);
}

TEST(Scarce, WhereTheDiskTakesNothingAtTheEndASignalEndsTheWaitAndTheExitIsTheTrainings) {
  Scratch scratch("disk");
  const std::filesystem::path gate = scratch / "gate";
  std::ofstream(gate).put('\n');
  Started started;
  {
    const ScopedVariable busy("SLOW_SYNC_GATE", gate.string());
    const Preload slow(TELLTALE_SLOW_SYNC);
    started = StartRun(scratch / "run", {}, {"sh", "-c", "exit 3"}, scratch / "err");
  }
  const auto says = [&](std::string_view text) {
    return Await([&] { return started.Err().find(text) != std::string::npos; });
  };
  ASSERT_TRUE(says("telltale: waiting for ")) << started.Err();
  ASSERT_EQ(::kill(started.pid, SIGINT), 0);
  EXPECT_EQ(started.Wait(), 3) << started.Err();
  EXPECT_TRUE(says("not waited for: ")) << started.Err();
  EXPECT_TRUE(says("run.json, the report: `telltale check ")) << started.Err();
  AwaitHelpersEnd(scratch / "run");
  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(recorded.state, "failed") << "the agent has written how it ended";
  EXPECT_EQ(recorded.exit_code, 3);
}

/// A disk that took how the training ended, and fell silent then, gets no more time than one that
/// never answered.
TEST(Scarce, WhereTheDiskFallsSilentAfterTheEndTheRestIsNotWaitedFor) {
  Scratch scratch("silent");
  const std::filesystem::path gate = scratch / "gate";
  const std::string go = scratch / "go";
  ASSERT_EQ(::mkfifo(go.c_str(), 0600), 0);
  Started started;
  {
    const ScopedVariable busy("SLOW_SYNC_GATE", gate.string());
    const Preload slow(TELLTALE_SLOW_SYNC);
    started = StartRun(scratch / "run", {}, {"sh", "-c", "read line < " + go + "; exit 3"},
                       scratch / "err");
  }
  ASSERT_TRUE(Await([&] {
    Recorded recorded;
    ReadRun(scratch / "run", &recorded);
    return CountEvents(recorded, "run.attempt_start") == 1 &&
           FindHelper("watch", scratch / "run") != 0;
  })) << started.Err();
  // Else it has ended before the disk is silent.
  const pid_t watcher = FindHelper("watch", scratch / "run");
  ASSERT_EQ(::kill(watcher, SIGSTOP), 0);
  std::ofstream(go).put('\n');
  const auto ended = std::chrono::steady_clock::now();
  ASSERT_TRUE(Await([&] {
    const auto info = store::ReadRunInfo(scratch / "run");
    return info.ok() && info->finished;
  })) << started.Err();
  std::ofstream(gate).put('\n');
  EXPECT_EQ(started.Wait(), 3) << started.Err();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - ended;
  EXPECT_LT(took.count(), 45) << "30 s, and 15 s for a slow machine: " << started.Err();
  EXPECT_NE(started.Err().find("not waited for: the watcher's last findings, "), std::string::npos)
      << started.Err();
  EXPECT_NE(started.Err().find("the report: the disk of "), std::string::npos) << started.Err();
  std::filesystem::remove(gate);
  ::kill(watcher, SIGCONT);
  AwaitHelpersEnd(scratch / "run");
}

TEST(Scarce, ALimitOnTheSizeOfFilesEndsNoneOfUs) {
  Scratch scratch("file-size");
  const std::string go = scratch / "go";
  ASSERT_EQ(::mkfifo(go.c_str(), 0600), 0);
  const auto limit = [] {
    rlimit files{};
    ::getrlimit(RLIMIT_FSIZE, &files);
    files.rlim_cur = 4096;
    ::setrlimit(RLIMIT_FSIZE, &files);
  };
  Started started = StartRun(scratch / "run", {}, {"sh", "-c", "read line < " + go + "; exit 5"},
                             scratch / "err", limit);
  pid_t watcher = 0;
  ASSERT_TRUE(Await([&] { return (watcher = FindHelper("watch", scratch / "run")) != 0; }))
      << started.Err();
  const std::uint64_t ticks = ProcessStartTicks(watcher);
  const auto log = scratch / "run" / "logs" / "watch.log";
  ASSERT_TRUE(Await([&] { return TextOf(log).find("File too large") != std::string::npos; }))
      << TextOf(log) << started.Err();
  EXPECT_EQ(ProcessStartTicks(watcher), ticks) << "it must not die of it";
  // So that they need not be waited for: what they could not write until now they write then.
  for (const char* kind : {"agent", "watch"}) {
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    ASSERT_EQ(::prlimit(FindHelper(kind, scratch / "run"), RLIMIT_FSIZE, &none, nullptr), 0);
  }
  std::ofstream(go).put('\n');
  EXPECT_EQ(started.Wait(), 5) << started.Err();
  EXPECT_NE(started.Err().find("File too large"), std::string::npos)
      << "the report fits the limit: nothing was tried: " << started.Err();
  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(recorded.state, "failed");
  EXPECT_EQ(recorded.exit_code, 5);
  EXPECT_EQ(CountEvents(recorded, "agent.stop"), 1U);
}

/// A training that wants to die of files that are too large does, and one that was not to does not.
TEST(Scarce, TheTrainingGetsSigxfszAsWeWereGivenIt) {
  Scratch scratch("sigxfsz");
  const auto is_ignored = [&](const char* run, void (*prepare)()) {
    Started started =
        StartRun(scratch / run, {"--quiet"}, {"cp", "/proc/self/status", scratch / "inside"},
                 scratch / "err", prepare);
    EXPECT_EQ(started.Wait(), 0) << started.Err();
    std::ifstream file(scratch / "inside");
    std::uint64_t ignored = 0;
    for (std::string word; file >> word;) {
      if (word == "SigIgn:") file >> std::hex >> ignored;
    }
    return (ignored & (std::uint64_t{1} << (SIGXFSZ - 1))) != 0;
  };
  EXPECT_TRUE(is_ignored("ignored", [] { ::signal(SIGXFSZ, SIG_IGN); }));
  EXPECT_FALSE(is_ignored("default", [] { ::signal(SIGXFSZ, SIG_DFL); }))
      << "that we ignore it must not be inherited";
}

}  // namespace
}  // namespace telltale::fault
