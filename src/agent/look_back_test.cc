// SPDX-License-Identifier: Apache-2.0
#include "agent/look_back.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace telltale::agent {
namespace {

constexpr std::int64_t kStepNs = 10 * kMs;
constexpr std::int32_t kPid = 41;

class LookBackTest : public ::testing::Test {
 protected:
  /// A step of `spans` spans of detail in a drain of its own; the rows that it gives the journal.
  std::vector<format::SpanRow> Step(std::int64_t step, int spans = 3, bool taken = true,
                                    std::int32_t pid = kPid, std::string_view mode = "TRAIN") {
    std::vector<format::SpanRow> details;
    format::Rows rows;
    for (int i = 0; i < spans; ++i) {
      format::SpanRow row;
      row.time_ns = now_ns_ + i;
      row.duration_ns = 1;
      row.name = kNames[static_cast<std::size_t>(i) % 3];
      row.category = "module";
      row.step = step;
      row.mode = mode;
      row.rank = pid - kPid;
      row.pid = pid;
      row.tid = pid;
      details.push_back(row);
    }
    format::StepRow ended;
    ended.time_ns = now_ns_;
    ended.step = step;
    ended.mode = mode;
    ended.pid = pid;
    rows.steps.push_back(ended);
    now_ns_ += kStepNs;
    ring_.Offer(details, &rows);
    ring_.Settle(taken);
    return rows.spans;
  }
  void Steps(std::int64_t first, std::int64_t last, int spans = 3) {
    for (std::int64_t step = first; step <= last; ++step) Step(step, spans);
  }

  Status Ask(const std::string& body, const std::string& who = "n1:7") {
    store::Request request;
    request.id[15] = ++asked_;
    request.who = who;
    request.kind = "lookback";
    request.body = body;
    return ring_.Ask(request, now_ns_, &outbox_);
  }
  /// What is to be written, as the journal takes it.
  std::vector<format::SpanRow> Written() {
    std::vector<format::SpanRow> out;
    while (ring_.HasRows()) {
      format::Batch batch;
      ring_.AddTo(2, now_ns_, &batch);
      for (format::SpanRow& row : batch.rows.spans) {
        row.name = names_.insert(std::string(row.name)).first->c_str();
        out.push_back(row);
      }
      ring_.Settle(true);
    }
    return out;
  }
  struct Said {
    std::string kind;
    nlohmann::json data;
    std::size_t marks;
  };
  std::vector<Said> Take() {
    ring_.Poll(now_ns_, &outbox_);
    format::Batch batch;
    outbox_.AddTo(1, &batch);
    std::vector<Said> out;
    for (const format::EventRow& row : batch.rows.events) {
      out.push_back({std::string(row.kind), ParseJson(row.data), batch.positions.size()});
    }
    outbox_.Sent();
    return out;
  }
  static std::set<std::int64_t> StepsOf(const std::vector<format::SpanRow>& rows) {
    std::set<std::int64_t> out;
    for (const format::SpanRow& row : rows) out.insert(row.step);
    return out;
  }
  static std::set<std::int64_t> Range(std::int64_t first, std::int64_t last) {
    std::set<std::int64_t> out;
    for (std::int64_t step = first; step <= last; ++step) out.insert(step);
    return out;
  }

  static constexpr std::string_view kNames[] = {"conv1", "conv2", "fc"};

  LookBack ring_{1 << 20};
  Outbox outbox_;
  std::set<std::string> names_;
  std::int64_t now_ns_ = 1000 * kSecond;
  std::uint8_t asked_ = 0;
};

TEST_F(LookBackTest, NothingIsStoredUntilItIsAskedFor) {
  for (int step = 0; step < 50; ++step) EXPECT_TRUE(Step(step).empty());
  EXPECT_FALSE(ring_.HasRows());
  EXPECT_FALSE(ring_.wants_all());
  EXPECT_TRUE(Take().empty());
}

TEST_F(LookBackTest, TheStepsBeforeAndAfterAreKept) {
  Steps(0, 99);
  ASSERT_TRUE(Ask(R"({"steps": 10, "after": 5})").ok());
  EXPECT_TRUE(ring_.wants_all());
  const auto before = Written();
  ASSERT_EQ(before.size(), 30U);
  EXPECT_EQ(StepsOf(before), Range(90, 99));
  EXPECT_EQ(before[0].name, "conv1");
  EXPECT_EQ(before[2].name, "fc");
  EXPECT_EQ(before[0].category, "module");
  EXPECT_EQ(before[0].mode, "TRAIN");
  EXPECT_EQ(before[0].pid, kPid);
  EXPECT_EQ(before[0].attempt, 2U);
  EXPECT_EQ(before[0].duration_ns, 1);
  EXPECT_EQ(before[0].ord_ns, now_ns_) << "its readers are past its end: it comes now";
  std::vector<format::SpanRow> after;
  for (int step = 100; step < 110; ++step) {
    for (const auto& row : Step(step)) after.push_back(row);
    const auto said = Take();
    EXPECT_EQ(ring_.wants_all(), step < 104) << step;
    if (step == 100) {
      ASSERT_EQ(said.size(), 1U);
      EXPECT_EQ(said[0].kind, "request.done");
      EXPECT_EQ(said[0].marks, 1U);
      EXPECT_EQ(said[0].data["before"], 30);
    } else if (step == 104) {
      ASSERT_EQ(said.size(), 1U);
      EXPECT_EQ(said[0].kind, "lookback.kept");
      EXPECT_EQ(said[0].data["first"], 90);
      EXPECT_EQ(said[0].data["last"], 104);
      EXPECT_EQ(said[0].data["before"], 30);
      EXPECT_EQ(said[0].data["after"], 15);
      EXPECT_EQ(said[0].data["left_out"], 0);
      EXPECT_EQ(said[0].data["oldest_step"], 0);
      EXPECT_EQ(said[0].data["early"], "");
    } else {
      EXPECT_TRUE(said.empty());
    }
  }
  EXPECT_EQ(StepsOf(after), Range(100, 104));
}

TEST_F(LookBackTest, ItWaitsWhileRowsDoAndWhileStepsAreRecordedInFull) {
  Steps(0, 20);
  EXPECT_FALSE(ring_.waits());
  ASSERT_TRUE(Ask(R"({"steps": 5, "after": 0})").ok());
  EXPECT_FALSE(ring_.wants_all());
  EXPECT_TRUE(ring_.waits()) << "rows";
  Written();
  EXPECT_FALSE(ring_.waits());
  ASSERT_TRUE(Ask(R"({"steps": 5, "after": 2})").ok());
  EXPECT_FALSE(ring_.HasRows()) << "they are in the journal";
  EXPECT_TRUE(ring_.waits()) << "steps";
  for (int step = 21; step < 24; ++step) {
    Step(step);
    Take();
    EXPECT_EQ(ring_.waits(), step < 22) << step;
  }
}

TEST_F(LookBackTest, AroundAFindingsStepAndNothingTwice) {
  Steps(0, 99);
  const char* body =
      R"({"steps": 3, "after": 2, "first_step": 40, "last_step": 60, "rule": "NotFinite",
          "incident": "ab12"})";
  ASSERT_TRUE(Ask(body, "watch").ok());
  std::set<std::int64_t> wanted = Range(37, 42);
  wanted.merge(Range(57, 62));
  EXPECT_EQ(StepsOf(Written()), wanted);
  ASSERT_TRUE(Ask(R"({"steps": 3, "after": 2, "first_step": 60, "last_step": 64})", "watch").ok());
  EXPECT_EQ(StepsOf(Written()), Range(63, 66)) << "57 to 62 are there already";
  Steps(100, 102);
  const auto said = Take();
  ASSERT_EQ(said.size(), 4U);
  EXPECT_EQ(said[2].kind, "lookback.kept");
  EXPECT_EQ(said[2].data["rule"], "NotFinite");
  EXPECT_EQ(said[2].data["incident"], "ab12");
}

TEST_F(LookBackTest, ABatchThatTheJournalRefusesIsHeldOnceAllTheSame) {
  Steps(0, 9);
  Step(10, 3, false);
  Step(10, 3, true);
  ASSERT_TRUE(Ask(R"({"steps": 2, "after": 1})").ok());
  format::Batch batch;
  ring_.AddTo(1, now_ns_, &batch);
  ring_.Settle(false);
  EXPECT_EQ(batch.rows.spans.size(), 6U);
  EXPECT_EQ(Written().size(), 6U) << "offered again";
  EXPECT_EQ(Step(11, 3, false).size(), 3U);
  EXPECT_EQ(Step(11, 3, true).size(), 3U);
  EXPECT_EQ(Take().back().data["after"], 3);
}

TEST_F(LookBackTest, WhatIsHeldIsBoundedAndWhatFallsOutIsCounted) {
  for (int step = 0; step < 2000; ++step) Step(step, 100);
  Ledger ledger;
  ring_.CountInto(7, &ledger);
  format::Batch batch;
  ledger.AddTo(1, 0, &batch);
  std::map<std::string, std::uint64_t> counters;
  for (const auto& row : batch.rows.ledger) counters[std::string(row.name)] = row.value;
  EXPECT_EQ(counters["lookback.received"], 200'000U);
  const std::uint64_t held = 200'000 - counters["lookback.fell_out"];
  EXPECT_GT(held, 10'000U);
  EXPECT_LE(held * 40, 1U << 20);
  ASSERT_TRUE(Ask(R"({"steps": 2000, "after": 0})").ok());
  EXPECT_EQ(Written().size(), held);
  const auto said = Take();
  EXPECT_EQ(said.back().kind, "lookback.kept");
  EXPECT_EQ(said.back().data["oldest_step"], 1999 - static_cast<std::int64_t>(held - 1) / 100);
}

TEST_F(LookBackTest, NamesAreBoundedToo) {
  std::set<std::string> texts;
  for (int step = 0; step < 100; ++step) {
    std::vector<format::SpanRow> details(100);
    for (std::size_t i = 0; i < details.size(); ++i) {
      details[i].name =
          *texts.insert(std::to_string(step) + "." + std::to_string(i) + std::string(200, 'x'))
               .first;
      details[i].mode = "TRAIN";
      details[i].category = "user";
      details[i].step = step;
      details[i].pid = kPid;
    }
    format::Rows rows;
    ring_.Offer(details, &rows);
    ring_.Settle(true);
  }
  ASSERT_TRUE(Ask(R"({"steps": 100, "after": 0})").ok());
  const auto rows = Written();
  EXPECT_GE(rows.size(), 100U);
  EXPECT_LT(rows.size() * 200, (1U << 20) / 4);
  for (const auto& row : rows) {
    EXPECT_TRUE(row.name.starts_with(std::to_string(row.step) + ".")) << row.name;
  }
}

TEST_F(LookBackTest, EvaluationsInBetweenAreKeptToo) {
  Steps(0, 9);
  Step(0, 3, true, kPid, "EVAL");
  Steps(10, 19);
  Step(1, 3, true, kPid, "EVAL");
  Steps(20, 29);
  ASSERT_TRUE(Ask(R"({"steps": 5, "after": 4, "first_step": 18})").ok());
  const auto rows = Written();
  EXPECT_EQ(StepsOf(rows).count(1), 1U);
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(), [](const auto& r) { return r.mode == "EVAL"; }),
            3);
}

TEST_F(LookBackTest, AProcessThatEndsIsNotWaitedFor) {
  Steps(0, 9);
  Step(9, 3, true, kPid + 1);
  ASSERT_TRUE(Ask(R"({"steps": 5, "after": 5})").ok());
  Written();
  ring_.Gone(kPid + 1);
  Steps(10, 14);
  const auto said = Take();
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[1].data["early"], "a process ended");
  // Another one with its number is another one.
  EXPECT_TRUE(Step(0, 3, true, kPid + 1).empty());
}

TEST_F(LookBackTest, ManyThatCameAndWentLeaveTheirPlaces) {
  // Far more one after the other than are held at a time; the ring is longer than a few of them.
  constexpr std::int32_t kProcesses = 5000;
  constexpr int kSpans = 10;
  for (std::int32_t i = 0; i < kProcesses; ++i) {
    Step(i, kSpans, true, kPid + i);
    ring_.Gone(kPid + i);
  }
  Ledger ledger;
  ring_.CountInto(7, &ledger);
  format::Batch batch;
  ledger.AddTo(1, 0, &batch);
  std::map<std::string, std::uint64_t> counters;
  for (const auto& row : batch.rows.ledger) counters[std::string(row.name)] = row.value;
  EXPECT_EQ(counters["lookback.received"], static_cast<std::uint64_t>(kProcesses * kSpans));
  EXPECT_FALSE(counters.contains("lookback.no_place"));
  ASSERT_TRUE(Ask(R"({"steps": 1, "after": 0})").ok());
  const auto rows = Written();
  ASSERT_GE(rows.size(), static_cast<std::size_t>(kSpans));
  EXPECT_EQ(rows.back().pid, kPid + kProcesses - 1) << "the newest is held";
  for (const auto& row : rows) EXPECT_EQ(row.step, row.pid - kPid) << "none under another's name";
}

TEST_F(LookBackTest, MoreAtATimeThanHavePlacesAreCounted) {
  constexpr std::int32_t kProcesses = 4096 + 5;
  for (std::int32_t i = 0; i < kProcesses; ++i) Step(1, 2, true, kPid + i);
  Ledger ledger;
  ring_.CountInto(7, &ledger);
  format::Batch batch;
  ledger.AddTo(1, 0, &batch);
  std::map<std::string, std::uint64_t> counters;
  for (const auto& row : batch.rows.ledger) counters[std::string(row.name)] = row.value;
  EXPECT_EQ(counters["lookback.no_place"], 10U);
  // One that ends and whose spans have fallen out leaves its place to another.
  for (std::int32_t i = 0; i < 100; ++i) ring_.Gone(kPid + i);
  for (int i = 0; i < 300; ++i) Step(2 + i, 100, true, kPid + 4000);
  Step(1, 3, true, kPid + 9000);
  ASSERT_TRUE(Ask(R"({"steps": 1, "after": 0})").ok());
  const auto rows = Written();
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(),
                          [](const auto& row) { return row.pid == kPid + 9000; }));
}

TEST_F(LookBackTest, TheEndOfTheRunEndsIt) {
  Steps(0, 9);
  ASSERT_TRUE(Ask(R"({"steps": 5, "after": 5})").ok());
  ring_.End();
  EXPECT_FALSE(ring_.wants_all());
  EXPECT_EQ(Take().size(), 1U) << "first its rows";
  Written();
  const auto said = Take();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].data["early"], "the run ended");
}

TEST_F(LookBackTest, StepsThatTakeTooLongAreNotWaitedFor) {
  Steps(0, 9);
  ASSERT_TRUE(Ask(R"({"steps": 5, "after": 5})").ok());
  Written();
  EXPECT_EQ(Take().size(), 1U);
  now_ns_ += 121 * kSecond;
  EXPECT_EQ(Take().at(0).data["early"], "the steps after took too long");
  EXPECT_TRUE(Step(10).empty());
}

TEST_F(LookBackTest, WhatCannotBeKeptIsRefusedAndAFindingSaysNothing) {
  EXPECT_EQ(Ask("{}").code(), Code::kUsage) << "nothing has come";
  EXPECT_TRUE(Ask("{}", "watch").ok());
  EXPECT_TRUE(Take().empty());
  Steps(0, 1);
  EXPECT_EQ(Ask(R"({"steps": 0})").code(), Code::kUsage);
  EXPECT_EQ(Ask(R"({"after": -1})").code(), Code::kUsage);
  EXPECT_EQ(Ask("[]").code(), Code::kUsage);
  LookBack off(0);
  store::Request request;
  request.who = "n1:7";
  request.body = "{}";
  EXPECT_EQ(off.Ask(request, 0, &outbox_).code(), Code::kUsage);
  request.who = "watch";
  EXPECT_TRUE(off.Ask(request, 0, &outbox_).ok());
}

}  // namespace
}  // namespace telltale::agent
