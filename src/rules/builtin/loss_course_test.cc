// SPDX-License-Identifier: Apache-2.0
#include "rules/builtin/loss_course.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace telltale::rules {
namespace {

TEST(IsValidationLoss, OfManyLoggersNames) {
  for (const char* name : {"val_loss", "eval_loss", "valid/loss", "Loss/validation", "test loss",
                           "my_val_loss", "val_loss_epoch", "val.box_loss"}) {
    EXPECT_TRUE(IsValidationLoss(name)) << name;
  }
  for (const char* name : {"loss", "value_loss", "interval_loss", "val_accuracy", "latest_loss"}) {
    EXPECT_FALSE(IsValidationLoss(name)) << name;
  }
}

/// Feeds scalars and keeps the points that they make.
class Courses {
 public:
  explicit Courses(std::int64_t block) : courses_("", block) {}

  void Feed(const std::string& name, const char* mode, std::int64_t step, double value) {
    std::uint32_t id = 0;
    while (id < names_.size() && names_[id] != std::pair(name, std::string(mode))) ++id;
    if (id == names_.size()) {
      names_.emplace_back(name, mode);
      Series series;
      series.id = id;
      series.table = format::TableId::kScalars;
      series.name = name;
      series.mode = mode;
      wanted_.push_back(courses_.Wants(series));
    }
    if (!wanted_[id]) return;
    format::ScalarRow row;
    row.time_ns = ++now_;
    row.step = step;
    row.value = value;
    if (const auto point = courses_.Take(&course, id, row)) points.push_back(*point);
  }
  void Finish() {
    if (const auto point = courses_.Finish(&course)) points.push_back(*point);
  }

  LossCourse course;
  std::vector<CoursePoint> points;

 private:
  LossCourses courses_;
  std::vector<std::pair<std::string, std::string>> names_;
  std::vector<bool> wanted_;
  std::int64_t now_ = 0;
};

TEST(LossCourses, AnEvaluationIsOnePointBesideTheTrainingBeforeIt) {
  Courses courses(0);
  courses.Feed("loss", "TRAIN", 0, 2);
  courses.Feed("loss", "TRAIN", 1, 1);
  courses.Feed("loss", "EVAL", 0, 3);
  courses.Feed("loss", "EVAL", 1, 5);
  EXPECT_TRUE(courses.points.empty());
  courses.Feed("loss", "TRAIN", 2, 1);
  courses.Finish();
  ASSERT_EQ(courses.points.size(), 1U);
  EXPECT_EQ(courses.points[0].step, 1);
  EXPECT_EQ(courses.points[0].train, 1.5);
  EXPECT_EQ(courses.points[0].validation, 4);
}

TEST(LossCourses, WhatIsCalledAValidationLossCountsMoreThanTheBatches) {
  Courses courses(0);
  courses.Feed("loss", "TRAIN", 0, 2);
  courses.Feed("loss", "EVAL", 0, 9);
  courses.Feed("val_loss", "TRAIN", 0, 4);
  courses.Finish();
  ASSERT_EQ(courses.points.size(), 1U);
  EXPECT_EQ(courses.points[0].validation, 4);
}

TEST(LossCourses, TheSetWhoseMetricIsTheLossIsTheTrainingData) {
  Courses courses(0);
  courses.course.boosting = true;
  for (std::int64_t round = 0; round < 2; ++round) {
    const auto value = static_cast<double>(round);
    courses.Feed("a-rmse", "TRAIN", round, 1 + value);
    courses.Feed("loss", "TRAIN", round, 1 + value);
    courses.Feed("a-mae", "TRAIN", round, 7);
    courses.Feed("b-rmse", "TRAIN", round, 3 + value);
    courses.Feed("b-mae", "TRAIN", round, 8);
    courses.Feed("b-rmse-std", "TRAIN", round, 0.5);
  }
  courses.Finish();
  ASSERT_EQ(courses.points.size(), 2U);
  EXPECT_EQ(courses.points[1].step, 1);
  EXPECT_EQ(courses.points[1].train, 2);
  EXPECT_EQ(courses.points[1].validation, 4);
}

TEST(LossCourses, ABlockOfTrainingLossesIsAPointOfItsOwn) {
  Courses courses(2);
  for (std::int64_t step = 0; step < 5; ++step) {
    courses.Feed("loss", "TRAIN", step, static_cast<double>(step));
  }
  ASSERT_EQ(courses.points.size(), 2U);
  EXPECT_EQ(courses.points[1].train, 2.5);
  EXPECT_TRUE(std::isnan(courses.points[1].validation));
}

}  // namespace
}  // namespace telltale::rules
