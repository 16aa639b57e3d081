// SPDX-License-Identifier: Apache-2.0
#include "run/run_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/clock.h"
#include "base/process.h"
#include "base/units.h"
#include "store/run_info.h"

namespace telltale::run {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDiskPatienceNs = 300 * kSecond;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

class RunDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tt-run-directory-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    request_.directory = folder_ / "run";
    request_.command = {"true"};
    request_.telltale_version = "0";
  }
  void TearDown() override { fs::remove_all(folder_); }
  /// Waits for what the disk says of all that it was told.
  static bool AwaitSettled(RunDirectory* run) {
    const std::int64_t deadline = Now() + kDiskPatienceNs;
    while (!run->Settled() && Now() < deadline) ::usleep(1000);
    return run->Settled();
  }
  /// Our only one.
  static pid_t Child() {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc", error)) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      if (pid > 0 && ProcessParent(pid) == ::getpid()) return pid;
    }
    return 0;
  }
  std::uint64_t Version() const {
    struct stat info {};
    return ::stat((request_.directory / "run.json").c_str(), &info) == 0 ? info.st_ino : 0;
  }

  fs::path folder_;
  RunRequest request_;
  bool refused_ = false;
};

TEST_F(RunDirectoryTest, AnAttemptThatIsAbandonedLeavesTheTrainingNoChild) {
  auto run = RunDirectory::Prepare(request_, &refused_);
  ASSERT_TRUE(run.ok()) << run.status().message();
  ASSERT_TRUE(run->StartWriter().ok());
  run->Abandon();
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "it would be the training's";
  EXPECT_EQ(errno, ECHILD);
  EXPECT_FALSE(fs::exists(request_.directory));
}

TEST_F(RunDirectoryTest, ADiskThatHasAnsweredIsAskedAgainAndNothingNewIsWritten) {
  auto run = RunDirectory::Prepare(request_, &refused_);
  ASSERT_TRUE(run.ok()) << run.status().message();
  ASSERT_TRUE(run->StartWriter().ok());
  run->Ended(ProcessExit{3, {}});
  ASSERT_TRUE(AwaitSettled(&*run));
  EXPECT_TRUE(run->Answers());
  // Another file each time.
  const std::uint64_t before = Version();
  const std::int64_t deadline = Now() + kDiskPatienceNs;
  while (Version() == before && Now() < deadline) {
    EXPECT_TRUE(run->Settled()) << "that the disk is asked keeps nobody waiting";
    run->Answers();
    ::usleep(1000);
  }
  EXPECT_NE(Version(), before);
  const auto info = store::ReadRunInfo(request_.directory);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->attempts.back().exit_code, 3);
  EXPECT_FALSE(info->finished);
  run->Release();
}

TEST_F(RunDirectoryTest, ADiskThatFallsSilentIsNoticed) {
  auto run = RunDirectory::Prepare(request_, &refused_);
  ASSERT_TRUE(run.ok()) << run.status().message();
  ASSERT_TRUE(run->StartWriter().ok());
  run->Ended(ProcessExit{0, {}});
  ASSERT_TRUE(AwaitSettled(&*run));
  ASSERT_TRUE(run->Answers());
  // The process that writes is stopped, as by a disk that does not answer.
  const pid_t writer = Child();
  ASSERT_GT(writer, 0);
  ::kill(writer, SIGSTOP);
  const std::int64_t deadline = Now() + kDiskPatienceNs;
  while (run->Answers() && Now() < deadline) ::usleep(1000);
  EXPECT_FALSE(run->Answers());
  EXPECT_TRUE(run->Settled()) << "what it was told is on the disk";
  run->Release();  // Which does not wait for it.
  ::kill(writer, SIGCONT);
  ::waitpid(writer, nullptr, 0);
}

}  // namespace
}  // namespace telltale::run
