// SPDX-License-Identifier: Apache-2.0
// The listing of runs, piece by piece: what is read, what is not read again, what is left out.
#include "server/run_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/json.h"
#include "store/watch_log.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"
#include "watch/watcher.h"

namespace telltale::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr RunList::Deadline kOnePiece = RunList::Deadline::min();
constexpr RunList::Deadline kAll = RunList::Deadline::max();

class RunListTest : public ::testing::Test {
 protected:
  void Sample(const std::string& id, int steps = 20) {
    testing::SampleRun sample;
    sample.steps = steps;
    ASSERT_TRUE(testing::WriteRun(root_ / id, sample).ok());
  }
  static json Whole(RunList* list) {
    list->Begin();
    const RunList::Progress progress = list->Advance(kAll, {});
    EXPECT_FALSE(progress.more);
    EXPECT_TRUE(progress.found && progress.looked);
    const RunList::Rendered rendered = list->Render({});
    EXPECT_EQ(rendered.unread, 0U);
    return ParseJson(rendered.json);
  }

  const testing::TempFolder folder_{"list"};
  const fs::path root_ = folder_.path();
};

TEST_F(RunListTest, IsMadeInPieces) {
  for (int i = 0; i < 30; ++i) Sample("run-" + std::to_string(i), 5);
  RunList list({root_});
  list.Begin();
  int pieces = 1;
  int looked_at = 0;
  for (RunList::Progress progress; (progress = list.Advance(kOnePiece, {})).more; ++pieces) {
    if (!progress.looked) continue;
    looked_at = pieces;
    // Known at once: what run.json says.
    const json runs = ParseJson(list.Render({}).json)["runs"];
    ASSERT_EQ(runs.size(), 30U);
    EXPECT_EQ(runs[0]["state"], "finished");
    EXPECT_TRUE(runs[0]["steps"].is_null());
  }
  EXPECT_GT(looked_at, 60) << "each folder and each run is a piece";
  EXPECT_GT(pieces, looked_at + 30) << "and so is what is read of a run";
  const json runs = ParseJson(list.Render({}).json)["runs"];
  for (const json& run : runs) EXPECT_EQ(run["steps"], 5);
}

TEST_F(RunListTest, ARunThatThereWasNoMemoryForIsReadAgain) {
  Sample("one", 5);
  int looks = 0;
  const auto throws_once = [&](const report::RunData&) {
    if (++looks == 1) throw std::bad_alloc();
  };
  const auto read = [](RunCard* card) {
    card->Look();
    while (card->Advance(kAll)) {
    }
    return ParseJson(card->json());
  };
  RunCard card("one", root_ / "one", throws_once, std::chrono::seconds(0));
  EXPECT_EQ(read(&card)["state"], "unreadable");
  EXPECT_EQ(read(&card)["steps"], 5);
  EXPECT_TRUE(card.replay_status().ok());

  // Not before its time.
  looks = 0;
  RunCard waits("one", root_ / "one", throws_once, std::chrono::hours(1));
  read(&waits);
  EXPECT_EQ(read(&waits)["state"], "unreadable");
  EXPECT_EQ(looks, 1);
}

TEST_F(RunListTest, SaysHowManyItLeavesOut) {
  for (const char* id : {"a", "b", "c", "d", "e"}) Sample(id, 5);
  RunList list({root_}, 3);
  const json listing = Whole(&list);
  EXPECT_EQ(listing["runs"].size(), 3U);
  EXPECT_EQ(listing["left_out"], 2);
  fs::remove_all(root_ / "a");
  fs::remove_all(root_ / "b");
  EXPECT_EQ(Whole(&list)["left_out"], 0);
}

/// Both where the watcher's findings stand and where a replay gives them.
TEST_F(RunListTest, SaysWhichRunsAreDamaged) {
  testing::SampleRun sample;
  sample.start_ns = 1'700'000'000'000'000'000;  // Before the watcher's clock.
  for (const char* id : {"whole", "replayed", "watched"}) {
    ASSERT_TRUE(testing::WriteRun(root_ / id, sample).ok());
  }
  auto watcher = watch::Watcher::Open(root_ / "watched");
  ASSERT_TRUE(watcher.ok()) << watcher.status().message();
  for (bool over = false; !over;) {
    const auto polled = (*watcher)->Poll();
    ASSERT_TRUE(polled.ok()) << polled.status().message();
    over = *polled;
  }
  for (const char* id : {"replayed", "watched"}) {
    bool hit = false;
    for (const auto& entry : fs::directory_iterator(root_ / id / "agent-sample")) {
      if (!entry.path().filename().string().starts_with("steps-")) continue;
      std::ofstream(entry.path(), std::ios::binary | std::ios::trunc) << "no parquet";
      hit = true;
    }
    ASSERT_TRUE(hit) << "the run has a segment of steps";
  }
  fs::create_directories(root_ / "unreadable");
  std::ofstream(root_ / "unreadable/run.json") << "{\"format\":";
  RunList list({root_});
  const json listing = Whole(&list);
  std::map<std::string, json> damaged;
  for (const json& run : listing["runs"]) damaged[run["id"].get<std::string>()] = run["damaged"];
  ASSERT_EQ(damaged.size(), 4U);
  EXPECT_EQ(damaged["replayed"], true);
  EXPECT_EQ(damaged["watched"], true);
  EXPECT_EQ(damaged["whole"], false);
  EXPECT_TRUE(damaged["unreadable"].is_null()) << "nothing of it was read";
}

TEST_F(RunListTest, ReadsARunThatIsOverOnce) {
  Sample("one");
  RunCard card("one", root_ / "one");
  card.Look();
  EXPECT_FALSE(card.whole());
  while (card.Advance(kAll)) {
  }
  EXPECT_TRUE(card.whole());
  card.Look();
  EXPECT_TRUE(card.whole()) << "nothing has changed";
  // A watcher that was started by hand writes in its folder.
  auto watch = store::Writer::Open(root_ / "one/watch", "watch");
  ASSERT_TRUE(watch.ok());
  card.Look();
  EXPECT_FALSE(card.whole());
  while (card.Advance(kAll)) {
  }
  EXPECT_TRUE(card.whole());
  EXPECT_EQ(ParseJson(card.json())["steps"], 20);
  // A further attempt.
  testing::SampleRun sample;
  store::RunInfo info = testing::MakeInfo(sample, true);
  info.attempts.push_back(info.attempts.back());
  info.attempts.back().number = 2;
  ASSERT_TRUE(store::WriteRunInfo(root_ / "one", info).ok());
  card.Look();
  EXPECT_FALSE(card.whole());
  EXPECT_EQ(ParseJson(card.json())["attempts"], 2);
  EXPECT_EQ(ParseJson(card.json())["steps"], 20) << "what was known stands meanwhile";
}

TEST_F(RunListTest, CountsTheStepsOfARunThatGoesOn) {
  testing::SampleRun sample;
  sample.steps = 40;
  fs::create_directories(root_ / "live");
  ASSERT_TRUE(store::WriteRunInfo(root_ / "live", testing::MakeInfo(sample, false)).ok());
  auto writer = store::Writer::Open(root_ / "live/agent-a", "agent-a");
  // Holds up whoever waits for all writers.
  auto silent = store::Writer::Open(root_ / "live/agent-b", "agent-b");
  ASSERT_TRUE(writer.ok() && silent.ok());
  StringPool pool;
  const auto batches = testing::Cut(testing::MakeRows(sample, &pool), 200'000'000);
  RunList list({root_});
  const auto steps = [&] { return Whole(&list)["runs"][0]["steps"].get<int>(); };
  EXPECT_EQ(steps(), 0);
  std::set<int> seen;
  for (const format::Batch& batch : batches) {
    ASSERT_TRUE((*writer)->Append(format::Batch(batch)).ok());
    seen.insert(steps());
  }
  EXPECT_GT(seen.size(), 5U);
  EXPECT_EQ(*seen.rbegin(), 40);
}

/// As check, ls and the page have it, also where no attempt's end was written.
TEST_F(RunListTest, ARunWithoutAnEndTakesAsLongAsItsRecordsGo) {
  testing::SampleRun sample;
  sample.steps = 40;
  for (const char* id : {"running", "left"}) {
    fs::create_directories(root_ / id);
    store::RunInfo info = testing::MakeInfo(sample, false);
    if (id == std::string("left")) info.supervisor_start_ticks = 1;
    ASSERT_TRUE(store::WriteRunInfo(root_ / id, info).ok());
    auto writer = store::Writer::Open(root_ / id / "agent-a", "agent-a");
    ASSERT_TRUE(writer.ok());
    StringPool pool;
    format::Rows rows = testing::MakeRows(sample, &pool);
    std::erase_if(rows.events, [](const auto& e) { return e.kind == "run.attempt_end"; });
    auto batches = testing::Cut(rows, 200'000'000);
    format::Batch last;
    format::MetricRow metric;
    metric.time_ns = metric.ord_ns = batches.back().watermark_ns + 60'000'000'000;
    metric.name = "mem.used";
    metric.value = 1;
    last.watermark_ns = metric.ord_ns + 1;
    last.rows.metrics.push_back(metric);
    batches.push_back(std::move(last));
    for (format::Batch& batch : batches) ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  }
  RunList list({root_});
  const json listing = Whole(&list);
  ASSERT_EQ(listing["runs"].size(), 2U);
  for (const json& run : listing["runs"]) {
    const std::string id = run["id"];
    const auto data = report::Load(root_ / id);
    ASSERT_TRUE(data.ok());
    const json expected = ParseJson(CardJson(id, *data));
    EXPECT_EQ(run["state"] == "running", id == "running");
    EXPECT_EQ(run["duration_ns"], expected["duration_ns"]);
    EXPECT_GT(run["duration_ns"], 60'000'000'000);
    // A run that goes on shows what its watcher says; this one has none.
    if (id == "left") {
      EXPECT_EQ(run, expected);
    }
  }
}

TEST_F(RunListTest, AFolderThatIsRecordedAnewIsAnotherRun) {
  testing::SampleRun sample;
  sample.steps = 40;
  const auto record = [&] {
    fs::create_directories(root_ / "live");
    ASSERT_TRUE(store::WriteRunInfo(root_ / "live", testing::MakeInfo(sample, false)).ok());
    auto writer = store::Writer::Open(root_ / "live/agent-a", "agent-a");
    ASSERT_TRUE(writer.ok());
    StringPool pool;
    for (format::Batch& batch : testing::Cut(testing::MakeRows(sample, &pool), 200'000'000)) {
      ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
    }
  };
  record();
  RunList list({root_});
  EXPECT_EQ(Whole(&list)["runs"][0]["steps"], 40);
  fs::remove_all(root_ / "live");
  sample.steps = 10;
  sample.start_ns += 3'600'000'000'000;
  record();
  const json run = Whole(&list)["runs"][0];
  EXPECT_EQ(run["steps"], 10);
  EXPECT_LT(run["duration_ns"], 3'600'000'000'000);
}

/// One that was loaded and that nobody looks at any more stands still: its line is read.
TEST_F(RunListTest, ARunThatIsNoLongerFollowedIsRead) {
  testing::SampleRun sample;
  sample.steps = 40;
  fs::create_directories(root_ / "live");
  ASSERT_TRUE(store::WriteRunInfo(root_ / "live", testing::MakeInfo(sample, false)).ok());
  auto writer = store::Writer::Open(root_ / "live/agent-a", "agent-a");
  ASSERT_TRUE(writer.ok());
  const auto run = std::make_shared<LiveRun>("live", root_ / "live");
  run->Want(Clock::System().MonotonicNs());
  while (run->Advance(std::chrono::seconds(60))) {
  }
  ASSERT_FALSE(run->loading());
  StringPool pool;
  for (format::Batch& batch : testing::Cut(testing::MakeRows(sample, &pool), 200'000'000)) {
    ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
  }
  RunList list({root_});
  const auto steps = [&] {
    list.Begin();
    list.Advance(kAll, {{"live", run}});
    return ParseJson(list.Render({{"live", run}}).json)["runs"][0]["steps"].get<int>();
  };
  run->Hold();
  run->Want(0);
  EXPECT_EQ(steps(), 0) << "a page shows it, and says the same";
  run->Release();
  EXPECT_EQ(steps(), 40);
}

TEST_F(RunListTest, ARunKeepsItsId) {
  Sample("b/run", 5);
  RunList list({root_});
  Whole(&list);
  EXPECT_EQ(list.paths().at("run").parent_path().filename(), "b");
  Sample("a/run", 5);
  Whole(&list);
  EXPECT_EQ(list.paths().at("run").parent_path().filename(), "b");
  EXPECT_EQ(list.paths().at("run~2").parent_path().filename(), "a");
}

/// Else, where looks are asked for all the time, no run would ever be read.
TEST_F(RunListTest, ReadingHasAsLongAsLookingHad) {
  for (int i = 0; i < 10; ++i) Sample("run-" + std::to_string(i), 200);
  RunList list({root_});
  EXPECT_TRUE(list.rested());
  list.Begin();
  int looking = 0;
  while (!list.looked()) {
    EXPECT_FALSE(list.rested());
    list.Advance(kOnePiece, {});
    ++looking;
  }
  int reading = 0;
  while (!list.rested()) {
    ASSERT_TRUE(list.Advance(kOnePiece, {}).more || !list.busy());
    ++reading;
  }
  EXPECT_TRUE(reading == looking || !list.busy()) << reading << " pieces after " << looking;
  EXPECT_GT(reading, 5);
}

TEST_F(RunListTest, TheWatchersEndIsToldFromItsDeath) {
  Sample("one");
  const store::RunInfo info = store::ReadRunInfo(root_ / "one").value();
  const auto ended = [&](const store::RunInfo& of) {
    store::WatchLog log(root_ / "one");
    log.Advance(true);
    return log.CameToItsEnd(of);
  };
  EXPECT_FALSE(ended(info)) << "there was none";
  const auto watch = [&](bool to_the_end) {
    auto writer = store::Writer::Open(root_ / "one/watch", "watch");
    ASSERT_TRUE(writer.ok());
    format::Batch batch;
    batch.watermark_ns = 1;
    format::LedgerRow row;
    row.name = "watch.cpu_ns";
    row.attempt = 1;
    batch.rows.ledger.push_back(row);
    ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
    if (to_the_end) {
      ASSERT_TRUE((*writer)->Close(true).ok());
    }
  };
  watch(false);
  EXPECT_FALSE(ended(info)) << "it died";
  watch(true);
  EXPECT_TRUE(ended(info)) << "it was started again";
  store::RunInfo again = info;
  again.attempts.push_back(again.attempts.back());
  again.attempts.back().number = 2;
  EXPECT_FALSE(ended(again)) << "the further attempt had none";
}

TEST_F(RunListTest, ACardReadsTheWatchersFindingsWhereItCameToItsEnd) {
  const auto watch = [&](const std::string& id, bool to_the_end) {
    auto writer = store::Writer::Open(root_ / id / "watch", "watch");
    ASSERT_TRUE(writer.ok());
    format::Batch batch;
    batch.watermark_ns = testing::SampleRun().start_ns + 3'600'000'000'000;
    format::LedgerRow row;
    row.name = "watch.cpu_ns";
    row.attempt = 1;
    batch.rows.ledger.push_back(row);
    format::FindingRow finding;
    finding.incident = "of-the-watcher";
    finding.revision = 1;
    finding.rule = "InputBound";
    finding.severity = "high";
    finding.state = "closed";
    finding.evidence = "{}";
    batch.rows.findings.push_back(finding);
    ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
    if (to_the_end) {
      ASSERT_TRUE((*writer)->Close(true).ok());
    }
  };
  const auto told = [&](const std::string& id) {
    const auto data = ReadCard(root_ / id);
    EXPECT_TRUE(data.ok()) << data.status().message();
    if (!data.ok()) return false;
    EXPECT_EQ(data->summary.train_steps(), 20);
    EXPECT_EQ(data->replay.state.state, "finished");
    return std::any_of(data->replay.findings.begin(), data->replay.findings.end(),
                       [](const auto& f) { return f.id == "of-the-watcher"; });
  };
  Sample("whole");
  watch("whole", true);
  EXPECT_TRUE(told("whole"));
  Sample("died");
  watch("died", false);
  EXPECT_FALSE(told("died")) << "a replay says what there is";
  EXPECT_FALSE(ReadCard(root_ / "none").ok());
}

}  // namespace
}  // namespace telltale::server
