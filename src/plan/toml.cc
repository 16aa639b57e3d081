// SPDX-License-Identifier: Apache-2.0
// Plan files: TOML to the tree that capture_plan.cc reads, and a plan as such a file.
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_UNRELEASED_FEATURES 0
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "plan/plan_json.h"

namespace telltale::plan {
namespace {

using nlohmann::ordered_json;

std::string Place(std::string_view where, const toml::source_region& at) {
  return fmt::format("{}:{}", where, at.begin.line);
}

ordered_json ToTree(const toml::node& node) {
  if (const toml::table* table = node.as_table()) {
    ordered_json out = ordered_json::object();
    for (const auto& [key, value] : *table) out[std::string(key.str())] = ToTree(value);
    return out;
  }
  if (const toml::array* array = node.as_array()) {
    ordered_json out = ordered_json::array();
    for (const toml::node& item : *array) out.push_back(ToTree(item));
    return out;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) {
    // Unsigned where it can be: what the reader takes as a count.
    const std::int64_t value = number->get();
    if (value >= 0) return static_cast<std::uint64_t>(value);
    return value;
  }
  if (const auto* real = node.as_floating_point()) return real->get();
  if (const auto* truth = node.as_boolean()) return truth->get();
  return nullptr;  // Dates: no key takes one.
}

/// The line of "collections.NAME.key", where NAME itself may hold dots; else the nearest above it.
std::string FindPlace(std::string_view where, const toml::table& root, const std::string& key) {
  const toml::node* at = &root;
  std::string_view rest = key;
  while (!rest.empty() && at->as_table() != nullptr) {
    const toml::node* next = nullptr;
    std::size_t used = 0;
    for (const auto& [name, value] : *at->as_table()) {
      const std::string_view text = name.str();
      const bool fits =
          rest.starts_with(text) && (rest.size() == text.size() || rest[text.size()] == '.');
      if (fits && text.size() + 1 > used) {
        next = &value;
        used = text.size() + 1;
      }
    }
    if (next == nullptr) break;
    at = next;
    rest.remove_prefix(std::min(used, rest.size()));
  }
  return at->source().begin.line > 0 ? Place(where, at->source()) : std::string(where);
}

/// A basic string: JSON's escapes are TOML's too, but JSON takes DEL as it is and TOML does not.
std::string Quoted(const std::string& text) {
  std::string out = ordered_json(text).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
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
        *out += value[i].is_string() ? Quoted(value[i].get<std::string>()) : value[i].dump();
      }
      *out += ']';
    } else {
      *out += value.is_string() ? Quoted(value.get<std::string>()) : value.dump();
    }
    *out += '\n';
  }
}

}  // namespace

Result<CapturePlan> FromToml(std::string_view text, std::string_view where) {
  try {
    const toml::parse_result parsed = toml::parse(text, where);
    if (!parsed) {
      return Status(Code::kUsage, fmt::format("{}: {}: correct it (docs/formats/plan.md)",
                                              Place(where, parsed.error().source()),
                                              parsed.error().description()));
    }
    const toml::table& root = parsed.table();
    CapturePlan plan;
    if (const auto wrong = PlanFromJson(ToTree(root), &plan); wrong) {
      return Status(Code::kUsage, fmt::format("{}: {} {}", FindPlace(where, root, wrong->key),
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
  return out;
}

}  // namespace telltale::plan
