// SPDX-License-Identifier: Apache-2.0
// One run as the server follows it, where it does not grow as one expects: folders that are
// replaced, attempts that follow, writers that die, streams that stall.
#include "server/live_run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "query/slice_order.h"
#include "report/html.h"
#include "rules/replay.h"
#include "server/run_cache.h"
#include "store/folder.h"
#include "store/writer.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"
#include "watch/watcher.h"

namespace telltale::server {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLong(60'000);

class LiveRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sample_.steps = 100;
    sample_.start_ns = 1'700'000'000'000'000'000;  // That of the FakeClock.
  }

  void WriteInfo(bool finished) {
    fs::create_directories(run_);
    ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample_, finished)).ok());
  }
  std::vector<format::Batch> Batches() {
    return testing::Cut(testing::MakeRows(sample_, &pool_), 200'000'000);
  }
  std::unique_ptr<store::Writer> NewWriter(const std::string& name) {
    store::WriterOptions options;
    options.clock = &clock_;
    auto writer = store::Writer::Open(run_ / name, name, options);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    return std::move(writer).value();
  }
  /// run.json is looked at twice a second.
  static bool Until(LiveRun* run, const std::function<bool()>& is) {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (!is() && std::chrono::steady_clock::now() < deadline) run->Advance(kLong);
    return is();
  }
  static std::int64_t Steps(const LiveRun& run) { return run.data().summary.train_steps(); }

  const testing::TempFolder folder_{"live"};
  const fs::path root_ = folder_.path();
  fs::path run_ = root_ / "one";
  FakeClock clock_;
  testing::SampleRun sample_;
  StringPool pool_;
};

/// A second writer appears and dies before it wrote anything: the watcher lets go of it at a place
/// of the order that whoever waits for it never gets to.
TEST_F(LiveRunTest, AWriterThatDiedEarlyHoldsUpNobodyWhoComesLater) {
  WriteInfo(false);
  auto writer = NewWriter("agent-a");
  watch::WatchOptions watching;
  watching.clock = &clock_;
  auto watcher = watch::Watcher::Open(run_, watching);
  ASSERT_TRUE(watcher.ok());
  const std::vector<format::Batch> batches = Batches();
  ASSERT_GT(batches.size(), 20U);
  std::unique_ptr<store::Writer> late;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (i == 4) late = NewWriter("agent-late");
    ASSERT_TRUE(writer->Append(batches[i]).ok());
    clock_.Advance(kSecond);
    const auto over = (*watcher)->Poll();
    ASSERT_TRUE(over.ok()) << over.status().message();
  }
  LiveRun run("one", run_);
  EXPECT_TRUE(Until(&run, [&] { return Steps(run) == sample_.steps; })) << Steps(run);
}

/// It takes long to render: whoever answers requests only takes what the reader has made.
TEST_F(LiveRunTest, TheReportIsMadeByWhoReadsTheRun) {
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  LiveRun run("one", run_);
  ASSERT_TRUE(Until(&run, [&] { return Steps(run) == 100 && !run.loading(); }));
  EXPECT_FALSE(run.MakeReport()) << "nobody asked";
  const std::uint64_t first = run.AskReport();
  EXPECT_EQ(run.Report(first).value(), nullptr);
  ASSERT_TRUE(run.MakeReport());
  const auto report = run.Report(first).value();
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(*report, report::RenderReport(run.data()));
  EXPECT_FALSE(run.MakeReport()) << "it is there";
  const std::uint64_t second = run.AskReport();
  EXPECT_EQ(run.Report(second).value(), nullptr) << "the first may be of an hour ago";
  EXPECT_NE(run.Report(first).value(), nullptr);
  ASSERT_TRUE(run.MakeReport());
  EXPECT_NE(run.Report(second).value(), nullptr);
}

/// All pages wait for who makes it.
TEST_F(LiveRunTest, OfManyStacksTheReportOnlySaysThatTheyAreThere) {
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  {
    const auto writer = NewWriter("stacks");
    format::Batch batch;
    format::SliceRow& row = batch.rows.slices.emplace_back();
    row.time_ns = sample_.start_ns;
    row.duration_ns = kSecond;
    row.ord_ns = row.time_ns + row.duration_ns;
    row.name = "t.py(5): hot";
    row.category = "python";
    row.window = query::kSampledStacks;
    row.device = row.stream = -1;
    batch.watermark_ns = row.ord_ns + 1;
    ASSERT_TRUE(writer->Append(std::move(batch)).ok());
    ASSERT_TRUE(writer->Close(true).ok());
  }
  LiveRun run("one", run_);
  ASSERT_TRUE(Until(&run, [&] { return Steps(run) == 100 && !run.loading(); }));
  const auto report = [&] {
    const std::uint64_t asked = run.AskReport();
    EXPECT_TRUE(run.MakeReport());
    return *run.Report(asked).value();
  };
  EXPECT_NE(report().find(">hot · t.py:5</a>"), std::string::npos);
  const fs::path much = run_ / "stacks" / store::SegmentFileName(format::TableId::kSlices, 2, 3);
  std::ofstream(much).put('x');
  fs::resize_file(much, LiveRun::kMostStacks.file_bytes + 1);
  const auto expect_left_out = [](const std::string& html) {
    EXPECT_EQ(html.find("t.py:5</a>"), std::string::npos);
    EXPECT_NE(html.find("1 of 1 recording ("), std::string::npos);
    EXPECT_NE(html.find("left out: this page reads 4.00"), std::string::npos);
  };
  expect_left_out(report());
  // Well compressed slices take as long as others.
  fs::rename(much, run_ / "stacks" /
                       store::SegmentFileName(format::TableId::kSlices, 2,
                                              LiveRun::kMostStacks.slices + 2));
  fs::resize_file(
      run_ / "stacks" /
          store::SegmentFileName(format::TableId::kSlices, 2, LiveRun::kMostStacks.slices + 2),
      10);
  expect_left_out(report());
}

TEST_F(LiveRunTest, AReportThatThrowsSaysWhyAndTheReaderGoesOn) {
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  LiveRun run("one", run_);
  ASSERT_TRUE(Until(&run, [&] { return Steps(run) == 100 && !run.loading(); }));
  const std::uint64_t first = run.AskReport();
  EXPECT_TRUE(run.MakeReport(
      [](const report::RunData&) -> std::string { throw std::length_error("too long a text"); }));
  const auto failed = run.Report(first);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.status().message().find("too long a text"), std::string::npos);
  const std::uint64_t second = run.AskReport();
  EXPECT_TRUE(
      run.MakeReport([](const report::RunData&) -> std::string { throw std::bad_alloc(); }));
  EXPECT_EQ(run.Report(second).status().code(), Code::kLimit);
  const std::uint64_t third = run.AskReport();
  EXPECT_TRUE(run.MakeReport());
  EXPECT_NE(run.Report(third).value(), nullptr);
}

TEST_F(LiveRunTest, ARunThatThereWasNoMemoryForIsOpenedAgain) {
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  int looks = 0;
  LiveRunOptions options{.retry_ns = 0, .before_look = [&] {
                           if (++looks <= 2) throw std::bad_alloc();
                         }};
  LiveRun run("one", run_, options);
  run.Advance(kLong);
  ASSERT_TRUE(run.Publish(true));
  EXPECT_NE(run.snapshot()->error.find("no memory left"), std::string::npos);
  EXPECT_TRUE(Until(&run, [&] { return Steps(run) == 100 && !run.loading(); }));
  ASSERT_TRUE(run.Publish(true));
  EXPECT_TRUE(run.snapshot()->error.empty());
  EXPECT_FALSE(run.snapshot()->overview.empty());

  // Not before its time.
  options.retry_ns = 3'600 * kSecond;
  looks = 0;
  LiveRun waits("one", run_, options);
  for (int i = 0; i < 10; ++i) waits.Advance(kLong);
  EXPECT_EQ(looks, 1);
}

TEST_F(LiveRunTest, ARunThatThrewIsNotReadAgainAndAgain) {
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  int looks = 0;
  LiveRun run("one", run_, {.retry_ns = 0, .before_look = [&] {
                              if (++looks == 1) throw std::length_error("too long a text");
                            }});
  for (int i = 0; i < 10; ++i) run.Advance(kLong);
  EXPECT_EQ(looks, 1);
  ASSERT_TRUE(run.Publish(true));
  EXPECT_NE(run.snapshot()->error.find("too long a text"), std::string::npos);
}

TEST_F(LiveRunTest, AFolderThatIsRecordedAnewIsAnotherRun) {
  const auto record = [&] {
    WriteInfo(false);
    auto writer = NewWriter("agent-a");
    for (const format::Batch& batch : Batches()) ASSERT_TRUE(writer->Append(batch).ok());
  };
  record();
  LiveRun run("one", run_);
  ASSERT_TRUE(Until(&run, [&] { return Steps(run) == 100; }));
  run.Publish(true);
  const std::uint64_t version = run.snapshot()->version;
  fs::remove_all(run_);
  sample_.steps = 30;
  sample_.start_ns += 3600 * kSecond;
  record();
  EXPECT_TRUE(Until(&run, [&] { return Steps(run) == 30; }));
  EXPECT_EQ(run.data().replay.info.created_ns, sample_.start_ns);
  EXPECT_EQ(run.data().summary.attempts.size(), 1U);
  EXPECT_LT(run.watermark_ns(), 3600 * kSecond);
  ASSERT_TRUE(run.Publish(true));
  EXPECT_GT(run.snapshot()->version, version) << "open pages get it";
}

/// Of a run that is over a torn record is damage; of one that goes on it is being written.
TEST_F(LiveRunTest, AFurtherAttemptIsReadAsOneThatGoesOn) {
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  LiveRun run("one", run_);
  ASSERT_TRUE(Until(&run, [&] { return Steps(run) == 100 && !run.loading(); }));
  ASSERT_TRUE(run.data().replay.ended);
  store::RunInfo info = testing::MakeInfo(sample_, true);
  testing::SampleRun further = sample_;
  further.attempt = 2;
  further.start_ns = info.attempts.back().end_ns + kSecond;
  info.finished = false;
  info.attempts.push_back(testing::MakeInfo(further, false).attempts.front());
  ASSERT_TRUE(store::WriteRunInfo(run_, info).ok());
  ASSERT_TRUE(Until(&run, [&] { return !run.data().replay.ended; }));
  // The journal of its writer, of which the last bytes are not there yet.
  sample_ = further;
  {
    const fs::path real = run_;
    run_ = root_ / "aside";
    fs::create_directories(run_);
    auto writer = NewWriter("agent-b");
    for (const format::Batch& batch : Batches()) ASSERT_TRUE(writer->Append(batch).ok());
    ASSERT_TRUE(writer->Close(false).ok());
    run_ = real;
  }
  std::string name, bytes;
  for (const auto& entry : fs::directory_iterator(root_ / "aside/agent-b")) {
    if (entry.path().extension() != ".ttj") continue;
    ASSERT_EQ(name, "") << "one journal";
    name = entry.path().filename().string();
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    bytes = text.str();
  }
  ASSERT_GT(bytes.size(), 1000U);
  fs::create_directories(run_ / "agent-b");
  std::ofstream journal(run_ / "agent-b" / name, std::ios::binary);
  journal << bytes.substr(0, bytes.size() - 100) << std::flush;
  EXPECT_TRUE(Until(&run, [&] { return Steps(run) > 150; }));
  for (int i = 0; i < 3; ++i) run.Advance(kLong);
  journal << bytes.substr(bytes.size() - 100) << std::flush;
  EXPECT_TRUE(Until(&run, [&] { return Steps(run) == 200; }));
  EXPECT_FALSE(run.data().replay.salvage.any());
}

/// What the watcher says of a finding that ended by itself, though it read that after the run.
TEST_F(LiveRunTest, WhatOnlyTheEndClosedIsAsAReplayHasIt) {
  sample_.steps = 400;
  sample_.nan_at = 50;
  sample_.exits = true;  // What was open then has lasted too.
  ASSERT_TRUE(testing::WriteRun(run_, sample_).ok());
  watch::WatchOptions watching;
  watching.clock = &clock_;
  clock_.Advance(3600 * kSecond);
  auto watcher = watch::Watcher::Open(run_, watching);
  ASSERT_TRUE(watcher.ok());
  for (bool over = false; !over; clock_.Advance(kSecond)) {
    const auto polled = (*watcher)->Poll();
    ASSERT_TRUE(polled.ok()) << polled.status().message();
    over = *polled;
  }
  std::map<std::string, bool> replayed, watched;
  const auto replay = rules::ReplayRun(run_);
  ASSERT_TRUE(replay.ok());
  for (const rules::Finding& f : replay->findings) replayed[f.id] = f.until_end;
  std::map<std::string, bool> wrong_replayed, wrong_watched;
  for (const rules::Finding& f : replay->findings) wrong_replayed[f.id] = f.wrong_result;
  rules::WatchedFindings journal(run_);
  journal.Advance(true);
  for (const rules::Finding& f : journal.findings()) watched[f.id] = f.until_end;
  for (const rules::Finding& f : journal.findings()) wrong_watched[f.id] = f.wrong_result;
  EXPECT_EQ(wrong_watched, wrong_replayed);
  EXPECT_EQ(watched, replayed);
  int by_the_end = 0;
  for (const auto& [id, until_end] : replayed) by_the_end += until_end ? 1 : 0;
  EXPECT_GT(by_the_end, 0);
  EXPECT_LT(by_the_end, replayed.size());
}

/// While the run goes on too, and where the state of a rule stays as it is.
TEST_F(LiveRunTest, WhatTheWatcherCountsOfEachRuleIsWhatAReplayCounts) {
  using Counts =
      std::map<std::string, std::tuple<std::string, std::uint32_t, std::optional<std::uint64_t>>>;
  const auto counts = [](const std::vector<rules::RuleState>& states) {
    Counts out;
    for (const rules::RuleState& state : states) {
      out[state.name] = {std::string(rules::Name(state.status)), state.incidents, state.records};
    }
    return out;
  };
  const auto journalled = [&](bool final) {
    rules::WatchedFindings journal(run_);
    journal.Advance(final);
    return counts(journal.rules());
  };
  sample_.steps = 400;
  WriteInfo(false);
  watch::WatchOptions watching;
  watching.clock = &clock_;
  auto watcher = watch::Watcher::Open(run_, watching);
  ASSERT_TRUE(watcher.ok());
  const auto poll = [&] {
    clock_.Advance(2 * watching.ledger_interval_ns);
    const auto over = (*watcher)->Poll();
    EXPECT_TRUE(over.ok()) << over.status().message();
    return over.ok() && *over;
  };
  const testing::SampleRun first = sample_;
  auto writer = NewWriter("agent-a");
  std::uint64_t before = 0;
  // One rank after the other: by the second no rule changes its state any more.
  for (const int rank : {0, 1}) {
    sample_.rank = rank;
    sample_.start_ns = first.start_ns + rank * 60 * kSecond;
    for (const format::Batch& batch : Batches()) ASSERT_TRUE(writer->Append(batch).ok());
    ASSERT_FALSE(poll());
    const Counts now = journalled(false);
    EXPECT_EQ(now, counts((*watcher)->engine().rule_states()));
    const std::uint64_t given = std::get<2>(now.at("InputBound")).value_or(0);
    EXPECT_GE(given, before + 400) << "each step";
    before = given;
  }
  ASSERT_TRUE(writer->Close(true).ok());
  sample_ = first;
  WriteInfo(true);
  bool over = false;
  for (int i = 0; i < 10 && !over; ++i) over = poll();
  ASSERT_TRUE(over);
  const auto replay = rules::ReplayRun(run_);
  ASSERT_TRUE(replay.ok());
  const Counts all = journalled(true);
  EXPECT_EQ(all, counts(replay->rules));
  EXPECT_EQ(std::get<1>(all.at("LossNotDecreasing")), 2U) << "one a rank";
}

class RunCacheTest : public LiveRunTest {
 protected:
  /// Waits for what the loader's thread makes known.
  bool Await(const std::function<bool()>& is) {
    std::unique_lock lock(mutex_);
    return published_.wait_for(lock, kLong, is);
  }
  void Published() {
    const std::scoped_lock lock(mutex_);
    published_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable published_;
};

/// A stream that cannot write asks for nothing meanwhile; its page goes on afterwards.
TEST_F(RunCacheTest, ARunWithAStreamIsFollowedThoughNobodyAsks) {
  WriteInfo(false);
  auto writer = NewWriter("agent-a");
  RunCache cache({root_}, 4, [this] { Published(); });
  RunCache::Found found;
  ASSERT_TRUE(Await([&] { return (found = cache.Want("one")).run != nullptr; }));
  found.run->Hold();
  ASSERT_TRUE(Await([&] { return found.run->snapshot() != nullptr; }));
  found.run->Want(Clock::System().MonotonicNs() - 2 * LiveRun::kWantedNs);
  for (const format::Batch& batch : Batches()) ASSERT_TRUE(writer->Append(batch).ok());
  EXPECT_TRUE(Await(
      [&] { return found.run->snapshot()->overview.find("\"steps\":100,") != std::string::npos; }));
  found.run->Release();
}

TEST_F(RunCacheTest, AnIdThatIsAnothersNowLeadsToThatOne) {
  const auto sample = [&](const char* name, int steps) {
    sample_.steps = steps;
    ASSERT_TRUE(testing::WriteRun(root_ / name / "one", sample_).ok());
  };
  sample("b", 10);
  RunCache cache({root_}, 4, [this] { Published(); });
  RunCache::Found first;
  ASSERT_TRUE(Await([&] { return (first = cache.Want("one")).run != nullptr; }));
  fs::remove_all(root_ / "b");
  sample("c", 20);
  cache.Refresh();
  RunCache::Found second;
  ASSERT_TRUE(Await([&] {
    second = cache.Want("one");
    return second.run != nullptr && second.run != first.run;
  }));
  EXPECT_EQ(second.run->path().parent_path().filename(), "c");
  EXPECT_TRUE(first.run->retired()) << "its streams end, and their pages ask anew";
  EXPECT_FALSE(second.run->retired());
}

/// Somebody who loads its page will ask for it.
TEST_F(RunCacheTest, ARunIsPreparedWhereThereIsRoom) {
  for (const char* name : {"one", "two"}) {
    ASSERT_TRUE(testing::WriteRun(root_ / name, sample_).ok());
  }
  RunCache cache({root_}, 1, [this] { Published(); });
  // Also before the folders were looked through.
  cache.Prepare("one");
  RunCache::Found one;
  ASSERT_TRUE(Await([&] { return cache.listing() != nullptr; }));
  one = cache.Want("one");
  ASSERT_NE(one.run, nullptr);
  EXPECT_TRUE(one.run->page_expected()) << "it was taken up before anybody asked for it";
  one.run->Hold();
  cache.Prepare("two");
  EXPECT_TRUE(cache.Want("two").full) << "no run's place is taken";
  EXPECT_FALSE(one.run->retired());
  one.run->Release();
}

}  // namespace
}  // namespace telltale::server
