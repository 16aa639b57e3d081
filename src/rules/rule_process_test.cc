// SPDX-License-Identifier: Apache-2.0
// The child of a rule: lines, waits that end, how it ended, and that nothing of it stays.
#include "rules/rule_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "store/store_testing.h"

namespace telltale::rules {
namespace {

constexpr std::int64_t kLong = 120'000'000'000;
constexpr std::int64_t kShort = 50'000'000;

std::unique_ptr<RuleProcess> Shell(const std::string& script, const std::string& log = {}) {
  auto process = RuleProcess::Start({"sh", "-c", script}, {"PATH=/usr/bin:/bin"}, log);
  EXPECT_TRUE(process.ok()) << process.status().message();
  return process.ok() ? std::move(process).value() : nullptr;
}

TEST(RuleProcessTest, LinesGoBothWays) {
  const auto process = Shell("while read -r a <&3; do echo \"got $a\" >&3; done");
  ASSERT_NE(process, nullptr);
  for (const char* text : {"one", "two", ""}) {
    ASSERT_TRUE(process->SendLine(text, kLong).ok());
    const auto line = process->ReadLine(kLong);
    ASSERT_TRUE(line.ok()) << line.status().message();
    EXPECT_EQ(*line, std::string("got ") + text);
  }
  // Several in one piece are given one by one.
  ASSERT_TRUE(process->SendLine("a\nb", kLong).ok());
  EXPECT_EQ(process->ReadLine(kLong).value(), "got a");
  EXPECT_EQ(process->ReadLine(kLong).value(), "got b");
}

TEST(RuleProcessTest, SaysHowItEnded) {
  const auto code = Shell("exit 3");
  ASSERT_NE(code, nullptr);
  EXPECT_EQ(code->ReadLine(kLong).status().code(), Code::kUnusable);
  EXPECT_NE(code->ReadLine(kLong).status().message().find("exit code 3"), std::string::npos);
  const auto killed = Shell("kill -9 $$");
  ASSERT_NE(killed, nullptr);
  EXPECT_EQ(killed->ReadLine(kLong).status().code(), Code::kUnusable);
  EXPECT_NE(killed->ReadLine(kLong).status().message().find("signal 9"), std::string::npos);
}

TEST(RuleProcessTest, NoWaitIsWithoutAnEnd) {
  const auto process = Shell("exec sleep 1000");
  ASSERT_NE(process, nullptr);
  EXPECT_EQ(process->ReadLine(kShort).status().code(), Code::kLimit);
  // It reads nothing: what the socket does not hold is not sent.
  EXPECT_EQ(process->SendLine(std::string(16U << 20U, 'x'), kShort).code(), Code::kLimit);
}

TEST(RuleProcessTest, ALineWithoutAnEndIsALimit) {
  const auto process = Shell("head -c 4000000 /dev/zero | tr '\\0' x >&3; exec sleep 1000");
  ASSERT_NE(process, nullptr);
  const auto line = process->ReadLine(kLong);
  EXPECT_EQ(line.status().code(), Code::kLimit);
  EXPECT_NE(line.status().message().find("too long"), std::string::npos) << line.status().message();
}

TEST(RuleProcessTest, AProgramThatThereIsNotIsAUsageError) {
  const auto process = RuleProcess::Start({"/nowhere/python3"}, {}, "");
  ASSERT_FALSE(process.ok());
  EXPECT_EQ(process.status().code(), Code::kUsage);
  EXPECT_NE(process.status().message().find("/nowhere/python3"), std::string::npos);
}

TEST(RuleProcessTest, WhatItPrintsGoesIntoTheLog) {
  const store::TempFolder folder;
  const std::string log = folder.path() / "log";
  const auto process = Shell("echo out; echo err >&2", log);
  ASSERT_NE(process, nullptr);
  EXPECT_FALSE(process->ReadLine(kLong).ok());
  std::ifstream in(log);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "out\nerr\n");
}

/// A pipe of which the child and all that it starts hold the writing end.
class Held {
 public:
  Held() {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(::pipe(ends.data()), 0);
    read_.reset(ends[0]);
    write_.reset(ends[1]);
    ::fcntl(read_.get(), F_SETFD, FD_CLOEXEC);
  }
  /// Ours: after the start of the child.
  void LetGo() { write_.reset(); }
  bool AllGone() const {
    pollfd wait{read_.get(), POLLIN, 0};
    return ::poll(&wait, 1, static_cast<int>(kLong / 1'000'000)) == 1 &&
           (wait.revents & POLLHUP) != 0;
  }

 private:
  UniqueFd read_, write_;
};

TEST(RuleProcessTest, WhatItStartedEndsWithItAlsoWhereItHasEndedBefore) {
  for (const char* script : {"sleep 1000 3>&- & exec sleep 1000", "sleep 1000 3>&- & exit 0"}) {
    Held held;
    auto process = Shell(script);
    held.LetGo();
    ASSERT_NE(process, nullptr);
    const bool ends = std::string(script).ends_with("exit 0");
    EXPECT_EQ(process->ReadLine(ends ? kLong : kShort).status().code(),
              ends ? Code::kUnusable : Code::kLimit);
    process.reset();
    EXPECT_TRUE(held.AllGone()) << script;
  }
}

TEST(RuleProcessTest, ItMayEndItselfBeforeItIsKilled) {
  const store::TempFolder folder;
  const std::string ended = folder.path() / "ended";
  auto process =
      Shell("trap 'echo so > " + ended + "; exit' TERM; echo up >&3; sleep 1000 3>&- & wait");
  ASSERT_NE(process, nullptr);
  ASSERT_TRUE(process->ReadLine(kLong).ok());
  process.reset();
  EXPECT_TRUE(std::filesystem::exists(ended));
}

}  // namespace
}  // namespace telltale::rules
