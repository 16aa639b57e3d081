// SPDX-License-Identifier: Apache-2.0
#include "rules/finding_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/json.h"

namespace telltale::rules {
namespace {

/// The evidence is JSON already; what is no object is shown as text rather than lost.
nlohmann::ordered_json Evidence(const std::string& text) {
  auto parsed = ParseOrderedJson(text);
  if (parsed.is_object()) return parsed;
  return nlohmann::ordered_json{{"text", text}};
}

std::string Tables(std::uint32_t mask) {
  std::string out;
  for (const format::TableDesc& table : format::kTables) {
    if ((mask & store::MaskOf(table.id)) == 0) continue;
    out += fmt::format("{}`{}`", out.empty() ? "" : ", ", table.name);
  }
  return out;
}

/// " Of tensors: `gradients` (statistics, each 100 TRAIN steps)."; empty where it needs none.
std::string Needs(const RuleDesc& desc) {
  std::string out;
  for (const CaptureNeed& need : desc.captures) {
    out += fmt::format("{}`{}` ({}, each {}{}{})", out.empty() ? " Of tensors: " : ", ",
                       need.collection, need.take, StepsOf(need),
                       need.include.empty() ? "" : fmt::format(", names with `{}`", need.include),
                       need.asked_only ? ", only where the rule is named" : "");
  }
  return out.empty() ? out : out + ".";
}

nlohmann::ordered_json DefaultOf(const ParameterDesc& parameter) {
  if (parameter.text != nullptr) return parameter.text;
  return parameter.default_value;
}

std::string DefaultText(const ParameterDesc& parameter) {
  if (parameter.text == nullptr) return fmt::format("{}", parameter.default_value);
  return *parameter.text == '\0' ? "" : fmt::format("`{}`", parameter.text);
}

/// A cell of a table of Markdown.
std::string Cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

/// Whence the rule is, and whether anybody must ask for it.
std::string Whence(const RuleDesc& desc) {
  std::string_view from = "A rule of Telltale's own.";
  if (desc.family == Family::kModel) from = "A rule of SageMaker Debugger's, about the model.";
  if (desc.family == Family::kTree) from = "A rule of SageMaker Debugger's, about trees.";
  if (desc.family == Family::kProfiler) from = "A rule of SageMaker Debugger's profiler.";
  return fmt::format(
      "{} {}", from,
      desc.by_default
          ? "It runs by default."
          : fmt::format("It runs only where you ask for it: `telltale run --rule {}`.", desc.name));
}

}  // namespace

nlohmann::ordered_json ToJson(const Finding& finding) {
  const Incident& i = finding.incident;
  return {{"id", finding.id},
          {"rule", finding.rule},
          {"severity", Name(i.severity)},
          {"state", finding.open ? "open" : "closed"},
          {"until_end", finding.until_end},
          {"subject", i.subject},
          {"first_step", i.first_step},
          {"last_step", i.last_step},
          {"start_ns", i.start_ns},
          {"end_ns", i.end_ns},
          {"message", i.message},
          {"evidence", Evidence(i.evidence)},
          {"cause", i.cause},
          {"cost_seconds", i.cost_seconds},
          {"advice", i.advice},
          {"confidence", i.confidence},
          {"revision", finding.revision}};
}

nlohmann::ordered_json ToJson(const RuleState& state) {
  nlohmann::ordered_json out = {{"name", state.name},
                                {"status", Name(state.status)},
                                {"incidents", state.incidents},
                                {"records", nullptr},
                                {"rule", nullptr}};
  if (state.records) out["records"] = *state.records;
  if (!state.rule.empty()) out["rule"] = state.rule;
  if (!state.summary.empty()) {
    auto summary = ParseOrderedJson(state.summary);
    if (summary.is_object()) out["summary"] = std::move(summary);
  }
  if (!state.error.empty()) out["error"] = state.error;
  if (!state.partial.empty()) out["partial"] = state.partial;
  if (!state.missing.empty()) out["missing"] = state.missing;
  return out;
}

nlohmann::ordered_json ToJson(const RuleDesc& desc) {
  nlohmann::ordered_json parameters = nlohmann::ordered_json::array();
  for (const ParameterDesc& p : desc.parameters) {
    nlohmann::ordered_json source = nullptr;
    if (p.source) source = *p.source;
    parameters.push_back({{"name", p.name},
                          {"default", DefaultOf(p)},
                          {"source", std::move(source)},
                          {"unit", p.unit},
                          {"doc", p.doc}});
  }
  nlohmann::ordered_json captures = nlohmann::ordered_json::array();
  for (const CaptureNeed& need : desc.captures) {
    captures.push_back({{"collection", need.collection},
                        {"take", need.take},
                        {"interval", need.interval},
                        {"eval_interval", need.eval_interval},
                        {"include", need.include},
                        {"asked_only", need.asked_only}});
  }
  return {{"name", desc.name},
          {"family", Name(desc.family)},
          {"by_default", desc.by_default},
          {"wrong_result", desc.wrong_result},
          {"summary", desc.summary},
          {"formula", desc.formula},
          {"how_to_fix", desc.how_to_fix},
          {"example", desc.example},
          {"parameters", parameters},
          {"captures", captures}};
}

std::string StepsOf(const CaptureNeed& need) {
  std::string out = fmt::format("{} TRAIN steps", need.interval);
  if (need.eval_interval > 0) out += fmt::format(" and {} EVAL steps", need.eval_interval);
  return out;
}

std::string ToMarkdown(const RuleDesc& desc) {
  std::string out = fmt::format(
      "# {}\n\n<!-- Printed by `telltale rules show {} --markdown`. Do not edit. "
      "-->\n\n{}\n\n{}\n\n"
      "## What is computed\n\n{}\n\nReads the tables {}.{}\n",
      desc.name, desc.name, desc.summary, Whence(desc), desc.formula, Tables(desc.table_mask),
      Needs(desc));
  if (!desc.parameters.empty()) {
    const bool source = std::any_of(desc.parameters.begin(), desc.parameters.end(),
                                    [](const ParameterDesc& p) { return p.source.has_value(); });
    out += fmt::format(
        "\n## Parameters\n\n| Parameter | Default | Unit | Meaning |\n"
        "|---|--:|---|---|\n");
    for (const ParameterDesc& p : desc.parameters) {
      out +=
          fmt::format("| `{}` | {} | {} | {}{} |\n", p.name, Cell(DefaultText(p)), Cell(p.unit),
                      Cell(p.doc), p.source ? fmt::format(" `preset=source`: {}.", *p.source) : "");
    }
    if (source) {
      out +=
          "\nDefaults are those of SageMaker Debugger's documentation; `preset=source` are those "
          "of its released code, where they differ.\n";
    }
  }
  if (!desc.example.empty()) out += fmt::format("\n## Example\n\n{}\n", desc.example);
  out += fmt::format("\n## What to do\n\n{}\n", desc.how_to_fix);
  return out;
}

}  // namespace telltale::rules
