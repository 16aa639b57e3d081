// SPDX-License-Identifier: Apache-2.0
// A rank that the others wait for.
#include <algorithm>
#include <cmath>

#include "rules/advice/check.h"

namespace telltale::rules::advice {

const Check kSlowRank{
    "SlowRank",
    "Is one rank slower than the others?",
    "XProf smart suggestions: straggler hosts; HolisticTraceAnalysis: stragglers",
    "Of three ranks or more: a rank's step less its communication, modified z-score 0.6745 × (own "
    "− "
    "median) / MAD above 3.5, MAD at least 2 % of the median. Of two or more: late at the "
    "collective that differs most between ranks by 10 % of a step on average, and last in most "
    "steps. Medium, high from 30 % of a step. Cost = the delay × steps: all ranks wait for it.",
    "Straggler",
    [](const RunFacts& run, Findings* out) {
      constexpr double kScore = 3.5;
      constexpr double kLeastSpread = 0.02;
      constexpr double kLate = 0.1;
      constexpr double kVery = 0.3;
      std::vector<double> own;
      for (const RankFacts& rank : run.ranks) {
        if (!rank.has_steps()) continue;
        own.push_back(
            static_cast<double>(rank.wall_ns - rank.role(trace::StepRole::kCommunication)) /
            static_cast<double>(rank.steps.size()));
      }
      if (own.empty()) return RuleStatus::kNoData;
      if (own.size() < 2) return RuleStatus::kNotApplicable;
      const double median = MedianOf(own);
      std::vector<double> distances;
      for (const double one : own) distances.push_back(std::abs(one - median));
      const double spread = std::max(MedianOf(distances), kLeastSpread * median);
      std::size_t at = 0;
      for (const RankFacts& rank : run.ranks) {
        if (!rank.has_steps()) continue;
        const double mine = own[at++];
        const double score = own.size() > 2 && spread > 0 ? 0.6745 * (mine - median) / spread : 0;
        double late = 0;
        std::uint64_t last_in = 0;
        std::int64_t late_ns = 0;
        for (const trace::StragglerRank& one : run.stragglers.ranks) {
          if (one.rank != rank.rank) continue;
          late = one.late_share;
          late_ns = one.late_ns;
          last_in = one.steps;
        }
        const bool comes_late = late >= kLate && 2 * last_in > rank.steps.size();
        if (score <= kScore && !comes_late) continue;
        const double behind_ns = std::max(score > kScore ? mine - median : 0,
                                          comes_late ? static_cast<double>(late_ns) : 0);
        const double wall = static_cast<double>(rank.wall_ns);
        const auto steps = static_cast<double>(rank.steps.size());
        Advised a;
        a.share = std::min(1.0, behind_ns * steps / wall);
        a.severity = a.share >= kVery ? Severity::kHigh : Severity::kMedium;
        a.title = "The other ranks wait for this one";
        a.evidence["own_step_ms"] = Rounded(mine / 1e6);
        a.evidence["median_step_ms"] = Rounded(median / 1e6);
        a.evidence["z_score"] = Rounded(score);
        a.evidence["late_share"] = Rounded(late);
        a.evidence["last_in_steps"] = last_in;
        if (!run.stragglers.kernel.empty()) a.evidence["judged_by"] = run.stragglers.kernel;
        a.cause = fmt::format("Each step it comes {} ms after the others.", Millis(behind_ns));
        a.advice =
            "Look at what only this rank does (logging, evaluation, longer samples), at its loader "
            "and storage, and at the clocks and other programs of its machine.";
        a.cost_seconds = behind_ns * steps / 1e9;
        a.assumption = "assumes that it becomes as fast as the others";
        out->Add(rank, std::move(a));
      }
      return RuleStatus::kNoIssuesFound;
    }};

}  // namespace telltale::rules::advice
