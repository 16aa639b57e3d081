// SPDX-License-Identifier: Apache-2.0
#include "collect/gpu_source.h"

#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "collect/gpu_reader.h"
#include "collect/period.h"

namespace telltale::collect {
namespace {

/// The first answer may take long: the driver wakes the devices.
constexpr std::int64_t kGpuSilentNs = 30'000'000'000;
constexpr std::chrono::seconds kEndPatience{1};

}  // namespace

/// A round is the thread's while it reads, and ours while it is idle.
struct GpuSource::Shared {
  explicit Shared(const Clock* clock) : reader(clock) {}
  enum class State : std::uint8_t { kClosed, kOpen, kNone };
  GpuReader reader;
  std::atomic<State> state{State::kClosed};
  GpuRound quick, slow;
};

GpuSource::GpuSource(SourceContext* context, const std::string& library)
    : context_(context), shared_(std::make_shared<Shared>(context->clock)) {
  quick_.thread = std::make_unique<AskedThread>([shared = shared_, library] {
    using enum Shared::State;
    if (shared->state == kClosed) shared->state = shared->reader.Open(library) ? kOpen : kNone;
    if (shared->state == kOpen) shared->reader.ReadQuick(&shared->quick);
  });
  slow_.thread =
      std::make_unique<AskedThread>([shared = shared_] { shared->reader.ReadSlow(&shared->slow); });
  slow_.period_ns = kSlowPeriodNs;
}

GpuSource::~GpuSource() {
  // The driver's library must not be at work while the process ends.
  slow_.thread->Await(kEndPatience);
  quick_.thread->Await(kEndPatience);
}

void GpuSource::Ask(Asked* asked, std::int64_t now_ns) {
  if (asked->open || now_ns < asked->due_ns || !asked->thread->Ask()) return;
  asked->open = true;
  asked->late = false;
  asked->asked_ns = now_ns;
  asked->due_ns = now_ns + asked->period_ns;
}

void GpuSource::Ask() {
  const std::int64_t now_ns = context_->clock->MonotonicNs();
  // As it was before the quick thread is asked, which may open the library meanwhile.
  const Shared::State state = shared_->state;
  if (state == Shared::State::kNone) return;
  Ask(&quick_, now_ns);
  if (state == Shared::State::kOpen) Ask(&slow_, now_ns);
}

void GpuSource::SaySilent(Asked* asked, std::int64_t now_ns) {
  if (now_ns - asked->asked_ns < kGpuSilentNs || std::exchange(asked->silent, true)) return;
  const double seconds = static_cast<double>(now_ns - asked->asked_ns) * 1e-9;
  context_->events.push_back(
      NewEvent("gpu.silent", "medium", "gpu", now_ns,
               fmt::format("the GPUs' driver has not answered for {:.0f} s", seconds),
               {{"seconds", seconds}}));
}

void GpuSource::Take(Asked* asked, bool quick, std::chrono::nanoseconds patience, RowSink* sink) {
  if (!asked->open) return;
  if (!asked->thread->Await(asked->late ? std::chrono::nanoseconds(0) : patience)) {
    if (quick && !std::exchange(asked->late, true)) ++context_->counters.unanswered;
    SaySilent(asked, context_->clock->MonotonicNs());
    return;
  }
  asked->open = asked->silent = false;
  GpuRound& round = quick ? shared_->quick : shared_->slow;
  for (const GpuValue& value : round.values) {
    if (value.gpu < 0) {
      char text[24] = "proc:";
      const auto end = std::to_chars(text + 5, text + sizeof text, value.pid).ptr;
      sink->Emit(value.id, sink->Intern({text, end}), value.value, value.pid);
      continue;
    }
    while (subjects_.size() <= static_cast<std::size_t>(value.gpu)) {
      subjects_.push_back(fmt::format("gpu:{}", subjects_.size()));
    }
    sink->Emit(value.id, sink->Intern(subjects_[static_cast<std::size_t>(value.gpu)]), value.value);
  }
  for (SystemEvent& event : round.events) context_->events.push_back(std::move(event));
  context_->counters.counter_resets += round.counter_resets;
  round.Clear();
}

void GpuSource::Sample(RowSink* sink) {
  const std::chrono::nanoseconds patience(context_->patience_ns);
  Take(&quick_, true, patience, sink);
  Take(&slow_, false, patience, sink);
}

}  // namespace telltale::collect
