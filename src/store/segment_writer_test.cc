// SPDX-License-Identifier: Apache-2.0
// A segment is the same however its rows come, and holds them.
#include "store/segment_writer.h"

#include <algorithm>
#include <random>
#include <string>

#include "store/store_testing.h"

namespace telltale::store {
namespace {

constexpr std::size_t kRowGroupRows = 131'072;  // docs/formats/segments.md.

SegmentInfo StepsInfo(const format::Rows& rows) {
  return {.writer = "agent-a",
          .table = format::TableId::kSteps,
          .journal = 1,
          .first_seq = rows.steps.front().seq,
          .last_seq = rows.steps.back().seq,
          .watermark_after_ns = 7};
}

/// Numbers, texts (again and again, empty ones, new ones in the second row group) and bools.
format::Rows Steps(std::size_t n, StringPool* pool) {
  format::Rows rows;
  std::mt19937 random(1);
  for (std::size_t i = 0; i < n; ++i) {
    format::StepRow& row = rows.steps.emplace_back();
    row.seq = i + 1;
    row.ord_ns = static_cast<std::int64_t>(i);
    row.step = static_cast<std::int64_t>(i / 3);
    row.mode = i % 5 == 0 ? std::string_view() : pool->Intern("mode" + std::to_string(i / 40'000));
    row.rank = static_cast<std::int32_t>(i % 7) - 1;
    row.skipped = random() % 3 == 0;
    row.batch_size = static_cast<decltype(row.batch_size)>(random() % 1000);
  }
  return rows;
}

bool Same(const format::StepRow& a, const format::StepRow& b) {
  bool same = true;
  format::ForEachColumn<format::StepRow>(
      [&](const format::ColumnDesc&, auto member) { same = same && a.*member == b.*member; });
  return same;
}

TEST(SegmentWriterTest, PortionsMakeTheSameFileAsAllAtOnce) {
  const TempFolder temp;
  StringPool pool;
  // Ends within a row group, and with one.
  for (const std::size_t n : {2 * kRowGroupRows + 1000, kRowGroupRows}) {
    const format::Rows rows = Steps(n, &pool);
    SegmentInfo info = StepsInfo(rows);
    ASSERT_TRUE(WriteSegment(temp.path() / "whole", rows, &info).ok());
    SegmentWriter writer(temp.path() / "portions", format::TableId::kSteps);
    std::mt19937 random(2);
    format::Rows portion;
    for (std::size_t at = 0; at < n;) {
      const std::size_t end = std::min<std::size_t>(n, at + random() % 20'000);
      portion.steps.assign(rows.steps.begin() + static_cast<std::ptrdiff_t>(at),
                           rows.steps.begin() + static_cast<std::ptrdiff_t>(end));
      ASSERT_TRUE(writer.Append(portion).ok());
      at = end;
    }
    SegmentInfo same = StepsInfo(rows);
    ASSERT_TRUE(writer.Finish(&same).ok());
    EXPECT_EQ(same.rows, n);
    EXPECT_EQ(DigestFile(temp.path() / "portions")->digest,
              DigestFile(temp.path() / "whole")->digest);

    format::Rows read;
    const auto found = ReadSegment(temp.path() / "portions", &pool, &read);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->last_seq, n);
    EXPECT_EQ(found->watermark_after_ns, 7);
    ASSERT_TRUE(std::ranges::equal(read.steps, rows.steps, Same));
  }
}

TEST(SegmentWriterTest, AFolderThatIsGoneIsAnErrorOfTheDisk) {
  const TempFolder temp;
  StringPool pool;
  const format::Rows rows = Steps(3, &pool);
  SegmentInfo info = StepsInfo(rows);
  const Status status = WriteSegment(temp.path() / "none" / "file", rows, &info);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("No such file"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace telltale::store
