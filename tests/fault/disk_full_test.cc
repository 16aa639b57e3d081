// SPDX-License-Identifier: Apache-2.0
// The disk of the run directory fills up and is freed again: the training goes on, what is lost is
// counted and said, recording resumes without a restart. A file system of its own is needed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>

#include "harness.h"

namespace telltale::fault {
namespace {

namespace fs = std::filesystem;

class SmallDisk {
 public:
  explicit SmallDisk(fs::path at) : at_(std::move(at)) {
    fs::create_directories(at_);
    mounted_ = ::mount("telltale-test", at_.c_str(), "tmpfs", 0, "size=192m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  void Fill() const {
    const int fd = ::open((at_ / "ballast").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (off_t block = 1 << 20; block >= 4096; block /= 2) {
      off_t size = ::lseek(fd, 0, SEEK_END);
      while (::posix_fallocate(fd, size, block) == 0) size += block;
    }
    ::close(fd);
  }
  void Free() const { fs::remove(at_ / "ballast"); }

 private:
  fs::path at_;
  bool mounted_ = false;
};

TEST(DiskFull, TheTrainingGoesOnAndRecordingResumes) {
  Scratch scratch("disk");
  const SmallDisk disk(scratch / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs root: not tested here";
  Oracle* oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  // No pause in a step: the rings must overflow.
  Started started =
      StartRun(scratch / "disk/run", {}, {TrainerPath(), scratch / "oracle", "100000000", "0"},
               scratch / "err");
  ASSERT_TRUE(Await([&] { return oracle->committed > 100; })) << started.Err();

  disk.Fill();
  ASSERT_TRUE(Await([&] {
    return started.Err().find("takes no more records") != std::string::npos;
  })) << started.Err();
  const std::uint64_t full_at = oracle->committed;
  // About 300 bytes of records a step and 12 MiB of ring: this many steps overflow it.
  ASSERT_TRUE(Await([&] { return oracle->committed > full_at + 120'000; }))
      << "the training must go on: " << oracle->committed - full_at << " steps";

  disk.Free();
  ASSERT_TRUE(Await([&] { return started.Err().find("takes records again") != std::string::npos; }))
      << started.Err();
  const std::uint64_t free_at = oracle->committed;
  ASSERT_TRUE(Await([&] { return oracle->committed > free_at + 1000; }));
  ::kill(oracle->pid, SIGTERM);
  EXPECT_EQ(started.Wait(), -SIGTERM) << started.Err();

  Recorded recorded;
  ReadRun(scratch / "disk/run", &recorded);
  EXPECT_EQ(recorded.salvage.missing_rows, 0U);
  std::map<std::string, std::uint64_t> counters;
  for (const auto& row : recorded.rows.ledger) {
    counters[std::string(row.name)] = std::max(counters[std::string(row.name)], row.value);
  }
  EXPECT_GT(counters["agent.append_refused"], 0U);
  EXPECT_GT(counters["agent.metrics_dropped"], 0U);
  EXPECT_GT(counters["probe.records_dropped"], 0U);
  const std::uint64_t stored =
      recorded.rows.steps.size() + recorded.rows.spans.size() + recorded.rows.scalars.size();
  // The kill may have hit between a record's count and its end; no other may be unaccounted for.
  const std::uint64_t accounted = stored + counters["probe.records_dropped"];
  EXPECT_LE(accounted, counters["probe.records_produced"]);
  EXPECT_GE(accounted + 1, counters["probe.records_produced"]);
  std::int64_t newest = -1;
  for (const auto& row : recorded.rows.steps) newest = std::max(newest, row.step);
  EXPECT_GE(newest, static_cast<std::int64_t>(oracle->committed) - 1) << "recording must resume";
}

}  // namespace
}  // namespace telltale::fault
