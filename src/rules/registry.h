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
  /// `source`: the defaults of SageMaker Debugger's released code instead of its documentation's.
  explicit Parameters(const RuleDesc& desc, bool source = false) {
    for (const ParameterDesc& p : desc.parameters) {
      if (p.text != nullptr) {
        texts_.emplace(p.name, p.text);
      } else {
        values_.emplace(p.name, source ? p.source.value_or(p.default_value) : p.default_value);
      }
    }
  }
  /// Code::kUsage where the rule has no such parameter, or it is text.
  Status Set(std::string_view name, double value);
  /// As people write it: a number, True, False, text. Code::kUsage names what is wrong.
  Status SetText(std::string_view name, std::string_view value);
  /// REQUIRES: the rule declares `name`, as a number.
  double Get(std::string_view name) const { return values_.find(name)->second; }
  std::int64_t GetInt(std::string_view name) const { return static_cast<std::int64_t>(Get(name)); }
  /// REQUIRES: the rule declares `name`, as text.
  const std::string& Text(std::string_view name) const { return texts_.find(name)->second; }
  bool IsText(std::string_view name) const { return texts_.contains(name); }

 private:
  std::map<std::string, double, std::less<>> values_;
  std::map<std::string, std::string, std::less<>> texts_;
};

struct RuleEntry {
  const RuleDesc* desc;
  std::unique_ptr<Rule> (*make)(const Parameters& parameters);
};

/// All rules, ordered by name.
std::span<const RuleEntry> Registry();
const RuleEntry* FindRule(std::string_view name);

// One declaration a rule, defined in builtin/.
#define TELLTALE_RULE(name, space)                                \
  namespace space {                                               \
  extern const RuleDesc k##name##Desc;                            \
  std::unique_ptr<Rule> Make##name(const Parameters& parameters); \
  }
#include "rules/builtin/rules.inc"
#undef TELLTALE_RULE

}  // namespace telltale::rules
