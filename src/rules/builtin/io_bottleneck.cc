// SPDX-License-Identifier: Apache-2.0
// IOBottleneck: the training waits for batches while tasks of the node wait for storage, and where
// there are GPUs, one of them idles.
//
// SageMaker Debugger's rule of this name takes any one core that waits for a disk while a GPU is
// little used for a bottleneck. Waits wander from core to core, and may be another program's: here
// they are summed over the cores, and a sample counts only where the training itself waits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/json.h"
#include "rules/builtin/node_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::io_bottleneck {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold", 50, "%", "Share of the samples of a window that must be bottlenecks."},
    {"gpu_threshold", 70, "%", "Where there are GPUs, one must be less busy than this.", nullptr,
     10},
    {"io_threshold", 50, "%", "Waiting for storage: of one core's time, or pressure."},
    {"patience", 1000, "samples", "Newest samples that are judged, and as many must be there."},
    {"data_wait", 10, "%", "Share of its time that the training must wait for batches."},
};

/// Below this the run fetches next to nothing from storage.
constexpr double kLeastRead = 1e5;
constexpr double kBusyDisk = 80;
constexpr std::int64_t kDescribeIntervalNs = 1'000'000'000;

class IOBottleneck final : public Rule {
 public:
  explicit IOBottleneck(const Parameters& p)
      : threshold_(std::max(0.0, p.Get("threshold") / 100)),
        gpu_threshold_(p.Get("gpu_threshold")),
        io_threshold_(p.Get("io_threshold")),
        patience_(
            static_cast<std::size_t>(std::clamp<std::int64_t>(p.GetInt("patience"), 1, 100'000))),
        data_wait_(p.Get("data_wait") / 100) {}

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
    for (auto& [writer, node] : nodes_) Close(&node, reporter);
  }

  bool has_data() const override { return has_data_; }

  std::string Summary() const override {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (const auto& [writer, node] : nodes_) {
      if (node.samples == 0) continue;
      out["nodes"][node.name] = {{"samples", node.samples},
                                 {"waits_for_storage", node.storage},
                                 {"bottlenecks", node.bottlenecks},
                                 {"gpu_low", node.gpu_low},
                                 {"gpu_samples", node.gpu_samples}};
    }
    return out.empty() ? std::string() : JsonText(out);
  }

 private:
  struct Point {
    NodeSample at;
    double storage;  ///< Waits for storage, in percent.
    bool bottleneck;
  };
  struct Node {
    std::string name;
    std::deque<Point> window;
    std::size_t in_window = 0;  ///< Bottlenecks.
    std::uint32_t attempt = 0;
    std::set<int> used_gpus;  ///< Ever busy.
    bool open = false;
    Incident incident;
    std::int64_t described_ns = 0;
    // Of the whole run.
    std::int64_t samples = 0, storage = 0, bottlenecks = 0, gpu_low = 0, gpu_samples = 0;
  };

  /// Waits of all cores as time of one, or the share of time in which some task waited.
  static double StorageOf(const NodeSample& sample, int cores) {
    double waits = kUnknown;
    if (std::isfinite(sample.iowait)) waits = sample.iowait * std::max(1, cores);
    if (std::isfinite(sample.pressure)) {
      waits = std::isfinite(waits) ? std::max(waits, sample.pressure) : sample.pressure;
    }
    return waits;
  }

  void OnSample(const NodeSampler::Node& of, const NodeSample& sample, Reporter* reporter) {
    if (!sample.training()) return;
    const double storage = StorageOf(sample, sampler_.Cores(of.name));
    if (!std::isfinite(storage)) return;
    Node& node = nodes_[of.writer];
    node.name = of.name;
    if (node.attempt != sample.attempt) {
      Close(&node, reporter);
      node.window.clear();
      node.in_window = 0;
      node.attempt = sample.attempt;
    }
    bool low = false;
    bool gpus = false;
    for (const auto& [number, gpu] : sample.gpus) {
      if (!std::isfinite(gpu.utilization)) continue;
      // One that the training does not use starves of nothing.
      if (gpu.utilization > 0) node.used_gpus.insert(number);
      if (!node.used_gpus.contains(number)) continue;
      gpus = true;
      low = low || gpu.utilization < gpu_threshold_;
    }
    const bool waits = storage > io_threshold_;
    const bool bottleneck = waits && sample.wait >= data_wait_ && (low || !gpus);
    ++node.samples;
    node.storage += waits ? 1 : 0;
    node.bottlenecks += bottleneck ? 1 : 0;
    node.gpu_samples += gpus ? 1 : 0;
    node.gpu_low += low ? 1 : 0;
    node.window.push_back({sample, storage, bottleneck});
    node.in_window += bottleneck ? 1 : 0;
    if (node.window.size() > patience_) {
      node.in_window -= node.window.front().bottleneck ? 1 : 0;
      node.window.pop_front();
    }
    if (node.window.size() < patience_) return;
    has_data_ = true;
    Judge(&node, reporter);
  }

  void Judge(Node* node, Reporter* reporter) {
    const double share =
        static_cast<double>(node->in_window) / static_cast<double>(node->window.size());
    if (node->open && share < threshold_ / 2) {
      node->open = false;
      reporter->Recover(node->incident);
      return;
    }
    if (!node->open) {
      if (share <= threshold_) return;
      const auto first = std::find_if(node->window.begin(), node->window.end(),
                                      [](const Point& point) { return point.bottleneck; });
      node->open = true;
      node->incident = Incident();
      node->incident.subject = node->name;
      node->incident.first_step = first->at.first_step;
      node->incident.start_ns = first->at.from_ns;
      node->described_ns = 0;
    }
    const NodeSample& last = node->window.back().at;
    if (node->described_ns != 0 && last.to_ns < node->described_ns + kDescribeIntervalNs) return;
    node->described_ns = last.to_ns;
    node->incident.last_step = last.last_step;
    node->incident.end_ns = last.to_ns;
    Describe(node, share);
    reporter->Report(node->incident);
  }

  static void Describe(Node* node, double share) {
    double storage = 0;
    double wait = 0;
    double count = 0;
    double read = 0;
    double reads = 0;
    double busy = 0;
    double disks = 0;
    for (const Point& point : node->window) {
      if (!point.bottleneck) continue;
      ++count;
      storage += point.storage;
      wait += point.at.wait;
      if (std::isfinite(point.at.read_rate)) {
        read += point.at.read_rate;
        ++reads;
      }
      if (std::isfinite(point.at.disk_busy)) {
        busy += point.at.disk_busy;
        ++disks;
      }
    }
    count = std::max(1.0, count);
    storage /= count;
    wait /= count;
    read = reads > 0 ? read / reads : kUnknown;
    busy = disks > 0 ? busy / disks : kUnknown;

    Incident& incident = node->incident;
    incident.message = "Training waits for storage";
    std::string disk;
    if (std::isfinite(busy))
      disk = fmt::format("; the busiest disk works {:.0f} % of the time", busy);
    bool own = true;
    if (std::isfinite(read) && read >= kLeastRead) {
      incident.cause = fmt::format(
          "The training waits for batches in {:.0f} % of its time while its processes fetch {} "
          "MB/s from storage and tasks wait for storage ({:.0f} %){}.",
          100 * wait, Plain(read / 1e6), storage, disk);
      incident.advice =
          std::isfinite(busy) && busy >= kBusyDisk
              ? "Read less or in larger pieces: pack samples into large binary files, keep them on "
                "a local disk or in memory, and prefetch (prefetch_factor, more workers)."
              : "Prefetch deeper (more workers, prefetch_factor) so that reads overlap, and pack "
                "samples into large binary files: no disk of this node is busy all the time.";
    } else if (std::isfinite(read)) {
      own = false;
      incident.cause = fmt::format(
          "Tasks wait for storage ({:.0f} %){} while the training waits for batches in {:.0f} % of "
          "its time, but its processes fetch next to nothing from storage.",
          storage, disk, 100 * wait);
      incident.advice =
          "Look with iotop at what else reads or writes on this machine, and whether "
          "the data comes over a network file system.";
    } else {
      own = false;
      incident.cause = "cause not found";
      incident.advice = "Look with iotop at what reads and writes on this machine.";
    }
    const Severity now = own ? Severity::kMedium : Severity::kLow;
    incident.severity = std::max(incident.severity, now);
    incident.confidence = own ? 0.85 : 0.5;
    nlohmann::ordered_json evidence;
    evidence["samples"] = node->window.size();
    evidence["bottlenecks"] = node->in_window;
    evidence["share"] = Rounded(share);
    evidence["waits_for_storage"] = Rounded(storage);
    evidence["data_wait"] = Rounded(wait);
    if (std::isfinite(read)) evidence["read_bytes_rate"] = Rounded(read);
    if (std::isfinite(busy)) evidence["disk_busy"] = Rounded(busy);
    incident.evidence = JsonText(evidence);
  }

  static void Close(Node* node, Reporter* reporter) {
    if (!node->open) return;
    node->open = false;
    reporter->Close(node->incident);
  }

  const double threshold_;
  const double gpu_threshold_;
  const double io_threshold_;
  const std::size_t patience_;
  const double data_wait_;

  NodeSampler sampler_;
  std::map<std::uint32_t, Node> nodes_;  ///< By writer.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kIOBottleneckDesc{
    .name = "IOBottleneck",
    .summary = "The training waits for batches while tasks of the node wait for storage.",
    .formula =
        "Of each node, over its newest `patience` samples between which TRAIN steps took at least "
        "half of the time. A sample is a bottleneck where max(Σ I/O wait of all cores in percent "
        "of one, psi.io.some10) > io_threshold, and data wait ≥ data_wait of the steps' time, and, "
        "where GPUs were ever busy, one of these is for less than gpu_threshold. An incident where "
        "more than threshold of the samples are bottlenecks; over below half of that, or where the "
        "attempt ends. Medium where the run's processes fetch at least 0.1 MB/s from storage, else "
        "low: then it is another program, or a file system that is not seen here. Cost 0: the "
        "waits are InputBound's.",
    .how_to_fix =
        "Prefetch (more workers, prefetch_factor), pack samples into large binary files, keep them "
        "on a local disk or in memory.",
    .table_mask = NodeSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kProfiler,
    .by_default = true,
    .example =
        "Ten thousand small JPEG files on a network disk, read in random order with one worker.",
    .standing = {.theme = Theme::kInput, .order = 2},
    .data_mask = DataMask(Datum::kSamples, Datum::kSteps),
};

std::unique_ptr<Rule> MakeIOBottleneck(const Parameters& parameters) {
  return std::make_unique<IOBottleneck>(parameters);
}

}  // namespace telltale::rules::io_bottleneck
