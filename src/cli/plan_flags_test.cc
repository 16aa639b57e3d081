// SPDX-License-Identifier: Apache-2.0
// The plan of a run: what the rules need, and what the options say.
#include "cli/plan_flags.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "cli/rule_flags.h"
#include "cli/rule_needs.h"
#include "plan/compiler.h"
#include "rules/registry.h"
#include "store/store_testing.h"

namespace telltale::cli {
namespace {

const plan::Collection* Find(const plan::CapturePlan& plan, const std::string& name) {
  const auto found = std::find_if(plan.collections.begin(), plan.collections.end(),
                                  [&](const plan::Collection& c) { return c.name == name; });
  return found == plan.collections.end() ? nullptr : &*found;
}

/// These rules alone.
rules::RuleSet Only(const std::vector<std::string>& names) {
  rules::RuleSet set;
  set.defaults = false;
  for (const std::string& name : names) set.rules.push_back(rules::ParseRule(name).value());
  return set;
}

/// Those that only need what the default plan has.
rules::RuleSet Two() { return Only({"ExplodingTensor", "VanishingGradient"}); }

/// Lines of Unserved for a plan.
std::vector<std::string> Unserved(const plan::CapturePlan& plan) {
  const auto compiled = plan::Compiled::Create(plan);
  EXPECT_TRUE(compiled.ok());
  return cli::Unserved(*compiled, rules::NeedsOf(Two()));
}

TEST(RuleNeeds, WhereNothingIsSaidTheyMakeThePlan) {
  const auto plan = PlanOfRun({});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto compiled = plan::Compiled::Create(*plan);
  ASSERT_TRUE(compiled.ok());
  EXPECT_TRUE(cli::Unserved(*compiled, rules::NeedsOf(rules::RuleSet())).empty());
  // The level `steps` says that it is this, and nothing more: no rule that runs where nobody asked
  // may cost more.
  EXPECT_EQ(*plan, plan::DefaultPlan());
}

TEST(RuleNeeds, OfNamedRulesAreAddedToAWholePlan) {
  rules::RuleSet set;
  set.rules = Only({"VanishingGradient", "StepOutlier"}).rules;
  const auto plan = PlanOfRun({.level = "system"}, set);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_EQ(plan->collections.size(), 1U);
  EXPECT_EQ(plan->level, "custom");
  EXPECT_EQ(plan->collections[0].name, "gradients");
  EXPECT_EQ(plan->collections[0].when[0], plan::When{.interval = 100});
  EXPECT_TRUE(plan->collections[0].when[1].Never());
}

TEST(RuleNeeds, AreAddedToWhatTheUserSays) {
  const auto plan = PlanOfRun(
      {.level = "system", .collect = {"gradients:values,interval=7", "weights:interval=0"}},
      Only({"ExplodingTensor"}));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const plan::Collection* const gradients = Find(*plan, "gradients");
  ASSERT_NE(gradients, nullptr);
  EXPECT_EQ(gradients->take, plan::kRaw | plan::kStats);
  EXPECT_EQ(gradients->when[0].interval, 7U) << "how often is the user's word";
  EXPECT_TRUE(Find(*plan, "weights")->when[0].Never()) << "so is that it is not taken";
  EXPECT_EQ(Find(*plan, "biases")->when[0].interval, 100U);
}

TEST(RuleNeeds, OfTheMostEagerRuleHoldWhereNobodySaidWhen) {
  plan::CapturePlan plan = plan::DefaultPlan();
  const std::vector<rules::Need> needs = {{"A", "gradients", "", "statistics", 10},
                                          {"B", "gradients", "", "histogram", 500},
                                          {"C", "relu", "relu_\\d", "values", 50},
                                          {"D", "labels", "", "values", 10, 7}};
  ASSERT_TRUE(AddNeeds(needs, Nothing(), {"weights"}, &plan).ok());
  EXPECT_EQ(Find(plan, "gradients")->when[0].interval, 10U);
  EXPECT_NE(Find(plan, "gradients")->take & plan::kHistogram, 0U);
  EXPECT_EQ(Find(plan, "weights")->when[0].interval, 100U);
  ASSERT_NE(Find(plan, "relu"), nullptr);
  EXPECT_EQ(Find(plan, "relu")->include, std::vector<std::string>{"relu_\\d"});
  // Of an evaluation only what says so.
  EXPECT_EQ(Find(plan, "labels")->when[0].interval, 10U);
  EXPECT_EQ(Find(plan, "labels")->when[1].interval, 7U);
  EXPECT_TRUE(Find(plan, "gradients")->when[1].Never());
  EXPECT_EQ(plan.level, "custom");
  EXPECT_EQ(NeededBy(needs, "gradients"), "A, B");
}

TEST(RuleNeeds, AreTakenAsOftenAsTheRuleNeedsThemWhereALevelSaysWhen) {
  const rules::RuleSet eager = Only({"NonFiniteOrigin"});
  const std::vector<rules::Need> needs = rules::NeedsOf(eager);
  ASSERT_FALSE(needs.empty());
  ASSERT_LT(needs[0].interval, 100U);
  const store::TempFolder folder;
  const std::string file = (folder.path() / "plan.toml").string();
  std::ofstream(file) << "level = 'steps'\n[collections.mine]\ninterval = 1\n";
  for (const auto& plan : {PlanOfRun({.level = "steps"}, eager), PlanOfRun({.file = file}, eager),
                           PlanOf({}, Nothing(), needs, plan::DefaultPlan())}) {
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    for (const rules::Need& need : needs) {
      ASSERT_NE(Find(*plan, need.collection), nullptr) << need.collection;
      EXPECT_EQ(Find(*plan, need.collection)->when[0].interval, need.interval) << need.collection;
    }
    EXPECT_TRUE(cli::Unserved(*plan::Compiled::Create(*plan), needs).empty());
  }
  // A file's own word stays, and so does one that a run has been told.
  std::ofstream(file) << "level = 'steps'\n[collections.gradients]\ninterval = 70\n";
  EXPECT_EQ(Find(*PlanOfRun({.file = file}, eager), "gradients")->when[0].interval, 70U);
  plan::CapturePlan holds = plan::DefaultPlan();
  holds.collections[2].when[0].interval = 70;
  EXPECT_EQ(Find(*PlanOf({}, holds, needs, holds), "gradients")->when[0].interval, 70U);
}

TEST(RuleNeeds, WhatIsTakenTooSeldomIsAPart) {
  const std::vector<rules::Need> needs = {{"A", "gradients", "", "statistics", 10}};
  const auto lines_of = [&](const char* collect) {
    plan::CapturePlan plan = Nothing();
    plan.collections.push_back(plan::ParseCollect(collect).value());
    return cli::Unserved(*plan::Compiled::Create(plan), needs);
  };
  for (const char* seldom : {"gradients", "gradients:interval=11", "gradients:steps=0+10",
                             "gradients:interval=1,end=500", "gradients:interval=1,start=5"}) {
    const auto lines = lines_of(seldom);
    ASSERT_EQ(lines.size(), 1U) << seldom;
    EXPECT_NE(lines[0].find("A will see a part only: it needs statistics of gradients each 10 "
                            "steps in TRAIN steps"),
              std::string::npos)
        << lines[0];
  }
  EXPECT_TRUE(lines_of("gradients:interval=10").empty());
  EXPECT_TRUE(lines_of("gradients:interval=3").empty());
}

TEST(RuleNeeds, SurviveACollectionThatTakesAnotherThing) {
  const auto plan = PlanOfRun({.collect = {"gradients:values,interval=10"}}, Two());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(Find(*plan, "gradients")->take, plan::kRaw | plan::kStats);
  EXPECT_TRUE(Unserved(*plan).empty());
}

TEST(RuleNeeds, WhatIsNamedIsAskedFor) {
  const auto asked = [](const Result<plan::CapturePlan>& plan) {
    std::string names;
    for (const auto& collection : plan->collections) {
      if (collection.asked) names += (names.empty() ? "" : " ") + collection.name;
    }
    return names;
  };
  // What the default rules need does not count as asked for by name.
  EXPECT_EQ(asked(PlanOfRun({})), "");
  EXPECT_EQ(asked(PlanOfRun({.level = "all"})), "");
  EXPECT_EQ(asked(PlanOfRun({.collect = {"outputs:interval=5"}})), "outputs");
  EXPECT_EQ(asked(PlanOfRun({.level = "tensors", .collect = {"gradients:interval=5"}})),
            "gradients");
  rules::RuleSet named;
  named.rules.push_back({.name = "VanishingGradient", .rule = "VanishingGradient"});
  EXPECT_EQ(asked(PlanOfRun({}, named)), "gradients");
  EXPECT_EQ(asked(PlanOfRun({.level = "system"}, named)), "gradients");
}

TEST(RuleNeeds, OfARunThatGoesOnLeaveWhatHolds) {
  plan::CapturePlan holds = Nothing();
  holds.collections.push_back(plan::ParseCollect("gradients:values,interval=7").value());
  const auto added = PlanOf({}, Nothing(), rules::NeedsOf(Only({"VanishingGradient"})), holds);
  ASSERT_TRUE(added.ok()) << added.status().message();
  const plan::CapturePlan both = plan::Union(holds, *added);
  ASSERT_EQ(both.collections.size(), 1U);
  EXPECT_EQ(both.collections[0].take, plan::kRaw | plan::kStats);
  EXPECT_EQ(both.collections[0].when[0].interval, 7U);
}

TEST(RuleNeeds, WhatAPlanDoesNotServeIsSaid) {
  const std::vector<std::string> none = Unserved(Nothing());
  ASSERT_EQ(none.size(), 2U);
  EXPECT_EQ(none[0].find("The rule ExplodingTensor will have no data: it needs statistics of "
                         "weights, statistics of biases, statistics of gradients in TRAIN steps"),
            0U)
      << none[0];
  const auto lines_of = [](const char* collect) {
    plan::CapturePlan plan = Nothing();
    plan.collections.push_back(plan::ParseCollect(collect).value());
    return Unserved(plan);
  };
  // Gradients serve the one rule, and a part of the other's needs.
  const auto gradients = lines_of("gradients");
  ASSERT_EQ(gradients.size(), 1U);
  EXPECT_NE(gradients[0].find("ExplodingTensor will see a part only"), std::string::npos);
  // Neither another mode, nor values, nor no step at all is what they need.
  EXPECT_EQ(lines_of("gradients:eval.interval=1").size(), 2U);
  EXPECT_EQ(lines_of("gradients:values").size(), 2U);
  EXPECT_EQ(lines_of("gradients:interval=10,end=0").size(), 2U);
  // A pattern takes some of them.
  const auto some = lines_of("mine:include=conv");
  ASSERT_EQ(some.size(), 2U);
  EXPECT_NE(some[1].find("VanishingGradient will see a part only"), std::string::npos) << some[1];
  EXPECT_TRUE(lines_of("all").empty());
}

TEST(RuleNeeds, AreSaidBesideWhatThePlanTakes) {
  const std::string text = ExplainPlan(plan::DefaultPlan(), rules::NeedsOf(Two()));
  EXPECT_NE(text.find("ExplodingTensor, VanishingGradient\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("will have no data"), std::string::npos) << text;
  EXPECT_TRUE(plan::FromToml(text, "explained").ok());
}

TEST(RuleNeeds, ArePlansThatCanBeRead) {
  for (const rules::RuleEntry& entry : rules::Registry()) {
    const std::vector<rules::Need> needs = rules::NeedsOf(Only({std::string(entry.desc->name)}));
    plan::CapturePlan plan = Nothing();
    const Status added = AddNeeds(needs, Nothing(), {}, &plan);
    EXPECT_TRUE(added.ok()) << entry.desc->name << ": " << added.message();
    EXPECT_TRUE(plan::Compiled::Create(plan).ok()) << entry.desc->name;
    for (const rules::Need& need : needs) {
      EXPECT_NE(Find(plan, need.collection), nullptr) << entry.desc->name;
    }
  }
}

TEST(RuleFlags, TheLastWordHolds) {
  const store::TempFolder folder;
  const std::string file = (folder.path() / "rules.toml").string();
  std::ofstream(file) << "off = ['InputBound', 'StepOutlier']\nprice_per_hour = 3\n"
                         "[rules.VanishingGradient.parameters]\nthreshold = 1e-3\n";
  const auto set = RuleSetOf({.file = file,
                              .rules = {"VanishingGradient:threshold=1e-6", "InputBound"},
                              .off = {"ExplodingTensor"},
                              .price_per_hour = 5});
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->price_per_hour, 5);
  const auto specs = rules::Resolve(*set);
  ASSERT_TRUE(specs.ok());
  const auto runs = [&](const char* name) {
    return std::any_of(specs->begin(), specs->end(),
                       [&](const rules::RuleSpec& spec) { return spec.name == name; });
  };
  EXPECT_TRUE(runs("InputBound"));
  EXPECT_FALSE(runs("StepOutlier"));
  EXPECT_FALSE(runs("ExplodingTensor"));
  for (const rules::RuleSpec& spec : *specs) {
    if (spec.name == "VanishingGradient") {
      EXPECT_EQ(rules::ParametersOf(spec)->Get("threshold"), 1e-6);
    }
  }
}

TEST(RuleFlags, WhatIsWrongIsSaid) {
  EXPECT_EQ(RuleSetOf({.rules = {"NoSuchRule"}}).status().code(), Code::kUsage);
  EXPECT_EQ(RuleSetOf({.off = {"NoSuchRule"}}).status().code(), Code::kUsage);
  const auto no_file = RuleSetOf({.file = "VanishingGradient"});
  EXPECT_EQ(no_file.status().code(), Code::kUnusable);
  EXPECT_NE(no_file.status().message().find("--rule"), std::string::npos);
}

TEST(PlanOptions, AFileAndALevelAreTwoPlans) {
  const store::TempFolder folder;
  const std::string file = (folder.path() / "plan.toml").string();
  std::ofstream(file) << "[collections.losses]\ninterval = 1\n";
  EXPECT_TRUE(PlanOfRun({.file = file}).ok());
  const auto both = PlanOfRun({.file = file, .level = "tensors"});
  ASSERT_EQ(both.status().code(), Code::kUsage);
  EXPECT_NE(both.status().message().find("level = \"tensors\""), std::string::npos);
}

TEST(PlanOptions, AFileThatIsTooLargeOrNoneIsRefused) {
  const store::TempFolder folder;
  const std::string large = (folder.path() / "large.toml").string();
  std::ofstream(large) << std::string(9U << 20, '#');
  EXPECT_EQ(PlanOfRun({.file = large}).status().code(), Code::kLimit);
  EXPECT_EQ(PlanOfRun({.file = folder.path().string()}).status().code(), Code::kUnusable);
  EXPECT_EQ(PlanOfRun({.file = large + ".not"}).status().code(), Code::kUnusable);
  // Neither bytes that are no UTF-8 nor a text of another encoding is a plan; a byte order mark is
  // allowed.
  const auto of_bytes = [&](const std::string& bytes) {
    const std::string path = (folder.path() / "bytes.toml").string();
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return PlanOfRun({.file = path}).status().code();
  };
  EXPECT_EQ(of_bytes("level = 'syst\xff'\n"), Code::kUsage);
  EXPECT_EQ(of_bytes(std::string("\xff\xfel\0e\0v\0", 8)), Code::kUsage);
  EXPECT_EQ(of_bytes(std::string("\0level = 'all'\n", 15)), Code::kUsage);
  EXPECT_EQ(of_bytes("\xef\xbb\xbflevel = 'all'\r\n"), Code::kOk);
}

TEST(PlanOptions, ANameThatIsNearlyABuiltInOneIsSaid) {
  const auto slips_of = [](const char* collect) {
    plan::CapturePlan plan = Nothing();
    plan.collections.push_back(plan::ParseCollect(collect).value());
    return LikelySlips(plan);
  };
  const struct {
    const char* written;
    const char* meant;
  } slips[] = {{"gradient", "'gradients'"}, {"loss", "'losses'"},
               {"bias", "'biases'"},        {"Weights", "'weights'"},
               {"wieghts", "'weights'"},    {"feature_importances", "'feature_importance'"}};
  for (const auto& slip : slips) {
    const auto said = slips_of(slip.written);
    ASSERT_EQ(said.size(), 1U) << slip.written;
    EXPECT_NE(said[0].find(slip.meant), std::string::npos) << said[0];
  }
  for (const char* fine :
       {"gradients", "mine", "a", "heads", "gradient:include=x", "loss:tensors=y"}) {
    EXPECT_TRUE(slips_of(fine).empty()) << fine;
  }
  plan::CapturePlan plan = Nothing();
  plan.collections.push_back(plan::ParseCollect("gradient").value());
  EXPECT_NE(ExplainPlan(plan, {}).find("write 'gradients'"), std::string::npos);
}

TEST(PlanOptions, ThatNoAdapterHasGlobalStepsIsSaid) {
  const auto said_of = [](const char* collect) {
    plan::CapturePlan plan = Nothing();
    plan.collections.push_back(plan::ParseCollect(collect).value());
    return ExplainPlan(plan, {}).find("taken in GLOBAL steps alone") != std::string::npos;
  };
  EXPECT_TRUE(said_of("losses:global.interval=1"));
  EXPECT_TRUE(said_of("mine:include=x,global.steps=3"));
  EXPECT_FALSE(said_of("losses"));
  EXPECT_FALSE(said_of("losses:global.interval=1,eval.interval=1"));
  EXPECT_FALSE(said_of("losses:interval=0"));
}

TEST(PlanOptions, AWrongPatternOfAFileNamesTheFile) {
  const store::TempFolder folder;
  const std::string file = (folder.path() / "plan.toml").string();
  std::ofstream(file) << "[collections.mine]\ninclude = '(('\n";
  const auto plan = PlanOfRun({.file = file});
  ASSERT_EQ(plan.status().code(), Code::kUsage);
  EXPECT_EQ(plan.status().message().find(file), 0U) << plan.status().message();
}

}  // namespace
}  // namespace telltale::cli
