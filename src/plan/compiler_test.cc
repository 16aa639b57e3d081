// SPDX-License-Identifier: Apache-2.0
#include "plan/compiler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "plan/collections.h"

namespace telltale::plan {
namespace {

constexpr PassedSteps kNone = {-1, -1, -1, -1};

Compiled Compile(const std::string& json) {
  auto plan = FromJson(json);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  auto compiled = Compiled::Create(*plan);
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
  return std::move(compiled).value();
}

std::string Tensor(const std::string& collection, const std::string& name) {
  return format::kTensorMark + collection + format::kTensorMark + name;
}

bool Takes(const Compiled& compiled, const std::string& collection, const std::string& name) {
  const std::uint32_t word = compiled.WordOf(Tensor(collection, name));
  EXPECT_TRUE(word == format::kNameNo || (word & 0xff) == format::kNameYes);
  return word != format::kNameNo;
}

TEST(Compiled, CollectionsThatAreAlikeShareARule) {
  const auto compiled = Compiled::Create(DefaultPlan());
  ASSERT_TRUE(compiled.ok());
  const auto rules = compiled->rules(kNone);
  ASSERT_EQ(rules.size(), 1U);
  EXPECT_EQ(rules[0].take, kStats);
  EXPECT_EQ(rules[0].when[0].interval, 100U);
  EXPECT_EQ(rules[0].when[1].interval, 0U) << "not in EVAL";
  EXPECT_TRUE(Takes(*compiled, "weights", "conv1.weight"));
  EXPECT_TRUE(Takes(*compiled, "biases", "conv1.bias"));
  EXPECT_TRUE(Takes(*compiled, "gradients", "gradient/conv1.weight"));
  EXPECT_FALSE(Takes(*compiled, "outputs", "conv1.output"));
  EXPECT_EQ(compiled->WordOf("loss"), format::kNameNo) << "no tensor";
  EXPECT_EQ(compiled->unanswered_mask(), 0U);
}

TEST(Compiled, BuiltInCollectionsHoldWhatAdaptersPutIntoThem) {
  const Compiled outputs = Compile(R"({"collections": {"outputs": {}}})");
  EXPECT_TRUE(Takes(outputs, "outputs", "fc.output"));
  EXPECT_TRUE(Takes(outputs, "activations", "relu.output"));
  EXPECT_TRUE(Takes(outputs, "predictions", "output"));
  EXPECT_FALSE(Takes(outputs, "inputs", "fc.input.0"));
  const Compiled biases = Compile(R"({"collections": {"biases": {}}})");
  EXPECT_FALSE(Takes(biases, "weights", "conv1.weight"));
  const Compiled weights = Compile(R"({"collections": {"weights": {}}})");
  EXPECT_TRUE(Takes(weights, "weights", "conv1.weight"));
  EXPECT_FALSE(Takes(weights, "biases", "conv1.bias")) << "biases are a collection of their own";
  EXPECT_FALSE(Takes(weights, "gradients", "gradient/conv1.weight"));
  const Compiled state = Compile(R"({"collections": {"optimizer_variables": {}}})");
  EXPECT_TRUE(Takes(state, "optimizer_state", "conv1.weight.exp_avg"));
}

TEST(Compiled, BiasesThatAreSwitchedOffStayOffBesideWeights) {
  CapturePlan plan = DefaultPlan();
  for (Collection& collection : plan.collections) {
    if (collection.name == "biases") collection.when.fill({});
  }
  const auto compiled = Compiled::Create(plan);
  ASSERT_TRUE(compiled.ok());
  EXPECT_TRUE(Takes(*compiled, "weights", "conv1.weight"));
  EXPECT_TRUE(Takes(*compiled, "gradients", "gradient/conv1.bias"));
  EXPECT_FALSE(Takes(*compiled, "biases", "conv1.bias"));
  EXPECT_FALSE(Takes(*compiled, "biases", "")) << "nobody need look for them";
  // Neither collection waits for an answer to a name.
  EXPECT_EQ(compiled->collections()[0].takes, compiled->collections()[0].could);
  EXPECT_EQ(compiled->collections()[1].could, 0U);
}

TEST(Compiled, NamesDecideWhereNoAdapterDoes) {
  const Compiled weights =
      Compile(R"({"collections": {"weights": {}, "gradients": {"interval": 3}}})");
  EXPECT_TRUE(Takes(weights, "default", "my.weight"));
  EXPECT_TRUE(Takes(weights, "default", "gradient/my.weight"));
  EXPECT_EQ(weights.MaskOf("default", "gradient/my.weight"), 2U) << "as a gradient alone";
  EXPECT_FALSE(Takes(weights, "mine", "my.weight")) << "it has a collection";
  EXPECT_FALSE(Takes(weights, "default", "mask"));
}

TEST(Compiled, CustomCollections) {
  const Compiled mine = Compile(R"({"collections": {"mine": {
      "include": ["^fc"], "exclude": ["bias"], "tensors": ["x\u0001y"], "modules": ["layer1.0"]}}})");
  EXPECT_TRUE(Takes(mine, "weights", "fc.weight"));
  EXPECT_FALSE(Takes(mine, "weights", "fc.bias")) << "exclude wins";
  EXPECT_FALSE(Takes(mine, "weights", "a.fc.weight"));
  EXPECT_TRUE(Takes(mine, "mine", "anything"));
  EXPECT_TRUE(Takes(mine, "default", "x\x01y"));
  EXPECT_TRUE(Takes(mine, "outputs", "layer1.0.conv.output"));
  EXPECT_TRUE(Takes(mine, "gradients", "gradient/layer1.0.conv.weight"));
  EXPECT_TRUE(Takes(mine, "outputs", "layer1.0"));
  EXPECT_FALSE(Takes(mine, "outputs", "layer1.01.output"));
}

TEST(Compiled, ACollectionWithoutANameIsAnsweredByWhatCouldBe) {
  const Compiled weights = Compile(R"({"collections": {"weights": {}}})");
  EXPECT_TRUE(Takes(weights, "weights", ""));
  EXPECT_FALSE(Takes(weights, "outputs", "")) << "no hook on outputs for that";
  const Compiled pattern = Compile(R"({"collections": {"mine": {"include": ["relu"]}}})");
  EXPECT_TRUE(Takes(pattern, "outputs", ""));
}

TEST(Compiled, KnownCollectionsNeedNoAnswerWithoutPatterns) {
  const auto of = [](const Compiled& compiled, std::string_view name) {
    const auto* const known =
        std::find(std::begin(format::kKnownCollections), std::end(format::kKnownCollections), name);
    return compiled
        .collections()[static_cast<std::size_t>(known - std::begin(format::kKnownCollections))];
  };
  const Compiled plain = Compile(R"({"collections": {"gradients": {}}})");
  EXPECT_EQ(of(plain, "gradients").takes, 1U);
  EXPECT_EQ(of(plain, "gradients").could, 1U);
  EXPECT_EQ(of(plain, "outputs").takes, 0U);
  EXPECT_EQ(of(plain, "outputs").could, 0U);
  EXPECT_EQ(of(plain, "default").takes, 0U);
  EXPECT_EQ(of(plain, "default").could, 1U) << "its name decides";
  const Compiled excluded = Compile(R"({"collections": {"gradients": {"exclude": ["bn"]}}})");
  EXPECT_EQ(of(excluded, "gradients").takes, 0U);
  EXPECT_EQ(of(excluded, "gradients").could, 1U);
  const Compiled pattern =
      Compile(R"({"collections": {"gradients": {}, "fc": {"include": ["fc"], "interval": 1}}})");
  EXPECT_EQ(of(pattern, "gradients").takes, 1U);
  EXPECT_EQ(of(pattern, "gradients").could, 3U);
}

TEST(Compiled, WhatTakesEveryTensorNeedsNoAnswer) {
  EXPECT_EQ(Compile(R"({"collections": {"all": {}}})").unanswered_mask(), 1U);
  EXPECT_EQ(Compile(R"({"collections": {"weights": {}, "x": {"include": [".*"], "interval": 2}}})")
                .unanswered_mask(),
            2U);
  EXPECT_EQ(Compile(R"({"collections": {"all": {"exclude": ["bn"]}}})").unanswered_mask(), 0U);
}

TEST(Compiled, APatternThatIsNoneIsNamed) {
  const auto plan = FromJson(R"j({"collections": {"a": {"include": ["(?!x)"]}}})j");
  ASSERT_TRUE(plan.ok());
  const auto compiled = Compiled::Create(*plan);
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.status().code(), Code::kUsage);
  EXPECT_NE(compiled.status().message().find("'(?!x)'"), std::string::npos);
}

TEST(Compiled, MoreRulesThanAPageHoldsAreRefused) {
  CapturePlan plan;
  for (std::uint32_t i = 1; i <= format::kControlRules; ++i) {
    Collection collection;
    collection.name = "c" + std::to_string(i);
    collection.when[0].interval = i;
    plan.collections.push_back(collection);
  }
  ASSERT_TRUE(Compiled::Create(plan).ok());
  plan.collections.push_back(plan.collections[0]);
  plan.collections.back().name = "like the first";
  ASSERT_TRUE(Compiled::Create(plan).ok());
  plan.collections.back().when[0].interval = 1000;
  EXPECT_EQ(Compiled::Create(plan).status().code(), Code::kLimit);
}

TEST(Compiled, WhatNeverComesTakesNoRule) {
  const Compiled compiled = Compile(R"({"collections": {"weights": {"interval": 0}}})");
  EXPECT_TRUE(compiled.rules(kNone).empty());
  EXPECT_FALSE(Takes(compiled, "weights", "fc.weight"));
}

TEST(Compiled, LongListsFollowTheSteps) {
  CapturePlan plan;
  Collection collection;
  collection.name = "weights";
  collection.when[0].steps.resize(100);
  std::iota(collection.when[0].steps.begin(), collection.when[0].steps.end(), 0);
  plan.collections = {collection};
  auto compiled = Compiled::Create(plan);
  ASSERT_TRUE(compiled.ok());
  EXPECT_TRUE(compiled->slides());
  auto when = compiled->rules(kNone)[0].when[0];
  EXPECT_EQ(when.listed, 32U);
  EXPECT_EQ(when.list[0], 0);
  when = compiled->rules({49, -1, -1, -1})[0].when[0];
  EXPECT_EQ(when.listed, 32U);
  EXPECT_EQ(when.list[0], 50);
  when = compiled->rules({98, -1, -1, -1})[0].when[0];
  EXPECT_EQ(when.listed, 1U);
  EXPECT_EQ(when.list[0], 99);
}

TEST(Compiled, IntervalsAreThoseThatAreStretched) {
  using Intervals = std::vector<PlannedInterval>;
  EXPECT_EQ(
      Compiled::Create(DefaultPlan())->intervals(),
      (Intervals{{"weights", {}, 100, 0}, {"biases", {}, 100, 0}, {"gradients", {}, 100, 0}}));
  const Compiled mixed = Compile(R"({"collections": {
      "a": {"interval": 7, "eval": {"interval": 2}, "predict": {"interval": 0}},
      "b": {"steps": [1, 2]}, "c": {"interval": 5, "end": 0},
      "d": {"train": {"interval": 3, "steps": [4]}}}})");
  EXPECT_EQ(mixed.intervals(),
            (Intervals{{"a", 0, 7, 0}, {"a", 1, 2, 0}, {"a", 3, 7, 0}, {"d", {}, 3, 2}}));
  const Compiled takes = Compile(R"({"collections": {
      "losses": {"take": ["values"], "interval": 1},
      "outputs": {"take": ["values", "histogram"], "interval": 1}}})");
  EXPECT_EQ(takes.intervals(), (Intervals{{"losses", {}, 1, 0}, {"outputs", {}, 1, 1}}));
}

TEST(Compiled, WhatWasAskedForIsThinnedNoFurtherThanItIsKept) {
  Compiled compiled = Compile(R"({"collections": {
      "weights": {"take": ["values"], "interval": 10, "asked": true},
      "outputs": {"take": ["values", "statistics"], "interval": 10}}})");
  EXPECT_TRUE(compiled.planned()[0].asked);
  EXPECT_FALSE(compiled.planned()[1].asked);
  compiled.Apply({64, 1, {Kept{2, 64, 2, 2}, Kept{}}});
  const auto rules = compiled.rules(kNone);
  EXPECT_EQ(rules[0].take, kRaw);
  EXPECT_EQ(rules[0].when[0].interval, 20U);
  EXPECT_EQ(rules[0].when[1].interval, 640U);
  EXPECT_EQ(rules[1].take, kStats);
  EXPECT_EQ(rules[1].when[0].interval, 640U);
}

TEST(Compiled, ThinningStretchesAndSheds) {
  Compiled compiled = Compile(R"({"collections": {
      "weights": {"take": ["values", "histogram", "more"], "interval": 10, "steps": [3]},
      "outputs": {"take": ["values", "statistics"], "interval": 4294967295}}})");
  compiled.Apply({.stretch = 4, .shed = 0});
  auto rules = compiled.rules(kNone);
  ASSERT_EQ(rules.size(), 2U);
  EXPECT_EQ(rules[0].when[0].interval, 40U);
  EXPECT_EQ(rules[0].when[0].listed, 1U) << "steps that were named stay";
  EXPECT_EQ(rules[1].when[0].interval, UINT32_MAX);
  const std::uint32_t left[][2] = {{kRaw | kHistogram | kMore | kStats, kRaw | kStats},
                                   {kHistogram | kMore | kStats, kStats},
                                   {kMore | kStats, kStats},
                                   {kStats, kStats},
                                   {kStats, 0},
                                   {0, 0}};
  for (std::uint32_t shed = 0; shed <= kShedOrder.size(); ++shed) {
    compiled.Apply({.stretch = 1, .shed = shed});
    rules = compiled.rules(kNone);
    EXPECT_EQ(rules[0].take, left[shed][0]) << shed;
    EXPECT_EQ(rules[1].take, left[shed][1]) << shed;
  }
}

TEST(BuiltIns, TheirPatternsCompile) {
  for (const BuiltIn& built_in : BuiltIns()) {
    CapturePlan plan;
    Collection collection;
    collection.name = std::string(built_in.name);
    collection.when[0].interval = 1;
    plan.collections = {collection};
    EXPECT_TRUE(Compiled::Create(plan).ok()) << built_in.name;
    EXPECT_EQ(FindBuiltIn(built_in.name), &built_in);
  }
}

}  // namespace
}  // namespace telltale::plan
