// SPDX-License-Identifier: Apache-2.0
// The rules that judge tensors, where a script cannot say it: values that cannot be read, or that
// come late; histograms.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rules/engine.h"

namespace telltale::rules {
namespace {

constexpr std::int64_t kEpoch = 1'800'000'000'000'000'000;
constexpr std::int64_t kStepNs = 10'000'000;

/// Values by step; others cannot be read.
class FakeValues final : public TensorValues {
 public:
  Result<std::vector<double>> Read(const Record& record, std::size_t limit) override {
    const auto found = values.find(record.As<format::TensorRow>()->step);
    if (found == values.end()) return Status(Code::kPartial, "the file is gone");
    std::vector<double> out = found->second;
    if (out.size() > limit) out.resize(limit);
    return out;
  }
  std::map<std::int64_t, std::vector<double>> values;
};

class TensorRuleTest : public ::testing::Test {
 protected:
  void Start(std::string_view name, std::map<std::string, std::string> parameters = {}) {
    const RuleEntry* entry = FindRule(name);
    ASSERT_NE(entry, nullptr);
    Parameters of_rule(*entry->desc);
    for (const auto& [key, value] : parameters) ASSERT_TRUE(of_rule.SetText(key, value).ok());
    std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
    rules.emplace_back(entry->desc, entry->make(of_rule));
    engine_ = std::make_unique<Engine>(std::move(rules));
    engine_->Bind({&values_, ""});
  }

  template <class Row>
  static void Fill(Row* row, std::int64_t step) {
    row->step = step;
    row->mode = "TRAIN";
    row->pid = 100;
    row->attempt = 1;
    row->time_ns = row->ord_ns = kEpoch + step * kStepNs + kStepNs / 2;
  }
  template <class Row>
  void Feed(const Row& row) {
    engine_->Feed({row.ord_ns, 0, Row::kTable, &row});
  }

  void Steps(std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from; step < to; ++step) {
      format::StepRow row;
      Fill(&row, step);
      row.time_ns = kEpoch + step * kStepNs;
      row.ord_ns = row.time_ns + kStepNs;
      row.duration_ns = row.forward_ns = kStepNs;
      Feed(row);
    }
  }
  void Values(std::int64_t step, std::string_view digest, std::string_view shape = "[4,2]") {
    format::TensorRow row;
    Fill(&row, step);
    row.name = "1.output";
    row.collection = "activations";
    row.shape = shape;
    row.file = "tensors/1.safetensors";
    row.digest = digest;
    Feed(row);
  }
  void Statistics(std::int64_t step, std::uint64_t zeros) {
    format::StatisticRow row;
    Fill(&row, step);
    row.name = "1.output";
    row.collection = "activations";
    row.count = 1000;
    row.zero_count = zeros;
    row.max = 1;
    Feed(row);
  }

  FakeValues values_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(TensorRuleTest, ValuesThatCannotBeReadLeaveItToStatistics) {
  Start("DeadRelu");
  for (std::int64_t step = 0; step < 400; step += 100) {
    Statistics(step, 1000);
    Values(step, "");
    Steps(step, step + 100);
  }
  ASSERT_EQ(engine_->findings().size(), 1U);
  EXPECT_NE(engine_->findings()[0].incident.cause.find("at least"), std::string::npos);
}

TEST_F(TensorRuleTest, ValuesThatComeLateGoBeforeStatistics) {
  // Half of the outputs are zero: what the statistics prove is nothing, but one unit is dead.
  Start("DeadRelu", {{"threshold_inactivity", "25"}, {"threshold_layer", "40"}});
  for (std::int64_t step = 0; step < 400; step += 100) {
    values_.values[step] = {0, 1, 0, 2, 0, 3, 0, 4};
    Statistics(step, 500);
    Steps(step, step + 50);
    Values(step, "");
    Steps(step + 50, step + 100);
  }
  ASSERT_EQ(engine_->findings().size(), 1U);
  const Incident& incident = engine_->findings()[0].incident;
  EXPECT_EQ(incident.first_step, 0);
  EXPECT_NE(incident.cause.find("of the 2 units"), std::string::npos);
  EXPECT_LE(std::count(incident.message.begin(), incident.message.end(), ' '), 7);
}

TEST_F(TensorRuleTest, ShapesThatAreNoneHarmNothing) {
  Start("DeadRelu", {{"threshold_inactivity", "25"}});
  values_.values[0] = {1, 2, 3};
  values_.values[100] = {};
  Values(0, "", "[4,");
  Values(100, "", "[0,3]");
  Values(200, "", "[18446744073709551615,18446744073709551615]");
  Steps(0, 300);
  engine_->End();
  EXPECT_TRUE(engine_->findings().empty());
  EXPECT_EQ(engine_->rule_states()[0].status, RuleStatus::kNoData);
}

TEST_F(TensorRuleTest, AnImageOfThreeMillionElementsIsRead) {
  Start("CheckInputImages", {{"regex", "1.output"}, {"threshold_samples", "1"}});
  values_.values[0] = std::vector<double>(std::size_t{3} << 20U, 0.5);
  Values(0, "", "[1,3,1024,1024]");
  Steps(0, 1);
  ASSERT_EQ(engine_->findings().size(), 1U);
  EXPECT_NE(engine_->findings()[0].incident.cause.find("mean of 0.5"), std::string::npos);
}

TEST_F(TensorRuleTest, TheSameBytesAreUnchangedWithoutBeingRead) {
  Start("UnchangedTensor", {{"collection_names", "activations"}});
  for (std::int64_t step = 0; step < 400; step += 100) {
    Values(step, "0123");
    Steps(step, step + 100);
  }
  EXPECT_EQ(engine_->findings().size(), 1U);
  Start("UnchangedTensor", {{"collection_names", "activations"}});
  for (std::int64_t step = 0; step < 400; step += 100) {
    const std::string digest = std::to_string(step);
    Values(step, digest);
    Steps(step, step + 100);
  }
  EXPECT_TRUE(engine_->findings().empty());
}

TEST_F(TensorRuleTest, AHistogramSaysHowNarrowAGradientIs) {
  for (const bool narrow : {true, false}) {
    Start("PoorWeightInitialization");
    format::HistogramRow row;
    Fill(&row, 0);
    row.name = "gradient/a.weight";
    row.collection = "gradients";
    row.count = row.taken = 1000;
    row.quantiles = narrow ? "[-2,-1e-4,0,0,0,0,0,1e-4,2]" : "[-2,-1,0,0,0,0,0,1,2]";
    Feed(row);
    Steps(0, 40);
    // A run that ends says it; while it goes on the rule waits whether the loss falls.
    engine_->End();
    ASSERT_EQ(engine_->findings().size(), narrow ? 1U : 0U);
    EXPECT_EQ(engine_->rule_states()[0].status,
              narrow ? RuleStatus::kIssuesFound : RuleStatus::kNoIssuesFound);
  }
}

TEST_F(TensorRuleTest, RowsAfterTheEndOfTheirProcessAreLeft) {
  Start("AllZero");
  const auto exit = [&](std::int64_t step) {
    format::EventRow row;
    row.kind = "process.exit";
    row.pid = 100;
    row.attempt = 1;
    row.time_ns = row.ord_ns = kEpoch + step * kStepNs;
    Feed(row);
  };
  Statistics(0, 1000);
  Statistics(100, 1000);
  Steps(0, 200);
  exit(200);
  ASSERT_EQ(engine_->findings().size(), 1U);
  EXPECT_FALSE(engine_->findings()[0].open);
  Statistics(150, 1000);
  engine_->End();
  EXPECT_EQ(engine_->findings().size(), 1U);
}

}  // namespace
}  // namespace telltale::rules
