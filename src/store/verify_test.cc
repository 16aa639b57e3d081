// SPDX-License-Identifier: Apache-2.0
#include "store/verify.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <span>
#include <type_traits>

#include "base/unique_fd.h"
#include "store/folder.h"
#include "store/journal_format.h"
#include "store/journal_reader.h"
#include "store/journal_writer.h"
#include "store/segment.h"
#include "store/store_testing.h"
#include "store/tensor_file.h"

namespace telltale::store {
namespace {

std::string WholeFile(const std::filesystem::path& path) { return ReadWholeFile(path).value(); }

void Spill(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class VerifyTest : public ::testing::Test {
 protected:
  /// A finished run: a segment of two tables, a tensor file and a journal that ends.
  void SetUp() override {
    MakeRun(run_);
    auto writer = Writer::Open(folder_, "agent-a").value();
    ASSERT_TRUE(writer->Append(Scalars(0, 20)).ok());
    std::filesystem::create_directory(folder_ / kTensorFolder);
    const std::string header = "\x02\0\0\0\0\0\0\0{}";
    Spill(folder_ / "tensors/1-1.safetensors", std::string(header.data(), 10) + "abcdefgh");
    format::Batch index;
    const auto add = [&](const char* name, std::uint64_t offset, std::uint64_t bytes) {
      const auto digest =
          ToHex(DigestFile(folder_ / "tensors/1-1.safetensors", offset, bytes)->digest);
      index.rows.tensors.push_back({.name = name,
                                    .file = "tensors/1-1.safetensors",
                                    .offset = offset,
                                    .bytes = bytes,
                                    .digest = pool_.Intern(digest)});
    };
    add("__header__", 0, 10);
    add("w", 10, 8);
    ASSERT_TRUE(writer->Append(index).ok());
    ASSERT_TRUE(writer->Close(true).ok());
  }

  std::vector<Problem> Problems() const {
    const auto report = Verify(run_);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? report->problems : std::vector<Problem>{};
  }

  /// Flips every single bit of the file in turn; each must be found, and name the file.
  void FlipEveryBit(const std::filesystem::path& path) {
    const std::string whole = WholeFile(path);
    ASSERT_FALSE(whole.empty());
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
      const auto at = static_cast<off_t>(bit / 8);
      const char hurt = static_cast<char>(whole[bit / 8] ^ (1 << (bit % 8)));
      ASSERT_EQ(::pwrite(fd.get(), &hurt, 1, at), 1);
      const auto report = Verify(run_);
      // A later version by its looks is refused, so found.
      ASSERT_TRUE(!report.ok() || !report->problems.empty()) << path << " bit " << bit;
      ASSERT_EQ(::pwrite(fd.get(), &whole[bit / 8], 1, at), 1);
    }
    ASSERT_TRUE(Problems().empty());
  }

  TempFolder temp_;
  StringPool pool_;
  std::filesystem::path run_ = temp_.path() / "run";
  std::filesystem::path folder_ = run_ / "agent-a";
};

TEST_F(VerifyTest, AHealthyRunHasNoProblem) {
  const auto report = Verify(run_);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->problems.empty()) << report->problems[0].what;
  EXPECT_EQ(report->writers, 1U);
  EXPECT_EQ(report->journals, 1U);
  EXPECT_EQ(report->segments, 2U);
  EXPECT_EQ(report->tensor_files, 1U);
  EXPECT_EQ(report->rows, 22U);
}

TEST_F(VerifyTest, EveryFlippedBitOfTheJournalIsFound) {
  FlipEveryBit(folder_ / JournalFileName(2));
}
TEST_F(VerifyTest, EveryFlippedBitOfASegmentIsFound) {
  // A run with nothing else, since each bit reads all of it.
  std::filesystem::remove_all(folder_);
  auto writer = Writer::Open(folder_, "agent-a").value();
  ASSERT_TRUE(writer->Append(Scalars(0, 2)).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  FlipEveryBit(folder_ / "scalars-000000000001-000000000002.parquet");
}
TEST_F(VerifyTest, EveryFlippedBitOfATensorFileIsFound) {
  FlipEveryBit(folder_ / "tensors/1-1.safetensors");
}

TEST_F(VerifyTest, EveryTruncationOfASegmentOrTensorFileIsFound) {
  for (const char* name :
       {"scalars-000000000001-000000000020.parquet", "tensors/1-1.safetensors"}) {
    const std::string whole = WholeFile(folder_ / name);
    for (std::size_t n = whole.size(); n-- > 0;) {
      std::filesystem::resize_file(folder_ / name, n);
      ASSERT_FALSE(Problems().empty()) << name << " cut to " << n;
    }
    Spill(folder_ / name, whole);
  }
}

TEST_F(VerifyTest, EveryTruncationOfTheLastJournalIsFoundAndOpens) {
  const std::filesystem::path path = folder_ / JournalFileName(2);
  const std::string whole = WholeFile(path);
  for (std::size_t n = whole.size(); n-- > 0;) {
    std::filesystem::resize_file(path, n);
    ASSERT_FALSE(Problems().empty()) << "cut to " << n;
    ASSERT_EQ(ReadEverything(run_)->rows.scalars.size(), 20U);
  }
}

TEST_F(VerifyTest, NamesWhatIsMissing) {
  std::filesystem::remove(folder_ / "scalars-000000000001-000000000020.parquet");
  const auto problems = Problems();
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_EQ(problems[0].file, "agent-a/scalars-000000000001-000000000020.parquet");
  EXPECT_EQ(problems[1].what, "rows 1 to 20 of table scalars are missing");
  EXPECT_EQ(ReadEverything(run_)->salvage.missing_rows, 20U);
}

TEST_F(VerifyTest, ForeignFilesAreLeftAloneAndNamed) {
  Spill(folder_ / "notes.txt", "mine");
  Spill(folder_ / "scalars-x.parquet", "");
  const auto report = Verify(run_);
  EXPECT_TRUE(report->problems.empty());
  EXPECT_EQ(report->notes.size(), 2U);
}

TEST_F(VerifyTest, WhatLiesAmongTheTensorFilesIsNamed) {
  const std::filesystem::path tensors = folder_ / "tensors";
  Spill(tensors / "notes.txt", "mine");
  ASSERT_EQ(::mkfifo((tensors / "00000008.safetensors").c_str(), 0600), 0);
  const auto report = Verify(run_);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->problems.empty()) << report->problems[0].file << report->problems[0].what;
  EXPECT_EQ(report->notes.size(), 2U) << "a pipe holds up nobody";
  // Of these names only our writers make files.
  Spill(tensors / "00000009.safetensors", "bytes that no row names");
  Spill(tensors / "1-1.safetensors.part", "hidden behind the finished one");
  const auto problems = Problems();
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_EQ(problems[0].file, "agent-a/tensors/00000009.safetensors");
  EXPECT_EQ(problems[1].file, "agent-a/tensors/1-1.safetensors.part");
}

TEST_F(VerifyTest, APipeInTheFolderHoldsUpNobody) {
  ASSERT_EQ(::mkfifo((folder_ / "scalars-000000000021-000000000022.parquet").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo((folder_ / JournalFileName(7)).c_str(), 0600), 0);
  const auto report = Verify(run_);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->problems.empty()) << report->problems[0].file << report->problems[0].what;
  EXPECT_EQ(report->notes.size(), 2U);
  ExpectScalars(ReadEverything(run_)->rows, 20);
}

TEST_F(VerifyTest, AnIndexThatPointsOutOfTheFolderIsNamed) {
  std::filesystem::remove_all(folder_);
  auto writer = Writer::Open(folder_, "agent-a").value();
  format::Batch index;
  index.rows.tensors.push_back(
      {.name = "w", .file = "tensors/../lock", .offset = 0, .bytes = 1, .digest = "no digest"});
  ASSERT_TRUE(writer->Append(index).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  const auto problems = Problems();
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_NE(problems[0].what.find("tensors/../lock"), std::string::npos) << problems[0].what;
}

TEST_F(VerifyTest, EmptyAndZeroFilledFilesAreNamedAndTheRestIsServed) {
  Spill(folder_ / "metrics-000000000001-000000000009.parquet", "");
  Spill(folder_ / JournalFileName(3), std::string(40'000, '\0'));
  EXPECT_GE(Problems().size(), 3U);
  const auto all = ReadEverything(run_);
  ExpectScalars(all->rows, 20);
  EXPECT_TRUE(all->salvage.any());
}

TEST_F(VerifyTest, NoRunAndALaterRunAreRefused) {
  EXPECT_EQ(Verify(temp_.path() / "nothing").status().code(), Code::kUnusable);
  Spill(run_ / "run.json", R"({"format": {"major": 2, "minor": 0}})");
  EXPECT_EQ(Verify(run_).status().code(), Code::kVersion);
  Spill(run_ / "run.json", "{");
  ASSERT_EQ(Problems().size(), 1U);
  EXPECT_EQ(Problems()[0].file, "run.json");
}

/// A writer's folder whose records nobody has recorded: their checksums hold, so anybody could have
/// made them.
class ForgedRunTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kTebibyte = 1ULL << 40;
  /// No check of these runs needs as much, and what their files say is far beyond.
  static constexpr std::uint64_t kFewBytes = 64U << 20;

  void SetUp() override {
    MakeRun(run_);
    std::filesystem::create_directories(folder_ / kTensorFolder);
  }

  /// A file that says that it has so many bytes, and has its first ones.
  void MakeSparse(const std::filesystem::path& path, std::uint64_t bytes, std::string_view begin) {
    Spill(path, begin);
    std::filesystem::resize_file(path, bytes);
  }

  static std::string DigestOf(std::string_view bytes) {
    return DigestText(std::as_bytes(std::span(bytes)));
  }

  void AddTensor(std::uint64_t offset, std::uint64_t bytes, std::string_view digest) {
    const std::uint64_t seq = batch_.rows.tensors.size() + 1;
    batch_.rows.tensors.push_back({.seq = seq,
                                   .name = "w",
                                   .file = kTensorFile,
                                   .offset = offset,
                                   .bytes = bytes,
                                   .digest = pool_.Intern(digest)});
  }

  /// Writes the journal and verifies the run.
  VerifyReport Report(const std::vector<SealedRecord>& sealed = {}) {
    JournalHeader header{.writer = "agent-a", .number = 2, .next_seq = FirstSeqs()};
    EndRecord end{.next_seq = FirstSeqs()};
    std::vector<std::string> records{Encode(header)};
    for (const SealedRecord& record : sealed) records.push_back(Encode(record));
    end.next_seq[static_cast<std::size_t>(format::TableId::kTensors)] =
        batch_.rows.tensors.size() + 1;
    std::string encoded;
    format::EncodeBatch(batch_, &encoded);
    records.push_back(std::move(encoded));
    records.push_back(Encode(end));
    bool no_space = false;
    EXPECT_TRUE(JournalWriter::Create(folder_ / JournalFileName(2), records, &no_space).ok());
    const std::uint64_t before = BytesRead();
    auto report = Verify(run_);
    read_ = BytesRead() - before;
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *std::move(report) : VerifyReport{};
  }

  static std::string Words(const VerifyReport& report) {
    std::string words;
    for (const Problem& problem : report.problems)
      words += problem.file + ": " + problem.what + "\n";
    return words;
  }

  /// By all system calls of this process.
  static std::uint64_t BytesRead() {
    std::ifstream file("/proc/self/io");
    std::string name;
    std::uint64_t bytes = 0;
    file >> name >> bytes;
    EXPECT_EQ(name, "rchar:");
    return bytes;
  }

  static constexpr std::string_view kValues = "abcdefgh";
  static constexpr const char* kTensorFile = "tensors/00000001.safetensors";
  TempFolder temp_;
  StringPool pool_;
  format::Batch batch_;
  std::filesystem::path run_ = temp_.path() / "run";
  std::filesystem::path folder_ = run_ / "agent-a";
  std::uint64_t read_ = 0;  ///< By the last Report.
};

TEST_F(ForgedRunTest, ASegmentOfATebibyteThatWasNeverWrittenIsNotReadThoughARecordVouchesForIt) {
  const std::string name = SegmentFileName(format::TableId::kScalars, 1, 6);
  MakeSparse(folder_ / name, kTebibyte, "PAR1");
  const SealedRecord sealed{.table = static_cast<std::uint8_t>(format::TableId::kScalars),
                            .journal = 1,
                            .segments_of_journal = 1,
                            .first_seq = 1,
                            .last_seq = 6,
                            .rows = 6,
                            .file = name,
                            .bytes = kTebibyte};
  const VerifyReport report = Report({sealed});
  ASSERT_EQ(report.problems.size(), 1U) << Words(report);
  EXPECT_EQ(report.problems[0].file, "agent-a/" + name);
  EXPECT_TRUE(report.problems[0].what.starts_with("1099511627776 bytes are not read: "))
      << report.problems[0].what;
  EXPECT_EQ(report.unread_bytes, kTebibyte);
  EXPECT_LT(read_, kFewBytes);
}

TEST_F(ForgedRunTest, ASegmentThatIsMostlyAHoleIsReadByNobody) {
  auto writer = Writer::Open(folder_, "agent-a").value();
  ASSERT_TRUE(writer->Append(Scalars(0, 20)).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  const std::filesystem::path path = folder_ / SegmentFileName(format::TableId::kScalars, 1, 20);
  StringPool pool;
  format::Rows rows;
  ASSERT_TRUE(ReadSegment(path, &pool, &rows).ok());
  // Its pages where they were, its footer at the end.
  const std::string whole = WholeFile(path);
  std::uint32_t footer = 0;
  std::memcpy(&footer, whole.data() + whole.size() - 8, sizeof footer);
  const std::size_t pages = whole.size() - 8 - footer;
  MakeSparse(path, kTebibyte, std::string_view(whole).substr(0, pages));
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const std::size_t end = whole.size() - pages;
  ASSERT_EQ(::pwrite(fd.get(), whole.data() + pages, end, static_cast<off_t>(kTebibyte - end)),
            static_cast<ssize_t>(end));
  const auto read = ReadSegment(path, &pool, &rows);
  EXPECT_EQ(read.status().code(), Code::kUnusable);
  EXPECT_NE(read.status().message().find("1099511627776 bytes and takes up"), std::string::npos)
      << read.status().message();
  const auto all = ReadEverything(run_);
  EXPECT_TRUE(all->rows.scalars.empty());
  EXPECT_TRUE(all->salvage.any());
}

TEST_F(ForgedRunTest, ATensorOfATebibyteThatWasNeverWrittenIsNotReadThoughTheIndexNamesIt) {
  MakeSparse(folder_ / kTensorFile, kTebibyte, kValues);
  AddTensor(0, kValues.size(), DigestOf(kValues));
  AddTensor(kValues.size(), kTebibyte - kValues.size(), "");
  const VerifyReport report = Report();
  ASSERT_EQ(report.problems.size(), 1U) << Words(report);
  EXPECT_EQ(report.problems[0].offset, kValues.size());
  EXPECT_NE(report.problems[0].what.find("are not read"), std::string::npos) << Words(report);
  EXPECT_EQ(report.unread_bytes, kTebibyte - kValues.size());
  EXPECT_LT(read_, kFewBytes);
}

TEST_F(ForgedRunTest, WhatTheIndexDoesNotNameIsNotRead) {
  MakeSparse(folder_ / kTensorFile, kTebibyte, kValues);
  AddTensor(0, kValues.size(), DigestOf(kValues));
  const VerifyReport report = Report();
  ASSERT_EQ(report.problems.size(), 1U) << Words(report);
  EXPECT_EQ(report.problems[0].offset, kValues.size());
  EXPECT_EQ(report.unread_bytes, kTebibyte - kValues.size());
  EXPECT_LT(read_, kFewBytes);
}

TEST_F(ForgedRunTest, ARowThatReachesBeyondTheEndOfItsFileIsSaidAndNotRead) {
  MakeSparse(folder_ / kTensorFile, kTebibyte, kValues);
  AddTensor(0, kTebibyte + 1, DigestOf(kValues));
  const VerifyReport report = Report();
  ASSERT_EQ(report.problems.size(), 2U) << Words(report);
  EXPECT_TRUE(report.problems[0].what.starts_with("the file ends at 1099511627776, "))
      << Words(report);
  EXPECT_EQ(report.unread_bytes, kTebibyte);
  EXPECT_LT(read_, kFewBytes);
}

TEST_F(ForgedRunTest, BytesThatManyRowsNameAreReadOnce) {
  constexpr std::uint64_t kRows = 500;
  const std::string values(1U << 20, 'v');
  Spill(folder_ / kTensorFile, values);
  AddTensor(0, values.size(), DigestOf(values));
  for (std::uint64_t i = 1; i < kRows; ++i) AddTensor(i, values.size() - i, "");
  const VerifyReport report = Report();
  EXPECT_EQ(report.problems.size(), kRows - 1);
  EXPECT_EQ(report.problems[0].what, "the index names these bytes twice");
  EXPECT_LT(read_, kFewBytes);
}

TEST_F(ForgedRunTest, ACopyThatLeavesOutZerosIsChecked) {
  constexpr std::uint64_t kZeros = 8U << 20;
  MakeSparse(folder_ / kTensorFile, kZeros, "");
  AddTensor(0, kZeros, DigestOf(std::string(kZeros, '\0')));
  const VerifyReport sound = Report();
  EXPECT_TRUE(sound.problems.empty()) << Words(sound);
  EXPECT_EQ(sound.unread_bytes, 0U);
  MakeSparse(folder_ / kTensorFile, kZeros, "x");
  const VerifyReport damaged = *Verify(run_);
  ASSERT_EQ(damaged.problems.size(), 1U) << Words(damaged);
  EXPECT_EQ(damaged.problems[0].what, "8388608 bytes: digest differs");
}

/// Rows of each table, by TableId.
using Counts = std::array<std::size_t, 256>;

Counts CountRows(const format::Rows& rows) {
  Counts counts{};
  format::ForEachTable(rows, [&](const auto& table) {
    using Row = typename std::remove_cvref_t<decltype(table)>::value_type;
    counts[static_cast<std::uint8_t>(Row::kTable)] = table.size();
  });
  return counts;
}

/// Whether each row is, column by column, the one that was written under its number.
bool AllAsWritten(const format::Rows& rows, const format::Rows& written) {
  bool same = true;
  format::ForEachTable(rows, [&](const auto& table) {
    using Table = std::remove_cvref_t<decltype(table)>;
    using Row = typename Table::value_type;
    const Table* all = nullptr;
    format::ForEachTable(written, [&]([[maybe_unused]] const auto& other) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(other)>, Table>) all = &other;
    });
    for (const Row& row : table) {
      if (row.seq == 0 || row.seq > all->size()) {
        same = false;
        return;
      }
      const Row& original = (*all)[row.seq - 1];
      format::ForEachColumn<Row>([&](const format::ColumnDesc&, auto member) {
        same = same && row.*member == original.*member;
      });
    }
  });
  return same;
}

/// Two scalars and, in turn, a row of another table.
format::Batch SmallBatch(int i) {
  format::Batch batch = Scalars(i * 2, 2);
  const std::int64_t at_ns = i * 20;
  switch (i % 4) {
    case 0:
      batch.rows.steps.push_back({.ord_ns = at_ns,
                                  .time_ns = at_ns,
                                  .duration_ns = 7,
                                  .step = i,
                                  .mode = "TRAIN",
                                  .attempt = 1,
                                  .data_wait_ns = 7});
      break;
    case 1:
      batch.rows.metrics.push_back({.ord_ns = at_ns,
                                    .time_ns = at_ns,
                                    .node = "here",
                                    .subject = "node",
                                    .name = "cpu.idle",
                                    .value = 12.5,
                                    .unit = "percent"});
      break;
    case 2:
      batch.rows.events.push_back({.ord_ns = at_ns,
                                   .time_ns = at_ns,
                                   .kind = "process.start",
                                   .severity = "info",
                                   .subject = "proc:7",
                                   .message = "pid 7 began",
                                   .data = "{}",
                                   .pid = 7});
      break;
    default:
      batch.rows.spans.push_back({.ord_ns = at_ns,
                                  .time_ns = at_ns,
                                  .duration_ns = 3,
                                  .name = "forward",
                                  .category = "phase",
                                  .step = i,
                                  .tid = 7});
  }
  return batch;
}

/// A journal so small that nothing of it is left out: each byte cut off, each bit flipped.
class SmallLiveJournalTest : public ::testing::Test {
 protected:
  struct Written {
    std::size_t bytes;  ///< Of the journal once the batch was in it.
    Counts rows;        ///< Until then.
  };

  void SetUp() override {
    MakeRun(run_);
    auto writer = Writer::Open(run_ / "agent-a", "agent-a").value();
    batches_.push_back({std::filesystem::file_size(path_), {}});
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(writer->Append(SmallBatch(i)).ok());
      batches_.push_back(
          {std::filesystem::file_size(path_), CountRows(ReadEverything(run_)->rows)});
    }
    ASSERT_TRUE(writer->Close(false).ok());
    whole_ = WholeFile(path_);
    written_ = ReadEverything(run_);
    ASSERT_NO_FATAL_FAILURE(ExpectScalars(written_->rows, 16));
    for (const std::size_t rows : {written_->rows.steps.size(), written_->rows.metrics.size(),
                                   written_->rows.events.size(), written_->rows.spans.size()}) {
      ASSERT_EQ(rows, 2U);
    }
  }

  /// Rows of the batches that lie within the first `bytes` bytes.
  Counts RowsWithin(std::size_t bytes) const {
    Counts rows{};
    for (const Written& batch : batches_) {
      if (batch.bytes <= bytes) rows = batch.rows;
    }
    return rows;
  }

  TempFolder temp_;
  std::filesystem::path run_ = temp_.path() / "run";
  std::filesystem::path path_ = run_ / "agent-a" / JournalFileName(1);
  std::string whole_;
  std::vector<Written> batches_;  ///< Before them the header.
  std::unique_ptr<Everything> written_;
};

TEST_F(SmallLiveJournalTest, TruncatedAtEveryByteItServesTheWholeBatchesBefore) {
  for (std::size_t n = 0; n <= whole_.size(); ++n) {
    Spill(path_, whole_.substr(0, n));
    const auto all = ReadEverything(run_);
    ASSERT_EQ(CountRows(all->rows), RowsWithin(n)) << "cut to " << n;
    ASSERT_TRUE(AllAsWritten(all->rows, written_->rows)) << "cut to " << n;
  }
}

TEST_F(SmallLiveJournalTest, EveryFlippedBitIsFoundAndNeverGivesAWrongValue) {
  for (std::size_t bit = 0; bit < whole_.size() * 8; ++bit) {
    std::string hurt = whole_;
    hurt[bit / 8] = static_cast<char>(hurt[bit / 8] ^ (1 << (bit % 8)));
    Spill(path_, hurt);
    const auto report = Verify(run_);
    ASSERT_TRUE(report.ok());
    // No end record is one problem always; the damage must be another.
    ASSERT_GE(report->problems.size(), 2U) << bit / 8 << ":" << bit % 8;
    const auto all = ReadEverything(run_);
    ASSERT_TRUE(AllAsWritten(all->rows, written_->rows)) << bit / 8 << ":" << bit % 8;
    const Counts served = CountRows(all->rows);
    const Counts before = RowsWithin(bit / 8);
    for (std::size_t table = 0; table < served.size(); ++table) {
      ASSERT_GE(served[table], before[table]) << bit / 8 << ":" << bit % 8;
    }
  }
}

/// The same over the border of a block, where there is too much for each bit: samples.
class LiveJournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MakeRun(run_);
    auto writer = Writer::Open(run_ / "agent-a", "agent-a").value();
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(writer->Append(Scalars(i * 3, 3)).ok());
    ASSERT_TRUE(writer->Append(Scalars(18, 700)).ok());  // Over the border of a block.
    ASSERT_TRUE(writer->Close(false).ok());
    whole_ = WholeFile(path_);
    ASSERT_GT(whole_.size(), kBlockBytes);
  }

  TempFolder temp_;
  std::filesystem::path run_ = temp_.path() / "run";
  std::filesystem::path path_ = run_ / "agent-a" / JournalFileName(1);
  std::string whole_;
};

TEST_F(LiveJournalTest, TruncatedNearBordersAndAtSomeBytesBetweenItServesAPrefix) {
  std::size_t least = 0;
  for (std::size_t n = 0; n <= whole_.size(); ++n) {
    // Between the batches and the border lies one long group.
    const bool near_border = n > kBlockBytes - 300 && n < kBlockBytes + 300;
    if (n > 1500 && !near_border && n < whole_.size() - 100 && n % 211 != 0) continue;
    Spill(path_, whole_.substr(0, n));
    const auto all = ReadEverything(run_);
    const std::size_t rows = all->rows.scalars.size();
    ASSERT_NO_FATAL_FAILURE(ExpectScalars(all->rows, rows)) << n;
    ASSERT_GE(rows, least);                          // A longer file never gives less.
    ASSERT_TRUE(rows % 3 == 0 || rows == 718) << n;  // Batches and groups are whole.
    least = rows;
  }
  EXPECT_EQ(least, 718U);
}

TEST_F(LiveJournalTest, FlippedBitsNearBordersAndSomeBetweenAreFoundAndGiveNoWrongValue) {
  // Reading everything for each of 300,000 bits takes long; the first batches, the borders and a
  // stride through the rest meet every kind of field.
  for (std::size_t byte = 0; byte < whole_.size(); ++byte) {
    const bool near_border = byte % kBlockBytes < 40 || byte % kBlockBytes > kBlockBytes - 20;
    if (byte > 400 && !near_border && byte % 509 != 0) continue;
    for (int bit = 0; bit < 8; ++bit) {
      std::string hurt = whole_;
      hurt[byte] = static_cast<char>(hurt[byte] ^ (1 << bit));
      Spill(path_, hurt);
      const auto report = Verify(run_);
      ASSERT_TRUE(report.ok());
      // No end record is one problem always; the damage must be another.
      ASSERT_GE(report->problems.size(), 2U) << byte << ":" << bit;
      const auto all = ReadEverything(run_);
      for (const format::ScalarRow& row : all->rows.scalars) {
        ASSERT_EQ(row.value, static_cast<double>(row.seq - 1)) << byte << ":" << bit;
      }
    }
  }
}

TEST_F(LiveJournalTest, ADamagedBlockCostsOnlyItsOwnRecords) {
  const auto writer = Writer::Open(run_ / "agent-a", "agent-a");
  for (int i = 0; i < 40; ++i) ASSERT_TRUE((*writer)->Append(Scalars(718 + i * 100, 100)).ok());
  const std::filesystem::path second = run_ / "agent-a" / JournalFileName(2);
  std::string hurt = WholeFile(second);
  ASSERT_GT(hurt.size(), 4 * kBlockBytes);
  hurt[2 * kBlockBytes + 5000] = static_cast<char>(hurt[2 * kBlockBytes + 5000] ^ 1);
  Spill(second, hurt);
  const auto all = ReadEverything(run_);
  EXPECT_EQ(all->salvage.damaged_blocks, 1U);
  EXPECT_GT(all->salvage.missing_rows, 0U);
  EXPECT_LE(all->salvage.missing_rows, 700U);
  EXPECT_EQ(all->rows.scalars.size() + all->salvage.missing_rows, 4718U);
  EXPECT_EQ(all->rows.scalars.back().value, 4717.0);
}

}  // namespace
}  // namespace telltale::store
