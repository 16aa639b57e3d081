// SPDX-License-Identifier: Apache-2.0
// What is known of a training loop beside its losses.
#include "rules/builtin/training_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"
#include "rules/builtin/event_data.h"

namespace telltale::rules {
namespace {

/// Changes from which a schedule is known to be stepped with the optimizer.
constexpr std::int64_t kLeastFalls = 20;

std::optional<bool> TruthOf(const nlohmann::json& data, const char* name) {
  const auto found = data.find(name);
  if (found == data.end() || !found->is_boolean()) return std::nullopt;
  return found->get<bool>();
}

/// "128, 1" of [128, 1]; empty where it is no list.
std::string ShapeText(const nlohmann::json& data, const char* name) {
  const auto found = data.find(name);
  if (found == data.end() || !found->is_array()) return {};
  std::string out;
  for (const auto& size : *found) {
    out += fmt::format("{}{}", out.empty() ? "" : ", ", size.dump());
  }
  return out;
}

/// Functions that compare element by element, and so broadcast what differs in shape.
bool IsElementwise(std::string_view function) {
  constexpr std::array<std::string_view, 4> kNames = {"mse", "l1", "smooth_l1", "huber"};
  return std::find(kNames.begin(), kNames.end(), function) != kNames.end();
}

}  // namespace

bool LearningRates::IsRate(std::string_view name) {
  if (name == "lr" || name == "learning_rate" || name == "lr.largest") return true;
  return name.size() == 4 && name.starts_with("lr.") && name[3] >= '1' && name[3] <= '9';
}

void LearningRates::See(std::string_view name, double value, const TrainingMoment& now) {
  if (!std::isfinite(value) || now.step < 0) return;
  auto found = rates_.find(name);
  if (found == rates_.end()) {
    if (rates_.size() >= 16) return;
    found = rates_.emplace(std::string(name), Rate()).first;
  }
  Rate& rate = found->second;
  if (rate.value > value && rate.value > 0) {
    if (falls_ == 0) first_fall_ = now.step;
    // Of several optimizers, each of which has its own.
    if (now.step != last_fall_) ++falls_;
    last_fall_ = now.step;
    const double factor = value / rate.value;
    least_factor_ = std::min(least_factor_, factor);
    most_factor_ = std::max(most_factor_, factor);
  }
  rate.value = value;
  rate.step = now.step;
  Update(now);
}

void LearningRates::Update(const TrainingMoment& now) {
  double largest = 0;
  for (const auto& [name, rate] : rates_) largest = std::max(largest, std::abs(rate.value));
  // It holds from where it was told to where it is told next.
  if (now_ > 0 && !spent_ && seen_step_ >= 0 && now.step > seen_step_) {
    moving_steps_ += now.step - seen_step_;
  }
  if (now_ == 0 && largest > 0 && spent_) zero_steps_ += now.step - spent_->step;
  seen_step_ = std::max(seen_step_, now.step);
  now_ = largest;
  if (!(largest_ > largest)) {
    if (!(largest_ == largest)) {
      falls_ = 0;
      least_factor_ = 1;
      most_factor_ = 0;
    }
    largest_ = largest;
    largest_step_ = now.step;
  }
  const bool spent = largest == 0 || largest < 0.99 * kSpent * largest_;
  if (!spent) {
    spent_.reset();
  } else if (!spent_) {
    spent_ = now;
  }
}

void LearningRates::Renew() {
  rates_.clear();
  now_ = std::numeric_limits<double>::quiet_NaN();
  spent_.reset();
}

std::optional<LearningRates::EachStep> LearningRates::each_step() const {
  if (falls_ < kLeastFalls || falls_ * 10 < (last_fall_ - first_fall_ + 1) * 9) return std::nullopt;
  const bool alike = most_factor_ - least_factor_ < 1e-3 * most_factor_;
  return EachStep{first_fall_, last_fall_, alike ? most_factor_ : 0};
}

bool TrainingFacts::Wants(std::string_view kind) {
  return kind == "optimizer" || kind == "scheduler" || kind == "loss.function" ||
         kind == "optimizer.parameters" || kind == "loop.gradients" || kind == "loss.not_finite";
}

void TrainingFacts::See(const format::EventRow& event) {
  const auto data = ParseJson(event.data);
  if (!data.is_object()) return;
  if (event.kind == "optimizer") {
    const std::string name = TextIn(data, "class");
    if (!name.empty()) optimizer = name;
    groups = CountIn(data, "groups", -1);
  } else if (event.kind == "scheduler") {
    Scheduler now{TextIn(data, "class"), CountIn(data, "calls", -1),
                  CountIn(data, "optimizer_steps", -1)};
    // The last word of a scheduler does not say it again.
    if (now.optimizer_steps < 0 && scheduler && scheduler->name == now.name) return;
    scheduler = std::move(now);
  } else if (event.kind == "loss.function") {
    LossFunction now;
    now.name = TextIn(data, "function");
    now.classes = CountIn(data, "classes", -1);
    now.softmax_twice = TruthOf(data, "softmax_twice").value_or(false);
    const std::string reduction = TextIn(data, "reduction");
    now.plain = (reduction.empty() || reduction == "mean") &&
                TruthOf(data, "alone").value_or(true) && !TruthOf(data, "scaled").value_or(false) &&
                !TruthOf(data, "weighted").value_or(false);
    now.input_shape = ShapeText(data, "input_shape");
    now.target_shape = ShapeText(data, "target_shape");
    now.shapes_differ = IsElementwise(now.name) && !now.input_shape.empty() &&
                        !now.target_shape.empty() && now.input_shape != now.target_shape;
    loss = std::move(now);
  } else if (event.kind == "optimizer.parameters") {
    parameters = Parameters{CountIn(data, "parameters", -1), CountIn(data, "without_gradient", -1),
                            CountIn(data, "in_called_models", -1)};
    // Of modules in a plain list; or of a layer that took the place of one the optimizer has. A
    // backbone that is left out on purpose looks as the others do.
    const std::int64_t apart = CountIn(data, "unregistered", 0);
    const std::int64_t stale = parameters->all - parameters->in_called_models;
    const bool replaced =
        parameters->in_called_models > 0 && stale > 0 && parameters->without_gradient >= stale;
    parameters->of_models = CountIn(data, "model_parameters", 0) + apart;
    parameters->left_out = apart > 0 ? apart : replaced ? CountIn(data, "outside", 0) : 0;
  } else if (event.kind == "loss.not_finite") {
    NotFinite now;
    now.step = event.step;
    now.origin = TextIn(data, "origin");
    now.operation = TextIn(data, "operation");
    now.first = TextIn(data, "first");
    now.weights = CountIn(data, "weights", -1);
    now.bad_weights = CountIn(data, "not_finite", -1);
    now.rows = CountIn(data, "rows", -1);
    now.row = CountIn(data, "row", -1);
    now.nan = CountIn(data, "nan", -1);
    now.inf = CountIn(data, "inf", -1);
    now.undefined = CountIn(data, "undefined", -1);
    if (const auto shape = data.find("shape"); shape != data.end() && shape->is_array() &&
                                               !shape->empty() &&
                                               shape->front().is_number_integer()) {
      now.of_rows = CountOf(shape->front());
    }
    not_finite = std::move(now);
  } else if (event.kind == "loop.gradients") {
    const auto now = TruthOf(data, "cleared");
    if (now) cleared = now;
  }
}

}  // namespace telltale::rules
