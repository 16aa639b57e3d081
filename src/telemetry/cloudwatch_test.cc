// SPDX-License-Identifier: Apache-2.0
#include "telemetry/cloudwatch.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "telemetry/families.h"

namespace telltale::telemetry {
namespace {

TEST(CloudWatch, OnlyWhatIsBriefGoesThere) {
  MetricSet set;
  set.Begin("try 1", 0, 1'800'000'000'000'000'000);
  set.Add(kStepSeconds, {{"mode", "TRAIN"}, {"rank", "0"}}, 0.25);
  set.Add(kScalar, {{"name", "lr"}}, 1);
  const CloudWatchBodies out = ToCloudWatch(set, "My Runs");
  ASSERT_EQ(out.bodies.size(), 1U);
  EXPECT_EQ(out.metrics, 1U);
  EXPECT_EQ(out.bodies[0],
            "Action=PutMetricData&Version=2010-08-01&Namespace=My%20Runs"
            "&MetricData.member.1.MetricName=telltale_step_seconds"
            "&MetricData.member.1.Dimensions.member.1.Name=run"
            "&MetricData.member.1.Dimensions.member.1.Value=try%201"
            "&MetricData.member.1.Dimensions.member.2.Name=mode"
            "&MetricData.member.1.Dimensions.member.2.Value=TRAIN"
            "&MetricData.member.1.Dimensions.member.3.Name=rank"
            "&MetricData.member.1.Dimensions.member.3.Value=0"
            "&MetricData.member.1.Value=0.25&MetricData.member.1.Unit=Seconds"
            "&MetricData.member.1.Timestamp=2027-01-15T08%3A00%3A00Z");
}

TEST(CloudWatch, ValuesThatItRefusesAreCountedAndThoseNearZeroAreZero) {
  MetricSet set;
  set.Begin("run", 0, 0);
  using Limits = std::numeric_limits<double>;
  set.Add(kLoss, {{"mode", "a"}}, Limits::quiet_NaN());
  set.Add(kLoss, {{"mode", "b"}}, -Limits::infinity());
  set.Add(kLoss, {{"mode", "c"}}, 1e200);
  set.Add(kLoss, {{"mode", "d"}}, 1e-200);
  const CloudWatchBodies out = ToCloudWatch(set, "T");
  EXPECT_EQ(out.left_out, 3U);
  EXPECT_EQ(out.metrics, 1U);
  ASSERT_EQ(out.bodies.size(), 1U);
  EXPECT_NE(out.bodies[0].find("member.1.Value=0&"), std::string::npos) << out.bodies[0];
}

TEST(CloudWatch, DimensionsAreWhatTheServiceTakes) {
  MetricSet set;
  set.Begin(":a\xC3\xBC\n", 0, 0);
  set.Add(kLoss, {{"mode", "   "}}, 1);
  const CloudWatchBodies out = ToCloudWatch(set, "T");
  ASSERT_EQ(out.bodies.size(), 1U);
  EXPECT_NE(out.bodies[0].find("Dimensions.member.1.Value=_a%3F%3F%3F&"), std::string::npos)
      << out.bodies[0];
  EXPECT_EQ(out.bodies[0].find("Dimensions.member.2"), std::string::npos);
}

TEST(CloudWatch, ManyMetricsAreSeveralRequests) {
  MetricSet set;
  set.Begin("run", 0, 0);
  for (int i = 0; i < 1'203; ++i) set.Add(kLoss, {{"mode", std::to_string(i)}}, i);
  const CloudWatchBodies out = ToCloudWatch(set, "T");
  EXPECT_EQ(out.metrics, 1'203U);
  EXPECT_EQ(out.bodies.size(), 3U);
  for (const std::string& body : out.bodies) {
    EXPECT_LT(body.size(), 1'000'000U);
    EXPECT_NE(body.find("MetricData.member.1.MetricName"), std::string::npos);
    EXPECT_EQ(body.find("MetricData.member.501."), std::string::npos);
  }
}

TEST(CloudWatch, ItsWords) {
  EXPECT_EQ(CloudWatchUrl("eu-central-1"), "https://monitoring.eu-central-1.amazonaws.com/");
  EXPECT_EQ(CloudWatchUrl("cn-north-1"), "https://monitoring.cn-north-1.amazonaws.com.cn/");
  EXPECT_EQ(CloudWatchError("<ErrorResponse><Error><Type>Sender</Type><Code>Throttling</Code>"
                            "<Message>Rate exceeded</Message></Error></ErrorResponse>"),
            "Throttling: Rate exceeded");
  EXPECT_EQ(CloudWatchError("<Code>"), "");
}

}  // namespace
}  // namespace telltale::telemetry
