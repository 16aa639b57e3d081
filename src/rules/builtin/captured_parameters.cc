// SPDX-License-Identifier: Apache-2.0
// What captures say of the parameters of one process as a whole.
#include "rules/builtin/captured_parameters.h"

#include <algorithm>
#include <cmath>

namespace telltale::rules {
namespace {

/// What begins nearly at zero grows by any factor.
constexpr double kNearlyZero = 1e-4;

}  // namespace

bool CapturedParameters::Wants(const Series& series) {
  return series.table == format::TableId::kStatistics && series.mode == "TRAIN" &&
         (series.collection == "weights" || series.collection == "biases" ||
          series.collection == "gradients");
}

void CapturedParameters::See(const format::StatisticRow& row, std::uint32_t series) {
  if (row.count == 0) return;
  const bool gradient = row.collection == "gradients";
  const bool bad = row.nan_count + row.inf_count > 0;
  if (bad) {
    std::optional<NotFinite>& first = gradient ? bad_gradient_ : bad_weight_;
    // Backward goes from the last parameter to the first: the last one is nearest to the origin.
    if (!first || (gradient && first->step == row.step)) {
      constexpr std::string_view kPrefix = "gradient/";
      std::string_view name = row.name;
      if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
      first = NotFinite{std::string(name), row.step};
    }
  }
  if (gradient) {
    gradient_step_ = std::max(gradient_step_, row.step);
    if (row.zero_count < row.count) alive_step_ = std::max(alive_step_, row.step);
    SeeGradient(row);
    return;
  }
  SeeWeight(row, series);
}

void CapturedParameters::SeeGradient(const format::StatisticRow& row) {
  if (row.step < gradients_.step || row.name.ends_with("bias")) return;
  if (row.step > gradients_.step) {
    if (gradients_.step >= 0) reach_ = ReachOf(gradients_);
    gradients_.step = row.step;
    gradients_.sizes.clear();
  }
  const std::uint64_t filled = row.count - std::min(row.count, row.zero_count);
  const double size = filled > 0 ? row.l1 / static_cast<double>(filled) : 0;
  constexpr std::string_view kPrefix = "gradient/";
  std::string_view name = row.name;
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  gradients_.sizes.emplace_back(name, size);
}

CapturedParameters::Reach CapturedParameters::ReachOf(const Gradients& gradients) {
  Reach reach;
  reach.step = gradients.step;
  reach.weights = gradients.sizes.size();
  double largest = 0;
  for (const auto& [name, size] : gradients.sizes) largest = std::max(largest, size);
  for (const auto& [name, size] : gradients.sizes) {
    // What is NaN or infinite is another trouble.
    if (!(size < kAlive * largest) && size != 0) {
      ++reach.alive;
    } else if (reach.dead.empty()) {
      reach.dead = name;
    }
  }
  return reach;
}

void CapturedParameters::BeginCapture(std::int64_t step) {
  if (move_.from >= 0) newest_move_ = move_;
  move_ = Grown();
  if (compared_ > 0) {
    if (moved_) {
      still_from_ = -1;
    } else {
      if (still_from_ < 0) still_from_ = least_from_;
      still_to_ = weight_step_;
      still_weights_ = compared_;
    }
  }
  compared_ = 0;
  moved_ = false;
  least_from_ = step;
  weight_step_ = step;
}

void CapturedParameters::SeeWeight(const format::StatisticRow& row, std::uint32_t series) {
  if (row.step < weight_step_) return;
  if (row.step > weight_step_) BeginCapture(row.step);
  // The series of a process follow each other, mostly.
  if (before_.empty()) first_series_ = series;
  if (series < first_series_) return;
  const std::size_t at = series - first_series_;
  if (before_.size() <= at) before_.resize(at + 1);
  Before& before = before_[at];
  const Before now{row.step, row.count, row.min, row.max, row.mean, row.std, row.l1, row.l2};
  if (before.step >= 0 && before.step < row.step && before.count == row.count) {
    ++compared_;
    least_from_ = std::min(least_from_, before.step);
    const bool same = before.min == now.min && before.max == now.max && before.mean == now.mean &&
                      before.std == now.std && before.l1 == now.l1 && before.l2 == now.l2;
    moved_ = moved_ || !same;
    const double size = before.l2 / std::sqrt(static_cast<double>(before.count));
    const double ratio = size < kNearlyZero ? 0 : std::abs(now.l2 - before.l2) / before.l2;
    const bool grown = row.collection == "weights" && row.step - before.step <= kGrownSteps;
    if (grown && std::isfinite(ratio) && ratio > grown_.ratio) {
      grown_ = {std::string(row.name), before.step, row.step, ratio};
    }
    const double extreme = std::max(std::abs(before.min), std::abs(before.max));
    const double edge = std::max(std::abs(now.min - before.min), std::abs(now.max - before.max));
    const double move = size < kNearlyZero ? 0 : std::max(ratio, edge / extreme);
    if (move_.from < 0 || move > move_.ratio) {
      move_ = {std::string(row.name), before.step, row.step, move};
    }
  }
  before = now;
}

std::optional<CapturedParameters::Still> CapturedParameters::still() const {
  // The newest capture may not be complete: what has come of it may only take back.
  if (still_from_ < 0 || moved_) return std::nullopt;
  return Still{still_from_, still_to_, still_weights_};
}

}  // namespace telltale::rules
