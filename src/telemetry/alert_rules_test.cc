// SPDX-License-Identifier: Apache-2.0
// That Prometheus takes the file is tested by promtool in tests/metrics; here that it speaks of
// metrics and rules that there are, and that the page of the metrics lists them all.
#include "telemetry/alert_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/json.h"
#include "rules/registry.h"
#include "telemetry/families.h"

namespace telltale::telemetry {
namespace {

std::set<std::string> NamesIn(const std::string& text) {
  static const std::regex kName("telltale_[a-z_]+");
  std::set<std::string> out;
  for (std::sregex_iterator at(text.begin(), text.end(), kName), end; at != end; ++at) {
    out.insert(at->str());
  }
  return out;
}

void ExpectKnown(const std::string& text) {
  for (const std::string& name : NamesIn(text)) {
    const bool known = std::any_of(kFamilies.begin(), kFamilies.end(),
                                   [&](const FamilyDesc& desc) { return desc.name == name; });
    EXPECT_TRUE(known || name.starts_with("telltale_system_")) << name;
  }
}

TEST(AlertRules, EachRuleHasItsAlert) {
  const std::string text = AlertRules();
  ExpectKnown(text);
  for (const rules::RuleEntry& entry : rules::Registry()) {
    const std::string name(entry.desc->name);
    EXPECT_NE(text.find("alert: Telltale" + name + "\n"), std::string::npos) << name;
    EXPECT_NE(text.find("kind=\\\"" + name + "\\\""), std::string::npos) << name;
  }
}

TEST(GrafanaDashboard, IsJsonOfPanelsThatAskForMetricsThatThereAre) {
  const std::string text = GrafanaDashboard();
  const auto dashboard = ParseJson(text);
  std::set<int> ids;
  std::string asked;
  for (const auto& panel : dashboard.at("panels")) {
    EXPECT_TRUE(ids.insert(panel.at("id").get<int>()).second);
    EXPECT_LE(panel.at("gridPos").at("x").get<int>() + panel.at("gridPos").at("w").get<int>(), 24);
    EXPECT_FALSE(panel.at("targets").empty());
    for (const auto& target : panel.at("targets")) {
      asked += target.at("expr").get<std::string>() + "\n";
    }
  }
  EXPECT_GE(ids.size(), 10U);
  ExpectKnown(asked);
  EXPECT_EQ(dashboard.at("templating").at("list").size(), 2U);
}

TEST(MetricsPage, ListsEveryFamily) {
  std::ifstream in(TELLTALE_SOURCE_DIR "/docs/guide/metrics-out.md");
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  for (const FamilyDesc& desc : kFamilies) {
    EXPECT_NE(page.find("`" + std::string(desc.name) + "`"), std::string::npos) << desc.name;
  }
}

}  // namespace
}  // namespace telltale::telemetry
