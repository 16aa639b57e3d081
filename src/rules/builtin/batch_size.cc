// SPDX-License-Identifier: Apache-2.0
// BatchSize: neither the GPUs, nor their memory, nor the cores of a node are well used, and the
// training waits for nothing: larger batches would use them. Or no GPU is seen, and the steps wait.
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
#include "rules/builtin/resting_steps.h"
#include "rules/registry.h"

namespace telltale::rules::batch_size {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"cpu_threshold_p95", 70, "%", "The 95th percentile of the cores' load must be below this."},
    {"gpu_threshold_p95", 70, "%", "That of each GPU's utilization."},
    {"gpu_memory_threshold_p95", 70, "%", "That of each GPU's memory."},
    {"room_margin", 10, "%",
     "Added to gpu_threshold_p95 where the GPU's memory has room for a batch several times as "
     "large (below `room_memory_p95`)."},
    {"room_memory_p95", 25, "%",
     "Up to this the memory of a GPU has room for a batch several times as large."},
    {"patience", 100, "samples", "Samples beside steps before anything is said.", nullptr, 1000},
    {"window", 500, "samples", "Newest samples that are judged."},
};

constexpr double kHysteresis = 5;
/// Where the training waits for more than this share of its time, its batch is not what is wrong.
constexpr double kMostWait = 0.2;

class BatchSize final : public Rule {
 public:
  explicit BatchSize(const Parameters& p)
      : cpu_(p.Get("cpu_threshold_p95")),
        gpu_(p.Get("gpu_threshold_p95")),
        memory_(p.Get("gpu_memory_threshold_p95")),
        room_margin_(std::max(0.0, p.Get("room_margin"))),
        room_memory_(p.Get("room_memory_p95")),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))),
        window_(static_cast<std::size_t>(std::clamp<std::int64_t>(p.GetInt("window"), 2, 100'000))),
        judge_every_(std::clamp<std::int64_t>(patience_ / 10, 1, 10)) {}

  bool Wants(const Series& series) override { return sampler_.Wants(series); }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* event = record.As<format::EventRow>(); event != nullptr) {
      if (event->kind != "framework") return;
      const auto data = ParseJson(event->data);
      if (data.is_object()) nodes_[record.writer].resting.See(data);
      return;
    }
    if (const auto* step = record.As<format::StepRow>(); step != nullptr && step->mode == "TRAIN") {
      if (!gpu_seen_) nodes_[record.writer].resting.SeeStep(*step);
      if (step->batch_size > 0) {
        batch_[record.writer] = step->batch_size / std::max<std::int64_t>(1, step->micro_steps);
      }
    }
    sampler_.OnRecord(record, [&](const NodeSampler::Node& node, const NodeSample& sample) {
      OnSample(node, sample, reporter);
    });
  }

  void OnEnd(Reporter* reporter) override {
    sampler_.Finish([&](const NodeSampler::Node& node, const NodeSample& sample) {
      OnSample(node, sample, reporter);
    });
    for (auto& [writer, node] : nodes_) Close(&node, reporter);
  }

  bool has_data() const override { return has_data_; }

  std::string Summary() const override {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (const auto& [writer, node] : nodes_) {
      if (node.all_cpu.count() == 0) continue;
      nlohmann::ordered_json& of = out["nodes"][node.name];
      of["cpu"] = BoxOf(node.all_cpu);
      for (const auto& [number, boxes] : node.all_gpus) {
        if (boxes.first.count() > 0) of["gpus"][fmt::format("gpu:{}", number)] = BoxOf(boxes.first);
        if (boxes.second.count() > 0) {
          of["gpu_memory"][fmt::format("gpu:{}", number)] = BoxOf(boxes.second);
        }
      }
    }
    return out.empty() ? std::string() : JsonText(out);
  }

 private:
  struct Point {
    double cpu, seconds, wait;
    std::map<int, std::pair<double, double>> gpus;  ///< Utilization and memory.
    std::int64_t start_ns, first_step;
  };
  struct Node {
    std::string name;
    std::deque<Point> window;
    analysis::Quantiles all_cpu;
    std::map<int, std::pair<analysis::Quantiles, analysis::Quantiles>> all_gpus;
    std::int64_t seen = 0;
    std::uint32_t attempt = 0;
    RestingSteps resting;  ///< Where it has no GPU.
    bool open = false;
    Incident incident;
  };

  void OnSample(const NodeSampler::Node& of, const NodeSample& sample, Reporter* reporter) {
    gpu_seen_ = gpu_seen_ || !sample.gpus.empty();
    if (!sample.training() || !std::isfinite(sample.cpu)) return;
    Node& node = nodes_[of.writer];
    node.name = of.name;
    if (!gpu_seen_) return OnResting(of, sample, &node, reporter);
    if (sample.gpus.empty()) return;
    if (node.attempt != sample.attempt) {
      Close(&node, reporter);
      node.window.clear();
      node.seen = 0;
      node.attempt = sample.attempt;
    }
    Point point{sample.cpu, sample.seconds(), sample.wait + sample.comm,
                {},         sample.from_ns,   sample.first_step};
    node.all_cpu.Add(sample.cpu);
    for (const auto& [number, values] : sample.gpus) {
      const double memory = values.memory();
      auto& all = node.all_gpus[number];
      if (std::isfinite(values.utilization)) all.first.Add(values.utilization);
      if (std::isfinite(memory)) all.second.Add(memory);
      if (std::isfinite(values.utilization) && std::isfinite(memory)) {
        point.gpus.emplace(number, std::pair(values.utilization, memory));
      }
    }
    if (point.gpus.empty()) return;
    node.window.push_back(std::move(point));
    if (node.window.size() > window_) node.window.pop_front();
    if (++node.seen < patience_) return;
    has_data_ = true;
    if ((node.seen - patience_) % judge_every_ == 0) {
      Judge(of, &node, sample, reporter);
    }
  }

  void OnResting(const NodeSampler::Node& of, const NodeSample& sample, Node* node,
                 Reporter* reporter) {
    if (node->attempt != sample.attempt) {
      Close(node, reporter);
      node->attempt = sample.attempt;
    }
    node->resting.Add(sample);
    if (!node->resting.judged()) return;
    has_data_ = true;
    const auto batch = batch_.find(of.writer);
    const auto incident =
        node->resting.Judge(of.name, batch == batch_.end() ? 0 : batch->second, cpu_, node->open);
    if (incident) {
      const Incident before = node->incident;
      node->incident = *incident;
      if (node->open) {
        node->incident.first_step = before.first_step;
        node->incident.start_ns = before.start_ns;
      }
      node->open = true;
      reporter->Report(node->incident);
    } else if (node->open) {
      node->open = false;
      reporter->Recover(node->incident);
    }
  }

  void Judge(const NodeSampler::Node& of, Node* node, const NodeSample& sample,
             Reporter* reporter) {
    std::vector<double> cpus;
    std::map<int, std::pair<std::vector<double>, std::vector<double>>> gpus;
    double seconds = 0;
    double waited = 0;
    for (const Point& point : node->window) {
      cpus.push_back(point.cpu);
      seconds += point.seconds;
      waited += point.seconds * point.wait;
      for (const auto& [number, values] : point.gpus) {
        gpus[number].first.push_back(values.first);
        gpus[number].second.push_back(values.second);
      }
    }
    const double wait = waited / std::max(1e-9, seconds);
    const double more = node->open ? kHysteresis : 0;
    const double cpu = PercentileOf(std::move(cpus), 0.95);
    bool low = cpu < cpu_ + more && wait <= kMostWait + more / 100;
    bool used = false;
    nlohmann::ordered_json by_gpu = nlohmann::ordered_json::object();
    double busiest = 0;
    double fullest = 0;
    for (auto& [number, values] : gpus) {
      // A GPU that the training does not use says nothing about its batches.
      if (*std::max_element(values.first.begin(), values.first.end()) <= 0) continue;
      used = true;
      const double utilization = PercentileOf(std::move(values.first), 0.95);
      const double memory = PercentileOf(std::move(values.second), 0.95);
      const double most = gpu_ + (memory < room_memory_ ? room_margin_ : 0);
      low = low && utilization < most + more && memory < memory_ + more;
      busiest = std::max(busiest, utilization);
      fullest = std::max(fullest, memory);
      by_gpu[fmt::format("gpu:{}", number)] = {{"utilization_p95", Rounded(utilization)},
                                               {"memory_p95", Rounded(memory)}};
    }
    if (!low || !used) {
      if (node->open) {
        node->open = false;
        reporter->Recover(node->incident);
      }
      return;
    }
    Incident& incident = node->incident;
    if (!node->open) {
      node->open = true;
      incident = Incident();
      incident.subject = node->name;
      incident.first_step = node->window.front().first_step;
      incident.start_ns = node->window.front().start_ns;
    }
    incident.severity = Severity::kLow;
    incident.last_step = sample.last_step;
    incident.end_ns = sample.to_ns;
    incident.message = "Batches are small for the machine";
    const auto batch = batch_.find(of.writer);
    const std::string now =
        batch == batch_.end() ? std::string() : fmt::format(" (now {} samples)", batch->second);
    incident.cause = fmt::format(
        "In 95 % of the samples the GPUs are busy for at most {:.0f} %, their memory is full to at "
        "most {:.0f} % and the cores are busy for at most {:.0f} %, while the training waits for "
        "batches and ranks in only {:.0f} % of its time.",
        busiest, fullest, cpu, 100 * wait);
    const double room = fullest > 0 ? 90 / fullest : 0;
    incident.advice =
        room >= 1.5 ? fmt::format(
                          "Enlarge the batch{} and tune the learning rate for it: the memory has "
                          "room for about {:.0f} times as much at most; or use a smaller machine.",
                          now, std::floor(room))
                    : fmt::format(
                          "Enlarge the batch{} and tune the learning rate for it, or use a smaller "
                          "machine.",
                          now);
    incident.confidence = 0.6;
    nlohmann::ordered_json evidence;
    evidence["samples"] = node->window.size();
    evidence["cpu_p95"] = Rounded(cpu);
    evidence["gpus"] = std::move(by_gpu);
    evidence["waits"] = Rounded(wait);
    if (batch != batch_.end()) evidence["batch_size"] = batch->second;
    incident.evidence = JsonText(evidence);
    reporter->Report(incident);
  }

  static void Close(Node* node, Reporter* reporter) {
    if (!node->open) return;
    node->open = false;
    reporter->Close(node->incident);
  }

  const double cpu_;
  const double gpu_;
  const double memory_;
  const double room_margin_;
  const double room_memory_;
  const std::int64_t patience_;
  const std::size_t window_;
  const std::int64_t judge_every_;

  NodeSampler sampler_;
  std::map<std::uint32_t, Node> nodes_;          ///< By writer.
  std::map<std::uint32_t, std::int64_t> batch_;  ///< By writer: samples of a micro-step.
  bool gpu_seen_ = false;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kBatchSizeDesc{
    .name = "BatchSize",
    .summary =
        "Cores, GPUs and their memory are little used, and the training waits for nothing "
        "that a loader or a rank could give.",
    .formula =
        "Of each node, over the newest `window` samples between which its TRAIN steps took at "
        "least half of the time: p95(load of all cores) < cpu_threshold_p95, and of every GPU that "
        "was used p95(utilization) < gpu_threshold_p95 and p95(memory, percent of its bytes) < "
        "gpu_memory_threshold_p95 (where that of the memory is below room_memory_p95, a batch "
        "several "
        "times as large fits, and utilization may be room_margin points higher), and data wait + "
        "comm wait ≤ 20 % of the steps' time (else a "
        "larger batch mends nothing: InputBound's, Straggler's). Judged once `patience` samples of "
        "an attempt were seen; over where one of them is 5 points beyond, or the attempt ends. "
        "Low; cost 0, since LowGPUUtilization counts the idle time. Where no GPU is seen, over the "
        "newest 512 such samples, from 20 on: p95(processor time of the run's processes) ≤ 0.2 of "
        "a "
        "core, data wait + comm wait ≤ 20 % of the steps' time, p95(load of all cores) < "
        "cpu_threshold_p95, and forward, backward and optimizer take at least half of the steps' "
        "time, and a batch has at most 8 samples; samples beside which steps took "
        "more than three times the median in the mean, as in a pause, are left out. Medium where "
        "the framework says that there is no CUDA device, else low; not judged where there is "
        "one; cost = 0.3 × time × (1 − that processor time in cores − these waits): a doubled "
        "batch saves half of it at best, and that is 60 % sure.",
    .how_to_fix = "Enlarge the batch (and adapt the learning rate), or use a smaller machine.",
    .table_mask = NodeSampler::kTables | store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kProfiler,
    .by_default = true,
    .example = "Batches of 8 small images on a GPU with 80 GB.",
    .standing = {.theme = Theme::kInput, .order = 8},
    .data_mask = DataMask(Datum::kSamples, Datum::kSteps),
};

std::unique_ptr<Rule> MakeBatchSize(const Parameters& parameters) {
  return std::make_unique<BatchSize>(parameters);
}

}  // namespace telltale::rules::batch_size
