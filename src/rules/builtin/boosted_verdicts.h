// SPDX-License-Identifier: Apache-2.0
// What the event `boosting.model` says of a boosted model (docs/formats/events.md), and what is
// wrong with it, where that is beyond doubt.
//
// Thread safety: pure functions.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rules/rule.h"

namespace telltale::rules::boosted_model {

struct Model {
  struct Losses {
    double training = 0, validation = 0;
  };
  struct Importance {
    std::int64_t features = 0;
    std::vector<std::pair<std::string, double>> top;  ///< Shares of the gain, the largest first.
  };
  struct Class {
    std::int64_t index = 0, rows = 0, right = 0;
  };
  struct Labels {
    std::int64_t rows = 0, classes = 0, median = 0;
    bool weighted = false;
    std::vector<Class> counts;  ///< Without `right`.
  };
  /// Two classes, and how many rows of each are predicted as each.
  struct Pair {
    std::int64_t a = 0, b = 0, a_as_a = 0, a_as_b = 0, b_as_a = 0, b_as_b = 0;
  };
  struct Evaluation {
    std::string set;
    bool of_training = false;
    std::int64_t rows = 0, right = 0, classes = 0, most = 0;
    std::vector<Class> by_class;
    std::vector<Pair> pairs;
  };
  struct Trees {
    std::int64_t max_depth = 0, rows = 0, leaves = 0, few = 0, few_rows = 0, deepest = 0;
    std::int64_t cut_at = -1;  ///< -1: not tried.
    double loss = 0, cut_loss = 0;
  };

  std::int64_t training = 0, rounds = 0;
  bool final = false;  ///< The training has ended by itself.
  std::optional<Losses> losses;
  std::optional<Importance> importance;
  std::optional<Labels> labels;
  std::optional<Evaluation> evaluation;
  std::optional<Trees> trees;
};

/// Of the data of an event; nothing where it is none.
std::optional<Model> ModelOf(std::string_view data);

/// What a rule says of a model: severity, message, cause, advice, evidence and confidence of an
/// incident.
using Verdict = std::optional<Incident>;

/// One feature decides alone, and nearly everything is right: it knows the target.
Verdict LeakOf(const Model& model);
/// A max_depth that was raised, though the rows do not fill such trees and new data gains nothing.
Verdict DeepTreesOf(const Model& model);
/// Two of several classes are taken for each other, while the others are told apart.
Verdict ConfusedPairOf(const Model& model);
/// Classes of which there are too few rows to learn them.
Verdict RareClassesOf(const Model& model);

}  // namespace telltale::rules::boosted_model
