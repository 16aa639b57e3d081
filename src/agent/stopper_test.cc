// SPDX-License-Identifier: Apache-2.0
#include "agent/stopper.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "base/units.h"

namespace telltale::agent {
namespace {

using nlohmann::json;

/// The run's clock when a test begins.
constexpr std::int64_t kT = 1'700'000'000 * kSecond;

/// An agent's part with a journal of its own, which outlives the stopper: what a new agent has.
class StopperTest : public ::testing::Test {
 protected:
  StopperTest() { Restart(); }

  void Restart() {
    outbox_ = {};
    const auto journal = journal_;
    stopper_.emplace(
        [journal](const Stopper::Uuid& name, std::uint16_t ring) {
          const auto found = journal.find({name, ring});
          return found == journal.end() ? 0 : found->second;
        },
        [this](int pidfd, int signal) {
          sent_.emplace_back(pidfd, signal);
          const auto error = errors_.find(pidfd);
          return error == errors_.end() ? 0 : error->second;
        });
  }

  static store::Request Ask(const std::string& body, std::uint8_t number = 9) {
    store::Request request;
    request.id[15] = number;
    request.who = "watch";
    request.kind = "stop";
    request.body = body;
    return request;
  }

  void Enter(const std::vector<format::RingPosition>& marks) {
    for (const format::RingPosition& mark : marks) {
      if (mark.ring == format::kReleasedRing) {
        std::erase_if(journal_,
                      [&](const auto& each) { return each.first.first == mark.producer; });
        continue;
      }
      std::uint64_t& position = journal_[{mark.producer, mark.ring}];
      EXPECT_GE(mark.position, position) << "a mark counts up, ring " << mark.ring;
      position = mark.position;
      if (mark.ring == kRequestMarkRing) answered_ = true;
    }
  }

  /// The journal takes what waits.
  void Write() {
    format::Batch batch;
    outbox_.AddTo(1, &batch);
    for (const format::EventRow& row : batch.rows.events) {
      said_.push_back({std::string(row.kind), std::string(row.message), ParseJson(row.data)});
    }
    Enter(batch.positions);
    outbox_.Sent();
  }

  void Journal(std::int64_t now_ns) {
    const std::uint64_t number = stopper_->waits_for();
    Write();
    stopper_->Journalled(number, targets_, now_ns, &outbox_);
    // What it says of the signals goes with the next batch.
    Write();
  }

  /// The journal has all that was said so far by those that are there.
  void Drain() {
    std::vector<Stopper::Uuid> read;
    for (const Stopper::Target& target : targets_) read.push_back(target.uuid);
    stopper_->Drained(read);
  }

  void Poll(std::int64_t now_ns) {
    Drain();
    stopper_->Poll(targets_, now_ns, &outbox_);
  }

  void Tick(std::int64_t now_ns) {
    Poll(now_ns);
    Journal(now_ns);
  }

  /// A process says something about its stop.
  void Says(const Stopper::Uuid& uuid, const char* kind, const std::string& data = "{}") {
    format::Rows rows;
    format::EventRow row;
    row.kind = kind;
    row.data = data;
    rows.events.push_back(row);
    std::vector<format::RingPosition> marks;
    stopper_->Offer(rows, uuid, &marks);
    stopper_->Settle(true);
    Enter(marks);
  }

  static std::string To(std::uint8_t number) {
    return R"({"request":")" + store::Hex(Ask("{}", number).id) + R"("})";
  }

  /// Which stop is said to have ended a training that ends so: its "why", with "perhaps" before
  /// where that is not sure; "" where none is.
  std::string Stopped(const ProcessExit& exit = {.exit_code = 0, .signal = {}}) {
    nlohmann::ordered_json data;
    std::string message = "it ended";
    stopper_->AddToEnd(exit, targets_, &data, &message);
    if (!data.contains("stopped")) {
      EXPECT_EQ(message, "it ended");
      return "";
    }
    const bool perhaps = data["stopped"].contains("perhaps");
    const auto why = data["stopped"]["why"].get<std::string>();
    EXPECT_EQ(message, std::string("it ended: ") + (perhaps ? "perhaps " : "") +
                           "stopped by watch" + (why.empty() ? "" : ": ") + why);
    return (perhaps ? "perhaps " : "") + why;
  }
  std::string StoppedBySignal(int signal) { return Stopped({.exit_code = {}, .signal = signal}); }

  struct Said {
    std::string kind, message;
    json data;
  };
  std::vector<Said> SaidOf(std::string_view kind) const {
    std::vector<Said> out;
    std::copy_if(said_.begin(), said_.end(), std::back_inserter(out),
                 [&](const Said& said) { return said.kind == kind; });
    return out;
  }

  using Sent = std::vector<std::pair<int, int>>;  ///< (pidfd, signal).

  static constexpr Stopper::Uuid kA = {1};
  static constexpr Stopper::Uuid kB = {2};
  std::vector<Stopper::Target> targets_ = {{kA, 11, 0, 101, false}, {kB, 12, 1, 102, false}};
  std::map<std::pair<Stopper::Uuid, std::uint16_t>, std::uint64_t> journal_;
  std::map<int, int> errors_;  ///< Of signals, by pidfd.
  Outbox outbox_;
  std::optional<Stopper> stopper_;
  Sent sent_;
  std::vector<Said> said_;
  bool answered_ = false;
};

TEST_F(StopperTest, SignalsEachProcessOnceAfterTheJournalSaysSo) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"why":"x","grace_seconds":10})"), kT, &outbox_).ok());
  Poll(kT);
  Poll(kT + 1);
  EXPECT_TRUE(sent_.empty());
  Journal(kT + 1);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}}));
  for (int second = 1; second < 10; ++second) Tick(kT + second * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  targets_[0].ended = targets_[1].ended = true;
  Tick(kT + 10 * kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_EQ(said_.back().kind, "request.done");
  EXPECT_EQ(said_.back().message, "the training is stopped here");
  EXPECT_TRUE(said_.back().data["stopped"].get<bool>());
}

TEST_F(StopperTest, NothingSaysSentBeforeItWasSent) {
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Poll(kT);
  Write();
  ASSERT_EQ(said_.size(), 2U);
  EXPECT_EQ(said_[1].kind, "stop.decided");
  EXPECT_EQ(said_[1].message, "SIGTERM is about to be sent to 2 processes");
  EXPECT_TRUE(sent_.empty());
  errors_[102] = ESRCH;
  stopper_->Journalled(stopper_->waits_for(), targets_, kT + 1, &outbox_);
  Write();
  ASSERT_EQ(said_.size(), 3U);
  EXPECT_EQ(said_[2].kind, "stop.signal");
  EXPECT_EQ(said_[2].message, "SIGTERM was sent to 1 process; 1 had ended before");
  const json& processes = said_[2].data["processes"];
  EXPECT_EQ(processes[0]["outcome"], "sent");
  EXPECT_EQ(processes[1]["outcome"], "had ended");
  EXPECT_FALSE(processes[0].contains("again"));
}

TEST_F(StopperTest, ANewAgentThatFindsTheSignalsJournalledSendsNone) {
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Tick(kT);
  ASSERT_EQ(sent_.size(), 2U);
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT + kSecond, &outbox_).ok());
  for (int second = 1; second < 20; ++second) Tick(kT + second * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  const auto begun = SaidOf("stop.begun");
  ASSERT_EQ(begun.size(), 2U);
  EXPECT_FALSE(begun[0].data["again"].get<bool>());
  EXPECT_TRUE(begun[1].data["again"].get<bool>());
}

TEST_F(StopperTest, AnAgentThatDiesBeforeItActsLeavesItToTheNext) {
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Write();
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT + kSecond, &outbox_).ok());
  Tick(kT + kSecond);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}}));
}

TEST_F(StopperTest, WhatWasAboutToBeSentWhenTheAgentDiedIsSentByTheNext) {
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Poll(kT);
  Write();
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT + kSecond, &outbox_).ok());
  Tick(kT + kSecond);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}}));
  const auto signals = SaidOf("stop.signal");
  ASSERT_EQ(signals.size(), 1U);
  EXPECT_EQ(signals[0].message,
            "SIGTERM was sent to 2 processes; 2 of them may have had it by an agent before");
  EXPECT_TRUE(signals[0].data["processes"][0]["again"].get<bool>());
  EXPECT_EQ(SaidOf("stop.decided").size(), 1U);
}

TEST_F(StopperTest, WhatWasSentAndNotJournalledIsSentAgain) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":10})"), kT, &outbox_).ok());
  Poll(kT);
  Write();
  stopper_->Journalled(stopper_->waits_for(), targets_, kT, &outbox_);
  ASSERT_EQ(sent_.size(), 2U);
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":10})"), kT + 9 * kSecond, &outbox_).ok());
  Tick(kT + 9 * kSecond);
  EXPECT_EQ(sent_.size(), 4U);
  EXPECT_EQ(SaidOf("stop.signal").size(), 1U);
  // They have the whole time from the signal on that may have been their first.
  Tick(kT + 18 * kSecond);
  EXPECT_FALSE(answered_);
  Tick(kT + 19 * kSecond);
  EXPECT_TRUE(answered_);
}

TEST_F(StopperTest, TheTimesOfAStopOutliveItsAgent) {
  const std::string body = R"({"checkpoint_seconds":60,"grace_seconds":10})";
  Says(kB, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask(body), kT, &outbox_).ok());
  for (int second = 0; second < 59; ++second) {
    Tick(kT + second * kSecond);
    Restart();
    ASSERT_TRUE(stopper_->Take(Ask(body), kT + second * kSecond, &outbox_).ok());
  }
  EXPECT_TRUE(sent_.empty());
  Tick(kT + 60 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  for (int second = 60; second < 70; ++second) {
    Restart();
    ASSERT_TRUE(stopper_->Take(Ask(body), kT + second * kSecond, &outbox_).ok());
    Tick(kT + second * kSecond);
    EXPECT_FALSE(answered_) << second;
  }
  Tick(kT + 70 * kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_EQ(sent_.size(), 2U);
}

TEST_F(StopperTest, TheNextRequestSignalsAnew) {
  targets_.push_back({{}, 10, 0, 100, false});
  const std::string body = R"({"grace_seconds":5})";
  for (const std::uint8_t number : {1, 2}) {
    sent_.clear();
    answered_ = false;
    ASSERT_TRUE(stopper_->Take(Ask(body, number), kT, &outbox_).ok());
    Tick(kT);
    EXPECT_EQ(sent_.size(), 3U) << static_cast<int>(number);
    Tick(kT + 5 * kSecond);
    EXPECT_TRUE(answered_);
    Restart();
  }
}

TEST_F(StopperTest, AnAnsweredRequestLeavesItsAnswerAndNoMarksOfProcesses) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":5})"), kT, &outbox_).ok());
  Tick(kT);
  EXPECT_GE(journal_.size(), 4U);
  Tick(kT + 5 * kSecond);
  ASSERT_TRUE(answered_);
  for (const auto& [key, position] : journal_) EXPECT_EQ(key.first, Ask("{}").id);
}

TEST_F(StopperTest, WaitsForThoseThatSaveAndForNoOther) {
  Says(kB, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint_seconds":60})"), kT, &outbox_).ok());
  Tick(kT);
  for (int second = 1; second < 30; ++second) Tick(kT + second * kSecond);
  EXPECT_TRUE(sent_.empty());
  Says(kB, "stop.saved", To(9));
  Tick(kT + 30 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
}

TEST_F(StopperTest, ACheckpointThatFailsEndsTheWaitAndIsSaid) {
  Says(kA, "stop.ready");
  Says(kB, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Tick(kT);
  Says(kA, "stop.saved", To(9));
  Says(kB, "stop.failed", To(9));
  Tick(kT + kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  Tick(kT + 31 * kSecond);
  ASSERT_TRUE(answered_);
  EXPECT_EQ(said_.back().data["processes"][0]["answer"], "saved");
  EXPECT_EQ(said_.back().data["processes"][1]["answer"], "failed");
}

TEST_F(StopperTest, AnAnswerWithoutARequestIsOfTheOneThatIsCarriedOut) {
  Says(kB, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Tick(kT);
  Says(kB, "stop.saved");
  Tick(kT + kSecond);
  EXPECT_EQ(sent_.size(), 2U);
}

TEST_F(StopperTest, AnAnswerBelongsToItsRequest) {
  const std::string body = R"({"grace_seconds":1})";
  Says(kA, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask(body, 1), kT, &outbox_).ok());
  Says(kA, "stop.saved", To(1));
  Tick(kT);
  Tick(kT + kSecond);
  ASSERT_TRUE(answered_);
  sent_.clear();
  ASSERT_TRUE(stopper_->Take(Ask(body, 2), kT + 2 * kSecond, &outbox_).ok());
  Tick(kT + 2 * kSecond);
  Says(kA, "stop.saved", To(1));  // Late, and of the one before.
  Tick(kT + 3 * kSecond);
  EXPECT_TRUE(sent_.empty());
  Says(kA, "stop.saved", To(2));
  Tick(kT + 4 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
}

TEST_F(StopperTest, AnAnswerThatComesBeforeTheRequestCounts) {
  for (const bool restart : {false, true}) {
    sent_.clear();
    const std::uint8_t number = restart ? 2 : 1;
    Says(kA, "stop.ready");
    Says(kA, "stop.saved", To(number));
    if (restart) Restart();
    ASSERT_TRUE(stopper_->Take(Ask("{}", number), kT, &outbox_).ok());
    Tick(kT);
    EXPECT_EQ(sent_.size(), 2U);
    Tick(kT + 30 * kSecond);
  }
}

TEST_F(StopperTest, AnswersToRequestsThatNobodyMadeFillNoJournal) {
  for (int i = 0; i < 1000; ++i) {
    store::Request request = Ask("{}");
    request.id[0] = static_cast<std::uint8_t>(i >> 8);
    request.id[1] = static_cast<std::uint8_t>(i);
    Says(kA, "stop.saved", R"({"request":")" + store::Hex(request.id) + R"("})");
    Says(kA, "stop.kept", R"({"request":")" + std::to_string(i) + R"("})");
  }
  EXPECT_LE(journal_.size(), 256U);
}

TEST_F(StopperTest, AnAnswerOfABatchThatTheJournalRefusesComesAgain) {
  Says(kA, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  format::Rows rows;
  format::EventRow row;
  row.kind = "stop.saved";
  rows.events.push_back(row);
  std::vector<format::RingPosition> marks;
  stopper_->Offer(rows, kA, &marks);
  EXPECT_EQ(marks.size(), 1U);
  stopper_->Settle(false);
  Tick(kT + kSecond);
  EXPECT_TRUE(sent_.empty());
  Says(kA, "stop.saved");
  Tick(kT + 2 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
}

TEST_F(StopperTest, NothingIsDecidedBeforeWhatTheProcessesHaveSaidIsRead) {
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  stopper_->Poll(targets_, kT, &outbox_);
  EXPECT_EQ(stopper_->waits_for(), 0U);
  // It was said before, and lay in the ring.
  Says(kA, "stop.ready");
  Tick(kT + 1);
  EXPECT_TRUE(sent_.empty());
  // A journal that takes nothing, so that nothing is read, holds it up for seconds only.
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint":false})"), kT, &outbox_).ok());
  stopper_->Poll(targets_, kT + 4 * kSecond, &outbox_);
  EXPECT_EQ(stopper_->waits_for(), 0U);
  stopper_->Poll(targets_, kT + 5 * kSecond, &outbox_);
  EXPECT_NE(stopper_->waits_for(), 0U);
}

TEST_F(StopperTest, DoesNotWaitLongerThanItMay) {
  Says(kB, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint_seconds":60})"), kT, &outbox_).ok());
  Tick(kT);
  Tick(kT + 59 * kSecond);
  EXPECT_TRUE(sent_.empty());
  Tick(kT + 60 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
}

TEST_F(StopperTest, AJournalThatTakesNothingHoldsAStopUpForSecondsOnly) {
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Poll(kT);
  const std::uint64_t number = stopper_->waits_for();
  Poll(kT + 4 * kSecond);
  EXPECT_TRUE(sent_.empty());
  Poll(kT + 5 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  // The disk comes back: what it had been asked for is done by now.
  stopper_->Journalled(number, targets_, kT + 6 * kSecond, &outbox_);
  EXPECT_EQ(sent_.size(), 2U);
  Write();
  ASSERT_EQ(said_.size(), 3U);
  EXPECT_EQ(said_[1].kind, "stop.decided");
  EXPECT_EQ(said_[2].kind, "stop.signal");
}

TEST_F(StopperTest, TheDisksWordOnAnEarlierDecisionSendsNothing) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":1,"kill":true})"), kT, &outbox_).ok());
  Poll(kT);
  const std::uint64_t first = stopper_->waits_for();
  Journal(kT);
  Poll(kT + kSecond);
  stopper_->Journalled(first, targets_, kT + kSecond, &outbox_);
  EXPECT_EQ(sent_.size(), 2U);
  Journal(kT + kSecond);
  EXPECT_EQ(sent_.size(), 4U);
}

TEST_F(StopperTest, KillsWhatLivesOnOnlyWhereItIsAsked) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":5,"kill":true})"), kT, &outbox_).ok());
  Tick(kT);
  targets_[0].ended = true;
  Tick(kT + 5 * kSecond);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}, {102, SIGKILL}}));
  targets_[1].ended = true;
  Tick(kT + 6 * kSecond);
  EXPECT_TRUE(answered_);
}

TEST_F(StopperTest, AnAgentStaysUntilTheSigkillIsSentThatWasAskedFor) {
  EXPECT_FALSE(stopper_->owes_kill());
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":5,"kill":true})"), kT, &outbox_).ok());
  Tick(kT);
  EXPECT_TRUE(stopper_->owes_kill());
  Tick(kT + 5 * kSecond);
  ASSERT_EQ(sent_.size(), 4U);
  EXPECT_TRUE(stopper_->owes_kill()) << "it may take a while";
  Tick(kT + 10 * kSecond);
  EXPECT_FALSE(stopper_->owes_kill()) << "one that cannot be killed is left";
  ASSERT_TRUE(stopper_->Take(Ask("{}", 1), kT + 11 * kSecond, &outbox_).ok());
  Tick(kT + 11 * kSecond);
  EXPECT_FALSE(stopper_->owes_kill()) << "it is not asked for";
}

TEST_F(StopperTest, TheNextAgentKillsWhatWasAboutToBeKilled) {
  const std::string body = R"({"grace_seconds":5,"kill":true})";
  ASSERT_TRUE(stopper_->Take(Ask(body), kT, &outbox_).ok());
  Tick(kT);
  Poll(kT + 5 * kSecond);
  Write();
  Restart();
  // Long after: no time that has passed meanwhile lets it go without its SIGKILL.
  ASSERT_TRUE(stopper_->Take(Ask(body), kT + 600 * kSecond, &outbox_).ok());
  Tick(kT + 600 * kSecond);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}, {101, SIGKILL}, {102, SIGKILL}}));
  EXPECT_FALSE(answered_);
  targets_[0].ended = targets_[1].ended = true;
  Tick(kT + 601 * kSecond);
  EXPECT_TRUE(answered_);
  const json& processes = said_.back().data["processes"];
  EXPECT_EQ(processes[0]["sigterm"], "sent");
  EXPECT_EQ(processes[0]["sigkill"], "sent");
}

TEST_F(StopperTest, NamesThoseThatLiveOnTheCommandIncluded) {
  targets_.push_back({{}, 10, 0, 100, false});
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":5})"), kT, &outbox_).ok());
  Tick(kT);
  targets_[0].ended = true;
  Tick(kT + 5 * kSecond);
  ASSERT_TRUE(answered_);
  const Said& done = said_.back();
  EXPECT_EQ(done.data["left"], json::array({10, 12}));
  EXPECT_FALSE(done.data["stopped"].get<bool>());
  EXPECT_EQ(done.message,
            "the training is not stopped: 2 of its processes here live on: the command (pid 10), "
            "rank 1 (pid 12)");
  ASSERT_EQ(done.data["processes"].size(), 3U);
  for (const json& process : done.data["processes"]) {
    EXPECT_EQ(process["state"], process["pid"] == 11 ? "ended" : "left");
    EXPECT_EQ(process["root"], process["pid"] == 10);
    EXPECT_EQ(process["sigterm"], "sent");
    EXPECT_EQ(process["sigkill"], "none");
  }
}

TEST_F(StopperTest, ATrialThatIsGivenUpLeavesItsProcess) {
  targets_ = {{kA, 11, 0, 101, false}, {{}, 10, 0, 100, false}};
  Says(kA, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Tick(kT);
  Says(kA, "stop.kept", To(9));
  Tick(kT + kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(said_.back().data["kept"], json::array({11}));
  EXPECT_EQ(said_.back().data["left"], json::array());
  EXPECT_EQ(Stopped(), "");
}

TEST_F(StopperTest, WhoseTrialWasGivenUpMayEndAndTheSearchGoesOn) {
  targets_ = {{kA, 11, 0, 101, false}, {{}, 10, 0, 100, false}};
  Says(kA, "stop.ready", R"({"trial":true})");
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Tick(kT);
  Says(kA, "stop.kept", To(9));
  targets_[0].ended = true;
  Tick(kT + kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_TRUE(sent_.empty());
  EXPECT_FALSE(said_.back().data["stopped"].get<bool>());
}

TEST_F(StopperTest, ATrialThatWasGivenUpIsKeptByTheNextAgentToo) {
  targets_ = {{kA, 11, 0, 101, false}, {{}, 10, 0, 100, false}};
  Says(kA, "stop.ready", R"({"trial":true})");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint":false})"), kT, &outbox_).ok());
  Tick(kT);
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint":false})"), kT + kSecond, &outbox_).ok());
  Tick(kT + kSecond);
  EXPECT_TRUE(sent_.empty()) << "the trial is not given up yet";
  Says(kA, "stop.kept", To(9));
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint":false})"), kT + 2 * kSecond, &outbox_).ok());
  Tick(kT + 2 * kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_TRUE(sent_.empty());
}

TEST_F(StopperTest, ATrialIsWaitedForAlsoWhereNothingIsSaved) {
  targets_ = {{kA, 11, 0, 101, false}};
  Says(kA, "stop.ready", R"({"trial":true})");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint":false})"), kT, &outbox_).ok());
  Tick(kT);
  for (int second = 1; second < 20; ++second) Tick(kT + second * kSecond);
  EXPECT_TRUE(sent_.empty());
  Says(kA, "stop.kept", To(9));
  Tick(kT + 20 * kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_TRUE(sent_.empty());
}

TEST_F(StopperTest, TheTrialAfterTheOneThatWasGivenUpIsNotWaitedFor) {
  targets_ = {{kA, 11, 0, 101, false}};
  Says(kA, "stop.ready", R"({"trial":true})");
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Tick(kT);
  // Both between two looks.
  Says(kA, "stop.kept", To(9));
  Says(kA, "stop.ready", R"({"trial":true})");
  Tick(kT + kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_TRUE(sent_.empty());
}

TEST_F(StopperTest, WhoGivesUpItsTrialTooLateIsNotSaidToGoOn) {
  targets_ = {{kA, 11, 0, 101, false}};
  Says(kA, "stop.ready", R"({"trial":true})");
  ASSERT_TRUE(
      stopper_->Take(Ask(R"({"checkpoint_seconds":1,"grace_seconds":5})"), kT, &outbox_).ok());
  Tick(kT + kSecond);
  ASSERT_EQ(sent_.size(), 1U);
  Says(kA, "stop.kept", To(9));
  Tick(kT + 6 * kSecond);
  ASSERT_TRUE(answered_);
  EXPECT_EQ(said_.back().data["left"], json::array({11}));
  EXPECT_EQ(said_.back().data["kept"], json::array());
}

TEST_F(StopperTest, WithoutACheckpointNobodyThatOnlySavesIsWaitedFor) {
  targets_ = {{kA, 11, 0, 101, false}};
  Says(kA, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint":false})"), kT, &outbox_).ok());
  Tick(kT);
  EXPECT_EQ(sent_.size(), 1U);
}

TEST_F(StopperTest, ThoseThatALauncherStartsAgainAreSignalledToo) {
  targets_ = {{kA, 11, 0, 101, false}, {{}, 10, 0, 100, false}};
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Tick(kT);
  EXPECT_EQ(sent_.size(), 2U);
  // Its channel is read to its end, and let go of.
  targets_[0] = {kB, 12, 0, 102, false};
  Tick(kT + kSecond);
  EXPECT_EQ(sent_.size(), 3U);
  EXPECT_EQ(sent_.back(), std::pair(102, SIGTERM));
  Tick(kT + 30 * kSecond);
  ASSERT_TRUE(answered_);
  EXPECT_EQ(said_.back().data["left"], json::array({10, 12}));
  EXPECT_EQ(said_.back().data["processes"].size(), 3U);
}

TEST_F(StopperTest, ARootThatGetsAChannelMeanwhileIsOneProcess) {
  targets_ = {{{}, 10, 0, 100, false}};
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":5})"), kT, &outbox_).ok());
  Tick(kT);
  ASSERT_EQ(sent_.size(), 1U);
  targets_ = {{kA, 10, 0, 100, false}};
  Tick(kT + kSecond);
  EXPECT_EQ(sent_.size(), 1U);
  // It has ended, its channel is read to its end: it is known by its number alone again.
  targets_ = {{{}, 10, 0, 100, true}};
  Tick(kT + 2 * kSecond);
  ASSERT_TRUE(answered_);
  EXPECT_TRUE(said_.back().data["stopped"].get<bool>());
  EXPECT_EQ(said_.back().data["processes"].size(), 1U);
}

TEST_F(StopperTest, AProcessWithoutAPidfdIsNamedAndNotSignalled) {
  targets_ = {{kA, 11, 0, 101, false}, {kB, 12, 1, -1, false}};
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":5})"), kT, &outbox_).ok());
  Tick(kT);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}}));
  const auto signals = SaidOf("stop.signal");
  ASSERT_EQ(signals.size(), 1U);
  EXPECT_EQ(signals[0].message, "SIGTERM was sent to 1 process; it could not be sent to 1");
  targets_[0].ended = true;
  Tick(kT + 5 * kSecond);
  ASSERT_TRUE(answered_);
  EXPECT_EQ(said_.back().data["left"], json::array({12}));
  EXPECT_EQ(said_.back().data["failures"].size(), 1U);
}

TEST_F(StopperTest, WhoCannotBeSignalledIsSaidOnceAndEndsNoStopByItself) {
  targets_ = {{kA, 11, 0, 101, false}};
  errors_[101] = EPERM;
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":5})"), kT, &outbox_).ok());
  for (int second = 0; second < 5; ++second) Tick(kT + second * kSecond);
  EXPECT_EQ(sent_.size(), 1U);
  Tick(kT + 5 * kSecond);
  ASSERT_TRUE(answered_);
  EXPECT_EQ(said_.back().data["left"], json::array({11}));
  EXPECT_EQ(Stopped(), "");
  EXPECT_EQ(StoppedBySignal(SIGTERM), "") << "that was of somebody else";
}

TEST_F(StopperTest, AProcessThatCouldNotBeSignalledAndHasEndedIsNotLeft) {
  targets_ = {{kA, 11, 0, -1, false}};
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Tick(kT);
  targets_[0].ended = true;
  Tick(kT + kSecond);
  ASSERT_TRUE(answered_);
  EXPECT_TRUE(said_.back().data["stopped"].get<bool>());
  EXPECT_EQ(said_.back().message, "the training has ended here");
}

TEST_F(StopperTest, TheEndOfTheRecordingSendsWhatIsDecidedAndNamesWhoLivesOn) {
  targets_.push_back({{}, 10, 0, 100, true});
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Poll(kT);
  stopper_->Close(targets_, kT + 1, &outbox_);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}}));
  Write();
  ASSERT_TRUE(answered_);
  EXPECT_EQ(said_.back().data["left"], json::array({11, 12}));
}

TEST_F(StopperTest, AnAgentAfterTheAnswerStillKnowsWhoHasStoppedTheTraining) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"why":"x"})"), kT, &outbox_).ok());
  Tick(kT);
  targets_[0].ended = targets_[1].ended = true;
  Tick(kT + kSecond);
  ASSERT_TRUE(answered_);
  EXPECT_EQ(Stopped(), "x");
  Restart();
  EXPECT_EQ(Stopped(), "");
  stopper_->Recall(Ask("{}", 1));
  EXPECT_EQ(Stopped(), "") << "a request that was refused";
  stopper_->Recall(Ask(R"({"why":"x"})"));
  EXPECT_EQ(Stopped(), "x");
}

TEST_F(StopperTest, ATrainingThatCrashesBeforeItIsSignalledWasNotStopped) {
  for (const bool restart : {false, true}) {
    journal_.clear();
    Restart();
    targets_[0].ended = targets_[1].ended = false;
    Says(kA, "stop.ready");
    ASSERT_TRUE(stopper_->Take(Ask(R"({"why":"x"})"), kT, &outbox_).ok());
    Tick(kT);
    targets_[0].ended = targets_[1].ended = true;
    EXPECT_EQ(StoppedBySignal(SIGSEGV), "") << "while it is saving";
    EXPECT_EQ(Stopped({.exit_code = 1, .signal = {}}), "");
    EXPECT_EQ(StoppedBySignal(SIGTERM), "") << "that was of somebody else";
    Tick(kT + 5 * kSecond);
    ASSERT_TRUE(answered_);
    EXPECT_EQ(said_.back().message, "the training has ended here");
    if (restart) {
      Restart();
      stopper_->Recall(Ask(R"({"why":"x"})"));
    }
    EXPECT_EQ(StoppedBySignal(SIGSEGV), "");
    EXPECT_EQ(Stopped(), "");
  }
}

TEST_F(StopperTest, ATrainingThatEndsWhileASignalIsDecidedWasNotStoppedByIt) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"why":"x"})"), kT, &outbox_).ok());
  Poll(kT);
  Write();
  targets_[0].ended = targets_[1].ended = true;
  EXPECT_EQ(StoppedBySignal(SIGSEGV), "");
  EXPECT_EQ(Stopped(), "");
  // The next agent cannot know whether it was sent; what another signal ended it did not.
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask(R"({"why":"x"})"), kT + kSecond, &outbox_).ok());
  for (const bool over : {false, true}) {
    if (over) Tick(kT + kSecond);
    EXPECT_EQ(answered_, over);
    EXPECT_EQ(StoppedBySignal(SIGSEGV), "");
    EXPECT_EQ(StoppedBySignal(SIGTERM), "perhaps x");
    EXPECT_EQ(Stopped({.exit_code = 1, .signal = {}}), "perhaps x");
  }
  EXPECT_EQ(said_.back().data["processes"][0]["sigterm"], "unknown");
  Restart();
  stopper_->Recall(Ask(R"({"why":"x"})"));
  EXPECT_EQ(StoppedBySignal(SIGTERM), "perhaps x");
}

TEST_F(StopperTest, WhoHasEndedWhenASignalIsSentAgainMayHaveHadIt) {
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  Poll(kT);
  Write();
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT + kSecond, &outbox_).ok());
  errors_[102] = ESRCH;
  Tick(kT + kSecond);
  const auto signals = SaidOf("stop.signal");
  ASSERT_EQ(signals.size(), 1U);
  EXPECT_EQ(signals[0].message,
            "SIGTERM was sent to 1 process; 1 of them may have had it by an agent before; 1 had "
            "ended, perhaps by the signal of an agent before");
  EXPECT_EQ(signals[0].data["processes"][1]["outcome"], "unknown");
  // Once, also where it is seen to have ended later only.
  Tick(kT + 2 * kSecond);
  EXPECT_EQ(SaidOf("stop.signal").size(), 1U);
}

TEST_F(StopperTest, WhoLivesThroughAStopAndEndsLongAfterItWasNotStopped) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"why":"x","grace_seconds":5})"), kT, &outbox_).ok());
  Tick(kT);
  EXPECT_EQ(Stopped({.exit_code = 1, .signal = {}}), "x") << "within its grace";
  EXPECT_EQ(StoppedBySignal(SIGTERM), "x");
  // Its handler may have crashed, or it crashed for a reason of its own, or somebody else ended it.
  EXPECT_EQ(StoppedBySignal(SIGABRT), "perhaps x");
  EXPECT_EQ(StoppedBySignal(SIGKILL), "perhaps x");
  EXPECT_EQ(Stopped({.exit_code = 128 + SIGSEGV, .signal = {}}), "perhaps x");
  Tick(kT + 5 * kSecond);
  ASSERT_TRUE(answered_);
  for (const bool restart : {false, true}) {
    if (restart) {
      Restart();
      stopper_->Recall(Ask(R"({"why":"x","grace_seconds":5})"));
    }
    EXPECT_EQ(StoppedBySignal(SIGSEGV), "");
    EXPECT_EQ(Stopped(), "");
    EXPECT_EQ(Stopped({.exit_code = 1, .signal = {}}), "");
    EXPECT_EQ(Stopped({}), "") << "how is not known";
    EXPECT_EQ(StoppedBySignal(SIGKILL), "") << "that was of somebody else";
    EXPECT_EQ(StoppedBySignal(SIGTERM), "x") << "it may come late";
    EXPECT_EQ(Stopped({.exit_code = 128 + SIGTERM, .signal = {}}), "x");
  }
  // Nor by the next request, which has done nothing yet.
  Says(kA, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"why":"y"})", 1), kT + 60 * kSecond, &outbox_).ok());
  Tick(kT + 60 * kSecond);
  EXPECT_EQ(StoppedBySignal(SIGSEGV), "");
}

TEST_F(StopperTest, ATrainingThatHasSavedAndEndsItselfWasStopped) {
  Says(kA, "stop.ready");
  Says(kB, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"why":"x"})"), kT, &outbox_).ok());
  Tick(kT);
  Says(kA, "stop.saved", To(9));
  targets_[1].ended = true;
  EXPECT_EQ(Stopped({.exit_code = 1, .signal = {}}), "") << "one has failed that had not saved";
  EXPECT_EQ(Stopped(), "x");
  targets_[1].ended = false;
  Says(kB, "stop.saved", To(9));
  targets_[0].ended = targets_[1].ended = true;
  EXPECT_EQ(Stopped({.exit_code = 1, .signal = {}}), "x");
  EXPECT_EQ(StoppedBySignal(SIGSEGV), "");
  Tick(kT + kSecond);
  ASSERT_TRUE(answered_);
  EXPECT_TRUE(sent_.empty());
  Restart();
  stopper_->Recall(Ask(R"({"why":"x"})"));
  EXPECT_EQ(Stopped(), "x");
  EXPECT_EQ(StoppedBySignal(SIGSEGV), "");
}

TEST_F(StopperTest, WhatAProcessSaidBeforeItWasHandedOverIsReadFirst) {
  const std::string body = R"({"checkpoint_seconds":60})";
  for (const bool again : {false, true}) {
    journal_.clear();
    sent_.clear();
    Restart();
    if (again) {
      ASSERT_TRUE(stopper_->Take(Ask(body), kT, &outbox_).ok());
      Write();
      Restart();
    }
    ASSERT_TRUE(stopper_->Take(Ask(body), kT, &outbox_).ok());
    // This agent has written what it had, and knew none of them then.
    stopper_->Drained({});
    stopper_->Poll(targets_, kT + 1, &outbox_);
    EXPECT_EQ(stopper_->waits_for(), 0U);
    Says(kA, "stop.ready");
    Tick(kT + 2);
    EXPECT_TRUE(sent_.empty()) << "it is saving";
    Says(kA, "stop.saved", To(9));
    // Another one starts, and what it says lies in its ring.
    targets_.push_back({{3}, 13, 2, 103, false});
    stopper_->Drained({kA, kB});
    stopper_->Poll(targets_, kT + 3, &outbox_);
    EXPECT_EQ(stopper_->waits_for(), 0U);
    Says({3}, "stop.ready");
    Tick(kT + 4);
    EXPECT_TRUE(sent_.empty());
    Tick(kT + 60 * kSecond);
    EXPECT_EQ(sent_.size(), 3U);
    targets_.pop_back();
  }
}

TEST_F(StopperTest, AProcessThatIsNeverReadHoldsAStopUpForSecondsOnly) {
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  stopper_->Drained({kA});
  stopper_->Poll(targets_, kT + 4 * kSecond, &outbox_);
  EXPECT_EQ(stopper_->waits_for(), 0U);
  stopper_->Poll(targets_, kT + 5 * kSecond, &outbox_);
  EXPECT_NE(stopper_->waits_for(), 0U);
}

TEST_F(StopperTest, TheNextAttemptIsNotKeptWaitingByASigkillThatIsOwed) {
  const std::string body = R"({"checkpoint_seconds":60,"grace_seconds":86400,"kill":true})";
  for (const bool saves : {false, true}) {
    journal_.clear();
    sent_.clear();
    said_.clear();
    answered_ = false;
    Restart();
    targets_[0].ended = targets_[1].ended = false;
    if (saves) Says(kA, "stop.ready");
    ASSERT_TRUE(stopper_->Take(Ask(body), kT, &outbox_).ok());
    Tick(kT);
    EXPECT_EQ(sent_.size(), saves ? 0U : 2U);
    Tick(kT + 50 * kSecond);
    EXPECT_EQ(sent_.size(), saves ? 0U : 2U);
    for (int second = 50; second < 53; ++second) {
      stopper_->NextAttemptBegan(kT + second * kSecond);
      Tick(kT + second * kSecond);
    }
    EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}, {101, SIGKILL}, {102, SIGKILL}}));
    EXPECT_EQ(SaidOf("stop.decided").back().message,
              "SIGKILL is about to be sent to 2 processes, since the next attempt of this run has "
              "begun");
    Tick(kT + 60 * kSecond);
    EXPECT_TRUE(answered_);
    EXPECT_FALSE(stopper_->owes_kill());
  }
}

TEST_F(StopperTest, TheNextAttemptHastensNothingWhereNoSigkillIsAskedFor) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":600})"), kT, &outbox_).ok());
  Tick(kT);
  stopper_->NextAttemptBegan(kT + kSecond);
  Tick(kT + 2 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  EXPECT_FALSE(answered_);
}

TEST_F(StopperTest, MarksOfProcessesThatOldJournalsHaveSayWhoIsReady) {
  const auto waits = [&](std::uint64_t old, const char* body) {
    journal_.clear();
    journal_[{kA, kStopReadyRing}] = old;
    Restart();
    sent_.clear();
    EXPECT_TRUE(stopper_->Take(Ask(body), kT, &outbox_).ok());
    Tick(kT);
    return sent_.empty();
  };
  EXPECT_TRUE(waits(1, "{}"));
  EXPECT_TRUE(waits(2, "{}")) << "it saves again for another request";
  EXPECT_FALSE(waits(2, R"({"checkpoint":false})"));
  EXPECT_TRUE(waits(3, R"({"checkpoint":false})")) << "it has given up a trial before";
  // Signalled, by another request: what it said before is not known.
  EXPECT_FALSE(waits(4, "{}"));
  EXPECT_FALSE(waits(5, "{}"));
}

/// One that waits for a checkpoint for ten minutes, and one that comes meanwhile.
class StricterStopTest : public StopperTest {
 protected:
  static constexpr auto kPatient = R"({"why":"x","checkpoint_seconds":600,"grace_seconds":600})";
  static constexpr auto kNow = R"({"why":"y","checkpoint":false,"grace_seconds":5,"kill":true})";

  Status Take(const char* body, std::uint8_t number, std::int64_t now_ns) {
    return stopper_->Take(Ask(body, number), now_ns, &outbox_);
  }
  /// What is said of a request.
  std::vector<Said> SaidOfRequest(std::string_view kind, std::uint8_t number) const {
    std::vector<Said> out = SaidOf(kind);
    std::erase_if(
        out, [&](const Said& said) { return said.data["id"] != store::Hex(Ask("{}", number).id); });
    return out;
  }
  json AnswerTo(std::uint8_t number) const {
    const auto done = SaidOfRequest("request.done", number);
    EXPECT_EQ(done.size(), 1U) << "one answer to each request";
    return done.empty() ? json::object() : done.back().data;
  }
  /// As Capture does it: what was answered is recalled, what is open is taken, first what was
  /// begun.
  void NextAgent(const std::vector<std::pair<const char*, std::uint8_t>>& asked,
                 std::int64_t now_ns) {
    Restart();
    for (const bool begun : {true, false}) {
      for (const auto& [body, number] : asked) {
        const store::Request request = Ask(body, number);
        if (stopper_->HasBegun(request.id) != begun) continue;
        if (journal_.contains({request.id, kRequestMarkRing})) {
          stopper_->Recall(request);
        } else {
          EXPECT_TRUE(stopper_->Take(request, now_ns, &outbox_).ok());
        }
      }
    }
  }
  void EndAll() {
    for (Stopper::Target& target : targets_) target.ended = true;
  }
};

TEST_F(StricterStopTest, TakesThePlaceOfOneThatWaitsForACheckpoint) {
  Says(kB, "stop.ready");
  ASSERT_TRUE(Take(kPatient, 1, kT).ok());
  for (int second = 0; second < 10; ++second) Tick(kT + second * kSecond);
  ASSERT_TRUE(Take(kNow, 2, kT + 10 * kSecond).ok());
  Tick(kT + 10 * kSecond);
  EXPECT_EQ(stopper_->request(), Ask("{}", 2).id);
  Tick(kT + 11 * kSecond);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}}));
  const json first = AnswerTo(1);
  EXPECT_EQ(first["goes_on_as"], store::Hex(Ask("{}", 2).id));
  EXPECT_FALSE(first["stopped"].get<bool>());
  EXPECT_EQ(first["left"], json::array({11, 12}));
  for (const json& process : first["processes"]) EXPECT_EQ(process["sigterm"], "none");
  const auto begun = SaidOfRequest("stop.begun", 2);
  ASSERT_EQ(begun.size(), 1U);
  EXPECT_EQ(begun[0].data["instead_of"], store::Hex(Ask("{}", 1).id));
  Tick(kT + 16 * kSecond);
  EXPECT_EQ(sent_.size(), 4U);
  EXPECT_EQ(sent_.back(), std::pair(102, SIGKILL));
  EndAll();
  Tick(kT + 17 * kSecond);
  EXPECT_TRUE(AnswerTo(2)["stopped"].get<bool>());
  EXPECT_EQ(Stopped(), "y");
  EXPECT_TRUE(SaidOfRequest("stop.signal", 1).empty());
  for (const auto& [key, position] : journal_) {
    EXPECT_TRUE(key.first == kB || key.first == Ask("{}", 1).id || key.first == Ask("{}", 2).id)
        << "ring " << key.second;
  }
}

TEST_F(StricterStopTest, WhatWasSentIsNotSentAgainAndEachAccountIsItsOwn) {
  ASSERT_TRUE(Take(kPatient, 1, kT).ok());
  Tick(kT);
  ASSERT_EQ(sent_.size(), 2U);
  ASSERT_TRUE(Take(kNow, 2, kT + 10 * kSecond).ok());
  Tick(kT + 10 * kSecond);
  // From the request on they have the time that it gives them.
  Tick(kT + 14 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  Tick(kT + 15 * kSecond);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}, {101, SIGKILL}, {102, SIGKILL}}));
  EndAll();
  Tick(kT + 16 * kSecond);
  for (const std::uint8_t number : {1, 2}) {
    const json answer = AnswerTo(number);
    ASSERT_EQ(answer["processes"].size(), 2U);
    for (const json& process : answer["processes"]) {
      EXPECT_EQ(process["sigterm"], "sent");
      EXPECT_EQ(process["sigkill"], number == 1 ? "none" : "sent");
    }
  }
  ASSERT_EQ(SaidOfRequest("stop.signal", 1).size(), 1U);
  EXPECT_EQ(SaidOfRequest("stop.signal", 1)[0].data["signal"], SIGTERM);
  ASSERT_EQ(SaidOfRequest("stop.signal", 2).size(), 1U);
  EXPECT_EQ(SaidOfRequest("stop.signal", 2)[0].data["signal"], SIGKILL);
}

TEST_F(StricterStopTest, OneThatComesLaterAndEndsNothingSoonerIsRefused) {
  Says(kB, "stop.ready");
  constexpr auto kFirst = R"({"checkpoint_seconds":60,"grace_seconds":10,"kill":true})";
  const auto refused = [&](const char* body, std::int64_t now_ns) {
    const Status status = Take(body, 2, now_ns);
    return status.code() == Code::kRunning;
  };
  ASSERT_TRUE(Take(kFirst, 1, kT).ok());
  Tick(kT);
  EXPECT_TRUE(refused(kFirst, kT + kSecond));
  EXPECT_TRUE(refused(R"({"checkpoint_seconds":60,"grace_seconds":0})", kT + kSecond));
  EXPECT_TRUE(refused(R"({"checkpoint_seconds":600,"kill":true})", kT + kSecond));
  Tick(kT + 60 * kSecond);
  ASSERT_EQ(sent_.size(), 2U);
  EXPECT_TRUE(refused(R"({"checkpoint":false,"grace_seconds":0})", kT + 61 * kSecond));
  EXPECT_TRUE(refused(R"({"grace_seconds":9,"kill":true})", kT + 61 * kSecond));
  Tick(kT + 70 * kSecond);
  ASSERT_EQ(sent_.size(), 4U);
  EXPECT_TRUE(refused(kNow, kT + 71 * kSecond)) << "nothing is stricter than SIGKILL";
  EndAll();
  Tick(kT + 71 * kSecond);
  EXPECT_FALSE(AnswerTo(1).contains("goes_on_as"));
}

TEST_F(StricterStopTest, EachThingThatComesSoonerIsStricter) {
  const auto taken = [&](const char* body) {
    journal_.clear();
    Restart();
    Says(kB, "stop.ready");
    EXPECT_TRUE(Take(R"({"checkpoint_seconds":60,"grace_seconds":30})", 1, kT).ok());
    Tick(kT);
    return Take(body, 2, kT + kSecond).ok();
  };
  EXPECT_TRUE(taken(R"({"kill":true})"));
  EXPECT_TRUE(taken(R"({"checkpoint":false})"));
  EXPECT_TRUE(taken(R"({"checkpoint_seconds":58})"));
  EXPECT_FALSE(taken(R"({"checkpoint_seconds":59})")) << "no sooner";
  EXPECT_FALSE(taken(R"({"grace_seconds":1})")) << "without SIGKILL nothing comes after it";
}

TEST_F(StricterStopTest, NothingComesLaterThanEitherAsksForWhoeverDies) {
  constexpr auto kKills = R"({"checkpoint_seconds":60,"grace_seconds":10,"kill":true})";
  constexpr auto kSooner = R"({"checkpoint":false,"grace_seconds":600})";
  Says(kB, "stop.ready");
  ASSERT_TRUE(Take(kKills, 1, kT).ok());
  Tick(kT);
  ASSERT_TRUE(Take(kSooner, 2, kT + 10 * kSecond).ok());
  Tick(kT + 10 * kSecond);
  Tick(kT + 11 * kSecond);
  ASSERT_EQ(sent_.size(), 2U);
  for (int second = 12; second < 70; ++second) {
    NextAgent({{kKills, 1}, {kSooner, 2}}, kT + second * kSecond);
    Tick(kT + second * kSecond);
    EXPECT_TRUE(stopper_->owes_kill());
  }
  EXPECT_EQ(sent_.size(), 2U);
  Tick(kT + 70 * kSecond);
  EXPECT_EQ(sent_.size(), 4U) << "the first one asked for it by then";
  EXPECT_EQ(sent_.back(), std::pair(102, SIGKILL));
}

TEST_F(StricterStopTest, TheWaitOfThePatientOneIsNotLengthened) {
  constexpr auto kFirst = R"({"checkpoint_seconds":60,"grace_seconds":600})";
  constexpr auto kKills = R"({"checkpoint_seconds":300,"grace_seconds":5,"kill":true})";
  Says(kB, "stop.ready");
  ASSERT_TRUE(Take(kFirst, 1, kT).ok());
  Tick(kT);
  ASSERT_TRUE(Take(kKills, 2, kT + 50 * kSecond).ok());
  for (int second = 50; second < 60; ++second) {
    Tick(kT + second * kSecond);
    NextAgent({{kFirst, 1}, {kKills, 2}}, kT + second * kSecond);
  }
  EXPECT_TRUE(sent_.empty()) << "the checkpoint may still come";
  Tick(kT + 60 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  Tick(kT + 65 * kSecond);
  EXPECT_EQ(sent_.size(), 4U);
}

TEST_F(StricterStopTest, WhereTheOneBeforeWaitsForNoCheckpointTheStricterDoesNotEither) {
  // A trial is waited for also where nothing is saved.
  constexpr auto kTrial = R"({"checkpoint":false,"checkpoint_seconds":60})";
  constexpr auto kKills = R"({"checkpoint_seconds":60,"grace_seconds":5,"kill":true})";
  for (const bool dies : {false, true}) {
    journal_.clear();
    sent_.clear();
    said_.clear();
    Restart();
    Says(kA, "stop.ready", R"({"trial":true})");
    Says(kB, "stop.ready");
    ASSERT_TRUE(Take(kTrial, 1, kT).ok());
    Tick(kT);
    ASSERT_TRUE(Take(kKills, 2, kT + kSecond).ok());
    Tick(kT + kSecond);
    if (dies) NextAgent({{kTrial, 1}, {kKills, 2}}, kT + kSecond);
    Tick(kT + 2 * kSecond);
    EXPECT_TRUE(sent_.empty()) << "for the trial";
    Says(kA, "stop.kept", To(2));
    Tick(kT + 3 * kSecond);
    EXPECT_EQ(sent_, (Sent{{102, SIGTERM}}));
  }
}

TEST_F(StricterStopTest, WhoeverDiesThePlaceIsTakenOnceAndByTheStricter) {
  // 0: only one of the two was asked of the agent that died. 1: both. 2: the change is decided. 3:
  // the journal has it. 4: the signals of the second are decided. 5: sent. 6: the journal has that
  // too.
  for (int died = 0; died <= 6; ++died) {
    SCOPED_TRACE(died);
    journal_.clear();
    sent_.clear();
    said_.clear();
    Restart();
    Says(kB, "stop.ready");
    const std::int64_t then = kT + 10 * kSecond;
    ASSERT_TRUE(Take(kPatient, 1, kT).ok());
    Tick(kT);
    if (died >= 1) {
      ASSERT_TRUE(Take(kNow, 2, then).ok());
    }
    if (died >= 2) Poll(then);
    if (died >= 3) Write();
    if (died >= 4) {
      Poll(then);
      Write();
    }
    if (died >= 5) stopper_->Journalled(stopper_->waits_for(), targets_, then, &outbox_);
    if (died >= 6) Write();
    // Whatever the clocks say of which was asked first.
    NextAgent({{kNow, 2}, {kPatient, 1}}, then + kSecond);
    for (int second = 1; second < 4; ++second) Tick(then + second * kSecond);
    EXPECT_EQ(sent_.size(), died == 5 ? 4U : 2U) << "again only where nobody knows";
    for (int second = 4; second < 8; ++second) Tick(then + second * kSecond);
    EXPECT_EQ(sent_.back(), std::pair(102, SIGKILL));
    EndAll();
    Tick(then + 8 * kSecond);
    for (Stopper::Target& target : targets_) target.ended = false;
    EXPECT_EQ(AnswerTo(1)["goes_on_as"], store::Hex(Ask("{}", 2).id));
    EXPECT_TRUE(AnswerTo(2)["stopped"].get<bool>());
    EXPECT_TRUE(SaidOfRequest("stop.decided", 1).empty());
    EXPECT_EQ(SaidOfRequest("stop.decided", 2).size(), 2U);
  }
}

TEST_F(StricterStopTest, WhatTheOneBeforeHasDecidedIsSentFirst) {
  for (const bool dies : {false, true}) {
    journal_.clear();
    sent_.clear();
    said_.clear();
    Restart();
    ASSERT_TRUE(Take(kPatient, 1, kT).ok());
    Poll(kT);
    if (dies) {
      Write();
      NextAgent({{kPatient, 1}, {kNow, 2}}, kT + kSecond);
    } else {
      ASSERT_TRUE(Take(kNow, 2, kT + kSecond).ok());
    }
    Poll(kT + kSecond);
    EXPECT_EQ(stopper_->request(), Ask("{}", 1).id);
    Journal(kT + kSecond);
    EXPECT_EQ(sent_.size(), 2U);
    Tick(kT + 2 * kSecond);
    EXPECT_EQ(stopper_->request(), Ask("{}", 2).id);
    Tick(kT + 3 * kSecond);
    EXPECT_EQ(sent_.size(), 2U);
    const json first = AnswerTo(1);
    for (const json& process : first["processes"]) EXPECT_EQ(process["sigterm"], "sent");
  }
}

TEST_F(StricterStopTest, WhoeverSignalledIsSaidToHaveEndedTheTraining) {
  for (const bool killed : {false, true}) {
    journal_.clear();
    sent_.clear();
    said_.clear();
    Restart();
    ASSERT_TRUE(Take(kPatient, 1, kT).ok());
    Tick(kT);
    ASSERT_TRUE(Take(kNow, 2, kT + kSecond).ok());
    Tick(kT + kSecond);
    EXPECT_EQ(Stopped(), "x") << "by its SIGTERM so far";
    NextAgent({{kNow, 2}, {kPatient, 1}}, kT + 2 * kSecond);
    EXPECT_EQ(Stopped(), "x");
    if (killed) Tick(kT + 6 * kSecond);
    EXPECT_EQ(sent_.size(), killed ? 4U : 2U);
    EndAll();
    Tick(kT + 7 * kSecond);
    for (Stopper::Target& target : targets_) target.ended = false;
    const char* const by = killed ? "y" : "x";
    EXPECT_EQ(Stopped(), by);
    EXPECT_TRUE(AnswerTo(2)["stopped"].get<bool>());
    // In whichever order they are recalled.
    NextAgent({{kPatient, 1}, {kNow, 2}}, kT + 8 * kSecond);
    EXPECT_EQ(Stopped(), by);
    NextAgent({{kNow, 2}, {kPatient, 1}}, kT + 8 * kSecond);
    EXPECT_EQ(Stopped(), by);
  }
}

TEST_F(StricterStopTest, ASigkillThatAnAgentWhichDiedMayHaveSentIsOfTheSecond) {
  ASSERT_TRUE(Take(kPatient, 1, kT).ok());
  Tick(kT);
  ASSERT_TRUE(Take(kNow, 2, kT + kSecond).ok());
  Tick(kT + kSecond);
  Poll(kT + 6 * kSecond);
  Write();
  EndAll();
  NextAgent({{kPatient, 1}, {kNow, 2}}, kT + 7 * kSecond);
  EXPECT_EQ(StoppedBySignal(SIGKILL), "perhaps y");
  EXPECT_EQ(StoppedBySignal(SIGTERM), "x");
  EXPECT_EQ(Stopped(), "x");
}

TEST_F(StricterStopTest, WhoLivesThroughBothWasStoppedByNeither) {
  constexpr auto kSooner = R"({"why":"y","grace_seconds":5,"kill":true})";
  for (const bool dies : {false, true}) {
    journal_.clear();
    sent_.clear();
    said_.clear();
    errors_.clear();
    Restart();
    ASSERT_TRUE(Take(kPatient, 1, kT).ok());
    Tick(kT);
    ASSERT_TRUE(Take(kSooner, 2, kT + kSecond).ok());
    Tick(kT + kSecond);
    EXPECT_EQ(Stopped({.exit_code = 1, .signal = {}}), "x") << "its SIGTERM was sent";
    errors_ = {{101, EPERM}, {102, EPERM}};
    Tick(kT + 6 * kSecond);
    Tick(kT + 11 * kSecond);
    EXPECT_FALSE(AnswerTo(2)["stopped"].get<bool>());
    if (dies) NextAgent({{kSooner, 2}, {kPatient, 1}}, kT + 12 * kSecond);
    EXPECT_EQ(StoppedBySignal(SIGSEGV), "");
    EXPECT_EQ(Stopped({.exit_code = 1, .signal = {}}), "");
    EXPECT_EQ(StoppedBySignal(SIGTERM), "x");
  }
}

TEST_F(StricterStopTest, ThoseThatComeLaterAreSignalledByTheSecond) {
  ASSERT_TRUE(Take(kPatient, 1, kT).ok());
  Tick(kT);
  ASSERT_TRUE(Take(kNow, 2, kT + kSecond).ok());
  Tick(kT + kSecond);
  // A launcher starts the first again.
  const Stopper::Uuid fresh = {3};
  targets_[0] = {fresh, 13, 0, 103, false};
  Tick(kT + 2 * kSecond);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}, {103, SIGTERM}}));
  Tick(kT + 6 * kSecond);
  EXPECT_EQ(sent_.size(), 5U);
  EndAll();
  Tick(kT + 7 * kSecond);
  EXPECT_EQ(AnswerTo(2)["processes"].size(), 3U) << "the one that has ended before too";
}

TEST_F(StricterStopTest, TheSecondWaitsForItsOwnAnswers) {
  constexpr auto kKills = R"({"checkpoint_seconds":600,"grace_seconds":5,"kill":true})";
  Says(kA, "stop.ready");
  Says(kB, "stop.ready");
  ASSERT_TRUE(Take(kPatient, 1, kT).ok());
  Tick(kT);
  Says(kA, "stop.saved", To(1));
  ASSERT_TRUE(Take(kKills, 2, kT + kSecond).ok());
  Says(kB, "stop.saved", To(2));  // It has found the second already.
  Tick(kT + kSecond);
  Tick(kT + 2 * kSecond);
  EXPECT_EQ(stopper_->request(), Ask("{}", 2).id);
  EXPECT_TRUE(sent_.empty()) << "the first process is about to save again";
  Says(kA, "stop.saved", To(2));
  Tick(kT + 3 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  EXPECT_EQ(AnswerTo(1)["processes"][0]["answer"], "saved");
  EXPECT_EQ(AnswerTo(1)["processes"][1]["answer"], "none");
}

TEST_F(StricterStopTest, OneAfterTheOtherEachTakesThePlaceOfTheOneBefore) {
  Says(kB, "stop.ready");
  ASSERT_TRUE(Take(kPatient, 1, kT).ok());
  Tick(kT);
  ASSERT_TRUE(Take(R"({"checkpoint_seconds":100})", 2, kT + kSecond).ok());
  ASSERT_TRUE(Take(R"({"checkpoint_seconds":50})", 3, kT + kSecond).ok());
  EXPECT_EQ(Take(R"({"checkpoint_seconds":70})", 4, kT + kSecond).code(), Code::kRunning)
      << "one that waits is stricter";
  for (int second = 1; second < 51; ++second) Tick(kT + second * kSecond);
  EXPECT_EQ(stopper_->request(), Ask("{}", 3).id);
  EXPECT_TRUE(sent_.empty());
  Tick(kT + 51 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  EXPECT_EQ(AnswerTo(1)["goes_on_as"], store::Hex(Ask("{}", 2).id));
  EXPECT_EQ(AnswerTo(2)["goes_on_as"], store::Hex(Ask("{}", 3).id));
}

TEST_F(StricterStopTest, OneThatWaitsWhenTheOtherEndsIsCarriedOutOfItsOwn) {
  ASSERT_TRUE(Take(R"({"grace_seconds":5})", 1, kT).ok());
  Tick(kT);
  ASSERT_EQ(sent_.size(), 2U);
  ASSERT_TRUE(Take(kNow, 2, kT + 5 * kSecond).ok());
  EXPECT_TRUE(stopper_->owes_kill());
  Tick(kT + 5 * kSecond);
  EXPECT_FALSE(AnswerTo(1).contains("goes_on_as"));
  Tick(kT + 6 * kSecond);
  EXPECT_EQ(sent_.size(), 4U) << "it signals anew";
  Tick(kT + 11 * kSecond);
  EXPECT_EQ(sent_.size(), 6U);
}

TEST_F(StricterStopTest, TheEndOfTheRecordingAnswersAllThatWait) {
  Says(kB, "stop.ready");
  ASSERT_TRUE(Take(kPatient, 1, kT).ok());
  Tick(kT);
  ASSERT_TRUE(Take(kNow, 2, kT + kSecond).ok());
  EndAll();
  stopper_->Close(targets_, kT + kSecond, &outbox_);
  Write();
  EXPECT_TRUE(AnswerTo(1)["stopped"].get<bool>());
  EXPECT_TRUE(AnswerTo(2)["stopped"].get<bool>());
  EXPECT_TRUE(sent_.empty());
}

TEST_F(StricterStopTest, WhoCouldNotBeSignalledIsTriedAgain) {
  errors_[101] = EPERM;
  ASSERT_TRUE(Take(kPatient, 1, kT).ok());
  Tick(kT);
  errors_.clear();
  ASSERT_TRUE(Take(kNow, 2, kT + kSecond).ok());
  Tick(kT + kSecond);
  Tick(kT + 2 * kSecond);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}, {101, SIGTERM}}));
  EXPECT_EQ(AnswerTo(1)["failures"].size(), 1U);
}

TEST_F(StopperTest, RefusesWhatMakesNoSenseAndASecondStop) {
  EXPECT_EQ(stopper_->Take(Ask(R"({"grace_seconds":-1})"), kT, &outbox_).code(), Code::kUsage);
  EXPECT_EQ(stopper_->Take(Ask(R"({"kill":"yes"})"), kT, &outbox_).code(), Code::kUsage);
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kT, &outbox_).ok());
  EXPECT_EQ(stopper_->Take(Ask("{}"), kT, &outbox_).code(), Code::kRunning);
}

TEST(StopperSignals, APidfdOfADeadProcessHitsNobody) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  const UniqueFd pidfd = OpenPidfd(child);
  ASSERT_TRUE(pidfd.valid());
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  // The number is free from here on; whoever gets it is not the one behind the pidfd.
  Stopper stopper([](const Stopper::Uuid&, std::uint16_t) { return 0; });
  Outbox outbox;
  store::Request request;
  request.id[0] = 1;
  request.body = "{}";
  ASSERT_TRUE(stopper.Take(request, kT, &outbox).ok());
  std::vector<Stopper::Target> targets = {{{1}, child, 0, pidfd.get(), false}};
  stopper.Drained({{1}});
  stopper.Poll(targets, kT, &outbox);
  stopper.Journalled(stopper.waits_for(), targets, kT, &outbox);
  format::Batch batch;
  outbox.AddTo(1, &batch);
  ASSERT_EQ(batch.rows.events.size(), 3U);
  EXPECT_EQ(batch.rows.events[2].message, "SIGTERM was sent to 0 processes; 1 had ended before");
  // No failure: it had ended.
  targets[0].ended = true;
  stopper.Poll(targets, kT + 2, &outbox);
  EXPECT_FALSE(stopper.active());
}

}  // namespace
}  // namespace telltale::agent
