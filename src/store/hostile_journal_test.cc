// SPDX-License-Identifier: Apache-2.0
// Journals whose checksums hold and whose numbers cannot be: what is true is read, the rest
// counted.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "format/batch.h"
#include "store/column_scan.h"
#include "store/journal_format.h"
#include "store/journal_reader.h"
#include "store/journal_writer.h"
#include "store/store_testing.h"

namespace telltale::store {
namespace {

constexpr std::uint64_t kFar = std::uint64_t{1} << 62;

class HostileJournal : public ::testing::Test {
 protected:
  void SetUp() override {
    MakeRun(run_);
    header_.writer = "agent-a";
    header_.number = 1;
    header_.created_ns = 1;
    header_.next_seq = FirstSeqs();
    std::filesystem::create_directory(run_ / "agent-a");
  }

  static std::string Rows(int first, int n, std::uint64_t seq) {
    format::Batch batch = Scalars(first, n);
    for (format::ScalarRow& row : batch.rows.scalars) row.seq = seq++;
    std::string record;
    format::EncodeBatch(batch, &record);
    return record;
  }

  static std::string End(std::uint64_t next_seq) {
    EndRecord end;
    end.next_seq = FirstSeqs();
    end.next_seq[static_cast<std::size_t>(format::TableId::kScalars)] = next_seq;
    return Encode(end);
  }

  void Write(std::vector<std::string> records) const {
    records.insert(records.begin(), Encode(header_));
    bool no_space = false;
    ASSERT_TRUE(
        JournalWriter::Create(run_ / "agent-a" / JournalFileName(1), records, &no_space).ok());
  }

  /// The values that a scan by column gives.
  std::vector<double> Scanned(Salvage* salvage) const {
    std::vector<double> values;
    const auto visit = [&](ScanPiece& piece) -> Status {
      for (std::size_t i = 0; i < piece.rows; ++i) values.push_back(piece.columns[0].Real(i));
      return {};
    };
    EXPECT_TRUE(ScanColumns(run_, {.table = format::TableId::kScalars, .columns = {"value"}}, visit,
                            salvage)
                    .ok());
    return values;
  }

  TempFolder temp_;
  const std::filesystem::path run_ = temp_.path() / "run";
  JournalHeader header_;
};

TEST_F(HostileJournal, MissingRowsOfSeveralTablesAreNeverNoneInSum) {
  // Four times 2^62 is 2^64.
  for (const std::size_t table : {1, 2, 3, 5}) header_.next_seq[table] = kFar + 1;
  Write({Rows(0, 3, 1), End(4)});
  const auto all = ReadEverything(run_);
  EXPECT_EQ(all->salvage.missing_rows, std::numeric_limits<std::uint64_t>::max());
  EXPECT_TRUE(all->salvage.any());
  ExpectScalars(all->rows, 3);
  Salvage twice = all->salvage;
  twice.Add(all->salvage);
  EXPECT_TRUE(twice.any());
}

TEST_F(HostileJournal, RowsBehindOneThatIsFarAheadAreRead) {
  Write({Rows(0, 3, 1), Rows(900, 1, kFar), Rows(3, 4, 4), End(8)});
  const auto all = ReadEverything(run_);
  ExpectScalars(all->rows, 7);
  EXPECT_EQ(all->salvage.impossible_rows, 1U);
  EXPECT_EQ(all->salvage.missing_rows, 0U);
  ASSERT_EQ(all->salvage.notes.size(), 1U);
  EXPECT_NE(all->salvage.notes[0].find("seq = 4611686018427387904"), std::string::npos)
      << all->salvage.notes[0];

  Salvage salvage;
  EXPECT_EQ(Scanned(&salvage), (std::vector<double>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(salvage.impossible_rows, 1U);
  EXPECT_EQ(salvage.missing_rows, 0U);
}

TEST_F(HostileJournal, RowsThatAreMissingAreStillMissing) {
  // Less than the file has bytes: a damaged block may have held them.
  Write({Rows(0, 3, 1), Rows(10, 4, 11), End(15)});
  EXPECT_EQ(ReadEverything(run_)->salvage.missing_rows, 7U);
  Salvage salvage;
  EXPECT_EQ(Scanned(&salvage).size(), 7U);
  EXPECT_EQ(salvage.missing_rows, 7U);
}

TEST_F(HostileJournal, AGroupWithoutAnEndIsNotHeldInMemory) {
  std::string part = Rows(3, 20, 4);
  part[0] = static_cast<char>(format::JournalRecord::kBatchPart);
  std::vector<std::string> records(10, part);
  records.insert(records.begin(), Rows(0, 3, 1));
  records.push_back(Rows(900, 5, 4));  // Ends the group, so it is lost with it.
  records.push_back(Rows(3, 4, 4));
  Write(records);
  const auto read = [&](std::uint64_t most) {
    StringPool pool;
    JournalChunk chunk;
    auto file = JournalFile::Open(run_ / "agent-a" / JournalFileName(1), most).value();
    // As of one that grows, in small pieces.
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(file->Read(false, 1, &pool, &chunk).ok());
    return std::pair(chunk.batch.rows.scalars.size(), file->TakeDamage());
  };
  const auto [rows, damage] = read(4 * part.size());
  EXPECT_EQ(rows, 7U);
  ASSERT_EQ(damage.size(), 1U);
  EXPECT_EQ(damage[0].bytes, 5 * part.size());
  EXPECT_NE(damage[0].what.find("longer than any of ours"), std::string::npos) << damage[0].what;
  EXPECT_EQ(read(10 * part.size()).first, 3U + 200U + 5U + 4U);
}

TEST_F(HostileJournal, ARecordWithANumberThatCannotBeIsDamage) {
  SealedRecord sealed;
  sealed.table = static_cast<std::uint8_t>(format::TableId::kScalars);
  sealed.last_seq = ~std::uint64_t{0};
  EndRecord end;
  end.next_seq = FirstSeqs();
  end.ended_ns = std::numeric_limits<std::int64_t>::max();
  Write({Encode(sealed), Rows(0, 3, 1), Encode(end)});
  const auto all = ReadEverything(run_);
  ExpectScalars(all->rows, 3);
  EXPECT_EQ(all->salvage.damaged_blocks, 2U);
  ASSERT_EQ(all->salvage.notes.size(), 2U);
  EXPECT_NE(all->salvage.notes[0].find("a number of the sealed record cannot be"),
            std::string::npos);
  EXPECT_NE(all->salvage.notes[1].find("a number of the end record cannot be"), std::string::npos);
  Salvage salvage;
  EXPECT_EQ(Scanned(&salvage).size(), 3U);
  EXPECT_EQ(salvage.damaged_blocks, 2U);
}

TEST_F(HostileJournal, AHeaderWithANumberThatCannotBeIsDamage) {
  header_.created_ns = std::numeric_limits<std::int64_t>::min();
  Write({Rows(0, 3, 1), End(4)});
  const auto all = ReadEverything(run_);
  ExpectScalars(all->rows, 3);
  EXPECT_EQ(all->salvage.damaged_blocks, 1U);
  ASSERT_EQ(all->salvage.notes.size(), 1U);
  EXPECT_NE(all->salvage.notes[0].find("a number of the header cannot be"), std::string::npos);
}

}  // namespace
}  // namespace telltale::store
