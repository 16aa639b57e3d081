// SPDX-License-Identifier: Apache-2.0
#include "plan/compiler.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "plan/collections.h"

namespace telltale::plan {
namespace {

/// A pattern that would need more memory is refused, so that a plan cannot exhaust the agent.
constexpr std::int64_t kMaxPatternBytes = 8 << 20;
constexpr std::size_t kListRoom = std::size(format::ControlWhen{}.list);

static_assert(format::kNameMaskShift + format::kControlRules <= 32);

using PatternList = std::vector<std::unique_ptr<re2::RE2>>;

Status Compile(std::string_view collection, const std::vector<std::string>& texts,
               PatternList* patterns) {
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kMaxPatternBytes);
  options.set_encoding(re2::RE2::Options::EncodingLatin1);  // Names need not be UTF-8.
  for (const std::string& text : texts) {
    auto pattern = std::make_unique<re2::RE2>(text, options);
    if (!pattern->ok()) {
      return {Code::kUsage,
              fmt::format(
                  "capture plan: collection '{}': pattern '{}' is not a regular expression: {}: "
                  "correct it (RE2 syntax; for a look-ahead write an exclude)",
                  collection, text, pattern->error())};
    }
    patterns->push_back(std::move(pattern));
  }
  return {};
}

bool AnyMatches(const PatternList& patterns, std::string_view name) {
  const re2::StringPiece piece(name.data(), name.size());
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const auto& pattern) { return re2::RE2::PartialMatch(piece, *pattern); });
}

bool IsWordOf(std::string_view words, std::string_view word) {
  if (word.empty()) return false;
  for (std::size_t at = 0; at <= words.size();) {
    const std::size_t end = std::min(words.find(' ', at), words.size());
    if (words.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

/// No adapter has said what it is: the default patterns may.
bool Unsorted(std::string_view collection) { return collection.empty() || collection == "default"; }

bool TakesEveryName(const std::string& pattern) {
  return pattern.empty() || pattern == ".*" || pattern == "^.*$" || pattern == ".*$" ||
         pattern == "^.*";
}

/// "layer1" for "layer1.conv.weight", "layer1/kernel" and "gradient/layer1.conv.weight".
bool Beneath(std::string_view name, std::string_view module) {
  constexpr std::string_view kGradient = "gradient/";
  if (name.starts_with(kGradient)) name.remove_prefix(kGradient.size());
  if (!name.starts_with(module)) return false;
  return name.size() == module.size() || name[module.size()] == '.' || name[module.size()] == '/';
}

format::ControlWhen ControlWhenOf(const When& when, std::uint32_t stretch, std::int64_t passed) {
  format::ControlWhen out{};
  out.interval = Stretched(when.interval, stretch);
  out.start = when.start;
  out.end = when.end;
  const auto next = when.steps.size() <= kListRoom
                        ? when.steps.begin()
                        : std::upper_bound(when.steps.begin(), when.steps.end(), passed);
  const auto left = static_cast<std::size_t>(when.steps.end() - next);
  out.listed = static_cast<std::uint32_t>(std::min(left, kListRoom));
  std::copy_n(next, out.listed, std::begin(out.list));
  return out;
}

}  // namespace

struct Compiled::Member {
  Collection collection;
  const BuiltIn* built_in = nullptr;
  PatternList include;
  PatternList exclude;
  PatternList default_include;
  PatternList default_exclude;
  std::uint32_t rule = 0;  ///< Its bit.

  bool Everything() const { return collection.name == "all"; }

  bool Takes(std::string_view of, std::string_view name) const {
    if (AnyMatches(exclude, name)) return false;
    if (Everything() || (!of.empty() && of == collection.name)) return true;
    if (built_in != nullptr && IsWordOf(built_in->adapters, of)) return true;
    if (Unsorted(of) && AnyMatches(default_include, name) && !AnyMatches(default_exclude, name)) {
      return true;
    }
    const auto& tensors = collection.tensors;
    if (std::find(tensors.begin(), tensors.end(), name) != tensors.end()) return true;
    const auto& modules = collection.modules;
    if (std::any_of(modules.begin(), modules.end(),
                    [&](const std::string& module) { return Beneath(name, module); })) {
      return true;
    }
    return AnyMatches(include, name);
  }

  /// Whether each tensor of the adapters' collection `of` belongs to it.
  bool TakesAllOf(std::string_view of) const {
    if (!exclude.empty()) return false;
    return Everything() || of == collection.name ||
           (built_in != nullptr && IsWordOf(built_in->adapters, of)) ||
           std::any_of(collection.include.begin(), collection.include.end(), TakesEveryName);
  }

  /// Whether some tensor of the adapters' collection `of` could belong to it.
  bool CouldTake(std::string_view of) const {
    if (Everything() || !include.empty() || !collection.tensors.empty() ||
        !collection.modules.empty()) {
      return true;
    }
    if (!of.empty() && of == collection.name) return true;
    return (built_in != nullptr && IsWordOf(built_in->adapters, of)) ||
           (Unsorted(of) && !default_include.empty());
  }
};

Compiled::Compiled() = default;
Compiled::Compiled(Compiled&&) noexcept = default;
Compiled& Compiled::operator=(Compiled&&) noexcept = default;
Compiled::~Compiled() = default;

Result<Compiled> Compiled::Create(const CapturePlan& plan) {
  Compiled out;
  for (const Collection& collection : plan.collections) {
    Member member;
    member.collection = collection;
    member.built_in = FindBuiltIn(collection.name);
    TELLTALE_RETURN_IF_ERROR(Compile(collection.name, collection.include, &member.include));
    TELLTALE_RETURN_IF_ERROR(Compile(collection.name, collection.exclude, &member.exclude));
    if (member.built_in != nullptr && !member.built_in->include.empty()) {
      TELLTALE_RETURN_IF_ERROR(Compile(collection.name, {std::string(member.built_in->include)},
                                       &member.default_include));
      if (!member.built_in->exclude.empty()) {
        TELLTALE_RETURN_IF_ERROR(Compile(collection.name, {std::string(member.built_in->exclude)},
                                         &member.default_exclude));
      }
    }
    const bool never = std::all_of(collection.when.begin(), collection.when.end(),
                                   [](const When& when) { return when.Never(); });
    if (never || collection.take == 0) continue;
    PlannedRule rule;
    rule.take = collection.take;
    if ((rule.take & (kHistogram | kMore)) != 0) rule.take |= kStats;
    rule.max_elements = collection.max_elements;
    rule.when = collection.when;
    rule.core = member.built_in != nullptr && member.built_in->core;
    rule.asked = collection.asked;
    auto same = std::find(out.planned_.begin(), out.planned_.end(), rule);
    if (same == out.planned_.end()) {
      if (out.planned_.size() == format::kControlRules) {
        return Status(
            Code::kLimit,
            fmt::format("capture plan: more than {} combinations of what is taken and when, "
                        "the one of collection '{}' is too many: give some collections the "
                        "same take, interval, start, end and steps",
                        format::kControlRules, collection.name));
      }
      same = out.planned_.insert(out.planned_.end(), std::move(rule));
    }
    member.rule = static_cast<std::uint32_t>(same - out.planned_.begin());
    const bool every = member.Everything() || std::any_of(collection.include.begin(),
                                                          collection.include.end(), TakesEveryName);
    if (every && collection.exclude.empty()) out.unanswered_mask_ |= 1U << member.rule;
    for (const When& when : collection.when) out.slides_ |= when.steps.size() > kListRoom;
    out.members_.push_back(std::move(member));
  }
  return out;
}

std::vector<format::ControlRule> Compiled::rules(const PassedSteps& passed) const {
  std::vector<format::ControlRule> out;
  out.reserve(planned_.size());
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const PlannedRule& planned = planned_[i];
    format::ControlRule rule{};
    rule.take = Left(thinning_, planned, i);
    rule.max_elements = planned.max_elements;
    for (std::size_t mode = 0; mode < planned.when.size(); ++mode) {
      rule.when[mode] =
          ControlWhenOf(planned.when[mode], thinning_.StretchOf(i, mode), passed[mode]);
    }
    out.push_back(rule);
  }
  return out;
}

std::vector<PlannedInterval> Compiled::intervals() const {
  std::vector<PlannedInterval> out;
  for (const Member& member : members_) {
    const std::size_t first = out.size();
    bool alike = true;
    for (std::size_t mode = 0; mode < member.collection.when.size(); ++mode) {
      const When& when = member.collection.when[mode];
      if (when.interval == 0 || when.end <= when.start) continue;
      out.push_back({member.collection.name, mode, when.interval, member.rule});
      alike = alike && when.interval == out[first].steps;
    }
    if (!alike || out.size() == first) continue;
    out.resize(first + 1);
    out[first].mode.reset();
  }
  return out;
}

std::uint32_t Compiled::MaskOf(std::string_view collection, std::string_view name) const {
  std::uint32_t mask = 0;
  for (const Member& member : members_) {
    const bool takes = name.empty() ? member.CouldTake(collection) : member.Takes(collection, name);
    if (takes) mask |= 1U << member.rule;
  }
  return mask;
}

std::array<format::ControlCollection, format::kControlCollections> Compiled::collections() const {
  std::array<format::ControlCollection, format::kControlCollections> out;
  out.fill({0, format::kCouldUnknown});
  for (std::size_t i = 0; i < std::size(format::kKnownCollections); ++i) {
    const std::string_view known = format::kKnownCollections[i];
    out[i] = {0, MaskOf(known, "")};
    for (const Member& member : members_) {
      if (member.TakesAllOf(known)) out[i].takes |= 1U << member.rule;
    }
  }
  return out;
}

std::uint32_t Compiled::WordOf(std::string_view name_text) const {
  if (name_text.empty() || name_text.front() != format::kTensorMark) return format::kNameNo;
  name_text.remove_prefix(1);
  const std::size_t end = name_text.find(format::kTensorMark);
  if (end == std::string_view::npos) return format::kNameNo;
  const std::uint32_t mask = MaskOf(name_text.substr(0, end), name_text.substr(end + 1));
  return mask == 0 ? format::kNameNo : format::kNameYes | mask << format::kNameMaskShift;
}

}  // namespace telltale::plan
