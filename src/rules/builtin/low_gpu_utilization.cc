// SPDX-License-Identifier: Apache-2.0
// LowGPUUtilization: a GPU that the training uses is not busy, or now busy and now not, and what
// the training waits for meanwhile.
//
// SageMaker Debugger's rule of this name takes every sample, start and end of the job too, reports
// it anew each minute and says nothing of the cause. Here only samples beside TRAIN steps count, an
// incident lasts while it holds, and the steps' own waits say why.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "analysis/quantiles.h"
#include "base/json.h"
#include "rules/builtin/node_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::low_gpu_utilization {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold_p95", 70, "%", "A GPU whose 95th percentile is below this is too little used."},
    {"threshold_p5", 10, "%", "Else one whose 5th percentile is below this is used unevenly."},
    {"window", 500, "samples", "Newest samples that are judged."},
    {"patience", 1000, "samples", "Samples beside steps before anything is said."},
};

/// The percentile must be this far beyond the threshold before an incident is over.
constexpr double kHysteresis = 5;
/// Shares from which a wait explains a GPU that idles.
constexpr double kMuchWait = 0.1;
constexpr double kBusyCores = 70;

class LowGPUUtilization final : public Rule {
 public:
  explicit LowGPUUtilization(const Parameters& p)
      : threshold_p95_(p.Get("threshold_p95")),
        threshold_p5_(p.Get("threshold_p5")),
        window_(static_cast<std::size_t>(std::clamp<std::int64_t>(p.GetInt("window"), 2, 100'000))),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))),
        judge_every_(std::clamp<std::int64_t>(patience_ / 10, 1, 10)) {}

  bool Wants(const Series& series) override { return sampler_.Wants(series); }

  void OnRecord(const Record& record, Reporter* reporter) override {
    sampler_.OnRecord(record, [&](const NodeSampler::Node& node, const NodeSample& sample) {
      OnSample(node, sample, reporter);
    });
  }

  void OnEnd(Reporter* reporter) override {
    sampler_.Finish([&](const NodeSampler::Node& node, const NodeSample& sample) {
      OnSample(node, sample, reporter);
    });
    for (auto& [key, gpu] : gpus_) Close(&gpu, reporter);
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return gpu_seen_ || !samples_seen_; }

  std::string Summary() const override {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (const auto& [key, gpu] : gpus_) {
      if (gpu.all.count() == 0) continue;
      nlohmann::ordered_json box = BoxOf(gpu.all);
      box["state"] = gpu.state == State::kLow ? "low" : gpu.state == State::kUneven ? "uneven" : "";
      out["gpus"][gpu.name] = std::move(box);
    }
    return out.empty() ? std::string() : JsonText(out);
  }

 private:
  enum class State : std::uint8_t { kFine, kLow, kUneven };

  struct Point {
    double utilization, seconds, wait, comm, cpu;
    std::int64_t start_ns, first_step;
  };
  struct Gpu {
    std::string name;
    std::deque<Point> window;
    analysis::Quantiles all;  ///< Beside steps, of the whole run.
    std::int64_t seen = 0;
    std::uint32_t attempt = 0;
    State state = State::kFine;
    Incident incident;
    double cost_s = 0;
  };

  void OnSample(const NodeSampler::Node& node, const NodeSample& sample, Reporter* reporter) {
    samples_seen_ = true;
    gpu_seen_ = gpu_seen_ || !sample.gpus.empty();
    if (!sample.training()) return;
    for (const auto& [number, values] : sample.gpus) {
      if (!std::isfinite(values.utilization)) continue;
      Gpu& gpu = gpus_[{node.writer, number}];
      if (gpu.name.empty()) gpu.name = GpuName(node, number);
      if (gpu.attempt != sample.attempt) {
        // What was before a restart says nothing about now.
        Close(&gpu, reporter);
        gpu.window.clear();
        gpu.seen = 0;
        gpu.attempt = sample.attempt;
      }
      gpu.window.push_back({values.utilization, sample.seconds(), sample.wait, sample.comm,
                            sample.cpu, sample.from_ns, sample.first_step});
      if (gpu.window.size() > window_) gpu.window.pop_front();
      gpu.all.Add(values.utilization);
      ++gpu.seen;
      if (gpu.state != State::kFine) gpu.cost_s += CostOf(gpu.window.back());
      if (gpu.seen < patience_) continue;
      has_data_ = true;
      if ((gpu.seen - patience_) % judge_every_ == 0) Judge(&gpu, sample, reporter);
    }
  }

  /// Beside the waits, whose time others count: at threshold_p95 the work would take as much less.
  double CostOf(const Point& point) const {
    const double idle = 1 - point.utilization / std::max(1.0, threshold_p95_);
    return point.seconds * std::max(0.0, idle - point.wait - point.comm);
  }

  void Judge(Gpu* gpu, const NodeSample& sample, Reporter* reporter) {
    std::vector<double> values;
    values.reserve(gpu->window.size());
    for (const Point& point : gpu->window) values.push_back(point.utilization);
    // One that the training does not use is IdleAccelerators'.
    if (*std::max_element(values.begin(), values.end()) <= 0) return;
    const double p95 = PercentileOf(values, 0.95);
    const double p5 = PercentileOf(values, 0.05);
    const double low = threshold_p95_ + (gpu->state == State::kLow ? kHysteresis : 0);
    const double uneven = threshold_p5_ + (gpu->state == State::kUneven ? kHysteresis : 0);
    const State state = p95 < low ? State::kLow : p5 < uneven ? State::kUneven : State::kFine;
    if (state == State::kFine) {
      if (gpu->state != State::kFine) {
        gpu->state = State::kFine;
        reporter->Recover(gpu->incident);
      }
      return;
    }
    if (gpu->state == State::kFine) {
      gpu->incident = Incident();
      gpu->incident.subject = gpu->name;
      gpu->incident.first_step = gpu->window.front().first_step;
      gpu->incident.start_ns = gpu->window.front().start_ns;
      gpu->cost_s = 0;
      for (const Point& point : gpu->window) gpu->cost_s += CostOf(point);
    }
    gpu->state = state;
    gpu->incident.last_step = sample.last_step;
    gpu->incident.end_ns = sample.to_ns;
    Describe(gpu, p95, p5, std::move(values));
    reporter->Report(gpu->incident);
  }

  void Describe(Gpu* gpu, double p95, double p5, std::vector<double> values) const {
    Incident& incident = gpu->incident;
    double seconds = 0;
    double wait = 0;
    double comm = 0;
    double cpu = 0;
    double cpu_samples = 0;
    double mean = 0;
    for (const Point& point : gpu->window) {
      seconds += point.seconds;
      wait += point.wait * point.seconds;
      comm += point.comm * point.seconds;
      mean += point.utilization;
      if (!std::isfinite(point.cpu)) continue;
      cpu += point.cpu;
      ++cpu_samples;
    }
    wait /= std::max(1e-9, seconds);
    comm /= std::max(1e-9, seconds);
    mean /= static_cast<double>(gpu->window.size());
    cpu = cpu_samples > 0 ? cpu / cpu_samples : kUnknown;

    const bool low = gpu->state == State::kLow;
    incident.message = low ? fmt::format("The GPU is only {:.0f} % busy", mean)
                           : std::string("The GPU is busy in bursts");
    bool known = true;
    if (wait >= kMuchWait && wait >= comm) {
      incident.cause =
          fmt::format("The training waits for batches in {:.0f} % of its time.", 100 * wait);
      incident.advice =
          "Make batches faster than the model takes them: see InputBound, "
          "IOBottleneck and CPUBottleneck.";
    } else if (comm >= kMuchWait) {
      incident.cause =
          fmt::format("The training waits for other ranks in {:.0f} % of its time.", 100 * comm);
      incident.advice =
          "Look at which rank is the slowest (Straggler), and overlap communication with backward.";
    } else if (std::isfinite(cpu) && cpu >= kBusyCores) {
      incident.cause = fmt::format(
          "The node's cores are {:.0f} % busy, and the training waits for neither batches nor "
          "ranks: the host gives the GPU its work too slowly.",
          cpu);
      incident.advice =
          "Give the GPU larger pieces of work: torch.compile or CUDA graphs, fused optimizers, a "
          "larger batch.";
    } else {
      known = false;
      incident.cause = "cause not found";
      incident.advice =
          "Look for what stops the host inside a step (.item(), .cpu(), printing a loss: "
          "HostSync); "
          "then try a larger batch.";
    }
    // A GPU that idles while nothing is seen to be wrong may only be larger than the model.
    const Severity now = low && known ? Severity::kMedium : Severity::kLow;
    incident.severity = std::max(incident.severity, now);
    incident.cost_seconds = gpu->cost_s;
    incident.confidence = known ? 0.8 : 0.5;

    nlohmann::ordered_json evidence;
    evidence["samples"] = gpu->window.size();
    evidence["p95"] = Rounded(p95);
    evidence["p50"] = Rounded(PercentileOf(std::move(values), 0.5));
    evidence["p5"] = Rounded(p5);
    evidence["mean"] = Rounded(mean);
    evidence["state"] = low ? "low" : "uneven";
    evidence["data_wait"] = Rounded(wait);
    evidence["comm_wait"] = Rounded(comm);
    if (std::isfinite(cpu)) evidence["cores_busy"] = Rounded(cpu);
    incident.evidence = JsonText(evidence);
  }

  static void Close(Gpu* gpu, Reporter* reporter) {
    if (gpu->state == State::kFine) return;
    gpu->state = State::kFine;
    gpu->incident.cost_seconds = gpu->cost_s;
    reporter->Close(gpu->incident);
  }

  const double threshold_p95_;
  const double threshold_p5_;
  const std::size_t window_;
  const std::int64_t patience_;
  const std::int64_t judge_every_;

  NodeSampler sampler_;
  std::map<std::pair<std::uint32_t, int>, Gpu> gpus_;  ///< By writer and number.
  bool samples_seen_ = false;
  bool gpu_seen_ = false;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kLowGPUUtilizationDesc{
    .name = "LowGPUUtilization",
    .summary = "A GPU that the training uses is not busy, or busy only in bursts.",
    .formula =
        "Of each GPU, over the newest `window` samples between which TRAIN steps of its node took "
        "at least half of the time: low where p95(utilization) < threshold_p95; else uneven where "
        "p5(utilization) < threshold_p5. Percentiles are linear between samples. Judged once "
        "`patience` samples of an attempt were seen; over where the percentile is 5 points beyond "
        "its threshold, or the attempt ends. A GPU whose utilization was 0 in the whole window is "
        "not used and IdleAccelerators'. The cause is the wait that takes at least 10 % of the "
        "steps' time (data, other ranks), else cores that are 70 % busy, else not found. Medium "
        "where low with a known cause, else low. Cost = Σ time × max(0, 1 − utilization / "
        "threshold_p95 − data wait − comm wait): assumes that the work would fill the GPU to "
        "threshold_p95; the waits are counted where they are found.",
    .how_to_fix =
        "Look for bottlenecks (input, other ranks, the host inside the step), remove calls that "
        "wait for the GPU, then enlarge the batch or take a smaller GPU.",
    .table_mask = NodeSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kProfiler,
    .by_default = true,
    .example =
        "A small model on a large GPU with num_workers=0: the GPU works 5 ms and waits 45 ms.",
    .standing = {.theme = Theme::kInput, .order = 6},
    .data_mask = DataMask(Datum::kSamples, Datum::kGpu, Datum::kGpuLoad, Datum::kSteps),
};

std::unique_ptr<Rule> MakeLowGPUUtilization(const Parameters& parameters) {
  return std::make_unique<LowGPUUtilization>(parameters);
}

}  // namespace telltale::rules::low_gpu_utilization
