// SPDX-License-Identifier: Apache-2.0
// PrecisionAdvice: the training computes in a wider number format than it needs.
//
// Lists of kernel names tell wrongly on each new GPU which kernels use tensor cores; their activity
// counter does not, and the dtypes of the weights say the rest.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::precision_advice {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"tensor_active", 5, "%", "Tensor cores that are active for less of the time are not used."},
    {"utilization", 50, "%", "GPUs that are less busy have other problems first."},
    {"window_seconds", 60, "s", "Length of the sliding window."},
    {"float64_share", 50, "%", "Share of the weights' elements in float64 from which it is told."},
};

/// Weights of a process whose dtype is looked at: enough to know what a model is made of.
constexpr std::size_t kTensors = 64;
/// Assumed of a step's compute: it takes half of its time in the narrower format.
constexpr double kGain = 0.5;
constexpr double kLeastSteps = 10;

class PrecisionAdvice final : public LoopedRule<PrecisionAdvice> {
 public:
  explicit PrecisionAdvice(const Parameters& p)
      : tensor_active_(p.Get("tensor_active")),
        utilization_(p.Get("utilization")),
        window_s_(std::max(1.0, p.Get("window_seconds"))),
        float64_(p.Get("float64_share") / 100) {}

  bool Wants(const Series& series) override {
    if (series.table == format::TableId::kStatistics) {
      if (series.collection != "weights") return false;
      // Rows of millions of captures must not come here for what the first says.
      return ++wanted_[{series.rank, series.pid, series.attempt}] <= kTensors;
    }
    if (series.table != format::TableId::kMetrics) return false;
    const int gpu = UnitOf(series.collection, "gpu:");
    const What what = series.name == "gpu.utilization"     ? kUtilization
                      : series.name == "gpu.tensor_active" ? kActive
                                                           : kNone;
    if (gpu < 0 || what == kNone) return false;
    sampler_.Read(series, what, gpu);
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* row = record.As<format::StatisticRow>()) {
      OnWeights(*row, record, reporter);
      return;
    }
    sampler_.OnRecord(record, [&](const SampledNode& node, const Sample& sample) {
      OnSample(node, sample, reporter);
    });
    if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN" && step->duration_ns > 0) OnStep(*step, record.writer, reporter);
    }
  }

  void OnEnd(Reporter* reporter) override {
    sampler_.Finish(
        [&](const SampledNode& node, const Sample& sample) { OnSample(node, sample, reporter); });
    for (auto& [writer, machine] : machines_) {
      if (machine.tensor_cores.open) reporter->Close(machine.tensor_cores.incident);
      if (machine.wide.open) reporter->Close(machine.wide.incident);
      machine.tensor_cores.open = machine.wide.open = false;
    }
  }

  bool has_data() const override { return has_data_; }

 private:
  enum What : int { kNone, kUtilization, kActive };

  struct Cell : CellBase {
    using CellBase::CellBase;
    TimeMean utilization, active;
    void Add(const Cell& other) {
      AddBase(other);
      utilization.Add(other.utilization);
      active.Add(other.active);
    }
  };
  struct Machine {
    explicit Machine(double window_s) : window(std::min(5.0, window_s), window_s) {}
    CellWindow<Cell> window;
    std::uint32_t attempt = 0;                            ///< Whose weights and steps these are.
    std::map<std::string, double, std::less<>> elements;  ///< Of weights, by dtype.
    bool gpu = false;
    Watched tensor_cores, wide;
    double tensor_cost_s = 0;
    // Of TRAIN steps since weights were known.
    double work_ns = 0, steps = 0;
    std::set<std::int32_t> pids;  ///< That made them.
    std::int64_t described_ns = 0;
  };

  Machine& MachineOf(std::uint32_t writer) {
    return machines_.try_emplace(writer, window_s_).first->second;
  }

  /// False where the row is of an attempt that is over. A restart may have changed the format: what
  /// the weights were before says nothing about now.
  static bool Renew(Machine* machine, std::uint32_t attempt, Reporter* reporter) {
    if (attempt <= machine->attempt) return attempt == machine->attempt;
    machine->attempt = attempt;
    machine->elements.clear();
    machine->pids.clear();
    machine->work_ns = machine->steps = 0;
    if (machine->wide.open) reporter->Close(machine->wide.incident);
    machine->wide.open = false;
    return true;
  }

  void OnWeights(const format::StatisticRow& row, const Record& record, Reporter* reporter) {
    if (record.series >= seen_.size()) seen_.resize(record.series + 1);
    if (seen_[record.series]) return;
    seen_[record.series] = true;
    Machine& machine = MachineOf(record.writer);
    if (!Renew(&machine, row.attempt, reporter)) return;
    machine.elements[std::string(row.dtype)] += static_cast<double>(row.count);
    has_data_ = true;
  }

  void OnSample(const SampledNode& node, const Sample& sample, Reporter* reporter) {
    Machine& machine = MachineOf(node.writer);
    machine.gpu = true;
    Cell cell(sample);
    cell.utilization.Add(sample.MeanOf(kUtilization, node.used_gpus), cell.seconds);
    cell.active.Add(sample.MeanOf(kActive, node.used_gpus), cell.seconds);
    machine.tensor_cores.CloseBefore(cell, reporter);
    if (machine.window.Push(cell)) Judge(&machine, node, reporter);
  }

  static double Share(const Machine& machine, std::string_view dtype) {
    double all = 0;
    double of = 0;
    for (const auto& [name, elements] : machine.elements) {
      all += elements;
      if (name == dtype) of += elements;
    }
    return all > 0 ? of / all : 0;
  }

  void Judge(Machine* machine, const SampledNode& node, Reporter* reporter) {
    const Cell& total = machine->window.total();
    if (!machine->window.full() || !total.active.known() || !total.utilization.known()) return;
    has_data_ = true;
    Watched& watched = machine->tensor_cores;
    const double active = total.active.value();
    const double busy = total.utilization.value();
    if (!watched.open) {
      if (active >= tensor_active_ || busy < utilization_ || !total.training()) return;
      watched.Open(fmt::format("GPUs of {}", node.name), total, Severity::kMedium);
      machine->tensor_cost_s = Cost(total);
    } else if (active >= 2 * tensor_active_) {
      reporter->Recover(watched.incident);
      watched.open = false;
      return;
    } else {
      watched.Extend(machine->window.newest());
      machine->tensor_cost_s += Cost(machine->window.newest());
    }
    Incident& incident = watched.incident;
    const double half = Share(*machine, "float16") + Share(*machine, "bfloat16");
    const double single = Share(*machine, "float32");
    const double wide = Share(*machine, "float64");
    incident.message = "Tensor cores are not used";
    const std::string of = machine->elements.empty()
                               ? std::string("dtypes of the weights were not captured")
                               : fmt::format(
                                     "{:.0f} % of the weights are float32, {:.0f} % float64, "
                                     "{:.0f} % of 16 bits",
                                     100 * single, 100 * wide, 100 * half);
    incident.cause =
        fmt::format("GPUs are busy for {:.0f} % of the time, their tensor cores for {:.1f} %; {}.",
                    busy, active, of);
    incident.advice =
        half > 0.5
            ? "The format is right, the shapes may not be: make channels, hidden sizes and batch "
              "multiples of 8 (of 16 for fp8), and use channels_last for convolutions."
        : wide > 0.5 ? "Train in float32 (model.float(), batches too), then with "
                       "torch.autocast(\"cuda\", dtype=torch.bfloat16)."
                     : "Train under torch.autocast(\"cuda\", dtype=torch.bfloat16), or at least "
                       "let products "
                       "of float32 use TF32: torch.set_float32_matmul_precision(\"high\").";
    incident.cost_seconds = machine->tensor_cost_s;
    incident.confidence = machine->elements.empty() ? 0.6 : half > 0.5 ? 0.5 : 0.75;
    nlohmann::ordered_json evidence;
    evidence["tensor_active"] = Rounded(active);
    evidence["utilization"] = Rounded(busy);
    evidence["float32_share"] = Rounded(single);
    evidence["float64_share"] = Rounded(wide);
    evidence["half_share"] = Rounded(half);
    evidence["assumed_gain"] = kGain;
    evidence["window_seconds"] = Rounded(total.seconds);
    incident.evidence = JsonText(evidence);
    reporter->Report(incident);
  }

  static double Cost(const Cell& cell) {
    return kGain * cell.seconds * cell.utilization.value() / 100;
  }

  /// Weights in float64 cost on every machine.
  void OnStep(const format::StepRow& step, std::uint32_t writer, Reporter* reporter) {
    const auto found = machines_.find(writer);
    if (found == machines_.end()) return;
    Machine& machine = found->second;
    if (!Renew(&machine, step.attempt, reporter) || machine.elements.empty()) return;
    const auto waited = std::clamp<std::int64_t>(step.data_wait_ns, 0, step.duration_ns);
    machine.work_ns += static_cast<double>(step.duration_ns - waited);
    machine.steps += 1;
    machine.pids.insert(step.pid);
    const std::int64_t end_ns = step.time_ns + step.duration_ns;
    const double share = Share(machine, "float64");
    if (machine.steps < kLeastSteps || share < float64_) return;
    Watched& watched = machine.wide;
    if (watched.open && end_ns < machine.described_ns + 1'000'000'000) return;
    machine.described_ns = end_ns;
    CellBase now;
    now.from_ns = step.time_ns;
    now.to_ns = end_ns;
    now.steps.Add(step);
    if (!watched.open) {
      watched.Open(fmt::format("weights of rank {}", step.rank), now, Severity::kLow);
    }
    // The first sample of a GPU may come behind the first steps.
    if (machine.gpu) watched.Raise(Severity::kMedium);
    watched.Extend(now);
    Incident& incident = watched.incident;
    incident.message = "Weights are float64";
    incident.cause = fmt::format(
        "{:.0f} % of the weights' elements are float64: twice the bytes of float32, and at most "
        "half "
        "as many operations a second{}.",
        100 * share, machine.gpu ? " (on most GPUs a thirty-second)" : "");
    incident.advice =
        "Train in float32 unless the problem needs 15 digits: model.float(), and batches as "
        "float32 "
        "(numpy makes float64: astype(numpy.float32)).";
    // The ranks of a machine lose the same time side by side.
    incident.cost_seconds =
        kGain * machine.work_ns / 1e9 / static_cast<double>(machine.pids.size());
    incident.confidence = 0.7;
    nlohmann::ordered_json evidence;
    evidence["float64_share"] = Rounded(share);
    evidence["gpu"] = machine.gpu;
    evidence["assumed_gain"] = kGain;
    evidence["steps"] = machine.steps;
    incident.evidence = JsonText(evidence);
    reporter->Report(incident);
  }

  const double tensor_active_;
  const double utilization_;
  const double window_s_;
  const double float64_;
  MachineSampler sampler_;
  /// Series of weights by (rank, pid, attempt).
  std::map<std::tuple<std::int32_t, std::int32_t, std::uint32_t>, std::size_t> wanted_;
  std::vector<bool> seen_;                     ///< By series.
  std::map<std::uint32_t, Machine> machines_;  ///< By writer.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kPrecisionAdviceDesc{
    .name = "PrecisionAdvice",
    .summary = "The training computes in a wider number format than it needs.",
    .formula =
        "Tensor cores: over window_seconds in which TRAIN steps go on, the mean gpu.utilization of "
        "a node's GPUs (those that were ever busy) is at least `utilization` and their mean "
        "gpu.tensor_active below tensor_active: medium; over from twice "
        "tensor_active. float64: at least float64_share of the elements of the captured "
        "weights (the first 64 of a process, of the present attempt) have that dtype, after 10 "
        "TRAIN steps: low, medium with a GPU. Cost = half of the busy time, or of the "
        "steps' time less waits for data (assumption: the narrower format takes half as long).",
    .how_to_fix =
        "Automatic mixed precision in bfloat16; TF32 for products of float32; sizes that are "
        "multiples of 8; float32 instead of float64.",
    .table_mask = MachineSampler::kTables | store::MaskOf(format::TableId::kStatistics),
    .wrong_result = false,
    .parameters = kParameters,
    .family = Family::kOwn,
    .example =
        "`torch.set_default_dtype(torch.float64)`, left over from a test of gradients; or a "
        "transformer in float32 on a GPU that has tensor cores.",
    .data_mask = DataMask(Datum::kSamples, Datum::kGpu, Datum::kSteps),
};

std::unique_ptr<Rule> MakePrecisionAdvice(const Parameters& parameters) {
  return std::make_unique<PrecisionAdvice>(parameters);
}

}  // namespace telltale::rules::precision_advice
