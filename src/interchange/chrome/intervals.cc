// SPDX-License-Identifier: Apache-2.0
#include "interchange/chrome/intervals.h"

#include <algorithm>
#include <utility>

namespace telltale::interchange {

IntervalSet ToSet(std::vector<ChromeInterval> intervals) {
  if (!std::is_sorted(intervals.begin(), intervals.end())) {
    std::sort(intervals.begin(), intervals.end());
  }
  IntervalSet set;
  for (const ChromeInterval& one : intervals) {
    if (one.end_ns <= one.begin_ns) continue;
    if (!set.empty() && one.begin_ns <= set.back().end_ns) {
      set.back().end_ns = std::max(set.back().end_ns, one.end_ns);
    } else {
      set.push_back(one);
    }
  }
  return set;
}

IntervalSet Within(const IntervalSet& set, std::int64_t begin_ns, std::int64_t end_ns) {
  IntervalSet out;
  auto at = std::upper_bound(
      set.begin(), set.end(), begin_ns,
      [](std::int64_t time, const ChromeInterval& one) { return time < one.end_ns; });
  for (; at != set.end() && at->begin_ns < end_ns; ++at) {
    out.push_back({std::max(at->begin_ns, begin_ns), std::min(at->end_ns, end_ns)});
  }
  return out;
}

IntervalSet Without(const IntervalSet& a, const IntervalSet& b) {
  IntervalSet out;
  auto next = b.begin();
  for (ChromeInterval one : a) {
    while (next != b.end() && next->end_ns <= one.begin_ns) ++next;
    for (auto at = next; at != b.end() && at->begin_ns < one.end_ns; ++at) {
      if (at->begin_ns > one.begin_ns) out.push_back({one.begin_ns, at->begin_ns});
      one.begin_ns = std::max(one.begin_ns, at->end_ns);
    }
    if (one.begin_ns < one.end_ns) out.push_back(one);
  }
  return out;
}

std::int64_t LengthOf(const IntervalSet& set) {
  std::int64_t length = 0;
  for (const ChromeInterval& one : set) length += one.end_ns - one.begin_ns;
  return length;
}

}  // namespace telltale::interchange
