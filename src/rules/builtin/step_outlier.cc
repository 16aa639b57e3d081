// SPDX-License-Identifier: Apache-2.0
// StepOutlier: single steps take far longer than the others, and what is different in them.
//
// SageMaker Debugger's rule of this name compares with a mean and a deviation that hold the
// outliers themselves, so many outliers hide each other. Here the measure is the median of the
// newest steps; a level that stays is no outlier; and each outlier is laid beside the normal
// windows around it: phases, spans, batch, cores, disks, network.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/builtin/processes.h"
#include "rules/builtin/single_steps.h"
#include "rules/builtin/thread_waits.h"
#include "rules/registry.h"

namespace telltale::rules::step_outlier {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"stddev", 5, "σ", "Deviations above the median from which a step is an outlier.", nullptr, 3},
    {"ratio", 2, "", "It must take this many times the median, too."},
    {"n_outliers", 10, "steps", "Fewer outliers than this in window_steps say nothing."},
    {"normal_steps", 200, "steps", "Newest steps, of which median and deviation are taken."},
    {"window_steps", 2000, "steps", "Steps over which outliers are counted."},
    {"low_share", 1, "%", "Share of the window's time that outliers lose, below it nothing."},
    {"medium_share", 5, "%", "Share from which the finding is medium."},
    {"high_share", 20, "%", "Share from which it is high."},
    {"pause_seconds", 10, "s",
     "A single step is enough where it takes this much longer than the median, and 100 times as "
     "long."},
    {"mode", 0, "", "Mode of the steps that are judged: TRAIN, EVAL or PREDICT.", "TRAIN"},
};

constexpr std::int64_t kWarmupSteps = 3;
/// Without a fixed distance it may be the machine: pauses then need so many times the shares, and
/// of all of the run so far.
constexpr double kWithoutDistance = 2.5;
/// A pause takes so many times the median step.
constexpr double kPauseRatio = 100;
/// A span that lies in this share of the outliers, and in less than that of the other steps, is
/// what they do and others don't, however short it is itself. Short ones are not recorded each
/// time.
constexpr std::size_t kRareSpans = 4;
constexpr double kInOutliers = 0.3;
constexpr double kInNormal = 0.005;
constexpr std::size_t kMinNormal = 50;
/// So many outliers in a row are a new level of step time.
constexpr std::int64_t kNewLevel = 10;
constexpr std::int64_t kRefreshSteps = 10;
constexpr std::size_t kMaxNames = 64;
constexpr std::size_t kIntervalsKept = 256;
constexpr std::size_t kSamplesKept = 4096;
constexpr std::int64_t kDescribeIntervalNs = 1'000'000'000;
/// Above this many outliers whose cause is the wait for data, they are a pattern: InputBound's.
constexpr double kMaxWaitingFraction = 0.1;

constexpr std::size_t kPhaseCount = 6;
constexpr std::array<std::string_view, kPhaseCount> kPhaseNames = {
    "data wait", "comm wait", "forward", "backward", "optimizer", "other"};
enum Phase : std::uint8_t { kDataWait, kCommWait, kForward, kBackward, kOptimizer, kOther };

/// Sums in outlier steps and in normal ones.
struct Sides {
  double outlier = 0;
  double normal = 0;
  std::int64_t outliers = 0;
  std::int64_t normals = 0;
  double MeanOutlier() const { return outliers > 0 ? outlier / static_cast<double>(outliers) : 0; }
  double MeanNormal() const { return normals > 0 ? normal / static_cast<double>(normals) : 0; }
};

/// Metrics that are compared, and the least difference worth saying.
struct Compared {
  std::string_view name, words, unit;
  double scale;
  double least;  ///< In units of the metric.
};
constexpr Compared kCompared[] = {
    {"cpu.idle", "cores busy", "%", 1, 20},
    {"cpu.iowait", "cores waiting for a disk", "%", 1, 10},
    {"disk.read_bytes_rate", "disk reads", "MB/s", 1e-6, 2e6},
    {"disk.write_bytes_rate", "disk writes", "MB/s", 1e-6, 2e6},
    {"net.recv_bytes_rate", "network received", "MB/s", 1e-6, 2e6},
    {"proc.write_bytes_rate", "training writes", "MB/s", 1e-6, 2e6},
    {"proc.read_bytes_rate", "training reads", "MB/s", 1e-6, 2e6},
};

class StepOutlier final : public Rule {
 public:
  explicit StepOutlier(const Parameters& p)
      : stddev_(p.Get("stddev")),
        ratio_(p.Get("ratio")),
        n_outliers_(static_cast<std::size_t>(std::max<std::int64_t>(1, p.GetInt("n_outliers")))),
        normal_steps_(
            static_cast<std::size_t>(std::max<std::int64_t>(kMinNormal, p.GetInt("normal_steps")))),
        window_steps_(static_cast<std::size_t>(
            std::clamp<std::int64_t>(p.GetInt("window_steps"), 100, 100'000))),
        low_(p.Get("low_share") / 100),
        medium_(p.Get("medium_share") / 100),
        high_(p.Get("high_share") / 100),
        pause_ns_(p.Get("pause_seconds") * 1e9),
        mode_(ModeOf(p.Text("mode"))) {}

  bool Wants(const Series& series) override {
    // Spans of modules are there of some steps only, and late.
    if (series.table != format::TableId::kMetrics) {
      return series.collection != "phase" && series.collection != "module";
    }
    return !series.collection.starts_with("cpu:") &&
           std::any_of(std::begin(kCompared), std::end(kCompared),
                       [&](const Compared& compared) { return compared.name == series.name; });
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (begin_ns_ == 0 && record.ord_ns > 0) begin_ns_ = record.ord_ns;
    if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == mode_) OnStep(*step, reporter);
    } else if (const auto* span = record.As<format::SpanRow>()) {
      OnSpan(*span);
    } else if (const auto* metric = record.As<format::MetricRow>()) {
      OnMetric(*metric);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { End(process, reporter); });
      } else if (event->kind == "process.stacks") {
        OnStacks(*event);
      } else if (event->kind == "worker.start") {
        worker_starts_[writer_] = std::max(worker_starts_[writer_], event->time_ns);
      } else if (event->kind == "boosting.start") {
        OnNextTraining(*event);
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  /// SageMaker Debugger's words for it are ModeKeys.EVAL, and None for what was not said.
  static std::string ModeOf(std::string_view text) {
    if (text.starts_with("ModeKeys.")) text.remove_prefix(9);
    return text.empty() || text == "None" ? "TRAIN" : std::string(text);
  }

  using Phases = std::array<double, kPhaseCount>;

  struct Step {
    std::int64_t step;
    double duration_ns;
    Phases phases;
    double batch;
  };

  struct WindowStep {
    double ns, wait_ns;
    bool judged;  ///< Enough were known before it.
  };

  struct Outlier {
    std::int64_t step;
    std::int64_t index;  ///< Of the step in its process.
    std::int64_t start_ns;
    double duration_ns;
    double excess_ns;
    Phases excess;
    double batch;
    double normal_batch;
    std::vector<std::pair<std::string, double>> rare_spans;  ///< That few other steps have, in ns.
    std::string waits;    ///< For what the main thread waited in it, where the agent looked.
    bool starts_workers;  ///< Workers of a loader began in it.
  };

  struct Process : TrainingProcess {
    std::int64_t last_ns = 0;
    std::int64_t seen = 0;

    std::deque<Step> normal;  ///< The newest steps, outliers too: the median does not mind.
    SortedValues durations;   ///< Theirs.
    double median = 0;
    double deviation = 0;
    std::int64_t refreshed = 0;
    std::deque<WindowStep> window;
    std::int64_t judged = 0;  ///< Of the window's steps.
    double window_ns = 0;
    double window_wait_ns = 0;
    std::deque<Outlier> outliers;  ///< In the window.
    std::int64_t in_row = 0;

    std::map<std::string, double, std::less<>> open_spans;  ///< Of the step that runs now.
    std::map<std::string, Sides, std::less<>> spans;        ///< ns in a step, by name.
    std::int64_t normals = 0;
    std::int64_t outlier_steps = 0;

    std::int64_t warming = 0;  ///< First steps of a further training that are still to come.
    bool unjudged = false;     ///< The newest step was not judged yet,
    bool outlier = false;      ///< and whether it is an outlier.

    std::int64_t looked_ns = 0;  ///< The agent's newest look at its threads,
    std::string stacks;          ///< and what it saw.

    std::int64_t described_ns = 0;
    std::int64_t opened_outliers = 0;
    double cost_ns = 0;
  };

  struct Pending {
    std::int64_t from_ns, to_ns;
    std::size_t metric;
    double value;
  };

  void OnSpan(const format::SpanRow& span) {
    if (span.duration_ns <= 0 || span.category == "phase") return;
    // It lies between TRAIN steps, which it does not lengthen.
    if (span.category == "runtime" && span.name == "evaluation") return;
    for (auto& [key, process] : processes_) {
      if (key != std::pair(span.rank, span.pid)) continue;
      auto found = process.open_spans.find(span.name);
      if (found == process.open_spans.end()) {
        if (process.open_spans.size() >= kMaxNames) return;
        found = process.open_spans.emplace(std::string(span.name), 0).first;
      }
      found->second += static_cast<double>(span.duration_ns);
    }
    if (span.category == "data" && data_spans_.size() < kMaxNames) {
      data_spans_.emplace(span.name);
    }
  }

  /// The newest step was the last of its training: what lies between two trainings is no part of
  /// its work.
  void OnNextTraining(const format::EventRow& event) {
    for (auto& [key, process] : processes_) {
      if (key != std::pair(event.rank, event.pid)) continue;
      process.warming = kWarmupSteps;
      if (process.outliers.empty() || process.outliers.back().index != process.seen) continue;
      DropNewest(&process);
      process.outlier = false;
    }
  }

  static void DropNewest(Process* process) {
    if (process->open) {
      process->cost_ns -= CostOf(process->outliers.back());
      --process->opened_outliers;
    }
    process->outliers.pop_back();
  }

  void OnStacks(const format::EventRow& event) {
    for (auto& [key, process] : processes_) {
      if (key != std::pair(event.rank, event.pid)) continue;
      process.looked_ns = event.time_ns;
      process.stacks = event.data;
    }
  }

  void OnMetric(const format::MetricRow& metric) {
    const bool node = metric.subject == "node";
    const bool tree = metric.subject == "proc:tree";
    if (metric.subject.starts_with("cpu:") || (metric.pid != 0 && !tree)) return;
    std::size_t index = 0;
    while (index < std::size(kCompared) && kCompared[index].name != metric.name) ++index;
    if (index == std::size(kCompared) || !std::isfinite(metric.value)) return;
    if (metric.name.starts_with("cpu.") && !node) return;
    if (metric.name.starts_with("proc.") && !tree) return;
    const double value = metric.name == "cpu.idle" ? 100 - metric.value : metric.value;
    SampleTimes& times = sampled_[std::string(metric.name) + "/" + std::string(metric.node) + "/" +
                                  std::string(metric.subject)];
    const auto from = times.Since(metric.time_ns);
    if (!from) return;
    samples_.push_back({*from, metric.time_ns, index, value});
    if (samples_.size() > kSamplesKept) samples_.pop_front();
  }

  /// Samples until `now`, the end of the newest step, lie beside outlier steps or normal ones.
  void Classify(std::int64_t now) {
    while (!samples_.empty() && samples_.front().to_ns <= now) {
      const Pending sample = samples_.front();
      samples_.pop_front();
      if (sample.from_ns < judged_from_ns_) continue;  // Steps were not judged yet.
      // Beside an outlier: half of the sample, or half of the outlier, lies in the other.
      bool touches = false;
      bool beside = false;
      for (const auto& [from, to] : intervals_) {
        const std::int64_t common = std::min(to, sample.to_ns) - std::max(from, sample.from_ns);
        touches = touches || common > 0;
        beside = beside || common * 2 >= std::min(to - from, sample.to_ns - sample.from_ns);
      }
      if (touches != beside) continue;
      Sides& sides = metrics_[sample.metric];
      (beside ? sides.outlier : sides.normal) += sample.value;
      ++(beside ? sides.outliers : sides.normals);
    }
  }

  void OnStep(const format::StepRow& row, Reporter* reporter) {
    if (row.duration_ns <= 0) return;
    Process* process =
        processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
    if (process == nullptr || !process->BeginStep(row.step)) return;
    JudgeNewest(process, reporter);
    process->last_ns = row.time_ns + row.duration_ns;
    const auto spans = std::exchange(process->open_spans, {});
    if (++process->seen <= kWarmupSteps) return;
    if (process->warming > 0) {
      --process->warming;
      return;
    }
    const auto ns = [](std::int64_t v) { return static_cast<double>(v); };
    const format::StepRow own = WithoutProbe(row);
    const Step step{row.step,
                    ns(own.duration_ns),
                    {ns(own.data_wait_ns), ns(own.comm_wait_ns), ns(own.forward_ns),
                     ns(own.backward_ns), ns(own.optimizer_ns), ns(own.other_ns)},
                    ns(row.batch_size)};

    const bool judged = process->normal.size() >= kMinNormal;
    process->window.push_back({step.duration_ns, step.phases[kDataWait], judged});
    process->judged += judged ? 1 : 0;
    process->window_ns += step.duration_ns;
    process->window_wait_ns += step.phases[kDataWait];
    if (process->window.size() > window_steps_) {
      process->window_ns -= process->window.front().ns;
      process->window_wait_ns -= process->window.front().wait_ns;
      process->judged -= process->window.front().judged ? 1 : 0;
      process->window.pop_front();
    }
    const auto window = static_cast<std::int64_t>(window_steps_);
    while (!process->outliers.empty() &&
           process->outliers.front().index + window <= process->seen) {
      process->outliers.pop_front();
    }

    bool outlier = false;
    if (judged) {
      has_data_ = true;
      if (judged_from_ns_ == 0) judged_from_ns_ = row.time_ns;
      if (process->seen >= process->refreshed + kRefreshSteps || process->refreshed == 0) {
        Refresh(process);
      }
      outlier = step.duration_ns > process->median + stddev_ * process->deviation &&
                step.duration_ns > ratio_ * process->median &&
                step.duration_ns >= process->median + kLeastLongerNs;
    }
    process->normal.push_back(step);
    process->durations.Insert(step.duration_ns);
    if (process->normal.size() > normal_steps_) {
      process->durations.Erase(process->normal.front().duration_ns);
      process->normal.pop_front();
    }
    process->in_row = outlier ? process->in_row + 1 : 0;
    for (const auto& [name, time] : spans) {
      if (process->spans.size() >= kMaxNames && !process->spans.contains(name)) continue;
      Sides& sides = process->spans[name];
      (outlier ? sides.outlier : sides.normal) += time;
      ++(outlier ? sides.outliers : sides.normals);
    }
    if (process->refreshed > 0) ++(outlier ? process->outlier_steps : process->normals);
    if (outlier) {
      AddOutlier(process, step, row, spans);
      intervals_.emplace_back(row.time_ns, process->last_ns);
      if (intervals_.size() > kIntervalsKept) intervals_.pop_front();
    }
    Classify(process->last_ns);
    if (process->in_row >= kNewLevel) {
      // Not outliers: the steps take longer from here on.
      for (std::int64_t i = 0; i < kNewLevel && !process->outliers.empty(); ++i) {
        DropNewest(process);
      }
      process->normal.clear();
      process->durations.Clear();
      process->refreshed = 0;
      process->in_row = 0;
      if (process->open) Close(process, reporter);
      return;
    }
    process->unjudged = true;
    process->outlier = outlier;
  }

  /// Once it is known what came after it.
  void JudgeNewest(Process* process, Reporter* reporter) {
    if (!std::exchange(process->unjudged, false)) return;
    Judge(process, process->outlier, reporter);
  }

  static double CostOf(const Outlier& outlier) {
    return std::max(0.0, outlier.excess_ns - std::max(0.0, outlier.excess[kDataWait]));
  }

  void Refresh(Process* process) {
    process->median = process->durations.Median();
    // A clock's grain is no deviation of zero.
    process->deviation = std::max(1.4826 * process->durations.MedianDistance(process->median),
                                  0.02 * process->median);
    process->refreshed = process->seen;
  }

  void AddOutlier(Process* process, const Step& step, const format::StepRow& row,
                  const std::map<std::string, double, std::less<>>& spans) {
    Outlier outlier{step.step,
                    process->seen,
                    row.time_ns,
                    step.duration_ns,
                    step.duration_ns - process->median,
                    {},
                    step.batch,
                    0,
                    {},
                    {},
                    false};
    const auto started = worker_starts_.find(writer_);
    outlier.starts_workers = started != worker_starts_.end() && started->second >= row.time_ns &&
                             started->second <= row.time_ns + row.duration_ns;
    for (const auto& [name, time] : spans) {
      const auto known = process->spans.find(name);
      if (known == process->spans.end() || outlier.rare_spans.size() == kRareSpans) continue;
      if (static_cast<double>(known->second.normals) >
          kInNormal * static_cast<double>(process->normals)) {
        continue;
      }
      outlier.rare_spans.emplace_back(name, time);
    }
    std::vector<double> values(process->normal.size());
    const auto median = [&](auto&& of) {
      std::transform(process->normal.begin(), process->normal.end(), values.begin(), of);
      return MedianOf(values);
    };
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      outlier.excess[i] = step.phases[i] - median([i](const Step& s) { return s.phases[i]; });
    }
    outlier.normal_batch = median([](const Step& s) { return s.batch; });
    if (process->looked_ns > row.time_ns && process->looked_ns < process->last_ns) {
      outlier.waits = MainThreadWaits(process->stacks, process->pid);
    }
    process->outliers.push_back(outlier);
    if (process->open) {
      ++process->opened_outliers;
      process->cost_ns += CostOf(outlier);
    }
  }

  void Judge(Process* process, bool outlier, Reporter* reporter) {
    double excess = 0;
    if (outlier || process->open) {
      for (const Outlier& o : process->outliers) excess += o.excess_ns;
    }
    const double share = process->window_ns > 0 ? excess / process->window_ns : 0;
    if (process->open) {
      // Over when none came for three times as long as between those before.
      const std::int64_t quiet =
          process->outliers.empty() ? INT64_MAX : process->seen - process->outliers.back().index;
      const std::int64_t usual =
          process->outliers.size() < 2
              ? 0
              : (process->outliers.back().index - process->outliers.front().index) /
                    static_cast<std::int64_t>(process->outliers.size() - 1);
      if (share < low_ / 2 || quiet > std::max<std::int64_t>(100, 3 * usual)) {
        Close(process, reporter);
        process->outliers.clear();
        return;
      }
    }
    if (!outlier || share < low_) return;
    const std::vector<const Outlier*> main = Main(*process);
    const bool pauses = ArePauses(*process, main);
    if (!pauses && process->outliers.size() < n_outliers_) return;
    if (!pauses && Widest(main) == kDataWait &&
        static_cast<double>(process->outliers.size()) >
            kMaxWaitingFraction * static_cast<double>(process->judged)) {
      return;
    }
    if (!process->open) {
      processes_.Open(process, process->outliers.front().step, process->outliers.front().start_ns);
      process->opened_outliers = static_cast<std::int64_t>(process->outliers.size());
      process->cost_ns = 0;
      for (const Outlier& o : process->outliers) process->cost_ns += CostOf(o);
      process->described_ns = 0;
    }
    const Severity severity =
        std::max(process->incident.severity, SeverityOf(*process, main, pauses, share));
    if (severity == process->incident.severity &&
        process->last_ns < process->described_ns + kDescribeIntervalNs) {
      return;
    }
    process->incident.severity = severity;
    process->described_ns = process->last_ns;
    Describe(process, main, share);
    reporter->Report(process->incident);
  }

  /// Without a fixed distance it is often the machine that is busy, or inputs of many lengths.
  Severity SeverityOf(const Process& process, const std::vector<const Outlier*>& main, bool pauses,
                      double share) const {
    if (!Period(main)) {
      if (!pauses) return Severity::kLow;
      double excess = 0;
      for (const Outlier* o : main) excess += o->excess_ns;
      const auto run_ns = static_cast<double>(process.last_ns - begin_ns_);
      share = run_ns > 0 ? std::min(share, excess / run_ns / kWithoutDistance) : 0;
    }
    return share >= high_ ? Severity::kHigh : share >= medium_ ? Severity::kMedium : Severity::kLow;
  }

  /// Whether the training stood still in each of them, and not for its next batch alone.
  bool ArePauses(const Process& process, const std::vector<const Outlier*>& main) const {
    return Widest(main) != kDataWait &&
           std::all_of(main.begin(), main.end(), [&](const Outlier* o) {
             return CostOf(*o) >= pause_ns_ && CostOf(*o) >= kPauseRatio * process.median;
           });
  }

  /// Those that make up the loss: among them are always some that the machine's noise made, which
  /// are short. Half of the excess lies in outliers of at least the middle one; a third of it still
  /// counts.
  static std::vector<const Outlier*> Main(const Process& process) {
    std::vector<const Outlier*> main;
    double total = 0;
    for (const Outlier& o : process.outliers) {
      main.push_back(&o);
      total += o.excess_ns;
    }
    std::vector<const Outlier*> sorted = main;
    std::stable_sort(sorted.begin(), sorted.end(), [](const Outlier* a, const Outlier* b) {
      return a->excess_ns > b->excess_ns;
    });
    double sum = 0;
    double least = 0;
    for (const Outlier* o : sorted) {
      sum += o->excess_ns;
      least = o->excess_ns / 3;
      if (sum * 2 >= total) break;
    }
    std::erase_if(main, [&](const Outlier* o) { return o->excess_ns < least; });
    return main;
  }

  static Phases SumOfExcess(const std::vector<const Outlier*>& outliers) {
    Phases sum{};
    for (const Outlier* o : outliers) {
      for (std::size_t i = 0; i < kPhaseCount; ++i) sum[i] += o->excess[i];
    }
    return sum;
  }
  static Phase Widest(const std::vector<const Outlier*>& outliers) {
    const Phases sum = SumOfExcess(outliers);
    return static_cast<Phase>(std::max_element(sum.begin(), sum.end()) - sum.begin());
  }

  /// Most of the loss is in steps in which workers of a loader began.
  static bool StartsWorkers(const std::vector<const Outlier*>& outliers) {
    double all = 0;
    double starts = 0;
    for (const Outlier* o : outliers) {
      all += o->excess_ns;
      if (o->starts_workers) starts += o->excess_ns;
    }
    return starts > 0.5 * all;
  }

  /// Steps from one outlier to the next, where that is nearly always the same.
  static std::optional<std::int64_t> Period(const std::vector<const Outlier*>& outliers) {
    std::vector<double> distances;
    for (std::size_t i = 1; i < outliers.size(); ++i) {
      distances.push_back(static_cast<double>(outliers[i]->step - outliers[i - 1]->step));
    }
    if (distances.size() < 4) return std::nullopt;
    const double median = MedianOf(distances);
    const auto same = std::count_if(distances.begin(), distances.end(),
                                    [&](double d) { return std::abs(d - median) < 0.5; });
    if (median < 2 || same * 10 < static_cast<std::int64_t>(distances.size()) * 7) {
      return std::nullopt;
    }
    return static_cast<std::int64_t>(median);
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    JudgeNewest(process, reporter);
    if (process->open) Close(process, reporter);
  }

  void Close(Process* process, Reporter* reporter) {
    Incident& incident = process->incident;
    incident.cost_seconds = std::max(0.0, process->cost_ns / 1e9);
    if (!process->outliers.empty()) {
      incident.last_step = std::max(incident.last_step, process->outliers.back().step);
      incident.end_ns = std::max(
          incident.end_ns, process->outliers.back().start_ns +
                               static_cast<std::int64_t>(process->outliers.back().duration_ns));
    }
    reporter->Close(incident);
    process->open = false;
  }

  void Describe(Process* process, const std::vector<const Outlier*>& main, double share) {
    Incident& incident = process->incident;
    const Outlier& last = process->outliers.back();
    incident.last_step = last.step;
    incident.end_ns = last.start_ns + static_cast<std::int64_t>(last.duration_ns);
    incident.cost_seconds = process->cost_ns / 1e9;
    std::vector<double> durations;
    std::vector<double> batches;
    double excess = 0;
    for (const Outlier* o : main) {
      durations.push_back(o->duration_ns);
      batches.push_back(o->batch);
      excess += o->excess_ns;
    }
    const auto count = static_cast<double>(main.size());
    const double typical = MedianOf(std::move(durations));
    const double batch = MedianOf(std::move(batches));
    const double factor = typical / std::max(1.0, process->median);
    const bool pauses = ArePauses(*process, main);
    if (!pauses) {
      incident.message = fmt::format("Outlier steps take {} times the median", Plain(factor));
    } else if (main.size() == 1) {
      incident.message = fmt::format("The training stood still for {} in step {}",
                                     Lasting(excess / 1e9), main.front()->step);
    } else {
      incident.message = fmt::format("The training stood still {} times, for {} in all",
                                     main.size(), Lasting(excess / 1e9));
    }

    const Phases sum = SumOfExcess(main);
    const Phase phase = Widest(main);
    const double part = excess > 0 ? sum[phase] / excess : 0;
    const auto period = Period(main);
    nlohmann::ordered_json differs = nlohmann::ordered_json::array();
    const auto differ = [&](std::string_view what, double in_outliers, double in_normal,
                            std::string_view unit) {
      differs.push_back({{"what", what},
                         {"outlier", Rounded(in_outliers)},
                         {"normal", Rounded(in_normal)},
                         {"unit", unit}});
    };
    std::vector<double> usual;
    for (const Step& s : process->normal) usual.push_back(s.phases[phase]);
    const double usual_ns = MedianOf(std::move(usual));
    // Medians, as the durations that it is said beside.
    std::vector<double> longer;
    for (const Outlier* o : main) longer.push_back(o->excess[phase]);
    const double more_ns =
        std::min(MedianOf(std::move(longer)), std::max(0.0, typical - process->median));
    differ(kPhaseNames[phase], (usual_ns + more_ns) / 1e6, usual_ns / 1e6, "ms");
    const bool starts = phase == kDataWait && StartsWorkers(main);

    std::string also;
    std::string only;  // A short span that only outliers have.
    // The span that grew most, where it explains much of the difference.
    const std::string* name = nullptr;
    double grown = 0;
    // What makes batches is no pause of the loop.
    const auto counts = [&](const std::string& span) {
      return phase == kDataWait || !data_spans_.contains(span);
    };
    for (const auto& [span, sides] : process->spans) {
      if (!counts(span)) continue;
      const double in = sides.outlier / std::max(1.0, static_cast<double>(process->outlier_steps));
      const double out = sides.normal / std::max(1.0, static_cast<double>(process->normals));
      if (in - out > grown) {
        grown = in - out;
        name = &span;
      }
    }
    if (name != nullptr && grown * count > 0.3 * excess) {
      const Sides& sides = process->spans.find(*name)->second;
      differ("span " + *name,
             sides.outlier / std::max(1.0, static_cast<double>(process->outlier_steps)) / 1e6,
             sides.normal / std::max(1.0, static_cast<double>(process->normals)) / 1e6, "ms");
      also += fmt::format(", {} ms of it in the span {}", Millis(std::min(grown, more_ns)), *name);
    } else {
      name = nullptr;
      std::map<std::string, std::pair<double, std::int64_t>> rare;
      for (const Outlier* o : main) {
        for (const auto& [span, ns] : o->rare_spans) {
          rare[span].first += ns;
          ++rare[span].second;
        }
      }
      for (const auto& [span, sums] : rare) {
        if (!counts(span) || sums.second < 3 ||
            static_cast<double>(sums.second) < kInOutliers * count)
          continue;
        const double in = sums.first / static_cast<double>(sums.second);
        only = span;
        also +=
            fmt::format("; {} of {} such steps, and almost no other step, have the span {} ({} ms)",
                        sums.second, main.size(), span, Millis(in));
        differ("span " + span, in / 1e6, 0, "ms");
        break;
      }
    }
    if (last.normal_batch > 0 && std::abs(batch - last.normal_batch) > 0.2 * last.normal_batch) {
      differ("batch size", batch, last.normal_batch, "samples");
      also += fmt::format(", with batches of {} instead of {}", Figure(batch),
                          Figure(last.normal_batch));
    }
    for (std::size_t i = 0; i < std::size(kCompared); ++i) {
      const Sides& sides = metrics_[i];
      if (sides.outliers < 3 || sides.normals < 3) continue;
      const double in = sides.MeanOutlier();
      const double out = sides.MeanNormal();
      if (in - out < kCompared[i].least || in < 1.25 * out) continue;
      differ(kCompared[i].words, in * kCompared[i].scale, out * kCompared[i].scale,
             kCompared[i].unit);
      also += fmt::format(", {} {} {} instead of {}", kCompared[i].words,
                          Figure(in * kCompared[i].scale), kCompared[i].unit,
                          Figure(out * kCompared[i].scale));
    }

    const auto waits = std::find_if(main.rbegin(), main.rend(),
                                    [](const Outlier* o) { return !o->waits.empty(); });
    const std::string steps =
        pauses && main.size() == 1 ? fmt::format("Steps take {} ms in the median, this one {}",
                                                 Millis(process->median), Lasting(typical / 1e9))
        : period ? fmt::format("One step in {} takes {} ms instead of {}", *period, Millis(typical),
                               Millis(process->median))
                 : fmt::format("{} of {} steps take {} ms instead of {}", main.size(),
                               process->window.size(), Millis(typical), Millis(process->median));
    if (part >= 0.5) {
      incident.cause = fmt::format(
          "{}: {} more {}{}.{}", steps,
          more_ns >= 1e10 ? Lasting(more_ns / 1e9) : Millis(more_ns) + " ms", Where(phase), also,
          starts ? " The DataLoader starts its workers in these steps, the first ones of an epoch."
                 : "");
    } else if (!also.empty()) {
      incident.cause = fmt::format("{}, spread over the phases{}.", steps, also);
    } else {
      incident.cause = "cause not found";
    }
    if (pauses && waits != main.rend()) {
      incident.cause += fmt::format(" The main thread {}.", (*waits)->waits);
    }
    incident.advice =
        starts && part >= 0.5
            ? "Keep the workers from epoch to epoch (persistent_workers=True, in a DataLoader that "
              "is "
              "made once, before the loop over epochs), or do without them (num_workers=0) where a "
              "batch is cheap to make."
            : Advice(phase, part, period, name, only);
    incident.confidence = 0.5 +
                          0.25 * std::min(1.0, count / (2 * static_cast<double>(n_outliers_))) +
                          (part >= 0.7 || name != nullptr ? 0.25 : 0);

    nlohmann::ordered_json evidence;
    evidence["outliers"] = process->opened_outliers;
    evidence["outliers_in_window"] = process->outliers.size();
    evidence["described"] = main.size();
    evidence["window_steps"] = process->window.size();
    evidence["share"] = Rounded(share);
    evidence["median_ms"] = Rounded(process->median / 1e6);
    evidence["deviation_ms"] = Rounded(process->deviation / 1e6);
    evidence["outlier_ms"] = Rounded(typical / 1e6);
    if (period) evidence["every_steps"] = *period;
    evidence["phase"] = kPhaseNames[phase];
    evidence["phase_part"] = Rounded(part);
    if (starts) evidence["starts_workers"] = true;
    evidence["differs"] = differs;
    incident.evidence = JsonText(evidence);
  }

  static std::string Where(Phase phase) {
    if (phase == kOther) return "outside data wait, forward, backward and optimizer";
    return fmt::format("in {}", kPhaseNames[phase]);
  }

  static std::string Advice(Phase phase, double part, const std::optional<std::int64_t>& period,
                            const std::string* span, const std::string& only) {
    if (part < 0.5) {
      return "Look at what runs on this machine besides the training in these steps.";
    }
    if (span != nullptr && *span == "gc") {
      return "Call gc.freeze() once model and data are made, so that the garbage collector passes "
             "them over, or gc.disable() and gc.collect() where nobody waits.";
    }
    switch (phase) {
      case kOther:
        return fmt::format(
            "Take {} out of the loop{}: do it less often, or on a thread while the next step runs.",
            span != nullptr ? *span
            : only.empty()  ? std::string("what happens between optimizer and next batch")
                            : fmt::format("the {} and what comes with it", only),
            period ? fmt::format(" of every {} steps", *period) : std::string());
      case kDataWait:
        return "Look at the batches of these steps: single slow samples, or a read that blocks; "
               "more "
               "workers or a higher prefetch_factor hide them.";
      case kCommWait:
        return "Look at which rank arrives last in these steps.";
      case kForward:
      case kBackward:
        return "Look at the inputs of these steps: sort or bucket them by length, and pad less.";
      case kOptimizer:
        break;
    }
    return "Look at what the optimizer does in these steps only.";
  }

  const double stddev_;
  const double ratio_;
  const std::size_t n_outliers_;
  const std::size_t normal_steps_;
  const std::size_t window_steps_;
  const double low_;
  const double medium_;
  const double high_;
  const double pause_ns_;
  const std::string mode_;

  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;                             ///< Of the record that is read.
  std::map<std::uint32_t, std::int64_t> worker_starts_;  ///< The newest, by writer.
  std::set<std::string, std::less<>> data_spans_;        ///< Names of those that make batches.
  std::deque<Pending> samples_;                          ///< That lie later than the newest step.
  std::deque<std::pair<std::int64_t, std::int64_t>> intervals_;  ///< Newest outliers, of any rank.
  std::array<Sides, std::size(kCompared)> metrics_{};
  std::map<std::string, SampleTimes> sampled_;
  std::int64_t judged_from_ns_ = 0;
  std::int64_t begin_ns_ = 0;  ///< Of the first record.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kStepOutlierDesc{
    .name = "StepOutlier",
    .summary = "Single steps take far longer than the others, and what is different in them.",
    .formula =
        "All times without those of our own probe. Median and σ = 1.4826 × median absolute "
        "deviation (at least 2 % of the median) of the newest normal_steps steps (of `mode`, TRAIN "
        "if not said) of one rank, the first three of an attempt, and of each further boosting "
        "with the last one before it, apart. A step is an outlier where "
        "duration > median + stddev × σ, > ratio × median and ≥ median + 1 ms (shorter ones the "
        "machine makes); ten in a row are a new level and do "
        "not count. share = Σ (duration − median) of the outliers / Σ duration over the newest "
        "window_steps. With n_outliers of them: low from low_share, medium from medium_share, high "
        "from high_share; no more than low where they come at no fixed distance (a busy machine, "
        "inputs of many lengths). One step is enough where it takes pause_seconds and 100 medians "
        "longer, for another reason than its batch, and most of the lost time is in such steps: "
        "the severity is that of its share of the run so far, where no fixed distance says that it "
        "is the program's own, from 2.5 times medium_share and high_share on. Nothing where the "
        "difference is data wait in more than "
        "10 % of the steps that were judged (InputBound's). Where workers of a loader began in "
        "those "
        "that make half of the loss, that is the cause. What differs: each phase, span, batch "
        "size, and the "
        "samples of cores, disks and network beside outliers, against those beside normal steps. "
        "Described are the outliers that make the loss (at least a third of the excess of the one "
        "at half of the sum), since noise makes small ones. Over when no outlier came for three "
        "times the usual distance, at least 100 steps, and where its process ends. Cost = Σ "
        "(duration − median) less the data wait in it.",
    .how_to_fix =
        "Look at what differs. Other: move checkpoints, logging and evaluation out of the loop. "
        "Data wait: slow samples, a blocked read. Forward and backward: inputs of many lengths. "
        "Cores busy: other programs on the machine.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
                  store::MaskOf(format::TableId::kMetrics) |
                  store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kProfiler,
    .by_default = true,
    .example = "torch.save(model.state_dict(), path) in each 50th step of the loop.",
    .standing = {.theme = Theme::kPauses, .order = 2},
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeStepOutlier(const Parameters& parameters) {
  return std::make_unique<StepOutlier>(parameters);
}

}  // namespace telltale::rules::step_outlier
