// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <limits>
#include <random>
#include <tuple>

#include "store/folder.h"
#include "store/store_testing.h"

namespace telltale::store {
namespace {

/// What identifies a delivered record, with the order it was delivered in.
using Seen = std::tuple<std::int64_t, std::string, int, std::uint64_t, double>;

Seen Describe(const Cursor& cursor, const OrderedRecord& record) {
  const auto id = static_cast<int>(record.table);
  const std::string& writer = cursor.writers()[record.writer];
  if (const auto* row = record.As<format::ScalarRow>()) {
    return {record.ord_ns, writer, id, row->seq, row->value};
  }
  const auto* row = record.As<format::MetricRow>();
  return {record.ord_ns, writer, id, row->seq, row->value};
}

class CursorTest : public ::testing::Test {
 protected:
  void SetUp() override { MakeRun(run_, true); }

  std::unique_ptr<Writer> Open(const std::string& name) {
    WriterOptions options;
    options.clock = &clock_;
    auto writer = Writer::Open(run_ / name, name, options);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    return std::move(writer).value();
  }
  std::unique_ptr<Cursor> NewCursor() {
    reader_ = RunReader::Open(run_).value();
    return reader_->NewCursor().value();
  }
  static void Poll(Cursor* cursor, std::size_t max_rows, std::vector<Seen>* seen) {
    std::vector<OrderedRecord> records;
    const Status status = cursor->Next(max_rows, &records);
    ASSERT_TRUE(status.ok()) << status.message();
    for (const OrderedRecord& record : records) seen->push_back(Describe(*cursor, record));
  }
  static std::vector<Seen> PollAll(Cursor* cursor) {
    std::vector<Seen> seen;
    std::size_t before = 0;
    do {
      before = seen.size();
      Poll(cursor, 1000, &seen);
    } while (seen.size() > before);
    return seen;
  }

  TempFolder temp_;
  std::filesystem::path run_ = temp_.path() / "run";
  FakeClock clock_;
  std::unique_ptr<RunReader> reader_;
};

TEST_F(CursorTest, DeliversBehindTheSlowestWriter) {
  const auto a = Open("agent-a");
  const auto b = Open("agent-b");
  ASSERT_TRUE(a->Append(Scalars(0, 10)).ok());  // ord_ns 0..90, watermark 100.
  ASSERT_TRUE(b->Append(Scalars(0, 3)).ok());   // ord_ns 0..20, watermark 30.
  const auto cursor = NewCursor();
  std::vector<Seen> seen = PollAll(cursor.get());
  EXPECT_EQ(seen.size(), 6U);
  EXPECT_EQ(cursor->frontier_ns(), 30);
  EXPECT_EQ(seen[0], Seen(0, "agent-a", 4, 1, 0.0));
  EXPECT_EQ(seen[1], Seen(0, "agent-b", 4, 1, 0.0));
  EXPECT_FALSE(cursor->AtEnd());
  format::Batch quiet;
  quiet.watermark_ns = 60;
  ASSERT_TRUE(b->Append(quiet).ok());
  EXPECT_EQ(PollAll(cursor.get()).size(), 3U);
  ASSERT_TRUE(b->Close(true).ok());
  EXPECT_EQ(PollAll(cursor.get()).size(), 4U);
  EXPECT_FALSE(cursor->AtEnd());
  ASSERT_TRUE(a->Close(true).ok());
  EXPECT_TRUE(PollAll(cursor.get()).empty());
  EXPECT_TRUE(cursor->AtEnd());
}

TEST_F(CursorTest, SmallPiecesGiveTheSameOrder) {
  const auto a = Open("agent-a");
  ASSERT_TRUE(a->Append(Scalars(0, 50)).ok());
  ASSERT_TRUE(a->Close(true).ok());
  const auto whole = NewCursor();
  const auto pieces = NewCursor();
  const std::vector<Seen> expected = PollAll(whole.get());
  std::vector<Seen> seen;
  for (int i = 0; i < 20; ++i) {
    const std::size_t before = seen.size();
    Poll(pieces.get(), 3, &seen);
    EXPECT_LE(seen.size() - before, 3U);
    // Everything below the frontier, and nothing at or above it but what it names.
    for (const Seen& one : seen) EXPECT_LT(std::get<0>(one), pieces->frontier_ns() + 1);
  }
  EXPECT_EQ(seen, expected);
}

TEST_F(CursorTest, MasksAndLeavesTheWatcherOut) {
  const auto a = Open("agent-a");
  const auto watch = Open("watch");
  format::Batch batch = Scalars(0, 2);
  batch.rows.metrics.push_back({.ord_ns = 5, .name = "cpu.user", .value = 1});
  ASSERT_TRUE(a->Append(batch).ok());
  ASSERT_TRUE(watch->Append(Scalars(0, 2)).ok());
  ASSERT_TRUE(a->Close(true).ok());
  reader_ = RunReader::Open(run_).value();
  const auto cursor = reader_->NewCursor({.table_mask = MaskOf(format::TableId::kMetrics)}).value();
  EXPECT_EQ(PollAll(cursor.get()), (std::vector<Seen>{{5, "agent-a", 1, 1, 1.0}}));
  EXPECT_TRUE(cursor->AtEnd());
}

TEST_F(CursorTest, RowsWithNumbersThatCannotBeAreLeftOutAndCounted) {
  for (const bool sealed : {false, true}) {
    SCOPED_TRACE(sealed);
    const auto a = Open(sealed ? "agent-sealed" : "agent-a");
    format::Batch batch = Scalars(0, 5);
    batch.rows.scalars[1].step = std::numeric_limits<std::int64_t>::min();
    batch.rows.scalars[3].rank = -2;
    batch.rows.steps.push_back({.ord_ns = 5, .time_ns = 5, .duration_ns = -1});
    ASSERT_TRUE(a->Append(batch).ok());
    if (sealed) {
      ASSERT_TRUE(a->Close(true).ok());
    }
    const auto cursor = NewCursor();
    std::vector<double> values;
    for (const Seen& one : PollAll(cursor.get())) {
      if (std::get<1>(one) == (sealed ? "agent-sealed" : "agent-a"))
        values.push_back(std::get<4>(one));
    }
    EXPECT_EQ(values, (std::vector<double>{0, 2, 4}));
    EXPECT_EQ(cursor->salvage().impossible_rows, sealed ? 6U : 3U);
    EXPECT_EQ(cursor->salvage().missing_rows, 0U);
    const std::vector<std::string>& notes = cursor->salvage().notes;
    EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
      return note.ends_with(
          "row 2 of table scalars is left out: step = -9223372036854775808 cannot be");
    }));
  }
}

TEST_F(CursorTest, AReaderThatSleptFindsDeletedJournalsInSegments) {
  const auto a = Open("agent-a");
  ASSERT_TRUE(a->Append(Scalars(0, 5)).ok());
  const auto cursor = NewCursor();
  EXPECT_EQ(PollAll(cursor.get()).size(), 5U);
  for (int i = 1; i <= 4; ++i) {
    ASSERT_TRUE(a->Append(Scalars(i * 5, 5)).ok());
    const std::uint64_t sealed = a->counters().segment_bytes;
    clock_.Advance(200'000'000'000);
    ASSERT_TRUE(TickUntil(a.get(), [&] { return a->counters().segment_bytes > sealed; }));
    clock_.Advance(100'000'000'000);
    ASSERT_TRUE(
        TickUntil(a.get(), [&] { return ListFolder(run_ / "agent-a")->journals.size() == 1; }));
  }
  const std::vector<Seen> seen = PollAll(cursor.get());
  ASSERT_EQ(seen.size(), 20U);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(std::get<4>(seen[i]), i + 5);
  EXPECT_FALSE(cursor->salvage().any());
}

TEST_F(CursorTest, TheFirstRowsWaitForNoSegmentFurtherOn) {
  const auto a = Open("agent-a");
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(a->Append(Scalars(i * 5, 5)).ok());
    const std::uint64_t sealed = a->counters().segment_bytes;
    clock_.Advance(200'000'000'000);
    ASSERT_TRUE(TickUntil(a.get(), [&] { return a->counters().segment_bytes > sealed; }));
  }
  ASSERT_TRUE(a->Close(true).ok());
  // Not even the head of the last one is looked at before its turn.
  const auto listing = ListFolder(run_ / "agent-a");
  ASSERT_TRUE(listing.ok());
  ASSERT_GE(listing->segments.size(), 3U);
  std::ofstream(run_ / "agent-a" / listing->segments.back().file, std::ios::trunc) << "no segment";
  const auto cursor = NewCursor();
  std::vector<Seen> seen;
  Poll(cursor.get(), 1, &seen);
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(std::get<4>(seen[0]), 0);
  EXPECT_EQ(cursor->salvage().unreadable_files, 0U);
  const std::vector<Seen> rest = PollAll(cursor.get());
  EXPECT_GE(rest.size(), 9U);
  EXPECT_TRUE(std::is_sorted(rest.begin(), rest.end()));
  EXPECT_EQ(cursor->salvage().unreadable_files, 1U);
}

TEST_F(CursorTest, AWriterGivenUpOnIsReadmittedAndReplayed) {
  const auto a = Open("agent-a");
  const auto b = Open("agent-b");
  ASSERT_TRUE(a->Append(Scalars(0, 10)).ok());
  ASSERT_TRUE(b->Append(Scalars(0, 3)).ok());
  const auto live = NewCursor();
  std::vector<Seen> seen = PollAll(live.get());
  const auto b_index = static_cast<std::uint32_t>(
      std::find(live->writers().begin(), live->writers().end(), "agent-b") -
      live->writers().begin());
  live->GiveUpOn(b_index);
  for (const Seen& one : PollAll(live.get())) seen.push_back(one);
  EXPECT_EQ(live->frontier_ns(), 100);
  EXPECT_EQ(seen.size(), 13U);
  ASSERT_TRUE(a->Append(Scalars(10, 10)).ok());
  for (const Seen& one : PollAll(live.get())) seen.push_back(one);
  ASSERT_TRUE(b->Append(Scalars(3, 30)).ok());  // ord_ns 30..320, 17 of them below 200.
  ASSERT_TRUE(a->Append(Scalars(20, 20)).ok());
  for (const Seen& one : PollAll(live.get())) seen.push_back(one);
  const std::vector<Admission> admissions = live->TakeAdmissions();
  ASSERT_EQ(admissions.size(), 1U);
  EXPECT_EQ(admissions[0].writer, "agent-b");
  EXPECT_EQ(admissions[0].from_ns, 30);
  EXPECT_EQ(admissions[0].at_ns, 200);
  ASSERT_TRUE(a->Close(true).ok());
  ASSERT_TRUE(b->Close(true).ok());
  for (const Seen& one : PollAll(live.get())) seen.push_back(one);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));

  const auto replay = NewCursor();
  for (const Admission& one : admissions) replay->Readmit(AdmissionFromJson(ToJson(one)).value());
  EXPECT_EQ(PollAll(replay.get()), seen);
}

TEST_F(CursorTest, GivingUpOnAllEndsALostRun) {
  const auto a = Open("agent-a");
  const auto b = Open("agent-b");
  ASSERT_TRUE(a->Append(Scalars(0, 10)).ok());
  ASSERT_TRUE(b->Append(Scalars(0, 3)).ok());
  const auto cursor = NewCursor();
  EXPECT_EQ(PollAll(cursor.get()).size(), 6U);
  cursor->GiveUpOn(0);
  cursor->GiveUpOn(1);
  EXPECT_EQ(PollAll(cursor.get()).size(), 7U);
  EXPECT_TRUE(cursor->AtEnd());
  EXPECT_TRUE(cursor->TakeAdmissions().empty());
}

/// Writers that append at random moments, rotate, seal, crash and come late; a cursor that polls at
/// random moments: what it delivers is what a cursor delivers afterwards.
class LiveEqualsAfterwards : public CursorTest, public ::testing::WithParamInterface<int> {};

TEST_P(LiveEqualsAfterwards, InOrderAndEachOnce) {
  std::mt19937 random(static_cast<std::uint32_t>(GetParam()));
  const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  const std::vector<std::string> names{"agent-c", "agent-a", "agent-b"};
  std::vector<std::unique_ptr<Writer>> writers(3);
  std::vector<int> appended(3);
  writers[0] = Open(names[0]);
  const auto live = NewCursor();
  std::vector<Seen> seen;
  std::vector<int> given_up(3);
  for (int turn = 0; turn < 400; ++turn) {
    clock_.Advance(static_cast<std::int64_t>(random() % 3'000'000'000));
    const std::int64_t now = clock_.monotonic_ns;
    for (std::size_t i = 0; i < 3; ++i) {
      if (writers[i] == nullptr && (turn > 20 + 60 * static_cast<int>(i) || i == 0) && chance(30)) {
        writers[i] = Open(names[i]);
      }
      if (writers[i] == nullptr) continue;
      if (chance(40)) {
        format::Batch batch;
        const int rows = static_cast<int>(random() % 20);
        for (int row = 0; row < rows; ++row) {
          const std::int64_t at = now - static_cast<std::int64_t>(random() % 5'000'000'000);
          const double value = appended[i]++;
          if (chance(50)) {
            batch.rows.scalars.push_back({.ord_ns = at, .name = "s", .value = value});
          } else {
            batch.rows.metrics.push_back({.ord_ns = at, .name = "m", .value = value});
          }
        }
        batch.watermark_ns = now - 1'000'000'000;
        ASSERT_TRUE(writers[i]->Append(std::move(batch)).ok());
      }
      if (chance(60)) {
        ASSERT_TRUE(writers[i]->Tick().ok());
      }
      if (chance(2)) writers[i].reset();  // As after a crash.
    }
    if (chance(50)) Poll(live.get(), 1 + random() % 200, &seen);
    if (chance(3)) {
      // Only after Next has nothing more, as the contract says.
      for (const Seen& one : PollAll(live.get())) seen.push_back(one);
      if (!live->writers().empty()) {
        live->GiveUpOn(static_cast<std::uint32_t>(random() % live->writers().size()));
      }
    }
  }
  for (std::size_t i = 0; i < 3; ++i) {
    if (writers[i] == nullptr) writers[i] = Open(names[i]);
    ASSERT_TRUE(writers[i]->Close(true).ok());
  }
  for (const Seen& one : PollAll(live.get())) seen.push_back(one);
  EXPECT_TRUE(live->AtEnd());
  EXPECT_FALSE(live->salvage().any()) << live->salvage().notes.front();

  std::size_t total = 0;
  for (const int n : appended) total += static_cast<std::size_t>(n);
  EXPECT_EQ(seen.size(), total);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end(), [](const Seen& a, const Seen& b) {
    return std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a), std::get<3>(a)) <
           std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b), std::get<3>(b));
  }));
  const auto replay = NewCursor();
  for (const Admission& one : live->TakeAdmissions()) {
    replay->Readmit(AdmissionFromJson(ToJson(one)).value());
  }
  EXPECT_EQ(PollAll(replay.get()), seen);
  EXPECT_TRUE(replay->AtEnd());
}

INSTANTIATE_TEST_SUITE_P(Seeds, LiveEqualsAfterwards, ::testing::Range(0, 20));

TEST_F(CursorTest, ReadingAheadGivesTheSameInTheSameOrder) {
  std::size_t rows = 0;
  for (const char* name : {"agent-a", "agent-b"}) {
    WriterOptions options;
    options.clock = &clock_;
    options.seal_bytes = 64U << 10;
    auto writer = Writer::Open(run_ / name, name, options).value();
    for (int i = 0; i < 400; ++i) {
      ASSERT_TRUE(writer->Append(Scalars(i * 100, 100)).ok());
      ASSERT_TRUE(writer->Tick().ok());
      rows += 100;
    }
    ASSERT_TRUE(writer->Close(true).ok());
  }
  MakeRun(run_, false);
  reader_ = RunReader::Open(run_).value();
  CursorOptions options;
  const auto alone = reader_->NewCursor(options).value();
  options.read_ahead = true;
  const auto ahead = reader_->NewCursor(options).value();
  const std::vector<Seen> seen = PollAll(alone.get());
  EXPECT_EQ(seen.size(), rows);
  EXPECT_EQ(seen, PollAll(ahead.get()));
  EXPECT_TRUE(ahead->AtEnd());
  EXPECT_FALSE(ahead->salvage().any());
}

}  // namespace
}  // namespace telltale::store
