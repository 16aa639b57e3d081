// SPDX-License-Identifier: Apache-2.0
// VanishingGradient: the gradients of some layers are too small to train them.
//
// SageMaker Debugger's rule of this name fires where the mean |g| of any tensor is below a
// threshold: on every bias before a normalisation, on each embedding of which a batch touches few
// rows, and once training has converged. Here zeros are left out of the mean, biases are not
// judged, a tensor must be small beside those captured with it, and it must stay so.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
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

namespace telltale::rules::vanishing_gradient {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"threshold", 1e-7, "", "Mean |g| of the elements that are not zero, below which it is small."},
    {"share_of_largest", 1e-3, "",
     "A gradient has vanished only where it is below this share of the largest of its step too."},
    {"patience", 3, "captures", "Captures in a row before anything is said."},
    {"converged_below", 0.01, "",
     "Where the loss is between 0 and this, gradients that are all small are no defect."},
};

constexpr CaptureNeed kCaptures[] = {{"gradients", "statistics", 100}};

constexpr std::string_view kPrefix = "gradient/";
constexpr std::size_t kNamed = 8;  ///< Tensors that the evidence names.
/// An open incident needs gradients this much above the threshold before one counts as alive.
constexpr double kHysteresis = 2;

class VanishingGradient final : public LoopedRule<VanishingGradient> {
 public:
  explicit VanishingGradient(const Parameters& p)
      : threshold_(p.Get("threshold")),
        share_(p.Get("share_of_largest")),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))),
        converged_below_(p.Get("converged_below")) {}

  bool Wants(const Series& series) override {
    // What SageMaker Debugger's hook saved without a mode is GLOBAL.
    if (series.mode != "TRAIN" && series.mode != "GLOBAL") return false;
    if (series.table == format::TableId::kScalars) {
      return series.name == "loss" || IsFurtherLoss(series.name);
    }
    // A bias before a normalisation has a gradient of zero but for rounding.
    return series.collection == "gradients" && !series.name.ends_with("bias");
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* statistic = record.As<format::StatisticRow>()) {
      OnGradient(*statistic, record.series, reporter);
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, reporter);
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      OnLoss(*scalar, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { End(process, reporter); });
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  /// A moment of a process.
  struct Moment {
    std::int64_t step = -1;
    std::int64_t ns = 0;
    double worked_s = 0;
  };

  struct Tensor {
    std::string name;
    std::uint64_t elements = 0;
    double mean = 0;  ///< Of |g| over the elements that are not zero, newest capture.
    double first_mean = 0;
    std::int64_t first_step = -1;  ///< Of its first capture.
    std::int64_t small_in_row = 0;
    std::int64_t alive_in_row = 0;
    Moment small_since;  ///< Valid while small_in_row > 0 or vanished.
    bool vanished = false;
    bool gone = false;  ///< It is captured no more.
    Presence presence;
  };

  /// Of the newest step that has any; of several (two models in turn) the largest.
  struct Loss {
    std::int64_t step;
    double value;
  };

  struct Process : TensorProcess {
    std::optional<Loss> loss;
    bool trains = false;          ///< It has TRAIN steps: GLOBAL counts its steps otherwise.
    std::vector<Tensor> tensors;  ///< In the order of the optimizer, which is mostly the model's.
    std::map<std::string, std::size_t, std::less<>> index;
    std::vector<std::size_t> captured;
    std::int64_t captures = 0;
    std::int64_t look_step = 0;  ///< When to look next for tensors that are gone.

    Moment counted;         ///< Until where incidents counted: it is not counted again.
    double idle_share = 0;  ///< Of the weights: those that do not learn.
    std::int64_t captures_open = 0;
  };

  template <class Row>
  Process* Find(const Row& row, Reporter* reporter) {
    return processes_.Find(row, writer_, [&](Process* process) { Close(process, true, reporter); });
  }

  /// True of what is none of the training: GLOBAL, where there is TRAIN.
  static bool Beside(Process* process, std::string_view mode) {
    const bool train = mode.starts_with('T');  // Wants lets no other mode in.
    process->trains = process->trains || train;
    return process->trains && !train;
  }

  void OnLoss(const format::ScalarRow& scalar, Reporter* reporter) {
    Process* process = Find(scalar, reporter);
    if (process == nullptr || Beside(process, scalar.mode)) return;
    std::optional<Loss>& loss = process->loss;
    if (!loss || scalar.step != loss->step || !(scalar.value <= loss->value)) {
      loss = Loss{scalar.step, scalar.value};
    }
  }

  void OnStep(const format::StepRow& step, Reporter* reporter) {
    Process* process = Find(step, reporter);
    if (process == nullptr) return;
    process->trains = true;
    if (!process->BeginStep(step)) return;
    process->CountWork(step);
    // The gradients of a step are complete when it ends.
    if (process->CompleteAt(step.step)) Judge(process, reporter);
    if (process->open && step.step >= process->look_step) CloseIfOver(process, step.step, reporter);
  }

  /// The index of a row's tensor, made where it is new.
  static std::size_t Lookup(Process* process, std::string_view name) {
    if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
    const auto found = process->index.find(name);
    if (found != process->index.end()) return found->second;
    const std::size_t at = process->tensors.size();
    process->index.emplace(std::string(name), at);
    process->tensors.emplace_back().name = name;
    return at;
  }

  void OnGradient(const format::StatisticRow& row, std::uint32_t series, Reporter* reporter) {
    if (row.count == 0) return;
    Process* process = Find(row, reporter);
    if (process == nullptr || Beside(process, row.mode) || process->Late(row.step)) return;
    if (row.step != process->capture_step) {
      Judge(process, reporter);
      process->BeginCapture(row);
    }
    const std::uint64_t bad = row.nan_count + row.inf_count;
    if (bad > 0 || !std::isfinite(row.l1)) return;  // ExplodingTensor's.
    const std::size_t at = places_.Find(process, series, [&] { return Lookup(process, row.name); });
    Tensor& tensor = process->tensors[at];
    tensor.elements = row.count;
    const std::uint64_t live = row.count - std::min(row.count, row.zero_count);
    tensor.mean = live == 0 ? 0 : row.l1 / static_cast<double>(live);
    if (tensor.first_step < 0) {
      tensor.first_step = row.step;
      tensor.first_mean = tensor.mean;
    }
    process->captured.push_back(at);
  }

  bool Converged(const Process& process) const {
    return process.loss && process.loss->value >= 0 && process.loss->value < converged_below_;
  }

  /// All gradients of one step are there.
  void Judge(Process* process, Reporter* reporter) {
    if (process->capture_step < 0) return;
    const std::int64_t step = process->EndCapture();
    judged_.clear();
    judged_.swap(process->captured);
    std::vector<std::size_t>& captured = judged_;
    if (captured.empty()) return;
    // They mostly come in the same order each time.
    if (!std::is_sorted(captured.begin(), captured.end())) {
      std::sort(captured.begin(), captured.end());
    }
    ++process->captures;
    if (process->captures >= patience_) has_data_ = true;
    double largest = 0;
    for (std::size_t i : captured) largest = std::max(largest, process->tensors[i].mean);
    // All of them small: nothing to be small beside. A converged loss has no gradient left.
    const bool all_small = largest < threshold_;
    const bool judged = !all_small || !Converged(*process);
    bool any_vanished_now = false;
    for (std::size_t i : captured) {
      Tensor& tensor = process->tensors[i];
      tensor.presence.See(step);
      tensor.gone = false;
      // Mostly it is as large as it was.
      if (tensor.small_in_row == 0 && !tensor.vanished && !(tensor.mean < threshold_)) {
        ++tensor.alive_in_row;
        continue;
      }
      const double limit = threshold_ * (tensor.vanished ? kHysteresis : 1);
      const bool small =
          judged && tensor.mean < limit && (all_small || tensor.mean < share_ * largest);
      if (small && tensor.small_in_row == 0 && !tensor.vanished) {
        tensor.small_since = {step, process->capture_ns, process->worked_s};
      }
      tensor.small_in_row = small ? tensor.small_in_row + 1 : 0;
      tensor.alive_in_row = small ? 0 : tensor.alive_in_row + 1;
      if (tensor.small_in_row >= patience_) tensor.vanished = true;
      if (tensor.alive_in_row >= 2) tensor.vanished = false;
      any_vanished_now = any_vanished_now || (small && tensor.vanished);
    }
    if (CloseIfOver(process, step, reporter)) return;
    if (!process->open) {
      Moment since = process->counted;
      for (const Tensor& t : process->tensors) {
        if (!t.vanished || t.small_since.step <= process->counted.step) continue;
        if (since.step == process->counted.step || t.small_since.step < since.step) {
          since = t.small_since;
        }
      }
      processes_.Open(process, since.step, since.ns);
      process->captures_open = patience_ - 1;
      process->cost_from_s = since.worked_s;
    }
    // On the way back there is nothing new to say.
    if (!any_vanished_now) return;
    ++process->captures_open;
    Describe(process, captured);
    reporter->Report(process->incident);
  }

  /// True where no tensor has vanished, those that are captured no more apart.
  bool CloseIfOver(Process* process, std::int64_t step, Reporter* reporter) {
    process->look_step = step + std::max<std::int64_t>(1, process->widest);
    bool vanished = false;
    for (Tensor& tensor : process->tensors) {
      if (tensor.presence.GoneAt(step, process->widest)) {
        tensor.gone = true;
        tensor.vanished = false;
        tensor.small_in_row = 0;
      }
      vanished = vanished || tensor.vanished;
    }
    if (!vanished && process->open) Close(process, false, reporter);
    return !vanished;
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    Judge(process, reporter);
    if (process->open) Close(process, true, reporter);
  }

  /// `still`: the gradients had not come back when the records ended.
  void Close(Process* process, bool still, Reporter* reporter) {
    if (still) process->Extend(process->idle_share);
    still ? reporter->Close(process->incident) : reporter->Recover(process->incident);
    process->open = false;
  }

  void Describe(Process* process, const std::vector<std::size_t>& captured) {
    Incident& incident = process->incident;
    // What is compared was captured together; what is counted are all that still come.
    const Tensor* smallest = nullptr;
    const Tensor* largest = nullptr;
    const Tensor* first = nullptr;
    std::size_t largest_at = 0;
    std::size_t first_at = 0;
    for (std::size_t at = 0; at < captured.size(); ++at) {
      const Tensor& t = process->tensors[captured[at]];
      if (largest == nullptr || t.mean > largest->mean) {
        largest = &t;
        largest_at = at;
      }
      if (!t.vanished) continue;
      if (first == nullptr) {
        first = &t;
        first_at = at;
      }
      if (smallest == nullptr || t.mean < smallest->mean) smallest = &t;
    }
    std::size_t all = 0;
    std::size_t vanished = 0;
    std::size_t zero = 0;
    double elements = 0;
    double idle_elements = 0;
    nlohmann::ordered_json names = nlohmann::ordered_json::object();
    nlohmann::ordered_json first_means = nlohmann::ordered_json::object();
    nlohmann::ordered_json fell = nlohmann::ordered_json::object();
    for (const Tensor& t : process->tensors) {
      if (t.gone) continue;
      ++all;
      elements += static_cast<double>(t.elements);
      if (!t.vanished) continue;
      ++vanished;
      zero += t.mean == 0 ? 1 : 0;
      idle_elements += static_cast<double>(t.elements);
      if (names.size() >= kNamed) continue;
      names[t.name] = Rounded(t.mean);
      first_means[t.name] = Rounded(t.first_mean);
      if (t.small_since.step > t.first_step) {
        fell[t.name] = t.small_since.step;
      } else {
        fell[t.name] = "small from the first capture";
      }
    }
    process->idle_share = elements > 0 ? idle_elements / elements : 0;
    process->Extend(process->idle_share);
    process->counted = {process->judged_step, process->capture_ns, process->worked_s};
    const Severity severity = vanished * 2 >= all                      ? Severity::kHigh
                              : zero == vanished && vanished * 4 < all ? Severity::kLow
                                                                       : Severity::kMedium;
    incident.severity = std::max(incident.severity, severity);
    incident.message = fmt::format("Gradients vanish in {} of {} layers", vanished, all);
    if (zero == vanished) {
      incident.cause = fmt::format(
          "No gradient arrives at {}{}: every element was zero in {} captures in a row{}.",
          first->name, vanished > 1 ? fmt::format(" and {} more", vanished - 1) : std::string(),
          process->captures_open,
          largest->mean > 0
              ? fmt::format(", while {} has a mean |g| of {}", largest->name, Figure(largest->mean))
              : std::string());
      incident.advice =
          "Look for weights behind these layers that are all zero, units that never activate (ReLU "
          "after a large step), a detach(), or a branch that the loss does not use.";
    } else if (largest->mean < threshold_) {
      incident.cause = fmt::format(
          "The mean |g| of {} is below {}, {} at most: the loss hardly depends on the "
          "weights.",
          vanished == all ? "every layer" : "every layer of these captures", Figure(threshold_),
          Figure(largest->mean));
      incident.advice =
          "Look at the outputs: saturated activations or a loss scaled by too small a number; "
          "compute the loss in float32.";
    } else {
      const std::size_t between =
          largest_at > first_at ? largest_at - first_at : first_at - largest_at;
      const double mean = std::max(first->mean, std::numeric_limits<double>::min());
      incident.cause =
          fmt::format("The mean |g| falls from {} in {} to {} in {}{}.", Figure(largest->mean),
                      largest->name, Figure(first->mean), first->name,
                      between > 1 ? fmt::format(": over {} layers, about {}-fold in each", between,
                                                Figure(std::pow(largest->mean / mean,
                                                                1 / static_cast<double>(between))))
                                  : std::string());
      incident.advice = fmt::format(
          "Look at the layers before {}: initial weights that are far smaller than usual (use "
          "Kaiming or Xavier initialization), or saturating activations (sigmoid, tanh; use ReLU "
          "or "
          "GELU). Normalization or residual connections between the layers help, too.",
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
    evidence["first_mean_abs"] = first_means;
    evidence["fell_at_step"] = fell;
    if (process->loss && std::isfinite(process->loss->value)) {
      evidence["loss"] = Rounded(process->loss->value);
    }
    incident.evidence = JsonText(evidence);
  }

  const double threshold_;
  const double share_;
  const std::int64_t patience_;
  const double converged_below_;

  TensorPlaces places_;
  std::vector<std::size_t> judged_;  ///< Tensors of the capture that is judged now.
  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kVanishingGradientDesc{
    .name = "VanishingGradient",
    .summary = "The gradients of some layers are too small to train them.",
    .formula =
        "mean |g| = l1 / elements that are not zero, of each captured gradient but those of biases "
        "(a bias before a normalization has none) and those with NaN or Inf (ExplodingTensor's). A "
        "gradient is small where mean |g| < threshold and mean |g| < share_of_largest × the "
        "largest of the same step; where all are below threshold, they are small unless 0 ≤ loss < "
        "converged_below. It has vanished after patience captures in a row, and is back after two "
        "that are not small, by twice the threshold. Only captures in which it is count for a "
        "gradient (two models in turn); one that stays away for four times the widest distance of "
        "its captures is no layer any more. Over where none has vanished any more, and where its "
        "process ends. High where at least half of the layers have vanished; low where they are "
        "fewer than a quarter and all elements zero (perhaps not used); else medium. Cost = time "
        "of the steps, less waits for data, × the share of the weights that do not learn. The "
        "evidence names of each gradient the mean of its first capture and the step at which it "
        "fell.",
    .how_to_fix =
        "Use activations that do not saturate (ReLU, GELU), Kaiming or Xavier initialization, "
        "normalization between layers, residual connections. Where every element is zero: look for "
        "dead units, a detach(), or a branch that the loss does not use.",
    .table_mask =
        store::MaskOf(format::TableId::kStatistics) | store::MaskOf(format::TableId::kSteps) |
        store::MaskOf(format::TableId::kScalars) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .standing = {.theme = Theme::kLayers, .order = 4},
};

std::unique_ptr<Rule> MakeVanishingGradient(const Parameters& parameters) {
  return std::make_unique<VanishingGradient>(parameters);
}

}  // namespace telltale::rules::vanishing_gradient
