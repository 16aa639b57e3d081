// SPDX-License-Identifier: Apache-2.0
// The table of rules.
#include "rules/registry.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <system_error>

#include "base/printable.h"

namespace telltale::rules {

std::string_view Name(Severity severity) {
  constexpr std::array<std::string_view, 4> kNames = {"info", "low", "medium", "high"};
  return kNames[static_cast<std::size_t>(severity)];
}

std::string_view Name(Family family) {
  constexpr std::array<std::string_view, 4> kNames = {"model", "tree", "profiler", "telltale"};
  return kNames[static_cast<std::size_t>(family)];
}

Status Parameters::Set(std::string_view name, double value) {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    return Status(Code::kUsage,
                  fmt::format("parameter '{}': the rule has no number of this name: see "
                              "`telltale rules show`",
                              name));
  }
  found->second = value;
  return {};
}

Status Parameters::SetText(std::string_view name, std::string_view value) {
  if (const auto text = texts_.find(name); text != texts_.end()) {
    text->second = value;
    return {};
  }
  if (!values_.contains(name)) {
    return Status(Code::kUsage, fmt::format("parameter '{}': the rule has none of this name: see "
                                            "`telltale rules show`",
                                            name));
  }
  if (value == "True" || value == "true") return Set(name, 1);
  if (value == "False" || value == "false") return Set(name, 0);
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) {
    return Status(Code::kUsage,
                  fmt::format("parameter '{}': '{}' is no number", name, Printable(value)));
  }
  return Set(name, number);
}

std::span<const RuleEntry> Registry() {
  static constexpr std::array kRules = {
#define TELLTALE_RULE(name, space) RuleEntry{&space::k##name##Desc, space::Make##name},
#include "rules/builtin/rules.inc"
#undef TELLTALE_RULE
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
