// SPDX-License-Identifier: Apache-2.0
#include "analysis/profile/options.h"

#include <fmt/core.h>
#include <re2/re2.h>

#include <algorithm>
#include <utility>

namespace telltale::analysis::profile {
namespace {

struct ColumnWord {
  std::string_view word;
  Column column;
};
constexpr ColumnWord kSelect[] = {
    {"bytes", Column::kBytes},
    {"micros", Column::kMicros},
    {"params", Column::kParams},
    {"float_ops", Column::kFloatOps},
    {"tensor_value", Column::kTensorValue},
    {"device", Column::kDevice},
    {"op_types", Column::kOpTypes},
    {"occurrence", Column::kOccurrence},
    {"input_shapes", Column::kInputShapes},
    {"accelerator_micros", Column::kAcceleratorMicros},
    {"cpu_micros", Column::kCpuMicros},
    {"peak_bytes", Column::kPeakBytes},
    {"residual_bytes", Column::kResidualBytes},
    {"output_bytes", Column::kOutputBytes},
};

struct OrderWord {
  std::string_view word;
  double (*value)(const Stats&);
};
constexpr OrderWord kOrders[] = {
    {"name", nullptr},
    {"bytes", [](const Stats& stats) { return stats.requested_bytes; }},
    {"peak_bytes", [](const Stats& stats) { return stats.peak_bytes; }},
    {"residual_bytes", [](const Stats& stats) { return stats.residual_bytes; }},
    {"output_bytes", [](const Stats& stats) { return stats.output_bytes; }},
    {"micros", [](const Stats& stats) { return stats.micros(); }},
    {"accelerator_micros", [](const Stats& stats) { return stats.accelerator_micros(); }},
    {"cpu_micros", [](const Stats& stats) { return stats.cpu_micros(); }},
    {"params", [](const Stats& stats) { return stats.params; }},
    {"float_ops", [](const Stats& stats) { return stats.float_ops; }},
    {"occurrence", [](const Stats& stats) { return stats.occurrence; }},
};

std::vector<std::string_view> SplitList(std::string_view list) {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const std::size_t end = list.find(',');
    if (end != 0) words.push_back(list.substr(0, end));
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
  }
  return words;
}

template <class Words>
std::string KnownWords(const Words& words) {
  std::string out;
  for (const auto& one : words) out += (out.empty() ? "" : ", ") + std::string(one.word);
  return out;
}

}  // namespace

struct Regexes::Compiled {
  std::vector<std::unique_ptr<RE2>> all;
};

Regexes::Regexes() : compiled_(std::make_unique<Compiled>()) {}
Regexes::~Regexes() = default;
Regexes::Regexes(Regexes&&) noexcept = default;
Regexes& Regexes::operator=(Regexes&&) noexcept = default;

Result<Regexes> Regexes::Parse(std::string_view option, std::string_view list) {
  Regexes out;
  out.all_ = list == ".*";
  for (const std::string_view word : SplitList(list)) {
    RE2::Options quiet;
    quiet.set_log_errors(false);
    auto compiled = std::make_unique<RE2>(re2::StringPiece(word.data(), word.size()), quiet);
    if (!compiled->ok()) {
      return {Code::kUsage, fmt::format("--{}: '{}' is no regular expression: {}", option, word,
                                        compiled->error())};
    }
    out.compiled_->all.push_back(std::move(compiled));
  }
  return out;
}

bool Regexes::Match(std::string_view name) const {
  if (all_) return true;
  return std::any_of(compiled_->all.begin(), compiled_->all.end(), [&](const auto& regex) {
    return RE2::FullMatch(re2::StringPiece(name.data(), name.size()), *regex);
  });
}

bool Options::Selects(Column column) const {
  return std::find(select.begin(), select.end(), column) != select.end();
}

Result<Options> Options::Parse(const OptionTexts& texts) {
  Options out;
  out.texts = texts;
  const std::pair<const char*, std::pair<const std::string*, Regexes*>> lists[] = {
      {"account_type_regexes", {&texts.account_type_regexes, &out.account}},
      {"start_name_regexes", {&texts.start_name_regexes, &out.start}},
      {"trim_name_regexes", {&texts.trim_name_regexes, &out.trim}},
      {"show_name_regexes", {&texts.show_name_regexes, &out.show}},
      {"hide_name_regexes", {&texts.hide_name_regexes, &out.hide}},
  };
  for (const auto& [option, list] : lists) {
    TELLTALE_ASSIGN_OR_RETURN(*list.second, Regexes::Parse(option, *list.first));
  }
  for (const std::string_view word : SplitList(texts.select)) {
    const auto* const found = std::find_if(std::begin(kSelect), std::end(kSelect),
                                           [&](const auto& one) { return one.word == word; });
    if (found == std::end(kSelect)) {
      return {Code::kUsage,
              fmt::format("--select: no '{}': choose among {}", word, KnownWords(kSelect))};
    }
    out.select.push_back(found->column);
  }
  std::sort(out.select.begin(), out.select.end());
  out.select.erase(std::unique(out.select.begin(), out.select.end()), out.select.end());
  const auto* const order =
      std::find_if(std::begin(kOrders), std::end(kOrders),
                   [&](const auto& one) { return one.word == texts.order_by; });
  if (order == std::end(kOrders)) {
    return {Code::kUsage, fmt::format("--order_by: no '{}': choose one of {}", texts.order_by,
                                      KnownWords(kOrders))};
  }
  out.order_by = order->value;
  return out;
}

Result<Output> Output::Parse(std::string_view text) {
  if (text == "stdout") return Output{};
  if (text == "none") return Output{Kind::kNone, {}};
  constexpr std::pair<std::string_view, Kind> kFiles[] = {{"file:outfile=", Kind::kFile},
                                                          {"timeline:outfile=", Kind::kTimeline},
                                                          {"pprof:outfile=", Kind::kPprof}};
  for (const auto& [prefix, kind] : kFiles) {
    if (text.starts_with(prefix) && text.size() > prefix.size()) {
      return Output{kind, std::string(text.substr(prefix.size()))};
    }
  }
  return {Code::kUsage,
          fmt::format("--output: no '{}': write stdout, file:outfile=F, timeline:outfile=F, "
                      "pprof:outfile=F or none",
                      text)};
}

}  // namespace telltale::analysis::profile
