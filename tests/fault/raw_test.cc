// SPDX-License-Identifier: Apache-2.0
// Raw values flow while the agent is killed, and while its files cannot grow: every index row's
// values are those of its step, none is there twice, what is not there is counted, the training
// goes on.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "harness.h"
#include "store/folder.h"
#include "store/tensor_file.h"
#include "store/verify.h"

namespace telltale::fault {
namespace {

int Rounds() {
  const char* text = ::getenv("TELLTALE_FAULT_ROUNDS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 3;
}

std::string RawTrainerPath() {
  return (std::filesystem::path(TrainerPath()).parent_path() / "fault_raw_trainer").string();
}

class Raw : public ::testing::TestWithParam<int> {
 protected:
  void Start() {
    oracle_ = Oracle::Map((scratch_ / "oracle").c_str());
    ASSERT_NE(oracle_, nullptr);
    run_ = scratch_ / "run";
    started_ = StartRun(
        run_, {"--level", "system", "--collect", "weights:raw,interval=1", "--overhead", "100%"},
        {RawTrainerPath(), scratch_ / "oracle", "1000000", "2000"}, scratch_ / "err");
    ASSERT_TRUE(Await([&] { return oracle_->committed >= 20; })) << started_.Err();
    ASSERT_EQ(oracle_->recording, 2) << "the trainer is not recorded: " << started_.Err();
    ASSERT_TRUE(Await([&] { return NewestStep() >= 20; })) << started_.Err();
  }
  /// The newest step whose values have a row, -1 where there is none.
  std::int64_t NewestStep() const {
    std::int64_t newest = -1;
    auto reader = store::RunReader::Open(run_);
    if (!reader.ok()) return newest;
    store::Salvage salvage;
    const auto visit = [&](const std::string&, const format::Rows& rows) {
      for (const format::TensorRow& row : rows.tensors) {
        if (row.name == "large") newest = std::max(newest, row.step);
      }
      return true;
    };
    const Status status =
        (*reader)->Scan(store::MaskOf(format::TableId::kTensors), visit, &salvage);
    return status.ok() ? newest : -1;
  }
  void AwaitNewRows() {
    const auto from = static_cast<std::int64_t>(oracle_->committed.load());
    ASSERT_TRUE(Await([&] { return NewestStep() > from; })) << started_.Err();
  }
  pid_t Agent() {
    pid_t pid = 0;
    EXPECT_TRUE(Await([&] { return (pid = FindHelper("agent", run_)) != 0; })) << started_.Err();
    return pid;
  }
  void KillAgentAtRandom() {
    const pid_t old = Agent();
    std::random_device random;
    const std::uint64_t at =
        oracle_->committed + std::uniform_int_distribution<std::uint64_t>(1, 100)(random);
    ASSERT_TRUE(Await([&] { return oracle_->committed >= at; }));
    ASSERT_EQ(::kill(old, SIGKILL), 0);
    ASSERT_TRUE(Await([&] {
      const pid_t now = FindHelper("agent", run_);
      return now != 0 && now != old;
    })) << started_.Err();
  }
  void Read() {
    for (const char* kind : {"agent", "watch"}) {
      ASSERT_TRUE(Await([&] { return FindHelper(kind, run_) == 0; })) << kind;
    }
    ReadRun(run_, &recorded_);
    for (const auto& row : recorded_.rows.ledger) {
      auto& value = by_process_[{std::string(row.name), std::string(row.subject), row.pid}];
      value = std::max(value, row.value);
    }
    const auto report = store::Verify(run_);
    ASSERT_TRUE(report.ok()) << report.status().message();
    problems_ = report->problems;
  }
  std::uint64_t Counted(std::string_view name) const {
    std::uint64_t sum = 0;
    for (const auto& [key, value] : by_process_) {
      if (std::get<0>(key) == name) sum += value;
    }
    return sum;
  }
  /// Checks each tensor's values against its step, and how many there are against what is counted.
  void CheckValues() {
    std::set<std::pair<std::string_view, std::int64_t>> seen;
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    for (const format::TensorRow& row : recorded_.rows.tensors) {
      if (row.name == store::kHeaderRow) continue;
      ASSERT_TRUE(seen.insert({row.name, row.step}).second)
          << row.name << " of step " << row.step << " is there twice";
      first = std::min(first, row.step);
      const auto tensor = store::OpenTensor(run_, Writer(), row);
      ASSERT_TRUE(tensor.ok()) << tensor.status().message();
      ASSERT_EQ(store::DigestText(tensor->values), row.digest) << row.name << " " << row.step;
      for (std::size_t at = 0; at < tensor->values.size(); at += sizeof(float)) {
        float value = -1;
        std::memcpy(&value, tensor->values.data() + at, sizeof value);
        ASSERT_EQ(value, static_cast<float>(row.step)) << row.name << " at byte " << at;
      }
    }
    ASSERT_FALSE(seen.empty());
    stored_ = seen.size();
    const std::uint64_t gone = Counted("raw.lost") + Counted("raw.dropped_disk") +
                               Counted("raw.dropped_queue") + Counted("raw.dropped_slab") +
                               Counted("raw.dropped_end") + Counted("probe.skipped") +
                               Counted("probe.raw_dropped") + Counted("probe.unanswered") +
                               Counted("probe.records_dropped");
    // From the step on at which the plan was there; the end may have hit between two tensors.
    const std::uint64_t steps = oracle_->committed - static_cast<std::uint64_t>(first);
    EXPECT_LE(stored_, 2 * (steps + 1));
    EXPECT_GE(stored_ + gone + 2, 2 * steps) << "lost silently";
    EXPECT_EQ(Counted("raw.dropped_slab"), 0U);
  }
  std::string Writer() const {
    for (const std::string& name : store::ListWriters(run_)) {
      if (name.starts_with("agent-")) return name;
    }
    return {};
  }
  std::size_t Unfinished() const {
    std::size_t parts = 0;
    for (const auto& entry : std::filesystem::directory_iterator(run_ / Writer() / "tensors")) {
      parts += entry.path().extension() == store::kPartSuffix ? 1 : 0;
    }
    return parts;
  }

  Scratch scratch_{"raw"};
  std::filesystem::path run_;
  Oracle* oracle_ = nullptr;
  Started started_;
  Recorded recorded_;
  std::map<std::tuple<std::string, std::string, std::int32_t>, std::uint64_t> by_process_;
  std::vector<store::Problem> problems_;
  std::uint64_t stored_ = 0;
};

TEST_P(Raw, NobodyIsKilledAndEverythingIsThere) {
  Start();
  ASSERT_EQ(::kill(oracle_->pid, SIGTERM), 0);
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
  ASSERT_NO_FATAL_FAILURE(Read());
  for (const auto& problem : problems_) ADD_FAILURE() << problem.file << ": " << problem.what;
  CheckValues();
  EXPECT_EQ(Unfinished(), 0U);
  EXPECT_EQ(Counted("raw.lost"), 0U);
  EXPECT_EQ(Counted("raw.stored"), stored_);
}

TEST_P(Raw, TheAgentIsKilledAgainAndAgain) {
  Start();
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(KillAgentAtRandom());
    ASSERT_NO_FATAL_FAILURE(AwaitNewRows());
  }
  ASSERT_EQ(::kill(oracle_->pid, SIGTERM), 0);
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
  ASSERT_NO_FATAL_FAILURE(Read());
  for (const auto& problem : problems_) ADD_FAILURE() << problem.file << ": " << problem.what;
  CheckValues();
  EXPECT_EQ(Unfinished(), 0U) << "the last agent finishes what the others left";
  EXPECT_EQ(CountEvents(recorded_, "agent.start"), 4U);
}

TEST_P(Raw, AgentAndTrainingAreKilledTogether) {
  Start();
  const pid_t agent = Agent();
  ::kill(agent, SIGKILL);
  ::kill(oracle_->pid, SIGKILL);
  EXPECT_EQ(started_.Wait(), -SIGKILL) << started_.Err();
  ASSERT_NO_FATAL_FAILURE(Read());
  for (const auto& problem : problems_) ADD_FAILURE() << problem.file << ": " << problem.what;
  CheckValues();
  EXPECT_EQ(Unfinished(), 0U);
}

/// Nobody comes in the agent's place: what is there is read all the same.
TEST_P(Raw, SupervisorAndAgentAreKilledTogether) {
  Start();
  const pid_t agent = Agent();
  ::kill(started_.pid, SIGKILL);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(started_.Wait(), -SIGKILL);
  ASSERT_TRUE(Await([&] { return FindHelper("agent", run_) == 0; }));
  const std::uint64_t at = oracle_->committed;
  ASSERT_TRUE(Await([&] { return oracle_->committed > at + 50; })) << "the training must go on";
  ASSERT_EQ(::kill(oracle_->pid, SIGKILL), 0);
  if (const pid_t watcher = FindHelper("watch", run_); watcher != 0) ::kill(watcher, SIGKILL);
  ASSERT_NO_FATAL_FAILURE(Read());
  for (const auto& problem : problems_) {
    EXPECT_EQ(problem.file.find("tensors/"), std::string::npos) << problem.file << problem.what;
  }
  std::size_t values = 0;
  for (const format::TensorRow& row : recorded_.rows.tensors) {
    if (row.name == store::kHeaderRow) continue;
    const auto tensor = store::OpenTensor(run_, Writer(), row);
    ASSERT_TRUE(tensor.ok()) << tensor.status().message();
    EXPECT_EQ(store::DigestText(tensor->values), row.digest);
    ++values;
  }
  EXPECT_GT(values, 0U);
  EXPECT_GE(Unfinished(), 1U);
}

/// The agent's files may not grow, as on a full disk: values are dropped and counted, the training
/// and its steps go on, and afterwards values come again.
TEST_P(Raw, TheDiskTakesNothingForAWhile) {
  Start();
  const pid_t agent = Agent();
  rlimit before{};
  rlimit none{};
  ASSERT_EQ(::prlimit(agent, RLIMIT_FSIZE, nullptr, &before), 0);
  none.rlim_max = before.rlim_max;
  ASSERT_EQ(::prlimit(agent, RLIMIT_FSIZE, &none, nullptr), 0);
  ASSERT_TRUE(Await([&] {
    return started_.Err().find("takes no more records") != std::string::npos;
  })) << started_.Err();
  const std::uint64_t refused_at = oracle_->committed;
  ASSERT_TRUE(Await([&] { return oracle_->committed > refused_at + 200; }));
  ASSERT_EQ(::prlimit(agent, RLIMIT_FSIZE, &before, nullptr), 0);
  ASSERT_NO_FATAL_FAILURE(AwaitNewRows());
  ASSERT_EQ(::kill(oracle_->pid, SIGTERM), 0);
  EXPECT_EQ(started_.Wait(), -SIGTERM) << started_.Err();
  ASSERT_NO_FATAL_FAILURE(Read());
  for (const auto& problem : problems_) ADD_FAILURE() << problem.file << ": " << problem.what;
  CheckValues();
  EXPECT_EQ(CountEvents(recorded_, "agent.start"), 1U) << "the agent must survive it";
  EXPECT_EQ(Unfinished(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Rounds, Raw, ::testing::Range(0, Rounds()));

}  // namespace
}  // namespace telltale::fault
