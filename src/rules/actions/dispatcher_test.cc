// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/dispatcher.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
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

TEST(Dispatcher, ActsOnceTheDiskHasTheDecision) {
  const store::TempFolder run;
  Dispatcher dispatcher(Rules("stop"), {run.path(), "r", "r", "h"});
  const Moment now = {.run_ns = 1, .unix_ns = 1'700'000'000'000'000'000};
  const auto events = dispatcher.Round(Findings(), Findings(), now);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, "action.decided");
  EXPECT_EQ(events[1].kind, "action.started");
  EXPECT_EQ(Requests(run.path()), 0U);
  EXPECT_TRUE(dispatcher.Journalled());
  EXPECT_EQ(Requests(run.path()), 0U);
  dispatcher.Durable();
  EXPECT_EQ(Requests(run.path()), 1U);
  EXPECT_FALSE(dispatcher.Journalled());
  const auto after = dispatcher.Round({}, Findings(), now);
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(after[0].kind, "action.done");
  EXPECT_EQ(ParseJson(after[0].data)["outcome"], "done");
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
    if (!acts) continue;
    dispatcher.Journalled();
    dispatcher.Durable();
  }
  EXPECT_EQ(Requests(run.path()), 1U);
}

TEST(Dispatcher, AStopIsOfTheAttemptInWhichItWasDecided) {
  // The next watcher's attempt is another, and the wall clock was set back in between.
  for (const bool recalled : {false, true}) {
    const store::TempFolder run;
    const Moment then = {.run_ns = 1, .unix_ns = 1'700'000'000'000'000'000, .attempt = 1};
    const Moment now = {.run_ns = 2, .unix_ns = 1'600'000'000'000'000'000, .attempt = 2};
    Dispatcher first(Rules("stop"), {run.path(), "r", "r", "h"});
    const auto journal = first.Round(Findings(), Findings(), then);
    Dispatcher second(Rules("stop"), {run.path(), "r", "r", "h"});
    Dispatcher* acts = &first;
    if (recalled) {
      RecallAll(&second, journal);
      second.Round({}, Findings(), now);
      acts = &second;
    }
    acts->Journalled();
    acts->Durable();
    const auto found = store::RequestReader(run.path()).Poll();
    ASSERT_EQ(found.requests.size(), 1U);
    EXPECT_EQ(found.requests[0].attempt, 1U);
  }
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
  EXPECT_EQ(ParseJson(events[0].data)["outcome"], "unknown");
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
  EXPECT_FALSE(dispatcher.Journalled());
  dispatcher.Durable();
  EXPECT_EQ(Requests(run.path()), 0U);
}

TEST(Dispatcher, WhatTheUserHasNotAgreedToDoesNothing) {
  const store::TempFolder run;
  const store::TempFolder state;
  ActionConsent consent(state.path() / "actions");
  const DispatcherOptions options{run.path(), "r", "r", "h", &consent};
  const Moment now = {.run_ns = 1, .unix_ns = 1};
  Dispatcher dispatcher(Rules("stop"), options);
  const auto events = dispatcher.Round(Findings(), Findings(), now);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(ParseJson(events[0].data)["held"], "not agreed to");
  EXPECT_FALSE(dispatcher.Journalled());
  dispatcher.Durable();
  EXPECT_EQ(Requests(run.path()), 0U);

  // A journal that says it was decided: a stranger's, or that of another user's watcher.
  Dispatcher first(Rules("stop"), {run.path(), "r", "r", "h"});
  const auto journal = first.Round(Findings(), Findings(), now);
  for (const bool dry : {false, true}) {
    auto rules = Rules("stop");
    rules[0].actions[0].dry_run = dry;
    Dispatcher second(rules, options);
    RecallAll(&second, journal);
    second.Round({}, Findings(), now);
    EXPECT_FALSE(second.Journalled());
    second.Durable();
    EXPECT_EQ(Requests(run.path()), 0U);
    EXPECT_TRUE(second.idle());
  }

  RuleSet set;
  set.actions = Rules("stop")[0].actions;
  ASSERT_TRUE(consent.Remember(set).ok());
  ::setenv("TELLTALE_ACTIONS", "off", 1);
  Dispatcher off(Rules("stop"), options);
  const auto said = off.Round(Findings(), Findings(), now);
  ::unsetenv("TELLTALE_ACTIONS");
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(ParseJson(said[0].data)["held"], "switched off") << "it was agreed to";
  Dispatcher third(Rules("stop"), options);
  third.Round(Findings(), Findings(), now);
  EXPECT_TRUE(third.Journalled());
  third.Durable();
  EXPECT_EQ(Requests(run.path()), 1U);
}

TEST(Dispatcher, WhatIsOverWhileItWaitedStopsNothing) {
  const store::TempFolder run;
  auto rules = Rules("stop");
  rules[0].actions[0].parameters["group_wait"] = "10";
  Dispatcher dispatcher(rules, {run.path(), "r", "r", "h"});
  ASSERT_EQ(dispatcher.Round(Findings(), Findings(), {.run_ns = 1, .unix_ns = 1}).size(), 1U);
  EXPECT_FALSE(dispatcher.Journalled());
  auto over = Findings();
  over[0].open = false;
  const auto events =
      dispatcher.Round({}, over, {.run_ns = 20'000'000'000, .unix_ns = 20'000'000'000});
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, "action.done");
  EXPECT_NE(events[0].message.find("over before"), std::string::npos) << events[0].message;
  EXPECT_FALSE(dispatcher.Journalled());
  dispatcher.Durable();
  EXPECT_EQ(Requests(run.path()), 0U);
  EXPECT_TRUE(dispatcher.idle());
}

TEST(Dispatcher, WhatIsOverIsNotStoppedByTheNextWatcherEither) {
  const store::TempFolder run;
  const Moment now = {.run_ns = 1, .unix_ns = 1'700'000'000'000'000'000};
  Dispatcher first(Rules("stop"), {run.path(), "r", "r", "h"});
  const auto journal = first.Round(Findings(), Findings(), now);
  Dispatcher second(Rules("stop"), {run.path(), "r", "r", "h"});
  RecallAll(&second, journal);
  auto over = Findings();
  over[0].open = false;
  const auto events = second.Round({}, over, now);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, "action.done");
  EXPECT_TRUE(second.idle());
}

std::vector<RuleSpec> Webhook() {
  auto rules = Rules("webhook");
  // Nobody listens there: it is tried again, with pauses.
  rules[0].actions[0].parameters = {{"url", "http://127.0.0.1:1/"}, {"allow_private", "true"}};
  return rules;
}

TEST(Dispatcher, AWebhookThatAWatchersEndCutsShortIsTheNextOnes) {
  const store::TempFolder run;
  const Moment now = {.run_ns = 1, .unix_ns = 1'700'000'000'000'000'000};
  Dispatcher first(Webhook(), {run.path(), "r", "r", "h"});
  auto journal = first.Round(Findings(), Findings(), now);
  ASSERT_TRUE(first.Journalled());
  first.Durable();
  first.Stop();
  for (const ActionEvent& event : first.Round({}, Findings(), now)) journal.push_back(event);
  Dispatcher second(Webhook(), {run.path(), "r", "r", "h"});
  RecallAll(&second, journal);
  const auto events = second.Round({}, Findings(), now);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, "action.started");
}

TEST(Dispatcher, AtTheEndOfTheRunNothingStaysUnanswered) {
  const store::TempFolder run;
  Moment now = {.run_ns = 1, .unix_ns = 1'700'000'000'000'000'000};
  Dispatcher dispatcher(Webhook(), {run.path(), "r", "r", "h"});
  dispatcher.Round(Findings(), Findings(), now);
  ASSERT_TRUE(dispatcher.Journalled());
  dispatcher.Durable();
  dispatcher.Stop();
  now.over = true;
  const auto events = dispatcher.Round({}, Findings(), now);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, "action.done");
  EXPECT_EQ(ParseJson(events[0].data)["outcome"], "failed");
  EXPECT_TRUE(dispatcher.idle());
}

}  // namespace
}  // namespace telltale::rules
