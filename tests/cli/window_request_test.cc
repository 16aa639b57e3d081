// SPDX-License-Identifier: Apache-2.0
#include "cli/window_request.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "store/requests.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"

namespace telltale::cli {
namespace {

class WindowRequestTest : public ::testing::Test {
 protected:
  std::string Run(bool finished) {
    const std::filesystem::path run = folder_.path() / (finished ? "over" : "live");
    std::filesystem::create_directories(run);
    EXPECT_TRUE(store::WriteRunInfo(run, testing::MakeInfo({}, finished)).ok());
    return run.string();
  }

  const testing::TempFolder folder_{"window-request"};
};

TEST_F(WindowRequestTest, TheAgentFindsWhatWasAsked) {
  const std::string run = Run(false);
  const auto answer = AskForWindow(run, "{\"steps\":3,\"detail\":\"ops,shapes\"}");
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  store::RequestReader reader(run);
  const auto found = reader.Poll();
  ASSERT_EQ(found.requests.size(), 1U);
  EXPECT_EQ(found.requests[0].kind, "profile");
  EXPECT_EQ(store::Hex(found.requests[0].id), ParseJson(*answer)["id"]);
  const auto window = ParseJson(found.requests[0].body)["windows"][""];
  EXPECT_EQ(window["next"], 3);
  EXPECT_EQ(window["detail"], nlohmann::json({"ops", "shapes"}));
}

TEST_F(WindowRequestTest, WhatIsWrongIsNotWritten) {
  const std::string run = Run(false);
  for (const char* body :
       {"", "[]", "{}", "{\"steps\":\"5\"}", "{\"steps\":0}", "{\"steps\":-1}", "{\"steps\":1.5}",
        "{\"steps\":5,\"detail\":7}", "{\"steps\":5,\"detail\":\"everything\"}",
        "{\"steps\":5,\"detail\":\"ops;bytes=1\"}"}) {
    const auto answer = AskForWindow(run, body);
    EXPECT_EQ(answer.status().code(), Code::kUsage) << body << ": " << answer.status().message();
  }
  EXPECT_TRUE(store::RequestReader(run).Poll().requests.empty());
}

TEST_F(WindowRequestTest, ARunThatIsOverIsAskedForNothing) {
  const std::string run = Run(true);
  EXPECT_EQ(AskForWindow(run, "{\"steps\":5}").status().code(), Code::kUnusable);
  EXPECT_TRUE(store::RequestReader(run).Poll().requests.empty());
}

}  // namespace
}  // namespace telltale::cli
