// SPDX-License-Identifier: Apache-2.0
// Underused: GPUs, cores and disks are all far from full, but none of them rests.
//
// Then nothing that can be bought is the bottleneck: the parts wait for each other. Where the model
// waits for batches more loader workers help, as many as memory and cores allow; where it does not,
// the device gets too little work at a time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::underused {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"gpu", 50, "%", "GPUs that are busier than this are not underused; those of no load either."},
    {"cpu", 50, "%", "Load of the cores that the run may use, above which they are used."},
    {"disk", 50, "%", "Load of the busiest disk, above which it is used."},
    {"waits", 10, "%", "Share of step time waited for data, from which workers are too few."},
    {"minutes", 2, "min", "Length of the sliding window."},
};

/// Percent; a GPU or cores with less rest.
constexpr double kRests = 1;
/// Utilization that a well-fed GPU reaches: what the cost is measured against.
constexpr double kFed = 90;
/// Memory that more workers may take of what is available.
constexpr double kMemoryShare = 0.8;
constexpr int kMostWorkers = 64;

class Underused final : public Rule {
 public:
  explicit Underused(const Parameters& p)
      : gpu_(p.Get("gpu")),
        cpu_(p.Get("cpu")),
        disk_(p.Get("disk")),
        waits_(p.Get("waits") / 100),
        window_s_(60 * std::max(0.1, p.Get("minutes"))) {}

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kMetrics) return false;
    const std::string_view name = series.name;
    const std::string_view subject = series.collection;
    What what = kNone;
    std::int32_t unit = 0;
    if (name == "cpu.idle" && subject.starts_with("cpu:")) {
      ++cores_[series.mode];  // Each core is a series of its own; its samples are not needed.
      return false;
    }
    if (subject == "node") {
      what = name == "cpu.busy" ? kBusy : name == "mem.available" ? kAvailable : kNone;
    } else if (subject == "cgroup") {
      what = name == "cgroup.cpu_limit" ? kLimit : kNone;
    } else if (subject == "proc:tree") {
      what = name == "proc.cpu" ? kTree : kNone;
    } else if (name == "proc.rss" && series.pid != 0) {
      what = kRss;
      unit = series.pid;
    } else if (name == "disk.busy") {
      what = kDisk;
    } else if (name == "gpu.utilization") {
      what = kGpu;
      unit = UnitOf(subject, "gpu:");
    }
    if (what == kNone) return false;
    sampler_.Read(series, what, unit);
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
    for (auto& [writer, machine] : machines_) {
      if (machine.watched.open) reporter->Close(machine.watched.incident);
      machine.watched.open = false;
    }
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return gpu_seen_; }

 private:
  enum What : int { kNone, kBusy, kAvailable, kLimit, kTree, kRss, kDisk, kGpu };

  struct Cell : CellBase {
    using CellBase::CellBase;
    TimeMean gpu;         ///< Mean of the GPUs.
    TimeMean cpu;         ///< Percent of the cores that the run may use.
    TimeMean cores;       ///< How many these are.
    TimeMean disk;        ///< Of the busiest one.
    TimeMean available;   ///< Bytes.
    TimeMean worker_rss;  ///< Bytes of one.
    TimeMean workers;     ///< How many live.
    void Add(const Cell& other) {
      AddBase(other);
      gpu.Add(other.gpu);
      cpu.Add(other.cpu);
      cores.Add(other.cores);
      disk.Add(other.disk);
      available.Add(other.available);
      worker_rss.Add(other.worker_rss);
      workers.Add(other.workers);
    }
  };
  struct Machine {
    explicit Machine(double window_s) : window(std::min(5.0, window_s / 4), window_s) {}
    CellWindow<Cell> window;
    Watched watched;
    double cost_s = 0;
  };

  void OnSample(const SampledNode& node, const Sample& sample, Reporter* reporter) {
    Cell cell(sample);
    const double seconds = cell.seconds;
    gpu_seen_ = gpu_seen_ || !std::isnan(sample.MaxOf(kGpu));
    cell.gpu.Add(sample.MeanOf(kGpu, node.used_gpus), seconds);
    const double all = cores_[node.name];
    const double limit = sample.SumOf(kLimit);
    const bool limited = limit > 0 && (all == 0 || limit < all);
    if (limited) {
      cell.cpu.Add(sample.SumOf(kTree) / limit, seconds);
      cell.cores.Add(limit, seconds);
    } else {
      cell.cpu.Add(sample.SumOf(kBusy), seconds);
      if (all > 0) cell.cores.Add(all, seconds);
    }
    cell.disk.Add(sample.MaxOf(kDisk), seconds);
    cell.available.Add(sample.SumOf(kAvailable), seconds);
    double rss = 0;
    double workers = 0;
    for (const SampleValue& value : sample.values) {
      if (value.what != kRss || !node.workers.contains(value.unit)) continue;
      rss += value.value;
      ++workers;
    }
    cell.workers.Add(workers, seconds);
    if (workers > 0) cell.worker_rss.Add(rss / workers, seconds);
    Machine& machine = machines_.try_emplace(node.writer, window_s_).first->second;
    machine.watched.CloseBefore(cell, reporter);
    if (machine.window.Push(cell)) Judge(&machine, node, reporter);
  }

  void Judge(Machine* machine, const SampledNode& node, Reporter* reporter) {
    const Cell& total = machine->window.total();
    if (!machine->window.full() || !total.gpu.known() || !total.cpu.known()) return;
    has_data_ = true;
    Watched& watched = machine->watched;
    // An open incident needs clearly more load to be over.
    const double slack = watched.open ? 1.2 : 1;
    const double gpu = total.gpu.value();
    const double cpu = total.cpu.value();
    const bool disk = total.disk.known() && total.disk.value() >= disk_ * slack;
    const bool low = gpu >= kRests && gpu < gpu_ * slack && cpu >= kRests && cpu < cpu_ * slack &&
                     !disk && total.training();
    if (!watched.open) {
      if (!low) return;
      watched.Open(node.name, total, Severity::kLow);
      machine->cost_s = total.seconds * Lost(total);
    } else if (!low) {
      reporter->Recover(watched.incident);
      watched.open = false;
      return;
    } else {
      watched.Extend(machine->window.newest());
      machine->cost_s += machine->window.newest().seconds * Lost(total);
    }
    if (total.steps.wait() >= waits_) watched.Raise(Severity::kMedium);
    Describe(machine, node);
    reporter->Report(watched.incident);
  }

  static double Lost(const Cell& total) { return std::max(0.0, 1 - total.gpu.value() / kFed); }

  /// How many workers more memory and cores allow; nullopt: their size is not known.
  static std::optional<int> MemoryFor(const Cell& total) {
    if (!total.worker_rss.known() || !total.available.known() || total.worker_rss.value() <= 0) {
      return std::nullopt;
    }
    return static_cast<int>(
        std::clamp(kMemoryShare * total.available.value() / total.worker_rss.value(), 0.0,
                   static_cast<double>(kMostWorkers)));
  }

  void Describe(Machine* machine, const SampledNode& node) const {
    const Cell& total = machine->window.total();
    Incident& incident = machine->watched.incident;
    const double wait = total.steps.wait();
    const double comm = total.steps.comm();
    const std::string disk =
        total.disk.known() ? fmt::format(", disk {:.0f} %", total.disk.value()) : std::string();
    const std::string loads =
        fmt::format("GPU {:.0f} %, cores {:.0f} %{}", total.gpu.value(), total.cpu.value(), disk);
    incident.message = "GPU, cores and disk are underused";
    const int workers = FewAsInt(std::round(total.workers.value()));
    const int cores = total.cores.known() ? FewAsInt(total.cores.value()) : kMostWorkers;
    const int free_cores = std::max(0, FewAsInt(cores * (1 - total.cpu.value() / 100)) - 1);
    const std::optional<int> memory = MemoryFor(total);
    // num_workers is of one DataLoader: each rank has its own.
    const int ranks = static_cast<int>(std::max<std::size_t>(1, node.trainers.size()));
    int more = std::min(std::max(2 * ranks, workers), free_cores);
    if (memory) more = std::min(more, *memory);
    const int target = (workers + more) / ranks;
    bool found = true;
    if (wait >= waits_ && memory && *memory == 0) {
      incident.cause = fmt::format(
          "{}; the model waits for data in {:.0f} % of step time, and {} of memory hold no worker "
          "more ({} each).",
          loads, 100 * wait, Bytes(total.available.value()), Bytes(total.worker_rss.value()));
      incident.advice =
          "Make workers smaller (arrays instead of lists of objects, smaller prefetch_factor), so "
          "that more of them fit.";
    } else if (wait >= waits_ && target > workers / ranks) {
      incident.cause = fmt::format(
          "{}; the model waits for data in {:.0f} % of step time: {}.", loads, 100 * wait,
          workers == 0 ? std::string("each batch is made between two steps")
          : workers == 1
              ? std::string("1 loader worker makes too few batches at a time")
              : fmt::format("{} loader workers make too few batches at a time", workers));
      incident.advice = fmt::format("Set num_workers={} in the DataLoader{}{}.", target,
                                    ranks > 1 ? " of each rank" : "",
                                    memory ? fmt::format(": memory allows up to {} more of {}",
                                                         *memory, Bytes(total.worker_rss.value()))
                                           : std::string(", and look whether memory allows it"));
    } else if (wait >= waits_) {
      incident.cause =
          fmt::format("{}; the model waits for data in {:.0f} % of step time.", loads, 100 * wait);
      incident.advice = "Read ahead (prefetch_factor), and larger pieces: see SmallReads.";
    } else if (comm >= waits_) {
      incident.cause =
          fmt::format("{}; ranks wait for each other in {:.0f} % of step time.", loads, 100 * comm);
      incident.advice = "See Straggler and LoadBalancing; send less or less often between ranks.";
    } else {
      found = false;
      incident.cause = "cause not found";
      incident.advice =
          "No wait for data or other ranks: the device gets too little work at a time. Use larger "
          "batches, torch.compile or CUDA graphs; look at HostSync.";
    }
    incident.cost_seconds = machine->cost_s;
    incident.confidence = found ? 0.75 : 0.5;
    nlohmann::ordered_json evidence;
    evidence["gpu"] = Rounded(total.gpu.value());
    evidence["cpu"] = Rounded(total.cpu.value());
    if (total.disk.known()) evidence["disk"] = Rounded(total.disk.value());
    evidence["waits_for_data"] = Rounded(wait);
    evidence["waits_for_ranks"] = Rounded(comm);
    evidence["workers"] = workers;
    if (total.cores.known()) evidence["cores_allowed"] = Rounded(total.cores.value());
    if (total.available.known()) evidence["memory_available"] = Rounded(total.available.value());
    if (total.worker_rss.known()) evidence["worker_bytes"] = Rounded(total.worker_rss.value());
    if (memory) evidence["workers_that_fit"] = *memory;
    evidence["window_seconds"] = Rounded(total.seconds);
    incident.evidence = JsonText(evidence);
  }

  const double gpu_;
  const double cpu_;
  const double disk_;
  const double waits_;
  const double window_s_;
  MachineSampler sampler_;
  std::map<std::uint32_t, Machine> machines_;  ///< By writer.
  std::map<std::string, int> cores_;           ///< By node.
  bool gpu_seen_ = false;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kUnderusedDesc{
    .name = "Underused",
    .summary = "GPUs, cores and disks are all far from full, but none of them rests.",
    .formula =
        "Over `minutes` in which TRAIN steps go on, of one node: 1 % ≤ mean gpu.utilization "
        "(of GPUs that were ever busy) < `gpu`, 1 % ≤ load of the cores that the run may use < "
        "`cpu` (with a CPU limit: of the limit, the run's own), mean of the busiest disk < "
        "`disk`; data in memory need none. Medium where data wait ≥ `waits` of step time, else "
        "low; "
        "over where a load is 1.2 times its bound. Workers "
        "advised (of all ranks of the node together, shared out): twice as many, at most the free "
        "cores less one, at most 80 % of mem.available / "
        "the resident memory of a worker. Cost = time × (1 − utilization / 90 %): assumes that a "
        "well-fed GPU reaches 90 %; the waits in it are InputBound's too.",
    .how_to_fix =
        "More loader workers where memory allows; else larger batches and fewer, larger kernels.",
    .table_mask = MachineSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .family = Family::kOwn,
    .example =
        "Two workers that read from a network's file system and mostly wait for it, beside a GPU "
        "that is busy for 30 % of the time.",
    .standing = {.theme = Theme::kInput, .order = 9},
    .data_mask = DataMask(Datum::kSamples, Datum::kGpu, Datum::kGpuLoad, Datum::kSteps),
};

std::unique_ptr<Rule> MakeUnderused(const Parameters& parameters) {
  return std::make_unique<Underused>(parameters);
}

}  // namespace telltale::rules::underused
