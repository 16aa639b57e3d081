// SPDX-License-Identifier: Apache-2.0
// What a finding can set off: the kinds of action and their parameters, as data. Part of the rules'
// library, without what acting needs, so that a wrong parameter is an error before the training
// starts. Thread safety: stateless.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "rules/rule_set.h"

namespace telltale::rules {

enum class ActionValue : std::uint8_t { kText, kNumber, kBool, kList };

struct ActionParameter {
  std::string_view name;
  ActionValue type;
  std::string_view default_value;  ///< As people write it; empty: none.
  std::string_view doc;
};

struct ActionKind {
  std::string_view name;
  std::string_view summary;
  std::span<const ActionParameter> parameters;  ///< Beside those of every kind.
  /// Done again under the same key it changes nothing: another watcher may take it up again.
  bool repeatable;
  /// It changes the training, so it is for one that runs and a finding that still holds.
  bool of_the_training;
};

std::span<const ActionKind> ActionKinds();
/// Null: there is none.
const ActionKind* FindActionKind(std::string_view name);
/// Whether one message of this kind tells of many incidents.
bool TellsOfMany(std::string_view kind);
/// Those that every kind has.
std::span<const ActionParameter> CommonActionParameters();

/// kUsage: names the parameter and says what to write.
Status CheckAction(const ActionSpec& spec);

/// Values of a checked action: what was given, else the default.
std::string ActionText(const ActionSpec& spec, std::string_view name);
double ActionNumber(const ActionSpec& spec, std::string_view name);
bool ActionBool(const ActionSpec& spec, std::string_view name);
std::vector<std::string> ActionList(const ActionSpec& spec, std::string_view name);

/// The same for the same kind and parameters: 16 hexadecimal digits.
std::string ActionId(const ActionSpec& spec);

/// local@domain of plain ASCII: no space, bracket, comma, quotation mark or control character.
bool IsMailAddress(std::string_view text);

/// Nanoseconds since 1970 of "2026-11-21T23:00:00Z" or of a number of seconds.
std::optional<std::int64_t> ParseTime(std::string_view text);

}  // namespace telltale::rules
