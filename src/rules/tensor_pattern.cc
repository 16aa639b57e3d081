// SPDX-License-Identifier: Apache-2.0
// Patterns and collections of tensors, in SageMaker Debugger's words and in ours.
#include "rules/tensor_pattern.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/json.h"
#include "base/printable.h"

namespace telltale::rules {
namespace {

/// A pattern that would need more memory is refused.
constexpr std::int64_t kMaxPatternBytes = 8 << 20;

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// "_input_0" as "\.input\.0", "_output" and "_output_0" as "\.output".
std::string InOurNames(std::string_view pattern) {
  std::string out;
  for (std::size_t at = 0; at < pattern.size();) {
    const std::string_view rest = pattern.substr(at);
    const bool input = rest.starts_with("_input");
    if (!input && !rest.starts_with("_output")) {
      out += pattern[at++];
      continue;
    }
    at += input ? 6 : 7;
    std::string_view number;
    if (at + 1 < pattern.size() && pattern[at] == '_' && IsDigit(pattern[at + 1])) {
      std::size_t end = at + 1;
      while (end < pattern.size() && IsDigit(pattern[end])) ++end;
      number = pattern.substr(at + 1, end - at - 1);
      at = end;
    }
    out += input ? "\\.input" : "\\.output";
    // A module that gives one tensor has no number in our names.
    if (!number.empty() && (input || number != "0")) out += fmt::format("\\.{}", number);
  }
  return out;
}

/// What follows a look-ahead at the begin, and what it leaves out.
struct Split {
  std::string_view pattern, left_out;
};
Split SplitLookAhead(std::string_view pattern) {
  std::string_view rest = pattern;
  if (rest.starts_with('^')) rest.remove_prefix(1);
  if (!rest.starts_with("(?!")) return {pattern, {}};
  const auto end = rest.find_first_of("()", 3);
  if (end == std::string_view::npos || rest[end] != ')') return {pattern, {}};
  return {rest.substr(end + 1), rest.substr(3, end - 3)};
}

std::unique_ptr<re2::RE2> Compile(const std::string& text) {
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kMaxPatternBytes);
  options.set_encoding(re2::RE2::Options::EncodingLatin1);  // Names need not be UTF-8.
  return std::make_unique<re2::RE2>(text, options);
}

bool Found(const re2::RE2& pattern, std::string_view name) {
  if (!pattern.ok()) {
    throw std::runtime_error(fmt::format("'{}' is not a regular expression (RE2): {}",
                                         Printable(pattern.pattern()), pattern.error()));
  }
  return re2::RE2::PartialMatch(re2::StringPiece(name.data(), name.size()), pattern);
}

/// Of a collection of a plan: a list of texts.
void AddTexts(const nlohmann::json& collection, const char* key, std::vector<std::string>* out) {
  const auto found = collection.find(key);
  if (found == collection.end() || !found->is_array()) return;
  for (const nlohmann::json& item : *found) {
    if (item.is_string()) out->push_back(item.get<std::string>());
  }
}

}  // namespace

std::string WithOurNames(std::string_view pattern) {
  const std::string_view rest = SplitLookAhead(pattern).pattern;
  // A look-ahead with nothing behind it: everything but that.
  if (rest.empty()) return pattern.empty() ? std::string() : ".*";
  const std::string ours = InOurNames(rest);
  return ours == rest ? ours : fmt::format("(?:{})|(?:{})", rest, ours);
}

TensorPattern::TensorPattern(std::string_view text) {
  if (text.empty()) return;
  pattern_ = Compile(WithOurNames(text));
  const std::string_view left_out = SplitLookAhead(text).left_out;
  if (!left_out.empty()) not_ = Compile(fmt::format("^(?:{})", left_out));
}

TensorPattern::TensorPattern(TensorPattern&&) noexcept = default;
TensorPattern& TensorPattern::operator=(TensorPattern&&) noexcept = default;
TensorPattern::~TensorPattern() = default;

bool TensorPattern::Matches(std::string_view name) const {
  if (pattern_ == nullptr || (not_ != nullptr && Found(*not_, name))) return false;
  return Found(*pattern_, name);
}

bool BelongsTo(std::string_view collection, std::string_view name) {
  if (name == "all" || name == collection) return true;
  if (name == "weights") return collection == "biases";
  if (name == "outputs") return collection == "activations" || collection == "predictions";
  if (name == "layers") return collection == "inputs" || BelongsTo(collection, "outputs");
  if (name == "optimizer_state") return collection == "optimizer_variables";
  if (name == "optimizer_variables") return collection == "optimizer_state";
  return false;
}

TensorSelection::TensorSelection(std::string_view collection_names, std::string_view tensor_regex)
    : pattern_(tensor_regex) {
  while (!collection_names.empty()) {
    const auto comma = collection_names.find(',');
    std::string_view name = collection_names.substr(0, comma);
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (!name.empty()) collections_.emplace_back(name);
    if (comma == std::string_view::npos) break;
    collection_names.remove_prefix(comma + 1);
  }
}

bool TensorSelection::Has(const Series& series) const {
  const std::string_view name = series.name;
  if (pattern_.Matches(name)) return true;
  if (std::any_of(collections_.begin(), collections_.end(), [&](const std::string& collection) {
        return BelongsTo(series.collection, collection);
      })) {
    return true;
  }
  if (std::find(tensors_.begin(), tensors_.end(), name) != tensors_.end()) return true;
  if (std::any_of(include_.begin(), include_.end(),
                  [&](const TensorPattern& pattern) { return pattern.Matches(name); })) {
    return true;
  }
  const std::string_view plain = name.starts_with("gradient/") ? name.substr(9) : name;
  return std::any_of(modules_.begin(), modules_.end(), [&](const std::string& module) {
    return plain.starts_with(module) && plain.size() > module.size() &&
           (plain[module.size()] == '.' || plain[module.size()] == '/');
  });
}

void TensorSelection::OnPlan(std::string_view data) {
  const auto event = ParseJson(data);
  if (!event.is_object()) return;
  const auto plan = event.find("plan");
  if (plan == event.end() || !plan->is_object()) return;
  const auto collections = plan->find("collections");
  if (collections == plan->end() || !collections->is_object()) return;
  tensors_.clear();
  modules_.clear();
  include_.clear();
  for (const std::string& name : collections_) {
    const auto found = collections->find(name);
    if (found == collections->end() || !found->is_object()) continue;
    AddTexts(*found, "tensors", &tensors_);
    AddTexts(*found, "modules", &modules_);
    std::vector<std::string> patterns;
    AddTexts(*found, "include", &patterns);
    for (const std::string& pattern : patterns) include_.emplace_back(pattern);
  }
}

}  // namespace telltale::rules
