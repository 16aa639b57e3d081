// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/roofline.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "analysis/trace/call_stack.h"
#include "analysis/trace/device_peaks.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"

namespace telltale::analysis::trace {

Roofline RooflineOf(const Trace& trace, const Scope& scope) {
  Roofline out;
  const CallStack stack = CallStackOf(trace, [&](std::size_t i) {
    if (!scope.Has(i)) return false;
    return trace.category[i] == Category::kOp || trace.category[i] == Category::kRuntime;
  });
  std::vector<std::uint32_t> counted(trace.size(), kNoRow);
  std::vector<std::uint32_t> place(trace.names.size(), kNoRow);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (stack.parent[i] != kNoRow) counted[i] = counted[stack.parent[i]];
    if (counted[i] != kNoRow || trace.category[i] != Category::kOp || !scope.Has(i)) continue;
    if (trace.flops[i] <= 0) continue;
    counted[i] = static_cast<std::uint32_t>(i);
    std::uint32_t& at = place[trace.name[i]];
    if (at == kNoRow) {
      at = static_cast<std::uint32_t>(out.ops.size());
      out.ops.push_back({.name = trace.NameOf(i)});
    }
    OpRate& op = out.ops[at];
    ++op.count;
    op.flops += trace.flops[i];
    op.bytes += trace.moved_bytes[i];
    out.flops += trace.flops[i];
  }
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!trace.OnDevice(i) || !scope.Has(i) || trace.launch[i] == kNoRow) continue;
    const std::uint32_t op = counted[trace.launch[i]];
    if (op != kNoRow) out.ops[place[trace.name[op]]].device_ns += trace.duration_ns[i];
  }
  std::stable_sort(out.ops.begin(), out.ops.end(),
                   [](const OpRate& a, const OpRate& b) { return a.flops > b.flops; });
  for (const StepMark& mark : StepMarks(trace)) {
    if (scope.Has(mark.row)) out.wall_ns += mark.end_ns - mark.begin_ns;
  }
  if (out.wall_ns == 0) {
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
    Spans seen(trace.recording_count(), Span{kMost, kLeast});
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (!scope.Has(i)) continue;
      Span& span = seen[trace.RecordingAt(trace.begin_ns[i])];
      span.begin = std::min(span.begin, trace.begin_ns[i]);
      span.end = std::max(span.end, trace.end_ns(i));
    }
    out.wall_ns = Length(Merged(std::move(seen)));
  }
  return out;
}

Result<Tables> RunRoofline(TraceSource& source, const Options& options) {
  std::string called = options.accelerator;
  if (called.empty()) called = DeviceNameOf(source.run(), source.ranks().front());
  const DevicePeak* device = FindPeak(called);
  if (device == nullptr && !options.accelerator.empty()) {
    std::string known;
    for (const DevicePeak& peak : DevicePeaks()) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", peak.name);
    }
    return Status(Code::kUsage, fmt::format("no peaks are known of '{}': give --peak-tflops, or "
                                            "one of {}",
                                            options.accelerator, known));
  }
  double peak = options.peak_tflops * 1e12;
  if (peak == 0 && device != nullptr) peak = PeakOf(*device, options.precision) * 1e12;
  const double bandwidth = device != nullptr ? device->gbps * 1e9 : 0;
  Tables out;
  Table& whole = out.Add("mfu", "Operations of the marked steps, and the share of the peak (MFU)",
                         {"rank", "flops", "wall_ns", "tflops", "peak_tflops", "mfu_share"});
  Table& table = out.Add("roofline", "Operators, by operations",
                         {"rank", "op", "count", "flops", "device_ns", "tflops", "intensity",
                          "attainable_tflops", "of_attainable_share", "bound"});
  table.shown = options.top;
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {.flops = true}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    const Roofline r = RooflineOf(trace, scope);
    if (r.ops.empty()) {
      out.notes.push_back(
          fmt::format("rank {}: no operator states its operations or its shapes: "
                      "record with torch.profiler's record_shapes or with_flops",
                      rank));
      continue;
    }
    const double rate = r.wall_ns > 0 ? r.flops / (static_cast<double>(r.wall_ns) / 1e9) : 0;
    whole.Add({Int(rank), Real(r.flops), Int(r.wall_ns), Real(rate / 1e12),
               peak > 0 ? Real(peak / 1e12) : Cell(), Share(rate, peak)});
    for (const OpRate& op : r.ops) {
      double attainable = peak;
      std::string_view bound;
      if (peak > 0 && bandwidth > 0 && op.bytes > 0) {
        attainable = std::min(peak, op.intensity() * bandwidth);
        bound = attainable < peak ? "memory" : "compute";
      }
      table.Add({Int(rank), Text(op.name), Int(op.count), Real(op.flops), Int(op.device_ns),
                 Real(op.rate() / 1e12), op.bytes > 0 ? Real(op.intensity()) : Cell(),
                 attainable > 0 ? Real(attainable / 1e12) : Cell(), Share(op.rate(), attainable),
                 bound.empty() ? Cell() : Text(bound)});
    }
  }
  if (peak > 0 && options.peak_tflops == 0) {
    out.notes.push_back(fmt::format("the peak is {}'s for {}", device->name, options.precision));
  }
  if (peak == 0) {
    out.notes.emplace_back(
        "no peak is known: give the device with --accelerator, for example --accelerator A100, "
        "or --peak-tflops");
  }
  return out;
}

}  // namespace telltale::analysis::trace
