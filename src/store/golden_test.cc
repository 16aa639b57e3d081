// SPDX-License-Identifier: Apache-2.0
// The pages in docs/formats and the files in tests/golden/v1 hold for good: what the pages show is
// encoded byte for byte, what version 1 wrote is read back.
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "store/folder.h"
#include "store/journal_format.h"
#include "store/journal_reader.h"
#include "store/journal_writer.h"
#include "store/segment.h"
#include "store/store_testing.h"
#include "store/verify.h"

namespace telltale::store {
namespace {

const std::filesystem::path kSource = TELLTALE_SOURCE_DIR;
const std::filesystem::path kGolden = kSource / "tests/golden/v1";

/// The fenced block that follows `heading` in a page.
std::string Block(const std::string& page, const std::string& heading) {
  const Result<std::string> read = ReadWholeFile(kSource / "docs/formats" / page);
  const std::string text = read.ok() ? *read : std::string();
  std::size_t at = text.find(heading);
  if (at == std::string::npos) return {};
  at = text.find("```", at);
  at = text.find('\n', at) + 1;
  return text.substr(at, text.find("```", at) - at);
}

/// Lines of "offset  hex bytes  | text".
std::string FromHex(const std::string& dump) {
  std::string bytes;
  std::istringstream lines(dump);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('|')));
    std::string word;
    words >> word;  // The offset.
    while (words >> word) bytes += static_cast<char>(std::stoi(word, nullptr, 16));
  }
  return bytes;
}

std::string ToHexDump(const std::string& bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 16) {
    char line[128];
    int n = std::snprintf(line, sizeof line, "%04zx ", i);
    std::string text;
    for (std::size_t k = i; k < i + 16; ++k) {
      if (k >= bytes.size()) {
        n += std::snprintf(line + n, sizeof line - static_cast<std::size_t>(n), "   ");
        continue;
      }
      const auto byte = static_cast<unsigned char>(bytes[k]);
      n += std::snprintf(line + n, sizeof line - static_cast<std::size_t>(n), " %02x", byte);
      text += std::isprint(byte) != 0 && byte != '|' && byte != '`' ? static_cast<char>(byte) : '.';
    }
    out += std::string(line) + "  | " + text + "\n";
  }
  return out;
}

NextSeqs Seqs(std::uint64_t scalars) {
  NextSeqs seqs = FirstSeqs();
  seqs[static_cast<std::size_t>(format::TableId::kScalars)] = scalars;
  return seqs;
}

/// The journal of the page: one scalar, a segment of an earlier journal, the end.
std::string ExampleJournal() {
  std::string bytes;
  const auto add = [&](const std::string& record) {
    AppendFragments(record, bytes.size(), &bytes);
  };
  add(Encode(JournalHeader{.writer = "agent-n1",
                           .number = 2,
                           .monotonic_to_run_ns = 1'700'000'000'000'000'000,
                           .boot_id = "b",
                           .created_ns = 1'700'000'001'000'000'000,
                           .watermark_ns = 1'700'000'000'900'000'000,
                           .next_seq = Seqs(7)}));
  SealedRecord sealed{.table = 4,
                      .journal = 1,
                      .segments_of_journal = 1,
                      .first_seq = 1,
                      .last_seq = 6,
                      .rows = 6,
                      .file = SegmentFileName(format::TableId::kScalars, 1, 6),
                      .bytes = 2100,
                      .watermark_ns = 1'700'000'000'900'000'000};
  for (std::size_t i = 0; i < 16; ++i) sealed.digest[i] = static_cast<std::uint8_t>(i * 17);
  add(Encode(sealed));
  format::Batch batch{.watermark_ns = 1'700'000'001'200'000'000};
  batch.positions.push_back({{0xaa, 0xbb}, 1, 640});
  batch.rows.scalars.push_back({.seq = 7,
                                .ord_ns = 1'700'000'001'100'000'000,
                                .time_ns = 1'700'000'001'100'000'000,
                                .name = "loss",
                                .value = 0.5,
                                .step = 3,
                                .mode = "TRAIN",
                                .rank = 0,
                                .pid = 4711,
                                .attempt = 1});
  std::string encoded;
  format::EncodeBatch(batch, &encoded);
  add(encoded);
  add(Encode(EndRecord{.watermark_ns = 1'700'000'001'200'000'000,
                       .ended_ns = 1'700'000'001'300'000'000,
                       .next_seq = Seqs(8)}));
  return bytes;
}

TEST(GoldenTest, TheJournalPageShowsWhatIsWritten) {
  const std::string expected = FromHex(Block("journal.md", "## Worked example"));
  EXPECT_EQ(ToHexDump(ExampleJournal()), ToHexDump(expected));
}

TEST(GoldenTest, TheJournalPageIsReadBack) {
  const TempFolder temp;
  const std::filesystem::path path = temp.path() / JournalFileName(2);
  std::ofstream(path, std::ios::binary) << FromHex(Block("journal.md", "## Worked example"));
  auto file = JournalFile::Open(path).value();
  StringPool pool;
  JournalChunk chunk;
  ASSERT_TRUE(file->Read(true, 1 << 20, &pool, &chunk).ok());
  EXPECT_TRUE(file->TakeDamage().empty());
  EXPECT_EQ(chunk.records, 4U);
  ASSERT_TRUE(chunk.header && chunk.end);
  EXPECT_EQ(chunk.header->writer, "agent-n1");
  EXPECT_EQ(chunk.header->next_seq[4], 7U);
  ASSERT_EQ(chunk.sealed.size(), 1U);
  EXPECT_EQ(chunk.sealed[0].file, "scalars-000000000001-000000000006.parquet");
  ASSERT_EQ(chunk.batch.rows.scalars.size(), 1U);
  EXPECT_EQ(chunk.batch.rows.scalars[0].name, "loss");
  EXPECT_EQ(chunk.batch.rows.scalars[0].value, 0.5);
}

TEST(GoldenTest, TheRunDirectoryPageShowsWhatIsWritten) {
  const TempFolder temp;
  RunInfo info{.id = "20261120-1504-train",
               .name = "train",
               .command = {"python", "train.py"},
               .cwd = "/home/ada/digits",
               .host = "n1",
               .boot_id = "0b7d4f6e-6a0f-4d5a-9f5e-1d9c2f6f3a11",
               .pid_namespace = "pid:[4026531836]",
               .telltale_version = "0.1.0",
               .supervisor_pid = 4700,
               .supervisor_start_ticks = 881234,
               .created_ns = 1'700'000'000'000'000'000,
               .interval_ms = 500,
               .overhead_budget = 0.01,
               .finished = true};
  info.attempts.push_back({.number = 1,
                           .start_ns = 1'700'000'000'100'000'000,
                           .end_ns = 1'700'000'060'000'000'000,
                           .pid = 4711,
                           .pid_start_ticks = 881299,
                           .exit_code = 0});
  ASSERT_TRUE(WriteRunInfo(temp.path(), info).ok());
  EXPECT_EQ(ReadWholeFile(temp.path() / "run.json").value(),
            Block("run-directory.md", "## Worked example"));
}

/// How the run in tests/golden/v1 was made; kept to make the one of a version 2.
TEST(GoldenTest, DISABLED_MakesARun) {
  const char* const to = std::getenv("TELLTALE_MAKE_GOLDEN");
  ASSERT_NE(to, nullptr) << "TELLTALE_MAKE_GOLDEN=FOLDER is missing";
  const std::filesystem::path run = to;
  MakeRun(run);
  FakeClock clock;
  WriterOptions options;
  options.clock = &clock;
  auto writer = Writer::Open(run / "agent-n1", "agent-n1", options).value();
  format::Batch batch = Scalars(0, 3);
  batch.rows.events.push_back({.ord_ns = 5, .kind = "agent.start", .message = "a, \"b\"\nc"});
  batch.positions.push_back({{1, 2, 3}, 4, 640});
  ASSERT_TRUE(writer->Append(batch).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  writer = Writer::Open(run / "agent-n1", "agent-n1", options).value();
  ASSERT_TRUE(writer->Append(Scalars(3, 2)).ok());
  ASSERT_TRUE(writer->Close(false).ok());
  std::ofstream(run / "agent-n1.hex") << ToHexDump(ExampleJournal());
}

TEST(GoldenTest, ARunOfVersion1IsReadBack) {
  const auto all = ReadEverything(kGolden / "run");
  ExpectScalars(all->rows, 5);
  ASSERT_EQ(all->rows.events.size(), 1U);
  EXPECT_EQ(all->rows.events[0].message, "a, \"b\"\nc");
  EXPECT_FALSE(all->salvage.any());
  const auto report = Verify(kGolden / "run");
  ASSERT_TRUE(report.ok());
  // It was left as by a crash after its second attempt began: only the end record is missing.
  ASSERT_EQ(report->problems.size(), 1U);
  EXPECT_NE(report->problems[0].what.find("no end record"), std::string::npos);
}

TEST(GoldenTest, TheSegmentPageNamesTheDigestOfVersion1) {
  const std::filesystem::path file =
      kGolden / "run/agent-n1" / SegmentFileName(format::TableId::kScalars, 1, 3);
  const std::string block = Block("segments.md", "## Worked example");
  const auto digest = DigestFile(file);
  ASSERT_TRUE(digest.ok());
  EXPECT_NE(block.find(ToHex(digest->digest)), std::string::npos) << ToHex(digest->digest);
  EXPECT_NE(block.find(std::to_string(digest->bytes) + " bytes"), std::string::npos)
      << digest->bytes;
  const auto info = ReadSegmentInfo(file);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->writer, "agent-n1");
  EXPECT_EQ(info->journal, 1U);
  EXPECT_EQ(info->rows, 3U);
  EXPECT_EQ(info->watermark_after_ns, 30);
}

}  // namespace
}  // namespace telltale::store
