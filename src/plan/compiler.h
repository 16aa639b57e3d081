// SPDX-License-Identifier: Apache-2.0
// A plan as a probe takes it: at most 24 rules for the control page, and for each name the word
// that says which of them take it. RE2 runs here, in the agent, never in the training. Thread
// safety: none of its own; const calls may run together.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "format/channel_layout.h"
#include "format/control_collections.h"
#include "plan/capture_plan.h"
#include "plan/thinning.h"

namespace telltale::plan {

/// The newest step of each mode that is known to have passed; -1: none.
using PassedSteps = std::array<std::int64_t, 4>;

/// How often a collection is taken, as the plan has it.
struct PlannedInterval {
  std::string collection;
  /// Its tt_mode; none: in every mode that takes it at intervals.
  std::optional<std::size_t> mode;
  std::uint32_t steps = 0;
  std::size_t rule = 0;  ///< Its index in planned().

  friend bool operator==(const PlannedInterval&, const PlannedInterval&) = default;
};

class Compiled {
 public:
  /// kUsage: a pattern is no regular expression. kLimit: more than 24 combinations of what is taken
  /// and when.
  static Result<Compiled> Create(const CapturePlan& plan);

  Compiled(Compiled&&) noexcept;
  Compiled& operator=(Compiled&&) noexcept;
  ~Compiled();

  /// For ControlPage::SetRules, thinned as Apply said. Of a list longer than a rule holds, the
  /// steps after those that have passed.
  std::vector<format::ControlRule> rules(const PassedSteps& passed) const;
  /// Some list is longer than a rule holds: rules() changes as steps pass.
  bool slides() const { return slides_; }
  /// Rules that take every tensor.
  std::uint32_t unanswered_mask() const { return unanswered_mask_; }
  /// For ControlPage::SetRules: what the known collections say of tensors whatever their names.
  std::array<format::ControlCollection, format::kControlCollections> collections() const;
  /// The word of a name of the channel. Of a tensor without a name, (collection, ""), the rules
  /// that could take one of that collection. Names that are no tensors: kNameNo.
  std::uint32_t WordOf(std::string_view name_text) const;
  /// Rules that take the tensor; as WordOf.
  std::uint32_t MaskOf(std::string_view collection, std::string_view name) const;

  void Apply(const Thinning& thinning) { thinning_ = thinning; }
  const Thinning& thinning() const { return thinning_; }
  /// As the plan has them, in the order of the mask's bits.
  std::span<const PlannedRule> planned() const { return planned_; }
  /// What thinning stretches: of each collection in the plan's order.
  std::vector<PlannedInterval> intervals() const;

 private:
  struct Member;  ///< A collection with its patterns.

  Compiled();

  std::vector<Member> members_;
  std::vector<PlannedRule> planned_;
  std::uint32_t unanswered_mask_ = 0;
  bool slides_ = false;
  Thinning thinning_;
};

}  // namespace telltale::plan
