// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/dispatcher.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "store/requests.h"
#include "store/store_testing.h"

namespace telltale::rules {
namespace {

std::vector<RuleSpec> Rules(const std::string& kind) {
  RuleSpec rule;
  rule.name = rule.rule = "Divergence";
  ActionSpec action;
  action.kind = kind;
  action.dry_run = false;
  if (kind == "program") action.parameters["program"] = "/nowhere/allowed";
  rule.actions = {action};
  return {rule};
}

std::vector<Finding> Findings() {
  Finding finding;
  finding.id = "00000000000000aa";
  finding.rule = "Divergence";
  finding.revision = 1;
  finding.incident.severity = Severity::kHigh;
  finding.incident.message = "loss has doubled";
  return {finding};
}

std::size_t Requests(const std::filesystem::path& run) {
  return store::RequestReader(run).Poll().requests.size();
}

void RecallAll(Dispatcher* dispatcher, const std::vector<ActionEvent>& events) {
  for (const ActionEvent& event : events) dispatcher->Recall(event.kind, event.data, 1);
}

TEST(Dispatcher, ActsOnceTheJournalSaysSo) {
  const store::TempFolder run;
  Dispatcher dispatcher(Rules("stop"), {run.path(), "r", "r", "h"});
  const Moment now = {.run_ns = 1, .unix_ns = 1'700'000'000'000'000'000};
  const auto events = dispatcher.Round(Findings(), Findings(), now);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, "action.decided");
  EXPECT_EQ(events[1].kind, "action.started");
  EXPECT_EQ(Requests(run.path()), 0U);
  dispatcher.Journalled();
  EXPECT_EQ(Requests(run.path()), 1U);
  const auto after = dispatcher.Round({}, Findings(), now);
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(after[0].kind, "action.done");
  EXPECT_EQ(nlohmann::json::parse(after[0].data)["outcome"], "done");
  EXPECT_TRUE(dispatcher.idle());
}

TEST(Dispatcher, AWatcherThatDiesBetweenDecisionAndActionRepeatsNoStop) {
  const store::TempFolder run;
  const Moment now = {.run_ns = 1, .unix_ns = 1'700'000'000'000'000'000};
  std::vector<ActionEvent> journal;
  for (const bool acts : {false, true, true}) {
    Dispatcher dispatcher(Rules("stop"), {run.path(), "r", "r", "h"});
    RecallAll(&dispatcher, journal);
    // The first decides; each later one is killed before it says what became of it.
    for (const ActionEvent& event :
         dispatcher.Round(journal.empty() ? Findings() : std::vector<Finding>(), Findings(), now)) {
      journal.push_back(event);
    }
    if (acts) dispatcher.Journalled();
  }
  EXPECT_EQ(Requests(run.path()), 1U);
}

TEST(Dispatcher, WhatCannotBeRepeatedIsNot) {
  const store::TempFolder run;
  const Moment now = {.run_ns = 1, .unix_ns = 2};
  Dispatcher first(Rules("program"), {run.path(), "r", "r", "h"});
  const auto journal = first.Round(Findings(), Findings(), now);
  Dispatcher second(Rules("program"), {run.path(), "r", "r", "h"});
  RecallAll(&second, journal);
  const auto events = second.Round({}, Findings(), now);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(nlohmann::json::parse(events[0].data)["outcome"], "unknown");
  EXPECT_TRUE(second.idle());
}

TEST(Dispatcher, ADryRunOnlySays) {
  const store::TempFolder run;
  auto rules = Rules("stop");
  rules[0].actions[0].dry_run = true;
  Dispatcher dispatcher(rules, {run.path(), "r", "r", "h"});
  const auto events = dispatcher.Round(Findings(), Findings(), {.run_ns = 1, .unix_ns = 1});
  ASSERT_EQ(events.size(), 1U);
  EXPECT_NE(events[0].message.find("would stop the training"), std::string::npos);
  dispatcher.Journalled();
  EXPECT_EQ(Requests(run.path()), 0U);
}

}  // namespace
}  // namespace telltale::rules
