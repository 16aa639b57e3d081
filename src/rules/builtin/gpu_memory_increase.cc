// SPDX-License-Identifier: Apache-2.0
// GPUMemoryIncrease: the memory of a GPU goes on growing.
//
// SageMaker Debugger's rule of this name compares two means, one of which is of a window that is
// one value shorter, in percent only, and so fires at the one jump when a training begins. Here
// both windows have one length, the growth must go on through them, and bytes and the time that is
// left are said.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "analysis/quantiles.h"
#include "base/json.h"
#include "rules/builtin/node_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::gpu_memory_increase {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"increase", 10, "% points", "The mean must be this much above that of the window before.",
     nullptr, 5},
    {"patience", 100, "samples", "Samples of a GPU before anything is said.", nullptr, 1000},
    {"window", 500, "samples", "Length of each of the two windows.", nullptr, 10},
};

/// Growth that goes on: of the steps between the means of so many parts ...
constexpr std::size_t kParts = 6;
/// ... all but one rise, each by this share of an even growth.
constexpr double kLeastRise = 0.25;
constexpr double kSoonSeconds = 600;
constexpr double kNearlyFull = 95;

class GPUMemoryIncrease final : public Rule {
 public:
  explicit GPUMemoryIncrease(const Parameters& p)
      : increase_(p.Get("increase")),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))),
        window_(static_cast<std::size_t>(
            std::clamp<std::int64_t>(p.GetInt("window"), kParts / 2, 50'000))),
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
      if (gpu.all.count() > 0) out["gpus"][gpu.name] = BoxOf(gpu.all);
    }
    return out.empty() ? std::string() : JsonText(out);
  }

 private:
  struct Point {
    double percent, used;
    std::int64_t from_ns, to_ns, step;
  };
  struct Gpu {
    std::string name;
    std::deque<Point> points;  ///< Of both windows.
    analysis::Quantiles all;
    double total = kUnknown;
    std::int64_t seen = 0;
    std::uint32_t attempt = 0;
    bool open = false;
    Incident incident;
  };

  void OnSample(const NodeSampler::Node& node, const NodeSample& sample, Reporter* reporter) {
    samples_seen_ = true;
    gpu_seen_ = gpu_seen_ || !sample.gpus.empty();
    // Before the first step memory grows since the training is being set up.
    if (!sample.training()) return;
    for (const auto& [number, values] : sample.gpus) {
      const double memory = values.memory();
      if (!std::isfinite(memory)) continue;
      Gpu& gpu = gpus_[{node.writer, number}];
      if (gpu.name.empty()) gpu.name = GpuName(node, number);
      if (gpu.attempt != sample.attempt) {
        Close(&gpu, reporter);
        gpu.points.clear();
        gpu.seen = 0;
        gpu.attempt = sample.attempt;
      }
      if (std::isfinite(values.total)) gpu.total = values.total;
      gpu.points.push_back({memory, values.used, sample.from_ns, sample.to_ns, sample.last_step});
      if (gpu.points.size() > 2 * window_) gpu.points.pop_front();
      gpu.all.Add(memory);
      ++gpu.seen;
      if (gpu.seen < patience_ || gpu.points.size() < kParts) continue;
      has_data_ = true;
      if ((gpu.seen - patience_) % judge_every_ == 0) Judge(&gpu, reporter);
    }
  }

  static double Mean(const Gpu& gpu, std::size_t from, std::size_t to) {
    double sum = 0;
    for (std::size_t i = from; i < to; ++i) sum += gpu.points[i].percent;
    return to > from ? sum / static_cast<double>(to - from) : 0;
  }

  /// No single jump: the means of equal parts rise one after the other.
  static bool GoesOn(const Gpu& gpu) {
    const std::size_t size = gpu.points.size();
    std::array<double, kParts> means{};
    for (std::size_t i = 0; i < kParts; ++i) {
      means[i] = Mean(gpu, i * size / kParts, (i + 1) * size / kParts);
    }
    const double even = (means.back() - means.front()) / static_cast<double>(kParts - 1);
    std::size_t rises = 0;
    for (std::size_t i = 1; i < kParts; ++i) {
      rises += means[i] - means[i - 1] >= kLeastRise * even ? 1 : 0;
    }
    return even > 0 && rises + 2 >= kParts;
  }

  void Judge(Gpu* gpu, Reporter* reporter) {
    const std::size_t half = gpu->points.size() / 2;
    const std::size_t begin = gpu->points.size() - 2 * half;
    const double before = Mean(*gpu, begin, begin + half);
    const double now = Mean(*gpu, begin + half, gpu->points.size());
    const double grown = now - before;
    if (gpu->open) {
      if (grown < increase_ / 2) {
        gpu->open = false;
        reporter->Recover(gpu->incident);
        return;
      }
    } else {
      if (grown <= increase_ || !GoesOn(*gpu)) return;
      gpu->open = true;
      gpu->incident = Incident();
      gpu->incident.subject = gpu->name;
      gpu->incident.first_step = gpu->points.front().step;
      gpu->incident.start_ns = gpu->points.front().from_ns;
    }
    Describe(gpu, before, now, half);
    reporter->Report(gpu->incident);
  }

  static void Describe(Gpu* gpu, double before, double now, std::size_t half) {
    Incident& incident = gpu->incident;
    const Point& first = gpu->points.front();
    const Point& last = gpu->points.back();
    incident.last_step = last.step;
    incident.end_ns = last.to_ns;
    const double seconds = static_cast<double>(last.to_ns - first.from_ns) / 1e9;
    // The means lie half of that time apart.
    const double rate = (now - before) / std::max(1e-9, seconds / 2);
    const double left = (100 - last.percent) / std::max(1e-12, rate);
    const bool soon = left <= kSoonSeconds || last.percent >= kNearlyFull;
    incident.severity = std::max(incident.severity, soon ? Severity::kHigh : Severity::kMedium);
    incident.message = "GPU memory goes on growing";
    std::string bytes;
    if (std::isfinite(gpu->total)) {
      bytes = fmt::format(" ({} MB/s)", Plain(rate / 100 * gpu->total / 1e6));
    }
    incident.cause = fmt::format(
        "Its mean rose from {} to {} % from one window of {} samples to the next, and went on "
        "through both{}; at this rate it is full in {}.",
        Plain(before), Plain(now), half, bytes,
        left < 120 ? fmt::format("{:.0f} s", left) : fmt::format("{:.0f} min", left / 60));
    incident.advice =
        "Look for tensors that are kept from step to step: a loss added up without .item() or "
        ".detach(), outputs in a list, retain_graph=True; inputs that grow longer.";
    incident.confidence = 0.8;
    nlohmann::ordered_json evidence;
    evidence["samples_in_window"] = half;
    evidence["before_percent"] = Rounded(before);
    evidence["now_percent"] = Rounded(now);
    evidence["increase_points"] = Rounded(now - before);
    if (std::isfinite(first.used) && std::isfinite(last.used)) {
      evidence["first_bytes"] = first.used;
      evidence["last_bytes"] = last.used;
    }
    if (std::isfinite(gpu->total)) {
      evidence["total_bytes"] = gpu->total;
      evidence["bytes_per_second"] = Rounded(rate / 100 * gpu->total);
    }
    evidence["seconds_left"] = Rounded(left);
    incident.evidence = JsonText(evidence);
  }

  static void Close(Gpu* gpu, Reporter* reporter) {
    if (!gpu->open) return;
    gpu->open = false;
    reporter->Close(gpu->incident);
  }

  const double increase_;
  const std::int64_t patience_;
  const std::size_t window_;
  const std::int64_t judge_every_;

  NodeSampler sampler_;
  std::map<std::pair<std::uint32_t, int>, Gpu> gpus_;  ///< By writer and number.
  bool samples_seen_ = false;
  bool gpu_seen_ = false;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kGPUMemoryIncreaseDesc{
    .name = "GPUMemoryIncrease",
    .summary = "The memory of a GPU goes on growing while the training makes steps.",
    .formula =
        "m = gpu.memory_used / gpu.memory_total, in percent (gpu.memory_percent where the bytes "
        "are not known), between TRAIN steps. Once `patience` samples of an attempt were seen, the "
        "newest 2·window of them (all, where there are fewer) are halved into windows of one "
        "length: mean(newer) − mean(older) > increase, and the growth goes on: of the means of 6 "
        "equal parts all but one are above the one before by a quarter of an even growth, so that "
        "one jump is none. Over where the difference is below half of increase, or the attempt "
        "ends. High where at this rate it is full within 10 minutes or 95 % are used, else medium. "
        "Cost 0: the time is lost when it ends. Beside MemoryForecast, which speaks of the host "
        "too.",
    .how_to_fix = "Let go of what is kept from step to step; a larger GPU only puts it off.",
    .table_mask = NodeSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kProfiler,
    .by_default = false,
    .example = "losses.append(loss) in the loop: every graph stays in memory.",
    .standing = {.theme = Theme::kMemory, .order = 0},
    .data_mask = DataMask(Datum::kSamples, Datum::kGpu, Datum::kGpuMemory, Datum::kSteps),
};

std::unique_ptr<Rule> MakeGPUMemoryIncrease(const Parameters& parameters) {
  return std::make_unique<GPUMemoryIncrease>(parameters);
}

}  // namespace telltale::rules::gpu_memory_increase
