// SPDX-License-Identifier: Apache-2.0
// StalledTrainingRule: a training makes no step any more, and is not over.
//
// SageMaker Debugger's rule of this name waits for new tensors of the whole job. Here each process
// is watched by itself: one rank that hangs is seen although another still writes. Time is that of
// the records: the machine's samples keep coming while a training hangs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/saturate.h"
#include "format/event_number.h"
#include "format/records.gen.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::stalled_training {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold", 1800, "s", "Time without a step, a tensor or a scalar."},
    {"stop_training_on_fire", 0, "", "1: the training is stopped when the rule fires."},
    {"training_job_name_prefix", 0, "",
     "SageMaker's name of the job to stop; here it is always the run that is watched.", ""},
};

constexpr std::int64_t kMinUnseenNs = 60'000'000'000;

class StalledTrainingRule final : public Rule {
 public:
  explicit StalledTrainingRule(const Parameters& p)
      : threshold_ns_(p.GetNs("threshold")), stop_(p.Get("stop_training_on_fire") != 0) {}

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kMetrics) return true;
    // Any sample tells the time; a few series of each machine are enough.
    return series.collection == "node" && ++clocks_[series.mode] <= 2;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (now_ns_ > 0 && record.ord_ns - now_ns_ > std::max(threshold_ns_ / 2, kMinUnseenNs)) {
      Unseen(record.ord_ns - now_ns_);
    }
    if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step, reporter);
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      OnProgress(*scalar, reporter);
    } else if (const auto* tensor = record.As<format::TensorRow>()) {
      OnProgress(*tensor, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, reporter);
    }
    if (record.ord_ns <= now_ns_) return;
    now_ns_ = record.ord_ns;
    if (now_ns_ >= look_ns_) Look(reporter);
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) Close(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  struct Process : TrainingProcess {
    std::int64_t progress_ns = 0;  ///< Newest; 0: it has made no step yet.
    std::int64_t steps = 0;
    Sum total_ns = 0;  ///< Of its steps.
  };

  template <class Row>
  Process* Find(const Row& row, Reporter* reporter) {
    return processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
  }

  void OnStep(const format::StepRow& step, Reporter* reporter) {
    Process* process = Find(step, reporter);
    if (process == nullptr) return;
    has_data_ = true;
    ++process->steps;
    process->total_ns += std::max<std::int64_t>(0, step.duration_ns);
    if (step.mode == "TRAIN") process->BeginStep(step.step);
    Progress(process, step.time_ns + std::max<std::int64_t>(0, step.duration_ns), reporter);
  }

  /// A process that has made no step may log for hours before it trains.
  template <class Row>
  void OnProgress(const Row& row, Reporter* reporter) {
    Process* process = Find(row, reporter);
    if (process != nullptr && process->steps > 0) Progress(process, row.time_ns, reporter);
  }

  void Progress(Process* process, std::int64_t ns, Reporter* reporter) {
    process->progress_ns = std::max(process->progress_ns, ns);
    if (!process->open || now_ns_ - process->progress_ns > threshold_ns_) return;
    Describe(process);
    reporter->Recover(process->incident);
    process->open = false;
  }

  void OnEvent(const format::EventRow& event, Reporter* reporter) {
    if (event.kind == "process.exit") {
      processes_.End(event, writer_, [&](Process* process) { Close(process, reporter); });
    } else if (event.kind == "run.attempt_end") {
      for (auto& [key, process] : processes_) {
        if (process.attempt > event.attempt) continue;
        Close(&process, reporter);
        process.progress_ns = 0;
        process.steps = 0;
      }
    } else if (event.kind == "gap") {
      // Nobody saw what happened meanwhile.
      const auto to = format::EventNumber(ParseJson(event.data), "to_ns", format::kTimeBound);
      if (!to) return;
      for (auto& [key, process] : processes_) {
        if (process.writer != writer_ || process.progress_ns == 0) continue;
        process.progress_ns = std::max(process.progress_ns, *to);
      }
    }
  }

  /// No record of anybody for so long: nobody watched, or the machine slept. It does not count.
  void Unseen(std::int64_t ns) {
    for (auto& [key, process] : processes_) {
      if (process.progress_ns == 0 || process.open) continue;
      process.progress_ns =
          std::min(SaturatingAdd(process.progress_ns, ns), format::kTimeBound.most);
    }
  }

  /// The time has come at which a process may have stalled.
  void Look(Reporter* reporter) {
    look_ns_ = now_ns_ + std::max<std::int64_t>(threshold_ns_ / 60, 100'000'000);
    for (auto& [key, process] : processes_) {
      if (process.progress_ns == 0) continue;
      const std::int64_t without = now_ns_ - process.progress_ns;
      if (without <= threshold_ns_) {
        look_ns_ = std::min(look_ns_, process.progress_ns + threshold_ns_ + 1);
        continue;
      }
      if (!process.open) {
        processes_.Open(&process, std::max<std::int64_t>(0, process.last_step),
                        process.progress_ns);
      }
      Describe(&process);
      reporter->Report(process.incident);
    }
  }

  void Close(Process* process, Reporter* reporter) {
    if (!process->open) return;
    Describe(process);
    reporter->Close(process->incident);
    process->open = false;
  }

  void Describe(Process* process) const {
    Incident& incident = process->incident;
    const double without_s =
        static_cast<double>(std::max<std::int64_t>(0, now_ns_ - incident.start_ns)) / 1e9;
    const double usual_s =
        static_cast<double>(process->total_ns) / static_cast<double>(process->steps) / 1e9;
    incident.severity = Severity::kHigh;
    incident.last_step = std::max(incident.first_step, process->last_step);
    incident.end_ns = std::max(incident.start_ns, now_ns_);
    incident.message = fmt::format("No step for {} minutes", Plain(without_s / 60));
    incident.cause = fmt::format(
        "{} ended its last step ({}) {} s ago and has recorded nothing since; its steps take {} s "
        "each. Why: cause not found.",
        incident.subject, process->last_step, Plain(without_s), Plain(usual_s));
    incident.advice =
        stop_ ? "The run is being stopped, as the rule was told; look at the threads' stacks "
                "(py-spy dump) where it happens again."
              : "Look at the threads' stacks (py-spy dump, gdb): a collective that one rank does "
                "not reach, a lock, a full disk, a loader that waits for its network.";
    // Up to the threshold a step may be slow; what is beyond it is lost in any case.
    incident.cost_seconds = without_s;
    incident.confidence = usual_s * 10e9 < static_cast<double>(threshold_ns_) ? 0.95 : 0.7;
    nlohmann::ordered_json evidence;
    evidence["seconds_without_progress"] = Rounded(without_s);
    evidence["last_step"] = process->last_step;
    evidence["usual_step_seconds"] = Rounded(usual_s);
    evidence["stop"] = stop_;
    incident.evidence = JsonText(evidence);
  }

  const std::int64_t threshold_ns_;
  const bool stop_;

  std::map<std::string, int, std::less<>> clocks_;  ///< Series of metrics, by node.
  ProcessTable<Process> processes_;
  std::int64_t now_ns_ = 0;
  std::int64_t look_ns_ = 0;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kStalledTrainingRuleDesc{
    .name = "StalledTrainingRule",
    .summary = "A training process makes no step any more and is not over.",
    .formula =
        "Of each process that has made a step: the time since its newest step, scalar or tensor, "
        "by the newest record of anything (samples of the machine keep coming). High where it is > "
        "threshold. Over with the next progress, and where the process or the attempt ends. A time "
        "in which the recorder itself was away (event gap), or from which there is no record of "
        "anything for more than max(threshold / 2, 60 s), does not count. Cost = the time without "
        "progress.",
    .how_to_fix =
        "Look where the threads stand: `py-spy dump --pid PID` or gdb. With several ranks compare "
        "them: one that is elsewhere is the one that others wait for. Give collectives a timeout.",
    .table_mask =
        store::MaskOf(format::TableId::kMetrics) | store::MaskOf(format::TableId::kSteps) |
        store::MaskOf(format::TableId::kScalars) | store::MaskOf(format::TableId::kTensors) |
        store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kModel,
    // HungTraining says the same earlier, and why.
    .by_default = false,
    .example =
        "A loader that waits for a server that does not answer: `requests.get(url)` without "
        "a timeout."};

std::unique_ptr<Rule> MakeStalledTrainingRule(const Parameters& parameters) {
  return std::make_unique<StalledTrainingRule>(parameters);
}

}  // namespace telltale::rules::stalled_training
