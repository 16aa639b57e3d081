// SPDX-License-Identifier: Apache-2.0
// CPUBottleneck: without a GPU, the training thread waits while cores or workers are saturated.
//
// SageMaker Debugger's rule of this name fires on one hot core among many and proves no wait. Here
// each interval between two samples counts only where both are seen: no core (or no worker) has
// room, and the training thread got less of a core than its phases asked for, or waited for
// batches. A training that saturates the cores itself has no bottleneck but its own work.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold", 50, "%", "Share of the samples of a window that must be bottlenecks."},
    {"cpu_threshold", 90, "%", "Cores (their mean) or workers busier than this are saturated."},
    {"patience", 8, "samples", "Samples in the window before anything is said."},
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
constexpr double kMinNormalSteps = 20;
constexpr std::int64_t kDescribeIntervalNs = 1'000'000'000;

class CPUBottleneck final : public Rule {
 public:
  explicit CPUBottleneck(const Parameters& p)
      : threshold_(p.Get("threshold") / 100),
        cpu_threshold_(p.Get("cpu_threshold")),
        patience_(static_cast<std::size_t>(std::max<std::int64_t>(1, p.GetInt("patience")))),
        window_ns_(static_cast<std::int64_t>(std::max(0.0, p.Get("window_seconds")) * kNs)),
        medium_(p.Get("medium_share") / 100),
        high_(p.Get("high_share") / 100) {}

  void OnRecord(const store::OrderedRecord& record, Reporter* reporter) override {
    if (const auto* metric = record.As<format::MetricRow>()) {
      OnMetric(*metric);
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) {
      if (process.open) Close(&process, reporter);
    }
  }

  bool has_data() const override { return has_data_; }

 private:
  /// What one sample of a node says; percent of a core.
  struct Tick {
    std::int64_t time_ns = 0;
    double idle = 0;  ///< Percent of all cores, waits for a disk included.
    bool has_idle = false;
    double tree = 0;
    std::set<std::string, std::less<>> cores;
    std::map<std::int32_t, double> cpu;  ///< By pid.
  };

  struct Interval {
    std::int64_t from_ns, to_ns;
    double busy;     ///< Percent of all cores.
    double own;      ///< The training process, percent of a core; so are the next four.
    double workers;  ///< Of data loaders.
    double helpers;  ///< Other processes of the run.
    double outside;  ///< Other programs.
    double tree;
    int worker_count;
    int cores;
  };

  struct Judged {
    Interval at;
    std::int64_t first_step, last_step;
    double lack;       ///< Share of its time for which the training thread had no core.
    double data_wait;  ///< Share of its time, where workers make the batches.
    bool bottleneck;
    bool cores_full;
    double wait() const { return lack + data_wait; }
  };

  struct Step {
    std::int64_t step, start_ns, end_ns;
    double data_wait, compute;  ///< Shares of its duration.
  };

  struct Process {
    std::int32_t rank = 0;
    std::int32_t pid = 0;
    std::uint32_t attempt = 0;
    std::int64_t last_step = -1;
    std::deque<Interval> queued;  ///< Later than the newest step.
    std::deque<Step> steps;       ///< That intervals yet to come may touch.
    std::deque<Judged> window;
    // Where cores had room: what a step's work takes.
    double normal_compute_ns = 0;
    double normal_steps = 0;

    bool open = false;
    Incident incident;
    std::int64_t described_ns = 0;
    double cost_ns = 0;
    double open_compute_ns = 0;
    double open_steps = 0;
    std::int64_t bottlenecks = 0;
  };

  void OnEvent(const format::EventRow& event) {
    if (event.kind == "worker.start") {
      workers_.insert(event.pid);
      return;
    }
    if (event.kind != "framework") return;
    const auto data = nlohmann::json::parse(event.data, nullptr, false);
    if (!data.is_object()) return;
    if (const auto cpus = data.find("cpus"); cpus != data.end() && cpus->is_number_integer()) {
      cpus_ = std::clamp(cpus->get<int>(), 0, 65536);
    }
    if (const auto cuda = data.find("cuda_available"); cuda != data.end() && cuda->is_boolean()) {
      cuda_ = cuda->get<bool>();
    }
  }

  void OnMetric(const format::MetricRow& row) {
    const bool cpu = row.name == "cpu.idle" || row.name == "cpu.iowait";
    if ((!cpu && row.name != "proc.cpu") || !std::isfinite(row.value)) return;
    Tick& tick = ticks_[std::string(row.node)];
    if (row.time_ns != tick.time_ns) {
      FinishTick(tick, &last_tick_ns_[std::string(row.node)]);
      const std::set<std::string, std::less<>> cores = std::move(tick.cores);
      tick = Tick();
      tick.time_ns = row.time_ns;
      tick.cores = cores;
    }
    if (cpu) {
      if (row.subject == "node") {
        tick.idle += row.value;
        tick.has_idle = tick.has_idle || row.name == "cpu.idle";
      } else if (row.subject.starts_with("cpu:") && !tick.cores.contains(row.subject)) {
        tick.cores.emplace(row.subject);
      }
    } else if (row.subject == "proc:tree") {
      tick.tree = row.value;
    } else if (row.pid != 0) {
      tick.cpu[row.pid] = row.value;
    }
  }

  /// All values of one sample are there. Rates are over the time since the sample before; after a
  /// gap they would speak of a time that nobody saw.
  void FinishTick(const Tick& tick, std::int64_t* last_ns) {
    if (!tick.has_idle || tick.cores.empty()) return;
    const std::int64_t before = std::exchange(*last_ns, tick.time_ns);
    const std::int64_t width = tick.time_ns - before;
    if (before == 0 || width <= 0) return;
    narrowest_ns_ = narrowest_ns_ == 0 ? width : std::min(narrowest_ns_, width);
    if (width > 4 * narrowest_ns_ + 1'000'000'000) return;
    const int cores = static_cast<int>(tick.cores.size());
    const double busy = std::clamp(100 - tick.idle, 0.0, 100.0);
    double workers = 0;
    int worker_count = 0;
    for (const auto& [pid, value] : tick.cpu) {
      if (!workers_.contains(pid)) continue;
      workers += value;
      ++worker_count;
    }
    for (auto& [key, process] : processes_) {
      const auto own = tick.cpu.find(process.pid);
      if (own == tick.cpu.end()) continue;
      process.queued.push_back({before, tick.time_ns, busy, own->second, workers,
                                std::max(0.0, tick.tree - own->second - workers),
                                std::max(0.0, busy * cores - tick.tree), tick.tree, worker_count,
                                cores});
      if (process.queued.size() > kQueued) process.queued.pop_front();
    }
  }

  Process* Find(const format::StepRow& step, Reporter* reporter) {
    const auto known = processes_.find({step.rank, step.pid});
    if (known != processes_.end() && known->second.attempt == step.attempt) return &known->second;
    // A restart: what was before says nothing about now.
    for (auto at = processes_.begin(); at != processes_.end();) {
      if (at->first.first != step.rank || at->second.attempt == step.attempt) {
        ++at;
        continue;
      }
      if (at->second.open) Close(&at->second, reporter);
      at = processes_.erase(at);
    }
    Process& process = processes_[{step.rank, step.pid}];
    process.rank = step.rank;
    process.pid = step.pid;
    process.attempt = step.attempt;
    return &process;
  }

  void OnStep(const format::StepRow& row, Reporter* reporter) {
    if (row.duration_ns <= 0 || cuda_) return;  // With a GPU its load would have to be known.
    Process* process = Find(row, reporter);
    if (row.step <= process->last_step) return;  // Seen already.
    process->last_step = row.step;
    const auto duration = static_cast<double>(row.duration_ns);
    const std::int64_t end_ns = row.time_ns + row.duration_ns;
    process->steps.push_back(
        {row.step, row.time_ns, end_ns, static_cast<double>(row.data_wait_ns) / duration,
         static_cast<double>(row.forward_ns + row.backward_ns + row.optimizer_ns) / duration});
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

  void JudgeInterval(Process* process, const Interval& at, Reporter* reporter) {
    double covered = 0;
    double waited = 0;
    double compute = 0;
    double steps = 0;
    Judged judged{at, -1, -1, 0, 0, false, false};
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
    const int allowed = cpus_ > 0 ? std::min(cpus_, at.cores) : at.cores;
    judged.cores_full = at.busy >= cpu_threshold_ || at.tree >= cpu_threshold_ * allowed;
    const bool workers_full = at.worker_count > 0 && at.workers >= cpu_threshold_ * at.worker_count;
    const double others = at.workers + at.helpers + at.outside;
    const double compute_share = compute / covered;
    if (judged.cores_full && others >= kLeastOthers) {
      // A thread that computes wants a core for all of that time.
      judged.lack = compute_share - at.own / 100;
      if (process->normal_steps >= kMinNormalSteps && steps > 0 && compute > 0) {
        // Where it has several threads, a step's work says it: more time than with free cores.
        const double normal = process->normal_compute_ns / process->normal_steps;
        judged.lack = std::max(judged.lack, compute_share * (1 - normal * steps / compute));
      }
      if (judged.lack < kLeastWait) judged.lack = 0;
    } else if (!judged.cores_full) {
      process->normal_compute_ns += compute;
      process->normal_steps += steps;
    }
    if ((judged.cores_full || workers_full) && at.worker_count > 0) {
      judged.data_wait = waited / covered;
    }
    judged.bottleneck = judged.wait() >= medium_;
    process->window.push_back(judged);
    while (process->window.front().at.to_ns < at.to_ns - window_ns_) process->window.pop_front();
    if (process->open) Count(process, judged, compute, steps);
    Judge(process, reporter);
  }

  static void Count(Process* process, const Judged& judged, double compute, double steps) {
    if (!judged.bottleneck) return;
    ++process->bottlenecks;
    process->cost_ns += judged.lack * static_cast<double>(judged.at.to_ns - judged.at.from_ns);
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
      process->open = true;
      process->described_ns = 0;
      process->bottlenecks = 0;
      process->cost_ns = process->open_compute_ns = process->open_steps = 0;
      process->incident = Incident();
      process->incident.subject = SubjectOfProcess(process->rank, process->pid, Alone(*process));
      process->incident.first_step = first->first_step;
      process->incident.start_ns = first->at.from_ns;
      for (auto j = first; j != process->window.end(); ++j) Count(process, *j, 0, 0);
    }
    double wait = 0;
    double own_run = 0;
    double outside = 0;
    for (const Judged& j : process->window) {
      if (!j.bottleneck) continue;
      wait += j.wait();
      own_run += j.at.workers + j.at.helpers;
      outside += j.cores_full ? j.at.outside : 0;
    }
    wait /= static_cast<double>(process->window.size());
    // What other programs take is no defect of this run, and nothing in it can be changed.
    const Severity now_severity = outside > own_run ? Severity::kLow
                                  : wait >= high_   ? Severity::kHigh
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

  bool Alone(const Process& process) const {
    return std::count_if(processes_.begin(), processes_.end(),
                         [&](const auto& entry) { return entry.first.first == process.rank; }) == 1;
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
    Judged sum{};
    double wait = 0;
    double count = 0;
    double full = 0;
    double width = 0;
    for (const Judged& j : process->window) {
      if (!j.bottleneck) continue;
      ++count;
      full += j.cores_full ? 1 : 0;
      width += static_cast<double>(j.at.to_ns - j.at.from_ns);
      sum.at.busy += j.at.busy;
      sum.at.own += j.at.own;
      sum.at.workers += j.at.workers;
      sum.at.helpers += j.at.helpers;
      sum.at.outside += j.at.outside;
      sum.lack += j.lack;
      sum.data_wait += j.data_wait;
      wait += j.wait();
      sum.at.worker_count = std::max(sum.at.worker_count, j.at.worker_count);
      sum.at.cores = j.at.cores;
      incident.last_step = j.last_step;
      incident.end_ns = j.at.to_ns;
    }
    count = std::max(1.0, count);
    const double busy = sum.at.busy / count;
    const double own = sum.at.own / count;
    const double workers = sum.at.workers / count;
    const double helpers = sum.at.helpers / count;
    const double outside = sum.at.outside / count;
    const double lack = sum.lack / count;
    const double data_wait = sum.data_wait / count;
    const bool cores_full = full * 2 > count;
    incident.cost_seconds = process->cost_ns / kNs;
    const int limit = cpus_ > 0 ? std::min(cpus_, sum.at.cores) : sum.at.cores;

    if (cores_full) {
      incident.message = "Training waits for busy cores";
      std::string takers;
      const auto taker = [&](double percent, const std::string& who) {
        if (percent < 10) return;
        takers += fmt::format("{}{} {}", takers.empty() ? "" : ", ", who, Cores(percent));
      };
      taker(workers, fmt::format("{} loader {}", sum.at.worker_count,
                                 sum.at.worker_count == 1 ? "worker takes" : "workers take"));
      taker(helpers, "other processes of this run take");
      taker(outside, "other programs take");
      std::string waits;
      if (lack > 0) waits = fmt::format("waits for a core in {:.0f} % of its time", 100 * lack);
      if (data_wait > 0) {
        waits += fmt::format("{}waits for batches in {:.0f} %", waits.empty() ? "" : " and ",
                             100 * data_wait);
      }
      incident.cause = fmt::format("{} cores are {:.0f} % busy: {}; the training gets {} and {}.",
                                   sum.at.cores, busy, takers, Cores(own), waits);
      if (workers >= helpers && workers >= outside) {
        if (sum.at.worker_count > 0 && workers / sum.at.worker_count > 130) {
          incident.advice =
              "Let each worker use one thread: torch.set_num_threads(1) and cv2.setNumThreads(0) "
              "in "
              "worker_init_fn.";
        } else if (sum.at.worker_count > std::max(1, limit - 1)) {
          incident.advice = fmt::format(
              "Set num_workers={} in the DataLoader, so that the training keeps a core, and make "
              "a batch cheaper: prepare it once, before training.",
              std::max(1, limit - 1));
        } else {
          incident.advice =
              "Make a batch cheaper (prepare it once, before training, vectorise the transform), "
              "or "
              "use a machine with more cores.";
        }
      } else if (helpers >= outside) {
        incident.advice =
            "Run the other processes of this run before or after the training loop, fewer of them, "
            "or with os.nice(19).";
      } else {
        incident.advice =
            "Look with top at what else runs on this machine: stop it, or give the training cores "
            "of its own (taskset).";
      }
    } else {
      incident.message = "Training waits for busy workers";
      incident.cause = fmt::format(
          "{} loader {} busy for {:.0f} % of a core each, and the training waits for batches in "
          "{:.0f} % of its time, while {} of {} cores are free.",
          sum.at.worker_count, sum.at.worker_count == 1 ? "worker is" : "workers are",
          workers / std::max(1, sum.at.worker_count), 100 * data_wait,
          Figure((100 - busy) / 100 * sum.at.cores), sum.at.cores);
      const int more = std::min(std::max(1, limit - 1), 2 * sum.at.worker_count);
      incident.advice =
          more > sum.at.worker_count
              ? fmt::format("Set num_workers={} in the DataLoader.", more)
              : std::string("Make a batch cheaper: vectorise the transform, or prepare it once.");
    }
    incident.confidence = std::min(0.95, 0.6 + 0.02 * static_cast<double>(process->bottlenecks) +
                                             (process->normal_steps >= kMinNormalSteps ? 0.1 : 0));

    nlohmann::ordered_json evidence;
    evidence["samples"] = process->window.size();
    evidence["bottlenecks"] = process->bottlenecks;
    evidence["share"] = Rounded(share);
    evidence["cores"] = sum.at.cores;
    evidence["cores_busy"] = Rounded(busy);
    evidence["training_cpu"] = Rounded(own);
    evidence["workers"] = sum.at.worker_count;
    evidence["workers_cpu"] = Rounded(workers);
    evidence["other_processes_cpu"] = Rounded(helpers);
    evidence["other_programs_cpu"] = Rounded(outside);
    evidence["waits"] = Rounded(wait / count);
    evidence["waits_for_core"] = Rounded(lack);
    evidence["waits_for_data"] = Rounded(data_wait);
    if (process->normal_steps >= kMinNormalSteps) {
      evidence["normal_compute_ms"] =
          Rounded(process->normal_compute_ns / process->normal_steps / 1e6);
    }
    if (process->open_steps > 0) {
      evidence["compute_ms"] = Rounded(process->open_compute_ns / process->open_steps / 1e6);
    }
    incident.evidence = evidence.dump();
  }

  const double threshold_;
  const double cpu_threshold_;
  const std::size_t patience_;
  const std::int64_t window_ns_;
  const double medium_;
  const double high_;

  std::map<std::pair<std::int32_t, std::int32_t>, Process> processes_;  ///< By (rank, pid).
  std::map<std::string, Tick> ticks_;                                   ///< By node.
  std::set<std::int32_t> workers_;
  std::map<std::string, std::int64_t> last_tick_ns_;  ///< By node.
  std::int64_t narrowest_ns_ = 0;
  int cpus_ = 0;  ///< That the training may run on, where the framework says so.
  bool cuda_ = false;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kCPUBottleneckDesc{
    "CPUBottleneck",
    "Without a GPU: the training thread waits while cores or workers are saturated.",
    "For each time between two samples that TRAIN steps cover by half: cores are saturated where "
    "their mean is busy by cpu_threshold, or where the run's processes take cpu_threshold of the "
    "cores they may use; workers where each takes cpu_threshold of a core. lack = share of "
    "forward, backward and optimizer − cores that the training process got, where cores are "
    "saturated and others take at least a quarter of one; where cores had room for 20 steps "
    "before, at least 1 − (work of a step then / now). wait = lack + share of data wait, where "
    "workers make the batches. A sample is a bottleneck where wait ≥ medium_share. With patience "
    "samples in window_seconds, more than threshold of them bottlenecks: medium where the mean "
    "wait is at least medium_share, high from high_share; low where other programs take more than"
    " the rest of the run does. Over below half of threshold. A training that fills the cores "
    "itself, or that loads in its own process, is no bottleneck; with a GPU nothing is said. Cost"
    " = Σ lack × time; the waits for data are InputBound's.",
    "Give the training a core: fewer loader workers than cores, one thread in each worker, other "
    "processes of the run at another time or niced, other programs elsewhere. Prepare batches "
    "once, before training.",
    store::MaskOf(format::TableId::kMetrics) | store::MaskOf(format::TableId::kSteps) |
        store::MaskOf(format::TableId::kEvents),
    false,
    kParameters};

std::unique_ptr<Rule> MakeCPUBottleneck(const Parameters& parameters) {
  return std::make_unique<CPUBottleneck>(parameters);
}

}  // namespace telltale::rules
