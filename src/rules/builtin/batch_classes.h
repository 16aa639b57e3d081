// SPDX-License-Identifier: Apache-2.0
// The event `batch.classes`: for some rows of some batches, how many labels of each class were
// predicted as which. Thread safety: none.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "rules/builtin/event_data.h"

namespace telltale::rules {

struct ClassCounts {
  struct Pair {
    std::size_t label = 0;
    std::size_t predicted = 0;
    std::uint64_t count = 0;
  };

  std::int64_t first_step = -1;
  std::int64_t step = -1;
  std::size_t classes = 0;
  std::uint64_t samples = 0;
  std::vector<Pair> pairs;
};

/// Why `samples` labels say nothing where so many are needed.
inline std::string LabelsLacking(std::uint64_t samples, std::uint64_t needed) {
  return samples == 0 ? "no labels of a classification loss were recorded"
                      : fmt::format("{} labels were recorded, {} are needed", samples, needed);
}

/// Nothing where the text is no such event, or has more than `most` classes.
inline std::optional<ClassCounts> ClassCountsOf(const nlohmann::json& data, std::size_t most) {
  ClassCounts out;
  const double classes = NumberIn(data, "classes");
  if (!(classes >= 2) || !(classes <= static_cast<double>(most))) return std::nullopt;
  out.classes = static_cast<std::size_t>(classes);
  const auto step_in = [&](const char* name) {
    return static_cast<std::int64_t>(std::clamp(NumberIn(data, name, -1), -1.0, 1e15));
  };
  out.first_step = step_in("first_step");
  out.step = step_in("step");
  const auto counts = data.find("counts");
  if (counts == data.end() || !counts->is_array()) return std::nullopt;
  for (const nlohmann::json& each : *counts) {
    if (!each.is_array() || each.size() != 3) return std::nullopt;
    for (const nlohmann::json& number : each) {
      if (!number.is_number_unsigned()) return std::nullopt;
    }
    const ClassCounts::Pair pair{each[0].get<std::size_t>(), each[1].get<std::size_t>(),
                                 std::min<std::uint64_t>(each[2].get<std::uint64_t>(), 1U << 30U)};
    if (pair.label >= out.classes || pair.predicted >= out.classes) return std::nullopt;
    out.samples += pair.count;
    out.pairs.push_back(pair);
  }
  if (out.samples == 0) return std::nullopt;
  return out;
}

/// What a share of `count` of `all` is at least, at z standard deviations (Wilson).
inline double LeastShare(double count, double all, double z) {
  if (all <= 0) return 0;
  const double share = count / all;
  const double square = z * z / all;
  const double middle = share + square / 2;
  const double spread = z * std::sqrt((share * (1 - share) + square / 4) / all);
  return std::max(0.0, (middle - spread) / (1 + square));
}

}  // namespace telltale::rules
