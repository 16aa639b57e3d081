// SPDX-License-Identifier: Apache-2.0
// CallbackStall: each N-th step the training stands still for something that is no training: an
// evaluation, a checkpoint, a log.
//
// StepOutlier says that single steps are slow. Here the time between what is training is gathered,
// inside steps and between them, and laid beside the spans of the program, the evaluation steps and
// the bytes written at the same moment.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/builtin/processes.h"
#include "rules/builtin/reinforcement.h"
#include "rules/builtin/single_steps.h"
#include "rules/groups.h"
#include "rules/lifecycle.h"
#include "rules/registry.h"

namespace telltale::rules::callback_stall {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"ratio", 1, "", "A stall takes at least this many times the median step."},
    {"n_stalls", 4, "stalls", "Fewer than this at a regular distance say nothing."},
    {"low_share", 5, "%", "Share of the time that stalls take, below it nothing."},
    {"medium_share", 10, "%", "Share from which the finding is medium."},
    {"high_share", 30, "%", "Share from which it is high."},
    {"evaluation_share", 30, "%",
     "Evaluations are a part of training: below this share they are no finding, and from it on "
     "low."},
};

constexpr std::int64_t kWarmupSteps = 3;
constexpr std::size_t kMinNormal = 20;
constexpr std::size_t kNormalSteps = 100;
constexpr std::size_t kStallsKept = 32;
constexpr std::size_t kMaxNames = 64;
constexpr double kMinWritten = 1e6;
/// Share of the time that the main thread of a process stood in the queue of a core.
constexpr std::string_view kQueued = "proc.run_delay";
constexpr std::size_t kMostQueued = 4096;  ///< Processes, the workers of loaders among them.
constexpr std::size_t kQueuedKept = 64;    ///< Samples of a process, the newest.
/// A sample is the mean since the one before. The first is taken for one of a second, as most are;
/// with a long --interval they are rarer.
constexpr std::int64_t kSampleNs = 1'000'000'000;
constexpr std::int64_t kLongestSampleNs = 60 * kSampleNs;
/// A process that has trained for so long without a sample will not get one.
constexpr double kNoSampleNs = 10e9;
/// Others have a core no longer than this before a program has its turn again.
constexpr double kLongestTurnNs = 100e6;
/// Of the stalls' time: where LoopOverhead names that much of it, its finding says more.
constexpr double kExplained = 0.8;

/// Of the time of one span's name.
struct SpanTime {
  double ns = 0;
  bool runtime = false;
};

/// What the framework's own spans mean to people, and what to do.
struct Meaning {
  std::string_view span, what, advice;
};
constexpr Meaning kMeanings[] = {
    {"checkpoint", "writing a checkpoint",
     "Write checkpoints less often, or copy to host memory and write on a thread "
     "(torch.distributed.checkpoint.async_save)."},
    {"checkpoint.load", "reading a checkpoint", "Read it once, before the loop."},
    {"gc", "the garbage collector",
     "Call gc.freeze() once model and data are made, or gc.disable() and gc.collect() where nobody "
     "waits; many small objects kept alive make it slow."},
    {"compile", "compiling the model",
     "Give all batches one shape (drop_last, padding to a few lengths): RecompileStorm says more."},
    {"logging", "writing logs", "Log less often, or scalars instead of histograms and pictures."},
    {"callbacks", "the callbacks of the trainer",
     "Do less in callbacks, or every N steps; telltale.span() around their parts names them."},
};

/// Callbacks call what else has a span: that says more.
constexpr double kOuter = 0.8;

struct Stall {
  std::int64_t step = -1;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  double ns = 0;
  double known_ns = 0;  ///< Process::known_ns where it began.
  std::string span;     ///< The longest in it.
  double span_ns = 0;
  bool runtime = false;  ///< It is the framework's, not the program's.
  double eval_ns = 0;
  double written = 0;  ///< Bytes, of the process, in the samples beside it.
};

/// A sample of the time that a main thread stood in the queue of a core.
struct Queued {
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
  double share = 0;  ///< Of that time.
};

class CallbackStall final : public Rule {
 public:
  explicit CallbackStall(const Parameters& p)
      : ratio_(p.Get("ratio")),
        n_stalls_(static_cast<std::size_t>(std::max<std::int64_t>(3, p.GetInt("n_stalls")))),
        low_(p.Get("low_share") / 100),
        medium_(p.Get("medium_share") / 100),
        high_(p.Get("high_share") / 100),
        evaluation_(p.Get("evaluation_share") / 100) {}

  bool Wants(const Series& series) override {
    if (series.table == format::TableId::kSpans) {
      if (series.collection == "user") return true;
      // Evaluations are known by their steps; files are read in the wait for data too, which is no
      // part of a stall.
      if (series.collection != "runtime" || series.name == "evaluation" || series.name == "read") {
        return false;
      }
      if (runtime_.size() <= series.id) runtime_.resize(series.id + 1, false);
      runtime_[series.id] = true;
      return true;
    }
    return (series.name == "proc.write_call_bytes_rate" || series.name == kQueued) &&
           series.pid != 0;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step, reporter);
    } else if (const auto* span = record.As<format::SpanRow>()) {
      OnSpan(*span, record.series < runtime_.size() && runtime_[record.series]);
    } else if (const auto* metric = record.As<format::MetricRow>()) {
      metric->name == kQueued ? OnQueued(*metric) : OnWritten(*metric);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { End(process, reporter); });
        queued_.erase({writer_, event->pid});
      } else if (event->kind == "boosting.start") {
        OnNextTraining(*event);
      } else if (ReinforcementSigns::IsEvent(event->kind)) {
        Process* process =
            processes_.Find(*event, writer_, [&](Process* former) { End(former, reporter); });
        if (process != nullptr) process->acts = true;
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  struct Process : TrainingProcess {
    std::int64_t seen = 0;
    std::int64_t end_ns = 0;                       ///< Of the newest TRAIN step.
    std::deque<std::pair<double, double>> normal;  ///< Duration and other, newest steps.
    SortedValues durations, others;                ///< Theirs.
    double median = 0;
    double median_other = 0;
    std::int64_t measured = 0;
    std::map<std::string, SpanTime, std::less<>> spans;  ///< Since the newest step.
    double eval_ns = 0;
    std::deque<Stall> stalls;  ///< The newest.
    std::int64_t written_ns = 0;
    bool acts = false;  ///< Its model plays an environment: between updates it makes its data.

    double known_ns =
        0;  ///< Of the steps that are there, and between those that follow each other.
    double total_ns = 0;    ///< Of it, since the first stall that is kept.
    double counted_ns = 0;  ///< Stalls of the open incident.
    std::int64_t count = 0;
  };

  void OnSpan(const format::SpanRow& span, bool runtime) {
    if (span.duration_ns <= 0) return;
    for (auto& [key, process] : processes_) {
      if (process.pid != span.pid || process.writer != writer_ || process.rank != span.rank) {
        continue;
      }
      auto found = process.spans.find(span.name);
      if (found == process.spans.end()) {
        if (process.spans.size() >= kMaxNames) return;
        found = process.spans.emplace(std::string(span.name), SpanTime()).first;
      }
      found->second.ns += static_cast<double>(span.duration_ns);
      found->second.runtime = runtime;
    }
  }

  /// The newest step was the last of its training: what lies between two trainings is no stall.
  void OnNextTraining(const format::EventRow& event) {
    for (auto& [key, process] : processes_) {
      if (process.pid != event.pid || process.writer != writer_ || process.rank != event.rank ||
          process.stalls.empty() || process.stalls.back().step != process.last_step) {
        continue;
      }
      const double ns = process.stalls.back().ns;
      process.known_ns -= ns;
      process.total_ns = std::max(0.0, process.total_ns - ns);
      if (process.open) {
        process.counted_ns -= ns;
        --process.count;
      }
      process.stalls.pop_back();
    }
  }

  void OnWritten(const format::MetricRow& metric) {
    for (auto& [key, process] : processes_) {
      if (process.pid != metric.pid || process.writer != writer_) continue;
      const std::int64_t from = std::exchange(process.written_ns, metric.time_ns);
      if (from == 0 || !std::isfinite(metric.value)) continue;
      const double bytes = metric.value * static_cast<double>(metric.time_ns - from) / 1e9;
      // The newest stall that the sample touches.
      for (auto stall = process.stalls.rbegin(); stall != process.stalls.rend(); ++stall) {
        if (stall->start_ns < metric.time_ns && stall->end_ns > from) {
          stall->written += bytes;
          break;
        }
      }
    }
  }

  void OnQueued(const format::MetricRow& metric) {
    if (!std::isfinite(metric.value)) return;
    const std::pair process(writer_, metric.pid);
    if (queued_.size() >= kMostQueued && !queued_.contains(process)) {
      // Of most processes, workers of loaders for one, no end is told.
      queued_.erase(
          std::min_element(queued_.begin(), queued_.end(), [](const auto& one, const auto& other) {
            return one.second.back().to_ns < other.second.back().to_ns;
          }));
    }
    std::deque<Queued>& samples = queued_[process];
    const std::int64_t from =
        samples.empty()
            ? metric.time_ns - kSampleNs
            : std::clamp(samples.back().to_ns, metric.time_ns - kLongestSampleNs, metric.time_ns);
    samples.push_back({from, metric.time_ns, metric.value / 100});
    if (samples.size() > kQueuedKept) samples.pop_front();
  }

  /// Whether stalls of this share of the time may be turns of other programs, which come at a
  /// regular distance where steps are equal. So they may as long as samples of less than half of
  /// the stalls' time have come.
  bool MayBeTurns(const Process& process, double mean_ns, double share) const {
    if (mean_ns >= kLongestTurnNs) return false;
    const auto samples = queued_.find({process.writer, process.pid});
    // A kernel without scheduler statistics, or an import: it will not be known.
    if (samples == queued_.end()) return process.known_ns < kNoSampleNs;
    const std::int64_t from_ns = process.stalls.front().start_ns;
    const std::int64_t to_ns = process.stalls.back().end_ns;
    double known_ns = 0;
    double queued_ns = 0;
    for (const Queued& sample : samples->second) {
      const auto ns =
          static_cast<double>(std::min(sample.to_ns, to_ns) - std::max(sample.from_ns, from_ns));
      if (ns <= 0) continue;
      known_ns += ns;
      queued_ns += sample.share * ns;
    }
    return known_ns < 0.5 * static_cast<double>(to_ns - from_ns) ||
           queued_ns >= kExplainedShare * share * known_ns;
  }

  void OnStep(const format::StepRow& row, Reporter* reporter) {
    if (row.duration_ns <= 0) return;
    if (row.mode != "TRAIN") {
      for (auto& [key, process] : processes_) {
        if (process.pid == row.pid && process.rank == row.rank && process.writer == writer_) {
          process.eval_ns += static_cast<double>(row.duration_ns);
        }
      }
      return;
    }
    Process* process =
        processes_.Find(row, writer_, [&](Process* former) { End(former, reporter); });
    if (process == nullptr) return;
    const bool follows = Follows(row.step, process->last_step);
    if (!process->BeginStep(row.step)) return;
    const std::int64_t before = std::exchange(process->end_ns, row.time_ns + row.duration_ns);
    const auto spans = std::exchange(process->spans, {});
    const double eval_ns = std::exchange(process->eval_ns, 0);
    if (++process->seen <= kWarmupSteps) return;
    // Between steps lie evaluations; what a callback does without a model is in the phase other.
    const double gap =
        follows ? static_cast<double>(std::max<std::int64_t>(0, row.time_ns - before)) : 0;
    const format::StepRow own = WithoutProbe(row);
    const auto duration = static_cast<double>(own.duration_ns);
    const auto other = static_cast<double>(own.other_ns);
    process->known_ns += gap + duration;
    process->total_ns += gap + duration;
    bool stalled = false;
    if (process->normal.size() >= kMinNormal) {
      has_data_ = true;
      Measure(process);
      const double ns = gap + std::max(0.0, other - process->median_other);
      stalled = ns > ratio_ * process->median && ns >= kLeastLongerNs;
      if (stalled) {
        Stall stall;
        stall.step = row.step;
        stall.start_ns = row.time_ns - static_cast<std::int64_t>(gap);
        stall.end_ns = process->end_ns;
        stall.ns = ns;
        stall.known_ns = process->known_ns - gap - duration;
        stall.eval_ns = eval_ns;
        double most = 0;
        for (const auto& [name, time] : spans) {
          const double weight = time.runtime && name == "callbacks" ? kOuter * time.ns : time.ns;
          if (weight <= most) continue;
          most = weight;
          stall.span = name;
          stall.span_ns = time.ns;
          stall.runtime = time.runtime;
        }
        Add(process, std::move(stall));
      }
    }
    process->normal.emplace_back(duration, other);
    process->durations.Insert(duration);
    process->others.Insert(other);
    if (process->normal.size() > kNormalSteps) {
      process->durations.Erase(process->normal.front().first);
      process->others.Erase(process->normal.front().second);
      process->normal.pop_front();
    }
    Judge(process, stalled, reporter);
  }

  static void Measure(Process* process) {
    if (process->measured != 0 && process->seen < process->measured + 10) return;
    process->measured = process->seen;
    process->median = process->durations.Median();
    process->median_other = process->others.Median();
  }

  static void Add(Process* process, Stall stall) {
    if (process->stalls.empty()) process->total_ns = stall.ns + process->median;
    if (process->open) {
      process->counted_ns += stall.ns;
      ++process->count;
    }
    process->stalls.push_back(std::move(stall));
    if (process->stalls.size() <= kStallsKept) return;
    const double first = process->stalls.front().known_ns;
    process->stalls.pop_front();
    process->total_ns =
        std::max(0.0, process->total_ns - (process->stalls.front().known_ns - first));
  }

  /// Steps from one stall to the next, where that is nearly always the same; of an epoch it may
  /// differ by a step.
  static std::optional<std::int64_t> Period(const std::deque<Stall>& stalls) {
    std::vector<double> distances;
    for (std::size_t i = 1; i < stalls.size(); ++i) {
      distances.push_back(static_cast<double>(stalls[i].step - stalls[i - 1].step));
    }
    const double median = MedianOf(distances);
    const double tolerance = std::max(0.5, 0.02 * median);
    const auto same = std::count_if(distances.begin(), distances.end(),
                                    [&](double d) { return std::abs(d - median) <= tolerance; });
    if (median < 2 || same * 10 < std::ssize(distances) * 7) return std::nullopt;
    return std::llround(median);
  }

  void Judge(Process* process, bool stalled, Reporter* reporter) {
    if (process->stalls.empty()) return;
    if (process->open) {
      const std::int64_t quiet = process->last_step - process->stalls.back().step;
      const std::int64_t usual = Period(process->stalls).value_or(50);
      if (quiet > 3 * usual + 20) {
        Finish(process);
        reporter->Recover(process->incident);
        process->open = false;
        process->stalls.clear();
        return;
      }
    }
    if (!stalled || process->stalls.size() < n_stalls_) return;
    const auto period = Period(process->stalls);
    if (!period) return;
    double sum = 0;
    double evaluation = 0;
    double named = 0;
    double written = 0;
    for (const Stall& s : process->stalls) {
      sum += s.ns;
      written += s.written;
      evaluation += std::min(s.eval_ns, s.ns);
      named += std::min(s.span_ns, s.ns);
    }
    // Of an agent that is the time in which it plays, and no callback's.
    if (process->acts && named < 0.5 * sum) return;
    // Whole distances: from the first stall to the newest, without that one.
    const double last = process->stalls.back().ns;
    const double time = process->total_ns - last;
    const double share = time > 0 ? (sum - last) / time : 0;
    const bool evaluates = evaluation > 0.5 * sum;
    const auto count = static_cast<double>(process->stalls.size());
    const bool known = evaluates || named >= 0.5 * sum || written >= kMinWritten * count;
    if (!known && MayBeTurns(*process, sum / count, share)) return;
    if (share < (evaluates ? std::max(low_, evaluation_) : low_)) return;
    if (!process->open) {
      processes_.Open(process, process->stalls.front().step, process->stalls.front().start_ns);
      process->counted_ns = sum;
      process->count = std::ssize(process->stalls);
    }
    Describe(process, *period, sum, share, evaluates);
    reporter->Report(process->incident);
  }

  static void Finish(Process* process) {
    Incident& incident = process->incident;
    const Stall& last = process->stalls.back();
    incident.last_step = std::max(incident.first_step, last.step);
    incident.end_ns = std::max(incident.start_ns, last.end_ns);
    incident.cost_seconds = process->counted_ns / 1e9;
  }

  void Describe(Process* process, std::int64_t period, double sum, double share, bool evaluates) {
    Incident& incident = process->incident;
    Finish(process);
    const Severity severity = evaluates          ? Severity::kLow
                              : share >= high_   ? Severity::kHigh
                              : share >= medium_ ? Severity::kMedium
                                                 : Severity::kLow;
    incident.severity = std::max(incident.severity, severity);
    const auto count = static_cast<double>(process->stalls.size());
    const double mean = sum / count;
    // The span that most of them have in common.
    std::map<std::string, std::pair<double, std::int64_t>> spans;
    struct Short {
      double ns = 0;
      std::int64_t times = 0;
      bool runtime = false;
    };
    std::map<std::string, Short> short_spans;
    std::int64_t runtime = 0;
    double written = 0;
    for (const Stall& s : process->stalls) {
      written += s.written;
      if (s.span.empty()) continue;
      if (s.span_ns < 0.5 * s.ns) {
        Short& of = short_spans[s.span];
        of.ns += s.span_ns;
        ++of.times;
        of.runtime = of.runtime || s.runtime;
        continue;
      }
      auto& [ns, times] = spans[s.span];
      ns += s.span_ns;
      ++times;
      if (s.runtime) ++runtime;
    }
    std::string span;
    for (const auto& [name, sums] : spans) {
      if (static_cast<double>(sums.second) >= 0.8 * count) span = name;
    }
    // One that is too short to be what takes the time comes with it all the same.
    std::string beside;
    bool checkpoints = false;
    for (const auto& [name, sums] : short_spans) {
      // Short ones are not recorded each time.
      if (sums.times < 3 || static_cast<double>(sums.times) < 0.3 * count) continue;
      beside =
          fmt::format("{} ({} ms of it)", name, Millis(sums.ns / static_cast<double>(sums.times)));
      checkpoints = sums.runtime && name == "checkpoint";
    }
    written /= count;
    const bool writes = written >= kMinWritten;
    const Meaning* meaning = nullptr;
    for (const Meaning& known : kMeanings) {
      if (runtime > 0 && known.span == span) meaning = &known;
    }
    const std::string what =
        evaluates            ? std::string("an evaluation")
        : meaning != nullptr ? std::string(meaning->what)
        : !span.empty()      ? "the span " + span
        : writes
            // The program's own part of it (fsync, a copy) writes that file too.
            ? fmt::format("writing {}{} MB{}", checkpoints ? "a checkpoint (" : "",
                          Figure(written / 1e6), checkpoints ? ")" : "")
            : std::string();
    incident.message = fmt::format("Every {} steps the training stalls", period);
    incident.cause =
        what.empty()
            ? fmt::format(
                  "Every {} steps {} ms pass outside data wait, forward, backward and "
                  "optimizer, {} % of the time; {}.",
                  period, Millis(mean), Figure(100 * share),
                  beside.empty() ? std::string("no span, evaluation or write lies there, reading "
                                               "of files apart: the program's own code")
                                 : fmt::format("the span {} is part of it, the rest is the "
                                               "program's own code around that span",
                                               beside))
            : fmt::format("Every {} steps {} takes {} ms, {} % of the time{}.", period, what,
                          Millis(mean), Figure(100 * share),
                          evaluates || !span.empty() || beside.empty()
                              ? std::string()
                              : fmt::format("; the span {} is part of it", beside));
    incident.advice =
        evaluates ? "Evaluate less often, on a part of the data, or in another process from "
                    "checkpoints."
        : meaning != nullptr ? std::string(meaning->advice)
        : writes ? "Write checkpoints less often, or copy to host memory and write on a thread "
                   "(torch.distributed.checkpoint.async_save)."
        : !span.empty()
            ? fmt::format("Do {} less often, or on a thread while the next steps run.", span)
        : !beside.empty() ? std::string(
                                "Look at what the program does around this span; do it less often, "
                                "or on a thread while the next steps run.")
                          : std::string(
                                "Look at callbacks and logging of these steps; put telltale.span() "
                                "around them to have them named.");
    incident.confidence = std::min(0.95, (what.empty() ? 0.6 : 0.75) + 0.02 * count);
    nlohmann::ordered_json evidence;
    evidence["every_steps"] = period;
    evidence["stalls"] = process->count;
    evidence["stall_ms"] = Rounded(mean / 1e6);
    evidence["median_step_ms"] = Rounded(process->median / 1e6);
    evidence["share"] = Rounded(share);
    if (!span.empty()) evidence["span"] = span;
    evidence["evaluation"] = evaluates;
    if (!evaluates) evidence[kExplainsSeconds] = Rounded(kExplained * process->counted_ns / 1e9);
    if (written > 0) evidence["written_bytes"] = Rounded(written);
    incident.evidence = JsonText(evidence);
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    if (!process->open) return;
    Finish(process);
    reporter->Close(process->incident);
    process->open = false;
  }

  const double ratio_;
  const std::size_t n_stalls_;
  const double low_;
  const double medium_;
  const double high_;
  const double evaluation_;

  ProcessTable<Process> processes_;
  /// By writer and pid, the newest last.
  std::map<std::pair<std::uint32_t, std::int32_t>, std::deque<Queued>> queued_;
  std::vector<bool> runtime_;  ///< By series: spans of the framework.
  std::uint32_t writer_ = 0;   ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kCallbackStallDesc{
    .name = "CallbackStall",
    .summary =
        "At a regular distance the training stands still for an evaluation, a checkpoint or a log.",
    .formula =
        "All times without those of our own probe. Stall = time between two TRAIN steps + (the "
        "phase other of the step − its median over the newest 100 steps). It counts where it is "
        "above ratio × the median step and at least 1 ms (shorter ones the machine makes). Between "
        "two steps of which one was not recorded no time is known. With n_stalls of them (of the "
        "newest 32) of which 70 % "
        "have the same distance in steps: share = Σ stalls / time from the first to the newest, "
        "without that one (what passes between two boostings apart); low from low_share, medium "
        "from medium_share, high from high_share. "
        "Evaluations (EVAL steps in more than half of the stalls' time) are low, from "
        "evaluation_share on. What it lines up with: the evaluation; the span, of the program or "
        "of the framework, that lies in 80 % of the stalls and makes half of each (reading of "
        "files is left out: it is in the wait for data too); writes of the process of 1 MB a "
        "stall. Where the process plays an environment (event environment) those alone of which a "
        "span "
        "makes half: else the agent makes its data then. Where no evaluation, span or write is "
        "what stalls of less than 100 ms are, they may be turns of other programs: nothing is said "
        "where the main thread stands in the queue of a core for 80 % of their share of the time, "
        "and as long as samples of that (`proc.run_delay`) cover less than half of the time from "
        "the first stall to the newest. If the first 10 s of training bring no sample, the rule "
        "judges without them. Over "
        "when none came for three times the "
        "distance, and where its process ends. Cost "
        "= Σ stalls.",
    .how_to_fix =
        "Do it less often, or on a thread while the next steps run: asynchronous checkpoints, "
        "logging from a queue, evaluation in another process from checkpoints.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
                  store::MaskOf(format::TableId::kMetrics) |
                  store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kOwn,
    .by_default = true,
    .example = "if step % 50 == 0:\n    torch.save(model.state_dict(), path)",
    .standing = {.theme = Theme::kPauses, .order = 1},
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeCallbackStall(const Parameters& parameters) {
  return std::make_unique<CallbackStall>(parameters);
}

}  // namespace telltale::rules::callback_stall
