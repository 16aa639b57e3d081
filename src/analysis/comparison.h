// SPDX-License-Identifier: Apache-2.0
// Two runs beside each other: step time by phase, throughput, memory, losses at equal steps;
// whether what differs differs by more than chance, and by how much. From their summaries alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/significance.h"
#include "analysis/summary.h"

namespace telltale::analysis {

enum class Change : std::uint8_t {
  kSame,  ///< By chance, or by less than the threshold.
  kWorse,
  kBetter,
  kUntested,  ///< One number a run, or too few blocks: shown, never judged.
};
std::string_view Name(Change change);

struct Measure {
  std::string name;  ///< "step time", "forward", "throughput", "loss", "proc.rss of proc:tree".
  std::string unit;  ///< ns, samples/s, bytes; empty of a loss.
  double a = 0;      ///< Median of blocks; of memory the largest value.
  double b = 0;
  double mean_a = 0;  ///< Of blocks.
  double mean_b = 0;
  double change = 0;  ///< (b − a) / |a|; of a phase: / step time of a. 0 where a is 0.
  std::size_t blocks_a = 0;
  std::size_t blocks_b = 0;
  std::optional<double> p;           ///< Of phases, and of those that gate: corrected together.
  std::optional<double> delta;       ///< Cliff's, of b above a.
  std::optional<Interval> interval;  ///< 95 %, of b / a.
  Change verdict = Change::kUntested;
  bool gates = false;  ///< A regression where it is worse.
};

struct LossAt {
  std::string name;  ///< "loss" or "eval loss".
  std::int64_t step = 0;
  double a = 0;
  double b = 0;
};

struct CompareOptions {
  double threshold = 0.05;  ///< Least relative change that counts.
  double alpha = 0.01;      ///< Largest p.
  /// Bootstrap samples of an interval: with fewer it is rougher, and made sooner.
  std::size_t resamples = kResamples;
};

struct Comparison {
  std::vector<Measure> measures;
  std::vector<LossAt> losses;      ///< At most kLossSteps of each loss.
  std::vector<std::string> notes;  ///< What could not be compared, and why; a sentence each.

  static constexpr std::size_t kLossSteps = 8;
  /// A measure that gates is worse.
  bool regression() const;
  /// At least one measure that gates could be judged.
  bool judged() const;
};

/// `a` is the one before, `b` the one after.
Comparison Compare(const Summary& a, const Summary& b, const CompareOptions& options = {});

/// How Compare judges, in two sentences: whoever shows p must say of what test.
extern const std::string_view kCompareMethod;

}  // namespace telltale::analysis
