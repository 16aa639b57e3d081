// SPDX-License-Identifier: Apache-2.0
#include "store/writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include "store/folder.h"
#include "store/sealer.h"
#include "store/store_testing.h"

namespace telltale::store {
namespace {

class WriterTest : public ::testing::Test {
 protected:
  void SetUp() override { MakeRun(run_); }

  std::unique_ptr<Writer> Open(const std::string& name = "agent-a") {
    WriterOptions options;
    options.clock = &clock_;
    auto writer = Writer::Open(run_ / name, name, options);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    return std::move(writer).value();
  }
  FolderListing List() const { return ListFolder(run_ / "agent-a").value(); }

  TempFolder temp_;
  std::filesystem::path run_ = temp_.path() / "run";
  FakeClock clock_;
};

TEST_F(WriterTest, WhatWasAppendedIsReadBack) {
  const auto writer = Open();
  ASSERT_TRUE(writer->Append(Scalars(0, 3)).ok());
  ASSERT_TRUE(writer->Append(Scalars(3, 2)).ok());
  const auto all = ReadEverything(run_);
  ExpectScalars(all->rows, 5);
  EXPECT_EQ(all->rows.scalars[4].name, "loss");
  EXPECT_FALSE(all->salvage.any());
  EXPECT_EQ(writer->counters().rows, 5U);
}

TEST_F(WriterTest, ASyncThatIsAskedForComesWithoutATick) {
  const auto writer = Open();
  ASSERT_TRUE(writer->Append(Scalars(0, 3)).ok());
  writer->Sync();
  // Of another thread; the clock stands, so it is not patience that ends.
  for (int i = 0; i < 300'000 && !writer->Synced(); ++i) ::usleep(1'000);
  EXPECT_TRUE(writer->Synced());
  EXPECT_EQ(writer->counters().sync_failures, 0U);
}

TEST_F(WriterTest, FoldersAndFilesAreTheUsersOwn) {
  const auto writer = Open();
  struct stat st {};
  ASSERT_EQ(::stat((run_ / "agent-a").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700U);
  ASSERT_TRUE(writer->Append(Scalars(0, 1)).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  for (const auto& file : std::filesystem::directory_iterator(run_ / "agent-a")) {
    ASSERT_EQ(::stat(file.path().c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600U) << file.path();
  }
}

TEST_F(WriterTest, ASecondWriterIsToldWhoHoldsTheFolder) {
  const auto writer = Open();
  const auto second = Writer::Open(run_ / "agent-a", "agent-a");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kRunning);
  EXPECT_NE(second.status().message().find(std::to_string(::getpid())), std::string::npos);
}

TEST_F(WriterTest, LateRowsMoveToTheWatermark) {
  const auto writer = Open();
  ASSERT_TRUE(writer->Append(Scalars(0, 3)).ok());  // Watermark 30.
  format::Batch late = Scalars(3, 1);
  late.rows.scalars[0].ord_ns = 7;
  ASSERT_TRUE(writer->Append(late).ok());
  const auto all = ReadEverything(run_);
  ExpectScalars(all->rows, 4);
  EXPECT_EQ(all->rows.scalars[3].ord_ns, 30);
  EXPECT_EQ(all->rows.scalars[3].time_ns, 30);
  EXPECT_EQ(writer->counters().late_rows, 1U);
}

TEST_F(WriterTest, ALargeBatchIsSplitAndStaysWhole) {
  const auto writer = Open();
  format::Batch large = Scalars(0, 20'000);
  large.positions.push_back({{1}, 2, 3});
  ASSERT_TRUE(writer->Append(large).ok());
  ExpectScalars(ReadEverything(run_)->rows, 20'000);
}

TEST_F(WriterTest, ARowLargerThanABlockIsKept) {
  const std::string text(100'000, 'x');
  {
    const auto writer = Open();
    format::Batch batch;
    batch.rows.events.push_back({.kind = "big", .data = text});
    ASSERT_TRUE(writer->Append(batch).ok());
    ASSERT_TRUE(writer->Append(Scalars(0, 1)).ok());
  }
  const auto all = ReadEverything(run_);
  ASSERT_EQ(all->rows.events.size(), 1U);
  EXPECT_EQ(all->rows.events[0].data, text);
  ExpectScalars(all->rows, 1);
}

TEST_F(WriterTest, ALaterWriterGoesOnWhereTheFirstStopped) {
  std::int64_t offset = 0;
  {
    const auto writer = Open();
    offset = writer->monotonic_to_run_ns();
    format::Batch batch = Scalars(0, 3);
    batch.positions.push_back({{1, 2}, 0, 640});
    ASSERT_TRUE(writer->Append(batch).ok());
    batch = Scalars(3, 1);
    batch.positions.push_back({{1, 2}, 0, 1280});
    ASSERT_TRUE(writer->Append(batch).ok());
  }                                         // No Close: as after a crash.
  clock_.realtime_ns += 3'600'000'000'000;  // The wall clock jumps; the run's clock does not.
  for (int i = 0; i < 2; ++i) {
    const auto writer = Open();
    EXPECT_EQ(writer->monotonic_to_run_ns(), offset);
    ASSERT_EQ(writer->RecoveredPositions().size(), 1U);
    EXPECT_EQ(writer->RecoveredPositions()[0], (format::RingPosition{{1, 2}, 0, 1280}));
    ASSERT_TRUE(writer->Append(Scalars(4 + i, 1)).ok());
  }
  const auto all = ReadEverything(run_);
  ExpectScalars(all->rows, 6);
  EXPECT_FALSE(all->salvage.any());
}

TEST_F(WriterTest, PositionsOfReleasedProducersAreForgotten) {
  const auto producer = [](int i) {
    return std::array<std::uint8_t, 16>{static_cast<std::uint8_t>(i), 7};
  };
  constexpr int kProducers = 100;
  const format::RingPosition kept{{0xff}, 3, 99};
  {
    const auto writer = Open();
    format::Batch first = Scalars(0, 1);
    first.positions = {kept};
    ASSERT_TRUE(writer->Append(first).ok());
    for (int i = 1; i <= kProducers; ++i) {
      format::Batch batch = Scalars(2 * i - 1, 1);
      batch.positions = {{producer(i), 0, 640}, {producer(i), 3, 64}, {producer(i), 0xffff, 2}};
      ASSERT_TRUE(writer->Append(batch).ok());
      batch = Scalars(2 * i, 1);
      batch.positions = {{producer(i), format::kReleasedRing, 0}};
      ASSERT_TRUE(writer->Append(batch).ok());
    }
    // Its last word is still to come.
    format::Batch batch;
    batch.positions = {{producer(kProducers), 0, 704}};
    ASSERT_TRUE(writer->Append(batch).ok());
  }  // As after a crash: the next one reads the journal of all of this, then its own.
  for (int i = 0; i < 2; ++i) {
    const auto writer = Open();
    EXPECT_EQ(writer->RecoveredPositions(),
              (std::vector<format::RingPosition>{{producer(kProducers), 0, 704}, kept}));
  }
  ExpectScalars(ReadEverything(run_)->rows, 2 * kProducers + 1);
  // One header and two positions.
  EXPECT_LT(std::filesystem::file_size(run_ / "agent-a" / JournalFileName(3)), 400U);
}

TEST_F(WriterTest, AnOldJournalIsSealedAndLaterDeleted) {
  const auto writer = Open();
  ASSERT_TRUE(writer->Append(Scalars(0, 10)).ok());
  clock_.Advance(121'000'000'000);
  ASSERT_TRUE(TickUntil(writer.get(), [&] { return writer->counters().segment_bytes > 0; }));
  ASSERT_TRUE(writer->Append(Scalars(10, 5)).ok());
  FolderListing listing = List();
  ASSERT_EQ(listing.segments.size(), 1U);
  EXPECT_EQ(listing.segments[0].file, "scalars-000000000001-000000000010.parquet");
  EXPECT_EQ(listing.journals, (std::vector<std::uint64_t>{1, 2}));
  ExpectScalars(ReadEverything(run_)->rows, 15);

  clock_.Advance(61'000'000'000);
  ASSERT_TRUE(TickUntil(writer.get(), [&] { return List().journals.size() == 1; }));
  const auto all = ReadEverything(run_);
  ExpectScalars(all->rows, 15);
  EXPECT_FALSE(all->salvage.any());
}

TEST_F(WriterTest, AThreadThatIsLeftBehindBeginsNoFile) {
  const auto writer = Open();
  ASSERT_TRUE(writer->Append(Scalars(0, 10)).ok());
  ASSERT_TRUE(writer->Close(false).ok());
  SealGate gate;
  ASSERT_TRUE(gate.Enter());
  gate.Leave();
  gate.Close();
  const auto sealed = SealJournal(run_ / "agent-a", "agent-a", 1, &gate);
  EXPECT_EQ(sealed.status().code(), Code::kRunning);
  EXPECT_TRUE(List().temporaries.empty());
  EXPECT_TRUE(List().segments.empty());
  EXPECT_TRUE(SealJournal(run_ / "agent-a", "agent-a", 1).ok());
  EXPECT_EQ(List().segments.size(), 1U);
}

TEST_F(WriterTest, CloseSealsAllAndSaysTheEnd) {
  {
    const auto writer = Open();
    ASSERT_TRUE(writer->Append(Scalars(0, 10)).ok());
    ASSERT_TRUE(writer->Close(true).ok());
  }
  const FolderListing listing = List();
  EXPECT_EQ(listing.segments.size(), 1U);
  EXPECT_EQ(listing.journals, std::vector<std::uint64_t>{2});
  const auto reader = RunReader::Open(run_);
  const auto cursor = (*reader)->NewCursor();
  std::vector<OrderedRecord> records;
  ASSERT_TRUE((*cursor)->Next(100, &records).ok());
  EXPECT_EQ(records.size(), 10U);
  EXPECT_TRUE((*cursor)->AtEnd());
  EXPECT_FALSE((*cursor)->salvage().any());

  // A further attempt of the same run goes on in the same folder.
  const auto writer = Open();
  ASSERT_TRUE(writer->Append(Scalars(10, 2)).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  ExpectScalars(ReadEverything(run_)->rows, 12);
}

}  // namespace
}  // namespace telltale::store
