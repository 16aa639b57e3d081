// SPDX-License-Identifier: Apache-2.0
// Windows of detail as rows of the run: whose, at which step, by which clock, once, and what
// becomes of those that cannot be read.
#include "interchange/windows/window_import.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/units.h"
#include "interchange/windows/window_clock.h"
#include "interchange/windows/window_files.h"
#include "query/slice_order.h"
#include "store/store_testing.h"
#include "store/verify.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBegin = 1'700'000'000 * kSecond;  ///< Of step 0, by the run's clock.
constexpr std::int64_t kStepNs = 10 * kMs;
constexpr std::int64_t kWallAheadNs = 7 * kSecond;  ///< The wall clock was set meanwhile.

std::int64_t BeginOf(std::int64_t step) { return kBegin + step * kStepNs; }

/// Times of the file in microseconds since a base, as Kineto has them.
std::string MarkOf(std::int64_t step, std::int64_t late_ns, std::int64_t end_ns) {
  const std::int64_t begin = BeginOf(step) + late_ns;
  return fmt::format(
      R"({{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{}","pid":42,"tid":42,"ts":{},"dur":{}}},)",
      step, static_cast<double>(begin - kBegin) / 1e3, static_cast<double>(end_ns - begin) / 1e3);
}

std::string OpOf(std::int64_t step) {
  return fmt::format(
      R"({{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":42,"tid":42,"ts":{},"dur":5,"args":{{"External id":{}}}}})",
      static_cast<double>(BeginOf(step) + 4 * kMs - kBegin) / 1e3, step);
}

class WindowImportTest : public ::testing::Test {
 protected:
  WindowImportTest() {
    store::MakeRun(run(), true);
    auto writer = store::Writer::Open(run() / "agent-n1", "agent-n1");
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    writer_ = std::move(*writer);
    format::Batch batch;
    for (std::int64_t step = 0; step < 20; ++step) {
      format::StepRow row;
      row.time_ns = BeginOf(step);
      row.duration_ns = kStepNs;
      row.ord_ns = row.time_ns + row.duration_ns;
      row.step = step;
      row.mode = "TRAIN";
      row.pid = 42;
      row.attempt = 2;
      batch.rows.steps.push_back(row);
    }
    batch.watermark_ns = BeginOf(0);
    EXPECT_TRUE(writer_->Append(std::move(batch)).ok());
    Say("clock.anchor", BeginOf(0) - kSecond,
        fmt::format(R"({{"monotonic_ns":{},"realtime_ns":{},"run_ns":{}}})", 1 * kSecond,
                    BeginOf(0) - kSecond, BeginOf(0) - kSecond));
  }

  const fs::path& run() const { return folder_.path(); }

  void Say(std::string_view kind, std::int64_t time_ns, const std::string& data) {
    format::Batch batch;
    format::EventRow row;
    row.time_ns = row.ord_ns = time_ns;
    row.kind = kind;
    row.severity = "info";
    row.data = data;
    row.pid = 42;
    row.attempt = 2;
    batch.rows.events.push_back(row);
    batch.watermark_ns = BeginOf(0);
    ASSERT_TRUE(writer_->Append(std::move(batch)).ok());
  }

  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((run() / name).parent_path());
    std::ofstream(run() / name, std::ios::binary) << text;
  }

  /// The trace of steps `first` to `last`, by a wall clock that is ahead of the run's.
  void WriteTrace(const std::string& name, std::int64_t first, std::int64_t last) {
    std::string text = fmt::format(
        R"({{"schemaVersion":1,"baseTimeNanoseconds":{},"traceEvents":[)", kBegin + kWallAheadNs);
    for (std::int64_t step = first; step <= last; ++step) {
      // The profiler starts when the first step has begun; a mark comes a little after its border.
      text += MarkOf(step, step == first ? 3 * kMs : (10 + 10 * (step - first)) * kUs,
                     BeginOf(step + 1) + 5 * kUs);
      text += OpOf(step) + (step == last ? "" : ",");
    }
    Write(name, text + "]}\n");
  }

  void SayClosed(const std::string& name, std::int64_t first, std::int64_t last) {
    Say("window.closed", BeginOf(last + 1),
        fmt::format(R"({{"window":"few","first":{},"last":{},"early":"","files":{{"{}":1}}}})",
                    first, last, name));
  }

  Result<WindowImportReport> Import(bool again = false, bool all = false, bool in_child = false) {
    return ImportWindows({.run = run(),
                          .telltale_version = "test",
                          .again = again,
                          .all = all,
                          .in_child = in_child});
  }

  store::TempFolder folder_;
  std::unique_ptr<store::Writer> writer_;
};

constexpr const char* kTrace = "windows/few/rank0-step10-42.pt.trace.json";
constexpr const char* kFolder = "windows-few-step10-42-a2-rank0";

TEST_F(WindowImportTest, ItsSlicesAreRowsOfTheRun) {
  WriteTrace(kTrace, 10, 12);
  SayClosed(kTrace, 10, 12);
  const auto report = Import();
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->windows.size(), 1U);
  EXPECT_EQ(report->windows[0].failure, "");
  EXPECT_EQ(report->windows[0].folder, kFolder);
  EXPECT_EQ(report->windows[0].slices, 6U);

  const auto all = store::ReadEverything(run());
  EXPECT_EQ(all->rows.steps.size(), 20U) << "its own steps, none of the trace's";
  std::vector<const format::SliceRow*> ops;
  for (const format::SliceRow& row : all->rows.slices) {
    EXPECT_EQ(row.window, "few");
    EXPECT_EQ(row.attempt, 2U);
    EXPECT_EQ(row.rank, 0);
    if (row.name == "aten::mm") ops.push_back(&row);
  }
  ASSERT_EQ(ops.size(), 3U);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto step = static_cast<std::int64_t>(10 + i);
    EXPECT_EQ(ops[i]->step, step);
    // By the borders of the steps 11 and 12, whose marks were 20 and 30 us late.
    const std::int64_t off = ops[i]->time_ns - (BeginOf(step) + 4 * kMs);
    EXPECT_GE(off, -30 * kUs);
    EXPECT_LE(off, 0);
    EXPECT_EQ(ops[i]->external & ((1LL << 40) - 1), step);
    EXPECT_GT(ops[i]->external, 1LL << 40) << "another window counts from the same numbers";
  }
  const auto said = std::ranges::find(all->rows.events, "window.imported", &format::EventRow::kind);
  ASSERT_NE(said, all->rows.events.end());
  EXPECT_EQ(said->pid, 42);
  const auto data = nlohmann::json::parse(said->data);
  EXPECT_EQ(data["files"], nlohmann::json::array({kTrace}));
  EXPECT_EQ(data["slices"], 6);
  EXPECT_EQ(data["clock"]["by"], "steps");
  EXPECT_EQ(data["clock"]["matched"], 2);
  EXPECT_LE(data["clock"]["uncertainty_ns"], 10 * kUs);
  EXPECT_NEAR(data["clock"]["shift_ns"].get<double>(), -kWallAheadNs, 31 * kUs);
  EXPECT_FALSE(all->salvage.any());
}

TEST_F(WindowImportTest, AWindowIsImportedOnce) {
  WriteTrace(kTrace, 10, 12);
  SayClosed(kTrace, 10, 12);
  ASSERT_TRUE(Import().ok());
  for (int i = 0; i < 2; ++i) {
    const auto report = Import(/*again=*/true, /*all=*/true);
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->windows.empty());
    EXPECT_EQ(report->before, 1U);
  }
  EXPECT_EQ(store::ReadEverything(run())->rows.slices.size(), 6U);
  const auto verified = store::Verify(run());
  ASSERT_TRUE(verified.ok()) << verified.status().message();
  EXPECT_TRUE(verified->problems.empty()) << verified->problems.front().what;
  for (const auto& entry : fs::directory_iterator(run())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << "no scratch is left";
  }
}

TEST_F(WindowImportTest, InAChildWithLimits) {
  WriteTrace(kTrace, 10, 12);
  SayClosed(kTrace, 10, 12);
  const auto report = Import(false, false, /*in_child=*/true);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->windows.size(), 1U);
  EXPECT_EQ(report->windows[0].failure, "");
  EXPECT_EQ(store::ReadEverything(run())->rows.slices.size(), 6U);
}

TEST_F(WindowImportTest, WhatIsBeingWrittenIsLeft) {
  WriteTrace(kTrace, 10, 12);
  Write("windows/few/rank0-step14-42.pt.trace.json.part", "{");
  auto report = Import();
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->windows.empty());
  EXPECT_EQ(report->waiting, 1U);
  EXPECT_FALSE(fs::exists(run() / "windows-few-step10-42-rank0"));
  // Its process has died: nobody will say that it ended. Whose attempt it was is not known.
  report = Import(false, /*all=*/true);
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->windows.size(), 1U);
  EXPECT_EQ(report->windows[0].failure, "");
  EXPECT_TRUE(fs::exists(run() / "windows-few-step10-42-rank0"));
}

TEST_F(WindowImportTest, OneThatCannotBeReadIsAnEventAndTriedAgainOnlyWhenAsked) {
  WriteTrace(kTrace, 10, 12);
  SayClosed(kTrace, 10, 12);
  const std::string bad = "windows/few/rank0-step15-42.pt.trace.json";
  Write(bad, "neither this nor that");
  SayClosed(bad, 15, 15);
  auto report = Import();
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->windows.size(), 2U);
  EXPECT_EQ(report->windows[0].failure, "");
  EXPECT_NE(report->windows[1].failure, "");
  report = Import();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->before, 2U);
  auto all = store::ReadEverything(run());
  EXPECT_EQ(all->rows.slices.size(), 6U) << "the other one is there";
  const auto said =
      std::ranges::find(all->rows.events, "window.import_failed", &format::EventRow::kind);
  ASSERT_NE(said, all->rows.events.end());
  EXPECT_EQ(said->severity, "low");
  EXPECT_EQ(nlohmann::json::parse(said->data)["files"][0], bad);
  // By now it can be read.
  WriteTrace(bad, 15, 15);
  report = Import(/*again=*/true);
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->windows.size(), 1U);
  EXPECT_EQ(report->windows[0].failure, "");
  EXPECT_EQ(store::ReadEverything(run())->rows.slices.size(), 8U);
}

TEST_F(WindowImportTest, TwoDoNotImportAtOnce) {
  WriteTrace(kTrace, 10, 12);
  SayClosed(kTrace, 10, 12);
  const int other = ::open((run() / "windows").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  EXPECT_EQ(Import().status().code(), Code::kRunning);
  ::close(other);
  EXPECT_TRUE(Import().ok());
}

TEST_F(WindowImportTest, WhoReadsRulesRecordsIsNotToldOfIt) {
  WriteTrace(kTrace, 10, 12);
  SayClosed(kTrace, 10, 12);
  ASSERT_TRUE(Import().ok());
  const auto names = [&](std::uint32_t tables) {
    auto reader = store::RunReader::Open(run());
    auto cursor = (*reader)->NewCursor({.table_mask = tables});
    std::vector<store::OrderedRecord> records;
    EXPECT_TRUE((*cursor)->Next(1000, &records).ok());
    return (*cursor)->writers();
  };
  const std::uint32_t events = store::MaskOf(format::TableId::kEvents);
  EXPECT_EQ(names(events), std::vector<std::string>{"agent-n1"});
  EXPECT_EQ(names(events | store::MaskOf(format::TableId::kSlices)).size(), 2U);
}

TEST_F(WindowImportTest, OnATimelineAreAllStepsOfTheRun) {
  WriteTrace(kTrace, 10, 12);
  SayClosed(kTrace, 10, 12);
  ASSERT_TRUE(Import().ok());
  const auto order = query::SliceOrder::Load(run());
  ASSERT_TRUE(order.ok()) << order.status().message();
  const auto& lanes = (*order)->lanes();
  EXPECT_EQ(lanes.size(), 2U) << "the window's thread and the run's steps";
  EXPECT_TRUE(std::ranges::any_of(lanes, [](const auto& lane) { return lane.slices == 20; }));
}

TEST(WindowFilesTest, NamesOfFilesSayWhoseTheyAre) {
  const auto one = ReadWindowFileName("rank12-eval7-4711-eval-7-data_wait-off_cpu.pstats");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->rank, 12);
  EXPECT_EQ(one->mode, "EVAL");
  EXPECT_EQ(one->first, 7);
  EXPECT_EQ(one->pid, 4711);
  EXPECT_EQ(one->stem, "rank12-eval7-4711");
  EXPECT_TRUE(one->python);
  for (const char* other : {"rank0-step1-4711", "rank-step1-4.x", "rank0-steps1-4.x", "notes.txt",
                            "rank0-step-1-4.x", "rank0-step99999999999999999999-4.x", ""}) {
    EXPECT_FALSE(ReadWindowFileName(other)) << other;
  }
}

TEST_F(WindowImportTest, EachWindowHasTheStepsOfItsProcess) {
  format::Batch batch;
  for (const auto& [pid, mode] : {std::pair{42, "EVAL"}, std::pair{43, "TRAIN"}}) {
    for (std::int64_t step = 0; step < 20; ++step) {
      format::StepRow row;
      row.time_ns = row.ord_ns = BeginOf(step) + pid;
      row.step = step;
      row.mode = mode;
      row.rank = pid - 42;
      row.pid = pid;
      row.attempt = 2;
      batch.rows.steps.push_back(row);
    }
  }
  batch.watermark_ns = BeginOf(0);
  ASSERT_TRUE(writer_->Append(std::move(batch)).ok());
  std::vector<WindowRecording> windows;
  const auto window = [&](std::int64_t first, std::int64_t last, std::int32_t pid,
                          const char* mode = "TRAIN", std::uint32_t attempt = 2) {
    WindowRecording& one = windows.emplace_back();
    one.first = first;
    one.last = last;
    one.pid = pid;
    one.rank = pid - 42;
    one.mode = mode;
    one.attempt = attempt;
    one.said = true;
  };
  window(3, 15, 42);  // One around two others, and behind them.
  window(4, 5, 42);
  window(8, 9, 42);
  window(15, 99, 42);
  window(4, 5, 43);
  window(4, 5, 42, "EVAL");
  window(4, 5, 42, "TRAIN", 3);
  window(4, 5, 44);
  windows.emplace_back();  // Nobody has ended it.
  windows.back().first = 18;
  windows.back().mode = "TRAIN";
  windows.back().pid = 42;
  ASSERT_TRUE(ReadRunSteps(run(), &windows).ok());
  std::vector<std::size_t> steps;
  for (const WindowRecording& one : windows) steps.push_back(one.steps.size());
  EXPECT_EQ(steps, (std::vector<std::size_t>{13, 2, 2, 5, 2, 2, 0, 0, 2}));
  EXPECT_EQ(windows[0].steps.at(12).begin_ns, BeginOf(12));
  EXPECT_EQ(windows[4].steps.at(4).begin_ns, BeginOf(4) + 43);
  EXPECT_EQ(windows[5].steps.at(4).begin_ns, BeginOf(4) + 42);
}

TEST_F(WindowImportTest, NumbersBeyondAllTimeOverflowNothing) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  Say("clock.anchor", BeginOf(0) - kSecond + 1,
      fmt::format(R"({{"monotonic_ns":{},"realtime_ns":{},"run_ns":{}}})", kLeast, kMost,
                  BeginOf(0) - 2 * kSecond));
  WriteTrace(kTrace, 10, 12);
  SayClosed(kTrace, 10, 12);
  const auto found = FindWindowRecordings(run());
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_EQ(found->size(), 1U);
  EXPECT_EQ(found->front().monotonic_to_run_ns, kMost);
  EXPECT_LT(found->front().realtime_to_run_ns, 0);

  WindowRecording one;
  one.first = 5;
  one.anchored = true;
  one.monotonic_ns = one.monotonic_to_run_ns = kMost;
  one.realtime_ns = 1;
  for (std::int64_t step = 5; step < 9; ++step) one.steps[step] = {BeginOf(step), kMost};
  for (const std::int64_t at : {kLeast, kMost, std::int64_t{0}}) {
    const WindowClock clock =
        FitWindowClock(one, {{6, at, at}, {7, kMost, kMost}, {8, at, kLeast}});
    EXPECT_EQ(clock.by, "steps");
    EXPECT_GE(clock.uncertainty_ns, 0);
  }
  EXPECT_GE(FitWindowClock(one, {{5, kLeast, kLeast}}).uncertainty_ns, 0);
  EXPECT_EQ(FitWindowClock(one, {}).by, "clock");
  MarkSink marks("TRAIN");
  format::StepRow row;
  row.mode = "TRAIN";
  row.time_ns = row.duration_ns = kMost;
  marks.Step(row);
  EXPECT_EQ(marks.marks().at(0).end_ns, kMost);
}

WindowRecording Anchored() {
  WindowRecording one;
  one.first = 5;
  one.anchored = true;
  one.monotonic_to_run_ns = 1000 * kSecond;
  one.realtime_to_run_ns = -2 * kSecond;
  return one;
}

TEST(WindowClockTest, WithoutMarksTheClocksAtItsBegin) {
  WindowRecording one = Anchored();
  one.monotonic_ns = 50 * kSecond;
  one.realtime_ns = 1053 * kSecond;
  const WindowClock clock = FitWindowClock(one, {});
  EXPECT_EQ(clock.by, "clock");
  EXPECT_EQ(clock.shift_ns, -3 * kSecond);
  EXPECT_GT(clock.uncertainty_ns, 0);
}

TEST(WindowClockTest, OfARunOfBeforeTheAgentsAnchor) {
  const WindowClock clock = FitWindowClock(Anchored(), {});
  EXPECT_EQ(clock.by, "anchor");
  EXPECT_EQ(clock.shift_ns, -2 * kSecond);
  EXPECT_EQ(clock.uncertainty_ns, 50 * kMs);
  EXPECT_EQ(FitWindowClock(WindowRecording{}, {}).by, "none");
}

TEST(WindowClockTest, OfOneStepItsEnd) {
  WindowRecording one = Anchored();
  one.monotonic_ns = 50 * kSecond;
  one.realtime_ns = 1053 * kSecond;
  one.steps[5] = {100 * kMs, 110 * kMs};
  const std::vector<MarkedStep> marks = {{5, 3 * kSecond + 104 * kMs, 3 * kSecond + 111 * kMs}};
  WindowClock clock = FitWindowClock(one, marks);
  EXPECT_EQ(clock.by, "steps");
  EXPECT_EQ(clock.shift_ns, -3 * kSecond - kMs);
  EXPECT_EQ(clock.uncertainty_ns, kMs) << "so far from what the clocks say";
  one.early = true;
  clock = FitWindowClock(one, marks);
  EXPECT_EQ(clock.by, "clock") << "it ended within the step";
}

}  // namespace
}  // namespace telltale::interchange
