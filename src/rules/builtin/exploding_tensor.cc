// SPDX-License-Identifier: Apache-2.0
// ExplodingTensor: a weight or gradient holds NaN or Inf, or grew out of all proportion.
//
// SageMaker Debugger's rule of this name knows NaN and Inf alone, and so says it when it is too
// late. Growth is judged against the first captures of the same run, of the tensor itself and of
// its collection, so that what begins at zero may come to life. A capture is judged when its step
// has ended: what a gradient scaler skipped is no defect.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
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
#include "rules/tensor_pattern.h"

namespace telltale::rules::exploding_tensor {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"collection_names", 0, "", "Collections whose tensors are looked at, separated by commas.",
     ""},
    {"tensor_regex", 0, "",
     "Names of tensors that are looked at too; without both, every tensor that is captured.", ""},
    {"only_nan", 0, "", "1: NaN alone; 0: Inf too."},
    {"growth_factor", 1000, "", "Growth of the size of a tensor from which it explodes; 0: never."},
    {"normal_captures", 2, "captures", "First captures of a run, against which growth is judged."},
};

constexpr CaptureNeed kCaptures[] = {{"weights", "statistics", 100},
                                     {"biases", "statistics", 100},
                                     {"gradients", "statistics", 100},
                                     {"{collection_names}", "statistics", 100},
                                     {"", "statistics", 100, "{tensor_regex}"}};

constexpr std::size_t kNamed = 8;  ///< Tensors that the evidence names.

class ExplodingTensor final : public LoopedRule<ExplodingTensor> {
 public:
  explicit ExplodingTensor(const Parameters& p)
      : selection_(p.Text("collection_names"), p.Text("tensor_regex")),
        only_nan_(p.Get("only_nan") != 0),
        growth_(p.Get("growth_factor")),
        normal_(std::max<std::int64_t>(1, p.GetInt("normal_captures"))) {}

  bool Wants(const Series& series) override {
    // What SageMaker Debugger's hook saved without a mode is GLOBAL.
    if (series.mode != "TRAIN" && series.mode != "GLOBAL") return false;
    if (series.table == format::TableId::kScalars) return series.name == "loss";
    return selection_.empty() || selection_.Has(series);
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    writer_ = record.writer;
    if (const auto* statistic = record.As<format::StatisticRow>()) {
      OnStatistic(*statistic, record.series, reporter);
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, reporter);
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      OnLoss(*scalar, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "process.exit") {
        processes_.End(*event, writer_, [&](Process* process) { End(process, reporter); });
      } else if (event->kind == "plan") {
        selection_.OnPlan(event->data);
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  /// kForward: what modules take and give.
  enum Collection : std::uint8_t { kWeights, kGradients, kForward, kOther };
  static constexpr std::size_t kCollections = 4;

  struct Tensor {
    std::string name;
    Collection collection = kOther;
    bool nan_alone = false;       ///< Inf and growth are no defect: a mask, a count of steps.
    double normal = 0;            ///< Largest size in the first captures.
    std::int64_t captures = 0;    ///< With at least one finite element.
    std::int64_t good_step = -1;  ///< Newest capture in which it was well.
    bool bad = false;
    int good_in_row = 0;
    bool broken = false;  ///< It is bad for NaN or Inf; else it grew.
    int finite_in_row = 0;
    Presence presence;
  };

  struct Sample {
    std::size_t tensor;
    std::uint64_t count, nan, inf;
    double size;  ///< Root mean square of the finite elements; NaN where there is none.
    double max_abs;
  };

  struct Bad {
    std::string name;
    Collection collection;
    std::uint64_t count, nan, inf;
    double size, normal, max_abs;
    bool grown;
  };

  struct Process : TensorProcess {
    std::vector<Tensor> tensors;
    std::map<std::string, std::size_t, std::less<>> index;
    std::vector<Sample> captured;
    std::optional<std::array<double, kCollections>> normals;  ///< NormalOf each collection.
    std::int64_t look_step = 0;       ///< When to look next for tensors that come no more.
    std::optional<bool> loss_finite;  ///< Of the newest loss.
    std::int64_t finite_step = -1;    ///< Of the newest loss before the first that was not finite.
    bool loss_lost = false;           ///< One was not.
    bool trains = false;              ///< It has TRAIN steps: GLOBAL counts its steps otherwise.

    bool not_finite = false;  ///< The open incident is about NaN or Inf.
    std::int64_t origin_step = -1;
    std::int64_t good_step = -1;  ///< Before its first capture: all that is bad in it was well.
    std::vector<Bad> origin;      ///< What was bad in its first capture.
    std::int64_t bad_captures = 0;
  };

  template <class Row>
  Process* Find(const Row& row, Reporter* reporter) {
    return processes_.Find(row, writer_, [&](Process* process) { Close(process, reporter); });
  }

  /// True of what is none of the training: GLOBAL, where there is TRAIN.
  static bool Beside(Process* process, std::string_view mode) {
    const bool train = mode.starts_with('T');  // Wants lets no other mode in.
    process->trains = process->trains || train;
    return process->trains && !train;
  }

  void OnLoss(const format::ScalarRow& loss, Reporter* reporter) {
    Process* process = Find(loss, reporter);
    if (process == nullptr || Beside(process, loss.mode)) return;
    process->loss_finite = std::isfinite(loss.value);
    process->loss_lost = process->loss_lost || !*process->loss_finite;
    if (!process->loss_lost) process->finite_step = std::max(process->finite_step, loss.step);
  }

  void OnStep(const format::StepRow& step, Reporter* reporter) {
    Process* process = Find(step, reporter);
    if (process == nullptr) return;
    process->trains = true;
    if (!process->BeginStep(step)) return;
    // Before its time is counted: an incident costs from the step in which it was seen.
    if (process->CompleteAt(step.step)) {
      Judge(process, step.skipped && step.step == process->capture_step, reporter);
    }
    if (process->open && step.step >= process->look_step) {
      CloseIfOver(process, step.step, false, reporter);
    }
    // What a loss that is no number costs is LossNotDecreasing's.
    if (process->loss_finite.value_or(true)) process->CountWork(step);
  }

  static Collection CollectionOf(std::string_view name) {
    if (name == "weights") return kWeights;
    if (name == "gradients") return kGradients;
    const bool forward = name == "activations" || name == "outputs" || name == "predictions" ||
                         name == "inputs" || name == "labels";
    return forward ? kForward : kOther;
  }

  /// The index of a row's tensor, made where it is new.
  std::size_t Lookup(Process* process, const format::StatisticRow& row) const {
    const auto found = process->index.find(row.name);
    if (found != process->index.end()) return found->second;
    const std::size_t at = process->tensors.size();
    process->index.emplace(std::string(row.name), at);
    Tensor& tensor = process->tensors.emplace_back();
    tensor.name = row.name;
    tensor.collection = CollectionOf(row.collection);
    const bool state =
        row.collection == "optimizer_state" || row.collection == "optimizer_variables";
    const bool data = row.collection == "inputs" || row.collection == "labels";
    tensor.nan_alone = selection_.empty() && (state || data);
    return at;
  }

  void OnStatistic(const format::StatisticRow& row, std::uint32_t series, Reporter* reporter) {
    if (row.count == 0) return;
    Process* process = Find(row, reporter);
    if (process == nullptr || Beside(process, row.mode) || process->Late(row.step)) return;
    if (row.step != process->capture_step) {
      Judge(process, false, reporter);
      process->BeginCapture(row);
    }
    const std::size_t at = places_.Find(process, series, [&] { return Lookup(process, row); });
    const std::uint64_t bad = std::min(row.count, row.nan_count + row.inf_count);
    const std::uint64_t finite = row.count - bad;
    const double size =
        finite == 0 ? std::nan("") : row.l2 / std::sqrt(static_cast<double>(finite));
    process->captured.push_back({at, row.count, row.nan_count, row.inf_count, size,
                                 std::max(std::abs(row.min), std::abs(row.max))});
  }

  /// What a tensor of the collection is in a normal window: gradients the largest of all, since
  /// single ones begin at zero; weights the median one.
  static double NormalOf(const Process& process, Collection collection) {
    std::vector<double> sizes;
    for (const Tensor& t : process.tensors) {
      if (t.collection == collection && t.captures > 0) sizes.push_back(t.normal);
    }
    if (sizes.empty()) return 0;
    return collection == kWeights ? MedianOf(std::move(sizes))
                                  : *std::max_element(sizes.begin(), sizes.end());
  }

  /// All tensors of one step are there. `skipped`: a gradient scaler threw its gradients away.
  void Judge(Process* process, bool skipped, Reporter* reporter) {
    if (process->capture_step < 0) return;
    const std::int64_t step = process->EndCapture();
    judged_.clear();
    judged_.swap(process->captured);
    has_data_ = true;
    // They change in the first captures of a tensor alone.
    if (!process->normals) {
      process->normals.emplace();
      for (std::size_t of = 0; of < kCollections; ++of) {
        (*process->normals)[of] = NormalOf(*process, static_cast<Collection>(of));
      }
    }
    const std::array<double, kCollections> normals = *process->normals;
    std::vector<Bad> bad;
    bool not_finite = false;
    bool recovered = false;
    std::int64_t good_step = step;
    for (const Sample& s : judged_) {
      Tensor& tensor = process->tensors[s.tensor];
      tensor.presence.See(step);
      if (skipped && tensor.collection == kGradients) continue;
      // Mostly it is well as it was, and past the captures that are taken for normal.
      if (s.nan == 0 && s.inf == 0 && !tensor.bad && tensor.captures >= normal_ &&
          !(s.size > growth_ * std::max(tensor.normal, normals[tensor.collection]))) {
        ++tensor.finite_in_row;
        tensor.broken = tensor.broken && tensor.finite_in_row < 2;
        tensor.good_step = step;
        continue;
      }
      const bool broken = s.nan > 0 || (s.inf > 0 && !only_nan_ && !tensor.nan_alone);
      // One good capture may lie between two bad ones.
      tensor.finite_in_row = broken ? 0 : tensor.finite_in_row + 1;
      tensor.broken = broken || (tensor.broken && tensor.finite_in_row < 2);
      const double normal = std::max(tensor.normal, normals[tensor.collection]);
      const bool judged = tensor.captures >= normal_ && std::isfinite(s.size) && growth_ > 0;
      const bool grown = judged && !tensor.nan_alone && normal > 0 && s.size > growth_ * normal;
      if (broken || grown) {
        bad.push_back({tensor.name, tensor.collection, s.count, s.nan, s.inf, s.size, normal,
                       s.max_abs, grown});
        not_finite = not_finite || broken;
        good_step = std::min(good_step, tensor.good_step);
        tensor.bad = true;
        tensor.good_in_row = 0;
        continue;
      }
      if (std::isfinite(s.size) && tensor.captures < normal_) {
        tensor.normal = std::max(tensor.normal, s.size);
        ++tensor.captures;
        process->normals.reset();
      }
      tensor.good_step = step;
      if (tensor.bad && ++tensor.good_in_row >= 2) {
        tensor.bad = false;
        recovered = true;
      }
    }
    // What grew is no part of an incident about NaN: that is over without it.
    if (bad.empty() || process->not_finite) {
      CloseIfOver(process, step, recovered || !bad.empty(), reporter);
    }
    if (bad.empty()) return;
    // Another defect than growth: an incident of its own.
    if (process->open && not_finite && !process->not_finite) Recover(process, true, reporter);
    if (!process->open) {
      processes_.Open(process, step, process->capture_ns);
      process->not_finite = not_finite;
      process->origin_step = step;
      process->good_step = good_step;
      process->origin = bad;
      process->bad_captures = 0;
      process->cost_from_s = process->worked_s;
    }
    ++process->bad_captures;
    Describe(process, bad);
    reporter->Report(process->incident);
  }

  /// Closes where no tensor is bad any more. One that comes no more is not: nothing is known of it,
  /// and what its last bad capture said stands. `recovered`: the others were well in this capture.
  void CloseIfOver(Process* process, std::int64_t step, bool recovered, Reporter* reporter) {
    process->look_step = step + std::max<std::int64_t>(1, process->widest);
    bool any_bad = false;  // In the way that the incident is about.
    for (Tensor& tensor : process->tensors) {
      if (tensor.presence.GoneAt(step, process->widest)) tensor.bad = false;
      any_bad = any_bad || (tensor.bad && (tensor.broken || !process->not_finite));
    }
    if (!any_bad && process->open) Recover(process, recovered, reporter);
  }

  /// No record of the process follows.
  void End(Process* process, Reporter* reporter) {
    Judge(process, false, reporter);
    if (process->open) Close(process, reporter);
  }

  /// It is open, and no capture follows.
  void Close(Process* process, Reporter* reporter) {
    process->Extend(1);
    reporter->Close(process->incident);
    process->open = false;
  }

  /// It is over. `until_now`: it lasted until now, else until it was described last.
  void Recover(Process* process, bool until_now, Reporter* reporter) {
    if (until_now) process->Extend(1);
    reporter->Recover(process->incident);
    process->open = false;
  }

  static std::string Elements(std::uint64_t bad, std::uint64_t all, std::string_view what) {
    if (all == 1) return fmt::format("its only element is {}", what);
    return bad == all ? fmt::format("all {} elements are {}", all, what)
                      : fmt::format("{} of {} elements are {}", bad, all, what);
  }

  /// Whether a tensor says more of the cause. Of NaN the first that a module gives; else the one
  /// nearest the loss: they pass from there to the layers before it, in backward, and parameters
  /// come in the order of the model. Of growth a weight, then an output, then the larger.
  static bool SaysMore(const Bad& bad, const Bad& than, bool not_finite) {
    if (not_finite) return than.collection != kForward && bad.collection != kWeights;
    // What an output or a gradient is follows from the weights.
    const auto follows = [](const Bad& b) {
      return b.collection == kForward ? 1 : b.collection == kGradients ? 2 : 0;
    };
    if (follows(bad) != follows(than)) return follows(bad) < follows(than);
    return bad.size / bad.normal > than.size / than.normal;
  }

  void Describe(Process* process, const std::vector<Bad>& now) {
    process->Extend(1);
    Incident& incident = process->incident;
    // Weights tell of an earlier step than gradients do.
    const Bad* source = nullptr;
    std::size_t weights = 0;
    std::size_t gradients = 0;
    for (const Bad& b : process->origin) {
      weights += b.collection == kWeights ? 1 : 0;
      gradients += b.collection == kGradients ? 1 : 0;
      const bool broken = b.nan + b.inf > 0;
      if (process->not_finite && !broken) continue;
      if (source == nullptr || SaysMore(b, *source, process->not_finite)) source = &b;
    }
    if (process->not_finite) {
      incident.severity = Severity::kHigh;
      const bool nan = source->nan > 0;
      incident.message = fmt::format("{} in {}", nan ? "NaN" : "Inf", source->name);
      const std::string what =
          Elements(nan ? source->nan : source->inf, source->count, nan ? "NaN" : "Inf");
      const std::string before =
          process->good_step >= 0 ? fmt::format(" (all was finite in step {})", process->good_step)
                                  : std::string();
      if (weights == 0 && source->collection == kForward) {
        incident.cause = fmt::format(
            "In step {} {}{}, while all weights are finite: the forward pass makes them, there or "
            "before it, or they come with the data.",
            process->origin_step, what, before);
        incident.advice =
            "Look at what this tensor is computed from: the inputs of that step first, then a "
            "division, square root or logarithm at 0, and sums that float16 cannot hold.";
      } else if (weights == 0) {
        incident.cause = fmt::format(
            "In step {} {}{}, while all weights are finite: the backward pass makes them, in this "
            "tensor or between it and the loss.",
            process->origin_step, what, before);
        incident.advice =
            "Look there for a division, square root, norm or logarithm at 0 and add an epsilon "
            "inside it; torch.autograd.set_detect_anomaly(True) names the line. What replaces NaN "
            "by 0 hides that these weights do not learn.";
      } else {
        incident.cause = fmt::format(
            "In step {} {}{}; {} {} and {} {} are not finite, so the weights were lost in an "
            "earlier step.",
            process->origin_step, what, before, weights, weights == 1 ? "weight" : "weights",
            gradients, gradients == 1 ? "gradient" : "gradients");
        // A loss that was finite came from weights that were. Before the first step there is no
        // checkpoint.
        const std::int64_t good = process->loss_lost
                                      ? std::max(process->good_step, process->finite_step)
                                      : process->good_step;
        incident.advice = fmt::format(
            "{} Run again with `--rule NonFiniteOrigin`: it names the first module and step that "
            "is not finite.",
            good > 0
                ? fmt::format("Go back to a checkpoint that was made before step {} ended.", good)
                : "No step after the first is known to have been finite, so there is no "
                  "checkpoint to go back to: start again once the cause is mended.");
      }
    } else {
      const bool stays = source->collection == kWeights || source->collection == kOther;
      incident.severity = std::max(incident.severity, stays ? Severity::kHigh : Severity::kMedium);
      const Bad* newest = source;
      for (const Bad& b : now) {
        if (b.name == source->name) newest = &b;
      }
      incident.message = fmt::format("{} grew {}-fold", source->name,
                                     Figure(newest->size / std::max(newest->normal, 1e-300)));
      incident.cause = fmt::format(
          "Its elements are {} in root mean square, {} in the first captures{}.",
          Figure(newest->size), Figure(newest->normal),
          process->origin.size() > 1 ? fmt::format("; {} tensors grew so", process->origin.size())
                                     : std::string());
      incident.advice =
          source->collection == kForward
              ? "Look at what it is computed from: inputs of the model that grow (normalize them), "
                "else the weights before it and the learning rate."
          : stays
              ? "Look at what adds to this weight besides its gradient: the sign of a penalty or "
                "decay, then the learning rate."
              : "Clip gradients (clip_grad_norm_) and lower the learning rate.";
    }
    incident.confidence = process->not_finite ? 1 : process->bad_captures > 1 ? 0.95 : 0.8;

    nlohmann::ordered_json evidence;
    evidence["step"] = process->origin_step;
    evidence["tensor"] = source->name;
    evidence["elements"] = source->count;
    if (process->not_finite) {
      evidence["nan"] = source->nan;
      evidence["inf"] = source->inf;
    } else {
      evidence["size"] = Rounded(source->size);
      evidence["normal_size"] = Rounded(source->normal);
      evidence["max_abs"] = Rounded(source->max_abs);
    }
    if (process->good_step >= 0) evidence["last_good_capture"] = process->good_step;
    evidence["bad_weights"] = weights;
    evidence["bad_gradients"] = gradients;
    evidence["bad_captures"] = process->bad_captures;
    nlohmann::ordered_json names = nlohmann::ordered_json::array();
    for (const Bad& b : process->origin) {
      if (names.size() < kNamed) names.push_back(b.name);
    }
    evidence["tensors"] = names;
    if (process->loss_finite) evidence["loss_finite"] = *process->loss_finite;
    incident.evidence = JsonText(evidence);
  }

  TensorSelection selection_;
  const bool only_nan_;
  const double growth_;
  const std::int64_t normal_;

  TensorPlaces places_;
  std::vector<Sample> judged_;  ///< The capture that is judged now.
  ProcessTable<Process> processes_;
  std::uint32_t writer_ = 0;  ///< Of the record that is read.
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kExplodingTensorDesc{
    .name = "ExplodingTensor",
    .summary = "A weight or gradient holds NaN or Inf, or grew out of all proportion.",
    .formula =
        "High where a captured tensor (of those that collection_names or tensor_regex names, where "
        "either is given) has a NaN, or an Inf unless only_nan. Of inputs, labels and the state of "
        "optimizers that are not so named NaN alone counts: a mask holds Inf, a count of steps "
        "grows. Gradients of a step that a gradient scaler skipped do not count. size = root mean "
        "square of the finite elements; normal = the largest size of the tensor in its first "
        "normal_captures, and at least what is usual in its collection: the median of the weights, "
        "the largest of the gradients. A tensor explodes where size > growth_factor × normal: "
        "medium for a gradient and for what a layer is given or gives, else high. Over where each "
        "tensor that was bad was well in two of its captures, or stays away for four times the "
        "widest distance of its captures; and where "
        "its process ends. The tensor named is the first of the forward pass, else the one nearest "
        "the loss, for NaN and Inf, else the weight that grew most, then the output, then the "
        "gradient. Cost = time "
        "of the steps since the first bad capture, less waits for data, and less those whose loss "
        "is no number (LossNotDecreasing's).",
    .how_to_fix =
        "Go back to the last checkpoint in which all was finite. Look for a division, square root, "
        "norm or logarithm at 0; lower the learning rate; clip gradients; with float16 use a "
        "gradient scaler or bfloat16.",
    .table_mask =
        store::MaskOf(format::TableId::kStatistics) | store::MaskOf(format::TableId::kSteps) |
        store::MaskOf(format::TableId::kScalars) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .standing = {.theme = Theme::kNumbers, .order = 1},
};

std::unique_ptr<Rule> MakeExplodingTensor(const Parameters& parameters) {
  return std::make_unique<ExplodingTensor>(parameters);
}

}  // namespace telltale::rules::exploding_tensor
