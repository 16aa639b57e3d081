// SPDX-License-Identifier: Apache-2.0
#include "store/segment_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "store/segment_scan.h"
#include "store/store_testing.h"

namespace telltale::store {
namespace {

constexpr std::size_t kManyRows = 300'000;  // Three row groups.

/// Statistics with columns of each kind: that count, repeat, are all one or no number.
format::Rows ManyStatistics(StringPool* pool) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(-1, 1);
  format::Rows rows;
  for (std::size_t i = 0; i < kManyRows; ++i) {
    format::StatisticRow row;
    row.seq = i + 1;
    row.ord_ns = static_cast<std::int64_t>(i / 20 * 1000 + random() % 500);  // Not in its order.
    row.time_ns = row.ord_ns - 7;
    row.name = pool->Intern("layer." + std::to_string(i % 20));
    row.collection = i % 2 == 0 ? "weights" : "";
    row.dtype = "float32";
    row.step = static_cast<std::int64_t>(i / 20);
    row.mode = "TRAIN";
    row.rank = -1;
    row.attempt = ~0U;
    row.count = ~0ULL;
    row.min = uniform(random);
    row.max = i % 1000 == 0 ? std::numeric_limits<double>::quiet_NaN() : 1;
    row.nan_count = i % 3;
    row.more = i > kManyRows / 2;
    rows.statistics.push_back(row);
  }
  return rows;
}

void ExpectSame(const format::StatisticRow& a, const format::StatisticRow& b) {
  bool same = true;
  format::ForEachColumn<format::StatisticRow>([&](const format::ColumnDesc&, auto member) {
    using Value = std::remove_cvref_t<decltype(a.*member)>;
    if constexpr (std::is_same_v<Value, double>) {
      same = same && (a.*member == b.*member || (std::isnan(a.*member) && std::isnan(b.*member)));
    } else {
      same = same && a.*member == b.*member;
    }
  });
  ASSERT_TRUE(same) << a.seq;
}

class SegmentReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    rows_ = ManyStatistics(&pool_);
    SegmentInfo info;
    info.writer = "agent";
    info.table = format::TableId::kStatistics;
    info.first_seq = 1;
    info.last_seq = kManyRows;
    ASSERT_TRUE(WriteSegment(path_, rows_, &info).ok());
  }

  TempFolder temp_;
  const std::filesystem::path path_ = temp_.path() / "statistics-1-300000.parquet";
  StringPool pool_;
  format::Rows rows_;
};

TEST_F(SegmentReaderTest, PiecesAreTheRowsThatWereWritten) {
  const auto reader = SegmentReader::Open(path_).value();
  EXPECT_EQ(reader->info().rows, kManyRows);
  std::size_t at = 0;
  std::mt19937 random(1);
  while (!reader->at_end()) {
    StringPool pool;
    format::Rows piece;
    ASSERT_TRUE(reader->Read(1 + random() % 40'000, &pool, &piece).ok());
    ASSERT_FALSE(piece.statistics.empty());
    for (const format::StatisticRow& row : piece.statistics) {
      ASSERT_LT(at, kManyRows);
      ASSERT_NO_FATAL_FAILURE(ExpectSame(row, rows_.statistics[at++]));
    }
  }
  EXPECT_EQ(at, kManyRows);
}

TEST_F(SegmentReaderTest, NothingComesBeforeWhatItSays) {
  std::vector<std::int64_t> least(kManyRows + 1, std::numeric_limits<std::int64_t>::max());
  for (std::size_t i = kManyRows; i-- > 0;) {
    least[i] = std::min(least[i + 1], rows_.statistics[i].ord_ns);
  }
  const auto reader = SegmentReader::Open(path_).value();
  for (std::size_t at = 0; !reader->at_end();) {
    // Whole pieces are known exactly.
    EXPECT_EQ(reader->least_ord_ns(), least[at]);
    StringPool pool;
    format::Rows piece;
    ASSERT_TRUE(reader->Read(32'768, &pool, &piece).ok());
    at += piece.statistics.size();
  }
  EXPECT_EQ(reader->least_ord_ns(), std::numeric_limits<std::int64_t>::max());
}

TEST_F(SegmentReaderTest, AFlippedBitEndsItAndNothingOfThatCallIsGiven) {
  const auto size = std::filesystem::file_size(path_);
  std::FILE* const file = std::fopen(path_.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  std::fseek(file, static_cast<long>(size / 2), SEEK_SET);
  const int byte = std::fgetc(file);
  std::fseek(file, static_cast<long>(size / 2), SEEK_SET);
  std::fputc(byte ^ 1, file);
  std::fclose(file);
  const auto reader = SegmentReader::Open(path_).value();
  StringPool pool;
  format::Rows rows;
  Status status;
  std::size_t before = 0;
  while (status.ok() && !reader->at_end()) {
    before = rows.statistics.size();
    status = reader->Read(32'768, &pool, &rows);
  }
  EXPECT_EQ(status.code(), Code::kUnusable);
  EXPECT_EQ(rows.statistics.size(), before);
  EXPECT_TRUE(reader->at_end());
}

/// By each of those who read one.
void ExpectRefused(const std::filesystem::path& path, const char* why) {
  StringPool pool;
  format::Rows rows;
  const ScanRequest request{.table = format::TableId::kScalars, .columns = {"step"}};
  const auto visit = [](ScanPiece&) { return Status(); };
  for (const Status& status :
       {ReadSegmentInfo(path).status(), ReadSegment(path, &pool, &rows).status(),
        SegmentReader::Open(path).status(), ScanSegment(path, "agent", request, visit).status()}) {
    EXPECT_EQ(status.code(), Code::kUnusable);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  }
  EXPECT_TRUE(rows.scalars.empty());
}

TEST(SegmentTest, RowsThatItsMetadataHaveNoNumbersForAreRefused) {
  const TempFolder temp;
  format::Rows rows = Scalars(0, 10).rows;
  SegmentInfo info{.writer = "agent",
                   .table = format::TableId::kScalars,
                   .journal = 1,
                   .first_seq = 1,
                   .last_seq = 9};
  ASSERT_TRUE(WriteSegment(temp.path() / "few", rows, &info).ok());
  ExpectRefused(temp.path() / "few", "10 rows, and sequence numbers for 9");
  // The bounds hold for all of them.
  info.last_seq = std::uint64_t{1} << 63;
  ASSERT_TRUE(WriteSegment(temp.path() / "beyond", rows, &info).ok());
  ExpectRefused(temp.path() / "beyond", "cannot be");
  info.last_seq = 10;
  const std::filesystem::path good = temp.path() / SegmentFileName(info.table, 1, 10);
  ASSERT_TRUE(WriteSegment(good, rows, &info).ok());
  EXPECT_TRUE(SegmentReader::Open(good).ok());
  const std::filesystem::path other = temp.path() / SegmentFileName(info.table, 11, 20);
  std::filesystem::copy(good, other);
  ExpectRefused(other, "its name and its metadata");
}

TEST(SegmentTest, OfAnotherTableAScanGetsNothing) {
  const TempFolder temp;
  SegmentInfo info{.writer = "agent",
                   .table = format::TableId::kScalars,
                   .journal = 1,
                   .first_seq = 1,
                   .last_seq = 10};
  ASSERT_TRUE(WriteSegment(temp.path() / "scalars", Scalars(0, 10).rows, &info).ok());
  const ScanRequest request{.table = format::TableId::kSteps, .columns = {"step"}};
  const auto rows =
      ScanSegment(temp.path() / "scalars", "agent", request, [](ScanPiece&) { return Status(); });
  EXPECT_EQ(rows.status().code(), Code::kUnusable);
}

}  // namespace
}  // namespace telltale::store
