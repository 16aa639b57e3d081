// SPDX-License-Identifier: Apache-2.0
// Small things that several rules need: medians, numbers as people read them, the time that a
// sample speaks of.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/saturate.h"

namespace telltale::rules {

/// Of an even number: the mean of the middle two. 0 where there is none.
inline double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto half = static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), values.begin() + half, values.end());
  const double upper = values[static_cast<std::size_t>(half)];
  if (values.size() % 2 == 1) return upper;
  return (upper + *std::max_element(values.begin(), values.begin() + half)) / 2;
}

/// A number of cores, processes or the like; what no machine has of them stands at the ends.
inline int FewAsInt(double value) {
  constexpr std::int64_t kMost = 100'000;
  return static_cast<int>(std::clamp(SaturatingCast(value), -kMost, kMost));
}

/// The newest values of something, in their order of size: medians as MedianOf says them, without
/// sorting all of them each time. REQUIRES: none is NaN.
class SortedValues {
 public:
  void Insert(double value) {
    values_.insert(std::upper_bound(values_.begin(), values_.end(), value), value);
  }
  /// REQUIRES: it was inserted.
  void Erase(double value) {
    values_.erase(std::lower_bound(values_.begin(), values_.end(), value));
  }
  void Clear() { values_.clear(); }

  /// REQUIRES: there is one.
  double Largest() const { return values_.back(); }
  double Median() const {
    if (values_.empty()) return 0;
    const std::size_t half = values_.size() / 2;
    if (values_.size() % 2 == 1) return values_[half];
    return (values_[half] + values_[half - 1]) / 2;
  }
  /// The median of their distances to `middle`.
  double MedianDistance(double middle) const {
    if (values_.empty()) return 0;
    // Those below, read backwards, and those from it on are both in the order of their distances.
    auto above = std::lower_bound(values_.begin(), values_.end(), middle);
    auto below = above;
    const std::size_t half = values_.size() / 2;
    double before = 0;
    double distance = 0;
    for (std::size_t i = 0; i <= half; ++i) {
      before = distance;
      const bool up = below == values_.begin() ||
                      (above != values_.end() && *above - middle <= middle - *(below - 1));
      distance = up ? std::abs(*above++ - middle) : std::abs(*--below - middle);
    }
    return values_.size() % 2 == 1 ? distance : (distance + before) / 2;
  }

 private:
  std::vector<double> values_;
};

/// What a median of very many values keeps of them.
inline constexpr std::size_t kMostOfMedian = 65'536;

/// Whether number `n` of `all` values is one of those, some `most`, that stand for all of them: all
/// where they are no more. The same ones in every replay, and none of a pattern in their numbers,
/// as each second would be.
inline bool StandsForAll(std::size_t n, std::size_t all, std::size_t most = kMostOfMedian) {
  if (all <= most || n == 0) return true;
  std::uint64_t hash = (static_cast<std::uint64_t>(n) + 1) * 0x9e3779b97f4a7c15ULL;
  hash = (hash ^ (hash >> 29U)) * 0xbf58476d1ce4e5b9ULL;
  return (hash >> 32U) % ((all + most - 1) / most) == 0;
}

/// Three significant digits, with an exponent where it is shorter: 0.0123, 4.1e-12, 17,200 is
/// 17200.
inline std::string Figure(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "NaN" : value > 0 ? "Inf" : "−Inf";
  const double magnitude = std::abs(value);
  if (magnitude >= 99.95 && magnitude < 99999.5) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

/// Three significant digits without an exponent, two of them after the point at most.
inline std::string Plain(double value) {
  if (!std::isfinite(value)) return "—";
  const double magnitude = std::abs(value);
  return fmt::format("{:.{}f}", value, magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2);
}

/// The probe's name of the loss of a further optimizer (a GAN has one): loss.1, loss.2.
inline bool IsFurtherLoss(std::string_view name) {
  return name.size() == 6 && name.starts_with("loss.") && name[5] >= '1' && name[5] <= '9';
}

/// " (2 more layers are like it)" behind what is said of one of `all`; empty where it is alone.
inline std::string MoreLikeIt(std::size_t all) {
  if (all < 2) return {};
  const std::size_t others = all - 1;
  return fmt::format(" ({} more {} like it)", others, others == 1 ? "layer is" : "layers are");
}

/// A duration in ms.
inline std::string Millis(double ns) { return Plain(ns / 1e6); }

/// For evidence: enough digits to compute with, none that only look exact.
inline double Rounded(double value) {
  // Not std::stod: it throws of what is too near to 0 or, rounded up, too large.
  return std::isfinite(value) ? std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr) : value;
}

/// Of one series. Rates are over the time since the sample before; after a gap they would speak of
/// a time that nobody saw.
class SampleTimes {
 public:
  /// Since when a sample at `now_ns` speaks. Nothing for a first sample and after a gap: one far
  /// wider than the newest samples mostly are. A single narrow one says nothing of the others.
  std::optional<std::int64_t> Since(std::int64_t now_ns) {
    const std::int64_t before = std::exchange(last_ns_, now_ns);
    const std::int64_t width = now_ns - before;
    if (before == 0 || width <= 0) return std::nullopt;
    const double usual = MedianOf(widths_);
    if (widths_.size() == kWidths) widths_.erase(widths_.begin());
    widths_.push_back(static_cast<double>(width));
    if (usual > 0 && static_cast<double>(width) > 4 * usual + 1e9) return std::nullopt;
    return before;
  }

 private:
  static constexpr std::size_t kWidths = 5;

  std::int64_t last_ns_ = 0;
  std::vector<double> widths_;  ///< Of the newest.
};

}  // namespace telltale::rules
