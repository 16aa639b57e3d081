// SPDX-License-Identifier: Apache-2.0
// ReplicaDivergence: parameters that should be the same on each rank are not.
//
// Replicas add the same gradients to the same weights, so their statistics at one step are the same
// numbers. That two ranks have a parameter of one name and size does not make them replicas (tensor
// parallelism): they must have been equal once, or have had equal gradients.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/registry.h"

namespace telltale::rules::replica_divergence {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"tolerance", 1e-6, "",
     "Relative difference of norms and means below which two are the same: machines of two kinds "
     "round differently."},
    {"patience", 2, "captures", "Captures in a row that must differ before anything is said."},
};

constexpr CaptureNeed kCaptures[] = {{"weights", "statistics", 100},
                                     {"biases", "statistics", 100},
                                     {"gradients", "statistics", 100}};

constexpr std::size_t kKept = 4;  ///< Captures of a tensor on one rank that wait for the others.
constexpr std::size_t kNamed = 8;
constexpr std::string_view kGradient = "gradient/";

struct Sample {
  std::int64_t step = -1;
  std::int64_t time_ns = 0;
  std::uint64_t count = 0;
  double l2 = 0;
  double mean = 0;
  double min = 0;
  double max = 0;
};

/// The newest captures of a tensor on one rank.
struct History {
  std::int32_t rank = 0;
  std::size_t count = 0;
  std::array<Sample, kKept> samples{};

  std::int64_t newest_step() const { return count == 0 ? -1 : samples[(count - 1) % kKept].step; }
  void Add(const Sample& sample) { samples[count++ % kKept] = sample; }
  /// Null where it has none of that step.
  const Sample* At(std::int64_t step) const {
    for (const Sample& sample : samples) {
      if (sample.step == step) return &sample;
    }
    return nullptr;
  }
};

class ReplicaDivergence final : public LoopedRule<ReplicaDivergence> {
 public:
  explicit ReplicaDivergence(const Parameters& p)
      : tolerance_(std::max(0.0, p.Get("tolerance"))),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))) {}

  bool Wants(const Series& series) override {
    const bool weight = series.collection == "weights" || series.collection == "biases";
    const bool gradient = series.collection == "gradients";
    if (series.mode != "TRAIN" || (!weight && !gradient)) return false;
    // A part of a parameter is on this rank alone.
    if (series.name.find(".shard.") != std::string::npos) return false;
    if (known_.size() <= series.id) known_.resize(series.id + 1);
    Known& known = known_[series.id];
    std::string_view name = series.name;
    if (gradient && name.starts_with(kGradient)) name.remove_prefix(kGradient.size());
    const auto [at, fresh] = index_.try_emplace(std::string(name), tensors_.size());
    if (fresh) tensors_.emplace_back().name = name;
    Tensor& tensor = tensors_[at->second];
    std::vector<History>& ranks = gradient ? tensor.gradient.by_rank : tensor.parameter.by_rank;
    const auto of_rank = std::find_if(ranks.begin(), ranks.end(), [&](const History& history) {
      return history.rank == series.rank;
    });
    known = {at->second, static_cast<std::size_t>(of_rank - ranks.begin()), gradient};
    if (of_rank == ranks.end()) ranks.emplace_back().rank = series.rank;
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* statistic = record.As<format::StatisticRow>()) {
      if (record.series < known_.size()) OnStatistic(*statistic, known_[record.series], reporter);
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, record.writer, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        // What the others said at its last capture is complete.
        JudgeNow(reporter);
        processes_.End(*event, record.writer, [](Process*) {});
        if (open_ && processes_.begin() == processes_.end()) Close(reporter);
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    JudgeNow(reporter);
    if (open_) Close(reporter);
  }

  bool has_data() const override { return has_data_; }
  bool applies() const override { return ranks_seen_ > 1; }

 private:
  struct Process : TrainingProcess {
    double worked_s = 0;
  };
  /// What a series is.
  struct Known {
    std::size_t tensor = 0;
    std::size_t rank = 0;  ///< In by_rank.
    bool gradient = false;
  };
  /// What is kept of one kind (parameter or gradient) of a tensor.
  struct Side {
    std::vector<History> by_rank;
    bool equal_once = false;
    std::int64_t equal_step = -1;  ///< The newest capture in which all were the same.
    std::int64_t compared_step = -1;
    bool varied = false;             ///< In that capture: its elements are not all one value.
    double difference = 0;           ///< Relative, in that capture.
    std::int32_t ranks[2] = {0, 0};  ///< Those that differ most there.
    double values[2] = {0, 0};       ///< Their norms.
  };
  struct Tensor {
    std::string name;
    Side parameter;
    Side gradient;
    std::int64_t differ_in_row = 0;
    std::int64_t since_step = -1;
    std::int64_t since_ns = 0;
    double first_difference = 0;
  };

  void OnStep(const format::StepRow& row, std::uint32_t writer, Reporter* reporter) {
    if (row.attempt > attempt_) NewAttempt(row.attempt, reporter);
    Process* process = processes_.Find(row, writer, [](Process*) {});
    if (process == nullptr || row.duration_ns <= 0 || !process->BeginStep(row.step)) return;
    const std::int64_t waited = std::clamp<std::int64_t>(row.data_wait_ns, 0, row.duration_ns);
    process->worked_s += static_cast<double>(row.duration_ns - waited) / 1e9;
    newest_ns_ = std::max(newest_ns_, row.time_ns + row.duration_ns);
    if (judge_step_ < 0) return;
    for (auto& [key, p] : processes_) {
      if (p.last_step < judge_step_) return;
    }
    JudgeNow(reporter);
  }

  [[gnu::noinline]] void NewAttempt(std::uint32_t attempt, Reporter* reporter) {
    JudgeNow(reporter);
    if (open_) Close(reporter);
    attempt_ = attempt;
    for (Tensor& tensor : tensors_) {
      Tensor fresh;
      fresh.name = std::move(tensor.name);
      // Series know their place among the ranks.
      for (const History& h : tensor.parameter.by_rank) {
        fresh.parameter.by_rank.emplace_back().rank = h.rank;
      }
      for (const History& h : tensor.gradient.by_rank) {
        fresh.gradient.by_rank.emplace_back().rank = h.rank;
      }
      tensor = std::move(fresh);
    }
  }

  static bool Same(double a, double b, double scale, double tolerance) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
    return a == b || std::abs(a - b) <= tolerance * scale;
  }

  /// 0 where they are the same.
  double Difference(const Sample& a, const Sample& b) const {
    const double norm = std::max(a.l2, b.l2);
    const double root = std::sqrt(static_cast<double>(std::max<std::uint64_t>(1, a.count)));
    // Means of elements that cancel are only as exact as the elements are large.
    const double element = norm / root;
    if (Same(a.l2, b.l2, norm, tolerance_) && Same(a.mean, b.mean, element, tolerance_) &&
        Same(a.min, b.min, std::max(std::abs(a.min), std::abs(b.min)), tolerance_) &&
        Same(a.max, b.max, std::max(std::abs(a.max), std::abs(b.max)), tolerance_)) {
      return 0;
    }
    double most = norm > 0 ? std::abs(a.l2 - b.l2) / norm : 0;
    if (element > 0) {
      for (const double d : {a.mean - b.mean, a.min - b.min, a.max - b.max}) {
        if (std::isfinite(d)) most = std::max(most, std::abs(d) / element);
      }
    }
    return std::isfinite(most) && most > 0 ? most : 1;
  }

  void OnStatistic(const format::StatisticRow& row, const Known& known, Reporter* reporter) {
    if (row.attempt < attempt_ || row.count == 0) return;
    if (row.attempt > attempt_) NewAttempt(row.attempt, reporter);
    if (first_rank_ < 0) first_rank_ = row.rank;
    if (row.rank != first_rank_) ranks_seen_ = 2;
    Tensor& tensor = tensors_[known.tensor];
    Side& side = known.gradient ? tensor.gradient : tensor.parameter;
    History& mine = side.by_rank[known.rank];
    // Two processes of one rank (a sweep) are no replicas of each other.
    if (row.step <= mine.newest_step()) return;
    const Sample sample{row.step, row.time_ns, row.count, row.l2, row.mean, row.min, row.max};
    mine.Add(sample);
    if (side.by_rank.size() > 1) CompareWithOthers(&side, sample, row.rank, known.gradient);
  }

  // Apart, so that what each row of a run of one rank takes is small.
  [[gnu::noinline]] void CompareWithOthers(Side* side, const Sample& sample, std::int32_t rank,
                                           bool gradient) {
    for (const History& other : side->by_rank) {
      if (other.rank == rank) continue;
      const Sample* found = other.At(sample.step);
      if (found == nullptr || found->count != sample.count) continue;
      Compare(side, sample, rank, *found, other.rank);
      if (!gradient) judge_step_ = std::max(judge_step_, sample.step);
    }
  }

  void Compare(Side* side, const Sample& a, std::int32_t rank_a, const Sample& b,
               std::int32_t rank_b) const {
    if (a.step < side->compared_step) return;
    if (a.step > side->compared_step) {
      side->compared_step = a.step;
      side->difference = 0;
      side->varied = false;
    }
    side->varied = side->varied || a.min < a.max || b.min < b.max;
    const double difference = Difference(a, b);
    if (difference <= side->difference) return;
    side->difference = difference;
    const bool lower = rank_a < rank_b;
    side->ranks[0] = lower ? rank_a : rank_b;
    side->ranks[1] = lower ? rank_b : rank_a;
    side->values[0] = lower ? a.l2 : b.l2;
    side->values[1] = lower ? b.l2 : a.l2;
  }

  /// All ranks have passed the newest capture that was compared.
  void JudgeNow(Reporter* reporter) {
    const std::int64_t step = std::exchange(judge_step_, -1);
    // Steps may begin anew in an attempt.
    if (step < 0 || (judged_attempt_ == attempt_ && step <= judged_step_)) return;
    judged_step_ = step;
    judged_attempt_ = attempt_;
    has_data_ = true;
    std::vector<const Tensor*> differ;
    bool any = false;
    for (Tensor& tensor : tensors_) {
      Side& gradient = tensor.gradient;
      if (gradient.compared_step == step && gradient.difference == 0) NoteEqual(&gradient, step);
      Side& parameter = tensor.parameter;
      if (parameter.compared_step != step) continue;
      if (parameter.difference == 0) {
        NoteEqual(&parameter, step);
        tensor.differ_in_row = 0;
        continue;
      }
      // Not replicas, as far as anybody can tell.
      if (!parameter.equal_once && !gradient.equal_once) continue;
      if (tensor.differ_in_row++ == 0) {
        tensor.since_step = step;
        tensor.since_ns = TimeOf(parameter, step);
        tensor.first_difference = parameter.difference;
      }
      any = true;
      if (tensor.differ_in_row >= patience_) differ.push_back(&tensor);
    }
    if (!differ.empty()) {
      Tell(differ, step, reporter);
    } else if (open_ && !any) {
      Update(step);
      reporter->Recover(incident_);
      open_ = false;
    }
  }
  /// Zeros and ones are the same on every rank, whatever they are parts of: that proves nothing.
  static void NoteEqual(Side* side, std::int64_t step) {
    if (!side->varied) return;
    side->equal_once = true;
    side->equal_step = step;
  }
  static std::int64_t TimeOf(const Side& side, std::int64_t step) {
    std::int64_t time = 0;
    for (const History& history : side.by_rank) {
      if (const Sample* sample = history.At(step)) time = std::max(time, sample->time_ns);
    }
    return time;
  }

  double Worked() {
    double most = 0;
    for (auto& [key, process] : processes_) most = std::max(most, process.worked_s);
    return most;
  }

  void Update(std::int64_t step) {
    incident_.last_step = std::max({incident_.first_step, incident_.last_step, step});
    incident_.end_ns = std::max({incident_.start_ns, incident_.end_ns, newest_ns_});
    incident_.cost_seconds = std::max(incident_.cost_seconds, Worked() - cost_from_s_);
  }

  void Tell(const std::vector<const Tensor*>& differ, std::int64_t step, Reporter* reporter) {
    const Tensor* worst = differ.front();
    const Tensor* first = differ.front();
    for (const Tensor* t : differ) {
      if (t->parameter.difference > worst->parameter.difference) worst = t;
      if (t->since_step < first->since_step) first = t;
    }
    const Side& side = worst->parameter;
    if (!open_) {
      open_ = true;
      incident_ = Incident();
      incident_.subject = fmt::format("ranks {} and {}", side.ranks[0], side.ranks[1]);
      incident_.severity = Severity::kHigh;
      incident_.first_step = first->since_step;
      incident_.start_ns = first->since_ns;
      cost_from_s_ = Worked();
    }
    Update(step);
    std::size_t compared = 0;
    std::int64_t equal_step = -1;
    bool gradients_equal = false;
    bool gradients_known = false;
    for (const Tensor& t : tensors_) {
      compared += t.parameter.compared_step == step ? 1 : 0;
      equal_step = std::max(equal_step, t.parameter.equal_once && t.differ_in_row > 0
                                            ? t.parameter.equal_step
                                            : std::int64_t{-1});
      if (t.gradient.compared_step >= 0) {
        gradients_known = true;
        gradients_equal = gradients_equal || t.gradient.difference == 0;
      }
    }
    const bool were_equal = equal_step >= 0;
    incident_.message =
        fmt::format("Replicas differ in {} of {} parameters", differ.size(), compared);
    const std::string norms =
        fmt::format("{} has the norm {} on rank {} and {} on rank {}", worst->name,
                    fmt::format("{:.7g}", side.values[0]), side.ranks[0],
                    fmt::format("{:.7g}", side.values[1]), side.ranks[1]);
    if (!were_equal) {
      incident_.cause = fmt::format(
          "In step {} {}; they were never the same, though the gradients are: the ranks began with "
          "different weights.",
          step, norms);
      incident_.advice =
          "Broadcast the parameters of rank 0 after the model is made (DistributedDataParallel "
          "does), or seed all ranks alike before.";
    } else if (gradients_known && !gradients_equal) {
      incident_.cause = fmt::format(
          "In step {} {}; all were the same in step {}, and the gradients of the ranks differ: "
          "they "
          "are not averaged before the optimizer.",
          step, norms, equal_step);
      incident_.advice =
          "Call the model through DistributedDataParallel (not model.module), leave no_sync() "
          "before the last backward, and average gradients before the optimizer.";
    } else {
      incident_.cause = fmt::format(
          "In step {} {}; all were the same in step {}{}: something but the gradient changes the "
          "weights of one rank.",
          step, norms, equal_step,
          gradients_known ? ", and the gradients of the ranks are the same" : "");
      incident_.advice =
          "Look for code that changes parameters on one rank: an average or clamp without a "
          "broadcast, another learning rate, a random step with another seed, a checkpoint loaded "
          "on one rank.";
    }
    incident_.confidence = 0.95;
    nlohmann::ordered_json evidence;
    evidence["step"] = step;
    evidence["parameters"] = compared;
    evidence["differ"] = differ.size();
    evidence["worst"] = worst->name;
    evidence["difference"] = Rounded(side.difference);
    evidence["difference_at_first"] = Rounded(worst->first_difference);
    evidence["ranks"] = {side.ranks[0], side.ranks[1]};
    evidence["norms"] = {side.values[0], side.values[1]};
    if (equal_step >= 0) evidence["equal_in_step"] = equal_step;
    if (gradients_known) evidence["gradients_equal"] = gradients_equal;
    nlohmann::ordered_json names = nlohmann::ordered_json::array();
    for (const Tensor* t : differ) {
      if (names.size() < kNamed) names.push_back(t->name);
    }
    evidence["tensors"] = names;
    incident_.evidence = JsonText(evidence);
    reporter->Report(incident_);
  }

  void Close(Reporter* reporter) {
    Update(incident_.last_step);
    reporter->Close(incident_);
    open_ = false;
  }

  const double tolerance_;
  const std::int64_t patience_;

  std::vector<Known> known_;  ///< By series.
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  ProcessTable<Process> processes_;
  std::uint32_t attempt_ = 0;
  std::int64_t judge_step_ = -1;  ///< The newest capture that was compared and is not judged.
  std::int64_t judged_step_ = -1;
  std::uint32_t judged_attempt_ = 0;
  std::int64_t newest_ns_ = 0;
  bool open_ = false;
  Incident incident_;
  double cost_from_s_ = 0;
  std::int32_t first_rank_ = -1;
  int ranks_seen_ = 0;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kReplicaDivergenceDesc{
    .name = "ReplicaDivergence",
    .summary = "Parameters that should be the same on each rank are not.",
    .formula =
        "Of each weight and gradient that two ranks captured at the same step under one name and "
        "with the same number of elements: norm, mean, smallest and largest element. They are the "
        "same where norms, smallest and largest differ by at most tolerance of themselves, and "
        "means by tolerance × norm / √elements. Judged are parameters that were the same in an "
        "earlier capture, or whose gradients were (those of tensor parallelism never are); a "
        "tensor whose elements are all one value (zeros at the begin) proves nothing; parts "
        "(shards) are not judged. High where one differs in patience captures in a row. Ranks that "
        "average their weights only now and then (local SGD) differ between by design. Over where "
        "all are the same in a capture, and where the ranks end. Cost = time of the steps since, "
        "less waits for data.",
    .how_to_fix =
        "Broadcast the weights at the begin, call the model through DistributedDataParallel, "
        "average gradients before the optimizer, and change parameters on all ranks alike. Go back "
        "to a checkpoint of one rank from before the step that is named.",
    .table_mask = store::MaskOf(format::TableId::kStatistics) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kOwn,
    .by_default = true,
    .example =
        "loss = model.module(inputs).mean()  # past DistributedDataParallel: nothing is averaged",
    .data_mask = DataMask(Datum::kSteps, Datum::kRanks),
};

std::unique_ptr<Rule> MakeReplicaDivergence(const Parameters& parameters) {
  return std::make_unique<ReplicaDivergence>(parameters);
}

}  // namespace telltale::rules::replica_divergence
