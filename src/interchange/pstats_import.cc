// SPDX-License-Identifier: Apache-2.0
#include "interchange/pstats_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "interchange/args_writer.h"
#include "interchange/pstats_reader.h"

namespace telltale::interchange {
namespace {

constexpr std::size_t kMostCallers = 16;
constexpr double kMostSeconds = 1e9;

std::string FunctionText(const PythonFunction& function) {
  // As PyTorch's profiler names them: file(line): function. What is C's has no file.
  const std::string_view name = function.name.substr(0, 1024);
  if (function.file == "~" || function.file.empty()) return std::string(name);
  return fmt::format("{}({}): {}", function.file.substr(0, 1024), function.line, name);
}

std::int64_t SecondsToNs(double seconds) {
  if (!(seconds > 0)) return 0;  // NaN too.
  return static_cast<std::int64_t>(std::min(seconds, kMostSeconds) * 1e9);
}

/// Those from which most of the time came.
std::string CallersText(const PythonProfileEntry& entry) {
  std::vector<PythonCaller> callers = entry.callers;
  const std::size_t shown = std::min(callers.size(), kMostCallers);
  std::partial_sort(
      callers.begin(), callers.begin() + static_cast<std::ptrdiff_t>(shown), callers.end(),
      [](const PythonCaller& a, const PythonCaller& b) { return a.cumulative_s > b.cumulative_s; });
  std::string out;
  for (std::size_t i = 0; i < shown; ++i) {
    const PythonCaller& caller = callers[i];
    ArgsWriter args;
    args.Add("function", FunctionText(caller.function));
    args.Add("calls", caller.calls);
    args.Add("self_ns", SecondsToNs(caller.self_s));
    args.Add("cumulative_ns", SecondsToNs(caller.cumulative_s));
    const std::string_view text = args.Finish();
    if (out.size() + text.size() > kMaxArgsBytes / 2) break;
    if (!out.empty()) out += ',';
    out += text;
  }
  return out.empty() ? out : "[" + out + "]";
}

}  // namespace

Status ImportPstats(std::string_view bytes, const PstatsPlace& place, TraceSource* source) {
  std::int64_t at_ns = place.begin_ns;
  ArgsWriter args;
  Status status = ReadPstats(bytes, [&](const PythonProfileEntry& entry) {
    const std::string name = FunctionText(entry.function);
    args.Clear();
    args.Add("calls", entry.calls);
    args.Add("primitive_calls", entry.primitive_calls);
    args.Add("cumulative_ns", SecondsToNs(entry.cumulative_s));
    if (const std::string callers = CallersText(entry); !callers.empty()) {
      args.AddRaw("callers", callers);
    }
    format::SliceRow row;
    row.time_ns = at_ns;
    row.duration_ns = SecondsToNs(entry.self_s);
    row.name = name;
    row.category = "python";
    row.kind = "cprofile";
    row.lane = "cProfile";
    row.step = place.step;
    row.device = -1;
    row.stream = -1;
    row.args = args.Finish();
    source->Slice(row);
    if (__builtin_add_overflow(at_ns, row.duration_ns, &at_ns)) at_ns = place.begin_ns;
  });
  if (status.code() == Code::kPartial) {
    source->Damaged(1, status.message());
    return {};
  }
  return status;
}

}  // namespace telltale::interchange
