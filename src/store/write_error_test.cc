// SPDX-License-Identifier: Apache-2.0
// The kernel refuses writes and syncs of the journal: its descriptor is replaced by one of a file
// that answers every write with ENOSPC (/dev/full) or EIO (/proc/self/mem where nothing is mapped).
#include <fcntl.h>

#include <charconv>

#include "base/unique_fd.h"
#include "store/folder.h"
#include "store/store_testing.h"
#include "store/verify.h"

#if defined(__SANITIZE_THREAD__)
constexpr bool kUnderTsan = true;
#else
constexpr bool kUnderTsan = false;
#endif

namespace telltale::store {
namespace {

class WriteErrorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // The writer's threads use the descriptor: what the tests do to it is a race by design.
    if (kUnderTsan) GTEST_SKIP() << "a descriptor is replaced under a thread that syncs it";
    MakeRun(run_);
    WriterOptions options;
    options.clock = &clock_;
    auto writer = Writer::Open(run_ / "agent-a", "agent-a", options);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    writer_ = std::move(writer).value();
    ASSERT_TRUE(writer_->Append(Scalars(0, 3)).ok());
  }
  /// From now on the active journal is written to `device`.
  void Replace(const char* device) {
    const UniqueFd bad(::open(device, O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(bad) << device;
    int journal = -1;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
      if (!target.starts_with(run_.string()) || !target.ends_with(".ttj")) continue;
      const std::string number = entry.path().filename();
      std::from_chars(number.data(), number.data() + number.size(), journal);
    }
    ASSERT_GE(journal, 0) << "no journal is open";
    ASSERT_EQ(::dup3(bad.get(), journal, O_CLOEXEC), journal);
  }
  /// A batch is refused with `text`, offered again it is taken, and all is there once.
  void ExpectRefusedOnce(std::string_view text) {
    const Status refused = writer_->Append(Scalars(3, 2));
    EXPECT_EQ(refused.code(), Code::kIo);
    EXPECT_NE(refused.message().find(text), std::string::npos) << refused.message();
    EXPECT_TRUE(writer_->disk_full());
    EXPECT_EQ(writer_->counters().write_failures, 1U);
    EXPECT_EQ(writer_->counters().rows, 3U);
    EXPECT_TRUE(writer_->Append(Scalars(3, 2)).ok());
    EXPECT_FALSE(writer_->disk_full());
    EXPECT_TRUE(writer_->Append(Scalars(5, 4)).ok());
    ExpectScalars(ReadEverything(run_)->rows, 9);
    ExpectSoundEnd(9);
  }
  void ExpectSoundEnd(std::size_t rows) {
    const Status closed = writer_->Close(true);
    EXPECT_TRUE(closed.ok()) << closed.message();
    const auto all = ReadEverything(run_);
    ExpectScalars(all->rows, rows);
    EXPECT_FALSE(all->salvage.any());
    EXPECT_TRUE(Verify(run_)->problems.empty());
  }

  TempFolder temp_;
  std::filesystem::path run_ = temp_.path() / "run";
  FakeClock clock_;
  std::unique_ptr<Writer> writer_;
};

TEST_F(WriteErrorTest, NoSpaceIsRefusedAndThenTaken) {
  Replace("/dev/full");
  ExpectRefusedOnce("No space left on device; free some space");
}

TEST_F(WriteErrorTest, AnErrorOfTheDeviceIsRefusedAndThenTakenByANewJournal) {
  Replace("/proc/self/mem");
  ExpectRefusedOnce("Input/output error; check the disk");
  EXPECT_GE(ListFolder(run_ / "agent-a")->journals.back(), 2U);
}

TEST_F(WriteErrorTest, AFailedSyncIsCountedSaidAndClosesTheJournal) {
  Replace("/dev/full");  // It cannot be synced either.
  clock_.Advance(2'000'000'000);
  Status status;
  for (int i = 0; i < 30'000 && status.ok(); ++i) {
    status = writer_->Tick();
    ::usleep(1000);
  }
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("cannot sync"), std::string::npos) << status.message();
  EXPECT_GE(writer_->counters().sync_failures, 1U);
  // Another journal takes what the old one would have refused.
  ASSERT_TRUE(writer_->Append(Scalars(3, 2)).ok());
  EXPECT_EQ(writer_->counters().write_failures, 0U);
  ExpectSoundEnd(5);
}

}  // namespace
}  // namespace telltale::store
