// SPDX-License-Identifier: Apache-2.0
#include "rules/expression/sample_window.h"

#include <algorithm>
#include <cmath>

namespace telltale::rules::expression {
namespace {

/// Linear between neighbours, as numpy's. REQUIRES: there is one.
double Quantile(std::vector<double>* values, double q) {
  const double place = q * static_cast<double>(values->size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(std::floor(place));
  std::nth_element(values->begin(), values->begin() + below, values->end());
  const double low = (*values)[static_cast<std::size_t>(below)];
  const double part = place - std::floor(place);
  if (part == 0) return low;
  const double high = *std::min_element(values->begin() + below + 1, values->end());
  return low + part * (high - low);
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double Deviation(const std::vector<double>& values) {
  const double mean = Mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

std::optional<double> IfNumber(double value) {
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

}  // namespace

void SampleWindow::Add(const Moment& at, std::uint32_t series, double value) {
  if (!first_) first_ = at;
  const Sample sample{at, value, series};
  if (call_->function == Function::kLast) {
    if (newest_.size() < kMostSeries || newest_.contains(series)) {
      newest_.insert_or_assign(series, sample);
    }
    return;
  }
  if (samples_.size() == kMostSamples) samples_.pop_front();
  samples_.push_back(sample);
}

void SampleWindow::Clear() {
  first_.reset();
  samples_.clear();
  newest_.clear();
}

std::optional<double> SampleWindow::Value(const Moment& now) {
  if (!first_) return std::nullopt;
  if (call_->function == Function::kLast) return Last(now);
  Evict(now);
  if (!Covers(now)) return std::nullopt;
  switch (call_->function) {
    case Function::kCount:
      return Count();
    case Function::kDelta:
    case Function::kRate:
      return Change();
    default:
      return OfAll();
  }
}

void SampleWindow::Evict(const Moment& now) {
  const Window& window = *call_->window;
  const auto old = [&](const Sample& sample) {
    return window.steps ? sample.at.step <= now.step - window.length
                        : sample.at.ns <= now.ns - window.length;
  };
  while (!samples_.empty() && old(samples_.front())) samples_.pop_front();
}

bool SampleWindow::Covers(const Moment& now) const {
  const Window& window = *call_->window;
  if (window.steps) return now.step >= 0 && now.step - first_->step + 1 >= window.length;
  if (now.ns - first_->ns < window.length) return false;
  // That nothing came says nothing of a gap where things are counted.
  if (call_->function == Function::kCount || samples_.size() == kMostSamples) return true;
  std::int64_t before = now.ns - window.length;
  for (const Sample& sample : samples_) {
    if (sample.at.ns - before > window.length / 2) return false;
    before = sample.at.ns;
  }
  return now.ns - before <= window.length / 2;
}

std::optional<double> SampleWindow::Last(const Moment& now) const {
  double sum = 0;
  std::size_t series = 0;
  for (const auto& [id, sample] : newest_) {
    const auto& window = call_->window;
    if (window && (window->steps ? sample.at.step <= now.step - window->length
                                 : sample.at.ns <= now.ns - window->length)) {
      continue;
    }
    sum += sample.value;
    ++series;
  }
  if (series == 0) return std::nullopt;
  return IfNumber(sum / static_cast<double>(series));
}

std::optional<double> SampleWindow::Count() const { return static_cast<double>(samples_.size()); }

std::optional<double> SampleWindow::Change() const {
  struct Ends {
    const Sample* first = nullptr;
    const Sample* last = nullptr;
  };
  std::map<std::uint32_t, Ends> by_series;
  for (const Sample& sample : samples_) {
    if (std::isnan(sample.value)) continue;
    Ends& ends = by_series[sample.series];
    if (ends.first == nullptr) ends.first = &sample;
    ends.last = &sample;
  }
  double sum = 0;
  std::size_t series = 0;
  for (const auto& [id, ends] : by_series) {
    const double seconds = static_cast<double>(ends.last->at.ns - ends.first->at.ns) / 1e9;
    if (!(seconds > 0)) continue;
    const double change = ends.last->value - ends.first->value;
    sum += call_->function == Function::kRate ? change / seconds : change;
    ++series;
  }
  if (series == 0) return std::nullopt;
  return IfNumber(sum / static_cast<double>(series));
}

std::optional<double> SampleWindow::OfAll() {
  scratch_.clear();
  for (const Sample& sample : samples_) {
    if (!std::isnan(sample.value)) scratch_.push_back(sample.value);
  }
  if (scratch_.empty()) return std::nullopt;
  switch (call_->function) {
    case Function::kMin:
      return *std::min_element(scratch_.begin(), scratch_.end());
    case Function::kMax:
      return *std::max_element(scratch_.begin(), scratch_.end());
    case Function::kQuantile:
      return IfNumber(Quantile(&scratch_, call_->quantile));
    case Function::kStd:
      return IfNumber(Deviation(scratch_));
    default:
      return IfNumber(Mean(scratch_));
  }
}

}  // namespace telltale::rules::expression
