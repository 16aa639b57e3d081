// SPDX-License-Identifier: Apache-2.0
// NonFiniteOrigin: where NaN or Inf came from: the first module, step and rank.
//
// A NaN is in every tensor a step after it was in one, so that a later look names them all. Here
// all that was captured in the first bad step is laid in the order in which it was computed: inputs
// and outputs of modules, the loss, gradients from the loss backwards. Inf alone is no defect in
// what modules give (a mask is made of it), nor in gradients that a scaler throws away.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/captures.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::non_finite_origin {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"recovered_captures", 2, "captures", "Captures in a row without any, after which it is over."},
    {"keep", 0, "",
     "Collections whose values are kept at each capture, separated by commas: with inputs the "
     "batch of the bad step can be read afterwards.",
     ""},
};

constexpr CaptureNeed kCaptures[] = {
    {"inputs", "statistics", 10},      {"outputs", "statistics", 10},
    {"activations", "statistics", 10}, {"losses", "statistics", 10},
    {"weights", "statistics", 10},     {"biases", "statistics", 10},
    {"gradients", "statistics", 10},   {"{keep}", "values", 10}};

constexpr std::size_t kNamed = 8;
constexpr std::size_t kRanksNamed = 16;
constexpr std::size_t kMostKept = 64;  ///< Newest tensors with values of a process.
/// Steps that ranks may be apart: beyond, a rank that says nothing is not waited for.
constexpr std::int64_t kMaxApart = 5;
constexpr double kHalfMax = 65504;

/// In the order in which a step computes them.
enum Stage : std::uint8_t { kInput, kWeight, kOutput, kLoss, kGradient, kIgnored };
constexpr std::size_t kStages = 5;

struct Bad {
  Stage stage = kIgnored;
  std::string name;
  std::string dtype;
  std::uint64_t count = 0, nan = 0, inf = 0;
  double max_abs = 0;
  std::int64_t time_ns = 0;
  std::string before;  ///< What was captured last before it in forward, and was finite.
};

/// All that was captured in one step of one process.
struct Case {
  std::int64_t step = -1;
  std::int64_t time_ns = 0;
  std::array<std::size_t, kStages> all{};  ///< Tensors by stage.
  std::vector<Bad> bad;
  std::string forward;  ///< The newest finite one of inputs and outputs.
  double max_abs = 0;   ///< Of what modules gave, finite.
  bool loss_bad = false;
};

class NonFiniteOrigin final : public LoopedRule<NonFiniteOrigin> {
 public:
  explicit NonFiniteOrigin(const Parameters& p)
      : recovered_(std::max<std::int64_t>(1, p.GetInt("recovered_captures"))),
        keep_("," + p.Text("keep") + ",") {
    std::erase(keep_, ' ');
  }

  bool Wants(const Series& series) override {
    if (series.mode != "TRAIN") return false;
    if (series.table == format::TableId::kScalars) {
      return series.name == "loss" || IsFurtherLoss(series.name);
    }
    if (series.table == format::TableId::kTensors) {
      return keep_.find("," + series.collection + ",") != std::string::npos;
    }
    const Stage stage = StageOf(series.collection);
    if (stage == kIgnored) return false;
    if (stages_.size() <= series.id) stages_.resize(series.id + 1, kIgnored);
    stages_[series.id] = stage;
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* statistic = record.As<format::StatisticRow>()) {
      if (record.series < stages_.size()) {
        OnStatistic(*statistic, stages_[record.series], reporter);
      }
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, reporter);
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      OnLoss(*scalar, reporter);
    } else if (const auto* tensor = record.As<format::TensorRow>()) {
      OnTensor(*tensor, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { End(process, reporter); });
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) Complete(&process, false);
    Decide(true, reporter);
    for (auto& [key, process] : processes_) {
      if (process.open) Close(&process, reporter);
    }
  }

  bool has_data() const override { return has_data_; }

 private:
  struct Process : TensorProcess {
    Case now;                 ///< The capture that comes in.
    std::optional<Case> bad;  ///< The first bad one.
    std::int64_t bad_captures = 0;
    std::int64_t good_step = -1;  ///< Newest capture without any, before the bad one.
    std::int64_t good_in_row = 0;
    std::int64_t loss_bad_step = -1;  ///< First step whose loss was not finite.
    std::int64_t loss_bad_last = -1;  ///< The newest one.
    std::deque<std::pair<std::int64_t, std::string>> kept;  ///< Step and name of what has values.
    bool told = false;                                      ///< Its bad case is in an incident.
  };

  static Stage StageOf(std::string_view collection) {
    if (collection == "inputs") return kInput;
    if (collection == "weights" || collection == "biases") return kWeight;
    if (collection == "outputs" || collection == "activations" || collection == "predictions") {
      return kOutput;
    }
    if (collection == "losses") return kLoss;
    if (collection == "gradients") return kGradient;
    return kIgnored;
  }

  template <class Row>
  Process* Find(const Row& row, Reporter* reporter) {
    return processes_.Find(row, writer_, [&](Process* former) { Close(former, reporter); });
  }

  void OnLoss(const format::ScalarRow& row, Reporter* reporter) {
    if (std::isfinite(row.value)) return;
    Process* process = Find(row, reporter);
    if (process == nullptr) return;
    if (process->loss_bad_step < 0) process->loss_bad_step = row.step;
    process->loss_bad_last = std::max(process->loss_bad_last, row.step);
    if (process->now.step == row.step) process->now.loss_bad = true;
  }

  /// Values are written behind the statistics: what comes of the bad step may come when it is told.
  void OnTensor(const format::TensorRow& row, Reporter* reporter) {
    if (row.file.empty()) return;
    Process* process = Find(row, reporter);
    if (process == nullptr) return;
    if (process->bad && process->bad->step != row.step) return;
    process->kept.emplace_back(row.step, std::string(row.name));
    if (process->kept.size() > kMostKept) process->kept.pop_front();
  }

  void OnStatistic(const format::StatisticRow& row, Stage stage, Reporter* reporter) {
    if (row.count == 0) return;
    Process* process = Find(row, reporter);
    if (process == nullptr || row.step < process->now.step) return;
    if (row.step > process->now.step) BeginCapture(process, row);
    ++process->now.all[stage];
    const bool forward = stage == kInput || stage == kOutput;
    const bool bad = row.nan_count + row.inf_count != 0;
    if (bad || forward) Note(&process->now, row, stage, bad);
  }

  // Apart, so that what each row takes is small.
  [[gnu::noinline]] void BeginCapture(Process* process, const format::StatisticRow& row) {
    Complete(process, false);
    Case& now = process->now;
    now = Case();
    now.step = row.step;
    now.time_ns = row.time_ns;
    now.loss_bad = process->loss_bad_last == row.step;
  }

  [[gnu::noinline]] static void Note(Case* of, const format::StatisticRow& row, Stage stage,
                                     bool is_bad) {
    Case& now = *of;
    const bool forward = stage == kInput || stage == kOutput;
    const double max_abs = std::max(std::abs(row.min), std::abs(row.max));
    if (!is_bad) {
      if (!now.bad.empty()) return;
      now.forward = row.name;
      if (std::isfinite(max_abs)) now.max_abs = std::max(now.max_abs, max_abs);
      return;
    }
    Bad bad;
    bad.stage = stage;
    bad.name = row.name;
    bad.dtype = row.dtype;
    bad.count = row.count;
    bad.nan = row.nan_count;
    bad.inf = row.inf_count;
    bad.max_abs = max_abs;
    bad.time_ns = row.time_ns;
    if (forward) bad.before = now.forward;
    now.bad.push_back(std::move(bad));
  }

  void OnStep(const format::StepRow& row, Reporter* reporter) {
    Process* process = Find(row, reporter);
    if (process == nullptr || !process->BeginStep(row)) return;
    process->CountWork(row);
    if (process->now.step >= 0 && process->now.step <= row.step) {
      Complete(process, row.skipped && row.step == process->now.step);
    }
    Decide(false, reporter);
    CloseIfOver(reporter);
  }

  /// All of a capture is there. `skipped`: a gradient scaler threw its gradients away.
  void Complete(Process* process, bool skipped) {
    Case done = std::exchange(process->now, Case());
    // What comes late of this step must not begin it again.
    process->now.step = done.step;
    if (done.step < 0 || done.time_ns == 0) return;
    has_data_ = true;
    process->capture_ns = done.time_ns;
    process->judged_step = done.step;
    if (skipped) {
      std::erase_if(done.bad, [](const Bad& b) { return b.stage == kGradient; });
    }
    // Inf alone in what modules take and give: a mask. In what follows it is a defect.
    const bool serious = std::any_of(done.bad.begin(), done.bad.end(), [&](const Bad& b) {
      return b.nan > 0 || done.loss_bad || (b.stage != kInput && b.stage != kOutput);
    });
    if (!serious) {
      ++process->good_in_row;
      if (!process->bad) process->good_step = done.step;
      return;
    }
    process->good_in_row = 0;
    ++process->bad_captures;
    if (!process->bad) process->bad = std::move(done);
  }

  /// Opens the incident at the rank where it was first, once no other rank can have been earlier.
  void Decide(bool end, Reporter* reporter) {
    for (auto& [key, process] : processes_) {
      if (process.open) {
        Update(&process, reporter);
        return;
      }
    }
    Process* first = nullptr;
    for (auto& [key, process] : processes_) {
      if (!process.bad || process.told) continue;
      if (first == nullptr || Earlier(*process.bad, *first->bad)) first = &process;
    }
    if (first == nullptr) return;
    const std::int64_t step = first->bad->step;
    for (auto& [key, process] : processes_) {
      if (end || process.bad || process.last_step >= step) continue;
      if (first->last_step <= step + kMaxApart) return;
    }
    processes_.Open(first, step, first->bad->time_ns);
    first->cost_from_s = first->worked_s;
    Update(first, reporter);
  }

  static Stage StageOf(const Case& c) {
    Stage least = kIgnored;
    for (const Bad& b : c.bad) least = std::min(least, b.stage);
    return least;
  }
  static bool Earlier(const Case& a, const Case& b) {
    if (a.step != b.step) return a.step < b.step;
    if (StageOf(a) != StageOf(b)) return StageOf(a) < StageOf(b);
    return a.time_ns < b.time_ns;
  }

  void Update(Process* process, Reporter* reporter) {
    std::vector<Process*> ranks;
    for (auto& [key, other] : processes_) {
      if (!other.bad) continue;
      other.told = true;
      ranks.push_back(&other);
    }
    process->Extend(1);
    Describe(process, ranks);
    reporter->Report(process->incident);
  }

  void CloseIfOver(Reporter* reporter) {
    Process* open = nullptr;
    for (auto& [key, process] : processes_) {
      if (process.open) open = &process;
      if (process.bad && process.good_in_row < recovered_) return;
    }
    if (open == nullptr) return;
    open->Extend(1);
    reporter->Recover(open->incident);
    open->open = false;
    for (auto& [key, process] : processes_) {
      process.bad.reset();
      process.told = false;
      process.bad_captures = 0;
      process.loss_bad_step = -1;
      process.kept.clear();
    }
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    Complete(process, false);
    Decide(true, reporter);
    if (process->open) Close(process, reporter);
  }

  void Close(Process* process, Reporter* reporter) {
    process->Extend(1);
    reporter->Close(process->incident);
    process->open = false;
  }

  /// "layer1.0.output.1" → "layer1.0"; "the model" for the root itself.
  static std::string ModuleOf(std::string_view name) {
    for (const std::string_view word : {std::string_view(".output"), std::string_view(".input")}) {
      const auto at = name.rfind(word);
      if (at != std::string_view::npos && at > 0) return std::string(name.substr(0, at));
    }
    if (name.starts_with("output") || name.starts_with("input")) return "the model";
    return std::string(name);
  }

  /// What was computed first. Forward: what came first, but weights that are bad make everything
  /// bad. Backward: the last parameter of the model, for gradients come from there.
  static const Bad& OriginOf(const Case& c) {
    const Bad* origin = nullptr;
    const Bad* weight = nullptr;
    const Bad* gradient = nullptr;
    for (const Bad& b : c.bad) {
      if (b.stage == kWeight) {
        if (weight == nullptr) weight = &b;
      } else if (b.stage == kGradient) {
        gradient = &b;
      } else if (origin == nullptr || (origin->stage == kLoss && b.stage != kLoss)) {
        origin = &b;
      }
    }
    // A batch that is bad is so whatever the weights are.
    if (origin != nullptr && origin->stage == kInput && ModuleOf(origin->name) == "the model") {
      return *origin;
    }
    return weight != nullptr ? *weight : origin != nullptr ? *origin : *gradient;
  }

  void Describe(Process* process, const std::vector<Process*>& ranks) {
    Incident& incident = process->incident;
    const Case& c = *process->bad;
    const Bad& origin = OriginOf(c);
    const bool nan = origin.nan > 0;
    const std::string what = nan ? "NaN" : "Inf";
    const std::string elements =
        fmt::format("{} of {} elements are {}", nan ? origin.nan : origin.inf, origin.count, what);
    const std::string module = ModuleOf(origin.name);
    const std::string good = process->good_step >= 0
                                 ? fmt::format(" All was finite in step {}.", process->good_step)
                                 : std::string();
    const bool half = origin.dtype == "float16" || origin.dtype == "F16";
    const bool forward_seen = c.all[kOutput] > 0;
    incident.severity = Severity::kHigh;
    incident.confidence = 0.95;
    incident.message = fmt::format("{} first in {}", what, module);
    std::string cause;
    if (origin.stage == kInput && module == "the model") {
      incident.message = fmt::format("{} in the batch of step {}", what, c.step);
      cause = fmt::format("The batch of step {} holds it on rank {}: in {} {}.", c.step,
                          process->rank, origin.name, elements);
      incident.advice =
          "Look at the samples of that batch and at what divides or normalizes them; have the "
          "loader refuse samples that are not finite.";
    } else if (origin.stage == kWeight) {
      cause = fmt::format(
          "In step {} on rank {} the weights were lost already: in {} {}; so the step before, or "
          "one since the last capture, made them.{}",
          c.step, process->rank, origin.name, elements, good);
      incident.advice =
          "Capture more often (interval = 1) from the last good step on to see which module was "
          "first; go back to a checkpoint from before it.";
      incident.confidence = 0.7;
    } else if (origin.stage == kInput || origin.stage == kOutput) {
      const std::string place =
          origin.before.empty() ? fmt::format("in {}", module)
          : ModuleOf(origin.before) == module
              ? fmt::format("in {} itself, whose input was finite", module)
          : origin.stage == kInput
              ? fmt::format("between {} and {}, outside of modules", ModuleOf(origin.before),
                            module)
              : fmt::format("in {}, or between {} and it", module, ModuleOf(origin.before));
      cause = fmt::format("In forward of step {} on rank {}, {}: in {} {}{}.{}", c.step,
                          process->rank, place, origin.name, elements,
                          half ? fmt::format("; float16 ends at {}, and the largest before was {}",
                                             Figure(kHalfMax), Figure(std::max(c.max_abs, 0.0)))
                               : std::string(),
                          good);
      incident.advice =
          half ? "Compute this module in float32 or bfloat16 (autocast(enabled=False) around it), "
                 "or scale its input."
               : fmt::format(
                     "Look in {} for a logarithm, division or square root at 0, or an "
                     "exponential of a large number; add an epsilon inside it.",
                     module);
    } else if (origin.stage == kLoss) {
      cause = fmt::format(
          "In step {} on rank {} {}; what the modules gave was finite, so the loss function makes "
          "it.{}",
          c.step, process->rank, elements, good);
      if (!forward_seen) {
        cause = fmt::format("In step {} on rank {} the loss is not finite.{}", c.step,
                            process->rank, good);
        incident.confidence = 0.7;
      }
      incident.advice =
          "Take the logarithm inside the loss (log_softmax, binary_cross_entropy_with_logits), and "
          "add an epsilon to what is divided by.";
    } else {
      cause = fmt::format("In step {} on rank {} backward made it: in {} {}{}.{}", c.step,
                          process->rank, origin.name, elements,
                          forward_seen ? ", while all that the modules gave was finite"
                                       : "; what modules give was not captured",
                          good);
      incident.advice =
          "Look between this parameter and the loss for a square root, norm or power at 0, whose "
          "derivative is infinite; torch.autograd.set_detect_anomaly(True) names the line.";
      incident.confidence = forward_seen ? 0.9 : 0.6;
    }
    const bool applied = c.all[kWeight] > 0 && origin.stage != kWeight;
    if (applied) cause += " The weights were still finite before that step's optimizer.";
    incident.cause = cause;
    nlohmann::ordered_json kept = nlohmann::ordered_json::array();
    for (const auto& [step, name] : process->kept) {
      if (step == c.step) kept.push_back(name);
    }
    if (!kept.empty()) {
      incident.advice +=
          fmt::format(" The values of step {} are kept: {}{}.", c.step,
                      kept.front().get<std::string>(), kept.size() > 1 ? " and others" : "");
    }

    nlohmann::ordered_json evidence;
    evidence["step"] = c.step;
    evidence["rank"] = process->rank;
    evidence["tensor"] = origin.name;
    evidence["module"] = module;
    constexpr std::string_view kStageNames[] = {"input", "weight", "output", "loss", "gradient"};
    evidence["stage"] = kStageNames[origin.stage];
    evidence["dtype"] = origin.dtype;
    evidence["elements"] = origin.count;
    evidence["nan"] = origin.nan;
    evidence["inf"] = origin.inf;
    if (!origin.before.empty()) evidence["finite_before_it"] = origin.before;
    if (process->good_step >= 0) evidence["last_good_capture"] = process->good_step;
    if (!kept.empty()) evidence["kept"] = kept;
    if (process->loss_bad_step >= 0) evidence["loss_not_finite_since"] = process->loss_bad_step;
    evidence["bad_tensors"] = c.bad.size();
    evidence["bad_captures"] = process->bad_captures;
    nlohmann::ordered_json names = nlohmann::ordered_json::array();
    for (const Bad& b : c.bad) {
      if (names.size() < kNamed) names.push_back(b.name);
    }
    evidence["tensors"] = names;
    nlohmann::ordered_json by_rank = nlohmann::ordered_json::object();
    for (const Process* other : ranks) {
      if (by_rank.size() < kRanksNamed) by_rank[std::to_string(other->rank)] = other->bad->step;
    }
    evidence["step_by_rank"] = by_rank;
    incident.evidence = JsonText(evidence);
  }

  const std::int64_t recovered_;
  std::string keep_;  ///< Collections, each between commas.

  std::vector<Stage> stages_;  ///< By series.
  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kNonFiniteOriginDesc{
    .name = "NonFiniteOrigin",
    .summary = "The first module, step and rank in which NaN or Inf appeared.",
    .formula =
        "The first capture that has a NaN, or an Inf in a weight, a gradient or a loss (in what "
        "modules take and give only where the loss is not finite too: masks are made of Inf). "
        "Gradients of a step that a gradient scaler skipped do not count. Of all ranks that with "
        "the smallest step, then the earliest stage, then the earliest time; another rank is "
        "waited for while it is at most 5 steps behind. Within it: a bad batch; bad weights, lost "
        "before; the first bad input or output of a module, in the order of computing; the loss; "
        "the last parameter of the model whose gradient is bad, for backward begins there. Always "
        "high. Over where each rank had recovered_captures captures without any, and where its "
        "process ends. Cost = time of the steps since, less waits for data.",
    .how_to_fix =
        "Look at the module that is named for a logarithm, division, square root or norm at 0, an "
        "exponential of a large number, or float16 beyond 65504. A capture of inputs and outputs "
        "in each step (interval = 1) names the module exactly; keep=inputs keeps the batch.",
    .table_mask =
        store::MaskOf(format::TableId::kStatistics) | store::MaskOf(format::TableId::kSteps) |
        store::MaskOf(format::TableId::kScalars) | store::MaskOf(format::TableId::kTensors) |
        store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kOwn,
    .by_default = false,
    .example = "return torch.log(torch.relu(x))  # 0 where x is below 0",
    .standing = {.theme = Theme::kNumbers, .order = 0, .all_ranks = true},
};

std::unique_ptr<Rule> MakeNonFiniteOrigin(const Parameters& parameters) {
  return std::make_unique<NonFiniteOrigin>(parameters);
}

}  // namespace telltale::rules::non_finite_origin
