// SPDX-License-Identifier: Apache-2.0
// IdleAccelerators: a GPU that the run holds does next to nothing for minutes.
//
// People write this by hand around nvidia-smi ("GPU below X % for N minutes: stop the job"). A
// single busy sample does not start the time anew, and a device that the run never touched is
// another thing than one that fell silent.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/json.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::idle_accelerators {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"utilization", 5, "%", "A GPU that is busier than this is not idle."},
    {"minutes", 10, "min", "Time for which it must be idle."},
};

/// Share of the window in which the device may be busy for a moment.
constexpr double kBlips = 0.05;
/// It is over where it was busy for this share of a window.
constexpr double kOver = 0.2;
/// Percent of its memory from which somebody holds a device: drivers alone take a little.
constexpr double kHeldMemory = 3;
constexpr double kCells = 40;  ///< Of a window.

class IdleAccelerators final : public Rule {
 public:
  explicit IdleAccelerators(const Parameters& p)
      : utilization_(p.Get("utilization")), window_s_(60 * std::max(0.1, p.Get("minutes"))) {}

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kMetrics) return false;
    const int gpu = UnitOf(series.collection, "gpu:");
    if (gpu < 0) return false;
    const What what = series.name == "gpu.utilization"    ? kUtilization
                      : series.name == "gpu.memory_used"  ? kMemoryUsed
                      : series.name == "gpu.memory_total" ? kMemoryTotal
                                                          : kNone;
    if (what == kNone) return false;
    sampler_.Read(series, what, gpu);
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    sampler_.OnRecord(record, [&](const SampledNode& node, const Sample& sample) {
      OnSample(node, sample, reporter);
    });
  }

  void OnEnd(Reporter* reporter) override {
    sampler_.Finish(
        [&](const SampledNode& node, const Sample& sample) { OnSample(node, sample, reporter); });
    for (auto& [key, device] : devices_) {
      if (device.watched.open) reporter->Close(device.watched.incident);
      device.watched.open = false;
    }
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return !devices_.empty(); }

 private:
  enum What : int { kNone, kUtilization, kMemoryUsed, kMemoryTotal };

  struct Cell : CellBase {
    using CellBase::CellBase;
    double busy_s = 0;
    TimeMean utilization, memory;  ///< Percent; percent of the device's memory.
    void Add(const Cell& other) {
      AddBase(other);
      busy_s += other.busy_s;
      utilization.Add(other.utilization);
      memory.Add(other.memory);
    }
  };

  struct Device {
    explicit Device(double window_s) : window(window_s / kCells, window_s) {}
    CellWindow<Cell> window;
    Watched watched;
    std::string subject;
    bool used = false;  ///< It was busy, or held memory, at any time.
    double idle_s = 0;
    double cost_s = 0;
  };

  void OnSample(const SampledNode& node, const Sample& sample, Reporter* reporter) {
    for (const SampleValue& value : sample.values) {
      if (value.what != kUtilization) continue;
      const auto [at, added] = devices_.try_emplace({node.writer, value.unit}, window_s_);
      Device& device = at->second;
      if (added) device.subject = fmt::format("gpu:{} on {}", value.unit, node.name);
      Cell cell(sample);
      cell.utilization.Add(value.value, cell.seconds);
      cell.busy_s = value.value > utilization_ ? cell.seconds : 0;
      const double used = sample.Of(kMemoryUsed, value.unit);
      const double total = sample.Of(kMemoryTotal, value.unit);
      const double percent = total > 0 ? 100 * used / total : kNothing;
      cell.memory.Add(percent, cell.seconds);
      device.used = device.used || cell.busy_s > 0 || percent >= kHeldMemory;
      device.watched.CloseBefore(cell, reporter);
      if (device.window.Push(cell)) Judge(&device, reporter);
    }
  }

  void Judge(Device* device, Reporter* reporter) {
    const Cell& total = device->window.total();
    const double busy = total.busy_s / total.seconds;
    Watched& watched = device->watched;
    if (watched.open && busy > kOver) {
      reporter->Recover(watched.incident);
      watched.open = false;
      return;
    }
    if (!device->window.full()) return;
    has_data_ = true;
    const Cell& newest = device->window.newest();
    if (!watched.open) {
      if (busy > kBlips) return;
      watched.Open(device->subject, total, Severity::kLow);
      device->idle_s = total.seconds - total.busy_s;
      device->cost_s = device->idle_s / static_cast<double>(devices_.size());
    } else {
      const double idle_s = newest.seconds - newest.busy_s;
      watched.Extend(newest);
      device->idle_s += idle_s;
      device->cost_s += idle_s / static_cast<double>(devices_.size());
    }
    Describe(device, busy);
    reporter->Report(watched.incident);
  }

  void Describe(Device* device, double busy) {
    const Cell& total = device->window.total();
    Incident& incident = device->watched.incident;
    const auto idle = std::count_if(devices_.begin(), devices_.end(),
                                    [](const auto& entry) { return entry.second.watched.open; });
    const bool all = static_cast<std::size_t>(idle) == devices_.size();
    if (device->used) device->watched.Raise(all ? Severity::kHigh : Severity::kMedium);
    const std::string gpu = device->subject.substr(0, device->subject.find(' '));
    const bool stepping = total.training();
    const bool held = total.memory.known() && total.memory.value() >= kHeldMemory;
    incident.message = device->used ? fmt::format("{} is idle for {}", gpu, Lasting(device->idle_s))
                                    : fmt::format("{} is not used", gpu);
    const std::string how =
        fmt::format("{} was busy for {:.1f} % of the newest {} ({:.1f} % mean)", gpu, 100 * busy,
                    Lasting(total.seconds), total.utilization.value());
    if (!device->used) {
      incident.cause = fmt::format("{} and holds no memory: nothing was put on it.", how);
      incident.advice =
          "Give it back (a smaller machine, --gpus, CUDA_VISIBLE_DEVICES), or start a rank for it "
          "(torchrun --nproc-per-node).";
    } else if (!stepping) {
      incident.cause = fmt::format("{}, and no training step ended in most of that time.", how);
      incident.advice =
          "Look what the training does (HungTraining, the stacks of its threads); stop it where it "
          "is done, so that the machine costs nothing.";
    } else if (!held && total.memory.known()) {
      incident.cause =
          fmt::format("{} and holds no memory, while training steps go on without it.", how);
      incident.advice =
          "Look on which device the model is: print(next(model.parameters()).device).";
    } else {
      incident.cause = fmt::format(
          "{}, while training steps go on: it is waited for nowhere, or the steps wait for data "
          "({:.0f} % of their time).",
          how, 100 * total.steps.wait());
      incident.advice = total.steps.wait() >= 0.1
                            ? "Look at InputBound: the model waits for its batches."
                            : "Look on which device the model and its batches are.";
    }
    incident.cost_seconds = device->cost_s;
    incident.confidence = total.training() || !device->used ? 0.9 : 0.8;
    nlohmann::ordered_json evidence;
    evidence["utilization"] = Rounded(total.utilization.value());
    evidence["busy_share"] = Rounded(busy);
    evidence["idle_seconds"] = Rounded(device->idle_s);
    evidence["window_seconds"] = Rounded(total.seconds);
    if (total.memory.known()) evidence["memory_percent"] = Rounded(total.memory.value());
    evidence["used_before"] = device->used;
    evidence["steps"] = total.steps.count;
    evidence["waits_for_data"] = Rounded(total.steps.wait());
    evidence["gpus"] = devices_.size();
    evidence["gpus_idle"] = idle;
    incident.evidence = JsonText(evidence);
  }

  const double utilization_;
  const double window_s_;
  MachineSampler sampler_;
  std::map<std::pair<std::uint32_t, std::int32_t>, Device> devices_;  ///< By (writer, GPU).
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kIdleAcceleratorsDesc{
    .name = "IdleAccelerators",
    .summary = "A GPU that the run holds does next to nothing for minutes.",
    .formula =
        "For each GPU the newest `minutes` of samples, without a gap: idle where gpu.utilization "
        "is "
        "above `utilization` in at most 5 % of that time; over where it is in more than 20 %. Low "
        "where the device was never busy and never held 3 % of its memory, else medium, high where "
        "every GPU of the run is idle. Cost = idle time / number of GPUs (assumption: all of them "
        "cost the same).",
    .how_to_fix =
        "Stop a training that is done or hangs; put the model on the device; start one rank a GPU; "
        "or take a machine with fewer GPUs.",
    .table_mask = MachineSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .family = Family::kOwn,
    .example = "A job of eight GPUs that was started with torchrun --nproc-per-node=4.",
    .standing = {.theme = Theme::kInput, .order = 7},
    .data_mask = DataMask(Datum::kSamples, Datum::kGpu),
};

std::unique_ptr<Rule> MakeIdleAccelerators(const Parameters& parameters) {
  return std::make_unique<IdleAccelerators>(parameters);
}

}  // namespace telltale::rules::idle_accelerators
