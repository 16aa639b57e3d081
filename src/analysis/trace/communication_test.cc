// SPDX-License-Identifier: Apache-2.0
// Communication by rank, of runs with a trace and without.
#include "analysis/trace/communication.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "analysis/trace/registry.h"
#include "store/store_testing.h"

namespace telltale::analysis::trace {
namespace {

format::StepRow Step(std::int32_t rank, std::int64_t step, std::int64_t wait_ns,
                     const char* mode = "TRAIN") {
  format::StepRow row;
  row.time_ns = row.ord_ns = 100 * (step + 1);
  row.duration_ns = 100;
  row.step = step;
  row.mode = mode;
  row.rank = rank;
  row.comm_wait_ns = wait_ns;
  return row;
}

format::SpanRow Collective(std::int32_t rank, const char* name, std::int64_t duration_ns,
                           const char* mode = "TRAIN") {
  format::SpanRow row;
  row.time_ns = row.ord_ns = 100;
  row.duration_ns = duration_ns;
  row.name = name;
  row.category = "runtime";
  row.mode = mode;
  row.rank = rank;
  return row;
}

format::SliceRow Slice(const char* category, const char* name, std::int64_t begin_ns,
                       std::int64_t duration_ns) {
  format::SliceRow row;
  row.time_ns = begin_ns;
  row.ord_ns = begin_ns + duration_ns;
  row.duration_ns = duration_ns;
  row.name = name;
  row.category = category;
  row.kind = category;
  row.pid = row.tid = 4711;
  row.device = -1;
  row.stream = -1;
  row.step = -1;
  return row;
}

format::EventRow Told(std::int32_t rank, const char* data) {
  format::EventRow row;
  row.time_ns = row.ord_ns = 900;
  row.kind = "collectives";
  row.rank = rank;
  row.data = data;
  return row;
}

class CommunicationTest : public ::testing::Test {
 protected:
  void SetUp() override { store::MakeRun(run_); }
  void Write(format::Batch batch) {
    auto writer = store::Writer::Open(run_ / "agent-a", "agent-a");
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    batch.watermark_ns = 1000;
    ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  }
  Tables Analysed(Options options = {}) {
    const Analysis* analysis = FindAnalysis("communication");
    auto source = TraceSource::Open(run_, options.ranks, analysis->trace);
    EXPECT_TRUE(source.ok());
    auto tables = analysis->run(*source, options);
    EXPECT_TRUE(tables.ok());
    return tables.ok() ? std::move(*tables) : Tables();
  }

  store::TempFolder folder_;
  std::filesystem::path run_ = folder_.path() / "run";
};

using Row = std::vector<Cell>;

TEST_F(CommunicationTest, EachRanksShareOfItsStepsAndItsCollectives) {
  format::Batch batch;
  batch.rows.steps = {Step(0, 0, 20), Step(0, 1, 40), Step(1, 0, 1), Step(1, 1, 3),
                      Step(1, 0, 99, "EVAL")};
  batch.rows.spans = {Collective(0, "collective.all_reduce", 30),
                      Collective(0, "collective.all_reduce", 20),
                      Collective(0, "collective.broadcast", 10),
                      Collective(0, "collective.barrier", 99, "EVAL"), Collective(1, "forward", 9)};
  // A process of two attempts, damage, and an operation that no step has seen.
  batch.rows.events = {
      Told(0, R"({"operations":{"all_reduce":{"calls":2,"bytes":800},"send":{"bytes":1}}})"),
      Told(0, R"({"operations":{"all_reduce":{"bytes":8}},"parallel":null})"),
      Told(0, R"({"operations":[1]})"), Told(0, "no JSON"), Told(1, "{}")};
  Write(std::move(batch));
  const Tables tables = Analysed();
  ASSERT_EQ(tables.tables.size(), 2U);
  const Table& ranks = tables.tables[0];
  ASSERT_EQ(ranks.rows.size(), 2U);
  EXPECT_EQ(ranks.rows[0], (Row{std::int64_t{0}, "steps", std::int64_t{2}, std::int64_t{200},
                                std::int64_t{60}, 0.3, Cell(), Cell()}));
  EXPECT_EQ(ranks.rows[1], (Row{std::int64_t{1}, "steps", std::int64_t{2}, std::int64_t{200},
                                std::int64_t{4}, 0.02, Cell(), Cell()}));
  const Table& operations = tables.tables[1];
  ASSERT_EQ(operations.rows.size(), 2U);
  EXPECT_EQ(operations.rows[0], (Row{std::int64_t{0}, "all_reduce", std::int64_t{2},
                                     std::int64_t{50}, 25.0, 0.25, std::int64_t{808}}));
  EXPECT_EQ(operations.rows[1], (Row{std::int64_t{0}, "broadcast", std::int64_t{1},
                                     std::int64_t{10}, 10.0, 0.05, Cell()}));
  ASSERT_EQ(tables.notes.size(), 1U);
  EXPECT_NE(tables.notes[0].find("rank 1 spends 2.0 %"), std::string::npos) << tables.notes[0];
  // Only one of them.
  const Tables one = Analysed({.ranks = {1}});
  EXPECT_EQ(one.tables[0].rows.size(), 1U);
  EXPECT_TRUE(one.tables[1].rows.empty() && one.notes.empty());
}

TEST_F(CommunicationTest, WhatMeasuresItselfAndATraceStandBeside) {
  format::Batch batch;
  batch.rows.steps = {Step(0, 0, 0), Step(0, 1, 0)};
  batch.rows.events = {
      Told(0, R"({"operations":{},"parallel":{"communication_ns":25,"overlap_ns":20.0}})")};
  batch.rows.slices = {Slice("step", "ProfilerStep#1", 0, 100), Slice("op", "aten::mm", 0, 50),
                       Slice("comm", "nccl:all_reduce", 40, 40)};
  Write(std::move(batch));
  const Tables tables = Analysed();
  const auto& rows = tables.tables[0].rows;
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1], (Row{std::int64_t{0}, "parallel", std::int64_t{1}, std::int64_t{100},
                          std::int64_t{25}, 0.25, std::int64_t{20}, 0.8}));
  EXPECT_EQ(rows[2], (Row{std::int64_t{0}, "trace", std::int64_t{1}, std::int64_t{100},
                          std::int64_t{40}, 0.4, std::int64_t{10}, 0.25}));
}

TEST_F(CommunicationTest, NumbersThatNothingHoldsAreNone) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLongest = format::kLengthBound.most;
  format::Batch batch;
  // So many that their sums are beyond 64 bits; one that is itself beyond its bound is left out.
  for (int i = 0; i < 100; ++i) {
    batch.rows.steps.push_back(Step(0, i, kLongest));
    batch.rows.steps.back().duration_ns = kLongest;
    batch.rows.spans.push_back(Collective(0, "collective.all_reduce", kLongest));
  }
  batch.rows.spans.push_back(Collective(0, "collective.broadcast", 1));
  batch.rows.spans.push_back(Collective(0, "collective.broadcast", kMost));
  batch.rows.events = {
      Told(0, R"({"operations":{"all_reduce":{"bytes":9223372036854775807}}})"),
      Told(0, R"({"operations":{"all_reduce":{"bytes":5},"broadcast":{"bytes":1e300}}})"),
      Told(0, R"({"operations":{"broadcast":{"bytes":18446744073709551615}}})"),
      Told(0, R"({"operations":{"broadcast":{"bytes":-1e300}}})"),
      Told(0, R"({"operations":{"broadcast":{"bytes":-7}}})"),
      Told(0, R"({"parallel":{"communication_ns":9223372036854775808.0,"overlap_ns":1}})")};
  Write(std::move(batch));
  const Tables tables = Analysed();
  ASSERT_EQ(tables.tables[0].rows.size(), 1U) << "what the parallel model says is no time";
  EXPECT_EQ(tables.tables[0].rows[0][3], Cell(kMost));
  EXPECT_EQ(tables.tables[0].rows[0][4], Cell(kMost));
  const auto& operations = tables.tables[1].rows;
  ASSERT_EQ(operations.size(), 2U);
  EXPECT_EQ(operations[0][3], Cell(kMost));
  EXPECT_EQ(operations[0][6], Cell(kMost));
  EXPECT_EQ(operations[1][6], Cell()) << "none of its bytes is a number of bytes";
}

TEST_F(CommunicationTest, ANameForEachCallTakesNoMoreMemoryThanMany) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < 2 * kMostOperations; ++i) {
    names.insert("collective.call_" + std::to_string(i));
  }
  format::Batch batch;
  for (const std::int32_t rank : {0, 1}) {
    for (const std::string& name : names) {
      batch.rows.spans.push_back(Collective(rank, name.c_str(), 1));
    }
  }
  Write(std::move(batch));
  store::Salvage salvage;
  const auto recorded = RecordedCommunicationOf(run_, &salvage);
  ASSERT_TRUE(recorded.ok()) << recorded.status().message();
  EXPECT_EQ(recorded->collectives.size(), 2 * (kMostOperations + 1));
  const auto others = recorded->collectives.find({1, std::string(kOtherOperations)});
  ASSERT_NE(others, recorded->collectives.end());
  EXPECT_EQ(others->second.calls, kMostOperations);
}

TEST_F(CommunicationTest, ARunWithoutStepsIsToldSo) {
  Write(store::Scalars(0, 1));
  const Tables tables = Analysed();
  EXPECT_TRUE(tables.tables[0].rows.empty());
  ASSERT_EQ(tables.notes.size(), 1U);
  EXPECT_FALSE(TraceSource::Open(run_, {}).ok());
}

}  // namespace
}  // namespace telltale::analysis::trace
