// SPDX-License-Identifier: Apache-2.0
// The table of rules.
#include "rules/registry.h"

#include <fmt/format.h>

#include <array>

namespace telltale::rules {

std::string_view Name(Severity severity) {
  constexpr std::array<std::string_view, 4> kNames = {"info", "low", "medium", "high"};
  return kNames[static_cast<std::size_t>(severity)];
}

Status Parameters::Set(std::string_view name, double value) {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    return Status(Code::kUsage, fmt::format("parameter '{}': the rule has none of this name: see "
                                            "`telltale rules show`",
                                            name));
  }
  found->second = value;
  return {};
}

std::span<const RuleEntry> Registry() {
  static constexpr std::array kRules = {
      RuleEntry{&kCPUBottleneckDesc, MakeCPUBottleneck},
      RuleEntry{&kExplodingTensorDesc, MakeExplodingTensor},
      RuleEntry{&kInputBoundDesc, MakeInputBound},
      RuleEntry{&kLossNotDecreasingDesc, MakeLossNotDecreasing},
      RuleEntry{&kStepOutlierDesc, MakeStepOutlier},
      RuleEntry{&kVanishingGradientDesc, MakeVanishingGradient},
  };
  return kRules;
}

const RuleEntry* FindRule(std::string_view name) {
  for (const RuleEntry& entry : Registry()) {
    if (entry.desc->name == name) return &entry;
  }
  return nullptr;
}

}  // namespace telltale::rules
