// SPDX-License-Identifier: Apache-2.0
#include "server/series.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/saturate.h"

namespace telltale::server {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
/// The largest power of two that 64 bits hold with a sign.
constexpr std::uint64_t kWidest = std::uint64_t{1} << 62;

/// Gathers the values of one column.
class ColumnFold {
 public:
  void Add(float low, float high, float middle) {
    if (std::isfinite(low) && !(low >= min_)) min_ = low;
    if (std::isfinite(high) && !(high <= max_)) max_ = high;
    if (std::isfinite(middle)) middles_.push_back(middle);
  }
  void Flush(std::int64_t t, SeriesColumns* out) {
    float median = kNone;
    if (!middles_.empty()) {
      const auto middle = middles_.begin() + static_cast<std::ptrdiff_t>(middles_.size() / 2);
      std::nth_element(middles_.begin(), middle, middles_.end());
      median = *middle;
    }
    out->t.push_back(t);
    out->min.push_back(min_);
    out->max.push_back(max_);
    out->med.push_back(median);
    middles_.clear();
    min_ = max_ = kNone;
  }

 private:
  float min_ = kNone;
  float max_ = kNone;
  std::vector<float> middles_;
};

/// Splits a stream of (t, low, high, middle) into columns, whose width is a power of two.
class Splitter {
 public:
  Splitter(std::int64_t width, SeriesColumns* out) : width_(width), out_(out) {}
  void Add(std::int64_t t, float low, float high, float middle) {
    const std::int64_t begin = t & -width_;  // No division: there is one for each point.
    if (open_ && begin != begin_) fold_.Flush(begin_, out_);
    open_ = true;
    begin_ = begin;
    fold_.Add(low, high, middle);
  }
  void End() {
    if (open_) fold_.Flush(begin_, out_);
  }

 private:
  const std::int64_t width_;
  SeriesColumns* const out_;
  ColumnFold fold_;
  std::int64_t begin_ = 0;
  bool open_ = false;
};

/// What is no number is no maximum.
void Raise(float* most, float value) {
  if (value > *most || std::isnan(*most)) *most = value;
}

}  // namespace

Series::Bucket Series::Summarize(const std::int64_t* t, const float* v, std::size_t count) {
  SeriesColumns one;
  ColumnFold fold;
  for (std::size_t i = 0; i < count; ++i) fold.Add(v[i], v[i], v[i]);
  fold.Flush(t[0], &one);
  return {t[0], t[count - 1], one.min[0], one.max[0], one.med[0]};
}

void Series::Add(std::int64_t t, double value) {
  const std::size_t sealed = (buckets_.size() - given_up_) * kBucket;
  auto v = static_cast<float>(value);
  if (raw_t_.empty() || t >= raw_t_.back()) {
    if (!buckets_.empty()) t = std::max(t, buckets_.back().end);
    raw_t_.push_back(t);
    raw_v_.push_back(v);
  } else {
    const auto open = raw_t_.begin() + static_cast<std::ptrdiff_t>(sealed);
    if (!buckets_.empty()) t = std::max(t, buckets_.back().end);
    const auto at = std::upper_bound(open, raw_t_.end(), t);
    const auto index = at - raw_t_.begin();
    raw_t_.insert(at, t);
    raw_v_.insert(raw_v_.begin() + index, v);
  }
  if (raw_t_.size() - sealed < kBucket) return;
  buckets_.push_back(Summarize(&raw_t_[sealed], &raw_v_[sealed], kBucket));
}

std::int64_t Series::first() const {
  if (!buckets_.empty()) return buckets_.front().begin;
  return raw_t_.empty() ? 0 : raw_t_.front();
}

std::int64_t Series::last() const {
  if (!raw_t_.empty()) return raw_t_.back();
  return buckets_.empty() ? 0 : buckets_.back().end;
}

void Series::Thin() {
  const std::size_t buckets = (buckets_.size() - given_up_ + 1) / 2;
  const auto points = static_cast<std::ptrdiff_t>(buckets * kBucket);
  raw_t_ = std::vector<std::int64_t>(raw_t_.begin() + points, raw_t_.end());
  raw_v_ = std::vector<float>(raw_v_.begin() + points, raw_v_.end());
  given_up_ += buckets;
}

Series::Range Series::Find(std::int64_t from, std::int64_t to) const {
  Range range;
  range.points = given_up_ == 0 || from > buckets_[given_up_ - 1].end;
  if (!range.points) return range;
  const auto begin = std::lower_bound(raw_t_.begin(), raw_t_.end(), from);
  const auto end = std::lower_bound(begin, raw_t_.end(), to);
  range.begin = static_cast<std::size_t>(begin - raw_t_.begin());
  range.end = static_cast<std::size_t>(end - raw_t_.begin());
  return range;
}

SeriesColumns Series::Query(std::int64_t from, std::int64_t to, std::size_t columns) const {
  SeriesColumns out;
  if (to <= from || columns == 0 || empty()) return out;
  const std::uint64_t span = static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from);
  const std::uint64_t least = span / columns + (span % columns == 0 ? 0 : 1);
  const auto width = static_cast<std::int64_t>(std::bit_ceil(std::min(kWidest, least)));
  const Range range = Find(from, to);
  if (range.points && range.end - range.begin <= columns) {
    const auto begin = static_cast<std::ptrdiff_t>(range.begin);
    const auto end = static_cast<std::ptrdiff_t>(range.end);
    out.t.assign(raw_t_.begin() + begin, raw_t_.begin() + end);
    for (auto* values : {&out.min, &out.max, &out.med}) {
      values->assign(raw_v_.begin() + begin, raw_v_.begin() + end);
    }
    return out;
  }
  out.width_ns = width;
  Splitter splitter(width, &out);
  if (range.points && range.end - range.begin <= columns * kBucket) {
    for (std::size_t i = range.begin; i < range.end; ++i) {
      splitter.Add(raw_t_[i], raw_v_[i], raw_v_[i], raw_v_[i]);
    }
  } else {
    ForEachBucket(from, to, [&](const Bucket& bucket) {
      splitter.Add(std::max(bucket.begin, from), bucket.min, bucket.max, bucket.med);
    });
  }
  splitter.End();
  return out;
}

void Series::Maxima(std::int64_t from, std::int64_t to, std::int64_t width_ns,
                    std::size_t max_points, std::span<float> cells) const {
  std::fill(cells.begin(), cells.end(), kNone);
  const Range range = Find(from, to);
  if (range.points && range.end - range.begin <= max_points) {
    // Cell by cell: a heat map looks at millions of points, and dividing takes longer than reading.
    std::size_t at = range.begin;
    std::int64_t end = from;
    for (float& cell : cells) {
      if (at == range.end) return;
      end = SaturatingAdd(end, width_ns);
      float most = kNone;
      for (; at < range.end && raw_t_[at] < end; ++at) Raise(&most, raw_v_[at]);
      cell = most;
    }
    return;
  }
  ForEachBucket(from, to, [&](const Bucket& bucket) {
    const std::int64_t since = SaturatingSub(std::max(bucket.begin, from), from);
    const auto cell = static_cast<std::size_t>(since / width_ns);
    if (cell < cells.size()) Raise(&cells[cell], bucket.max);
  });
}

}  // namespace telltale::server
