// SPDX-License-Identifier: Apache-2.0
// /proc/schedstat: how long tasks stood in the queue of each core, ready and not running.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "collect/counter.h"
#include "collect/source.h"
#include "collect/text.h"

namespace telltale::collect {
namespace {

// The kernel writes hundreds of numbers a core.
constexpr std::int64_t kRunQueuePeriodNs = 5'000'000'000;
constexpr std::size_t kMaxQueues = 1 << 16;

class RunQueueSource final : public Source {
 public:
  explicit RunQueueSource(SourceContext* context)
      : context_(context), file_(context->root + "proc/schedstat") {
    // Many kernels are built without it, which is no failure.
    exists_ = ::access((context->root + "proc/schedstat").c_str(), R_OK) == 0;
  }

  void Sample(RowSink* sink) override {
    const std::int64_t now_ns = context_->clock->MonotonicNs();
    if (!exists_ || now_ns < due_ns_) return;
    due_ns_ = now_ns + kRunQueuePeriodNs;
    Reading reading = ReadFile(&file_, context_);
    if (!reading.ok) return;
    std::string_view line;
    NextLine(&reading.text, &line);
    NextField(&line);
    const auto version = ParseNumber<int>(NextField(&line));
    // Before version 15 (Linux 2.6.27) the unit was another.
    constexpr int kNanoseconds = 15;
    if (!version || *version < kNanoseconds) {
      ++context_->counters.malformed;
      return;
    }
    double sum = 0;
    bool any = false;
    while (NextLine(&reading.text, &line)) {
      if (!line.starts_with("cpu")) continue;
      const auto number = ParseNumber<std::size_t>(NextField(&line).substr(3));
      // Seven others, then time in the queue; proc/schedstat of the kernel's documentation.
      std::array<std::uint64_t, 8> columns{};
      if (!number || *number >= kMaxQueues ||
          ReadNumbers(line, columns.data(), columns.size()) != columns.size()) {
        ++context_->counters.malformed;
        continue;
      }
      while (queues_.size() <= *number) {
        queues_.push_back({fmt::format("cpu:{}", queues_.size()), {}});
      }
      Queue& queue = queues_[*number];
      const auto rate = queue.counter.Advance(columns[7], reading.monotonic_ns,
                                              &context_->counters.counter_resets);
      if (!rate) continue;
      constexpr double kNsToPercent = 1e-7;
      sink->Emit(MetricId::kCpuRunDelay, sink->Intern(queue.subject), *rate * kNsToPercent);
      sum += *rate * kNsToPercent;
      any = true;
    }
    if (any) sink->Emit(MetricId::kCpuRunDelay, sink->Intern("node"), sum);
  }

 private:
  struct Queue {
    std::string subject;
    RateCounter counter;
  };

  SourceContext* context_;
  KeptFile file_;
  bool exists_ = false;
  std::int64_t due_ns_ = INT64_MIN;
  std::vector<Queue> queues_;
};

}  // namespace

std::unique_ptr<Source> MakeRunQueueSource(SourceContext* context) {
  return std::make_unique<RunQueueSource>(context);
}

}  // namespace telltale::collect
