// SPDX-License-Identifier: Apache-2.0
// The control group of the training: its limits, and how often it runs into them.
#pragma once
#include <optional>
#include <string>

#include "collect/cgroup.h"
#include "collect/counter.h"
#include "collect/period.h"
#include "collect/pressure.h"
#include "collect/source.h"

namespace telltale::collect {

class CgroupSource final : public Source {
 public:
  explicit CgroupSource(SourceContext* context);
  /// Whose group; this process's own before the first call.
  void SetProcess(int pid);
  void Sample(RowSink* sink) override;
  /// Processes of the group that the kernel's out-of-memory killer has ended so far; none where it
  /// does not count them.
  std::optional<std::uint64_t> OomKills();

 private:
  /// A file of one folder that stays open until the folder is another, or the group was: one that
  /// is made under the same path has other files. A file that is not there is read as nothing: a
  /// root group, for one, has few of them.
  struct Watched {
    std::string path;
    KeptFile file{UniqueFd()};
    bool opened = false;  ///< Though what opens may not be readable: pressure that is switched off.
    bool read = false;    ///< The newest read was good.
  };

  void Resolve();
  /// A file of pressure, of its own control group.
  struct WatchedPressure {
    Watched watched;
    Pressure values;
  };

  /// True where it is another file than before, or may be.
  bool Watch(const std::string& folder, const char* name, Watched* watched) const;
  void SampleCpu(std::string_view subject, RowSink* sink);
  void SampleMemory(std::string_view subject, bool slow, RowSink* sink);
  void SampleTasks(std::string_view subject, RowSink* sink);
  Reading Read(Watched* watched);
  std::optional<std::uint64_t> Number(Watched* watched, std::int64_t* time_ns);

  SourceContext* context_;
  std::string process_ = "self";
  Period resolve_;
  bool gone_ = false;  ///< A file that was read can be read no more: all are opened again.
  Period slow_{kSlowPeriodNs};
  int cpu_version_ = 0;
  int memory_version_ = 0;
  std::optional<double> cpu_limit_, memory_limit_, tasks_limit_;  ///< Cores, bytes, tasks.

  Watched cpu_used_;      ///< v1 cpuacct.usage, v2 cpu.stat of the own group.
  Watched throttled_;     ///< cpu.stat of the group whose limit binds.
  Watched memory_used_;   ///< Of the group whose limit binds, as the next two.
  Watched memory_hits_;   ///< v1 memory.failcnt, v2 memory.events.
  Watched memory_kills_;  ///< v1 memory.oom_control.
  Watched memory_swap_;   ///< v2 memory.swap.current.
  Watched tasks_;
  /// v2, of the own group.
  WatchedPressure cpu_pressure_{{}, {MetricId::kCgroupPsiCpuSome, std::nullopt}};
  WatchedPressure io_pressure_{{}, {MetricId::kCgroupPsiIoSome, MetricId::kCgroupPsiIoFull}};
  WatchedPressure memory_pressure_{
      {}, {MetricId::kCgroupPsiMemorySome, MetricId::kCgroupPsiMemoryFull}};
  RateCounter cpu_used_rate_, throttled_rate_, memory_hits_rate_;
  std::optional<std::uint64_t> periods_, throttled_periods_;  ///< At the sample before.
};

}  // namespace telltale::collect
