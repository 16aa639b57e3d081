// SPDX-License-Identifier: Apache-2.0
#include "plan/profiler_config.h"

#include <gtest/gtest.h>

#include <string>

namespace telltale::plan {
namespace {

std::vector<Window> Read(const std::string& text) {
  const auto windows = WindowsOfProfilerConfig(text);
  EXPECT_TRUE(windows.ok()) << windows.status().message();
  return windows.ok() ? *windows : std::vector<Window>();
}

TEST(ProfilerConfig, PartsAreTextsWithDictionariesInThem) {
  const auto windows = Read(R"({"DisableProfiler": false, "ProfilingParameters": {
      "LocalPath": "/opt/ml/output/profiler", "RotateMaxFileSizeInBytes": "10485760",
      "DetailedProfilingConfig": "{\"StartStep\": 5, \"NumSteps\": 2}",
      "DataloaderProfilingConfig": "{\"StartStep\": 7, \"MetricsRegex\": \".*\"}",
      "PythonProfilingConfig": "{'StartStep': '9', 'NumSteps': 1, 'cProfileTimer': 'cpu_time'}"}})");
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[0].name, "sagemaker-detailed");
  EXPECT_EQ(windows[0].steps, (std::vector<StepRange>{{5, 7}}));
  EXPECT_EQ(windows[1].name, "sagemaker-python");
  EXPECT_EQ(windows[1].detail, std::vector<std::string>{"python"});
  EXPECT_EQ(windows[1].timer, "cpu");
  EXPECT_EQ(windows[1].steps, (std::vector<StepRange>{{9, 10}}));
}

TEST(ProfilerConfig, ARangeOfTimeIsUnderstoodAsSdkAndHookWriteIt) {
  for (const char* key : {"DurationInSeconds", "Duration"}) {
    const auto windows = Read(std::string(R"({"ProfilingParameters": {"DetailedProfilingConfig":
          {"StartTimeInSecSinceEpoch": "1700000000", ")") +
                              key + R"(": 90}}})");
    ASSERT_EQ(windows.size(), 1U) << key;
    EXPECT_EQ(windows[0].start_time, 1'700'000'000);
    EXPECT_EQ(windows[0].duration, 90);
    EXPECT_GE(windows[0].seconds, 90) << "the bound does not cut what was asked for";
  }
}

TEST(ProfilerConfig, TheDefaultTimerTakesTheThreeInTurn) {
  const auto windows = Read(R"({"ProfilingParameters": {"PythonProfilingConfig": "{}"}})");
  ASSERT_EQ(windows.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto step = static_cast<std::int64_t>(9 + i);
    EXPECT_EQ(windows[i].steps, (std::vector<StepRange>{{step, step + 1}}));
  }
  EXPECT_EQ(windows[0].timer, "total");
  EXPECT_EQ(windows[1].timer, "cpu");
  EXPECT_EQ(windows[2].timer, "off_cpu");
}

TEST(ProfilerConfig, KeysAreOfAnyCaseAndADisabledOneHasNone) {
  EXPECT_EQ(Read(R"({"profilingparameters": {"DETAILEDPROFILINGCONFIG": "{\"startstep\": 3}"}})")
                .at(0)
                .steps,
            (std::vector<StepRange>{{3, 4}}));
  EXPECT_TRUE(Read(R"({"DisableProfiler": true, "ProfilingParameters":
      {"DetailedProfilingConfig": "{}"}})")
                  .empty());
  EXPECT_TRUE(Read(R"({"DisableProfiler": "True", "ProfilingParameters":
      {"DetailedProfilingConfig": "{}"}})")
                  .empty());
  EXPECT_TRUE(Read("{}").empty());
}

TEST(ProfilerConfig, WhatCannotBeReadSaysSo) {
  const auto why = [](const std::string& part) {
    const auto windows = WindowsOfProfilerConfig(
        R"({"ProfilingParameters": {"DetailedProfilingConfig": )" + part + "}}");
    EXPECT_FALSE(windows.ok()) << part;
    return std::string(windows.status().message());
  };
  EXPECT_FALSE(WindowsOfProfilerConfig("[1]").ok());
  EXPECT_NE(why(R"("os.remove")").find("no dictionary"), std::string::npos);
  EXPECT_NE(why(R"({"StartStep": -1})").find("startstep"), std::string::npos);
  EXPECT_NE(why(R"({"StartStep": 1, "DurationInSeconds": 5})").find("one of time"),
            std::string::npos);
}

}  // namespace
}  // namespace telltale::plan
