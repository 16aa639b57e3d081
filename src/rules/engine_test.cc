// SPDX-License-Identifier: Apache-2.0
#include "rules/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>

#include "rules/incident_id.h"

namespace telltale::rules {
namespace {

/// Says what the test tells it to say at each record.
class Puppet final : public Rule {
 public:
  explicit Puppet(std::function<void(std::int64_t, Reporter*)> act) : act_(std::move(act)) {}
  void OnRecord(const Record& record, Reporter* reporter) override {
    act_(record.ord_ns, reporter);
  }
  void OnEnd(Reporter*) override {}
  bool has_data() const override { return true; }

 private:
  std::function<void(std::int64_t, Reporter*)> act_;
};

const RuleDesc kDesc{"Puppet", "", "", "", ~0U, false, {}, {}};

Engine Make(std::function<void(std::int64_t, Reporter*)> act) {
  std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
  rules.emplace_back(&kDesc, std::make_unique<Puppet>(std::move(act)));
  return Engine(std::move(rules));
}

void Feed(Engine* engine, std::int64_t at) {
  const format::StepRow row;
  engine->Feed({at, 0, format::StepRow::kTable, &row});
}

void FeedExit(Engine* engine, std::int64_t at) {
  format::EventRow row;
  row.kind = "process.exit";
  engine->Feed({at, 0, format::EventRow::kTable, &row});
}

Incident At(std::string subject, double cost) {
  Incident incident;
  incident.subject = std::move(subject);
  incident.start_ns = 1;
  incident.cost_seconds = cost;
  return incident;
}

TEST(EngineTest, ReportsThatSayNothingNewAreDropped) {
  Engine engine = Make([](std::int64_t, Reporter* r) { r->Report(At("a", 1)); });
  for (int i = 0; i < 100; ++i) Feed(&engine, i * 1'000'000'000LL);
  EXPECT_EQ(engine.TakeRevisions().size(), 1U);
  EXPECT_EQ(engine.findings().size(), 1U);
}

TEST(EngineTest, NumbersAloneMakeARevisionEachFiveSecondsOfTheRun) {
  Engine engine =
      Make([](std::int64_t at, Reporter* r) { r->Report(At("a", static_cast<double>(at))); });
  for (int i = 0; i <= 100; ++i) Feed(&engine, i * 100'000'000LL);
  const auto revisions = engine.TakeRevisions();
  ASSERT_EQ(revisions.size(), 3U);  // At 0, 5 and 10 s.
  for (std::size_t i = 0; i < revisions.size(); ++i) EXPECT_EQ(revisions[i].revision, i + 1);
  // The newest state is always there.
  EXPECT_EQ(engine.findings()[0].incident.cost_seconds, 1e10);
}

TEST(EngineTest, AHigherSeverityIsNewsAtOnce) {
  Engine engine = Make([](std::int64_t at, Reporter* r) {
    Incident incident = At("a", 1);
    incident.severity = at < 2 ? Severity::kMedium : Severity::kHigh;
    r->Report(incident);
  });
  for (int i = 0; i < 4; ++i) Feed(&engine, i);
  EXPECT_EQ(engine.TakeRevisions().size(), 2U);
}

/// Every millisecond it says something else.
TEST(EngineTest, AnIncidentThatAlwaysSaysSomethingNewIsRevisedOnceASecond) {
  constexpr std::int64_t kMs = 1'000'000;
  Engine engine = Make([](std::int64_t at, Reporter* r) {
    Incident incident = At("a", 1);
    incident.cause = at / kMs % 2 == 0 ? "this" : "that";
    r->Report(incident);
  });
  for (int i = 0; i <= 20'000; ++i) Feed(&engine, i * kMs);
  const std::size_t revisions = engine.TakeRevisions().size();
  EXPECT_GE(revisions, 20U);
  EXPECT_LE(revisions, 21U + kNewsBurst + 20 / 5);
  // Nothing waits for ever, though nobody reports again.
  Engine quiet = Make([](std::int64_t at, Reporter* r) {
    Incident incident = At("a", 1);
    incident.cause = std::string(static_cast<std::size_t>(at % 10 + 1), 'x');
    if (at < 10) r->Report(incident);
  });
  for (int i = 0; i < 10; ++i) Feed(&quiet, i);
  EXPECT_NE(quiet.TakeRevisions().back().incident.cause, quiet.findings()[0].incident.cause);
  Feed(&quiet, 2000 * kMs);
  const auto late = quiet.TakeRevisions();
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].incident.cause, quiet.findings()[0].incident.cause);
}

TEST(EngineTest, NumbersInACauseAreNoNews) {
  Engine engine = Make([](std::int64_t at, Reporter* r) {
    Incident incident = At("a", 1);
    incident.cause = "Every 50 steps it takes " + std::to_string(at) + " ms";
    r->Report(incident);
  });
  for (int i = 0; i <= 100; ++i) Feed(&engine, i * 100'000'000LL);
  EXPECT_EQ(engine.TakeRevisions().size(), 3U);  // At 0, 5 and 10 s.
}

TEST(EngineTest, ASeverityThatSwingsIsNotSaidEachTime) {
  Engine engine = Make([](std::int64_t at, Reporter* r) {
    Incident incident = At("a", 1);
    incident.severity = at % 2 == 0 ? Severity::kMedium : Severity::kHigh;
    r->Report(incident);
  });
  for (int i = 0; i < 10'000; ++i) Feed(&engine, i);
  EXPECT_LE(engine.TakeRevisions().size(), 2U + kNewsBurst);
}

constexpr std::int64_t kSecond = 1'000'000'000;

/// Reports, and closes, in turns; each time it has cost a second.
Engine MakeFlickering(std::int64_t seconds_apart, int times) {
  Engine engine = Make([=](std::int64_t at, Reporter* r) {
    const Incident incident = At("a", 1);
    at / kSecond / seconds_apart % 2 == 1 ? r->Close(incident) : r->Report(incident);
  });
  for (int i = 0; i < times; ++i) Feed(&engine, i * seconds_apart * kSecond);
  return engine;
}

TEST(EngineTest, AClosedIncidentThatComesBackLaterIsAnother) {
  Engine engine = MakeFlickering(40, 3);
  ASSERT_EQ(engine.findings().size(), 2U);
  EXPECT_FALSE(engine.findings()[0].open);
  EXPECT_FALSE(engine.findings()[0].until_end);
  EXPECT_TRUE(engine.findings()[1].open);
  EXPECT_NE(engine.findings()[0].id, engine.findings()[1].id);
  engine.End();
  EXPECT_FALSE(engine.findings()[1].open);
  EXPECT_TRUE(engine.findings()[1].until_end);
}

TEST(EngineTest, AnIncidentThatFlickersIsOneThatStaysOpen) {
  Engine engine = MakeFlickering(2, 7);  // Closed at 2, 6 and 10 s, there again at 4, 8 and 12.
  ASSERT_EQ(engine.findings().size(), 1U);
  for (const Finding& revision : engine.TakeRevisions()) EXPECT_TRUE(revision.open);
  // All that it cost, from its first begin on.
  EXPECT_EQ(engine.findings()[0].incident.cost_seconds, 4);
}

TEST(EngineTest, WhatIsAboutAnotherMatterIsAnotherFinding) {
  Engine engine = Make([](std::int64_t at, Reporter* r) {
    Incident incident = At("a", 1);
    incident.message = at < 2 * kSecond ? "Loss does not decrease" : "Loss is NaN";
    at == kSecond ? r->Close(incident) : r->Report(incident);
  });
  for (int i = 0; i < 3; ++i) Feed(&engine, i * kSecond);
  ASSERT_EQ(engine.findings().size(), 2U);
  EXPECT_FALSE(engine.findings()[0].open);
  EXPECT_TRUE(engine.findings()[1].open);
}

/// Each millisecond it opens or closes, and says what `words` gives for the how manieth opening.
Engine MakeFlapping(std::function<std::string(std::int64_t)> words, int seconds) {
  constexpr std::int64_t kMs = 1'000'000;
  Engine engine = Make([words = std::move(words)](std::int64_t at, Reporter* r) {
    Incident incident = At("a", 1);
    incident.message = words(at / kMs / 2);
    incident.first_step = at / kMs;
    at / kMs % 2 == 1 ? r->Recover(incident) : r->Report(incident);
  });
  for (std::int64_t i = 0; i < seconds * 1000; ++i) Feed(&engine, i * kMs);
  return engine;
}

TEST(EngineTest, MattersThatTakeTurnsAreFewFindings) {
  constexpr int kSeconds = 20;
  Engine engine = MakeFlapping(
      [](std::int64_t n) { return n % 2 == 0 ? "It is late" : "It is early"; }, kSeconds);
  ASSERT_EQ(engine.findings().size(), 2U);
  // Both stay open: neither is over.
  EXPECT_TRUE(engine.findings()[0].open);
  EXPECT_TRUE(engine.findings()[1].open);
  EXPECT_LE(engine.TakeRevisions().size(), 2U * (kSeconds + kNewsBurst + 4));
  engine.End();
  for (const Finding& finding : engine.findings()) EXPECT_FALSE(finding.open);
}

TEST(EngineTest, OneThatIsWordedInSeveralWaysIsOneFinding) {
  // As LossSpike has it: the first time, then how many times.
  Engine engine = Make([](std::int64_t at, Reporter* r) {
    Incident incident = At("a", 1);
    incident.message = at % 3 == 0 ? "The loss jumped and came back" : "The loss jumped 2 times";
    incident.first_step = at - at % 3;
    at % 3 == 2 ? r->Recover(incident) : r->Report(incident);
  });
  for (int i = 0; i < 3000; ++i) Feed(&engine, i);
  ASSERT_EQ(engine.findings().size(), 1U);
  EXPECT_EQ(engine.findings()[0].incident.first_step, 0);
  EXPECT_EQ(engine.findings()[0].incident.cost_seconds, 1000);
}

TEST(EngineTest, ARuleThatFindsNewWordsEachTimeMakesFewFindings) {
  Engine engine = MakeFlapping(
      [](std::int64_t n) { return std::string(static_cast<std::size_t>(n % 500), 'x'); }, 20);
  EXPECT_EQ(engine.findings().size(), kMostMatters);
  // Once they have settled and are forgotten there is room again.
  Engine later = MakeFlapping(
      [](std::int64_t n) { return std::string(static_cast<std::size_t>(n % 500), 'x'); }, 1);
  Feed(&later, 100'000'000'000);
  Feed(&later, 200'000'000'000);
  EXPECT_EQ(later.findings().size(), kMostMatters + 1);
}

TEST(EngineTest, WhatIsOpenBesideTheNewestMatterClosesWithItsProcess) {
  Engine engine = Make([](std::int64_t at, Reporter* r) {
    Incident incident = At("a", 1);
    incident.message = at % 4 < 2 ? "It is late" : "It is early";
    at % 2 == 1 ? r->Close(incident) : r->Report(incident);
  });
  for (std::int64_t at = 0; at < 8; ++at) Feed(&engine, at);
  Feed(&engine, 8);
  ASSERT_EQ(engine.findings().size(), 2U);
  EXPECT_TRUE(engine.findings()[0].open);
  EXPECT_TRUE(engine.findings()[1].open);
  FeedExit(&engine, 9);
  EXPECT_FALSE(engine.findings()[0].open);
  EXPECT_FALSE(engine.findings()[1].open);
  engine.End();
  EXPECT_TRUE(engine.findings()[0].until_end);
  EXPECT_FALSE(engine.findings()[1].until_end) << "its rule had closed it";
}

TEST(EngineTest, AnIncidentThatClosesSoonIsClosedOnceItHasSettled) {
  Engine engine = Make([](std::int64_t at, Reporter* r) {
    if (at == 0) r->Report(At("a", 1));
    if (at == kSecond) r->Close(At("a", 2));
  });
  for (const std::int64_t at : {0, 1, 29}) Feed(&engine, at * kSecond);
  EXPECT_TRUE(engine.findings()[0].open);
  Feed(&engine, 30 * kSecond);
  EXPECT_FALSE(engine.findings()[0].open);
  EXPECT_EQ(engine.findings()[0].incident.cost_seconds, 2);
  engine.End();
  EXPECT_FALSE(engine.findings()[0].until_end);
}

TEST(EngineTest, AnIncidentThatComesBackSoonAfterItClosedGoesOn) {
  Engine engine = Make([](std::int64_t at, Reporter* r) {
    if (at == 0) r->Report(At("a", 1));
    if (at == 40 * kSecond) r->Close(At("a", 2));
    if (at == 50 * kSecond) r->Report(At("a", 3));
  });
  for (const std::int64_t at : {0, 40, 50}) Feed(&engine, at * kSecond);
  ASSERT_EQ(engine.findings().size(), 1U);
  EXPECT_TRUE(engine.findings()[0].open);
  EXPECT_EQ(engine.findings()[0].incident.cost_seconds, 5);
  EXPECT_EQ(engine.TakeRevisions().size(), 3U);
}

TEST(EngineTest, TheSeverityOfLostTimeFollowsItsShareOfTheRun) {
  static const RuleDesc by_cost = [] {
    RuleDesc desc = kDesc;
    desc.severity_by_cost = true;
    return desc;
  }();
  std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
  rules.emplace_back(&by_cost, std::make_unique<Puppet>([](std::int64_t at, Reporter* r) {
    if (at == 0) return;
    Incident incident = At("a", 10);
    incident.severity = Severity::kHigh;
    r->Report(incident);
  }));
  Engine engine(std::move(rules));
  const auto severity_at = [&](std::int64_t seconds) {
    Feed(&engine, seconds * kSecond);
    return engine.findings()[0].incident.severity;
  };
  Feed(&engine, 0);
  EXPECT_EQ(severity_at(20), Severity::kHigh);     // 50 %.
  EXPECT_EQ(severity_at(60), Severity::kHigh);     // 17 %: a little below the border.
  EXPECT_EQ(severity_at(100), Severity::kMedium);  // 10 %.
  EXPECT_EQ(severity_at(400), Severity::kLow);     // 2.5 %.
  EXPECT_EQ(severity_at(2000), Severity::kInfo);   // 0.5 %.
}

TEST(EngineTest, OneThatBeginsWhereAnotherBeganHasAnIdOfItsOwn) {
  const auto ids = [] {
    Engine engine = Make([](std::int64_t at, Reporter* r) {
      at / kSecond % 2 == 1 ? r->Close(At("a", 1)) : r->Report(At("a", 1));
    });
    for (const std::int64_t at : {0, 41, 82, 123, 164}) Feed(&engine, at * kSecond);
    std::vector<std::string> all;
    for (const Finding& finding : engine.findings()) all.push_back(finding.id);
    return all;
  };
  const std::vector<std::string> first = ids();
  ASSERT_EQ(first.size(), 3U);
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), 3U);
  EXPECT_EQ(first[0], IncidentId("Puppet", At("a", 1))) << "as before there were others";
  EXPECT_EQ(ids(), first);
}

/// Reports at each step, and closes where the process ends.
Engine MakeWithExits() {
  std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
  rules.emplace_back(&kDesc, std::make_unique<Puppet>([](std::int64_t at, Reporter* r) {
    at == 2 ? r->Close(At("a", 1)) : r->Report(At(at < 2 ? "a" : "b", 1));
  }));
  return Engine(std::move(rules));
}

void FeedStep(Engine* engine, std::int64_t at, std::uint32_t attempt) {
  format::StepRow row;
  row.attempt = attempt;
  engine->Feed({at, 0, format::StepRow::kTable, &row});
}

TEST(EngineTest, WhatClosedWithItsProcessLastedOnceTheRunEnds) {
  Engine engine = MakeWithExits();
  FeedStep(&engine, 1, 1);
  FeedExit(&engine, 2);
  FeedStep(&engine, 3, 1);  // Of another process.
  ASSERT_EQ(engine.findings().size(), 2U);
  EXPECT_FALSE(engine.findings()[0].open);
  EXPECT_FALSE(engine.findings()[0].until_end);
  EXPECT_EQ(engine.TakeRevisions().size(), 3U);
  engine.End();
  EXPECT_TRUE(engine.findings()[0].until_end);
  EXPECT_TRUE(engine.findings()[1].until_end);
  // Its closing was said when it closed.
  ASSERT_EQ(engine.TakeRevisions().size(), 1U);
  EXPECT_EQ(engine.findings()[0].revision, 2U);
}

TEST(EngineTest, WhatClosedBeforeAStepOfALaterAttemptIsOver) {
  Engine engine = MakeWithExits();
  FeedStep(&engine, 1, 1);
  FeedExit(&engine, 2);
  FeedStep(&engine, 3, 2);
  engine.End();
  EXPECT_FALSE(engine.findings()[0].until_end);
  EXPECT_TRUE(engine.findings()[1].until_end);
}

TEST(EngineTest, WhatRecoversInTheLastRecordDidNotLast) {
  std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
  rules.emplace_back(&kDesc, std::make_unique<Puppet>([](std::int64_t at, Reporter* r) {
    at == 2 ? r->Recover(At("a", 1)) : r->Report(At("a", 1));
  }));
  Engine engine(std::move(rules));
  FeedStep(&engine, 1, 1);
  FeedExit(&engine, 2);
  ASSERT_EQ(engine.findings().size(), 1U);
  EXPECT_FALSE(engine.findings()[0].open);
  engine.End();
  EXPECT_FALSE(engine.findings()[0].until_end);
}

TEST(EngineTest, IdsAndRevisionsAreTheSameInEveryReplay) {
  const auto act = [](std::int64_t at, Reporter* r) {
    r->Report(At(at % 2 == 0 ? "a" : "b", static_cast<double>(at)));
  };
  Engine first = Make(act);
  Engine second = Make(act);
  std::vector<Finding> one;
  for (int i = 0; i < 50; ++i) {
    Feed(&first, i * 1'000'000'000LL);
    Feed(&second, i * 1'000'000'000LL);
    for (Finding& f : first.TakeRevisions()) one.push_back(std::move(f));  // In portions.
  }
  const std::vector<Finding> two = second.TakeRevisions();  // At once.
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].id, two[i].id);
    EXPECT_EQ(one[i].revision, two[i].revision);
  }
}

TEST(EngineTest, ARuleThatThrowsIsOutAndTheOthersGoOn) {
  std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
  int seen = 0;
  rules.emplace_back(&kDesc, std::make_unique<Puppet>([](std::int64_t at, Reporter* r) {
    r->Report(At("a", 1));
    if (at == 2) throw std::runtime_error("no such column");
  }));
  rules.emplace_back(&kDesc, std::make_unique<Puppet>([&](std::int64_t, Reporter*) { ++seen; }));
  Engine engine(std::move(rules));
  for (int i = 0; i < 5; ++i) Feed(&engine, i);
  engine.End();
  EXPECT_EQ(seen, 5);
  EXPECT_EQ(engine.rule_states()[0].status, RuleStatus::kError);
  EXPECT_EQ(engine.rule_states()[0].error, "no such column");
  EXPECT_EQ(engine.rule_states()[0].records, 3U);
  EXPECT_FALSE(engine.findings()[0].open);
}

/// In the first record, in runs that end where a call does, or samples begin, and in whole ones.
class RecordsFedAtOnceTest : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(ThrownAt, RecordsFedAtOnceTest, ::testing::Values(0, 10, 299, 700, 905));

TEST_P(RecordsFedAtOnceTest, SayWhatTheySayOneByOne) {
  static const RuleDesc kThrows{"Throws", "", "", "", ~0U, false, {}, {}};
  static const RuleDesc kCloses{"Closes", "", "", "", ~0U, false, {}, {}};
  const std::int64_t throws_at = GetParam();
  const auto make = [throws_at] {
    std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
    rules.emplace_back(&kThrows,
                       std::make_unique<Puppet>([throws_at](std::int64_t at, Reporter* r) {
                         r->Report(At("a", static_cast<double>(at)));
                         if (at == throws_at * 1'000'000'000)
                           throw std::runtime_error("no such column");
                       }));
    rules.emplace_back(&kCloses, std::make_unique<Puppet>([](std::int64_t at, Reporter* r) {
      Incident incident = At(at % 3 == 0 ? "b" : "c", 1);
      incident.start_ns = at;
      at % 7 == 0 ? r->Close(incident) : r->Report(incident);
    }));
    return Engine(std::move(rules));
  };
  std::deque<format::StepRow> steps;
  std::deque<format::EventRow> exits;
  std::deque<format::MetricRow> samples;
  std::vector<store::OrderedRecord> records;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::int64_t at = i * 1'000'000'000;
    if (i % 35 == 0) {
      exits.emplace_back().kind = "process.exit";
      records.push_back({at, 0, format::EventRow::kTable, &exits.back()});
    } else if (i % 90 < 3) {
      samples.emplace_back().name = i % 2 == 0 ? "cpu.user" : "cpu.system";
      records.push_back({at, 0, format::MetricRow::kTable, &samples.back()});
    } else {
      steps.emplace_back().attempt = static_cast<std::uint32_t>(1 + i / 400);
      records.push_back({at, 0, format::StepRow::kTable, &steps.back()});
    }
  }
  Engine alone = make();
  for (const store::OrderedRecord& record : records) alone.Feed(record);
  Engine at_once = make();
  constexpr std::array<std::size_t, 5> kCalls = {7, 1, 300, 2, 411};
  std::size_t call = 0;
  for (std::span<const store::OrderedRecord> left = records; !left.empty(); ++call) {
    const std::size_t n = std::min(left.size(), kCalls[call % kCalls.size()]);
    at_once.Feed(left.first(n));
    left = left.subspan(n);
  }
  const auto expect_same = [](const std::vector<Finding>& a, const std::vector<Finding>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(
          std::tie(a[i].id, a[i].revision, a[i].open, a[i].until_end, a[i].incident.cost_seconds),
          std::tie(b[i].id, b[i].revision, b[i].open, b[i].until_end, b[i].incident.cost_seconds));
    }
  };
  const std::vector<Finding> said = alone.TakeRevisions();
  EXPECT_GT(said.size(), 300U);
  expect_same(said, at_once.TakeRevisions());
  alone.End();
  at_once.End();
  expect_same(alone.TakeRevisions(), at_once.TakeRevisions());
  expect_same(alone.findings(), at_once.findings());
  for (const std::size_t i : {0, 1}) {
    EXPECT_EQ(alone.rule_states()[i].records, at_once.rule_states()[i].records);
    EXPECT_EQ(alone.rule_states()[i].status, at_once.rule_states()[i].status);
  }
  EXPECT_EQ(at_once.rule_states()[0].records, static_cast<std::uint64_t>(throws_at + 1));
}

TEST(EngineTest, WhatARuleThatThrowsHasOpenIsClosedAtOnce) {
  Engine engine = Make([](std::int64_t at, Reporter* r) {
    r->Report(At("a", 1));
    if (at == 2) throw std::runtime_error("no such column");
  });
  Feed(&engine, 1);
  EXPECT_TRUE(engine.findings().at(0).open);
  Feed(&engine, 2);
  ASSERT_EQ(engine.findings().size(), 1U);
  EXPECT_FALSE(engine.findings()[0].open);
  const auto revisions = engine.TakeRevisions();
  ASSERT_FALSE(revisions.empty());
  EXPECT_FALSE(revisions.back().open);
  engine.End();
  EXPECT_FALSE(engine.findings()[0].until_end) << "nobody saw that it lasted";
  EXPECT_TRUE(engine.TakeRevisions().empty());
}

/// Cannot even say how it is.
class Broken final : public Rule {
 public:
  void OnRecord(const Record&, Reporter*) override {}
  void OnEnd(Reporter*) override {}
  bool has_data() const override { return true; }
  std::string Summary() const override { throw std::runtime_error("no summary"); }
};

TEST(EngineTest, ARuleThatCannotSayHowItIsHasAnError) {
  std::vector<std::pair<const RuleDesc*, std::unique_ptr<Rule>>> rules;
  rules.emplace_back(&kDesc, std::make_unique<Broken>());
  const Engine engine(std::move(rules));
  const RuleState state = engine.rule_states().at(0);
  EXPECT_EQ(state.status, RuleStatus::kError);
  EXPECT_EQ(state.error, "no summary");
  EXPECT_EQ(engine.rule_states(false).at(0).status, RuleStatus::kInProgress) << "it is not asked";
}

TEST(RegistryTest, EveryRuleIsDescribedAndOrdered) {
  std::string_view before;
  for (const RuleEntry& entry : Registry()) {
    const RuleDesc& desc = *entry.desc;
    EXPECT_LT(before, desc.name);
    before = desc.name;
    EXPECT_FALSE(desc.summary.empty());
    EXPECT_FALSE(desc.formula.empty());
    EXPECT_FALSE(desc.how_to_fix.empty());
    EXPECT_NE(desc.table_mask, 0U);
    EXPECT_NE(entry.make(Parameters(desc)), nullptr);
    Parameters parameters(desc);
    EXPECT_FALSE(parameters.Set("no_such", 1).ok());
  }
}

}  // namespace
}  // namespace telltale::rules
