// SPDX-License-Identifier: Apache-2.0
#include "server/auth.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include <filesystem>
#include <fstream>

namespace telltale::server {
namespace {

namespace fs = std::filesystem;
using CodeIs = Auth::CodeIs;

class AuthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "telltale-auth-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    setenv("XDG_STATE_HOME", folder_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("XDG_STATE_HOME");
    fs::remove_all(folder_);
  }
  fs::path folder_;
};

TEST_F(AuthTest, ACodeOpensOnce) {
  auto auth = Auth::Fresh();
  ASSERT_TRUE(auth.ok());
  const auto code = auth->NewCode();
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(auth->TakeCode(""), CodeIs::kUnknown);
  EXPECT_EQ(auth->TakeCode(code->substr(1)), CodeIs::kUnknown);
  EXPECT_EQ(auth->TakeCode(*code), CodeIs::kGood);
  EXPECT_EQ(auth->TakeCode(*code), CodeIs::kUnknown);
}

TEST_F(AuthTest, ACodeExpires) {
  FakeClock clock;
  auto auth = Auth::Fresh(&clock);
  ASSERT_TRUE(auth.ok());
  const auto first = auth->NewCode();
  clock.Advance(Auth::kCodeNs - 1);
  const auto second = auth->NewCode();
  const auto third = auth->NewCode();
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_EQ(auth->TakeCode(*second), CodeIs::kGood);
  clock.Advance(1);
  EXPECT_EQ(auth->TakeCode(*first), CodeIs::kExpired);
  EXPECT_EQ(auth->TakeCode(*first), CodeIs::kExpired) << "as often as it is tried";
  EXPECT_TRUE(auth->CodeOpen());
  EXPECT_EQ(auth->TakeCode(*third), CodeIs::kGood);
  EXPECT_FALSE(auth->CodeOpen()) << "what is left has expired";
}

TEST_F(AuthTest, CodesExpireThoughTheMachineSleeps) {
  timespec before{};
  clock_gettime(CLOCK_BOOTTIME, &before);
  const std::int64_t now = Auth::CodeClock().MonotonicNs();
  timespec after{};
  clock_gettime(CLOCK_BOOTTIME, &after);
  const auto ns = [](const timespec& t) { return t.tv_sec * 1'000'000'000 + t.tv_nsec; };
  EXPECT_GE(now, ns(before));
  EXPECT_LE(now, ns(after));
}

TEST_F(AuthTest, ASessionIsGoodForOneServer) {
  std::string note;
  auto here = Auth::Open(&note);
  auto there = Auth::Open(&note);
  auto again = Auth::Open(&note);
  ASSERT_TRUE(here.ok() && there.ok() && again.ok());
  here->BindTo("127.0.0.1\n8080\n/runs\n");
  there->BindTo("127.0.0.1\n8081\n/runs\n");
  again->BindTo("127.0.0.1\n8080\n/runs\n");
  EXPECT_TRUE(again->SessionOk(here->session())) << "it survives a restart of its server";
  EXPECT_FALSE(there->SessionOk(here->session()));
  EXPECT_FALSE(here->SessionOk(there->session()));
  // The token is the user's.
  EXPECT_TRUE(there->TokenOk(here->token()));
}

TEST_F(AuthTest, TokenAndSessionAreNotTheSame) {
  const auto auth = Auth::Fresh();
  ASSERT_TRUE(auth.ok());
  EXPECT_TRUE(auth->TokenOk(auth->token()));
  EXPECT_FALSE(auth->TokenOk(auth->session()));
  EXPECT_FALSE(auth->TokenOk(""));
  EXPECT_TRUE(auth->SessionOk(auth->session()));
  EXPECT_FALSE(auth->SessionOk(auth->token()));
}

TEST_F(AuthTest, TheFileIsPrivateAndSharedByTheUsersServers) {
  std::string note;
  const auto first = Auth::Open(&note);
  const auto second = Auth::Open(&note);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(note, "");
  EXPECT_EQ(first->token(), second->token());
  struct stat status {};
  ASSERT_EQ(stat(Auth::File().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
}

TEST_F(AuthTest, AFileThatOthersMayReadIsRefused) {
  std::string note;
  ASSERT_TRUE(Auth::Open(&note).ok());
  chmod(Auth::File().c_str(), 0644);
  const auto auth = Auth::Open(&note);
  ASSERT_FALSE(auth.ok());
  EXPECT_EQ(auth.status().code(), Code::kAuth);
}

TEST_F(AuthTest, ADamagedFileIsRefused) {
  std::string note;
  ASSERT_TRUE(Auth::Open(&note).ok());
  std::ofstream(Auth::File(), std::ios::trunc) << "short\n";
  EXPECT_FALSE(Auth::Open(&note).ok());
}

TEST_F(AuthTest, WithoutAHomeItLivesInMemory) {
  setenv("XDG_STATE_HOME", "/proc/none", 1);
  std::string note;
  const auto auth = Auth::Open(&note);
  ASSERT_TRUE(auth.ok());
  EXPECT_NE(note, "");
}

}  // namespace
}  // namespace telltale::server
