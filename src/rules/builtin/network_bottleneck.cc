// SPDX-License-Identifier: Apache-2.0
// NetworkBottleneck: the training waits while a network interface receives all that it can.
//
// What an interface can is its link's speed where that is given, else what is measured: a receive
// rate that stands still at the highest that the run has had, while neither the training nor its
// loaders compute. A loader that is short of cores receives at a steady rate too.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::network_bottleneck {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"link_gbps", 0, "Gbit/s", "Speed of the link; 0: what the run itself receives at most."},
    {"near", 85, "%", "Of the ceiling, from which the link is full."},
    {"least_mb", 5, "MB/s", "A rate below this is no load."},
    {"gpu", 70, "%", "GPUs that are busier than this do not starve."},
    {"waits", 10, "%", "Share of step time that is waited for data or other ranks."},
    {"window_seconds", 20, "s", "Length of the sliding window."},
};

/// How far the rates of a window may lie apart, as a share of their median, for it to be a ceiling.
constexpr double kFlat = 0.15;
/// A loader that computes for more than this share of its time is not what the network holds up.
constexpr double kComputes = 0.7;
/// Interfaces of this machine with itself: their traffic is none, or is counted elsewhere again.
constexpr std::array<std::string_view, 8> kInner = {"lo",    "docker", "veth",    "br-",
                                                    "virbr", "cni",    "flannel", "tun"};

class NetworkBottleneck final : public Rule {
 public:
  explicit NetworkBottleneck(const Parameters& p)
      : link_(p.Get("link_gbps") * 1e9 / 8),
        near_(p.Get("near") / 100),
        least_(p.Get("least_mb") * 1e6),
        gpu_(p.Get("gpu")),
        waits_(p.Get("waits") / 100),
        window_s_(std::max(4.0, p.Get("window_seconds"))) {}

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kMetrics) return false;
    if (series.name == "net.recv_bytes_rate" && series.collection.starts_with("net:")) {
      const std::string_view interface = std::string_view(series.collection).substr(4);
      for (const std::string_view inner : kInner) {
        if (interface == inner || (inner != "lo" && interface.starts_with(inner))) return false;
      }
      interfaces_.emplace_back(interface);
      sampler_.Read(series, kReceived, static_cast<std::int32_t>(interfaces_.size() - 1));
      return true;
    }
    if (series.name == "gpu.utilization") {
      sampler_.Read(series, kGpu, UnitOf(series.collection, "gpu:"));
      return true;
    }
    if (series.name == "proc.cpu" && series.pid != 0) {
      sampler_.Read(series, kCpu, series.pid);
      return true;
    }
    return false;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    sampler_.OnRecord(record, [&](const SampledNode& node, const Sample& sample) {
      OnSample(node, sample, reporter);
    });
  }

  void OnEnd(Reporter* reporter) override {
    sampler_.Finish(
        [&](const SampledNode& node, const Sample& sample) { OnSample(node, sample, reporter); });
    for (auto& [key, link] : links_) {
      if (link.watched.open) reporter->Close(link.watched.incident);
      link.watched.open = false;
    }
  }

  bool has_data() const override { return has_data_; }

 private:
  enum What : int { kNone, kReceived, kGpu, kCpu };

  struct Cell : CellBase {
    using CellBase::CellBase;
    double bytes = 0;
    TimeMean gpu;
    TimeMean makers;  ///< Percent of a core that each process which makes batches takes.
    double workers_s = 0;
    void Add(const Cell& other) {
      AddBase(other);
      bytes += other.bytes;
      gpu.Add(other.gpu);
      makers.Add(other.makers);
      workers_s += other.workers_s;
    }
    double rate() const { return seconds > 0 ? bytes / seconds : 0; }
  };
  struct Link {
    explicit Link(double window_s) : window(1, window_s) {}
    CellWindow<Cell> window;
    Watched watched;
    std::string name, subject;
    double ceiling = 0;  ///< Highest mean of a window so far.
    double cost_s = 0;
  };

  void OnSample(const SampledNode& node, const Sample& sample, Reporter* reporter) {
    Cell of_node(sample);
    of_node.gpu.Add(sample.MeanOf(kGpu, node.used_gpus), of_node.seconds);
    const bool workers = std::any_of(
        sample.values.begin(), sample.values.end(),
        [&](const SampleValue& v) { return v.what == kCpu && node.workers.contains(v.unit); });
    for (const SampleValue& value : sample.values) {
      if (value.what != kCpu) continue;
      const bool maker =
          workers ? node.workers.contains(value.unit) : node.trainers.contains(value.unit);
      if (maker) of_node.makers.Add(value.value, of_node.seconds);
    }
    if (workers) of_node.workers_s = of_node.seconds;
    for (const SampleValue& value : sample.values) {
      if (value.what != kReceived) continue;
      const auto [at, added] = links_.try_emplace({node.writer, value.unit}, window_s_);
      Link& link = at->second;
      if (added) {
        link.name = interfaces_[static_cast<std::size_t>(value.unit)];
        link.subject = fmt::format("{} on {}", link.name, node.name);
      }
      Cell cell = of_node;
      cell.bytes = value.value * cell.seconds;
      link.watched.CloseBefore(cell, reporter);
      if (link.window.Push(cell)) Judge(&link, node, reporter);
    }
  }

  /// The rates of the window lie close to each other.
  static bool Flat(const CellWindow<Cell>& window) {
    std::vector<double> rates;
    for (const Cell& cell : window.cells()) rates.push_back(cell.rate());
    std::sort(rates.begin(), rates.end());
    const std::size_t tenth = rates.size() / 10;
    const double middle = rates[rates.size() / 2];
    return rates[rates.size() - 1 - tenth] - rates[tenth] <= kFlat * middle;
  }

  /// Those who make batches hardly compute, so that it is not them who set the pace.
  static bool MakersRest(const Cell& total) {
    if (!total.makers.known()) return false;
    const double cpu = total.makers.value() / 100;
    if (total.workers_s * 2 > total.seconds) return cpu < kComputes;
    return cpu <= 1 - total.steps.wait() / 2;
  }

  void Judge(Link* link, const SampledNode& node, Reporter* reporter) {
    const Cell& total = link->window.total();
    if (!link->window.full()) return;
    const double rate = total.rate();
    link->ceiling = std::max(link->ceiling, rate);
    if (!total.training()) return;
    has_data_ = true;
    const double wait = total.steps.wait();
    const double comm = total.steps.comm();
    // A training that sets its own pace receives at a steady rate too: what it waits for must be
    // seen, or the link's speed be known.
    const bool waits = wait + comm >= waits_;
    const bool starves =
        total.gpu.known() ? total.gpu.value() < gpu_ && (waits || link_ > 0) : waits;
    const bool full = link_ > 0 ? rate >= near_ * link_
                                : rate >= near_ * link->ceiling && Flat(link->window) &&
                                      (comm > wait || MakersRest(total));
    Watched& watched = link->watched;
    if (!watched.open) {
      if (!starves || !full || rate < least_) return;
      watched.Open(link->subject, total, Severity::kMedium);
      link->cost_s = Lost(total) * total.seconds;
    } else if (!starves || rate < std::max(least_, 0.7 * near_ * Ceiling(*link))) {
      reporter->Recover(watched.incident);
      watched.open = false;
      return;
    } else {
      watched.Extend(link->window.newest());
      link->cost_s += Lost(total) * link->window.newest().seconds;
    }
    if (Lost(total) >= 0.3) watched.Raise(Severity::kHigh);
    Describe(link, node);
    reporter->Report(watched.incident);
  }

  double Ceiling(const Link& link) const { return link_ > 0 ? link_ : link.ceiling; }

  /// Share of the time that is lost.
  static double Lost(const Cell& total) {
    const double waits = total.steps.wait() + total.steps.comm();
    if (waits >= 0.02 || !total.gpu.known()) return std::min(1.0, waits);
    return std::max(0.0, 1 - total.gpu.value() / 90);
  }

  void Describe(Link* link, const SampledNode& node) const {
    const Cell& total = link->window.total();
    Incident& incident = link->watched.incident;
    const double rate = total.rate();
    const double wait = total.steps.wait();
    const double comm = total.steps.comm();
    const double per_second = total.steps.samples / total.seconds;
    const double per_sample = total.steps.samples > 0 ? total.bytes / total.steps.samples : 0;
    const double ceiling = per_sample > 0 ? Ceiling(*link) / per_sample : 0;
    const double busy = 1 - std::min(0.99, wait + comm);
    incident.message = fmt::format("Network is full: {} MB/s received", Figure(rate / 1e6));
    const std::string at =
        link_ > 0 ? fmt::format("{} receives {} MB/s of its {} Gbit/s", link->name,
                                Figure(rate / 1e6), Figure(link_ * 8 / 1e9))
                  : fmt::format("{} receives {} MB/s all the time, the most that this run has had",
                                link->name, Figure(rate / 1e6));
    const std::string samples = per_sample > 0
                                    ? fmt::format(": at {} a sample that is {} samples/s at most",
                                                  Bytes(per_sample), Figure(ceiling))
                                    : std::string();
    if (comm > wait) {
      incident.cause = fmt::format("{}, while ranks wait for each other in {:.0f} % of step time.",
                                   at, 100 * comm);
      incident.advice =
          "Send less between the ranks: gradient accumulation (no_sync), compression hooks "
          "(fp16_compress_hook), larger batches; or a faster link.";
    } else if (wait >= 0.02) {
      incident.cause = fmt::format(
          "{}{}; the model waits for data in {:.0f} % of step time and "
          "could take {} samples/s.",
          at, samples, 100 * wait, Figure(per_second / busy));
      incident.advice =
          "Make a sample smaller on the way (resize or compress once, before training), keep the "
          "data on a local disk from the second epoch on, or take a machine with a faster link.";
    } else {
      incident.cause = fmt::format("{}{}; the GPUs are busy for {:.0f} % of the time.", at, samples,
                                   total.gpu.known() ? total.gpu.value() : 0);
      incident.advice =
          "Look at what is received: data that could lie on a local disk, or what ranks send each "
          "other.";
    }
    incident.cost_seconds = link->cost_s;
    incident.confidence = (link_ > 0 ? 0.8 : 0.65) + (wait + comm >= waits_ ? 0.1 : 0);
    nlohmann::ordered_json evidence;
    evidence["received_bytes_per_second"] = Rounded(rate);
    evidence["ceiling_bytes_per_second"] = Rounded(Ceiling(*link));
    evidence["ceiling_is"] = link_ > 0 ? "the link's speed" : "measured";
    if (per_sample > 0) {
      evidence["bytes_per_sample"] = Rounded(per_sample);
      evidence["samples_per_second"] = Rounded(per_second);
      evidence["ceiling_samples_per_second"] = Rounded(ceiling);
      evidence["model_samples_per_second"] = Rounded(per_second / busy);
    }
    evidence["waits_for_data"] = Rounded(wait);
    evidence["waits_for_ranks"] = Rounded(comm);
    if (total.gpu.known()) evidence["gpu_utilization"] = Rounded(total.gpu.value());
    if (total.makers.known()) evidence["makers_cpu"] = Rounded(total.makers.value());
    evidence["workers"] = node.workers.size();
    evidence["window_seconds"] = Rounded(total.seconds);
    incident.evidence = JsonText(evidence);
  }

  const double link_;
  const double near_;
  const double least_;
  const double gpu_;
  const double waits_;
  const double window_s_;
  MachineSampler sampler_;
  std::vector<std::string> interfaces_;                           ///< By unit.
  std::map<std::pair<std::uint32_t, std::int32_t>, Link> links_;  ///< By (writer, unit).
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kNetworkBottleneckDesc{
    .name = "NetworkBottleneck",
    .summary = "The training waits while a network interface receives all that it can.",
    .formula =
        "Over window_seconds in which TRAIN steps go on, of each interface but those of the "
        "machine "
        "with itself: full where the receive rate is at least `near` of link_gbps; without that of "
        "the highest mean of a window so far, with rates whose middle 80 % lie within 15 % of the "
        "median and makers of batches that compute for less than 70 % of their time (in the "
        "training process: less than 1 − wait / 2). Starving: data wait + comm wait ≥ `waits`, and "
        "the mean gpu.utilization is below `gpu` where GPUs were ever busy; with link_gbps and a "
        "GPU that alone. Medium, high where 30 % of the time "
        "is lost; over where nothing starves or the rate is below 70 % of that bar. Bytes a sample "
        "= received / samples of the batches; ceiling = the link's (or highest) rate / bytes a "
        "sample. Cost = time × (data wait + comm wait), a part of InputBound's; without such waits "
        "time × (1 − utilization / 90 %).",
    .how_to_fix =
        "Fewer bytes a sample, a local copy of the data, a faster link; fewer or smaller messages "
        "between ranks.",
    .table_mask = MachineSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .family = Family::kOwn,
    .example =
        "Images of 110 KB read from an object store over 1 Gbit/s: 1100 images a second, whatever "
        "the GPU could do.",
    .standing = {.theme = Theme::kInput, .order = 1},
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSamples, Datum::kSteps),
};

std::unique_ptr<Rule> MakeNetworkBottleneck(const Parameters& parameters) {
  return std::make_unique<NetworkBottleneck>(parameters);
}

}  // namespace telltale::rules::network_bottleneck
