// SPDX-License-Identifier: Apache-2.0
#include "rules/tensor_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "rules/rule_set.h"

namespace telltale::rules {
namespace {

Series SeriesOf(std::string_view name, std::string_view collection) {
  Series series;
  series.table = format::TableId::kStatistics;
  series.name = name;
  series.collection = collection;
  series.mode = "TRAIN";
  return series;
}

TEST(TensorPatternTest, SageMakersNamesAreFoundAsOurs) {
  const TensorPattern outputs(".*relu_output");
  EXPECT_TRUE(outputs.Matches("Net_relu_output_0"));
  EXPECT_TRUE(outputs.Matches("layer1.0.relu.output"));
  EXPECT_TRUE(outputs.Matches("layer1.0.relu.output#2"));
  EXPECT_FALSE(outputs.Matches("layer1.0.conv.output"));
  const TensorPattern inputs("embedding0_input_0");
  EXPECT_TRUE(inputs.Matches("embedding0.input.0"));
  EXPECT_FALSE(inputs.Matches("embedding0.input.1"));
  EXPECT_EQ(WithOurNames("a_output_0|b_output_1"),
            "(?:a_output_0|b_output_1)|(?:a\\.output|b\\.output\\.1)");
  EXPECT_EQ(WithOurNames("weight"), "weight");
  EXPECT_EQ(WithOurNames(""), "");
}

TEST(TensorPatternTest, ALookAheadLeavesNamesOut) {
  const TensorPattern weights("^(?!gradient).*weight");
  EXPECT_TRUE(weights.Matches("fc.weight"));
  EXPECT_FALSE(weights.Matches("gradient/fc.weight"));
  EXPECT_FALSE(weights.Matches("fc.bias"));
  EXPECT_EQ(WithOurNames("^(?!gradient).*weight"), ".*weight");
}

TEST(TensorPatternTest, WhatIsNoPatternIsSaidWhenItIsUsed) {
  const TensorPattern broken("relu(");
  EXPECT_FALSE(broken.empty());
  EXPECT_THROW(broken.Matches("relu"), std::runtime_error);
  EXPECT_FALSE(TensorPattern("").Matches("relu"));
}

TEST(TensorSelectionTest, CollectionsAndPatternsAreUnited) {
  const TensorSelection selection("weights, losses", "_output");
  EXPECT_TRUE(selection.Has(SeriesOf("a.weight", "weights")));
  EXPECT_TRUE(selection.Has(SeriesOf("a.bias", "biases")));
  EXPECT_TRUE(selection.Has(SeriesOf("loss", "losses")));
  EXPECT_TRUE(selection.Has(SeriesOf("a.output", "outputs")));
  EXPECT_FALSE(selection.Has(SeriesOf("gradient/a.weight", "gradients")));
  EXPECT_TRUE(TensorSelection("", "").empty());
  EXPECT_FALSE(TensorSelection(" , ", "").Has(SeriesOf("a", "weights")));
}

TEST(TensorSelectionTest, ThePlanSaysWhatACustomCollectionHolds) {
  TensorSelection selection("mine", "");
  EXPECT_TRUE(selection.Has(SeriesOf("saved", "mine")));
  EXPECT_FALSE(selection.Has(SeriesOf("block.3.weight", "weights")));
  selection.OnPlan("no JSON");
  selection.OnPlan(R"({"plan": {"collections": {"mine": {"include": ["3.weight$"],
                       "modules": ["head"], "tensors": ["a"]}, "other": {"include": [".*"]}}}})");
  EXPECT_TRUE(selection.Has(SeriesOf("block.3.weight", "weights")));
  EXPECT_TRUE(selection.Has(SeriesOf("gradient/head.bias", "gradients")));
  EXPECT_FALSE(selection.Has(SeriesOf("header.bias", "biases")));
  EXPECT_TRUE(selection.Has(SeriesOf("a", "weights")));
  EXPECT_FALSE(selection.Has(SeriesOf("b", "weights")));
}

TEST(TensorNeedsTest, ParametersFillInWhatIsNeeded) {
  const auto needs = [](const char* text) {
    RuleSet set;
    set.defaults = false;
    auto spec = ParseRule(text);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    if (spec.ok()) set.rules.push_back(*spec);
    return NeedsOf(set);
  };
  EXPECT_TRUE(needs("AllZero").empty());
  const auto both = needs("AllZero:collection_names=\"weights, losses\",tensor_regex=relu_output");
  ASSERT_EQ(both.size(), 3U);
  EXPECT_EQ(both[0].collection, "weights");
  EXPECT_EQ(both[0].include, "");
  EXPECT_EQ(both[1].collection, "losses");
  EXPECT_EQ(both[2].collection, "AllZero");
  EXPECT_EQ(both[2].include, "(?:relu_output)|(?:relu\\.output)");
  const auto relu = needs("DeadRelu");
  ASSERT_EQ(relu.size(), 4U);
  EXPECT_EQ(relu[0].collection, "activations");
  EXPECT_EQ(relu[0].take, "statistics");
  EXPECT_EQ(relu[1].take, "values");
  EXPECT_EQ(relu[3].collection, "DeadRelu");
  EXPECT_EQ(relu[3].include, "(?:.*relu_output)|(?:.*relu\\.output)");
}

}  // namespace
}  // namespace telltale::rules
