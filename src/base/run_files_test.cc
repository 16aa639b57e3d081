// SPDX-License-Identifier: Apache-2.0
#include "base/run_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace telltale::run_files {
namespace {

namespace fs = std::filesystem;

/// From here on openat2 fails with this number, as in a container with an old filter.
bool ForbidOpenat2(int error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof program / sizeof *program, program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// A run folder and a folder outside of it, and links between them.
class RunFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "telltale-run-files-XXXXXX").string();
    base_ = ::mkdtemp(name.data());
    run_ = base_ / "run";
    outside_ = base_ / "outside";
    for (const fs::path& path : {run_ / "agent/tensors", outside_ / "agent"}) {
      fs::create_directories(path);
    }
    Write(run_ / "run.json", "ours");
    Write(run_ / "agent/file", "ours");
    Write(outside_ / "file", "theirs");
    Write(outside_ / "agent/file", "theirs");
  }
  void TearDown() override { fs::remove_all(base_); }

  static void Write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string Read(const fs::path& path) {
    std::stringstream out;
    out << std::ifstream(path).rdbuf();
    return out.str();
  }
  static std::string Text(const UniqueFd& fd) {
    char buffer[64];
    const ssize_t n = fd ? ::read(fd.get(), buffer, sizeof buffer) : 0;
    return {buffer, n > 0 ? static_cast<std::size_t>(n) : 0};
  }
  static int ErrorOf(const UniqueFd& fd) { return fd ? 0 : errno; }
  static std::ptrdiff_t Count(const fs::path& folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  }
  /// What is outside is as it was.
  void ExpectOutsideUntouched() const {
    EXPECT_EQ(Read(outside_ / "file"), "theirs");
    EXPECT_EQ(Read(outside_ / "agent/file"), "theirs");
    EXPECT_EQ(Count(outside_), 2);
    EXPECT_EQ(Count(outside_ / "agent"), 1);
  }

  void ExpectNoLinkIsFollowed() {
    fs::create_symlink(outside_ / "file", run_ / "link");
    fs::create_symlink(outside_ / "agent", run_ / "agent-link");
    fs::create_symlink("../agent", run_ / "agent/inner-link");
    fs::create_symlink("self", run_ / "self");
    fs::create_symlink(base_ / "nothing", run_ / "dangling");
    for (const char* name : {"link", "agent-link/file", "agent/inner-link/file", "self", "dangling",
                             "agent-link/new"}) {
      const RunPath path{run_, name};
      EXPECT_EQ(ErrorOf(OpenToRead(path)), ELOOP) << name;
      for (const Writing how :
           {Writing::kEmptied, Writing::kExisting, Writing::kKept, Writing::kAppended}) {
        EXPECT_EQ(ErrorOf(OpenToWrite(path, how)), ELOOP) << name;
      }
      EXPECT_NE(WhyNot(ELOOP).find("link"), std::string::npos);
    }
    std::vector<Entry> entries;
    EXPECT_EQ(List({run_, "agent-link"}, &entries), ELOOP);
    EXPECT_EQ(ErrorOf(OpenFolder({run_, "agent-link"})), ELOOP);
    EXPECT_EQ(ErrorOf(OpenToWrite({run_, "agent-link/new"}, Writing::kFresh)), ELOOP);
    EXPECT_EQ(ErrorOf(OpenToWrite({run_, "agent-link/new"}, Writing::kNew)), ELOOP);
    EXPECT_EQ(ErrorOf(OpenToWrite({run_, "link"}, Writing::kNew)), EEXIST);
    EXPECT_EQ(MakeFolder({run_, "agent-link/new"}), ELOOP);
    EXPECT_EQ(MakeFolder({run_, "dangling"}), EEXIST);
    EXPECT_EQ(Remove({run_, "agent-link/file"}), ELOOP);
    EXPECT_EQ(RemoveFolder({run_, "agent-link"}), ENOTDIR);
    EXPECT_EQ(Rename({run_, "run.json"}, {run_, "agent-link/run.json"}), ELOOP);
    EXPECT_EQ(Rename({run_, "agent-link/file"}, {run_, "file"}), ELOOP);
    EXPECT_FALSE(IsFile({run_, "link"}));
    EXPECT_FALSE(IsFile({run_, "agent-link/file"}));
    EXPECT_FALSE(IsFolder({run_, "agent-link"}));
    for (const char* away : {"../outside/file", "/etc/passwd", "agent/../../outside/file"}) {
      EXPECT_EQ(ErrorOf(OpenToRead({run_, away})), EXDEV) << away;
    }
    ExpectOutsideUntouched();
    // What is a link itself can be put out of the way.
    EXPECT_EQ(Text(OpenToRead({run_, "agent/file"})), "ours");
    const UniqueFd fresh = OpenToWrite({run_, "link"}, Writing::kFresh);
    ASSERT_TRUE(fresh) << WhyNot(errno);
    EXPECT_EQ(::write(fresh.get(), "new", 3), 3);
    EXPECT_EQ(Read(run_ / "link"), "new");
    EXPECT_EQ(RemoveTree({run_, "agent-link"}), 0);
    EXPECT_EQ(RemoveTree({run_, "agent"}), 0);
    EXPECT_FALSE(fs::exists(run_ / "agent"));
    ExpectOutsideUntouched();
  }

  fs::path base_, run_, outside_;
};

TEST_F(RunFilesTest, NoLinkBeneathTheRunFolderIsFollowed) { ExpectNoLinkIsFollowed(); }

TEST_F(RunFilesTest, NoLinkIsFollowedWithoutOpenat2) {
  for (const int error : {ENOSYS, EPERM}) {
    TearDown();
    SetUp();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (!ForbidOpenat2(error)) ::_exit(77);
      if (::syscall(SYS_openat2, AT_FDCWD, ".", nullptr, 0) == 0 || errno != error) ::_exit(78);
      ExpectNoLinkIsFollowed();
      ::_exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no filter of system calls can be set here";
    EXPECT_EQ(WEXITSTATUS(status), 0) << error;
  }
}

TEST_F(RunFilesTest, TheRunFolderItselfMayBeReachedThroughLinks) {
  fs::create_symlink(run_, base_ / "latest");
  fs::create_symlink(base_, base_ / "up");
  for (const fs::path& named : {base_ / "latest", base_ / "up/latest", base_ / "up/run/"}) {
    EXPECT_EQ(Text(OpenToRead(OfRun(named / "run.json"))), "ours") << named;
    EXPECT_EQ(Text(OpenToRead(OfFolder(named / "agent/file"))), "ours") << named;
  }
}

TEST_F(RunFilesTest, APathIsSplitWhereTheRunFolderEnds) {
  EXPECT_EQ(OfRun("a/run/run.json").run, "a/run");
  EXPECT_EQ(OfRun("run.json").run, "");
  EXPECT_EQ(OfRun("a/run/agent/").beneath, "agent");
  EXPECT_EQ(OfFolder("a/run/agent/file").run, "a/run");
  EXPECT_EQ(OfFolder("a/run/agent/file").beneath, "agent/file");
  EXPECT_EQ(OfSubfolder("/run/agent/tensors/file").run, "/run");
  EXPECT_EQ(OfSubfolder("/run/agent/tensors/file").beneath, "agent/tensors/file");
  EXPECT_EQ(OfFolder("./agent/file").run, ".");
}

TEST_F(RunFilesTest, WhatIsNoFileIsRefusedAtOnceWithItsOwnWord) {
  ASSERT_EQ(::mkfifo((run_ / "pipe").c_str(), 0600), 0);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = (run_ / "socket").string();
  ASSERT_LT(name.size(), sizeof address.sun_path);
  name.copy(address.sun_path, name.size());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const bool device = ::mknod((run_ / "device").c_str(), S_IFCHR | 0600, 0x103) == 0;  // Root's.
  const std::pair<const char*, const char*> all[] = {
      {"pipe", "pipe"}, {"socket", "socket"}, {"agent", "folder"}, {"device", "device"}};
  for (const auto& [file, word] : all) {
    if (std::string(file) == "device" && !device) continue;
    for (const bool write : {false, true}) {
      const UniqueFd fd =
          write ? OpenToWrite({run_, file}, Writing::kAppended) : OpenToRead({run_, file});
      EXPECT_NE(WhyNot(ErrorOf(fd)).find(word), std::string::npos) << WhyNot(errno);
    }
  }
  EXPECT_EQ(ErrorOf(OpenToRead({run_, "nothing"})), ENOENT);
  EXPECT_EQ(ErrorOf(OpenToWrite({run_, "nothing"}, Writing::kEmptied)), ENOENT);
}

TEST_F(RunFilesTest, WhatIsOpenedBlocksAsUsualAndIsForItsOwnerAlone) {
  const UniqueFd fd = OpenToWrite({run_, "agent/new"}, Writing::kAppended);
  ASSERT_TRUE(fd) << WhyNot(errno);
  EXPECT_EQ(::fcntl(fd.get(), F_GETFL) & (O_NONBLOCK | O_APPEND), O_APPEND);
  EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  struct stat info {};
  ASSERT_TRUE(StatOf({run_, "agent/new"}, &info));
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  EXPECT_EQ(MakeFolder({run_, "new"}), 0);
  ASSERT_TRUE(StatOf({run_, "new"}, &info));
  EXPECT_EQ(info.st_mode & 07777, 0700U);
}

TEST_F(RunFilesTest, AFileWithASecondNameElsewhereIsNotWrittenTo) {
  fs::create_hard_link(outside_ / "file", run_ / "hard");
  for (const Writing how :
       {Writing::kEmptied, Writing::kExisting, Writing::kKept, Writing::kAppended}) {
    EXPECT_EQ(ErrorOf(OpenToWrite({run_, "hard"}, how)), EMLINK);
  }
  EXPECT_EQ(Text(OpenToRead({run_, "hard"})), "theirs");
  EXPECT_TRUE(OpenToWrite({run_, "hard"}, Writing::kFresh));
  ExpectOutsideUntouched();
}

TEST_F(RunFilesTest, WhatIsEmptiedIsEmptyAndWhatIsKeptIsNot) {
  const UniqueFd kept = OpenToWrite({run_, "run.json"}, Writing::kKept);
  EXPECT_EQ(Text(kept), "ours");
  EXPECT_TRUE(OpenToWrite({run_, "run.json"}, Writing::kEmptied));
  EXPECT_EQ(Read(run_ / "run.json"), "");
}

TEST_F(RunFilesTest, WhatIsHeldOpenIsMeantWhateverItsNameLeadsTo) {
  const UniqueFd folder = OpenFolder({run_, "agent"});
  ASSERT_TRUE(folder);
  fs::rename(run_ / "agent", run_ / "away");
  fs::create_symlink(outside_ / "agent", run_ / "agent");
  EXPECT_EQ(Text(OpenToRead(OfOpenFolder(folder, "file"))), "ours");
  std::vector<Entry> entries;
  EXPECT_EQ(List(OfOpenFolder(folder, "."), &entries), 0);
  EXPECT_EQ(entries.size(), 2U);
  fs::create_symlink(outside_ / "file", run_ / "away/link");
  EXPECT_EQ(ErrorOf(OpenToRead(OfOpenFolder(folder, "link"))), ELOOP);
}

TEST_F(RunFilesTest, NoMoreIsListedThanWasAskedFor) {
  for (int i = 0; i < 10; ++i) Write(run_ / "agent" / std::to_string(i), "");
  std::vector<Entry> entries;
  EXPECT_EQ(List({run_, "agent"}, &entries, 3), 0);
  EXPECT_EQ(entries.size(), 3U);
}

TEST_F(RunFilesTest, TheRoomOfAFileSystemIsThatOfTheFolderItself) {
  fs::create_symlink(outside_, run_ / "link");
  EXPECT_GT(FreeBytes({run_, "agent"}).value_or(0), 0U);
  EXPECT_FALSE(FreeBytes({run_, "link"})) << "not that of where a link leads to";
  EXPECT_FALSE(FreeBytes({run_, "nothing"}));
}

TEST_F(RunFilesTest, AFileOfARunIsKnownByItsRunJson) {
  EXPECT_TRUE(LiesInARun(run_ / "report.html"));
  EXPECT_TRUE(LiesInARun(run_ / "agent/tensors/x"));
  EXPECT_FALSE(LiesInARun(base_ / "report.html"));
  EXPECT_FALSE(LiesInARun(outside_ / "agent/x"));
}

}  // namespace
}  // namespace telltale::run_files
