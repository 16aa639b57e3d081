// SPDX-License-Identifier: Apache-2.0
// What the folders of agents tell of a recording that did not come to its end, and of which
// attempt.
#include "store/recording_end.h"

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "store/store_testing.h"

namespace telltale::store {
namespace {

constexpr std::int64_t kFirst = 1'700'000'000 * kSecond;      ///< Where attempt 1 begins...
constexpr std::int64_t kSecondStart = kFirst + 60 * kSecond;  ///< ...and attempt 2.

class RecordingEndTest : public ::testing::Test {
 protected:
  /// A run of that many attempts whose supervisor has written its end.
  void SetUp() override { MakeIt(2); }
  void MakeIt(int attempts) {
    MakeRun(run_);
    RunInfo info = ReadRunInfo(run_).value();
    info.attempts.front().start_ns = kFirst;
    if (attempts == 2) {
      info.attempts.push_back(
          {.number = 2, .start_ns = kSecondStart, .exit_code = 0, .signal = {}});
    }
    info.boot_id = BootId();
    info.pid_namespace = PidNamespace();
    info.supervisor_pid = ::getpid();
    info.supervisor_start_ticks = ProcessStartTicks(::getpid()) + 1;  // It has ended.
    ASSERT_TRUE(WriteRunInfo(run_, info).ok());
  }
  /// An agent records of that attempt up to `until_ns`, and ends with its last word or without.
  void Record(const std::string& writer, std::uint32_t attempt, std::int64_t until_ns, bool ends) {
    auto opened = Writer::Open(run_ / writer, writer);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    format::Batch batch;
    format::EventRow row;
    row.time_ns = row.ord_ns = until_ns - kSecond;
    row.kind = "agent.start";
    row.severity = "info";
    row.attempt = attempt;
    batch.rows.events.push_back(row);
    batch.watermark_ns = until_ns;
    ASSERT_TRUE((*opened)->Append(std::move(batch)).ok());
    if (ends) {
      ASSERT_TRUE((*opened)->Close(true).ok());
    }
  }
  RunState State() {
    auto reader = RunReader::Open(run_);
    EXPECT_TRUE(reader.ok());
    return (*reader)->state();
  }
  std::int64_t begin_ns(std::size_t attempt) {
    return ReadRunInfo(run_).value().attempts.at(attempt - 1).start_ns;
  }

  TempFolder temp_;
  const std::filesystem::path run_ = temp_.path() / "run";
};

/// On another machine, in whose folder nobody of this attempt comes; its clock may go ahead.
TEST_F(RecordingEndTest, ALossOfAnAttemptBeforeIsNoneOfTheNewest) {
  for (const std::int64_t ahead_ns : {std::int64_t{0}, 3600 * kSecond}) {
    std::filesystem::remove_all(run_);
    MakeIt(2);
    const std::int64_t lost_ns = kFirst + 30 * kSecond + ahead_ns;
    Record("agent-a", 1, lost_ns, false);
    Record("agent-b", 2, kSecondStart + 30 * kSecond, true);
    const RunState state = State();
    EXPECT_EQ(state.state, "finished");
    EXPECT_FALSE(state.unrecorded) << "the newest attempt was recorded to its end";
    ASSERT_EQ(state.unrecorded_before.size(), 1U);
    EXPECT_EQ(state.unrecorded_before[0], (Unrecorded{"agent-a", lost_ns}));
  }
}

TEST_F(RecordingEndTest, ALossOfTheNewestAttemptIsSaidWhateverIsBeforeIt) {
  const std::int64_t lost_ns = kSecondStart + 30 * kSecond;
  Record("agent-a", 1, kFirst + 30 * kSecond, true);
  Record("agent-b", 2, lost_ns, false);
  RunState state = State();
  EXPECT_EQ(state.unrecorded, (Unrecorded{"agent-b", lost_ns}));
  EXPECT_TRUE(state.unrecorded_before.empty());
  // The wall clock was set back between the attempts.
  std::filesystem::remove_all(run_);
  MakeIt(2);
  Record("agent-a", 1, kFirst - 3600 * kSecond, true);
  Record("agent-a", 2, kFirst - 1800 * kSecond, false);
  state = State();
  EXPECT_EQ(state.unrecorded, (Unrecorded{"agent-a", kFirst - 1800 * kSecond}));
  EXPECT_TRUE(state.unrecorded_before.empty());
}

TEST_F(RecordingEndTest, AnAttemptThatWasRecordedToItsEndIsAllThere) {
  Record("agent-a", 1, kFirst + 30 * kSecond, true);
  Record("agent-a", 2, kFirst - 30 * kSecond, true);  // The clock was set back meanwhile.
  const RunState state = State();
  EXPECT_FALSE(state.unrecorded);
  EXPECT_TRUE(state.unrecorded_before.empty());
}

TEST_F(RecordingEndTest, AnAttemptOfWhichNobodyWroteAnythingSaysSo) {
  Record("agent-a", 1, kFirst + 30 * kSecond, true);
  const Unrecorded nothing{"", begin_ns(2)};
  EXPECT_EQ(State().unrecorded, nothing);
  // An agent that came, and went before its first record.
  ASSERT_TRUE(Writer::Open(run_ / "agent-a", "agent-a").ok());
  const RunState state = State();
  EXPECT_EQ(state.unrecorded, nothing);
  EXPECT_TRUE(state.unrecorded_before.empty()) << "the attempt before was recorded to its end";
}

TEST_F(RecordingEndTest, AnAttemptBeforeOfWhichNobodyWroteAnythingIsToldToo) {
  // Its agent was killed before its first record, and its supervisor too.
  ASSERT_TRUE(Writer::Open(run_ / "agent-a", "agent-a").ok());
  Record("agent-a", 2, kSecondStart + 30 * kSecond, true);
  const RunState state = State();
  EXPECT_EQ(state.state, "finished");
  EXPECT_FALSE(state.unrecorded) << "the newest attempt was recorded to its end";
  ASSERT_EQ(state.unrecorded_before.size(), 1U);
  EXPECT_EQ(state.unrecorded_before[0], (Unrecorded{"", begin_ns(1)}));
}

TEST_F(RecordingEndTest, AnAttemptWhoseRowsCannotBeReadWasRecordedAllTheSame) {
  Record("agent-a", 1, kFirst + 30 * kSecond, true);
  const std::filesystem::path journal = run_ / "agent-a" / JournalFileName(1);
  Record("agent-b", 2, kSecondStart + 30 * kSecond, true);
  ASSERT_TRUE(State().unrecorded_before.empty());
  for (const auto& file : std::filesystem::directory_iterator(run_ / "agent-a")) {
    if (file.path().extension() == ".parquet") std::filesystem::resize_file(file.path(), 100);
  }
  if (std::filesystem::exists(journal)) std::filesystem::resize_file(journal, 60);
  EXPECT_TRUE(State().unrecorded_before.empty()) << "the damage is told, and is no lost agent";
}

/// The disk took the lock and no journal: no room for a file, a quota.
TEST_F(RecordingEndTest, AnAgentThatCouldWriteNothingIsALossAlthoughTheRunSaysItsEnd) {
  MakeIt(1);
  const Unrecorded nothing{"", begin_ns(1)};
  EXPECT_EQ(State().state, "finished");
  EXPECT_EQ(State().unrecorded, nothing) << "no agent has come";
  std::filesystem::create_directories(run_ / "agent-a");
  std::ofstream(run_ / "agent-a" / kLockName) << "1";
  EXPECT_EQ(State().unrecorded, nothing) << "one that left its lock alone";
  RunInfo info = ReadRunInfo(run_).value();
  info.supervisor_pid = 0;
  ASSERT_TRUE(WriteRunInfo(run_, info).ok());
  std::filesystem::remove_all(run_ / "agent-a");
  EXPECT_FALSE(State().unrecorded) << "an import has no agent";
}

/// Journals are begun anew as time goes on: one that was just begun has nothing but what its
/// predecessor hands on.
TEST_F(RecordingEndTest, AJournalThatWasJustBegunTellsNoEnd) {
  MakeIt(1);
  Record("agent-a", 1, kFirst + 30 * kSecond, false);
  ASSERT_TRUE(Writer::Open(run_ / "agent-a", "agent-a").ok());
  EXPECT_EQ(State().unrecorded, (Unrecorded{"agent-a", kFirst + 30 * kSecond}));
}

/// What has not changed is not read again, and what has is.
TEST_F(RecordingEndTest, AReaderSeesALastWordThatComesLater) {
  MakeIt(1);
  Record("agent-a", 1, kFirst + 30 * kSecond, false);
  auto reader = RunReader::Open(run_);
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE((*reader)->state().unrecorded);
  EXPECT_TRUE((*reader)->state().unrecorded);
  Record("agent-a", 1, kFirst + 40 * kSecond, true);
  EXPECT_FALSE((*reader)->state().unrecorded);
}

}  // namespace
}  // namespace telltale::store
