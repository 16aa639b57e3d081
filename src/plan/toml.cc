// SPDX-License-Identifier: Apache-2.0
// Plan files: TOML to the tree that capture_plan.cc reads, and a plan as such a file.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/json.h"
#include "base/toml_tree.h"
#include "plan/plan_json.h"

namespace telltale::plan {
namespace {

using nlohmann::ordered_json;

/// A basic string: JSON's escapes are TOML's too, but JSON takes DEL as it is and TOML does not.
std::string Quoted(const std::string& text) {
  std::string out = JsonText(ordered_json(text));
  for (auto at = out.find('\x7f'); at != std::string::npos; at = out.find('\x7f', at)) {
    out.replace(at, 1, "\\u007F");
  }
  return out;
}

bool IsBareKey(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

/// The scalars and lists of a table, one a line.
void WriteKeys(const ordered_json& table, std::string* out) {
  for (const auto& [key, value] : table.items()) {
    if (value.is_object()) continue;
    *out += key + " = ";
    if (value.is_array()) {
      *out += '[';
      for (std::size_t i = 0; i < value.size(); ++i) {
        *out += i == 0 ? "" : ", ";
        *out += value[i].is_string() ? Quoted(value[i].get<std::string>()) : JsonText(value[i]);
      }
      *out += ']';
    } else {
      *out += value.is_string() ? Quoted(value.get<std::string>()) : JsonText(value);
    }
    *out += '\n';
  }
}

}  // namespace

Result<CapturePlan> FromToml(std::string_view text, std::string_view where, Stands stands) {
  TELLTALE_ASSIGN_OR_RETURN(const TomlTree tree,
                            TomlTree::Parse(text, where, "docs/formats/plan.md"));
  try {
    CapturePlan plan;
    if (const auto wrong = PlanFromJson(tree.root(), stands, &plan); wrong) {
      return Status(Code::kUsage, fmt::format("{}: {} {}", tree.PlaceOf(wrong->key),
                                              wrong->key.empty() ? "it" : wrong->key, wrong->what));
    }
    return plan;
  } catch (const std::exception& error) {
    return Status(Code::kUsage, fmt::format("{}: cannot be read: {}", where, error.what()));
  }
}

std::string ToToml(const CapturePlan& plan) {
  const ordered_json tree = PlanToJson(plan);
  std::string out;
  WriteKeys(tree, &out);
  for (const auto& [name, collection] : tree.at("collections").items()) {
    const std::string key = IsBareKey(name) ? name : Quoted(name);
    out += fmt::format("\n[collections.{}]\n", key);
    WriteKeys(collection, &out);
    for (const auto& [mode, when] : collection.items()) {
      if (!when.is_object()) continue;
      out += fmt::format("\n[collections.{}.{}]\n", key, mode);
      WriteKeys(when, &out);
    }
  }
  // A plan that takes nothing must not read as one that says nothing.
  if (tree.at("collections").empty()) out += "\n[collections]\n";
  if (const auto windows = tree.find("windows"); windows != tree.end()) {
    for (const auto& [name, window] : windows->items()) {
      out += fmt::format("\n[windows.{}]\n", IsBareKey(name) ? name : Quoted(name));
      WriteKeys(window, &out);
    }
  }
  return out;
}

}  // namespace telltale::plan
