// SPDX-License-Identifier: Apache-2.0
// What an import has written is on the disk before the run has its name.
#include "interchange/sync_tree.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <string>

#include "interchange/import.h"
#include "interchange/trace_input.h"

namespace {

bool g_watch_syncs = false;
bool g_fail_syncs = false;
std::set<std::string> g_synced;  ///< Names, without their folders.

void NoteSync(int fd) {
  if (!g_watch_syncs) return;
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
  g_synced.insert(path.filename().string());
}

}  // namespace

// In the place of the C library's.
extern "C" int fsync(int fd) {
  NoteSync(fd);
  if (g_fail_syncs) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

class SyncTreeTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sync-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    std::ofstream(trace_ = folder_ / "a.json")
        << R"([{"ph":"X","name":"a","ts":1,"dur":2,"pid":1,"tid":1}])";
    g_synced.clear();
    g_watch_syncs = true;
  }
  void TearDown() override {
    g_watch_syncs = g_fail_syncs = false;
    fs::remove_all(folder_);
  }

  fs::path folder_, trace_;
};

TEST_F(SyncTreeTest, EachFileAndFolderOfAnImportIsSynced) {
  const fs::path run = folder_ / "made";
  ASSERT_TRUE(ImportFilesHere({.paths = {trace_}, .run = run}).ok());
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    EXPECT_TRUE(g_synced.contains(entry.path().filename().string())) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 4U);
  EXPECT_TRUE(g_synced.contains("run")) << "the run before it has its name";
  EXPECT_TRUE(g_synced.contains(folder_.filename().string())) << "and the name";
}

TEST_F(SyncTreeTest, WhatTheDiskDoesNotTakeIsNoRun) {
  g_fail_syncs = true;
  EXPECT_EQ(ImportFilesHere({.paths = {trace_}, .run = folder_ / "made"}).status().code(),
            Code::kIo);
  g_fail_syncs = false;
  EXPECT_FALSE(fs::exists(folder_ / "made"));
  EXPECT_EQ(SyncTree(folder_ / "missing").code(), Code::kIo);
}

std::uint64_t g_reported = 0;

TEST_F(SyncTreeTest, ProgressSaysAllBytes) {
  g_reported = 0;
  ReportInput([](std::uint64_t bytes) { g_reported = bytes; });
  std::string damage;
  ASSERT_TRUE(ReadTrace(trace_, 1 << 20, &damage).ok());
  ReportInput(nullptr);
  EXPECT_EQ(g_reported, fs::file_size(trace_));
}

}  // namespace
}  // namespace telltale::interchange
