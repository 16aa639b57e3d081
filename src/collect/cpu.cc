// SPDX-License-Identifier: Apache-2.0
// /proc/stat: where the time of every core went; tasks that run, wait and begin.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "collect/counter.h"
#include "collect/source.h"
#include "collect/text.h"

namespace telltale::collect {
namespace {

enum Field { kUser, kNice, kSystem, kIdle, kIowait, kIrq, kSoftirq, kSteal, kFields };
// guest and guest_nice follow on the line; the kernel counts them in user and nice already.
using Ticks = std::array<std::uint64_t, kFields>;

struct Core {
  std::string subject;
  Ticks last{};
  std::uint64_t last_read = 0;  ///< Number of the read that saw it last; 0 is none.
};

class CpuSource final : public Source {
 public:
  explicit CpuSource(SourceContext* context)
      : context_(context), file_(context->root + "proc/stat", KeptFile::Text::kOneRecord) {
    all_.subject = "node";
  }

  void Sample(RowSink* sink) override {
    context_->forks.reset();
    Reading reading = ReadFile(&file_, context_);
    if (!reading.ok) return;
    ++read_;
    std::string_view line;
    while (NextLine(&reading.text, &line)) {
      if (!line.starts_with("cpu")) {
        SampleTasks(line, reading.monotonic_ns, sink);
        continue;
      }
      const std::string_view name = NextField(&line).substr(3);
      Ticks ticks{};
      // Kernels before 2.6.11 had no steal; what is missing is zero.
      const bool numbers = ReadNumbers(line, ticks.data(), ticks.size()) > kIdle;
      Core* core = numbers ? Find(name) : nullptr;
      if (core == nullptr) {
        ++context_->counters.malformed;
        continue;
      }
      Emit(core, ticks, sink);
    }
  }

 private:
  /// A line behind those of the cores; the one of interrupts is long, and nobody's.
  void SampleTasks(std::string_view line, std::int64_t now_ns, RowSink* sink) {
    if (!line.starts_with("ctxt") && !line.starts_with("proc")) return;
    const std::string_view key = NextField(&line);
    RateCounter* const counter = key == "ctxt"        ? &switches_
                                 : key == "processes" ? &forks_
                                                      : nullptr;
    const bool running = key == "procs_running";
    if (counter == nullptr && !running && key != "procs_blocked") return;
    const auto value = ParseNumber<std::uint64_t>(NextField(&line));
    // Some that stand for a kernel write 0 always.
    if (counter == &forks_) context_->forks = value.value_or(0) > 0 ? value : std::nullopt;
    if (!value) {
      ++context_->counters.malformed;
    } else if (counter == nullptr) {
      sink->Emit(running ? MetricId::kCpuRunning : MetricId::kCpuBlocked, sink->Intern("node"),
                 static_cast<double>(*value));
    } else if (const auto rate =
                   counter->Advance(*value, now_ns, &context_->counters.counter_resets)) {
      sink->Emit(counter == &switches_ ? MetricId::kCpuSwitches : MetricId::kCpuForks,
                 sink->Intern("node"), *rate);
    }
  }

  Core* Find(std::string_view name) {
    if (name.empty()) return &all_;
    const auto number = ParseNumber<std::uint32_t>(name);
    constexpr std::uint32_t kMaxCores = 1 << 16;
    if (!number || *number >= kMaxCores) return nullptr;
    if (*number >= cores_.size()) cores_.resize(*number + 1);
    Core* core = &cores_[*number];
    if (core->subject.empty()) core->subject = fmt::format("cpu:{}", *number);
    return core;
  }

  void Emit(Core* core, const Ticks& ticks, RowSink* sink) {
    // A core that was missing from the read before was unplugged meanwhile: begin anew.
    const bool has_base = core->last_read != 0 && core->last_read + 1 == read_;
    const Ticks before = core->last;
    core->last = ticks;
    core->last_read = read_;
    if (!has_base) return;
    std::array<double, kFields> spent{};
    double total = 0;
    for (int i = 0; i < kFields; ++i) {
      const auto delta = CounterDelta(before[i], ticks[i]);
      // The kernel corrects idle and iowait backwards by a tick now and then.
      if (!delta && i != kIdle && i != kIowait) {
        ++context_->counters.counter_resets;
        return;
      }
      spent[i] = static_cast<double>(delta.value_or(0));
      total += spent[i];
    }
    if (total <= 0) return;  // Sampled faster than the kernel ticks.
    const std::string_view subject = sink->Intern(core->subject);
    const double percent = 100.0 / total;
    sink->Emit(MetricId::kCpuUser, subject, (spent[kUser] + spent[kNice]) * percent);
    sink->Emit(MetricId::kCpuSystem, subject,
               (spent[kSystem] + spent[kIrq] + spent[kSoftirq]) * percent);
    sink->Emit(MetricId::kCpuIowait, subject, spent[kIowait] * percent);
    sink->Emit(MetricId::kCpuSteal, subject, spent[kSteal] * percent);
    sink->Emit(MetricId::kCpuIdle, subject, spent[kIdle] * percent);
    sink->Emit(MetricId::kCpuBusy, subject, (total - spent[kIdle] - spent[kIowait]) * percent);
  }

  SourceContext* context_;
  KeptFile file_;
  std::uint64_t read_ = 0;
  Core all_;
  std::vector<Core> cores_;
  RateCounter switches_, forks_;
};

}  // namespace

std::unique_ptr<Source> MakeCpuSource(SourceContext* context) {
  return std::make_unique<CpuSource>(context);
}

}  // namespace telltale::collect
