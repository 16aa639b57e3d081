// SPDX-License-Identifier: Apache-2.0
// What a device works at: computation, communication, memory.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "analysis/trace/intervals.h"
#include "analysis/trace/scope.h"
#include "analysis/trace/trace.h"

namespace telltale::analysis::trace {

enum class KernelClass : std::uint8_t { kCompute, kCommunication, kMemory };
inline constexpr std::array<std::string_view, 3> kKernelClassNames = {"computation",
                                                                      "communication", "memory"};

/// A kernel of a collective: NCCL's and RCCL's begin with "nccl" and have "Kernel" in their names.
bool IsCollectiveKernel(std::string_view name);

/// By row; only rows of device work have a meaning.
std::vector<KernelClass> ClassesOf(const Trace& trace);

/// Merged times of device work in the scope, by class.
std::array<Spans, 3> ClassTimes(const Trace& trace, const Scope& scope);

}  // namespace telltale::analysis::trace
