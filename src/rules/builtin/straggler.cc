// SPDX-License-Identifier: Apache-2.0
// Straggler: one rank is slower than the others, which wait for it in each step.
//
// In lockstep every rank takes as long as the slowest, so step times tell nothing: what differs is
// what a rank does before it waits. Two scores as in NVIDIA's resiliency extension: against the
// other ranks, and against its own history, which tells a slow machine from one that became slow.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/own_time.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::straggler {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"relative_score", 0.75, "", "Time of the others / its own, below which a rank is slow."},
    {"zscore", 3.5, "", "Modified z-score that its time must exceed, from four ranks on."},
    {"least_share", 10, "%", "Of the step's time that the others lose, below it nothing."},
    {"window_steps", 20, "steps", "Steps of a window; its medians are compared."},
    {"patience", 3, "windows", "Windows in a row before anything is said."},
};

constexpr std::int64_t kWarmupSteps = 3;
constexpr std::size_t kWindowsKept = 64;
constexpr std::size_t kRanksNamed = 16;
/// Step times that differ by less than this share are in lockstep.
constexpr double kLockstep = 0.1;
/// Of the median: no deviation of a few ranks is taken for smaller.
constexpr double kLeastMad = 0.02;

constexpr std::size_t kPhaseCount = 5;
constexpr std::array<std::string_view, kPhaseCount> kPhaseNames = {
    "data wait", "forward", "backward", "optimizer", "other"};
constexpr std::size_t kBackward = 2;
constexpr std::size_t kOther = 4;

struct Window {
  std::int64_t number = -1;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t first_step = -1;
  std::int64_t last_step = -1;
  double duration = 0;  ///< Medians, in ns.
  std::array<double, kPhaseCount> phases{};
};

class Straggler final : public Rule {
 public:
  explicit Straggler(const Parameters& p)
      : relative_(p.Get("relative_score")),
        zscore_(p.Get("zscore")),
        least_(p.Get("least_share") / 100),
        window_(std::max<std::int64_t>(5, p.GetInt("window_steps"))),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))) {}

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, record.writer, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, record.writer, [&](Process* process) { End(process, reporter); });
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return ranks_seen_ > 1; }

 private:
  struct Process : TrainingProcess {
    std::int64_t seen = 0;
    Window window;  ///< That comes in.
    std::vector<double> durations;
    std::array<std::vector<double>, kPhaseCount> phases;
    std::deque<Window> done;

    double best = 0;  ///< Smallest own time of a window so far.
    std::int64_t slow_in_row = 0;
    std::int64_t well_in_row = 0;
    Window slow_since;
    double slow_lost_ns = 0;  ///< In the windows of slow_in_row.
    double cost_ns = 0;
    std::int64_t windows_slow = 0;
    std::int64_t windows_judged = 0;
  };

  /// What a rank did by itself in a window, and of the others what they did.
  struct Own {
    Process* process;
    const Window* window;
    double ns;
  };

  void OnStep(const format::StepRow& row, std::uint32_t writer, Reporter* reporter) {
    if (row.duration_ns <= 0) return;
    Process* process =
        processes_.Find(row, writer, [&](Process* former) { End(former, reporter); });
    if (process == nullptr || !process->BeginStep(row.step)) return;
    if (first_rank_ < 0) first_rank_ = row.rank;
    ranks_seen_ = row.rank == first_rank_ && ranks_seen_ < 2 ? 1 : 2;
    if (++process->seen <= kWarmupSteps) return;
    const std::int64_t number = row.step / window_;
    if (process->window.number != number) {
      Complete(process);
      process->window = Window();
      process->window.number = number;
      process->window.start_ns = row.time_ns;
      process->window.first_step = row.step;
      JudgeWhatIsComplete(reporter);
    }
    process->window.last_step = row.step;
    process->window.end_ns = row.time_ns + row.duration_ns;
    const auto ns = [](std::int64_t v) { return static_cast<double>(v); };
    const format::StepRow own = WithoutProbe(row);
    process->durations.push_back(ns(own.duration_ns));
    const double phases[kPhaseCount] = {ns(own.data_wait_ns), ns(own.forward_ns),
                                        ns(own.backward_ns), ns(own.optimizer_ns),
                                        ns(own.other_ns)};
    for (std::size_t i = 0; i < kPhaseCount; ++i) process->phases[i].push_back(phases[i]);
  }

  void Complete(Process* process) {
    // Half a window says little, but steps may have been lost.
    if (std::ssize(process->durations) * 2 >= window_) {
      Window& window = process->window;
      window.duration = MedianOf(process->durations);
      for (std::size_t i = 0; i < kPhaseCount; ++i) window.phases[i] = MedianOf(process->phases[i]);
      process->done.push_back(window);
      if (process->done.size() > kWindowsKept) process->done.pop_front();
    }
    process->durations.clear();
    for (auto& phase : process->phases) phase.clear();
  }

  /// A window is judged when the newest of all ranks have passed it.
  void JudgeWhatIsComplete(Reporter* reporter) {
    std::int64_t passed = INT64_MAX;
    for (auto& [key, process] : processes_) passed = std::min(passed, process.window.number);
    while (true) {
      std::int64_t next = INT64_MAX;
      for (auto& [key, process] : processes_) {
        if (!process.done.empty()) next = std::min(next, process.done.front().number);
      }
      if (next >= passed) return;
      Judge(next, reporter);
      for (auto& [key, process] : processes_) {
        if (!process.done.empty() && process.done.front().number == next) process.done.pop_front();
      }
    }
  }

  void Judge(std::int64_t number, Reporter* reporter) {
    std::vector<Own> ranks;
    double shortest = 0;
    double longest = 0;
    double least_backward = 0;
    for (auto& [key, process] : processes_) {
      if (process.done.empty() || process.done.front().number != number) continue;
      const Window& window = process.done.front();
      // Two processes of one rank are trainings of their own.
      for (const Own& other : ranks) {
        if (other.process->rank == process.rank) return;
      }
      const bool first = ranks.empty();
      shortest = first ? window.duration : std::min(shortest, window.duration);
      longest = std::max(longest, window.duration);
      least_backward =
          first ? window.phases[kBackward] : std::min(least_backward, window.phases[kBackward]);
      ranks.push_back({&process, &window, 0});
    }
    if (ranks.size() < 2) return;
    has_data_ = true;
    // The gradients are reduced in backward, and there the fast ranks wait for the slow one.
    const bool lockstep = longest - shortest < kLockstep * longest;
    for (Own& own : ranks) {
      for (std::size_t i = 0; i < kPhaseCount; ++i) {
        own.ns += lockstep && i == kBackward ? least_backward : own.window->phases[i];
      }
      Process& process = *own.process;
      process.best = process.best > 0 ? std::min(process.best, own.ns) : own.ns;
      ++process.windows_judged;
    }
    for (const Own& own : ranks) JudgeOne(own, ranks, lockstep, reporter);
  }

  void JudgeOne(const Own& own, const std::vector<Own>& ranks, bool lockstep, Reporter* reporter) {
    Process* process = own.process;
    std::vector<double> others;
    for (const Own& other : ranks) {
      if (other.process != process) others.push_back(other.ns);
    }
    const double median = MedianOf(others);
    std::vector<double> all = others;
    all.push_back(own.ns);
    const double middle = MedianOf(all);
    for (double& v : all) v = std::abs(v - middle);
    const double mad = std::max(MedianOf(std::move(all)), kLeastMad * middle);
    const double z = mad > 0 ? 0.6745 * (own.ns - middle) / mad : 0;
    const double score = own.ns > 0 ? median / own.ns : 1;
    const double lost = std::max(0.0, own.ns - median);
    const double share = own.window->duration > 0 ? lost / own.window->duration : 0;
    const bool slow = score < relative_ && share > least_ && (ranks.size() < 4 || z > zscore_);
    const auto steps = static_cast<double>(own.window->last_step - own.window->first_step + 1);
    if (!slow) {
      process->slow_in_row = 0;
      process->slow_lost_ns = 0;
      if (process->open && ++process->well_in_row >= patience_) {
        reporter->Recover(process->incident);
        process->open = false;
      }
      return;
    }
    process->well_in_row = 0;
    ++process->windows_slow;
    if (process->slow_in_row++ == 0) process->slow_since = *own.window;
    process->slow_lost_ns += lost * steps;
    if (process->open) {
      process->cost_ns += lost * steps;
    } else if (process->slow_in_row >= patience_) {
      processes_.Open(process, process->slow_since.first_step, process->slow_since.start_ns);
      process->cost_ns = process->slow_lost_ns;
    } else {
      return;
    }
    Describe(own, ranks, lockstep, median, z, score, share);
    reporter->Report(process->incident);
  }

  void Describe(const Own& own, const std::vector<Own>& ranks, bool lockstep, double median,
                double z, double score, double share) {
    Process* process = own.process;
    Incident& incident = process->incident;
    incident.last_step = std::max(incident.first_step, own.window->last_step);
    incident.end_ns = std::max(incident.start_ns, own.window->end_ns);
    incident.cost_seconds = process->cost_ns / 1e9;
    const Severity severity = share >= 0.3 ? Severity::kHigh : Severity::kMedium;
    incident.severity = std::max(incident.severity, severity);
    incident.message = fmt::format("Rank {} takes {} times the others", process->rank,
                                   Figure(own.ns / std::max(1.0, median)));
    // The phase that makes the difference.
    std::size_t widest = 0;
    std::array<double, kPhaseCount> excess{};
    double sum = 0;
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      std::vector<double> others;
      for (const Own& other : ranks) {
        if (other.process != process) others.push_back(other.window->phases[i]);
      }
      if (lockstep && i == kBackward) continue;
      excess[i] = own.window->phases[i] - MedianOf(std::move(others));
      sum += std::max(0.0, excess[i]);
      if (excess[i] > excess[widest]) widest = i;
    }
    const double part = sum > 0 ? excess[widest] / sum : 0;
    const double individual = own.ns > 0 ? process->best / own.ns : 1;
    const bool chronic = individual >= relative_;
    const std::string history =
        chronic ? fmt::format("it was never faster than {} ms", Millis(process->best))
                : fmt::format("it took {} ms before step {}", Millis(process->best),
                              process->slow_since.first_step);
    if (part >= 0.8) {
      incident.cause = fmt::format(
          "Rank {} takes {} ms a step before it waits, the others {} ms: {} ms more {}{}; {}.",
          process->rank, Millis(own.ns), Millis(median), Millis(excess[widest]),
          widest == kOther ? "" : "in ",
          widest == kOther ? "outside data wait, forward, backward and optimizer"
                           : kPhaseNames[widest],
          history);
    } else {
      incident.cause = "cause not found";
    }
    if (widest == 0 && part >= 0.5) {
      incident.advice = fmt::format(
          "Look at the storage and the loader's workers of rank {}: its batches come late.",
          process->rank);
    } else if (chronic) {
      incident.advice = fmt::format(
          "Compare what rank {} does: longer samples, work for rank {} alone (logging, "
          "evaluation), another device or clock, other programs on its machine.",
          process->rank, process->rank);
    } else {
      incident.advice = fmt::format(
          "Look at what changed on the machine of rank {} at step {}: heat and clocks, other "
          "programs, a failing disk or link; take it out where it stays slow.",
          process->rank, process->slow_since.first_step);
    }
    incident.confidence =
        std::min(0.95, 0.7 + 0.05 * static_cast<double>(process->slow_in_row - patience_));
    nlohmann::ordered_json evidence;
    evidence["own_ms"] = Rounded(own.ns / 1e6);
    evidence["others_ms"] = Rounded(median / 1e6);
    double best = own.ns;
    for (const Own& other : ranks) best = std::min(best, other.ns);
    evidence["relative_score"] = Rounded(score);
    evidence["best_score"] = Rounded(own.ns > 0 ? best / own.ns : 1);
    evidence["individual_score"] = Rounded(individual);
    if (ranks.size() >= 4) evidence["zscore"] = Rounded(z);
    evidence["share"] = Rounded(share);
    evidence["phase"] = kPhaseNames[widest];
    evidence["phase_part"] = Rounded(part);
    evidence["lockstep"] = lockstep;
    evidence["chronic"] = chronic;
    evidence["windows_slow"] = process->windows_slow;
    evidence["windows"] = process->windows_judged;
    nlohmann::ordered_json by_rank = nlohmann::ordered_json::object();
    for (const Own& other : ranks) {
      if (by_rank.size() < kRanksNamed) {
        by_rank[std::to_string(other.process->rank)] = Rounded(other.ns / 1e6);
      }
    }
    evidence["ms_by_rank"] = by_rank;
    incident.evidence = JsonText(evidence);
  }

  /// No record of the process follows. What the others did meanwhile is judged no more.
  void End(Process* process, Reporter* reporter) {
    if (process->open) {
      reporter->Close(process->incident);
      process->open = false;
    }
  }

  const double relative_;
  const double zscore_;
  const double least_;
  const std::int64_t window_;
  const std::int64_t patience_;

  ProcessTable<Process> processes_;
  std::int32_t first_rank_ = -1;
  int ranks_seen_ = 0;  ///< 2: more than one.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kStragglerDesc{
    .name = "Straggler",
    .summary = "One rank is slower than the others, which wait for it in each step.",
    .formula =
        "Of each rank the median of each phase over window_steps TRAIN steps, the first three "
        "apart. own = data wait + forward + backward + optimizer + other, without waits for other "
        "ranks; where the step times of all ranks differ by less than 10 % (lockstep) the backward "
        "of each is taken as that of the rank with the least, for in it the others wait. lost = "
        "own − median of the others. A rank is slow in a window where median of the others / own < "
        "relative_score, lost > least_share of the step, and, from four ranks on, 0.6745 × (own − "
        "median of all) / MAD > zscore, MAD at least 2 % of the median. Told after patience such "
        "windows in a row: medium, high where lost ≥ 30 % of the step. Chronic where its own "
        "fastest window / own ≥ relative_score too, else it became slow. A cause is named where "
        "one phase makes 80 % of the difference. Over after patience windows in which it is not, "
        "and where its process ends. Cost = Σ lost over its slow windows: what all ranks would "
        "gain in time of the run.",
    .how_to_fix =
        "Look at the rank that is named: longer samples, logging or evaluation that only it does, "
        "its loader and storage, other programs and clocks of its machine. Where a machine stays "
        "slow, take it out.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = false,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kOwn,
    .by_default = true,
    .example = "Rank 3 alone writes a log of each sample.",
    .standing = {.theme = Theme::kRanks, .order = 0, .all_ranks = true},
    .severity_by_cost = true,
    .data_mask = DataMask(Datum::kSteps, Datum::kRanks),
};

std::unique_ptr<Rule> MakeStraggler(const Parameters& parameters) {
  return std::make_unique<Straggler>(parameters);
}

}  // namespace telltale::rules::straggler
