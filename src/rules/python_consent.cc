// SPDX-License-Identifier: Apache-2.0
#include "rules/python_consent.h"

#include <nlohmann/json.hpp>

namespace telltale::rules {
namespace {

using nlohmann::ordered_json;

/// All that decides what runs, on one line. What the user calls the rule does not.
std::string LineOf(const RuleSpec& spec) {
  ordered_json line = ordered_json::object();
  line["python"] = spec.rule;
  line["parameters"] = ordered_json(spec.parameters);
  return line.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
}

std::vector<std::string> LinesOf(const RuleSet& set) {
  std::vector<std::string> out;
  for (const RuleSpec& spec : set.rules) {
    if (spec.source == RuleSource::kPython) out.push_back(LineOf(spec));
  }
  return out;
}

}  // namespace

std::filesystem::path PythonConsent::File() { return Consent::FileOf("python-rules"); }

PythonConsent& PythonConsent::OfUser() {
  static PythonConsent consent(File());
  return consent;
}

bool PythonConsent::Asks(const RuleSet& set) { return !LinesOf(set).empty(); }

void PythonConsent::Allow(const RuleSet& set) { consent_.Allow(LinesOf(set)); }

Status PythonConsent::Remember(const RuleSet& set) { return consent_.Remember(LinesOf(set)); }

bool PythonConsent::Has(const RuleSpec& spec) const { return consent_.Has(LineOf(spec)); }

}  // namespace telltale::rules
