// SPDX-License-Identifier: Apache-2.0
// More processes than a run records: the one too many trains on, and that it is missing is said and
// counted. (What else a registry refuses: src/run/registry_test.cc.)
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "harness.h"

namespace telltale::fault {
namespace {

constexpr std::size_t kMaxProducers = 256;  // docs/processes.md.

TEST(Limits, TheProcessBeyondTheCapTrainsOnUnrecorded) {
  Scratch scratch("limits");
  constexpr std::uint64_t kSteps = 400;
  Oracle* oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Started started = StartRun(scratch / "run", {},
                             {CrowdPath(), std::to_string(kMaxProducers), TrainerPath(),
                              scratch / "oracle", std::to_string(kSteps), "1000", "6"},
                             scratch / "err");
  EXPECT_EQ(started.Wait(), 6) << started.Err();
  EXPECT_EQ(oracle->committed, kSteps) << "the training must go on";

  const std::string said =
      fmt::format("process {} is not recorded: 256 processes are already", oracle->pid.load());
  EXPECT_NE(started.Err().find(said), std::string::npos) << started.Err();
  std::stringstream log;
  log << std::ifstream(scratch / "run/logs/probe.log").rdbuf();
  EXPECT_NE(log.str().find(said), std::string::npos) << log.str();

  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(recorded.state, "failed");
  EXPECT_EQ(CountEvents(recorded, "process.start"), kMaxProducers);
  EXPECT_EQ(CountEvents(recorded, "process.exit"), kMaxProducers);
  EXPECT_TRUE(recorded.rows.steps.empty());
  std::uint64_t refused = 0;
  for (const auto& row : recorded.rows.ledger) {
    if (row.name != "run.producers_refused" || row.subject != "run") continue;
    EXPECT_TRUE(row.loss);
    refused = std::max(refused, row.value);
  }
  EXPECT_EQ(refused, 1U);
}

}  // namespace
}  // namespace telltale::fault
