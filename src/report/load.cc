// SPDX-License-Identifier: Apache-2.0
#include "report/load.h"

#include <algorithm>

namespace telltale::report {

Result<RunData> Load(const std::filesystem::path& run) {
  RunData data;
  data.path = run;
  rules::ReplayOptions options;
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

double RunData::lost_seconds() const {
  double sum = 0;
  for (const rules::Finding& f : replay.findings) sum += f.incident.cost_seconds;
  sum /= static_cast<double>(std::max<std::size_t>(1, summary.ranks.size()));
  return std::min(sum, elapsed_seconds());
}

}  // namespace telltale::report
