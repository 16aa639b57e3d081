// SPDX-License-Identifier: Apache-2.0
// Viewers draw what nests: slices of one row that overlap without one enclosing the other go to
// further rows. Slices come in the order of SliceOrder.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "query/slice_order.h"

namespace telltale::interchange {

class NestedLanes {
 public:
  struct Place {
    std::size_t row = 0;
    std::int64_t end_ns = 0;  ///< Not beyond what encloses it.
  };
  static constexpr std::size_t kMostRows = 64;

  /// Where the slice goes. Before, `ended(row, end_ns)` is called for each slice that has ended,
  /// the inner ones first.
  template <class Ended>
  Place Put(std::int64_t begin_ns, std::int64_t end_ns, Ended&& ended) {
    for (std::size_t row = 0;; ++row) {
      if (row == rows_.size()) rows_.emplace_back();
      std::vector<std::int64_t>& open = rows_[row];
      while (!open.empty() && open.back() <= begin_ns) {
        ended(row, open.back());
        open.pop_back();
      }
      const bool fits = open.empty() || query::Encloses(open.back(), begin_ns, end_ns);
      if (!fits && row + 1 < kMostRows) continue;
      if (!open.empty()) end_ns = std::min(end_ns, open.back());
      open.push_back(end_ns);
      return {row, end_ns};
    }
  }
  template <class Ended>
  void Finish(Ended&& ended) {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      for (auto at = rows_[row].rbegin(); at != rows_[row].rend(); ++at) ended(row, *at);
      rows_[row].clear();
    }
  }
  std::size_t rows() const { return rows_.size(); }

 private:
  std::vector<std::vector<std::int64_t>> rows_;  ///< Ends of what is open.
};

}  // namespace telltale::interchange
