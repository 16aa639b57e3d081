// SPDX-License-Identifier: Apache-2.0
// The report of a training that is fed record by record.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/engine.h"
#include "rules/registry.h"

namespace telltale::rules {
namespace {

/// Values by the row's digest.
class Values final : public TensorValues {
 public:
  Result<std::vector<double>> Read(const Record& record, std::size_t limit) override {
    const auto* row = record.As<format::TensorRow>();
    std::vector<double> values = kept.at(std::string(row->digest));
    values.resize(std::min(values.size(), limit));
    return values;
  }
  std::map<std::string, std::vector<double>> kept;
};

class CreateXgboostReportTest : public testing::Test {
 protected:
  CreateXgboostReportTest() {
    const RuleEntry* entry = FindRule("CreateXgboostReport");
    std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
    rules.emplace_back(entry->desc, entry->make(Parameters(*entry->desc)));
    engine_ = std::make_unique<Engine>(std::move(rules));
    engine_->Bind({&values_, ""});
  }

  template <class Row>
  void Feed(Row row) {
    row.rank = 0;
    row.pid = 100;
    row.attempt = 1;
    row.time_ns = row.ord_ns = ++now_;
    engine_->Feed({row.ord_ns, 0, Row::kTable, &row});
  }
  void Training(const char* objective) {
    const std::string data =
        R"({"training":1,"hyperparameters":{"objective":")" + std::string(objective) + "\"}}";
    Feed(format::EventRow{.kind = "boosting.start", .data = data});
  }
  void Tensor(const std::string& name, std::int64_t step, const std::vector<double>& values,
              const std::string& shape) {
    const std::string digest = name + std::to_string(step);
    values_.kept[digest] = values;
    Feed(format::TensorRow{.name = name,
                           .collection = "x",
                           .dtype = "F32",
                           .shape = shape,
                           .step = step,
                           .mode = "TRAIN",
                           .bytes = 4 * values.size(),
                           .digest = digest});
  }
  nlohmann::ordered_json Model() {
    engine_->End();
    const auto states = engine_->rule_states();
    const auto summary = ParseOrderedJson(states.at(0).summary);
    EXPECT_TRUE(summary.is_object()) << states.at(0).summary;
    return summary.is_object() ? summary["models"][0] : nlohmann::ordered_json();
  }

  Values values_;
  std::unique_ptr<Engine> engine_;
  std::int64_t now_ = 0;
};

TEST_F(CreateXgboostReportTest, OfABinaryClassifier) {
  Training("binary:logistic");
  for (int step = 0; step < 3; ++step) {
    Feed(format::ScalarRow{
        .name = "test-logloss", .value = 0.5 - 0.1 * step, .step = step, .mode = "TRAIN"});
    Tensor("feature_importance/gain/age", step, {0.75}, "[]");
    Tensor("feature_importance/gain/height", step, {0.25}, "[]");
    Tensor("predictions", step, {0.1, 0.4, 0.35, 0.8}, "[4]");
    Tensor("labels", step, {0, 0, 1, 1}, "[4]");
  }
  const auto model = Model();
  EXPECT_EQ(model["objective"], "binary:logistic");
  EXPECT_EQ(model["step"], 2);
  EXPECT_EQ(JsonText(model["loss"][0]["values"]), "[0.5,0.4,0.3]");
  EXPECT_EQ(model["feature_importance"]["gain"]["features"][0]["feature"], "age");
  EXPECT_EQ(model["feature_importance"]["gain"]["features"][0]["share"], 0.75);
  EXPECT_EQ(JsonText(model["label_distribution"]["counts"]), R"({"0":2,"1":2})");
  EXPECT_EQ(JsonText(model["confusion_matrix"]["counts"]), "[[2,0],[1,1]]");
  EXPECT_EQ(model["evaluation"]["accuracy"], 0.75);
  EXPECT_EQ(model["accuracy_by_step"].size(), 3U);
  EXPECT_EQ(JsonText(model["accuracy_by_step"][2]["by_class"]), "[1.0,0.5]");
  EXPECT_EQ(model["roc"]["auc"], 0.75);
  EXPECT_FALSE(model.contains("residuals"));
  EXPECT_EQ(engine_->rule_states().at(0).status, RuleStatus::kNoIssuesFound);
}

TEST_F(CreateXgboostReportTest, OfARegression) {
  Training("reg:squarederror");
  Tensor("labels", 4, {0, 1, 9, 10}, "[4]");
  Tensor("predictions", 4, {1, 1, 9, 13}, "[4]");
  const auto model = Model();
  EXPECT_EQ(model["label_distribution"]["kind"], "histogram");
  EXPECT_EQ(model["residuals"]["mean"], -1.0);
  EXPECT_EQ(model["error_by_label"].size(), 10U);
  EXPECT_EQ(model["error_by_label"][9]["mean_absolute_error"], 1.5);
  EXPECT_FALSE(model.contains("confusion_matrix"));
}

TEST_F(CreateXgboostReportTest, ASecondTrainingTakesThePlaceOfTheFirst) {
  Training("binary:logistic");
  Feed(format::ScalarRow{.name = "a-logloss", .value = 1, .step = 0, .mode = "TRAIN"});
  Training("reg:squarederror");
  Feed(format::ScalarRow{.name = "b-rmse", .value = 2, .step = 1, .mode = "TRAIN"});
  const auto model = Model();
  EXPECT_EQ(model["loss"].size(), 1U);
  EXPECT_EQ(model["loss"][0]["name"], "b-rmse");
}

TEST_F(CreateXgboostReportTest, ACurveIsThinnedAndEndsWithTheNewestRound) {
  Training("binary:logistic");
  for (int step = 0; step < 512; ++step) {
    Feed(format::ScalarRow{.name = "test-logloss", .value = 1.0, .step = step, .mode = "TRAIN"});
  }
  const auto model = Model();
  const auto& steps = model["loss"][0]["steps"];
  EXPECT_EQ(steps.size(), 257U);
  EXPECT_EQ(steps[0], 0);
  EXPECT_EQ(steps[1], 2);
  EXPECT_EQ(steps.back(), 511);
}

TEST_F(CreateXgboostReportTest, OfWhatWasNotBoostedThereIsNone) {
  Feed(format::ScalarRow{.name = "loss", .value = 1, .step = 0, .mode = "TRAIN"});
  engine_->End();
  EXPECT_EQ(engine_->rule_states().at(0).status, RuleStatus::kNotApplicable);
  EXPECT_EQ(engine_->rule_states().at(0).summary, "");
}

}  // namespace
}  // namespace telltale::rules
