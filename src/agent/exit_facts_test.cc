// SPDX-License-Identifier: Apache-2.0
// What is added of a process that was killed: only what happened since the attempt began.
#include "agent/exit_facts.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace telltale::agent {
namespace {

class ExitFactsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "exit_facts-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern + "/";
    std::filesystem::create_directories(root_ + "proc");
    std::filesystem::create_directories(root_ + "dev/shm");
    HostKills(7);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void HostKills(int count) {
    std::ofstream(root_ + "proc/vmstat") << "nr_free_pages 5\noom_kill " << count << "\nlast 1\n";
  }
  nlohmann::ordered_json Of(ProcessExit exit) {
    nlohmann::ordered_json data = nlohmann::ordered_json::object();
    facts_().AddTo(exit, &data);
    return data;
  }
  ExitFacts& facts_() {
    if (!facts_made_) facts_made_.emplace(root_, [this] { return group_; });
    return *facts_made_;
  }

  std::string root_;
  std::optional<std::uint64_t> group_ = 2;
  std::optional<ExitFacts> facts_made_;
};

TEST_F(ExitFactsTest, KillsOfTheKernelAreCountedFromTheBeginOfTheAttempt) {
  facts_().Begin();
  EXPECT_EQ(Of({.exit_code = {}, .signal = SIGKILL}),
            nlohmann::ordered_json({{"oom_kills", 0}, {"host_oom_kills", 0}}));
  group_ = 3;
  HostKills(9);
  EXPECT_EQ(Of({.exit_code = {}, .signal = SIGKILL}),
            nlohmann::ordered_json({{"oom_kills", 1}, {"host_oom_kills", 2}}));
}

TEST_F(ExitFactsTest, WhatTheKernelDoesNotCountIsLeftOut) {
  group_.reset();
  std::filesystem::remove(root_ + "proc/vmstat");
  facts_().Begin();
  EXPECT_EQ(Of({.exit_code = {}, .signal = SIGKILL}), nlohmann::ordered_json::object());
}

TEST_F(ExitFactsTest, ABusErrorTellsHowFullSharedMemoryIs) {
  facts_().Begin();
  const auto data = Of({.exit_code = {}, .signal = SIGBUS});
  EXPECT_GT(data.at("shm_size").get<std::uint64_t>(), 0u);
  EXPECT_LE(data.at("shm_used").get<std::uint64_t>(), data.at("shm_size").get<std::uint64_t>());
}

TEST_F(ExitFactsTest, OtherEndsNeedNothing) {
  facts_().Begin();
  EXPECT_TRUE(Of({.exit_code = 1, .signal = {}}).empty());
  EXPECT_TRUE(Of({.exit_code = {}, .signal = SIGSEGV}).empty());
}

}  // namespace
}  // namespace telltale::agent
