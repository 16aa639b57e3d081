// SPDX-License-Identifier: Apache-2.0
#include "agent/budget.h"

#include <gtest/gtest.h>

#include <string>

namespace telltale::agent {
namespace {

constexpr std::int64_t kMs = 1'000'000;

/// Steps of 100 ms that cost 5 % of it.
std::vector<format::StepRow> Steps(std::size_t count) {
  format::StepRow row;
  row.duration_ns = 100 * kMs;
  row.probe_ns = 5 * kMs;
  return std::vector<format::StepRow>(count, row);
}

/// "kind severity" of what waits in the outbox.
std::vector<std::string> Said(Outbox* outbox) {
  format::Batch batch;
  outbox->AddTo(1, &batch);
  std::vector<std::string> said;
  for (const format::EventRow& row : batch.rows.events) {
    said.push_back(std::string(row.kind) + " " + std::string(row.severity));
  }
  outbox->Sent();
  return said;
}

TEST(Budget, StepsThatTheJournalRefusesCountOnce) {
  Budget budget(0.01, 10);
  Outbox outbox;
  for (int i = 0; i < 1000; ++i) {
    budget.Offer(Steps(40));
    budget.Rollback();
  }
  // 4 s in all: not enough to decide by.
  budget.Offer(Steps(40));
  budget.Commit(0, &outbox);
  EXPECT_EQ(budget.interval_steps(), 10U);
  EXPECT_TRUE(outbox.empty());
  budget.Offer(Steps(10));
  budget.Commit(0, &outbox);
  EXPECT_EQ(budget.interval_steps(), 20U);
  EXPECT_EQ(Said(&outbox), std::vector<std::string>{"governor info"});
}

TEST(Budget, ThatItCannotBeKeptIsSaidOnce) {
  Budget budget(0.01, 0);
  Outbox outbox;
  for (int i = 0; i < 20; ++i) {
    budget.Offer(Steps(100));
    budget.Commit(0, &outbox);
  }
  EXPECT_EQ(Said(&outbox), std::vector<std::string>{"budget.exceeded medium"});
}

}  // namespace
}  // namespace telltale::agent
