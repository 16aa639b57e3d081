// SPDX-License-Identifier: Apache-2.0
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_UNRELEASED_FEATURES 0
#include "base/toml_tree.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <exception>

namespace telltale {
namespace {

using nlohmann::ordered_json;

ordered_json ToTree(const toml::node& node, const std::string& key,
                    std::map<std::string, int, std::less<>>* lines) {
  if (node.source().begin.line > 0) {
    lines->emplace(key, static_cast<int>(node.source().begin.line));
  }
  if (const toml::table* table = node.as_table()) {
    ordered_json out = ordered_json::object();
    for (const auto& [name, value] : *table) {
      const std::string text(name.str());
      out[text] = ToTree(value, key.empty() ? text : key + "." + text, lines);
    }
    return out;
  }
  if (const toml::array* array = node.as_array()) {
    ordered_json out = ordered_json::array();
    for (const toml::node& item : *array) {
      out.push_back(ToTree(item, fmt::format("{}.{}", key, out.size()), lines));
    }
    return out;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) {
    const std::int64_t value = number->get();
    if (value >= 0) return static_cast<std::uint64_t>(value);
    return value;
  }
  if (const auto* real = node.as_floating_point()) return real->get();
  if (const auto* truth = node.as_boolean()) return truth->get();
  return nullptr;
}

}  // namespace

Result<TomlTree> TomlTree::Parse(std::string_view text, std::string_view where,
                                 std::string_view page) {
  try {
    const toml::parse_result parsed = toml::parse(text, where);
    if (!parsed) {
      return Status(Code::kUsage, fmt::format("{}:{}: {}: correct it ({})", where,
                                              parsed.error().source().begin.line,
                                              parsed.error().description(), page));
    }
    TomlTree tree;
    tree.where_ = where;
    tree.root_ = ToTree(parsed.table(), "", &tree.lines_);
    return tree;
  } catch (const std::exception& error) {
    return Status(Code::kUsage, fmt::format("{}: cannot be read: {}", where, error.what()));
  }
}

std::string TomlTree::PlaceOf(std::string_view key) const {
  while (true) {
    if (const auto found = lines_.find(key); found != lines_.end() && !key.empty()) {
      return fmt::format("{}:{}", where_, found->second);
    }
    const auto dot = key.rfind('.');
    if (dot == std::string_view::npos) return where_;
    key = key.substr(0, dot);
  }
}

}  // namespace telltale
