// SPDX-License-Identifier: Apache-2.0
// The figures were computed with scikit-learn 1.x: confusion_matrix, classification_report,
// roc_auc_score.
#include "rules/builtin/boosting_report.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/json.h"

namespace telltale::rules {
namespace {

const std::vector<std::int32_t> kLabels = {0, 0, 0, 0, 1, 1, 1, 2, 2, 2};
const std::vector<std::int32_t> kPredicted = {0, 0, 0, 1, 1, 1, 0, 2, 0, 0};

TEST(ConfusionMatrix, CountsByLabelAndPrediction) {
  const ConfusionMatrix matrix(kLabels, kPredicted);
  EXPECT_EQ(JsonText(matrix.Counts()), R"({"classes":3,"counts":[[3,1,0],[1,2,0],[2,0,1]]})");
  EXPECT_DOUBLE_EQ(matrix.accuracy(), 0.6);
  EXPECT_DOUBLE_EQ(matrix.recall(0), 0.75);
}

TEST(ConfusionMatrix, ScoresAreThoseOfScikitLearn) {
  const auto scores = ConfusionMatrix(kLabels, kPredicted).Scores();
  EXPECT_NEAR(scores["classes"][0]["precision"].get<double>(), 0.5, 1e-4);
  EXPECT_NEAR(scores["classes"][0]["f1"].get<double>(), 0.6, 1e-4);
  EXPECT_NEAR(scores["classes"][2]["recall"].get<double>(), 1.0 / 3, 1e-4);
  EXPECT_EQ(scores["classes"][2]["support"], 3);
  EXPECT_NEAR(scores["micro"]["f1"].get<double>(), 0.6, 1e-4);
  EXPECT_NEAR(scores["macro"]["precision"].get<double>(), 0.72222, 1e-4);
  EXPECT_NEAR(scores["macro"]["f1"].get<double>(), 0.58889, 1e-4);
  EXPECT_NEAR(scores["weighted"]["precision"].get<double>(), 0.7, 1e-4);
  EXPECT_NEAR(scores["weighted"]["f1"].get<double>(), 0.59, 1e-4);
}

TEST(ConfusionMatrix, WhatHasNoClassIsLeftOut) {
  const std::vector<std::int32_t> labels = {0, -1, 1, 100'000};
  const std::vector<std::int32_t> predicted = {0, 0, -1, 0};
  const ConfusionMatrix matrix(labels, predicted);
  EXPECT_EQ(matrix.samples(), 1U);
  EXPECT_EQ(ConfusionMatrix({}, {}).accuracy(), 0);
}

TEST(RocCurve, AreaAndTies) {
  const std::vector<std::int32_t> labels = {0, 0, 1, 1};
  const std::vector<double> scores = {0.1, 0.4, 0.35, 0.8};
  EXPECT_EQ(RocCurve(labels, scores)["auc"], 0.75);
  const std::vector<double> equal = {0.5, 0.5, 0.5, 0.5};
  const auto flat = RocCurve(labels, equal);
  EXPECT_EQ(flat["auc"], 0.5);
  EXPECT_EQ(flat["true_positive_rate"].size(), 2U);
  const std::vector<std::int32_t> one = {1, 1, 1, 1};
  EXPECT_TRUE(RocCurve(one, scores).is_null());
}

TEST(Distribution, BinsHoldTheGreatestValueAndLeaveOutWhatIsNotFinite) {
  const std::vector<double> values = {0, 1, 2, 3, 4, std::numeric_limits<double>::infinity()};
  const auto found = Distribution(values, 4);
  EXPECT_EQ(JsonText(found["counts"]), "[1,1,1,2]");
  EXPECT_EQ(found["mean"], 2.0);
  EXPECT_EQ(found["edges"].size(), 5U);
  const std::vector<double> same = {7, 7};
  EXPECT_EQ(JsonText(Distribution(same, 3)["counts"]), "[2,0,0]");
  EXPECT_TRUE(Distribution({}, 3).is_null());
}

TEST(ErrorByLabel, MeanOfEachRange) {
  const std::vector<double> labels = {0, 1, 9, 10};
  const std::vector<double> predictions = {1, 1, 9, 13};
  const auto found = ErrorByLabel(labels, predictions, 2);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0]["mean_absolute_error"], 0.5);
  EXPECT_EQ(found[1]["mean_absolute_error"], 1.5);
  EXPECT_EQ(found[1]["count"], 2);
}

}  // namespace
}  // namespace telltale::rules
