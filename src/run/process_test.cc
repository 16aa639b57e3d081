// SPDX-License-Identifier: Apache-2.0
// Children that cannot be watched: a training goes on without a pidfd, a helper does not run; and
// what a training that takes our place finds.
#include "run/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace telltale::run {
namespace {

/// As long as it lives, `count` more descriptors can be opened and not one more.
class FewFiles {
 public:
  explicit FewFiles(int count) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    std::vector<UniqueFd> free;
    int highest = -1;
    for (int i = 0; i < count; ++i) {
      free.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      highest = std::max(highest, free.back().get());
    }
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(highest) + 1;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewFiles(const FewFiles&) = delete;
  FewFiles& operator=(const FewFiles&) = delete;
  const rlimit& before() const { return before_; }

 private:
  rlimit before_{};
};

TEST(Process, ATrainingRunsWithoutAPidfd) {
  GivenSignals given;
  ASSERT_EQ(::sigprocmask(SIG_BLOCK, nullptr, &given.mask), 0);
  const FewFiles few(2);  // For the pipe that tells whether the exec has worked.
  const auto child = SpawnTraining({"/bin/sh", "-c", "exit 7"}, {}, given, few.before());
  ASSERT_TRUE(child.ok()) << child.status().message();
  EXPECT_FALSE(child->pidfd);
  int status = 0;
  ASSERT_GT(child->pid, 0);
  ASSERT_EQ(::waitpid(child->pid, &status, 0), child->pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST(Process, AHelperThatCannotBeWatchedDoesNotRun) {
  const FewFiles few(0);
  const auto child = SpawnHelper({"/bin/sleep", "1000"}, "/dev/null", -1);
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.status().code(), Code::kLimit);
  const pid_t left = ::waitpid(-1, nullptr, WNOHANG);
  const int why = errno;
  EXPECT_EQ(left, -1) << "it is left behind";
  EXPECT_EQ(why, ECHILD);
}

TEST(Process, ATrainingThatTakesOurPlaceDoesNotSeeWhatWasAgreedTo) {
  GivenSignals given;
  ASSERT_EQ(::sigprocmask(SIG_BLOCK, nullptr, &given.mask), 0);
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::setenv("TELLTALE_ACTIONS_AGREED", "{}\n", 1);
    ::setenv("OTHER", "kept", 1);
    BecomeTraining({"/bin/sh", "-c", "exit ${TELLTALE_ACTIONS_AGREED+3}${OTHER:+7}"}, given);
    ::_exit(99);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

}  // namespace
}  // namespace telltale::run
