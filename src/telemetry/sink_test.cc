// SPDX-License-Identifier: Apache-2.0
#include "telemetry/sink.h"

#include <gtest/gtest.h>

namespace telltale::telemetry {
namespace {

TEST(Sink, ThePauseGrowsWithFailuresAndHasAnEnd) {
  EXPECT_EQ(PauseMs(10'000, 0, 0), 10'000);
  EXPECT_EQ(PauseMs(10'000, 1, 0), 10'000);
  EXPECT_EQ(PauseMs(10'000, 2, 0), 20'000);
  EXPECT_EQ(PauseMs(10'000, 3, 0), 40'000);
  EXPECT_EQ(PauseMs(10'000, 1'000, 0), kLongestPauseMs);
  EXPECT_EQ(PauseMs(10'000, 1, 77), 77'000);
  EXPECT_EQ(PauseMs(10'000, 1, 1'000'000'000), kLongestPauseMs);
  EXPECT_EQ(PauseMs(3'600'000, 5, 0), 3'600'000);
}

TEST(Sink, AReceiverThatIsNotThereMayCome) {
  const auto sink = MakeOtlpSink({.url = "http://127.0.0.1:1/v1/metrics"});
  const Sent sent = sink->Send(MetricSet(), 1'000);
  EXPECT_EQ(sent.status.code(), Code::kIo);
  EXPECT_TRUE(sent.retry);
}

TEST(Sink, AWrongAddressStaysWrong) {
  const auto sink = MakeOtlpSink({.url = "nowhere"});
  const Sent sent = sink->Send(MetricSet(), 1'000);
  EXPECT_EQ(sent.status.code(), Code::kUsage);
  EXPECT_FALSE(sent.retry);
}

}  // namespace
}  // namespace telltale::telemetry
