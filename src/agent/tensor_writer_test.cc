// SPDX-License-Identifier: Apache-2.0
#include "agent/tensor_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "channel/slab.h"
#include "format/channel_layout.h"
#include "store/store_testing.h"
#include "store/verify.h"
#include "telltale/probe.h"

namespace telltale::agent {
namespace {

/// Holds the writer's thread before its next write until it is let go: a disk that hangs.
class Gate {
 public:
  std::function<void()> Hook() {
    return [this] {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
      --waiting_;
    };
  }
  void Close() { Set(false); }
  void Open() { Set(true); }
  bool AwaitSomebody() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(5), [&] { return waiting_ > 0; });
  }

 private:
  void Set(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
};

channel::DrainedTensor Tensor(std::string_view name, std::int64_t step, std::string values) {
  channel::DrainedTensor tensor;
  tensor.name = name;
  tensor.collection = "weights";
  tensor.time_ns = 100 + step;
  tensor.step = step;
  tensor.mode = "TRAIN";
  tensor.pid = 7;
  tensor.dtype = TT_DTYPE_U8;
  tensor.shape = {static_cast<std::int64_t>(values.size())};
  tensor.bytes = values.size();
  tensor.values = std::move(values);
  return tensor;
}

class TensorWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store::MakeRun(run_);
    journal_ = store::Writer::Open(folder_, "agent-a").value();
  }
  void TearDown() override { gate_.Open(); }

  TensorWriterOptions Options() {
    TensorWriterOptions options;
    options.min_free_bytes = 0;
    options.before_write = gate_.Hook();
    return options;
  }
  /// Journals the rows that there are; how many tensors they are of.
  std::uint64_t Journal(TensorWriter* writer) {
    format::Batch batch;
    const std::uint64_t tensors = writer->AddTo(&batch);
    EXPECT_TRUE(journal_->Append(std::move(batch)).ok());
    writer->Sent();
    return tensors;
  }
  /// Journals rows until `done`, at most a generous while.
  bool JournalUntil(TensorWriter* writer, const std::function<bool()>& done) {
    for (int i = 0; i < 300'000; ++i) {
      Journal(writer);
      if (done()) return true;
      ::usleep(1000);
    }
    return false;
  }
  void End(TensorWriter* writer) {
    writer->Finish();
    ASSERT_TRUE(JournalUntil(writer, [&] { return writer->finished() && !writer->HasRows(); }));
    ASSERT_TRUE(writer->AwaitSeals(std::chrono::minutes(5)));
  }
  /// The run is sound; the values of each tensor row, as its file has them.
  std::vector<std::pair<std::string, std::string>> Stored() {
    EXPECT_TRUE(journal_->Close(true).ok());
    const auto report = store::Verify(run_);
    EXPECT_TRUE(report.ok());
    for (const auto& problem : report->problems) ADD_FAILURE() << problem.file << problem.what;
    notes_ = report->notes;
    const auto all = store::ReadEverything(run_);
    std::vector<std::pair<std::string, std::string>> stored;
    for (const format::TensorRow& row : all->rows.tensors) {
      if (row.name == store::kHeaderRow) {
        ++headers_;
        continue;
      }
      EXPECT_EQ(row.attempt, 3U);
      EXPECT_EQ(row.pid, 7);
      EXPECT_EQ(row.collection, "weights");
      EXPECT_EQ(row.dtype, "U8");
      const auto tensor = store::OpenTensor(run_, "agent-a", row);
      EXPECT_TRUE(tensor.ok()) << tensor.status().message();
      if (!tensor.ok()) continue;
      stored.emplace_back(
          row.name,
          std::string(reinterpret_cast<const char*>(tensor->values.data()), tensor->values.size()));
    }
    return stored;
  }

  Gate gate_;
  store::TempFolder temp_;
  std::filesystem::path run_ = temp_.path() / "run";
  std::filesystem::path folder_ = run_ / "agent-a";
  std::unique_ptr<store::Writer> journal_;
  std::vector<std::string> notes_;
  int headers_ = 0;
};

using Pairs = std::vector<std::pair<std::string, std::string>>;

TEST_F(TensorWriterTest, WithoutATensorThereIsNoFolder) {
  TensorWriter writer(folder_, Options());
  End(&writer);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "tensors"));
  EXPECT_TRUE(Stored().empty());
}

TEST_F(TensorWriterTest, StoresInOrderAndFinishesTheFile) {
  TensorWriter writer(folder_, Options());
  for (int step = 0; step < 3; ++step) {
    writer.Add(Tensor("a", step, "xy" + std::to_string(step)), nullptr, 3);
    writer.Add(Tensor("empty", step, ""), nullptr, 3);
  }
  End(&writer);
  EXPECT_EQ(writer.counters().stored, 6U);
  EXPECT_EQ(writer.counters().stored_bytes, 9U);
  EXPECT_EQ(writer.counters().dropped(), 0U);
  EXPECT_EQ(
      Stored(),
      (Pairs{
          {"a", "xy0"}, {"empty", ""}, {"a", "xy1"}, {"empty", ""}, {"a", "xy2"}, {"empty", ""}}));
  EXPECT_EQ(headers_, 1);
  EXPECT_TRUE(notes_.empty()) << notes_[0];
  EXPECT_TRUE(std::filesystem::exists(folder_ / "tensors/00000001.safetensors"));
}

TEST_F(TensorWriterTest, BeginsANewFileWhereOneIsFullOrItsHeaderIsOrNothingComes) {
  TensorWriterOptions options = Options();
  options.close_bytes = 1000 + 16;
  options.header_bytes = 1000;
  options.idle = std::chrono::milliseconds(0);
  {
    TensorWriter writer(folder_, options);
    for (int i = 0; i < 4; ++i) writer.Add(Tensor("a", i, "12345678"), nullptr, 3);
    // It is finished though nobody said that this was the end.
    const auto finished = [&] {
      return std::filesystem::exists(folder_ / "tensors/00000002.safetensors");
    };
    EXPECT_TRUE(JournalUntil(&writer, finished));
    End(&writer);
  }
  options.close_bytes = 1 << 20;
  options.idle = std::chrono::hours(1);
  TensorWriter writer(folder_, options);
  for (int i = 0; i < 40; ++i) writer.Add(Tensor("b", i, "1"), nullptr, 3);
  End(&writer);
  EXPECT_EQ(Stored().size(), 44U);
  EXPECT_GE(headers_, 2 + 3);
}

TEST_F(TensorWriterTest, ASlowDiskHoldsUpNobodyAndWhatDoesNotFitIsCounted) {
  TensorWriterOptions options = Options();
  options.max_waiting_bytes = 10;
  TensorWriter writer(folder_, options);
  gate_.Close();
  writer.Add(Tensor("a", 0, "12345678"), nullptr, 3);
  ASSERT_TRUE(gate_.AwaitSomebody());
  // None of these waits for the disk: else this thread would, which alone opens it again.
  for (int i = 1; i < 100; ++i) writer.Add(Tensor("a", i, "12345678"), nullptr, 3);
  EXPECT_EQ(writer.counters().dropped_queue, 98U);
  EXPECT_EQ(Journal(&writer), 0U);
  gate_.Open();
  End(&writer);
  EXPECT_EQ(writer.counters().stored, 2U);
  EXPECT_EQ(Stored().size(), 2U);
}

TEST_F(TensorWriterTest, ItWaitsForTheDiskAndForTheJournal) {
  TensorWriter writer(folder_, Options());
  EXPECT_FALSE(writer.waits());
  gate_.Close();
  writer.Add(Tensor("a", 0, "1234"), nullptr, 3);
  ASSERT_TRUE(gate_.AwaitSomebody());
  EXPECT_TRUE(writer.waits());
  EXPECT_EQ(Journal(&writer), 0U);
  EXPECT_TRUE(writer.waits());
  gate_.Open();
  ASSERT_TRUE(JournalUntil(&writer, [&] { return writer.counters().stored == 1; }));
  Journal(&writer);
  EXPECT_FALSE(writer.waits()) << "the file stays open for more";
  writer.Add(Tensor("a", 1, "1234"), nullptr, 3);
  EXPECT_TRUE(writer.waits()) << "its row, if not its values";
  End(&writer);
}

TEST_F(TensorWriterTest, ADiskThatHangsIsGivenUpAndWhatWaitedIsCounted) {
  auto writer = std::make_unique<TensorWriter>(folder_, Options());
  writer->Add(Tensor("a", 0, "1234"), nullptr, 3);
  ASSERT_TRUE(JournalUntil(writer.get(), [&] { return writer->counters().stored == 1; }));
  Journal(writer.get());
  gate_.Close();
  for (int i = 1; i < 4; ++i) writer->Add(Tensor("a", i, "1234"), nullptr, 3);
  ASSERT_TRUE(gate_.AwaitSomebody());
  writer->Finish();
  writer->GiveUp();
  EXPECT_FALSE(writer->finished());
  EXPECT_EQ(writer->counters().dropped_end, 3U);
  writer->Add(Tensor("a", 9, "1234"), nullptr, 3);
  EXPECT_EQ(writer->counters().dropped_end, 4U);
  gate_.Open();
  writer.reset();
  EXPECT_EQ(Stored(), (Pairs{{"a", "1234"}})) << "the row of what is there holds";
  ASSERT_EQ(notes_.size(), 1U) << "and the file is named as unfinished";
}

TEST_F(TensorWriterTest, AFullDiskDropsCountsAndTakesAgainWhenThereIsRoom) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  TensorWriter writer(folder_, Options());
  writer.Add(Tensor("a", 0, "first"), nullptr, 3);
  ASSERT_TRUE(JournalUntil(&writer, [&] { return writer.counters().stored == 1; }));
  // As a disk without room: the file may not grow beyond what it has and two bytes.
  rlimit none = before;
  none.rlim_cur = store::kTensorHeaderBytes + 7;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  writer.Add(Tensor("a", 1, "second"), nullptr, 3);
  const bool dropped = JournalUntil(&writer, [&] { return writer.counters().dropped_disk == 1; });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(dropped);
  // It is left alone for a moment after that.
  int step = 2;
  ASSERT_TRUE(JournalUntil(&writer, [&] {
    writer.Add(Tensor("a", step++, "third"), nullptr, 3);
    return writer.counters().stored > 1;
  }));
  End(&writer);
  const TensorCounters counters = writer.counters();
  EXPECT_EQ(counters.stored + counters.dropped_disk, static_cast<std::uint64_t>(step));
  const Pairs stored = Stored();
  ASSERT_EQ(stored.size(), counters.stored);
  EXPECT_EQ(stored[0].second, "first");
  EXPECT_EQ(stored[1].second, "third") << "half of a tensor is none";
}

TEST_F(TensorWriterTest, LittleFreeSpaceIsLeftToTheJournal) {
  TensorWriterOptions options = Options();
  options.min_free_bytes = 1ULL << 62;
  TensorWriter writer(folder_, options);
  writer.Add(Tensor("a", 0, "x"), nullptr, 3);
  End(&writer);
  EXPECT_EQ(writer.counters().dropped_disk, 1U);
  EXPECT_TRUE(Stored().empty());
}

TEST_F(TensorWriterTest, RowsThatTheJournalDoesNotTakeAreBounded) {
  TensorWriterOptions options = Options();
  options.max_waiting_rows = 3;
  TensorWriter writer(folder_, options);
  const auto await = [&](std::uint64_t stored) {
    for (int i = 0; i < 300'000 && writer.counters().stored < stored; ++i) ::usleep(1000);
    ASSERT_EQ(writer.counters().stored, stored);
  };
  for (int step = 0; step < 3; ++step) writer.Add(Tensor("a", step, "x"), nullptr, 3);
  await(3);
  writer.Add(Tensor("a", 3, "x"), nullptr, 3);
  EXPECT_EQ(writer.counters().dropped_queue, 1U);
  EXPECT_EQ(Journal(&writer), 3U);
  writer.Add(Tensor("a", 4, "x"), nullptr, 3);
  End(&writer);
  EXPECT_EQ(writer.counters().dropped(), 1U);
  EXPECT_EQ(Stored().size(), 4U);
}

TEST_F(TensorWriterTest, NonsenseIsDroppedAndCounted) {
  TensorWriter writer(folder_, Options());
  const auto add = [&](auto change) {
    channel::DrainedTensor tensor = Tensor("a", 0, "1234");
    change(&tensor);
    writer.Add(tensor, nullptr, 3);
  };
  add([](auto* t) { t->dtype = 200; });
  add([](auto* t) { t->shape = {5}; });
  add([](auto* t) { t->shape = {-4}; });
  add([](auto* t) { t->bytes = 5; });
  add([](auto* t) { t->slot = 1; });  // There is no slab.
  EXPECT_EQ(writer.counters().dropped_slab, 5U);
  End(&writer);
  EXPECT_TRUE(Stored().empty());
}

/// A slab with a producer's side.
class SlabTensorWriterTest : public TensorWriterTest {
 protected:
  void SetUp() override {
    TensorWriterTest::SetUp();
    UniqueFd fd = channel::CreateSlab(64 * format::kSlotBytes).value();
    ASSERT_TRUE(producer_.Map(::dup(fd.get())));
    slab_ =
        std::make_shared<channel::SlabReader>(channel::SlabReader::Attach(std::move(fd)).value());
  }
  /// What the agent gets of a tensor that the producer has put into the slab; none where it is
  /// full.
  std::optional<channel::DrainedTensor> Produce(std::int64_t step, const std::string& values) {
    std::uint32_t slot = 0;
    void* data = nullptr;
    if (!producer_.Claim(values.size(), 64 * format::kSlotBytes, &slot, &data)) return {};
    std::memcpy(data, values.data(), values.size());
    producer_.Publish(slot, values.size());
    channel::DrainedTensor tensor = Tensor("big", step, values);
    tensor.values.clear();
    tensor.slot = slot;
    slab_->Take(slot, values.size());
    return tensor;
  }

  channel::SlabWriter producer_{};  // It lives in memory that is zero at first.
  std::shared_ptr<channel::SlabReader> slab_;
};

TEST_F(SlabTensorWriterTest, SlotsAreStoredAndFreeAgain) {
  TensorWriter writer(folder_, Options());
  const std::string values(10 * format::kSlotBytes + 1, 'v');
  // Many times what the slab holds.
  for (int step = 0; step < 40; ++step) {
    std::optional<channel::DrainedTensor> tensor;
    ASSERT_TRUE(
        JournalUntil(&writer, [&] { return (tensor = Produce(step, values)).has_value(); }));
    writer.Add(*tensor, slab_, 3);
  }
  End(&writer);
  EXPECT_EQ(writer.counters().dropped(), 0U);
  EXPECT_EQ(slab_.use_count(), 1) << "nothing of it is waited for any more";
  const Pairs stored = Stored();
  ASSERT_EQ(stored.size(), 40U);
  for (const auto& [name, bytes] : stored) EXPECT_TRUE(bytes == values);
}

TEST_F(SlabTensorWriterTest, WhatIsDroppedGivesItsSlotsBack) {
  auto writer = std::make_unique<TensorWriter>(folder_, Options());
  const std::string values(20 * format::kSlotBytes, 'v');
  gate_.Close();
  for (int step = 0; step < 3; ++step) {
    const auto tensor = Produce(step, values);
    ASSERT_TRUE(tensor.has_value());
    writer->Add(*tensor, slab_, 3);
  }
  EXPECT_FALSE(Produce(3, values).has_value()) << "the slab is the bound";
  ASSERT_TRUE(gate_.AwaitSomebody());
  writer->GiveUp();
  EXPECT_EQ(writer->counters().dropped_end, 3U);
  gate_.Open();
  writer.reset();
  EXPECT_EQ(slab_.use_count(), 1);
  for (int step = 4; step < 7; ++step) EXPECT_TRUE(Produce(step, values).has_value()) << step;
  EXPECT_TRUE(Stored().empty());
}

TEST_F(TensorWriterTest, FinishesWhatADeadOneLeft) {
  {
    TensorWriter dead(folder_, Options());
    for (int step = 0; step < 5; ++step) dead.Add(Tensor("a", step, "1234"), nullptr, 3);
    ASSERT_TRUE(JournalUntil(&dead, [&] { return dead.counters().stored == 5; }));
    Journal(&dead);
    // Stored, but the kill comes before the row is in the journal.
    dead.Add(Tensor("a", 5, "lost"), nullptr, 3);
    for (int i = 0; i < 300'000 && dead.counters().stored < 6; ++i) ::usleep(1000);
    ASSERT_EQ(dead.counters().stored, 6U);
  }
  ASSERT_TRUE(std::filesystem::exists(folder_ / "tensors/00000001.safetensors.part"));
  TensorWriter writer(folder_, Options());
  writer.Add(Tensor("a", 6, "next"), nullptr, 3);
  End(&writer);
  EXPECT_EQ(writer.counters().unfinished_files, 0U);
  const Pairs stored = Stored();
  EXPECT_TRUE(notes_.empty()) << notes_[0];
  ASSERT_EQ(stored.size(), 6U);
  EXPECT_EQ(stored.back().second, "next");
  EXPECT_EQ(headers_, 2);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "tensors/00000001.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "tensors/00000002.safetensors"));
}

}  // namespace
}  // namespace telltale::agent
