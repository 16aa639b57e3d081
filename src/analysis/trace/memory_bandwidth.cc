// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/memory_bandwidth.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"

namespace telltale::analysis::trace {
namespace {

constexpr std::int64_t kLeastNs = 1000;
/// "Memcpy HtoD", of "Memcpy HtoD (Pageable -> Device)".
constexpr std::size_t kKindLength = 11;

std::string_view CopyKind(std::string_view name) {
  if (name.starts_with("Memset")) return "Memset";
  if (name.starts_with("Memcpy")) return name.substr(0, kKindLength);
  return "Memcpy Unknown";
}

}  // namespace

std::vector<CopyBandwidth> MemoryBandwidthOf(const Trace& trace, const Scope& scope) {
  std::map<std::string_view, CopyBandwidth> by_kind;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const bool copy =
        trace.category[i] == Category::kMemcpy || trace.category[i] == Category::kMemset;
    if (!copy || !scope.Has(i)) continue;
    const std::int64_t length = trace.duration_ns[i] > 0 ? trace.duration_ns[i] : kLeastNs;
    double gbps = static_cast<double>(trace.gbps[i]);
    if (!std::isfinite(gbps)) {
      gbps = static_cast<double>(trace.bytes[i]) / static_cast<double>(length);
    }
    CopyBandwidth& of = by_kind[CopyKind(trace.NameOf(i))];
    ++of.copies;
    of.bytes += trace.bytes[i];
    of.busy_ns += trace.duration_ns[i];
    of.points.push_back({trace.begin_ns[i], gbps});
    of.points.push_back({trace.begin_ns[i] + length, -gbps});
  }
  std::vector<CopyBandwidth> out;
  for (auto& [kind, of] : by_kind) {
    of.kind = kind;
    std::stable_sort(
        of.points.begin(), of.points.end(),
        [](const BandwidthPoint& a, const BandwidthPoint& b) { return a.time_ns < b.time_ns; });
    double sum = 0;
    for (BandwidthPoint& point : of.points) {
      sum += point.gbps;
      point.gbps = sum;
    }
    out.push_back(std::move(of));
  }
  return out;
}

Description BandwidthSummary(const CopyBandwidth& copies) {
  std::vector<double> values;
  for (const BandwidthPoint& point : copies.points) {
    if (point.gbps > 0) values.push_back(point.gbps);
  }
  return Describe(std::move(values));
}

Result<Tables> RunMemoryBandwidth(TraceSource& source, const Options& options) {
  Tables out;
  Table& table =
      out.Add("memory_bandwidth", "Bandwidth of copies and sets, by kind",
              {"rank", "kind", "copies", "sum_bytes", "sum_ns", "points", "mean_gbps", "std_gbps",
               "min_gbps", "q25_gbps", "median_gbps", "q75_gbps", "max_gbps"});
  Table* series = nullptr;
  if (options.series) {
    series = &out.Add("series", "The bandwidth from each moment on",
                      {"rank", "kind", "time_ns", "gbps"});
    series->shown = options.top;
  }
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {.bytes = true, .facts = true}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    for (const CopyBandwidth& of : MemoryBandwidthOf(trace, scope)) {
      const Description d = BandwidthSummary(of);
      table.Add({Int(rank), Text(of.kind), Int(of.copies), Int(of.bytes), Int(of.busy_ns),
                 Int(d.count), Real(d.mean), Real(d.std), Real(d.min), Real(d.q25), Real(d.median),
                 Real(d.q75), Real(d.max)});
      if (series == nullptr) continue;
      for (const BandwidthPoint& point : of.points) {
        series->Add({Int(rank), Text(of.kind), point.time_ns, Real(point.gbps)});
      }
    }
  }
  return out;
}

}  // namespace telltale::analysis::trace
