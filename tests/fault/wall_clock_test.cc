// SPDX-License-Identifier: Apache-2.0
// Somebody sets the wall clock while a run is recorded: what lasts is told by a clock that nobody
// sets, and the step is noted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/units.h"
#include "harness.h"
#include "store/run_info.h"

namespace telltale::fault {
namespace {

namespace fs = std::filesystem;

class WallClock : public ::testing::TestWithParam<long long> {};

TEST_P(WallClock, AStepChangesNoDuration) {
  const Scratch scratch("clock");
  const fs::path shift = scratch / "shift";
  const fs::path run = scratch / "run";
  Oracle* const oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  const auto begun = std::chrono::steady_clock::now();
  Started started;
  {
    const ScopedVariable where("WALL_CLOCK_SHIFT", shift.string());
    const Preload clock(TELLTALE_WALL_CLOCK);
    started =
        StartRun(run, {}, {TrainerPath(), scratch / "oracle", "1000000", "1000"}, scratch / "err");
  }
  const auto steps_noted = [&](Recorded* recorded) {
    ReadRun(run, recorded);
    int steps = 0;
    for (const auto& row : recorded->rows.events) {
      if (row.kind != "clock.anchor") continue;
      const auto data = ParseJson(row.data);
      if (data.contains("step_ns")) ++steps;
    }
    return steps;
  };
  ASSERT_TRUE(Await([&] {
    Recorded recorded;
    ReadRun(run, &recorded);
    return CountEvents(recorded, "clock.anchor") == 1 && oracle->committed > 100;
  })) << started.Err();
  // Whole or not at all: it is read meanwhile.
  std::ofstream(scratch / "next") << GetParam() << std::flush;
  fs::rename(scratch / "next", shift);
  ASSERT_TRUE(Await([&] {
    Recorded recorded;
    return steps_noted(&recorded) == 1;
  })) << started.Err();
  const std::uint64_t then = oracle->committed;
  ASSERT_TRUE(Await([&] { return oracle->committed > then + 500; }));
  ASSERT_EQ(::kill(oracle->pid, SIGTERM), 0);
  EXPECT_EQ(started.Wait(), -SIGTERM) << started.Err();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;

  Recorded recorded;
  EXPECT_EQ(steps_noted(&recorded), 1) << "once";
  EXPECT_EQ(CheckOnce(recorded, oracle->committed), "");
  const auto info = store::ReadRunInfo(run);
  ASSERT_TRUE(info.ok());
  const store::Attempt& attempt = info->attempts.back();
  EXPECT_GT(attempt.end_ns - attempt.start_ns, 500 * kMs);
  EXPECT_LE(static_cast<double>(attempt.end_ns - attempt.start_ns) / 1e9, took.count());
  std::FILE* const pipe =
      ::popen(fmt::format("{} ls --json {}", TelltalePath(), run.string()).c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
  EXPECT_EQ(::pclose(pipe), 0) << text;
  const auto list = ParseJson(text);
  ASSERT_TRUE(list.is_object()) << text;
  const double listed = list["runs"][0]["duration_seconds"].get<double>();
  EXPECT_GT(listed, 0.5);
  EXPECT_LE(listed, took.count());
  EXPECT_NE(TextOf(run / "report.html").find("the wall clock was set"), std::string::npos);
}

TEST_P(WallClock, ARulesStopIsNoneOfAnAttemptBefore) {
  const Scratch scratch("clock-stop");
  const fs::path shift = scratch / "shift";
  const fs::path run = scratch / "run";
  Oracle* const oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  std::ofstream(scratch / "rules.toml")
      << "defaults = false\n[rules.above]\nexpression = \"scalar:mark > 100\"\n"
         "severity = \"high\"\n[[rules.above.actions]]\nkind = \"stop\"\ndry_run = false\n";
  // It trains once the clock was set.
  const std::string script =
      fmt::format("while [ ! -e '{}' ]; do sleep 0.02; done; exec '{}' '{}' 1000000 1000",
                  (scratch / "go").string(), TrainerPath(), (scratch / "oracle").string());
  Started started;
  {
    const ScopedVariable where("WALL_CLOCK_SHIFT", shift.string());
    const ScopedVariable state("XDG_STATE_HOME", (scratch / "state").string());
    const Preload clock(TELLTALE_WALL_CLOCK);
    started = StartRun(run, {"--no-serve", "--rules", scratch / "rules.toml"},
                       {"/bin/sh", "-c", script}, scratch / "err");
  }
  ASSERT_TRUE(Await([&] {
    const auto info = store::ReadRunInfo(run);
    return info.ok() && !info->attempts.empty();
  })) << started.Err();
  std::ofstream(scratch / "next") << GetParam() << std::flush;
  fs::rename(scratch / "next", shift);
  std::ofstream(scratch / "go") << std::flush;
  EXPECT_EQ(started.Wait(), -SIGTERM) << started.Err();
  Recorded recorded;
  ReadRun(run, &recorded);
  EXPECT_EQ(CountEvents(recorded, "stop.begun"), 1U);
  for (const auto& row : recorded.rows.events) {
    const auto data = ParseJson(row.data);
    if (row.kind == "request.refused") {
      EXPECT_EQ(row.message.find("attempt"), std::string_view::npos) << row.message;
    }
    if (row.kind != "run.attempt_end") continue;
    EXPECT_EQ(data["stopped"]["rule"], "above") << row.data;
  }
}

INSTANTIATE_TEST_SUITE_P(By, WallClock, ::testing::Values(-3600, 315'360'000), [](const auto& by) {
  return by.param < 0 ? "AnHourBack" : "TenYearsForward";
});

}  // namespace
}  // namespace telltale::fault
