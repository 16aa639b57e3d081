// SPDX-License-Identifier: Apache-2.0
// Two runs on disk, compared.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/engine.h"
#include "rules/registry.h"
#include "store/store_testing.h"

namespace telltale::rules {
namespace {

format::StatisticRow At(std::int64_t step, double mean) {
  return {.ord_ns = 10 + step,
          .time_ns = 10 + step,
          .name = "fc.weight",
          .collection = "weights",
          .dtype = "float32",
          .step = step,
          .mode = "TRAIN",
          .pid = 100,
          .attempt = 1,
          .count = 10,
          .mean = mean};
}

class SimilarAcrossRunsTest : public testing::Test {
 protected:
  void SetUp() override {
    store::MakeRun(folder_.path() / "other");
    store::MakeRun(folder_.path() / "this");
    auto writer = store::Writer::Open(folder_.path() / "other" / "agent-n0", "agent-n0", {});
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    format::Batch batch;
    for (std::int64_t step = 0; step < 300; step += 100) {
      batch.rows.statistics.push_back(At(step, 0.5));
    }
    batch.watermark_ns = 1000;
    ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
    ASSERT_TRUE((*writer)->Close(true).ok());
  }

  Engine Make(const std::string& others, double rtol) {
    const RuleEntry* entry = FindRule("SimilarAcrossRuns");
    Parameters parameters(*entry->desc);
    EXPECT_TRUE(parameters.SetText("other_trials", others).ok());
    EXPECT_TRUE(parameters.Set("rtol", rtol).ok());
    std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
    rules.emplace_back(entry->desc, entry->make(parameters));
    Engine engine(std::move(rules));
    engine.Bind({nullptr, (folder_.path() / "this").string()});
    return engine;
  }
  static void Feed(Engine* engine, const format::StatisticRow& row) {
    engine->Feed({row.ord_ns, 0, format::StatisticRow::kTable, &row});
  }

  store::TempFolder folder_;
};

TEST_F(SimilarAcrossRunsTest, TheFirstDifferenceIsNamed) {
  Engine engine = Make("other", 0);
  Feed(&engine, At(0, 0.5));
  Feed(&engine, At(50, 0.9));  // The other run has no such step.
  EXPECT_TRUE(engine.findings().empty());
  Feed(&engine, At(100, 0.5000001));
  engine.End();
  ASSERT_EQ(engine.findings().size(), 1U);
  const Incident& incident = engine.findings()[0].incident;
  EXPECT_EQ(incident.first_step, 100);
  const auto evidence = ParseJson(incident.evidence);
  EXPECT_EQ(evidence["first"], "fc.weight");
  EXPECT_EQ(evidence["what"], "mean");
  EXPECT_EQ(evidence["compared"], 2);
}

TEST_F(SimilarAcrossRunsTest, TheSameAndWhatIsWithinTheToleranceAreQuiet) {
  Engine exact = Make("other", 0);
  Engine roughly = Make("other", 1e-3);
  for (std::int64_t step = 0; step < 300; step += 100) {
    Feed(&exact, At(step, 0.5));
    Feed(&roughly, At(step, 0.5002));
  }
  for (Engine* engine : {&exact, &roughly}) {
    engine->End();
    EXPECT_EQ(engine->rule_states().at(0).status, RuleStatus::kNoIssuesFound);
  }
}

TEST_F(SimilarAcrossRunsTest, NothingInCommonIsNoDataAndNoRunAnError) {
  Engine engine = Make("other", 0);
  Feed(&engine, At(50, 0.5));
  engine.End();
  EXPECT_EQ(engine.rule_states().at(0).status, RuleStatus::kNoData);
  Engine missing = Make("nowhere", 0);
  Feed(&missing, At(0, 0.5));
  EXPECT_EQ(missing.rule_states().at(0).status, RuleStatus::kError);
  EXPECT_NE(missing.rule_states().at(0).error.find("nowhere"), std::string::npos);
}

}  // namespace
}  // namespace telltale::rules
