// SPDX-License-Identifier: Apache-2.0
// The disk of the run directory fills up and is freed again: the training goes on, what is lost is
// counted and said, recording resumes without a restart. Some tests want a file system of their
// own, others a limit on the size of the agent's files, which no write gets past.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "harness.h"

namespace telltale::fault {
namespace {

namespace fs = std::filesystem;

class SmallDisk {
 public:
  explicit SmallDisk(fs::path at) : at_(std::move(at)) {
    fs::create_directories(at_);
    mounted_ = ::mount("telltale-test", at_.c_str(), "tmpfs", 0, "size=192m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  void Fill() const {
    const int fd = ::open((at_ / "ballast").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (off_t block = 1 << 20; block >= 4096; block /= 2) {
      off_t size = ::lseek(fd, 0, SEEK_END);
      while (::posix_fallocate(fd, size, block) == 0) size += block;
    }
    ::close(fd);
  }
  void Free() const { fs::remove(at_ / "ballast"); }

 private:
  fs::path at_;
  bool mounted_ = false;
};

/// The size that files of a process may have, past which no write of it gets.
class FileLimit {
 public:
  explicit FileLimit(pid_t pid) : pid_(pid) {}
  /// None of its files may grow. False where that cannot be.
  bool TakeAll() {
    if (::prlimit(pid_, RLIMIT_FSIZE, nullptr, &before_) != 0) return false;
    const rlimit none{0, before_.rlim_max};
    return ::prlimit(pid_, RLIMIT_FSIZE, &none, nullptr) == 0;
  }
  bool GiveBack() const { return ::prlimit(pid_, RLIMIT_FSIZE, &before_, nullptr) == 0; }

 private:
  pid_t pid_;
  rlimit before_{};
};

constexpr const char* kFull = "takes no more records";
constexpr const char* kFree = "takes records again";

/// Waits until the run has said it.
bool Says(const Started& started, const char* what) {
  return Await([&] { return started.Err().find(what) != std::string::npos; });
}

/// A run of so many steps of `step_us`, a hundred of which are made.
void StartSteps(const Scratch& scratch, const fs::path& run, const char* steps, const char* step_us,
                Oracle** oracle, Started* started) {
  *oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(*oracle, nullptr);
  *started =
      StartRun(run, {}, {TrainerPath(), scratch / "oracle", steps, step_us}, scratch / "err");
  ASSERT_TRUE(Await([&] { return (*oracle)->committed > 100; })) << started->Err();
}

TEST(DiskFull, TheTrainingGoesOnAndRecordingResumes) {
  Scratch scratch("disk");
  const SmallDisk disk(scratch / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs root: not tested here";
  Oracle* oracle = nullptr;
  Started started;
  // No pause in a step: the rings must overflow.
  ASSERT_NO_FATAL_FAILURE(
      StartSteps(scratch, scratch / "disk/run", "100000000", "0", &oracle, &started));

  disk.Fill();
  ASSERT_TRUE(Says(started, kFull)) << started.Err();
  const std::uint64_t full_at = oracle->committed;
  // About 300 bytes of records a step and 12 MiB of ring: this many steps overflow it.
  ASSERT_TRUE(Await([&] { return oracle->committed > full_at + 120'000; }))
      << "the training must go on: " << oracle->committed - full_at << " steps";

  disk.Free();
  ASSERT_TRUE(Says(started, kFree)) << started.Err();
  const std::uint64_t free_at = oracle->committed;
  ASSERT_TRUE(Await([&] { return oracle->committed > free_at + 1000; }));
  ::kill(oracle->pid, SIGTERM);
  EXPECT_EQ(started.Wait(), -SIGTERM) << started.Err();

  Recorded recorded;
  ReadRun(scratch / "disk/run", &recorded);
  EXPECT_EQ(recorded.salvage.missing_rows, 0U);
  std::map<std::string, std::uint64_t> counters;
  for (const auto& row : recorded.rows.ledger) {
    counters[std::string(row.name)] = std::max(counters[std::string(row.name)], row.value);
  }
  EXPECT_GT(counters["agent.append_refused"], 0U);
  EXPECT_GT(counters["agent.metrics_dropped"], 0U);
  EXPECT_GT(counters["probe.records_dropped"], 0U);
  const std::uint64_t stored =
      recorded.rows.steps.size() + recorded.rows.spans.size() + recorded.rows.scalars.size();
  // The kill may have hit between a record's count and its end; no other may be unaccounted for.
  const std::uint64_t accounted = stored + counters["probe.records_dropped"];
  EXPECT_LE(accounted, counters["probe.records_produced"]);
  EXPECT_GE(accounted + 1, counters["probe.records_produced"]);
  std::int64_t newest = -1;
  for (const auto& row : recorded.rows.steps) newest = std::max(newest, row.step);
  EXPECT_GE(newest, static_cast<std::int64_t>(oracle->committed) - 1) << "recording must resume";
}

TEST(DiskFull, HowItEndedIsKnownThoughTheDiskStaysFull) {
  Scratch scratch("end");
  const SmallDisk disk(scratch / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs root: not tested here";
  Oracle* oracle = nullptr;
  Started started;
  ASSERT_NO_FATAL_FAILURE(
      StartSteps(scratch, scratch / "disk/run", "1000000", "1000", &oracle, &started));
  disk.Fill();
  ASSERT_TRUE(Says(started, kFull)) << started.Err();
  disk.Fill();  // What was given up meanwhile.
  ASSERT_EQ(::kill(oracle->pid, SIGTERM), 0);
  EXPECT_EQ(started.Wait(), -SIGTERM) << started.Err();
  Recorded recorded;
  ReadRun(scratch / "disk/run", &recorded);
  EXPECT_EQ(recorded.state, "killed") << started.Err();
  EXPECT_EQ(recorded.signal, SIGTERM);
}

TEST(DiskFull, RefusedWritesLoseNoRecordAndAreShown) {
  Scratch scratch("refused");
  Oracle* oracle = nullptr;
  Started started;
  ASSERT_NO_FATAL_FAILURE(
      StartSteps(scratch, scratch / "run", "1000000", "2000", &oracle, &started));
  pid_t agent = 0;
  ASSERT_TRUE(Await([&] { return (agent = FindHelper("agent", scratch / "run")) != 0; }));
  FileLimit limit(agent);
  ASSERT_TRUE(limit.TakeAll());
  ASSERT_TRUE(Says(started, kFull)) << started.Err();
  // More than one sample of the machine (each 500 ms) falls into it; the rings hold all steps.
  const std::uint64_t refused_at = oracle->committed;
  ASSERT_TRUE(Await([&] { return oracle->committed > refused_at + 1500; }));
  ASSERT_TRUE(limit.GiveBack());
  ASSERT_TRUE(Says(started, kFree)) << started.Err();
  ASSERT_EQ(::kill(oracle->pid, SIGTERM), 0);
  EXPECT_EQ(started.Wait(), -SIGTERM) << started.Err();

  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(CheckOnce(recorded, oracle->committed), "");
  EXPECT_EQ(CountEvents(recorded, "agent.start"), 1U) << "the agent must survive it";
  std::map<std::string, std::uint64_t> counters;
  for (const auto& row : recorded.rows.ledger) {
    counters[std::string(row.name)] = std::max(counters[std::string(row.name)], row.value);
  }
  EXPECT_GT(counters["agent.append_refused"], 0U);
  EXPECT_GT(counters["agent.metrics_dropped"], 0U);
  EXPECT_EQ(counters["probe.records_dropped"], 0U);
  const std::string command = TelltalePath() + " check " + (scratch / "run").string() + " > " +
                              (scratch / "check").string();
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::stringstream shown;
  shown << std::ifstream(scratch / "check").rdbuf();
  EXPECT_NE(shown.str().find("agent.metrics_dropped"), std::string::npos) << shown.str();
}

TEST(DiskFull, AProcessThatEndsMeanwhileDoesNotKeepTheAgentBusy) {
  Scratch scratch("busy");
  Oracle* oracle = Oracle::Map((scratch / "oracle").c_str());
  Oracle* other = Oracle::Map((scratch / "other").c_str());
  ASSERT_NE(oracle, nullptr);
  ASSERT_NE(other, nullptr);
  const auto trainer = [&](const char* name) {
    return TrainerPath() + " " + (scratch / name).string() + " 1000000 1000 & ";
  };
  Started started =
      StartRun(scratch / "run", {}, {"sh", "-c", trainer("oracle") + trainer("other") + "wait"},
               scratch / "err");
  ASSERT_TRUE(Await([&] { return oracle->committed > 50 && other->committed > 50; }))
      << started.Err();
  pid_t agent = 0;
  ASSERT_TRUE(Await([&] { return (agent = FindHelper("agent", scratch / "run")) != 0; }));
  FileLimit limit(agent);
  const auto refused_from = std::chrono::steady_clock::now();
  ASSERT_TRUE(limit.TakeAll());
  ASSERT_TRUE(Says(started, kFull)) << started.Err();
  // Each has more waiting than one batch holds, 12 KiB, when one of them ends.
  const std::uint64_t refused_at = oracle->committed;
  ASSERT_TRUE(Await([&] { return oracle->committed > refused_at + 500; }));
  ASSERT_EQ(::kill(other->pid, SIGKILL), 0);
  const std::uint64_t ended_at = oracle->committed;
  ASSERT_TRUE(Await([&] { return oracle->committed > ended_at + 1500; }));
  ASSERT_TRUE(limit.GiveBack());
  ASSERT_TRUE(Says(started, kFree)) << started.Err();
  const std::chrono::duration<double> refused_for = std::chrono::steady_clock::now() - refused_from;
  ASSERT_EQ(::kill(oracle->pid, SIGKILL), 0);
  EXPECT_EQ(started.Wait(), 0) << started.Err();

  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(CountEvents(recorded, "process.exit"), 2U);
  std::uint64_t tries = 0;
  for (const auto& row : recorded.rows.ledger) {
    if (row.name == "agent.append_refused") tries = std::max(tries, row.value);
  }
  EXPECT_GT(tries, 0U);
  // A sample, the status and the pause of half a second each end a wait: five tries a second.
  EXPECT_LT(static_cast<double>(tries), 20 + 10 * refused_for.count());
}

}  // namespace
}  // namespace telltale::fault
