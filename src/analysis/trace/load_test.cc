// SPDX-License-Identifier: Apache-2.0
// Traces out of a run, and analyses of one through the table of analyses.
#include "analysis/trace/load.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "analysis/trace/registry.h"
#include "store/store_testing.h"

namespace telltale::analysis::trace {
namespace {

format::SliceRow Slice(std::int32_t rank, const char* category, const char* name,
                       std::int64_t begin_ns, std::int64_t duration_ns) {
  format::SliceRow row;
  row.time_ns = begin_ns;
  row.ord_ns = begin_ns + duration_ns;
  row.duration_ns = duration_ns;
  row.name = name;
  row.category = category;
  row.kind = category;
  row.rank = rank;
  row.pid = 4711;
  row.tid = 4711;
  row.lane = "thread 4711";
  row.device = -1;
  row.stream = -1;
  row.step = -1;
  return row;
}

/// Rank 0: a launch and its kernel. Rank 1, in the same folder: an operator.
class TraceLoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store::MakeRun(run_);
    auto writer = store::Writer::Open(run_ / "agent-a", "agent-a");
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    format::Batch batch;
    format::SliceRow call = Slice(0, "runtime", "cudaLaunchKernel", 100, 10);
    call.correlation = 3;
    format::SliceRow kernel = Slice(0, "kernel", "gemm", 120, 50);
    kernel.correlation = 3;
    kernel.device = 0;
    kernel.stream = 7;
    kernel.tid = 0;
    kernel.bytes = 12;
    kernel.args = R"({"blocks per SM":0.5,"est. achieved occupancy %":25})";
    batch.rows.slices = {kernel, call, Slice(1, "op", "aten::mm", 90, 30)};
    batch.watermark_ns = 1000;
    ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  }

  store::TempFolder folder_;
  std::filesystem::path run_ = folder_.path() / "run";
};

TEST_F(TraceLoadTest, OneRankAtATimeAndOnlyWhatIsNeeded) {
  const auto ranks = FindRanks(run_);
  ASSERT_TRUE(ranks.ok()) << ranks.status().message();
  ASSERT_EQ(ranks->size(), 2U);
  store::Salvage salvage;
  const auto trace = LoadTrace(run_, *ranks, 0, {}, &salvage);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(trace->size(), 2U);
  EXPECT_EQ(trace->NameOf(0), "cudaLaunchKernel");
  EXPECT_EQ(trace->launch[1], 0U);
  EXPECT_EQ(trace->LaneOf(1).stream, 7);
  EXPECT_EQ(trace->LaneOf(0).name, "thread 4711");
  EXPECT_TRUE(trace->bytes.empty());
  EXPECT_TRUE(trace->occupancy.empty());
  const auto more = LoadTrace(run_, *ranks, 0, {.bytes = true, .facts = true}, &salvage);
  ASSERT_TRUE(more.ok());
  EXPECT_EQ(more->bytes[1], 12);
  EXPECT_EQ(more->occupancy[1], 25);
  EXPECT_EQ(more->blocks_per_sm[1], 0.5F);
  EXPECT_FALSE(salvage.any());
}

TEST_F(TraceLoadTest, WindowsOfDetailAreRecordingsOfTheirOwn) {
  const auto add = [&](const std::string& name, std::vector<format::SliceRow> rows) {
    auto writer = store::Writer::Open(run_ / name, name);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    format::Batch batch;
    for (format::SliceRow& row : rows) row.window = name == "stacks" ? "stacks (py-spy)" : "few";
    batch.rows.slices = std::move(rows);
    batch.watermark_ns = 1000;
    ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  };
  add("windows-few-step9-1-rank0", {Slice(0, "op", "aten::mm", 5'000, 100)});
  add("windows-few-step9-1-python-rank0", {Slice(0, "python", "f", 5'100, 90'000)});
  add("windows-few-step90-1-rank0", {Slice(0, "op", "aten::mm", 9'000, 100)});
  add("stacks", {Slice(0, "other", "main thread", 0, 900'000)});
  const auto ranks = FindRanks(run_);
  ASSERT_TRUE(ranks.ok());
  store::Salvage salvage;
  const auto trace = LoadTrace(run_, *ranks, 0, {}, &salvage);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  // cProfile's times are made up, and sampled stacks are no profiler's.
  EXPECT_EQ(trace->recordings, (Spans{{100, 171}, {5'000, 5'101}, {9'000, 9'101}}));
  EXPECT_EQ(trace->size(), 5U);
}

TEST_F(TraceLoadTest, SoAreWhatAProfilersOwnFramesSpan) {
  auto writer = store::Writer::Open(run_ / "import-rank2", "import-rank2");
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  format::Batch batch;
  for (const char* file : {"a.json", "b.json"}) {
    const std::int64_t at = *file == 'a' ? 0 : 100'000;
    format::SliceRow frame = Slice(2, "other", "PyTorch Profiler (0)", at, 900);
    frame.kind = "Trace";
    format::SliceRow op = Slice(2, "op", "aten::mm", at + 100, 50);
    frame.window = op.window = file;
    batch.rows.slices.push_back(frame);
    batch.rows.slices.push_back(op);
  }
  // Pieces of one recording have no such frame.
  for (const char* file : {"c.json", "d.json"}) {
    format::SliceRow op = Slice(3, "op", "aten::mm", *file == 'c' ? 0 : 100'000, 50);
    op.window = file;
    batch.rows.slices.push_back(op);
  }
  batch.watermark_ns = 1000;
  ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  const auto ranks = FindRanks(run_);
  ASSERT_TRUE(ranks.ok());
  store::Salvage salvage;
  const auto framed = LoadTrace(run_, *ranks, 2, {}, &salvage);
  ASSERT_TRUE(framed.ok());
  EXPECT_EQ(framed->recordings, (Spans{{0, 901}, {100'000, 100'901}}));
  const auto pieces = LoadTrace(run_, *ranks, 3, {}, &salvage);
  ASSERT_TRUE(pieces.ok());
  EXPECT_TRUE(pieces->recordings.empty());
}

TEST_F(TraceLoadTest, TheDeviceIsCalledWhatTheImportSays) {
  EXPECT_EQ(DeviceNameOf(run_, 0), "");
  auto writer = store::Writer::Open(run_ / "agent-b", "agent-b");
  ASSERT_TRUE(writer.ok());
  format::EventRow event;
  event.kind = "trace.source";
  event.rank = 0;
  event.data = R"({"file":"a.json","devices":[{"id":0},{"id":1,"name":"NVIDIA H100"}]})";
  format::Batch batch;
  batch.rows.events = {event};
  ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  EXPECT_EQ(DeviceNameOf(run_, 0), "NVIDIA H100");
  EXPECT_EQ(DeviceNameOf(run_, 1), "");
}

TEST_F(TraceLoadTest, ARankThatIsNotThereIsSaid) {
  const auto ranks = FindRanks(run_);
  ASSERT_TRUE(ranks.ok());
  store::Salvage salvage;
  const auto trace = LoadTrace(run_, *ranks, 5, {}, &salvage);
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.status().code(), Code::kUsage);
  EXPECT_NE(trace.status().message().find("it has 0, 1"), std::string::npos);
}

TEST_F(TraceLoadTest, MoreRanksThanARunCanHaveAreCountedAndNotLookedAt) {
  const auto add = [&](const std::string& name, std::int32_t first, std::int32_t ranks) {
    auto writer = store::Writer::Open(run_ / name, name);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    format::Batch batch;
    for (std::int32_t i = 0; i < ranks; ++i) {
      batch.rows.slices.push_back(Slice(first + i, "op", "aten::mm", 100, 30));
    }
    batch.watermark_ns = 1000;
    ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  };
  add("agent-b", 1000, 300);
  std::uint64_t left_out = 0;
  auto ranks = FindRanks(run_, {}, &left_out);
  ASSERT_TRUE(ranks.ok());
  EXPECT_EQ(ranks->size(), 2 + kMostRanksOfWriter);
  EXPECT_EQ(left_out, 300 - kMostRanksOfWriter);
  ranks = FindRanks(run_, {1299}, &left_out);
  ASSERT_TRUE(ranks.ok());
  EXPECT_TRUE(ranks->contains(1299));
  EXPECT_EQ(left_out, 300 - kMostRanksOfWriter - 1);

  for (std::int32_t i = 0; i < 16; ++i) add(fmt::format("import-{}", i), 2000 + i * 256, 256);
  ranks = FindRanks(run_, {}, &left_out);
  ASSERT_TRUE(ranks.ok());
  EXPECT_EQ(ranks->size(), kMostRanks);
  EXPECT_EQ(left_out, 2 + 300 + 16 * 256 - kMostRanks);
  const auto source = TraceSource::Open(run_, {});
  ASSERT_TRUE(source.ok());
  ASSERT_EQ(source->notes().size(), 1U);
  EXPECT_TRUE(source->notes()[0].starts_with("302 ranks of the trace are left out"))
      << source->notes()[0];
  EXPECT_TRUE(TraceSource::Open(run_, {0, 1299})->notes().empty());
}

TEST_F(TraceLoadTest, ATraceThatNeedsMoreMemoryThanIsLeftIsRefused) {
  const auto ranks = FindRanks(run_);
  ASSERT_TRUE(ranks.ok());
  store::Salvage salvage;
  EXPECT_TRUE(LoadTrace(run_, *ranks, 0, {}, &salvage, 2 * 58).ok());
  for (const Needs needs : {Needs{}, Needs{.bytes = true}}) {
    const auto trace = LoadTrace(run_, *ranks, 0, needs, &salvage, 2 * 58 - (needs.bytes ? 0 : 1));
    ASSERT_FALSE(trace.ok());
    EXPECT_EQ(trace.status().code(), Code::kLimit);
  }
}

TEST_F(TraceLoadTest, ARunWithoutATraceSaysWhatToRecord) {
  const std::filesystem::path bare = folder_.path() / "bare";
  store::MakeRun(bare);
  const auto ranks = FindRanks(bare);
  ASSERT_FALSE(ranks.ok());
  EXPECT_EQ(ranks.status().code(), Code::kUnusable);
  EXPECT_NE(ranks.status().message().find("telltale import"), std::string::npos);
}

TEST_F(TraceLoadTest, EveryAnalysisRunsOnASmallTrace) {
  for (const Analysis& analysis : Analyses()) {
    auto source = TraceSource::Open(run_, {});
    ASSERT_TRUE(source.ok());
    Options options;
    options.name = "mm";
    options.against = run_;
    options.annotation = "";
    options.accelerator = "A100";
    options.series = true;
    const auto tables = analysis.run(*source, options);
    ASSERT_TRUE(tables.ok()) << analysis.name << ": " << tables.status().message();
    for (const Table& table : tables->tables) {
      for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.columns.size()) << table.name;
    }
  }
  EXPECT_EQ(FindAnalysis("horoscope"), nullptr);
}

/// The longest slices there can be, so many of them that 64 bits hold no sum of theirs.
TEST_F(TraceLoadTest, SumsOfAnyTimesStayAtTheEnds) {
  auto writer = store::Writer::Open(run_ / "agent-b", "agent-b");
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  const std::int64_t longest = format::kLengthBound.most;
  format::Batch batch;
  for (int i = 0; i < 80; ++i) {
    const std::int64_t begin = i * 1000;
    const std::int32_t rank = i % 2;
    format::SliceRow step = Slice(rank, "step", "ProfilerStep#1", begin, longest);
    step.step = i;
    format::SliceRow op = Slice(rank, "op", "aten::mm", begin + 1, longest);
    format::SliceRow child = Slice(rank, "annotation", "range", begin + 2, longest);
    format::SliceRow call = Slice(rank, "runtime", "cudaLaunchKernel", begin + 3, longest);
    call.correlation = 1000 + i;
    format::SliceRow kernel =
        Slice(rank, "kernel", i % 3 == 0 ? "ncclDevKernel" : "gemm", begin + 4, longest);
    kernel.correlation = call.correlation;
    kernel.device = 0;
    kernel.stream = 7;
    kernel.tid = 0;
    format::SliceRow copy =
        Slice(rank, "memcpy", "Memcpy HtoD (Pageable -> Device)", begin + 5, longest);
    copy.device = 0;
    copy.stream = 8;
    copy.bytes = format::kSignedBound.most;
    for (const format::SliceRow& row : {step, op, child, call, kernel, copy}) {
      batch.rows.slices.push_back(row);
    }
  }
  batch.watermark_ns = format::kTimeBound.most;
  ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  for (const Analysis& analysis : Analyses()) {
    auto source = TraceSource::Open(run_, {});
    ASSERT_TRUE(source.ok());
    Options options;
    options.name = "mm";
    options.against = run_;
    options.annotation = "";
    options.accelerator = "A100";
    options.series = true;
    options.what_if = {"host=1000", "compute=1000"};
    const auto tables = analysis.run(*source, options);
    ASSERT_TRUE(tables.ok()) << analysis.name << ": " << tables.status().message();
    for (const Table& table : tables->tables) {
      for (const auto& row : table.rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
          const std::string& column = table.columns[i];
          // Idle time counts overlaps negative, and what takes longer saves nothing.
          if (table.name == "idle" || column == "saved_ns" || column == "difference_ns") continue;
          const bool time = column.ends_with("_ns") || column.ends_with("_bytes");
          const auto* const whole = std::get_if<std::int64_t>(&row[i]);
          if (time && whole != nullptr) {
            EXPECT_GE(*whole, 0) << analysis.name << " " << table.name << " " << column;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace telltale::analysis::trace
