// SPDX-License-Identifier: Apache-2.0
// That TensorBoard itself reads the files is shown by tests/frameworks/test_tensorboard.py.
#include "interchange/tensorboard_export.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "interchange/tf_event.h"
#include "interchange/tf_record.h"
#include "store/store_testing.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> EventsOf(const fs::path& path) {
  const auto bytes = store::ReadWholeFile(path);
  EXPECT_TRUE(bytes.ok());
  std::vector<std::string> events;
  for (std::string_view left = *bytes; !left.empty();) {
    const auto payload = RecordPayload(left);
    if (!payload) {
      ADD_FAILURE() << "a damaged record";
      break;
    }
    events.emplace_back(*payload);
    left.remove_prefix(payload->size() + kRecordFrameBytes);
  }
  return events;
}

class TensorBoardExport : public ::testing::Test {
 protected:
  void SetUp() override {
    store::MakeRun(run_);
    auto opened = store::Writer::Open(run_ / "agent-a", "agent-a");
    ASSERT_TRUE(opened.ok());
    format::Batch batch = store::Scalars(0, 100);
    format::ScalarRow second = batch.rows.scalars.back();
    second.rank = 1;
    second.mode = "EVAL";
    batch.rows.scalars.push_back(second);
    second.mode = "../../outside";
    second.rank = 0;
    batch.rows.scalars.push_back(second);
    format::HistogramRow histogram;
    histogram.ord_ns = histogram.time_ns = 990;
    histogram.name = "conv1.weight";
    histogram.collection = "weights";
    histogram.mode = "TRAIN";
    histogram.step = 99;
    histogram.count = histogram.taken = 6;
    histogram.min = -1;
    histogram.max = 1;
    histogram.bins = "[1,2,0,3]";
    batch.rows.histograms.push_back(histogram);
    histogram.taken = 0;
    histogram.min = histogram.max = std::numeric_limits<double>::quiet_NaN();
    histogram.bins = "[]";
    batch.rows.histograms.push_back(histogram);
    format::StatisticRow statistics;
    statistics.ord_ns = statistics.time_ns = 990;
    statistics.name = "conv1.weight";
    statistics.collection = "weights";
    statistics.mode = "TRAIN";
    statistics.step = 99;
    statistics.mean = 0.25;
    batch.rows.statistics.push_back(statistics);
    ASSERT_TRUE((*opened)->Append(std::move(batch)).ok());
    ASSERT_TRUE((*opened)->Close(true).ok());
  }

  const store::TempFolder folder_;
  const fs::path run_ = folder_.path() / "run";
  const fs::path out_ = folder_.path() / "out" / "logs";
};

TEST_F(TensorBoardExport, WritesAFileAModeAndRank) {
  const auto report = ExportTensorBoard(run_, out_);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->scalars, 102U);
  EXPECT_EQ(report->histograms, 1U);
  EXPECT_EQ(report->empty_histograms, 1U);
  ASSERT_EQ(report->files.size(), 3U);
  std::map<std::string, fs::path> by_folder;
  for (const fs::path& file : report->files) {
    by_folder[file.parent_path().filename().string()] = file;
    EXPECT_EQ(file.parent_path().parent_path(), out_) << "nothing outside of the folder";
  }
  ASSERT_TRUE(by_folder.contains("TRAIN") && by_folder.contains("EVAL_rank1") &&
              by_folder.contains("OTHER"));
  const std::vector<std::string> events = EventsOf(by_folder["TRAIN"]);
  ASSERT_EQ(events.size(), 102U) << "the version, 100 scalars, a histogram";
  EXPECT_NE(events[0].find("brain.Event:2"), std::string::npos);
  for (int i = 0; i < 100; ++i) {
    const auto event = ParseEvent(events[static_cast<std::size_t>(i) + 1]);
    ASSERT_TRUE(event.ok());
    ASSERT_EQ(event->values.size(), 1U);
    ASSERT_EQ(event->step, i);
    ASSERT_EQ(event->values[0].simple, static_cast<double>(i));
    ASSERT_EQ(event->values[0].tag, "loss");
  }
}

TEST_F(TensorBoardExport, WritesStatisticsWhereAsked) {
  const auto report = ExportTensorBoard(run_, out_, {.statistics = true});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->scalars, 108U);
}

TEST_F(TensorBoardExport, WritesOverNothing) {
  ASSERT_TRUE(ExportTensorBoard(run_, out_).ok());
  const auto again = ExportTensorBoard(run_, out_);
  EXPECT_EQ(again.status().code(), Code::kUsage);
  EXPECT_TRUE(ExportTensorBoard(run_, folder_.path() / "other").ok());
}

TEST_F(TensorBoardExport, TakesARunOfALongName) {
  const fs::path named = folder_.path() / std::string(250, 'r');
  fs::rename(run_, named);
  const auto report = ExportTensorBoard(named, out_);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->files.size(), 3U);
}

TEST_F(TensorBoardExport, SaysThatThereIsNoRun) {
  EXPECT_EQ(ExportTensorBoard(folder_.path() / "none", out_).status().code(), Code::kUnusable);
}

}  // namespace
}  // namespace telltale::interchange
