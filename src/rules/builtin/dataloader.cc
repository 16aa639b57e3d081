// SPDX-License-Identifier: Apache-2.0
// Dataloader: too few loader workers for the cores while the training waits for batches, or far
// more than there are cores.
//
// SageMaker Debugger's rule of this name looks at the number alone, and its report then advises
// more workers for 7 of 8 cores and fewer for 9 of 8, whatever the rule's band says. Here few
// workers are wrong only where the training waits, cores are those that the run may use, and the
// advice ends in the band.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "analysis/quantiles.h"
#include "base/json.h"
#include "base/units.h"
#include "rules/builtin/event_data.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/registry.h"

namespace telltale::rules::dataloader {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_threshold", 70, "%", "Fewer workers than this share of the cores are few."},
    {"max_threshold", 200, "%", "More workers than this share of the cores are too many."},
    {"patience", 10, "samples", "Seconds with training steps before anything is said."},
    {"data_wait", 10, "%",
     "Few workers are too few where the training waits for so much of its time."},
};

constexpr std::size_t kSecondsKept = 60;
/// First steps of an attempt, which wait for workers that begin.
constexpr std::int64_t kWarmupSteps = 3;
constexpr std::size_t kHistogramBins = 20;

class Dataloader final : public Rule {
 public:
  explicit Dataloader(const Parameters& p)
      : min_(p.Get("min_threshold") / 100),
        max_(p.Get("max_threshold") / 100),
        patience_(
            static_cast<std::size_t>(std::clamp<std::int64_t>(p.GetInt("patience"), 1, 100'000))),
        data_wait_(p.Get("data_wait") / 100) {}

  bool Wants(const Series& series) override {
    if (series.table == format::TableId::kSpans) {
      return series.name == "fetch" && series.collection == "data" && series.mode != "EVAL" &&
             series.mode != "PREDICT";
    }
    if (series.table != format::TableId::kMetrics) return false;
    if (series.name == "cpu.idle" && series.collection.starts_with("cpu:")) {
      cores_[series.mode].insert(series.collection);  // Counted; its samples are not needed.
      return false;
    }
    // One value a node says which writer is which node.
    return series.name == "cgroup.cpu_limit" ||
           (series.name == "cpu.idle" && series.collection == "node");
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, &nodes_[record.writer], reporter);
    } else if (const auto* span = record.As<format::SpanRow>()) {
      if (span->duration_ns >= 0) {
        nodes_[record.writer].fetch_ns.Add(static_cast<double>(span->duration_ns));
      }
    } else if (const auto* metric = record.As<format::MetricRow>()) {
      Node& node = nodes_[record.writer];
      if (node.name.empty()) node.name = metric->node;
      if (metric->name == "cgroup.cpu_limit" && std::isfinite(metric->value)) {
        node.limit = metric->value;
      }
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, &nodes_[record.writer], reporter);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [writer, node] : nodes_) Close(&node, reporter);
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return loader_seen_ || !steps_seen_; }
  std::string Missing() const override {
    return steps_seen_ && !loader_seen_ ? "no data loader was seen" : std::string();
  }

  std::string Summary() const override {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (const auto& [writer, node] : nodes_) {
      if (node.loaders.empty() && node.fetch_ns.count() == 0) continue;
      nlohmann::ordered_json of;
      of["cores"] = CoresOf(node);
      of["workers"] = MedianOf({node.counts.begin(), node.counts.end()});
      of["loaders"] = nlohmann::ordered_json::array();
      for (const auto& [key, facts] : node.loaders) of["loaders"].push_back(facts);
      if (node.fetch_ns.count() > 0) {
        of["load_ms"] = {{"count", node.fetch_ns.count()},
                         {"p25", Rounded(node.fetch_ns.At(0.25) / 1e6)},
                         {"p50", Rounded(node.fetch_ns.At(0.5) / 1e6)},
                         {"p95", Rounded(node.fetch_ns.At(0.95) / 1e6)}};
        of["load_ms"]["histogram"] = HistogramOf(node.fetch_ns);
      }
      out["nodes"][node.name.empty() ? fmt::format("{}", writer) : node.name] = std::move(of);
    }
    return out.empty() ? std::string() : JsonText(out);
  }

 private:
  struct Node {
    std::string name;
    std::set<std::int32_t> workers;    ///< That live, by pid.
    std::map<std::int32_t, int> cpus;  ///< By trainer: cores that it may run on.
    double limit = 0;                  ///< Of its control group, in cores; 0: none.
    std::map<std::pair<std::int32_t, std::int64_t>, nlohmann::ordered_json> loaders;
    analysis::Quantiles fetch_ns;

    std::int64_t second = -1;  ///< The one whose steps come in.
    std::int64_t second_start_ns = 0;
    double step_ns = 0, wait_ns = 0;
    std::deque<double> counts;                    ///< Workers, one value a second with steps.
    std::deque<std::pair<double, double>> times;  ///< Of steps, and their data wait.
    std::deque<std::int64_t> starts_ns;
    std::deque<std::int64_t> steps;
    std::uint32_t attempt = 0;
    std::int64_t seen = 0;
    std::int64_t last_step = -1;
    std::int64_t last_ns = 0;
    bool open = false;
    bool few = false;  ///< Of the open incident: too few, not too many.
    Incident incident;
  };

  void OnEvent(const format::EventRow& event, Node* node, Reporter* reporter) {
    if (event.kind == "run.attempt_start") {
      // Where the machine died nobody has said that its processes ended.
      node->workers.clear();
      node->cpus.clear();
      node->loaders.clear();
      return;
    }
    if (event.kind == "worker.start") {
      node->workers.insert(event.pid);
      loader_seen_ = true;
      return;
    }
    if (event.kind == "process.exit") {
      node->workers.erase(event.pid);
      if (node->cpus.erase(event.pid) > 0 && node->cpus.empty()) {
        // The last training process of the node.
        Close(node, reporter);
        Restart(node);
      }
      return;
    }
    if (event.kind != "dataloader" && event.kind != "framework") return;
    const auto data = ParseOrderedJson(event.data);
    if (!data.is_object()) return;
    if (event.kind == "framework") {
      node->cpus[event.pid] =
          static_cast<int>(std::clamp<std::int64_t>(IntegerIn(data, "cpus"), 0, 65536));
      return;
    }
    loader_seen_ = true;
    if (node->loaders.size() >= 32) return;
    nlohmann::ordered_json& facts = node->loaders[{event.pid, IntegerIn(data, "loader_id")}];
    facts = nlohmann::ordered_json::object();
    for (const char* key :
         {"workers", "batch_size", "pin_memory", "prefetch_factor", "persistent_workers"}) {
      if (const auto found = data.find(key); found != data.end()) facts[key] = *found;
    }
  }

  static void Restart(Node* node) {
    node->counts.clear();
    node->times.clear();
    node->starts_ns.clear();
    node->steps.clear();
    node->second = -1;
    node->step_ns = node->wait_ns = 0;
    node->seen = 0;
  }

  void OnStep(const format::StepRow& row, Node* node, Reporter* reporter) {
    if (row.duration_ns <= 0 || row.attempt < node->attempt) return;
    steps_seen_ = true;
    if (row.attempt > node->attempt) {
      Close(node, reporter);
      Restart(node);
      node->attempt = row.attempt;
    }
    if (++node->seen <= kWarmupSteps) return;
    const std::int64_t end_ns = row.time_ns + row.duration_ns;
    const std::int64_t second = end_ns / kSecond;
    if (second > node->second) {
      if (node->second >= 0 && node->step_ns > 0) EndSecond(node, reporter);
      node->second = second;
      node->second_start_ns = row.time_ns;
      node->step_ns = node->wait_ns = 0;
    }
    const format::StepRow own = WithoutProbe(row);
    node->step_ns += static_cast<double>(own.duration_ns);
    node->wait_ns +=
        static_cast<double>(std::clamp<std::int64_t>(own.data_wait_ns, 0, own.duration_ns));
    node->last_step = row.step;
    node->last_ns = end_ns;
  }

  /// A second with steps is over: workers that live now made its batches.
  void EndSecond(Node* node, Reporter* reporter) {
    node->counts.push_back(static_cast<double>(node->workers.size()));
    node->times.emplace_back(node->step_ns, node->wait_ns);
    node->starts_ns.push_back(node->second_start_ns);
    node->steps.push_back(node->last_step);
    if (node->counts.size() > std::max(kSecondsKept, patience_)) {
      node->counts.pop_front();
      node->times.pop_front();
      node->starts_ns.pop_front();
      node->steps.pop_front();
    }
    if (node->counts.size() < patience_ || (node->loaders.empty() && node->workers.empty())) return;
    const double cores = CoresOf(*node);
    if (cores <= 0) return;
    has_data_ = true;
    Judge(node, cores, reporter);
  }

  /// Those that the run may use.
  double CoresOf(const Node& node) const {
    const auto found = cores_.find(node.name);
    double cores = found == cores_.end() ? 0 : static_cast<double>(found->second.size());
    double may_use = 0;
    bool known = !node.cpus.empty();
    for (const auto& [pid, cpus] : node.cpus) {
      known = known && cpus > 0;
      may_use += cpus;
    }
    // Of one process exactly; several may share their cores, which adds up to all at most.
    if (known && (cores <= 0 || may_use < cores)) cores = may_use;
    if (node.limit > 0 && (cores <= 0 || node.limit < cores)) cores = node.limit;
    return cores;
  }

  void Judge(Node* node, double cores, Reporter* reporter) {
    const double workers = MedianOf({node->counts.begin(), node->counts.end()});
    double step_ns = 0;
    double wait_ns = 0;
    for (const auto& [step, wait] : node->times) {
      step_ns += step;
      wait_ns += wait;
    }
    const double wait = step_ns > 0 ? wait_ns / step_ns : 0;
    const double least = node->open && node->few ? data_wait_ / 2 : data_wait_;
    const bool few = workers < cores * min_ && wait >= least;
    const bool many = workers > cores * max_;
    if (!few && !many) {
      if (node->open) {
        node->open = false;
        reporter->Recover(node->incident);
      }
      return;
    }
    if (!node->open) {
      node->open = true;
      node->incident = Incident();
      node->incident.subject = node->name.empty() ? "loaders" : "loaders on " + node->name;
      node->incident.first_step = node->steps.front();
      node->incident.start_ns = node->starts_ns.front();
    }
    node->few = few;
    Incident& incident = node->incident;
    incident.last_step = node->last_step;
    incident.end_ns = node->last_ns;
    incident.confidence = 0.8;
    const int band_low = std::max(1, FewAsInt(std::ceil(cores * min_)));
    const int band_high = std::max(band_low, FewAsInt(std::floor(cores * max_)));
    const int target = std::clamp(FewAsInt(std::floor(cores)), band_low, band_high);
    if (few) {
      incident.severity = std::max(incident.severity, Severity::kMedium);
      incident.message = "Too few loader workers";
      incident.cause = fmt::format(
          "{} loader {} for {}, while the training waits for batches in {:.0f} % of its time.",
          Figure(workers), workers == 1 ? "worker lives" : "workers live", CoresText(cores),
          100 * wait);
    } else {
      incident.severity =
          std::max(incident.severity, wait >= data_wait_ ? Severity::kMedium : Severity::kLow);
      incident.message = "Far more loader workers than cores";
      incident.cause = fmt::format(
          "{} loader workers share {}: they take turns, and each holds a copy of the data set's "
          "state and its prefetched batches.",
          Figure(workers), CoresText(cores));
    }
    incident.advice = fmt::format(
        "Use {} loader {} on this node, all ranks together (num_workers of each DataLoader).",
        target, target == 1 ? "worker" : "workers");
    if (few && node->fetch_ns.count() > 0) {
      incident.cause +=
          fmt::format(" A batch takes {} ms to make (median).", Millis(node->fetch_ns.At(0.5)));
    }
    nlohmann::ordered_json evidence;
    evidence["workers"] = workers;
    evidence["cores"] = Rounded(cores);
    evidence["least"] = Rounded(cores * min_);
    evidence["most"] = Rounded(cores * max_);
    evidence["data_wait"] = Rounded(wait);
    evidence["seconds"] = node->counts.size();
    if (node->fetch_ns.count() > 0) {
      evidence["load_ms_p50"] = Rounded(node->fetch_ns.At(0.5) / 1e6);
      evidence["load_ms_p95"] = Rounded(node->fetch_ns.At(0.95) / 1e6);
    }
    if (!node->loaders.empty()) {
      for (const auto& [key, value] : node->loaders.begin()->second.items()) {
        evidence["loader_" + key] = value;
      }
    }
    incident.evidence = JsonText(evidence);
    reporter->Report(incident);
  }

  static std::string CoresText(double cores) {
    return fmt::format("{} {}", Figure(cores), cores == 1 ? "core" : "cores");
  }

  /// Counts in bins of equal width from 0 to the 99th percentile; the last holds what is longer.
  static nlohmann::ordered_json HistogramOf(const analysis::Quantiles& values) {
    const double most = std::max(1.0, values.At(0.99));
    std::array<std::uint64_t, kHistogramBins> bins{};
    values.ForEachBucket([&](double value, std::uint64_t count) {
      const double at = std::clamp(value / most, 0.0, 1.0) * static_cast<double>(kHistogramBins);
      bins[std::min(kHistogramBins - 1, static_cast<std::size_t>(at))] += count;
    });
    return {{"to_ms", Rounded(most / 1e6)}, {"bins", bins}};
  }

  static void Close(Node* node, Reporter* reporter) {
    if (!node->open) return;
    node->open = false;
    reporter->Close(node->incident);
  }

  const double min_;
  const double max_;
  const std::size_t patience_;
  const double data_wait_;

  std::map<std::uint32_t, Node> nodes_;                 ///< By writer.
  std::map<std::string, std::set<std::string>> cores_;  ///< By node.
  bool loader_seen_ = false;
  bool steps_seen_ = false;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kDataloaderDesc{
    .name = "Dataloader",
    .summary = "Too few loader workers while the training waits, or far more than cores.",
    .formula =
        "workers = median, over the newest 60 seconds in which TRAIN steps of a node ended (at "
        "least `patience` of them, the first three steps of an attempt apart), of the loader "
        "workers that live; cores = those of the node, of the affinity of its training processes "
        "together, of the limit of its control group, whichever are fewest. Too few: workers < "
        "cores × min_threshold, and data wait ≥ data_wait of the steps' time (half of it once "
        "open): medium. Too many: workers > cores × max_threshold: medium where the training waits "
        "so, else low. Over where neither holds, or the node's training processes or the attempt "
        "end. Advised are as many workers as cores, within both bounds. Cost 0: the waits are "
        "InputBound's, which by default says the same of too few workers.",
    .how_to_fix =
        "Set num_workers so that all workers of a node are about as many as its cores; "
        "persistent_workers=True, pin_memory=True with a GPU.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
                  store::MaskOf(format::TableId::kEvents) |
                  store::MaskOf(format::TableId::kMetrics),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kProfiler,
    .by_default = false,
    .example = "num_workers=64 in a container that may use 4 cores.",
    .standing = {.theme = Theme::kInput, .order = 3},
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeDataloader(const Parameters& parameters) {
  return std::make_unique<Dataloader>(parameters);
}

}  // namespace telltale::rules::dataloader
