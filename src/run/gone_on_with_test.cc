// SPDX-License-Identifier: Apache-2.0
// A run that is gone on with: what lies in it that the training would write to, and who may ask.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "run/run_directory.h"
#include "store/store_testing.h"

namespace telltale::run {
namespace {

namespace fs = std::filesystem;

class GoneOnWithTest : public ::testing::Test {
 protected:
  void SetUp() override { store::MakeRun(run_); }

  Result<RunDirectory> Prepare() {
    RunRequest request;
    request.directory = run_;
    request.command = {"python", "train.py"};
    return RunDirectory::Prepare(request, &refused_);
  }
  void Write(const fs::path& name) const {
    fs::create_directories((run_ / name).parent_path());
    std::ofstream(run_ / name) << "{}";
  }
  void ExpectRefused(const fs::path& name) {
    const auto taken = Prepare();
    ASSERT_FALSE(taken.ok()) << name;
    EXPECT_EQ(taken.status().code(), Code::kIo);
    EXPECT_TRUE(refused_) << name;
    EXPECT_NE(taken.status().message().find((run_ / name).string()), std::string::npos)
        << taken.status().message();
  }

  store::TempFolder folder_;
  const fs::path run_ = folder_.path() / "run";
  bool refused_ = false;
};

TEST_F(GoneOnWithTest, FilesAndFoldersAreNoHindrance) {
  Write("windows/one/rank0-step5-77.pt.trace.json");
  Write("windows/one/plugins/profile/today/host.xplane.pb");
  Write("agent-n1/tensors/000001.safetensors");
  auto taken = Prepare();
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ(taken->attempt(), 2U);
  taken->Abandon();
}

TEST_F(GoneOnWithTest, ALinkAnywhereInAFolderThatIsWrittenToIsNamed) {
  const fs::path outside = folder_.path() / "outside";
  std::ofstream(outside) << "theirs";
  for (const char* name : {"windows/one/rank0-step5-78.pt.trace.json.part",
                           "windows/one/plugins/profile/today/host.xplane.pb", "windows/two",
                           "agent-n1/tensors/000001.safetensors.part"}) {
    fs::create_directories((run_ / name).parent_path());
    fs::create_symlink(outside, run_ / name);
    ExpectRefused(name);
    fs::remove(run_ / name);
  }
  auto taken = Prepare();
  EXPECT_TRUE(taken.ok()) << taken.status().message();
  if (taken.ok()) taken->Abandon();
}

TEST_F(GoneOnWithTest, APipeInAWindowIsNamed) {
  Write("windows/one/file");
  ASSERT_EQ(::mkfifo((run_ / "windows/one/pipe").c_str(), 0600), 0);
  ExpectRefused("windows/one/pipe");
}

TEST_F(GoneOnWithTest, FoldersWithoutAnEndAreNamed) {
  fs::path deep = "windows";
  for (int i = 0; i < 40; ++i) deep /= "x";
  fs::create_directories(run_ / deep);
  ExpectRefused("windows/x");
}

TEST_F(GoneOnWithTest, AFolderThatOthersMayWriteToIsSaidWithWhoMayAsk) {
  ASSERT_EQ(::chmod(run_.c_str(), 0777), 0);
  auto taken = Prepare();
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_NE(taken->warning().find("0777"), std::string::npos) << taken->warning();
  EXPECT_NE(taken->warning().find("only from the owner of the run folder ("), std::string::npos)
      << taken->warning();
  taken->Abandon();
}

TEST_F(GoneOnWithTest, OfAFolderOfAnotherUserWhoRecordsIsNamedToo) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make folders of others";
  ASSERT_EQ(::chown(run_.c_str(), 4001, 4001), 0);
  ASSERT_EQ(::chmod(run_.c_str(), 0777), 0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chown((run_ / "run.json").c_str(), 4002, 4002), 0);
  ASSERT_EQ(::seteuid(4002), 0);
  auto taken = Prepare();
  const std::string warning = taken.ok() ? taken->warning() : taken.status().message();
  if (taken.ok()) taken->Abandon();
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_TRUE(taken.ok()) << warning;
  for (const char* words : {"belongs to user 4001", "the owner of the run folder (user 4001)",
                            "user 4002, who records it", "root"}) {
    EXPECT_NE(warning.find(words), std::string::npos) << warning;
  }
}

}  // namespace
}  // namespace telltale::run
