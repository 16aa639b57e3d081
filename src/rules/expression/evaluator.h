// SPDX-License-Identifier: Apache-2.0
// What an expression says at a moment, of what it has been shown: true, false or no data.
//
// Thread safety: none. Memory: that of its windows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "rules/expression/ast.h"
#include "rules/expression/sample_window.h"

namespace telltale::rules::expression {

class Evaluator {
 public:
  /// `expression` outlives the evaluator and does not move.
  explicit Evaluator(const Expression* expression);

  SampleWindow& window(std::size_t call) { return windows_[call]; }
  /// Forgets for how long conditions have held.
  void Restart();
  /// And, or and not take what is not known as Kleene does: false and unknown is false.
  std::optional<bool> Evaluate(const Moment& now);
  /// Of the newest Evaluate(): what each call gave.
  const std::vector<std::optional<double>>& call_values() const { return call_values_; }
  /// Of the newest Evaluate(), where it was true: since when, which is before `now` where the
  /// expression as a whole stands before `for`.
  const Moment& since() const { return since_; }
  /// What Evaluate() costs, in samples.
  std::size_t cost() const;

 private:
  struct Held {
    std::optional<Moment> since;
    std::int64_t seen_ns = 0;
  };

  std::optional<double> Compute(std::size_t index, const Moment& now);
  std::optional<double> HeldFor(const Node& node, Held* held, const Moment& now);

  const Expression* expression_;
  std::vector<SampleWindow> windows_;               ///< By call.
  std::vector<std::optional<double>> call_values_;  ///< By call.
  std::vector<std::optional<double>> values_;       ///< By node; 1 and 0 of what is true or false.
  std::vector<Held> held_;                          ///< By node.
  Moment since_;
};

}  // namespace telltale::rules::expression
