// SPDX-License-Identifier: Apache-2.0
#include "collect/process_tree.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "base/units.h"
#include "collect/fixture.h"

namespace telltale::collect {
namespace {

class ProcessTreeTest : public SampledTree {
 protected:
  void WriteProcess(int pid, int parent, int ticks, int io_bytes, char state = 'S') const {
    tree.Write(
        fmt::format("proc/{}/stat", pid),
        fmt::format("{} (a ) name) {} {} 1 1 0 -1 0 0 0 0 0 {} 0 0 0 20 0 3 0 77 1000 25 1\n", pid,
                    state, parent, ticks));
    tree.Write(fmt::format("proc/{}/io", pid),
               fmt::format("rchar: 9\nread_bytes: {}\nwrite_bytes: {}\ncancelled_write_bytes: 7\n",
                           io_bytes, 2 * io_bytes));
  }
  void WriteChildren(int pid, int tid, const std::string& children) const {
    tree.Write(fmt::format("proc/{}/task/{}/children", pid, tid), children);
  }
  /// 100 and its child 101, which has none.
  void WriteParentAndChild() const {
    WriteProcess(100, 1, 0, 0);
    WriteProcess(101, 100, 0, 0);
    WriteChildren(100, 100, "101");
    WriteChildren(101, 101, "");
  }
  Values Watch(int root) {
    sampler = Sampler::Create(Options());
    sampler->SetRoots({root});
    return Sample();
  }
  /// How many processes the machine has started, as /proc/stat says.
  void WriteStarted(int so_far) const {
    tree.Write("proc/stat", fmt::format("ctxt 1\nprocesses {}\n", so_far));
  }
  /// Until it knows that there are no new ones: none are looked for from then on.
  void WatchAndRest(int root) {
    WriteStarted(7);
    Watch(root);
    for (int i = 0; i < 2; ++i) {
      clock.Advance(kSecond);
      Sample();
    }
  }
  const double hz = static_cast<double>(::sysconf(_SC_CLK_TCK));
};

TEST_F(ProcessTreeTest, TheTreeIsTheRootAndTheChildrenOfAllThreads) {
  WriteProcess(100, 1, 0, 0);
  WriteProcess(101, 100, 0, 0);
  WriteProcess(102, 100, 0, 0);
  WriteProcess(103, 102, 0, 0);
  WriteProcess(200, 1, 0, 0);
  WriteChildren(100, 100, "101 ");
  WriteChildren(100, 110, "102 ");
  WriteChildren(101, 101, "");
  WriteChildren(102, 102, "103 ");
  WriteChildren(103, 103, "");
  const Values v = Watch(100);
  const double rss = 25.0 * static_cast<double>(::sysconf(_SC_PAGESIZE));
  EXPECT_EQ(v.count("proc:200 proc.rss"), 0U);
  EXPECT_DOUBLE_EQ(v.at("proc:103 proc.rss"), rss);
  EXPECT_DOUBLE_EQ(v.at("proc:tree proc.rss"), 4 * rss);
  EXPECT_DOUBLE_EQ(v.at("proc:tree proc.threads"), 12);
}

TEST_F(ProcessTreeTest, WithoutChildrenFilesTheParentsAreAsked) {
  WriteProcess(100, 1, 0, 0);
  WriteProcess(101, 100, 0, 0);
  WriteProcess(102, 101, 0, 0);
  WriteProcess(200, 1, 0, 0);
  tree.MakeFolder("proc/100/task/100");
  const Values v = Watch(100);
  EXPECT_EQ(v.count("proc:102 proc.rss"), 1U);
  EXPECT_EQ(v.count("proc:200 proc.rss"), 0U);
}

TEST_F(ProcessTreeTest, RatesOfAProcessAndOfTheTree) {
  WriteProcess(100, 1, 10, 1000);
  WriteProcess(101, 100, 10, 1000);
  WriteChildren(100, 100, "101");
  WriteChildren(101, 101, "");
  EXPECT_EQ(Watch(100).count("proc:100 proc.cpu"), 0U);
  WriteProcess(100, 1, 30, 3000);
  WriteProcess(101, 100, 40, 2000);
  clock.Advance(kSecond / 2);
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("proc:100 proc.cpu"), 4000 / hz);
  EXPECT_DOUBLE_EQ(v.at("proc:tree proc.cpu"), 10000 / hz);
  EXPECT_DOUBLE_EQ(v.at("proc:100 proc.read_bytes_rate"), 4000);
  EXPECT_DOUBLE_EQ(v.at("proc:101 proc.write_bytes_rate"), 4000);
  EXPECT_DOUBLE_EQ(v.at("proc:tree proc.read_bytes_rate"), 6000);
}

TEST_F(ProcessTreeTest, NewProcessesAreFoundWithinASecondAndEndedOnesLeave) {
  WriteProcess(100, 1, 0, 0);
  WriteChildren(100, 100, "");
  Watch(100);
  WriteProcess(101, 100, 0, 0);
  WriteChildren(100, 100, "101");
  WriteChildren(101, 101, "");
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("proc:101 proc.rss"), 1U);
  WriteProcess(101, 100, 0, 0, 'Z');
  const Values ended = Sample();
  EXPECT_EQ(ended.count("proc:101 proc.rss"), 0U);
  EXPECT_EQ(ended.count("proc:100 proc.rss"), 1U);
}

TEST_F(ProcessTreeTest, NewProcessesAreNotLookedForWhereTheMachineHasStartedNone) {
  WriteProcess(100, 1, 0, 0);
  WriteChildren(100, 100, "");
  WatchAndRest(100);
  WriteProcess(101, 100, 0, 0);
  WriteChildren(100, 100, "101");
  WriteChildren(101, 101, "");
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("proc:101 proc.rss"), 0U) << "it was looked for";
  WriteStarted(8);
  clock.Advance(kSecond);
  Sample();
  clock.Advance(kSecond / 10);
  EXPECT_EQ(Sample().count("proc:101 proc.rss"), 1U);
  // Some that stand for a kernel do not count.
  WriteStarted(0);
  WriteProcess(102, 100, 0, 0);
  WriteChildren(100, 100, "101 102");
  WriteChildren(102, 102, "");
  clock.Advance(kSecond);
  Sample();
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("proc:102 proc.rss"), 1U);
}

TEST_F(ProcessTreeTest, WhatALookHasMissedIsFoundByOneThatNothingAsksFor) {
  WriteProcess(100, 1, 0, 0);
  WriteChildren(100, 100, "");
  WatchAndRest(100);
  // As where the kernel left it out, since another process ended in that moment.
  WriteProcess(101, 100, 0, 0);
  WriteChildren(100, 100, "101");
  WriteChildren(101, 101, "");
  clock.Advance(5 * kSecond);
  EXPECT_EQ(Sample().count("proc:101 proc.rss"), 0U) << "it was looked for";
  clock.Advance(5 * kSecond);
  EXPECT_EQ(Sample().count("proc:101 proc.rss"), 1U);
}

TEST_F(ProcessTreeTest, AChildThatCouldNotBeOpenedIsLookedForAgain) {
  WriteProcess(100, 1, 0, 0);
  WriteChildren(100, 100, "");
  WatchAndRest(100);
  WriteChildren(100, 100, "101");
  WriteStarted(8);
  clock.Advance(kSecond);
  Sample();  // Knows of the 8.
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("proc:101 proc.rss"), 0U);
  WriteProcess(101, 100, 0, 0);
  WriteChildren(101, 101, "");
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("proc:101 proc.rss"), 1U);
}

TEST_F(ProcessTreeTest, OneThatIsNotReapedMakesNoMoreLooks) {
  WriteProcess(100, 1, 0, 0);
  WriteProcess(101, 100, 0, 0, 'Z');
  WriteChildren(100, 100, "101");
  WatchAndRest(100);
  clock.Advance(kSecond);
  Sample();
  WriteProcess(102, 100, 0, 0);
  WriteChildren(100, 100, "101 102");
  WriteChildren(102, 102, "");
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("proc:102 proc.rss"), 0U) << "it was looked for";
}

TEST_F(ProcessTreeTest, WithoutACountOfWhatWasStartedItIsLookedEverySecond) {
  WriteProcess(100, 1, 0, 0);
  WriteChildren(100, 100, "");
  WatchAndRest(100);
  CutFile("proc/stat");
  Sample();
  WriteProcess(101, 100, 0, 0);
  WriteChildren(100, 100, "101");
  WriteChildren(101, 101, "");
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("proc:101 proc.rss"), 1U);
}

TEST_F(ProcessTreeTest, ANewProcessWithTheNumberOfOneThatHasEndedIsFound) {
  WriteParentAndChild();
  WatchAndRest(100);
  WriteStarted(8);
  clock.Advance(kSecond / 2);
  ASSERT_EQ(Sample().count("proc:101 proc.rss"), 1U);
  WriteProcess(101, 100, 0, 0, 'X');
  tree.Remove("proc/101");
  WriteProcess(101, 100, 0, 0);
  WriteChildren(101, 101, "");
  clock.Advance(kSecond / 2);
  const Values v = Sample();
  EXPECT_EQ(v.count("proc:101 proc.rss"), 1U);
  EXPECT_EQ(v.count("proc:101 proc.cpu"), 0U) << "a rate over both";
}

TEST_F(ProcessTreeTest, AfterAnEndItIsLookedAgain) {
  WriteParentAndChild();
  WatchAndRest(100);
  // Its child went to 100 in the moment of the look.
  WriteProcess(101, 100, 0, 0, 'Z');
  WriteProcess(102, 100, 0, 0);
  WriteChildren(100, 100, "102");
  WriteChildren(102, 102, "");
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("proc:102 proc.rss"), 1U);
}

TEST_F(ProcessTreeTest, ChildrenOfSomebodyElseWithTheNumberOfOursAreNotTaken) {
  WriteParentAndChild();
  Watch(100);
  tree.Remove("proc/101");
  WriteProcess(101, 1, 0, 0);
  WriteChildren(101, 101, "200");
  WriteProcess(200, 101, 0, 0);
  WriteChildren(200, 200, "");
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("proc:200 proc.rss"), 0U);
}

TEST_F(ProcessTreeTest, AChildStaysWatchedWhenItsParentHasEnded) {
  WriteParentAndChild();
  Watch(100);
  WriteProcess(100, 1, 0, 0, 'Z');
  WriteChildren(100, 100, "");
  clock.Advance(kSecond);
  const Values v = Sample();
  EXPECT_EQ(v.count("proc:100 proc.rss"), 0U);
  EXPECT_EQ(v.count("proc:101 proc.rss"), 1U);
}

TEST_F(ProcessTreeTest, FaultsAndTimeInTheQueue) {
  const auto write = [this](int minor, int major, const std::string& schedstat) {
    tree.Write("proc/100/stat", fmt::format("100 (x) S 1 1 1 0 -1 0 {} 0 {} 0 0 0 0 0 20 0 3 0 77 "
                                            "1000 25 1\n",
                                            minor, major));
    tree.Write("proc/100/schedstat", schedstat);
  };
  WriteChildren(100, 100, "");
  write(100, 10, "5000000000 1000000000 77\n");
  Watch(100);
  write(700, 12, "9000000000 1500000000 99\n");
  clock.Advance(2 * kSecond);
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("proc:100 proc.minor_faults_rate"), 300);
  EXPECT_DOUBLE_EQ(v.at("proc:100 proc.major_faults_rate"), 1);
  EXPECT_DOUBLE_EQ(v.at("proc:100 proc.run_delay"), 25);
  EXPECT_DOUBLE_EQ(v.at("proc:tree proc.run_delay"), 25);
  const std::uint64_t malformed = sampler->counters().malformed;
  write(700, 12, "soon\n");
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("proc:100 proc.run_delay"), 0U);
  EXPECT_EQ(sampler->counters().malformed, malformed + 1);
}

TEST_F(ProcessTreeTest, WhatIsSlowIsReadEverySecondOfAllProcessesAtOnce) {
  const auto write = [this](int pid, int ticks, int switches) {
    WriteProcess(pid, 1, ticks, 0);
    tree.Write(fmt::format("proc/{}/status", pid),
               fmt::format("Name:\tx\nVmSwap:\t4 kB\nvoluntary_ctxt_switches:\t{}\n", switches));
  };
  write(100, 0, 0);
  WriteChildren(100, 100, "");
  EXPECT_DOUBLE_EQ(Watch(100).at("proc:100 proc.swap"), 4096);
  write(100, 10, 500);
  write(101, 10, 0);
  WriteChildren(101, 101, "");
  sampler->SetRoots({101});
  clock.Advance(kSecond / 10);
  const Values between = Sample();
  EXPECT_EQ(between.count("proc:100 proc.cpu"), 1U);
  EXPECT_EQ(between.count("proc:100 proc.voluntary_switches_rate"), 0U);
  EXPECT_EQ(between.count("proc:101 proc.swap"), 0U);
  EXPECT_EQ(between.count("proc:tree proc.swap"), 0U) << "the sum would be of one process";
  // Ten samples a second, the tenth a little early.
  clock.Advance(kSecond - kSecond / 10 - kMs);
  const Values v = Sample();
  EXPECT_NEAR(v.at("proc:100 proc.voluntary_switches_rate"), 500, 1);
  EXPECT_DOUBLE_EQ(v.at("proc:101 proc.swap"), 4096);
  EXPECT_DOUBLE_EQ(v.at("proc:tree proc.swap"), 2 * 4096);
}

class PrivateMemoryTest : public ProcessTreeTest {
 protected:
  /// 101 is the child of 100.
  void Write(int megabytes, int faulted_megabytes, int private_megabytes) const {
    WriteParentAndChild();
    const std::int64_t pages = (std::int64_t{1} << 20) / ::sysconf(_SC_PAGESIZE);
    tree.Write("proc/101/stat",
               fmt::format("101 (x) S 100 1 1 0 -1 0 {} 0 0 0 0 0 0 0 20 0 3 0 77 1000 {} 1\n",
                           faulted_megabytes * pages, megabytes * pages));
    tree.Write("proc/101/smaps_rollup",
               fmt::format("0-1 ---p 0 00:00 0 [rollup]\nRss: 9 kB\nPrivate_Clean: 7 kB\n"
                           "Private_Dirty: {} kB\nSwap: 0 kB\nPrivate_Hugetlb: 0 kB\n",
                           private_megabytes * 1024));
  }
  Values After(std::int64_t ns) {
    clock.Advance(ns);
    return Sample();
  }
  static constexpr const char* kName = "proc:101 proc.private";
};

TEST_F(PrivateMemoryTest, IsReadOfAChildAndAgainWherePagesHaveComeIn) {
  Write(100, 1, 5);
  const Values first = Watch(100);
  EXPECT_DOUBLE_EQ(first.at(kName), 5 * 1048576.0);
  EXPECT_EQ(first.count("proc:100 proc.private"), 0U) << "nobody of the tree has started it";
  EXPECT_EQ(first.count("proc:tree proc.private"), 0U) << "they are read at different times";
  EXPECT_EQ(After(3 * kSecond).count(kName), 0U) << "nothing has changed";
  // Copied on write: as much is resident as before.
  Write(100, 31, 35);
  EXPECT_DOUBLE_EQ(After(kSecond).at(kName), 35 * 1048576.0);
  Write(100, 61, 65);
  EXPECT_EQ(After(kSecond).count(kName), 0U) << "a second ago it was read";
  EXPECT_DOUBLE_EQ(After(kSecond).at(kName), 65 * 1048576.0);
  // Large pages: few come in, and much is resident.
  Write(140, 62, 105);
  EXPECT_DOUBLE_EQ(After(2 * kSecond).at(kName), 105 * 1048576.0);
}

TEST_F(PrivateMemoryTest, IsLeftOutWhereTheProcessIsSmallOrTheKernelDoesNotTell) {
  Write(20, 1, 5);
  EXPECT_EQ(Watch(100).count(kName), 0U);
  Write(100, 31, 35);
  tree.Remove("proc/101/smaps_rollup");
  EXPECT_EQ(After(2 * kSecond).count(kName), 0U);
  EXPECT_EQ(sampler->counters().malformed, 0U);
}

TEST_F(ProcessTreeTest, WithoutPermissionForIoTheRestRemains) {
  WriteProcess(100, 1, 0, 0);
  tree.Remove("proc/100/io");
  WriteChildren(100, 100, "");
  const Values v = Watch(100);
  EXPECT_EQ(v.count("proc:100 proc.rss"), 1U);
  EXPECT_GE(sampler->counters().unreadable, 1U);
}

TEST(ProcessTree, WhatThisProcessDoesIsCounted) {
  FakeClock clock;  // So that rates are counts, however long the test takes.
  auto sampler = Sampler::Create({"/", "here", &clock});
  sampler->SetRoots({static_cast<int>(::getpid())});
  StringPool pool;
  std::vector<format::MetricRow> rows;
  sampler->Sample(0, &pool, &rows);
  constexpr int kCalls = 1000;
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  for (int i = 0; i < kCalls; ++i) {
    char byte = 'x';
    ASSERT_EQ(::write(pipes[1], &byte, 1), 1);
    ASSERT_EQ(::read(pipes[0], &byte, 1), 1);
  }
  ::close(pipes[0]);
  ::close(pipes[1]);
  clock.Advance(kSecond);
  rows.clear();
  sampler->Sample(0, &pool, &rows);
  std::map<std::string_view, double> values;
  for (const auto& row : rows) {
    if (row.pid == ::getpid()) values[row.name] = row.value;
  }
  if (values.count("proc.read_calls_rate") == 0) GTEST_SKIP() << "no counts of I/O here";
  EXPECT_GE(values.at("proc.read_calls_rate"), kCalls);
  EXPECT_GE(values.at("proc.write_calls_rate"), kCalls);
  EXPECT_GE(values.at("proc.write_call_bytes_rate"), kCalls);
  EXPECT_GE(values.at("proc.voluntary_switches_rate"), 0);
  // Not every kernel keeps the time in the queue.
  const std::size_t missing = ::access("/proc/self/schedstat", R_OK) == 0 ? 0 : 1;
  // Private memory is told of those that it has started.
  EXPECT_EQ(values.size(), kProcCount - 1 - missing) << "a metric of a process is missing";
}

TEST(ProcessTree, ARealChildIsSeenAndItsEndToo) {
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte;
    ::close(hold[1]);
    ::_exit(::read(hold[0], &byte, 1) == 0 ? 0 : 1);
  }
  ::close(hold[0]);
  auto sampler = Sampler::Create({"/", "here"});
  sampler->SetRoots({static_cast<int>(::getpid())});
  StringPool pool;
  std::vector<format::MetricRow> rows;
  const auto sees_child = [&] {
    rows.clear();
    sampler->Sample(0, &pool, &rows);
    return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.pid == child; });
  };
  EXPECT_TRUE(sees_child());
  ::close(hold[1]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(sees_child());
}

}  // namespace
}  // namespace telltale::collect
