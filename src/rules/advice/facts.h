// SPDX-License-Identifier: Apache-2.0
// What advice is given of: sums of each rank's trace, made in one look at its slices and shared by
// all checks, and what the run's other tables say of its machines. Small, whatever the trace's
// size; ranks are loaded one after the other.
//
// Thread safety: values, as a standard container.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/trace/launch_stats.h"
#include "analysis/trace/step_breakdown.h"
#include "analysis/trace/stragglers.h"
#include "analysis/trace/trace.h"
#include "base/saturate.h"
#include "base/status.h"
#include "store/reader.h"

namespace telltale::rules::advice {

namespace trace = analysis::trace;

inline constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();

/// All slices of one name and category within the steps.
struct NameTotal {
  std::string name;
  trace::Category category = trace::Category::kOther;
  bool on_device = false;
  std::uint64_t count = 0;
  Sum total_ns = 0;
  Sum self_ns = 0;  ///< Of the host: less what nests in it.
  /// Of python and module: self, and what nests in it without being of the same category.
  Sum host_ns = 0;
  /// Of the host: work of devices that it launched itself; of python and module as host_ns.
  Sum device_ns = 0;
  Sum bytes = 0;
};

struct DeviceFacts {
  std::int32_t device = -1;
  std::int64_t busy_ns = 0;  ///< Within the steps: a kernel, copy or set runs.
  Sum kernel_ns = 0;
  Sum tensor_ns = 0;  ///< Of kernels whose names say tensor cores.
};

/// Time of the host's input pipeline, as XProf's input analyser divides it.
enum class InputStage : std::uint8_t {
  kEnqueue,
  kDemandedRead,
  kAdvancedRead,
  kPreprocessing,
  kUnknown,
};
inline constexpr std::array<std::string_view, 5> kInputStageNames = {
    "enqueue", "demanded_file_read", "advanced_file_read", "preprocessing", "unknown"};
/// Of a slice of data loading or reading, by its name.
InputStage StageOf(std::string_view name, trace::Category category);

struct RankFacts {
  std::int32_t rank = 0;

  // Of the event trace.source; empty or 0 where the source does not say.
  std::string device_name;
  std::int32_t compute_major = 0;
  std::int64_t device_memory = 0;  ///< Bytes of the first device.
  std::string backend;

  // Steps of the plug-in's step time breakdown.
  std::vector<std::int64_t> steps;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  Sum wall_ns = 0;  ///< Lengths of the steps in sum.
  std::array<Sum, trace::kStepRoleNames.size()> role_ns{};
  Sum communication_ns = 0;
  Sum overlap_ns = 0;  ///< Of it, beside computation.

  std::vector<DeviceFacts> devices;
  std::vector<NameTotal> names;  ///< Texts once each for a category.
  std::array<Sum, kInputStageNames.size()> input_ns{};
  Sum input_ops_ns = 0;  ///< Operators and copies to devices while data is loaded.

  trace::LaunchSummary launches;
  Sum launch_call_ns = 0;             ///< Of all of them, in sum.
  Sum launched_ns = 0;                ///< Of what they launched.
  double eligible_share = kNotKnown;  ///< Kernel time that tensor cores could do.
  double flops = 0;                   ///< Of matrix products in the marked steps, as far as known.
  Sum flops_wall_ns = 0;
  double peak_flops = 0;               ///< Of the device, 0 where not known.
  std::int64_t peak_memory = 0;        ///< Bytes that an allocator reserved at most; 0: not said.
  std::int64_t first_compile_ns = -1;  ///< Begin, of all of the trace.
  Sum late_compile_ns = 0;             ///< Compilation after the first step, in sum.
  std::uint64_t late_compiles = 0;

  Sum role(trace::StepRole role) const { return role_ns[static_cast<std::size_t>(role)]; }
  /// Of the steps' time; 0 where there is none.
  double share(Sum ns) const {
    return wall_ns > 0 ? static_cast<double>(ns) / static_cast<double>(wall_ns) : 0;
  }
  bool has_steps() const { return wall_ns > 0; }
  bool has_device() const { return !devices.empty(); }
  Sum kernel_ns() const;
};

/// What a node's samples say, of the table metrics.
struct JobFacts {
  std::string node;
  double cpu_share = kNotKnown;     ///< Mean time in which its cores work.
  double memory_share = kNotKnown;  ///< Most of its memory in use.
  std::uint64_t samples = 0;
};

struct RunFacts {
  std::vector<RankFacts> ranks;
  std::vector<JobFacts> jobs;
  trace::Stragglers stragglers;  ///< By collectives; empty with one rank.
  bool has_trace = false;
  std::vector<std::string> notes;
  store::Salvage salvage;
};

/// What the loading of a rank must bring.
inline constexpr trace::Needs kTraceNeeds = {.bytes = true, .flops = true};

/// REQUIRES: loaded with kTraceNeeds.
RankFacts RankFactsOf(const trace::Trace& trace);

/// `ranks` empty: all. A run without a trace has no ranks here. kUsage: no such rank; kIo, kVersion
/// as the tables give them.
Result<RunFacts> RunFactsOf(const std::filesystem::path& run,
                            const std::vector<std::int32_t>& ranks);

}  // namespace telltale::rules::advice
