// SPDX-License-Identifier: Apache-2.0
// Classes that are far rarer than others, or that a model leaves behind, by the events
// `batch.classes`. A model that is left behind by a class in its first steps mostly catches up: so
// that is judged when its process ends. Thread safety: none. Memory: a few numbers a class.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rules/builtin/batch_classes.h"
#include "rules/builtin/loop_rule.h"

namespace telltale::rules {

struct ClassSharesProcess : LoopProcess {
  struct Window {
    std::vector<std::uint64_t> labels, wrong;  ///< By class.
    std::uint64_t samples = 0;
    std::uint64_t all_wrong = 0;
  };
  struct Side {
    std::size_t classes = 0;
    std::vector<std::uint64_t> labels;  ///< Of all, by class.
    std::uint64_t samples = 0;
    Window growing;
    std::deque<Window> full;  ///< The newest last.
    std::int64_t step = -1;
    std::int64_t ns = 0;
  };
  std::array<Side, 2> sides;  ///< Training, evaluation.
};

class ClassShares final : public LoopRule<ClassSharesProcess> {
 public:
  ClassShares(double imbalance, double misprediction, std::uint64_t samples, std::int64_t patience)
      : imbalance_(imbalance),
        misprediction_(misprediction),
        samples_(samples),
        patience_(static_cast<std::size_t>(std::max<std::int64_t>(1, patience))) {}

 protected:
  std::string Lacks() const override { return LabelsLacking(labels_, samples_); }
  bool Reads(std::string_view kind) const override { return kind == "batch.classes"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               ClassSharesProcess* process) override {
    const auto counts = ClassCountsOf(data, kMostClasses);
    if (!counts) return;
    Side& side = process->sides[TextIn(data, "mode") == "EVAL" ? 1 : 0];
    if (side.classes != counts->classes) {
      side = {};
      side.classes = counts->classes;
      side.labels.resize(side.classes);
    }
    Add(*counts, &side);
    side.step = counts->step;
    side.ns = event.time_ns;
    labels_ = std::max(labels_, side.samples);
    if (side.samples >= samples_) SeesData();
  }

  void OnExit(ClassSharesProcess* process) override {
    for (std::size_t at = 0; at < process->sides.size(); ++at) {
      const Side& side = process->sides[at];
      if (side.samples < samples_) continue;
      if (!SayLeftBehind(side, at == 1, process)) SayImbalanced(side, at == 1, process);
    }
  }

 private:
  using Side = ClassSharesProcess::Side;
  using Window = ClassSharesProcess::Window;

  static constexpr std::size_t kMostClasses = 1000;
  static constexpr std::uint64_t kLeastOfClass = 10;

  void Add(const ClassCounts& counts, Side* side) const {
    Window& window = side->growing;
    window.labels.resize(side->classes);
    window.wrong.resize(side->classes);
    for (const ClassCounts::Pair& pair : counts.pairs) {
      side->labels[pair.label] += pair.count;
      window.labels[pair.label] += pair.count;
      if (pair.label == pair.predicted) continue;
      window.wrong[pair.label] += pair.count;
      window.all_wrong += pair.count;
    }
    side->samples += counts.samples;
    window.samples += counts.samples;
    if (window.samples < samples_) return;
    side->full.push_back(std::exchange(window, {}));
    if (side->full.size() > patience_) side->full.pop_front();
  }

  static double ShareOf(std::uint64_t part, std::uint64_t all) {
    return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
  }

  bool IsLeftBehind(const Window& window, std::size_t c) const {
    return window.labels[c] >= kLeastOfClass &&
           LeastShare(static_cast<double>(window.wrong[c]), static_cast<double>(window.labels[c]),
                      1) > misprediction_ &&
           ShareOf(window.all_wrong, window.samples) <= misprediction_ / 2;
  }

  /// Of two classes the rare one may well never be the more probable: nothing is wrong then.
  bool SayLeftBehind(const Side& side, bool evaluation, ClassSharesProcess* process) {
    if (side.classes < 3 || side.full.size() < patience_) return false;
    std::vector<std::size_t> behind;
    for (std::size_t c = 0; c < side.classes; ++c) {
      const bool in_all = std::all_of(side.full.begin(), side.full.end(),
                                      [&](const Window& each) { return IsLeftBehind(each, c); });
      if (in_all) behind.push_back(c);
    }
    if (behind.empty()) return false;
    const std::size_t first = behind.front();
    const Window& window = side.full.back();
    Incident incident = BeginAt(side.step, side.ns, Severity::kMedium);
    incident.message = fmt::format("{} of {} classes left behind in the {}", behind.size(),
                                   side.classes, evaluation ? "evaluation" : "training");
    incident.cause = fmt::format(
        "{:.0f} % of the labels of class {} are predicted wrong, of all labels {:.0f} %; class {} "
        "has {} of {} labels.",
        100 * ShareOf(window.wrong[first], window.labels[first]), first,
        100 * ShareOf(window.all_wrong, window.samples), first, side.labels[first], side.samples);
    incident.advice =
        "Weight the loss by class or sample rare classes more often, and judge by recall of each "
        "class; where the class is not rare, look at its labels.";
    incident.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["of"] = evaluation ? "evaluation" : "training";
    evidence["left_behind"] = behind;
    evidence["labels"] = window.labels[first];
    evidence["mispredicted"] = Rounded(ShareOf(window.wrong[first], window.labels[first]));
    evidence["mispredicted_of_all"] = Rounded(ShareOf(window.all_wrong, window.samples));
    incident.evidence = JsonText(evidence);
    Say(process, evaluation ? "evaluation" : "", std::move(incident));
    return true;
  }

  /// Counts alone harm nothing: many losses are made for such.
  void SayImbalanced(const Side& side, bool evaluation, ClassSharesProcess* process) {
    std::size_t rarest = side.classes;
    std::size_t most = side.classes;
    for (std::size_t c = 0; c < side.classes; ++c) {
      if (side.labels[c] == 0) continue;
      if (rarest == side.classes || side.labels[c] < side.labels[rarest]) rarest = c;
      if (most == side.classes || side.labels[c] > side.labels[most]) most = c;
    }
    if (most == rarest) return;
    const auto many = static_cast<double>(side.labels[most]);
    const auto few = static_cast<double>(side.labels[rarest]);
    const double least = (many - 2 * std::sqrt(many)) / (few + 2 * std::sqrt(few) + 1);
    if (least <= imbalance_) return;
    Incident incident = BeginAt(side.step, side.ns, Severity::kLow);
    incident.message = fmt::format("Classes are imbalanced in the {}: {} to 1",
                                   evaluation ? "evaluation" : "training", Plain(many / few));
    incident.cause = fmt::format("Class {} has {} of {} labels, class {} has {}.", rarest,
                                 side.labels[rarest], side.samples, most, side.labels[most]);
    incident.advice = "Judge by recall of each class, not by accuracy, which hides the rare ones.";
    incident.confidence = 0.9;
    nlohmann::ordered_json evidence;
    evidence["of"] = evaluation ? "evaluation" : "training";
    evidence["labels"] = side.samples;
    evidence["ratio"] = Rounded(many / few);
    incident.evidence = JsonText(evidence);
    Say(process, evaluation ? "evaluation" : "", std::move(incident));
  }

  const double imbalance_;
  const double misprediction_;
  const std::uint64_t samples_;
  const std::size_t patience_;
  std::uint64_t labels_ = 0;  ///< Of training or evaluation, the more.
};

}  // namespace telltale::rules
