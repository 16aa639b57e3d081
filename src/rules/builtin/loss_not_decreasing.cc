// SPDX-License-Identifier: Apache-2.0
// LossNotDecreasing: the training loss is flat, diverges, went up again, or is not a number.
//
// SageMaker Debugger's rule of this name compares two single losses, num_steps apart; on mini-batch
// noise it fires on every healthy run sooner or later. Here blocks of num_steps losses are reduced
// to their median, a block makes progress only where it is better than the best by more than
// diff_percent and the noise, and no progress alone is no defect: the level must be bad too.
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
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/printable.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
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

constexpr std::string_view kNotFound = "cause not found";

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

std::string Number(double value) { return fmt::format("{:.3g}", value); }

/// "TRAIN" of "TRAIN" and of SageMaker Debugger's "ModeKeys.TRAIN"; empty stays empty.
std::string ModeOf(std::string_view text) {
  const auto dot = text.find_last_of('.');
  const std::string_view mode = dot == std::string_view::npos ? text : text.substr(dot + 1);
  constexpr std::string_view kModes[] = {"", "TRAIN", "EVAL", "PREDICT", "GLOBAL"};
  if (std::find(std::begin(kModes), std::end(kModes), mode) == std::end(kModes)) {
    throw std::runtime_error(
        fmt::format("mode: '{}' is none: write TRAIN, EVAL, PREDICT or GLOBAL", Printable(text)));
  }
  return std::string(mode);
}

class LossNotDecreasing final : public Rule {
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
    if (of.table != format::TableId::kScalars) return true;
    Scalar scalar;
    scalar.rate = of.name == "lr";
    scalar.further = of.mode == "TRAIN" && IsFurtherLoss(of.name);
    scalar.instead = mode_.empty() && of.mode == "GLOBAL";
    const bool in_mode = mode_.empty() ? of.mode == "TRAIN" || scalar.instead : of.mode == mode_;
    if (in_mode && !scalar.rate && IsLoss(of)) {
      scalar.loss = of.mode == "TRAIN" ? of.name : fmt::format("{} ({})", of.name, of.mode);
    }
    if (!scalar.rate && !scalar.further && scalar.loss.empty()) return false;
    if (scalars_.size() <= of.id) scalars_.resize(of.id + 1);
    scalars_[of.id] = std::move(scalar);
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* scalar = record.As<format::ScalarRow>()) {
      if (record.series >= scalars_.size() || exits_.Had(*scalar)) return;
      OnScalar(*scalar, scalars_[record.series], reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        OnProcessExit(*event, reporter);
      } else if (event->kind == "optimizer" && !exits_.Had(*event)) {
        OnOptimizer(*event);
      } else if (event->kind == "plan") {
        selection_.OnPlan(event->data);
      }
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN" && !exits_.Had(*step)) OnStep(*step);
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  enum class State { kHealthy, kFlat, kDiverged, kRegained, kNotFinite };

  /// What a series of scalars is to the rule.
  struct Scalar {
    bool rate = false;
    bool further = false;  ///< The loss of a further optimizer.
    bool instead = false;  ///< Judged only where the process has no loss of TRAIN.
    std::string loss;      ///< As findings name it: "loss", "loss (EVAL)"; empty: it is none.
  };

  struct Block {
    double median;
    double spread;  ///< Median absolute deviation of its losses, as a standard deviation.
    double middle;  ///< Mean of its losses without the influence of spikes.
    std::int64_t first_step;
    std::int64_t start_ns;
    double active_s;  ///< Time of the loop until its first loss, without waits for data.
    double lr;
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

    std::vector<double> cells;  ///< Means of cell_width blocks each, over all steps.
    std::size_t cell_width = 1;
    std::optional<Course> course;  ///< CourseOf the cells; none: they have changed.
    double cell_sum = 0;
    std::size_t cell_count = 0;
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
    double best_level = std::numeric_limits<double>::infinity();  ///< Lowest level.
    Fall fall;
    std::int64_t bad_step = -1;  ///< First NaN or Inf of the incident.
    double bad_lr = 0;
  };

  struct Optimizer {
    std::string name;
    double lr = std::numeric_limits<double>::quiet_NaN();
  };

  struct Process {
    std::uint32_t writer = 0;  ///< Of its node.
    std::int32_t rank = 0;
    std::int32_t pid = 0;
    std::uint32_t attempt = 0;
    Optimizer optimizer;
    double waited_s = 0;                   ///< Data wait of its TRAIN steps so far.
    bool several_losses = false;           ///< One for each of several optimizers.
    bool trains = false;                   ///< It has had TRAIN steps or losses.
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
    if (scalar.rate) {
      OnLearningRate(row);
    } else if (!scalar.loss.empty()) {
      if (scalar.instead && ProcessOf(row).trains) return;
      OnLoss(row, scalar.loss, reporter);
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
      }
      auto node = processes_.extract(key);
      Process& old = node.mapped();
      Process& process = ProcessOf(scalar);
      process.series = std::move(old.series);
      for (auto& [name, series] : process.series) series.process = &process;
      process.waited_s += old.waited_s;
      if (process.optimizer.name.empty()) process.optimizer.name = old.optimizer.name;
      if (!std::isfinite(process.optimizer.lr)) process.optimizer.lr = old.optimizer.lr;
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
    process.trains = true;
    if (step.data_wait_ns > 0) process.waited_s += static_cast<double>(step.data_wait_ns) / 1e9;
  }

  void OnLearningRate(const format::ScalarRow& scalar) {
    if (std::isfinite(scalar.value)) ProcessOf(scalar).optimizer.lr = scalar.value;
  }

  void OnOptimizer(const format::EventRow& event) {
    const auto data = ParseJson(event.data);
    if (!data.is_object()) return;
    Optimizer& optimizer = ProcessOf(event).optimizer;
    if (const auto name = data.find("class"); name != data.end() && name->is_string()) {
      optimizer.name = name->get<std::string>();
    }
    if (const auto lr = data.find("lr"); lr != data.end() && lr->is_number()) {
      optimizer.lr = lr->get<double>();
    }
  }

  void OnLoss(const format::ScalarRow& scalar, const std::string& name, Reporter* reporter) {
    Series* const found = SeriesOf(scalar, name, reporter);
    if (found == nullptr) return;
    Series& series = *found;
    has_data_ = true;
    if (scalar.step < series.step) return;  // Late or seen already.
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
    const double lr = series->process->optimizer.lr;
    series->incident.severity = Severity::kHigh;
    series->incident.message = std::isnan(series->bad_value) ? "Loss is NaN" : "Loss is infinite";
    series->incident.confidence = 1;
    series->bad_step = series->step;
    series->bad_lr = lr;
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
    series->lowest = std::min(series->lowest, loss);
    if (series->first.size() < 3) {
      series->first.push_back(loss);
      // One loss is noise, so the median of three; but the second and third may have exploded.
      series->start = std::min(series->first.front(), MedianOf(series->first));
    }
    if (loss > series->peak) {
      series->peak = loss;
      series->peak_step = series->step;
      series->peak_lr = series->process->optimizer.lr;
    }
    if (series->block.empty()) {
      series->building = {
          0, 0, 0, series->step, series->time_ns, Worked(*series), series->process->optimizer.lr};
      if (!series->has_progress) {
        series->progress = series->origin = series->building;
        series->has_progress = true;
      }
    }
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
    series->cell_sum += block.middle;
    if (++series->cell_count < series->cell_width) return;
    series->cells.push_back(series->cell_sum / static_cast<double>(series->cell_count));
    series->cell_sum = 0;
    series->cell_count = 0;
    series->course.reset();
    if (series->cells.size() < kCells) return;
    for (std::size_t i = 0; i < kCells / 2; ++i) {
      series->cells[i] = (series->cells[2 * i] + series->cells[2 * i + 1]) / 2;
    }
    series->cells.resize(kCells / 2);
    series->cell_width *= 2;
  }

  static Course CourseOf(const std::vector<double>& cells) {
    const std::size_t n = cells.size();
    // Theil and Sen: the median of the slopes of all pairs, which an exploded block does not move.
    std::vector<double> slopes;
    slopes.reserve(n * (n - 1) / 2);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = i + 1; k < n; ++k) {
        slopes.push_back((cells[k] - cells[i]) / static_cast<double>(k - i));
      }
    }
    std::vector<double> jumps;
    for (std::size_t i = 1; i < n; ++i) jumps.push_back(std::abs(cells[i] - cells[i - 1]));
    return {MedianOf(std::move(slopes)), MedianOf(std::move(jumps))};
  }

  Fall FallOf(Series* of, const Newest& newest) const {
    const Series& series = *of;
    Fall fall;
    const std::size_t n = series.cells.size();
    if (n < 4) return fall;
    const auto cells = static_cast<double>(n);
    fall.steps = cells * static_cast<double>(series.cell_width * num_steps_);
    if (!of->course) of->course = CourseOf(series.cells);
    fall.drop = -series.course->slope * cells;
    // The noise of a cell: from one cell to the next, and at least what the losses inside say.
    const double between = 1.4826 * series.course->jump / std::sqrt(2.0);
    const double within = 0.8 * Spread(series, newest) /
                          std::sqrt(static_cast<double>(series.cell_width * num_steps_));
    fall.error = std::max(between, within) * std::sqrt(12 / cells);
    return fall;
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
    const double level = newest.level;
    const double noise = Noise(newest);
    series->level = level;
    // Of whole halves: the lowest single block is the noisiest.
    if (series->blocks.size() >= patience_blocks_) {
      series->best_level = std::min(series->best_level, level);
    }
    const double scale = std::abs(series->start);
    const double spread = Spread(*series, newest);
    // The start is a single loss, or the median of three: it has their noise.
    const double tolerance = std::max(flat_ * scale, 2 * spread);
    const bool converged = series->lowest >= 0 && level < converged_below_;
    const bool stale = series->blocks.size() >= patience_blocks_ &&
                       index - series->best_index >= patience_blocks_ - 1;
    const Fall fall = FallOf(series, newest);
    series->fall = fall;
    // Flat is what is too little beyond doubt; noise that hides a drop makes the rule wait.
    const double least = flat_ * scale * std::min(1.0, fall.steps / kSlowestSteps);
    const bool surely_flat =
        series->process->optimizer.lr == 0 || std::max(0.0, fall.drop) + 3 * fall.error < least;
    const bool surely_risen = -fall.drop - 4 * fall.error > increase_ * scale;

    State now = State::kHealthy;
    if (!converged) {
      const double drop = series->start - series->best_level;
      if (level > series->start + std::max(increase_ * scale, surely_risen ? 0 : 4 * spread)) {
        now = State::kDiverged;
      } else if (level >= series->start - tolerance && (series->open || surely_flat)) {
        now = State::kFlat;
      } else if (drop > std::max(tolerance, 5 * noise) && level > series->best_level + drop / 2 &&
                 level > series->best_level + 5 * noise) {
        now = State::kRegained;
      }
    }
    if (!series->open) {
      // What one model gains the other loses: nobody can say from the losses which way it goes.
      const bool opposed = series->opposed >= num_steps_;
      if (now == State::kHealthy || !stale || opposed || WarmsUp(*series)) return;
      series->open = true;
      series->state = now;
      series->incident = Incident();
      series->incident.subject = Subject(*series);
      // A loss that never got below its start has gained nothing since the first step.
      const Block* from =
          series->best >= series->start - tolerance ? &series->origin : &series->progress;
      // What an earlier incident counted is not counted again.
      if (from->start_ns < series->closed.start_ns) from = &series->closed;
      const Block& since = *from;
      series->incident.first_step = since.first_step;
      series->incident.start_ns = since.start_ns;
      series->cost_from_s = since.active_s;
    } else if (now == State::kHealthy) {
      // Hysteresis: over only when the loss goes down again or is clearly lower than it stood.
      if (stale && level > series->start - 2 * tolerance && series->state != State::kRegained) {
        now = series->state;
      } else {
        CloseIncident(series, true, reporter);
        return;
      }
    }
    series->state = now;
    Incident& incident = series->incident;
    const Severity severity = now == State::kRegained ? Severity::kMedium : Severity::kHigh;
    incident.severity = std::max(incident.severity, severity);
    incident.message = now == State::kFlat       ? "Loss does not decrease"
                       : now == State::kDiverged ? "Loss does not decrease: it diverges"
                                                 : "Loss lost over half of its drop";
    // How many noise widths the level is from what a healthy loss would show, capped.
    incident.confidence =
        std::min(0.95, 0.6 + 0.05 * static_cast<double>(index - series->best_index) /
                                 static_cast<double>(patience_blocks_) * 3);
    Describe(series);
    reporter->Report(incident);
  }

  /// `over`: not only because no loss follows.
  void CloseIncident(Series* series, bool over, Reporter* reporter) {
    Describe(series);
    over ? reporter->Recover(series->incident) : reporter->Close(series->incident);
    series->open = false;
    series->state = State::kHealthy;
    series->closed = {0, 0, 0, series->step, series->time_ns, Worked(*series), 0};
  }

  /// A rising learning rate: a flat loss is not yet a defect.
  bool WarmsUp(const Series& series) const {
    const double then = series.blocks.front().lr;
    const double now = series.blocks.back().lr;
    return std::isfinite(then) && std::isfinite(now) && now > 1.01 * then;
  }

  void Describe(Series* series) {
    Incident& incident = series->incident;
    const Optimizer& optimizer = series->process->optimizer;
    incident.last_step = std::max(incident.first_step, series->step);
    incident.end_ns = std::max(incident.start_ns, series->time_ns);
    incident.cost_seconds = std::max(0.0, Worked(*series) - series->cost_from_s);
    Explain(series, optimizer);

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
      evidence["kind"] = series->state == State::kDiverged   ? "diverged"
                         : series->state == State::kRegained ? "regained"
                                                             : "flat";
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
    put("learning_rate", optimizer.lr);
    if (!optimizer.name.empty()) evidence["optimizer"] = optimizer.name;
    incident.evidence = JsonText(evidence);
  }

  void Explain(Series* series, const Optimizer& optimizer) {
    Incident& incident = series->incident;
    const bool bad = series->state == State::kNotFinite;
    const double lr = bad ? series->bad_lr : optimizer.lr;
    const double start = series->start;
    const bool rose = !series->first.empty() && start > 0 && series->peak > 2 * start;
    if (std::isfinite(lr) && lr == 0) {
      incident.cause = "The learning rate is 0: the weights do not change.";
      incident.advice = "Set a learning rate above 0, or look at the scheduler.";
      return;
    }
    const std::string at = std::isfinite(lr) ? fmt::format(" at learning rate {}", Number(lr)) : "";
    const std::string lower = std::isfinite(lr)
                                  ? fmt::format("Lower the learning rate from {} to {}", Number(lr),
                                                Number(Suggested(optimizer.name, lr)))
                                  : std::string("Lower the learning rate tenfold");
    if (rose) {
      incident.cause =
          fmt::format("The loss rose from {} to {} by step {}{}: the steps are too large.",
                      Number(start), Number(series->peak), series->peak_step,
                      std::isfinite(series->peak_lr)
                          ? fmt::format(" at learning rate {}", Number(series->peak_lr))
                          : "");
      incident.advice = lower + " and look whether the first 100 steps go down; clip gradients.";
    } else if (!bad && std::isfinite(lr) && lr * 5 < Usual(optimizer.name)) {
      incident.cause = fmt::format(
          "Probably the learning rate: {} is {:.0f} times below the {} that {} "
          "usually starts from.",
          Number(lr), Usual(optimizer.name) / lr, Number(Usual(optimizer.name)),
          optimizer.name.empty() ? "an optimizer" : optimizer.name);
      incident.advice = fmt::format(
          "Raise the learning rate from {} to {} and look whether the first "
          "100 steps go down.",
          Number(lr), Number(Usual(optimizer.name)));
    } else if (std::isfinite(lr) && lr > Usual(optimizer.name)) {
      incident.cause = fmt::format(
          "Probably the learning rate: {} is {:.0f} times the {} that {} usually starts from.",
          Number(lr), lr / Usual(optimizer.name), Number(Usual(optimizer.name)),
          optimizer.name.empty() ? "an optimizer" : optimizer.name);
      incident.advice = lower + " and look whether the first 100 steps go down.";
    } else {
      incident.cause = std::string(kNotFound);
      incident.advice =
          bad ? "Look at the batch of that step and at divisions and logarithms in the loss" + at +
                    "."
              : lower +
                    "; if it stays flat, check the labels, and that the optimizer holds the "
                    "model's parameters.";
    }
  }

  /// Where people usually start; only for the words of a cause, never for the decision.
  static double Usual(std::string_view optimizer) {
    if (optimizer.find("Adam") != std::string_view::npos ||
        optimizer.find("RMSprop") != std::string_view::npos) {
      return 1e-3;
    }
    return 0.1;
  }
  static double Suggested(std::string_view optimizer, double lr) {
    return lr > Usual(optimizer) ? Usual(optimizer) : lr / 10;
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
};

}  // namespace

const RuleDesc kLossNotDecreasingDesc{
    .name = "LossNotDecreasing",
    .summary = "The training loss is flat, diverges, went up again, or is not a number.",
    .formula =
        "Losses are the scalars `loss` that the framework reports, of TRAIN steps, and what "
        "collection_names and tensor_regex name besides; of evaluations with mode=EVAL. (SageMaker "
        "Debugger looks at EVAL first, where a loss that rises is Overfit's.) Losses of a step are "
        "averaged, num_steps of them make a block, a block is its median m. Each process has its "
        "own series; where a rank had losses in one process alone, its process of the next attempt "
        "goes on with them. σ = scaled median absolute deviation of the losses in a block, noise = "
        "1.25 × σ / √num_steps. start = the smaller of the first loss of the run and the median of "
        "its first three. A block is progress where best − m > max(diff_percent × |best|, noise), "
        "or where the newer half of the last patience_steps is lower than the older half by more "
        "than max(diff_percent × |m|, 2 × noise). level = median of the newer half. drop = fall of "
        "the line through all blocks since the start (median of the slopes of all pairs), error = "
        "its standard error = noise of a block × √(12 / blocks). With no progress for "
        "patience_steps: high where the loss is flat, level ≥ start − max(flat_percent × |start|, "
        "2 × σ) and max(0, drop) + 3 × error < flat_percent × |start| × min(1, steps / 200), so a "
        "noisy loss is judged only after as many steps as the drop needs to show; high and called "
        "diverging where level > start + max(increase_threshold_percent × |start|, 4 × σ), without "
        "the σ where drop + 4 × error < −increase_threshold_percent × |start|; medium where the "
        "loss rose again by more than half of its drop, level > lowest level + max((start − lowest "
        "level) / 2, 5 × noise). Never where 0 ≤ level < converged_below, nor while the learning "
        "rate rises (warm-up), nor where several optimizers have each a loss of its own (a GAN: "
        "what one model gains the other loses). NaN and Inf are high at once and are over after a "
        "block of finite losses. Over when the level is below start by twice the tolerance, or by "
        "less and falling; and where its process ends. Cost = time of the training loop since the "
        "last progress (since the first step where the loss never got below its start), less the "
        "waits for data, which are InputBound's.",
    .how_to_fix =
        "Lower the learning rate and look at the first 100 steps. If the loss stays flat at any "
        "learning rate: check that the optimizer holds the model's parameters, that labels belong "
        "to inputs, and that gradients reach the first layers. A training that goes on from a "
        "checkpoint where it had converged is flat from its first step, and no loss by itself says "
        "which of the two it is: record it as the next attempt of the earlier run (-o), whose "
        "start is the measure.",
    .table_mask = store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kEvents) | store::MaskOf(format::TableId::kSteps),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kModel,
    .standing = {.theme = Theme::kLearning, .order = 9},
};

std::unique_ptr<Rule> MakeLossNotDecreasing(const Parameters& parameters) {
  return std::make_unique<LossNotDecreasing>(parameters);
}

}  // namespace telltale::rules::loss_not_decreasing
