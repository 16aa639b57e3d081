// SPDX-License-Identifier: Apache-2.0
// The rules there are: the one place, beside its own file, that knows a rule.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/saturate.h"
#include "base/status.h"
#include "format/records.gen.h"
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
  /// A run says its rules' parameters itself, and they may be any numbers: sums and products of a
  /// few of what comes out here hold.
  std::int64_t GetInt(std::string_view name) const {
    constexpr double kMost = 1e15;
    return SaturatingCast(std::clamp(Get(name), -kMost, kMost));
  }
  /// Of a time in seconds: ns, not below 0 and not longer than a record can be.
  std::int64_t GetNs(std::string_view name) const {
    return std::clamp(SaturatingCast(Get(name) * 1e9), format::kLengthBound.least,
                      format::kLengthBound.most);
  }
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
