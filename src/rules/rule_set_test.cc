// SPDX-License-Identifier: Apache-2.0
#include "rules/rule_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace telltale::rules {
namespace {

bool Runs(const RuleSet& set, std::string_view name) {
  const auto specs = Resolve(set);
  return specs.ok() && std::any_of(specs->begin(), specs->end(),
                                   [&](const RuleSpec& spec) { return spec.name == name; });
}

TEST(RuleSetTest, AFileAndJsonSayTheSame) {
  const auto set = RuleSetFromToml(R"(
off = ["StepOutlier"]
capture = false
price_per_hour = 32.77
[[actions]]
kind = "webhook"
url = "https://example.com/hook"
from = "high"
[rules.VanishingGradient]
parameters = { threshold = 1e-6 }
[[rules.VanishingGradient.actions]]
kind = "stop"
dry_run = false
[rules.idle]
expression = "p95(gpu.utilization[*], 5m) < 50 for 10m"
severity = "high"
)",
                                   "rules.toml");
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_FALSE(Runs(*set, "StepOutlier"));
  EXPECT_FALSE(set->capture);
  EXPECT_TRUE(Runs(*set, "InputBound"));
  EXPECT_TRUE(Runs(*set, "idle"));
  const auto specs = Resolve(*set);
  ASSERT_TRUE(specs.ok());
  for (const RuleSpec& spec : *specs) {
    ASSERT_EQ(spec.actions.size(), 1U) << spec.name;
    EXPECT_EQ(spec.actions[0].kind, spec.name == "VanishingGradient" ? "stop" : "webhook");
    EXPECT_EQ(spec.actions[0].dry_run, spec.name != "VanishingGradient");
  }
  const auto again = RuleSetFromJson(ToJson(*set));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, *set);
}

TEST(RuleSetTest, SageMakersStopOnFireIsAnActionThatStops) {
  const auto of = [](const char* text) {
    const auto spec = ParseRule(text);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    RuleSet set;
    set.defaults = false;
    if (spec.ok()) set.rules.push_back(*spec);
    const auto specs = Resolve(set);
    EXPECT_TRUE(specs.ok() && specs->size() == 1);
    return specs.ok() && !specs->empty() ? specs->front().actions : std::vector<ActionSpec>();
  };
  EXPECT_TRUE(of("StalledTrainingRule").empty());
  EXPECT_TRUE(of("StalledTrainingRule:stop_training_on_fire=False").empty());
  const auto actions = of("StalledTrainingRule:stop_training_on_fire=True");
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(actions[0].kind, "stop");
  EXPECT_FALSE(actions[0].dry_run);
}

TEST(RuleSetTest, WhatIsWrongIsSaidWithItsLine) {
  const auto wrong = [](const char* text) {
    const auto set = RuleSetFromToml(text, "my.toml");
    const Status status = set.ok() ? Resolve(*set).status() : set.status();
    EXPECT_EQ(status.code(), Code::kUsage) << text;
    return status.message();
  };
  EXPECT_EQ(wrong("\nofff = []\n").rfind("my.toml:2: offf is unknown", 0), 0U);
  EXPECT_NE(wrong("[rules.dead_relu]\n").find("write DeadRelu"), std::string::npos);
  EXPECT_NE(wrong("[rules.VanishingGradient.parameters]\nthresh = 1\n").find("thresh"),
            std::string::npos);
  EXPECT_NE(wrong("[[actions]]\nkind = 'explode'\n").find("stop, webhook"), std::string::npos);
  EXPECT_NE(wrong("off = ['Nothing']\n").find("rules list"), std::string::npos);
}

TEST(RuleSetTest, ARuleOnTheCommandLine) {
  const auto rule = ParseRule("VanishingGradient:threshold=1e-6,patience=5");
  ASSERT_TRUE(rule.ok()) << rule.status().message();
  const auto parameters = ParametersOf(*rule);
  ASSERT_TRUE(parameters.ok());
  EXPECT_EQ(parameters->Get("threshold"), 1e-6);
  EXPECT_EQ(parameters->GetInt("patience"), 5);
  EXPECT_FALSE(ParseRule("VanishingGradient:threshold=low").ok());
  EXPECT_FALSE(ParseRule("VanishingGradient:threshold").ok());
  EXPECT_FALSE(ParseRule("NoSuchRule").ok());
}

TEST(RuleSetTest, WhatARuleIsAskedAboutIsCaptured) {
  for (const char* rule : {"ExplodingTensor", "SimilarAcrossRuns"}) {
    RuleSet set;
    set.defaults = false;
    const auto spec =
        ParseRule(std::string(rule) + ":collection_names=activations,tensor_regex=^head");
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    set.rules.push_back(*spec);
    bool collection = false;
    bool pattern = false;
    for (const Need& need : NeedsOf(set)) {
      collection = collection || (need.collection == "activations" && need.take == "statistics");
      pattern = pattern || need.include.find("^head") != std::string::npos;
    }
    EXPECT_TRUE(collection) << rule;
    EXPECT_TRUE(pattern) << rule;
  }
}

TEST(RuleSetTest, WhatCostsTooMuchForADefaultIsCapturedWhereTheRuleIsNamed) {
  const auto needs_labels = [](const RuleSet& set) {
    const std::vector<Need> needs = NeedsOf(set);
    return std::any_of(needs.begin(), needs.end(),
                       [](const Need& need) { return need.collection == "labels"; });
  };
  RuleSet set;
  EXPECT_FALSE(needs_labels(set));
  const auto spec = ParseRule("Confusion");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  set.rules.push_back(*spec);
  EXPECT_TRUE(needs_labels(set));
}

}  // namespace
}  // namespace telltale::rules
