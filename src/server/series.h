// SPDX-License-Identifier: Apache-2.0
// One series over time, as a chart asks for it: any window in a bounded number of columns with
// minimum, maximum and median. Points are kept as they came, and in buckets of 64; the oldest
// points may be given up for their buckets, so memory stays bounded and a coarse zoom stays exact
// in its extremes.
//
// Thread safety: none; the owner locks.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace telltale::server {

/// Columns of a chart; NaN where no finite value fell into one.
struct SeriesColumns {
  std::vector<std::int64_t> t;  ///< Begin of the column.
  std::vector<float> min, max, med;
  std::int64_t width_ns = 0;  ///< Of a column; 0 where the columns are the points themselves.
};

class Series {
 public:
  /// Points come nearly in order; one that is late by more than a bucket is moved to that bucket's
  /// begin.
  void Add(std::int64_t t, double value);

  bool empty() const { return buckets_.empty() && raw_t_.empty(); }
  std::int64_t first() const;
  std::int64_t last() const;
  /// Points that are still kept one by one.
  std::size_t kept() const { return raw_t_.size(); }
  /// Gives up the older half of them; their buckets stay.
  void Thin();

  /// The points with from <= t < to in at most `columns` columns. A column's width is a power of
  /// two and its begin a multiple of it, so columns stay where they are while a run grows.
  SeriesColumns Query(std::int64_t from, std::int64_t to, std::size_t columns) const;

  /// The maximum of the points with from <= t < to in each of `cells`, which are `width_ns` wide
  /// and begin at `from`; NaN where there is none. Of buckets, each in the cell of its begin, where
  /// the points were given up or are more than `max_points`.
  void Maxima(std::int64_t from, std::int64_t to, std::int64_t width_ns, std::size_t max_points,
              std::span<float> cells) const;

 private:
  static constexpr std::size_t kBucket = 64;
  struct Bucket {
    std::int64_t begin = 0;
    std::int64_t end = 0;  ///< Time of the last point.
    float min = std::numeric_limits<float>::quiet_NaN();
    float max = std::numeric_limits<float>::quiet_NaN();
    float med = std::numeric_limits<float>::quiet_NaN();
  };
  struct Range {
    bool points = false;  ///< begin and end index the points, which cover all of the window.
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  static Bucket Summarize(const std::int64_t* t, const float* v, std::size_t count);
  Range Find(std::int64_t from, std::int64_t to) const;
  template <class F>
  void ForEachBucket(std::int64_t from, std::int64_t to, F&& f) const {
    auto at = std::lower_bound(buckets_.begin(), buckets_.end(), from,
                               [](const Bucket& bucket, std::int64_t t) { return bucket.end < t; });
    for (; at != buckets_.end() && at->begin < to; ++at) f(*at);
    const std::size_t sealed = (buckets_.size() - given_up_) * kBucket;
    if (sealed < raw_t_.size() && raw_t_[sealed] < to && raw_t_.back() >= from) {
      f(Summarize(&raw_t_[sealed], &raw_v_[sealed], raw_t_.size() - sealed));
    }
  }

  std::vector<Bucket> buckets_;  ///< Full ones, from the first point on.
  std::size_t given_up_ = 0;     ///< Buckets at the front whose points are gone.
  std::vector<std::int64_t> raw_t_;
  std::vector<float> raw_v_;
};

}  // namespace telltale::server
