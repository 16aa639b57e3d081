// SPDX-License-Identifier: Apache-2.0
// Each row once, wherever it lies: in journals, in segments, in both.
#include "store/column_scan.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "store/segment.h"
#include "store/store_testing.h"

namespace telltale::store {
namespace {

struct Found {
  std::vector<std::int64_t> steps;
  std::vector<std::string> modes;
  std::vector<std::int64_t> ranks;
  std::vector<double> means;
  Salvage salvage;
};

Found Scan(const std::filesystem::path& run, std::optional<std::string> name,
           std::optional<StepRange> steps = {}) {
  Found found;
  const ScanRequest request{.table = format::TableId::kStatistics,
                            .columns = {"step", "mode", "rank", "mean"},
                            .name = std::move(name),
                            .steps = steps,
                            .final = true};
  const Status status = ScanColumns(
      run, request,
      [&](ScanPiece& piece) {
        EXPECT_GT(piece.rows, 0U);
        for (std::size_t i = 0; i < piece.rows; ++i) {
          found.steps.push_back(piece.columns[0].Int(i));
          found.modes.emplace_back(piece.columns[1].Text(i));
          found.ranks.push_back(piece.columns[2].Int(i));
          found.means.push_back(piece.columns[3].Real(i));
        }
        return Status();
      },
      &found.salvage);
  EXPECT_TRUE(status.ok()) << status.message();
  return found;
}

/// Steps [first, last) of the tensors a, b and c; c is of rank 1 and of EVAL at odd steps.
format::Batch Statistics(int first, int last) {
  format::Batch batch;
  for (int step = first; step < last; ++step) {
    for (const char* const name : {"a", "b", "c"}) {
      format::StatisticRow row;
      row.ord_ns = row.time_ns = step;
      row.name = name;
      row.step = step;
      row.mode = *name == 'c' && step % 2 == 1 ? "EVAL" : "TRAIN";
      row.rank = *name == 'c' ? 1 : 0;
      row.mean = step * 0.5;
      batch.rows.statistics.push_back(row);
    }
  }
  batch.watermark_ns = last;
  return batch;
}

class ColumnScan : public ::testing::Test {
 protected:
  void SetUp() override { MakeRun(run_); }
  std::unique_ptr<Writer> Open() {
    auto opened = Writer::Open(run_ / "agent-a", "agent-a");
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return std::move(opened).value();
  }
  void ExpectAll(int steps) {
    const Found b = Scan(run_, "b");
    ASSERT_EQ(b.steps.size(), static_cast<std::size_t>(steps));
    for (int i = 0; i < steps; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(b.steps[at], i);
      ASSERT_EQ(b.modes[at], "TRAIN");
      ASSERT_EQ(b.ranks[at], 0);
      ASSERT_EQ(b.means[at], i * 0.5);
    }
    EXPECT_FALSE(b.salvage.any());
    const Found c = Scan(run_, "c");
    ASSERT_EQ(c.steps.size(), static_cast<std::size_t>(steps));
    for (std::size_t i = 0; i < c.steps.size(); ++i) {
      ASSERT_EQ(c.modes[i], c.steps[i] % 2 == 1 ? "EVAL" : "TRAIN");
      ASSERT_EQ(c.ranks[i], 1);
    }
    EXPECT_EQ(Scan(run_, std::nullopt).steps.size(), static_cast<std::size_t>(steps) * 3);
    EXPECT_TRUE(Scan(run_, "").steps.empty());
    EXPECT_TRUE(Scan(run_, "d").steps.empty());
  }

  const TempFolder folder_;
  const std::filesystem::path run_ = folder_.path() / "run";
};

TEST_F(ColumnScan, ReadsWhatIsOnlyJournalled) {
  auto writer = Open();
  ASSERT_TRUE(writer->Append(Statistics(0, 50)).ok());
  ExpectAll(50);
}

TEST_F(ColumnScan, ReadsWhatIsOnlySealed) {
  auto writer = Open();
  ASSERT_TRUE(writer->Append(Statistics(0, 50)).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  ExpectAll(50);
}

TEST_F(ColumnScan, GivesEachRowOnceWhereASegmentAndItsJournalAreBothThere) {
  auto writer = Open();
  ASSERT_TRUE(writer->Append(Statistics(0, 50)).ok());
  const auto journal = run_ / "agent-a" / JournalFileName(1);
  const auto copy = folder_.path() / "copy";
  ASSERT_TRUE(std::filesystem::copy_file(journal, copy));
  ASSERT_TRUE(writer->Close(true).ok());
  std::filesystem::copy_file(copy, journal, std::filesystem::copy_options::overwrite_existing);
  ExpectAll(50);
  writer = Open();
  ASSERT_TRUE(writer->Append(Statistics(50, 60)).ok());
  ExpectAll(60);
}

TEST_F(ColumnScan, ReadsTheJournalWhereItsSegmentIsDamaged) {
  auto writer = Open();
  ASSERT_TRUE(writer->Append(Statistics(0, 50)).ok());
  const auto journal = run_ / "agent-a" / JournalFileName(1);
  const auto copy = folder_.path() / "copy";
  ASSERT_TRUE(std::filesystem::copy_file(journal, copy));
  ASSERT_TRUE(writer->Close(true).ok());
  std::filesystem::copy_file(copy, journal, std::filesystem::copy_options::overwrite_existing);
  const auto listing = ListFolder(run_ / "agent-a");
  ASSERT_TRUE(listing.ok());
  ASSERT_EQ(listing->segments.size(), 1U);
  std::ofstream(run_ / "agent-a" / listing->segments[0].file, std::ios::binary) << "no segment";
  const Found found = Scan(run_, "a");
  EXPECT_EQ(found.steps.size(), 50U);
  EXPECT_EQ(found.salvage.unreadable_files, 1U);
}

TEST_F(ColumnScan, LeavesOutAndCountsRowsWithNumbersThatCannotBe) {
  for (const bool sealed : {false, true}) {
    SCOPED_TRACE(sealed);
    auto writer = Open();
    format::Batch batch = Statistics(0, 10);
    for (format::StatisticRow& row : batch.rows.statistics) {
      if (row.name == "a" && row.step == 3) row.step = std::numeric_limits<std::int64_t>::max();
      if (row.name == "b" && row.step == 5) row.rank = std::numeric_limits<std::int32_t>::min();
    }
    ASSERT_TRUE(writer->Append(batch).ok());
    ASSERT_TRUE(writer->Close(sealed).ok());
    const Found found = Scan(run_, "a");
    EXPECT_EQ(found.steps, (std::vector<std::int64_t>{0, 1, 2, 4, 5, 6, 7, 8, 9}));
    EXPECT_EQ(found.means[3], 2);
    EXPECT_EQ(found.means.size(), found.steps.size());
    EXPECT_EQ(found.modes.size(), found.steps.size());
    EXPECT_TRUE(found.salvage.any());
    EXPECT_GE(found.salvage.impossible_rows, 1U);
    EXPECT_EQ(found.salvage.missing_rows, 0U);
    EXPECT_EQ(Scan(run_, "b").steps.size(), 9U);
    std::filesystem::remove_all(run_ / "agent-a");
  }
}

TEST_F(ColumnScan, CountsWhatIsMissing) {
  auto writer = Open();
  ASSERT_TRUE(writer->Append(Statistics(0, 10)).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  const auto first = ListFolder(run_ / "agent-a");
  ASSERT_TRUE(first.ok());
  writer = Open();
  ASSERT_TRUE(writer->Append(Statistics(10, 20)).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  ASSERT_TRUE(std::filesystem::remove(run_ / "agent-a" / first->segments.at(0).file));
  const Found found = Scan(run_, "a");
  EXPECT_EQ(found.steps.size(), 10U);
  EXPECT_EQ(found.salvage.missing_rows, 30U);
}

/// A segment of two row groups and more, written at once, since the writer seals by time.
constexpr int kRows = 300'000;
std::filesystem::path WriteManyGroups(const std::filesystem::path& run) {
  format::Rows rows;
  for (int i = 0; i < kRows; ++i) {
    format::StatisticRow row;
    row.seq = static_cast<std::uint64_t>(i) + 1;
    row.ord_ns = row.time_ns = row.step = i;
    row.name = i < 140'000 ? "early" : i == 250'000 ? "once" : "late";
    row.mode = "TRAIN";
    row.mean = i * 0.5;
    rows.statistics.push_back(row);
  }
  SegmentInfo info{.writer = "agent-a",
                   .table = format::TableId::kStatistics,
                   .journal = 1,
                   .first_seq = 1,
                   .last_seq = kRows,
                   .watermark_after_ns = kRows};
  std::filesystem::create_directory(run / "agent-a");
  const std::filesystem::path file =
      run / "agent-a" / SegmentFileName(info.table, info.first_seq, info.last_seq);
  EXPECT_TRUE(WriteSegment(file, rows, &info).ok());
  return file;
}

TEST_F(ColumnScan, FindsTheNameAmongManyRowGroups) {
  WriteManyGroups(run_);
  const Found once = Scan(run_, "once");
  EXPECT_EQ(once.steps, std::vector<std::int64_t>{250'000});
  EXPECT_EQ(once.means, std::vector<double>{125'000});
  EXPECT_EQ(Scan(run_, "early").steps.size(), 140'000U);
  EXPECT_EQ(Scan(run_, "late").steps.size(), 159'999U);
  EXPECT_EQ(Scan(run_, std::nullopt).steps.size(), 300'000U);
}

TEST_F(ColumnScan, ReadsOnlyTheRowGroupsThatMayHoldTheSteps) {
  const std::filesystem::path file = WriteManyGroups(run_);
  const Found few = Scan(run_, "late", StepRange{249'999, 250'002});
  EXPECT_EQ(few.steps, (std::vector<std::int64_t>{249'999, 250'001, 250'002}));
  EXPECT_EQ(few.means, (std::vector<double>{124'999.5, 125'000.5, 125'001}));
  EXPECT_TRUE(Scan(run_, std::nullopt, StepRange{kRows, kRows + 9}).steps.empty());
  EXPECT_TRUE(Scan(run_, std::nullopt, StepRange{-9, -1}).steps.empty());
  // Over the border of two row groups, the second of which is read in part.
  EXPECT_EQ(Scan(run_, std::nullopt, StepRange{0, 140'000}).steps.size(), 140'001U);
  // What lies in the first row group is no more; of it the other ones know nothing.
  std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
  bytes.seekp(4);
  bytes << std::string(std::filesystem::file_size(file) / 4, '\0');
  bytes.close();
  EXPECT_EQ(Scan(run_, "early", StepRange{0, 9}).salvage.unreadable_files, 1U);
  const Found last = Scan(run_, "late", StepRange{290'000, 290'004});
  EXPECT_EQ(last.steps.size(), 5U);
  EXPECT_FALSE(last.salvage.any());
}

TEST_F(ColumnScan, FindsStepsInJournalsToo) {
  auto writer = Open();
  ASSERT_TRUE(writer->Append(Statistics(0, 50)).ok());
  const Found found = Scan(run_, "b", StepRange{10, 12});
  EXPECT_EQ(found.steps, (std::vector<std::int64_t>{10, 11, 12}));
  EXPECT_FALSE(found.salvage.any());
}

TEST_F(ColumnScan, GivesEachRowOnceOverManySegments) {
  const auto folder = run_ / "agent-a";
  auto writer = Open();
  // Journals that are sealed one by one, the newest of which is there still.
  const auto copy = folder_.path() / "copy";
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(writer->Append(Statistics(10 * i, 10 * i + 10)).ok());
    const auto listing = ListFolder(folder);
    ASSERT_TRUE(listing.ok());
    const auto journal = folder / JournalFileName(listing->journals.back());
    std::filesystem::copy_file(journal, copy, std::filesystem::copy_options::overwrite_existing);
    ASSERT_TRUE(writer->Close(true).ok());
    if (i < 11) {
      writer = Open();
    } else {
      std::filesystem::copy_file(copy, journal, std::filesystem::copy_options::overwrite_existing);
    }
  }
  ExpectAll(120);
}

TEST_F(ColumnScan, LeavesOutRowsWithoutAText) {
  format::Batch batch = Statistics(0, 30);
  for (format::StatisticRow& row : batch.rows.statistics)
    row.collection = row.step % 3 == 0 ? "" : "x";
  auto writer = Open();
  ASSERT_TRUE(writer->Append(std::move(batch)).ok());
  const auto count = [&] {
    std::vector<std::int64_t> steps;
    Salvage salvage;
    const ScanRequest request{.table = format::TableId::kStatistics,
                              .columns = {"step"},
                              .name = "b",
                              .not_empty = "collection"};
    const auto take = [&](ScanPiece& piece) {
      for (std::size_t i = 0; i < piece.rows; ++i) steps.push_back(piece.columns[0].Int(i));
      return Status();
    };
    EXPECT_TRUE(ScanColumns(run_, request, take, &salvage).ok());
    EXPECT_FALSE(salvage.any());
    for (const std::int64_t step : steps) EXPECT_NE(step % 3, 0);
    return steps.size();
  };
  EXPECT_EQ(count(), 20U) << "of a journal";
  ASSERT_TRUE(writer->Close(true).ok());
  EXPECT_EQ(count(), 20U) << "of a segment";
}

TEST_F(ColumnScan, SaysThatThereIsNoSuchColumn) {
  Salvage salvage;
  const Status status = ScanColumns(
      run_, {.table = format::TableId::kSteps, .columns = {"stepp"}},
      [](ScanPiece&) { return Status(); }, &salvage);
  EXPECT_EQ(status.code(), Code::kUsage);
  EXPECT_NE(status.message().find("stepp"), std::string::npos);
  const Status no_steps = ScanColumns(
      run_,
      {.table = format::TableId::kMetrics, .columns = {"value"}, .steps = StepRange{.last = 9}},
      [](ScanPiece&) { return Status(); }, &salvage);
  EXPECT_EQ(no_steps.code(), Code::kUsage);
}

TEST_F(ColumnScan, EndsWithWhatTheVisitorSays) {
  auto writer = Open();
  ASSERT_TRUE(writer->Append(Statistics(0, 50)).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  Salvage salvage;
  const Status status = ScanColumns(
      run_, {.table = format::TableId::kStatistics, .columns = {"step"}},
      [](ScanPiece&) { return Status(Code::kLimit, "enough"); }, &salvage);
  EXPECT_EQ(status.code(), Code::kLimit);
  EXPECT_FALSE(salvage.any());
}

}  // namespace
}  // namespace telltale::store
