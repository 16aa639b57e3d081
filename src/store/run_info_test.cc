// SPDX-License-Identifier: Apache-2.0
// The state of a run as seen from where its processes can be asked, and from where they cannot.
#include "store/run_info.h"

#include <chrono>
#include <fstream>
#include <string>

#include "store/store_testing.h"

namespace telltale::store {
namespace {

namespace fs = std::filesystem;

class RunStateTest : public ::testing::Test {
 protected:
  /// A run whose processes have ended without a word, with a journal of an agent and of a watcher.
  void SetUp() override {
    MakeRun(run_, true);
    info_ = ReadRunInfo(run_).value();
    info_.supervisor_start_ticks += 1;  // Another process than this.
    for (const char* name : {"agent-a", "watch"}) {
      auto writer = Writer::Open(run_ / name, name).value();
      ASSERT_TRUE(writer->Append(Scalars(0, 3)).ok());
      journals_.push_back(run_ / name / JournalFileName(ListFolder(run_ / name)->journals.back()));
    }
  }
  void Age(const fs::path& file, std::chrono::nanoseconds age) {
    fs::last_write_time(file, fs::file_time_type::clock::now() - age);
  }
  void AgeAll(std::chrono::nanoseconds age) {
    Age(run_ / "run.json", age);
    for (const fs::path& journal : journals_) Age(journal, age);
  }
  std::string State() const { return DeriveRunState(info_, run_).state; }

  TempFolder temp_;
  const fs::path run_ = temp_.path() / "run";
  RunInfo info_;
  std::vector<fs::path> journals_;
};

TEST_F(RunStateTest, WhereProcessesCanBeAskedTheyAre) {
  EXPECT_EQ(State(), "lost") << "however new its files are";
  info_.supervisor_start_ticks -= 1;
  AgeAll(std::chrono::hours(1));
  EXPECT_EQ(State(), "running") << "however old its files are";
}

TEST_F(RunStateTest, FromElsewhereARunIsRunningWhileItsFilesMove) {
  const RunInfo here = info_;
  for (int place = 0; place < 3; ++place) {
    info_ = here;
    if (place == 0) info_.pid_namespace = "pid:[1]";
    if (place == 1) info_.boot_id = "another boot";
    if (place == 2) info_.pid_namespace.clear();  // Written where /proc was of another namespace.
    // A live process that happens to have the pid says nothing.
    info_.supervisor_start_ticks = ProcessStartTicks(::getpid());
    AgeAll(std::chrono::hours(1));
    EXPECT_EQ(State(), "lost") << place;
    AgeAll(-std::chrono::hours(1));
    EXPECT_EQ(State(), "lost") << place << ": a time to come is no sign of life";
    Age(journals_[1], std::chrono::seconds(0));
    EXPECT_EQ(State(), "lost") << place << ": a watcher can be started by hand";
    Age(journals_[0], std::chrono::seconds(0));
    EXPECT_EQ(State(), "running") << place;
    Age(journals_[0], std::chrono::hours(1));
    Age(run_ / "run.json", std::chrono::seconds(0));
    EXPECT_EQ(State(), "running") << place << ": before the agent's first record";
  }
}

TEST(RunInfo, IsWrittenOverWhereNoNewFileCanBeMade) {
  TempFolder temp;
  const fs::path run = temp.path() / "run";
  MakeRun(run, true);
  // In the way of the new file.
  fs::create_directories(run / ("run.json." + std::to_string(::getpid()) + ".tmp"));
  RunInfo info = ReadRunInfo(run).value();
  info.attempts.back().end_ns = 1'700'000'000'000'000'000;
  info.attempts.back().signal = 15;
  ASSERT_TRUE(WriteRunInfo(run, info).ok());
  EXPECT_EQ(ReadRunInfo(run).value().attempts.back().signal, 15);
  info.finished = true;
  info.name = "";  // Shorter than before: nothing of the old text may be left.
  ASSERT_TRUE(WriteRunInfo(run, info).ok());
  EXPECT_TRUE(ReadRunInfo(run).value().finished);
  EXPECT_EQ(ReadRunInfo(run).value().name, "");
  EXPECT_EQ(DeriveRunState(info, run).state, "killed");
}

TEST(RunInfo, ThatIsNoJsonIsSaidWithItsPlace) {
  const TempFolder temp;
  std::ofstream(temp.path() / "run.json") << "{\"format\": {\"major\"";
  const Status status = ReadRunInfo(temp.path()).status();
  EXPECT_EQ(status.code(), Code::kUnusable);
  EXPECT_NE(status.message().find("line 1, column"), std::string::npos) << status.message();
}

TEST(RunInfo, ThatIsDamagedIsSaidInWordsForPeople) {
  const TempFolder temp;
  for (const char* text :
       {"", "{ not json", "[1]", "3", "{\"format\": {\"major\": \"one\"}}",
        "{\"format\": {\"major\": 1}, \"attempts\": 3}",
        "{\"format\": {\"major\": 1}, \"created_ns\": 9223372036854775807}",
        "{\"format\": {\"major\": 1}, \"attempts\": [{\"number\": 1, \"start_ns\": "
        "-9223372036854775808}]}",
        "{\"format\": {\"major\": 1}, \"attempts\": [{\"exit_code\": 4294967296}]}",
        "{\"format\": {\"major\": 1}, \"attempts\": [{\"signal\": 18446744073709551615}]}",
        "{\"format\": {\"major\": 1}, \"attempts\": [{\"pid\": 1e300}]}",
        "{\"format\": {\"major\": 1}, \"supervisor_pid\": -2147483649}",
        "{\"format\": {\"major\": 4294967297}}", "{\"format\": 1}"}) {
    std::ofstream(temp.path() / "run.json") << text;
    const Status status = ReadRunInfo(temp.path()).status();
    EXPECT_EQ(status.code(), Code::kUnusable) << text;
    EXPECT_NE(status.message().find("restore it from a copy"), std::string::npos)
        << status.message();
    EXPECT_EQ(status.message().find("json.exception"), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  }
}

TEST(RunInfo, ThatCannotBeWrittenIsAnErrorOfTheNewFile) {
  TempFolder temp;
  const Status status = WriteRunInfo(temp.path() / "not-there", {});
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("No such file"), std::string::npos) << status.message();
}

TEST_F(RunStateTest, FromElsewhereAnEndIsBelievedOnceNothingMoves) {
  info_.pid_namespace = "pid:[1]";
  info_.attempts.back().exit_code = 3;
  EXPECT_EQ(State(), "running") << "the last records are being written";
  AgeAll(std::chrono::hours(1));
  EXPECT_EQ(State(), "failed");
  AgeAll(std::chrono::seconds(0));
  info_.finished = true;
  EXPECT_EQ(State(), "failed");
}

}  // namespace
}  // namespace telltale::store
