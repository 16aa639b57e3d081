// SPDX-License-Identifier: Apache-2.0
// telltale/read.h through telltale/read.hpp, as a program outside uses it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/json.h"
#include "rules/finding_json.h"
#include "rules/replay.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"
#include "telltale/read.hpp"

namespace telltale {
namespace {

namespace fs = std::filesystem;

class ReadApi : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::SampleRun sample;
    sample.steps = 120;
    const Status written = testing::WriteRun(run_, sample);
    ASSERT_TRUE(written.ok()) << written.message();
  }

  const testing::TempFolder folder_{"read"};
  const fs::path run_ = folder_.path();
};

TEST_F(ReadApi, GivesColumnsOfEveryType) {
  Error error;
  auto run = Run::Open(run_, &error);
  ASSERT_TRUE(run) << error.message;
  auto steps = run->Table("steps", &error);
  ASSERT_TRUE(steps) << error.message;
  Batch batch;
  std::int64_t next = 0;
  while (steps->Next(&batch, &error)) {
    EXPECT_EQ(batch.table(), "steps");
    const auto* const number = batch.Column<std::int64_t>("step");
    const auto* const seq = batch.Column<std::uint64_t>("seq");
    const auto* const rank = batch.Column<std::int32_t>("rank");
    const auto* const attempt = batch.Column<std::uint32_t>("attempt");
    const TextColumn mode = batch.Text("mode");
    const TextColumn writer = batch.Text("writer");
    ASSERT_TRUE(number != nullptr && seq != nullptr && rank != nullptr && attempt != nullptr);
    ASSERT_TRUE(mode && writer);
    EXPECT_EQ(batch.Column<double>("step"), nullptr) << "another type";
    EXPECT_EQ(batch.Column<std::int64_t>("nothing"), nullptr);
    for (std::int64_t i = 0; i < batch.rows(); ++i, ++next) {
      EXPECT_EQ(number[i], next);
      EXPECT_EQ(seq[i], static_cast<std::uint64_t>(next) + 1);
      EXPECT_EQ(rank[i], 0);
      EXPECT_EQ(attempt[i], 1U);
      EXPECT_EQ(mode[i], "TRAIN");
      EXPECT_EQ(writer[i], "agent-sample");
    }
  }
  EXPECT_EQ(error.code, 0) << error.message;
  EXPECT_EQ(next, 120);
  auto ledger = run->Table("ledger", &error);
  ASSERT_TRUE(ledger) << error.message;
  std::set<std::string> losses;
  while (ledger->Next(&batch, &error)) {
    for (std::int64_t i = 0; i < batch.rows(); ++i) {
      if (batch.Bool("loss")[i]) losses.emplace(batch.Text("name")[i]);
    }
  }
  EXPECT_EQ(losses, std::set<std::string>{"probe.records_dropped"});
}

TEST_F(ReadApi, NarrowsToColumnsAndRows) {
  Error error;
  auto run = Run::Open(run_, &error);
  ASSERT_TRUE(run) << error.message;
  auto losses = run->Table("scalars", &error, {"value", "step"}, "name = 'loss' and step >= 100");
  ASSERT_TRUE(losses) << error.message;
  Batch batch;
  std::int64_t rows = 0;
  while (losses->Next(&batch, &error)) {
    ASSERT_EQ(batch.schema()->n_children, 2);
    EXPECT_STREQ(batch.schema()->children[0]->name, "value");
    for (std::int64_t i = 0; i < batch.rows(); ++i) {
      EXPECT_GE(batch.Column<std::int64_t>("step")[i], 100);
    }
    rows += batch.rows();
  }
  EXPECT_EQ(rows, 20);
}

TEST_F(ReadApi, SaysWhatIsWrongInOneLine) {
  Error error;
  EXPECT_FALSE(Run::Open(run_ / "nothing", &error));
  EXPECT_EQ(error.code, TT_READ_UNUSABLE);
  EXPECT_NE(error.message.find("nothing"), std::string::npos) << error.message;
  auto run = Run::Open(run_, &error);
  ASSERT_TRUE(run);
  EXPECT_FALSE(run->Table("stepps", &error));
  EXPECT_EQ(error.code, TT_READ_USAGE);
  EXPECT_NE(error.message.find("steps"), std::string::npos) << error.message;
  EXPECT_FALSE(run->Table("steps", &error, {"durations"}));
  EXPECT_NE(error.message.find("duration_ns"), std::string::npos) << error.message;
  EXPECT_FALSE(run->Table("steps", &error, {}, "step >="));
  EXPECT_EQ(error.code, TT_READ_USAGE);
  EXPECT_FALSE(run->Follow({}, &error));
  EXPECT_EQ(error.code, TT_READ_USAGE);
  EXPECT_EQ(error.message.find('\n'), std::string::npos);
}

TEST_F(ReadApi, FindingsAreThoseOfTheRules) {
  Error error;
  auto run = Run::Open(run_, &error);
  ASSERT_TRUE(run) << error.message;
  const auto text = run->Findings(&error);
  ASSERT_TRUE(text) << error.message;
  const auto replay = rules::ReplayRun(run_);
  ASSERT_TRUE(replay.ok());
  nlohmann::ordered_json expected = nlohmann::ordered_json::array();
  for (const rules::Finding& finding : replay->findings) expected.push_back(ToJson(finding));
  ASSERT_FALSE(expected.empty()) << "the sample waits for its data";
  EXPECT_EQ(ParseOrderedJson(*text), expected);
  const auto info = ParseJson(*run->Info(&error));
  EXPECT_EQ(info["state"], "finished");
  EXPECT_EQ(info["attempts"].size(), 1U);
}

TEST_F(ReadApi, AStreamOutlivesItsRun) {
  Error error;
  auto run = Run::Open(run_, &error);
  ASSERT_TRUE(run) << error.message;
  auto steps = run->Table("steps", &error);
  ASSERT_TRUE(steps);
  run.reset();
  Batch batch;
  std::int64_t rows = 0;
  while (steps->Next(&batch, &error)) rows += batch.rows();
  EXPECT_EQ(rows, 120);
}

TEST_F(ReadApi, ADamagedRunGivesTheRestAndCountsTheLoss) {
  const fs::path folder = run_ / "agent-sample";
  bool damaged = false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("steps-")) continue;
    std::ofstream(entry.path(), std::ios::binary | std::ios::trunc) << "no parquet";
    damaged = true;
  }
  ASSERT_TRUE(damaged) << "the run has a segment of steps";
  Error error;
  auto run = Run::Open(run_, &error);
  ASSERT_TRUE(run) << error.message;
  Batch batch;
  const auto count = [&](const std::string& name) {
    auto table = run->Table(name, &error);
    std::int64_t rows = 0;
    while (table && table->Next(&batch, &error)) rows += batch.rows();
    return rows;
  };
  EXPECT_EQ(count("spans"), 120) << "of another segment";
  EXPECT_EQ(count("steps"), 0);
  EXPECT_EQ(error.code, 0) << error.message;
  const auto damage = ParseJson(*run->Damage(&error));
  EXPECT_EQ(damage["unreadable_files"], 1) << damage;
  EXPECT_EQ(damage["missing_rows"], 120) << damage;
}

}  // namespace
}  // namespace telltale
