// SPDX-License-Identifier: Apache-2.0
// HungTraining: the training lives and makes no progress: which rank holds up the others, where it
// was last seen, and what its threads wait for.
//
// Time-outs of fixed length fire on every long evaluation, or hours too late. Here the longest gap
// that the process itself has made so far sets the measure. Samples of the machine keep coming
// while a training hangs: their times are the clock. Threads come from the agent's event
// process.stacks, which is read from /proc and so disturbs nothing; their lines of Python from the
// process itself, process.python, where it still can say them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/saturate.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/builtin/thread_waits.h"
#include "rules/registry.h"

namespace telltale::rules::hung_training {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"min_seconds", 300, "s", "Silence below this is never a hang."},
    {"factor", 10, "", "Silence must last this many times the longest one before, too."},
    {"busy_cpu", 20, "%",
     "A process alone that uses more of a core than this may compute what nobody records: it must "
     "be silent three times as long."},
};

/// Steps of a process before which its gaps are its start: imports, compilation, caches.
constexpr std::int64_t kWarmupSteps = 3;
constexpr std::size_t kRanksShown = 16;
constexpr std::size_t kThreadsShown = 6;
constexpr std::int64_t kLeastNs = 1'000'000;  ///< Of min_seconds.
/// Samples further apart than this, and than half of min_seconds, leave a time that nobody saw.
constexpr std::int64_t kLeastGapNs = 10'000'000'000;
/// A rank that ended this long before the others fell silent is why they wait.
constexpr std::int64_t kEndedBeforeNs = 60'000'000'000;

class HungTraining final : public Rule {
 public:
  explicit HungTraining(const Parameters& p)
      : min_ns_(std::max(kLeastNs, p.GetNs("min_seconds"))),
        factor_(std::max(1.0, p.Get("factor"))),
        busy_cpu_(p.Get("busy_cpu")) {}

  bool Wants(const Series& series) override {
    if (series.table == format::TableId::kMetrics) {
      const bool clock = series.name == "cpu.busy" && series.collection == "node";
      const bool process = series.name == "proc.cpu" && series.pid != 0;
      Remember(series.id, process ? kProcessCpu : kOther);
      return clock || process;
    }
    if (series.table == format::TableId::kSpans) {
      const bool comm = series.name == "comm_wait" && series.collection == "phase";
      Remember(series.id, comm ? kCommWait : kOther);
      return series.collection == "phase" || series.collection == "user";
    }
    return series.name == "loss";
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* metric = record.As<format::MetricRow>()) {
      if (KindOf(record.series) == kProcessCpu) OnCpu(*metric);
      if (OnClock(record.ord_ns)) Judge(reporter);
    } else if (const auto* step = record.As<format::StepRow>()) {
      OnStep(*step, reporter);
    } else if (const auto* span = record.As<format::SpanRow>()) {
      OnSpan(*span, KindOf(record.series) == kCommWait, reporter);
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      if (Process* process = Known(*scalar)) Progress(process, scalar->time_ns, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, reporter);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) {
      if (process.open) Close(&process, reporter);
    }
  }

  bool has_data() const override { return has_data_; }

 private:
  enum SeriesKind : std::uint8_t { kOther, kProcessCpu, kCommWait };

  struct Process : TrainingProcess {
    std::int64_t steps = 0;
    std::int64_t progress_ns = 0;  ///< End of the newest record that shows progress.
    Sum unseen_ns = 0;             ///< Of the time since: without samples.
    Sum longest_ns = 0;            ///< Longest time between two of them, after the warm-up.
    std::string phase;             ///< The newest that ended in the open step.
    std::int64_t collectives = 0;  ///< That ended in the open step.
    double cpu_sum = 0;            ///< Since the newest progress.
    std::int64_t cpu_samples = 0;
    std::string stacks;  ///< Data of the newest process.stacks since then.
    std::string python;  ///< Of the newest process.python.
  };

  struct Ended {
    std::int32_t rank = 0;
    std::uint32_t attempt = 0;
    std::int64_t time_ns = 0;
    std::string how;
  };

  void Remember(std::uint32_t series, SeriesKind kind) {
    if (kinds_.size() <= series) kinds_.resize(series + 1, kOther);
    kinds_[series] = kind;
  }
  SeriesKind KindOf(std::uint32_t series) const {
    return series < kinds_.size() ? kinds_[series] : kOther;
  }

  /// The process of a row that alone makes none: the loader's workers have spans too.
  template <class Row>
  Process* Known(const Row& row) {
    Process* const known = FindByPid(row.pid);
    return known != nullptr && known->rank == row.rank && known->attempt == row.attempt ? known
                                                                                        : nullptr;
  }
  Process* FindByPid(std::int32_t pid) {
    for (auto& [key, process] : processes_) {
      if (process.pid == pid && process.writer == writer_) return &process;
    }
    return nullptr;
  }

  void OnStep(const format::StepRow& step, Reporter* reporter) {
    Process* process =
        processes_.Find(step, writer_, [&](Process* former) { Close(former, reporter); });
    if (process == nullptr) return;
    // Another attempt: who ended before it has nothing to do with it.
    std::erase_if(ended_, [&](const Ended& e) { return e.attempt < step.attempt; });
    if (step.mode == "TRAIN" && process->BeginStep(step.step)) {
      ++process->steps;
      process->collectives = 0;
      process->phase.clear();
    }
    Progress(process, step.time_ns + std::max<std::int64_t>(0, step.duration_ns), reporter);
  }

  void OnSpan(const format::SpanRow& span, bool comm_wait, Reporter* reporter) {
    Process* process = Known(span);
    if (process == nullptr) return;
    if (span.category == "phase" && span.step > process->last_step) {
      process->phase = span.name;
      process->collectives += comm_wait ? 1 : 0;
    }
    Progress(process, span.time_ns + std::max<std::int64_t>(0, span.duration_ns), reporter);
  }

  /// False where the time is not newer. A machine that slept or a recording with a gap is no
  /// training that hangs: what lies between two samples far apart is not counted as silence.
  bool OnClock(std::int64_t now_ns) {
    if (now_ns <= now_ns_) return false;
    const std::int64_t from = std::exchange(now_ns_, now_ns);
    if (now_ns - from <= std::max(min_ns_ / 2, kLeastGapNs)) return true;
    for (auto& [key, process] : processes_) {
      process.unseen_ns += std::max<std::int64_t>(0, now_ns - std::max(from, process.progress_ns));
    }
    return true;
  }
  Sum SilenceOf(const Process& process) const {
    return now_ns_ - process.progress_ns - process.unseen_ns;
  }

  void OnCpu(const format::MetricRow& metric) {
    Process* process = FindByPid(metric.pid);
    if (process == nullptr || !std::isfinite(metric.value)) return;
    process->cpu_sum += metric.value;
    ++process->cpu_samples;
  }

  void OnEvent(const format::EventRow& event, Reporter* reporter) {
    if (event.kind == "process.stacks" || event.kind == "process.python") {
      Process* process = FindByPid(event.pid);
      if (process == nullptr || event.time_ns < process->progress_ns) return;
      (event.kind == "process.python" ? process->python : process->stacks) = event.data;
      if (Process* open = OpenOne(process)) {
        Describe(open);
        reporter->Report(open->incident);
      }
    } else if (event.kind == "process.start") {
      // A notebook waits for its user between two cells.
      if (event.data.find("ipykernel") != std::string_view::npos) interactive_ = true;
    } else if (event.kind == "process.exit") {
      processes_.End(event, writer_, [&](Process* process) {
        ended_.push_back({process->rank, process->attempt, event.time_ns, HowOf(event)});
        if (process->open) Close(process, reporter);
      });
    }
  }

  static std::string HowOf(const format::EventRow& exit) {
    const auto data = ParseJson(exit.data);
    if (!data.is_object()) return "";
    if (const auto at = data.find("signal"); at != data.end() && at->is_number_integer()) {
      return fmt::format(" by signal {}", IntegerOf(*at));
    }
    if (const auto at = data.find("exit_code"); at != data.end() && at->is_number_integer()) {
      return fmt::format(" with exit code {}", IntegerOf(*at));
    }
    return "";
  }

  /// Ranks wait for each other: a hang is one of all of them. Processes of one rank (a sweep) are
  /// trainings of their own.
  bool Together() {
    std::int32_t first = -1;
    for (auto& [key, process] : processes_) {
      if (first >= 0 && process.rank != first) return true;
      first = process.rank;
    }
    return false;
  }
  Process* OpenOne(Process* process) {
    if (process->open) return process;
    if (!Together()) return nullptr;
    for (auto& [key, other] : processes_) {
      if (other.open) return &other;
    }
    return nullptr;
  }

  void Progress(Process* process, std::int64_t end_ns, Reporter* reporter) {
    if (end_ns <= process->progress_ns) return;
    Process* open = OpenOne(process);
    if (open != nullptr) {
      open->incident.end_ns = std::max(open->incident.start_ns, end_ns);
      open->incident.cost_seconds = SecondsOf(*open);
      reporter->Recover(open->incident);
      open->open = false;
    }
    if (process->steps > kWarmupSteps && process->progress_ns > 0) {
      process->longest_ns =
          std::max(process->longest_ns, end_ns - process->progress_ns - process->unseen_ns);
    }
    process->progress_ns = end_ns;
    process->unseen_ns = 0;
    process->cpu_sum = 0;
    process->cpu_samples = 0;
    process->stacks.clear();
    process->python.clear();
  }

  static double SecondsOf(const Process& process) {
    const Sum lasted = process.incident.end_ns - process.incident.start_ns;
    return static_cast<double>(std::max<Sum>(0, lasted - process.unseen_ns)) / 1e9;
  }
  static double Cpu(const Process& process) {
    return process.cpu_samples == 0 ? 0
                                    : process.cpu_sum / static_cast<double>(process.cpu_samples);
  }

  /// How long a process may be silent.
  std::int64_t PatienceOf(const Process& process, bool together) const {
    const double learned = factor_ * static_cast<double>(process.longest_ns);
    std::int64_t patience = std::max(min_ns_, static_cast<std::int64_t>(std::min(learned, 9e18)));
    // Ranks spin while they wait for each other: processor time says nothing of them.
    if (!together && Cpu(process) > busy_cpu_) patience = std::min(patience, INT64_MAX / 3) * 3;
    return patience;
  }

  void Judge(Reporter* reporter) {
    if (interactive_) return;
    const bool together = Together();
    bool all_silent = true;
    for (auto& [key, process] : processes_) {
      if (process.steps <= kWarmupSteps) {
        all_silent = false;
        continue;
      }
      has_data_ = true;
      const bool silent = SilenceOf(process) > PatienceOf(process, together);
      all_silent = all_silent && silent;
      if (!together && (silent || process.open)) Tell(&process, reporter);
    }
    if (!together) return;
    Process* open = nullptr;
    for (auto& [key, process] : processes_) {
      if (process.open) open = &process;
    }
    if (open != nullptr || all_silent) Tell(open != nullptr ? open : Behind(), reporter);
  }

  /// Who holds up the others: the one that made the fewest steps, then the fewest collectives in
  /// the open one, then who was heard of first.
  Process* Behind() {
    Process* behind = nullptr;
    for (auto& [key, process] : processes_) {
      if (behind == nullptr || Key(process) < Key(*behind)) behind = &process;
    }
    return behind;
  }
  static std::tuple<std::int64_t, std::int64_t, std::int64_t> Key(const Process& process) {
    return {process.last_step, process.collectives, process.progress_ns};
  }

  void Tell(Process* process, Reporter* reporter) {
    if (!process->open) {
      processes_.Open(process, process->last_step + 1, process->progress_ns);
    }
    Describe(process);
    reporter->Report(process->incident);
  }

  /// No record follows: it hung until its process ended.
  void Close(Process* process, Reporter* reporter) {
    reporter->Close(process->incident);
    process->open = false;
  }

  /// Where the main thread stands in Python, innermost first; empty where nobody knows.
  static std::vector<std::string> MainLines(const Process& process) {
    const auto data = ParseJson(process.python);
    std::vector<std::string> lines;
    if (!data.is_object()) return lines;
    const auto threads = data.find("threads");
    if (threads == data.end() || !threads->is_array() || threads->empty()) return lines;
    const auto& first = threads->front();
    if (!first.is_object() || !first.contains("lines") || !first["lines"].is_array()) return lines;
    for (const auto& line : first["lines"]) {
      if (line.is_string()) lines.push_back(line.get<std::string>());
    }
    return lines;
  }

  const Ended* EndedBefore(const Process& process) const {
    for (const Ended& e : ended_) {
      if (e.attempt == process.attempt && e.rank != process.rank &&
          e.time_ns > process.progress_ns - kEndedBeforeNs) {
        return &e;
      }
    }
    return nullptr;
  }

  void Describe(Process* process) {
    Incident& incident = process->incident;
    const bool together = Together();
    incident.last_step = std::max(incident.first_step, process->last_step);
    incident.end_ns = std::max({incident.start_ns, incident.end_ns, now_ns_});
    incident.cost_seconds = SecondsOf(*process);
    const bool busy = !together && Cpu(*process) > busy_cpu_;
    incident.severity = busy ? Severity::kMedium : Severity::kHigh;
    incident.message = together ? "All ranks live and none makes progress"
                                : "The training lives and makes no progress";

    Process* other = nullptr;  // Of those ahead, the one that is the furthest.
    for (auto& [key, p] : processes_) {
      if (&p != process && (other == nullptr || Key(*other) < Key(p))) other = &p;
    }
    const std::string waits = MainThreadWaits(process->stacks, process->pid);
    const std::vector<std::string> lines = MainLines(*process);
    std::string thread = waits.empty() ? std::string() : fmt::format(" Its main thread {}.", waits);
    if (!lines.empty()) thread += fmt::format(" In Python it stands at {}.", lines.front());
    const std::string look =
        lines.empty() ? fmt::format("See its Python lines: py-spy dump --pid {}.", process->pid)
                      : std::string("Look at the lines of all its threads in the evidence.");
    const std::string since = fmt::format(
        "Nothing since {} of step {}",
        process->phase.empty() ? std::string("the begin") : "the end of " + process->phase,
        process->last_step + 1);
    const Ended* ended = EndedBefore(*process);
    double confidence = 0.8;
    if (ended != nullptr) {
      incident.cause = fmt::format("Rank {} has ended{}, and the others still wait for it.{}",
                                   ended->rank, ended->how, thread);
      incident.advice = fmt::format(
          "Look why rank {} ended; let the launcher end all ranks when one does (torchrun does).",
          ended->rank);
      confidence = 0.95;
    } else if (together && other != nullptr && process->last_step < other->last_step) {
      incident.cause =
          fmt::format("Rank {} is behind: it has made {} steps, rank {} {}.{}", process->rank,
                      process->last_step + 1, other->rank, other->last_step + 1, thread);
      incident.advice = fmt::format(
          "Look at what rank {} (pid {}) does. {} Check that all ranks have the same number of "
          "batches.",
          process->rank, process->pid, look);
      confidence = 0.9;
    } else if (together && other != nullptr && process->collectives != other->collectives) {
      incident.cause = fmt::format(
          "The ranks do not call the same collectives: in step {} rank {} has ended {} and rank {} "
          "{}.{}",
          process->last_step + 1, process->rank, process->collectives, other->rank,
          other->collectives, thread);
      incident.advice =
          "Look for a collective inside a condition that is not the same on each rank; set "
          "TORCH_DISTRIBUTED_DEBUG=DETAIL to have the mismatch named.";
      confidence = 0.85;
    } else if (!thread.empty() && !busy) {
      incident.cause = since + "." + thread;
      incident.advice = look + " Then end it: it does not go on by itself.";
    } else {
      incident.cause = "cause not found";
      incident.advice = look;
      confidence = busy ? 0.5 : 0.7;
    }
    incident.confidence = confidence;

    nlohmann::ordered_json evidence;
    evidence["silent_s"] = Rounded(SecondsOf(*process));
    evidence["longest_before_s"] = Rounded(static_cast<double>(process->longest_ns) / 1e9);
    evidence["patience_s"] = Rounded(static_cast<double>(PatienceOf(*process, together)) / 1e9);
    evidence["steps"] = process->last_step + 1;
    if (!process->phase.empty()) evidence["after"] = process->phase;
    if (!waits.empty()) evidence["main_thread"] = waits;
    if (!lines.empty()) evidence["main_line"] = lines.front();
    if (ended != nullptr) evidence["ended_rank"] = ended->rank;
    nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
    for (auto& [key, p] : processes_) {
      if ((!together && &p != process) || ranks.size() >= kRanksShown) continue;
      nlohmann::ordered_json rank;
      rank["rank"] = p.rank;
      rank["pid"] = p.pid;
      rank["steps"] = p.last_step + 1;
      rank["after"] = p.phase;
      rank["collectives"] = p.collectives;
      rank["silent_s"] = Rounded(static_cast<double>(SilenceOf(p)) / 1e9);
      if (p.cpu_samples > 0) rank["cpu_percent"] = Rounded(Cpu(p));
      const auto data = ParseOrderedJson(p.stacks);
      if (data.is_object() && data.contains("threads") && data["threads"].is_array()) {
        nlohmann::ordered_json threads = nlohmann::ordered_json::array();
        for (const auto& t : data["threads"]) {
          if (threads.size() < kThreadsShown) threads.push_back(t);
        }
        rank["threads"] = threads;
      }
      const auto python = ParseOrderedJson(p.python);
      if (python.is_object() && python.contains("threads") && python["threads"].is_array()) {
        // Of the others the main thread is enough.
        nlohmann::ordered_json threads = nlohmann::ordered_json::array();
        for (const auto& t : python["threads"]) {
          if (threads.size() < (&p == process ? kThreadsShown : 1)) threads.push_back(t);
        }
        rank["python"] = threads;
      }
      ranks.push_back(rank);
    }
    evidence["ranks"] = ranks;
    incident.evidence = JsonText(evidence);
  }

  const std::int64_t min_ns_;
  const double factor_;
  const double busy_cpu_;

  ProcessTable<Process> processes_;
  std::vector<Ended> ended_;
  std::vector<SeriesKind> kinds_;  ///< By series.
  std::uint32_t writer_ = 0;       ///< Of the record that is read.
  std::int64_t now_ns_ = 0;        ///< Of the newest sample.
  bool interactive_ = false;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kHungTrainingDesc{
    .name = "HungTraining",
    .summary = "The training lives and makes no progress; which rank holds up the others.",
    .formula =
        "Progress is the end of a step of any mode, of a phase, of a span of the program, or a "
        "loss. A process is silent where the newest sample of the machine came more than "
        "max(min_seconds, factor × its longest silence so far) after its newest progress; three "
        "times that where it is alone and uses more than busy_cpu of a core (it may compute what "
        "nobody records: medium, else high). Where there are several ranks, all that live must be "
        "silent. Its first three steps set no measure, and before them nothing is said "
        "(MaxInitializationTime's); nor in a notebook. Time between two samples that are further "
        "apart than half of min_seconds (a machine that slept) is no silence. Named is a rank that "
        "has ended within a minute before the silence; else the rank with the fewest steps; then "
        "that with the fewest collectives ended in the open step, where they differ; then the one "
        "heard of first. Threads are those of the events process.stacks and process.python. Over "
        "with the next progress of any rank, and where its process ends. Cost = the silence.",
    .how_to_fix =
        "Look at the rank that is named: its Python lines (in the evidence, else py-spy dump --pid "
        "PID), a lock that two threads take in different order, a collective that not every rank "
        "calls, ranks with different numbers of batches, a file system that does not answer. Give "
        "process groups a timeout.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kSpans) |
                  store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kMetrics) |
                  store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kOwn,
    .by_default = true,
    .example = "if rank == 0:\n    dist.all_reduce(loss)  # the other ranks never come",
    .standing = {.all_ranks = true},
    .data_mask = DataMask(Datum::kSamples, Datum::kSteps),
};

std::unique_ptr<Rule> MakeHungTraining(const Parameters& parameters) {
  return std::make_unique<HungTraining>(parameters);
}

}  // namespace telltale::rules::hung_training
