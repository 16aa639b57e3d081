// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/trace_diff.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"
#include "analysis/trace/scope.h"

namespace telltale::analysis::trace {
namespace {

using CountsByName = std::map<std::string, OpCounts>;

CountsByName CountOps(const Trace& trace, std::vector<std::int64_t> steps, DiffDevice device,
                      bool short_names) {
  const std::vector<StepMark> marks = StepMarks(trace);
  if (steps.empty() && !marks.empty()) {
    steps.push_back(std::min_element(marks.begin(), marks.end(), [](const auto& a, const auto& b) {
                      return a.step < b.step;
                    })->step);
  }
  const std::vector<std::int64_t> step_of =
      steps.empty() ? std::vector<std::int64_t>() : StepsOfRows(trace, marks);
  std::vector<OpCounts> counts(trace.names.size());
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!steps.empty() && std::find(steps.begin(), steps.end(), step_of[i]) == steps.end()) {
      continue;
    }
    const bool on_stream = trace.LaneOf(i).stream >= 0;
    if (device != DiffDevice::kAll && on_stream != (device == DiffDevice::kGpu)) continue;
    ++counts[trace.name[i]].count;
    counts[trace.name[i]].sum_ns += trace.duration_ns[i];
  }
  CountsByName out;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i].count == 0) continue;
    OpCounts& sum = out[short_names ? ShortName(trace.names[i]) : trace.names[i]];
    sum.count += counts[i].count;
    sum.sum_ns += counts[i].sum_ns;
  }
  return out;
}

}  // namespace

OpChange OpDiff::change() const {
  if (control.count == 0) return OpChange::kAdded;
  if (test.count == 0) return OpChange::kDeleted;
  if (test.count > control.count) return OpChange::kIncreased;
  return test.count < control.count ? OpChange::kDecreased : OpChange::kUnchanged;
}

std::string ShortName(std::string_view name) {
  if (name.starts_with("Memcpy") || name.starts_with("Memset") || name.starts_with("dma")) {
    return std::string(name);
  }
  if (name.find_first_of("<(") == std::string_view::npos) return std::string(name);
  std::string out;
  const auto close = [&out](char open) {
    while (!out.empty() && out.back() != open) out.pop_back();
    if (!out.empty()) out.pop_back();
  };
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name.substr(i).starts_with("->")) {
      ++i;
    } else if (name[i] == '>') {
      close('<');
    } else if (name[i] == ')') {
      close('(');
    } else {
      out += name[i];
    }
  }
  const std::size_t blank = out.rfind(' ');
  return blank == std::string::npos ? out : out.substr(blank + 1);
}

std::vector<OpDiff> TraceDiffOf(const Trace& control, const Trace& test,
                                const std::vector<std::int64_t>& control_steps,
                                const std::vector<std::int64_t>& test_steps, DiffDevice device,
                                bool short_names) {
  std::map<std::string, OpDiff> by_name;
  for (auto& [name, counts] : CountOps(control, control_steps, device, short_names)) {
    by_name[name].control = counts;
  }
  for (auto& [name, counts] : CountOps(test, test_steps, device, short_names)) {
    by_name[name].test = counts;
  }
  std::vector<OpDiff> out;
  out.reserve(by_name.size());
  for (auto& [name, diff] : by_name) {
    diff.name = name;
    out.push_back(std::move(diff));
  }
  std::stable_sort(out.begin(), out.end(), [](const OpDiff& a, const OpDiff& b) {
    return std::abs(a.difference_ns()) > std::abs(b.difference_ns());
  });
  return out;
}

Result<Tables> RunTraceDiff(TraceSource& source, const Options& options) {
  if (options.against.empty()) {
    return Status(Code::kUsage, "diff needs --against RUN, the run that is compared with this one");
  }
  TELLTALE_ASSIGN_OR_RETURN(TraceSource other, TraceSource::Open(options.against, options.ranks));
  const DiffDevice device = options.device == "cpu"   ? DiffDevice::kCpu
                            : options.device == "gpu" ? DiffDevice::kGpu
                                                      : DiffDevice::kAll;
  TELLTALE_ASSIGN_OR_RETURN(const Trace control, source.Load(source.ranks().front(), {}));
  TELLTALE_ASSIGN_OR_RETURN(const Trace test, other.Load(other.ranks().front(), {}));
  Tables out;
  Table& changes = out.Add("changes", "Names by what changed", {"change", "names"});
  Table& table = out.Add(
      "diff", "Names, the largest difference of time first",
      {"name", "change", "control_count", "test_count", "control_ns", "test_ns", "difference_ns"});
  table.shown = options.top;
  std::array<std::int64_t, kOpChangeNames.size()> of_change{};
  for (const OpDiff& d :
       TraceDiffOf(control, test, options.steps,
                   options.against_steps.empty() ? options.steps : options.against_steps, device,
                   options.short_names)) {
    const auto change = static_cast<std::size_t>(d.change());
    ++of_change[change];
    table.Add({Text(d.name), Text(kOpChangeNames[change]), Int(d.control.count), Int(d.test.count),
               Int(d.control.sum_ns), Int(d.test.sum_ns), d.difference_ns()});
  }
  for (std::size_t i = 0; i < of_change.size(); ++i) {
    changes.Add({Text(kOpChangeNames[i]), of_change[i]});
  }
  if (other.salvage().any()) {
    out.notes.push_back(
        fmt::format("{} is damaged: what could be read was compared", options.against.string()));
  }
  return out;
}

}  // namespace telltale::analysis::trace
