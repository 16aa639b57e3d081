// SPDX-License-Identifier: Apache-2.0
// PoorWeightInitialization: the weights begin so that layers hardly learn, or far too large.
//
// As in SageMaker Debugger's rule of this name, in the first steps: variances that differ from
// layer to layer, gradients that are nearly all the same, a loss that does not fall. A loss alone
// is not enough here: with a learning rate that is warmed up it stands still in every training, and
// it says nothing of weights. Nor are weights alone: the initialization that PyTorch gives to a
// plain network has variances that differ more than tenfold, and it trains well. So both are
// needed: what the first captures show, and a loss that does not fall in the steps after them.
//
// Weights that are far too large show in what is recorded in any case. Their size alone is no
// defect either (a normalization behind them takes it away, pretrained ones are as they are): a
// loss far above that of guessing has to go with it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/captures.h"
#include "rules/builtin/numbers.h"
#include "rules/builtin/processes.h"
#include "rules/builtin/training_facts.h"
#include "rules/builtin/weight_scale.h"
#include "rules/groups.h"
#include "rules/registry.h"
#include "rules/tensor_pattern.h"

namespace telltale::rules::poor_weight_initialization {
namespace {

constexpr char kRegex[] = ".*relu_input";

constexpr ParameterDesc kParameters[] = {
    {"activation_inputs_regex", 0, "",
     "Names of what goes into activations; where none comes, what ReLU layers give is judged.",
     kRegex},
    {"threshold", 10.0, "",
     "Ratio of the largest to the smallest variance of the layers above which they differ."},
    {"distribution_range", 0.001, "",
     "Distance of the 5th and 95th percentile of a gradient below which it is too narrow."},
    {"patience", 5, "steps", "Steps without a lower loss after which it counts as not falling."},
    {"steps", 10, "steps", "So many first steps are looked at."},
    {"largest_scale", 10, "",
     "Standard deviation of a weight, by that of Kaiming's initialization, above which it is too "
     "large."},
};

constexpr CaptureNeed kCaptures[] = {
    {"weights", "statistics", 100},
    {"biases", "statistics", 100},
    {"gradients", "statistics", 100},
    {.collection = "activations", .take = "statistics", .asked_only = true},
    {.collection = "gradients", .take = "histogram", .asked_only = true},
    {.collection = "",
     .take = "statistics",
     .include = "{activation_inputs_regex}",
     .asked_only = true},
};

constexpr std::string_view kPrefix = "gradient/";
constexpr std::size_t kNamed = 8;  ///< Layers that the evidence names.
/// Of a normal distribution, in standard deviations: from the 5th to the 95th percentile.
constexpr double kNormalSpread = 3.2897;
/// A loss has fallen, and the incident is over, where it lost this share of its first value.
constexpr double kFallen = 0.1;
/// It falls where the newest losses are below the first ones by this share, and than by their
/// noise.
constexpr double kFalls = 0.02;
constexpr std::size_t kFirstLosses = 10;
/// A loss is far above that of guessing where it is so many times as high.
constexpr double kFarAbove = 5;
/// Of the usual size: weights through which hardly a gradient comes.
constexpr double kFarSmaller = 0.02;
constexpr std::size_t kNewestLosses = 20;
/// Steps in which a loss of good weights falls; of a run that ends sooner, the fewest that tell.
constexpr std::int64_t kPatienceSteps = 100;
constexpr std::int64_t kFewestSteps = 30;
/// Such a part of the widest gradient of a capture is one that has vanished on its way.
constexpr double kVanished = 1e-6;
/// Places of 0.05 and 0.95 in the column `quantiles`.
constexpr std::size_t kLow = 1;
constexpr std::size_t kHigh = 7;

/// The distance of the two percentiles that a histogram has.
std::optional<double> SpreadOf(const format::HistogramRow& row) {
  const auto quantiles = ParseJson(row.quantiles);
  if (!quantiles.is_array() || quantiles.size() <= kHigh) return std::nullopt;
  if (!quantiles[kLow].is_number() || !quantiles[kHigh].is_number()) return std::nullopt;
  return quantiles[kHigh].get<double>() - quantiles[kLow].get<double>();
}

class PoorWeightInitialization final : public LoopedRule<PoorWeightInitialization> {
 public:
  explicit PoorWeightInitialization(const Parameters& p)
      : pattern_(p.Text("activation_inputs_regex")),
        threshold_(p.Get("threshold")),
        range_(p.Get("distribution_range")),
        patience_(std::max<std::int64_t>(1, p.GetInt("patience"))),
        steps_(std::max<std::int64_t>(1, p.GetInt("steps"))),
        largest_scale_(p.Get("largest_scale")) {}

  bool Wants(const Series& series) override {
    const Kind kind = KindOf(series);
    if (kind == Kind::kNone) return false;
    if (kinds_.size() <= series.id) kinds_.resize(series.id + 1, Kind::kNone);
    kinds_[series.id] = kind;
    return true;
  }

  void OnRecord(const Record& record, Reporter* reporter) override {
    if (const auto* statistic = record.As<format::StatisticRow>()) {
      if (statistic->step < steps_) OnStatistic(*statistic, record, reporter);
    } else if (const auto* histogram = record.As<format::HistogramRow>()) {
      if (histogram->step < steps_) OnHistogram(*histogram, record.writer, reporter);
    } else if (const auto* scalar = record.As<format::ScalarRow>()) {
      kinds_[record.series] == Kind::kRate ? OnRate(*scalar, record.writer, reporter)
                                           : OnLoss(*scalar, record.writer, reporter);
    } else if (const auto* step = record.As<format::StepRow>()) {
      if (step->mode == "TRAIN") OnStep(*step, record.writer, reporter);
    } else if (const auto* event = record.As<format::EventRow>()) {
      if (event->kind == "loss.function") {
        Process* process = Find(*event, record.writer, reporter);
        if (process != nullptr && !process->judged) process->facts.See(*event);
      } else if (event->kind == "process.exit") {
        processes_.End(*event, record.writer, [&](Process* process) { End(process, reporter); });
      }
    }
  }

  void OnEnd(Reporter* reporter) override {
    for (auto& [key, process] : processes_) End(&process, reporter);
  }

  bool has_data() const override { return has_data_; }

 private:
  enum class Kind : std::uint8_t {
    kNone,
    kInput,
    kOutput,
    kGradient,
    kWeight,
    kBias,
    kLoss,
    kRate
  };

  struct Found {
    std::string name;
    double value = 0;
  };

  struct Process : TensorProcess {
    // Of each layer the newest capture of the first steps.
    std::map<std::string, double, std::less<>> inputs, outputs;
    std::map<std::string, double, std::less<>> spreads;  ///< Of gradients.
    std::map<std::string, bool, std::less<>> measured;   ///< A spread is from a histogram.
    std::set<std::string, std::less<>> sparse;  ///< Gradients of which many elements are exactly 0.

    std::int64_t losses = 0;
    std::int64_t loss_step = -1;
    double first_loss = 0;
    double best_loss = 0;
    std::int64_t worse_in_row = 0;
    bool flat = false;  ///< It did not fall for `patience` of the first steps.

    WeightScale scale;
    TrainingFacts facts;
    bool large = false;  ///< The incident is about weights that are too large.

    bool judged = false;       ///< The captures of the first steps were.
    bool suspected = false;    ///< They are ill: whether the loss falls is waited for.
    std::int64_t from_ns = 0;  ///< Time of the newest of them.
    double share = 0;
    std::vector<double> first;  ///< The first losses,
    std::deque<double> newest;  ///< and the newest.
    LearningRates rates;
    double rate_before = 0;  ///< At the newest look whether it rises.
    std::int64_t wait_until = 0;
  };

  Kind KindOf(const Series& series) const {
    if (series.mode != "TRAIN" && series.mode != "GLOBAL") return Kind::kNone;
    if (series.table == format::TableId::kScalars) {
      if (LearningRates::IsRate(series.name)) return Kind::kRate;
      return series.name == "loss" ? Kind::kLoss : Kind::kNone;
    }
    const bool gradient = series.collection == "gradients" && !series.name.ends_with("bias");
    if (series.table == format::TableId::kHistograms) {
      return gradient ? Kind::kGradient : Kind::kNone;
    }
    if (series.table != format::TableId::kStatistics) return Kind::kNone;
    if (gradient) return Kind::kGradient;
    if (pattern_.Matches(series.name)) return Kind::kInput;
    if (series.collection == "weights") return Kind::kWeight;
    if (series.collection == "biases") return Kind::kBias;
    // Several outputs: attention weights, states.
    return series.collection == "activations" && series.name.find(".output.") == std::string::npos
               ? Kind::kOutput
               : Kind::kNone;
  }

  template <class Row>
  Process* Find(const Row& row, std::uint32_t writer, Reporter* reporter) {
    return processes_.Find(row, writer, [&](Process* process) { Close(process, false, reporter); });
  }

  template <class Row>
  Process* Begin(const Row& row, std::uint32_t writer, Reporter* reporter) {
    Process* process = Find(row, writer, reporter);
    if (process == nullptr || process->judged) return nullptr;
    if (row.step >= process->judged_step) {
      process->judged_step = row.step;
      process->capture_ns = row.time_ns;
    }
    return process;
  }

  static std::string_view Plainly(std::string_view name) {
    return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  }

  void OnStatistic(const format::StatisticRow& row, const Record& record, Reporter* reporter) {
    // One element has no spread; NaN and Inf are ExplodingTensor's.
    if (row.count < 2 || row.nan_count + row.inf_count > 0) return;
    Process* process = Begin(row, record.writer, reporter);
    if (process == nullptr) return;
    const Kind kind = kinds_[record.series];
    const std::string name(Plainly(row.name));
    if (kind == Kind::kWeight) {
      process->scale.SeeWeight(name, row.count, row.std);
    } else if (kind == Kind::kBias) {
      process->scale.SeeBias(name, row.count);
    } else if (kind == Kind::kGradient) {
      // A histogram says it better.
      if (IsSparse(name, row)) {
        process->sparse.insert(name);
        process->spreads.erase(name);
      } else if (!process->measured[name]) {
        process->spreads[name] = kNormalSpread * row.std;
      }
    } else if (kind == Kind::kInput) {
      process->inputs[name] = row.std * row.std;
    } else if (row.min >= 0 && row.zero_count > 0) {
      process->outputs[name] = row.std * row.std;
    }
  }

  /// Rows of an embedding whose tokens the batch does not hold have a gradient of exactly 0,
  /// however well the layer begins: what is left says little of how wide it is.
  static bool IsSparse(std::string_view name, const format::StatisticRow& row) {
    if (row.zero_count == 0 || row.zero_count >= row.count) return false;
    return 2 * row.zero_count >= row.count || name.find("embed") != std::string_view::npos;
  }

  void OnHistogram(const format::HistogramRow& row, std::uint32_t writer, Reporter* reporter) {
    if (row.taken < 2) return;
    Process* process = Begin(row, writer, reporter);
    const auto spread = process != nullptr ? SpreadOf(row) : std::nullopt;
    if (!spread) return;
    const std::string name(Plainly(row.name));
    if (process->sparse.contains(name)) return;
    process->measured[name] = true;
    process->spreads[name] = *spread;
  }

  void OnRate(const format::ScalarRow& rate, std::uint32_t writer, Reporter* reporter) {
    Process* process = Find(rate, writer, reporter);
    if (process != nullptr) process->rates.See(rate.name, rate.value, {rate.step, rate.time_ns, 0});
  }

  void OnLoss(const format::ScalarRow& loss, std::uint32_t writer, Reporter* reporter) {
    Process* process = Find(loss, writer, reporter);
    // Of several in one step (two models in turn) the first.
    if (process == nullptr || loss.step <= process->loss_step) return;
    process->loss_step = loss.step;
    const bool first = process->losses++ == 0;
    if (first) process->first_loss = process->best_loss = loss.value;
    if (!first && loss.value < process->best_loss) {
      process->best_loss = loss.value;
      process->worse_in_row = 0;
    } else if (!first) {
      ++process->worse_in_row;
    }
    if (std::isfinite(loss.value)) {
      if (process->first.size() < kFirstLosses) process->first.push_back(loss.value);
      process->newest.push_back(loss.value);
      if (process->newest.size() > kNewestLosses) process->newest.pop_front();
    }
    if (loss.step < steps_ && process->worse_in_row >= patience_) process->flat = true;
    if (process->open && Fallen(*process)) Close(process, true, reporter);
  }

  /// The loss is clearly below its first value. One that was no number at first never is.
  static bool Fallen(const Process& process) {
    if (process.large) return process.best_loss <= Chance(process);
    return process.first_loss - process.best_loss > kFallen * std::abs(process.first_loss);
  }

  /// The loss of guessing; 0: not known.
  static double Chance(const Process& process) {
    const auto& loss = process.facts.loss;
    if (!loss || !loss->plain || loss->softmax_twice) return 0;
    if (loss->name == "bce" || loss->name == "bce_with_logits") return std::log(2.0);
    const bool classes = loss->name == "cross_entropy" || loss->name == "nll";
    return classes && loss->classes >= 2 ? std::log(static_cast<double>(loss->classes)) : 0;
  }

  /// The newest losses are below the first ones, by more than noise.
  static bool Falls(const Process& process) {
    if (process.first.empty()) return false;
    const std::vector<double> newest(process.newest.begin(), process.newest.end());
    const double before = MedianOf(process.first);
    const double now = MedianOf(newest);
    std::vector<double> apart;
    for (const double value : newest) apart.push_back(std::abs(value - now));
    const double noise = 1.2533 * 1.4826 * MedianOf(std::move(apart)) /
                         std::sqrt(static_cast<double>(newest.size()));
    return before - now > std::max(kFalls * std::abs(before), 2 * noise);
  }

  void OnStep(const format::StepRow& step, std::uint32_t writer, Reporter* reporter) {
    Process* process = Find(step, writer, reporter);
    if (process == nullptr || !process->BeginStep(step)) return;
    process->CountWork(step);
    // One later: the loss and a histogram of a step may come behind it.
    if (!process->judged && step.step >= steps_) {
      Judge(process);
      JudgeScale(process, reporter);
    }
    if (process->suspected && step.step >= process->wait_until) Wait(process, step.step, reporter);
  }

  /// Whether the loss falls shows only once there is a learning rate for it.
  void Wait(Process* process, std::int64_t step, Reporter* reporter) {
    const double rate = process->rates.now();
    const bool rises = std::isfinite(rate) && rate > 1.01 * process->rate_before;
    process->rate_before = std::isfinite(rate) ? rate : 0;
    if (process->wait_until == 0 || rises) {
      process->wait_until = step + kPatienceSteps;
      return;
    }
    Decide(process, reporter);
  }

  void Decide(Process* process, Reporter* reporter) {
    process->suspected = false;
    if (Falls(*process) || Fallen(*process)) return;
    Say(process, reporter);
  }

  static Found Extreme(const std::map<std::string, double, std::less<>>& values, bool largest) {
    const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto at = largest ? std::max_element(values.begin(), values.end(), less)
                            : std::min_element(values.begin(), values.end(), less);
    return {at->first, at->second};
  }

  void Judge(Process* process) {
    process->judged = true;
    const Shown found = ShownBy(*process);
    if (found.any) has_data_ = true;
    process->suspected = found.differ || found.too_narrow;
    process->from_ns = process->capture_ns;
  }

  /// Weights are far too large, and the first losses far above that of guessing.
  void JudgeScale(Process* process, Reporter* reporter) {
    if (!process->scale.FarSmaller(kFarSmaller).empty()) process->suspected = has_data_ = true;
    const auto layer = process->scale.Largest();
    const double chance = Chance(*process);
    if (!layer || chance <= 0 || process->first.empty()) return;
    has_data_ = true;
    const double loss = process->first.front();
    if (layer->times() <= largest_scale_ || loss <= kFarAbove * chance) return;
    process->suspected = false;
    process->large = true;
    SayScale(process, *layer, loss, chance, reporter);
  }

  void SayScale(Process* process, const WeightScale::Layer& layer, double loss, double chance,
                Reporter* reporter) {
    processes_.Open(process, 0, process->from_ns);
    process->cost_from_s = 0;
    process->share = 1;
    process->Extend(process->share);
    Incident& incident = process->incident;
    incident.severity = Severity::kMedium;
    incident.message = fmt::format("The initial weights of {} are {} times as large as is usual",
                                   layer.name, Figure(layer.times()));
    incident.cause = fmt::format(
        "Their standard deviation is {}; for {} inputs Kaiming's initialization has {}. The first "
        "loss is {}, where guessing gives {}: the outputs are out of scale.",
        Figure(layer.std), layer.inputs, Figure(layer.usual), Figure(loss), Figure(chance));
    incident.advice =
        "Look where these weights are set or multiplied, and initialize the layer for its "
        "activation (nn.init.kaiming_normal_ before ReLU, xavier_normal_ before tanh and "
        "sigmoid).";
    incident.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["tensor"] = layer.name;
    evidence["std"] = Rounded(layer.std);
    evidence["usual_std"] = Rounded(layer.usual);
    evidence["inputs"] = layer.inputs;
    evidence["times"] = Rounded(layer.times());
    evidence["first_loss"] = Rounded(loss);
    evidence["loss_of_guessing"] = Rounded(chance);
    incident.evidence = JsonText(evidence);
    reporter->Report(incident);
  }

  /// What the captures of the first steps show.
  struct Shown {
    bool any = false;  ///< There were such.
    bool by_inputs = false;
    bool differ = false;
    bool too_narrow = false;
    std::optional<double> ratio;
    Found largest, smallest;
    std::optional<Found> narrow;
  };

  Shown ShownBy(const Process& process) const {
    Shown found;
    found.by_inputs = process.inputs.size() >= 2;
    const auto& variances = found.by_inputs ? process.inputs : process.outputs;
    if (variances.size() < 2 && process.spreads.empty()) return found;
    found.any = true;
    if (variances.size() >= 2) {
      found.largest = Extreme(variances, true);
      found.smallest = Extreme(variances, false);
      if (found.largest.value > 0) {
        found.ratio = found.largest.value / std::max(found.smallest.value, 1e-300);
      }
    }
    if (!process.spreads.empty()) found.narrow = Extreme(process.spreads, false);
    found.differ = found.ratio && *found.ratio > threshold_;
    found.too_narrow = found.narrow && found.narrow->value < range_;
    return found;
  }

  void Say(Process* process, Reporter* reporter) {
    const Shown found = ShownBy(*process);
    const auto& variances = found.by_inputs ? process->inputs : process->outputs;
    const auto& [any, by_inputs, differ, too_narrow, ratio, largest, smallest, narrow] = found;
    processes_.Open(process, 0, process->from_ns);
    process->cost_from_s = 0;
    process->share = 1;
    process->Extend(process->share);
    Incident& incident = process->incident;
    // Beside the widest of the same capture it is nothing: no histogram is needed to know that. One
    // that is exactly 0 may be meant so: behind a layer that begins at zero (LoRA).
    const bool vanished = too_narrow && narrow->value > 0 &&
                          narrow->value < kVanished * Extreme(process->spreads, true).value;
    // A narrow gradient with neither its histogram nor what comes through the layers says little.
    const bool alone = too_narrow && !differ && !vanished && process->outputs.empty() &&
                       process->inputs.empty() && !process->measured[narrow->name];
    incident.severity = process->losses == 0 || alone ? Severity::kLow
                        : differ                      ? Severity::kHigh
                                                      : Severity::kMedium;
    incident.message = differ     ? "Variances of layers differ at the start"
                       : vanished ? "Gradients vanish from the first steps on"
                                  : "Gradients are very narrow at the start";
    const std::vector<WeightScale::Layer> small = process->scale.FarSmaller(kFarSmaller);
    if (!small.empty()) {
      const WeightScale::Layer& layer = small.front();
      incident.severity = std::max(incident.severity, Severity::kMedium);
      incident.message = fmt::format(
          "The initial weights of {} and {} more {}", layer.name, small.size() - 1,
          layer.std == 0
              ? std::string("are all zero")
              : fmt::format("are {} times smaller than is usual", Figure(1 / layer.times())));
    }
    std::string cause;
    if (!small.empty()) {
      const WeightScale::Layer& layer = small.front();
      cause = fmt::format(
          "The standard deviation of {} is {}; for {} inputs Kaiming's initialization has {}. ",
          layer.name, Figure(layer.std), layer.inputs, Figure(layer.usual));
    }
    const std::size_t begins = cause.size();
    if (differ) {
      cause = fmt::format("The variance of {} is {}, that of {} {}: {} times as much, above {}",
                          largest.name, Figure(largest.value), smallest.name,
                          Figure(smallest.value), Figure(*ratio), Figure(threshold_));
    }
    if (too_narrow) {
      cause += fmt::format(
          "{} 5th and 95th percentile of the gradient of {} are {} apart, less "
          "than {}",
          cause.size() == begins ? "The" : "; the", narrow->name, Figure(narrow->value),
          Figure(range_));
      if (vanished) {
        const Found widest = Extreme(process->spreads, true);
        cause += fmt::format(", that of {} {}", widest.name, Figure(widest.value));
      }
    }
    if (process->losses > 0) {
      cause += fmt::format(
          "{} loss was {} in the first steps and is {} in step {}",
          cause.size() == begins ? "The" : "; the", Figure(MedianOf(process->first)),
          Figure(MedianOf({process->newest.begin(), process->newest.end()})), process->loss_step);
    }
    incident.cause = cause + ".";
    incident.advice =
        "Initialize each layer for its activation (nn.init.kaiming_normal_ before ReLU, "
        "xavier_normal_ before tanh and sigmoid), biases with zero; normalize the inputs; put "
        "normalization between the layers.";
    incident.confidence = process->losses == 0 ? 0.5 : differ ? 0.9 : 0.75;
    nlohmann::ordered_json evidence;
    evidence["steps"] = steps_;
    if (ratio) {
      evidence["variance_ratio"] = Rounded(*ratio);
      evidence["of"] = by_inputs ? "inputs" : "outputs";
      evidence["largest_variance_in"] = largest.name;
      evidence["smallest_variance_in"] = smallest.name;
      nlohmann::ordered_json named = nlohmann::ordered_json::object();
      for (const auto& [name, variance] : variances) {
        if (named.size() < kNamed) named[name] = Rounded(variance);
      }
      evidence["variances"] = std::move(named);
    }
    if (narrow) {
      evidence["narrowest_gradient"] = narrow->name;
      evidence["percentiles_apart"] = Rounded(narrow->value);
      evidence["from_histogram"] = process->measured[narrow->name];
    }
    evidence["loss_flat"] = process->flat;
    if (!small.empty()) {
      nlohmann::ordered_json named = nlohmann::ordered_json::object();
      for (const WeightScale::Layer& layer : small) {
        if (named.size() < kNamed) named[layer.name] = Rounded(layer.std);
      }
      evidence["small_weights_std"] = std::move(named);
      evidence[kExplains] = {"VanishingGradient", "LossNotDecreasing"};
    }
    // Alone a narrow gradient is no more than a sign.
    if (incident.severity == Severity::kLow) evidence[kExplainedBy] = {"VanishingGradient"};
    if (process->losses > 0 && std::isfinite(process->first_loss)) {
      evidence["first_loss"] = Rounded(process->first_loss);
      evidence["best_loss"] = Rounded(process->best_loss);
    }
    incident.evidence = JsonText(evidence);
    reporter->Report(incident);
  }

  void End(Process* process, Reporter* reporter) {
    // A run that ended before its loss was waited for.
    if (process->suspected && process->last_step >= kFewestSteps) Decide(process, reporter);
    if (process->open) Close(process, false, reporter);
  }

  /// `over`: the loss has fallen; else nothing follows.
  void Close(Process* process, bool over, Reporter* reporter) {
    process->Extend(process->share);
    over ? reporter->Recover(process->incident) : reporter->Close(process->incident);
    process->open = false;
  }

  const TensorPattern pattern_;
  const double threshold_, range_;
  const std::int64_t patience_, steps_;
  const double largest_scale_;

  std::vector<Kind> kinds_;  ///< By series.
  ProcessTable<Process> processes_;
  bool has_data_ = false;
};

}  // namespace

const RuleDesc kPoorWeightInitializationDesc{
    .name = "PoorWeightInitialization",
    .summary = "The weights begin so that layers hardly learn, or far too large.",
    .formula =
        "In the captures of the first `steps` TRAIN steps, the newest of each tensor: (a) the "
        "largest variance of what goes into activations (activation_inputs_regex; relu_input also "
        "as relu.input), over the smallest, > threshold; where fewer than two such inputs come, of "
        "the outputs of activations that have zeros and nothing below zero. (b) The 5th and 95th "
        "percentile of the gradient of some parameter that is no bias, is not half zeros and no "
        "embedding with zeros, are less than distribution_range apart; where no histogram comes, "
        "3.29 × its standard deviation, as of "
        "a normal distribution. (c) The loss found no new least value in patience steps in a row. "
        "An incident where (a) or (b), and the loss does not fall in the 100 steps after them: the "
        "median of its newest 20 values is not below that of its first 10 by 2 % and by twice its "
        "standard error; 100 steps more while the learning rate rises (warm-up). Where the run "
        "ends sooner, from 30 steps on. High with (a), medium with (b) alone; low where no loss "
        "came, and with (b) alone where neither histograms nor activations came and no gradient is "
        "a "
        "millionth of the widest. Likewise, medium, where two weights or more, and half of those "
        "that (d) looks at, have at most 0.02 × that √(2 / inputs). Over where the "
        "loss has fallen by 10 % of its first value, and where the process "
        "ends. Medium besides: (d) the standard deviation of a weight that has a bias is > "
        "largest_scale × √(2 / inputs), inputs = elements of the weight / elements of its bias (at "
        "least 4), and the first loss is > 5 × that of guessing, ln classes of a cross entropy, "
        "ln 2 of a binary one, which is the whole loss and not weighted; over where the loss "
        "reaches that of guessing. Cost = time of the steps until then, less waits for data.",
    .how_to_fix =
        "Initialize each layer for its activation (Kaiming before ReLU, Xavier before tanh and "
        "sigmoid), biases with zero, normalize the inputs, put normalization between layers.",
    .table_mask = store::MaskOf(format::TableId::kStatistics) |
                  store::MaskOf(format::TableId::kHistograms) |
                  store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = kCaptures,
    .family = Family::kModel,
    .example =
        "`nn.init.normal_(layer.weight, std=0.01)` in every layer of a deep ReLU network: what "
        "comes through shrinks from layer to layer, and so do the gradients.",
    .standing = {.theme = Theme::kLayers, .order = 0},
};

std::unique_ptr<Rule> MakePoorWeightInitialization(const Parameters& parameters) {
  return std::make_unique<PoorWeightInitialization>(parameters);
}

}  // namespace telltale::rules::poor_weight_initialization
