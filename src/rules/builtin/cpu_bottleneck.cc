// SPDX-License-Identifier: Apache-2.0
// CPUBottleneck: the training thread waits while cores or workers are saturated, and the GPU, where
// there is one, idles.
//
// SageMaker Debugger's rule of this name fires on one hot core among many and proves no wait. Here
// each interval between two samples counts only where both are seen: no core that the run may use
// (or no worker) has room, and the training thread got less of a core than its phases asked for, or
// waited for batches. A training that saturates the cores itself has no bottleneck but its own
// work.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/event_data.h"
#include "rules/builtin/fetch_facts.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/builtin/processes.h"
#include "rules/groups.h"
#include "rules/registry.h"

namespace telltale::rules::cpu_bottleneck {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold", 50, "%", "Share of the samples of a window that must be bottlenecks."},
    {"cpu_threshold", 90, "%", "Cores (their mean) or workers busier than this are saturated."},
    {"gpu_threshold", 10, "%", "With a GPU: the least busy of those in use is below this."},
    // The documentation's 100 count samples in which nothing waits too; here each proves a wait.
    {"patience", 8, "samples",
     "Samples in the window before anything is said; SageMaker Debugger's documentation says 100.",
     nullptr, 1000},
    {"window_seconds", 15, "s", "Length of the sliding window."},
    {"medium_share", 10, "%",
     "Share of its time that the training waits, from which it is medium."},
    {"high_share", 30, "%", "Share from which it is high."},
};

constexpr std::size_t kQueued = 512;
constexpr std::size_t kStepsKept = 50'000;
constexpr double kNs = 1e9;
/// Waits below this share of an interval are within what the kernel's ticks can say.
constexpr double kLeastWait = 0.05;
/// Below this many percent of a core nobody else is in the way.
constexpr double kLeastOthers = 25;
/// A control group that is held back in this share of the scheduler's periods, in percent, has no
/// room, though its mean load may be lower: it takes its share in bursts.
constexpr double kHeldBack = 50;
/// First steps of an attempt: what compiles in them wants every core, once.
constexpr std::int64_t kWarmupSteps = 3;
constexpr double kMinNormalSteps = 20;
constexpr std::int64_t kDescribeIntervalNs = 1'000'000'000;
/// Of a core: what a training that mostly waits takes of one is shared with its workers.
constexpr double kCoreToSpare = 0.1;
/// Of the cores that the workers take now: what so many workers could take at least.
constexpr double kAsMany = 0.97;

class CPUBottleneck final : public Rule {
 public:
  explicit CPUBottleneck(const Parameters& p)
      : threshold_(p.Get("threshold") / 100),
        cpu_threshold_(p.Get("cpu_threshold")),
        gpu_threshold_(p.Get("gpu_threshold")),
        patience_(static_cast<std::size_t>(std::max<std::int64_t>(1, p.GetInt("patience")))),
        window_ns_(p.GetNs("window_seconds")),
        medium_(p.Get("medium_share") / 100),
        high_(p.Get("high_share") / 100) {}

  bool Wants(const Series& series) override {
    return series.name == "cpu.idle" || series.name == "cpu.iowait" || series.name == "proc.cpu" ||
           series.name == "gpu.utilization" || series.name.starts_with("cgroup.cpu_");
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* metric = record.As<format::MetricRow>()) {
      OnMetric(*metric, record.writer);
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, record.writer, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, record.writer, reporter);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

  std::string Summary() const override {
    if (samples_ == 0) return {};
    nlohmann::ordered_json out;
    out["nodes"]["training"] = {{"samples", samples_},
                                {"bottlenecks", bottlenecks_},
                                {"gpu_low", gpu_low_},
                                {"gpu_samples", gpu_samples_}};
    return JsonText(out);
  }

 private:
  /// What one sample of a node says; percent of a core.
  struct Tick {
    std::int64_t time_ns = 0;
    double idle = 0;  ///< Percent of all cores, waits for a disk included.
    bool has_idle = false;
    double tree = 0;
    // Of the control group.
    double limit = 0;  ///< Cores that it may use; 0: as many as there are.
    double group = 0;
    double throttled = 0;  ///< Time held back by the limit, summed over cores.
    double held_back = 0;  ///< Percent of the scheduler's periods in which it was.
    std::set<std::string, std::less<>> cores;
    std::map<std::int32_t, double> cpu;  ///< By pid.
  };

  /// Pids are those of one node, whose agent writes all its records: other nodes may have the same.
  /// Utilization of one, in percent.
  struct Gpu {
    std::int64_t time_ns = 0;
    double now = 0;
    double most = 0;
  };

  struct Node {
    Tick tick;
    std::map<std::string, Gpu, std::less<>> gpus;
    SampleTimes times;
    std::set<std::int32_t> workers;
    std::map<std::int32_t, int> cpus;  ///< By pid: what its framework says that it may run on.
    FetchCosts worker_fetches;         ///< What making a batch takes in the workers.
    std::map<std::int32_t, FetchCosts> own_fetches;  ///< The same in training processes, by pid.
  };

  struct Interval {
    std::int64_t from_ns = 0, to_ns = 0;
    double busy = 0;      ///< Percent of all cores.
    double own = 0;       ///< The training process, percent of a core; so are the next six.
    double workers = 0;   ///< Of data loaders.
    double trainers = 0;  ///< Other ranks.
    double helpers = 0;   ///< Other processes of the run.
    double outside = 0;   ///< Other programs.
    double tree = 0;
    double group = 0;  ///< What counts against the limit: the control group, the run at least.
    double limit = 0, throttled = 0, held_back = 0;  ///< As in Tick.
    double allowed = 0;                              ///< Cores that the run may use.
    int worker_count = 0;
    int cores = 0;
    double gpu = -1;  ///< Percent, of the least busy that was ever used; below 0: not known.
  };

  struct Judged {
    Interval at;
    std::int64_t first_step = -1, last_step = -1;
    double lack = 0;       ///< Share of its time for which the training thread had no core.
    double data_wait = 0;  ///< Share of its time, where workers make the batches.
    double core_wait = 0;  ///< Of data_wait: while who makes the batch is ready and has no core.
    double outside = 0;    ///< Of a core, in percent: other programs that are in the way.
    bool bottleneck = false;
    bool machine_full = false;
    bool cores_full = false;  ///< The machine's, or those that the run may use.
    double wait() const { return lack + data_wait; }
  };

  struct Step {
    std::int64_t step, start_ns, end_ns;
    double data_wait, compute;  ///< Shares of its duration.
  };

  struct Process : TrainingProcess {
    std::int64_t seen = 0;        ///< Steps of this attempt.
    std::deque<Interval> queued;  ///< Later than the newest step.
    std::deque<Step> steps;       ///< That intervals yet to come may touch.
    std::deque<Judged> window;
    // Where cores had room: what a step's work takes.
    double normal_compute_ns = 0;
    double normal_cpu_ns = 0;
    double normal_steps = 0;

    std::int64_t described_ns = 0;
    double cost_ns = 0;
    double open_compute_ns = 0;
    double open_steps = 0;
    std::int64_t bottlenecks = 0;
  };

  void OnExit(const format::EventRow& event, std::uint32_t writer, Reporter* reporter) {
    Node& node = nodes_[writer];
    // All of the newest sample came before: its load is still that of a process of the run.
    FinishTick(&node, writer);
    processes_.End(event, writer, [&](Process* process) { End(process, reporter); });
    // Who has its pid next is another.
    node.workers.erase(event.pid);
    node.cpus.erase(event.pid);
    node.own_fetches.erase(event.pid);
  }

  void OnEvent(const format::EventRow& event, std::uint32_t writer, Reporter* reporter) {
    if (event.kind == "process.exit") {
      OnExit(event, writer, reporter);
      return;
    }
    if (event.kind == "run.attempt_start") {
      // Where the machine died nobody has said that its processes ended.
      nodes_[writer].workers.clear();
      nodes_[writer].cpus.clear();
      nodes_[writer].own_fetches.clear();
      return;
    }
    if (event.kind == "worker.start") {
      nodes_[writer].workers.insert(event.pid);
      return;
    }
    if (event.kind != "framework" && event.kind != "dataloader.fetches") return;
    const auto data = ParseJson(event.data);
    if (!data.is_object()) return;
    if (event.kind == "dataloader.fetches") {
      Node& node = nodes_[writer];
      const bool worker = node.workers.contains(event.pid);
      (worker ? node.worker_fetches : node.own_fetches[event.pid]).Take(data);
      return;
    }
    if (const auto cpus = data.find("cpus"); cpus != data.end() && cpus->is_number_integer()) {
      nodes_[writer].cpus[event.pid] =
          static_cast<int>(std::clamp<std::int64_t>(IntegerOf(*cpus), 0, 65536));
    }
    if (const auto cuda = data.find("cuda_available"); cuda != data.end() && cuda->is_boolean()) {
      cuda_ = cuda_ || cuda->get<bool>();  // Another process may have no use for it.
    }
  }

  void OnMetric(const format::MetricRow& row, std::uint32_t writer) {
    if (row.name == "gpu.utilization" && std::isfinite(row.value)) {
      // Read apart from the rest of the sample: it may have a time of its own.
      auto& gpus = nodes_[writer].gpus;
      auto known = gpus.find(row.subject);
      if (known == gpus.end()) known = gpus.emplace(std::string(row.subject), Gpu()).first;
      known->second.time_ns = row.time_ns;
      known->second.now = row.value;
      known->second.most = std::max(known->second.most, row.value);
      gpu_seen_ = true;
      return;
    }
    const bool cpu = row.name == "cpu.idle" || row.name == "cpu.iowait";
    const bool group = row.name.starts_with("cgroup.cpu_");
    if ((!cpu && !group && row.name != "proc.cpu") || !std::isfinite(row.value)) return;
    Node& node = nodes_[writer];
    if (row.time_ns != node.tick.time_ns) {
      FinishTick(&node, writer);
      std::set<std::string, std::less<>> cores = std::move(node.tick.cores);
      node.tick = Tick();
      node.tick.time_ns = row.time_ns;
      node.tick.cores = std::move(cores);
    }
    Tick& tick = node.tick;
    if (cpu) {
      if (row.subject == "node") {
        tick.idle += row.value;
        tick.has_idle = tick.has_idle || row.name == "cpu.idle";
      } else if (row.subject.starts_with("cpu:") && !tick.cores.contains(row.subject)) {
        tick.cores.emplace(row.subject);
      }
    } else if (group) {
      (row.name == "cgroup.cpu_limit"       ? tick.limit
       : row.name == "cgroup.cpu_used"      ? tick.group
       : row.name == "cgroup.cpu_throttled" ? tick.throttled
                                            : tick.held_back) = row.value;
    } else if (row.subject == "proc:tree") {
      tick.tree = row.value;
    } else if (row.pid != 0) {
      tick.cpu[row.pid] = row.value;
    }
  }

  /// All values of one sample are there. A second call for the same sample does nothing.
  void FinishTick(Node* node, std::uint32_t writer) {
    const Tick& tick = node->tick;
    if (!tick.has_idle || tick.cores.empty()) return;
    const auto from_ns = node->times.Since(tick.time_ns);
    if (!from_ns) return;
    Interval interval;
    interval.from_ns = *from_ns;
    interval.to_ns = tick.time_ns;
    interval.cores = static_cast<int>(tick.cores.size());
    interval.busy = std::clamp(100 - tick.idle, 0.0, 100.0);
    interval.tree = tick.tree;
    interval.group = tick.limit > 0 ? std::max(tick.group, tick.tree) : tick.tree;
    interval.limit = tick.limit;
    interval.throttled = tick.throttled;
    interval.held_back = tick.held_back;
    interval.allowed = interval.cores;
    for (const auto& [subject, gpu] : node->gpus) {
      if (gpu.time_ns <= *from_ns || gpu.most <= 0) continue;
      if (interval.gpu < 0 || gpu.now < interval.gpu) interval.gpu = gpu.now;
    }
    for (const auto& [pid, value] : tick.cpu) {
      if (!node->workers.contains(pid)) continue;
      interval.workers += value;
      ++interval.worker_count;
    }
    const auto of = [&](const Process& process) {
      const auto own = tick.cpu.find(process.pid);
      return process.writer == writer && own != tick.cpu.end() ? std::optional(own->second)
                                                               : std::nullopt;
    };
    double trainers = 0;
    double cpus = 0;
    std::set<std::int32_t> counted;  // A process may have changed its rank.
    for (const auto& [key, process] : processes_) {
      const auto own = of(process);
      if (!own || !counted.insert(process.pid).second) continue;
      trainers += *own;
      const auto may_use = node->cpus.find(process.pid);
      const bool known = may_use != node->cpus.end() && may_use->second > 0;
      cpus += known ? may_use->second : interval.cores;
    }
    if (cpus > 0) interval.allowed = std::min(interval.allowed, cpus);
    if (tick.limit > 0) interval.allowed = std::min(interval.allowed, tick.limit);
    for (auto& [key, process] : processes_) {
      const auto own = of(process);
      if (!own) continue;
      interval.own = *own;
      interval.trainers = trainers - *own;
      interval.helpers = std::max(0.0, tick.tree - trainers - interval.workers);
      interval.outside = std::max(0.0, interval.busy * interval.cores - tick.tree);
      process.queued.push_back(interval);
      if (process.queued.size() > kQueued) process.queued.pop_front();
    }
  }

  void OnStep(const format::StepRow& row, std::uint32_t writer, Reporter* reporter) {
    // With a GPU its load must be known.
    if (row.duration_ns <= 0 || (cuda_ && !gpu_seen_)) return;
    Process* process =
        processes_.Find(row, writer, [&](Process* former) { Close(former, reporter); });
    if (process == nullptr || !process->BeginStep(row.step)) return;
    const format::StepRow own = WithoutProbe(row);
    const auto duration = static_cast<double>(std::max<std::int64_t>(1, own.duration_ns));
    const std::int64_t end_ns = row.time_ns + row.duration_ns;
    if (++process->seen > kWarmupSteps) {
      process->steps.push_back(
          {row.step, row.time_ns, end_ns, static_cast<double>(own.data_wait_ns) / duration,
           static_cast<double>(own.forward_ns + own.backward_ns + own.optimizer_ns) / duration});
    }
    while (!process->queued.empty() && process->queued.front().to_ns <= end_ns) {
      const Interval interval = process->queued.front();
      process->queued.pop_front();
      JudgeInterval(process, interval, reporter);
      while (!process->steps.empty() && process->steps.front().end_ns <= interval.to_ns) {
        process->steps.pop_front();
      }
    }
    // Where no samples come, the steps must not pile up.
    while (!process->steps.empty() && (process->steps.size() > kStepsKept ||
                                       process->steps.front().end_ns + 120'000'000'000 < end_ns)) {
      process->steps.pop_front();
    }
  }

  /// Share of a fetch's time in which whoever makes the batch is ready to run and has no core, as
  /// the adapter measures it; 0 where it does not.
  double Delayed(const Process& process, const Interval& at) const {
    const auto node = nodes_.find(process.writer);
    if (node == nodes_.end()) return 0;
    if (at.worker_count > 0) return node->second.worker_fetches.delayed();
    const auto own = node->second.own_fetches.find(process.pid);
    return own == node->second.own_fetches.end() ? 0 : own->second.delayed();
  }

  void JudgeInterval(Process* process, const Interval& at, Reporter* reporter) {
    double covered = 0;
    double waited = 0;
    double compute = 0;
    double steps = 0;
    Judged judged;
    judged.at = at;
    for (const Step& s : process->steps) {
      const std::int64_t overlap = std::min(s.end_ns, at.to_ns) - std::max(s.start_ns, at.from_ns);
      if (overlap <= 0) continue;
      const auto ns = static_cast<double>(overlap);
      covered += ns;
      waited += ns * s.data_wait;
      compute += ns * s.compute;
      steps += ns / static_cast<double>(s.end_ns - s.start_ns);
      if (judged.first_step < 0) judged.first_step = s.step;
      judged.last_step = s.step;
    }
    const auto width = static_cast<double>(at.to_ns - at.from_ns);
    if (covered < width / 2) return;  // Evaluation, a start, a gap: nothing is known.
    has_data_ = true;
    judged.machine_full = at.busy >= cpu_threshold_;
    judged.cores_full =
        judged.machine_full || at.tree >= cpu_threshold_ * at.allowed ||
        (at.limit > 0 && (at.group >= cpu_threshold_ * at.limit || at.held_back >= kHeldBack));
    // Where only what the run may use is full, nothing outside its group is in the way.
    judged.outside = judged.machine_full || at.allowed >= at.cores
                         ? at.outside
                         : std::max(0.0, at.group - at.tree);
    const bool workers_full = at.worker_count > 0 && at.workers >= cpu_threshold_ * at.worker_count;
    const double others = at.workers + at.trainers + at.helpers + judged.outside;
    const double compute_share = compute / covered;
    const double cpu = at.own / 100 * covered;
    if (judged.cores_full && others >= kLeastOthers) {
      // A thread that computes wants a core for all of that time.
      judged.lack = compute_share - at.own / 100;
      if (process->normal_steps >= kMinNormalSteps && steps > 0 && compute > 0) {
        // Where it has several threads, a step's work says it: more time than with free cores, for
        // as much CPU time. Where a step takes more of that, its work grew.
        const double normal_cpu = process->normal_cpu_ns / process->normal_steps;
        const double grown = normal_cpu > 0 ? std::max(1.0, cpu / steps / normal_cpu) : 1;
        const double normal = process->normal_compute_ns / process->normal_steps * grown;
        judged.lack = std::max(judged.lack, compute_share * (1 - normal * steps / compute));
      }
      // While the GPU works, the thread may wait for it and not for a core.
      if (cuda_) judged.lack -= std::max(0.0, at.gpu) / 100;
      if (judged.lack < kLeastWait) judged.lack = 0;
    } else if (!judged.cores_full) {
      process->normal_compute_ns += compute;
      process->normal_cpu_ns += cpu;
      process->normal_steps += steps;
    }
    if ((judged.cores_full || workers_full) && at.worker_count > 0) {
      judged.data_wait = waited / covered;
    }
    if (judged.cores_full) judged.core_wait = judged.data_wait * Delayed(*process, at);
    // Who loads in its own process works in these waits, but for the time without a core.
    if (at.worker_count == 0 && judged.cores_full && others >= kLeastOthers) {
      judged.core_wait = waited / covered * Delayed(*process, at);
      if (judged.core_wait < kLeastWait) judged.core_wait = 0;
      judged.data_wait = judged.core_wait;
    }
    const bool gpu_idles = !cuda_ || (at.gpu >= 0 && at.gpu < gpu_threshold_);
    judged.bottleneck = gpu_idles && judged.wait() >= medium_;
    ++samples_;
    bottlenecks_ += judged.bottleneck ? 1 : 0;
    if (cuda_ && at.gpu >= 0) {
      ++gpu_samples_;
      gpu_low_ += gpu_idles ? 1 : 0;
    }
    process->window.push_back(judged);
    // Where samples are far apart, patience of them make the window.
    while (process->window.size() > patience_ &&
           process->window.front().at.to_ns < at.to_ns - window_ns_) {
      process->window.pop_front();
    }
    if (process->open) Count(process, judged, compute, steps);
    Judge(process, reporter);
  }

  static void Count(Process* process, const Judged& judged, double compute, double steps) {
    if (!judged.bottleneck) return;
    ++process->bottlenecks;
    process->cost_ns +=
        (judged.lack + judged.core_wait) * static_cast<double>(judged.at.to_ns - judged.at.from_ns);
    process->open_compute_ns += compute;
    process->open_steps += steps;
  }

  void Judge(Process* process, Reporter* reporter) {
    const auto count =
        static_cast<std::size_t>(std::count_if(process->window.begin(), process->window.end(),
                                               [](const Judged& j) { return j.bottleneck; }));
    const double share = static_cast<double>(count) / static_cast<double>(process->window.size());
    if (process->open && share < threshold_ / 2) {
      Close(process, reporter);
      process->window.clear();
      return;
    }
    if (process->window.size() < patience_) return;
    if (!process->open) {
      if (share <= threshold_) return;
      const auto first = std::find_if(process->window.begin(), process->window.end(),
                                      [](const Judged& j) { return j.bottleneck; });
      process->described_ns = 0;
      processes_.Open(process, first->first_step, first->at.from_ns);
      process->bottlenecks = 0;
      process->cost_ns = process->open_compute_ns = process->open_steps = 0;
      for (auto j = first; j != process->window.end(); ++j) Count(process, *j, 0, 0);
    }
    double wait = 0;
    for (const Judged& j : process->window) {
      if (j.bottleneck) wait += j.wait();
    }
    wait /= static_cast<double>(process->window.size());
    const Severity now_severity = wait >= high_     ? Severity::kHigh
                                  : wait >= medium_ ? Severity::kMedium
                                                    : Severity::kLow;
    const Severity severity = std::max(process->incident.severity, now_severity);
    const std::int64_t now = process->window.back().at.to_ns;
    if (severity == process->incident.severity && process->described_ns != 0 &&
        now < process->described_ns + kDescribeIntervalNs) {
      return;
    }
    process->described_ns = now;
    process->incident.severity = severity;
    Describe(process, share);
    reporter->Report(process->incident);
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    if (process->open) Close(process, reporter);
  }

  void Close(Process* process, Reporter* reporter) {
    process->incident.cost_seconds = process->cost_ns / kNs;
    reporter->Close(process->incident);
    process->open = false;
  }

  static std::string Cores(double percent) {
    return fmt::format("{} {}", Figure(percent / 100),
                       std::abs(percent - 100) < 0.5 ? "core" : "cores");
  }

  void Describe(Process* process, double share) {
    Incident& incident = process->incident;
    Interval sum;
    double lack = 0;
    double data_wait = 0;
    double core_wait = 0;
    double outside = 0;
    double count = 0;
    double full = 0;
    double machine_full = 0;
    for (const Judged& j : process->window) {
      if (!j.bottleneck) continue;
      ++count;
      full += j.cores_full ? 1 : 0;
      machine_full += j.machine_full ? 1 : 0;
      sum.busy += j.at.busy;
      sum.own += j.at.own;
      sum.workers += j.at.workers;
      sum.trainers += j.at.trainers;
      sum.helpers += j.at.helpers;
      sum.group += j.at.group;
      sum.throttled += j.at.throttled;
      sum.held_back += j.at.held_back;
      outside += j.outside;
      lack += j.lack;
      data_wait += j.data_wait;
      core_wait += j.core_wait;
      sum.worker_count = std::max(sum.worker_count, j.at.worker_count);
      sum.limit = j.at.limit;
      sum.allowed = j.at.allowed;
      sum.cores = j.at.cores;
      incident.last_step = j.last_step;
      incident.end_ns = j.at.to_ns;
    }
    count = std::max(1.0, count);
    for (double* mean : {&sum.busy, &sum.own, &sum.workers, &sum.trainers, &sum.helpers, &sum.group,
                         &sum.throttled, &sum.held_back, &outside, &lack, &data_wait, &core_wait}) {
      *mean /= count;
    }
    const bool cores_full = full * 2 > count;
    const bool limited = sum.allowed < sum.cores && machine_full * 2 <= full;
    incident.cost_seconds = process->cost_ns / kNs;
    const int limit = std::max(1, FewAsInt(sum.allowed));
    const auto ranks = static_cast<int>(
        std::count_if(processes_.begin(), processes_.end(),
                      [&](const auto& entry) { return entry.second.writer == process->writer; }));
    // num_workers is of one DataLoader: each rank has its own. What the trainers take, or lack, is
    // kept for them; a training that mostly waits leaves nearly all cores to its workers.
    const double trainers = (sum.own + sum.trainers) / 100 + lack * std::max(1, ranks);
    const int loaders =
        std::max(1, FewAsInt((sum.allowed - trainers) / std::max(1, ranks) + kCoreToSpare));

    if (cores_full) {
      incident.message = "Training waits for busy cores";
      std::string takers;
      const auto taker = [&](double percent, const std::string& who) {
        if (percent < 10) return;
        takers += fmt::format("{}{} {}", takers.empty() ? "" : ", ", who, Cores(percent));
      };
      taker(sum.workers, fmt::format("{} loader {}", sum.worker_count,
                                     sum.worker_count == 1 ? "worker takes" : "workers take"));
      taker(sum.trainers, "other ranks take");
      taker(sum.helpers, "other processes of this run take");
      taker(outside, limited ? "other programs of the group take" : "other programs take");
      std::string waits;
      if (lack > 0) waits = fmt::format("waits for a core in {:.0f} % of its time", 100 * lack);
      if (data_wait > 0) {
        waits += fmt::format("{}waits for {} in {:.0f} %", waits.empty() ? "" : " and ",
                             sum.worker_count > 0 ? "batches" : "a core while it makes batches",
                             100 * data_wait);
        if (core_wait > 0 && sum.worker_count > 0) {
          waits += fmt::format(
              ", since the workers wait for a core in {:.0f} % of the time that a batch takes",
              100 * core_wait / data_wait);
        }
      }
      incident.cause = fmt::format("{}: {}; the training gets {} and {}.", Full(sum, limited),
                                   takers, Cores(sum.own), waits);
      incident.advice = AdviseCores(sum, outside, limited, limit, ranks, loaders);
    } else {
      incident.message = "Training waits for busy workers";
      incident.cause = fmt::format(
          "{} loader {} busy for {:.0f} % of a core each, and the training waits for batches in "
          "{:.0f} % of its time, while {} of {} cores are free.",
          sum.worker_count, sum.worker_count == 1 ? "worker is" : "workers are",
          sum.workers / std::max(1, sum.worker_count), 100 * data_wait,
          Figure(std::max(
              0.0, std::min(sum.allowed - sum.group / 100, (100 - sum.busy) / 100 * sum.cores))),
          Figure(sum.allowed));
      const int now = sum.worker_count / std::max(1, ranks);
      const int more = std::min(loaders, 2 * now);
      incident.advice =
          more > now
              ? fmt::format("Set num_workers={} in the DataLoader{}.", more, OfEach(ranks))
              : std::string("Make a batch cheaper: vectorise the transform, or prepare it once.");
    }
    incident.confidence = std::min(0.95, 0.6 + 0.02 * static_cast<double>(process->bottlenecks) +
                                             (process->normal_steps >= kMinNormalSteps ? 0.1 : 0));

    nlohmann::ordered_json evidence;
    evidence["samples"] = process->window.size();
    evidence["bottlenecks"] = process->bottlenecks;
    evidence["share"] = Rounded(share);
    evidence["cores"] = sum.cores;
    evidence["cores_busy"] = Rounded(sum.busy);
    if (sum.allowed < sum.cores) evidence["cores_allowed"] = Rounded(sum.allowed);
    if (sum.limit > 0) {
      evidence["group_limit"] = Rounded(sum.limit);
      evidence["group_cpu"] = Rounded(sum.group);
      evidence["group_throttled"] = Rounded(sum.throttled);
      evidence["group_throttled_periods"] = Rounded(sum.held_back);
    }
    evidence["training_cpu"] = Rounded(sum.own);
    evidence["workers"] = sum.worker_count;
    evidence["workers_cpu"] = Rounded(sum.workers);
    evidence["other_ranks_cpu"] = Rounded(sum.trainers);
    evidence["other_processes_cpu"] = Rounded(sum.helpers);
    evidence["other_programs_cpu"] = Rounded(outside);
    evidence["waits"] = Rounded(lack + data_wait);
    evidence["waits_for_core"] = Rounded(lack);
    evidence["waits_for_data"] = Rounded(data_wait);
    if (core_wait > 0) evidence["batches_wait_for_core"] = Rounded(core_wait);
    evidence[kExplainsSeconds] = Rounded(incident.cost_seconds);
    if (process->normal_steps >= kMinNormalSteps) {
      evidence["normal_compute_ms"] =
          Rounded(process->normal_compute_ns / process->normal_steps / 1e6);
    }
    if (process->open_steps > 0) {
      evidence["compute_ms"] = Rounded(process->open_compute_ns / process->open_steps / 1e6);
    }
    incident.evidence = JsonText(evidence);
  }

  /// Which cores have no room.
  static std::string Full(const Interval& mean, bool limited) {
    if (!limited) return fmt::format("{} cores are {:.0f} % busy", mean.cores, mean.busy);
    if (mean.limit <= 0 || mean.limit > mean.allowed) {
      return fmt::format("The run may use {} of {} cores and takes {}", Figure(mean.allowed),
                         mean.cores, Figure(mean.group / 100));
    }
    return fmt::format("The control group may use {} of {} cores, takes {}{}", Figure(mean.limit),
                       mean.cores, Figure(mean.group / 100),
                       mean.held_back >= 1
                           ? fmt::format(" and is held back in {:.0f} % of the scheduler's periods",
                                         mean.held_back)
                           : std::string());
  }

  static std::string_view OfEach(int ranks) { return ranks > 1 ? " of each rank" : ""; }

  /// `limit`: whole cores that the run may use; `loaders`: workers that each rank may have.
  static std::string AdviseCores(const Interval& mean, double outside, bool limited, int limit,
                                 int ranks, int loaders) {
    const std::string more = !limited ? std::string("use a machine with more cores")
                             : mean.limit > 0 && mean.limit <= mean.allowed
                                 ? fmt::format(
                                       "raise the limit of {} cores (docker --cpus, "
                                       "resources.limits.cpu, cpu.max)",
                                       Figure(mean.limit))
                                 : std::string("let the run use more cores (taskset, cpuset)");
    const double most = std::max({mean.workers, mean.trainers, mean.helpers, outside});
    if (mean.workers >= most) {
      if (mean.worker_count > 0 && mean.workers / mean.worker_count > 130) {
        return "Let each worker use one thread: torch.set_num_threads(1) and cv2.setNumThreads(0) "
               "in worker_init_fn.";
      }
      // Fewer workers than the cores that they take would make fewer batches.
      const int all = loaders * std::max(1, ranks);
      if (mean.worker_count > all && all >= kAsMany * mean.workers / 100) {
        return fmt::format(
            "Set num_workers={} in the DataLoader{}: so many make as many batches on these cores, "
            "and get less in the way of the training. Make a batch cheaper: prepare it once, "
            "before training{}.",
            loaders, OfEach(ranks), limited ? "; or " + more : std::string());
      }
      return fmt::format(
          "Make a batch cheaper (prepare it once, before training, vectorise the transform), or "
          "{}.",
          more);
    }
    if (mean.trainers >= most) {
      return fmt::format(
          "Give each rank fewer threads (OMP_NUM_THREADS), so that all ranks together have {}, or "
          "{}.",
          limit, more);
    }
    if (mean.helpers >= most) {
      return fmt::format(
          "Run the other processes of this run before or after the training loop, fewer of them, "
          "or with os.nice(19){}.",
          limited ? "; or " + more : std::string());
    }
    if (limited) {
      return "Look at what else runs in the control group (container, pod): stop it, or " + more +
             ".";
    }
    return "Look with top at what else runs on this machine: stop it, or give the training cores "
           "of its own (taskset).";
  }

  const double threshold_;
  const double cpu_threshold_;
  const double gpu_threshold_;
  const std::size_t patience_;
  const std::int64_t window_ns_;
  const double medium_;
  const double high_;

  ProcessTable<Process> processes_;
  std::map<std::uint32_t, Node> nodes_;  ///< By writer.
  bool cuda_ = false;
  bool gpu_seen_ = false;
  // Of all processes, over the whole run, for the report.
  std::int64_t samples_ = 0, bottlenecks_ = 0, gpu_low_ = 0, gpu_samples_ = 0;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kCPUBottleneckDesc{
    .name = "CPUBottleneck",
    .summary =
        "The training thread waits while cores or workers are saturated, and no GPU is busy.",
    .formula =
        "For each time between two samples that TRAIN steps cover by half, the first three of an "
        "attempt apart: cores are saturated where their mean is busy by cpu_threshold, or where "
        "the run takes cpu_threshold of the cores that it may use (those of the machine, of its "
        "affinity, of the limit of its control group, whichever are fewest) or its control group "
        "that share of its limit, or where the limit held the group back in half of the "
        "scheduler's periods; workers where each takes cpu_threshold of a core. lack = share of "
        "forward, backward and optimizer − cores that the training process got, where cores are "
        "saturated and others take at least a quarter of one (where only the limit is reached: "
        "others in its group); where cores had room for 20 steps before, at least 1 − (work of a "
        "step then / now, × its CPU time now / then where that grew). wait = lack + share of data "
        "wait, where workers make the batches, and where the training process makes them itself "
        "and cores are saturated, of the share in which it was ready to run and had no core, as "
        "the adapter measures it of fetches. A sample is a bottleneck where wait ≥ medium_share "
        "and, where the training uses a GPU, the least busy of those that were ever used is below "
        "gpu_threshold, whose busy share is taken off lack. With patience samples in "
        "window_seconds (longer where they are so far apart), more than threshold of them "
        "bottlenecks: medium where the mean wait is at least medium_share, high from high_share. "
        "Over "
        "below half of "
        "threshold, and where its process ends. A training that fills the cores itself, or that "
        "loads in its own process, is no bottleneck; where a GPU is used and its load is not "
        "recorded nothing is said. Cost = Σ (lack + the data wait's share in which what makes the "
        "batch has no core) × time; other waits for data are InputBound's. Of the two the one that "
        "explains more of the lost time stands first.",
    .how_to_fix =
        "Give the training a core: fewer loader workers than cores, one thread in each worker, "
        "other processes of the run at another time or niced, other programs elsewhere. Prepare "
        "batches once, before training.",
    .table_mask = store::MaskOf(format::TableId::kMetrics) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kProfiler,
    .by_default = true,
    .example = "Two helper processes a core compress files while the training runs.",
    .standing = {.theme = Theme::kInput, .order = 5},
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSamples, Datum::kSteps),
};

std::unique_ptr<Rule> MakeCPUBottleneck(const Parameters& parameters) {
  return std::make_unique<CPUBottleneck>(parameters);
}

}  // namespace telltale::rules::cpu_bottleneck
