// SPDX-License-Identifier: Apache-2.0
// Which tensors a rule is about, as the parameters collection_names and tensor_regex of SageMaker
// Debugger's rules say it. Its patterns speak in its names (relu_output, relu_input_0); each is
// looked for in ours too (relu.output, relu.input.0).
//
// Thread safety: none. What is no pattern is said when it is first used, by std::runtime_error,
// which the engine shows as the rule's state.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rules/series.h"

namespace re2 {
class RE2;
}

namespace telltale::rules {

/// The pattern as RE2, found in SageMaker's names and in ours; a look-ahead at its begin, which RE2
/// does not have, is left out. Empty stays empty.
std::string WithOurNames(std::string_view pattern);

class TensorPattern {
 public:
  /// Empty: matches nothing.
  explicit TensorPattern(std::string_view text);
  TensorPattern(TensorPattern&&) noexcept;
  TensorPattern& operator=(TensorPattern&&) noexcept;
  ~TensorPattern();

  bool empty() const { return pattern_ == nullptr; }
  /// Found anywhere in the name.
  bool Matches(std::string_view name) const;

 private:
  std::unique_ptr<re2::RE2> pattern_;
  std::unique_ptr<re2::RE2> not_;  ///< Of "^(?!...)": names that are left out.
};

/// What `collection_names` (separated by commas) and `tensor_regex` name together.
class TensorSelection {
 public:
  TensorSelection(std::string_view collection_names, std::string_view tensor_regex);

  /// Both are empty.
  bool empty() const { return collections_.empty() && pattern_.empty(); }
  bool Has(const Series& series) const;
  /// `data` of an event `plan`: what custom collections hold. Series that came before it are not
  /// asked about again.
  void OnPlan(std::string_view data);

 private:
  std::vector<std::string> collections_;
  TensorPattern pattern_;
  /// Of the custom collections: names, modules and patterns.
  std::vector<std::string> tensors_, modules_;
  std::vector<TensorPattern> include_;
};

/// Whether what an adapter calls `collection` belongs to the collection `name`: as in plans, and
/// biases are weights to rules.
bool BelongsTo(std::string_view collection, std::string_view name);

}  // namespace telltale::rules
