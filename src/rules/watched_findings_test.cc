// SPDX-License-Identifier: Apache-2.0
// What the watcher's folder tells without the records of the training.
#include "rules/watched_findings.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "format/batch.h"
#include "store/store_testing.h"
#include "store/writer.h"

namespace telltale::rules {
namespace {

TEST(WatchedFindingsTest, ARuleOfTheUsersOwnSaysThatTheResultIsWrong) {
  const store::TempFolder folder;
  const auto run = folder.path() / "run";
  store::MakeRun(run);
  auto writer = store::Writer::Open(run / "watch", "watch");
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  format::Batch batch;
  const std::vector<std::pair<const char*, const char*>> rules = {
      {"grave", R"({"rule":"grave","status":"IssuesFound","of":"","wrong_result":true})"},
      {"slow", R"({"rule":"slow","status":"IssuesFound","of":""})"},
      {"mine", R"({"rule":"mine","status":"IssuesFound","of":"ExplodingTensor"})"},
  };
  for (const auto& [name, data] : rules) {
    format::EventRow event;
    event.kind = "rule.status";
    event.data = data;
    batch.rows.events.push_back(event);
    format::FindingRow finding;
    finding.incident = finding.rule = name;
    finding.revision = 1;
    finding.severity = "low";
    finding.state = "open";
    batch.rows.findings.push_back(finding);
  }
  ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  ASSERT_TRUE((*writer)->Close(true).ok());

  WatchedFindings watched(run);
  EXPECT_TRUE(watched.Advance(true));
  const std::vector<Finding> findings = watched.findings();
  ASSERT_EQ(findings.size(), 3U);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.wrong_result, finding.rule != "slow") << finding.rule;
  }
}

}  // namespace
}  // namespace telltale::rules
