// SPDX-License-Identifier: Apache-2.0
// LossNotDecreasing: the training loss is flat, diverges, went up again, is not a number, or stands
// although it had fallen.
//
// SageMaker Debugger's rule of this name compares two single losses, num_steps apart; on mini-batch
// noise it fires on every healthy run sooner or later. Here blocks of num_steps losses are reduced
// to their median, a block makes progress only where it is better than the best by more than
// diff_percent and the noise, and no progress alone is no defect: the level must be bad too, or
// something must keep the weights from moving. A loss that fell and has stood for as long since is
// told as such, low. Why it is so: loss_cause.h.
//
// A series is the losses of one name in one process, for a run may hold several processes of one
// rank (a sweep). Its incident ends with its process. The process of the next attempt goes on with
// the series where it is plain whose it is.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/printable.h"
#include "rules/builtin/captured_parameters.h"
#include "rules/builtin/event_data.h"
#include "rules/builtin/loss_cause.h"
#include "rules/builtin/loss_fits.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/builtin/reinforcement.h"
#include "rules/builtin/training_facts.h"
#include "rules/groups.h"
#include "rules/missing.h"
#include "rules/registry.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules::loss_not_decreasing {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"collection_names", 0, "",
     "Collections of the capture plan whose scalars are losses too, separated by commas.", ""},
    {"tensor_regex", 0, "", "Names of scalars that are losses too.", ""},
    {"use_losses_collection", 1, "",
     "1: the loss that the framework reports; 0: only what collection_names and tensor_regex name, "
     "without both every scalar whose name holds \"loss\"."},
    {"num_steps", 10, "steps", "Losses in a block."},
    {"diff_percent", 0.1, "%",
     "A block is progress where its median is lower than the best by more than this and than the "
     "noise."},
    {"increase_threshold_percent", 5, "%",
     "A loss diverges where it stands above its start by more than this and than the noise."},
    {"mode", 0, "",
     "TRAIN, EVAL, PREDICT or GLOBAL: whose losses; empty: those of TRAIN, or of GLOBAL where a "
     "process has none of TRAIN.",
     ""},
    {"patience_steps", 100, "steps", "Steps without progress before anything is said."},
    {"flat_percent", 2, "%",
     "A loss is flat where it fell by less than this since the start, beyond doubt; where the "
     "noise "
     "hides a drop of this size, nothing is said yet."},
    {"converged_below", 0.01, "",
     "A loss between 0 and this has converged, whatever it did before."},
};

/// The mean, each value held within two scaled deviations of the median: nearly as exact as the
/// mean, and a spike does not move it.
double Middle(const std::vector<double>& values, double median, double spread) {
  double sum = 0;
  for (double v : values) {
    sum += spread > 0 ? std::clamp(v, median - 2 * spread, median + 2 * spread) : median;
  }
  return sum / static_cast<double>(values.size());
}

/// Cells of the history; when full, pairs are merged.
constexpr std::size_t kCells = 48;
/// A healthy loss falls by flat_percent in this many steps at least.
constexpr double kSlowestSteps = 200;
/// Steps at chance level before it is said, and from which it is grave.
constexpr std::int64_t kChanceSteps = 200;
/// And samples of each class: a model of many classes leaves it later.
constexpr std::int64_t kChanceSamples = 500;
constexpr std::int64_t kUnknownBatch = 16;  ///< Samples of a step where nobody says.
constexpr std::int64_t kLongChanceSteps = 500;
/// A loss has left chance level where it is below this share of it, or falls for certain.
constexpr double kBelowChance = 0.9;
constexpr double kSureErrors = 3;
/// Of a loss near chance level, the part of it that is a fall at all.
constexpr double kLeastLeft = 0.003;
/// Steps that a loss stands at least before that is said.
constexpr std::int64_t kStandingSteps = 500;
/// Of boosting so many blocks without progress are enough where all trees together are next to
/// nothing: rounds see all rows, so there is no noise to wait for.
constexpr std::size_t kBoostingBlocks = 4;

/// "TRAIN" of "TRAIN" and of SageMaker Debugger's "ModeKeys.TRAIN"; empty stays empty.
std::string ModeOf(std::string_view text) {
  const auto dot = text.find_last_of('.');
  const std::string_view mode = dot == std::string_view::npos ? text : text.substr(dot + 1);
  constexpr std::string_view kModes[] = {"", "TRAIN", "EVAL", "PREDICT", "GLOBAL"};
  if (std::find(std::begin(kModes), std::end(kModes), mode) == std::end(kModes)) {
    throw std::runtime_error(fmt::format(
        "mode: '{}' is no mode of a step: write TRAIN, EVAL, PREDICT or GLOBAL", Printable(text)));
  }
  return std::string(mode);
}

class LossNotDecreasing final : public LoopedRule<LossNotDecreasing> {
 public:
  explicit LossNotDecreasing(const Parameters& p)
      : selection_(p.Text("collection_names"), p.Text("tensor_regex")),
        losses_too_(p.Get("use_losses_collection") != 0),
        mode_(ModeOf(p.Text("mode"))),
        num_steps_(static_cast<std::size_t>(std::max<std::int64_t>(2, p.GetInt("num_steps")))),
        diff_(p.Get("diff_percent") / 100),
        increase_(std::max(0.0, p.Get("increase_threshold_percent")) / 100),
        patience_blocks_(std::max<std::size_t>(
            4, static_cast<std::size_t>(std::max<std::int64_t>(0, p.GetInt("patience_steps"))) /
                   num_steps_)),
        flat_(p.Get("flat_percent") / 100),
        converged_below_(p.Get("converged_below")) {}

  bool Wants(const rules::Series& of) override {
    if (of.table == format::TableId::kStatistics) return CapturedParameters::Wants(of);
    if (of.table != format::TableId::kScalars) return true;
    Scalar scalar;
    scalar.rate = of.mode != "EVAL" && LearningRates::IsRate(of.name);
    scalar.skipped = of.mode == "TRAIN" && of.name == "optimizer.skipped";
    scalar.reinforcement = ReinforcementSigns::IsName(of.name);
    scalar.further = of.mode == "TRAIN" && IsFurtherLoss(of.name);
    scalar.evaluation = of.mode == "EVAL" && of.name == "loss";
    scalar.instead = mode_.empty() && of.mode == "GLOBAL";
    const bool in_mode = mode_.empty() ? of.mode == "TRAIN" || scalar.instead : of.mode == mode_;
    if (in_mode && !scalar.rate && IsLoss(of)) {
      scalar.loss = of.mode == "TRAIN" ? of.name : fmt::format("{} ({})", of.name, of.mode);
    }
    if (!scalar.any()) return false;
    if (scalars_.size() <= of.id) scalars_.resize(of.id + 1);
    scalars_[of.id] = std::move(scalar);
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* statistic = record.As<format::StatisticRow>()) {
      if (!exits_.Had(*statistic)) ProcessOf(*statistic).captured.See(*statistic, record.series);
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      if (record.series >= scalars_.size() || exits_.Had(*scalar)) return;
      OnScalar(*scalar, scalars_[record.series], reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      OnEvent(*event, reporter);
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (!exits_.Had(*step)) OnStep(*step);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return !reinforcement_; }
  std::string Missing() const override {
    if (!applies()) return std::string(ReinforcementSigns::kMissing);
    return mode_ == "EVAL" && evaluated_ && !has_data_ ? std::string(kEvaluationWithoutLoss)
                                                       : std::string();
  }
  std::string Summary() const override {
    if (!reinforcement_) return {};
    nlohmann::ordered_json summary;
    summary["not_judged"] = ReinforcementSigns::kWord;
    return JsonText(summary);
  }

 private:
  enum class State { kHealthy, kFlat, kDiverged, kRegained, kNotFinite, kStill, kChance, kStood };

  /// What a series of scalars is to the rule.
  struct Scalar {
    bool rate = false;
    bool skipped = false;        ///< The optimizer did not take the step.
    bool reinforcement = false;  ///< Its name is one of reinforcement learning.
    bool evaluation = false;     ///< The loss of evaluations.
    bool further = false;        ///< The loss of a further optimizer.
    bool instead = false;        ///< Judged only where the process has no loss of TRAIN.
    std::string loss;            ///< As findings name it: "loss", "loss (EVAL)"; empty: it is none.

    bool any() const {
      return rate || skipped || reinforcement || evaluation || further || !loss.empty();
    }
  };

  struct Block {
    double median;
    double spread;  ///< Median absolute deviation of its losses, as a standard deviation.
    double middle;  ///< Mean of its losses without the influence of spikes.
    std::int64_t first_step;
    std::int64_t start_ns;
    double active_s;  ///< Time of the loop until its first loss, without waits for data.
    double lr;        ///< The largest learning rate in it.
  };

  /// A mean of blocks, and where the first of them began.
  struct Cell {
    double mean = 0;
    TrainingMoment from;
  };

  /// How far the loss fell over all steps seen.
  struct Fall {
    double drop = 0;
    double error = std::numeric_limits<double>::infinity();  ///< Its standard error.
    double steps = 0;
  };

  /// What means over all steps say of each other.
  struct Course {
    double slope = 0;  ///< From one to the next.
    double jump = 0;   ///< Without its sign, from one to the next.
  };

  /// What the kept blocks say of the present.
  struct Newest {
    double spread = 0;  ///< Median of their spreads.
    double level = 0;   ///< Median of the newer half of them: where the loss is now.
  };

  struct Process;

  /// The losses of one name in one process.
  struct Series {
    Process* process = nullptr;
    std::string name;
    // The step whose losses (of its micro-steps) come in now.
    std::int64_t step = -1;
    double sum = 0;
    int count = 0;
    bool not_finite = false;
    double bad_value = 0;
    std::int64_t time_ns = 0;
    double active_s = 0;

    std::vector<double> first;  ///< The first three losses of the run.
    double start = 0;           ///< Level at the start; valid once `first` is full.
    double peak = -std::numeric_limits<double>::infinity();
    std::int64_t peak_step = -1;
    double peak_lr = 0;
    double lowest = std::numeric_limits<double>::infinity();

    std::vector<Cell> cells;  ///< Of cell_width blocks each, over all steps.
    std::size_t cell_width = 1;
    std::optional<Course> course;  ///< CourseOf the cells; none: they have changed.
    double cell_sum = 0;
    std::size_t cell_count = 0;
    TrainingMoment cell_from;
    double spread_sum = 0;  ///< Of all blocks.

    std::vector<double> block;
    Block building{};
    std::deque<Block> blocks;  ///< The newest patience_blocks.
    std::uint64_t blocks_seen = 0;
    double best = std::numeric_limits<double>::infinity();  ///< Lowest median of a block.
    std::uint64_t best_index = 0;                           ///< Which block that was.
    Block origin{};                                         ///< The first of all.
    Block progress{};                                       ///< Where the loss last made progress.
    Block closed{};  ///< Where the last incident ended: what it counted is not counted again.
    bool has_progress = false;

    std::int64_t finite_in_row = 0;
    std::size_t opposed = 0;  ///< Steps while other optimizers had losses of their own (a GAN).
    State state = State::kHealthy;
    bool open = false;
    Incident incident;
    double cost_from_s = 0;
    double level = 0;
    double newest = std::numeric_limits<double>::quiet_NaN();     ///< The newest finite loss.
    double best_level = std::numeric_limits<double>::infinity();  ///< Lowest level.
    Fall fall;
    std::int64_t bad_step = -1;            ///< First NaN or Inf of the incident.
    std::optional<TrainingMoment> chance;  ///< Since when the loss has stood at chance level.
    double chance_samples = 0;             ///< Of the process by then.
    double stood_level = 0;                ///< Where it stood when that was said.
    bool at_chance = false;                ///< Chance level was given as the cause.
    std::optional<TrainingMoment> fell;    ///< Of chance level that is over: since when it falls.
    FitBorder border;
    StepCount steps;
  };

  struct Process {
    std::uint32_t writer = 0;  ///< Of its node.
    std::int32_t rank = 0;
    std::int32_t pid = 0;
    std::uint32_t attempt = 0;
    TrainingFacts facts;
    LearningRates rates;
    CapturedParameters captured;
    FitEvents fits;
    ReinforcementSigns reinforcement;
    double waited_s = 0;                   ///< Data wait of its TRAIN steps so far.
    double samples = 0;                    ///< Of its TRAIN steps so far.
    bool several_losses = false;           ///< One for each of several optimizers.
    bool trains = false;                   ///< It has had TRAIN steps or losses.
    bool all_rounds = false;               ///< Its boosting has ended by itself: no round follows.
    std::map<std::string, Series> series;  ///< By name.
  };
  /// Rank, pid, and 0 while it lives, else a number of its own: its pid may be given to another.
  using ProcessKey = std::tuple<std::int32_t, std::int32_t, std::uint64_t>;

  struct Rank {
    std::uint32_t attempt = 0;    ///< The newest that has losses.
    std::set<std::string> ended;  ///< Names of the losses that its forgotten processes had.
  };

  /// The living process of a row's rank and pid, made where it is new.
  template <class Row>
  Process& ProcessOf(const Row& row) {
    Process& process = processes_[{row.rank, row.pid, 0}];
    if (process.attempt == 0) {
      process.writer = writer_;
      process.rank = row.rank;
      process.pid = row.pid;
      process.attempt = row.attempt;
    }
    return process;
  }

  void OnScalar(const format::ScalarRow& row, const Scalar& scalar, Reporter* reporter) {
    if (scalar.further) ProcessOf(row).several_losses = true;
    if (scalar.reinforcement) ProcessOf(row).reinforcement.SeeName();
    if (scalar.evaluation) ProcessOf(row).reinforcement.SeeEvaluation();
    if (scalar.rate) {
      OnLearningRate(row);
    } else if (scalar.skipped) {
      // The optimizer did not train with the loss of this step.
      ProcessOf(row).fits.SeeSkipped(row.step);
      for (auto& [name, series] : ProcessOf(row).series) {
        if (series.step != row.step) continue;
        series.sum = 0;
        series.count = 0;
      }
    } else if (!scalar.loss.empty()) {
      if (scalar.instead && ProcessOf(row).trains) return;
      OnLoss(row, scalar.loss, reporter);
    }
  }

  void OnEvent(const format::EventRow& event, Reporter* reporter) {
    if (event.kind == "process.exit") {
      OnProcessExit(event, reporter);
    } else if (event.kind == "plan") {
      selection_.OnPlan(event.data);
    } else if (!exits_.Had(event)) {
      if (TrainingFacts::Wants(event.kind)) ProcessOf(event).facts.See(event);
      if (ReinforcementSigns::IsEvent(event.kind)) ProcessOf(event).reinforcement.SeeEvent();
      if (FitEvents::Wants(event.kind) && ProcessOf(event).fits.See(event)) {
        ProcessOf(event).rates.Renew();
      }
      if (event.kind == "boosting.start") ProcessOf(event).all_rounds = false;
      if (event.kind == "boosting.model") OnBoostingModel(event, reporter);
    }
  }

  /// Where the boosting has ended by itself, all its rounds are known.
  void OnBoostingModel(const format::EventRow& event, Reporter* reporter) {
    const auto data = ParseJson(event.data);
    if (!data.is_object() || !FlagIn(data, "final")) return;
    Process& process = ProcessOf(event);
    process.all_rounds = true;
    for (auto& [name, series] : process.series) {
      FinishStep(&series, reporter);
      if (!series.open || SeverityOf(series) <= series.incident.severity) continue;
      series.incident.severity = SeverityOf(series);
      Describe(&series);
      reporter->Report(series.incident);
    }
  }

  void OnProcessExit(const format::EventRow& event, Reporter* reporter) {
    // Its rank may have changed since its last row.
    Retire(event.pid, event.attempt, event.time_ns, std::nullopt, reporter);
  }

  /// No row follows of the process with this pid, but for those under the rank `but`.
  void Retire(std::int32_t pid, std::uint32_t attempt, std::int64_t time_ns,
              std::optional<std::int32_t> but, Reporter* reporter) {
    std::vector<ProcessKey> over;
    for (const auto& [key, process] : processes_) {
      const bool living = std::get<2>(key) == 0;
      if (living && process.pid == pid && process.writer == writer_ && process.attempt <= attempt &&
          process.rank != but) {
        over.push_back(key);
      }
    }
    for (const ProcessKey& key : over) {
      const auto at = processes_.find(key);
      const std::int32_t rank = at->second.rank;
      exits_.Add(rank, pid, attempt, time_ns);
      End(&at->second, reporter);
      // The next attempt may go on with its series.
      auto node = processes_.extract(at);
      node.key() = ProcessKey{rank, pid, ++ended_};
      processes_.insert(std::move(node));  // Where it is in memory stays.
      ForgetEnded(rank);
    }
  }

  /// Series are of use after the end of their process only where no other of its rank had losses:
  /// of several nobody can say which one the next attempt goes on with. Of those that ended the
  /// names alone stay.
  void ForgetEnded(std::int32_t rank) {
    Rank& of_rank = ranks_[rank];
    const auto with_losses =
        std::count_if(processes_.begin(), processes_.end(), [&](const auto& entry) {
          return entry.second.rank == rank && !entry.second.series.empty();
        });
    const bool several = with_losses > 1 || !of_rank.ended.empty();
    for (auto at = processes_.begin(); at != processes_.end();) {
      const auto& [key, process] = *at;
      const bool ended = std::get<2>(key) != 0;
      if (process.rank != rank || !ended || (!several && !process.series.empty())) {
        ++at;
        continue;
      }
      for (const auto& [name, series] : process.series) of_rank.ended.insert(name);
      at = processes_.erase(at);
    }
  }

  /// The series of a loss, or none where its attempt is over.
  Series* SeriesOf(const format::ScalarRow& scalar, const std::string& name, Reporter* reporter) {
    std::uint32_t& newest = ranks_[scalar.rank].attempt;
    if (scalar.attempt < newest) return nullptr;
    if (scalar.attempt > newest) {
      newest = scalar.attempt;
      BeginAttempt(scalar, reporter);
    }
    Process& process = ProcessOf(scalar);
    process.trains = process.trains || scalar.mode == "TRAIN";
    const auto [at, added] = process.series.try_emplace(name);
    Series& series = at->second;
    if (!added) return &series;
    series.process = &process;
    series.name = name;
    // What it was under another rank (a process group is known late) is over.
    Retire(scalar.pid, scalar.attempt, scalar.time_ns, scalar.rank, reporter);
    ForgetEnded(scalar.rank);
    return &series;
  }

  /// The first loss of a rank in an attempt. Where one process alone had losses before, this one
  /// goes on from its checkpoint; of several nobody can say which one it was.
  void BeginAttempt(const format::ScalarRow& scalar, Reporter* reporter) {
    std::vector<ProcessKey> before;
    const bool forgotten = !std::exchange(ranks_[scalar.rank].ended, {}).empty();
    for (const auto& [key, process] : processes_) {
      if (process.rank == scalar.rank && process.attempt < scalar.attempt &&
          !process.series.empty()) {
        before.push_back(key);
      }
    }
    for (const ProcessKey& key : before) {
      if (before.size() > 1 || forgotten) {
        End(&processes_[key], reporter);
        processes_.erase(key);
        continue;
      }
      for (auto& [name, series] : processes_[key].series) {
        FinishStep(&series, reporter);
        // The start of the first attempt stays the measure, but a block never spans two attempts.
        series.block.clear();
        series.step = -1;
        series.steps.Forget();
      }
      auto node = processes_.extract(key);
      Process& old = node.mapped();
      Process& process = ProcessOf(scalar);
      process.series = std::move(old.series);
      for (auto& [name, series] : process.series) series.process = &process;
      process.waited_s += old.waited_s;
      if (process.facts.optimizer.empty()) process.facts.optimizer = old.facts.optimizer;
      if (!std::isfinite(process.rates.now())) process.rates = old.rates;
    }
  }

  /// No loss follows: closes what is open.
  void End(Process* process, Reporter* reporter) {
    for (auto& [name, series] : process->series) {
      FinishStep(&series, reporter);
      if (series.open) CloseIncident(&series, false, reporter);
    }
  }

  /// Names the process only where its rank alone does not: those that have ended count too.
  std::string Subject(const Series& series) const {
    const Process& process = *series.process;
    std::string subject = fmt::format("rank {}", process.rank);
    const auto of_rank =
        std::count_if(processes_.begin(), processes_.end(), [&](const auto& entry) {
          return entry.second.rank == process.rank && entry.second.series.contains(series.name);
        });
    const auto ranked = ranks_.find(process.rank);
    const bool alone =
        of_rank == 1 && (ranked == ranks_.end() || !ranked->second.ended.contains(series.name));
    if (!alone) subject += fmt::format(", pid {}", process.pid);
    if (series.name != "loss") subject += ", " + series.name;
    return subject;
  }

  /// Time of the loop so far, less the waits for data: those are InputBound's, so that the costs of
  /// findings may be added.
  static double Worked(const Series& series) { return series.active_s - series.process->waited_s; }

  bool IsLoss(const rules::Series& of) const {
    if (losses_too_ && of.name == "loss") return true;
    if (!selection_.empty()) return selection_.Has(of);
    return !losses_too_ && of.name.find("loss") != std::string::npos;
  }

  void OnStep(const format::StepRow& step) {
    Process& process = ProcessOf(step);
    process.reinforcement.SeeStep(step);
    evaluated_ = evaluated_ || step.mode == "EVAL";
    if (step.mode != "TRAIN") return;
    process.trains = true;
    process.fits.SeeStep(step.step);
    process.samples += static_cast<double>(step.batch_size > 0 ? step.batch_size : kUnknownBatch);
    if (step.data_wait_ns > 0) process.waited_s += static_cast<double>(step.data_wait_ns) / 1e9;
  }

  void OnLearningRate(const format::ScalarRow& scalar) {
    Process& process = ProcessOf(scalar);
    TrainingMoment now{scalar.step, scalar.time_ns, 0};
    for (const auto& [name, series] : process.series) {
      now.worked_s = std::max(now.worked_s, Worked(series));
    }
    process.rates.See(scalar.name, scalar.value, now);
  }

  void OnLoss(const format::ScalarRow& scalar, const std::string& name, Reporter* reporter) {
    Series* const found = SeriesOf(scalar, name, reporter);
    if (found == nullptr) return;
    Series& series = *found;
    has_data_ = true;
    if (series.steps.Restarts(scalar.step, scalar.time_ns)) {
      FinishStep(&series, reporter);
      series.process->fits.SeeRestart();
    } else if (scalar.step < series.step) {
      return;  // Late or seen already.
    }
    if (scalar.step != series.step || scalar.step < 0) {
      FinishStep(&series, reporter);
      if (series.step >= 0 && series.time_ns > 0 && scalar.time_ns > series.time_ns) {
        series.active_s += static_cast<double>(scalar.time_ns - series.time_ns) / 1e9;
      }
      series.step = scalar.step;
    }
    series.time_ns = scalar.time_ns;
    if (!std::isfinite(scalar.value)) {
      series.not_finite = true;
      series.bad_value = scalar.value;
      OnNotFinite(&series, reporter);  // At once, not when the step is complete.
    } else {
      series.sum += scalar.value;
      ++series.count;
    }
  }

  void OnNotFinite(Series* series, Reporter* reporter) {
    series->finite_in_row = 0;
    const bool known = series->open && series->state == State::kNotFinite;
    // Another defect than a flat loss: an incident of its own.
    if (series->open && !known) CloseIncident(series, true, reporter);
    series->state = State::kNotFinite;
    if (!series->open) {
      series->open = true;
      series->incident = Incident();
      series->incident.subject = Subject(*series);
      series->incident.first_step = series->step;
      series->incident.start_ns = series->time_ns;
      series->cost_from_s = Worked(*series);
    }
    if (known) return;
    series->incident.severity = Severity::kHigh;
    series->incident.confidence = 1;
    series->bad_step = series->step;
    Describe(series);
    reporter->Report(series->incident);
  }

  /// All losses of a step are there: their mean is its loss.
  void FinishStep(Series* series, Reporter* reporter) {
    const bool complete = series->count > 0 && !series->not_finite;
    const double loss = complete ? series->sum / series->count : 0;
    const bool any = series->count > 0 || series->not_finite;
    if (series->process->several_losses) ++series->opposed;
    series->sum = 0;
    series->count = 0;
    series->not_finite = false;
    if (!any || !complete) return;
    ++series->finite_in_row;
    AddLoss(series, loss, reporter);
  }

  void AddLoss(Series* series, double loss, Reporter* reporter) {
    series->process->reinforcement.SeeLoss(loss);
    if (series->border.Begins(series->process->fits, loss)) BeginFit(series, reporter);
    series->lowest = std::min(series->lowest, loss);
    series->newest = loss;
    if (series->first.size() < 3) {
      series->first.push_back(loss);
      // One loss is noise, so the median of three; but the second and third may have exploded.
      series->start = std::min(series->first.front(), MedianOf(series->first));
    }
    if (loss > series->peak) {
      series->peak = loss;
      series->peak_step = series->step;
      series->peak_lr = series->process->rates.now();
    }
    if (series->block.empty()) {
      series->building = {
          0, 0, 0, series->step, series->time_ns, Worked(*series), series->process->rates.now()};
      if (!series->has_progress) {
        series->progress = series->origin = series->building;
        series->has_progress = true;
      }
    }
    const double lr = series->process->rates.now();
    if (!(series->building.lr >= lr)) series->building.lr = lr;
    series->block.push_back(loss);
    if (series->block.size() < num_steps_) return;
    Block block = series->building;
    block.median = MedianOf(series->block);
    std::vector<double> deviations;
    for (double v : series->block) deviations.push_back(std::abs(v - block.median));
    block.spread = 1.4826 * MedianOf(std::move(deviations));
    block.middle = Middle(series->block, block.median, block.spread);
    series->block.clear();
    AddBlock(series, block, reporter);
  }

  /// Another training begins in the process: what the loss did before says nothing of it.
  void BeginFit(Series* series, Reporter* reporter) {
    if (series->open) CloseIncident(series, true, reporter);
    Series begun;
    begun.process = series->process;
    begun.name = std::move(series->name);
    begun.step = series->step;
    begun.time_ns = series->time_ns;
    begun.active_s = series->active_s;
    begun.border = series->border;
    begun.steps = series->steps;
    begun.closed = series->closed;
    *series = std::move(begun);
  }

  void AddBlock(Series* series, const Block& block, Reporter* reporter) {
    series->blocks.push_back(block);
    if (series->blocks.size() > patience_blocks_) series->blocks.pop_front();
    const std::uint64_t index = series->blocks_seen++;
    AddCell(series, block);
    const Newest newest = NewestOf(*series);
    const double noise = Noise(newest);
    if (!(series->best < std::numeric_limits<double>::infinity()) ||
        series->best - block.median > std::max(diff_ * std::abs(series->best), noise)) {
      series->best = block.median;
      series->best_index = index;
      series->progress = block;
    } else if (Trend(*series, newest) > std::max(diff_ * std::abs(block.median), 2 * noise)) {
      // Better than its own recent past, though not than the best: recovering counts.
      series->best_index = index;
      series->progress = block;
    }
    Judge(series, newest, index, reporter);
  }

  static void AddCell(Series* series, const Block& block) {
    series->spread_sum += block.spread;
    if (series->cell_count == 0) {
      series->cell_from = {block.first_step, block.start_ns, block.active_s};
    }
    series->cell_sum += block.middle;
    if (++series->cell_count < series->cell_width) return;
    series->cells.push_back(
        {series->cell_sum / static_cast<double>(series->cell_count), series->cell_from});
    series->cell_sum = 0;
    series->cell_count = 0;
    series->course.reset();
    if (series->cells.size() < kCells) return;
    for (std::size_t i = 0; i < kCells / 2; ++i) {
      const Cell& first = series->cells[2 * i];
      series->cells[i] = {(first.mean + series->cells[2 * i + 1].mean) / 2, first.from};
    }
    series->cells.resize(kCells / 2);
    series->cell_width *= 2;
  }

  static Course CourseOf(std::span<const Cell> cells) {
    const std::size_t n = cells.size();
    // Theil and Sen: the median of the slopes of all pairs, which an exploded block does not move.
    std::vector<double> slopes;
    slopes.reserve(n * (n - 1) / 2);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = i + 1; k < n; ++k) {
        slopes.push_back((cells[k].mean - cells[i].mean) / static_cast<double>(k - i));
      }
    }
    std::vector<double> jumps;
    for (std::size_t i = 1; i < n; ++i)
      jumps.push_back(std::abs(cells[i].mean - cells[i - 1].mean));
    return {MedianOf(std::move(slopes)), MedianOf(std::move(jumps))};
  }

  Fall FallOf(Series* of, const Newest& newest) const {
    if (of->cells.size() < 4) return {};
    if (!of->course) of->course = CourseOf(of->cells);
    return FallOver(*of, newest, *of->course, of->cells.size());
  }

  /// Of the newest `n` cells, whose course is given.
  Fall FallOver(const Series& series, const Newest& newest, const Course& course,
                std::size_t n) const {
    Fall fall;
    const auto cells = static_cast<double>(n);
    fall.steps = cells * static_cast<double>(series.cell_width * num_steps_);
    fall.drop = -course.slope * cells;
    // The noise of a cell: from one cell to the next, and at least what the losses inside say.
    const double between = 1.4826 * course.jump / std::sqrt(2.0);
    fall.error = std::max(between, CellNoise(series, newest)) * std::sqrt(12 / cells);
    return fall;
  }

  /// Standard error of a cell, as the spread of the losses inside says it.
  double CellNoise(const Series& series, const Newest& newest) const {
    return 0.8 * Spread(series, newest) /
           std::sqrt(static_cast<double>(series.cell_width * num_steps_));
  }

  /// A change-point test: a cumulative sum over the cells from `first` on, of what each is above
  /// the quarter of the way from `from` to `to`. The change is where it left 0 for the last time.
  static std::optional<TrainingMoment> ChangeOf(std::span<const Cell> cells, double from,
                                                double to) {
    const double border = from + (to - from) / 4;
    const double sign = to > from ? 1 : -1;
    double sum = 0;
    std::optional<TrainingMoment> change;
    for (const Cell& cell : cells) {
      const double next = std::max(0.0, sum + sign * (cell.mean - border));
      if (sum == 0 && next > 0) change = cell.from;
      if (next == 0) change.reset();
      sum = next;
    }
    return change;
  }

  /// Where the loss came down to where it stands now: the same test, from the newest cell
  /// backwards.
  static std::size_t StandsFrom(const Series& series, double level, double noise) {
    const std::vector<Cell>& cells = series.cells;
    double sum = 0;
    std::size_t from = cells.size();
    for (std::size_t i = cells.size(); i-- > 0;) {
      sum = std::max(0.0, sum + (cells[i].mean - level) / noise - 0.5);
      if (sum == 0) from = i;
      // Above for certain from here on back.
      if (sum > 8) break;
    }
    return from;
  }

  /// Standard deviation of single losses, over all blocks; where some exploded, the newest.
  static double Spread(const Series& series, const Newest& newest) {
    if (series.blocks_seen == 0) return 0;
    const double mean = series.spread_sum / static_cast<double>(series.blocks_seen);
    // Not what exploded at the start.
    return mean > 3 * newest.spread ? newest.spread : mean;
  }

  static Newest NewestOf(const Series& series) {
    std::vector<double> spreads;
    std::vector<double> newer;
    spreads.reserve(series.blocks.size());
    newer.reserve(series.blocks.size());
    const std::size_t half = series.blocks.size() / 2;
    for (const Block& block : series.blocks) {
      if (spreads.size() >= half) newer.push_back(block.median);
      spreads.push_back(block.spread);
    }
    return {MedianOf(std::move(spreads)), MedianOf(std::move(newer))};
  }

  /// Standard error of a block's median, from the spread inside blocks.
  double Noise(const Newest& newest) const {
    return 1.2533 * newest.spread / std::sqrt(static_cast<double>(num_steps_));
  }

  /// How much lower the newer half of the kept blocks is than the older half.
  double Trend(const Series& series, const Newest& newest) const {
    if (series.blocks.size() < patience_blocks_) return 0;
    std::vector<double> older;
    for (std::size_t i = 0; i < series.blocks.size() / 2; ++i) {
      older.push_back(series.blocks[i].median);
    }
    return MedianOf(std::move(older)) - newest.level;
  }

  void Judge(Series* series, const Newest& newest, std::uint64_t index, Reporter* reporter) {
    if (series->state == State::kNotFinite) {
      // Over when a whole block was finite; what the level says is judged from the next block on.
      if (series->finite_in_row < static_cast<std::int64_t>(num_steps_)) return;
      CloseIncident(series, true, reporter);
      return;
    }
    if (series->process->reinforcement.Found()) {
      reinforcement_ = true;
      if (series->open) CloseIncident(series, true, reporter);
      return;
    }
    const double level = newest.level;
    series->level = level;
    // Of whole halves: the lowest single block is the noisiest.
    if (series->blocks.size() >= patience_blocks_) {
      series->best_level = std::min(series->best_level, level);
    }
    const double scale = std::abs(series->start);
    const double spread = Spread(*series, newest);
    // The start is a single loss, or the median of three: it has their noise.
    const double tolerance = std::max(flat_ * scale, 2 * spread);
    series->fall = FallOf(series, newest);
    const std::size_t patience = WholeTrees(*series) < kFewTrees
                                     ? std::min(kBoostingBlocks, patience_blocks_)
                                     : patience_blocks_;
    const bool stale =
        series->blocks.size() >= patience && index - series->best_index >= patience - 1;
    NoteChance(series);
    const State level_says = StateOfLevel(*series, newest, tolerance);
    if (!series->open) {
      // What one model gains the other loses: nobody can say from the losses which way it goes.
      if (series->opposed >= num_steps_ || WarmsUp(*series)) return;
      State found = stale ? level_says : State::kHealthy;
      if (found == State::kHealthy) found = StateOfStanding(*series, newest, stale);
      if (found == State::kHealthy) return;
      Open(series, found, newest, tolerance);
    } else if (IsStanding(series->state)) {
      const bool worse = stale && level_says != State::kHealthy && series->state != State::kStill;
      // Flat at chance level is the same trouble, not another one.
      const bool same = worse && level_says == State::kFlat && series->state == State::kChance;
      if (!same && (worse || !Stands(*series, newest))) {
        if (!worse && series->at_chance) series->fell = FellFrom(*series, newest);
        CloseIncident(series, true, reporter);
        return;
      }
    } else if (level_says != State::kHealthy) {
      series->state = level_says;
    } else if (!(stale && level > series->start - 2 * tolerance &&
                 series->state != State::kRegained) &&
               !(series->state == State::kFlat && StaysFlat(*series, newest))) {
      // Hysteresis: over only when the loss goes down again or is clearly lower than it stood.
      if (series->at_chance) series->fell = FellFrom(*series, newest);
      CloseIncident(series, true, reporter);
      return;
    }
    Incident& incident = series->incident;
    incident.severity = std::max(incident.severity, SeverityOf(*series));
    // How many noise widths the level is from what a healthy loss would show, capped.
    incident.confidence =
        std::min(0.95, 0.6 + 0.05 * static_cast<double>(index - series->best_index) /
                                 static_cast<double>(patience_blocks_) * 3);
    if (IsStanding(series->state)) incident.confidence = 0.95;
    Describe(series);
    reporter->Report(incident);
  }

  static bool IsStanding(State state) {
    return state == State::kStill || state == State::kChance || state == State::kStood;
  }

  /// What the level says beside the start and the lowest level.
  State StateOfLevel(const Series& series, const Newest& newest, double tolerance) const {
    const double level = newest.level;
    const double noise = Noise(newest);
    const double scale = std::abs(series.start);
    const double spread = Spread(series, newest);
    const Fall& fall = series.fall;
    if (series.lowest >= 0 && level < converged_below_) return State::kHealthy;
    // Flat is what is too little beyond doubt; noise that hides a drop makes the rule wait.
    const double least = flat_ * scale * std::min(1.0, fall.steps / kSlowestSteps);
    const bool surely_flat = (RateOf(series) == 0 && !series.process->captured.MovedSince(0)) ||
                             std::max(0.0, fall.drop) + 3 * fall.error < least;
    const bool surely_risen = -fall.drop - 4 * fall.error > increase_ * scale;
    const double drop = series.start - series.best_level;
    if (level > series.start + std::max(increase_ * scale, surely_risen ? 0 : 4 * spread)) {
      return State::kDiverged;
    }
    if (level >= series.start - tolerance && (series.open || surely_flat)) return State::kFlat;
    if (drop > std::max(tolerance, 5 * noise) && level > series.best_level + drop / 2 &&
        level > series.best_level + 5 * noise) {
      return State::kRegained;
    }
    return State::kHealthy;
  }

  /// The largest learning rate of the kept blocks; NaN: not known.
  static double RateOf(const Series& series) {
    double rate = std::nan("");
    for (const Block& block : series.blocks) {
      if (!(rate >= block.lr)) rate = block.lr;
    }
    return rate;
  }

  /// Of boosting: rounds times learning rate, what whole trees its rounds have added up to. NaN of
  /// any other training, and where the rate is not known.
  static double WholeTrees(const Series& series) {
    if (series.process->fits.certain() == 0) return std::nan("");
    return RateOf(series) * series.fall.steps;
  }

  /// The loss fell, or is not what it was; it stands all the same.
  State StateOfStanding(const Series& series, const Newest& newest, bool stale) const {
    if (StillSince(series, stale)) return State::kStill;
    if (ChanceLasts(series)) return State::kChance;
    if (StoodFrom(series, newest, stale)) return State::kStood;
    return State::kHealthy;
  }

  /// The learning rate is spent, or each capture of every weight is the same.
  static bool NothingMoves(const Series& series) {
    const LearningRates& rates = series.process->rates;
    const CapturedParameters& captured = series.process->captured;
    return (rates.spent() && !captured.MovedSince(rates.spent()->step)) || captured.still();
  }

  /// While nothing moves the weights one lower block is no progress. A loss that falls for certain
  /// all the same is: then something else moves them.
  bool StaysFlat(const Series& series, const Newest& newest) const {
    if (!NothingMoves(series)) return false;
    const LearningRates& rates = series.process->rates;
    const std::int64_t since =
        rates.spent() ? rates.spent()->step : series.process->captured.still()->from;
    const auto window = std::max(static_cast<std::int64_t>(kSlowestSteps),
                                 static_cast<std::int64_t>(4 * series.cell_width * num_steps_));
    return series.step - since <= window || !Falls(series, newest, kSureErrors);
  }

  bool Stands(const Series& series, const Newest& newest) const {
    switch (series.state) {
      case State::kStill:
        // A block that was lower by chance does not move the weights.
        return NothingMoves(series);
      case State::kChance:
        return newest.level > kBelowChance * ChanceLoss(series.process->facts.loss->classes) &&
               !Falls(series, newest, kSureErrors);
      default:
        return newest.level > series.stood_level -
                                  std::max(flat_ * std::abs(series.stood_level), 5 * Noise(newest));
    }
  }

  /// Since when nothing moves the weights: the learning rate is spent, or each capture of every
  /// weight is the same. A schedule may end so: it has to last for a tenth of the steps before it.
  std::optional<TrainingMoment> StillSince(const Series& series, bool stale) const {
    if (series.lowest >= 0 && series.level < converged_below_) return std::nullopt;
    const LearningRates& rates = series.process->rates;
    const auto lasts = [&](std::int64_t since) {
      const std::int64_t steps = series.step - since;
      const auto patience = static_cast<std::int64_t>(patience_blocks_ * num_steps_);
      return steps >= std::max(patience, since / 10);
    };
    // Captures say more than a rate: another group of the optimizer may have a rate that was not
    // recorded.
    if (rates.spent() && stale && lasts(rates.spent()->step) &&
        !series.process->captured.MovedSince(rates.spent()->step)) {
      TrainingMoment since = *rates.spent();
      if (since.worked_s == 0) since.worked_s = MomentAt(series, since.step).worked_s;
      return since;
    }
    const auto still = series.process->captured.still();
    if (still && stale && lasts(still->from)) return MomentAt(series, still->from);
    return std::nullopt;
  }

  /// Where the cell began that a step is of.
  static TrainingMoment MomentAt(const Series& series, std::int64_t step) {
    TrainingMoment found{series.origin.first_step, series.origin.start_ns, series.origin.active_s};
    for (const Cell& cell : series.cells) {
      if (cell.from.step <= step) found = cell.from;
    }
    for (const Block& block : series.blocks) {
      if (block.first_step <= step && block.first_step >= found.step) {
        found = {block.first_step, block.start_ns, block.active_s};
      }
    }
    return found;
  }

  /// Where the loss began to leave the level at which it stood.
  static TrainingMoment FellFrom(const Series& series, const Newest& newest) {
    std::span<const Cell> cells(series.cells);
    while (!cells.empty() && cells.front().from.step < series.incident.first_step) {
      cells = cells.subspan(1);
    }
    const TrainingMoment now{series.step, series.time_ns, Worked(series)};
    return ChangeOf(cells, series.stood_level, newest.level).value_or(now);
  }

  void NoteChance(Series* series) const {
    const auto& loss = series->process->facts.loss;
    const bool near = loss && loss->plain && loss->classes >= 2 &&
                      std::abs(series->level / ChanceLoss(loss->classes) - 1) <= kNearChance;
    if (!near) {
      series->chance.reset();
    } else if (!series->chance) {
      const Block& block = series->blocks.front();
      series->chance = {block.first_step, block.start_ns, block.active_s};
      series->chance_samples = series->process->samples;
    }
  }

  /// Whether the loss has fallen over the last kSlowestSteps as a healthy one does at least, with
  /// so many standard errors to spare.
  bool Falls(const Series& series, const Newest& newest, double errors) const {
    const std::size_t width = series.cell_width * num_steps_;
    const std::size_t wanted = static_cast<std::size_t>(kSlowestSteps) / width;
    const std::size_t n = std::min(std::max<std::size_t>(wanted, 4), series.cells.size());
    if (n < 4) return false;
    const std::span<const Cell> last = std::span(series.cells).last(n);
    const Fall fall = FallOver(series, newest, CourseOf(last), n);
    const double least = flat_ * std::abs(newest.level) * fall.steps / kSlowestSteps;
    return fall.drop - errors * fall.error > least;
  }

  /// It falls slowly, but beyond doubt: over the newer half of the steps near chance level. In the
  /// older one a loss that stays there may have come down to it.
  bool Creeps(const Series& series) const {
    std::size_t since = 0;
    while (since < series.cells.size() && series.cells[since].from.step < series.chance->step) {
      ++since;
    }
    const std::size_t n = (series.cells.size() - since) / 2;
    if (n < 4) return false;
    const Newest newest = NewestOf(series);
    const std::span<const Cell> half = std::span(series.cells).last(n);
    const Fall fall = FallOver(series, newest, CourseOf(half), n);
    return fall.drop > 4 * fall.error && fall.drop > kLeastLeft * std::abs(newest.level);
  }

  bool ChanceLasts(const Series& series) const {
    if (!series.chance || series.step - series.chance->step < kChanceSteps) return false;
    // A model of many classes is near chance level for long while it learns.
    if (Falls(series, NewestOf(series), 0)) return false;
    return series.process->samples - series.chance_samples >=
           static_cast<double>(kChanceSamples * series.process->facts.loss->classes);
  }

  /// The cell from which on the loss has stood, for as long as all before it.
  std::optional<TrainingMoment> StoodFrom(const Series& series, const Newest& newest,
                                          bool stale) const {
    // Looked at when a cell was added.
    if (!stale || series.cells.size() < 12 || series.cell_count != 0) return std::nullopt;
    const double noise = std::max(CellNoise(series, newest), 1e-3 * std::abs(newest.level));
    const std::size_t at = StandsFrom(series, newest.level, std::max(noise, 1e-12));
    if (at + 6 > series.cells.size()) return std::nullopt;
    const std::int64_t since = series.cells[at].from.step;
    const std::int64_t before = since - series.origin.first_step;
    if (series.step - since < std::max(kStandingSteps, before)) return std::nullopt;
    const std::span<const Cell> after = std::span(series.cells).subspan(at);
    const Fall fall = FallOver(series, newest, CourseOf(after), after.size());
    if (std::max(0.0, fall.drop) + 3 * fall.error >= flat_ * std::abs(newest.level)) {
      return std::nullopt;
    }
    return series.cells[at].from;
  }

  void Open(Series* series, State state, const Newest& newest, double tolerance) {
    series->open = true;
    series->state = state;
    series->incident = Incident();
    series->incident.subject = Subject(*series);
    TrainingMoment since = SinceOf(*series, state, newest, tolerance);
    // What an earlier incident counted is not counted again.
    if (since.ns < series->closed.start_ns) {
      since = {series->closed.first_step, series->closed.start_ns, series->closed.active_s};
    }
    series->stood_level = newest.level;
    series->incident.first_step = since.step;
    series->incident.start_ns = since.ns;
    series->cost_from_s = since.worked_s;
  }

  TrainingMoment SinceOf(const Series& series, State state, const Newest& newest,
                         double tolerance) const {
    const TrainingMoment origin{series.origin.first_step, series.origin.start_ns,
                                series.origin.active_s};
    const TrainingMoment progress{series.progress.first_step, series.progress.start_ns,
                                  series.progress.active_s};
    if (state == State::kStill) return *StillSince(series, true);
    if (state == State::kChance) return *series.chance;
    if (state == State::kStood) return *StoodFrom(series, newest, true);
    // A loss that never got below its start has gained nothing since the first step.
    const bool fell = series.best < series.start - tolerance;
    if (state == State::kFlat && !fell) return origin;
    const auto lowest =
        std::min_element(series.cells.begin(), series.cells.end(),
                         [](const Cell& a, const Cell& b) { return a.mean < b.mean; });
    if (!fell) return ChangeOf(series.cells, series.start, newest.level).value_or(origin);
    if (lowest == series.cells.end()) return progress;
    return ChangeOf({lowest, series.cells.end()}, lowest->mean, newest.level).value_or(progress);
  }

  Severity SeverityOf(const Series& series) const {
    const std::int64_t since = series.incident.first_step;
    switch (series.state) {
      case State::kStood:
        return Severity::kLow;
      case State::kRegained:
        return Severity::kMedium;
      case State::kStill:
        return series.step - since >= since ? Severity::kHigh : Severity::kMedium;
      case State::kChance:
        return series.step - since >= kLongChanceSteps ? Severity::kHigh : Severity::kMedium;
      case State::kFlat:
        // Too small a share of each tree: thousands of rounds may be meant to follow.
        return WholeTrees(series) < kFewTrees && !series.process->all_rounds ? Severity::kMedium
                                                                             : Severity::kHigh;
      default:
        return Severity::kHigh;
    }
  }

  /// `over`: not only because no loss follows.
  void CloseIncident(Series* series, bool over, Reporter* reporter) {
    const Incident before = series->incident;
    Describe(series);
    if (over && series->state == State::kFlat) {
      // Why it was flat is not what the loss does now.
      series->incident.cause = before.cause;
      series->incident.advice = before.advice;
      series->incident.evidence = before.evidence;
    }
    if (series->fell) TellOfTheFall(series);
    series->fell.reset();
    series->at_chance = false;
    over ? reporter->Recover(series->incident) : reporter->Close(series->incident);
    series->open = false;
    series->state = State::kHealthy;
    series->closed = {0, 0, 0, series->step, series->time_ns, Worked(*series), 0};
  }

  /// A loss that has left chance level by itself is learned: what stood there was no defect.
  static void TellOfTheFall(Series* series) {
    Incident& incident = series->incident;
    const std::int64_t classes = series->process->facts.loss->classes;
    const std::int64_t until = std::max(incident.first_step, series->fell->step);
    incident.severity = Severity::kInfo;
    incident.last_step = until;
    incident.end_ns = std::max(incident.start_ns, series->fell->ns);
    incident.cost_seconds = 0;
    incident.message =
        fmt::format("Loss stood at chance level until step {}, and falls since", until);
    incident.cause = fmt::format(
        "The loss stood at {} from step {} to step {}; guessing gives ln({}) = {} for {} classes. "
        "By "
        "step {} it had fallen to {}: the model learns.",
        Figure(series->stood_level), incident.first_step, until, classes,
        Figure(ChanceLoss(classes)), classes, series->step, Figure(series->level));
    incident.advice =
        "Nothing needs to be done. Where the start is to be shorter, try a larger learning rate or "
        "another initialization.";
  }

  /// A rising learning rate: a flat loss is not yet a defect.
  bool WarmsUp(const Series& series) const {
    const double then = series.blocks.front().lr;
    const double now = series.blocks.back().lr;
    return std::isfinite(then) && std::isfinite(now) && now > 1.01 * then;
  }

  static std::string MessageOf(const Series& series) {
    switch (series.state) {
      case State::kNotFinite:
        return std::isnan(series.bad_value) ? "Loss is NaN" : "Loss is infinite";
      case State::kDiverged:
        return "Loss does not decrease: it diverges";
      case State::kRegained:
        return "Loss lost over half of its drop";
      case State::kStill:
        if (!series.process->rates.spent()) return "Loss stands: the weights do not move";
        return series.process->rates.now() == 0 ? "Loss stands: the learning rate is 0"
                                                : "Loss stands: the learning rate is next to 0";
      case State::kChance:
        return "Loss stands at chance level";
      case State::kStood:
        return fmt::format("Loss has stood at {} since step {}", Figure(series.stood_level),
                           series.incident.first_step);
      default:
        return "Loss does not decrease";
    }
  }

  static const char* KindOf(State state) {
    switch (state) {
      case State::kDiverged:
        return "diverged";
      case State::kRegained:
        return "regained";
      case State::kStill:
        return "still";
      case State::kChance:
        return "chance";
      case State::kStood:
        return "stood";
      default:
        return "flat";
    }
  }

  static LossTrouble TroubleOf(State state) {
    switch (state) {
      case State::kNotFinite:
        return LossTrouble::kNotFinite;
      case State::kDiverged:
        return LossTrouble::kDiverged;
      case State::kRegained:
        return LossTrouble::kRegained;
      case State::kStill:
        return LossTrouble::kStill;
      case State::kChance:
        return LossTrouble::kChance;
      case State::kStood:
        return LossTrouble::kStood;
      default:
        return LossTrouble::kFlat;
    }
  }

  void Describe(Series* series) {
    Incident& incident = series->incident;
    const Process& process = *series->process;
    incident.last_step = std::max(incident.first_step, series->step);
    incident.end_ns = std::max(incident.start_ns, series->time_ns);
    incident.cost_seconds = std::max(0.0, Worked(*series) - series->cost_from_s);
    incident.message = MessageOf(*series);
    LossView view;
    view.trouble = TroubleOf(series->state);
    view.first = series->first.empty() ? std::nan("") : series->first.front();
    view.start = series->start;
    view.level = series->level;
    view.newest = series->newest;
    view.peak = series->peak;
    view.peak_step = series->peak_step;
    view.peak_rate = series->peak_lr;
    view.rate = RateOf(*series);
    view.drop = series->fall.drop;
    view.drop_error = series->fall.error;
    view.steps = series->fall.steps;
    view.whole_trees = WholeTrees(*series);
    view.all_rounds = process.all_rounds;
    view.since = incident.first_step;
    view.bad_step = series->bad_step;
    view.creeps = series->chance && Creeps(*series);
    LossCause why = ExplainLoss(view, process.facts, process.rates, process.captured);
    series->at_chance = why.chance;
    incident.cause = std::move(why.cause);
    incident.advice = std::move(why.advice);

    nlohmann::ordered_json evidence;
    const auto put = [&](const char* key, double value) {
      if (std::isfinite(value))
        evidence[key] = std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
    };
    if (series->state == State::kNotFinite) {
      evidence["value"] =
          std::isnan(series->bad_value) ? "NaN" : (series->bad_value > 0 ? "Inf" : "-Inf");
      evidence["step"] = series->bad_step;
    } else {
      evidence["kind"] = KindOf(series->state);
      put("level", series->level);
      evidence["steps_without_progress"] =
          series->blocks_seen == 0 ? 0
                                   : (series->blocks_seen - 1 - series->best_index) * num_steps_;
      put("noise", Noise(NewestOf(*series)));
      put("drop", series->fall.drop);
      put("drop_error", series->fall.error);
    }
    put("start", series->first.empty() ? std::nan("") : series->start);
    put("best", series->best);
    put("peak", series->peak);
    if (series->peak_step >= 0) evidence["peak_step"] = series->peak_step;
    put("learning_rate", process.rates.now());
    put("largest_learning_rate", process.rates.largest());
    if (series->chance) put("chance_level", ChanceLoss(process.facts.loss->classes));
    if (!process.facts.optimizer.empty()) evidence["optimizer"] = process.facts.optimizer;
    if (!why.explained_by.empty()) evidence[kExplainedBy] = why.explained_by;
    if (!why.explains.empty()) evidence[kExplains] = why.explains;
    incident.evidence = JsonText(evidence);
  }

  TensorSelection selection_;
  const bool losses_too_;
  const std::string mode_;
  const std::size_t num_steps_;
  const double diff_;
  const double increase_;
  const std::size_t patience_blocks_;
  const double flat_;
  const double converged_below_;

  std::vector<Scalar> scalars_;  ///< By series.
  std::map<ProcessKey, Process> processes_;
  std::uint64_t ended_ = 0;  ///< Processes that have ended.
  EndedProcesses exits_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  std::map<std::int32_t, Rank> ranks_;
  bool has_data_ = false;
  bool evaluated_ = false;      ///< There were steps of evaluations.
  bool reinforcement_ = false;  ///< A process has its signs: its losses are not judged.
};

}  // namespace

const RuleDesc kLossNotDecreasingDesc{
    .name = "LossNotDecreasing",
    .summary = "The training loss is flat, stands, diverges, went up again, or is not a number.",
    .formula =
        "Losses are the scalars `loss` that the framework reports, of TRAIN steps, and what "
        "collection_names and tensor_regex name besides; of evaluations with mode=EVAL. (SageMaker "
        "Debugger looks at EVAL first, where a loss that rises is Overfit's.) Losses of a step are "
        "averaged, those of a step that the optimizer skipped are left out, num_steps of them make "
        "a block, a block is its median m. Each process has its own series; where a rank had "
        "losses in one process alone, its process of the next attempt goes on with them. σ = "
        "scaled median absolute deviation of the losses in a block, noise = 1.25 × σ / √num_steps. "
        "start = the smaller of the first loss of the run and the median of its first three. A "
        "block is progress where best − m > max(diff_percent × |best|, noise), or where the newer "
        "half of the last patience_steps is lower than the older half by more than "
        "max(diff_percent × |m|, 2 × noise). level = median of the newer half. drop = fall of the "
        "line through all blocks since the start (median of the slopes of all pairs), error = its "
        "standard error = noise of a block × √(12 / blocks). With no progress for patience_steps: "
        "high where the loss is flat, level ≥ start − max(flat_percent × |start|, 2 × σ) and "
        "max(0, drop) + 3 × error < flat_percent × |start| × min(1, steps / 200), so a noisy loss "
        "is judged only after as many steps as the drop needs to show; high and called diverging "
        "where level > start + max(increase_threshold_percent × |start|, 4 × σ), without the σ "
        "where drop + 4 × error < −increase_threshold_percent × |start|; medium where the loss "
        "rose again by more than half of its drop, level > lowest level + max((start − lowest "
        "level) / 2, 5 × noise). Of boosting 4 blocks without progress are enough where rounds × "
        "learning rate < 0.5: medium, and high once the boosting has ended by itself, since until "
        "then rounds may follow. Of a loss that had fallen: medium, high once it has lasted as "
        "long "
        "as all before it, where nothing moves the weights for patience_steps and a tenth of the "
        "steps before: the largest learning rate of all optimizers and parameter groups is 0 or "
        "below 1/10,000 of the largest of the run, and no capture shows that a weight moved since; "
        "or all captures of all weights are the same; medium, high after 500 steps, where the loss "
        "stands within 3 % of ln(classes), what guessing gives, for 200 steps and 500 samples of "
        "each class and has not fallen by flat_percent in the last 200 steps (info once it falls "
        "by "
        "more than that and three standard errors, or is below 0.9 × ln(classes)); low where it "
        "has stood for 500 steps and for as long as all before, drop "
        "since then + 3 × error < flat_percent × level. Never where 0 ≤ level < converged_below, "
        "nor while the learning rate rises (warm-up), nor where several optimizers have each a "
        "loss of its own (a GAN: what one model gains the other loses), nor in reinforcement "
        "learning (Divergence says by what it is known). Another fit in the process begins anew "
        "(likewise; also where steps begin again and the loss is back above the middle between "
        "its start and its best). NaN and Inf are high at once and are over after a block of "
        "finite losses. "
        "Over when the level is below start by twice the tolerance, or by less and falling; and "
        "where its process ends. It began at the first step where the loss never got below its "
        "start and does not stand above it; else where a cumulative sum of the means, less a "
        "quarter of the way to where they stand now, left 0 for the last time; where the learning "
        "rate was spent or the weights stood still, there. Cost = time of the training loop since "
        "then, less the waits for data, which are InputBound's. The cause comes from what is known "
        "of this training alone: its loop, its learning rates, captures, the course of the loss; "
        "where that says nothing, neither does the rule.",
    .how_to_fix =
        "Do what the finding says. If it says that no cause was found: check that the optimizer "
        "holds the model's parameters, that labels belong "
        "to inputs, and that gradients reach the first layers. A training that goes on from a "
        "checkpoint where it had converged is flat from its first step, and no loss by itself says "
        "which of the two it is: record it as the next attempt of the earlier run (-o), whose "
        "start is the measure.",
    .table_mask = store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kEvents) | store::MaskOf(format::TableId::kSteps) |
                  store::MaskOf(format::TableId::kStatistics),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kModel,
    .standing = {.theme = Theme::kLearning, .order = 9},
    .data_mask = DataMask(Datum::kLoss),
};

std::unique_ptr<Rule> MakeLossNotDecreasing(const Parameters& parameters) {
  return std::make_unique<LossNotDecreasing>(parameters);
}

}  // namespace telltale::rules::loss_not_decreasing
