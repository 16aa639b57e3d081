// SPDX-License-Identifier: Apache-2.0
// Following a run while the real writer writes it. The clock is ours: nothing depends on speed.
#include "read/follow.h"

#include <arrow/api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "base/units.h"
#include "rules/replay.h"
#include "store/writer.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"
#include "watch/watcher.h"

namespace telltale::read {
namespace {

namespace fs = std::filesystem;
using State = Follow::State;

class FollowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sample_.steps = 100;
    info_ = testing::MakeInfo(sample_, false);
    ASSERT_TRUE(store::WriteRunInfo(run_, info_).ok());
    batches_ = testing::Cut(testing::MakeRows(sample_, &pool_), 200'000'000);
  }

  std::unique_ptr<store::Writer> NewWriter(const std::string& name) {
    store::WriterOptions options;
    options.clock = &clock_;
    auto writer = store::Writer::Open(run_ / name, name, options);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    return std::move(writer).value();
  }
  std::unique_ptr<Follow> NewFollow(const std::vector<std::string>& tables) {
    FollowOptions options;
    options.clock = &clock_;
    auto follow = Follow::Open(run_, tables, options);
    EXPECT_TRUE(follow.ok()) << follow.status().message();
    return std::move(follow).value();
  }
  void EndRun() {
    info_.finished = true;
    info_.attempts.back().exit_code = 0;
    ASSERT_TRUE(store::WriteRunInfo(run_, info_).ok());
    clock_.Advance(kSecond);  // Beyond the interval of looks at run.json.
  }

  /// Takes what is there; checks that the order never goes back from one call to the next.
  State Take(Follow* follow) {
    while (true) {
      const auto piece = follow->Next();
      EXPECT_TRUE(piece.ok()) << piece.status().message();
      if (!piece.ok()) return State::kEnd;
      if (piece->state != State::kRecords) return piece->state;
      const auto& batch = *piece->batch;
      const auto ord = std::static_pointer_cast<arrow::Int64Array>(batch.GetColumnByName("ord_ns"));
      std::int64_t last = last_ord_[static_cast<std::size_t>(piece->table)];
      for (std::int64_t i = 0; i < batch.num_rows(); ++i) {
        EXPECT_GE(ord->Value(i), last);
        last = ord->Value(i);
      }
      last_ord_[static_cast<std::size_t>(piece->table)] = last;
      if (piece->table != format::TableId::kSteps) continue;
      const auto step = std::static_pointer_cast<arrow::Int64Array>(batch.GetColumnByName("step"));
      for (std::int64_t i = 0; i < batch.num_rows(); ++i) steps_.push_back(step->Value(i));
    }
  }
  std::vector<std::int64_t> Steps(std::int64_t n) const {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < n; ++i) all.push_back(i);
    return all;
  }

  const testing::TempFolder folder_{"follow"};
  const fs::path run_ = folder_.path();
  FakeClock clock_;
  testing::SampleRun sample_;
  store::RunInfo info_;
  StringPool pool_;
  std::vector<format::Batch> batches_;
  std::vector<std::int64_t> steps_;
  std::vector<std::int64_t> last_ord_ =
      std::vector<std::int64_t>(16, std::numeric_limits<std::int64_t>::min());
};

TEST_F(FollowTest, GivesEachRecordOnceAsItComesAndEnds) {
  auto follow = NewFollow({"steps", "scalars"});
  EXPECT_EQ(Take(follow.get()), State::kWait) << "nothing was written yet";
  auto writer = NewWriter("agent-a");
  const std::size_t half = batches_.size() / 2;
  for (std::size_t i = 0; i < half; ++i) ASSERT_TRUE(writer->Append(batches_[i]).ok());
  EXPECT_EQ(Take(follow.get()), State::kWait);
  const std::size_t before = steps_.size();
  EXPECT_GT(before, 0U);
  EXPECT_LT(before, 100U);
  EXPECT_EQ(follow->frontier_ns(), batches_[half - 1].watermark_ns);
  EXPECT_EQ(Take(follow.get()), State::kWait) << "nothing twice";
  EXPECT_EQ(steps_.size(), before);
  for (std::size_t i = half; i < batches_.size(); ++i) {
    ASSERT_TRUE(writer->Append(batches_[i]).ok());
  }
  ASSERT_TRUE(writer->Close(true).ok());
  EXPECT_EQ(Take(follow.get()), State::kWait) << "another attempt may follow";
  EndRun();
  EXPECT_EQ(Take(follow.get()), State::kEnd);
  EXPECT_EQ(Take(follow.get()), State::kEnd);
  EXPECT_EQ(steps_, Steps(100));
}

TEST_F(FollowTest, TheFrontierWaitsForWhatIsNotGivenYet) {
  auto writer = NewWriter("agent-a");
  for (const format::Batch& batch : batches_) ASSERT_TRUE(writer->Append(batch).ok());
  auto follow = NewFollow({"steps", "scalars"});
  const std::int64_t before = follow->frontier_ns();
  const auto piece = follow->Next();
  ASSERT_TRUE(piece.ok());
  ASSERT_EQ(piece->state, State::kRecords);
  EXPECT_EQ(follow->frontier_ns(), before) << "scalars of the same time are still to come";
  EXPECT_EQ(Take(follow.get()), State::kWait);
  EXPECT_EQ(follow->frontier_ns(), batches_.back().watermark_ns);
}

TEST_F(FollowTest, ARunThatIsOverIsReadAtOnceThoughAWriterDied) {
  auto writer = NewWriter("agent-a");
  for (const format::Batch& batch : batches_) ASSERT_TRUE(writer->Append(batch).ok());
  ASSERT_TRUE(writer->Close(false).ok()) << "no end record";
  EndRun();
  auto follow = NewFollow({"steps"});
  EXPECT_EQ(Take(follow.get()), State::kEnd);
  EXPECT_EQ(steps_, Steps(100));
}

TEST_F(FollowTest, AWriterThatDiesWithTheRunIsWaitedForAWhile) {
  auto writer = NewWriter("agent-a");
  for (const format::Batch& batch : batches_) ASSERT_TRUE(writer->Append(batch).ok());
  auto follow = NewFollow({"steps"});
  EXPECT_EQ(Take(follow.get()), State::kWait);
  ASSERT_TRUE(writer->Close(false).ok());
  EndRun();
  EXPECT_EQ(Take(follow.get()), State::kWait) << "it may still write";
  clock_.Advance(10 * kSecond);
  EXPECT_EQ(Take(follow.get()), State::kEnd);
  EXPECT_EQ(steps_, Steps(100));
}

TEST_F(FollowTest, ASilentWriterHoldsTheOthersUpForTenSeconds) {
  auto silent = NewWriter("agent-silent");
  ASSERT_TRUE(silent->Append(batches_[0]).ok());
  auto writer = NewWriter("agent-a");
  for (const format::Batch& batch : batches_) ASSERT_TRUE(writer->Append(batch).ok());
  auto follow = NewFollow({"spans", "steps"});
  EXPECT_EQ(Take(follow.get()), State::kWait);
  EXPECT_LT(steps_.size(), 20U);
  EXPECT_EQ(Take(follow.get()), State::kWait) << "the silent one is noticed";
  clock_.Advance(9 * kSecond);
  EXPECT_EQ(Take(follow.get()), State::kWait);
  EXPECT_LT(steps_.size(), 20U);
  clock_.Advance(kSecond);
  EXPECT_EQ(Take(follow.get()), State::kWait) << "now it is let go of";
  EXPECT_EQ(Take(follow.get()), State::kWait);
  EXPECT_GE(steps_.size(), 100U);
  // What it writes late comes too, in the order of that moment.
  for (std::size_t i = 1; i < batches_.size(); ++i) ASSERT_TRUE(silent->Append(batches_[i]).ok());
  ASSERT_TRUE(silent->Close(true).ok());
  ASSERT_TRUE(writer->Close(true).ok());
  EndRun();
  EXPECT_EQ(Take(follow.get()), State::kEnd);
  EXPECT_EQ(steps_.size(), 200U);
}

/// A writer falls silent, is given up on by the watcher and comes back. What it wrote late is
/// moved; where to, the watcher's journal says. Whoever follows gets the order in which the rules
/// saw it.
TEST_F(FollowTest, TheOrderIsThatOfTheWatcher) {
  struct Given {
    std::int64_t ord_ns, step;
    auto operator<=>(const Given&) const = default;
  };
  using Order = std::vector<Given>;
  const auto take = [](Follow* follow, Order* order) {
    while (true) {
      const auto piece = follow->Next();
      ASSERT_TRUE(piece.ok()) << piece.status().message();
      if (piece->state != State::kRecords) return;
      const auto column = [&](const char* name) {
        return std::static_pointer_cast<arrow::Int64Array>(piece->batch->GetColumnByName(name));
      };
      for (std::int64_t i = 0; i < piece->batch->num_rows(); ++i) {
        order->push_back({column("ord_ns")->Value(i), column("step")->Value(i)});
      }
    }
  };
  testing::SampleRun other = sample_;
  other.rank = 1;
  auto late = testing::Cut(testing::MakeRows(other, &pool_), 200'000'000);
  auto silent = NewWriter("agent-silent");
  auto writer = NewWriter("agent-a");
  watch::WatchOptions watching;
  watching.clock = &clock_;
  auto watcher = watch::Watcher::Open(run_, watching);
  ASSERT_TRUE(watcher.ok());
  const auto watch = [&] {
    const auto over = (*watcher)->Poll();
    ASSERT_TRUE(over.ok()) << over.status().message();
  };
  Order live;
  auto beside = NewFollow({"steps"});
  std::size_t late_next = 0;
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    ASSERT_TRUE(writer->Append(batches_[i]).ok());
    const bool quiet = i > 2 && i < batches_.size() - 4;
    while (!quiet && late_next <= i) ASSERT_TRUE(silent->Append(late[late_next++]).ok());
    clock_.Advance(kSecond);
    watch();
    take(beside.get(), &live);
  }
  ASSERT_TRUE(writer->Close(true).ok());
  while (late_next < late.size()) ASSERT_TRUE(silent->Append(late[late_next++]).ok());
  ASSERT_TRUE(silent->Close(true).ok());
  EndRun();
  for (bool over = false; !over;) {
    clock_.Advance(kSecond);
    const auto polled = (*watcher)->Poll();
    ASSERT_TRUE(polled.ok()) << polled.status().message();
    over = *polled;
    take(beside.get(), &live);
  }
  Order replayed;
  rules::ReplayOptions options;
  options.sink_mask = store::MaskOf(format::TableId::kSteps);
  options.sink = [&](const store::OrderedRecord& record) {
    replayed.push_back({record.ord_ns, record.As<format::StepRow>()->step});
  };
  ASSERT_TRUE(rules::ReplayRun(run_, options).ok());
  ASSERT_EQ(replayed.size(), 200U);
  Order afterwards;
  auto follow = NewFollow({"steps"});
  take(follow.get(), &afterwards);
  EXPECT_EQ(afterwards, replayed);
  EXPECT_EQ(live, replayed);
  // The test says nothing where no record was moved.
  std::vector<std::int64_t> own;
  for (const auto* all : {&batches_, &late}) {
    for (const format::Batch& batch : *all) {
      for (const format::StepRow& row : batch.rows.steps) own.push_back(row.ord_ns);
    }
  }
  std::sort(own.begin(), own.end());
  std::vector<std::int64_t> given;
  for (const Given& one : replayed) given.push_back(one.ord_ns);
  EXPECT_NE(given, own);
}

}  // namespace
}  // namespace telltale::read
