// SPDX-License-Identifier: Apache-2.0
// Losses of training and validation, point by point.
#include "rules/builtin/loss_course.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace telltale::rules {
namespace {

constexpr std::array<std::string_view, 6> kValidationWords = {"validation", "valid", "val",
                                                              "eval",       "test",  "dev"};
/// Parts of the names of the metrics of boosting that a training makes small; as the adapter's.
constexpr std::array<std::string_view, 10> kLosses = {
    "loss", "err", "nloglik", "deviance", "rms", "mae", "mape", "mphe", "quantile", "expectile"};

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool IsSeparator(char c) { return c == '_' || c == '/' || c == '-' || c == '.' || c == ' '; }

/// `name` is in small letters. "val", "val_loss", "validation_0"; not "value".
bool BeginsWithWord(std::string_view name, std::string_view word) {
  if (!name.starts_with(word)) return false;
  return name.size() == word.size() || IsSeparator(name[word.size()]);
}

/// Anywhere between separators.
bool HasWord(std::string_view name, std::string_view word) {
  for (std::size_t at = 0; at < name.size(); ++at) {
    const bool begins = at == 0 || IsSeparator(name[at - 1]);
    if (begins && BeginsWithWord(name.substr(at), word)) return true;
  }
  return false;
}

bool IsValidationSet(std::string_view set) {
  return std::any_of(kValidationWords.begin(), kValidationWords.end(),
                     [&](std::string_view word) { return BeginsWithWord(set, word); });
}

bool IsLossMetric(std::string_view metric) {
  return std::any_of(kLosses.begin(), kLosses.end(), [&](std::string_view part) {
    return metric.find(part) != std::string_view::npos;
  });
}

double Mean(double sum, std::int64_t count) {
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

}  // namespace

bool IsValidationLoss(std::string_view name) {
  const std::string lower = Lower(name);
  if (lower.find("loss") == std::string::npos) return false;
  return std::any_of(kValidationWords.begin(), kValidationWords.end(),
                     [&](std::string_view word) { return HasWord(lower, word); });
}

LossCourses::LossCourses(std::string_view tensor_regex, std::int64_t block)
    : selected_(!tensor_regex.empty()), pattern_(tensor_regex), block_(block) {}

LossCourses::Place LossCourses::PlaceOf(const Series& series) const {
  Place place;
  if (series.table != format::TableId::kScalars) return place;
  if (selected_ && !pattern_.Matches(series.name)) return place;
  // The deviation over the folds of cross-validation is no loss: "test-logloss-std".
  if (series.name.ends_with("-std")) return place;
  const bool training = series.mode == "TRAIN" || series.mode == "GLOBAL";
  const auto dash = series.name.find('-');
  if (training && dash != std::string::npos && dash > 0) {
    const std::string set = Lower(series.name.substr(0, dash));
    const std::string metric = Lower(series.name.substr(dash + 1));
    if (IsLossMetric(metric)) {
      place.role = Role::kBoosting;
      place.set = set;
      place.metric = metric;
      place.train_set = BeginsWithWord(set, "train") || BeginsWithWord(set, "dtrain") ||
                        BeginsWithWord(set, "training");
      place.known_set = place.train_set || IsValidationSet(set);
      return place;
    }
  }
  if (IsValidationLoss(series.name)) {
    place.role = Role::kNamed;
  } else if (selected_ || series.name == "loss") {
    place.role = training ? Role::kTrain : series.mode == "EVAL" ? Role::kEvaluation : Role::kNone;
  }
  return place;
}

bool LossCourses::Wants(const Series& series) {
  Place place = PlaceOf(series);
  if (place.role == Role::kNone) return false;
  if (places_.size() <= series.id) places_.resize(series.id + 1);
  places_[series.id] = std::move(place);
  return true;
}

bool LossCourses::BeginsFit(LossCourse* course, std::uint32_t series,
                            const format::ScalarRow& scalar) const {
  // Of several losses each has its own level.
  return places_[series].role == Role::kTrain && scalar.name == "loss" &&
         course->border.Begins(course->fits, scalar.value);
}

std::optional<CoursePoint> LossCourses::Take(LossCourse* course, std::uint32_t series,
                                             const format::ScalarRow& scalar) {
  if (series >= places_.size()) return std::nullopt;
  const Place& place = places_[series];
  // What is no number is LossNotDecreasing's.
  if (!std::isfinite(scalar.value)) return std::nullopt;
  std::optional<CoursePoint> done;
  switch (place.role) {
    case Role::kNone:
      return std::nullopt;
    case Role::kTrain:
      done = EndEvaluation(course);
      // The adapter repeats the training set's metric as the loss, right behind it.
      if (!course->metrics.empty() && scalar.step == course->round &&
          course->metrics.back().second == scalar.value && course->train_set.empty()) {
        course->train_set = places_[course->metrics.back().first].set;
      }
      course->train_sum += scalar.value;
      ++course->train_count;
      course->train_step = std::max(course->train_step, scalar.step);
      course->ns = scalar.time_ns;
      // Rounds of boosting are points by themselves.
      if (!done && block_ > 0 && course->train_count >= block_ && course->round < 0) {
        done = CoursePoint{course->train_step, course->ns,
                           Mean(course->train_sum, course->train_count)};
        course->train_sum = 0;
        course->train_count = 0;
      }
      return done;
    case Role::kEvaluation:
      course->validation_sum += scalar.value;
      ++course->validation_count;
      break;
    case Role::kNamed:
      course->named = true;
      course->named_sum += scalar.value;
      ++course->named_count;
      break;
    case Role::kBoosting:
      if (!place.known_set && !course->boosting) return std::nullopt;
      if (scalar.step != course->round) done = EndRound(course);
      course->round = scalar.step;
      course->metrics.emplace_back(series, scalar.value);
      break;
  }
  course->ns = scalar.time_ns;
  return done;
}

std::optional<CoursePoint> LossCourses::EndEvaluation(LossCourse* course) const {
  if (!EvaluationGoesOn(*course)) return std::nullopt;
  CoursePoint point{std::max<std::int64_t>(0, course->train_step), course->ns};
  point.validation = course->named_count > 0
                         ? Mean(course->named_sum, course->named_count)
                         : Mean(course->validation_sum, course->validation_count);
  if (block_ == 0) {
    point.train = Mean(course->train_sum, course->train_count);
    course->train_sum = 0;
    course->train_count = 0;
  }
  course->validation_sum = course->named_sum = 0;
  course->validation_count = course->named_count = 0;
  return point;
}

std::optional<CoursePoint> LossCourses::EndRound(LossCourse* course) const {
  if (course->metrics.empty()) return std::nullopt;
  CoursePoint point{course->round, course->ns};
  const auto is_train = [&](const Place& place) {
    return course->train_set.empty() ? place.train_set : place.set == course->train_set;
  };
  // Of several sets the last one, as xgboost's early stopping does.
  std::string_view metric;
  for (const auto& [at, value] : course->metrics) {
    const Place& place = places_[at];
    if (is_train(place)) continue;
    // Of several metrics of a set the first.
    if (!metric.empty() && place.metric != metric) continue;
    metric = place.metric;
    point.validation = value;
  }
  for (const auto& [at, value] : course->metrics) {
    const Place& place = places_[at];
    if (!is_train(place) || (!metric.empty() && place.metric != metric)) continue;
    point.train = value;
    break;
  }
  course->metrics.clear();
  return point;
}

std::optional<CoursePoint> LossCourses::Finish(LossCourse* course) const {
  if (auto point = EndRound(course)) return point;
  return EndEvaluation(course);
}

}  // namespace telltale::rules
