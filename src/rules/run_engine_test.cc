// SPDX-License-Identifier: Apache-2.0
// The engine of a run and the values that its rules read.
#include "rules/run_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rules/replay.h"
#include "rules/run_values.h"
#include "store/reader.h"
#include "store/store_testing.h"
#include "store/tensor_file.h"
#include "store/writer.h"

namespace telltale::rules {
namespace {

/// Names of the rules of an engine.
std::vector<std::string> NamesOf(const Engine& engine) {
  std::vector<std::string> out;
  for (const RuleState& state : engine.rule_states()) out.push_back(state.name);
  return out;
}

bool Has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

TEST(RunEngineTest, RunsTheRulesOfTheRunAndThoseThatAreAskedForInstead) {
  store::RunInfo info;
  EXPECT_TRUE(Has(NamesOf(EngineOf("r", info)->engine), "InputBound"));
  info.rules = R"({"off": ["InputBound"], "rules": {"mine": {"rule": "StepOutlier"}}})";
  const auto own = EngineOf("r", info);
  ASSERT_TRUE(own.ok());
  EXPECT_TRUE(own->trouble.empty());
  EXPECT_FALSE(Has(NamesOf(own->engine), "InputBound"));
  EXPECT_TRUE(Has(NamesOf(own->engine), "mine"));
  for (const RuleState& state : own->engine.rule_states()) {
    if (state.name == "mine") {
      EXPECT_EQ(state.rule, "StepOutlier");
    }
  }
  RuleSet other;
  other.defaults = false;
  other.rules.push_back(ParseRule("InputBound").value());
  EXPECT_EQ(NamesOf(EngineOf("r", info, other)->engine), std::vector<std::string>{"InputBound"});
  other.rules.push_back({.name = "x", .rule = "NoSuchRule"});
  EXPECT_EQ(EngineOf("r", info, other).status().code(), Code::kUsage);
}

TEST(RunEngineTest, ARunWhoseRulesCannotBeReadIsJudgedByTheDefaults) {
  store::RunInfo info;
  for (const char* rules : {R"({"rules": {"OfLater": {}}})", R"({"later": 1})", "[]", "{"}) {
    info.rules = rules;
    const auto engine = EngineOf("r", info);
    ASSERT_TRUE(engine.ok()) << rules;
    EXPECT_NE(engine->trouble.find("cannot be read"), std::string::npos) << rules;
    EXPECT_TRUE(Has(NamesOf(engine->engine), "InputBound")) << rules;
  }
}

/// A run whose only writer has stored the float tensor `a` of three elements at steps 0 to 2, and
/// of step 3 its shape.
class RunValuesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store::MakeRun(run_);
    auto writer = store::Writer::Open(folder_, "agent-a");
    ASSERT_TRUE(writer.ok());
    bool no_space = false;
    auto file = store::TensorFileWriter::Create(folder_, 1, &no_space);
    ASSERT_TRUE(file.ok());
    for (int step = 0; step < 4; ++step) {
      format::TensorRow row{.ord_ns = 10 + step,
                            .time_ns = 10 + step,
                            .name = "a",
                            .collection = "weights",
                            .dtype = "F32",
                            .shape = "[3]",
                            .step = step,
                            .mode = "TRAIN",
                            .attempt = 1,
                            .pid = 7};
      const std::array<float, 3> values = {static_cast<float>(step), 1.5F, -2.0F};
      store::Placed placed;
      if (step < 3) {
        auto appended = (*file)->Append(row, std::as_bytes(std::span(values)));
        ASSERT_TRUE(appended.ok()) << appended.status().message();
        placed = *appended;
        row.file = (*file)->file();
        row.offset = placed.offset;
        row.bytes = placed.bytes;
        row.digest = placed.digest;
      }
      format::Batch batch;
      batch.rows.tensors.push_back(row);
      ASSERT_TRUE((*writer)->Append(batch).ok());
    }
    ASSERT_TRUE((*writer)->Close(true).ok());
    auto reader = store::RunReader::Open(run_);
    ASSERT_TRUE(reader.ok());
    reader_ = std::move(reader).value();
    auto cursor = reader_->NewCursor();
    ASSERT_TRUE(cursor.ok());
    cursor_ = std::move(cursor).value();
    ASSERT_TRUE(cursor_->Next(100, &records_).ok());
    ASSERT_EQ(records_.size(), 4U);
  }

  store::TempFolder temp_;
  const std::filesystem::path run_ = temp_.path() / "run";
  const std::filesystem::path folder_ = run_ / "agent-a";
  std::unique_ptr<store::RunReader> reader_;
  std::unique_ptr<store::Cursor> cursor_;
  std::vector<store::OrderedRecord> records_;
};

TEST_F(RunValuesTest, AreReadByTheirRecord) {
  RunValues values(run_);
  EXPECT_EQ(values.Read({records_[0], 0}, 10).status().code(), Code::kUnusable) << "no cursor";
  values.Follow(cursor_.get());
  for (int round = 0; round < 2; ++round) {
    for (int step = 0; step < 3; ++step) {
      const auto read = values.Read({records_[static_cast<std::size_t>(step)], 0}, 10);
      ASSERT_TRUE(read.ok()) << read.status().message();
      EXPECT_EQ(*read, (std::vector<double>{static_cast<double>(step), 1.5, -2}));
    }
  }
  EXPECT_EQ(values.Read({records_[3], 0}, 10).status().code(), Code::kUsage) << "only its shape";
}

TEST_F(RunValuesTest, FewerAreReadWhereFewerAreAsked) {
  RunValues values(run_);
  values.Follow(cursor_.get());
  EXPECT_EQ(*values.Read({records_[1], 0}, 1), std::vector<double>{1});
  EXPECT_EQ(values.Read({records_[1], 0}, 10)->size(), 3U) << "what was read before was a part";
  EXPECT_EQ(values.Read({records_[1], 0}, 2)->size(), 2U);
}

TEST_F(RunValuesTest, OfAFileThatIsGoneAreSaidToBeGone) {
  std::filesystem::remove_all(folder_ / "tensors");
  RunValues values(run_);
  values.Follow(cursor_.get());
  EXPECT_EQ(values.Read({records_[0], 0}, 10).status().code(), Code::kUnusable);
}

}  // namespace
}  // namespace telltale::rules
