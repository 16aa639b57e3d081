// SPDX-License-Identifier: Apache-2.0
// Members of an event's data (docs/formats/events.md), which comes from a file: each may be missing
// or of another type.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace telltale::rules {

/// A member of an event's data; the fallback where it is not there, or of another type.
inline double NumberIn(const nlohmann::json& data, const char* name, double fallback = 0) {
  const auto found = data.find(name);
  return found != data.end() && found->is_number() ? found->get<double>() : fallback;
}
/// Integers out of events are within ±this: a time of the clock fits, and so does the difference of
/// any two of them, and 1 more.
inline constexpr std::int64_t kMostInteger = 4'000'000'000'000'000'000;

/// A number as an integer, within ±kMostInteger; the fallback where it is NaN.
inline std::int64_t ToInteger(double value, std::int64_t fallback = 0) {
  constexpr auto kMost = static_cast<double>(kMostInteger);
  return std::isnan(value) ? fallback : static_cast<std::int64_t>(std::clamp(value, -kMost, kMost));
}
/// A count; 0 where it is less or NaN.
inline std::size_t ToCount(double value) {
  return static_cast<std::size_t>(std::max<std::int64_t>(0, ToInteger(value)));
}
/// A value of an event's data as an integer, whatever a program wrote there; the fallback where it
/// is no number.
template <class Json>
std::int64_t IntegerOf(const Json& value, std::int64_t fallback = 0) {
  if (!value.is_number()) return fallback;
  // Above 2^53 a double holds fewer digits.
  if (value.is_number_float()) return ToInteger(value.template get<double>(), fallback);
  if (value.is_number_unsigned()) {
    const auto most = static_cast<std::uint64_t>(kMostInteger);
    return static_cast<std::int64_t>(std::min(value.template get<std::uint64_t>(), most));
  }
  return std::clamp(value.template get<std::int64_t>(), -kMostInteger, kMostInteger);
}
/// The same of a member; the fallback where it is not there too.
template <class Json>
std::int64_t IntegerIn(const Json& data, const char* name, std::int64_t fallback = 0) {
  const auto found = data.find(name);
  return found != data.end() ? IntegerOf(*found, fallback) : fallback;
}
/// A count, which sums and products of a few hold too; −1, or the fallback, where it is not known.
inline constexpr std::int64_t kMostCounted = 1'000'000'000'000;
template <class Json>
std::int64_t CountOf(const Json& value, std::int64_t fallback = 0) {
  return std::clamp<std::int64_t>(IntegerOf(value, fallback), -1, kMostCounted);
}
template <class Json>
std::int64_t CountIn(const Json& data, const char* name, std::int64_t fallback = 0) {
  return std::clamp<std::int64_t>(IntegerIn(data, name, fallback), -1, kMostCounted);
}
inline bool FlagIn(const nlohmann::json& data, const char* name, bool fallback = false) {
  const auto found = data.find(name);
  return found != data.end() && found->is_boolean() ? found->get<bool>() : fallback;
}
inline std::string TextIn(const nlohmann::json& data, const char* name) {
  const auto found = data.find(name);
  return found != data.end() && found->is_string() ? found->get<std::string>() : std::string();
}
/// The texts of a list.
inline std::vector<std::string> TextsIn(const nlohmann::json& data, const char* name) {
  std::vector<std::string> texts;
  const auto found = data.find(name);
  if (found == data.end() || !found->is_array()) return texts;
  for (const nlohmann::json& text : *found) {
    if (text.is_string()) texts.push_back(text.get<std::string>());
  }
  return texts;
}

}  // namespace telltale::rules
