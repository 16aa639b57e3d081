// SPDX-License-Identifier: Apache-2.0
#include "collect/cgroup_source.h"

#include <fcntl.h>

#include <utility>

#include "collect/text.h"

namespace telltale::collect {
namespace {

// Limits change seldom, and a process seldom moves to another group.
constexpr std::int64_t kResolveNs = 10'000'000'000;

/// The number behind `key` in a file of lines "key number".
std::optional<std::uint64_t> Keyed(std::string_view text, std::string_view key) {
  std::string_view line;
  while (NextLine(&text, &line)) {
    if (NextField(&line) == key) return ParseNumber<std::uint64_t>(NextField(&line));
  }
  return std::nullopt;
}

const std::string& FolderOf(const std::optional<CgroupLimit>& limit,
                            const CgroupController& controller) {
  static const std::string kNone;
  if (limit) return limit->folder;
  return controller.folders.empty() ? kNone : controller.folders.front();
}

std::optional<double> ValueOf(const std::optional<CgroupLimit>& limit) {
  return limit ? std::optional(limit->value) : std::nullopt;
}

}  // namespace

CgroupSource::CgroupSource(SourceContext* context) : context_(context), resolve_(kResolveNs) {}

void CgroupSource::SetProcess(int pid) {
  process_ = std::to_string(pid);
  resolve_.Reset();
}

bool CgroupSource::Watch(const std::string& folder, const char* name, Watched* watched) const {
  std::string path = folder.empty() ? std::string() : folder + '/' + name;
  const bool held = watched->opened && !gone_;
  if (path == watched->path && (path.empty() || held)) return false;
  watched->file = KeptFile(UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  watched->opened = watched->file.is_open();
  watched->path = std::move(path);
  watched->read = false;
  return true;
}

void CgroupSource::Resolve() {
  const CgroupPlaces places = FindCgroups(context_->root, process_);
  // A process that has ended has no group any more: what was found before it did still stands.
  if (places.version() == 0 && cpu_version_ + memory_version_ != 0) return;
  const auto cpu = CpuLimit(places.cpu);
  const auto memory = MemoryLimit(places.memory);
  const auto tasks = TasksLimit(places.pids);
  cpu_limit_ = ValueOf(cpu);
  memory_limit_ = ValueOf(memory);
  tasks_limit_ = ValueOf(tasks);
  cpu_version_ = places.cpuacct.version;
  memory_version_ = places.memory.version;

  if (Watch(FolderOf(std::nullopt, places.cpuacct),
            cpu_version_ == 2 ? "cpu.stat" : "cpuacct.usage", &cpu_used_)) {
    cpu_used_rate_ = {};
  }
  if (Watch(FolderOf(cpu, places.cpu), "cpu.stat", &throttled_)) {
    throttled_rate_ = {};
    periods_.reset();
  }
  const std::string& folder = FolderOf(memory, places.memory);
  const bool second = memory_version_ == 2;
  Watch(folder, second ? "memory.current" : "memory.usage_in_bytes", &memory_used_);
  if (Watch(folder, second ? "memory.events" : "memory.failcnt", &memory_hits_)) {
    memory_hits_rate_ = {};
  }
  Watch(second ? folder : std::string(), "memory.swap.current", &memory_swap_);
  Watch(FolderOf(tasks, places.pids), "pids.current", &tasks_);
  const std::string& own = FolderOf(std::nullopt, places.memory);
  // It counts those of this group alone, whichever group has the limit.
  Watch(second ? std::string() : own, "memory.oom_control", &memory_kills_);
  // Version 1 keeps none.
  const auto watch_pressure = [&](const char* name, WatchedPressure* pressure) {
    if (Watch(second ? own : std::string(), name, &pressure->watched)) pressure->values.Reset();
  };
  watch_pressure("cpu.pressure", &cpu_pressure_);
  watch_pressure("io.pressure", &io_pressure_);
  watch_pressure("memory.pressure", &memory_pressure_);
  gone_ = false;
}

Reading CgroupSource::Read(Watched* watched) {
  Reading reading = ReadFile(&watched->file, context_);
  if (std::exchange(watched->read, reading.ok) && !reading.ok) {
    gone_ = true;
    resolve_.Reset();  // Another group may be there already.
  }
  return reading;
}

std::optional<std::uint64_t> CgroupSource::Number(Watched* watched, std::int64_t* time_ns) {
  Reading reading = Read(watched);
  if (!reading.ok) return std::nullopt;
  *time_ns = reading.monotonic_ns;
  std::string_view line;
  NextLine(&reading.text, &line);
  const auto number = ParseNumber<std::uint64_t>(NextField(&line));
  if (!number) ++context_->counters.malformed;
  return number;
}

void CgroupSource::SampleCpu(std::string_view subject, RowSink* sink) {
  std::uint64_t* const resets = &context_->counters.counter_resets;
  if (cpu_limit_) sink->Emit(MetricId::kCgroupCpuLimit, subject, *cpu_limit_);
  const bool second = cpu_version_ == 2;
  const double percent_per_unit = second ? 1e-4 : 1e-7;  // Of microseconds or nanoseconds a second.

  const auto emit_used = [&](std::optional<std::uint64_t> used, std::int64_t time_ns) {
    const auto rate = used ? cpu_used_rate_.Advance(*used, time_ns, resets) : std::nullopt;
    if (rate) sink->Emit(MetricId::kCgroupCpuUsed, subject, *rate * percent_per_unit);
  };
  const bool one_file = second && cpu_used_.path == throttled_.path;
  if (!one_file) {
    if (second) {
      const Reading reading = Read(&cpu_used_);
      if (reading.ok) emit_used(Keyed(reading.text, "usage_usec"), reading.monotonic_ns);
    } else {
      std::int64_t time_ns = 0;
      const auto used = Number(&cpu_used_, &time_ns);
      emit_used(used, time_ns);
    }
  }
  // Without a limit the counters stand at zero, and that is no fact about the training.
  if (!one_file && !cpu_limit_) {
    throttled_rate_ = {};
    periods_.reset();
    return;
  }
  const Reading reading = Read(&throttled_);
  if (!reading.ok) return;
  if (one_file) emit_used(Keyed(reading.text, "usage_usec"), reading.monotonic_ns);

  const auto periods = Keyed(reading.text, "nr_periods");
  const auto held_back = Keyed(reading.text, "nr_throttled");
  const auto time = Keyed(reading.text, second ? "throttled_usec" : "throttled_time");
  const auto periods_before = std::exchange(periods_, periods);
  const auto held_back_before = std::exchange(throttled_periods_, held_back);
  const auto rate =
      time ? throttled_rate_.Advance(*time, reading.monotonic_ns, resets) : std::nullopt;
  if (!cpu_limit_) return;
  if (rate) sink->Emit(MetricId::kCgroupCpuThrottled, subject, *rate * percent_per_unit);
  if (!periods || !held_back || !periods_before || !held_back_before) return;
  const auto grown = CounterDelta(*periods_before, *periods);
  const auto held = CounterDelta(*held_back_before, *held_back);
  // A group that slept through the interval has no period in it.
  if (grown && held && *grown > 0) {
    sink->Emit(MetricId::kCgroupCpuThrottledPeriods, subject,
               100.0 * static_cast<double>(*held) / static_cast<double>(*grown));
  }
}

void CgroupSource::SampleMemory(std::string_view subject, bool slow, RowSink* sink) {
  std::int64_t time_ns = 0;
  if (memory_limit_) sink->Emit(MetricId::kCgroupMemLimit, subject, *memory_limit_);
  if (const auto used = Number(&memory_used_, &time_ns)) {
    sink->Emit(MetricId::kCgroupMemUsed, subject, static_cast<double>(*used));
  }
  std::optional<std::uint64_t> hits, kills;
  if (memory_version_ == 2) {
    const Reading reading = Read(&memory_hits_);
    if (reading.ok) {
      time_ns = reading.monotonic_ns;
      const auto high = Keyed(reading.text, "high");
      const auto max = Keyed(reading.text, "max");
      if (high && max) hits = *high + *max;
      kills = Keyed(reading.text, "oom_kill");
      const auto ooms = Keyed(reading.text, "oom");
      if (ooms) sink->Emit(MetricId::kCgroupOoms, subject, static_cast<double>(*ooms));
    }
    std::int64_t swap_time_ns = 0;
    const auto swap = slow ? Number(&memory_swap_, &swap_time_ns) : std::nullopt;
    if (swap) sink->Emit(MetricId::kCgroupSwapUsed, subject, static_cast<double>(*swap));
  } else {
    hits = Number(&memory_hits_, &time_ns);
  }
  if (hits) {
    const auto rate = memory_hits_rate_.Advance(*hits, time_ns, &context_->counters.counter_resets);
    if (rate) sink->Emit(MetricId::kCgroupMemLimitHits, subject, *rate);
  }
  if (memory_version_ == 1) {
    const Reading reading = Read(&memory_kills_);
    if (reading.ok) kills = Keyed(reading.text, "oom_kill");
  }
  if (kills) sink->Emit(MetricId::kCgroupOomKills, subject, static_cast<double>(*kills));
}

std::optional<std::uint64_t> CgroupSource::OomKills() {
  if (memory_version_ == 0 || gone_) Resolve();
  const Reading reading = Read(memory_version_ == 2 ? &memory_hits_ : &memory_kills_);
  return reading.ok ? Keyed(reading.text, "oom_kill") : std::nullopt;
}

void CgroupSource::SampleTasks(std::string_view subject, RowSink* sink) {
  std::int64_t time_ns = 0;
  if (tasks_limit_) sink->Emit(MetricId::kCgroupTasksLimit, subject, *tasks_limit_);
  if (const auto tasks = Number(&tasks_, &time_ns)) {
    sink->Emit(MetricId::kCgroupTasks, subject, static_cast<double>(*tasks));
  }
}

void CgroupSource::Sample(RowSink* sink) {
  const std::int64_t now_ns = context_->clock->MonotonicNs();
  if (resolve_.Due(now_ns)) Resolve();
  const bool slow = slow_.Due(now_ns);
  const std::string_view subject = sink->Intern("cgroup");
  SampleCpu(subject, sink);
  SampleMemory(subject, slow, sink);
  if (slow) SampleTasks(subject, sink);
  for (WatchedPressure* pressure : {&cpu_pressure_, &io_pressure_, &memory_pressure_}) {
    pressure->values.Sample(&pressure->watched.file, subject, context_, sink);
  }
}

}  // namespace telltale::collect
