// SPDX-License-Identifier: Apache-2.0
// /proc/meminfo and /proc/vmstat: memory, page faults and swapping.
#include <unistd.h>

#include <optional>

#include "collect/counter.h"
#include "collect/source.h"
#include "collect/text.h"

namespace telltale::collect {
namespace {

class MemorySource final : public Source {
 public:
  explicit MemorySource(SourceContext* context)
      : context_(context),
        meminfo_(context->root + "proc/meminfo", KeptFile::Text::kOneRecord),
        vmstat_(context->root + "proc/vmstat"),
        page_bytes_(static_cast<double>(::sysconf(_SC_PAGESIZE))) {}

  void Sample(RowSink* sink) override {
    SampleMeminfo(sink);
    SampleVmstat(sink);
  }

 private:
  void SampleMeminfo(RowSink* sink) {
    Reading reading = ReadFile(&meminfo_, context_);
    if (!reading.ok) return;
    std::optional<double> total, available, cached, buffers, swap_total, swap_free;
    std::string_view line;
    while (NextLine(&reading.text, &line)) {
      const std::string_view key = NextField(&line);
      std::optional<double>* value = key == "MemTotal:"       ? &total
                                     : key == "MemAvailable:" ? &available
                                     : key == "Cached:"       ? &cached
                                     : key == "Buffers:"      ? &buffers
                                     : key == "SwapTotal:"    ? &swap_total
                                     : key == "SwapFree:"     ? &swap_free
                                                              : nullptr;
      if (value == nullptr) continue;
      if (const auto kib = ParseNumber<std::uint64_t>(NextField(&line))) {
        *value = static_cast<double>(*kib) * 1024;
      } else {
        ++context_->counters.malformed;
      }
    }
    const std::string_view node = sink->Intern("node");
    if (total) sink->Emit(MetricId::kMemTotal, node, *total);
    if (available) sink->Emit(MetricId::kMemAvailable, node, *available);
    if (total && available) sink->Emit(MetricId::kMemUsed, node, *total - *available);
    if (cached) sink->Emit(MetricId::kMemCached, node, *cached + buffers.value_or(0));
    if (swap_total) sink->Emit(MetricId::kSwapTotal, node, *swap_total);
    if (swap_total && swap_free) sink->Emit(MetricId::kSwapUsed, node, *swap_total - *swap_free);
  }

  void SampleVmstat(RowSink* sink) {
    Reading reading = ReadFile(&vmstat_, context_);
    if (!reading.ok) return;
    const std::string_view node = sink->Intern("node");
    std::string_view line;
    while (NextLine(&reading.text, &line)) {
      // Some 200 lines, of which four matter.
      if (!line.starts_with("ps") && !line.starts_with("pg")) continue;
      const std::string_view key = NextField(&line);
      if (key == "pswpin") {
        EmitRate(line, &swap_in_, MetricId::kSwapIn, page_bytes_, node, reading, sink);
      } else if (key == "pswpout") {
        EmitRate(line, &swap_out_, MetricId::kSwapOut, page_bytes_, node, reading, sink);
      } else if (key == "pgmajfault") {
        EmitRate(line, &major_faults_, MetricId::kMemMajorFaults, 1, node, reading, sink);
      } else if (key == "pgfault") {
        EmitRate(line, &faults_, MetricId::kMemFaults, 1, node, reading, sink);
      }
    }
  }

  void EmitRate(std::string_view line, RateCounter* counter, MetricId id, double factor,
                std::string_view node, const Reading& reading, RowSink* sink) {
    const auto value = ParseNumber<std::uint64_t>(NextField(&line));
    if (!value) {
      ++context_->counters.malformed;
      return;
    }
    const auto rate =
        counter->Advance(*value, reading.monotonic_ns, &context_->counters.counter_resets);
    if (rate) sink->Emit(id, node, *rate * factor);
  }

  SourceContext* context_;
  KeptFile meminfo_;
  KeptFile vmstat_;
  const double page_bytes_;
  RateCounter swap_in_;
  RateCounter swap_out_;
  RateCounter faults_;
  RateCounter major_faults_;
};

}  // namespace

std::unique_ptr<Source> MakeMemorySource(SourceContext* context) {
  return std::make_unique<MemorySource>(context);
}

}  // namespace telltale::collect
