// SPDX-License-Identifier: Apache-2.0
// Findings that speak of one thing, put together under what explains the others; what was different
// while it lasted; what it cost, what mending it would give, in time and, given a price, in money.
// Computed of the records and the findings alone, so the same on the live page and afterwards.
#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/root_cause.h"
#include "report/load.h"

namespace telltale::report {

/// The registry's rule of a finding, whose own name may be that of an instance.
std::string_view RuleOf(const RunData& data, const rules::Finding& finding);

/// Indexes into the run's findings, as rules::Groups has them.
std::vector<std::vector<std::size_t>> GroupFindings(const RunData& data);

/// What was compared to explain a group.
enum class Basis : std::uint8_t {
  kNone,          ///< A wrong result, no normal steps, or steps no slower than those.
  kWindows,       ///< Steps while it lasted against those without any finding about speed.
  kSlowSteps,     ///< Single steps of more than twice the median against the others.
  kStarvedSteps,  ///< Steps with an idle device and a busy core against those with a busy device.
};
std::string_view Name(Basis basis);

struct Explanation {
  std::vector<std::size_t> findings;                  ///< As GroupFindings has them; never empty.
  rules::Severity severity = rules::Severity::kInfo;  ///< The highest.
  /// The first finding's own; where that has none, what covers enough of the gap; else "cause not
  /// found".
  std::string cause;
  bool cause_found = false;
  /// "load 48 %, forward 31 % of what a step takes longer"; empty where nothing was compared.
  std::string difference;
  Basis basis = Basis::kNone;
  analysis::Contrast contrast;  ///< Empty with kNone.
  /// Of one finding its cost; of several each second of a rank once, however many of them count it,
  /// the mean over ranks.
  double lost_seconds = 0;
  /// What the same run would take less; 0 where nothing was lost.
  double gain_seconds = 0;
  std::string assumption;            ///< Of the gain, a sentence.
  std::optional<double> lost_money;  ///< Where the run has a price.
  std::optional<double> gain_money;
};

/// One for each group; the comparison for the first kMostExplained.
inline constexpr std::size_t kMostExplained = 12;
std::vector<Explanation> Explain(const RunData& data);

/// Of the run's machines in this time; none where the run has no price.
std::optional<double> MoneyOf(const RunData& data, double seconds);
/// "12.40 USD"; of less than a hundredth "< 0.01 USD".
std::string Money(double amount, std::string_view currency);

/// Behind what a group lost: " together" where that is another figure than the cost of its first
/// finding, beside which it stands; else empty.
std::string_view TogetherWord(const RunData& data, const std::vector<std::size_t>& findings,
                              double lost_seconds);

/// "Lost 18 m 02 s (9.80 USD); mending it would save 17 m of this run (9.30 USD): assumes that …";
/// empty where nothing was lost.
std::string GainWords(const RunData& data, const Explanation& explanation);
/// "With it: CPUBottleneck (rank 0), LowGPUUtilization (gpu:0, gpu:1)."; empty where it is alone.
std::string BeneathWords(const RunData& data, const Explanation& explanation);

/// As `check --json` and the live page have it: {findings, severity, cause, cause_found,
/// difference, lost_seconds, gain_seconds, assumption, money, comparison}.
nlohmann::ordered_json ToJson(const RunData& data, const Explanation& explanation);

}  // namespace telltale::report
