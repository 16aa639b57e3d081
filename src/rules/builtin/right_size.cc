// SPDX-License-Identifier: Apache-2.0
// RightSize: which resource bounds the run, how much room the others have, and the cheapest machine
// that would hold the same throughput.
//
// What the run takes is judged by the 95th percentile of its loads and the peak of its memory, with
// a reserve; what it takes all of is asked for as it is, so that the present machine always holds.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/quantiles.h"
#include "base/json.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/price_table.h"
#include "rules/registry.h"

namespace telltale::rules::right_size {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"prices", 0, "",
     "Price table, as TOML or as the path of a file (docs/formats/prices.md). Empty: no machine is "
     "proposed, what the run takes is shown all the same.",
     ""},
    {"machine", 0, "",
     "Name in the table of the machine that the run is on. Empty: found by its "
     "cores, memory and GPUs, or by `current` in the table.",
     ""},
    {"reserve", 20, "%", "Room that a proposed machine must have beyond what the run takes."},
    {"least_saving", 10, "%", "Saving below which no machine is proposed."},
    {"minutes", 10, "min", "Training that must have been seen."},
};

/// Load from which a resource bounds the run, percent.
constexpr double kBound = 85;
/// The same of memory, which does not slow down but ends.
constexpr double kFull = 90;
/// Utilization, and percent of its memory, from which a GPU is used at all.
constexpr double kUsedGpu = 5;
constexpr double kWaits = 0.1;
constexpr double kJudgeEveryS = 60;
/// Between what a table says of a machine's memory and what its kernel has of it.
constexpr double kMemorySlack = 0.15;
constexpr std::uint64_t kLeastSamples = 10;
/// Of them, in which nothing of the start lies, from which these alone count.
constexpr std::uint64_t kLeastTraining = 5;
constexpr std::array<std::string_view, 6> kInner = {"docker", "veth", "br-",
                                                    "virbr",  "cni",  "flannel"};

double Percent(double part, double of) { return of > 0 ? 100 * part / of : 0; }

class RightSize final : public Rule {
 public:
  explicit RightSize(const Parameters& p)
      : reserve_(1 + std::max(0.0, p.Get("reserve")) / 100),
        least_saving_(p.Get("least_saving") / 100),
        least_s_(60 * std::max(0.0, p.Get("minutes"))),
        machine_(p.Text("machine")) {
    if (p.Text("prices").empty()) return;
    Result<PriceTable> table = LoadPriceTable(p.Text("prices"));
    if (table.ok()) {
      table_ = std::move(table).value();
      if (!machine_.empty() && Find(machine_) == nullptr) {
        error_ = fmt::format("parameter 'machine': the price table has no '{}'", machine_);
      }
    } else {
      error_ = table.status().message();
    }
  }

  void Bind(const RuleContext& context) override {
    static_cast<void>(context);
    Check();
  }

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
      what = name == "mem.total"          ? kTotal
             : name == "cpu.busy"         ? kBusy
             : name == "mem.used_percent" ? kMemoryPercent
                                          : kNone;
    } else if (subject == "cgroup") {
      what = name == "cgroup.cpu_limit"   ? kCpuLimit
             : name == "cgroup.mem_limit" ? kMemoryLimit
                                          : kNone;
    } else if (subject == "proc:tree") {
      what = name == "proc.cpu" ? kTree : name == "proc.rss" ? kRss : kNone;
    } else if (subject.starts_with("disk:")) {
      what = name == "disk.busy"                                                 ? kDiskBusy
             : name == "disk.read_bytes_rate" || name == "disk.write_bytes_rate" ? kDisk
                                                                                 : kNone;
    } else if (subject.starts_with("net:")) {
      what = name == "net.recv_bytes_rate" && !Inner(subject.substr(4)) ? kReceived : kNone;
    } else if (unit = UnitOf(subject, "gpu:"); unit >= 0) {
      what = name == "gpu.utilization"      ? kGpu
             : name == "gpu.memory_used"    ? kGpuUsed
             : name == "gpu.memory_total"   ? kGpuTotal
             : name == "gpu.memory_percent" ? kGpuPercent
                                            : kNone;
    }
    if (what == kNone) return false;
    sampler_.Read(series, what, unit);
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    Check();
    sampler_.OnRecord(record, [&](const SampledNode& node, const Sample& sample) {
      OnSample(node, sample, reporter);
    });
  }

  void OnEnd(Reporter* reporter) override {
    sampler_.Finish(
        [&](const SampledNode& node, const Sample& sample) { OnSample(node, sample, reporter); });
    for (auto& [writer, machine] : machines_) {
      Judge(&machine, reporter);
      if (machine.watched.open) reporter->Close(machine.watched.incident);
      machine.watched.open = false;
    }
  }

  bool has_data() const override {
    return std::any_of(machines_.begin(), machines_.end(),
                       [](const auto& entry) { return entry.second.HasData(); });
  }

  std::string Summary() const override {
    nlohmann::ordered_json nodes = nlohmann::ordered_json::array();
    for (const auto& [writer, machine] : machines_) {
      if (machine.HasData()) nodes.push_back(Show(machine));
    }
    if (nodes.empty()) return {};
    nlohmann::ordered_json out;
    if (!table_.machines.empty()) out["currency"] = table_.currency;
    out["nodes"] = std::move(nodes);
    return JsonText(out);
  }

 private:
  enum What : int {
    kNone,
    kTotal,
    kCpuLimit,
    kMemoryLimit,
    kTree,
    kRss,
    kDiskBusy,
    kDisk,
    kReceived,
    kGpu,
    kGpuUsed,
    kGpuTotal,
    kBusy,
    kMemoryPercent,
    kGpuPercent,
  };

  /// How a node is loaded, sample by sample.
  struct Loads {
    analysis::Quantiles tree_cpu;  ///< Cores.
    // Of all programs of the node: what an import brings where it knows no processes.
    analysis::Quantiles node_cpu;        ///< Cores.
    analysis::Quantiles gpu, disk_busy;  ///< Percent; of the GPUs that are used, their mean.
    analysis::Quantiles disk, network;   ///< Bytes a second.
  };

  /// What a node has and what the run takes of it, since its first TRAIN step; memory since ever.
  struct Machine {
    std::string node;
    double cores = 0, core_limit = 0;  ///< A limit of 0: none.
    double memory = 0, memory_limit = 0;
    double gpu_memory = 0;  ///< Of one GPU.
    std::set<std::int32_t> gpus, used_gpus;
    double peak = 0;                             ///< Bytes.
    double gpu_peak = 0;                         ///< Of the fullest GPU.
    double memory_percent = 0, gpu_percent = 0;  ///< Peaks.
    Loads seen;      ///< The sample that the first step is in, which may have imports in it, too.
    Loads training;  ///< Only samples that began when the training made steps.
    StepSums steps, training_steps;  ///< Likewise.
    double seconds = 0, judged_s = 0;
    std::int64_t from_ns = 0, to_ns = 0;
    Watched watched;

    bool HasData() const {
      return std::max(seen.tree_cpu.count(), seen.node_cpu.count()) >= kLeastSamples &&
             steps.count > 0;
    }
    /// The run's own load was sampled, and not only that of the whole node.
    bool own() const {
      return seen.tree_cpu.count() > 0 && 2 * seen.tree_cpu.count() >= seen.node_cpu.count();
    }
    /// Steps of the time that is judged: the first batch waits for workers that start.
    const StepSums& judged_steps() const {
      return &loads() == &training && training_steps.count > 0 ? training_steps : steps;
    }
    /// What the start takes, once, says nothing of what the training takes.
    const Loads& loads() const { return cpu(training).count() >= kLeastTraining ? training : seen; }
    const analysis::Quantiles& cpu() const { return cpu(loads()); }
    const analysis::Quantiles& cpu(const Loads& of) const {
      return own() ? of.tree_cpu : of.node_cpu;
    }
    /// Percent of the memory, at the peak; 0: not known.
    double memory_load() const {
      return peak > 0 ? Percent(peak, memory_allowed()) : own() ? 0 : memory_percent;
    }
    double gpu_memory_load() const {
      return gpu_peak > 0 ? Percent(gpu_peak, gpu_memory) : gpu_percent;
    }
    double cores_allowed() const {
      return core_limit > 0 && (cores <= 0 || core_limit < cores) ? core_limit : cores;
    }
    double memory_allowed() const {
      return memory_limit > 0 && (memory <= 0 || memory_limit < memory) ? memory_limit : memory;
    }
  };

  /// What a machine must have to hold the throughput.
  struct Demand {
    double cores = 0, memory = 0;
    double gpus = 0, gpu_memory = 0, gpu_share = 0;  ///< Share of the present GPU's speed.
    double disk = 0, network = 0;
  };

  static bool Inner(std::string_view interface) {
    return interface == "lo" ||
           std::any_of(kInner.begin(), kInner.end(),
                       [&](std::string_view inner) { return interface.starts_with(inner); });
  }

  /// A table that cannot be used must be seen, not be passed over: the engine shows what is thrown.
  void Check() const {
    if (!error_.empty()) throw std::runtime_error(error_);
  }

  const MachinePrice* Find(std::string_view name) const {
    for (const MachinePrice& machine : table_.machines) {
      if (machine.name == name) return &machine;
    }
    return nullptr;
  }

  void OnSample(const SampledNode& node, const Sample& sample, Reporter* reporter) {
    Machine& machine = machines_[node.writer];
    machine.node = node.name;
    machine.cores = cores_[node.name];
    const auto keep = [&](int what, double* value) {
      if (const double now = sample.SumOf(what); now > 0) *value = now;
    };
    keep(kTotal, &machine.memory);
    keep(kCpuLimit, &machine.core_limit);
    keep(kMemoryLimit, &machine.memory_limit);
    for (const SampleValue& value : sample.values) {
      if (value.what == kGpuTotal) machine.gpu_memory = std::max(machine.gpu_memory, value.value);
      if (value.what == kRss) machine.peak = std::max(machine.peak, value.value);
      if (value.what == kGpuUsed) {
        machine.gpu_peak = std::max(machine.gpu_peak, value.value);
        if (Percent(value.value, sample.Of(kGpuTotal, value.unit)) >= kUsedGpu) {
          machine.used_gpus.insert(value.unit);
        }
      }
      if (value.what == kGpu) {
        machine.gpus.insert(value.unit);
        if (value.value >= kUsedGpu) machine.used_gpus.insert(value.unit);
      }
      if (value.what == kGpuPercent) {
        machine.gpu_percent = std::max(machine.gpu_percent, value.value);
        if (value.value >= kUsedGpu) machine.used_gpus.insert(value.unit);
      }
      if (value.what == kMemoryPercent) {
        machine.memory_percent = std::max(machine.memory_percent, value.value);
      }
    }
    if (sample.attempt == 0) return;  // The training has made no step yet.
    if (machine.from_ns == 0) machine.from_ns = sample.from_ns;
    machine.to_ns = sample.to_ns;
    machine.seconds += sample.seconds();
    machine.steps.Add(sample.steps);
    AddLoads(sample, machine, &machine.seen);
    if (sample.trains_ns > 0 && sample.from_ns >= sample.trains_ns) {
      AddLoads(sample, machine, &machine.training);
      machine.training_steps.Add(sample.steps);
    }
    if (machine.seconds >= machine.judged_s + kJudgeEveryS) Judge(&machine, reporter);
  }

  static void AddLoads(const Sample& sample, const Machine& machine, Loads* loads) {
    loads->tree_cpu.Add(sample.SumOf(kTree) / 100);
    loads->node_cpu.Add(sample.SumOf(kBusy) / 100 * machine.cores);
    double busy = 0;
    double count = 0;
    for (const SampleValue& value : sample.values) {
      if (value.what != kGpu || !machine.used_gpus.contains(value.unit)) continue;
      busy += value.value;
      ++count;
    }
    if (count > 0) loads->gpu.Add(busy / count);
    loads->disk_busy.Add(sample.MaxOf(kDiskBusy));
    loads->disk.Add(sample.SumOf(kDisk));
    loads->network.Add(sample.SumOf(kReceived));
  }

  Demand DemandOf(const Machine& machine, const MachinePrice& current) const {
    const auto with_reserve = [&](double taken, double all) {
      const double wanted = taken * reserve_;
      return all > 0 ? std::min(wanted, all) : wanted;
    };
    Demand demand;
    demand.cores = with_reserve(machine.cpu().At(0.95), machine.cores_allowed());
    demand.memory = machine.peak > 0
                        ? with_reserve(machine.peak, machine.memory_allowed())
                        : with_reserve(machine.memory_load() / 100 * current.memory_bytes,
                                       current.memory_bytes);
    demand.gpus = static_cast<double>(machine.used_gpus.size());
    if (demand.gpus > 0) {
      demand.gpu_memory =
          machine.gpu_peak > 0
              ? with_reserve(machine.gpu_peak, machine.gpu_memory)
              : with_reserve(machine.gpu_memory_load() / 100 * current.gpu_memory_bytes,
                             current.gpu_memory_bytes);
      demand.gpu_share =
          machine.loads().gpu.count() > 0 ? with_reserve(machine.loads().gpu.mean() / 100, 1) : 1;
    }
    demand.disk = machine.loads().disk.At(0.95) * reserve_;
    demand.network = machine.loads().network.At(0.95) * reserve_;
    return demand;
  }

  static bool Near(double table, double seen) {
    return std::abs(table - seen) <= kMemorySlack * std::max(table, seen);
  }

  /// The row of the machine that the run is on; nullptr where it is not known.
  const MachinePrice* Current(const Machine& machine) const {
    if (!machine_.empty()) return Find(machine_);
    const MachinePrice* found = nullptr;
    bool several = false;
    for (const MachinePrice& row : table_.machines) {
      if (row.current) return &row;
      if (row.cores != machine.cores ||
          (machine.memory > 0 && !Near(row.memory_bytes, machine.memory)) ||
          row.gpus != static_cast<double>(machine.gpus.size())) {
        continue;
      }
      if (row.gpus > 0 && row.gpu_memory_bytes > 0 && machine.gpu_memory > 0 &&
          !Near(row.gpu_memory_bytes, machine.gpu_memory)) {
        continue;
      }
      // Of two that look alike nobody knows which it is; one marked as current may still come.
      several = several || found != nullptr;
      found = &row;
    }
    return several ? nullptr : found;
  }

  static bool Holds(const MachinePrice& row, const MachinePrice& current, const Demand& demand) {
    if (&row == &current) return true;
    const double core_speed = row.core_speed / current.core_speed;
    if (row.cores * core_speed < demand.cores || row.memory_bytes < demand.memory) return false;
    if (row.disk_bytes_per_second > 0 && row.disk_bytes_per_second < demand.disk) return false;
    if (row.network_bytes_per_second > 0 && row.network_bytes_per_second < demand.network) {
      return false;
    }
    if (demand.gpus <= 0) return true;
    if (row.gpus < demand.gpus) return false;
    if (row.gpu_memory_bytes > 0 && row.gpu_memory_bytes < demand.gpu_memory) return false;
    if (!row.gpu.empty() && row.gpu == current.gpu) return true;
    // Another kind of GPU: only its speed says what it can do.
    return row.gpu_speed > 0 && current.gpu_speed > 0 && row.gpu_memory_bytes > 0 &&
           row.gpu_speed >= demand.gpu_share * current.gpu_speed;
  }

  const MachinePrice* Cheapest(const MachinePrice& current, const Demand& demand) const {
    const MachinePrice* best = &current;
    for (const MachinePrice& row : table_.machines) {
      if (Holds(row, current, demand) && row.price_per_hour < best->price_per_hour) best = &row;
    }
    return best;
  }

  /// The resource that bounds the run, and how it is loaded, in percent; empty: none of them.
  static std::pair<std::string, double> Bound(const Machine& machine) {
    std::pair<std::string, double> bound("", 0);
    const auto consider = [&](const char* name, double load, double from) {
      if (load >= from && load > bound.second) bound = {name, load};
    };
    consider("gpu", machine.loads().gpu.mean(), kBound);
    consider("cpu", Percent(machine.cpu().mean(), machine.cores_allowed()), kBound);
    consider("disk", machine.loads().disk_busy.mean(), kBound);
    if (bound.first.empty()) {
      consider("memory", machine.memory_load(), kFull);
      consider("gpu_memory", machine.gpu_memory_load(), kFull);
    }
    return bound;
  }

  /// Percent of each resource that is free at the 95th percentile, or at the peak.
  static nlohmann::ordered_json Headroom(const Machine& machine) {
    nlohmann::ordered_json out;
    const auto add = [&](const char* name, double load) {
      out[name] = Rounded(std::clamp(100 - load, 0.0, 100.0));
    };
    if (machine.loads().gpu.count() > 0) add("gpu", machine.loads().gpu.At(0.95));
    if (machine.cores_allowed() > 0) {
      add("cpu", Percent(machine.cpu().At(0.95), machine.cores_allowed()));
    }
    if (machine.memory_allowed() > 0 || machine.memory_load() > 0) {
      add("memory", machine.memory_load());
    }
    if (machine.gpu_memory > 0 || machine.gpu_percent > 0) {
      add("gpu_memory", machine.gpu_memory_load());
    }
    if (machine.loads().disk_busy.count() > 0) add("disk", machine.loads().disk_busy.At(0.95));
    return out;
  }

  static std::string CoresTaken(const Machine& machine) {
    const double cores = machine.cpu().At(0.95);
    return cores < 0.01 ? "less than 0.01" : Figure(cores);
  }

  /// What bounds the run and what it takes of the node: "The processor limits the speed: it is
  /// 97 % busy. The run takes 1.98 of 2 cores, 3.1 GiB of 33 GiB of memory."
  static std::string Words(const Machine& machine) {
    const auto [bound, load] = Bound(machine);
    std::string out;
    if (bound == "gpu") {
      out = fmt::format("The GPUs limit the speed: they are busy {:.0f} % of the time.", load);
    } else if (bound == "cpu") {
      out = fmt::format("The processor limits the speed: it is {:.0f} % busy.", load);
    } else if (bound == "disk") {
      out = fmt::format("The disk limits the speed: it is busy {:.0f} % of the time.", load);
    } else if (bound == "memory" || bound == "gpu_memory") {
      out = fmt::format("{} is the limit of the run: it is {:.0f} % full.",
                        bound == "memory" ? "The memory" : "The memory of the GPUs", load);
    } else if (machine.judged_steps().wait() >= kWaits) {
      out = fmt::format("The run waits for data in {:.0f} % of its steps' time.",
                        100 * machine.judged_steps().wait());
    } else if (machine.judged_steps().comm() >= kWaits) {
      out = fmt::format("The run waits for other ranks in {:.0f} % of its steps' time.",
                        100 * machine.judged_steps().comm());
    } else {
      out = "No resource that was measured limits the speed.";
    }
    out +=
        fmt::format(" {} {}", machine.own() ? "The run takes" : "All programs of the machine take",
                    CoresTaken(machine));
    if (machine.cores_allowed() > 0) out += fmt::format(" of {}", Figure(machine.cores_allowed()));
    out += " cores";
    if (machine.peak > 0) {
      out += fmt::format(", {}", Bytes(machine.peak));
      if (machine.memory_allowed() > 0)
        out += fmt::format(" of {}", Bytes(machine.memory_allowed()));
      out += " of memory";
    } else if (machine.memory_load() > 0) {
      out += fmt::format(", {:.0f} % of the memory", machine.memory_load());
    }
    if (!machine.gpus.empty()) {
      out += fmt::format(", {} of {} {}", machine.used_gpus.size(), machine.gpus.size(),
                         machine.gpus.size() == 1 ? "GPU" : "GPUs");
      if (machine.loads().gpu.count() > 0)
        out += fmt::format(" at {:.0f} %", machine.loads().gpu.mean());
      if (machine.gpu_peak > 0) {
        out += fmt::format(" with {} of memory", Bytes(machine.gpu_peak));
      } else if (machine.gpu_memory_load() > 0) {
        out += fmt::format(" with {:.0f} % of GPU memory", machine.gpu_memory_load());
      }
    }
    return out + ".";
  }

  nlohmann::ordered_json Show(const Machine& machine) const {
    nlohmann::ordered_json out;
    out["node"] = machine.node;
    const auto [bound, load] = Bound(machine);
    out["bound_by"] = !bound.empty()                            ? bound
                      : machine.judged_steps().wait() >= kWaits ? std::string("waits for data")
                      : machine.judged_steps().comm() >= kWaits
                          ? std::string("waits for ranks")
                          : std::string("nothing that was seen");
    if (!bound.empty()) out["bound_load"] = Rounded(load);
    out["words"] = Words(machine);
    out["headroom"] = Headroom(machine);
    nlohmann::ordered_json taken;
    taken["cores_p95"] = Rounded(machine.cpu().At(0.95));
    if (!machine.own()) taken["of"] = "all programs of the machine";
    if (machine.peak > 0 || machine.own()) {
      taken["memory_peak_bytes"] = Rounded(machine.peak);
    } else if (machine.memory_load() > 0) {
      taken["memory_peak_percent"] = Rounded(machine.memory_load());
    }
    if (!machine.gpus.empty()) {
      taken["gpus"] = machine.used_gpus.size();
      taken["gpu_utilization_mean"] = Rounded(machine.loads().gpu.mean());
      if (machine.gpu_peak > 0 || machine.gpu_memory_load() <= 0) {
        taken["gpu_memory_peak_bytes"] = Rounded(machine.gpu_peak);
      } else {
        taken["gpu_memory_peak_percent"] = Rounded(machine.gpu_memory_load());
      }
    }
    if (machine.loads().disk.count() > 0) {
      taken["disk_bytes_per_second_p95"] = Rounded(machine.loads().disk.At(0.95));
    }
    if (machine.loads().network.count() > 0) {
      taken["received_bytes_per_second_p95"] = Rounded(machine.loads().network.At(0.95));
    }
    out["takes"] = std::move(taken);
    nlohmann::ordered_json has;
    has["cores"] = Rounded(machine.cores_allowed());
    if (machine.memory_allowed() > 0) has["memory_bytes"] = Rounded(machine.memory_allowed());
    has["gpus"] = machine.gpus.size();
    out["has"] = std::move(has);
    if (machine.seconds > 0) {
      out["steps_per_second"] = Rounded(machine.steps.count / machine.seconds);
      if (machine.steps.samples > 0) {
        out["samples_per_second"] = Rounded(machine.steps.samples / machine.seconds);
      }
    }
    if (table_.machines.empty()) return out;
    const MachinePrice* current = Current(machine);
    if (current == nullptr) {
      out["machine"] = "not in the price table, or several alike: say which (machine=NAME)";
      return out;
    }
    out["machine"] = current->name;
    out["price_per_hour"] = current->price_per_hour;
    const MachinePrice* best = Cheapest(*current, DemandOf(machine, *current));
    out["cheapest"] = best->name;
    out["cheapest_price_per_hour"] = best->price_per_hour;
    return out;
  }

  void Judge(Machine* machine, Reporter* reporter) {
    machine->judged_s = machine->seconds;
    if (!machine->HasData() || machine->seconds < least_s_ || table_.machines.empty()) return;
    const MachinePrice* current = Current(*machine);
    if (current == nullptr) return;
    const Demand demand = DemandOf(*machine, *current);
    const MachinePrice* best = Cheapest(*current, demand);
    const double saving = 1 - best->price_per_hour / current->price_per_hour;
    CellBase now;
    now.from_ns = machine->from_ns;
    now.to_ns = machine->to_ns;
    now.steps = machine->steps;
    Watched& watched = machine->watched;
    if (best == current || saving < least_saving_) {
      if (watched.open) reporter->Recover(watched.incident);
      watched.open = false;
      return;
    }
    if (!watched.open) watched.Open(machine->node, now, Severity::kLow);
    watched.Extend(now);
    Describe(machine, *current, *best, demand, saving);
    reporter->Report(watched.incident);
  }

  void Describe(Machine* machine, const MachinePrice& current, const MachinePrice& best,
                const Demand& demand, double saving) const {
    Incident& incident = machine->watched.incident;
    incident.message = "A cheaper machine holds this throughput";
    const std::string gpus =
        demand.gpus > 0
            ? fmt::format(", {} GPUs at {:.0f} %", Figure(demand.gpus), machine->loads().gpu.mean())
            : std::string();
    incident.cause = fmt::format(
        "{} {} of {} cores, {}{}; with {:.0f} % in reserve {} holds "
        "that "
        "for {:.0f} % less.",
        machine->own() ? "The run takes" : "All programs of the machine take", CoresTaken(*machine),
        Figure(machine->cores_allowed()),
        machine->peak > 0 ? fmt::format("{} of {} of memory", Bytes(machine->peak),
                                        Bytes(machine->memory_allowed()))
                          : fmt::format("{:.0f} % of the memory", machine->memory_load()),
        gpus, 100 * (reserve_ - 1), best.name, 100 * saving);
    incident.advice = fmt::format("Take {} ({} {} an hour) instead of {} ({} {}).", best.name,
                                  Plain(best.price_per_hour), table_.currency, current.name,
                                  Plain(current.price_per_hour), table_.currency);
    incident.cost_seconds = 0;
    incident.confidence =
        best.gpu == current.gpu && best.core_speed == current.core_speed ? 0.7 : 0.5;
    nlohmann::ordered_json evidence = Show(*machine);
    const double saved = current.price_per_hour - best.price_per_hour;
    evidence["currency"] = table_.currency;
    evidence["saving_per_hour"] = Rounded(saved);
    evidence["saving_percent"] = Rounded(100 * saving);
    evidence["spent_too_much"] = Rounded(saved * machine->seconds / 3600);
    evidence["needs_cores"] = Rounded(demand.cores);
    evidence["needs_memory_bytes"] = Rounded(demand.memory);
    evidence["needs_gpus"] = demand.gpus;
    // What the table does not say was not judged.
    if (best.disk_bytes_per_second <= 0) evidence["disk_judged"] = false;
    if (best.network_bytes_per_second <= 0) evidence["network_judged"] = false;
    incident.evidence = JsonText(evidence);
  }

  const double reserve_;
  const double least_saving_;
  const double least_s_;
  const std::string machine_;
  PriceTable table_;  ///< Without machines where none was given.
  std::string error_;
  MachineSampler sampler_;
  std::map<std::string, int> cores_;           ///< By node.
  std::map<std::uint32_t, Machine> machines_;  ///< By writer.
};

}  // namespace

const RuleDesc kRightSizeDesc{
    .name = "RightSize",
    .summary = "Which resource bounds the run, and the cheapest machine that holds its throughput.",
    .formula =
        "Since the first TRAIN step (the sample in which it began apart, where 5 follow), of each "
        "node: "
        "cores taken = the 95th percentile of proc.cpu "
        "of the run's processes, or where no processes were sampled, as in an import, of "
        "cpu.busy of all cores; GPU = the mean gpu.utilization of the GPUs that were ever at 5 %; "
        "disk "
        "and network = the 95th percentile of bytes a second; memory = the peak of proc.rss "
        "(shared "
        "pages count once a process) and of gpu.memory_used, or of mem.used_percent and "
        "gpu.memory_percent. Bound by the resource whose mean load "
        "is "
        "highest and at least 85 %, else by memory from 90 %. Headroom = 100 % − the 95th "
        "percentile, "
        "or the peak. Needed = taken × (1 + reserve), at most what the machine has. A machine of "
        "the "
        "table holds where cores × core_speed, memory and, where it says them, disk and network "
        "are "
        "at least what is needed, and it has as many GPUs as are used, of the same kind or of "
        "gpu_speed ≥ the present one's × utilization × (1 + reserve), with memory enough. "
        "Proposed: "
        "the cheapest, where it costs least_saving less than the present machine, after `minutes`. "
        "Assumes that speed goes with cores × core_speed and with gpu_speed. Cost = 0: the run "
        "loses "
        "money, not time. Verdict, page and report say of every run what bounds it and what it "
        "takes; without a table only the machine and the saving are missing.",
    .how_to_fix =
        "Take the machine that is proposed, try it for a few hundred steps and compare the samples "
        "a "
        "second (telltale compare).",
    .table_mask = MachineSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .family = Family::kOwn,
    .example =
        "A model that keeps one of eight cores and 6 of 64 GB busy: a machine of two cores trains "
        "it "
        "as fast for a quarter of the price.",
    .data_mask = DataMask(Datum::kSamples, Datum::kSteps),
};

std::unique_ptr<Rule> MakeRightSize(const Parameters& parameters) {
  return std::make_unique<RightSize>(parameters);
}

}  // namespace telltale::rules::right_size
