// SPDX-License-Identifier: Apache-2.0
// What the overview says of a run, from records given to it one by one; and that the page's types
// know all of it.
#include "server/overview.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/units.h"
#include "server/run_view.h"

namespace telltale::server {
namespace {

using nlohmann::json;

constexpr std::int64_t kBegin = 1'700'000'000'000'000'000;

/// Numbers are joined to their units by another space.
std::string Spaced(std::string text) {
  constexpr std::string_view kNoBreak = "\u202f";
  for (std::size_t at = 0; (at = text.find(kNoBreak)) != std::string::npos;) {
    text.replace(at, kNoBreak.size(), " ");
  }
  return text;
}

class OverviewTest : public ::testing::Test {
 protected:
  void SetUp() override { view_.begin_ns = kBegin; }

  template <class Row>
  void Feed(Row row) {
    view_.OnRecord({row.ord_ns, writer_, Row::kTable, &row});
  }
  void Step(std::int32_t rank, std::int64_t step) {
    format::StepRow row;
    row.time_ns = kBegin + step * 100 * kMs;
    row.duration_ns = (rank + 1) * 10 * kMs;
    row.ord_ns = row.time_ns + row.duration_ns;
    row.forward_ns = row.duration_ns;
    row.step = step;
    row.mode = "TRAIN";
    row.rank = rank;
    row.attempt = 1;
    Feed(row);
  }
  void Scalar(std::int32_t rank, std::int64_t step, const char* name, const char* mode,
              double value) {
    format::ScalarRow row;
    row.time_ns = row.ord_ns = kBegin + step * 100 * kMs + kMs;
    row.name = name;
    row.mode = mode;
    row.step = step;
    row.rank = rank;
    row.attempt = 1;
    row.value = value;
    Feed(row);
  }
  void Event(const char* kind, std::int32_t pid, const char* data, std::int32_t rank = 0) {
    format::EventRow row;
    row.time_ns = row.ord_ns = kBegin;
    row.kind = kind;
    row.data = data;
    row.pid = pid;
    row.rank = rank;
    row.attempt = 1;
    Feed(row);
  }
  void Metric(const char* name, const char* subject) {
    format::MetricRow row;
    row.time_ns = row.ord_ns = kBegin + kMs;
    row.node = writer_ == 0 ? "n0" : "n1";
    row.name = name;
    row.subject = subject;
    row.unit = "percent";
    row.value = 42;
    Feed(row);
  }
  json Overview() const { return ParseJson(OverviewJson(view_, {.id = "one"})); }
  json Series(SeriesKind kind, const std::string& name) const {
    SeriesQuery query;
    query.kind = kind;
    query.name = name;
    const auto body = view_.SeriesJson(query);
    EXPECT_TRUE(body.ok()) << body.status().message();
    return body.ok() ? ParseJson(*body) : json();
  }

  RunView view_;
  std::uint32_t writer_ = 0;  ///< Of the records that are fed: the agent of a node.
};

TEST_F(OverviewTest, TheExitIsACodeOrASignal) {
  EXPECT_TRUE(Overview()["exit"].is_null());
  view_.data.replay.state.exit_code = 3;
  EXPECT_EQ(JsonText(Overview()["exit"]), R"({"code":3})");
  view_.data.replay.state.exit_code.reset();
  view_.data.replay.state.signal = 9;
  EXPECT_EQ(JsonText(Overview()["exit"]), R"({"signal":9})");
}

TEST_F(OverviewTest, TimesThatLieFarApartMakeShares) {
  // Two attempts, each from the first of all times to the last.
  for (std::uint32_t attempt = 1; attempt <= 2; ++attempt) {
    for (const auto& [kind, time_ns] : {std::pair("run.attempt_start", format::kTimeBound.least),
                                        std::pair("run.attempt_end", format::kTimeBound.most)}) {
      format::EventRow row;
      row.time_ns = row.ord_ns = time_ns;
      row.kind = kind;
      row.attempt = attempt;
      Feed(row);
    }
  }
  Event("gap", 0, R"({"from_ns": -9223372036854775808, "to_ns": 9223372036854775807})");
  const json o = Overview();
  double sum = 0;
  for (const json& phase : o["run_phases"]) {
    EXPECT_GE(phase["share"].get<double>(), 0);
    EXPECT_LE(phase["share"].get<double>(), 1);
    sum += phase["share"].get<double>();
  }
  EXPECT_GT(sum, 0.5);
  EXPECT_TRUE(o["gaps"].empty());
}

TEST_F(OverviewTest, StepsAndScalarsAreOfTheSameRank) {
  EXPECT_TRUE(Overview()["rank"].is_null());
  EXPECT_EQ(Overview()["ranks"], 0);
  // What is logged in a step comes before the step, which is told when it ends.
  Scalar(1, 0, "loss", "TRAIN", 5);
  Scalar(1, 0, "only_of_one", "TRAIN", 7);
  EXPECT_EQ(Overview()["rank"], 1);
  EXPECT_EQ(Overview()["loss"]["first"], 5);
  Scalar(0, 0, "loss", "TRAIN", 2);
  Step(1, 0);
  json o = Overview();
  EXPECT_EQ(o["rank"], 1) << "it alone trains so far";
  EXPECT_EQ(o["ranks"], 2);
  EXPECT_EQ(o["loss"]["first"], 5);
  EXPECT_EQ(Series(SeriesKind::kScalar, "loss")["max"], json::array({5.0}));
  EXPECT_EQ(o["scalars"].size(), 2U);
  Step(0, 0);
  Step(1, 1);
  Scalar(1, 1, "loss", "TRAIN", 4);
  o = Overview();
  EXPECT_EQ(o["rank"], 0) << "the lowest that trains";
  EXPECT_EQ(o["loss"]["first"], 2) << "from before its first step ended";
  EXPECT_EQ(o["loss"]["last"], 2);
  EXPECT_EQ(o["scalars"].size(), 1U);
  EXPECT_EQ(o["last_steps"].size(), 1U);
  EXPECT_EQ(Series(SeriesKind::kScalar, "loss")["max"], json::array({2.0}));
  EXPECT_EQ(Series(SeriesKind::kSteps, "duration")["max"].size(), 1U);
}

TEST_F(OverviewTest, ARankThatOnlyEvaluatesIsNotShown) {
  Scalar(0, 0, "accuracy", "EVAL", 0.5);
  Step(1, 0);
  Scalar(1, 1, "loss", "TRAIN", 3);
  const json o = Overview();
  EXPECT_EQ(o["rank"], 1);
  EXPECT_EQ(o["ranks"], 2);
  EXPECT_EQ(o["loss"]["last"], 3);
  ASSERT_EQ(o["scalars"].size(), 1U);
  EXPECT_EQ(o["scalars"][0]["name"], "loss");
}

TEST_F(OverviewTest, ProcessesHaveLabels) {
  Event("process.start", 4700, R"({"kind":"trainer"})");
  Event("worker.start", 4711, R"({"worker_id":0,"workers":2})");
  Event("process.start", 4711, R"({"kind":"worker"})");
  Event("process.start", 4712, R"({"kind":"worker"})");
  Event("process.start", 4800, R"({"kind":"other"})");
  for (const char* subject :
       {"proc:tree", "proc:4700", "proc:4711", "proc:4712", "proc:4800", "proc:9", "proc:x"}) {
    Metric("proc.cpu", subject);
  }
  Metric("mem.used", "node");
  const json metrics = Overview()["metrics"];
  ASSERT_EQ(metrics.size(), 2U);
  EXPECT_EQ(metrics[0]["name"], "mem.used");
  EXPECT_EQ(metrics[0]["labels"], json::object());
  EXPECT_EQ(metrics[1]["subjects"].size(), 7U);
  EXPECT_EQ(metrics[1]["labels"], json({{"proc:4700", "trainer (4700)"},
                                        {"proc:4711", "worker 0 (4711)"},
                                        {"proc:4712", "worker (4712)"}}));
  Step(0, 0);
  Step(1, 0);
  EXPECT_EQ(Overview()["metrics"][1]["labels"]["proc:4700"], "trainer, rank 0 (4700)");
  // The number is given out again.
  Event("process.start", 4711, R"({"kind":"trainer"})", 1);
  EXPECT_EQ(Overview()["metrics"][1]["labels"]["proc:4711"], "trainer, rank 1 (4711)");
}

/// Containers count their processes from 1, so several nodes have the same pids.
TEST_F(OverviewTest, ProcessesOfSeveralNodesHaveLabelsOfTheirOwn) {
  Event("process.start", 7, R"({"kind":"trainer"})");
  Event("process.start", 8, R"({"kind":"worker"})");
  Event("worker.start", 8, R"({"worker_id":0,"workers":1})");
  Metric("proc.cpu", "proc:7");
  Metric("proc.cpu", "proc:8");
  writer_ = 1;
  Event("process.start", 7, R"({"kind":"worker"})", 1);
  Event("worker.start", 7, R"({"worker_id":3,"workers":4})", 1);
  Metric("proc.cpu", "proc:7");
  Metric("proc.cpu", "proc:8");
  EXPECT_EQ(Overview()["metrics"][0]["labels"], json({{"proc:7", "trainer (7)"},
                                                      {"proc:8", "worker 0 (8)"},
                                                      {"n1/proc:7", "worker 3 (7) on n1"}}));
}

TEST_F(OverviewTest, TheGovernorIsShownWithItsAccount) {
  json capture = Overview()["capture"];
  EXPECT_EQ(capture["words"], "");
  EXPECT_EQ(capture["stretch"], 1);
  EXPECT_TRUE(capture["share"].is_null());
  EXPECT_EQ(capture["shed"], json::array());
  EXPECT_EQ(capture["changes"], json::array());
  const auto say = [&](const char* kind, std::int64_t ms, const char* message, const char* data) {
    format::EventRow row;
    row.time_ns = row.ord_ns = kBegin + ms * kMs;
    row.kind = kind;
    row.message = message;
    row.data = data;
    row.attempt = 1;
    Feed(row);
  };
  say("plan", 1, "capture plan 1", "{}");
  say("governor", 5, "<b>too dear</b>",
      R"({"stretch":27,"shed":["values","histograms"],"sampling_stretch":2,"share":0.2,)"
      R"("own_share":0.004,"budget":0.01})");
  capture = Overview()["capture"];
  EXPECT_EQ(Spaced(capture["words"]),
            "Capture: Telltale acted on its budget once, 4.00 ms into the run: <b>too dear</b>.");
  EXPECT_EQ(capture["budget"], 0.01);
  EXPECT_EQ(capture["share"], 0.2);
  EXPECT_EQ(capture["own_share"], 0.004);
  EXPECT_EQ(capture["stretch"], 27);
  EXPECT_EQ(capture["sampling_stretch"], 2);
  EXPECT_EQ(capture["shed"], json({"values", "histograms"}));
  EXPECT_EQ(capture["decisions"], 1);
  // Another plan begins without any thinning; what was done stays on record.
  say("plan", 9, "capture plan 2", "{}");
  capture = Overview()["capture"];
  EXPECT_EQ(capture["stretch"], 1);
  EXPECT_EQ(capture["shed"], json::array());
  EXPECT_TRUE(capture["share"].is_null());
  EXPECT_EQ(capture["sampling_stretch"], 2);  // The machine's samples are no part of the plan.
  ASSERT_EQ(capture["changes"].size(), 3U);
  EXPECT_EQ(capture["changes"][0]["by"], "plan");
  EXPECT_EQ(capture["changes"][1]["by"], "governor");
  EXPECT_EQ(capture["changes"][1]["at_ns"], 5 * kMs);
  EXPECT_EQ(capture["changes"][2]["message"], "capture plan 2");
  // A new agent stretches nothing, and says no plan where it goes on for a dead one.
  say("agent.start", 9, "", R"({"again":true})");
  EXPECT_EQ(Overview()["capture"]["sampling_stretch"], 1);
  // What cannot be read is nothing known, not a failure.
  say("governor", 10, "odd", R"({"stretch":"many","shed":7})");
  EXPECT_EQ(Overview()["capture"]["stretch"], 1);
}

TEST_F(OverviewTest, EachNodeHasAGovernor) {
  const auto say = [&](const char* kind, std::int64_t ms, const char* message, const char* data,
                       std::uint32_t attempt = 1) {
    format::EventRow row;
    row.time_ns = row.ord_ns = kBegin + ms * kMs;
    row.kind = kind;
    row.message = message;
    row.data = data;
    row.attempt = attempt;
    Feed(row);
  };
  Metric("proc.cpu", "proc:7");
  say("governor", 5, "dear", R"({"stretch":8,"shed":["values"],"share":0.2})");
  writer_ = 1;
  Metric("proc.cpu", "proc:7");
  say("governor", 6, "less dear", R"({"stretch":2,"shed":["values","sampling"],"share":0.1})");
  json capture = Overview()["capture"];
  EXPECT_EQ(capture["stretch"], 8);
  EXPECT_EQ(capture["share"], 0.2);
  EXPECT_EQ(capture["shed"], json({"values", "sampling"}));
  EXPECT_EQ(Spaced(capture["words"]),
            "Capture: Telltale acted on its budget 2 times, last 5.00 ms into the run on n1: less "
            "dear.");
  EXPECT_EQ(capture["changes"][0]["message"], "n0: dear");
  // One node's new plan, or agent, is none of the others'.
  say("plan", 7, "capture plan 2", "{}");
  EXPECT_EQ(Overview()["capture"]["shed"], json({"values"}));
  writer_ = 0;
  say("agent.start", 8, "", "{}");
  EXPECT_EQ(Overview()["capture"]["stretch"], 1);
  // Of an attempt before nothing holds, though another agent begins this one.
  say("governor", 9, "dear", R"({"stretch":8})");
  writer_ = 2;
  say("agent.start", 10, "", "{}", 2);
  EXPECT_EQ(Overview()["capture"]["stretch"], 1);
}

/// Names at the first level of `export interface Overview`.
std::set<std::string> TypedKeys() {
  std::ifstream in(TELLTALE_PAGE_API);
  EXPECT_TRUE(in.good()) << TELLTALE_PAGE_API;
  std::set<std::string> keys;
  const std::regex key(R"(^  (\w+)\??:.*)");
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("export interface Overview ")) inside = true;
    if (inside && line.starts_with("}")) break;
    std::smatch match;
    if (inside && std::regex_match(line, match, key)) keys.insert(match[1].str());
  }
  return keys;
}

TEST_F(OverviewTest, ThePagesTypesHaveEachOfItsKeys) {
  const json o = Overview();
  std::set<std::string> sent;
  for (const auto& [key, value] : o.items()) sent.insert(key);
  EXPECT_EQ(TypedKeys(), sent);
}

}  // namespace
}  // namespace telltale::server
