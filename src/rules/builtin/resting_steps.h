// SPDX-License-Identifier: Apache-2.0
// Steps that wait for something that is not recorded: no GPU is seen, and the training neither
// computes nor waits for batches or ranks. What it waits for (a device that is not sampled, a
// server, a sleep) often takes as long for a batch of some more samples as for one of very few; of
// a larger batch nothing says that, nor of what a program waits for outside of forward, backward
// and optimizer, and nothing is said. A pause of single steps is StepOutlier's.
// Thread safety: none. Memory: a few numbers a sample, at most 512 samples a node, and quantiles.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "analysis/quantiles.h"
#include "base/json.h"
#include "rules/builtin/node_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/rule.h"

namespace telltale::rules {

class RestingSteps {
 public:
  /// A TRAIN step.
  void SeeStep(const format::StepRow& step) {
    if (step.duration_ns > 0) durations_.Add(static_cast<double>(step.duration_ns));
  }

  /// A sample between which the training made steps, of a node without GPUs.
  void Add(const NodeSample& sample) {
    if (!std::isfinite(sample.run_cpu) || !std::isfinite(sample.cpu)) return;
    if (sample.attempt != attempt_) {
      attempt_ = sample.attempt;
      window_.clear();
      cost_seconds_ = 0;
    }
    // One step of many stood still here: what the others do cannot be seen.
    if (sample.step_ns > kUsualSteps * durations_.At(0.5)) return;
    const double rests = std::clamp(1 - sample.run_cpu / 100, 0.0, 1.0);
    window_.push_back({sample.run_cpu, sample.cpu, sample.seconds(), sample.wait + sample.comm,
                       sample.model, sample.from_ns, sample.to_ns, sample.first_step,
                       sample.last_step});
    cost_seconds_ += kDoubled * kConfidence * sample.seconds() *
                     std::max(0.0, rests - sample.wait - sample.comm);
    if (window_.size() > kMost) window_.pop_front();
  }

  bool judged() const { return window_.size() >= kFewest; }

  /// What a process says of its devices (event `framework`).
  void See(const nlohmann::json& framework) {
    const auto cuda = framework.find("cuda_available");
    if (cuda == framework.end() || !cuda->is_boolean()) return;
    has_cuda_ = has_cuda_ || cuda->get<bool>();
    devices_known_ = true;
  }

  /// The incident, where the steps rest. `batch`: samples of one; 0: not known. `crowded`: load of
  /// all cores in percent from which on the training may lack a core.
  std::optional<Incident> Judge(const std::string& node, std::int64_t batch, double crowded,
                                bool open) const {
    // A GPU that is not sampled may be what works in these waits.
    if (!judged() || batch <= 0 || batch > kSmallBatch || has_cuda_) return std::nullopt;
    std::vector<double> used, busy;
    double seconds = 0;
    double waited = 0;
    double in_model = 0;
    for (const Point& point : window_) {
      used.push_back(point.run_cpu);
      busy.push_back(point.cpu);
      seconds += point.seconds;
      waited += point.seconds * point.wait;
      in_model += point.seconds * point.model;
    }
    const double more = open ? kHysteresis : 1;
    const double cores = PercentileOf(std::move(used), 0.95);
    const double wait = waited / std::max(1e-9, seconds);
    // What the program waits for outside of these has nothing to do with its batches.
    if (more * in_model < kLeastInModel * seconds) return std::nullopt;
    if (cores > more * kRests || wait > more * kMostWait ||
        PercentileOf(std::move(busy), 0.95) >= crowded) {
      return std::nullopt;
    }
    Incident incident;
    incident.subject = node;
    incident.first_step = window_.front().first_step;
    incident.start_ns = window_.front().start_ns;
    incident.last_step = window_.back().last_step;
    incident.end_ns = window_.back().end_ns;
    // Another framework's device may be at work.
    incident.severity = devices_known_ ? Severity::kMedium : Severity::kLow;
    incident.message = "Steps wait, and the cores are little used";
    incident.cause = fmt::format(
        "No GPU is seen, and in 95 % of the measurements the training uses at most {} of a core, "
        "while it waits for batches and ranks in only {:.0f} % of its time: in forward, backward "
        "and "
        "optimizer its steps wait for something that is not recorded (a device, a server, a "
        "sleep), with only {} {} in a batch.",
        cores < 1 ? std::string("0.01") : Figure(cores / 100), 100 * wait, batch,
        batch == 1 ? "sample" : "samples");
    incident.advice = fmt::format(
        "Double the batch (now {} {}) and compare the samples a second: where a step waits as long "
        "for a batch of twice the size, half of these waits are saved. Tune the learning rate for "
        "it.",
        batch, batch == 1 ? "sample" : "samples");
    incident.cost_seconds = cost_seconds_;
    incident.confidence = kConfidence;
    nlohmann::ordered_json evidence;
    evidence["samples"] = window_.size();
    evidence["run_cpu_p95"] = Rounded(cores);
    evidence["waits"] = Rounded(wait);
    evidence["in_model"] = Rounded(in_model / std::max(1e-9, seconds));
    evidence["batch_size"] = batch;
    incident.evidence = JsonText(evidence);
    return incident;
  }

 private:
  static constexpr std::size_t kFewest = 20;
  static constexpr std::size_t kMost = 512;
  static constexpr std::int64_t kSmallBatch = 8;
  static constexpr double kRests = 20;  ///< Percent of a core.
  static constexpr double kMostWait = 0.2;
  static constexpr double kLeastInModel = 0.5;
  static constexpr double kHysteresis = 1.25;
  /// Steps of a sample that take more than so many medians in the mean are not usual ones.
  static constexpr double kUsualSteps = 3;
  /// What a batch of twice the size saves of the waits, at most; and how sure that is.
  static constexpr double kDoubled = 0.5;
  static constexpr double kConfidence = 0.6;

  struct Point {
    double run_cpu, cpu, seconds, wait, model;
    std::int64_t start_ns, end_ns, first_step, last_step;
  };
  std::deque<Point> window_;
  std::uint32_t attempt_ = 0;
  bool has_cuda_ = false, devices_known_ = false;
  double cost_seconds_ = 0;        ///< Of the attempt: what a larger batch may save.
  analysis::Quantiles durations_;  ///< Of steps.
};

}  // namespace telltale::rules
