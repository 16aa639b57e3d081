// SPDX-License-Identifier: Apache-2.0
#include "agent/own_cpu.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace telltale::agent {
namespace {

/// Of each core, by number, percent idle.
std::vector<format::MetricRow> Idle(const std::vector<double>& percent) {
  static constexpr std::array<std::string_view, 4> kSubjects = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"};
  std::vector<format::MetricRow> rows;
  format::MetricRow row;
  row.name = "cpu.idle";
  row.subject = "node";
  row.value = 100;  // No core's.
  rows.push_back(row);
  for (std::size_t core = 0; core < percent.size(); ++core) {
    row.subject = kSubjects.at(core);
    row.value = percent[core];
    rows.push_back(row);
  }
  return rows;
}

/// The same in a control group with a limit, of which so many cores are used.
std::vector<format::MetricRow> Limited(double limit, double used) {
  std::vector<format::MetricRow> rows = Idle({90, 90, 90, 90});
  format::MetricRow row;
  row.subject = "cgroup";
  row.name = "cgroup.cpu_limit";
  row.value = limit;
  rows.push_back(row);
  row.name = "cgroup.cpu_used";
  row.value = used * 100;
  rows.push_back(row);
  return rows;
}

/// What 0.1 s of processor time in one second came to.
double ShareOf(const std::vector<format::MetricRow>& sample,
               const std::vector<bool>& allowed = {}) {
  OwnCpu own;
  own.Share(0, kSecond);
  own.See(sample, allowed);
  return own.Share(kSecond / 10, 2 * kSecond).value();
}

TEST(OwnCpu, CostsNothingWhereCoresAreIdle) {
  OwnCpu own;
  EXPECT_FALSE(own.Share(0, kSecond).has_value()) << "nothing to compare with yet";
  EXPECT_EQ(ShareOf(Idle({0, 100, 0, 0})), 0.0);
}

TEST(OwnCpu, IsAShareOfAllCoresWhereTheyAreScarce) {
  OwnCpu own;
  own.Share(0, kSecond);
  own.See(Idle({0, 0}), {});
  own.See(Idle({20, 0}), {});
  const auto share = own.Share(kSecond / 50, 2 * kSecond);
  ASSERT_TRUE(share.has_value());
  EXPECT_DOUBLE_EQ(*share, 0.01);
  own.See(Idle({0, 0}), {});
  EXPECT_EQ(own.Share(0, 3 * kSecond), 0.0) << "a helper began anew";
}

TEST(OwnCpu, IdleCoresOnWhichItMayNotRunAreNoRoom) {
  EXPECT_DOUBLE_EQ(ShareOf(Idle({0, 0, 100, 100}), {true, true, false, false}), 0.05);
  EXPECT_DOUBLE_EQ(ShareOf(Idle({0, 100}), {true}), 0.1);
  EXPECT_EQ(ShareOf(Idle({0, 100, 0, 0}), {true, true, false, false}), 0.0);
}

TEST(OwnCpu, UnderALimitOfTheControlGroupWhatIsLeftOfItIsTheRoom) {
  EXPECT_DOUBLE_EQ(ShareOf(Limited(2, 1.9)), 0.05) << "though the node is idle";
  EXPECT_EQ(ShareOf(Limited(2, 1.2)), 0.0);
  EXPECT_DOUBLE_EQ(ShareOf(Limited(0.5, 0.4)), 0.2);
  EXPECT_EQ(ShareOf(Limited(0.5, 0.2)), 0.0);
  EXPECT_DOUBLE_EQ(ShareOf(Limited(2, 1.9), {true}), 0.1) << "the tighter of both";
}

TEST(OwnCpu, IsNotGuessedWithoutASample) { EXPECT_EQ(ShareOf({}), 0.0); }

TEST(OwnCpu, KnowsWhereItMayRun) {
  const std::vector<bool> allowed = AllowedCores();
  EXPECT_NE(std::find(allowed.begin(), allowed.end(), true), allowed.end());
}

constexpr std::int64_t kBurntNs = 200 * kMs;

std::int64_t ProcessorNs() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

/// A pipe of single bytes.
class Signal {
 public:
  Signal() { EXPECT_EQ(::pipe(ends_.data()), 0); }
  void Give(std::size_t times = 1) const {
    for (std::size_t i = 0; i < times; ++i)
      [[maybe_unused]] const auto n = ::write(ends_[1], "x", 1);
  }
  void Await(std::size_t times = 1) const {
    char byte = 0;
    for (std::size_t i = 0; i < times; ++i)
      [[maybe_unused]] const auto n = ::read(ends_[0], &byte, 1);
  }

 private:
  std::array<int, 2> ends_{};
};

/// Children of this process, killed at the end.
class Children {
 public:
  ~Children() {
    for (const pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  /// The child does this and waits for its end.
  template <class Work>
  pid_t Start(Work work) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      work();
      for (;;) ::pause();
    }
    pids_.push_back(pid);
    return pid;
  }

 private:
  std::vector<pid_t> pids_;
};

TEST(OwnCpu, CountsTheProcessesBesideUsAndBeneathThemButNotTheTraining) {
  // This process is the supervisor: what it has started asks.
  const pid_t supervisor = ::getpid();
  Signal begin, burnt, end;
  const auto burn = [&] {
    begin.Await();
    while (ProcessorNs() < kBurntNs) {
    }
    burnt.Give();
  };
  Children children;
  const pid_t training = children.Start(burn);
  children.Start([&] {
    const pid_t beneath = ::fork();
    burn();
    if (beneath == 0) {
      for (;;) ::pause();
    }
    end.Await();
    ::kill(beneath, SIGKILL);
    ::waitpid(beneath, nullptr, 0);
    burnt.Give();
  });
  const pid_t agent = ::fork();
  if (agent == 0) {
    const std::uint64_t before = OwnCpuNs(supervisor, training);
    begin.Give(3);
    burnt.Await(3);
    const std::uint64_t with_training = OwnCpuNs(supervisor, 0);
    const std::uint64_t after = OwnCpuNs(supervisor, training);
    end.Give();
    burnt.Await();
    // Ticks of 10 ms are cut off, of each process twice.
    constexpr std::uint64_t kCut = 50 * kMs;
    const bool both = after - before >= 2 * kBurntNs - kCut;
    const bool not_training = with_training >= after + kBurntNs - 2 * kCut;
    ::_exit((both ? 0 : 1) + (not_training ? 0 : 2));
  }
  int status = -1;
  ASSERT_EQ(::waitpid(agent, &status, 0), agent);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status) & 1, 0) << "a process beside us, or one beneath it, is missing";
  EXPECT_EQ(WEXITSTATUS(status) & 2, 0) << "the training is counted";
  // A supervisor that is not our parent is gone: only we are left to count.
  const auto before = static_cast<std::uint64_t>(ProcessorNs());
  EXPECT_LE(OwnCpuNs(1 << 30, 0), before + kBurntNs);
}

}  // namespace
}  // namespace telltale::agent
