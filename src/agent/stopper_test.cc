// SPDX-License-Identifier: Apache-2.0
#include "agent/stopper.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "base/units.h"

namespace telltale::agent {
namespace {

using nlohmann::json;

/// An agent's part with a journal of its own, which outlives the stopper: what a new agent has.
class StopperTest : public ::testing::Test {
 protected:
  StopperTest() { Restart(); }

  void Restart() {
    outbox_ = {};
    stopper_.emplace(
        [this](const Stopper::Uuid& uuid) { return static_cast<StopMark>(marks_[uuid]); },
        [this](int pidfd, int signal) {
          sent_.emplace_back(pidfd, signal);
          return 0;
        });
  }

  static store::Request Ask(const std::string& body) {
    store::Request request;
    request.id[15] = 9;
    request.who = "watch";
    request.kind = "stop";
    request.body = body;
    return request;
  }

  /// The journal takes what waits.
  void Journal() {
    format::Batch batch;
    outbox_.AddTo(1, &batch);
    for (const format::EventRow& row : batch.rows.events) {
      said_.emplace_back(std::string(row.kind), ParseJson(row.data));
    }
    for (const format::RingPosition& mark : batch.positions) {
      if (mark.ring == kStopMarkRing) marks_[mark.producer] = mark.position;
      if (mark.ring == kRequestMarkRing) answered_ = true;
    }
    outbox_.Sent();
    stopper_->Journalled(targets_);
  }

  void Tick(std::int64_t now_ns) {
    stopper_->Poll(targets_, now_ns, &outbox_);
    Journal();
  }

  /// A process says something about its stop.
  void Says(const Stopper::Uuid& uuid, const char* kind, const char* data = "{}") {
    format::Rows rows;
    format::EventRow row;
    row.kind = kind;
    row.data = data;
    rows.events.push_back(row);
    std::vector<format::RingPosition> marks;
    stopper_->Offer(rows, uuid, &marks);
    stopper_->Settle(true);
    for (const format::RingPosition& mark : marks) marks_[mark.producer] = mark.position;
  }

  using Sent = std::vector<std::pair<int, int>>;  ///< (pidfd, signal).

  static constexpr Stopper::Uuid kA = {1};
  static constexpr Stopper::Uuid kB = {2};
  std::vector<Stopper::Target> targets_ = {{kA, 11, 0, 101, false}, {kB, 12, 1, 102, false}};
  std::map<Stopper::Uuid, std::uint64_t> marks_;
  Outbox outbox_;
  std::optional<Stopper> stopper_;
  Sent sent_;
  std::vector<std::pair<std::string, json>> said_;
  bool answered_ = false;
};

TEST_F(StopperTest, SignalsEachProcessOnceAfterTheJournalSaysSo) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"why":"x","grace_seconds":10})"), 0, &outbox_).ok());
  stopper_->Poll(targets_, 0, &outbox_);
  EXPECT_TRUE(sent_.empty());
  Journal();
  stopper_->Poll(targets_, 1, &outbox_);
  EXPECT_TRUE(sent_.empty());
  Journal();
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}}));
  for (int second = 1; second < 10; ++second) Tick(second * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
  targets_[0].ended = targets_[1].ended = true;
  Tick(10 * kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_EQ(said_.back().first, "request.done");
  EXPECT_TRUE(said_.back().second["stopped"].get<bool>());
}

TEST_F(StopperTest, ANewAgentSignalsNobodyASecondTime) {
  ASSERT_TRUE(stopper_->Take(Ask("{}"), 0, &outbox_).ok());
  Tick(0);
  Tick(1);
  ASSERT_EQ(sent_.size(), 2U);
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kSecond, &outbox_).ok());
  for (int second = 1; second < 20; ++second) Tick(second * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
}

TEST_F(StopperTest, AnAgentThatDiesBeforeItActsLeavesItToTheNext) {
  ASSERT_TRUE(stopper_->Take(Ask("{}"), 0, &outbox_).ok());
  Tick(0);
  Restart();
  ASSERT_TRUE(stopper_->Take(Ask("{}"), kSecond, &outbox_).ok());
  Tick(kSecond);
  Tick(kSecond + 1);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}}));
}

TEST_F(StopperTest, WaitsForThoseThatSaveAndForNoOther) {
  Says(kB, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint_seconds":60})"), 0, &outbox_).ok());
  Tick(0);
  for (int second = 1; second < 30; ++second) Tick(second * kSecond);
  EXPECT_TRUE(sent_.empty());
  Says(kB, "stop.saved");
  Tick(30 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
}

TEST_F(StopperTest, DoesNotWaitLongerThanItMay) {
  Says(kB, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint_seconds":60})"), 0, &outbox_).ok());
  Tick(0);
  Tick(59 * kSecond);
  EXPECT_TRUE(sent_.empty());
  Tick(60 * kSecond);
  EXPECT_EQ(sent_.size(), 2U);
}

TEST_F(StopperTest, KillsWhatLivesOnOnlyWhereItIsAsked) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":5,"kill":true})"), 0, &outbox_).ok());
  Tick(0);
  Tick(1);
  targets_[0].ended = true;
  Tick(5 * kSecond + 1);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {102, SIGTERM}, {102, SIGKILL}}));
  targets_[1].ended = true;
  Tick(6 * kSecond);
  EXPECT_TRUE(answered_);
}

TEST_F(StopperTest, NamesThoseThatLiveOn) {
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":5})"), 0, &outbox_).ok());
  Tick(0);
  Tick(1);
  targets_[0].ended = true;
  Tick(5 * kSecond + 1);
  ASSERT_TRUE(answered_);
  EXPECT_EQ(said_.back().second["left"], json::array({12}));
  EXPECT_FALSE(said_.back().second["stopped"].get<bool>());
}

TEST_F(StopperTest, ATrialThatIsGivenUpLeavesItsProcess) {
  targets_ = {{kA, 11, 0, 101, false}, {{}, 10, 0, 100, false}};
  Says(kA, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask("{}"), 0, &outbox_).ok());
  Tick(0);
  Says(kA, "stop.kept");
  Tick(kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(said_.back().second["kept"], json::array({11}));
  EXPECT_TRUE(stopper_->reason().empty());
}

TEST_F(StopperTest, ATrialIsWaitedForAlsoWhereNothingIsSaved) {
  targets_ = {{kA, 11, 0, 101, false}};
  Says(kA, "stop.ready", R"({"trial":true})");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint":false})"), 0, &outbox_).ok());
  Tick(0);
  for (int second = 1; second < 20; ++second) Tick(second * kSecond);
  EXPECT_TRUE(sent_.empty());
  Says(kA, "stop.kept");
  Tick(20 * kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_TRUE(sent_.empty());
}

TEST_F(StopperTest, TheTrialAfterTheOneThatWasGivenUpIsNotWaitedFor) {
  targets_ = {{kA, 11, 0, 101, false}};
  Says(kA, "stop.ready", R"({"trial":true})");
  ASSERT_TRUE(stopper_->Take(Ask("{}"), 0, &outbox_).ok());
  Tick(0);
  // Both between two looks.
  Says(kA, "stop.kept");
  Says(kA, "stop.ready", R"({"trial":true})");
  Tick(kSecond);
  EXPECT_TRUE(answered_);
  EXPECT_TRUE(sent_.empty());
}

TEST_F(StopperTest, WithoutACheckpointNobodyThatOnlySavesIsWaitedFor) {
  targets_ = {{kA, 11, 0, 101, false}};
  Says(kA, "stop.ready");
  ASSERT_TRUE(stopper_->Take(Ask(R"({"checkpoint":false})"), 0, &outbox_).ok());
  Tick(0);
  Tick(1);
  EXPECT_EQ(sent_.size(), 1U);
}

TEST_F(StopperTest, ThoseThatALauncherStartsAgainAreSignalledToo) {
  targets_ = {{kA, 11, 0, 101, false}, {{}, 10, 0, 100, false}};
  ASSERT_TRUE(stopper_->Take(Ask("{}"), 0, &outbox_).ok());
  Tick(0);
  Tick(1);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}, {100, SIGTERM}}));
  targets_[0].ended = true;
  targets_.push_back({kB, 12, 0, 102, false});
  Tick(kSecond);
  EXPECT_EQ(sent_.size(), 3U);
  EXPECT_EQ(sent_.back(), std::pair(102, SIGTERM));
}

TEST_F(StopperTest, AProcessWithoutAPidfdIsNamedAndNotSignalled) {
  targets_ = {{kA, 11, 0, 101, false}, {kB, 12, 1, -1, false}};
  ASSERT_TRUE(stopper_->Take(Ask(R"({"grace_seconds":5})"), 0, &outbox_).ok());
  Tick(0);
  Tick(1);
  EXPECT_EQ(sent_, (Sent{{101, SIGTERM}}));
  targets_[0].ended = true;
  Tick(5 * kSecond + 1);
  ASSERT_TRUE(answered_);
  EXPECT_EQ(said_.back().second["left"], json::array({12}));
  EXPECT_EQ(said_.back().second["failures"].size(), 1U);
}

TEST_F(StopperTest, RefusesWhatMakesNoSenseAndASecondStop) {
  EXPECT_EQ(stopper_->Take(Ask(R"({"grace_seconds":-1})"), 0, &outbox_).code(), Code::kUsage);
  EXPECT_EQ(stopper_->Take(Ask(R"({"kill":"yes"})"), 0, &outbox_).code(), Code::kUsage);
  ASSERT_TRUE(stopper_->Take(Ask("{}"), 0, &outbox_).ok());
  EXPECT_EQ(stopper_->Take(Ask("{}"), 0, &outbox_).code(), Code::kRunning);
}

TEST(StopperSignals, APidfdOfADeadProcessHitsNobody) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  const UniqueFd pidfd = OpenPidfd(child);
  ASSERT_TRUE(pidfd.valid());
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  // The number is free from here on; whoever gets it is not the one behind the pidfd.
  Stopper stopper([](const Stopper::Uuid&) { return StopMark::kNone; });
  Outbox outbox;
  store::Request request;
  request.id[0] = 1;
  request.body = "{}";
  ASSERT_TRUE(stopper.Take(request, 0, &outbox).ok());
  std::vector<Stopper::Target> targets = {{{1}, child, 0, pidfd.get(), false}};
  stopper.Journalled(targets);
  stopper.Poll(targets, 1, &outbox);
  stopper.Journalled(targets);
  // No failure: it had ended.
  targets[0].ended = true;
  stopper.Poll(targets, 2, &outbox);
  EXPECT_FALSE(stopper.active());
}

}  // namespace
}  // namespace telltale::agent
