// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace telltale {
namespace {

TEST(Process, KnowsItself) {
  const std::uint64_t ticks = ProcessStartTicks(::getpid());
  EXPECT_GT(ticks, 0U);
  EXPECT_EQ(ProcessStartTicks(::getpid()), ticks);
  EXPECT_EQ(ProcessParent(::getpid()), ::getppid());
  EXPECT_TRUE(ProcessAlive(::getpid(), ticks));
  EXPECT_FALSE(ProcessAlive(::getpid(), ticks + 1));
  EXPECT_NE(ProcessCommandLine(::getpid()).find("base_test"), std::string::npos);
  const std::vector<std::string> words = ProcessArguments(::getpid());
  ASSERT_FALSE(words.empty());
  EXPECT_TRUE(words[0].ends_with("base_test")) << words[0];
  EXPECT_EQ(ProcessCommandLine(::getpid()).substr(0, words[0].size()), words[0]);
}

TEST(Process, MemoryThatIsLeftIsTheLeastOfMachineAndControlGroups) {
  EXPECT_GT(MemoryLeft().value_or(0), 0U);
  std::string folder = "/tmp/telltale-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string root = folder + "/";
  const auto put = [&](const std::string& name, const char* text) {
    const std::filesystem::path path = root + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  EXPECT_EQ(MemoryLeft(root), std::nullopt);
  put("proc/meminfo", "MemTotal:       16000 kB\nMemAvailable:    8000 kB\n");
  EXPECT_EQ(MemoryLeft(root), 8000U << 10);
  put("proc/self/cgroup", "4:cpu:/other\n0::/job/step\n");
  put("sys/fs/cgroup/job/step/memory.max", "max\n");
  put("sys/fs/cgroup/job/step/memory.current", "70000\n");
  EXPECT_EQ(MemoryLeft(root), 8000U << 10);
  put("sys/fs/cgroup/job/memory.max", "100000\n");
  put("sys/fs/cgroup/job/memory.current", "75000\n");
  EXPECT_EQ(MemoryLeft(root), 25000U);
  put("sys/fs/cgroup/job/step/memory.max", "60000\n");
  EXPECT_EQ(MemoryLeft(root), 0U);
  std::filesystem::remove_all(folder);
}

TEST(Process, TheNamespaceOfPidsIsThatOfOurChildren) {
  const std::string own = PidNamespace();
  EXPECT_TRUE(own.starts_with("pid:[")) << own;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(PidNamespace() == own ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Process, NoCoreIsLeftByAProcessThatWasToldSo) {
  // A hard limit of 0 is the only one that may be below: it cannot be raised to 1.
  for (const rlim_t given : {RLIM_INFINITY, rlim_t{0}}) {
    const pid_t child = ::fork();
    if (child == 0) {
      rlimit limit{};
      ::getrlimit(RLIMIT_CORE, &limit);
      limit.rlim_cur = limit.rlim_max = std::min(limit.rlim_max, given);
      ::setrlimit(RLIMIT_CORE, &limit);
      LeaveNoCore();
      ::getrlimit(RLIMIT_CORE, &limit);
      ::_exit(limit.rlim_cur <= 1 && limit.rlim_max == limit.rlim_cur ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(Process, NothingIsKnownOfAPidThatIsNot) {
  EXPECT_EQ(ProcessStartTicks(0x7fffffff), 0U);
  EXPECT_FALSE(OpenPidfd(0x7fffffff).valid());
}

TEST(Process, PidfdTellsTheEnd) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::uint64_t ticks = ProcessStartTicks(child);
  const UniqueFd pidfd = OpenPidfd(child);
  ASSERT_TRUE(pidfd.valid());
  EXPECT_FALSE(PidfdEnded(pidfd.get()));
  ::kill(child, SIGTERM);
  pollfd poll_fd{pidfd.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&poll_fd, 1, 30'000), 1);
  EXPECT_TRUE(PidfdEnded(pidfd.get()));
  EXPECT_FALSE(ProcessAlive(child, ticks)) << "a zombie does not live";
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(FromWaitStatus(status).signal, SIGTERM);
  if (const auto exit = PidfdExit(pidfd.get())) {  // Linux 6.15 and later tell it.
    EXPECT_EQ(exit->signal, SIGTERM);
  }
}

}  // namespace
}  // namespace telltale
