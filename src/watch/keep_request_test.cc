// SPDX-License-Identifier: Apache-2.0
#include "watch/keep_request.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "store/requests.h"

namespace telltale::watch {
namespace {

class KeepRequestTest : public ::testing::Test {
 protected:
  KeepRequestTest() {
    char name[] = "/tmp/telltale-keep-XXXXXX";
    run_ = ::mkdtemp(name);
    finding_.id = "00aabbccddeeff11";
    finding_.rule = "NotFinite";
    finding_.incident.severity = rules::Severity::kHigh;
    finding_.incident.first_step = 60;
    finding_.incident.last_step = 61;
    finding_.incident.start_ns = 1'700'000'000'000'000'000;
    finding_.incident.message = "loss is NaN";
  }
  ~KeepRequestTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(run_, ignored);
  }

  std::filesystem::path run_;
  rules::Finding finding_;
};

TEST_F(KeepRequestTest, AnOpenFindingOfWeightAsks) {
  EXPECT_TRUE(WantsToKeep(finding_));
  finding_.incident.severity = rules::Severity::kMedium;
  EXPECT_TRUE(WantsToKeep(finding_));
  finding_.open = false;
  EXPECT_FALSE(WantsToKeep(finding_));
  finding_.open = true;
  finding_.incident.severity = rules::Severity::kLow;
  EXPECT_FALSE(WantsToKeep(finding_));
}

TEST_F(KeepRequestTest, ItIsAskedOnceWhoeverAsks) {
  store::RequestReader reader(run_);
  ASSERT_TRUE(AskToKeep(run_, finding_, 1'800'000'000'000'000'000, 2).ok());
  finding_.incident.last_step = 70;
  ASSERT_TRUE(AskToKeep(run_, finding_, 1'800'000'000'000'000'009, 3).ok());
  const auto found = reader.Poll();
  ASSERT_EQ(found.requests.size(), 1U);
  const store::Request& request = found.requests[0];
  EXPECT_EQ(request.who, "watch");
  EXPECT_EQ(request.kind, "lookback");
  EXPECT_EQ(request.time_ns, 1'800'000'000'000'000'000);
  EXPECT_EQ(request.attempt, 2U);
  const auto body = ParseJson(request.body);
  EXPECT_EQ(body["rule"], "NotFinite");
  EXPECT_EQ(body["incident"], finding_.id);
  EXPECT_EQ(body["first_step"], 60);
  EXPECT_EQ(body["last_step"], 61);
  EXPECT_EQ(body["why"], "loss is NaN");
}

TEST_F(KeepRequestTest, ALongMessageIsCutBetweenCharacters) {
  finding_.incident.message = std::string(299, 'x') + "\u00e9\u00e9";
  ASSERT_TRUE(AskToKeep(run_, finding_, 1, 1).ok());
  store::RequestReader reader(run_);
  const auto found = reader.Poll();
  ASSERT_EQ(found.requests.size(), 1U);
  EXPECT_EQ(ParseJson(found.requests[0].body)["why"], std::string(299, 'x'));
}

}  // namespace
}  // namespace telltale::watch
