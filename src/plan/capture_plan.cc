// SPDX-License-Identifier: Apache-2.0
#include "plan/capture_plan.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace telltale::plan {
namespace {

/// Memory that one pattern may take when compiled.
constexpr std::int64_t kMaxPatternBytes = 1 << 20;
/// Names come from the user's process; a name is matched up to here.
constexpr std::size_t kMaxNameBytes = 4096;

using PatternList = std::vector<std::unique_ptr<re2::RE2>>;

Result<PatternList> Compile(const std::vector<std::string>& texts) {
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kMaxPatternBytes);
  options.set_encoding(re2::RE2::Options::EncodingLatin1);  // Names need not be UTF-8.
  PatternList patterns;
  for (const std::string& text : texts) {
    auto pattern = std::make_unique<re2::RE2>(text, options);
    if (!pattern->ok()) {
      return Status(Code::kUsage, fmt::format("capture plan: pattern '{}' is not a regular "
                                              "expression: {}: correct it (RE2 syntax)",
                                              text, pattern->error()));
    }
    patterns.push_back(std::move(pattern));
  }
  return patterns;
}

bool AnyMatches(const PatternList& patterns, re2::StringPiece name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const auto& pattern) { return re2::RE2::PartialMatch(name, *pattern); });
}

}  // namespace

std::string ToJson(const CapturePlan& plan) {
  const nlohmann::ordered_json json = {{"stats_interval_steps", plan.stats_interval_steps},
                                       {"include", plan.include},
                                       {"exclude", plan.exclude}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<CapturePlan> FromJson(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto wrong = [](std::string_view what) {
    return Status(Code::kUsage, fmt::format("capture plan: {}", what));
  };
  if (!json.is_object()) return wrong("not a JSON object: write {\"stats_interval_steps\": 100}");
  CapturePlan plan;
  if (const auto it = json.find("stats_interval_steps"); it != json.end()) {
    if (!it->is_number_unsigned() || it->get<std::uint64_t>() > UINT32_MAX) {
      return wrong("stats_interval_steps is not a number of steps: write 100, or 0 for none");
    }
    plan.stats_interval_steps = it->get<std::uint32_t>();
  }
  for (auto [key, list] : {std::pair{"include", &plan.include}, {"exclude", &plan.exclude}}) {
    const auto it = json.find(key);
    if (it == json.end()) continue;
    if (!it->is_array() ||
        !std::all_of(it->begin(), it->end(), [](const auto& item) { return item.is_string(); })) {
      return wrong(fmt::format("{} is not a list of texts: write [\"weight$\"]", key));
    }
    *list = it->get<std::vector<std::string>>();
  }
  return plan;
}

struct Matcher::Patterns {
  PatternList include;
  PatternList exclude;
};

Matcher::Matcher(std::unique_ptr<Patterns> patterns) : patterns_(std::move(patterns)) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

Result<Matcher> Matcher::Create(const CapturePlan& plan) {
  auto patterns = std::make_unique<Patterns>();
  TELLTALE_ASSIGN_OR_RETURN(patterns->include, Compile(plan.include));
  TELLTALE_ASSIGN_OR_RETURN(patterns->exclude, Compile(plan.exclude));
  return Matcher(std::move(patterns));
}

bool Matcher::Wants(std::string_view name) const {
  const re2::StringPiece piece(name.data(), std::min(name.size(), kMaxNameBytes));
  return AnyMatches(patterns_->include, piece) && !AnyMatches(patterns_->exclude, piece);
}

}  // namespace telltale::plan
