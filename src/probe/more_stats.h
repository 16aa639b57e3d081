// SPDX-License-Identifier: Apache-2.0
// What TT_TAKE_MORE adds to the statistics: from what one pass has gathered where that is enough,
// which it nearly always is, else by a second pass in double.
#pragma once
#include <cstdint>

#include "probe/array_view.h"
#include "telltale/probe.h"

namespace telltale::probe {

/// A product that neither overflows nor underflows on the way: mantissa * 2^exponent.
class Product {
 public:
  void Multiply(double factor);
  /// The product of `times` equal parts like this one.
  void Raise(std::uint64_t times);
  double value() const;

 private:
  void Multiply(const Product& other);
  void Normalise();

  double mantissa_ = 1;
  std::int64_t exponent_ = 0;
};

/// `stats`, and `magnitudes` where not null: of the same view. Allocates nothing.
void ComputeMoreStats(const ArrayView& view, const tt_stats& stats, const Magnitudes* magnitudes,
                      tt_more_stats* out);

}  // namespace telltale::probe
