// SPDX-License-Identifier: Apache-2.0
// /proc/net/snmp: TCP segments of the machine, and those that had to be sent once more.
#include <array>
#include <utility>

#include "collect/counter.h"
#include "collect/period.h"
#include "collect/source.h"
#include "collect/text.h"

namespace telltale::collect {
namespace {

class TcpSource final : public Source {
 public:
  explicit TcpSource(SourceContext* context)
      : context_(context), file_(context->root + "proc/net/snmp", KeptFile::Text::kOneRecord) {}

  void Sample(RowSink* sink) override {
    if (!period_.Due(context_->clock->MonotonicNs())) return;
    Reading reading = ReadFile(&file_, context_);
    if (!reading.ok) return;
    std::string_view names, values;
    // Each protocol has a line of names and one of numbers.
    while (NextLine(&reading.text, &names)) {
      if (names.starts_with("Tcp:")) break;
    }
    if (!names.starts_with("Tcp:") || !NextLine(&reading.text, &values) ||
        !values.starts_with("Tcp:")) {
      ++context_->counters.malformed;
      return;
    }
    for (std::string_view name = NextField(&names); !name.empty(); name = NextField(&names)) {
      const std::string_view field = NextField(&values);
      for (Counted& counted : counted_) {
        if (name == counted.name) Emit(&counted, field, reading.monotonic_ns, sink);
      }
    }
  }

 private:
  struct Counted {
    std::string_view name;
    MetricId id;
    RateCounter counter;
  };

  void Emit(Counted* counted, std::string_view field, std::int64_t now_ns, RowSink* sink) {
    const auto value = ParseNumber<std::uint64_t>(field);
    if (!value) {
      ++context_->counters.malformed;
      return;
    }
    const auto rate = counted->counter.Advance(*value, now_ns, &context_->counters.counter_resets);
    if (rate) sink->Emit(counted->id, sink->Intern("node"), *rate);
  }

  SourceContext* context_;
  KeptFile file_;
  Period period_{kSlowPeriodNs};  ///< The kernel sums up all protocols over all cores.
  // Of RFC 1213's tcp group.
  std::array<Counted, 3> counted_ = {{{"OutSegs", MetricId::kTcpSegments, {}},
                                      {"RetransSegs", MetricId::kTcpRetransmits, {}},
                                      {"InErrs", MetricId::kTcpErrors, {}}}};
};

}  // namespace

std::unique_ptr<Source> MakeTcpSource(SourceContext* context) {
  return std::make_unique<TcpSource>(context);
}

}  // namespace telltale::collect
