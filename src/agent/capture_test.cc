// SPDX-License-Identifier: Apache-2.0
#include "agent/capture.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "channel/control_page.h"
#include "channel/testing.h"
#include "format/channel_layout.h"

namespace telltale::agent {
namespace {

using nlohmann::json;

/// The first rule as the probe has it.
format::ControlRule RuleOf(channel::TestProducer& probe) {
  format::ControlRule rules[format::kControlRules];
  std::uint32_t unanswered = 0;
  std::uint64_t slab_bytes = 0;
  EXPECT_NE(probe->ReadRules(rules, &unanswered, &slab_bytes), 0U);
  return rules[0];
}

class CaptureTest : public ::testing::Test {
 protected:
  CaptureTest() {
    char name[] = "/tmp/telltale-capture-XXXXXX";
    run_ = ::mkdtemp(name);
  }
  ~CaptureTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(run_, ignored);
  }

  std::unique_ptr<Capture> Open(std::int64_t attempt_start_ns = 0, std::uint32_t attempt = 0) {
    CaptureOptions options;
    options.run = run_;
    options.plan = plan_;
    options.attempt_start_ns = attempt_start_ns;
    options.attempt = attempt;
    options.stop = [this](const store::Request& request, std::int64_t, Outbox*) {
      stops_.push_back(request.id);
      return Status();
    };
    options.stop_begun = [this](const store::RequestId& id) { return begun_.contains(id); };
    options.profiler_config = config_;
    auto capture = Capture::Create(
        options, [this](const store::RequestId& id) { return answered_.contains(id); });
    EXPECT_TRUE(capture.ok()) << capture.status().message();
    return std::move(capture).value();
  }

  store::RequestId Ask(const std::string& body, const std::string& kind = "plan",
                       std::int64_t time_ns = 0, std::uint32_t attempt = 0) {
    store::Request request;
    request.who = "n1:7";
    request.kind = kind;
    request.body = body;
    request.time_ns = time_ns;
    request.attempt = attempt;
    const auto written = store::WriteRequest(run_, request);
    EXPECT_TRUE(written.ok()) << written.status().message();
    return written->id;
  }

  struct Said {
    std::string kind;
    std::string message;
    json data;
  };
  /// What waits, as if the journal took it: answers hold from then on.
  std::vector<Said> Take() {
    format::Batch batch;
    outbox_.AddTo(1, &batch);
    std::vector<Said> said;
    for (const format::EventRow& row : batch.rows.events) {
      said.push_back({std::string(row.kind), std::string(row.message), ParseJson(row.data)});
    }
    for (const format::RingPosition& mark : batch.positions) answered_.insert(mark.producer);
    outbox_.Sent();
    return said;
  }

  void Tick(Capture* capture, std::int64_t now_ns) {
    capture->Poll(now_ns, &outbox_);
    capture->Settle(true, now_ns, &outbox_);
    capture->Publish({}, [now_ns] { return now_ns; });
  }

  /// The probe's process as the agent has it.
  static Capture::Producers Adopt(channel::TestProducer* probe, int control) {
    Uuid uuid{};
    std::copy_n((*probe)->uuid(), uuid.size(), uuid.begin());
    auto adopted = Producer::Adopt(uuid, probe->Fd(), UniqueFd(::dup(control)), UniqueFd());
    EXPECT_TRUE(adopted.ok()) << adopted.status().message();
    Capture::Producers producers;
    producers.push_back(std::move(adopted).value());
    return producers;
  }

  /// Gives the probe a control page, and its process to `capture`.
  static Capture::Producers Watch(Capture* capture, channel::TestProducer* probe) {
    auto page = channel::ControlPage::Create(16);
    EXPECT_TRUE(page.ok());
    EXPECT_TRUE((*probe)->UseControlPage(page->ReadOnlyFd()->release()));
    Capture::Producers producers = Adopt(probe, page->fd());
    capture->Introduce(producers[0].get());
    return producers;
  }

  /// Twenty steps of 10 ms, a fifth of which is ours.
  void TrainDear(Capture* capture) {
    format::Rows rows;
    for (int i = 0; i < 20; ++i) {
      format::StepRow row;
      row.mode = "TRAIN";
      row.step = i;
      row.time_ns = i * 10 * kMs;
      row.duration_ns = 10 * kMs;
      row.probe_ns = 2 * kMs;
      rows.steps.push_back(row);
    }
    capture->Offer(rows);
    capture->Settle(true, 300 * kMs, &outbox_);
    capture->Publish({}, [] { return 301 * kMs; });
  }

  std::filesystem::path run_;
  plan::CapturePlan plan_ = plan::DefaultPlan();
  std::filesystem::path config_;  ///< Of SageMaker.
  std::set<store::RequestId> answered_;
  std::set<store::RequestId> begun_;     ///< By an agent before.
  std::vector<store::RequestId> stops_;  ///< Taken, in this order.
  Outbox outbox_;
};

TEST_F(CaptureTest, AnEditIsSaidAndAnsweredOnce) {
  auto capture = Open();
  const auto id = Ask(R"({"plan": {"collections": {"gradients": {"interval": 1}}}})");
  Tick(capture.get(), 1 * kMs);
  Tick(capture.get(), 2 * kMs);
  const auto said = Take();
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[0].kind, "plan");
  EXPECT_EQ(said[0].data["epoch"], 2);
  EXPECT_EQ(said[0].data["request"], store::Hex(id));
  EXPECT_EQ(said[0].data["plan"]["collections"]["gradients"]["interval"], 1);
  EXPECT_FALSE(said[0].data["plan"]["collections"].contains("weights"));
  EXPECT_EQ(said[1].kind, "request.done") << "nobody trains: it holds from the first step on";
  EXPECT_FALSE(said[1].data.contains("step"));
  Tick(capture.get(), 3 * kMs);
  EXPECT_TRUE(Take().empty());
  // An agent that comes after a death takes the plan over without a word.
  auto next = Open();
  Tick(next.get(), 4 * kMs);
  EXPECT_TRUE(Take().empty());
  next->SayPlan(0, &outbox_);
  EXPECT_EQ(Take()[0].data["plan"]["collections"]["gradients"]["interval"], 1);
}

TEST_F(CaptureTest, AnAdditionKeepsWhatIsThere) {
  auto capture = Open();
  Ask(R"({"base": "current", "toml": "[collections.losses]\ninterval = 1", "where": "x.toml"})");
  Tick(capture.get(), 1 * kMs);
  const auto said = Take();
  ASSERT_FALSE(said.empty());
  EXPECT_EQ(said[0].data["plan"]["collections"].size(), 4U);
}

TEST_F(CaptureTest, AnAdditionLeavesTheBoundOnRawValues) {
  plan_.slab_bytes = 1 << 20;
  auto capture = Open();
  Ask(R"({"windows": {"": {"next": 5}}})", "profile");
  Ask(R"({"base": "current", "plan": {"collections": {"losses": {"interval": 1}}}})");
  Ask(R"({"base": "current", "toml": "level = 'tensors'"})");
  Tick(capture.get(), 1 * kMs);
  auto said = Take();
  ASSERT_GE(said.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(said[i].kind, "plan");
    EXPECT_EQ(said[i].data["plan"]["slab_bytes"], 1 << 20);
  }
  Ask(R"({"base": "current", "plan": {"slab_bytes": 4096, "collections": {}}})");
  Tick(capture.get(), 2 * kMs);
  said = Take();
  ASSERT_FALSE(said.empty());
  EXPECT_EQ(said[0].data["plan"]["slab_bytes"], 4096);
}

TEST_F(CaptureTest, AnAdditionWithoutCollectionsLeavesThoseThatAreHeld) {
  auto capture = Open();
  Ask(R"({"plan": {"collections": {"gradients": {"interval": 7}}}})");
  Ask(R"({"base": "current", "plan": {"windows": {"w": {"steps": [9]}}}})");
  Ask(R"({"base": "current", "toml": "[windows.v]\nsteps = [9]"})");
  Tick(capture.get(), 1 * kMs);
  auto said = Take();
  ASSERT_GE(said.size(), 3U);
  for (int i = 1; i < 3; ++i) {
    ASSERT_EQ(said[i].kind, "plan") << said[i].message;
    EXPECT_EQ(said[i].data["plan"]["windows"].size(), i);
    EXPECT_EQ(said[i].data["plan"]["collections"], said[0].data["plan"]["collections"]);
  }
}

TEST_F(CaptureTest, AWindowIsAddedToThePlanAndNamedAfterWhoAskedForIt) {
  auto capture = Open();
  const auto id = Ask(R"({"windows": {"": {"next": 5, "detail": ["ops"]}}})", "profile",
                      1'700'000'000'000'000'000);
  Ask(R"({"rule": "StepOutlier", "incident": "ab12", "why": "x", "steps": 3})", "profile",
      1'700'000'000'000'000'001);
  Tick(capture.get(), 1 * kMs);
  Tick(capture.get(), 2 * kMs);
  const auto said = Take();
  ASSERT_EQ(said.size(), 4U);
  const json& windows = said[1].data["plan"]["windows"];
  const std::string name = "capture-" + store::Hex(id).substr(24);
  ASSERT_TRUE(windows.contains(name)) << windows.dump();
  EXPECT_EQ(windows[name]["next"], 5);
  EXPECT_EQ(windows[name]["asked_ns"], 1'700'000'000'000'000'000);
  EXPECT_EQ(windows["incident-ab12"]["next"], 3);
  EXPECT_TRUE(said[1].data["plan"]["collections"].contains("weights")) << "the rest of it stays";
  EXPECT_EQ(said[2].kind, "request.done");
  EXPECT_EQ(said[2].data["windows"], name);
  EXPECT_EQ(said[3].data["windows"], "incident-ab12");
  // An agent that comes after a death takes them over without a word.
  auto next = Open();
  Tick(next.get(), 3 * kMs);
  EXPECT_TRUE(Take().empty());
  next->SayPlan(0, &outbox_);
  EXPECT_EQ(Take()[0].data["plan"]["windows"].size(), 2U);
}

TEST_F(CaptureTest, AWindowThatIsNoneIsRefusedWithAReason) {
  auto capture = Open();
  Ask(R"({"windows": {"": {"next": 5, "detail": ["everything"]}}})", "profile");
  Ask(R"({"windows": {}})", "profile");
  Ask(R"({"steps": "many"})", "profile");
  Tick(capture.get(), 1 * kMs);
  const auto said = Take();
  ASSERT_EQ(said.size(), 3U);
  for (const Said& one : said) EXPECT_EQ(one.kind, "request.refused");
  EXPECT_NE(said[0].data["why"].get<std::string>().find("everything"), std::string::npos);
}

TEST_F(CaptureTest, OfWindowsThatOpenOnceOnlyTheNewestStayInThePlan) {
  auto capture = Open();
  Ask(R"({"windows": {"kept": {"every": 100}}})", "profile");
  for (int i = 0; i < 20; ++i) Ask(R"({"windows": {"": {"next": 1}}})", "profile");
  Tick(capture.get(), 1 * kMs);
  Take();
  capture->SayPlan(0, &outbox_);
  const json windows = Take()[0].data["plan"]["windows"];
  EXPECT_TRUE(windows.contains("kept"));
  EXPECT_EQ(windows.size(), 9U);
}

TEST_F(CaptureTest, SageMakersConfigurationIsReadAgainWhenItChanges) {
  constexpr std::int64_t kSecond = 1000 * kMs;
  config_ = run_ / "profilerconfig.json";
  const auto write = [&](const std::string& text, int second) {
    std::ofstream(config_) << text;
    const timespec times[2] = {{second, 0}, {second, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, config_.c_str(), times, 0), 0);
  };
  auto capture = Open();
  Tick(capture.get(), 1 * kSecond);
  EXPECT_TRUE(Take().empty()) << "no such file";
  write(R"({"ProfilingParameters": {"DetailedProfilingConfig": "{\"StartStep\": 3}"}})", 1000);
  Tick(capture.get(), 3 * kSecond);
  auto said = Take();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].kind, "plan");
  EXPECT_EQ(said[0].data["plan"]["windows"]["sagemaker-detailed"]["steps"], "3");
  Tick(capture.get(), 5 * kSecond);
  EXPECT_TRUE(Take().empty()) << "it has not changed";
  write("{", 1001);
  Tick(capture.get(), 7 * kSecond);
  said = Take();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].kind, "request.refused");
  write(R"({"DisableProfiler": true})", 1002);
  Tick(capture.get(), 9 * kSecond);
  said = Take();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_FALSE(said[0].data["plan"].contains("windows"));
  EXPECT_TRUE(said[0].data["plan"]["collections"].contains("weights"));
}

TEST_F(CaptureTest, WhatIsNoPlanIsRefusedWithAReason) {
  auto capture = Open();
  Ask(R"({"plan": {"level": "most"}})");
  Ask(R"({"toml": "[collections.a]\ninclude = '(('"})");
  Ask(R"({"nothing": 1})");
  Ask("{}", "dance");
  Ask(R"({"base": "none", "trouble": "no plan file 'x.toml'"})");
  Tick(capture.get(), 1 * kMs);
  const auto said = Take();
  ASSERT_EQ(said.size(), 5U);
  for (const Said& one : said) EXPECT_EQ(one.kind, "request.refused");
  EXPECT_NE(said[0].data["why"].get<std::string>().find("no level"), std::string::npos);
  EXPECT_NE(said[1].data["why"].get<std::string>().find("'(('"), std::string::npos);
  EXPECT_NE(said[3].data["why"].get<std::string>().find("dance"), std::string::npos);
  EXPECT_EQ(said[4].data["why"], "no plan file 'x.toml'");
  capture->SayPlan(0, &outbox_);
  EXPECT_EQ(Take()[0].data["plan"]["level"], "steps");
}

TEST_F(CaptureTest, WhatAnEarlierAttemptWasAskedIsRefused) {
  Ask(R"({"plan": {"level": "all"}})", "plan", 5);
  auto capture = Open(1000);
  Tick(capture.get(), 1 * kMs);
  const auto said = Take();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].kind, "request.refused");
}

TEST_F(CaptureTest, ARequestIsOfTheAttemptThatItNamesWhateverTheClocksSay) {
  // The attempt began at 1000; since then the clock was set back. In the one before it was ahead.
  const auto now = Ask("{}", "stop", 5, 2);
  const auto before = Ask("{}", "stop", 5000, 1);
  const auto plan = Ask(R"({"plan": {"level": "all"}})", "plan", 6, 2);
  auto capture = Open(1000, 2);
  Tick(capture.get(), 1 * kMs);
  EXPECT_EQ(stops_, std::vector{now});
  std::size_t refused = 0;
  for (const Said& said : Take()) {
    if (said.kind != "request.refused") continue;
    ++refused;
    EXPECT_EQ(said.data["id"], store::Hex(before));
    EXPECT_NE(said.data["why"].get<std::string>().find("has ended"), std::string::npos);
  }
  EXPECT_EQ(refused, 1U);
  EXPECT_NE(plan, before);
  // Where the agent does not know its own attempt, time has to tell.
  stops_.clear();
  auto other = Open(1000);
  Tick(other.get(), 1 * kMs);
  EXPECT_TRUE(stops_.empty()) << "one is answered, the other too old";
}

TEST_F(CaptureTest, AWindowThatWasAskedWithAClockSetBackIsOfThisAttempt) {
  Ask(R"({"windows": {"w": {"next": 5}}})", "profile", 5, 2);
  auto capture = Open(1000, 2);
  Tick(capture.get(), 1 * kMs);
  const auto said = Take();
  ASSERT_FALSE(said.empty());
  EXPECT_EQ(said[0].data["plan"]["windows"]["w"]["asked_ns"], 1000);
}

TEST_F(CaptureTest, AStopThatIsUnderWayIsTakenBeforeAllOthers) {
  const auto older = Ask("{}", "stop", 1000);
  const auto under_way = Ask("{}", "stop", 3000);
  const auto newer = Ask("{}", "stop", 2000);
  begun_ = {under_way};
  auto capture = Open();
  Tick(capture.get(), 1 * kMs);
  EXPECT_EQ(stops_, (std::vector{under_way, older, newer}));
}

TEST_F(CaptureTest, TheTrainingAsksThroughTheJournal) {
  auto capture = Open();
  format::Rows rows;
  format::EventRow event;
  event.kind = "plan.request";
  event.data = R"({"base":"none","plan":{"level":"system"}})";
  event.rank = 3;
  event.pid = 77;
  rows.events.push_back(event);
  capture->Offer(rows);
  capture->Settle(false, 1 * kMs, &outbox_);
  Tick(capture.get(), 2 * kMs);
  EXPECT_TRUE(Take().empty()) << "the journal refused it: it is drained again";
  capture->Offer(rows);
  capture->Settle(true, 3 * kMs, &outbox_);
  Tick(capture.get(), 4 * kMs);
  const auto said = Take();
  ASSERT_FALSE(said.empty());
  EXPECT_EQ(said[0].kind, "plan");
  EXPECT_EQ(said[0].data["plan"]["level"], "system");
  EXPECT_EQ(said[0].data["who"], "telltale.capture, rank 3, pid 77");
}

TEST_F(CaptureTest, AnEditReachesAProbeAsAWhole) {
  channel::TestProducer probe;
  auto page = channel::ControlPage::Create(100);
  ASSERT_TRUE(page.ok());
  ASSERT_TRUE(probe->UseControlPage(page->ReadOnlyFd()->release()));
  const Capture::Producers producers = Adopt(&probe, page->fd());
  auto capture = Open();
  capture->Introduce(producers[0].get());
  const std::uint64_t before = probe->RulesSequence();
  EXPECT_GT(before, 0U);

  // A list that is longer than a rule holds: its next part follows the steps that have passed.
  std::string steps = "0";
  for (int i = 1; i < 40; ++i) steps += "," + std::to_string(i);
  Ask(R"({"plan": {"collections": {"losses": {"steps": [)" + steps + "]}}}}");
  const std::string text =
      format::kTensorMark + std::string("losses") + format::kTensorMark + "loss";
  const std::uint32_t name = probe->Intern(text.data(), text.size());
  StringPool pool;
  channel::Drained drained;
  EXPECT_FALSE(producers[0]->consumer().Drain(1 << 20, 0, &pool, &drained));
  format::Rows rows;
  rows.steps.emplace_back();
  rows.steps[0].mode = "TRAIN";
  rows.steps[0].step = 5;
  producers[0]->See(rows);

  capture->Poll(1 * kMs, &outbox_);
  capture->AnswerNames(producers[0].get());
  EXPECT_EQ(probe->RulesSequence(), before) << "not the new rules with the old answers";
  EXPECT_EQ(probe->NameWord(name), format::kNameUnanswered) << "nor the other way round";
  capture->Publish(producers, [] { return 1 * kMs; });
  capture->AnswerNames(producers[0].get());
  EXPECT_GT(probe->RulesSequence(), before);
  EXPECT_NE(probe->NameWord(name), format::kNameUnanswered);
}

TEST_F(CaptureTest, ALongListFollowsAProgramThatNumbersItsOwnSteps) {
  std::string steps = "0";
  for (int i = 1; i < 100; ++i) steps += "," + std::to_string(i);
  plan_ = plan::FromJson(R"({"collections": {"losses": {"steps": [)" + steps + "]}}}").value();
  auto capture = Open();
  channel::TestProducer probe;
  const auto producers = Watch(capture.get(), &probe);
  constexpr std::size_t kGlobal = 3;
  const auto first = [&] { return RuleOf(probe).when[kGlobal].list[0]; };
  EXPECT_EQ(first(), 0);
  const auto see = [&](const format::Rows& rows,
                       const std::vector<channel::DrainedTensor>& tensors = {}) {
    producers[0]->See(rows, tensors);
    capture->AnswerNames(producers[0].get());
  };
  const auto at = [](auto row, std::int64_t step) {
    row.mode = "GLOBAL";
    row.step = step;
    return row;
  };
  format::Rows rows;
  rows.statistics.push_back(at(format::StatisticRow(), 10));
  see(rows);
  EXPECT_EQ(first(), 10) << "more of that step may come";
  rows.histograms.push_back(at(format::HistogramRow(), 20));
  see(rows);
  EXPECT_EQ(first(), 20);
  see({}, {at(channel::DrainedTensor(), 40)});
  EXPECT_EQ(first(), 40);
  EXPECT_EQ(RuleOf(probe).when[0].list[0], 0) << "each mode by its own steps";
  // Where there are steps they alone say it.
  format::StepRow step;
  step.mode = "GLOBAL";
  step.step = 4;
  rows.steps.push_back(step);
  see(rows);
  EXPECT_EQ(first(), 5);
}

TEST_F(CaptureTest, TheGovernorsWordIsPublished) {
  plan_ = plan::PlanOfLevel("all").value();
  auto capture = Open();
  TrainDear(capture.get());
  const auto said = Take();
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].kind, "governor");
  const int stretch = said[0].data["stretch"].get<int>();
  EXPECT_GE(stretch, 20);
  EXPECT_NE(said[0].message.find("(all each " + std::to_string(stretch) + " steps instead of 1)"),
            std::string::npos)
      << said[0].message;
}

TEST_F(CaptureTest, AWindowLeavesThinnedWhatTheGovernorHasThinned) {
  plan_ = plan::PlanOfLevel("all").value();
  auto capture = Open();
  channel::TestProducer probe;
  const auto producers = Watch(capture.get(), &probe);
  TrainDear(capture.get());
  const auto stretch = Take().at(0).data["stretch"];
  Ask(R"({"windows": {"": {"next": 5}}})", "profile");
  capture->Poll(400 * kMs, &outbox_);
  capture->Settle(true, 400 * kMs, &outbox_);
  capture->Publish(producers, [] { return 400 * kMs; });
  auto said = Take();
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[0].kind, "plan");
  EXPECT_EQ(said[1].kind, "governor") << "the newest word is not that nothing is thinned";
  EXPECT_EQ(said[1].data["stretch"], stretch);
  EXPECT_TRUE(said[1].message.starts_with("Another plan: tensors are taken ")) << said[1].message;
  EXPECT_EQ(RuleOf(probe).when[0].interval, stretch);

  // Other tensors: what they cost is not known yet.
  Ask(R"({"base": "current", "plan": {"collections": {"losses": {"interval": 1}}}})");
  capture->Poll(500 * kMs, &outbox_);
  capture->Publish(producers, [] { return 500 * kMs; });
  said = Take();
  ASSERT_GE(said.size(), 2U);
  EXPECT_EQ(said[0].kind, "plan");
  EXPECT_EQ(said[1].kind, "governor");
  EXPECT_EQ(said[1].data["stretch"], 1);
  EXPECT_EQ(said[1].message, "Another plan: everything is taken as planned again");
  EXPECT_EQ(RuleOf(probe).when[0].interval, 1U);
  Ask(R"({"windows": {"": {"next": 6}}})", "profile");
  capture->Poll(600 * kMs, &outbox_);
  for (const Said& one : Take()) EXPECT_NE(one.kind, "governor") << "nothing was thinned";
}

}  // namespace
}  // namespace telltale::agent
