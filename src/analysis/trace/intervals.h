// SPDX-License-Identifier: Apache-2.0
// Sets of times as sorted intervals that do not touch: unions, intersections, differences, in
// linear time.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace telltale::analysis::trace {

/// [begin, end) in ns.
struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t length() const { return end - begin; }
  bool operator==(const Span&) const = default;
};
using Spans = std::vector<Span>;

/// The union of any spans; empty ones are left out, those that touch become one.
inline Spans Merged(Spans spans) {
  std::erase_if(spans, [](const Span& s) { return s.end <= s.begin; });
  const auto earlier = [](const Span& a, const Span& b) { return a.begin < b.begin; };
  if (!std::is_sorted(spans.begin(), spans.end(), earlier)) {
    std::sort(spans.begin(), spans.end(), earlier);
  }
  std::size_t out = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (out > 0 && spans[i].begin <= spans[out - 1].end) {
      spans[out - 1].end = std::max(spans[out - 1].end, spans[i].end);
    } else {
      spans[out++] = spans[i];
    }
  }
  spans.resize(out);
  return spans;
}

// What follows takes merged sets.

inline std::int64_t Length(const Spans& spans) {
  std::int64_t sum = 0;
  for (const Span& s : spans) sum += s.length();
  return sum;
}

inline Spans Intersection(const Spans& a, const Spans& b) {
  Spans out;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Span common{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (common.begin < common.end) out.push_back(common);
    a[i].end < b[j].end ? ++i : ++j;
  }
  return out;
}

/// What of `a` is not in `b`.
inline Spans Difference(const Spans& a, const Spans& b) {
  Spans out;
  std::size_t j = 0;
  for (const Span& whole : a) {
    std::int64_t from = whole.begin;
    while (j < b.size() && b[j].end <= from) ++j;
    std::size_t k = j;
    for (; k < b.size() && b[k].begin < whole.end; ++k) {
      if (b[k].begin > from) out.push_back({from, b[k].begin});
      from = std::max(from, b[k].end);
    }
    if (from < whole.end) out.push_back({from, whole.end});
    // The last one may reach into the next of `a`.
    j = k > j ? k - 1 : j;
  }
  return out;
}

/// Length of what of `a` lies within `window`.
inline std::int64_t LengthWithin(const Spans& a, const Span& window) {
  auto at = std::upper_bound(a.begin(), a.end(), window.begin,
                             [](std::int64_t t, const Span& s) { return t < s.end; });
  std::int64_t sum = 0;
  for (; at != a.end() && at->begin < window.end; ++at) {
    sum += std::min(at->end, window.end) - std::max(at->begin, window.begin);
  }
  return sum;
}

}  // namespace telltale::analysis::trace
