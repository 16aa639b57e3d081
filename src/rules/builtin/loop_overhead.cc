// SPDX-License-Identifier: Apache-2.0
// LoopOverhead: a large share of the training loop is no training: evaluation, checkpoints,
// logging, callbacks, the garbage collector.
//
// CallbackStall knows what stands out at a regular distance. What is in every step, or in most of
// the loop, stands out of nothing: here it is summed over the loop and laid beside the loop's time.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/groups.h"
#include "rules/registry.h"

namespace telltale::rules::loop_overhead {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_seconds", 5, "s", "A shorter loop says nothing."},
    {"min_steps", 8, "steps", "Fewer TRAIN steps than this say nothing."},
    {"medium_share", 10, "%", "Share of the loop from which one kind of work is medium."},
    {"high_share", 30, "%", "Share from which it is high."},
    {"evaluation_share", 50, "%",
     "Evaluation is a part of most trainings: the share of the loop from which it is medium."},
    {"evaluation_high_share", 75, "%", "Share from which evaluation is high."},
};

constexpr std::int64_t kWarmupSteps = 3;
/// An open incident is described once in this time of the run.
constexpr std::int64_t kDescribeIntervalNs = 1'000'000'000;
/// An incident is over below this part of the share that opens it.
constexpr double kCloseShare = 0.7;

enum Kind : std::size_t { kEvaluation, kCheckpoint, kLogging, kCallbacks, kGarbage, kKinds };

struct KindDesc {
  std::string_view span;     ///< Of the framework; empty: it is no span.
  std::string_view subject;  ///< Behind the rank.
  std::string_view message;  ///< "… 34 % of the training loop".
  std::string_view each;     ///< What happened so many times.
  std::string_view advice;
};
constexpr std::array<KindDesc, kKinds> kDescs = {{
    {"evaluation", "evaluation", "Evaluation takes", "evaluations",
     "Evaluate less often, on a fixed part of the data, or in another process from checkpoints; "
     "run "
     "it under torch.no_grad() with a larger batch."},
    {"checkpoint", "checkpoints", "Writing checkpoints takes", "checkpoints",
     "Write checkpoints less often, or copy to host memory and write on a thread "
     "(torch.distributed.checkpoint.async_save)."},
    {"logging", "logging", "Logging takes", "calls of a logger of 1 ms or more",
     "Log every N steps, scalars in place of histograms and pictures, from a queue or a thread."},
    {"callbacks", "callbacks", "Callbacks take", "steps with callbacks of 1 ms or more",
     "Do less in callbacks, or every N steps; telltale.span() around their parts names them."},
    {"", "garbage collector", "Python's garbage collector takes", "steps with a pause",
     "Remove gc.collect() from the loop; call gc.freeze() once model and data are made; keep fewer "
     "small objects alive (arrays in place of lists of Python objects)."},
}};

class LoopOverhead final : public Rule {
 public:
  explicit LoopOverhead(const Parameters& p)
      : min_ns_(p.Get("min_seconds") * 1e9),
        min_steps_(std::max<std::int64_t>(1, p.GetInt("min_steps"))),
        medium_(p.Get("medium_share") / 100),
        high_(p.Get("high_share") / 100),
        evaluation_medium_(p.Get("evaluation_share") / 100),
        evaluation_high_(p.Get("evaluation_high_share") / 100) {}

  bool Wants(const Series& series) override {
    if (series.table == format::TableId::kScalars) return series.name == "gc_ms";
    if (series.table != format::TableId::kSpans) return true;
    if (series.collection != "runtime") return false;
    const auto* found = std::find_if(kDescs.begin(), kDescs.end(), [&](const KindDesc& desc) {
      return !desc.span.empty() && desc.span == series.name;
    });
    if (found == kDescs.end()) return false;
    if (kinds_.size() <= series.id) kinds_.resize(series.id + 1, kKinds);
    kinds_[series.id] = static_cast<std::size_t>(found - kDescs.begin());
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step, reporter);
    } else if (const auto* span = record.As<format::SpanRow>()) {
      if (record.series < kinds_.size() && kinds_[record.series] < kKinds) {
        Add(*span, kinds_[record.series], static_cast<double>(span->duration_ns));
      }
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      if (std::isfinite(scalar->value)) Collected(*scalar);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { End(process, reporter); });
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  struct Part {
    double ns = 0;
    std::int64_t count = 0;
    bool open = false;
    Incident incident;
  };

  struct Process : TrainingProcess {
    std::int64_t steps = 0;
    std::int64_t first_step = -1;
    std::int64_t begin_ns = 0;  ///< Of the loop, warm-up left out.
    std::int64_t end_ns = 0;    ///< Of the newest TRAIN step.
    std::int64_t described_ns = 0;
    std::int64_t newest_ns = 0;  ///< Duration of the newest TRAIN step.
    double eval_steps_ns = 0;
    std::int64_t eval_steps = 0;
    std::int64_t collected_step = -1;  ///< A TRAIN step that is still open,
    double collected_ns = 0;           ///< and the pauses of the garbage collector in it.
    std::array<Part, kKinds> parts;

    double loop_ns() const { return static_cast<double>(end_ns - begin_ns); }
  };

  /// Of any row of a process: what it says lies in the loop.
  template <class Row>
  void Add(const Row& row, std::size_t kind, double ns) {
    if (!(ns > 0)) return;
    for (auto& [key, process] : processes_) {
      if (process.pid != row.pid || process.rank != row.rank || process.writer != writer_) continue;
      if (process.begin_ns == 0 || row.time_ns < process.begin_ns) continue;
      process.parts[kind].ns += ns;
      ++process.parts[kind].count;
    }
  }

  /// Pauses of the garbage collector are told later than they were, with their step: those before
  /// the loop, and those behind its last step, are none of it.
  void Collected(const format::ScalarRow& row) {
    const double ns = row.value * 1e6;
    if (row.mode != "TRAIN") {
      Add(row, kGarbage, ns);
      return;
    }
    for (auto& [key, process] : processes_) {
      if (process.pid != row.pid || process.rank != row.rank || process.writer != writer_) continue;
      if (process.begin_ns != 0 && row.step < process.first_step) continue;
      if (row.step > process.last_step) {
        process.collected_step = row.step;
        process.collected_ns = ns;
      } else if (process.begin_ns != 0) {
        AddCollected(&process, row.step == process.last_step ? Bounded(process, ns) : ns);
      }
    }
  }

  static double Bounded(const Process& process, double ns) {
    return std::min(ns, static_cast<double>(process.newest_ns));
  }

  static void AddCollected(Process* process, double ns) {
    process->parts[kGarbage].ns += ns;
    ++process->parts[kGarbage].count;
  }

  void OnStep(const format::StepRow& row, Reporter* reporter) {
    if (row.duration_ns <= 0) return;
    if (row.mode != "TRAIN") {
      for (auto& [key, process] : processes_) {
        if (process.pid != row.pid || process.rank != row.rank || process.writer != writer_ ||
            process.begin_ns == 0) {
          continue;
        }
        process.eval_steps_ns += static_cast<double>(row.duration_ns);
        ++process.eval_steps;
      }
      return;
    }
    Process* process =
        processes_.Find(row, writer_, [&](Process* former) { End(former, reporter); });
    if (process == nullptr || !process->BeginStep(row.step)) return;
    if (++process->steps <= kWarmupSteps) return;
    if (process->begin_ns == 0) {
      process->first_step = row.step;
      process->begin_ns = row.time_ns;
    }
    process->end_ns = row.time_ns + row.duration_ns;
    process->newest_ns = row.duration_ns;
    if (process->collected_step == row.step) {
      AddCollected(process, Bounded(*process, process->collected_ns));
      process->collected_step = -1;
    }
    if (process->loop_ns() < min_ns_ || process->steps - kWarmupSteps < min_steps_) return;
    has_data_ = true;
    if (process->end_ns < process->described_ns + kDescribeIntervalNs) return;
    process->described_ns = process->end_ns;
    for (std::size_t kind = 0; kind < kKinds; ++kind) Judge(process, kind, reporter);
  }

  /// Time of a kind in the loop, each second once.
  static double Taken(const Process& process, std::size_t kind) {
    const Part& part = process.parts[kind];
    // Where an evaluation has a span, that holds its steps and what lies between them.
    if (kind == kEvaluation) return std::max(part.ns, process.eval_steps_ns);
    if (kind != kCallbacks) return part.ns;
    // Callbacks call what has a span of its own.
    return std::max(0.0, part.ns - process.parts[kCheckpoint].ns - process.parts[kLogging].ns);
  }

  void Judge(Process* process, std::size_t kind, Reporter* reporter) {
    Part& part = process->parts[kind];
    const double taken = Taken(*process, kind);
    const double share = std::min(1.0, taken / process->loop_ns());
    const double medium = kind == kEvaluation ? evaluation_medium_ : medium_;
    const double high = kind == kEvaluation ? evaluation_high_ : high_;
    if (!part.open && share < medium) return;
    if (part.open && share < kCloseShare * medium) {
      Describe(process, kind, taken, share);
      reporter->Recover(part.incident);
      part.open = false;
      return;
    }
    if (!part.open) {
      processes_.Open(process, process->first_step, process->begin_ns);
      part.open = true;
      part.incident = process->incident;
      part.incident.subject += fmt::format(", {}", kDescs[kind].subject);
    }
    part.incident.severity = share >= high ? Severity::kHigh : Severity::kMedium;
    Describe(process, kind, taken, share);
    reporter->Report(part.incident);
  }

  static void Describe(Process* process, std::size_t kind, double taken, double share) {
    const KindDesc& desc = kDescs[kind];
    Part& part = process->parts[kind];
    Incident& incident = part.incident;
    const bool by_steps = kind == kEvaluation && part.ns < process->eval_steps_ns;
    const std::int64_t count = by_steps ? process->eval_steps : part.count;
    const std::string_view each = by_steps ? "batches of evaluation" : desc.each;
    incident.last_step = process->last_step;
    incident.end_ns = process->end_ns;
    incident.cost_seconds = taken / 1e9;
    incident.message = fmt::format("{} {:.0f} % of the training loop", desc.message, share * 100);
    incident.cause = fmt::format("{} {} took {} s of {} s in {} training steps.", count, each,
                                 Figure(taken / 1e9), Figure(process->loop_ns() / 1e9),
                                 process->steps - kWarmupSteps);
    incident.advice = desc.advice;
    incident.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["share"] = Rounded(share);
    evidence["seconds"] = Rounded(taken / 1e9);
    evidence["loop_seconds"] = Rounded(process->loop_ns() / 1e9);
    evidence["times"] = count;
    evidence["steps"] = process->steps - kWarmupSteps;
    evidence[kExplainsSeconds] = Rounded(taken / 1e9);
    incident.evidence = JsonText(evidence);
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      Part& part = process->parts[kind];
      if (!part.open) continue;
      const double taken = Taken(*process, kind);
      Describe(process, kind, taken, std::min(1.0, taken / process->loop_ns()));
      reporter->Close(part.incident);
      part.open = false;
    }
    process->open = false;
  }

  const double min_ns_;
  const std::int64_t min_steps_;
  const double medium_;
  const double high_;
  const double evaluation_medium_;
  const double evaluation_high_;

  ProcessTable<Process> processes_;
  std::vector<std::size_t> kinds_;  ///< By series: of a span of the framework.
  std::uint32_t writer_ = 0;        ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kLoopOverheadDesc{
    .name = "LoopOverhead",
    .summary =
        "A large share of the training loop is no training: evaluation, checkpoints, logging, "
        "callbacks, the garbage collector.",
    .formula =
        "The loop lasts from the fourth TRAIN step of a process to its newest. Share of a kind = "
        "its time / time of the loop. Evaluation: the larger of its spans and the EVAL and PREDICT "
        "steps; checkpoints, logging, callbacks: the framework's spans, callbacks without the "
        "checkpoints and logging in them; garbage collector: the scalar gc_ms of the loop's steps, "
        "of its newest one at most what that lasted. Once the loop has "
        "min_steps and min_seconds: medium from medium_share (evaluation from evaluation_share), "
        "high from high_share (evaluation_high_share). Over below 70 % of the share that opens it, "
        "and where the process ends. Cost = time of the kind.",
    .how_to_fix =
        "Do it less often, on a part of the data, or on a thread or in a process beside the "
        "training.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
                  store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kOwn,
    .by_default = true,
    .example = "for batch in loader:\n    train(batch)\n    gc.collect()",
    .standing = {.theme = Theme::kPauses, .order = 0},
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeLoopOverhead(const Parameters& parameters) {
  return std::make_unique<LoopOverhead>(parameters);
}

}  // namespace telltale::rules::loop_overhead
