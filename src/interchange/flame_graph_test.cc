// SPDX-License-Identifier: Apache-2.0
#include "interchange/flame_graph.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace telltale::interchange {
namespace {

using nlohmann::json;

std::string Page(const FlameGraph& graph, const FlameGraphText& text) {
  std::string out;
  const auto file = ExportFile::To([&](std::string_view piece) {
    out += piece;
    return true;
  });
  const Status written = graph.Write(text, file.get());
  EXPECT_TRUE(written.ok()) << written.message();
  return out;
}

json DataOf(const std::string& page) {
  const std::string_view begin = "id=\"data\">";
  const std::size_t at = page.find(begin) + begin.size();
  return json::parse(page.substr(at, page.find("</script>", at) - at));
}

void Add(FlameGraph* graph, const std::vector<std::string_view>& frames, std::int64_t value) {
  graph->Add(frames, value);
}

TEST(FlameGraphTest, ATreeWithTheSumsOfWhatIsBelow) {
  FlameGraph graph;
  Add(&graph, {"main", "forward", "hot"}, 700);
  Add(&graph, {"main", "forward"}, 100);
  Add(&graph, {"main", "backward", "hot"}, 200);
  Add(&graph, {"main", "never"}, 0);
  EXPECT_EQ(graph.total(), 1000);
  EXPECT_EQ(graph.stacks(), 3U);
  const std::string page = Page(graph, {"run", "of all", "count"});
  const json data = DataOf(page);
  EXPECT_EQ(data["unit"], "count");
  const json& names = data["names"];
  const json& main = data["tree"][2][0];
  EXPECT_EQ(data["tree"][1], 1000);
  EXPECT_EQ(names[main[0].get<std::size_t>()], "main");
  EXPECT_EQ(main[1], 1000);
  ASSERT_EQ(main[2].size(), 2U);
  for (const json& phase : main[2]) {
    EXPECT_EQ(phase[1], names[phase[0].get<std::size_t>()] == "forward" ? 800 : 200);
  }
  // By their own: both places of it together.
  EXPECT_NE(page.find("90.0&nbsp;%</td><td>hot"), std::string::npos) << page;
}

TEST(FlameGraphTest, SumsThatNothingHoldsAreTheMostThereIs) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  FlameGraph graph;
  Add(&graph, {"main", "a"}, kMost);
  Add(&graph, {"main", "b"}, kMost);
  EXPECT_EQ(graph.total(), kMost);
  const json data = DataOf(Page(graph, {"run", "of all", "nanoseconds"}));
  EXPECT_EQ(data["tree"][2][0][1], kMost);
}

TEST(FlameGraphTest, HostileNamesStayNames) {
  FlameGraph graph;
  const std::string_view name = "</script><script>alert(1)</script>&\"'\x1b[2J\xff";
  Add(&graph, {name}, 1);
  const std::string page = Page(graph, {std::string(name), std::string(name), "nanoseconds"});
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find('\x1b'), std::string::npos);
  EXPECT_EQ(page.find('\xff'), std::string::npos);
  const json data = DataOf(page);
  EXPECT_TRUE(data["names"][1].get<std::string>().starts_with("</script><script>alert(1)"));
  // Whatever it loads, it loads from nowhere.
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.find("http://"), std::string::npos);
  EXPECT_EQ(page.find("https://"), std::string::npos);
}

TEST(FlameGraphTest, WhatIsTooSmallIsLeftOutAndSaid) {
  FlameGraph graph;
  Add(&graph, {"large"}, 1'000'000);
  Add(&graph, {"small"}, 1);
  const std::string page = Page(graph, {"run", "all", "count"});
  EXPECT_EQ(DataOf(page)["tree"][2].size(), 1U);
  EXPECT_NE(page.find("1 frames of less than 0.01 % left out"), std::string::npos);
}

TEST(FlameGraphTest, NothingIsAPageToo) {
  const std::string page = Page(FlameGraph(), {"run", "all", "count"});
  EXPECT_EQ(DataOf(page)["tree"][1], 0);
}

}  // namespace
}  // namespace telltale::interchange
