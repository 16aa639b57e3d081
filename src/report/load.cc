// SPDX-License-Identifier: Apache-2.0
#include "report/load.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace telltale::report {

Result<RunData> Load(const std::filesystem::path& run, std::int64_t until_ns,
                     std::optional<rules::RuleSet> set) {
  RunData data;
  data.path = run;
  rules::ReplayOptions options;
  options.until_ns = until_ns;
  options.rules = std::move(set);
  options.sink_mask = analysis::Summary::table_mask();
  options.sink = [&](const store::OrderedRecord& record) { data.summary.OnRecord(record); };
  TELLTALE_ASSIGN_OR_RETURN(data.replay, rules::ReplayRun(run, options));
  return data;
}

double RunData::elapsed_seconds() const {
  const auto& attempts = replay.info.attempts;
  std::int64_t begin = attempts.empty() ? summary.first_ns : attempts.front().start_ns;
  std::int64_t end = summary.last_ns;
  if (begin == 0) begin = summary.first_ns;
  if (replay.ended && !attempts.empty() && attempts.back().end_ns > 0) {
    end = attempts.back().end_ns;
  }
  return std::max(0.0, static_cast<double>(end - begin) / 1e9);
}

namespace {

/// A finding's cost as seconds lost a second, over the time that it lasted.
struct Loss {
  std::int64_t start_ns, end_ns;
  double rate;
  bool wrong_result;
};

/// Seconds that one rank lost. A training whose result is wrong for two reasons loses its time
/// once, so of wrong results the dearest counts; and no second is lost more than once.
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
  std::multiset<double> wrong;
  std::multiset<double> slow;
  std::int64_t before_ns = 0;
  for (const Edge& edge : edges) {
    const double rate =
        (wrong.empty() ? 0 : *wrong.rbegin()) + std::accumulate(slow.begin(), slow.end(), 0.0);
    lost += std::min(1.0, rate) * static_cast<double>(edge.at_ns - before_ns) / 1e9;
    before_ns = edge.at_ns;
    std::multiset<double>& rates = edge.loss->wrong_result ? wrong : slow;
    if (edge.at_ns == edge.loss->start_ns) {
      rates.insert(edge.loss->rate);
    } else {
      rates.erase(rates.find(edge.loss->rate));
    }
  }
  return lost;
}

}  // namespace

double RunData::lost_seconds() const {
  std::map<std::string_view, std::vector<Loss>> by_rank;
  for (const rules::Finding& f : replay.findings) {
    const rules::Incident& incident = f.incident;
    if (!(incident.cost_seconds > 0)) continue;
    const std::int64_t end_ns =
        std::max(incident.end_ns,
                 incident.start_ns + static_cast<std::int64_t>(incident.cost_seconds * 1e9) + 1);
    // "rank 0, pid 4711" is of rank 0.
    by_rank[std::string_view(incident.subject).substr(0, incident.subject.find(','))].push_back(
        {incident.start_ns, end_ns,
         incident.cost_seconds * 1e9 / static_cast<double>(end_ns - incident.start_ns),
         f.wrong_result});
  }
  double sum = 0;
  for (const auto& [rank, losses] : by_rank) sum += LostByRank(losses);
  sum /= static_cast<double>(std::max<std::size_t>(1, summary.ranks.size()));
  return std::min(sum, elapsed_seconds());
}

}  // namespace telltale::report
