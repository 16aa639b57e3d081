// SPDX-License-Identifier: Apache-2.0
// Live equals afterwards: a run of three writers is recorded in random portions while a watcher
// follows it, dies and is restarted; one writer falls silent for longer than the watcher waits.
// What the watcher journalled must be what a replay of the finished run says. The clock is ours, so
// no outcome depends on this machine's speed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/units.h"
#include "rules/replay.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"
#include "watch/watcher.h"

namespace telltale {
namespace {

namespace fs = std::filesystem;

/// Rule, subject, severity, state, first and last step, cause, cost: design's sense of "equal".
using Said = std::tuple<std::string, std::string, std::string, std::string, std::int64_t,
                        std::int64_t, std::string, double>;

struct Agent {
  std::string name;
  std::vector<format::Batch> batches;
  std::size_t next = 0;
  std::unique_ptr<store::Writer> writer;
  std::int64_t appears_ns = 0;  ///< Time since the start of the run.
  std::int64_t silent_from_ns = 0;
  std::int64_t silent_to_ns = 0;
};

struct Journalled {
  std::vector<Said> newest;  ///< Of each incident, sorted.
  std::size_t rows = 0;
  std::set<std::pair<std::string, std::uint32_t>> unique;
  int gave_up = 0;
  int readmitted = 0;
  int went_on = 0;  ///< Revisions that close and are not the last of their incident.
};

Journalled ReadJournal(const fs::path& run) {
  Journalled out;
  auto reader = store::RunReader::Open(run);
  EXPECT_TRUE(reader.ok());
  StringPool pool;
  format::Rows rows;
  store::Salvage salvage;
  EXPECT_TRUE((*reader)
                  ->ReadAll(store::MaskOf(format::TableId::kFindings) |
                                store::MaskOf(format::TableId::kEvents),
                            &pool, &rows, &salvage)
                  .ok());
  EXPECT_FALSE(salvage.any());
  std::map<std::string, const format::FindingRow*> newest;
  for (const auto& row : rows.findings) {
    ++out.rows;
    out.unique.emplace(row.incident, row.revision);
    auto& slot = newest[std::string(row.incident)];
    if (slot == nullptr || slot->revision < row.revision) slot = &row;
  }
  for (const auto& row : rows.findings) {
    const bool last = row.revision == newest.at(std::string(row.incident))->revision;
    out.went_on += row.state == "closed" && !last ? 1 : 0;
  }
  for (const auto& [id, row] : newest) {
    out.newest.emplace_back(row->rule, row->subject, row->severity, row->state, row->first_step,
                            row->last_step, row->cause, row->cost_seconds);
  }
  std::sort(out.newest.begin(), out.newest.end());
  for (const auto& row : rows.events) {
    out.gave_up += row.kind == "order.gave_up" ? 1 : 0;
    out.readmitted += row.kind == "order.readmitted" ? 1 : 0;
  }
  return out;
}

std::vector<Said> Replayed(const fs::path& run) {
  const auto replay = rules::ReplayRun(run);
  EXPECT_TRUE(replay.ok()) << replay.status().message();
  std::vector<Said> out;
  if (!replay.ok()) return out;
  for (const rules::Finding& f : replay->findings) {
    const format::FindingRow row = rules::ToRow(f);
    out.emplace_back(row.rule, row.subject, row.severity, row.state, row.first_step, row.last_step,
                     row.cause, row.cost_seconds);
  }
  std::sort(out.begin(), out.end());
  return out;
}

class LiveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    writing_.clock = &clock_;
    watching_.clock = &clock_;
  }

  std::unique_ptr<store::Writer> OpenWriter(const std::string& name) {
    auto writer = store::Writer::Open(run_ / name, name, writing_);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    return writer.ok() ? std::move(writer).value() : nullptr;
  }
  std::unique_ptr<watch::Watcher> OpenWatcher() {
    auto watcher = watch::Watcher::Open(run_, watching_);
    EXPECT_TRUE(watcher.ok()) << watcher.status().message();
    return watcher.ok() ? std::move(watcher).value() : nullptr;
  }
  std::vector<format::Batch> Batches(const testing::SampleRun& sample) {
    return testing::Cut(testing::MakeRows(sample, &pool_), 200'000'000);
  }
  /// Polls until the watcher has closed its folder, failed, or will never do either.
  Result<bool> PollToTheEnd(watch::Watcher* watcher) {
    for (int i = 0; i < 2000; ++i) {
      clock_.Advance(100'000'000);
      const auto polled = watcher->Poll();
      if (!polled.ok() || *polled) return polled;
    }
    return false;
  }

  /// A watcher sees the run to its end, and what it journals is what a replay says.
  std::unique_ptr<watch::Watcher> WatchToTheEnd() {
    auto watcher = OpenWatcher();
    if (!watcher) return nullptr;
    const auto over = PollToTheEnd(watcher.get());
    EXPECT_TRUE(over.ok() && *over) << over.status().message();
    EXPECT_EQ(ReadJournal(run_).newest, Replayed(run_));
    return watcher;
  }

  const testing::TempFolder folder_{"watch"};
  const fs::path run_ = folder_.path();
  FakeClock clock_;
  store::WriterOptions writing_;
  watch::WatchOptions watching_;
  StringPool pool_;
};

struct Totals {
  int restarts = 0;
  int gave_up = 0;
  int readmitted = 0;
  int went_on = 0;
  std::size_t findings = 0;
};

void OneRound(const fs::path& run, std::uint32_t seed, Totals* totals) {
  std::mt19937 random(seed);
  const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  FakeClock clock;
  store::WriterOptions writer_options;
  writer_options.clock = &clock;
  if (chance(50)) writer_options.seal_interval_ns = 4 * kSecond;

  testing::SampleRun base;
  base.steps = 300;
  StringPool pool;
  std::vector<Agent> agents(3);
  for (std::size_t i = 0; i < agents.size(); ++i) {
    testing::SampleRun sample = base;
    sample.rank = static_cast<std::int32_t>(i);
    sample.seed = seed * 7 + static_cast<std::uint32_t>(i);
    sample.learns = chance(40);
    sample.wait_share = chance(50) ? 0.6 : 0.02;
    sample.slow_from = chance(50) ? 0 : 120;
    if (chance(30)) sample.nan_at = 50 + static_cast<int>(random() % 200);
    sample.exits = (seed + i) % 3 != 0;
    agents[i].name = "agent-" + std::string(1, static_cast<char>('a' + i));
    agents[i].batches = testing::Cut(testing::MakeRows(sample, &pool), 200'000'000);
  }
  // One falls silent for longer than anybody waits; one may appear late.
  agents[1].silent_from_ns = 3 * kSecond + static_cast<std::int64_t>(random() % 3) * kSecond;
  agents[1].silent_to_ns =
      agents[1].silent_from_ns + (14 + static_cast<int>(random() % 10)) * kSecond;
  if (chance(50)) agents[2].appears_ns = 4 * kSecond;

  store::RunInfo info = testing::MakeInfo(base, false);
  ASSERT_TRUE(store::WriteRunInfo(run, info).ok());

  watch::WatchOptions watch_options;
  watch_options.clock = &clock;
  auto opened = watch::Watcher::Open(run, watch_options);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  std::unique_ptr<watch::Watcher> watcher = std::move(opened).value();

  std::int64_t elapsed = 0;
  bool all_written = false;
  bool over = false;
  for (int turn = 0; turn < 5000 && !over; ++turn) {
    const auto step = static_cast<std::int64_t>(50 + random() % 450) * 1'000'000;
    elapsed += step;
    clock.Advance(step);
    bool written = true;
    for (Agent& agent : agents) {
      if (elapsed < agent.appears_ns) {
        written = false;
        continue;
      }
      if (!agent.writer && agent.next < agent.batches.size()) {
        auto writer = store::Writer::Open(run / agent.name, agent.name, writer_options);
        ASSERT_TRUE(writer.ok()) << writer.status().message();
        agent.writer = std::move(writer).value();
      }
      const bool silent = elapsed >= agent.silent_from_ns && elapsed < agent.silent_to_ns;
      while (!silent && agent.next < agent.batches.size() &&
             agent.batches[agent.next].watermark_ns <= base.start_ns + elapsed) {
        ASSERT_TRUE(agent.writer->Append(std::move(agent.batches[agent.next++])).ok());
        if (chance(10)) break;
      }
      if (agent.next < agent.batches.size()) {
        written = false;
        ASSERT_TRUE(agent.writer->Tick().ok());
      } else if (agent.writer) {
        ASSERT_TRUE(agent.writer->Close(true).ok());
        agent.writer.reset();
      }
    }
    if (written && !all_written) {
      all_written = true;
      info.finished = true;
      info.attempts.back().exit_code = 0;
      ASSERT_TRUE(store::WriteRunInfo(run, info).ok());
    }
    if (chance(3)) {
      // As kill -9: no last word.
      watcher.reset();
      ++totals->restarts;
      if (chance(50)) continue;
    }
    if (!watcher) {
      auto again = watch::Watcher::Open(run, watch_options);
      ASSERT_TRUE(again.ok()) << again.status().message();
      watcher = std::move(again).value();
    }
    if (chance(80)) {
      const auto polled = watcher->Poll();
      ASSERT_TRUE(polled.ok()) << polled.status().message();
      over = *polled;
    }
  }
  ASSERT_TRUE(over) << "the watcher did not see the end, seed " << seed;
  watcher.reset();

  const Journalled live = ReadJournal(run);
  EXPECT_EQ(live.unique.size(), live.rows) << "a revision stands twice, seed " << seed;
  EXPECT_EQ(live.newest, Replayed(run)) << "seed " << seed;
  EXPECT_EQ(Replayed(run), Replayed(run));
  totals->gave_up += live.gave_up;
  totals->readmitted += live.readmitted;
  totals->findings += live.newest.size();
}

TEST_F(LiveTest, FindingsAreThoseOfAReplay) {
  Totals totals;
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    const fs::path run = run_ / std::to_string(seed);
    fs::create_directories(run);
    ASSERT_NO_FATAL_FAILURE(OneRound(run, seed, &totals));
  }
  // The test says nothing where none of this happened.
  EXPECT_GT(totals.restarts, 10);
  EXPECT_GT(totals.gave_up, 5);
  EXPECT_GT(totals.readmitted, 5);
  EXPECT_GT(totals.findings, 20U);
}

/// A group that its CPU limit holds back, in all of the samples that are there.
void HoldBack(format::Rows* rows) {
  std::vector<format::MetricRow> more;
  for (const format::MetricRow& sample : rows->metrics) {
    if (sample.name != "mem.used") continue;
    const std::pair<std::string_view, double> values[] = {{"cgroup.cpu_limit", 2},
                                                          {"cgroup.cpu_used", 150},
                                                          {"cgroup.cpu_throttled", 120},
                                                          {"cgroup.cpu_throttled_periods", 80}};
    for (const auto& [name, value] : values) {
      format::MetricRow row = sample;
      row.subject = "cgroup";
      row.name = name;
      row.value = value;
      more.push_back(row);
    }
  }
  rows->metrics.insert(rows->metrics.end(), more.begin(), more.end());
  std::stable_sort(rows->metrics.begin(), rows->metrics.end(),
                   [](const auto& a, const auto& b) { return a.ord_ns < b.ord_ns; });
}

/// Three attempts with a watcher each, which may be killed. What an attempt left open, since the
/// end of its process was not seen, its watcher closes; then it goes on in the next.
void OneRunOfAttempts(const fs::path& run, std::uint32_t seed, Totals* totals) {
  std::mt19937 random(seed);
  const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  FakeClock clock;
  store::WriterOptions writing;
  writing.clock = &clock;
  watch::WatchOptions watching;
  watching.clock = &clock;
  testing::SampleRun sample;
  store::RunInfo info = testing::MakeInfo(sample, false);
  info.attempts.clear();
  StringPool pool;
  for (std::uint32_t attempt = 1; attempt <= 3; ++attempt) {
    SCOPED_TRACE(fmt::format("seed {}, attempt {}", seed, attempt));
    sample.attempt = attempt;
    sample.seed = seed * 7 + attempt;
    sample.steps = 400;
    sample.learns = chance(50);
    sample.wait_share = chance(50) ? 0.6 : 0.02;
    sample.nan_at = chance(30) ? 50 + static_cast<int>(random() % 200) : -1;
    sample.exits = chance(30);
    sample.start_ns += 60 * kSecond;
    format::Rows rows = testing::MakeRows(sample, &pool);
    if (chance(70)) HoldBack(&rows);

    store::Attempt& started = info.attempts.emplace_back();
    started.number = attempt;
    info.finished = false;
    ASSERT_TRUE(store::WriteRunInfo(run, info).ok());
    auto opened = store::Writer::Open(run / "agent-a", "agent-a", writing);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    const std::unique_ptr<store::Writer> writer = std::move(opened).value();
    std::unique_ptr<watch::Watcher> watcher;
    const auto open_watcher = [&] {
      watcher.reset();
      auto again = watch::Watcher::Open(run, watching);
      ASSERT_TRUE(again.ok()) << again.status().message();
      watcher = std::move(again).value();
    };
    ASSERT_NO_FATAL_FAILURE(open_watcher());
    for (format::Batch& batch : testing::Cut(rows, 200'000'000)) {
      clock.Advance(200'000'000);
      ASSERT_TRUE(writer->Append(std::move(batch)).ok());
      if (chance(2)) {
        ++totals->restarts;
        ASSERT_NO_FATAL_FAILURE(open_watcher());
      }
      if (!chance(50)) continue;
      const auto polled = watcher->Poll();
      ASSERT_TRUE(polled.ok() && !*polled) << polled.status().message();
    }
    ASSERT_TRUE(writer->Close(true).ok());
    info.attempts.back().exit_code = 0;
    info.finished = true;
    ASSERT_TRUE(store::WriteRunInfo(run, info).ok());
    bool over = false;
    for (int i = 0; i < 2000 && !over; ++i) {
      clock.Advance(100'000'000);
      const auto polled = watcher->Poll();
      ASSERT_TRUE(polled.ok()) << polled.status().message();
      over = *polled;
    }
    ASSERT_TRUE(over);
    watcher.reset();
    const Journalled live = ReadJournal(run);
    EXPECT_EQ(live.unique.size(), live.rows) << "a revision stands twice";
    EXPECT_EQ(live.newest, Replayed(run));
    if (attempt < 3) continue;
    totals->went_on += live.went_on;
    totals->findings += live.newest.size();
  }
}

TEST_F(LiveTest, FindingsOfFurtherAttemptsAreThoseOfAReplay) {
  Totals totals;
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    const fs::path run = run_ / std::to_string(seed);
    fs::create_directories(run);
    ASSERT_NO_FATAL_FAILURE(OneRunOfAttempts(run, seed, &totals));
  }
  // The test says nothing where none of this happened.
  EXPECT_GT(totals.restarts, 10);
  EXPECT_GT(totals.went_on, 5);
  EXPECT_GT(totals.findings, 20U);
}

TEST_F(LiveTest, AFindingIsThereInTheRoundAfterItsRecords) {
  testing::SampleRun sample;
  sample.steps = 200;
  ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample, false)).ok());
  const auto writer = OpenWriter("agent-a");
  const auto watcher = OpenWatcher();
  ASSERT_TRUE(writer && watcher);
  for (format::Batch& batch : Batches(sample)) {
    ASSERT_TRUE(writer->Append(std::move(batch)).ok());
    clock_.Advance(200'000'000);
    const auto over = watcher->Poll();
    ASSERT_TRUE(over.ok());
    EXPECT_FALSE(*over);
    // Whatever the engine says now is in the journal now; numbers alone may be newer than it.
    const auto words = [](std::string text) {
      std::erase_if(text, [](unsigned char c) { return std::isdigit(c) != 0; });
      return text;
    };
    std::vector<Said> said;
    for (const rules::Finding& f : watcher->engine().findings()) {
      const format::FindingRow row = rules::ToRow(f);
      said.emplace_back(row.rule, row.subject, row.severity, row.state, row.first_step, 0,
                        words(std::string(row.cause)), 0);
    }
    std::sort(said.begin(), said.end());
    std::vector<Said> journalled = ReadJournal(run_).newest;
    for (Said& one : journalled) {
      std::get<5>(one) = 0;
      std::get<6>(one) = words(std::get<6>(one));
      std::get<7>(one) = 0;
    }
    std::sort(journalled.begin(), journalled.end());
    EXPECT_EQ(journalled, said);
  }
  EXPECT_EQ(watcher->engine().findings().size(), 2U);
  ASSERT_TRUE(watcher->Stop().ok());
}

TEST_F(LiveTest, AReplayOfARunThatGoesOnMayEndBeforeItsNewestRecord) {
  testing::SampleRun sample;
  sample.steps = 4000;
  ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample, false)).ok());
  const auto writer = OpenWriter("agent-a");
  ASSERT_TRUE(writer);
  for (format::Batch& batch : Batches(sample)) {
    ASSERT_TRUE(writer->Append(std::move(batch)).ok());
  }
  std::vector<std::int64_t> ends;
  rules::ReplayOptions options;
  options.sink_mask = store::MaskOf(format::TableId::kSteps);
  options.sink = [&](const store::OrderedRecord& record) { ends.push_back(record.ord_ns); };
  ASSERT_TRUE(rules::ReplayRun(run_, options).ok());
  const std::vector<std::int64_t> all = std::exchange(ends, {});
  options.until_ns = all[all.size() / 4];
  ASSERT_TRUE(rules::ReplayRun(run_, options).ok());
  EXPECT_GT(ends.back(), options.until_ns);
  EXPECT_LT(ends.size(), all.size());
  EXPECT_TRUE(std::equal(ends.begin(), ends.end(), all.begin()));
}

TEST_F(LiveTest, WhatAFullDiskRefusedIsWrittenLater) {
  testing::SampleRun sample;
  sample.steps = 200;
  ASSERT_TRUE(testing::WriteRun(run_, sample).ok());
  watching_.writer.min_free_bytes = 1ULL << 62;
  {
    const auto watcher = OpenWatcher();
    ASSERT_TRUE(watcher);
    EXPECT_FALSE(PollToTheEnd(watcher.get()).ok()) << "it must not wait for ever";
    EXPECT_EQ(watcher->engine().findings().size(), 2U);
  }
  EXPECT_EQ(ReadJournal(run_).rows, 0U);
  watching_.writer = {};
  ASSERT_TRUE(WatchToTheEnd());
}

TEST_F(LiveTest, ASecondWatcherIsRefused) {
  testing::SampleRun sample;
  ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample, false)).ok());
  auto first = watch::Watcher::Open(run_);
  ASSERT_TRUE(first.ok());
  const auto second = watch::Watcher::Open(run_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kRunning);
}

/// Two attempts on two hosts, the first one's agent was killed: its journal has no end record, and
/// its last rows lie after its last watermark.
TEST_F(LiveTest, ADeadWriterHoldsUpNoOther) {
  testing::SampleRun sample;
  sample.steps = 200;
  ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample, true)).ok());
  for (const int host : {0, 1}) {
    testing::SampleRun one = sample;
    one.rank = host;
    one.seed = static_cast<std::uint32_t>(3 + host);
    if (host == 1) one.nan_at = 150;
    one.start_ns += host * 20 * kSecond;
    const auto writer = OpenWriter(host == 0 ? "agent-a" : "agent-b");
    ASSERT_TRUE(writer);
    std::vector<format::Batch> batches = Batches(one);
    if (host == 0) batches.back().watermark_ns = 0;
    for (format::Batch& batch : batches) ASSERT_TRUE(writer->Append(std::move(batch)).ok());
    if (host == 1) {
      ASSERT_TRUE(writer->Close(true).ok());
    }
  }
  std::map<std::int32_t, int> steps;
  rules::ReplayOptions options;
  options.sink_mask = store::MaskOf(format::TableId::kSteps);
  options.sink = [&](const store::OrderedRecord& record) {
    ++steps[record.As<format::StepRow>()->rank];
  };
  ASSERT_TRUE(rules::ReplayRun(run_, options).ok());
  EXPECT_EQ(steps[0], 200);
  EXPECT_EQ(steps[1], 200);

  ASSERT_TRUE(WatchToTheEnd());
  EXPECT_FALSE(ReadJournal(run_).newest.empty());
}

TEST_F(LiveTest, ARunWhoseAgentDiedForGoodIsClosed) {
  testing::SampleRun sample;
  sample.steps = 200;
  ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample, true)).ok());
  {
    const auto writer = OpenWriter("agent-a");
    ASSERT_TRUE(writer);
    for (format::Batch& batch : Batches(sample)) {
      ASSERT_TRUE(writer->Append(std::move(batch)).ok());
    }
  }  // No end record.
  const auto watcher = WatchToTheEnd();
  ASSERT_TRUE(watcher);
  for (const rules::Finding& f : watcher->engine().findings()) EXPECT_FALSE(f.open);
}

/// What the watchers have said of a loss.
struct LossSaid {
  std::uint64_t counted = 0;
  std::vector<std::string> events;  ///< Their data.
};
LossSaid ReadLoss(const fs::path& run) {
  LossSaid out;
  auto reader = store::RunReader::Open(run);
  EXPECT_TRUE(reader.ok());
  StringPool pool;
  format::Rows rows;
  store::Salvage salvage;
  EXPECT_TRUE((*reader)
                  ->ReadAll(store::MaskOf(format::TableId::kLedger) |
                                store::MaskOf(format::TableId::kEvents),
                            &pool, &rows, &salvage)
                  .ok());
  for (const auto& row : rows.ledger) {
    if (row.name == "run.agents_lost") out.counted = std::max(out.counted, row.value);
  }
  for (const auto& row : rows.events) {
    if (row.kind == "recording.lost") out.events.emplace_back(row.data);
  }
  return out;
}

/// The run says its end a moment before the agent's last word is read: nothing was lost.
TEST_F(LiveTest, AnEndThatIsSaidBeforeTheAgentsIsNoLoss) {
  testing::SampleRun sample;
  sample.steps = 200;
  ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample, false)).ok());
  const auto writer = OpenWriter("agent-a");
  const auto watcher = OpenWatcher();
  ASSERT_TRUE(writer && watcher);
  for (format::Batch& batch : Batches(sample)) {
    ASSERT_TRUE(writer->Append(std::move(batch)).ok());
  }
  ASSERT_TRUE(watcher->Poll().ok());
  ASSERT_TRUE(store::WriteRunInfo(run_, testing::MakeInfo(sample, true)).ok());
  const auto over = watcher->Poll();
  ASSERT_TRUE(over.ok() && !*over) << "the agent has not ended";
  ASSERT_TRUE(writer->Close(true).ok());
  const auto ended = PollToTheEnd(watcher.get());
  ASSERT_TRUE(ended.ok() && *ended);
  const LossSaid said = ReadLoss(run_);
  EXPECT_EQ(said.counted, 0U);
  EXPECT_TRUE(said.events.empty()) << said.events.front();
}

/// Where the supervisor was killed nobody says the run's end; the file system's clock may be an
/// hour behind ours, so that what was written just now looks old.
TEST_F(LiveTest, LastRecordsAreWaitedForWhateverTheFileSystemsClockSays) {
  testing::SampleRun sample;
  sample.steps = 400;
  sample.nan_at = 390;
  store::RunInfo info = testing::MakeInfo(sample, false);
  ASSERT_TRUE(store::WriteRunInfo(run_, info).ok());
  const auto writer = OpenWriter("agent-a");
  const auto watcher = OpenWatcher();
  ASSERT_TRUE(writer && watcher);
  const auto look_old = [&] {
    for (const auto& entry : fs::recursive_directory_iterator(run_)) {
      if (!entry.is_regular_file()) continue;
      fs::last_write_time(entry, fs::file_time_type::clock::now() - std::chrono::hours(1));
    }
  };
  std::vector<format::Batch> batches = Batches(sample);
  const std::size_t half = batches.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    ASSERT_TRUE(writer->Append(std::move(batches[i])).ok());
  }
  ASSERT_TRUE(watcher->Poll().ok());
  info.supervisor_start_ticks += 1;  // Another process than this: it has ended.
  ASSERT_TRUE(store::WriteRunInfo(run_, info).ok());
  for (int i = 0; i < 3; ++i) {
    look_old();
    clock_.Advance(watching_.abandon_ns / 4);
    const auto over = watcher->Poll();
    ASSERT_TRUE(over.ok()) << over.status().message();
    ASSERT_FALSE(*over) << "it has waited for " << i + 1 << " quarters alone";
  }
  for (std::size_t i = half; i < batches.size(); ++i) {
    ASSERT_TRUE(writer->Append(std::move(batches[i])).ok());
  }
  ASSERT_TRUE(writer->Close(true).ok());
  const auto over = PollToTheEnd(watcher.get());
  ASSERT_TRUE(over.ok() && *over);
  EXPECT_EQ(ReadJournal(run_).newest, Replayed(run_));
  EXPECT_EQ(ReadLoss(run_).counted, 0U);
}

/// A person has a run judged that died long ago: nothing is waited for, and when it ended nobody
/// knows.
TEST_F(LiveTest, WhoComesLongAfterTheEndWaitsForNothingAndKnowsNotWhenItWas) {
  testing::SampleRun sample;
  sample.steps = 200;
  store::RunInfo info = testing::MakeInfo(sample, false);
  info.supervisor_start_ticks += 1;
  ASSERT_TRUE(store::WriteRunInfo(run_, info).ok());
  {
    const auto writer = OpenWriter("agent-a");
    ASSERT_TRUE(writer);
    for (format::Batch& batch : Batches(sample)) {
      ASSERT_TRUE(writer->Append(std::move(batch)).ok());
    }
  }  // No end record.
  for (const auto& entry : fs::recursive_directory_iterator(run_)) {
    if (!entry.is_regular_file()) continue;
    fs::last_write_time(entry, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  const auto watcher = OpenWatcher();
  ASSERT_TRUE(watcher);
  bool over = false;
  for (int i = 0; i < 100 && !over; ++i) {
    const auto polled = watcher->Poll();  // The clock stands still.
    ASSERT_TRUE(polled.ok()) << polled.status().message();
    over = *polled;
  }
  EXPECT_TRUE(over);
  for (const std::string& data : ReadLoss(run_).events) {
    EXPECT_EQ(data.find("ended_ns"), std::string::npos) << data;
  }
}

/// The same of one that died a moment before somebody came: its end is waited for in vain.
TEST_F(LiveTest, WhoComesAfterTheEndSaysNotWhenItWas) {
  testing::SampleRun sample;
  sample.steps = 200;
  store::RunInfo info = testing::MakeInfo(sample, false);
  info.supervisor_start_ticks += 1;
  ASSERT_TRUE(store::WriteRunInfo(run_, info).ok());
  {
    const auto writer = OpenWriter("agent-a");
    ASSERT_TRUE(writer);
    for (format::Batch& batch : Batches(sample)) {
      ASSERT_TRUE(writer->Append(std::move(batch)).ok());
    }
  }
  ASSERT_TRUE(WatchToTheEnd());
  for (const std::string& data : ReadLoss(run_).events) {
    EXPECT_EQ(data.find("ended_ns"), std::string::npos) << data;
  }
}

/// Who saw it go on knows.
TEST_F(LiveTest, WhoSeesTheEndOfARunThatNobodyRecordsSaysWhenItWas) {
  testing::SampleRun sample;
  sample.steps = 200;
  store::RunInfo info = testing::MakeInfo(sample, false);
  ASSERT_TRUE(store::WriteRunInfo(run_, info).ok());
  {
    const auto writer = OpenWriter("agent-a");
    ASSERT_TRUE(writer);
    for (format::Batch& batch : Batches(sample)) {
      ASSERT_TRUE(writer->Append(std::move(batch)).ok());
    }
  }
  const auto watcher = OpenWatcher();
  ASSERT_TRUE(watcher);
  ASSERT_TRUE(watcher->Poll().ok());
  info.supervisor_start_ticks += 1;
  ASSERT_TRUE(store::WriteRunInfo(run_, info).ok());
  const auto over = PollToTheEnd(watcher.get());
  ASSERT_TRUE(over.ok() && *over);
  const LossSaid said = ReadLoss(run_);
  EXPECT_EQ(said.counted, 1U);
  ASSERT_EQ(said.events.size(), 1U);
  EXPECT_NE(said.events[0].find("ended_ns"), std::string::npos) << said.events[0];
}

/// The training has ended, and the agent takes longer for its last records (a slow disk, a busy
/// machine) than anybody would wait for one that died: the supervisor still does, and says when
/// not. Another writer, whose end makes the watcher let go of the silent one, changes nothing.
class LastRecordsTest : public LiveTest, public ::testing::WithParamInterface<bool> {};

TEST_P(LastRecordsTest, AreWaitedForAsLongAsTheSupervisorDoes) {
  testing::SampleRun sample;
  sample.steps = 400;
  sample.nan_at = 390;
  store::RunInfo info = testing::MakeInfo(sample, false);
  ASSERT_TRUE(store::WriteRunInfo(run_, info).ok());
  auto writer = OpenWriter("agent-a");
  const auto watcher = OpenWatcher();
  ASSERT_TRUE(writer && watcher);
  std::vector<format::Batch> batches = Batches(sample);
  const std::size_t half = batches.size() / 2;
  testing::SampleRun other = sample;
  other.rank = 1;
  auto beside = GetParam() ? OpenWriter("agent-b") : nullptr;
  for (std::size_t i = 0; i < half; ++i) {
    ASSERT_TRUE(writer->Append(std::move(batches[i])).ok());
  }
  info.attempts.back().exit_code = 0;
  ASSERT_TRUE(store::WriteRunInfo(run_, info).ok());
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(watching_.abandon_ns / 4);
    const auto over = watcher->Poll();
    ASSERT_TRUE(over.ok()) << over.status().message();
    ASSERT_FALSE(*over);
    if (!beside) continue;
    for (format::Batch& batch : Batches(other)) {
      ASSERT_TRUE(beside->Append(std::move(batch)).ok());
    }
    ASSERT_TRUE(beside->Close(true).ok());
    beside.reset();
  }
  for (std::size_t i = half; i < batches.size(); ++i) {
    ASSERT_TRUE(writer->Append(std::move(batches[i])).ok());
  }
  ASSERT_TRUE(writer->Close(true).ok());
  info.finished = true;
  ASSERT_TRUE(store::WriteRunInfo(run_, info).ok());
  const auto over = PollToTheEnd(watcher.get());
  ASSERT_TRUE(over.ok() && *over);
  const Journalled live = ReadJournal(run_);
  EXPECT_EQ(live.gave_up > 0, GetParam());
  EXPECT_EQ(live.newest, Replayed(run_));
}

INSTANTIATE_TEST_SUITE_P(BesideNoneAndOne, LastRecordsTest, ::testing::Bool());

}  // namespace
}  // namespace telltale
