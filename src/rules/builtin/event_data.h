// SPDX-License-Identifier: Apache-2.0
// Members of an event's data (docs/formats/events.md), which comes from a file: each may be missing
// or of another type.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace telltale::rules {

/// A member of an event's data; the fallback where it is not there, or of another type.
inline double NumberIn(const nlohmann::json& data, const char* name, double fallback = 0) {
  const auto found = data.find(name);
  return found != data.end() && found->is_number() ? found->get<double>() : fallback;
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
