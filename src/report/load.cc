// SPDX-License-Identifier: Apache-2.0
#include "report/load.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "report/causes.h"
#include "rules/advice/advise.h"

namespace telltale::report {
namespace {

constexpr std::uint64_t kProgressRecords = 8192;
/// The agent hears of an attempt's end so soon, mostly at once.
constexpr std::int64_t kSameEndNs = 10'000'000'000;

}  // namespace

Result<RunData> Load(const std::filesystem::path& run, std::int64_t until_ns,
                     std::optional<rules::RuleSet> set,
                     const std::function<void(std::uint64_t records)>& progress) {
  RunData data;
  data.path = run;
  rules::ReplayOptions options;
  options.until_ns = until_ns;
  options.rules = std::move(set);
  options.sink_mask = analysis::Summary::table_mask();
  options.sink = [&](const store::OrderedRecord& record) {
    data.summary.OnRecord(record);
    data.trail.OnRecord(record);
    data.usage.OnRecord(record);
    if (progress && data.summary.records % kProgressRecords == 0) progress(data.summary.records);
  };
  const bool defaults = !options.rules || options.rules->defaults;
  TELLTALE_ASSIGN_OR_RETURN(data.replay, rules::ReplayRun(run, options));
  const store::RunState& state = data.replay.state;
  if (state.unrecorded || !state.unrecorded_before.empty()) {
    // Nobody is left to write it into the ledger.
    analysis::LedgerTotal& lost = data.summary.ledger["run.agents_lost"];
    lost = {std::max<std::uint64_t>(1, lost.value), "agents", true};
  }
  if (defaults && data.replay.ended) {
    data.advice_trouble = rules::advice::AddAdvice(run, &data.replay).message();
  }
  return data;
}

std::int64_t RunData::end_ns() const {
  const auto& attempts = replay.info.attempts;
  if (!replay.ended || attempts.empty()) return summary.last_ns;
  const std::int64_t said = attempts.back().end_ns;
  const auto found = summary.attempts.find(attempts.back().number);
  const std::int64_t recorded = found == summary.attempts.end() ? 0 : found->second.end_ns;
  if (said > 0 && recorded > 0) {
    return said > recorded - kSameEndNs && said < recorded + kSameEndNs ? said : recorded;
  }
  if (recorded > 0) return recorded;
  // An end before what was recorded last is of a clock that was set back.
  if (said > 0) return said > summary.last_ns - kSameEndNs ? said : summary.last_ns;
  return std::max(summary.last_ns, replay.seen_end_ns);
}

double RunData::elapsed_seconds() const {
  const auto& attempts = replay.info.attempts;
  std::int64_t begin = attempts.empty() ? summary.first_ns : attempts.front().start_ns;
  if (begin == 0) begin = summary.first_ns;
  return std::max(0.0, static_cast<double>(end_ns() - begin) / 1e9);
}

bool RunData::end_unknown() const {
  const auto& attempts = replay.info.attempts;
  if (!replay.ended || !replay.state.unrecorded || attempts.empty()) return false;
  const auto recorded = summary.attempts.find(attempts.back().number);
  return attempts.back().end_ns <= 0 && replay.seen_end_ns == 0 &&
         (recorded == summary.attempts.end() || recorded->second.end_ns == 0);
}

std::vector<std::int64_t> RunData::lost_before_ns() const {
  std::vector<std::int64_t> out = summary.lost_since_ns;
  for (const store::Unrecorded& lost : replay.state.unrecorded_before) out.push_back(lost.since_ns);
  return out;
}

namespace {

/// A finding's cost as seconds lost a second, over the time that it lasted.
struct Loss {
  std::int64_t start_ns, end_ns;
  double rate;
  int group;  ///< What speaks of the same thing; that of wrong results is kWrong.
};
/// A training whose result is wrong for two reasons loses its time once.
constexpr int kWrong = -1;
/// No finding costs more: a year.
constexpr double kMostSeconds = 366.0 * 86'400;
constexpr std::int64_t kLastStartNs =
    std::numeric_limits<std::int64_t>::max() - 2 * static_cast<std::int64_t>(kMostSeconds * 1e9);

/// Seconds that one rank lost. Of what speaks of one thing the dearest counts, and no second is
/// lost more than once.
double LostByRank(const std::vector<Loss>& losses) {
  struct Edge {
    std::int64_t at_ns;
    const Loss* loss;
  };
  std::vector<Edge> edges;
  for (const Loss& loss : losses) {
    edges.push_back({loss.start_ns, &loss});
    edges.push_back({loss.end_ns, &loss});
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return a.at_ns < b.at_ns; });
  double lost = 0;
  double rate = 0;  ///< Of all groups together.
  std::map<int, std::multiset<double>> groups;
  std::int64_t before_ns = 0;
  for (const Edge& edge : edges) {
    lost += std::clamp(rate, 0.0, 1.0) * static_cast<double>(edge.at_ns - before_ns) / 1e9;
    before_ns = edge.at_ns;
    std::multiset<double>& rates = groups[edge.loss->group];
    rate -= rates.empty() ? 0 : *rates.rbegin();
    if (edge.at_ns == edge.loss->start_ns) {
      rates.insert(edge.loss->rate);
    } else {
      rates.erase(rates.find(edge.loss->rate));
    }
    rate += rates.empty() ? 0 : *rates.rbegin();
  }
  return lost;
}

bool OfARank(const rules::Finding& f) { return f.incident.subject.starts_with("rank "); }

}  // namespace

double RunData::lost_seconds() const {
  std::vector<std::size_t> all(replay.findings.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return lost_seconds_of(all);
}

double RunData::lost_seconds_of(const std::vector<std::size_t>& findings) const {
  return lost_seconds_of(findings, GroupFindings(*this));
}

double RunData::lost_seconds_of(const std::vector<std::size_t>& findings,
                                const std::vector<std::vector<std::size_t>>& groups) const {
  std::map<std::string_view, std::vector<Loss>> by_rank;
  std::vector<Loss> of_all;  // What a node, a device or a tensor costs, each rank loses.
  std::vector<bool> asked(replay.findings.size());
  for (const std::size_t index : findings) asked[index] = true;
  int group = 0;
  for (const std::vector<std::size_t>& members : groups) {
    ++group;
    // What a rule of the user's reports may be any number.
    const auto counts = [&](std::size_t index) {
      const rules::Incident& incident = replay.findings[index].incident;
      return asked[index] && incident.cost_seconds > 0 && incident.cost_seconds < kMostSeconds &&
             incident.start_ns >= 0 && incident.start_ns < kLastStartNs;
    };
    // The time that ranks lose is not lost again by the node or the device that they are on.
    const bool of_ranks = std::any_of(members.begin(), members.end(), [&](std::size_t index) {
      return counts(index) && OfARank(replay.findings[index]);
    });
    for (const std::size_t index : members) {
      const rules::Finding& f = replay.findings[index];
      if (!counts(index) || (of_ranks && !OfARank(f))) continue;
      // Processes of one rank (a sweep) are trainings of their own.
      const bool of_all_ranks =
          f.standing.all_ranks && f.incident.subject.find(',') == std::string::npos;
      const rules::Incident& incident = f.incident;
      const std::int64_t end_ns =
          std::max(incident.end_ns,
                   incident.start_ns + static_cast<std::int64_t>(incident.cost_seconds * 1e9) + 1);
      const Loss loss{incident.start_ns, end_ns,
                      incident.cost_seconds * 1e9 / static_cast<double>(end_ns - incident.start_ns),
                      f.wrong_result ? kWrong : group};
      if (!OfARank(f) || of_all_ranks) {
        of_all.push_back(loss);
        continue;
      }
      // "rank 0, pid 4711" is of rank 0.
      by_rank[std::string_view(incident.subject).substr(0, incident.subject.find(','))].push_back(
          loss);
    }
  }
  const std::size_t ranks = std::max({std::size_t{1}, summary.ranks.size(), by_rank.size()});
  double sum = LostByRank(of_all) * static_cast<double>(ranks - by_rank.size());
  for (auto& [rank, losses] : by_rank) {
    losses.insert(losses.end(), of_all.begin(), of_all.end());
    sum += LostByRank(losses);
  }
  return std::min(sum / static_cast<double>(ranks), elapsed_seconds());
}

}  // namespace telltale::report
