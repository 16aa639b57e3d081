// SPDX-License-Identifier: Apache-2.0
// The newest samples of what one call of an expression reads, and the number that it makes of them.
//
// Thread safety: none. Memory: at most kMostSamples samples of 32 bytes and kMostSeries series.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "rules/expression/ast.h"

namespace telltale::rules::expression {

/// Where the run is.
struct Moment {
  std::int64_t ns = 0;
  std::int64_t step = -1;  ///< Newest step of TRAIN.
};

class SampleWindow {
 public:
  /// Beyond, the oldest go: what changes fast then has a shorter window.
  static constexpr std::size_t kMostSamples = 65'536;
  static constexpr std::size_t kMostSeries = 4'096;

  /// `call` outlives the window.
  explicit SampleWindow(const Call* call) : call_(call) {}

  /// REQUIRES: moments do not go back.
  void Add(const Moment& at, std::uint32_t series, double value);
  void Clear();
  /// Nothing where there is no data: before the window has passed once, where it is empty, behind
  /// a gap of more than half of it, where the result is no number.
  std::optional<double> Value(const Moment& now);
  /// Samples that Value() looks at.
  std::size_t size() const { return samples_.size() + newest_.size(); }

 private:
  struct Sample {
    Moment at;
    double value = 0;
    std::uint32_t series = 0;
  };

  void Evict(const Moment& now);
  bool Covers(const Moment& now) const;
  std::optional<double> Last(const Moment& now) const;
  std::optional<double> Count() const;
  std::optional<double> Change() const;
  std::optional<double> OfAll();

  const Call* call_;
  std::optional<Moment> first_;
  std::deque<Sample> samples_;
  std::map<std::uint32_t, Sample> newest_;  ///< By series; of kLast, which keeps no others.
  std::vector<double> scratch_;
};

}  // namespace telltale::rules::expression
