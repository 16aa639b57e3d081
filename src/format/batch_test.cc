// SPDX-License-Identifier: Apache-2.0
#include "format/batch.h"

#include <gtest/gtest.h>

#include "format/batch_encoder.h"
#include "format/wire.h"

namespace telltale::format {
namespace {

Batch Sample() {
  Batch batch;
  batch.watermark_ns = 77;
  batch.positions.push_back({{1, 2, 3}, 1, 4096});
  for (int i = 0; i < 3; ++i) {
    StepRow& step = batch.rows.steps.emplace_back();
    step.seq = 5 + i;
    step.ord_ns = 100 + i;
    step.step = i;
    step.mode = "TRAIN";
    step.skipped = i == 1;
  }
  ScalarRow& scalar = batch.rows.scalars.emplace_back();
  scalar.seq = 9;
  scalar.name = "loss";
  scalar.value = 2.25;
  return batch;
}

TEST(BatchTest, RoundTrips) {
  std::string bytes;
  EncodeBatch(Sample(), &bytes);
  StringPool pool;
  Batch out;
  ASSERT_TRUE(DecodeBatch(bytes, &pool, &out).ok());
  EXPECT_EQ(out.watermark_ns, 77);
  EXPECT_EQ(out.positions, Sample().positions);
  ASSERT_EQ(out.rows.steps.size(), 3U);
  EXPECT_EQ(out.rows.steps[2].seq, 7U);
  EXPECT_EQ(out.rows.steps[2].step, 2);
  EXPECT_TRUE(out.rows.steps[1].skipped);
  EXPECT_EQ(out.rows.steps[0].mode, "TRAIN");
  ASSERT_EQ(out.rows.scalars.size(), 1U);
  EXPECT_EQ(out.rows.scalars[0].name, "loss");
  EXPECT_EQ(out.rows.scalars[0].value, 2.25);
}

TEST(BatchTest, TextsAreToldApartWhereverTheyLie) {
  const std::string one = "a name and more";
  const std::string copy = one;
  Batch batch;
  for (int i = 0; i < 3000; ++i) {
    ScalarRow& row = batch.rows.scalars.emplace_back();
    row.seq = static_cast<std::uint64_t>(i);
    row.name = std::string_view(i % 2 == 0 ? one : copy).substr(0, static_cast<std::size_t>(i % 7));
  }
  std::string bytes;
  EncodeBatch(batch, &bytes);
  StringPool pool;
  Batch out;
  ASSERT_TRUE(DecodeBatch(bytes, &pool, &out).ok());
  ASSERT_EQ(out.rows.scalars.size(), batch.rows.scalars.size());
  for (std::size_t i = 0; i < out.rows.scalars.size(); ++i) {
    EXPECT_EQ(out.rows.scalars[i].name, batch.rows.scalars[i].name) << i;
  }
  EXPECT_LT(bytes.size(), 3000U * 60) << "each text is there once";
}

TEST(BatchTest, AnEncoderForgetsTheTextsOfTheBatchBefore) {
  BatchEncoder encoder;
  for (const int first : {0, 500, 0}) {
    std::vector<std::string> names;
    for (int i = 0; i < 1000; ++i) names.push_back("name " + std::to_string(first + i));
    Batch batch;
    for (const std::string& name : names) {
      batch.rows.scalars.push_back({.seq = 1 + batch.rows.scalars.size(), .name = name});
    }
    std::string bytes, alone;
    encoder.Encode(batch, &bytes);
    EncodeBatch(batch, &alone);
    EXPECT_EQ(bytes, alone);
    StringPool pool;
    Batch out;
    ASSERT_TRUE(DecodeBatch(bytes, &pool, &out).ok());
    ASSERT_EQ(out.rows.scalars.size(), names.size());
    for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(out.rows.scalars[i].name, names[i]);
  }
}

TEST(BatchTest, EveryTruncationIsAnErrorAndNeverReadsBeyond) {
  std::string bytes;
  EncodeBatch(Sample(), &bytes);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const std::string cut = bytes.substr(0, n);
    StringPool pool;
    Batch out;
    EXPECT_EQ(DecodeBatch(cut, &pool, &out).code(), Code::kUnusable) << n;
  }
}

TEST(BatchTest, EveryFlippedByteIsSurvived) {
  std::string bytes;
  EncodeBatch(Sample(), &bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string hurt = bytes;
      hurt[i] = static_cast<char>(hurt[i] ^ flip);
      StringPool pool;
      Batch out;
      (void)DecodeBatch(hurt, &pool, &out);  // The sanitizer presets are the judge.
    }
  }
}

/// A batch with a group of slices of `rows` rows, a column of a later version with a byte for each.
std::string OneByteARow(std::uint32_t rows, int groups = 1) {
  std::string bytes;
  Put(&bytes, static_cast<std::uint8_t>(JournalRecord::kBatch));
  Put(&bytes, std::int64_t{0});
  Put(&bytes, std::uint16_t{0});
  Put(&bytes, std::uint32_t{1});  // The text of those rows that say none.
  PutString(&bytes, "");
  Put(&bytes, static_cast<std::uint8_t>(groups));
  for (int i = 0; i < groups; ++i) {
    Put(&bytes, static_cast<std::uint8_t>(TableId::kSlices));
    Put(&bytes, std::uint64_t{1});
    Put(&bytes, rows);
    Put(&bytes, std::uint8_t{1});
    Put(&bytes, std::uint8_t{200});
    Put(&bytes, static_cast<std::uint8_t>(ColumnType::kBool));
    bytes.append(rows, '\0');
  }
  return bytes;
}

TEST(BatchTest, AByteARowAsksForNoMoreMemoryThanARecordOfOursMay) {
  StringPool pool;
  Batch most;
  ASSERT_TRUE(DecodeBatch(OneByteARow(kMaxBatchRows), &pool, &most).ok());
  EXPECT_EQ(most.rows.slices.size(), kMaxBatchRows);
  for (const std::string& bytes : {OneByteARow(kMaxBatchRows + 1), OneByteARow(20U << 20),
                                   OneByteARow(kMaxBatchRows / 2, 3)}) {
    Batch out;
    EXPECT_EQ(DecodeBatch(bytes, &pool, &out).code(), Code::kUnusable);
    EXPECT_LE(out.rows.slices.capacity(), kMaxBatchRows);
  }
}

TEST(BatchTest, UnknownTablesAndColumnsAreSkipped) {
  std::string bytes;
  Batch one;
  one.rows.scalars.push_back({.seq = 1, .name = "lr", .value = 0.1});
  EncodeBatch(one, &bytes);
  std::string future = bytes;
  // The group's table byte follows kind, watermark, positions, the two strings and the group count.
  const std::size_t table_at = 1 + 8 + 2 + 4 + (4 + 0) + (4 + 2) + 1;
  ASSERT_EQ(future[table_at], static_cast<char>(TableId::kScalars));
  future[table_at] = 99;
  StringPool pool;
  Batch out;
  ASSERT_TRUE(DecodeBatch(future, &pool, &out).ok());
  EXPECT_TRUE(out.rows.scalars.empty());

  future = bytes;
  const std::size_t column_at = table_at + 1 + 8 + 4 + 1;
  future[column_at] = static_cast<char>(200);  // A column of a later version.
  ASSERT_TRUE(DecodeBatch(future, &pool, &out).ok());
  ASSERT_EQ(out.rows.scalars.size(), 1U);
  EXPECT_EQ(out.rows.scalars[0].ord_ns, 0);
  EXPECT_EQ(out.rows.scalars[0].value, 0.1);
}

}  // namespace
}  // namespace telltale::format
