// SPDX-License-Identifier: Apache-2.0
// The expression language: what parses, what is said where it does not, what it computes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/units.h"
#include "rules/expression/evaluator.h"
#include "rules/expression/parser.h"
#include "rules/expression/sample_window.h"

namespace telltale::rules::expression {
namespace {

std::string ErrorOf(std::string_view text) {
  const auto parsed = Parse(text);
  EXPECT_FALSE(parsed.ok()) << text;
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(ParserTest, ReadsWhatTheBookShows) {
  for (const char* text : {
           "p95(gpu.utilization[*], 5m) < 50 for 10m",
           "p95(gpu.utilization[gpu:0]{node=a*}, 5m) < 50% and not (scalar:lr < 1e-6)",
           "max(stat:layer1.*.l2{collection=gradients}, 100 steps) > 10 * "
           "mean(stat:layer1.*.l2{collection=gradients}, 1000 steps)",
           "rate(proc.rss[proc:tree], 10m) > 1MiB for 30m or mem.available[node] < 2GiB",
           "mean(step:data_wait, 100 steps) / mean(step:duration, 100 steps) > 0.3 for 200 steps",
           "delta(scalar:train/loss-1{mode=TRAIN, rank=0}, 500steps) >= -0.01",
           "count(span:\"save checkpoint\"{category=user}, 1h) == 0",
           "(last(scalar:loss) - scalar:loss > 0)\nor std(scalar:acc, 1h) != 0",
       }) {
    const auto parsed = Parse(text);
    EXPECT_TRUE(parsed.ok()) << text << "\n" << parsed.status().message();
  }
}

TEST(ParserTest, SaysWhereItIsWrong) {
  EXPECT_EQ(ErrorOf("cpu.busy[node] > 3 nd x > 4"),
            "column 20: the expression should end here, or go on with and, or, for\n"
            "  cpu.busy[node] > 3 nd x > 4\n"
            "                     ^");
  EXPECT_NE(ErrorOf("avg(x, 1m) > 3").find("column 1: no function 'avg': write one of mean, min"),
            std::string::npos);
  EXPECT_NE(ErrorOf("mean(x) > 3").find("column 7: mean needs a window"), std::string::npos);
  EXPECT_NE(ErrorOf("mean(x, 5) > 3").find("column 9: a time (500ms, 5m)"), std::string::npos);
  EXPECT_NE(ErrorOf("mean(x, 5GB) > 3").find("column 9: is no time"), std::string::npos);
  EXPECT_NE(ErrorOf("mean(x, 0.5 steps) > 3").find("number of steps"), std::string::npos);
  EXPECT_NE(ErrorOf("x > 5 parsecs").find("column 7"), std::string::npos);
  EXPECT_NE(ErrorOf("x > 5parsecs").find("column 5: no unit 'parsecs'"), std::string::npos);
  EXPECT_NE(ErrorOf("x = 5").find("column 3: write =="), std::string::npos);
  EXPECT_NE(ErrorOf("x & y").find("write and"), std::string::npos);
  EXPECT_NE(ErrorOf("1 < x < 2").find("column 7: two comparisons"), std::string::npos);
  EXPECT_NE(ErrorOf("x + 1").find("this is a number"), std::string::npos);
  EXPECT_NE(ErrorOf("(x > 1) + 2 > 3").find("true or false where a number"), std::string::npos);
  EXPECT_NE(ErrorOf("x > 1 and 3").find("column 11: this is a number"), std::string::npos);
  EXPECT_NE(ErrorOf("step:duration > 5GB").find("column 15: a time on the left, bytes"),
            std::string::npos);
  EXPECT_NE(ErrorOf("step:lenght > 5").find("a step has no 'lenght'"), std::string::npos);
  EXPECT_NE(ErrorOf("stat:a.weight > 5").find("stat:TENSOR"), std::string::npos);
  EXPECT_NE(ErrorOf("scalar:loss{collection=x} > 5").find("no 'collection' here"),
            std::string::npos);
  EXPECT_NE(ErrorOf("x[gpu > 5").find("column 2: ']' is missing"), std::string::npos);
  EXPECT_NE(ErrorOf("loss:x > 5").find("nothing is called 'loss:'"), std::string::npos);
  EXPECT_NE(ErrorOf("1 < 2").find("nothing of the run is read"), std::string::npos);
  EXPECT_NE(ErrorOf("").find("column 1:"), std::string::npos);
  EXPECT_NE(ErrorOf("x > 1e999").find("column 5: this number"), std::string::npos);
  // The place is in characters, and in the right line.
  EXPECT_NE(ErrorOf("scalar:größe > 1 and\n  y ? 2").find("line 2, column 5: "), std::string::npos);
  EXPECT_NE(ErrorOf("scalar:größe ? 1").find("\n               ^"), std::string::npos);
}

TEST(ParserTest, DepthAndLengthAreBounded) {
  EXPECT_NE(ErrorOf(std::string(5000, '(')).find("4096 are allowed"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string(200, '(')).find("nested too deeply"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string(200, '-')).find("nested too deeply"), std::string::npos);
  std::string many = "x > 0";
  for (int i = 0; i < 20; ++i) many += " or x > 0";
  EXPECT_NE(ErrorOf(many).find("more than 16"), std::string::npos);
}

/// An evaluator and a run of one sample a second, one step a second.
struct Bench {
  explicit Bench(std::string_view text) : parsed(Parse(text)), evaluator(&*parsed) {}

  void Add(double value, std::uint32_t series = 0, std::size_t call = 0) {
    evaluator.window(call).Add(now, series, value);
  }
  void Tick(std::int64_t seconds = 1) {
    now.ns += seconds * kSecond;
    now.step += seconds;
  }
  std::optional<bool> Is() { return evaluator.Evaluate(now); }
  std::optional<double> Value(std::size_t call = 0) {
    static_cast<void>(evaluator.Evaluate(now));
    return evaluator.call_values()[call];
  }

  Result<Expression> parsed;
  Evaluator evaluator;
  Moment now{1'000 * kSecond, 0};
};

TEST(WindowTest, FunctionsAreWhatTheyAreCalled) {
  const auto value = [](const std::string& function) -> double {
    Bench bench(function + "(x, 10s) > 0");
    for (int i = 0; i <= 20; ++i) {
      if (i > 0) bench.Tick();
      bench.Add(i);
    }
    return bench.Value().value_or(-1);  // Of 11 to 20.
  };
  EXPECT_DOUBLE_EQ(value("mean"), 15.5);
  EXPECT_DOUBLE_EQ(value("min"), 11);
  EXPECT_DOUBLE_EQ(value("max"), 20);
  EXPECT_DOUBLE_EQ(value("p50"), 15.5);
  EXPECT_DOUBLE_EQ(value("p95"), 19.55);
  EXPECT_DOUBLE_EQ(value("count"), 10);
  EXPECT_DOUBLE_EQ(value("delta"), 9);
  EXPECT_DOUBLE_EQ(value("rate"), 1);
  EXPECT_DOUBLE_EQ(value("last"), 20);
  EXPECT_NEAR(value("std"), 2.8722813, 1e-6);
}

TEST(WindowTest, NothingBeforeTheWindowHasPassedOnce) {
  Bench bench("mean(x, 10s) > 0");
  for (int i = 0; i < 10; ++i) {
    bench.Add(1);
    EXPECT_FALSE(bench.Is().has_value()) << i;
    bench.Tick();
  }
  bench.Add(1);
  EXPECT_EQ(bench.Is(), std::optional(true));
}

TEST(WindowTest, AGapIsNoData) {
  Bench bench("mean(x, 10s) > 0");
  for (int i = 0; i <= 10; ++i, bench.Tick()) bench.Add(1);
  EXPECT_TRUE(bench.Is().has_value());
  bench.Tick(5);
  EXPECT_FALSE(bench.Is().has_value());  // Six seconds without one.
  bench.Tick(600);
  bench.Add(1);
  EXPECT_FALSE(bench.Is().has_value());
}

TEST(WindowTest, NaNIsLeftOutAndNoNumberIsNoData) {
  Bench bench("mean(x, 2 steps) > 0");
  bench.Add(std::numeric_limits<double>::quiet_NaN());
  bench.Tick();
  bench.Add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(bench.Is().has_value());
  bench.Add(4);
  EXPECT_EQ(bench.Value(), std::optional(4.0));
}

TEST(WindowTest, ChangesAreOfEachSeries) {
  Bench bench("delta(x, 2 steps) > 0");
  bench.Add(100, 1);
  bench.Add(1, 2);
  bench.Tick();
  bench.Add(104, 1);
  bench.Add(3, 2);
  EXPECT_EQ(bench.Value(), std::optional(3.0));  // 4 and 2, not 97.
}

TEST(WindowTest, MemoryIsBounded) {
  Bench bench("max(x, 1d) > 0 or last(x) > 0");
  for (std::uint32_t i = 0; i < 200'000; ++i) {
    bench.Add(1);
    bench.Add(1, i, 1);
  }
  EXPECT_LE(bench.evaluator.cost(), SampleWindow::kMostSamples + SampleWindow::kMostSeries + 100);
}

TEST(EvaluatorTest, ForHoldsWithoutABreak) {
  Bench bench("x < 50 for 10s");
  std::optional<bool> is;
  for (int i = 0; i < 30; ++i) {
    bench.Add(i == 8 ? 60 : 40);
    is = bench.Is();
    ASSERT_TRUE(is.has_value());
    EXPECT_EQ(*is, i >= 19) << i;
    bench.Tick();
  }
  EXPECT_EQ(bench.evaluator.since().ns, 1009 * kSecond);
  // After a gap it begins anew.
  bench.Tick(60);
  EXPECT_EQ(bench.Is(), std::optional(false));
}

TEST(EvaluatorTest, WhatIsNotKnownDecidesNothing) {
  EXPECT_FALSE(Bench("x > 1").Is().has_value());
  EXPECT_FALSE(Bench("not x > 1").Is().has_value());
  const auto with_y = [](const char* text, double y) {
    Bench bench(text);
    bench.Add(y, 0, 1);
    return bench.Is();
  };
  EXPECT_FALSE(with_y("x > 1 and y > 1", 2).has_value());
  EXPECT_EQ(with_y("x > 1 and y > 1", 0), std::optional(false));
  EXPECT_EQ(with_y("x > 1 or y > 1", 2), std::optional(true));
  EXPECT_FALSE(with_y("x > 1 or y > 1", 0).has_value());
  EXPECT_FALSE(with_y("x / y > 1", 0).has_value());
}

TEST(EvaluatorTest, OperatorsBindAsInArithmetic) {
  const auto is = [](const char* text) {
    Bench bench(text);
    bench.Add(2);
    return bench.Is();
  };
  EXPECT_EQ(is("x + 3 * 4 == 14"), std::optional(true));
  EXPECT_EQ(is("(x + 3) * 4 == 20"), std::optional(true));
  EXPECT_EQ(is("10 - x - 3 == 5"), std::optional(true));
  EXPECT_EQ(is("-x * -1 == 2"), std::optional(true));
  EXPECT_EQ(is("x == 2 or 1 > 2 and 1 > 2"), std::optional(true));
  EXPECT_EQ(is("not x == 3"), std::optional(true));
  EXPECT_EQ(is("x == 2000ms"), std::optional(true));
}

}  // namespace
}  // namespace telltale::rules::expression
