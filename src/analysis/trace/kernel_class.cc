// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/kernel_class.h"

#include <cstddef>
#include <utility>

namespace telltale::analysis::trace {

bool IsCollectiveKernel(std::string_view name) {
  return name.starts_with("nccl") && name.find("Kernel") != std::string_view::npos;
}

std::vector<KernelClass> ClassesOf(const Trace& trace) {
  std::vector<bool> collective(trace.names.size());
  for (std::size_t i = 0; i < trace.names.size(); ++i) {
    collective[i] = IsCollectiveKernel(trace.names[i]);
  }
  std::vector<KernelClass> out(trace.size(), KernelClass::kCompute);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace.category[i] == Category::kMemcpy || trace.category[i] == Category::kMemset) {
      out[i] = KernelClass::kMemory;
    } else if (trace.category[i] == Category::kKernel && collective[trace.name[i]]) {
      out[i] = KernelClass::kCommunication;
    }
  }
  return out;
}

std::array<Spans, 3> ClassTimes(const Trace& trace, const Scope& scope) {
  const std::vector<KernelClass> classes = ClassesOf(trace);
  std::array<Spans, 3> out;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!trace.OnDevice(i) || !scope.Has(i)) continue;
    out[static_cast<std::size_t>(classes[i])].push_back({trace.begin_ns[i], trace.end_ns(i)});
  }
  for (Spans& spans : out) spans = Merged(std::move(spans));
  return out;
}

}  // namespace telltale::analysis::trace
