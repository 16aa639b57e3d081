// SPDX-License-Identifier: Apache-2.0
// The analyses of traces by name: one file each beside this one, one line each in the table of
// registry.cc. `telltale analyze RUN NAME` runs them; what is in between is here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/trace/load.h"
#include "analysis/trace/scope.h"
#include "analysis/trace/tables.h"
#include "analysis/trace/trace.h"
#include "base/status.h"

namespace telltale::analysis::trace {

/// Everything that any analysis can be told; each reads its own. Defaults are the command line's.
struct Options {
  std::vector<std::int32_t> ranks;  ///< Empty: all.
  ScopeOptions scope;
  std::size_t top = 10;  ///< Rows of a ranking.

  std::int64_t idle_gap_ns = 30;            ///< idle: a gap below it is between two launches.
  std::int64_t runtime_cutoff_ns = 50'000;  ///< launches: longer calls are outliers.
  std::int64_t delay_cutoff_ns = 100'000;   ///< launches: longer delays are outliers.
  std::int64_t full_queue = 1024;           ///< queue: launches beyond it block the host.
  bool series = false;                      ///< queue, memory-bandwidth: every change of it.
  std::string name;                         ///< sequences, op-kernels: part of operators' names.
  std::size_t min_length = 3;               ///< sequences: kernels of one, at least.
  std::string annotation = "ProfilerStep";  ///< critical-path: part of the name of its window.
  std::int64_t instance = 0;                ///< critical-path: which of them.
  std::vector<std::string> what_if;         ///< critical-path: "data=0", "aten::mm=0.5".
  std::filesystem::path against;            ///< diff: the run compared with.
  std::vector<std::int64_t> steps;          ///< diff, stragglers: steps; empty: the first; all.
  std::vector<std::int64_t> against_steps;  ///< diff: of the other run.
  std::string device = "all";               ///< diff: cpu, gpu or all.
  bool short_names = false;                 ///< diff: without arguments and template arguments.
  std::string accelerator;                  ///< roofline: part of a name in DevicePeaks().
  std::string precision = "tf32";           ///< roofline: which peak counts.
  double peak_tflops = 0;                   ///< roofline: instead of the table's.
};

/// The ranks of a run, each loaded when asked for. Damage gathers in `salvage`.
class TraceSource {
 public:
  /// `trace`: the run must hold one.
  static Result<TraceSource> Open(const std::filesystem::path& run,
                                  const std::vector<std::int32_t>& ranks, bool trace = true);

  const std::vector<std::int32_t>& ranks() const { return ranks_; }
  const std::filesystem::path& run() const { return run_; }
  /// What was left out, for who shows what the ranks amount to; empty where nothing was.
  const std::vector<std::string>& notes() const { return notes_; }
  bool HasTrace(std::int32_t rank) const { return writers_.contains(rank); }
  Result<Trace> Load(std::int32_t rank, Needs needs);
  const store::Salvage& salvage() const { return salvage_; }
  /// For who reads other tables of the run.
  store::Salvage* damage() { return &salvage_; }

 private:
  std::filesystem::path run_;
  RankWriters writers_;
  std::vector<std::int32_t> ranks_;
  std::vector<std::string> notes_;
  store::Salvage salvage_;
};

using RunAnalysis = Result<Tables> (*)(TraceSource& source, const Options& options);

struct Analysis {
  std::string_view name;
  std::string_view summary;
  RunAnalysis run;
  bool trace = true;  ///< Asks a profiler's trace; else also a run without one.
};
std::span<const Analysis> Analyses();
const Analysis* FindAnalysis(std::string_view name);

// One line each, here and in the table.
Result<Tables> RunTemporalBreakdown(TraceSource& source, const Options& options);
Result<Tables> RunKernelBreakdown(TraceSource& source, const Options& options);
Result<Tables> RunIdleBreakdown(TraceSource& source, const Options& options);
Result<Tables> RunOverlap(TraceSource& source, const Options& options);
Result<Tables> RunCommunication(TraceSource& source, const Options& options);
Result<Tables> RunLaunchStats(TraceSource& source, const Options& options);
Result<Tables> RunQueueLength(TraceSource& source, const Options& options);
Result<Tables> RunMemoryBandwidth(TraceSource& source, const Options& options);
Result<Tables> RunKernelSequences(TraceSource& source, const Options& options);
Result<Tables> RunOpKernels(TraceSource& source, const Options& options);
Result<Tables> RunAnnotations(TraceSource& source, const Options& options);
Result<Tables> RunTraceDiff(TraceSource& source, const Options& options);
Result<Tables> RunCriticalPath(TraceSource& source, const Options& options);
Result<Tables> RunStragglers(TraceSource& source, const Options& options);
Result<Tables> RunStepBreakdown(TraceSource& source, const Options& options);
Result<Tables> RunGpuMetrics(TraceSource& source, const Options& options);
Result<Tables> RunRoofline(TraceSource& source, const Options& options);

}  // namespace telltale::analysis::trace
