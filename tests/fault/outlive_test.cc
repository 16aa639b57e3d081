// SPDX-License-Identifier: Apache-2.0
// What is left behind: processes that live on after the command, the socket of a supervisor that
// was killed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/unique_fd.h"
#include "harness.h"

namespace telltale::fault {
namespace {

TEST(Outlive, AProcessThatTheCommandLeavesBehindIsNamedAndCounted) {
  Scratch scratch("left");
  Oracle* oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  const std::string go = scratch / "go";
  ASSERT_EQ(::mkfifo(go.c_str(), 0600), 0);
  const std::string script = TrainerPath() + " " + (scratch / "oracle").string() +
                             " 1000000 1000 & read line < " + go + "; exit 4";
  Started started = StartRun(scratch / "run", {}, {"sh", "-c", script}, scratch / "err");
  ASSERT_TRUE(Await([&] { return oracle->committed > 50; })) << started.Err();
  const std::uint64_t committed = oracle->committed;
  // The shell reads from it, and ends at its end.
  UniqueFd end;
  ASSERT_TRUE(Await([&] {
    end.reset(::open(go.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    return end.valid();
  }));
  end.reset();
  EXPECT_EQ(started.Wait(), 4) << started.Err();
  const std::uint64_t at_the_end = oracle->committed;
  EXPECT_TRUE(Await([&] { return oracle->committed > at_the_end + 10; })) << "it trains on";

  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(recorded.state, "failed");
  EXPECT_EQ(CheckStepsOnce(recorded, committed), "");
  EXPECT_EQ(CountEvents(recorded, "process.exit"), 0U);
  EXPECT_EQ(CountEvents(recorded, "producer.left"), 1U);
  for (const auto& row : recorded.rows.events) {
    if (row.kind != "producer.left") continue;
    EXPECT_EQ(row.pid, oracle->pid);
    EXPECT_EQ(row.severity, "medium");
  }
  std::uint64_t left = 0;
  for (const auto& row : recorded.rows.ledger) {
    if (row.name != "run.producers_left") continue;
    EXPECT_TRUE(row.loss);
    left = std::max(left, row.value);
  }
  EXPECT_EQ(left, 1U);
  const std::string command = TelltalePath() + " check " + (scratch / "run").string() + " > " +
                              (scratch / "check").string();
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::stringstream shown;
  shown << std::ifstream(scratch / "check").rdbuf();
  EXPECT_NE(shown.str().find("run.producers_left"), std::string::npos) << shown.str();
}

TEST(Outlive, TheSocketOfAKilledSupervisorIsRemoved) {
  Scratch scratch("socket");
  Oracle* oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Started started = StartRun(
      scratch / "run", {}, {TrainerPath(), scratch / "oracle", "1000000", "1000"}, scratch / "err");
  ASSERT_TRUE(Await([&] { return oracle->committed > 50; })) << started.Err();
  ASSERT_TRUE(Await([&] {
    Recorded recorded;
    ReadRun(scratch / "run", &recorded);
    return CountEvents(recorded, "agent.start") == 1;
  }));
  const std::filesystem::path socket = VariableOf(oracle->pid, "TELLTALE_SOCKET");
  ASSERT_TRUE(std::filesystem::exists(socket)) << socket;
  ASSERT_EQ(::kill(started.pid, SIGKILL), 0);
  EXPECT_EQ(started.Wait(), -SIGKILL);
  EXPECT_TRUE(Await([&] { return !std::filesystem::exists(socket.parent_path()); })) << socket;
  EXPECT_EQ(::kill(oracle->pid, SIGKILL), 0);
  EXPECT_TRUE(Await([&] { return FindHelper("agent", scratch / "run") == 0; }));
}

/// It was killed before the agent could look who its parent is, which is then another.
TEST(Outlive, AnAgentKnowsASupervisorThatWasGoneBeforeItBegan) {
  Scratch scratch("orphan");
  const std::filesystem::path folder = scratch / "folder";
  std::filesystem::create_directories(folder);
  std::filesystem::create_directories(scratch / "run");
  std::ofstream(folder / "socket").put('x');
  const pid_t supervisor = ::fork();
  ASSERT_GE(supervisor, 0);
  if (supervisor == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(supervisor, nullptr, 0), supervisor);
  int link[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, link), 0);
  ::close(link[0]);
  const std::string run = scratch / "run";
  const std::string socket = folder / "socket";
  const std::string fd = std::to_string(link[1]);
  const std::string gone = std::to_string(supervisor);
  const std::string program = TelltalePath();
  Started agent;
  agent.pid = ::fork();
  ASSERT_GE(agent.pid, 0);
  if (agent.pid == 0) {
    ::setpgid(0, 0);
    ::execl(program.c_str(), "telltale", "agent", "--run", run.c_str(), "--fd", fd.c_str(),
            "--socket", socket.c_str(), "--supervisor", gone.c_str(), nullptr);
    ::_exit(99);
  }
  ::close(link[1]);
  EXPECT_EQ(agent.Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace telltale::fault
