// SPDX-License-Identifier: Apache-2.0
#include "run/change_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace telltale::run {

std::vector<std::string> ChangeLines::Due(std::int64_t now_ns,
                                          const std::vector<FindingChange>& changes,
                                          std::uint64_t more, bool colour, bool last) {
  const std::int64_t periods = (now_ns - refilled_ns_) / kPeriodNs;
  left_ = static_cast<int>(std::min<std::int64_t>(kBurst, left_ + periods));
  refilled_ns_ += periods * kPeriodNs;
  std::vector<std::string> out;
  untold_ += more;
  for (const FindingChange& change : changes) {
    if (left_ > 0) {
      --left_;
      out.push_back(RenderChange(change, colour));
    } else {
      ++untold_;
    }
  }
  if (untold_ == 0 || (!last && now_ns - counted_ns_ < kCountPeriodNs)) return out;
  counted_ns_ = now_ns;
  const std::uint64_t count = std::exchange(untold_, 0);
  out.push_back(fmt::format("telltale: {} more {} of findings: `telltale check {}` lists them",
                            count, count == 1 ? "change" : "changes", run_));
  return out;
}

}  // namespace telltale::run
