// SPDX-License-Identifier: Apache-2.0
// Rules files, the words of --rule, tables of prices.
#include "fuzz.h"
#include "rules/price_table.h"
#include "rules/rule_set.h"

namespace telltale::fuzz {
namespace {

void CheckRules(const Result<rules::RuleSet>& read) {
  if (!read.ok()) return;
  static_cast<void>(rules::Resolve(*read));
  Require(rules::RuleSetFromJson(rules::ToJson(*read)).ok());
}

}  // namespace

TELLTALE_FUZZ_TARGET(rules) {
  CheckRules(rules::RuleSetFromToml(bytes, "fuzz"));
  CheckRules(rules::RuleSetFromJson(bytes));
  static_cast<void>(rules::ParseRule(bytes));
  static_cast<void>(rules::PriceTableFromToml(bytes, "fuzz"));
}

}  // namespace telltale::fuzz
