// SPDX-License-Identifier: Apache-2.0
// SmallReads: batches wait for many small reads, or for reads that no cache holds.
//
// Two million files of 5 KB take hours where two thousand of 5 MB take minutes: each read has its
// price, on a network's file system a thousand times that of a call. Whether reads or transforms
// are what a batch waits for is told apart by the time that its makers do not compute.
//
// Reads are those of a fetch, where the adapter tells of fetches: what a loader reads outside of
// them are its workers' orders and batches, of pipes and sockets. Else they are all of a process's,
// and count only where they are too large to be such messages.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "rules/builtin/fetch_facts.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::small_reads {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"small_kib", 64, "KiB", "Mean size of a read below which reads are small."},
    {"calls", 200, "1/s", "Reads a second from which they are many."},
    {"call_us", 10, "us", "What a small read costs at least: the system call and its caller."},
    {"medium_share", 10, "%", "Share of step time that reads cost, from which it is medium."},
    {"high_share", 30, "%", "Share from which it is high."},
    {"window_seconds", 10, "s", "Length of the sliding window."},
};

/// Reads of which more than this share comes from storage are not cached.
constexpr double kUncached = 0.5;
/// Bytes a second from storage below which it does not matter that they do.
constexpr double kLeastStorage = 1e6;
/// Loader workers take orders and hand over batches through pipes: reads smaller than this in the
/// mean are these messages (Python reads at least a block of a file at once).
constexpr double kMessageBytes = 512;
/// Of a process whose fetches are not known: bytes a second below which it reads no data set.
constexpr double kLeastRead = 1e6;
constexpr double kMiB = 1048576;

class SmallReads final : public Rule {
 public:
  explicit SmallReads(const Parameters& p)
      : small_bytes_(1024 * p.Get("small_kib")),
        calls_(p.Get("calls")),
        call_s_(std::max(0.0, p.Get("call_us")) / 1e6),
        medium_(p.Get("medium_share") / 100),
        high_(p.Get("high_share") / 100),
        window_s_(std::max(1.0, p.Get("window_seconds"))) {}

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kMetrics) return false;
    if (series.name == "cpu.busy" && series.collection == "node") {
      sampler_.Read(series, kBusy);
      return true;
    }
    if (series.pid == 0) return false;
    struct Entry {
      std::string_view name;
      What what;
    };
    static constexpr std::array kNames = {
        Entry{"proc.read_calls_rate", kCalls}, Entry{"proc.read_call_bytes_rate", kCallBytes},
        Entry{"proc.read_bytes_rate", kStored}, Entry{"proc.cpu_user", kUser},
        Entry{"proc.cpu_system", kSystem}};
    for (const Entry& entry : kNames) {
      if (series.name != entry.name) continue;
      sampler_.Read(series, entry.what, series.pid);
      return true;
    }
    return false;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* event = record.As<format::EventRow>()) OnEvent(*event, record.writer);
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

 private:
  enum What : int { kNone, kCalls, kCallBytes, kStored, kUser, kSystem, kBusy };

  /// Of the processes that make batches.
  struct Reads {
    double calls = 0, call_bytes = 0, stored_bytes = 0;
    double user_s = 0;    ///< CPU seconds in user mode.
    double system_s = 0;  ///< The same in the kernel.
    double makers_s = 0;  ///< Seconds of all of them together.
    void Add(const Reads& other) {
      calls += other.calls;
      call_bytes += other.call_bytes;
      stored_bytes += other.stored_bytes;
      user_s += other.user_s;
      system_s += other.system_s;
      makers_s += other.makers_s;
    }
  };
  struct Cell : CellBase {
    using CellBase::CellBase;
    // Apart: what the training read before its workers began is none of their reads.
    Reads workers;   ///< While there are loader workers.
    Reads trainers;  ///< While there are none.
    TimeMean busy;   ///< Percent of all cores.
    void Add(const Cell& other) {
      AddBase(other);
      workers.Add(other.workers);
      trainers.Add(other.trainers);
      busy.Add(other.busy);
    }
    bool by_workers() const { return workers.makers_s > trainers.makers_s; }
    const Reads& reads() const { return by_workers() ? workers : trainers; }
  };
  struct Machine {
    explicit Machine(double window_s) : window(1, window_s) {}
    CellWindow<Cell> window;
    Watched watched;
    double cost_s = 0;
  };

  /// What is judged: of the processes that make batches, over the window.
  struct Figures {
    bool known = false;
    bool by_workers = false;
    bool messages = false;                    ///< They may be no reads of files.
    double calls = 0, bytes = 0, stored = 0;  ///< A second.
    double per_sample = 0;                    ///< Calls.
    double share = 0;                         ///< Of step time.
    double computes = 0;                      ///< Of the makers' time.
    double mean_bytes() const { return calls > 0 ? bytes / calls : 0; }
    double stored_share() const {
      const double all = std::max(bytes, stored);
      return all > 0 ? stored / all : 0;
    }
  };

  void OnEvent(const format::EventRow& event, std::uint32_t writer) {
    const std::pair pid(writer, event.pid);
    if (event.kind == "worker.start") {
      workers_.insert(pid);
    } else if (event.kind == "process.exit") {
      workers_.erase(pid);
      with_workers_.erase(pid);
      own_fetches_.erase(pid);
    } else if (event.kind == "dataloader") {
      const auto data = ParseJson(event.data);
      if (data.is_object() && NumberIn(data, "workers") > 0) with_workers_.insert(pid);
    } else if (event.kind == "dataloader.fetches") {
      const auto data = ParseJson(event.data);
      if (!data.is_object()) return;
      (workers_.contains(pid) ? worker_fetches_[writer] : own_fetches_[pid]).Take(data);
    }
  }

  void OnSample(const SampledNode& node, const Sample& sample, Reporter* reporter) {
    Cell cell(sample);
    cell.busy.Add(sample.SumOf(kBusy), cell.seconds);
    const bool workers = std::any_of(
        sample.values.begin(), sample.values.end(),
        [&](const SampleValue& v) { return v.what == kCalls && node.workers.contains(v.unit); });
    for (const SampleValue& value : sample.values) {
      // A training process whose loader has workers makes no batches, however short they live.
      const bool maker = workers ? node.workers.contains(value.unit)
                                 : node.trainers.contains(value.unit) &&
                                       !with_workers_.contains({node.writer, value.unit});
      if (!maker) continue;
      const double amount = value.value * cell.seconds;
      Reads& reads = workers ? cell.workers : cell.trainers;
      switch (value.what) {
        case kCalls:
          reads.calls += amount;
          reads.makers_s += cell.seconds;
          break;
        case kCallBytes:
          reads.call_bytes += amount;
          break;
        case kStored:
          reads.stored_bytes += amount;
          break;
        case kUser:
          reads.user_s += amount / 100;
          break;
        case kSystem:
          reads.system_s += amount / 100;
          break;
        default:
          break;
      }
    }
    Machine& machine = machines_.try_emplace(node.writer, window_s_).first->second;
    machine.watched.CloseBefore(cell, reporter);
    if (machine.window.Push(cell)) Judge(&machine, node, reporter);
  }

  /// The fetches of the node's workers, or of those of its training processes that make their
  /// batches themselves (the newest that told of any); null: none were told of.
  const FetchCosts* FetchesOf(const SampledNode& node, bool* by_workers) const {
    const bool workers =
        std::any_of(node.trainers.begin(), node.trainers.end(), [&](const auto& trainer) {
          return with_workers_.contains({node.writer, trainer.first});
        });
    *by_workers = workers || !node.workers.empty();
    if (*by_workers) {
      const auto found = worker_fetches_.find(node.writer);
      return found == worker_fetches_.end() ? nullptr : &found->second;
    }
    for (const auto& [pid, rank] : node.trainers) {
      const auto found = own_fetches_.find({node.writer, pid});
      if (found != own_fetches_.end()) return &found->second;
    }
    return nullptr;
  }

  Figures FiguresOf(const Cell& cell, const SampledNode& node) const {
    bool by_workers = false;
    const FetchCosts* fetches = FetchesOf(node, &by_workers);
    return fetches != nullptr && fetches->reads_known() ? OfFetches(cell, *fetches, by_workers)
                                                        : OfProcesses(cell);
  }

  /// One fetch a step.
  Figures OfFetches(const Cell& cell, const FetchCosts& fetches, bool by_workers) const {
    Figures figures;
    figures.known = true;
    figures.by_workers = by_workers;
    const double a_second = cell.steps.count / cell.seconds;
    figures.calls = fetches.read_calls() * a_second;
    figures.bytes = fetches.read_bytes() * a_second;
    figures.stored = fetches.storage_bytes() * a_second;
    if (fetches.items() > 0) figures.per_sample = fetches.read_calls() / fetches.items();
    figures.messages = figures.calls > 0 && figures.mean_bytes() < kMessageBytes;
    figures.computes = fetches.computes();
    // What is cached is not waited for: it costs its calls.
    const double calls =
        fetches.mean_ns() > 0 ? fetches.read_calls() * call_s_ * 1e9 / fetches.mean_ns() : 0;
    const double waits = Uncached(figures) ? fetches.waits() : 0;
    figures.share = cell.steps.wait() * std::clamp(std::max(waits, calls), 0.0, 1.0);
    return figures;
  }

  Figures OfProcesses(const Cell& cell) const {
    Figures figures;
    const Reads& reads = cell.reads();
    figures.known = reads.makers_s > 0;
    if (!figures.known) return figures;
    figures.by_workers = cell.by_workers();
    figures.calls = reads.calls / cell.seconds;
    figures.bytes = reads.call_bytes / cell.seconds;
    figures.stored = reads.stored_bytes / cell.seconds;
    if (cell.steps.samples > 0) figures.per_sample = reads.calls / cell.steps.samples;
    figures.messages = figures.mean_bytes() < kMessageBytes ||
                       std::max(figures.bytes, figures.stored) < kLeastRead;
    figures.share = ReadShare(cell);
    figures.computes = reads.user_s / reads.makers_s;
    return figures;
  }

  /// Share of the steps' time that went into reads: of the waits for data, the part in which those
  /// who make batches did not compute, or what so many calls cost at least.
  double ReadShare(const Cell& cell) const {
    const Reads& reads = cell.reads();
    if (reads.makers_s <= 0 || cell.steps.ns <= 0) return 0;
    const double wait = cell.steps.wait();
    if (wait <= 0) return 0;
    const double calls = reads.calls * call_s_ / reads.makers_s;
    const double user = reads.user_s / reads.makers_s;
    if (cell.by_workers()) {
      double rest = 1 - user;
      if (cell.busy.known()) {
        // A worker that does not compute may wait for a core: for reads it waits while cores are
        // free (one of two may have other work), or in the kernel.
        const double idle = 2 * std::max(0.0, 1 - cell.busy.value() / 100) / wait;
        rest = std::min(rest, idle + reads.system_s / reads.makers_s);
      }
      return wait * std::clamp(std::max(rest, calls), 0.0, 1.0);
    }
    // What it computes beyond a core for the rest of the step it computes while it waits.
    const double user_in_wait = std::clamp(user - (1 - wait), 0.0, wait);
    return std::min(wait, std::max(wait - user_in_wait, calls));
  }

  bool Small(const Figures& figures) const {
    return figures.calls >= calls_ && figures.mean_bytes() < small_bytes_ && !figures.messages;
  }
  static bool Uncached(const Figures& figures) {
    return figures.stored_share() >= kUncached && figures.stored >= kLeastStorage;
  }

  void Judge(Machine* machine, const SampledNode& node, Reporter* reporter) {
    const Cell& total = machine->window.total();
    if (!machine->window.full() || !total.training()) return;
    const Figures figures = FiguresOf(total, node);
    if (!figures.known) return;
    has_data_ = true;
    const bool bad = Small(figures) || Uncached(figures);
    Watched& watched = machine->watched;
    if (!watched.open) {
      if (!bad || figures.share < medium_) return;
      watched.Open(node.name, total, Severity::kMedium);
      machine->cost_s = figures.share * total.seconds;
    } else if (!bad || figures.share < medium_ / 2) {
      reporter->Recover(watched.incident);
      watched.open = false;
      return;
    } else {
      watched.Extend(machine->window.newest());
      machine->cost_s += figures.share * machine->window.newest().seconds;
    }
    if (figures.share >= high_) watched.Raise(Severity::kHigh);
    Describe(machine, figures, node);
    reporter->Report(watched.incident);
  }

  void Describe(Machine* machine, const Figures& figures, const SampledNode& node) const {
    Incident& incident = machine->watched.incident;
    const bool small = Small(figures);
    const bool uncached = Uncached(figures);
    incident.message =
        small ? fmt::format("Batches wait for {} small reads a second", Figure(figures.calls))
              : std::string("Batches wait for reads from storage");
    std::string makers = "The training process";
    if (figures.by_workers) {
      makers = node.workers.empty() ? std::string("The loader's workers")
                                    : fmt::format("{} loader {}", node.workers.size(),
                                                  node.workers.size() == 1 ? "worker" : "workers");
    }
    incident.cause = fmt::format(
        "{} made {} reads a second of {} each{}; {:.0f} % of {:.1f} MB/s came from storage, and "
        "the reads cost about {:.0f} % of step time.",
        makers, Figure(figures.calls), Bytes(figures.mean_bytes()),
        figures.per_sample > 0 ? fmt::format(", {} a sample", Figure(figures.per_sample))
                               : std::string(),
        100 * figures.stored_share(), std::max(figures.bytes, figures.stored) / 1e6,
        100 * figures.share);
    const std::string pack =
        "Pack the samples into files of 1 to 128 MB (tar shards, TFRecord, LMDB, one memory-mapped "
        "array) and read each in one call";
    const std::string keep =
        "keep the data on a local disk or in memory (copy it there before training, or warm the "
        "page cache), and read ahead in more workers";
    incident.advice = small && uncached ? pack + "; " + keep + "."
                      : small           ? pack + "."
                                        : std::string("Read larger pieces in order, ") + keep + ".";
    // That the wait is the reads' is certain where those who make batches hardly compute.
    const bool certain = figures.computes < 0.25;
    incident.confidence = 0.6 + (certain ? 0.2 : 0) + (small && uncached ? 0.1 : 0);
    incident.cost_seconds = machine->cost_s;
    nlohmann::ordered_json evidence;
    evidence["small"] = small;
    evidence["uncached"] = uncached;
    evidence["read_calls_per_second"] = Rounded(figures.calls);
    evidence["bytes_per_call"] = Rounded(figures.mean_bytes());
    if (figures.per_sample > 0) evidence["read_calls_per_sample"] = Rounded(figures.per_sample);
    evidence["bytes_per_second"] = Rounded(figures.bytes);
    evidence["storage_bytes_per_second"] = Rounded(figures.stored);
    evidence["storage_share"] = Rounded(figures.stored_share());
    evidence["waits_for_data"] = Rounded(machine->window.total().steps.wait());
    evidence["read_share"] = Rounded(figures.share);
    evidence["made_by"] = figures.by_workers ? "workers" : "training process";
    evidence["makers_user_cpu"] = Rounded(100 * figures.computes);
    if (figures.mean_bytes() > 0 && small) {
      evidence["read_calls_if_1_mib_each"] = Rounded(figures.bytes / kMiB);
    }
    incident.evidence = JsonText(evidence);
  }

  const double small_bytes_;
  const double calls_;
  const double call_s_;
  const double medium_;
  const double high_;
  const double window_s_;
  MachineSampler sampler_;
  std::map<std::uint32_t, Machine> machines_;  ///< By writer.
  using Pid = std::pair<std::uint32_t, std::int32_t>;
  std::set<Pid> workers_;                  ///< Of loaders, those that live.
  std::set<Pid> with_workers_;             ///< Training processes whose loader has workers.
  std::map<Pid, FetchCosts> own_fetches_;  ///< Of training processes.
  std::map<std::uint32_t, FetchCosts> worker_fetches_;  ///< Of the workers of a node.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kSmallReadsDesc{
    .name = "SmallReads",
    .summary = "Batches wait for many small reads, or for reads that no cache holds.",
    .formula =
        "Over window_seconds in which TRAIN steps go on, of the processes that make batches "
        "(loader workers, else those that train; never a training process whose loader has "
        "workers): reads are many and small where read calls ≥ `calls` a second and bytes / calls "
        "< small_kib; uncached where half of the bytes, and 1 MB/s, come from storage. Where the "
        "adapter tells of fetches (PyTorch), reads are those that a fetch makes, times the steps a "
        "second, and share = data wait × max(the part of a fetch that neither computes nor waits "
        "for a core, where uncached; calls × call_us / fetch). Else they are all of the process's, "
        "and count where they have at least 512 bytes each and 1 MB/s, and share = data wait × "
        "(1 − CPU share of the makers in user mode), of workers at most 2 × (1 − cpu.busy) + data "
        "wait × their CPU share in the kernel, since else they wait for cores; where the training "
        "makes its batches itself: data wait − what it computes beyond the rest of its step; at "
        "least calls × call_us, at most the data wait. Medium from medium_share, high from "
        "high_share, over below half of medium_share or where reads are neither. Cost = share × "
        "time: a part of InputBound's, not to be added to it. Pages of mapped files are only among "
        "the bytes from storage.",
    .how_to_fix =
        "Few large files instead of many small ones; one read a file, not one a record; a local "
        "copy of the data, or one in memory.",
    .table_mask = MachineSampler::kTables,
    .wrong_result = false,
    .parameters = kParameters,
    .family = Family::kOwn,
    .example =
        "A data set of one file a sample: a batch of 256 opens, reads and closes 256 files of 5 "
        "KB.",
    .standing = {.theme = Theme::kInput, .order = 0},
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSamples, Datum::kSteps),
};

std::unique_ptr<Rule> MakeSmallReads(const Parameters& parameters) {
  return std::make_unique<SmallReads>(parameters);
}

}  // namespace telltale::rules::small_reads
