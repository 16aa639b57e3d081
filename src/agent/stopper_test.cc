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

  void Poll(std::int64_t now_ns) {
    stopper_->Drained();
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
  EXPECT_FALSE(stopper_->reason().empty()) << "it may yet end for it";
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
  EXPECT_TRUE(stopper_->reason().empty());
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
  EXPECT_TRUE(stopper_->reason().empty()) << "its end will not be for this request";
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
  const std::string reason = stopper_->reason();
  EXPECT_EQ(ParseJson(reason)["why"], "x");
  Restart();
  EXPECT_TRUE(stopper_->reason().empty());
  stopper_->Recall(Ask("{}", 1));
  EXPECT_TRUE(stopper_->reason().empty()) << "a request that was refused";
  stopper_->Recall(Ask(R"({"why":"x"})"));
  EXPECT_EQ(stopper_->reason(), reason);
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
  stopper.Drained();
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
