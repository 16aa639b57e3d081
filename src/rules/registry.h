// SPDX-License-Identifier: Apache-2.0
// The rules there are: the one place, beside its own file, that knows a rule.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "rules/rule.h"

namespace telltale::rules {

/// Values of a rule's parameters: the defaults of its RuleDesc, with overrides.
class Parameters {
 public:
  explicit Parameters(const RuleDesc& desc) {
    for (const ParameterDesc& p : desc.parameters) values_.emplace(p.name, p.default_value);
  }
  /// Code::kUsage where the rule has no such parameter.
  Status Set(std::string_view name, double value);
  /// REQUIRES: the rule declares `name`.
  double Get(std::string_view name) const { return values_.find(name)->second; }
  std::int64_t GetInt(std::string_view name) const { return static_cast<std::int64_t>(Get(name)); }

 private:
  std::map<std::string, double, std::less<>> values_;
};

struct RuleEntry {
  const RuleDesc* desc;
  std::unique_ptr<Rule> (*make)(const Parameters& parameters);
};

/// All rules, ordered by name.
std::span<const RuleEntry> Registry();
const RuleEntry* FindRule(std::string_view name);

// One declaration a rule, defined in builtin/.
extern const RuleDesc kCPUBottleneckDesc;
std::unique_ptr<Rule> MakeCPUBottleneck(const Parameters& parameters);
extern const RuleDesc kExplodingTensorDesc;
std::unique_ptr<Rule> MakeExplodingTensor(const Parameters& parameters);
extern const RuleDesc kInputBoundDesc;
std::unique_ptr<Rule> MakeInputBound(const Parameters& parameters);
extern const RuleDesc kLossNotDecreasingDesc;
std::unique_ptr<Rule> MakeLossNotDecreasing(const Parameters& parameters);
extern const RuleDesc kStepOutlierDesc;
std::unique_ptr<Rule> MakeStepOutlier(const Parameters& parameters);
extern const RuleDesc kVanishingGradientDesc;
std::unique_ptr<Rule> MakeVanishingGradient(const Parameters& parameters);

}  // namespace telltale::rules
