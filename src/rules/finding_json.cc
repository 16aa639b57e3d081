// SPDX-License-Identifier: Apache-2.0
#include "rules/finding_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace telltale::rules {
namespace {

/// The evidence is JSON already; what is no object is shown as text rather than lost.
nlohmann::ordered_json Evidence(const std::string& text) {
  auto parsed = nlohmann::ordered_json::parse(text, nullptr, false);
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

/// " Of tensors: `gradients` (statistics, each 100 TRAIN steps)."; empty where it reads none.
std::string Captures(const RuleDesc& desc) {
  std::string out;
  for (const CaptureNeed& need : desc.captures) {
    out += fmt::format("{}`{}` ({}, each {} TRAIN steps)", out.empty() ? " Of tensors: " : ", ",
                       need.collection, need.take, need.interval);
  }
  return out.empty() ? out : out + ".";
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
                                {"records", nullptr}};
  if (state.records) out["records"] = *state.records;
  if (!state.error.empty()) out["error"] = state.error;
  return out;
}

nlohmann::ordered_json ToJson(const RuleDesc& desc) {
  nlohmann::ordered_json parameters = nlohmann::ordered_json::array();
  for (const ParameterDesc& p : desc.parameters) {
    parameters.push_back(
        {{"name", p.name}, {"default", p.default_value}, {"unit", p.unit}, {"doc", p.doc}});
  }
  nlohmann::ordered_json captures = nlohmann::ordered_json::array();
  for (const CaptureNeed& need : desc.captures) {
    captures.push_back(
        {{"collection", need.collection}, {"take", need.take}, {"interval", need.interval}});
  }
  return {{"name", desc.name},        {"summary", desc.summary},
          {"formula", desc.formula},  {"how_to_fix", desc.how_to_fix},
          {"parameters", parameters}, {"captures", captures}};
}

std::string ToMarkdown(const RuleDesc& desc) {
  std::string out = fmt::format(
      "# {}\n\n<!-- Printed by `telltale rules show {} --markdown`. Do not edit. -->\n\n{}\n\n"
      "## What is computed\n\n{}\n\nReads the tables {}.{}\n\n## Parameters\n\n"
      "| Parameter | Default | Unit | Meaning |\n|---|--:|---|---|\n",
      desc.name, desc.name, desc.summary, desc.formula, Tables(desc.table_mask), Captures(desc));
  for (const ParameterDesc& p : desc.parameters) {
    out += fmt::format("| `{}` | {} | {} | {} |\n", p.name, p.default_value, p.unit, p.doc);
  }
  out += fmt::format("\n## What to do\n\n{}\n", desc.how_to_fix);
  return out;
}

}  // namespace telltale::rules
