// SPDX-License-Identifier: Apache-2.0
// Cells and notes that the tables of several analyses share.
#pragma once
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/trace/scope.h"
#include "analysis/trace/tables.h"
#include "analysis/trace/trace.h"
#include "base/saturate.h"

namespace telltale::analysis::trace {

inline Cell Int(std::integral auto value) { return static_cast<std::int64_t>(value); }
inline Cell Int(Sum value) { return value.value(); }
inline Cell Text(std::string_view text) { return std::string(text); }
/// Nothing where `whole` is not above zero.
Cell Share(double part, double whole);
inline Cell Share(std::int64_t part, std::int64_t whole) {
  return Share(static_cast<double>(part), static_cast<double>(whole));
}
inline Cell Share(Sum part, Sum whole) { return Share(part.value(), whole.value()); }
/// Nothing where it is no finite number.
Cell Real(double value);

/// Says what a scope has left out of the rank's trace.
void NoteScope(const Trace& trace, const Scope& scope, Tables* out);
/// Says that the rank's trace holds no work of a device, and what to record.
void NoteNoDevice(const Trace& trace, Tables* out);

/// Rows of device work in the scope, by stream of each device; within one by begin, then end.
struct StreamRows {
  std::int32_t device = -1;
  std::int64_t stream = -1;
  std::vector<std::uint32_t> rows;
};
std::vector<StreamRows> DeviceStreams(const Trace& trace, const Scope& scope);

/// Whether `name` is a call that starts work on a device and returns: a launch or an asynchronous
/// copy or set, of CUDA, HIP or MTIA. Not the launch of a graph: its pieces of work do not wait in
/// a stream one by one.
bool IsLaunchCall(std::string_view name);

}  // namespace telltale::analysis::trace
