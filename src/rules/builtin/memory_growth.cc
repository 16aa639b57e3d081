// SPDX-License-Identifier: Apache-2.0
// MemoryGrowth: the memory of the training process, or of the loader's workers, grows while it
// trains: what holds it?
//
// Growth alone is no defect: allocators, buffers and caches fill. What is said here rests on what
// was counted in the process itself, and only where that accounts for the growth: entries of a
// container times the size of one, open figures, graphs that no backward has freed; and on the
// kernel's own count of pages: what a forked worker has for itself though it holds no more than
// before is copied from its parent.
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
#include <vector>

#include "base/json.h"
#include "rules/builtin/held_facts.h"
#include "rules/builtin/machine_samples.h"
#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules::memory_growth {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"least_mib", 128, "MiB", "Growth below this is not reported."},
    {"leak_mib", 256, "MiB", "Growth without a bound is medium from here on."},
    {"cache_mib", 512, "MiB", "Growth of a cache of the data set is medium from here on."},
    {"limit_percent", 10, "%", "Growth by this share of all memory is medium too."},
    {"explained", 0.5, "", "Share of the growth that a container accounts for at least."},
    {"worker_mib", 96, "MiB", "Copied pages of one worker below this do not count."},
};

constexpr double kMiB = 1048576;
/// Pixels alone are told of a figure; it has more.
constexpr double kFiguresExplain = 0.3;
/// Entries that measure so many times the growth keep memory together: what one takes is not known.
constexpr double kMostMeasured = 1.5;
constexpr double kFewestFigures = 4;
/// A graph is looked at in part.
constexpr double kGraphsExplain = 0.2;
/// What a container in the parent accounts for of the pages that workers copied: the rest is the
/// overhead of objects.
constexpr double kContainerExplains = 0.3;
/// A worker's pages are copied by its garbage collector too; without a large container in the data
/// set so many times as much is needed.
constexpr double kWithoutContainer = 3;
constexpr double kLargeContainer = 50'000;
/// Share of an array's pages that are a worker's own where it has loaded it.
constexpr double kOwnShare = 0.8;
/// Growth that nothing accounts for.
constexpr std::size_t kFewestLooks = 5;
constexpr std::int64_t kShortestNs = 8'000'000'000;
constexpr double kLongSeconds = 20;
constexpr double kUrgent = 600;  ///< Seconds left from which it is high.
constexpr std::size_t kMostLooks = 64;
/// Of a node: past this the one that was not seen for the longest time is forgotten.
constexpr std::size_t kMostProcesses = 512;
/// A process that was sampled and is not in so many samples of its node has ended: of one that
/// never registered nothing else says so. A loader without persistent workers makes new ones each
/// epoch.
constexpr std::int64_t kSamplesGone = 10;

struct Look {
  std::int64_t time_ns = 0;
  double steps = 0;  ///< TRAIN steps of the node by then.
  double own = 0;
};

struct Process {
  std::vector<Look> looks;  ///< The first of all and the newest.
  HeldFacts facts;          ///< Of the newest look.
  double first_figures = -1;
  int figure_rises = 0;
  double rss = -1;
  // Of the kernel's count of private pages:
  std::int64_t first_ns = 0;
  double first_steps = 0, first_private = -1, first_rss = 0;
  double now_private = -1, now_rss = 0;
  int rises = 0;
  bool worker = false;
  std::int64_t seen_ns = 0;       ///< Its newest record.
  std::int64_t last_sample = -1;  ///< Of the node's samples, the newest with it; −1: none.

  double grown() const { return looks.empty() ? 0 : looks.back().own - looks.front().own; }
  double copied() const {
    if (first_private < 0) return 0;
    return now_private - first_private - std::max(0.0, now_rss - first_rss);
  }
};

struct Node {
  std::string name;
  double total = 0, available = 0;
  double limit = 0, group_used = -1, tree = -1;  ///< Of the control group; −1: not known.
  double steps = 0;
  std::int64_t step = -1, time_ns = 0;
  std::uint32_t attempt = 0;
  std::map<std::int32_t, Process> processes;      ///< By pid.
  std::int64_t samples = 0;                       ///< Of the node.
  std::map<std::int32_t, std::int32_t> trainers;  ///< Rank by pid.
  std::map<std::string, Watched> said;            ///< By subject.

  bool limited() const { return limit > 0 && limit < total; }
  double memory() const { return limited() ? limit : total; }
  /// Bytes; 0: not known.
  double left() const {
    if (!limited() || tree < 0) return available;
    // The group's count has the page cache in it, that of the processes shared pages several times.
    const double used = group_used >= 0 ? std::min(tree, group_used) : tree;
    return std::max(0.0, std::min(available, limit - used));
  }
};

/// Growth of one process, or of all workers together.
struct Growth {
  double bytes = 0;
  double steps = 0;
  std::int64_t from_ns = 0, to_ns = 0;

  double seconds() const { return static_cast<double>(to_ns - from_ns) / 1e9; }
  double per_step() const { return steps > 0 ? bytes / steps : 0; }
  double per_second() const { return seconds() > 0 ? bytes / seconds() : 0; }
  std::string Words() const {
    std::string words = fmt::format("{} in {}", Bytes(bytes), Lasting(seconds()));
    if (per_step() > 0) words += fmt::format(", {} a step", Bytes(per_step()));
    return words;
  }
};

struct Finding {
  Severity severity = Severity::kMedium;
  std::string message, cause, advice;
  double confidence = 0.9;
  nlohmann::ordered_json evidence;
};

class MemoryGrowth final : public Rule {
 public:
  explicit MemoryGrowth(const Parameters& p)
      : least_(kMiB * p.Get("least_mib")),
        leak_(kMiB * p.Get("leak_mib")),
        cache_(kMiB * p.Get("cache_mib")),
        of_limit_(p.Get("limit_percent") / 100),
        explained_(p.Get("explained")),
        worker_(kMiB * p.Get("worker_mib")) {}

  bool Wants(const Series& series) override {
    if (series.table != format::TableId::kMetrics) return false;
    const std::string_view name = series.name;
    What what = kNone;
    if (series.collection == "node") {
      what = name == "mem.total" ? kTotal : name == "mem.available" ? kAvailable : kNone;
    } else if (series.collection == "cgroup") {
      what = name == "cgroup.mem_limit" ? kLimit : name == "cgroup.mem_used" ? kGroupUsed : kNone;
    } else if (series.collection == "proc:tree") {
      what = name == "proc.rss" ? kTree : kNone;
    } else if (series.pid != 0) {
      what = name == "proc.rss" ? kRss : name == "proc.private" ? kPrivate : kNone;
    }
    if (what == kNone) return false;
    if (series_.size() <= series.id) series_.resize(series.id + 1);
    series_[series.id] = {what, series.pid};
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* metric = record.As<format::MetricRow>()) {
      OnMetric(*metric, record, reporter);
    } else if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step, &nodes_[record.writer]);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, record.writer, reporter);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [writer, node] : nodes_) CloseAll(&node, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  enum What : int { kNone, kTotal, kAvailable, kLimit, kGroupUsed, kTree, kRss, kPrivate };
  struct Slot {
    What what = kNone;
    std::int32_t pid = 0;
  };

  static void CloseAll(Node* node, Reporter* reporter) {
    for (auto& [subject, watched] : node->said) {
      if (watched.open) reporter->Close(watched.incident);
    }
    node->said.clear();
  }

  void OnMetric(const format::MetricRow& row, const Record& record, Reporter* reporter) {
    if (record.series >= series_.size() || !std::isfinite(row.value)) return;
    const Slot slot = series_[record.series];
    Node& node = nodes_[record.writer];
    if (node.name.empty()) node.name = row.node;
    node.time_ns = std::max(node.time_ns, row.time_ns);
    switch (slot.what) {
      case kTotal:
        node.total = row.value;
        return;
      case kAvailable:
        node.available = row.value;
        ++node.samples;
        return;
      case kLimit:
        node.limit = row.value;
        return;
      case kGroupUsed:
        node.group_used = row.value;
        return;
      case kTree:
        node.tree = row.value;
        return;
      case kRss:
        TakeRss(row, slot.pid, &node);
        return;
      case kPrivate:
        TakePrivate(row, slot.pid, &node, reporter);
        return;
      case kNone:
        return;
    }
  }

  static Process* Find(Node* node, std::int32_t pid, std::int64_t now_ns) {
    if (!node->processes.contains(pid) && node->processes.size() >= kMostProcesses) {
      node->processes.erase(std::min_element(
          node->processes.begin(), node->processes.end(),
          [](const auto& a, const auto& b) { return a.second.seen_ns < b.second.seen_ns; }));
    }
    Process& process = node->processes[pid];
    process.seen_ns = std::max(process.seen_ns, now_ns);
    if (process.last_sample >= 0) process.last_sample = node->samples;
    return &process;
  }

  static void TakeRss(const format::MetricRow& row, std::int32_t pid, Node* node) {
    Process* const process = Find(node, pid, row.time_ns);
    process->rss = row.value;
    process->last_sample = node->samples;
  }

  static void DropEnded(Node* node) {
    std::erase_if(node->processes, [&](const auto& entry) {
      const Process& process = entry.second;
      return process.last_sample >= 0 && node->samples - process.last_sample > kSamplesGone;
    });
  }

  /// The workers that live.
  static std::vector<const Process*> WorkersOf(const Node& node) {
    std::vector<const Process*> workers;
    for (const auto& [pid, process] : node.processes) {
      if (process.worker) workers.push_back(&process);
    }
    return workers;
  }

  void TakePrivate(const format::MetricRow& row, std::int32_t pid, Node* node, Reporter* reporter) {
    Process* const process = Find(node, pid, row.time_ns);
    // Its resident memory is of the same sample.
    if (process->rss < 0) return;
    if (process->first_private < 0) {
      process->first_ns = row.time_ns;
      process->first_steps = node->steps;
      process->first_private = row.value;
      process->first_rss = process->rss;
    } else if (row.value > process->now_private) {
      ++process->rises;
    }
    has_data_ = true;
    process->now_private = row.value;
    process->now_rss = process->rss;
    if (process->worker) JudgeWorkers(node, reporter);
  }

  static void OnStep(const format::StepRow& row, Node* node) {
    if (row.mode != "TRAIN" || row.attempt < node->attempt) return;
    node->attempt = row.attempt;
    node->steps += 1;
    node->step = std::max(node->step, row.step);
    node->time_ns = std::max(node->time_ns, row.time_ns);
    node->trainers[row.pid] = row.rank;
  }

  void OnEvent(const format::EventRow& event, std::uint32_t writer, Reporter* reporter) {
    Node& node = nodes_[writer];
    if (event.kind == "run.attempt_start") {
      CloseAll(&node, reporter);
      const std::string name = node.name;
      node = Node();
      node.name = name;
    } else if (event.kind == "worker.start") {
      DropEnded(&node);
      Find(&node, event.pid, event.time_ns)->worker = true;
    } else if (event.kind == "process.exit") {
      if (const auto said = node.said.find(SubjectOf(node, event.pid)); said != node.said.end()) {
        reporter->Close(said->second.incident);
        node.said.erase(said);
      }
      node.trainers.erase(event.pid);
      node.processes.erase(event.pid);
    } else if (event.kind == "memory.held") {
      const auto data = ParseJson(event.data);
      if (data.is_object()) TakeHeld(event, data, &node, reporter);
    }
  }

  void TakeHeld(const format::EventRow& event, const nlohmann::json& data, Node* node,
                Reporter* reporter) {
    Process* const process = Find(node, event.pid, event.time_ns);
    has_data_ = true;
    node->time_ns = std::max(node->time_ns, event.time_ns);
    const double figures = process->facts.figures;
    process->facts = HeldFacts::Of(data);
    if (process->looks.empty()) process->first_figures = std::max(0.0, process->facts.figures);
    if (!process->looks.empty() && process->facts.figures > figures) ++process->figure_rises;
    process->looks.push_back({event.time_ns, node->steps, process->facts.own_bytes});
    if (process->looks.size() > kMostLooks) process->looks.erase(process->looks.begin() + 1);
    if (FlagIn(data, "worker")) {
      process->worker = true;
      JudgeWorkers(node, reporter);
    } else {
      JudgeTrainer(event.pid, *process, node, reporter);
    }
  }

  // ---- the training process ----

  static std::string SubjectOf(const Node& node, std::int32_t pid) {
    const auto rank = node.trainers.find(pid);
    return fmt::format("rank {} (pid {}) on {}", rank == node.trainers.end() ? 0 : rank->second,
                       pid, node.name);
  }

  void JudgeTrainer(std::int32_t pid, const Process& process, Node* node, Reporter* reporter) {
    if (process.looks.size() < 2) return;
    const Look& first = process.looks.front();
    const Look& last = process.looks.back();
    const double ranks = static_cast<double>(std::max<std::size_t>(1, node->trainers.size()));
    const Growth growth{last.own - first.own, (last.steps - first.steps) / ranks, first.time_ns,
                        last.time_ns};
    if (growth.bytes < least_) return;
    std::optional<Finding> finding = Figures(process, growth, *node);
    if (!finding) finding = Container(process.facts, growth, *node, "");
    if (!finding) finding = Graphs(process.facts, growth, *node);
    if (!finding) finding = Unknown(process, growth, *node);
    if (finding) {
      finding->message = fmt::format("Memory of the training process grows: {}", finding->message);
      Say(SubjectOf(*node, pid), growth, std::move(*finding), node, reporter);
    }
  }

  /// What growth without an end leads to.
  static std::string End(const Growth& growth, const Node& node, Severity* severity) {
    const double left = node.left();
    if (left <= 0 || growth.per_second() <= 0) return "";
    const double left_s = left / growth.per_second();
    if (left_s <= kUrgent && left_s <= 10 * growth.seconds()) *severity = Severity::kHigh;
    return fmt::format(" At this rate the {} that are left last {}.", Bytes(left), Lasting(left_s));
  }

  Severity Grade(double bytes, double medium, const Node& node) const {
    const double memory = node.memory();
    const bool much = bytes >= medium || (memory > 0 && bytes >= of_limit_ * memory);
    return much ? Severity::kMedium : Severity::kLow;
  }

  std::optional<Finding> Figures(const Process& process, const Growth& growth,
                                 const Node& node) const {
    const HeldFacts& facts = process.facts;
    const double more = facts.figures - process.first_figures;
    if (facts.figures <= 0 || more < kFewestFigures || process.figure_rises < 2) return {};
    const double each = facts.figure_bytes / facts.figures;
    if (more * each < kFiguresExplain * growth.bytes) return {};
    Finding finding;
    finding.severity = Severity::kMedium;
    finding.message = fmt::format("{:.0f} open matplotlib figures, {} in all", facts.figures,
                                  Bytes(growth.bytes));
    finding.cause = fmt::format(
        "It grew by {}. pyplot keeps every figure until it is closed: {:.0f} at the first look, "
        "{:.0f} now, each with some {} of pixels.{}",
        growth.Words(), process.first_figures, facts.figures, Bytes(each),
        End(growth, node, &finding.severity));
    finding.advice =
        "Call plt.close(fig) once a figure is drawn or saved, or draw into the same figure again "
        "(ax.clear()).";
    finding.confidence = 0.95;
    finding.evidence["held_by"] = "figures";
    finding.evidence["figures"] = facts.figures;
    return finding;
  }

  /// `whose`: empty, or "each worker's ".
  std::optional<Finding> Container(const HeldFacts& facts, const Growth& growth, const Node& node,
                                   const std::string& whose, double processes = 1) const {
    // One whose entries fit what memory grew comes before one that measures more.
    const auto fits = [&](const HeldFacts::Container& each) {
      return processes * each.grown() <= kMostMeasured * growth.bytes;
    };
    const HeldFacts::Container* held = nullptr;
    for (const HeldFacts::Container& each : facts.containers) {
      if (each.graph || processes * each.grown() < explained_ * growth.bytes) continue;
      const bool better = held == nullptr || fits(each) > fits(*held) ||
                          (fits(each) == fits(*held) && each.grown() > held->grown());
      if (better) held = &each;
    }
    if (held != nullptr) {
      return Entries(*held, growth, node, whose, processes);
    }
    return {};
  }

  std::optional<Finding> Entries(const HeldFacts::Container& held, const Growth& growth,
                                 const Node& node, const std::string& whose,
                                 double processes) const {
    const bool measured = processes * held.grown() <= kMostMeasured * growth.bytes;
    // Who has set a bound wants it filled.
    if (!measured && held.bound >= 0) return {};
    const double all = !measured         ? -1
                       : held.bound >= 0 ? held.bound
                       : held.length > 0 ? std::max(held.length, held.entries)
                                         : -1;
    const double full = processes * all * held.bytes_each;
    const bool fits =
        all >= 0 &&
        (node.total <= 0 || full - processes * held.entries * held.bytes_each < node.left() / 2);
    if (held.bound >= 0 && fits) return {};
    Finding finding;
    finding.severity = Grade(growth.bytes, held.data_set ? cache_ : leak_, node);
    std::string end;
    if (all < 0) {
      end = End(growth, node, &finding.severity);
    } else if (fits) {
      end = fmt::format(" With all {:.0f} entries it takes {}; that ends there.", all, Bytes(full));
    } else {
      finding.severity = Severity::kHigh;
      end = fmt::format(" All {:.0f} entries would take {}, and {} are left.", all, Bytes(full),
                        Bytes(node.left()));
    }
    const std::string owner =
        held.data_set ? "the data set keeps its items" : "the program keeps objects";
    finding.message =
        fmt::format("{}{} in {}{}", measured ? "" : "perhaps ", owner, whose, held.name);
    std::string size;
    if (measured) {
      size = fmt::format(", each with {}{}",
                         held.holds.empty() ? "" : fmt::format("a {} of ", held.holds),
                         Bytes(held.bytes_each));
    } else {
      // Memory grows in any case; that these entries hold it is not sure.
      const bool urgent = finding.severity == Severity::kHigh;
      finding.severity = std::min(finding.severity, urgent ? Severity::kMedium : Severity::kLow);
      size = "; how much of the growth they hold is not known";
    }
    finding.cause = fmt::format(
        "It grew by {}. The {} `{}` had {:.0f} entries at the first look and has {:.0f} now{}.{}",
        growth.Words(), held.type, held.name, held.first, held.entries, size, end);
    finding.advice = held.data_set
                         ? "Bound the cache (keep only a part of the items: with shuffled samples "
                           "a functools.lru_cache rarely hits), keep each item smaller (the file's "
                           "bytes, uint8 instead of float32), or cache on disk (np.memmap)."
                         : "Keep from each step only what is needed later: numbers (.item()), "
                           "copies of small tensors, or a deque with maxlen.";
    finding.confidence = measured ? 0.9 : 0.6;
    finding.evidence["held_by"] = held.name;
    finding.evidence["entries"] = held.entries;
    if (measured) {
      finding.evidence["bytes_each"] = Rounded(held.bytes_each);
      finding.evidence["held_bytes"] = Rounded(processes * held.grown());
    }
    return finding;
  }

  std::optional<Finding> Graphs(const HeldFacts& facts, const Growth& growth,
                                const Node& node) const {
    const HeldFacts::Graphs& graphs = facts.graphs;
    if (!graphs.are_kept() || graphs.held(growth.steps) < kGraphsExplain * growth.bytes) return {};
    Finding finding;
    finding.severity = Grade(growth.bytes, leak_, node);
    std::string list;
    for (const HeldFacts::Container& each : facts.containers) {
      if (each.graph && list.empty()) {
        list = fmt::format(" The {} `{}` holds {:.0f} tensors with their autograd graph.",
                           each.type, each.name, each.entries);
      }
    }
    finding.message = "autograd graphs of earlier forward passes are kept";
    finding.cause = fmt::format(
        "It grew by {}. Of {:.0f} forward passes that were looked at, the autograd graphs of "
        "{:.0f} still exist, from step {} on, and no backward pass has freed the tensors that they "
        "saved, at least {} each.{}{}",
        growth.Words(), graphs.looked, graphs.kept, graphs.since_step, Bytes(graphs.bytes_each),
        list, End(growth, node, &finding.severity));
    finding.advice =
        "Keep numbers, not tensors: loss.item(), or .detach() for a tensor; run what needs no "
        "backward (validation) under torch.no_grad().";
    finding.confidence = list.empty() ? 0.85 : 0.95;
    finding.evidence["held_by"] = "graphs";
    finding.evidence["graphs_looked_at"] = graphs.looked;
    finding.evidence["graphs_kept"] = graphs.kept;
    finding.evidence["bytes_each"] = Rounded(graphs.bytes_each);
    return finding;
  }

  /// Steady growth that nothing accounts for.
  std::optional<Finding> Unknown(const Process& process, const Growth& growth,
                                 const Node& node) const {
    const std::vector<Look>& looks = process.looks;
    if (looks.size() < kFewestLooks || growth.bytes < leak_ ||
        growth.to_ns - growth.from_ns < kShortestNs) {
      return {};
    }
    const std::int64_t middle_ns = growth.from_ns + (growth.to_ns - growth.from_ns) / 2;
    double half = 0;
    std::int64_t longest_ns = 0;
    for (std::size_t i = 1; i < looks.size(); ++i) {
      if (looks[i].time_ns <= middle_ns) half = looks[i].own - looks.front().own;
      longest_ns = std::max(longest_ns, looks[i].time_ns - looks[i - 1].time_ns);
    }
    const bool even = half >= growth.bytes / 4 && half <= 3 * growth.bytes / 4 &&
                      longest_ns <= (growth.to_ns - growth.from_ns) / 2;
    if (!even) return {};
    Finding finding;
    finding.severity = Severity::kLow;
    finding.message = growth.Words();
    Severity end = Severity::kLow;
    finding.cause = fmt::format(
        "It grew steadily, by {}. It is not held by the data set, the script's global variables, "
        "open figures or autograd graphs.{}",
        growth.Words(), End(growth, node, &end));
    const bool soon = end == Severity::kHigh && growth.seconds() >= kLongSeconds;
    finding.severity = soon ? Severity::kMedium : Severity::kLow;
    finding.advice =
        "Look for what the training loop keeps from each step: lists in functions, histories, "
        "caches of libraries.";
    finding.confidence = 0.6;
    finding.evidence["held_by"] = "unknown";
    return finding;
  }

  // ---- the workers ----

  void JudgeWorkers(Node* node, Reporter* reporter) {
    DropEnded(node);
    JudgeCopied(node, reporter);
    JudgeArrays(node, reporter);
    JudgeCaches(node, reporter);
  }

  /// The largest container of the data set that any of the workers told.
  static const HeldFacts::Container* LargestOf(const Node& node) {
    const HeldFacts::Container* largest = nullptr;
    for (const Process* process : WorkersOf(node)) {
      for (const HeldFacts::Container& each : process->facts.containers) {
        if (!each.data_set || each.entries < kLargeContainer) continue;
        if (largest == nullptr || each.entries > largest->entries) largest = &each;
      }
    }
    return largest;
  }

  void JudgeCopied(Node* node, Reporter* reporter) {
    const HeldFacts::Container* container = LargestOf(*node);
    const std::vector<const Process*> workers = WorkersOf(*node);
    double all = 0;
    for (const Process* process : workers) all += std::max(0.0, process->copied());
    if (container != nullptr &&
        static_cast<double>(workers.size()) * container->bytes() < kContainerExplains * all) {
      container = nullptr;
    }
    const double least = container != nullptr ? worker_ : kWithoutContainer * worker_;
    Growth growth;
    growth.to_ns = node->time_ns;
    double most_rss = 0, largest = 0, first_steps = node->steps;
    std::size_t count = 0;
    bool rising = false;
    for (const Process* each : workers) {
      if (each->copied() < least) continue;
      const Process& process = *each;
      ++count;
      rising = rising || process.rises >= (container != nullptr ? 1 : 2);
      growth.bytes += process.copied();
      largest = std::max(largest, process.now_private);
      most_rss = std::max(most_rss, process.now_rss);
      if (growth.from_ns == 0 || process.first_ns < growth.from_ns) {
        growth.from_ns = process.first_ns;
      }
      first_steps = std::min(first_steps, process.first_steps);
    }
    if (!rising || growth.bytes < leak_) return;
    growth.steps = node->steps - first_steps;
    Finding finding;
    finding.severity = Severity::kMedium;
    finding.message = fmt::format(
        "Memory of the {} grows by copy on write: {}",
        count == 1 ? std::string("loader worker") : fmt::format("{} loader workers", count),
        Bytes(growth.bytes));
    const std::string objects =
        container != nullptr ? fmt::format("Python objects in the {} `{}` ({:.0f} entries)",
                                           container->type, container->name, container->entries)
                             : std::string("Python objects");
    finding.cause = fmt::format(
        "The workers copied {} in memory that they had shared with the training process: each time "
        "that a worker touches one of the parent's {}, Python changes its reference count, and the "
        "kernel copies the page for the worker. The largest worker has {} of its own by now, and "
        "would have {} with all of it copied; {} of memory are left.",
        growth.Words(), objects, Bytes(largest), Bytes(most_rss), Bytes(node->left()));
    finding.advice =
        "Keep the samples in one array or tensor instead of a list or dict of Python objects: "
        "numpy (fixed-width or bytes with offsets), torch.tensor, or Arrow. It is shared by all "
        "workers.";
    finding.confidence = container != nullptr ? 0.95 : 0.8;
    finding.evidence["held_by"] = "copy on write";
    finding.evidence["workers"] = count;
    finding.evidence["private_bytes_of_one"] = Rounded(largest);
    if (container != nullptr) finding.evidence["container"] = container->name;
    Say(fmt::format("loader workers on {}", node->name), growth, std::move(finding), node,
        reporter);
  }

  /// Workers that hold the same array, each in memory of its own.
  void JudgeArrays(Node* node, Reporter* reporter) {
    struct Copies {
      std::string name;
      double bytes = 0;
      std::size_t workers = 0;
      std::int64_t from_ns = 0;

      double all() const { return static_cast<double>(workers) * bytes; }
    };
    std::map<std::int64_t, Copies> by_digest;
    for (const Process* worker : WorkersOf(*node)) {
      if (worker->looks.empty()) continue;
      const Process& process = *worker;
      for (const HeldFacts::Array& array : process.facts.arrays) {
        if (array.digest < 0 || array.own < kOwnShare) continue;
        Copies& copies = by_digest[array.digest];
        copies.name = array.name;
        copies.bytes = array.bytes;
        ++copies.workers;
        copies.from_ns = process.looks.front().time_ns;
      }
    }
    // The largest one stands for what is loaded with it.
    const Copies* most = nullptr;
    for (const auto& [digest, each] : by_digest) {
      if (each.workers >= 2 && (most == nullptr || each.all() > most->all())) most = &each;
    }
    if (most == nullptr || most->all() < leak_) return;
    const Copies& copies = *most;
    Finding finding;
    finding.message = fmt::format("Each of the {} loader workers has a copy of its own of {}",
                                  copies.workers, copies.name);
    finding.cause = fmt::format(
        "`{}` takes {}, with the same content in each worker, and no worker shares its pages with "
        "another process: {} together for {} of data. It was loaded in the workers, or sent to "
        "them, so memory grows with their number; {} of memory are left.",
        copies.name, Bytes(copies.bytes), Bytes(copies.all()), Bytes(copies.bytes),
        Bytes(node->left()));
    finding.advice =
        "Open the file as a memory map (np.load(path, mmap_mode=\"r\")), whose pages all workers "
        "share; or load it once, in the data set's __init__ in the main process before the workers "
        "are forked (start method fork), or as a tensor with share_memory_().";
    finding.evidence["held_by"] = copies.name;
    finding.evidence["workers"] = copies.workers;
    finding.evidence["array_bytes"] = copies.bytes;
    Say(fmt::format("data of the loader workers on {}", node->name),
        {copies.all(), 0, copies.from_ns, node->time_ns}, std::move(finding), node, reporter);
  }

  /// Each worker keeps what it makes.
  void JudgeCaches(Node* node, Reporter* reporter) {
    Growth growth;
    const Process* most = nullptr;
    for (const Process* worker : WorkersOf(*node)) {
      if (worker->looks.size() < 2) continue;
      const Process& process = *worker;
      growth.bytes += process.grown();
      growth.to_ns = std::max(growth.to_ns, process.looks.back().time_ns);
      const Look& first = process.looks.front();
      if (growth.from_ns == 0 || first.time_ns < growth.from_ns) growth.from_ns = first.time_ns;
      growth.steps = std::max(growth.steps, process.looks.back().steps - first.steps);
      if (most == nullptr || process.grown() > most->grown()) most = &process;
    }
    if (most == nullptr || growth.bytes < least_) return;
    std::optional<Finding> finding =
        Container(most->facts, growth, *node, "each worker's ", growth.bytes / most->grown());
    if (!finding) return;
    finding->message = fmt::format("Memory of the loader workers grows: {}", finding->message);
    finding->advice += " Each of the workers fills a cache of its own.";
    Say(fmt::format("caches of the loader workers on {}", node->name), growth, std::move(*finding),
        node, reporter);
  }

  static void Say(const std::string& subject, const Growth& growth, Finding finding, Node* node,
                  Reporter* reporter) {
    Watched& watched = node->said[subject];
    if (!watched.open) {
      CellBase from;
      from.from_ns = growth.from_ns;
      from.to_ns = growth.to_ns;
      from.attempt = node->attempt;
      watched.Open(subject, from, finding.severity);
      watched.incident.first_step =
          std::max<std::int64_t>(0, node->step - static_cast<std::int64_t>(growth.steps));
    }
    watched.Raise(finding.severity);
    Incident& incident = watched.incident;
    incident.last_step = std::max(incident.first_step, node->step);
    incident.end_ns = std::max(incident.end_ns, growth.to_ns);
    incident.message = std::move(finding.message);
    incident.cause = std::move(finding.cause);
    incident.advice = std::move(finding.advice);
    incident.confidence = finding.confidence;
    finding.evidence["growth_bytes"] = Rounded(growth.bytes);
    finding.evidence["over_seconds"] = Rounded(growth.seconds());
    if (growth.per_step() > 0) finding.evidence["bytes_per_step"] = Rounded(growth.per_step());
    finding.evidence["left_bytes"] = Rounded(node->left());
    incident.evidence = JsonText(finding.evidence);
    reporter->Report(incident);
  }

  const double least_, leak_, cache_, of_limit_, explained_, worker_;
  std::vector<Slot> series_;             ///< By series.
  std::map<std::uint32_t, Node> nodes_;  ///< By writer.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kMemoryGrowthDesc{
    .name = "MemoryGrowth",
    .summary =
        "The memory of the training process or of the loader's workers grows; the finding names "
        "what holds it.",
    .formula =
        "Each event `memory.held` is a look at a process; growth = memory of its own (that belongs "
        "to no file) at the newest look − at the first. From least_mib on, what accounts for it is "
        "named: open figures (at least 4 more, in two looks, whose pixels are 30 % of the growth); "
        "a list or dict, (entries − entries at the first look) × bytes of one ≥ `explained` × "
        "growth (one severity less where that is above 1.5 × growth: its entries keep memory "
        "together, and how much is not known); marked graphs that still exist and had no backward "
        "(at least 8, and of the "
        "earlier half at least half the share of the later) and that have saved a fifth of the "
        "growth. Medium from leak_mib, of a cache of the data set from cache_mib, or from "
        "limit_percent of the memory; high where it will not fit, or the end is less than 10 min "
        "and 10 times the time of the growth away. Figures are medium. A bound that fits is no "
        "finding. Steady growth from leak_mib in 8 s that nothing accounts for: low, medium where "
        "it has lasted 20 s and the end is so near. Workers: copy on write = growth of "
        "proc.private − growth of proc.rss since the first reading, of workers with worker_mib of "
        "it (3 × worker_mib where the data set has no container of 50,000 entries that accounts "
        "for 30 % of it, and two rises), together leak_mib; copies = the same array (checksum) in "
        "two or more workers, of which 80 % of the pages are the worker's own, together leak_mib; "
        "both medium. Cost = 0: nothing is lost before memory runs out.",
    .how_to_fix =
        "Keep numbers, not tensors with their graph; close figures; bound caches; hold samples in "
        "arrays, not in lists of objects; map large arrays.",
    .table_mask = store::MaskOf(format::TableId::kMetrics) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .family = Family::kOwn,
    .example = "self.cache[i] = item in __getitem__, of a data set that is larger than the memory.",
    .standing = {.theme = Theme::kMemory, .order = 0},
};

std::unique_ptr<Rule> MakeMemoryGrowth(const Parameters& parameters) {
  return std::make_unique<MemoryGrowth>(parameters);
}

}  // namespace telltale::rules::memory_growth
