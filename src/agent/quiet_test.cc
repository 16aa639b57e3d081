// SPDX-License-Identifier: Apache-2.0
#include "agent/quiet.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "base/units.h"

namespace telltale::agent {
namespace {

TEST(QuietWatch, LooksOnceAndAgainWhenTheSilenceHasDoubled) {
  QuietWatch quiet;
  EXPECT_FALSE(quiet.Due(1000 * kSecond)) << "nothing ever came of it";
  quiet.See(1 * kSecond);
  quiet.See(2 * kSecond);
  EXPECT_FALSE(quiet.Due(11 * kSecond));
  EXPECT_TRUE(quiet.Due(12 * kSecond));
  EXPECT_FALSE(quiet.Due(13 * kSecond));
  EXPECT_FALSE(quiet.Due(21 * kSecond));
  EXPECT_TRUE(quiet.Due(22 * kSecond));
  EXPECT_EQ(quiet.QuietNs(22 * kSecond), 20 * kSecond);
  quiet.See(23 * kSecond);
  EXPECT_FALSE(quiet.Due(33 * kSecond)) << "it was as quiet before, and went on";
  EXPECT_FALSE(quiet.Due(106 * kSecond));
  EXPECT_TRUE(quiet.Due(107 * kSecond));
}

TEST(QuietWatch, AHugeSilenceDoesNotBlindItForEver) {
  QuietWatch quiet;
  quiet.See(1);
  quiet.See(INT64_MAX / 2);
  EXPECT_FALSE(quiet.Due(INT64_MAX / 2 + QuietWatch::kMostNs - 1));
  EXPECT_TRUE(quiet.Due(INT64_MAX / 2 + QuietWatch::kMostNs));
}

class Threads : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) /
            ("quiet_" + std::to_string(::getpid()) + "_" +
             testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Add(int tid, const std::string& name, const std::string& state, const std::string& wait,
           const std::string& call) {
    const auto task = root_ / "70" / "task" / std::to_string(tid);
    std::filesystem::create_directories(task);
    Write(task / "comm", name + "\n");
    Write(task / "stat", std::to_string(tid) + " (" + name + ") " + state +
                             " 1 70 70 0 -1 64 0 0 0 0 30 20 0 0 20 0 1 0 5 0\n");
    if (!wait.empty()) Write(task / "wchan", wait);
    if (!call.empty()) Write(task / "syscall", call + "\n");
  }
  static void Write(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path) << text;
  }

  std::filesystem::path root_;
};

TEST_F(Threads, AreNamedWithWhatTheyWaitFor) {
  Add(69, "pin (a) memory", "S", "0", "");
  Add(70, "python", "S", "futex_wait_queue", std::to_string(SYS_futex) + " 0x1 0x80 0x7f 0x7f");
  Add(71, "loader", "D", "", "running");
  const auto data = ParseJson(ThreadsOf(root_.string(), 70, 12));
  EXPECT_EQ(data["quiet_ns"], 12);
  EXPECT_EQ(data["thread_count"], 3);
  const auto& threads = data["threads"];
  ASSERT_EQ(threads.size(), 3U);
  EXPECT_EQ(threads[0]["tid"], 70) << "the first thread of the process comes first";
  EXPECT_EQ(threads[0]["state"], "S");
  EXPECT_EQ(threads[0]["wait"], "futex_wait_queue");
  EXPECT_EQ(threads[0]["syscall"], "futex");
  EXPECT_EQ(threads[0]["cpu_ms"], 50 * 1000 / ::sysconf(_SC_CLK_TCK));
  EXPECT_EQ(threads[1]["name"], "pin (a) memory");
  EXPECT_FALSE(threads[1].contains("wait"));
  EXPECT_EQ(threads[2]["state"], "D");
  EXPECT_FALSE(threads[2].contains("syscall"));
}

TEST_F(Threads, ManyAreCutAndCounted) {
  for (int tid = 70; tid < 110; ++tid) Add(tid, "t", "S", "", "");
  const auto data = ParseJson(ThreadsOf(root_.string(), 70, 0));
  EXPECT_EQ(data["thread_count"], 40);
  EXPECT_EQ(data["threads"].size(), 32U);
}

TEST_F(Threads, OfNoProcessAreNothing) { EXPECT_EQ(ThreadsOf(root_.string(), 70, 0), ""); }

TEST(ThreadsOfThis, ProcessAreThere) {
  const auto data = ParseJson(ThreadsOf("/proc", ::getpid(), 0));
  EXPECT_EQ(data["threads"][0]["tid"], ::getpid());
}

}  // namespace
}  // namespace telltale::agent
