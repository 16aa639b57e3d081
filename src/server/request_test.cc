// SPDX-License-Identifier: Apache-2.0
#include "server/request.h"

#include <gtest/gtest.h>

namespace telltale::server {
namespace {

TEST(RequestTest, TargetIsSplitBeforeItIsDecoded) {
  const auto target = ParseTarget("/api/runs/a%2F..%2Fb/series?name=cpu.busy&subject=cpu%3A0&x=");
  ASSERT_TRUE(target);
  EXPECT_EQ(target->path, (std::vector<std::string>{"api", "runs", "a/../b", "series"}));
  EXPECT_EQ(target->query.at("name"), "cpu.busy");
  EXPECT_EQ(target->query.at("subject"), "cpu:0");
  EXPECT_EQ(target->query.at("x"), "");
}

TEST(RequestTest, BrokenTargetsAreRefused) {
  for (const char* text : {"", "api/runs", "/a%", "/a%2", "/a%zz", "/a%00b", "http://x/",
                           "/api/../x", "/%2e", "/a/..", "/%2e%2e", "/.%2e"}) {
    EXPECT_FALSE(ParseTarget(text)) << text;
  }
  EXPECT_TRUE(ParseTarget("/")->path.size() == 1);
  EXPECT_TRUE(ParseTarget("/...") && ParseTarget("/a..b"));
}

TEST(RequestTest, HostNames) {
  EXPECT_EQ(HostName("LocalHost:80"), "localhost");
  EXPECT_EQ(HostName("[::1]:8080"), "[::1]");
  EXPECT_EQ(HostName("::1"), "[::1]");
  EXPECT_EQ(HostName("[::1"), "");
  EXPECT_EQ(HostName("[::1]evil"), "");
  EXPECT_EQ(HostName(""), "");
  for (const char* text : {"127.0.0.1:80@evil", "evil@127.0.0.1", "127.0.0.1:80x", "127.0.0.1:+80",
                           "[::1]:80@evil", "127.0.0.1/evil", "127.0.0.1,evil", "local host"}) {
    EXPECT_EQ(HostName(text), "") << text;
  }
  EXPECT_EQ(HostName("a-b_c.example.org:"), "a-b_c.example.org");
}

TEST(RequestTest, HostsAreLoopbackAndWhatWasAllowed) {
  const HostList hosts({"10.1.2.3", "2001:db8::1"}, {"Lab.example.org"});
  EXPECT_TRUE(hosts.Allows("127.0.0.1:4000"));
  EXPECT_TRUE(hosts.Allows("localhost"));
  EXPECT_TRUE(hosts.Allows("[::1]:4000"));
  EXPECT_TRUE(hosts.Allows("lab.example.org:4000"));
  EXPECT_FALSE(hosts.Allows("evil.example.org"));
  EXPECT_FALSE(hosts.Allows("127.0.0.1.evil.example.org"));
  EXPECT_FALSE(hosts.Allows(""));
  EXPECT_FALSE(hosts.Allows("0.0.0.0"));
  EXPECT_TRUE(hosts.Allows("10.1.2.3:80"));
  EXPECT_TRUE(hosts.Allows("[2001:DB8::1]:80"));
}

TEST(RequestTest, OriginsOfOthers) {
  EXPECT_FALSE(CrossOrigin("", "", "localhost:1"));
  EXPECT_FALSE(CrossOrigin("http://localhost:1", "same-origin", "localhost:1"));
  EXPECT_TRUE(CrossOrigin("http://localhost:2", "", "localhost:1"));
  EXPECT_FALSE(CrossOrigin("https://localhost:1", "", "localhost:1"));
  EXPECT_TRUE(CrossOrigin("https://elsewhere:1", "", "localhost:1"));
  EXPECT_TRUE(CrossOrigin("null", "", "localhost:1"));
  EXPECT_TRUE(CrossOrigin("", "cross-site", "localhost:1"));
}

TEST(RequestTest, Cookies) {
  EXPECT_EQ(CookieValue("a=1; telltale_session=xyz; b=2", "telltale_session"), "xyz");
  EXPECT_EQ(CookieValue("xtelltale_session=xyz", "telltale_session"), "");
  EXPECT_EQ(CookieValue("telltale_session", "telltale_session"), "");
  EXPECT_EQ(CookieValue("", "telltale_session"), "");
}

TEST(RequestTest, ACodeIsReadOfABodyThatHasOne) {
  EXPECT_EQ(SessionCode(R"({"code": "abc", "more": [1]})"), "abc");
  for (const char* other : {"", "abc", "[]", "null", R"({"code": 1})", R"({"code": {"code": "a"}})",
                            R"({"Code": "abc"})", R"({"code": "abc")"}) {
    EXPECT_EQ(SessionCode(other), "") << other;
  }
  EXPECT_EQ(SessionCode(std::string(100'000, '[')), "");
}

TEST(RequestTest, QueriesAreCheckedWithTheirBounds) {
  const auto parse = [](const char* text) { return ParseSeries(*ParseTarget(text)); };
  const auto good = parse("/?kind=scalar&name=loss&mode=TRAIN&from=5&to=10&points=7&x=step");
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->kind, SeriesKind::kScalar);
  EXPECT_EQ(good->from_ns, 5);
  EXPECT_EQ(good->to_ns, 10);
  EXPECT_EQ(good->points, 7U);
  EXPECT_TRUE(good->with_step);
  for (const char* bad : {"/?kind=scalar", "/?name=a&kind=odd", "/?name=a&from=x",
                          "/?name=a&from=10&to=10", "/?name=a&points=0", "/?name=a&points=1000000",
                          "/?name=a&from=1e3", "/?name=a&from=99999999999999999999"}) {
    const auto query = parse(bad);
    EXPECT_FALSE(query.ok()) << bad;
    EXPECT_EQ(query.status().code(), Code::kUsage) << bad;
  }
}

TEST(RequestTest, SeveralSeriesInOneRequest) {
  const auto parse = [](const char* text) { return ParseManySeries(*ParseTarget(text)); };
  const auto many = parse(
      "/?from=5&to=10&points=9&q0=kind%3Dsteps%26name%3Ddata%2520wait%26x%3Dstep"
      "&q1=name%3Dmem.used%26subject%3Dproc%253Atree%26points%3D7&q3=name%3Dx");
  ASSERT_TRUE(many.ok()) << many.status().message();
  ASSERT_EQ(many->size(), 2U) << "they are counted without a gap";
  EXPECT_EQ((*many)[0].kind, SeriesKind::kSteps);
  EXPECT_EQ((*many)[0].name, "data wait");
  EXPECT_TRUE((*many)[0].with_step);
  EXPECT_EQ((*many)[0].points, 9U);
  EXPECT_EQ((*many)[1].kind, SeriesKind::kMetric);
  EXPECT_EQ((*many)[1].subject, "proc:tree");
  EXPECT_FALSE((*many)[1].with_step);
  EXPECT_EQ((*many)[1].points, 7U) << "its own before the request's";
  for (const SeriesQuery& one : *many) {
    EXPECT_EQ(one.from_ns, 5);
    EXPECT_EQ(one.to_ns, 10);
  }
  EXPECT_TRUE(parse("/?name=loss")->empty());
  for (const char* bad : {"/?q0=", "/?q0=name%3Da&q1=name%3Da%26points%3D0", "/?q0=name%3D%25",
                          "/?q0=name%3Da&from=x"}) {
    EXPECT_EQ(parse(bad).status().code(), Code::kUsage) << bad;
  }
  std::string all = "/?x=step";
  for (int i = 0; i < 65; ++i) all += "&q" + std::to_string(i) + "=name%3Da";
  EXPECT_EQ(parse(all.c_str()).status().code(), Code::kUsage);
}

TEST(RequestTest, HeatMapsAsBytesOrJson) {
  const auto parse = [](const char* text) { return ParseHeatmap(*ParseTarget(text)); };
  EXPECT_FALSE(parse("/")->as_bytes);
  EXPECT_FALSE(parse("/?as=json")->as_bytes);
  EXPECT_TRUE(parse("/?as=bytes")->as_bytes);
  EXPECT_EQ(parse("/?as=png").status().code(), Code::kUsage);
}

}  // namespace
}  // namespace telltale::server
