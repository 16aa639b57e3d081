// SPDX-License-Identifier: Apache-2.0
#include "plan/capture_plan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "plan/compiler.h"

namespace telltale::plan {
namespace {

TEST(When, IsSageMakerDebuggersSaveRule) {
  // step in steps OR (start <= step < end AND step % interval == 0); the list knows no start and no
  // end.
  const When when{.interval = 100, .start = 150, .end = 500, .steps = {3, 7, 900}};
  for (std::int64_t step = 0; step < 1000; ++step) {
    const bool listed = step == 3 || step == 7 || step == 900;
    const bool saved = listed || (150 <= step && step < 500 && step % 100 == 0);
    EXPECT_EQ(when.Due(step), saved) << step;
  }
  EXPECT_FALSE(when.Due(150)) << "the interval is of the absolute step";
  EXPECT_TRUE(when.Due(200));
  const When nothing{.interval = 1, .end = 0};
  EXPECT_FALSE(nothing.Due(0)) << "an end of 0 switches off";
  EXPECT_TRUE(When{}.Never());
  EXPECT_TRUE(nothing.Never());
  EXPECT_FALSE((When{.interval = 1, .end = 0, .steps = {3}}).Never());
}

TEST(CapturePlan, EveryLevelComesBackAsJsonAndAsToml) {
  for (const char* level : {"system", "steps", "tensors", "operators", "all"}) {
    const auto plan = PlanOfLevel(level);
    ASSERT_TRUE(plan.ok()) << level;
    EXPECT_EQ(plan->level, level);
    const auto json = FromJson(ToJson(*plan));
    ASSERT_TRUE(json.ok()) << json.status().message();
    EXPECT_EQ(*json, *plan) << level;
    const auto toml = FromToml(ToToml(*plan), "plan.toml");
    ASSERT_TRUE(toml.ok()) << toml.status().message();
    EXPECT_EQ(*toml, *plan) << level;
  }
}

TEST(CapturePlan, OperatorsAreWindowsBesideTheSteps) {
  const auto plan = PlanOfLevel("operators");
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->collections, DefaultPlan().collections);
  ASSERT_EQ(plan->windows.size(), 1U);
  EXPECT_EQ(plan->windows[0].every, 1000U);
  EXPECT_EQ(PlanOfLevel("most").status().code(), Code::kUsage);
}

TEST(CapturePlan, AnyPlanComesBack) {
  CapturePlan plan;
  plan.level = "custom";
  plan.slab_bytes = 1 << 30;
  Collection a;
  a.name = "a \"b\".c\\ é";
  a.include = {"^layer[0-9]+\\.", "\x7f"};
  a.exclude = {"bias"};
  a.tensors = {"x"};
  a.modules = {"encoder.layer.0"};
  a.take = kStats | kHistogram | kRaw | kShape | kMore;
  a.reductions = {"mean", "abs_prod"};
  a.max_elements = 1024;
  a.when[0] = {.interval = 10, .start = 5, .end = 500, .steps = {1, 2}};
  a.when[1] = {.steps = {0}};
  a.when[3] = {.interval = 0, .start = 3};
  Collection b;
  b.name = "b";
  plan.collections = {a, b};
  const auto json = FromJson(ToJson(plan));
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ(*json, plan);
  const auto toml = FromToml(ToToml(plan), "plan.toml");
  ASSERT_TRUE(toml.ok()) << toml.status().message();
  EXPECT_EQ(*toml, plan);
}

TEST(CapturePlan, NothingSaidIsTheDefault) {
  EXPECT_EQ(FromJson("{}").value(), DefaultPlan());
  EXPECT_EQ(FromToml("", "plan.toml").value(), DefaultPlan());
  const auto nothing = FromJson(R"({"collections": {}})");
  ASSERT_TRUE(nothing.ok());
  EXPECT_TRUE(nothing->collections.empty());
}

TEST(CapturePlan, KeysMeanWhatThePageSays) {
  const auto plan = FromJson(R"({"collections": {
      "losses": {},
      "gradients": {"steps": [9, 1, 9], "reductions": ["l2_norm", "prod"]},
      "outputs": {"take": ["histogram"], "eval": {"interval": 5}},
      "inputs": {"interval": 7, "predict": {"interval": 0}}}})");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->level, "custom");
  ASSERT_EQ(plan->collections.size(), 4U);
  const Collection& losses = plan->collections[0];
  EXPECT_EQ(losses.take, kStats);
  for (const When& when : losses.when) EXPECT_EQ(when, When{.interval = 100});
  const Collection& gradients = plan->collections[1];
  EXPECT_EQ(gradients.take, kStats | kMore);
  EXPECT_EQ(gradients.when[0].interval, 0U) << "steps alone";
  EXPECT_EQ(gradients.when[0].steps, (std::vector<std::int64_t>{1, 9}));
  const Collection& outputs = plan->collections[2];
  EXPECT_EQ(outputs.take, kStats | kHistogram) << "a histogram brings the statistics";
  EXPECT_TRUE(outputs.when[0].Never()) << "only EVAL was said";
  EXPECT_EQ(outputs.when[1].interval, 5U);
  const Collection& inputs = plan->collections[3];
  EXPECT_EQ(inputs.when[0].interval, 7U);
  EXPECT_TRUE(inputs.when[2].Never());
}

TEST(CapturePlan, ALevelIsTheStart) {
  const auto plan = FromToml("level = 'steps'\n[collections.gradients]\ninterval = 1\n", "p");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->level, "custom");
  ASSERT_EQ(plan->collections.size(), 3U);
  EXPECT_EQ(plan->collections[0], DefaultPlan().collections[0]);
  EXPECT_EQ(plan->collections[2].when[0].interval, 1U);
}

TEST(CapturePlan, WhatIsWrongIsNamed) {
  const struct {
    const char* text;
    const char* named;
  } cases[] = {
      {"", "JSON"},
      {"[]", "object"},
      {R"({"levle": "all"})", "levle"},
      {R"({"level": 3})", "level"},
      {R"({"slab_bytes": -1})", "slab_bytes"},
      {R"({"collections": []})", "collections"},
      {R"({"collections": {"": {}}})", "name"},
      {R"({"collections": {"a": 1}})", "collections.a"},
      {R"({"collections": {"a": {"intervall": 1}}})", "collections.a.intervall"},
      {R"({"collections": {"a": {"interval": 1.5}}})", "collections.a.interval"},
      {R"({"collections": {"a": {"interval": -1}}})", "collections.a.interval"},
      {R"({"collections": {"a": {"steps": ["x"]}}})", "collections.a.steps"},
      {R"({"collections": {"a": {"take": ["median"]}}})", "collections.a.take"},
      {R"({"collections": {"a": {"take": []}}})", "collections.a.take"},
      {R"({"collections": {"a": {"reductions": ["median"]}}})", "collections.a.reductions"},
      {R"({"collections": {"a": {"eval": {"take": 1}}}})", "collections.a.eval.take"},
      {R"({"collections": {"a": {"eval": 1}}})", "eval = { interval = 1 }"},
      {R"({"collections": {"a": {"start": 5, "end": 5}}})", "collections.a.end"},
      {R"({"collections": {"a": {"train": {"start": 9, "end": 5}}}})", "collections.a.train.end"},
      {R"({"collections": {"a": {"max_elements": 0}}})", "collections.a.max_elements"},
      {R"({"collections": {"a": {"max_elements": 100}}})", "collections.a.max_elements"},
      {R"({"collections": {"a": {"max_elements": 262208}}})", "collections.a.max_elements"},
      {R"({"level": "most"})", "level cannot be used"},
      {R"({"collections": {"a": {"include": [1]}}})", "collections.a.include"},
  };
  for (const auto& wrong : cases) {
    const auto plan = FromJson(wrong.text);
    ASSERT_FALSE(plan.ok()) << wrong.text;
    EXPECT_EQ(plan.status().code(), Code::kUsage);
    EXPECT_NE(plan.status().message().find(wrong.named), std::string::npos)
        << plan.status().message();
  }
}

TEST(CapturePlan, AWrongLineOfAFileIsNamed) {
  const auto key = FromToml(
      "level = 'all'\n\n[collections.a]\ntake = ['statistics']\nintervall = 3\n", "my.toml");
  ASSERT_FALSE(key.ok());
  EXPECT_EQ(key.status().message().rfind("my.toml:5: collections.a.intervall", 0), 0U)
      << key.status().message();
  // What toml++ takes for impossible is among it: found by fuzzing.
  for (const char* text : {"level = all\n", "[\x01", "\u00e9 = 1\n", "level\u0149 = 'all'\n"}) {
    const auto syntax = FromToml(text, "my.toml");
    ASSERT_FALSE(syntax.ok()) << text;
    EXPECT_EQ(syntax.status().message().rfind("my.toml:1: ", 0), 0U) << syntax.status().message();
  }
}

TEST(Collect, ReadsTheFormsOfThePage) {
  const auto plain = ParseCollect("losses");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->name, "losses");
  EXPECT_EQ(plain->when[3].interval, 100U);
  const auto full = ParseCollect(
      "mine:values,histogram,include=^fc(1,2)?[0-9]{1,2}\\,x,include=b+,modules=a+b.c,interval=10,"
      "start=5,"
      "end=50,steps=1+2,eval.interval=1");
  ASSERT_TRUE(full.ok()) << full.status().message();
  EXPECT_EQ(full->take, kRaw | kHistogram | kStats);
  EXPECT_EQ(full->include, (std::vector<std::string>{"^fc(1,2)?[0-9]{1,2}\\,x", "b+"}));
  EXPECT_EQ(full->modules, (std::vector<std::string>{"a", "b.c"}));
  EXPECT_EQ(full->when[0], (When{.interval = 10, .start = 5, .end = 50, .steps = {1, 2}}));
  EXPECT_EQ(full->when[1], When{.interval = 1});
  for (const char* wrong : {"", ":interval=1", "a:interval", "a:interval=x", "a:nope=1",
                            "a:day.interval=1", "a:interval=1,interval=2",
                            "a:eval.end=1,eval.end=2", "a:eval=1", "a:include=\xff", "\xff"}) {
    EXPECT_EQ(ParseCollect(wrong).status().code(), Code::kUsage) << wrong;
  }
}

TEST(Union, TheLaterWordHolds) {
  Collection gradients;
  gradients.name = "gradients";
  gradients.when[0].interval = 1;
  CapturePlan more;
  more.collections = {gradients};
  const CapturePlan both = Union(DefaultPlan(), more);
  EXPECT_EQ(both.collections.size(), 3U);
  EXPECT_EQ(both.collections[2], gradients);
  EXPECT_EQ(both.level, "custom");
  EXPECT_EQ(Union(DefaultPlan(), DefaultPlan()), DefaultPlan());
}

TEST(Union, TheBoundOnRawValuesIsThatOfWhoSaysOne) {
  const auto with = [](const char* json) { return FromJson(json).value(); };
  const CapturePlan small = with(R"({"slab_bytes": 1048576})");
  EXPECT_EQ(small.SlabBytes(), 1U << 20);
  EXPECT_EQ(DefaultPlan().SlabBytes(), 256U << 20);
  // Whatever is added goes over JSON on its way to the agent.
  for (const CapturePlan& silent :
       {with(R"({"level": "tensors"})"), with(R"({"collections": {"losses": {}}})"),
        with(R"({"windows": {"w": {"next": 5}}})")}) {
    EXPECT_EQ(Union(small, with(ToJson(silent).c_str())).SlabBytes(), 1U << 20);
  }
  EXPECT_EQ(Union(small, with(R"({"slab_bytes": 4096})")).SlabBytes(), 4096U);
  EXPECT_EQ(Union(small, with(R"({"slab_bytes": 268435456})")).SlabBytes(), 256U << 20);
}

/// The blocks of a language on a page.
std::vector<std::string> Blocks(const std::string& page, const std::string& language) {
  std::ifstream in(std::string(TELLTALE_SOURCE_DIR) + "/docs/" + page);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  std::vector<std::string> out;
  const std::string fence = "```" + language + "\n";
  for (auto at = text.find(fence); at != std::string::npos; at = text.find(fence, at + 1)) {
    const auto begin = at + fence.size();
    out.push_back(text.substr(begin, text.find("```", begin) - begin));
  }
  return out;
}

TEST(PlanPage, ItsExamplesAreOnePlan) {
  const auto toml = Blocks("formats/plan.md", "toml");
  const auto json = Blocks("formats/plan.md", "json");
  ASSERT_EQ(toml.size(), 1U);
  ASSERT_EQ(json.size(), 1U);
  const auto plan = FromToml(toml[0], "plan.toml");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto same = FromJson(json[0]);
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_EQ(*same, *plan);
  EXPECT_TRUE(Compiled::Create(*plan).ok());
  EXPECT_EQ(plan->collections.size(), 4U);
}

TEST(CapturePage, ItsPlansAreValid) {
  const auto plans = Blocks("guide/capture.md", "toml");
  EXPECT_GE(plans.size(), 1U);
  for (const std::string& text : plans) {
    const auto plan = FromToml(text, "capture.md");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(Compiled::Create(*plan).ok());
  }
}

}  // namespace
}  // namespace telltale::plan
