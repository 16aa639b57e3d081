// SPDX-License-Identifier: Apache-2.0
// HostSync: the host waits for the device inside the step, and the device then waits for the host.
//
// Work is given to a device ahead of time. A .item(), .cpu(), print(tensor) or a branch on a value
// ends that lead: the host waits until all is done, and until it has given new work the device has
// none. Where the device stays busy the wait costs nothing, so a wait alone is no finding.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::host_sync {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"medium_share", 5, "%", "Share of step time lost to waits, from which it is medium."},
    {"high_share", 20, "%", "Share from which it is high."},
    {"window_steps", 50, "steps", "Steps in the sliding window."},
    {"warmup_steps", 10, "steps", "First steps of an attempt, which do not count."},
};

/// Calls that end when the device has done what it was given; all of them, or one stream's.
constexpr std::array<std::string_view, 16> kWaits = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::nonzero",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "hipDeviceSynchronize",
    "hipEventSynchronize",
    "hipMemcpyWithStream",
    "hipStreamSynchronize",
    "torch.cuda.synchronize",
};

constexpr std::size_t kMostWaits = 4096;  ///< Of one step; beyond them it is clear enough.
constexpr std::size_t kNames = 3;

class HostSync final : public Rule {
 public:
  explicit HostSync(const Parameters& p)
      : medium_(p.Get("medium_share") / 100),
        high_(p.Get("high_share") / 100),
        window_steps_(
            static_cast<std::size_t>(std::max<std::int64_t>(2, p.GetInt("window_steps")))),
        warmup_steps_(std::max<std::int64_t>(0, p.GetInt("warmup_steps"))) {}

  bool Wants(const Series& series) override {
    if (series.table == format::TableId::kSpans) {
      if (std::find(kWaits.begin(), kWaits.end(), series.name) == kWaits.end()) return false;
      if (names_.size() <= series.id) names_.resize(series.id + 1);
      names_[series.id] = series.name;
      return true;
    }
    if (series.table != format::TableId::kMetrics || series.name != "gpu.utilization") return false;
    sampler_.Read(series, kUtilization, UnitOf(series.collection, "gpu:"));
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    sampler_.OnRecord(record, [&](const SampledNode& node, const Sample& sample) {
      CellWindow<Cell>& window = load_.try_emplace(node.writer, 1, 10).first->second;
      Cell cell(sample);
      cell.utilization.Add(sample.MeanOf(kUtilization, node.used_gpus), cell.seconds);
      window.Push(cell);
    });
    if (const auto* span = record.As<format::SpanRow>()) {
      if (record.series < names_.size()) OnWait(*span, record);
    } else if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step, record.writer, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, record.writer, [&](Process* process) { Close(process, reporter); });
        waits_.erase({record.writer, event->pid});
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) Close(&process, reporter);
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return !load_.empty(); }

 private:
  enum What : int { kNone, kUtilization };

  struct Cell : CellBase {
    using CellBase::CellBase;
    TimeMean utilization;
    void Add(const Cell& other) {
      AddBase(other);
      utilization.Add(other.utilization);
    }
  };

  struct Wait {
    std::int64_t from_ns = 0, to_ns = 0;
    std::uint32_t series = kNoSeries;
  };

  /// A step and the waits in it.
  struct Judged {
    std::int64_t step = -1, start_ns = 0;
    double ns = 0;
    double wait_ns = 0;  ///< Time in waits, each moment once.
    double waits = 0;
    double idle = 0;  ///< Share of the time in which the devices had nothing to do.
  };

  struct Process : TrainingProcess {
    std::int64_t seen = 0;
    std::deque<Judged> window;
    std::map<std::uint32_t, double> by_series;  ///< Time of the waits of each name.
    double cost_ns = 0;
  };

  /// Of the thread that trains, which is the main one: others may wait without harm.
  void OnWait(const format::SpanRow& span, const Record& record) {
    if (span.duration_ns < 0 || (span.tid != 0 && span.tid != span.pid)) return;
    std::vector<Wait>& waits = waits_[{record.writer, span.pid}];
    if (waits.size() >= kMostWaits) return;
    waits.push_back({span.time_ns, span.time_ns + span.duration_ns, record.series});
  }

  /// Waits that began in a step; one inside another counts once. Those before the step are dropped.
  Judged Take(const format::StepRow& step, std::uint32_t writer, Process* process) {
    Judged judged;
    judged.step = step.step;
    judged.start_ns = step.time_ns;
    judged.ns = static_cast<double>(step.duration_ns);
    const auto found = waits_.find({writer, step.pid});
    if (found == waits_.end()) return judged;
    std::vector<Wait>& waits = found->second;
    const std::int64_t end_ns = step.time_ns + step.duration_ns;
    std::sort(waits.begin(), waits.end(), [](const Wait& a, const Wait& b) {
      return a.from_ns != b.from_ns ? a.from_ns < b.from_ns : a.to_ns > b.to_ns;
    });
    std::int64_t covered_ns = step.time_ns;
    std::size_t kept = 0;
    for (const Wait& wait : waits) {
      if (wait.from_ns >= end_ns) {
        waits[kept++] = wait;
        continue;
      }
      if (wait.from_ns < step.time_ns || wait.to_ns <= covered_ns) continue;
      const double ns =
          static_cast<double>(std::min(wait.to_ns, end_ns) - std::max(wait.from_ns, covered_ns));
      judged.wait_ns += std::max(0.0, ns);
      judged.waits += wait.from_ns >= covered_ns ? 1 : 0;
      process->by_series[wait.series] += ns;
      covered_ns = wait.to_ns;
    }
    waits.resize(kept);
    return judged;
  }

  void OnStep(const format::StepRow& step, std::uint32_t writer, Reporter* reporter) {
    if (step.mode != "TRAIN" || step.duration_ns <= 0) return;
    Process* process =
        processes_.Find(step, writer, [&](Process* former) { Close(former, reporter); });
    if (process == nullptr || !process->BeginStep(step.step)) return;
    Judged judged = Take(step, writer, process);
    if (++process->seen <= warmup_steps_) {
      process->by_series.clear();
      return;
    }
    const auto load = load_.find(writer);
    if (load == load_.end() || !load->second.total().utilization.known()) return;
    judged.idle = std::clamp(1 - load->second.total().utilization.value() / 100, 0.0, 1.0);
    has_data_ = true;
    process->window.push_back(judged);
    if (process->window.size() > window_steps_) process->window.pop_front();
    if (process->open) process->cost_ns += LostNs(judged);
    if (process->window.size() < window_steps_) return;
    Judge(process, reporter);
  }

  /// A wait costs at most the time in which the device has nothing to do.
  static double LostNs(const Judged& judged) {
    return std::min(judged.wait_ns, judged.ns * judged.idle);
  }

  void Judge(Process* process, Reporter* reporter) {
    Judged sum;
    double lost_ns = 0;
    double with_waits = 0;
    for (const Judged& judged : process->window) {
      sum.ns += judged.ns;
      sum.wait_ns += judged.wait_ns;
      sum.waits += judged.waits;
      sum.idle += judged.idle;
      lost_ns += LostNs(judged);
      with_waits += judged.waits > 0 ? 1 : 0;
    }
    const auto count = static_cast<double>(process->window.size());
    const double share = lost_ns / sum.ns;
    const Judged& newest = process->window.back();
    if (!process->open) {
      if (share < medium_ || with_waits * 2 < count) return;
      processes_.Open(process, process->window.front().step, process->window.front().start_ns);
      process->incident.severity = Severity::kMedium;
      process->cost_ns = lost_ns;
    } else if (share < medium_ / 2) {
      process->incident.cost_seconds = process->cost_ns / 1e9;
      reporter->Recover(process->incident);
      process->open = false;
      process->window.clear();
      process->by_series.clear();
      return;
    }
    Incident& incident = process->incident;
    if (share >= high_) incident.severity = Severity::kHigh;
    incident.last_step = newest.step;
    incident.end_ns = newest.start_ns + static_cast<std::int64_t>(newest.ns);
    const double waits = sum.waits / count;
    incident.message = fmt::format("Host waits for device: {:.0f} % lost", 100 * share);
    std::vector<std::pair<double, std::string>> names;
    for (const auto& [series, ns] : process->by_series) names.emplace_back(ns, names_[series]);
    std::sort(names.begin(), names.end(),
              [](const auto& a, const auto& b) { return a.first > b.first; });
    if (names.size() > kNames) names.resize(kNames);
    std::string named;
    for (const auto& [ns, name] : names) named += (named.empty() ? "" : ", ") + name;
    incident.cause = fmt::format(
        "A step waits {} {} for the device ({}), {} ms of its {} ms, and the devices have nothing "
        "to do for {:.0f} % of the time.",
        Figure(waits), waits < 1.5 ? "time" : "times", named, Millis(sum.wait_ns / count),
        Millis(sum.ns / count), 100 * sum.idle / count);
    incident.advice =
        "Take .item(), .cpu(), print(tensor) and branches on values of tensors out of the step: "
        "add "
        "up on the device and read every 100th step; copy with non_blocking=True from pinned "
        "memory. torch.cuda.set_sync_debug_mode(\"warn\") names the lines.";
    incident.cost_seconds = process->cost_ns / 1e9;
    incident.confidence = waits >= 2 ? 0.85 : 0.7;
    nlohmann::ordered_json evidence;
    evidence["lost_share"] = Rounded(share);
    evidence["wait_share"] = Rounded(sum.wait_ns / sum.ns);
    evidence["waits_per_step"] = Rounded(waits);
    evidence["step_ms"] = Rounded(sum.ns / count / 1e6);
    evidence["wait_ms"] = Rounded(sum.wait_ns / count / 1e6);
    evidence["device_idle_share"] = Rounded(sum.idle / count);
    evidence["steps"] = process->window.size();
    evidence["calls"] = named;
    incident.evidence = JsonText(evidence);
    reporter->Report(incident);
  }

  /// No record of the process follows.
  static void Close(Process* process, Reporter* reporter) {
    if (process->open) {
      process->incident.cost_seconds = process->cost_ns / 1e9;
      reporter->Close(process->incident);
    }
    process->open = false;
  }

  const double medium_;
  const double high_;
  const std::size_t window_steps_;
  const std::int64_t warmup_steps_;
  MachineSampler sampler_;
  std::map<std::uint32_t, CellWindow<Cell>> load_;  ///< By writer: how busy its devices are.
  std::vector<std::string> names_;                  ///< By series: of spans that are waits.
  std::map<std::pair<std::uint32_t, std::int32_t>, std::vector<Wait>>
      waits_;  ///< By (writer, pid).
  ProcessTable<Process> processes_;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kHostSyncDesc{
    .name = "HostSync",
    .summary = "The host waits for the device inside the step, and the device then for the host.",
    .formula =
        "Waits: spans of the main thread that are named as calls which end when the device has "
        "done "
        "its work (cudaStreamSynchronize, cudaDeviceSynchronize, cudaMemcpy, aten::item and their "
        "like); one inside another counts once. Lost in a step = min(its waits, its duration × (1 "
        "− "
        "gpu.utilization of the newest 10 s)), of the GPUs that were ever busy, since a wait for a "
        "device that stays busy costs nothing. Share = Σ lost / Σ duration over the newest "
        "window_steps TRAIN steps of a rank, "
        "the first warmup_steps apart, at least half of which wait. Medium from medium_share, high "
        "from high_share, over below half of medium_share. Cost = Σ lost.",
    .how_to_fix =
        "Keep sums on the device and read them seldom; copy asynchronously from pinned memory; no "
        "branch on a value of a tensor.",
    .table_mask = MachineSampler::kTables | store::MaskOf(format::TableId::kSpans),
    .wrong_result = false,
    .parameters = kParameters,
    .family = Family::kOwn,
    .example = "`total_loss += loss.item()` in each step of a small model.",
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSamples, Datum::kGpu, Datum::kGpuLoad, Datum::kSteps),
};

std::unique_ptr<Rule> MakeHostSync(const Parameters& parameters) {
  return std::make_unique<HostSync>(parameters);
}

}  // namespace telltale::rules::host_sync
