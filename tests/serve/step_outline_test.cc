// SPDX-License-Identifier: Apache-2.0
// What is shown of a long run before its records are read: the step times of all of it.
#include "server/step_outline.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "server/live_run.h"
#include "store/folder.h"
#include "store/writer.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"

namespace telltale::server {
namespace {

namespace fs = std::filesystem;
using Steady = std::chrono::steady_clock;

constexpr std::int64_t kWholeRun = std::numeric_limits<std::int64_t>::max() / 4;

class StepOutlineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sample_.steps = 6000;
    sample_.start_ns = 1'700'000'000'000'000'000;  // That of the FakeClock.
  }

  /// Sealed every quarter of the run, into a folder of its own.
  void Write(const std::string& name) {
    fs::create_directories(run_);
    ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample_, true)).ok());
    const std::int64_t quarter = sample_.steps * sample_.step_ns / 4;
    FakeClock clock;
    store::WriterOptions options;
    options.clock = &clock;
    options.seal_interval_ns = quarter;
    options.sync_interval_ns = quarter;
    auto writer = store::Writer::Open(run_ / name, name, options);
    ASSERT_TRUE(writer.ok());
    const std::int64_t batch = quarter / 10;
    for (format::Batch& one : testing::Cut(testing::MakeRows(sample_, &pool_), batch)) {
      ASSERT_TRUE((*writer)->Append(std::move(one)).ok());
      clock.Advance(batch);
      ASSERT_TRUE((*writer)->Tick().ok());
    }
    ASSERT_TRUE((*writer)->Close(true).ok());
  }
  std::vector<fs::path> Segments(const std::string& writer) const {
    std::vector<fs::path> out;
    const auto listing = store::ListFolder(run_ / writer);
    for (const auto& segment : listing->segments) {
      if (segment.table == format::TableId::kSteps) out.push_back(run_ / writer / segment.file);
    }
    return out;
  }
  std::optional<StepOutline> Read() const {
    return ReadStepOutline(run_, sample_.start_ns, Steady::now() + std::chrono::minutes(5));
  }
  static std::size_t Points(const StepOutline& outline) {
    return outline.duration.Query(-kWholeRun, kWholeRun, 1 << 20).t.size();
  }

  const testing::TempFolder folder_{"outline"};
  const fs::path run_ = folder_.path() / "one";
  testing::SampleRun sample_;
  StringPool pool_;
};

TEST_F(StepOutlineTest, HasEachStepOfTheSealedRun) {
  Write("agent-a");
  ASSERT_GE(Segments("agent-a").size(), 3U);
  const auto outline = Read();
  ASSERT_TRUE(outline);
  EXPECT_TRUE(outline->whole);
  EXPECT_EQ(outline->rank, 0);
  EXPECT_EQ(Points(*outline), 6000U);
  ASSERT_FALSE(outline->marks.empty());
  EXPECT_EQ(outline->marks.front().second, 0);
  EXPECT_GT(outline->marks.back().second, 5900);
}

TEST_F(StepOutlineTest, IsOfTheLowestRankThatTrains) {
  sample_.rank = 1;
  Write("agent-a");
  ASSERT_EQ(Read()->rank, 1);
  sample_.rank = 0;
  sample_.steps = 4000;
  Write("agent-b");
  const auto outline = Read();
  ASSERT_TRUE(outline);
  EXPECT_EQ(outline->rank, 0);
  EXPECT_EQ(Points(*outline), 4000U);
}

TEST_F(StepOutlineTest, ADamagedSegmentLeavesTheOthers) {
  Write("agent-a");
  const auto segments = Segments("agent-a");
  fs::resize_file(segments[1], fs::file_size(segments[1]) / 2);
  const auto outline = Read();
  ASSERT_TRUE(outline);
  EXPECT_LT(Points(*outline), 6000U);
  EXPECT_GT(Points(*outline), 2000U);
}

TEST_F(StepOutlineTest, ThereIsNoneWhereTheRecordsAreReadAsFast) {
  EXPECT_FALSE(Read()) << "no run at all";
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  EXPECT_FALSE(Read());
}

TEST_F(StepOutlineTest, WithoutTimeItHasWhatItCameTo) {
  Write("agent-a");
  EXPECT_FALSE(ReadStepOutline(run_, sample_.start_ns, Steady::now()));
}

/// The chart is whole before the records are, and the same afterwards.
TEST_F(StepOutlineTest, TheFirstChartIsOfTheWholeRun) {
  Write("agent-a");
  LiveRun run("one", run_);
  SeriesQuery query;
  query.kind = SeriesKind::kSteps;
  query.name = "duration";
  query.with_step = true;
  query.to_ns = sample_.steps * sample_.step_ns;
  ASSERT_TRUE(run.Advance(std::chrono::milliseconds(0))) << "there is more to read";
  ASSERT_LT(run.data().summary.train_steps(), 3000);
  ASSERT_GT(run.data().summary.train_steps(), 0);
  const auto first = run.Series(query);
  ASSERT_TRUE(first.ok()) << first.status().message();
  while (run.Advance(std::chrono::minutes(1))) {
  }
  EXPECT_EQ(run.data().summary.train_steps(), 6000);
  const auto last = run.Series(query);
  ASSERT_TRUE(last.ok());
  const auto outlined = ParseJson(*first);
  const auto read = ParseJson(*last);
  for (const char* const column : {"t", "min", "max", "med"}) {
    EXPECT_EQ(outlined[column], read[column]) << column;
  }
  ASSERT_EQ(outlined["step"].size(), read["step"].size());
  EXPECT_NEAR(outlined["step"].back().get<double>(), read["step"].back().get<double>(), 64);
}

}  // namespace
}  // namespace telltale::server
