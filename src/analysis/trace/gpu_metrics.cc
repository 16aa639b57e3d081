// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/gpu_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "analysis/trace/call_stack.h"
#include "analysis/trace/intervals.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"
#include "analysis/trace/step_breakdown.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {
namespace {

// PyProf's tc.py of 2021, as the plug-in has it.
constexpr std::array<std::string_view, 18> kTensorCoreWords = {
    "h884",
    "s884",
    "h1688",
    "s1688",
    "hmma",
    "i8816",
    "16816",
    "dgrad_1x1_stride_2x2",
    "first_layer_wgrad_kernel",
    "conv1x1",
    "conv2d_c1_k1",
    "direct_group",
    "xmma_implicit_gemm",
    "xmma_sparse_conv",
    "xmma_warp_specialized_implicit_gemm",
    "xmma_gemm",
    "xmma_sparse_gemm",
    "c1688"};
constexpr std::array<std::string_view, 7> kNewerTensorCoreWords = {
    "nvjet", "wgmma", "tensorop", "flash_fwd", "flash_bwd", "MFMA", "mfma"};

// Operators that autocast runs in half precision, and their backward operators (the plug-in's
// list).
constexpr std::array<std::string_view, 46> kEligibleOps = {
    "aten::_convolution",
    "aten::conv1d",
    "aten::conv2d",
    "aten::conv3d",
    "aten::conv_tbc",
    "aten::conv_transpose1d",
    "aten::conv_transpose2d",
    "aten::conv_transpose3d",
    "aten::convolution",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_transpose",
    "aten::prelu",
    "aten::addmm",
    "aten::addmv",
    "aten::addr",
    "aten::matmul",
    "aten::mm",
    "aten::mv",
    "aten::linear",
    "aten::addbmm",
    "aten::baddbmm",
    "aten::bmm",
    "aten::chain_matmul",
    "aten::linalg_multi_dot",
    "aten::_thnn_fused_lstm_cell",
    "aten::_thnn_fused_gru_cell",
    "aten::lstm_cell",
    "aten::gru_cell",
    "aten::rnn_tanh_cell",
    "aten::rnn_relu_cell",
    "CudnnConvolutionBackward",
    "BmmBackward0",
    "aten::cudnn_convolution_transpose_backward",
    "CudnnConvolutionTransposeBackward",
    "MmBackward",
    "aten::cudnn_convolution_backward_weight",
    "aten::addmm_",
    "AddmvBackward",
    "MvBackward",
    "aten::cudnn_convolution_transpose_backward_weight",
    "aten::cudnn_convolution_transpose_backward_input",
    "AddmmBackward",
    "aten::cudnn_convolution_backward_input",
    "AddbmmBackward",
    "aten::cudnn_convolution_backward",
    "aten::convolution_backward",
};

template <std::size_t N>
bool HoldsAny(std::string_view name, const std::array<std::string_view, N>& words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return name.find(word) != std::string_view::npos;
  });
}

/// Integral of min(value of what runs, 1) within the window.
double CappedIntegral(const Trace& trace, std::span<const std::uint32_t> rows, const Span& window) {
  struct Change {
    std::int64_t time;
    double by;
  };
  std::vector<Change> changes;
  for (const std::uint32_t row : rows) {
    const auto value = static_cast<double>(trace.blocks_per_sm[row]);
    if (!(value > 0)) continue;
    const std::int64_t begin = std::max(trace.begin_ns[row], window.begin);
    const std::int64_t end = std::min(trace.end_ns(row), window.end);
    if (begin >= end) continue;
    changes.push_back({begin, value});
    changes.push_back({end, -value});
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.time < b.time; });
  double sum = 0;
  double running = 0;
  std::size_t open = 0;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (open > 0) {
      sum += std::min(running, 1.0) * static_cast<double>(changes[i].time - changes[i - 1].time);
    }
    running += changes[i].by;
    changes[i].by > 0 ? ++open : --open;
    if (open == 0) running = 0;  // What subtraction left over.
  }
  return sum;
}

/// Those of the rows, which are by begin, that the recordings have which the window lies in.
std::span<const std::uint32_t> OfRecordings(const Trace& trace,
                                            const std::vector<std::uint32_t>& rows,
                                            const Span& window) {
  const std::size_t from = trace.RecordingAt(window.begin);
  const std::size_t to = trace.RecordingAt(window.end);
  const auto of = [&](std::uint32_t row) { return trace.RecordingAt(trace.begin_ns[row]); };
  const auto first = std::partition_point(rows.begin(), rows.end(),
                                          [&](std::uint32_t row) { return of(row) < from; });
  const auto last =
      std::partition_point(first, rows.end(), [&](std::uint32_t row) { return of(row) <= to; });
  return {first, last};
}

}  // namespace

double EligibleShareOf(const Trace& trace) {
  std::vector<bool> eligible(trace.names.size());
  for (std::size_t i = 0; i < trace.names.size(); ++i) {
    eligible[i] =
        std::find(kEligibleOps.begin(), kEligibleOps.end(), trace.names[i]) != kEligibleOps.end();
  }
  const CallStack stack = CallStackOf(trace, [&](std::size_t i) {
    return trace.category[i] == Category::kOp || trace.category[i] == Category::kRuntime ||
           trace.category[i] == Category::kComm || trace.category[i] == Category::kData;
  });
  // Of a chain only the lowest counts, and what it launches itself.
  std::vector<bool> above_eligible(trace.size(), false);
  for (std::size_t i = trace.size(); i-- > 0;) {
    if (stack.parent[i] == kNoRow) continue;
    if (above_eligible[i] || (trace.category[i] == Category::kOp && eligible[trace.name[i]])) {
      above_eligible[stack.parent[i]] = true;
    }
  }
  Sum of_eligible = 0;
  Sum all = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.category[i] != Category::kKernel || trace.launch[i] == kNoRow) continue;
    std::uint32_t op = stack.parent[trace.launch[i]];
    while (op != kNoRow && trace.category[op] == Category::kRuntime) op = stack.parent[op];
    if (op == kNoRow) continue;
    all += trace.duration_ns[i];
    if (eligible[trace.name[op]] && !above_eligible[op]) of_eligible += trace.duration_ns[i];
  }
  return all > 0 ? static_cast<double>(of_eligible) / static_cast<double>(all)
                 : std::numeric_limits<double>::quiet_NaN();
}

bool NamesTensorCores(std::string_view kernel) { return HoldsAny(kernel, kTensorCoreWords); }
bool NamesTensorCoresWide(std::string_view kernel) {
  return NamesTensorCores(kernel) || HoldsAny(kernel, kNewerTensorCoreWords);
}

GpuMetricsOfRank GpuMetricsOf(const Trace& trace) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  GpuMetricsOfRank out;
  out.eligible_share = EligibleShareOf(trace);
  const Spans windows = StepWindows(trace, StepBreakdownOf(trace));
  std::vector<bool> tensor(trace.names.size());
  std::vector<bool> wide(trace.names.size());
  for (std::size_t i = 0; i < trace.names.size(); ++i) {
    tensor[i] = NamesTensorCores(trace.names[i]);
    wide[i] = NamesTensorCoresWide(trace.names[i]);
  }
  std::map<std::int32_t, std::vector<std::uint32_t>> kernels;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.category[i] != Category::kKernel) continue;
    kernels[trace.LaneOf(i).device].push_back(static_cast<std::uint32_t>(i));
  }
  for (const auto& [device, rows] : kernels) {
    GpuMetrics& m = out.devices.emplace_back();
    m.device = device;
    Spans busy;
    Sum on_tensor = 0;
    Sum on_wide = 0;
    bool has_blocks = false;
    double occupied = 0;
    Sum occupied_ns = 0;
    for (const std::uint32_t row : rows) {
      busy.push_back({trace.begin_ns[row], trace.end_ns(row)});
      m.kernel_ns += trace.duration_ns[row];
      if (tensor[trace.name[row]]) on_tensor += trace.duration_ns[row];
      if (wide[trace.name[row]]) on_wide += trace.duration_ns[row];
      has_blocks = has_blocks || trace.blocks_per_sm[row] > 0;
      const std::int64_t within = LengthWithin(windows, {trace.begin_ns[row], trace.end_ns(row)});
      if (trace.occupancy[row] >= 0 && within > 0) {
        occupied += static_cast<double>(trace.occupancy[row]) * static_cast<double>(within);
        occupied_ns += within;
      }
    }
    const auto all = static_cast<double>(Length(windows));
    const Spans worked = Intersection(Merged(std::move(busy)), windows);
    m.utilisation = all > 0 ? static_cast<double>(Length(worked)) / all : kNone;
    double filled = 0;
    for (const Span& window : windows) {
      filled += CappedIntegral(trace, OfRecordings(trace, rows, window), window);
    }
    m.sm_efficiency = all > 0 && has_blocks ? filled / all : kNone;
    m.occupancy = occupied_ns > 0 ? occupied / static_cast<double>(occupied_ns) / 100 : kNone;
    const auto of_kernels = [&](Sum part) {
      return m.kernel_ns > 0 ? static_cast<double>(part) / static_cast<double>(m.kernel_ns) : kNone;
    };
    m.tensor_core_share = of_kernels(on_tensor);
    m.tensor_core_wide = of_kernels(on_wide);
  }
  return out;
}

Result<Tables> RunGpuMetrics(TraceSource& source, const Options&) {
  Tables out;
  Table& table =
      out.Add("gpu", "Devices, over the steps",
              {"rank", "device", "utilisation_share", "sm_efficiency_share", "occupancy_share",
               "tensor_core_share", "tensor_core_wide_share", "kernel_ns"});
  Table& eligible = out.Add("tensor_cores", "Kernel time of operators that could use tensor cores",
                            {"rank", "eligible_share"});
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {.facts = true}));
    const GpuMetricsOfRank metrics = GpuMetricsOf(trace);
    if (metrics.devices.empty()) NoteNoDevice(trace, &out);
    for (const GpuMetrics& m : metrics.devices) {
      table.Add({Int(rank), Int(m.device), Real(m.utilisation), Real(m.sm_efficiency),
                 Real(m.occupancy), Real(m.tensor_core_share), Real(m.tensor_core_wide),
                 Int(m.kernel_ns)});
    }
    eligible.Add({Int(rank), Real(metrics.eligible_share)});
  }
  return out;
}

}  // namespace telltale::analysis::trace
