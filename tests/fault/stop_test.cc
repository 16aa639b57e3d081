// SPDX-License-Identifier: Apache-2.0
// kill -9 of a real agent while it stops a training of 8 processes: each of them, and the shell
// that began them, has its SIGTERM all the same, and what the journal says of it is true.
// TELLTALE_FAULT_ROUNDS sets how often (3; `make fault` does 20).
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "harness.h"
#include "ranks.h"
#include "store/requests.h"

namespace telltale::fault {
namespace {

using nlohmann::json;

constexpr std::size_t kRanks = 8;
/// SIGTERM ends the shell, once what it has begun has ended.
constexpr auto kEndsAfterItsRanks = "trap 'trap - TERM; kill -TERM $$' TERM; ";

int Rounds() {
  const char* text = ::getenv("TELLTALE_FAULT_ROUNDS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 3;
}

struct Event {
  std::string kind, message;
  json data;
};

/// A training of eight ranks below a shell.
class Training {
 public:
  /// `how`: as fault_ranks has it. `shell`: what the shell does before.
  Training(std::string_view how, std::string_view shell)
      : scratch_("stop"), run_(scratch_ / "run") {
    ranks_ = Ranks::Map((scratch_ / "ranks").c_str());
    const std::string program = std::filesystem::path(TrainerPath()).parent_path() / "fault_ranks";
    const std::string script = std::string(shell) + "'" + program + "' '" +
                               (scratch_ / "ranks").string() + "' " + std::to_string(kRanks) + " " +
                               std::string(how) + "; :";
    started_ =
        StartRun(run_, {"--no-serve", "--quiet"}, {"/bin/sh", "-c", script}, scratch_ / "err");
  }

  /// Everybody trains, and the agent has said so.
  bool Trains() {
    return ranks_ != nullptr && Await([&] {
             return std::all_of(ranks_->recorded.begin(), ranks_->recorded.begin() + kRanks,
                                [](const auto& recorded) { return recorded == 2; });
           }) &&
           Await([&] { return EventsOf("process.start").size() == kRanks; }) &&
           Await([&] { return HoldAgent(); });
  }

  std::string Ask(const json& body) {
    store::Request request;
    request.who = "test";
    request.kind = "stop";
    request.body = body.dump();
    const auto written = store::WriteRequest(run_, std::move(request));
    return written.ok() ? store::Hex(written->id) : written.status().message();
  }

  /// Whether it still was there to be killed.
  bool KillAgent() const {
    return ::syscall(SYS_pidfd_send_signal, agent_.get(), SIGKILL, nullptr, 0) == 0;
  }

  std::vector<Event> EventsOf(std::string_view kind) const {
    std::vector<Event> out;
    auto reader = store::RunReader::Open(run_);
    if (!reader.ok()) return out;
    StringPool pool;
    format::Rows rows;
    store::Salvage salvage;
    if (!(*reader)->ReadAll(store::MaskOf(format::TableId::kEvents), &pool, &rows, &salvage).ok()) {
      return out;
    }
    for (const format::EventRow& row : rows.events) {
      if (row.kind == kind) {
        out.push_back({std::string(row.kind), std::string(row.message), ParseJson(row.data)});
      }
    }
    return out;
  }

  bool Answered(const std::string& id) const {
    const auto done = EventsOf("request.done");
    return std::any_of(done.begin(), done.end(),
                       [&](const Event& event) { return event.data.value("id", "") == id; });
  }

  /// The account of a request, and what is wrong with what the journal says of it.
  json AccountOf(const std::string& id) const {
    json account;
    std::size_t answers = 0;
    for (const Event& event : EventsOf("request.done")) {
      if (event.data.value("id", "") != id) continue;
      account = event.data;
      ++answers;
    }
    EXPECT_EQ(answers, 1U) << "one answer to each request";
    std::size_t roots = 0;
    for (const Event& event : EventsOf("stop.signal")) {
      if (event.data.value("id", "") != id) continue;
      for (const json& process : event.data.at("processes")) {
        if (process.at("root").get<bool>()) {
          ++roots;
          continue;
        }
        const auto pid = process.at("pid").get<std::int32_t>();
        const auto rank = std::find(ranks_->pids.begin(), ranks_->pids.end(), pid);
        EXPECT_NE(rank, ranks_->pids.end()) << "a signal to a process of nobody's: " << pid;
        if (rank == ranks_->pids.end() || process.at("outcome") != "sent") continue;
        const auto i = static_cast<std::size_t>(rank - ranks_->pids.begin());
        if (event.data.at("signal") == SIGTERM) {
          EXPECT_GE(ranks_->terms[i], 1U) << "it says that SIGTERM was sent to rank " << i;
        }
      }
    }
    EXPECT_LE(roots, 4U);
    return account;
  }

  Ranks& ranks() { return *ranks_; }
  Started& started() { return started_; }
  std::filesystem::path run() const { return run_; }
  std::filesystem::path scratch() const { return scratch_ / ""; }

 private:
  bool HoldAgent() {
    const pid_t pid = FindHelper("agent", run_);
    agent_ = pid != 0 ? OpenPidfd(pid) : UniqueFd();
    // Its number was not given to another one meanwhile.
    return agent_.valid() && FindHelper("agent", run_) == pid;
  }

  Scratch scratch_;
  std::filesystem::path run_;
  Ranks* ranks_ = nullptr;
  Started started_;
  UniqueFd agent_;
};

/// What the journal says of a stop, in this order: an agent is killed once it has one of them. "":
/// as soon as the stop was asked for.
constexpr std::array<const char*, 5> kMoments = {"", "stop.begun", "stop.decided", "stop.signal",
                                                 "process.exit"};

void ExpectAllStopped(Training* training, const std::string& id) {
  // The shell has ended by it.
  EXPECT_EQ(training->started().Wait(), -SIGTERM) << training->started().Err();
  for (std::size_t i = 0; i < kRanks; ++i) {
    EXPECT_GE(training->ranks().terms[i], 1U) << "rank " << i << " has had no SIGTERM";
  }
  const json account = training->AccountOf(id);
  EXPECT_EQ(account.value("left", json()), json::array()) << account.dump();
  EXPECT_TRUE(account.value("stopped", false));
  const auto ends = training->EventsOf("run.attempt_end");
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].data.at("stopped").value("request", ""), id);
}

TEST(Stop, WhoeverDiesBetweenTheDecisionAndTheSignalEachProcessIsStopped) {
  int before_the_signal = 0;
  for (int round = 0; round < Rounds(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Training training("obey", kEndsAfterItsRanks);
    ASSERT_TRUE(training.Trains()) << training.started().Err();
    const std::string id = training.Ask({{"why", "x"}});
    ASSERT_TRUE(Await([&] { return !training.EventsOf("stop.decided").empty(); }));
    training.KillAgent();
    before_the_signal += training.EventsOf("stop.signal").empty() ? 1 : 0;
    ExpectAllStopped(&training, id);
    if (::testing::Test::HasFailure()) return;
  }
  std::printf("killed before the journal had the signals: %d of %d\n", before_the_signal, Rounds());
}

TEST(Stop, AnAgentThatDiesAtAnyMomentOfAStopLeavesItToTheNext) {
  int killed = 0;
  const int rounds = std::max(Rounds(), static_cast<int>(kMoments.size()));
  for (int round = 0; round < rounds; ++round) {
    const char* moment = kMoments[static_cast<std::size_t>(round) % kMoments.size()];
    SCOPED_TRACE(std::string("killed after the journal had '") + moment + "'");
    Training training("obey", kEndsAfterItsRanks);
    ASSERT_TRUE(training.Trains()) << training.started().Err();
    const std::string id = training.Ask({{"why", "x"}});
    ASSERT_TRUE(*moment == 0 || Await([&] { return !training.EventsOf(moment).empty(); }));
    killed += training.KillAgent() ? 1 : 0;
    ExpectAllStopped(&training, id);
    if (::testing::Test::HasFailure()) return;
  }
  std::printf("killed while it was at work: %d of %d\n", killed, rounds);
}

TEST(Stop, ATrainingThatCrashesAfterItHasLivedThroughAStopWasNotStopped) {
  Training training("live_on", "trap '' TERM; ");
  ASSERT_TRUE(training.Trains()) << training.started().Err();
  const std::string id = training.Ask({{"why", "x"}, {"grace_seconds", 0.5}});
  ASSERT_TRUE(Await([&] { return training.Answered(id); })) << training.started().Err();
  EXPECT_FALSE(training.AccountOf(id).value("stopped", true));
  const auto starts = training.EventsOf("run.attempt_start");
  ASSERT_EQ(starts.size(), 1U);
  const UniqueFd command = OpenPidfd(starts[0].data.at("pid").get<pid_t>());
  ASSERT_TRUE(command.valid());
  ASSERT_EQ(::syscall(SYS_pidfd_send_signal, command.get(), SIGSEGV, nullptr, 0), 0);
  training.ranks().release = 1;
  EXPECT_EQ(training.started().Wait(), -SIGSEGV) << training.started().Err();
  const auto ends = training.EventsOf("run.attempt_end");
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].data.value("signal", 0), SIGSEGV);
  EXPECT_FALSE(ends[0].data.contains("stopped")) << ends[0].message;
}

TEST(Stop, TheNextAttemptIsRecordedWhereASigkillIsOwedStill) {
  // SIGTERM ends the command, the ranks live on, and are to have SIGKILL in a day.
  Training training("live_on", "");
  ASSERT_TRUE(training.Trains()) << training.started().Err();
  const std::string id = training.Ask({{"why", "x"}, {"grace_seconds", 86'400}, {"kill", true}});
  EXPECT_EQ(training.started().Wait(), -SIGTERM) << training.started().Err();
  const std::filesystem::path release = training.scratch() / "release";
  const std::string waits =
      "while [ ! -e '" + release.string() + "' ]; do sleep 0.05; done; exit 7";
  Started next = StartRun(training.run(), {"--no-serve", "--quiet"}, {"/bin/sh", "-c", waits},
                          training.scratch() / "err2");
  EXPECT_TRUE(Await([&] { return training.EventsOf("run.attempt_start").size() == 2; }))
      << next.Err();
  std::ofstream(release).close();
  EXPECT_EQ(next.Wait(), 7) << next.Err();
  EXPECT_EQ(training.EventsOf("run.attempt_end").size(), 2U) << next.Err();
  const json account = training.AccountOf(id);
  EXPECT_TRUE(account.value("stopped", false)) << account.dump();
  for (const json& process : account.at("processes")) {
    EXPECT_EQ(process.at("sigkill"), process.at("root").get<bool>() ? "none" : "sent");
  }
}

TEST(Stop, TheNextRequestSignalsThoseAnewThatLiveOnAndTheCommandIsNamed) {
  // The shell and what it begins ignore SIGTERM; the ranks count it.
  Training training("live_on", "trap '' TERM; ");
  ASSERT_TRUE(training.Trains()) << training.started().Err();
  const std::string first = training.Ask({{"grace_seconds", 0.5}});
  ASSERT_TRUE(Await([&] { return !training.EventsOf("stop.decided").empty(); }));
  training.KillAgent();
  ASSERT_TRUE(Await([&] { return training.Answered(first); })) << training.started().Err();
  const json account = training.AccountOf(first);
  EXPECT_FALSE(account.value("stopped", true));
  EXPECT_EQ(account.at("left").size(), kRanks + 1) << "the shell too";
  std::set<int> left = account.at("left").get<std::set<int>>();
  for (const auto& pid : training.ranks().pids) left.erase(pid);
  ASSERT_EQ(left.size(), 1U);
  std::size_t roots = 0;
  for (const json& process : account.at("processes")) {
    EXPECT_EQ(process.at("state"), "left");
    if (!process.at("root").get<bool>()) continue;
    ++roots;
    EXPECT_EQ(process.at("pid"), *left.begin());
  }
  EXPECT_EQ(roots, 1U);
  std::vector<std::uint32_t> before;
  for (std::size_t i = 0; i < kRanks; ++i) {
    EXPECT_GE(training.ranks().terms[i], 1U);
    before.push_back(training.ranks().terms[i]);
  }
  const std::string second = training.Ask({{"grace_seconds", 0.5}, {"kill", true}});
  EXPECT_EQ(training.started().Wait(), -SIGKILL) << training.started().Err();
  for (std::size_t i = 0; i < kRanks; ++i) EXPECT_GT(training.ranks().terms[i], before[i]);
  EXPECT_TRUE(training.AccountOf(second).value("stopped", false));
}

TEST(Stop, AStricterRequestTakesThePlaceOfAPatientOneWhoeverDies) {
  for (int round = 0; round < Rounds(); ++round) {
    // Once the journal has the change, as soon as the second was asked for, or once it kills.
    SCOPED_TRACE("killed at moment " + std::to_string(round % 3));
    Training training("live_on", "trap '' TERM; ");
    ASSERT_TRUE(training.Trains()) << training.started().Err();
    const std::string patient = training.Ask({{"grace_seconds", 3600}});
    ASSERT_TRUE(Await([&] { return !training.EventsOf("stop.signal").empty(); }));
    const std::string stricter = training.Ask({{"grace_seconds", 0.5}, {"kill", true}});
    if (round % 3 == 0) {
      ASSERT_TRUE(Await([&] { return training.Answered(patient); })) << training.started().Err();
    } else if (round % 3 == 2) {
      ASSERT_TRUE(Await([&] { return training.EventsOf("stop.decided").size() >= 2; }))
          << training.started().Err();
    }
    training.KillAgent();
    EXPECT_EQ(training.started().Wait(), -SIGKILL) << training.started().Err();
    for (std::size_t i = 0; i < kRanks; ++i) {
      EXPECT_EQ(training.ranks().terms[i], 1U) << "what was sent is not sent again, rank " << i;
    }
    const json first = training.AccountOf(patient);
    EXPECT_EQ(first.value("goes_on_as", ""), stricter) << first.dump();
    EXPECT_EQ(first.at("left").size(), kRanks + 1);
    for (const json& process : first.at("processes")) {
      EXPECT_EQ(process.at("sigterm"), "sent");
      EXPECT_EQ(process.at("sigkill"), "none");
    }
    const json second = training.AccountOf(stricter);
    EXPECT_TRUE(second.value("stopped", false)) << second.dump();
    EXPECT_EQ(second.at("processes").size(), kRanks + 1);
    for (const json& process : second.at("processes")) {
      EXPECT_EQ(process.at("sigterm"), "sent");
      EXPECT_NE(process.at("sigkill"), "none");
    }
    const auto ends = training.EventsOf("run.attempt_end");
    ASSERT_EQ(ends.size(), 1U);
    EXPECT_EQ(ends[0].data.at("stopped").value("request", ""), stricter);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace telltale::fault
