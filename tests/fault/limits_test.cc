// SPDX-License-Identifier: Apache-2.0
// More processes than a run records, or than an agent has descriptors for: the one too many trains
// on, and that it is missing is said and counted. (What else a registry refuses:
// src/run/registry_test.cc.)
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "base/process.h"
#include "base/unique_fd.h"
#include "channel/registration.h"
#include "harness.h"
#include "store/run_info.h"

namespace telltale::fault {
namespace {

constexpr std::size_t kMaxProducers = 256;  // docs/processes.md.

/// Processes that this subject has counted as refused, which is a loss.
std::uint64_t Refused(const Recorded& recorded, std::string_view subject) {
  std::uint64_t refused = 0;
  for (const auto& row : recorded.rows.ledger) {
    if (row.name != "run.producers_refused" || row.subject != subject) continue;
    EXPECT_TRUE(row.loss);
    refused = std::max(refused, row.value);
  }
  return refused;
}

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
  EXPECT_EQ(Refused(recorded, "run"), 1U);
}

/// An agent that has no descriptor left is given a message without those that did not fit. The
/// supervisor holds what the process was recorded in until it hears that nobody reads it.
TEST(Limits, AProcessWhoseDescriptorsDoNotArriveIsSaidCountedAndLetGoOf) {
  using channel::MessageType;
  Scratch scratch("truncated");
  const std::string run = scratch / "run";
  std::filesystem::create_directories(run);
  store::RunInfo info;
  info.attempts.emplace_back();
  ASSERT_TRUE(store::WriteRunInfo(run, info).ok());
  int link[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, link), 0);
  const UniqueFd ours(link[0]);
  const std::string fd = std::to_string(link[1]);
  const std::string self = std::to_string(::getpid());
  const std::string program = TelltalePath();
  Started agent;
  agent.pid = ::fork();
  ASSERT_GE(agent.pid, 0);
  if (agent.pid == 0) {
    ::setpgid(0, 0);
    ::close(link[0]);
    ::execl(program.c_str(), "telltale", "agent", "--run", run.c_str(), "--fd", fd.c_str(),
            "--supervisor", self.c_str(), nullptr);
    ::_exit(99);
  }
  ::close(link[1]);

  const auto send = [&](const auto& message, const int* fds, int count) {
    return channel::SendMessage(ours.get(), &message, sizeof message, fds, count);
  };
  auto start = channel::MakeMessage<channel::AttemptStart>(MessageType::kAttemptStart);
  start.attempt = 1;
  start.pid = ::getpid();
  start.start_time_ticks = static_cast<std::int64_t>(ProcessStartTicks(::getpid()));
  ASSERT_EQ(send(start, nullptr, 0), 0);
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::array<int, 2> fds = {null.get(), null.get()};
  for (const int count : {0, 2}) {
    auto add = channel::MakeMessage<channel::AddProducer>(MessageType::kAddProducer);
    add.attempt = 1;
    add.pid = 1000 + count;
    add.uuid[0] = static_cast<std::uint8_t>(1 + count);
    ASSERT_EQ(send(add, fds.data(), count), 0);
    EXPECT_TRUE(Await([&] {
      alignas(8) std::array<char, 1024> bytes;
      int received[channel::kMaxMessageFds];
      int received_count = 0;
      const std::ptrdiff_t size = channel::ReceiveMessage(ours.get(), bytes.data(), bytes.size(),
                                                          received, &received_count);
      channel::ReleaseProducer release;
      return size > 0 &&
             channel::CheckMessage(bytes.data(), static_cast<std::size_t>(size),
                                   MessageType::kReleaseProducer, &release) &&
             release.uuid[0] == add.uuid[0];
    })) << count;
  }
  auto end = channel::MakeMessage<channel::AttemptEnd>(MessageType::kAttemptEnd);
  end.attempt = 1;
  ASSERT_EQ(send(end, nullptr, 0), 0);
  ASSERT_EQ(send(channel::MakeMessage<channel::EndRun>(MessageType::kEndRun), nullptr, 0), 0);
  EXPECT_EQ(agent.Wait(), 0);

  Recorded recorded;
  ReadRun(run, &recorded);
  EXPECT_EQ(CountEvents(recorded, "producer.refused"), 2U);
  EXPECT_EQ(Refused(recorded, "agent"), 2U);
}

}  // namespace
}  // namespace telltale::fault
