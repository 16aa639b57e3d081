// SPDX-License-Identifier: Apache-2.0
// /metrics of the server: who may read it, which runs are in it, in which format.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/units.h"
#include "client.h"
#include "server/metrics_board.h"
#include "store/run_info.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"

namespace telltale {
namespace {

namespace fs = std::filesystem;
using testing::Reply;
using testing::RunningServer;

class MetricsTest : public ::testing::Test {
 protected:
  /// A run that ended `ago_ns` before now.
  void Sample(const fs::path& run, std::int64_t ago_ns) {
    testing::SampleRun sample;
    sample.name = run.filename().string();
    sample.steps = 40;
    const std::int64_t length = 2 * kSecond + sample.steps * sample.step_ns;
    sample.start_ns = Clock::System().RealtimeNs() - ago_ns - length;
    ASSERT_TRUE(testing::WriteRun(run, sample).ok());
  }

  const testing::TempFolder folder_{"metrics"};
  const fs::path root_ = folder_.path();
};

TEST_F(MetricsTest, TheTokenOfMetricsReadsThemAndNothingElse) {
  Sample(root_ / "one", kSecond);
  auto auth = server::Auth::Fresh();
  ASSERT_TRUE(auth.ok());
  const std::string scraper = "Authorization: Bearer " + auth->metrics_token();
  ASSERT_NE(auth->metrics_token(), auth->token());
  const RunningServer server({.paths = {root_}}, std::move(auth).value());
  EXPECT_EQ(server.Ask("GET", "/metrics").status, 401);
  EXPECT_EQ(server.Ask("GET", "/metrics", {"Authorization: Bearer " + std::string(64, '0')}).status,
            401);
  EXPECT_EQ(server.Ask("GET", "/metrics", {"Authorization: Bearer "}).status, 401);
  EXPECT_EQ(server.Ask("GET", "/metrics", {scraper}).status, 200);
  EXPECT_EQ(server.Get("/metrics").status, 200);
  EXPECT_EQ(server.Ask("GET", "/api/runs", {scraper}).status, 401);
  EXPECT_EQ(server.Ask("GET", "/api/runs/one/overview", {scraper}).status, 401);
  EXPECT_EQ(server.Ask("POST", "/metrics", {scraper}).status, 405);
  EXPECT_EQ(server.Ask("GET", "/metrics", {scraper, "Host: evil.example.org"}).status, 403);
}

TEST_F(MetricsTest, TheTokenIsTheSameForAllServersOfAUser) {
  auto first = server::Auth::Fresh();
  ASSERT_TRUE(first.ok());
  const std::string before = first->metrics_token();
  first->BindTo("127.0.0.1\n8080\n/runs\n");
  EXPECT_EQ(first->metrics_token(), before);
  EXPECT_NE(first->session(), before);
}

TEST_F(MetricsTest, ARunThatThrowsLeavesTheOthersTheirMetrics) {
  for (const char* run : {"good", "throws", "large"}) Sample(root_ / run, kSecond);
  std::map<std::string, int> read;
  const auto begin = [&](const std::string& id, const fs::path& run) {
    if (++read[id] > 0 && id == "throws") throw std::length_error("too long a text");
    if (id == "large" && read[id] == 1) throw std::bad_alloc();
    return std::make_unique<telemetry::RunMetrics>(id, run);
  };
  std::mutex mutex;
  std::condition_variable published;
  server::MetricsBoard board(
      {root_}, [&] { published.notify_all(); }, begin);
  const auto ask = [&] {
    const std::uint64_t asked = board.Ask();
    std::shared_ptr<const std::string> text;
    std::unique_lock lock(mutex);
    const auto made = [&] {
      text = board.Answer(asked, telemetry::TextFormat::kPrometheus);
      return text != nullptr;
    };
    while (!published.wait_for(lock, std::chrono::milliseconds(50), made)) {
    }
    return *text;
  };
  const auto has = [](const std::string& text, const char* run) {
    return text.find(fmt::format("telltale_run_state{{run=\"{}\"", run)) != std::string::npos;
  };
  const std::string first = ask();
  EXPECT_TRUE(has(first, "good"));
  EXPECT_FALSE(has(first, "throws"));
  EXPECT_FALSE(has(first, "large"));
  const std::string second = ask();
  EXPECT_TRUE(has(second, "good"));
  EXPECT_TRUE(has(second, "large")) << "there is memory for it now";
  EXPECT_EQ(read["throws"], 1) << "it is not read again and again";
  EXPECT_EQ(read["good"], 1);
}

TEST_F(MetricsTest, RunsThatAreLongOverAreNotInIt) {
  Sample(root_ / "fresh", kSecond);
  Sample(root_ / "old", 3'600 * kSecond);
  const RunningServer server({root_});
  const Reply reply = server.Get("/metrics");
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(reply.body.find("telltale_run_state{run=\"fresh\",state=\"finished\"} 1\n"),
            std::string::npos)
      << reply.body;
  EXPECT_NE(reply.body.find("telltale_steps_total{run=\"fresh\",mode=\"TRAIN\",rank=\"0\"} 40\n"),
            std::string::npos)
      << reply.body;
  EXPECT_EQ(reply.body.find("run=\"old\""), std::string::npos);
  EXPECT_NE(reply.body.find("\ntelltale_runs 1\n"), std::string::npos);
}

/// Two runs of one name: a scraper refuses all of an answer in which a series comes twice.
TEST_F(MetricsTest, RunsOfOneNameAreTwo) {
  Sample(root_ / "a" / "train", kSecond);
  Sample(root_ / "b" / "train", kSecond);
  const RunningServer server({root_});
  const Reply reply = server.Get("/metrics");
  ASSERT_EQ(reply.status, 200);
  EXPECT_NE(reply.body.find("telltale_run_attempts{run=\"train\"} 1\n"), std::string::npos);
  EXPECT_NE(reply.body.find("telltale_run_attempts{run=\"train~2\"} 1\n"), std::string::npos);
}

TEST_F(MetricsTest, OpenMetricsForWhoAsksForIt) {
  Sample(root_ / "one", kSecond);
  const RunningServer server({root_});
  const Reply reply = server.Ask(
      "GET", "/metrics",
      {server.bearer(), "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"});
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"),
            "application/openmetrics-text; version=1.0.0; charset=utf-8");
  EXPECT_TRUE(reply.body.ends_with("# EOF\n"));
}

/// Each scrape is of its own moment.
TEST_F(MetricsTest, AScrapeSeesTheRunThatBeganSinceTheLast) {
  const RunningServer server({root_});
  EXPECT_NE(server.Get("/metrics").body.find("telltale_runs 0\n"), std::string::npos);
  Sample(root_ / "late", kSecond);
  EXPECT_NE(server.Get("/metrics").body.find("telltale_runs 1\n"), std::string::npos);
  fs::remove_all(root_ / "late");
  EXPECT_NE(server.Get("/metrics").body.find("telltale_runs 0\n"), std::string::npos);
}

}  // namespace
}  // namespace telltale
