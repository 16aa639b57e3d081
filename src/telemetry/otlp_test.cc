// SPDX-License-Identifier: Apache-2.0
// The bytes are judged by opentelemetry-proto in tests/metrics; here what needs no receiver.
#include "telemetry/otlp.h"

#include <gtest/gtest.h>

#include <protozero/pbf_reader.hpp>
#include <string>
#include <vector>

#include "telemetry/families.h"

namespace telltale::telemetry {
namespace {

/// Messages of a field, one level down.
std::vector<protozero::pbf_reader> Messages(protozero::pbf_reader reader, std::uint32_t field) {
  std::vector<protozero::pbf_reader> out;
  while (reader.next(field)) out.push_back(reader.get_message());
  return out;
}

TEST(Otlp, ACounterIsACumulativeSumAndKnowsItsBegin) {
  MetricSet set;
  set.Begin("run", 1'000, 2'000);
  set.Add(kSteps, {{"mode", "TRAIN"}}, 12);
  const std::string bytes =
      ToOtlp(set, {.attributes = {{"service.name", "telltale"}}, .version = "1"});
  const auto resources = Messages(protozero::pbf_reader(bytes), 1);
  ASSERT_EQ(resources.size(), 1U);
  const auto scopes = Messages(resources[0], 2);
  ASSERT_EQ(scopes.size(), 1U);
  const auto metrics = Messages(scopes[0], 2);
  ASSERT_EQ(metrics.size(), 1U);
  protozero::pbf_reader name = metrics[0];
  ASSERT_TRUE(name.next(1));
  EXPECT_EQ(name.get_string(), "telltale_steps");
  const auto sums = Messages(metrics[0], 7);
  ASSERT_EQ(sums.size(), 1U);
  protozero::pbf_reader temporality = sums[0];
  ASSERT_TRUE(temporality.next(2));
  EXPECT_EQ(temporality.get_enum(), 2);
  protozero::pbf_reader monotonic = sums[0];
  ASSERT_TRUE(monotonic.next(3));
  EXPECT_TRUE(monotonic.get_bool());
  const auto points = Messages(sums[0], 1);
  ASSERT_EQ(points.size(), 1U);
  protozero::pbf_reader start = points[0];
  ASSERT_TRUE(start.next(2));
  EXPECT_EQ(start.get_fixed64(), 1'000U);
  protozero::pbf_reader value = points[0];
  ASSERT_TRUE(value.next(4));
  EXPECT_EQ(value.get_double(), 12);
  EXPECT_EQ(Messages(points[0], 7).size(), 2U);
}

TEST(Otlp, WhatAReceiverRefusedIsRead) {
  // partial_success { rejected_data_points: 3 error_message: "old" }
  const OtlpAnswer answer = ParseOtlpAnswer("\x0a\x07\x08\x03\x12\x03old");
  EXPECT_EQ(answer.rejected, 3);
  EXPECT_EQ(answer.message, "old");
  for (const char* body : {"", "{}", "\x0a", "<html>", "\x0a\x05\x08"}) {
    EXPECT_EQ(ParseOtlpAnswer(body).rejected, 0) << body;
  }
}

TEST(Otlp, AddressesAndHeadersOfTheSpecification) {
  EXPECT_EQ(OtlpUrl("http://host:4318"), "http://host:4318/v1/metrics");
  EXPECT_EQ(OtlpUrl("http://host:4318/"), "http://host:4318/v1/metrics");
  EXPECT_EQ(OtlpUrl("http://host/api/v1/otlp/v1/metrics"), "http://host/api/v1/otlp/v1/metrics");
  EXPECT_EQ(OtlpUrl("http://host?key=1"), "http://host?key=1");
  EXPECT_EQ(OtlpHeaders("authorization=Basic%20eDp5, x-scope = lab ,none,=nothing"),
            (std::vector<std::string>{"authorization: Basic eDp5", "x-scope: lab"}));
  EXPECT_TRUE(OtlpHeaders("").empty());
}

}  // namespace
}  // namespace telltale::telemetry
