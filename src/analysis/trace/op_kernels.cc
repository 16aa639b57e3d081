// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/op_kernels.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "analysis/trace/call_stack.h"
#include "analysis/trace/registry.h"
#include "analysis/trace/rows.h"

namespace telltale::analysis::trace {

std::vector<OpKernels> OpKernelsOf(const Trace& trace, const Scope& scope,
                                   std::string_view prefix) {
  std::vector<bool> of_prefix(trace.names.size());
  for (std::size_t i = 0; i < trace.names.size(); ++i) {
    of_prefix[i] = trace.names[i].starts_with(prefix);
  }
  const CallStack stack = CallStackOf(trace, [&](std::size_t i) {
    if (!scope.Has(i)) return false;
    if (trace.category[i] == Category::kRuntime) return true;
    return trace.category[i] == Category::kOp && of_prefix[trace.name[i]];
  });
  struct Launched {
    std::uint32_t call;
    std::uint32_t work;
  };
  std::unordered_map<std::uint32_t, std::vector<Launched>> by_op;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!trace.OnDevice(i) || !scope.Has(i) || trace.launch[i] == kNoRow) continue;
    std::uint32_t op = stack.parent[trace.launch[i]];
    while (op != kNoRow && trace.category[op] == Category::kRuntime) op = stack.parent[op];
    if (op != kNoRow) {
      by_op[op].push_back({trace.launch[i], static_cast<std::uint32_t>(i)});
    }
  }
  std::vector<std::uint32_t> ops;
  ops.reserve(by_op.size());
  for (const auto& [op, launched] : by_op) ops.push_back(op);
  std::sort(ops.begin(), ops.end());
  std::unordered_map<std::string, std::size_t> known;
  std::vector<OpKernels> out;
  std::string key;
  for (const std::uint32_t op : ops) {
    std::vector<Launched>& launched = by_op[op];
    std::stable_sort(launched.begin(), launched.end(),
                     [](const Launched& a, const Launched& b) { return a.call < b.call; });
    key.assign(reinterpret_cast<const char*>(&trace.name[op]), sizeof(trace.name[op]));
    for (const Launched& l : launched) {
      key.append(reinterpret_cast<const char*>(&trace.name[l.work]), sizeof(trace.name[l.work]));
    }
    const auto [at, added] = known.try_emplace(key, out.size());
    if (added) {
      OpKernels& one = out.emplace_back();
      one.op = trace.NameOf(op);
      for (const Launched& l : launched) one.kernels.push_back(trace.NameOf(l.work));
    }
    OpKernels& one = out[at->second];
    ++one.count;
    const Launched& first = launched.front();
    one.op_delay_ns += static_cast<double>(trace.begin_ns[first.call] - trace.begin_ns[op]);
    one.runtime_delay_ns +=
        static_cast<double>(trace.begin_ns[first.work] - trace.begin_ns[first.call]);
    for (const Launched& l : launched) one.device_ns += trace.duration_ns[l.work];
  }
  for (OpKernels& one : out) {
    one.op_delay_ns /= static_cast<double>(one.count);
    one.runtime_delay_ns /= static_cast<double>(one.count);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const OpKernels& a, const OpKernels& b) { return a.count > b.count; });
  return out;
}

Result<Tables> RunOpKernels(TraceSource& source, const Options& options) {
  Tables out;
  Table& table = out.Add(
      "op_kernels", "Operators and the kernels that they launch themselves",
      {"rank", "op", "kernels", "count", "mean_op_delay_ns", "mean_runtime_delay_ns", "device_ns"});
  table.shown = options.top;
  for (const std::int32_t rank : source.ranks()) {
    TELLTALE_ASSIGN_OR_RETURN(const Trace trace, source.Load(rank, {}));
    const Scope scope(trace, options.scope);
    NoteScope(trace, scope, &out);
    for (const OpKernels& one :
         OpKernelsOf(trace, scope, options.name.empty() ? "aten::" : options.name)) {
      table.Add({Int(rank), Text(one.op), Text(fmt::format("{}", fmt::join(one.kernels, "|"))),
                 Int(one.count), Real(one.op_delay_ns), Real(one.runtime_delay_ns),
                 Int(one.device_ns)});
    }
  }
  return out;
}

}  // namespace telltale::analysis::trace
