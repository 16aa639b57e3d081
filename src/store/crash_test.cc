// SPDX-License-Identifier: Apache-2.0
// kill -9 and full disks against the writer, with an oracle that knows what was committed.
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <random>

#include "base/unique_fd.h"
#include "store/folder.h"
#include "store/store_testing.h"
#include "store/verify.h"

#if defined(__SANITIZE_THREAD__)
// Libraries start a thread when they are loaded, so the children come from a process of several.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

namespace telltale::store {
namespace {

/// Runs `body` in a child process and returns how that ended, as waitpid says.
template <class F>
pid_t Spawn(F&& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  return pid;
}

int Wait(pid_t pid) {
  int status = -1;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

/// Seen by parent and child: how many scalars Append has said yes to.
struct Oracle {
  std::atomic<std::uint64_t> committed{0};
};

class SharedOracle {
 public:
  SharedOracle()
      : oracle_(new (::mmap(nullptr, sizeof(Oracle), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Oracle) {}
  ~SharedOracle() { ::munmap(oracle_, sizeof(Oracle)); }
  SharedOracle(const SharedOracle&) = delete;
  SharedOracle& operator=(const SharedOracle&) = delete;
  Oracle* operator->() const { return oracle_; }
  Oracle* get() const { return oracle_; }

 private:
  Oracle* oracle_;
};

constexpr std::array<std::uint8_t, 16> kProducer{1, 2, 3};

/// As the agent does: drains from where the journal says it had got to.
void AppendForever(const std::filesystem::path& folder, std::uint32_t seed, Oracle* oracle) {
  WriterOptions options;
  options.sync_interval_ns = 3'000'000;
  options.seal_bytes = 16 << 10;  // Rotates, seals and deletes all the time.
  options.delete_delay_ns = 2'000'000;
  options.min_free_bytes = 0;
  auto writer = Writer::Open(folder, "agent-a", options);
  if (!writer.ok()) {
    std::fprintf(stderr, "%s\n", writer.status().message().c_str());
    ::_exit(9);
  }
  std::uint64_t next = 0;
  for (const format::RingPosition& p : (*writer)->RecoveredPositions()) next = p.position;
  // What the oracle saw committed must have been recovered.
  if (next < oracle->committed.load()) ::_exit(8);
  std::mt19937 random(seed);
  while (true) {
    const int rows = static_cast<int>(random() % 5 == 0 ? random() % 1500 : random() % 20);
    format::Batch batch = Scalars(static_cast<int>(next), rows);
    batch.positions.push_back({kProducer, 0, next + static_cast<std::uint64_t>(rows)});
    if (!(*writer)->Append(std::move(batch)).ok()) ::_exit(7);
    next += static_cast<std::uint64_t>(rows);
    oracle->committed.store(next);
    if (!(*writer)->Tick().ok()) ::_exit(6);
  }
}

TEST(CrashTest, NothingCommittedIsLostAndNothingComesTwice) {
  constexpr int kKills = 50;
  const TempFolder temp;
  const std::filesystem::path run = temp.path() / "run";
  MakeRun(run);
  const SharedOracle oracle;
  std::mt19937 random(7);
  int with_segments_half_done = 0;
  for (int i = 0; i < kKills; ++i) {
    const std::uint64_t before = oracle->committed.load();
    const std::uint64_t wanted = before + 1 + random() % 4000;
    const pid_t child =
        Spawn([&] { AppendForever(run / "agent-a", static_cast<std::uint32_t>(i), oracle.get()); });
    while (oracle->committed.load() < wanted && ::waitpid(child, nullptr, WNOHANG) == 0) {
      ::sched_yield();
    }
    ::usleep(static_cast<useconds_t>(random() % 3000));  // Any moment will do.
    ::kill(child, SIGKILL);
    const int status = Wait(child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << WEXITSTATUS(status);
    const std::uint64_t committed = oracle->committed.load();
    const FolderListing listing = ListFolder(run / "agent-a").value();
    with_segments_half_done += listing.temporaries.empty() ? 0 : 1;
    const auto all = ReadEverything(run);
    ASSERT_GE(all->rows.scalars.size(), committed);
    ASSERT_NO_FATAL_FAILURE(ExpectScalars(all->rows, all->rows.scalars.size()));
    EXPECT_EQ(
        all->salvage.missing_rows + all->salvage.damaged_blocks + all->salvage.unreadable_files,
        0U);
  }
  std::printf("killed within a seal: %d of %d times\n", with_segments_half_done, kKills);
  const auto writer = Writer::Open(run / "agent-a", "agent-a");
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Close(true).ok());
  const auto report = Verify(run);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->problems.empty()) << report->problems[0].file << report->problems[0].what;
  EXPECT_GE(report->rows, oracle->committed.load());
  EXPECT_EQ(ListFolder(run / "agent-a")->journals.size(), 1U);
}

/// Appends until the disk refuses, frees it, goes on; returns how many scalars there are.
template <class Free>
int FillFreeAndGoOn(const std::filesystem::path& run, Free&& free) {
  WriterOptions options;
  options.min_free_bytes = 0;
  auto writer = Writer::Open(run / "agent-a", "agent-a", options).value();
  auto reader = RunReader::Open(run).value();
  auto cursor = reader->NewCursor().value();
  std::vector<OrderedRecord> seen;
  std::size_t delivered = 0;
  const auto poll = [&] {
    do {
      seen.clear();
      EXPECT_TRUE(cursor->Next(10'000, &seen).ok());
      delivered += seen.size();
    } while (!seen.empty());
  };
  int next = 0;
  Status status;
  while (next < 1'000'000) {
    status = writer->Append(Scalars(next, 700));  // A group of several batches.
    if (!status.ok()) break;
    next += 700;
    if (next % 7000 == 0) poll();
  }
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("recording then resumes"), std::string::npos);
  EXPECT_TRUE(writer->disk_full());
  EXPECT_FALSE(writer->Append(Scalars(next, 700)).ok());
  EXPECT_EQ(writer->counters().write_failures, 2U);
  poll();
  EXPECT_EQ(delivered, static_cast<std::size_t>(next));  // A refused append leaves no row.
  free();
  // Not the same rows again: the caller may have drained more in the meantime.
  EXPECT_TRUE(writer->Append(Scalars(next, 900)).ok());
  EXPECT_FALSE(writer->disk_full());
  next += 900;
  poll();
  EXPECT_EQ(delivered, static_cast<std::size_t>(next));
  EXPECT_TRUE(writer->Close(true).ok());
  ExpectScalars(ReadEverything(run)->rows, static_cast<std::size_t>(next));
  EXPECT_TRUE(Verify(run)->problems.empty());
  return next;
}

TEST(DiskFullTest, ALimitOnTheFileIsSurvived) {
  if (kTsan)
    GTEST_SKIP() << "the sanitizer cannot follow threads that come and go in a forked child";
  const TempFolder temp;
  const std::filesystem::path run = temp.path() / "run";
  const int status = Wait(Spawn([&] {
    MakeRun(run, true);
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 100'001;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_GT(FillFreeAndGoOn(run,
                              [&] {
                                limit.rlim_cur = limit.rlim_max;
                                ::setrlimit(RLIMIT_FSIZE, &limit);
                              }),
              900);
  }));
  EXPECT_EQ(status, 0);
}

TEST(DiskFullTest, AFullFileSystemIsSurvived) {
  if (kTsan)
    GTEST_SKIP() << "the sanitizer cannot follow threads that come and go in a forked child";
  const TempFolder temp;
  constexpr int kCannotMount = 77;
  const int status = Wait(Spawn([&] {
    const char* const at = temp.path().c_str();
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ||
        ::mount("tmpfs", at, "tmpfs", 0, "size=3m") != 0) {
      ::_exit(kCannotMount);
    }
    const std::filesystem::path run = temp.path() / "run";
    const std::filesystem::path filler = temp.path() / "filler";
    MakeRun(run, true);
    std::ofstream(filler) << std::string(2 << 20, 'x');
    EXPECT_GT(FillFreeAndGoOn(run, [&] { std::filesystem::remove(filler); }), 900);
    ::umount2(at, MNT_DETACH);
  }));
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotMount) {
    GTEST_SKIP() << "needs root to mount a small file system";
  }
  EXPECT_EQ(status, 0);
}

TEST(DiskFullTest, SpaceThatIsLeftAloneCountsAsFull) {
  const TempFolder temp;
  WriterOptions options;
  options.min_free_bytes = ~0ULL;
  const auto writer = Writer::Open(temp.path() / "agent-a", "agent-a", options);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_EQ((*writer)->Append(Scalars(0, 1)).code(), Code::kIo);
  EXPECT_TRUE((*writer)->disk_full());
}

}  // namespace
}  // namespace telltale::store
