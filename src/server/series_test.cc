// SPDX-License-Identifier: Apache-2.0
#include "server/series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"
#include "server/run_view.h"

namespace telltale::server {
namespace {

constexpr std::int64_t kStep = 1000;
/// No time of a run is farther from its begin.
constexpr std::int64_t kFirst = format::kTimeBound.least - format::kTimeBound.most;
constexpr std::int64_t kLast = format::kTimeBound.most - format::kTimeBound.least;

Series Make(int count) {
  Series series;
  for (int i = 0; i < count; ++i) series.Add(i * kStep, i == 777 ? 5000 : i % 100);
  return series;
}

TEST(SeriesTest, FewPointsComeAsTheyAre) {
  const Series series = Make(50);
  const SeriesColumns all = series.Query(0, 50 * kStep, 100);
  EXPECT_EQ(all.t.size(), 50U);
  EXPECT_EQ(all.width_ns, 0);
  EXPECT_EQ(all.med[7], 7);
  const SeriesColumns some = series.Query(10 * kStep, 12 * kStep, 100);
  EXPECT_EQ(some.t, (std::vector<std::int64_t>{10 * kStep, 11 * kStep}));
  EXPECT_TRUE(series.Query(60 * kStep, 70 * kStep, 10).t.empty());
  EXPECT_TRUE(Series().Query(0, 10, 10).t.empty());
}

/// Whatever level answers, extremes are exact and the number of columns is bounded.
TEST(SeriesTest, AnOutlierIsSeenAtEveryZoom) {
  Series series = Make(100'000);
  for (const bool thinned : {false, true}) {
    for (const std::size_t columns : {1U, 10U, 300U, 2000U}) {
      const SeriesColumns all = series.Query(0, 100'000 * kStep, columns);
      EXPECT_LE(all.t.size(), columns + 1);
      EXPECT_EQ(*std::max_element(all.max.begin(), all.max.end()), 5000);
      EXPECT_EQ(*std::min_element(all.min.begin(), all.min.end()), 0);
      EXPECT_TRUE(std::is_sorted(all.t.begin(), all.t.end()));
      if (columns < 1000) {
        for (const float median : all.med) EXPECT_NEAR(median, 50, 35);
      }
    }
    if (!thinned) {
      const std::size_t kept = series.kept();
      series.Thin();
      EXPECT_LT(series.kept(), kept);
    }
  }
  // The newer half is still there point by point.
  EXPECT_EQ(series.Query(99'990 * kStep, 100'000 * kStep, 100).t.size(), 10U);
}

TEST(SeriesTest, ColumnsStayWhereTheyAreWhileItGrows) {
  Series series = Make(5000);
  const SeriesColumns before = series.Query(0, 5000 * kStep, 100);
  for (int i = 5000; i < 5100; ++i) series.Add(i * kStep, 1);
  const SeriesColumns after = series.Query(0, 5100 * kStep, 100);
  ASSERT_GT(after.t.size(), before.t.size() - 1);
  for (std::size_t i = 0; i + 1 < before.t.size(); ++i) {
    EXPECT_EQ(before.t[i], after.t[i]);
    EXPECT_EQ(before.max[i], after.max[i]);
  }
}

TEST(SeriesTest, LatePointsKeepTheOrder) {
  Series series;
  for (const int t : {10, 30, 20, 5}) series.Add(t, t);
  const SeriesColumns all = series.Query(0, 100, 10);
  EXPECT_EQ(all.t, (std::vector<std::int64_t>{5, 10, 20, 30}));
  EXPECT_EQ(all.med, (std::vector<float>{5, 10, 20, 30}));
}

TEST(SeriesTest, CellsHaveTheMaximumOfTheirPoints) {
  Series series = Make(100'000);
  const std::int64_t end = 100'000 * kStep;
  for (const bool thinned : {false, true}) {
    // The last cell reaches beyond the window: what lies there is not in it.
    std::vector<float> cells(8, -1);
    series.Maxima(500 * kStep, 1250 * kStep, 100 * kStep, 10'000, cells);
    const std::vector<float> expected = {99, 99, 5000, 99, 99, 99, 99, 49};
    if (!thinned) {
      EXPECT_EQ(cells, expected);
    }
    // Of buckets, each in the cell of its begin: the same but for where a bucket is cut.
    cells.assign(100, -1);
    series.Maxima(0, end, end / 100, thinned ? 1'000'000 : 1000, cells);
    EXPECT_EQ(cells[0], 5000);
    for (std::size_t i = 1; i < cells.size(); ++i) EXPECT_EQ(cells[i], 99) << i;
    series.Thin();
  }
  std::vector<float> cells(4, -1);
  Make(10).Maxima(5 * kStep, 25 * kStep, 5 * kStep, 100, cells);
  EXPECT_EQ(cells[0], 9);
  for (std::size_t i = 1; i < cells.size(); ++i) EXPECT_TRUE(std::isnan(cells[i])) << i;
  // What is no number hides nothing.
  Series holes;
  for (int i = 0; i < 10; ++i) holes.Add(i, i == 3 ? 7 : NAN);
  std::vector<float> one(1);
  holes.Maxima(0, 10, 10, 100, one);
  EXPECT_EQ(one[0], 7);
}

TEST(SeriesTest, ColumnsBeforeTheBeginAreAsWideAsThoseAfter) {
  Series series;
  for (int i = -50; i < 50; ++i) series.Add(i, i);
  const SeriesColumns all = series.Query(-50, 50, 13);
  EXPECT_EQ(all.width_ns, 8);
  for (const std::int64_t t : all.t) EXPECT_EQ(((t % 8) + 8) % 8, 0) << t;
  EXPECT_EQ(all.t.front(), -56);
  EXPECT_EQ(all.max.front(), -49) << "-56 to -49";
}

TEST(SeriesTest, WhatIsNotFiniteIsNoValue) {
  Series series;
  for (int i = 0; i < 1000; ++i) series.Add(i, i < 500 ? NAN : 1);
  const SeriesColumns all = series.Query(0, 1000, 10);
  EXPECT_TRUE(std::isnan(all.max.front()));
  EXPECT_EQ(all.max.back(), 1);
}

TEST(SeriesTest, AWindowOfAllTimesIsOneColumnOrFew) {
  Series series;
  for (const std::int64_t t : {kFirst, std::int64_t{0}, kLast}) series.Add(t, 1);
  for (int i = 0; i < 200; ++i) series.Add(kLast, 2);
  for (const std::size_t columns : {1U, 2U, 7U}) {
    const SeriesColumns all = series.Query(std::numeric_limits<std::int64_t>::min(),
                                           std::numeric_limits<std::int64_t>::max(), columns);
    EXPECT_GT(all.width_ns, 0);
    EXPECT_LE(all.t.size(), columns + 4);
    EXPECT_TRUE(std::is_sorted(all.t.begin(), all.t.end()));
    EXPECT_EQ(*std::max_element(all.max.begin(), all.max.end()), 2);
  }
  std::vector<float> cells(3);
  series.Maxima(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                std::int64_t{1} << 62, 1, cells);
  EXPECT_EQ(*std::max_element(cells.begin(), cells.end()), 2);
}

class FarTimesTest : public ::testing::Test {
 protected:
  void Metric(std::int64_t time_ns) {
    format::MetricRow row;
    row.name = "cpu.idle";
    row.subject = "cpu:0";
    row.time_ns = row.ord_ns = time_ns;
    row.value = 60;
    view_.OnRecord({row.ord_ns, 0, format::TableId::kMetrics, &row});
  }

  RunView view_;
};

/// Samples of a forged run lie as far apart as times can.
TEST_F(FarTimesTest, AHeatMapHasItsColumns) {
  view_.begin_ns = format::kTimeBound.least;
  for (const std::int64_t t :
       {std::int64_t{0}, 3'300'000'000'000'000'000, 6'917'000'000'000'000'000}) {
    Metric(format::kTimeBound.least + t);
  }
  for (const std::int64_t to : {std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}) {
    for (const std::int64_t from : {std::int64_t{0}, std::numeric_limits<std::int64_t>::min(),
                                    std::numeric_limits<std::int64_t>::max()}) {
      for (const std::size_t columns : {1U, 400U}) {
        const auto map =
            view_.Heatmap({.name = "cpu.busy", .from_ns = from, .to_ns = to, .columns = columns});
        ASSERT_TRUE(map.ok());
        EXPECT_LE(map->columns, columns);
        EXPECT_GT(map->width_ns, 0);
        EXPECT_TRUE(ParseJson(HeatJson(*map)).is_object());
      }
    }
  }
}

TEST_F(FarTimesTest, ASeriesIsInTheOrderOfTime) {
  view_.begin_ns = format::kTimeBound.least;
  for (int i = 0; i < 300; ++i) {
    Metric(i < 150 ? format::kTimeBound.least : format::kTimeBound.most);
  }
  for (const std::size_t points : {1U, 3U, 1000U}) {
    SeriesQuery query;
    query.name = "cpu.busy";
    query.points = points;
    const nlohmann::json body = ParseJson(view_.SeriesJson(query).value());
    const auto t = body["t"].get<std::vector<std::int64_t>>();
    EXPECT_TRUE(std::is_sorted(t.begin(), t.end())) << points;
    EXPECT_EQ(*std::max_element(body["max"].begin(), body["max"].end()), 40);
  }
}

TEST(RunViewTest, ALowerLimitGivesUpPointsAndKeepsExtremes) {
  RunView view;
  format::MetricRow row;
  row.name = "mem.used";
  row.subject = "node";
  for (int i = 0; i < 4000; ++i) {
    row.time_ns = row.ord_ns = 1 + i;
    row.value = i == 1234 ? 1e6 : i;
    view.OnRecord({row.ord_ns, 0, format::TableId::kMetrics, &row});
  }
  SeriesQuery query;
  query.name = "mem.used";
  query.points = 4000;
  const auto ask = [&] { return ParseJson(view.SeriesJson(query).value()); };
  EXPECT_EQ(ask()["t"].size(), 4000U);
  view.LimitPoints(500);
  const nlohmann::json after = ask();
  EXPECT_LT(after["t"].size(), 4000U);
  EXPECT_EQ(*std::max_element(after["max"].begin(), after["max"].end()), 1e6);
}

}  // namespace
}  // namespace telltale::server
