// SPDX-License-Identifier: Apache-2.0
// An agent that is alive but does nothing (SIGSTOP): the supervisor notices by its silence and
// replaces it, what was committed meanwhile is stored once.
#include <gtest/gtest.h>

#include <csignal>

#include "base/process.h"
#include "harness.h"

namespace telltale::fault {
namespace {

class Hang : public ::testing::Test {
 protected:
  /// Steps so long that the rings hold all of them until the successor is there.
  void Start(const char* steps) {
    oracle_ = Oracle::Map((scratch_ / "oracle").c_str());
    ASSERT_NE(oracle_, nullptr);
    started_ =
        StartRun(run_, {}, {TrainerPath(), scratch_ / "oracle", steps, "5000"}, scratch_ / "err");
    ASSERT_TRUE(Await([&] { return oracle_->committed > 20; })) << started_.Err();
    ASSERT_TRUE(Await([&] { return (agent_ = FindHelper("agent", run_)) != 0; }));
    ASSERT_TRUE(Await([&] {
      Recorded so_far;
      ReadRun(run_, &so_far);
      return CountEvents(so_far, "agent.start") == 1;
    })) << "an agent that has said nothing yet has no start to be counted";
    ticks_ = ProcessStartTicks(agent_);
  }

  Scratch scratch_{"hang"};
  const std::filesystem::path run_ = scratch_ / "run";
  Oracle* oracle_ = nullptr;
  Started started_;
  pid_t agent_ = 0;
  std::uint64_t ticks_ = 0;
};

TEST_F(Hang, AnAgentThatIsSilentIsReplaced) {
  Start("1000000");
  ASSERT_EQ(::kill(agent_, SIGSTOP), 0);
  const std::uint64_t stopped_at = oracle_->committed;
  ASSERT_TRUE(Await([&] {
    return started_.Err().find("the agent has said nothing for 15 s") != std::string::npos;
  })) << started_.Err();
  ASSERT_TRUE(Await([&] {
    const pid_t now = FindHelper("agent", run_);
    return now != 0 && now != agent_;
  })) << started_.Err();
  EXPECT_NE(ProcessStartTicks(agent_), ticks_) << "the stopped one must be gone";
  EXPECT_GT(oracle_->committed, stopped_at) << "the training must go on";
  const std::uint64_t replaced_at = oracle_->committed;
  ASSERT_TRUE(Await([&] { return oracle_->committed > replaced_at + 50; }));
  ASSERT_EQ(::kill(oracle_->pid, SIGTERM), 0);
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();

  Recorded recorded;
  ReadRun(run_, &recorded);
  EXPECT_EQ(recorded.state, "killed");
  EXPECT_EQ(CheckOnce(recorded, oracle_->committed), "");
  EXPECT_EQ(CountEvents(recorded, "agent.start"), 2U);
  EXPECT_EQ(CountEvents(recorded, "gap"), 1U);
  for (const char* once :
       {"process.start", "process.exit", "run.attempt_start", "run.attempt_end"}) {
    EXPECT_EQ(CountEvents(recorded, once), 1U) << once;
  }
}

TEST_F(Hang, AnAgentThatWasOnlyAwayForAMomentIsNot) {
  Start("1000000");
  ASSERT_EQ(::kill(agent_, SIGSTOP), 0);
  const std::uint64_t stopped_at = oracle_->committed;
  ASSERT_TRUE(Await([&] { return oracle_->committed > stopped_at + 100; }));
  ASSERT_EQ(::kill(agent_, SIGCONT), 0);
  ASSERT_EQ(::kill(oracle_->pid, SIGTERM), 0);
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
  Recorded recorded;
  ReadRun(run_, &recorded);
  EXPECT_EQ(CheckOnce(recorded, oracle_->committed), "");
  EXPECT_EQ(CountEvents(recorded, "agent.start"), 1U);
}

}  // namespace
}  // namespace telltale::fault
