// SPDX-License-Identifier: Apache-2.0
#include "rules/series.h"

#include <gtest/gtest.h>

#include <string>

namespace telltale::rules {
namespace {

store::OrderedRecord RecordOf(const format::StatisticRow& row) {
  return {0, 0, format::StatisticRow::kTable, &row};
}

format::StatisticRow Statistic(std::string_view name, std::int32_t rank = 0) {
  format::StatisticRow row;
  row.name = name;
  row.collection = "weights";
  row.mode = "TRAIN";
  row.rank = rank;
  return row;
}

TEST(SeriesTest, EachTensorOfEachProcessHasOneNumber) {
  SeriesTable table;
  const auto a = Statistic("a");
  const auto b = Statistic("b");
  const auto b1 = Statistic("b", 1);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(table.Find(RecordOf(a))->id, 0U);
    EXPECT_EQ(table.Find(RecordOf(b))->id, 1U);
    EXPECT_EQ(table.Find(RecordOf(b1))->id, 2U);
  }
  EXPECT_EQ(table.Find(RecordOf(b1))->id, 2U);  // Not in the usual order.
  EXPECT_EQ(table.Find(RecordOf(b))->id, 1U);
  EXPECT_EQ(table.size(), 3U);
  EXPECT_EQ(table[2].rank, 1);
}

TEST(SeriesTest, TablesAreApartAndStepsHaveNone) {
  SeriesTable table;
  const auto a = Statistic("loss");
  format::ScalarRow scalar;
  scalar.name = "loss";
  scalar.mode = "TRAIN";
  const format::StepRow step;
  EXPECT_EQ(table.Find(RecordOf(a))->id, 0U);
  EXPECT_EQ(table.Find({0, 0, format::ScalarRow::kTable, &scalar})->id, 1U);
  EXPECT_EQ(table.Find({0, 0, format::StepRow::kTable, &step}), nullptr);
  EXPECT_EQ(table.refused(), 0U);
}

TEST(SeriesTest, TooManyAreRefusedAndCounted) {
  SeriesTable table;
  for (std::size_t i = 0; i < SeriesTable::kMaxSeries; ++i) {
    const std::string name = std::to_string(i);
    ASSERT_NE(table.Find(RecordOf(Statistic(name))), nullptr);
  }
  EXPECT_EQ(table.Find(RecordOf(Statistic("one more"))), nullptr);
  EXPECT_EQ(table.refused(), 1U);
  EXPECT_EQ(table.Find(RecordOf(Statistic("7")))->id, 7U);
}

}  // namespace
}  // namespace telltale::rules
