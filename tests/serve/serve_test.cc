// SPDX-License-Identifier: Apache-2.0
// The server as a browser, a program and an attacker see it, over loopback.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "client.h"
#include "report/text.h"
#include "server/assets.h"
#include "store/writer.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"
#include "watch/watcher.h"

namespace telltale {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Connection;
using testing::Reply;
using testing::RunningServer;

/// What /api/runs says once `is` holds of it.
json Listing(const RunningServer& server, const std::function<bool(const json&)>& is) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (true) {
    json listing = ParseJson(server.Get("/api/runs").body);
    if (is(listing)) return listing;
    if (std::chrono::steady_clock::now() >= deadline) {
      ADD_FAILURE() << "the listing stays " << JsonText(listing);
      return listing;
    }
  }
}

class ServeTest : public ::testing::Test {
 protected:
  void Sample(const std::string& id, testing::SampleRun sample = {}) {
    ASSERT_TRUE(testing::WriteRun(root_ / id, sample).ok());
  }

  const testing::TempFolder folder_{"serve"};
  const fs::path root_ = folder_.path();
};

TEST_F(ServeTest, WithoutATokenThereIsNothing) {
  Sample("one");
  const RunningServer server({root_});
  for (const char* target : {"/api/runs", "/api/runs/one/overview", "/api/runs/one/stream",
                             "/api/none", "/api", "/api/runs/one/series?name=loss"}) {
    for (const char* method : {"GET", "HEAD", "POST", "DELETE"}) {
      const Reply reply = server.Ask(method, target);
      EXPECT_EQ(reply.status, 401) << method << " " << target;
    }
  }
  EXPECT_NE(ParseJson(server.Ask("GET", "/api/runs").body)["error"].get<std::string>(), "");
  EXPECT_EQ(server.Ask("GET", "/api/runs", {"Authorization: Bearer "}).status, 401);
  EXPECT_EQ(
      server.Ask("GET", "/api/runs", {"Authorization: Bearer " + std::string(64, '0')}).status,
      401);
  EXPECT_EQ(server
                .Ask("GET", "/api/runs",
                     {fmt::format("Cookie: telltale_session_{}={}", server.port(), server.token())})
                .status,
            401);
  EXPECT_EQ(server.Get("/api/runs").status, 200);
}

TEST_F(ServeTest, TheLinkOpensOneBrowser) {
  Sample("one");
  const RunningServer server({root_});
  const std::string body = JsonText(json({{"code", server.code()}}));
  EXPECT_EQ(server.Ask("POST", "/api/session", {}, "{\"code\":\"\"}").status, 401);
  EXPECT_EQ(server.Ask("POST", "/api/session", {}, "no json").status, 401);
  const Reply first = server.Ask("POST", "/api/session", {}, body);
  ASSERT_EQ(first.status, 200);
  const std::string cookie = first.headers.at("set-cookie");
  EXPECT_NE(cookie.find("HttpOnly"), std::string::npos);
  EXPECT_NE(cookie.find("SameSite=Strict"), std::string::npos);
  EXPECT_EQ(server.Ask("POST", "/api/session", {}, body).status, 401);
  const std::string session = "Cookie: other=1; " + cookie.substr(0, cookie.find(';'));
  EXPECT_EQ(server.Ask("GET", "/api/runs", {session}).status, 200);
}

TEST_F(ServeTest, AnOldLinkOpensNothingAndSaysWhatDoes) {
  Sample("one");
  FakeClock clock;
  auto auth = server::Auth::Fresh(&clock);
  ASSERT_TRUE(auth.ok());
  const RunningServer server({.paths = {root_}}, std::move(auth).value(),
                             [&] { clock.Advance(server::Auth::kCodeNs); });
  const Reply reply =
      server.Ask("POST", "/api/session", {}, JsonText(json({{"code", server.code()}})));
  EXPECT_EQ(reply.status, 401);
  EXPECT_NE(reply.body.find("expired"), std::string::npos) << reply.body;
  EXPECT_NE(reply.body.find("--print-token"), std::string::npos) << reply.body;
  // What --print-token prints opens a session too, as often as it is asked.
  for (int i = 0; i < 2; ++i) {
    const std::string session = server.SignIn(server.token());
    EXPECT_EQ(server.Ask("GET", "/api/runs", {session}).status, 200);
  }
}

/// The user's servers share a token; a browser sends the cookies of one port to the others too.
TEST_F(ServeTest, ASessionIsGoodForItsServerAlone) {
  Sample("one");
  setenv("XDG_STATE_HOME", (root_ / "state").c_str(), 1);
  std::string note;
  auto first = server::Auth::Open(&note);
  auto second = server::Auth::Open(&note);
  unsetenv("XDG_STATE_HOME");
  ASSERT_TRUE(first.ok() && second.ok()) << note;
  const RunningServer here({.paths = {root_}}, std::move(first).value());
  const RunningServer there({.paths = {root_}}, std::move(second).value());
  const std::string session = here.SignIn(here.code());
  EXPECT_EQ(here.Ask("GET", "/api/runs", {session}).status, 200);
  const std::string renamed = fmt::format("Cookie: telltale_session_{}={}", there.port(),
                                          session.substr(session.find('=') + 1));
  EXPECT_EQ(there.Ask("GET", "/api/runs", {session}).status, 401);
  EXPECT_EQ(there.Ask("GET", "/api/runs", {renamed}).status, 401);
  EXPECT_EQ(there.Ask("GET", "/api/runs", {here.bearer()}).status, 200);
}

TEST_F(ServeTest, AForeignHostIsToldWhichFlagAllowsIt) {
  Sample("one");
  const RunningServer server({root_}, {"lab.example.org"});
  const Reply reply =
      server.Ask("GET", "/api/runs", {server.bearer(), "Host: evil.example.org:80"});
  EXPECT_EQ(reply.status, 403);
  EXPECT_NE(reply.body.find("--allow-host evil.example.org"), std::string::npos);
  EXPECT_EQ(server.Ask("GET", "/", {"Host: evil.example.org"}).status, 403);
  EXPECT_EQ(server.Ask("GET", "/api/runs", {server.bearer(), "Host: lab.example.org"}).status, 200);
  EXPECT_EQ(server.Ask("GET", "/api/runs", {server.bearer(), "Host: localhost:1"}).status, 200);
}

TEST_F(ServeTest, TheLinkOfAServerAtAllAddressesNamesOneThatItAnswersTo) {
  Sample("one");
  for (const char* bind : {"0.0.0.0", "127.0.0.1"}) {
    auto auth = server::Auth::Fresh();
    ASSERT_TRUE(auth.ok());
    const RunningServer server({.bind = bind, .paths = {root_}}, std::move(auth).value());
    const std::string& link = server.link();
    const std::string host = link.substr(7, link.find("/#") - 7);
    EXPECT_NE(host.substr(0, 7), "0.0.0.0") << link;
    EXPECT_EQ(server.Ask("GET", "/api/runs", {server.bearer(), "Host: " + host}).status, 200);
  }
}

TEST_F(ServeTest, OtherPagesMaySendNothing) {
  Sample("one");
  const RunningServer server({root_});
  const std::string body = JsonText(json({{"code", server.code()}}));
  for (const char* method : {"POST", "PUT", "PATCH", "DELETE"}) {
    for (const char* origin :
         {"Origin: http://evil.example.org", "Origin: null", "Sec-Fetch-Site: cross-site"}) {
      EXPECT_EQ(server.Ask(method, "/api/session", {server.bearer(), origin}, body).status, 403)
          << method << " " << origin;
    }
  }
  // None of them used the code up.
  const std::string own = fmt::format("Origin: http://127.0.0.1:{}", server.port());
  EXPECT_EQ(server.Ask("POST", "/api/session", {own}, body).status, 200);
  EXPECT_EQ(server.Ask("DELETE", "/api/runs", {server.bearer(), own}).status, 405);
}

TEST_F(ServeTest, AWindowIsAskedForByThoseWhoAreSignedInAlone) {
  Sample("one");
  auto auth = server::Auth::Fresh();
  ASSERT_TRUE(auth.ok());
  std::mutex mutex;
  std::vector<std::pair<fs::path, std::string>> asked;
  server::ServerOptions options{.paths = {root_}};
  options.ask_window = [&](const fs::path& run, const std::string& body) -> Result<std::string> {
    const std::scoped_lock lock(mutex);
    asked.emplace_back(run, body);
    if (body == "wrong") return Status(Code::kUsage, "no steps");
    if (body == "over") return Status(Code::kUnusable, "the run is finished");
    return std::string("{\"id\":\"7\"}");
  };
  const RunningServer server(std::move(options), std::move(auth).value());
  const std::string target = "/api/runs/one/window";
  EXPECT_EQ(server.Ask("POST", target, {}, "x").status, 401);
  EXPECT_EQ(
      server.Ask("POST", target, {server.bearer(), "Origin: http://evil.example.org"}, "x").status,
      403);
  EXPECT_EQ(server.Ask("GET", target, {server.bearer()}).status, 405);
  EXPECT_EQ(server.Ask("POST", "/api/runs/none/window", {server.bearer()}, "x").status, 404);
  EXPECT_TRUE(asked.empty());
  const Reply reply = server.Ask("POST", target, {server.bearer()}, "{\"steps\":5}");
  EXPECT_EQ(reply.status, 202);
  EXPECT_EQ(ParseJson(reply.body)["id"], "7");
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].first.filename(), "one");
  EXPECT_EQ(asked[0].second, "{\"steps\":5}");
  EXPECT_EQ(server.Ask("POST", target, {server.bearer()}, "wrong").status, 400);
  const Reply over = server.Ask("POST", target, {server.bearer()}, "over");
  EXPECT_EQ(over.status, 409);
  EXPECT_EQ(ParseJson(over.body)["error"], "the run is finished");
}

TEST_F(ServeTest, AServerThatOnlyReadsAsksForNothing) {
  Sample("one");
  const RunningServer server({root_});
  const Reply reply = server.Ask("POST", "/api/runs/one/window", {server.bearer()}, "{}");
  EXPECT_EQ(reply.status, 405);
  EXPECT_NE(reply.body.find("--read-only"), std::string::npos) << reply.body;
}

TEST_F(ServeTest, NoPathReachesAFile) {
  Sample("one");
  const std::string secret = "words that stand in this file alone";
  std::ofstream(root_ / "secret.txt") << secret;
  const RunningServer server({root_});
  for (const char* target :
       {"/../../../../etc/passwd", "/..%2f..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd", "/etc/passwd", "/secret.txt", "/one/run.json", "/./run.json",
        "/api/runs/../secret.txt/overview", "/api/runs/..%2fsecret.txt/overview",
        "/api/runs/%2fetc/overview", "/api/runs/one%2f..%2fone/overview",
        "/api/runs/one/../../secret.txt", "/api/runs/one/run.json", "/api/runs//overview",
        "/api/runs/one/series/../../secret.txt", "/..\\..\\etc\\passwd"}) {
    const Reply reply = server.Get(target);
    EXPECT_TRUE(reply.status == 404 || reply.status == 400) << target << " " << reply.status;
    EXPECT_EQ(reply.body.find("root:"), std::string::npos) << target;
    EXPECT_EQ(reply.body.find(secret), std::string::npos) << target;
    EXPECT_EQ(reply.body.find("\"major\""), std::string::npos) << target << ": run.json";
  }
}

TEST_F(ServeTest, AHeaderThatIsThereTwiceIsRefused) {
  Sample("one");
  const RunningServer server({root_});
  const std::string host = fmt::format("Host: 127.0.0.1:{}", server.port());
  for (const auto& headers : std::vector<std::vector<std::string>>{
           {host, "Host: evil.example.org"},
           {"Host: evil.example.org", host},
           {host, host},
           {fmt::format("Origin: http://127.0.0.1:{}", server.port()), "Origin: http://evil"},
           {"Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"},
           {"Authorization: Bearer x"}}) {
    std::vector<std::string> all = headers;
    all.push_back(server.bearer());
    EXPECT_EQ(server.Ask("GET", "/api/runs", all).status, 400) << headers.back();
  }
  EXPECT_EQ(server
                .Ask("GET", "/api/runs",
                     {server.bearer(), fmt::format("Host: 127.0.0.1:{}@evil", server.port())})
                .status,
            403);
}

/// A local user without a token may open as many connections as there are; that harms nobody who
/// has signed in, nor whoever comes to sign in.
TEST_F(ServeTest, HalfRequestsShutNobodyOut) {
  Sample("one");
  const RunningServer server({root_});
  Connection page(server.port());
  const std::string get = fmt::format("GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{}\r\n\r\n",
                                      server.port(), server.bearer());
  ASSERT_TRUE(page.Send(get));
  ASSERT_EQ(page.Receive().status, 200);
  std::deque<Connection> half;
  for (int i = 0; i < 1100; ++i) {
    half.emplace_back(server.port());
    if (half.back().ok()) half.back().Send(i % 2 == 0 ? "GET /api/runs HTTP/1.1\r\nHo" : "");
    // Whoever has few descriptors sees the first ones closed by now.
    if (half.size() > 400) half.pop_front();
    if (i % 100 != 99) continue;
    ASSERT_TRUE(page.Send(get)) << i;
    EXPECT_EQ(page.Receive().status, 200) << i;
    EXPECT_EQ(server.Get("/api/runs").status, 200) << i << ": on a new connection";
    const std::string session = server.SignIn(server.token());
    EXPECT_EQ(server.Ask("GET", "/api/runs", {session}).status, 200) << i;
  }
  // Of the oldest that are still held here the server has closed all but a few.
  int closed = 0;
  for (std::size_t i = 0; i < 300; ++i) {
    closed += half[i].Read(std::chrono::minutes(5)) ? 0 : 1;
  }
  EXPECT_EQ(closed, 300);
}

TEST_F(ServeTest, ARequestThatDoesNotComeWholeEnds) {
  Sample("one");
  auto auth = server::Auth::Fresh();
  ASSERT_TRUE(auth.ok());
  const RunningServer server({.paths = {root_},
                              .stranger_patience = std::chrono::milliseconds(200),
                              .request_patience = std::chrono::milliseconds(200)},
                             std::move(auth).value());
  Connection silent(server.port());
  Connection half(server.port());
  Connection signed_in(server.port());
  const std::string get = fmt::format("GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{}\r\n\r\n",
                                      server.port(), server.bearer());
  ASSERT_TRUE(signed_in.Send(get));
  ASSERT_EQ(signed_in.Receive().status, 200);
  ASSERT_TRUE(half.Send("GET / HTTP/1.1\r\n"));
  ASSERT_TRUE(signed_in.Send("GET / HTTP/1.1\r\n"));
  // Each is closed by the server, or this waits as long as the test may take.
  for (Connection* one : {&half, &signed_in, &silent}) {
    EXPECT_FALSE(one->Await("HTTP/1.1", std::chrono::minutes(5)));
    EXPECT_EQ(one->received(), "");
  }
}

TEST_F(ServeTest, ManyWrongTokensAreAnsweredLateAndTheRightOneAtOnce) {
  Sample("one");
  const RunningServer server({root_});
  // At once, so that it does not matter how fast each is answered.
  std::string guesses;
  for (int i = 0; i < 20; ++i) {
    guesses += fmt::format(
        "GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {:064}\r\n\r\n",
        server.port(), i);
  }
  Connection guesser(server.port());
  ASSERT_TRUE(guesser.Send(guesses));
  Reply last;
  int wrong = 0;
  while ((last = guesser.Receive()).status == 401) ++wrong;
  EXPECT_GE(wrong, 10);
  EXPECT_EQ(last.status, 429);
  EXPECT_EQ(last.headers.at("retry-after"), "1");
  EXPECT_EQ(guesser.Receive().status, 0) << "the connection is closed";
  EXPECT_EQ(server.Get("/api/runs").status, 200);
  EXPECT_EQ(server.Ask("GET", "/api/runs").status, 401) << "who shows nothing has not guessed";
  const Reply reply =
      server.Ask("POST", "/api/session", {}, JsonText(json({{"code", server.code()}})));
  EXPECT_EQ(reply.status, 200);
}

TEST_F(ServeTest, EveryAnswerForbidsForeignContent) {
  Sample("one");
  const RunningServer server({root_});
  for (const char* target : {"/", "/api/runs", "/none.js", "/api/runs/one/overview"}) {
    const Reply reply = server.Get(target);
    EXPECT_TRUE(reply.headers.at("content-security-policy").starts_with("default-src 'self'"))
        << target;
    EXPECT_NE(reply.headers.at("content-security-policy").find("frame-ancestors 'none'"),
              std::string::npos);
    EXPECT_EQ(reply.headers.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(reply.headers.at("referrer-policy"), "no-referrer");
    EXPECT_FALSE(reply.headers.contains("access-control-allow-origin"));
  }
}

TEST_F(ServeTest, ThePageIsServedWithoutSayingAnything) {
  if (server::Assets().empty()) GTEST_SKIP() << "this build has no page";
  testing::SampleRun sample;
  sample.name = "zebra";
  Sample("zebra", sample);
  const RunningServer server({root_});
  for (const char* target : {"/", "/runs", "/r/zebra", "/index.html"}) {
    const Reply reply = server.Ask("GET", target);
    EXPECT_EQ(reply.status, 200) << target;
    EXPECT_NE(reply.body.find("<html"), std::string::npos);
    EXPECT_EQ(reply.body.find("zebra"), std::string::npos) << "it names a run";
  }
  const Reply script = server.Ask("GET", "/app.js");
  EXPECT_EQ(script.status, 200);
  EXPECT_TRUE(script.headers.at("content-type").starts_with("text/javascript"));
  EXPECT_EQ(server.Ask("GET", "/app.js", {"If-None-Match: " + script.headers.at("etag")}).status,
            304);
}

TEST_F(ServeTest, MarkupInANameIsText) {
  testing::SampleRun sample;
  sample.name = "<img src=x onerror=alert(1)>";
  Sample("<img src=x onerror=alert(1)>", sample);
  const RunningServer server({root_});
  const json runs = ParseJson(server.Get("/api/runs").body)["runs"];
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0]["name"], sample.name);
  const std::string id = runs[0]["id"];
  EXPECT_EQ(id.find('<'), std::string::npos);
  const Reply reply = server.Get("/api/runs/" + id + "/overview");
  EXPECT_EQ(ParseJson(reply.body)["name"], sample.name);
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
}

TEST_F(ServeTest, TheOverviewSaysWhatTheReportSays) {
  Sample("one");
  const RunningServer server({root_});
  Connection stream(server.port());
  stream.Send(fmt::format("GET /api/runs/one/stream HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n",
                          server.bearer()));
  ASSERT_TRUE(stream.Await("\"loading\":false"));
  const json o = ParseJson(server.Get("/api/runs/one/overview").body);
  EXPECT_EQ(o["state"], "finished");
  EXPECT_EQ(o["exit"], json({{"code", 0}}));
  EXPECT_EQ(o["rank"], 0);
  EXPECT_EQ(o["ranks"], 1);
  EXPECT_EQ(o["throughput"]["steps"], 400);
  EXPECT_GT(o["throughput"]["step_ms"]["p99"], o["throughput"]["step_ms"]["p50"]);
  ASSERT_EQ(o["findings"].size(), 2U);
  EXPECT_EQ(o["verdict"]["severity"], "high");
  EXPECT_EQ(o["step_phases"].size(), 6U);
  double share = 0;
  for (const json& phase : o["step_phases"]) share += phase["share"].get<double>();
  EXPECT_NEAR(share, 1, 1e-9);
  EXPECT_EQ(o["findings"][0]["since"], "from the start");
  EXPECT_TRUE(o["rules_words"].get<std::string>().find(" other rules: ") != std::string::npos);
  ASSERT_FALSE(o["operations"].empty());
  EXPECT_EQ(o["operations"][0]["name"], "fetch");
  ASSERT_EQ(o["run_phases"].size(), 3U);
  EXPECT_EQ(o["run_phases"][0]["name"], "initialization");
  EXPECT_EQ(o["last_steps"].size(), 30U);
  EXPECT_TRUE(o["damaged"].is_null());
  EXPECT_EQ(o["attempts"][0]["start_ns"], 0);
  // A listing may be half a second old, from before the run was read.
  const json runs =
      Listing(server, [](const json& now) { return now["runs"][0]["steps"] == 400; })["runs"];
  EXPECT_EQ(runs[0]["steps"], 400);
  EXPECT_EQ(runs[0]["findings"]["high"], 2);
  EXPECT_EQ(server.Get("/api/runs/none/overview").status, 404);
  EXPECT_EQ(server.Get("/api/runs/none/stream").status, 404);
  // Since the run's begin, as all times here, and on the wall clock, as check says it.
  const auto replay = rules::ReplayRun(root_ / "one");
  ASSERT_TRUE(replay.ok());
  const json& finding = o["findings"][0];
  const rules::Incident& incident = replay->findings[0].incident;
  EXPECT_EQ(finding["start_unix_ms"], incident.start_ns / 1'000'000);
  EXPECT_EQ(finding["end_unix_ms"], incident.end_ns / 1'000'000);
  EXPECT_EQ(finding["start_ns"].get<std::int64_t>() / 1'000'000,
            incident.start_ns / 1'000'000 - o["start_unix_ms"].get<std::int64_t>());
}

/// A program that asks once gets what `ls --json` gives; nobody has opened a run here.
TEST_F(ServeTest, TheListingKnowsStepsAndFindingsOfEveryRun) {
  Sample("one");
  testing::SampleRun healthy;
  healthy.name = "two";
  healthy.steps = 300;
  healthy.learns = true;
  healthy.wait_share = 0.02;
  Sample("two", healthy);
  const RunningServer server({root_});
  const json listing = Listing(server, [](const json& now) { return now["unread"] == 0; });
  EXPECT_EQ(listing["left_out"], 0);
  ASSERT_EQ(listing["runs"].size(), 2U);
  for (const json& run : listing["runs"]) {
    const auto data = report::Load(root_ / run["id"].get<std::string>());
    ASSERT_TRUE(data.ok());
    EXPECT_EQ(run["state"], data->replay.state.state);
    EXPECT_EQ(run["attempts"], data->replay.info.attempts.size());
    EXPECT_EQ(run["steps"], data->summary.train_steps());
    EXPECT_EQ(run["verdict"], report::Verdict(*data));
    int findings = 0;
    for (const json& count : run["findings"]) findings += count.get<int>();
    EXPECT_EQ(findings, data->replay.findings.size());
  }
}

TEST_F(ServeTest, NoMoreRunsAreLoadedThanMayBe) {
  for (const char* id : {"one", "two", "three"}) Sample(id);
  auto auth = server::Auth::Fresh();
  ASSERT_TRUE(auth.ok());
  server::ServerOptions options;
  options.paths = {root_};
  options.max_loaded_runs = 2;
  const RunningServer server(options, std::move(auth).value());
  const auto open = [&](const std::string& id) {
    auto stream = std::make_unique<Connection>(server.port());
    stream->Send(fmt::format("GET /api/runs/{}/stream HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n",
                             id, server.bearer()));
    EXPECT_TRUE(stream->Await("event: overview")) << id;
    return stream;
  };
  auto one = open("one");
  const auto two = open("two");
  for (const char* what : {"overview", "stream"}) {
    const Reply reply = server.Get(std::string("/api/runs/three/") + what);
    EXPECT_EQ(reply.status, 503) << what;
    EXPECT_EQ(reply.headers.at("retry-after"), "2");
    EXPECT_NE(reply.body.find("2 runs are being looked at"), std::string::npos) << reply.body;
  }
  EXPECT_EQ(server.Get("/api/runs/one/overview").status, 200) << "those open go on";
  EXPECT_EQ(server.Get("/api/runs").status, 200);
  one.reset();
  Reply reply;
  do {
    reply = server.Get("/api/runs/three/overview");
  } while (reply.status == 503);
  EXPECT_EQ(reply.status, 200) << "the place of the page that was closed";
}

/// The page itself is everybody's; that its run is opened is not.
TEST_F(ServeTest, APageOpensNoRunForStrangers) {
  for (const char* id : {"one", "two"}) Sample(id);
  FakeClock clock;
  auto auth = server::Auth::Fresh(&clock);
  ASSERT_TRUE(auth.ok());
  server::ServerOptions options;
  options.paths = {root_};
  options.max_loaded_runs = 1;
  const RunningServer server(options, std::move(auth).value(),
                             [&] { clock.Advance(server::Auth::kCodeNs); });
  // All folders have been looked through.
  ASSERT_EQ(server.Get("/api/runs").status, 200);
  EXPECT_EQ(server.Ask("GET", "/r/one").status, server.Ask("GET", "/r/none").status);
  server.Ask("GET", "/r/one", {"Cookie: telltale_session_1=0"});
  EXPECT_EQ(server.Get("/api/runs/two/overview").status, 200) << "the only place is free";
}

TEST_F(ServeTest, TheReportIsMadeOfWhatIsKnownAndMayLoadNothing) {
  testing::SampleRun sample;
  sample.name = "<img src=x onerror=alert(1)>";
  Sample("one", sample);
  const RunningServer server({root_});
  Connection stream(server.port());
  stream.Send(fmt::format("GET /api/runs/one/stream HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n",
                          server.bearer()));
  ASSERT_TRUE(stream.Await("\"loading\":false"));
  const json o = ParseJson(server.Get("/api/runs/one/overview").body);
  const Reply reply = server.Get("/api/runs/one/report");
  ASSERT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/html; charset=utf-8");
  const std::string& policy = reply.headers.at("content-security-policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none'; style-src 'unsafe-inline';")) << policy;
  EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos);
  for (const char* header : {"x-content-type-options", "referrer-policy", "x-frame-options",
                             "cross-origin-resource-policy"}) {
    EXPECT_TRUE(reply.headers.contains(header)) << header;
  }
  EXPECT_EQ(reply.body.find("<img"), std::string::npos);
  EXPECT_NE(reply.body.find("&lt;img src=x"), std::string::npos);
  EXPECT_NE(reply.body.find("<h1 id=\"verdict\">" + o["verdict"]["title"].get<std::string>()),
            std::string::npos);
  EXPECT_EQ(server.Ask("GET", "/api/runs/one/report").status, 401) << "it names the run";
  EXPECT_EQ(server.Get("/api/runs/none/report").status, 404);
}

TEST_F(ServeTest, SeriesAndHeatmapOfAnyWindow) {
  testing::SampleRun sample;
  sample.steps = 3000;
  Sample("one", sample);
  const RunningServer server({root_});
  Connection stream(server.port());
  stream.Send(fmt::format("GET /api/runs/one/stream HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n",
                          server.bearer()));
  ASSERT_TRUE(stream.Await("\"loading\":false"));
  const auto series = [&](const std::string& query) {
    const Reply reply = server.Get("/api/runs/one/series?" + query);
    EXPECT_EQ(reply.status, 200) << query << reply.body;
    return ParseJson(reply.body);
  };
  const json loss = series("kind=scalar&name=loss&mode=TRAIN&points=100&x=step");
  EXPECT_LE(loss["t"].size(), 101U);
  EXPECT_GT(loss["t"].size(), 40U);
  for (const char* key : {"min", "max", "med", "step"}) {
    EXPECT_EQ(loss[key].size(), loss["t"].size()) << key;
  }
  EXPECT_GT(loss["step"].back(), 2900);
  const json steps = series("kind=steps&name=duration&points=50");
  EXPECT_EQ(steps["unit"], "ns");
  EXPECT_GT(*std::max_element(steps["max"].begin(), steps["max"].end()), 250'000'000);
  EXPECT_FALSE(series("kind=steps&name=data%20wait&points=50")["t"].empty());
  const json memory =
      series("kind=metric&name=mem.used&subject=node&from=10000000000&to=20000000000");
  EXPECT_NEAR(static_cast<double>(memory["t"].size()), 20, 1);
  for (const json& t : memory["t"]) {
    EXPECT_GE(t, 10'000'000'000);
    EXPECT_LT(t, 20'000'000'000);
  }
  const Reply reply = server.Get("/api/runs/one/heatmap?name=cpu.busy&columns=20");
  ASSERT_EQ(reply.status, 200);
  const json heat = ParseJson(reply.body);
  EXPECT_EQ(heat["rows"], json({"cpu:0", "cpu:1", "cpu:2", "cpu:3"}));
  EXPECT_EQ(heat["unit"], "percent");
  ASSERT_EQ(heat["values"].size(), 4U);
  for (const json& row : heat["values"]) {
    EXPECT_EQ(row.size(), heat["t"].size());
    EXPECT_EQ(std::count(row.begin(), row.end(), json(nullptr)), 0);
  }
  EXPECT_GT(heat["values"][0][0], 80) << "the busy core";

  // The same as bytes, which the page takes.
  const Reply bytes = server.Get("/api/runs/one/heatmap?name=cpu.busy&columns=20&as=bytes");
  ASSERT_EQ(bytes.status, 200);
  EXPECT_EQ(bytes.headers.at("content-type"), "application/octet-stream");
  ASSERT_GT(bytes.body.size(), 12U);
  const auto head_bytes = static_cast<std::size_t>(static_cast<unsigned char>(bytes.body[8])) +
                          256U * static_cast<unsigned char>(bytes.body[9]);
  const json head = ParseJson(bytes.body.substr(12, head_bytes));
  EXPECT_EQ(head["rows"], heat["rows"]);
  EXPECT_EQ(head["columns"], heat["t"].size());
  ASSERT_EQ(bytes.body.size(), 12 + head_bytes + 4 * heat["t"].size());
  const double first = static_cast<unsigned char>(bytes.body[12 + head_bytes]) / 2.54;
  EXPECT_NEAR(first, heat["values"][0][0].get<double>(), 0.5);

  // Several series at once: what each says alone.
  const json many = series(
      "points=50&q0=kind%3Dsteps%26name%3Dduration&q1=kind%3Dmetric%26name%3Dnone"
      "&q2=kind%3Dsteps%26name%3Ddata%2520wait");
  ASSERT_EQ(many["answers"].size(), 3U);
  EXPECT_EQ(many["answers"][0], steps);
  EXPECT_NE(many["answers"][1]["error"].get<std::string>(), "");
  EXPECT_EQ(many["answers"][2]["name"], "data wait");
  EXPECT_EQ(server.Get("/api/runs/one/series?q0=kind%3Dodd%26name%3Dloss").status, 400);
  EXPECT_EQ(server.Get("/api/runs/one/series?kind=metric&name=none").status, 404);
  EXPECT_EQ(server.Get("/api/runs/one/series?kind=odd&name=loss").status, 400);
  EXPECT_EQ(server.Get("/api/runs/one/heatmap?from=9&to=3").status, 400);
}

TEST_F(ServeTest, OneConnectionServesManyRequests) {
  Sample("one");
  const RunningServer server({root_});
  Connection connection(server.port());
  for (int i = 0; i < 5; ++i) {
    connection.Send(
        fmt::format("GET /api/runs HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n", server.bearer()));
    EXPECT_EQ(connection.Receive().status, 200);
  }
}

TEST_F(ServeTest, WhatIsTooLargeOrNoHttpEndsTheConnection) {
  const RunningServer server({root_});
  const std::string large(100'000, 'x');
  EXPECT_NE(server.Ask("GET", "/" + large).status, 200);
  EXPECT_NE(server.Ask("POST", "/api/session", {}, large).status, 200);
  Connection connection(server.port());
  connection.Send("\x16\x03\x01 hello\r\n\r\n");
  const Reply reply = connection.Receive();
  EXPECT_TRUE(reply.status == 400 || reply.status == 0);
  EXPECT_EQ(server.Get("/api/runs").status, 200);
}

TEST_F(ServeTest, ADamagedRunIsServedWithItsDamage) {
  testing::SampleRun sample;
  Sample("one", sample);
  bool hit = false;
  for (const auto& entry : fs::directory_iterator(root_ / "one/agent-sample")) {
    if (entry.path().extension() != ".parquet" ||
        !entry.path().filename().string().starts_with("metrics")) {
      continue;
    }
    fs::resize_file(entry.path(), entry.file_size() / 2);
    hit = true;
  }
  for (const auto& entry : fs::directory_iterator(root_ / "one/agent-sample")) {
    if (hit || entry.path().extension() != ".ttj") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file << std::string(64, '\0');
    hit = true;
  }
  ASSERT_TRUE(hit);
  const RunningServer server({root_});
  Connection stream(server.port());
  stream.Send(fmt::format("GET /api/runs/one/stream HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n",
                          server.bearer()));
  ASSERT_TRUE(stream.Await("\"loading\":false"));
  const json o = ParseJson(server.Get("/api/runs/one/overview").body);
  ASSERT_TRUE(o["damaged"].is_string());
  EXPECT_GT(o["throughput"]["steps"], 0);
}

TEST_F(ServeTest, ARunThatCannotBeReadSaysWhy) {
  fs::create_directories(root_ / "broken");
  std::ofstream(root_ / "broken/run.json") << "{\"format\":";
  const RunningServer server({root_});
  const Reply reply = server.Get("/api/runs/broken/overview");
  EXPECT_EQ(reply.status, 500);
  EXPECT_NE(ParseJson(reply.body)["error"].get<std::string>(), "");
  EXPECT_EQ(ParseJson(server.Get("/api/runs").body)["runs"].size(), 1U);
}

/// The page moves while the run goes on, in the order of what happens.
TEST_F(ServeTest, AStreamFollowsALiveRun) {
  testing::SampleRun sample;
  sample.steps = 200;
  const fs::path run = root_ / "live";
  fs::create_directories(run);
  ASSERT_TRUE(store::WriteRunInfo(run, testing::MakeInfo(sample, false)).ok());
  auto writer = store::Writer::Open(run / "agent-a", "agent-a");
  ASSERT_TRUE(writer.ok());
  const RunningServer server({root_});
  Connection stream(server.port());
  stream.Send(fmt::format("GET /api/runs/live/stream HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n",
                          server.bearer()));
  ASSERT_TRUE(stream.Await("event: overview"));
  ASSERT_TRUE(stream.Await("event: tick"));
  EXPECT_NE(stream.received().find("text/event-stream"), std::string::npos);
  StringPool pool;
  const std::vector<format::Batch> batches =
      testing::Cut(testing::MakeRows(sample, &pool), 200'000'000);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    ASSERT_TRUE((*writer)->Append(format::Batch(batches[i])).ok());
    if (i == batches.size() / 2) {
      stream.received().clear();
      ASSERT_TRUE(stream.Await("\"steps\":9") || stream.Await("\"steps\":1")) << "half of it";
    }
  }
  ASSERT_TRUE((*writer)->Close(true).ok());
  ASSERT_TRUE(stream.Await("\"steps\":200,"));
  ASSERT_TRUE(store::WriteRunInfo(run, testing::MakeInfo(sample, true)).ok());
  ASSERT_TRUE(stream.Await("\"state\":\"finished\""));
}

/// A run as it grows, with a watcher beside it.
class WatchedRunTest : public ServeTest {
 protected:
  void SetUp() override {
    sample_.steps = 200;
    // In the past: the watcher's clock is the machine's.
    sample_.start_ns = 1'700'000'000'000'000'000;
    fs::create_directories(run_ = root_ / "one");
    ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample_, false)).ok());
    batches_ = testing::Cut(testing::MakeRows(sample_, &pool_), 200'000'000);
    auto writer = store::Writer::Open(run_ / "agent-a", "agent-a");
    ASSERT_TRUE(writer.ok());
    writer_ = std::move(writer).value();
  }
  void Write(std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) ASSERT_TRUE(writer_->Append(batches_[i]).ok());
  }
  void End() {
    ASSERT_TRUE(writer_->Close(true).ok());
    ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample_, true)).ok());
  }
  /// A watcher that is killed after what was written so far.
  void WatchAndDie() {
    auto watcher = watch::Watcher::Open(run_);
    ASSERT_TRUE(watcher.ok());
    const auto over = (*watcher)->Poll();
    ASSERT_TRUE(over.ok());
    EXPECT_FALSE(*over);
  }
  /// A watcher that came to its end, with a finding that no replay gives.
  void PlantWatch() {
    auto watch = store::Writer::Open(run_ / "watch", "watch");
    ASSERT_TRUE(watch.ok());
    format::Batch batch;
    batch.watermark_ns = batches_.back().watermark_ns + 1;
    format::FindingRow finding;
    finding.ord_ns = batches_.back().watermark_ns;
    finding.incident = "planted";
    finding.rule = "InputBound";
    finding.severity = "low";
    finding.state = "closed";
    finding.message = "Planted";
    batch.rows.findings.push_back(finding);
    format::LedgerRow ledger;
    ledger.ord_ns = finding.ord_ns;
    ledger.name = "watch.cpu_ns";
    ledger.attempt = 1;
    batch.rows.ledger.push_back(ledger);
    ASSERT_TRUE((*watch)->Append(std::move(batch)).ok());
    ASSERT_TRUE((*watch)->Close(true).ok());
  }
  std::set<std::string> Replayed() const {
    std::set<std::string> ids;
    const auto replay = rules::ReplayRun(run_);
    EXPECT_TRUE(replay.ok());
    for (const rules::Finding& f : replay->findings) ids.insert(f.id);
    EXPECT_EQ(ids.size(), 2U);
    return ids;
  }
  static std::set<std::string> Ids(const json& overview) {
    std::set<std::string> ids;
    for (const json& f : overview["findings"]) {
      ids.insert(f["id"].get<std::string>());
      EXPECT_EQ(f["state"], "closed");
    }
    return ids;
  }
  std::unique_ptr<Connection> Stream(const RunningServer& server) const {
    auto stream = std::make_unique<Connection>(server.port());
    stream->Send(fmt::format("GET /api/runs/one/stream HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n",
                             server.bearer()));
    return stream;
  }

  testing::SampleRun sample_;
  fs::path run_;
  StringPool pool_;
  std::vector<format::Batch> batches_;
  std::unique_ptr<store::Writer> writer_;
};

TEST_F(WatchedRunTest, OfAWatcherThatDiedTheLastWordsAreNotBelieved) {
  Write(0, 2);
  WatchAndDie();
  Write(2, batches_.size());
  End();
  const RunningServer server({root_});
  const json listing = Listing(server, [](const json& now) { return now["unread"] == 0; });
  EXPECT_EQ(listing["runs"][0]["findings"]["high"], 2);
  const auto stream = Stream(server);
  ASSERT_TRUE(stream->Await("\"loading\":false"));
  EXPECT_EQ(Ids(ParseJson(server.Get("/api/runs/one/overview").body)), Replayed());
}

TEST_F(WatchedRunTest, NorWhereTheRunEndsOnTheScreen) {
  Write(0, 2);
  WatchAndDie();
  const RunningServer server({root_});
  const auto stream = Stream(server);
  ASSERT_TRUE(stream->Await("\"loading\":false"));
  Write(2, batches_.size());
  End();
  ASSERT_TRUE(stream->Await("\"state\":\"finished\""));
  const std::set<std::string> replayed = Replayed();
  for (const std::string& id : replayed) {
    EXPECT_TRUE(stream->Await("\"id\":\"" + id)) << "the finding comes by itself";
  }
  EXPECT_EQ(Ids(ParseJson(server.Get("/api/runs/one/overview").body)), replayed);
}

/// Of a watcher that came to its end the journal is believed: its findings are those of a replay,
/// and nothing is computed twice. A finding that no replay gives shows which it was.
TEST_F(WatchedRunTest, OfAWatcherThatCameToItsEndTheyAre) {
  Write(0, batches_.size());
  End();
  PlantWatch();
  const RunningServer server({root_});
  const json listing = Listing(server, [](const json& now) { return now["unread"] == 0; });
  EXPECT_EQ(listing["runs"][0]["findings"]["low"], 1);
  EXPECT_EQ(listing["runs"][0]["findings"]["high"], 0);
  EXPECT_EQ(listing["runs"][0]["steps"], 200);
  const auto stream = Stream(server);
  ASSERT_TRUE(stream->Await("\"loading\":false"));
  EXPECT_EQ(Ids(ParseJson(server.Get("/api/runs/one/overview").body)),
            (std::set<std::string>{"planted"}));
}

/// Whatever table they are of: the listing reads steps and events alone.
TEST_F(WatchedRunTest, NotWhereRecordsCameAfterIt) {
  Write(0, batches_.size());
  format::Batch batch;
  format::MetricRow metric;
  metric.time_ns = metric.ord_ns = batches_.back().watermark_ns + 1'000'000'000;
  metric.name = "mem.used";
  metric.value = 1;
  batch.watermark_ns = metric.ord_ns + 1;
  batch.rows.metrics.push_back(metric);
  ASSERT_TRUE(writer_->Append(std::move(batch)).ok());
  End();
  PlantWatch();
  const RunningServer server({root_});
  const json listing = Listing(server, [](const json& now) { return now["unread"] == 0; });
  EXPECT_EQ(listing["runs"][0]["findings"]["low"], 0);
  EXPECT_EQ(listing["runs"][0]["findings"]["high"], 2);
}

TEST_F(ServeTest, ARunThatBeginsLaterIsFound) {
  const RunningServer server({root_});
  EXPECT_EQ(ParseJson(server.Get("/api/runs").body)["runs"].size(), 0U);
  Sample("later");
  EXPECT_EQ(server.Get("/api/runs/later/overview").status, 200);
}

}  // namespace
}  // namespace telltale
