// SPDX-License-Identifier: Apache-2.0
// Layers of tanh or sigmoid most of whose outputs have no slope, by the events `batch.gates`.
// Thread safety: none. Memory: a few numbers a layer.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rules/builtin/loop_rule.h"
#include "rules/builtin/numbers.h"

namespace telltale::rules {

struct BatchGatesProcess : LoopProcess {
  struct Layer {
    std::string function;
    double share = 0;             ///< The newest look's, in percent.
    std::int64_t bad_in_row = 0;  ///< Looks.
    std::int64_t good_in_row = 0;
    std::int64_t since_step = -1;  ///< Of the first bad look in the row.
    std::int64_t since_ns = 0;
    bool ill = false;
  };
  std::vector<Layer> layers;  ///< From the first to the last.
  std::int64_t looks = 0;
};

class BatchGates final : public LoopRule<BatchGatesProcess> {
 public:
  /// `threshold`: percent of the outputs; `patience`: looks in a row.
  BatchGates(double threshold, std::int64_t patience)
      : threshold_(threshold), patience_(std::max<std::int64_t>(1, patience)) {}

 protected:
  std::string Lacks() const override { return "no hidden tanh or sigmoid layer was seen"; }
  bool Reads(std::string_view kind) const override { return kind == "batch.gates"; }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               BatchGatesProcess* process) override {
    const auto layers = data.find("layers");
    if (layers == data.end() || !layers->is_array() || layers->size() > kMostLayers) return;
    // Another model's graph: its layers are others.
    if (process->layers.size() != layers->size()) {
      process->layers.assign(layers->size(), {});
      process->looks = 0;
    }
    ++process->looks;
    for (std::size_t i = 0; i < layers->size(); ++i) {
      const nlohmann::json& told = (*layers)[i];
      const double share = told.is_object() ? NumberIn(told, "share", -1) : -1;
      if (!(share >= 0 && share <= 1)) continue;
      Look(event, TextIn(told, "function"), 100 * share, &process->layers[i]);
    }
    SeesData();
    Judge(process);
  }

 private:
  static constexpr std::size_t kMostLayers = 64;
  static constexpr std::int64_t kRecovery = 2;  ///< Good looks in a row that make it well.

  void Look(const format::EventRow& event, std::string function, double share,
            BatchGatesProcess::Layer* layer) const {
    layer->function = std::move(function);
    layer->share = share;
    if (share <= threshold_) {
      layer->bad_in_row = 0;
      if (++layer->good_in_row >= kRecovery) layer->ill = false;
      return;
    }
    layer->good_in_row = 0;
    if (layer->bad_in_row++ == 0) {
      layer->since_step = std::max<std::int64_t>(0, event.step);
      layer->since_ns = event.time_ns;
    }
    if (layer->bad_in_row >= patience_) layer->ill = true;
  }

  void Judge(BatchGatesProcess* process) {
    const auto& layers = process->layers;
    const auto ill = std::count_if(layers.begin(), layers.end(), [](auto& l) { return l.ill; });
    if (ill == 0) {
      TakeBack(process, "");
      return;
    }
    const auto worst =
        std::max_element(layers.begin(), layers.end(), [](const auto& a, const auto& b) {
          return std::pair(a.ill, a.share) < std::pair(b.ill, b.share);
        });
    Incident incident = BeginAt(worst->since_step, worst->since_ns, Severity::kMedium);
    const auto count = static_cast<std::int64_t>(layers.size());
    incident.message = fmt::format("{} of {} activation layers are saturated", ill, count);
    const std::string more = MoreLikeIt(static_cast<std::size_t>(ill));
    incident.cause = fmt::format(
        "{} % of the outputs of the {} layer {} of {} have no slope, in each of the last {} steps "
        "that were checked{}: no gradient passes through them.",
        Plain(worst->share), worst->function, worst - layers.begin() + 1, count, worst->bad_in_row,
        more);
    incident.advice =
        worst->since_step < kFirstSteps
            ? "It is so from the first steps on: scale the inputs, initialize the weights before "
              "the layer by Xavier's rule, or put a normalization between."
            : fmt::format(
                  "It began about step {}: lower the learning rate or put a normalization before "
                  "the activation.",
                  worst->since_step);
    incident.confidence = 0.85;
    nlohmann::ordered_json evidence;
    evidence["threshold"] = threshold_;
    evidence["looks"] = process->looks;
    for (const auto& layer : layers) {
      evidence["layers"].push_back({{"function", layer.function}, {"share", Rounded(layer.share)}});
    }
    incident.evidence = JsonText(evidence);
    Say(process, "", std::move(incident));
  }

  static constexpr std::int64_t kFirstSteps = 16;

  const double threshold_;
  const std::int64_t patience_;
};

}  // namespace telltale::rules
