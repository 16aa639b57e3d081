// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/kernel_sequences.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "analysis/trace/call_stack.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"

namespace telltale::analysis::trace {
namespace {

bool OnHostLane(const Trace& trace, std::size_t row) {
  return !trace.OnDevice(row) && trace.category[row] != Category::kSync &&
         trace.LaneOf(row).stream < 0;
}

/// Puts what the thread of the backward pass does below its range on the main thread, where there
/// is one such thread and one main thread.
void HangBackward(const Trace& trace, const Scope& scope, CallStack* stack) {
  std::vector<bool> main(trace.lanes.size(), false);
  std::vector<bool> backward(trace.lanes.size(), false);
  std::vector<bool> is_backward_name(trace.names.size());
  for (std::size_t i = 0; i < trace.names.size(); ++i) {
    is_backward_name[i] = trace.names[i].find("autograd::") != std::string::npos;
  }
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!OnHostLane(trace, i) || !scope.Has(i)) continue;
    if (trace.category[i] == Category::kStep) main[trace.lane[i]] = true;
    if (is_backward_name[trace.name[i]]) backward[trace.lane[i]] = true;
  }
  std::vector<std::uint32_t> mains;
  std::vector<std::uint32_t> backwards;
  for (std::uint32_t i = 0; i < trace.lanes.size(); ++i) {
    if (main[i]) {
      mains.push_back(i);
    } else if (backward[i]) {
      backwards.push_back(i);
    }
  }
  if (mains.size() != 1 || backwards.size() != 1) return;
  std::vector<std::uint32_t> ranges;
  for (const bool marks : {false, true}) {
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (trace.lane[i] != mains[0] || !scope.Has(i)) continue;
      const bool is = marks ? trace.category[i] == Category::kStep
                            : trace.NameOf(i).starts_with("## backward ##");
      if (is) ranges.push_back(static_cast<std::uint32_t>(i));
    }
    if (!ranges.empty()) break;
  }
  // By begin; ranges of one thread and name do not overlap.
  std::size_t at = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.lane[i] != backwards[0]) continue;
    if (stack->parent[i] != kNoRow) {
      stack->depth[i] = stack->depth[stack->parent[i]] + 1;
      continue;
    }
    while (at < ranges.size() && trace.end_ns(ranges[at]) < trace.begin_ns[i]) ++at;
    if (at == ranges.size()) continue;
    const std::uint32_t range = ranges[at];
    if (trace.begin_ns[range] <= trace.begin_ns[i] && trace.end_ns(i) <= trace.end_ns(range)) {
      stack->depth[i] = stack->depth[range] + 1;
    }
  }
}

}  // namespace

std::vector<KernelSequence> KernelSequencesOf(const Trace& trace, const Scope& scope,
                                              std::string_view name, std::size_t min_length) {
  CallStack stack =
      CallStackOf(trace, [&](std::size_t i) { return OnHostLane(trace, i) && scope.Has(i); });
  HangBackward(trace, scope, &stack);
  std::vector<bool> wanted(trace.names.size());
  for (std::size_t i = 0; i < trace.names.size(); ++i) {
    wanted[i] = trace.names[i].find(name) != std::string::npos;
  }
  const auto candidate = [&](std::size_t i) {
    return wanted[trace.name[i]] && OnHostLane(trace, i) && scope.Has(i);
  };
  std::uint32_t depth = std::numeric_limits<std::uint32_t>::max();
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (candidate(i)) depth = std::min(depth, stack.depth[i]);
  }
  // The root above each slice, and what each root launched, by begin.
  std::vector<std::uint32_t> root(trace.size(), kNoRow);
  std::vector<std::uint32_t> place(trace.size(), kNoRow);
  std::vector<std::pair<std::uint32_t, std::vector<std::uint32_t>>> launched;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (candidate(i) && stack.depth[i] == depth) {
      root[i] = static_cast<std::uint32_t>(i);
      place[i] = static_cast<std::uint32_t>(launched.size());
      launched.push_back({root[i], {}});
    } else if (stack.parent[i] != kNoRow) {
      root[i] = root[stack.parent[i]];
    }
  }
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!trace.OnDevice(i) || !scope.Has(i) || trace.launch[i] == kNoRow) continue;
    const std::uint32_t of = root[trace.launch[i]];
    if (of != kNoRow) launched[place[of]].second.push_back(static_cast<std::uint32_t>(i));
  }
  std::unordered_map<std::string, std::size_t> known;
  std::vector<KernelSequence> out;
  std::string key;
  for (const auto& [op, kernels] : launched) {
    if (kernels.size() < min_length) continue;
    key.assign(reinterpret_cast<const char*>(&trace.name[op]), sizeof(trace.name[op]));
    for (const std::uint32_t kernel : kernels) {
      key.append(reinterpret_cast<const char*>(&trace.name[kernel]), sizeof(trace.name[kernel]));
    }
    const auto [at, added] = known.try_emplace(key, out.size());
    if (added) {
      KernelSequence& sequence = out.emplace_back();
      sequence.op = trace.NameOf(op);
      for (const std::uint32_t kernel : kernels) sequence.kernels.push_back(trace.NameOf(kernel));
    }
    KernelSequence& sequence = out[at->second];
    ++sequence.count;
    sequence.host_ns += trace.duration_ns[op];
    for (const std::uint32_t kernel : kernels) sequence.device_ns += trace.duration_ns[kernel];
  }
  std::sort(out.begin(), out.end(), [](const KernelSequence& a, const KernelSequence& b) {
    if (a.count != b.count) return a.count > b.count;
    if (a.op != b.op) return a.op < b.op;
    return a.kernels < b.kernels;
  });
  return out;
}

Result<Tables> RunKernelSequences(TraceSource& source, const Options& options) {
  if (options.name.empty()) {
    return Status(Code::kUsage,
                  "sequences needs --name, part of the name of the operators below which to look, "
                  "for example --name aten::linear");
  }
  Tables out;
  Table& table = out.Add("sequences", "Sequences of kernels, by how often they occur",
                         {"rank", "op", "kernels", "count", "device_ns", "host_ns"});
  table.shown = options.top;
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    const auto sequences = KernelSequencesOf(trace, scope, options.name, options.min_length);
    if (sequences.empty()) {
      out.notes.push_back(
          fmt::format("rank {}: no operator with '{}' in its name launches {} "
                      "kernels or more",
                      rank, options.name, options.min_length));
    }
    for (const KernelSequence& s : sequences) {
      table.Add({Int(rank), Text(s.op), Text(fmt::format("{}", fmt::join(s.kernels, "|"))),
                 Int(s.count), Int(s.device_ns), Int(s.host_ns)});
    }
  }
  return out;
}

}  // namespace telltale::analysis::trace
