// SPDX-License-Identifier: Apache-2.0
// The part of the control page behind its rules: what the plan says of whole collections, so that a
// tensor of a known one need not wait for an answer to its name. docs/formats/channel.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "format/channel_layout.h"

namespace telltale::format {

/// Collections that adapters know, by their place in the table. Only added to.
inline constexpr std::string_view kKnownCollections[] = {"weights",      "biases",
                                                         "gradients",    "losses",
                                                         "metrics",      "inputs",
                                                         "outputs",      "layers",
                                                         "activations",  "labels",
                                                         "predictions",  "optimizer_state",
                                                         "default",      "optimizer_variables",
                                                         "sm_metrics",   "hyperparameters",
                                                         "trees",        "feature_importance",
                                                         "average_shap", "full_shap"};
inline constexpr std::size_t kControlCollections = 32;

/// Rules by which each tensor of a collection is taken whatever its name, and all by which one
/// could be: where both are the same a tensor needs no answer of its own.
struct ControlCollection {
  std::uint32_t takes;
  std::uint32_t could;  ///< kCouldUnknown: the writer has not said.
};
inline constexpr std::uint32_t kCouldUnknown = 0xffffffff;

/// What begins at rules_offset: the rules, then the collections.
inline constexpr std::size_t kControlRulesBytes =
    kControlRules * sizeof(ControlRule) + kControlCollections * sizeof(ControlCollection);

static_assert(sizeof(ControlCollection) == 8 && kControlRules < 32);
static_assert(std::size(kKnownCollections) <= kControlCollections);

}  // namespace telltale::format
