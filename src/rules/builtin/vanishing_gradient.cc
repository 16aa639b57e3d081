// SPDX-License-Identifier: Apache-2.0
// VanishingGradient: the gradients of some layers are too small to train them.
//
// SageMaker Debugger's rule of this name fires where the mean |g| of any tensor is below a
// threshold: on every bias before a normalisation, on each embedding of which a batch touches few
// rows, and once training has converged. Here zeros are left out of the mean, biases are not
// judged, a tensor must be small beside the others too, and it must stay so.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "rules/builtin/numbers.h"
#include "rules/registry.h"

namespace telltale::rules {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold", 1e-7, "", "Mean |g| of the elements that are not zero, below which it is small."},
    {"share_of_largest", 1e-3, "",
     "A gradient has vanished only where it is below this share of the largest of its step too."},
    {"patience", 3, "captures", "Captures in a row before anything is said."},
    {"converged_below", 0.01, "",
     "Where the loss is between 0 and this, gradients that are all small are no defect."},
};

constexpr std::string_view kPrefix = "gradient/";
constexpr std::size_t kNamed = 8;  ///< Tensors that the evidence names.
/// An open incident needs gradients this much above the threshold before one counts as alive.
constexpr double kHysteresis = 2;

class VanishingGradient final : public Rule {
 public:
  explicit VanishingGradient(const Parameters& p)
      : threshold_(p.Get("threshold")),
        share_(p.Get("share_of_largest")),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))),
        converged_below_(p.Get("converged_below")) {}

  void OnRecord(const store::OrderedRecord& record, Reporter* reporter) override {
    if (const auto* statistic = record.As<format::StatisticRow>()) {
      if (statistic->mode == "TRAIN" && statistic->collection == "gradients") {
        OnGradient(*statistic, reporter);
      }
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, reporter);
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      if (scalar->name == "loss" && scalar->mode == "TRAIN") loss_[scalar->rank] = scalar->value;
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) {
      Judge(&process, reporter);
      if (process.open) Close(&process, true, reporter);
    }
  }

  bool has_data() const override { return has_data_; }

 private:
  struct Tensor {
    std::string name;
    std::uint64_t elements = 0;
    double mean = 0;  ///< Of |g| over the elements that are not zero, newest capture.
    std::int64_t small_in_row = 0;
    std::int64_t alive_in_row = 0;
    bool vanished = false;
  };

  struct Process {
    std::int32_t rank = 0;
    std::int32_t pid = 0;
    std::uint32_t attempt = 0;
    std::vector<Tensor> tensors;  ///< In the order of the optimizer, which is mostly the model's.
    std::map<std::string, std::size_t, std::less<>> index;

    std::int64_t capture_step = -1;  ///< The capture that comes in now; -1: none.
    std::int64_t judged_step = -1;
    std::int64_t capture_ns = 0;
    std::vector<std::size_t> captured;
    std::int64_t captures = 0;
    // Where the tensors that are small now began to be so.
    std::int64_t small_since_step = -1;
    std::int64_t small_since_ns = 0;
    double worked_at_small_s = 0;

    double worked_s = 0;  ///< TRAIN steps less their waits for data, which are InputBound's.
    std::int64_t last_step = -1;
    std::int64_t last_ns = 0;

    bool open = false;
    Incident incident;
    double cost_from_s = 0;
    double idle_share = 0;  ///< Of the weights: those that do not learn.
    std::int64_t captures_open = 0;
  };

  Process* Find(std::int32_t rank, std::int32_t pid, std::uint32_t attempt, Reporter* reporter) {
    const auto known = processes_.find({rank, pid});
    if (known != processes_.end() && known->second.attempt == attempt) return &known->second;
    // A restart: what was before says nothing about now.
    for (auto at = processes_.begin(); at != processes_.end();) {
      if (at->first.first != rank || at->second.attempt == attempt) {
        ++at;
        continue;
      }
      if (at->second.open) Close(&at->second, true, reporter);
      at = processes_.erase(at);
    }
    Process& process = processes_[{rank, pid}];
    process.rank = rank;
    process.pid = pid;
    process.attempt = attempt;
    return &process;
  }

  void OnStep(const format::StepRow& step, Reporter* reporter) {
    Process* process = Find(step.rank, step.pid, step.attempt, reporter);
    if (step.duration_ns <= 0 || step.step <= process->last_step) return;
    process->last_step = step.step;
    process->last_ns = step.time_ns + step.duration_ns;
    const std::int64_t waited = std::clamp<std::int64_t>(step.data_wait_ns, 0, step.duration_ns);
    process->worked_s += static_cast<double>(step.duration_ns - waited) / 1e9;
    // The gradients of a step are complete when it ends.
    if (process->capture_step >= 0 && step.step >= process->capture_step) Judge(process, reporter);
  }

  void OnGradient(const format::StatisticRow& row, Reporter* reporter) {
    // A bias before a normalisation has a gradient of zero but for rounding.
    if (row.name.ends_with("bias") || row.count == 0) return;
    Process* process = Find(row.rank, row.pid, row.attempt, reporter);
    if (row.step < process->capture_step || row.step <= process->judged_step) return;  // Late.
    if (row.step != process->capture_step) {
      Judge(process, reporter);
      process->capture_step = row.step;
      process->capture_ns = row.time_ns;
    }
    const std::uint64_t bad = row.nan_count + row.inf_count;
    if (bad > 0 || !std::isfinite(row.l1)) return;  // ExplodingTensor's.
    const std::string_view name =
        row.name.starts_with(kPrefix) ? row.name.substr(kPrefix.size()) : row.name;
    auto found = process->index.find(name);
    if (found == process->index.end()) {
      found = process->index.emplace(std::string(name), process->tensors.size()).first;
      process->tensors.push_back({std::string(name)});
    }
    Tensor& tensor = process->tensors[found->second];
    tensor.elements = row.count;
    const std::uint64_t live = row.count - std::min(row.count, row.zero_count);
    tensor.mean = live == 0 ? 0 : row.l1 / static_cast<double>(live);
    process->captured.push_back(found->second);
  }

  bool Converged(const Process& process) const {
    const auto loss = loss_.find(process.rank);
    return loss != loss_.end() && loss->second >= 0 && loss->second < converged_below_;
  }

  /// All gradients of one step are there.
  void Judge(Process* process, Reporter* reporter) {
    if (process->capture_step < 0) return;
    const std::int64_t step = std::exchange(process->capture_step, -1);
    process->judged_step = step;
    const std::vector<std::size_t> captured = std::exchange(process->captured, {});
    if (captured.empty()) return;
    ++process->captures;
    if (process->captures >= patience_) has_data_ = true;
    double largest = 0;
    for (std::size_t i : captured) largest = std::max(largest, process->tensors[i].mean);
    // All of them small: nothing to be small beside. A converged loss has no gradient left.
    const bool all_small = largest < threshold_;
    const bool judged = !all_small || !Converged(*process);
    bool any_small = false;
    bool any_vanished_now = false;
    for (std::size_t i : captured) {
      Tensor& tensor = process->tensors[i];
      const double limit = threshold_ * (tensor.vanished ? kHysteresis : 1);
      const bool small =
          judged && tensor.mean < limit && (all_small || tensor.mean < share_ * largest);
      tensor.small_in_row = small ? tensor.small_in_row + 1 : 0;
      tensor.alive_in_row = small ? 0 : tensor.alive_in_row + 1;
      if (tensor.small_in_row >= patience_) tensor.vanished = true;
      if (tensor.alive_in_row >= 2) tensor.vanished = false;
      any_small = any_small || small || tensor.vanished;
      any_vanished_now = any_vanished_now || (small && tensor.vanished);
    }
    if (!any_small) process->small_since_step = -1;
    if (any_small && process->small_since_step < 0) {
      process->small_since_step = step;
      process->small_since_ns = process->capture_ns;
      process->worked_at_small_s = process->worked_s;
    }
    const bool vanished = std::any_of(process->tensors.begin(), process->tensors.end(),
                                      [](const Tensor& t) { return t.vanished; });
    if (!vanished) {
      if (process->open) Close(process, false, reporter);
      return;
    }
    if (!process->open) {
      process->open = true;
      process->captures_open = patience_ - 1;
      process->incident = Incident();
      process->incident.subject = SubjectOfProcess(process->rank, process->pid, Alone(*process));
      process->incident.first_step = process->small_since_step;
      process->incident.start_ns = process->small_since_ns;
      process->cost_from_s = process->worked_at_small_s;
    }
    // On the way back there is nothing new to say.
    if (!any_vanished_now) return;
    ++process->captures_open;
    Describe(process);
    reporter->Report(process->incident);
  }

  bool Alone(const Process& process) const {
    return std::count_if(processes_.begin(), processes_.end(),
                         [&](const auto& entry) { return entry.first.first == process.rank; }) == 1;
  }

  /// `still`: the gradients had not come back when the records ended.
  void Close(Process* process, bool still, Reporter* reporter) {
    if (still) Advance(process);
    reporter->Close(process->incident);
    process->open = false;
    process->small_since_step = -1;
  }

  static void Advance(Process* process) {
    Incident& incident = process->incident;
    incident.last_step = std::max(process->judged_step, process->last_step);
    incident.end_ns = std::max({incident.start_ns, process->capture_ns, process->last_ns});
    incident.cost_seconds =
        std::max(0.0, process->worked_s - process->cost_from_s) * process->idle_share;
  }

  void Describe(Process* process) {
    Incident& incident = process->incident;
    const Tensor* smallest = nullptr;
    const Tensor* largest = nullptr;
    std::size_t vanished = 0;
    std::size_t zero = 0;
    std::size_t first_vanished = 0;
    std::size_t largest_at = 0;
    double elements = 0;
    double idle_elements = 0;
    nlohmann::ordered_json names = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < process->tensors.size(); ++i) {
      const Tensor& t = process->tensors[i];
      elements += static_cast<double>(t.elements);
      if (largest == nullptr || t.mean > largest->mean) {
        largest = &t;
        largest_at = i;
      }
      if (!t.vanished) continue;
      if (vanished++ == 0) first_vanished = i;
      zero += t.mean == 0 ? 1 : 0;
      idle_elements += static_cast<double>(t.elements);
      if (smallest == nullptr || t.mean < smallest->mean) smallest = &t;
      if (names.size() < kNamed) names[t.name] = Rounded(t.mean);
    }
    const std::size_t all = process->tensors.size();
    process->idle_share = elements > 0 ? idle_elements / elements : 0;
    Advance(process);
    const Severity severity = vanished * 2 >= all                      ? Severity::kHigh
                              : zero == vanished && vanished * 4 < all ? Severity::kLow
                                                                       : Severity::kMedium;
    incident.severity = std::max(incident.severity, severity);
    incident.message = fmt::format("Gradients vanish in {} of {} layers", vanished, all);
    const Tensor& first = process->tensors[first_vanished];
    if (zero == vanished) {
      incident.cause = fmt::format(
          "No gradient arrives at {}{}: every element was zero in {} captures in a row, while {} "
          "has a mean |g| of {}.",
          first.name, vanished > 1 ? fmt::format(" and {} more", vanished - 1) : std::string(),
          process->captures_open, largest->name, Figure(largest->mean));
      incident.advice =
          "Look for units that never activate (ReLU after a large step), a detach(), or a branch "
          "that the loss does not use.";
    } else if (largest->mean < threshold_) {
      incident.cause = fmt::format(
          "The mean |g| of every layer is below {}, {} at most: the loss hardly depends on the "
          "weights.",
          Figure(threshold_), Figure(largest->mean));
      incident.advice =
          "Look at the outputs: saturated activations or a loss scaled by too small a number; "
          "compute the loss in float32.";
    } else {
      const std::size_t between =
          largest_at > first_vanished ? largest_at - first_vanished : first_vanished - largest_at;
      const double mean = std::max(first.mean, std::numeric_limits<double>::min());
      incident.cause =
          fmt::format("The mean |g| falls from {} in {} to {} in {}{}.", Figure(largest->mean),
                      largest->name, Figure(first.mean), first.name,
                      between > 1 ? fmt::format(": over {} layers, about {}-fold in each", between,
                                                Figure(std::pow(largest->mean / mean,
                                                                1 / static_cast<double>(between))))
                                  : std::string());
      incident.advice = fmt::format(
          "Replace saturating activations (sigmoid, tanh) before {} by ReLU or GELU with Kaiming "
          "initialization, or put normalization or residual connections between the layers.",
          largest->name);
    }
    incident.confidence =
        std::min(0.95, 0.7 + 0.05 * static_cast<double>(process->captures_open - patience_));
    nlohmann::ordered_json evidence;
    evidence["layers"] = all;
    evidence["vanished"] = vanished;
    evidence["all_zero"] = zero;
    evidence["threshold"] = threshold_;
    evidence["largest_mean_abs"] = Rounded(largest->mean);
    evidence["largest_in"] = largest->name;
    evidence["smallest_mean_abs"] = Rounded(smallest->mean);
    evidence["smallest_in"] = smallest->name;
    evidence["captures"] = process->captures_open;
    evidence["captured_step"] = process->judged_step;
    evidence["share_of_weights"] = Rounded(process->idle_share);
    evidence["mean_abs"] = names;
    if (const auto loss = loss_.find(process->rank);
        loss != loss_.end() && std::isfinite(loss->second)) {
      evidence["loss"] = Rounded(loss->second);
    }
    incident.evidence = evidence.dump();
  }

  const double threshold_;
  const double share_;
  const std::int64_t patience_;
  const double converged_below_;

  std::map<std::pair<std::int32_t, std::int32_t>, Process> processes_;  ///< By (rank, pid).
  std::map<std::int32_t, double> loss_;                                 ///< Newest, by rank.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kVanishingGradientDesc{
    "VanishingGradient",
    "The gradients of some layers are too small to train them.",
    "mean |g| = l1 / elements that are not zero, of each captured gradient but those of biases (a"
    " bias before a normalization has none) and those with NaN or Inf (ExplodingTensor's). A "
    "gradient is small where mean |g| < threshold and mean |g| < share_of_largest × the largest "
    "of the same step; where all are below threshold, they are small unless 0 ≤ loss < "
    "converged_below. It has vanished after patience captures in a row, and is back after two "
    "that are not small, by twice the threshold. High where at least half of the layers have "
    "vanished; low where they are fewer than a quarter and all elements zero (perhaps not used); "
    "else medium. Cost = time of the steps, less waits for data, × the share of the weights that "
    "do not learn.",
    "Use activations that do not saturate (ReLU, GELU), Kaiming or Xavier initialization, "
    "normalization between layers, residual connections. Where every element is zero: look for "
    "dead units, a detach(), or a branch that the loss does not use.",
    store::MaskOf(format::TableId::kStatistics) | store::MaskOf(format::TableId::kSteps) |
        store::MaskOf(format::TableId::kScalars),
    true,
    kParameters};

std::unique_ptr<Rule> MakeVanishingGradient(const Parameters& parameters) {
  return std::make_unique<VanishingGradient>(parameters);
}

}  // namespace telltale::rules
