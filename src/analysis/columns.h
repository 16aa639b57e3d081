// SPDX-License-Identifier: Apache-2.0
// A series over an integer axis (steps, ns) in a bounded number of columns, each with count, sum,
// min, max and median. When the axis outgrows them, neighbours are merged and columns become twice
// as wide; an outlier of one point so stays visible in min or max.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "format/records.gen.h"

namespace telltale::analysis {

struct Column {
  std::uint64_t count = 0;
  double sum = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  /// Every stride-th value, for the median; deterministic.
  std::vector<float> kept;
  std::uint64_t stride = 1;

  void Add(double value) {
    if (count % stride == 0) {
      if (kept.size() >= kKept) Thin();
      if (count % stride == 0) kept.push_back(static_cast<float>(value));
    }
    ++count;
    sum += value;
    min = std::min(min, value);
    max = std::max(max, value);
  }
  void Merge(const Column& other) {
    if (other.count == 0) return;
    count += other.count;
    sum += other.sum;
    min = std::min(min, other.min);
    max = std::max(max, other.max);
    stride = std::max(stride, other.stride);
    kept.insert(kept.end(), other.kept.begin(), other.kept.end());
    while (kept.size() >= kKept) Thin();
  }
  double median() const {
    if (kept.empty()) return 0;
    std::vector<float> sorted = kept;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return static_cast<double>(*middle);
  }

 private:
  static constexpr std::size_t kKept = 32;
  static constexpr std::uint64_t kMostStride = std::uint64_t{1} << 62;
  void Thin() {
    std::size_t out = 0;
    for (std::size_t i = 0; i < kept.size(); i += 2) kept[out++] = kept[i];
    kept.resize(out);
    // Merging thins too, so that a series can be made which doubles it as often as it likes.
    stride = std::min(2 * stride, kMostStride);
  }
};

class Columns {
 public:
  explicit Columns(std::size_t capacity = 512, std::int64_t width = 1)
      : capacity_(capacity), width_(width) {}

  void Add(std::int64_t x, double value) {
    x = std::clamp(x, kFirst, kLast);
    if (columns_.empty()) {
      begin_ = x - Mod(x, width_);
      columns_.resize(1);
    }
    while (x < begin_) {
      // Rare: a point before the first. Room is made at the front.
      if (columns_.size() + static_cast<std::size_t>((begin_ - x + width_ - 1) / width_) >
          capacity_) {
        Widen();
        continue;
      }
      columns_.insert(columns_.begin(), Column());
      begin_ -= width_;
    }
    while ((x - begin_) / width_ >= static_cast<std::int64_t>(capacity_)) Widen();
    const auto index = static_cast<std::size_t>((x - begin_) / width_);
    if (index >= columns_.size()) columns_.resize(index + 1);
    columns_[index].Add(value);
    last_x_ = std::max(last_x_, x);
  }

  bool empty() const { return columns_.empty(); }
  std::int64_t begin() const { return begin_; }
  std::int64_t last() const { return last_x_; }
  std::int64_t width() const { return width_; }
  const std::vector<Column>& columns() const { return columns_; }

 private:
  /// What lies farther out stands at the edge: differences of any two stay within 64 bits.
  static constexpr std::int64_t kFirst = format::kTimeBound.least;
  static constexpr std::int64_t kLast = format::kTimeBound.most;
  static std::int64_t Mod(std::int64_t x, std::int64_t m) { return ((x % m) + m) % m; }
  void Widen() {
    const std::int64_t wider = width_ * 2;
    const std::int64_t begin = begin_ - Mod(begin_, wider);
    std::vector<Column> merged;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::int64_t x = begin_ + static_cast<std::int64_t>(i) * width_;
      const auto index = static_cast<std::size_t>((x - begin) / wider);
      if (index >= merged.size()) merged.resize(index + 1);
      merged[index].Merge(columns_[i]);
    }
    columns_ = std::move(merged);
    begin_ = begin;
    width_ = wider;
  }

  std::size_t capacity_;
  std::int64_t width_;
  std::int64_t begin_ = 0;
  std::int64_t last_x_ = std::numeric_limits<std::int64_t>::min();
  std::vector<Column> columns_;
};

}  // namespace telltale::analysis
