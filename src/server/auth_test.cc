// SPDX-License-Identifier: Apache-2.0
#include "server/auth.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace telltale::server {
namespace {

namespace fs = std::filesystem;

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
  EXPECT_FALSE(auth->TakeCode(""));
  EXPECT_FALSE(auth->TakeCode(code->substr(1)));
  EXPECT_TRUE(auth->TakeCode(*code));
  EXPECT_FALSE(auth->TakeCode(*code));
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
  EXPECT_EQ(first->session(), second->session());
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
