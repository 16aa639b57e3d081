// SPDX-License-Identifier: Apache-2.0
// The table of docs/formats/plan.md. Patterns are SageMaker Debugger's, without its look-ahead,
// which RE2 has not (an `exclude` says it), and without its slips: `[A-z]` and `[^/bias]`.
#include "plan/collections.h"

#include <algorithm>
#include <iterator>

namespace telltale::plan {
namespace {

constexpr BuiltIn kBuiltIns[] = {
    {"all", "", "", "", false},
    {"default", "default", "", "", false},
    {"weights", "weights", "weight", "^gradient", true},
    {"biases", "biases", "bias", "^gradient", true},
    {"gradients", "gradients", "^gradient", "", true},
    {"losses", "losses", "[Ll]oss", "[Ll]oss_input|^gradient", true},
    {"metrics", "metrics", "^[A-Za-z]+-[A-Za-z0-9]+$", "", false},
    {"inputs", "inputs", "", "", false},
    {"outputs", "outputs activations predictions", "", "", false},
    {"layers", "layers inputs outputs activations predictions", "", "", false},
    {"activations", "activations", "", "", false},
    {"labels", "labels", "^labels$", "", false},
    {"predictions", "predictions", "^predictions$", "", false},
    {"optimizer_state", "optimizer_state optimizer_variables", "", "", false},
    {"optimizer_variables", "optimizer_state optimizer_variables", "", "", false},
    {"sm_metrics", "sm_metrics", "", "", false},
    {"tensorflow_summaries", "tensorflow_summaries", "", "", false},
    {"hyperparameters", "hyperparameters", "^hyperparameters/", "", false},
    {"feature_importance", "feature_importance", "^feature_importance/", "", false},
    {"average_shap", "average_shap", "^average_shap/", "", false},
    {"full_shap", "full_shap", "^full_shap/", "", false},
    {"trees", "trees", "^trees/", "", false},
};

}  // namespace

std::span<const BuiltIn> BuiltIns() { return kBuiltIns; }

const BuiltIn* FindBuiltIn(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kBuiltIns), std::end(kBuiltIns),
                                         [&](const BuiltIn& known) { return known.name == name; });
  return found == std::end(kBuiltIns) ? nullptr : found;
}

}  // namespace telltale::plan
