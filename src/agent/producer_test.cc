// SPDX-License-Identifier: Apache-2.0
// The slots of the slab over the death of an agent: what comes back, what is still read. What is
// lost with a process.
#include "agent/producer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "channel/control_page.h"
#include "channel/slab.h"
#include "channel/slab_writer.h"
#include "channel/testing.h"
#include "telltale/probe.h"

namespace telltale::agent {
namespace {

constexpr std::uint64_t kSlot = format::kSlotBytes;
constexpr std::uint64_t kSlots = 8;

class ProducerSlots : public ::testing::Test {
 protected:
  void SetUp() override {
    slab_ = channel::CreateSlab(kSlots * kSlot).value();
    ASSERT_TRUE(writer_.Map(::dup(slab_.get())));
  }
  /// As a hook that takes the values of a tensor of so many slots.
  void Record(std::uint64_t slots) {
    std::uint32_t slot = 0;
    void* data = nullptr;
    ASSERT_TRUE(writer_.Claim(slots * kSlot, kSlots * kSlot, &slot, &data));
    std::memset(data, 'v', slots * kSlot);
    writer_.Publish(slot, slots * kSlot);
    format::TensorRecord record{};
    record.time = process_->Now();
    record.bytes = slots * kSlot;
    record.slot = slot;
    record.dtype = TT_DTYPE_U8;
    record.ndim = 1;
    const auto size = static_cast<std::int64_t>(record.bytes);
    ASSERT_TRUE(process_->Tensor(record, &size, nullptr));
  }
  /// The process as a new agent gets it.
  std::unique_ptr<Producer> Adopt(pid_t pid = ::getpid()) {
    Uuid uuid;
    std::copy_n(process_->uuid(), uuid.size(), uuid.begin());
    auto page = channel::ControlPage::Create(16);
    EXPECT_TRUE(page.ok());
    auto producer =
        Producer::Adopt(uuid, process_.Fd(), UniqueFd(::dup(page->fd())), OpenPidfd(pid));
    EXPECT_TRUE(producer.ok()) << producer.status().message();
    (*producer)->AttachSlab(UniqueFd(::dup(slab_.get())));
    return std::move(producer).value();
  }
  /// One drain of everything, as the agent's tick makes it; takes the slots.
  channel::Drained Drain(Producer* producer) {
    channel::Drained drained;
    const bool waiting = producer->consumer().Drain(1 << 20, 0, &pool_, &drained);
    EXPECT_FALSE(waiting);
    producer->SeeTensors(drained.tensors, !waiting);
    for (const channel::DrainedTensor& tensor : drained.tensors) {
      producer->slab()->Take(tensor.slot.value(), tensor.bytes);
    }
    return drained;
  }
  std::uint64_t Free(Producer* producer) {
    std::uint64_t free = 0;
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      free += producer->slab()->Data(i, 1).empty() ? 1 : 0;
    }
    return free;
  }

  UniqueFd slab_;
  channel::SlabWriter writer_{};  // It lives in memory that is zero at first.
  channel::TestProducer process_;
  StringPool pool_;
};

TEST_F(ProducerSlots, WhatTheJournalHasAndADeadAgentHadComesBack) {
  Record(3);
  std::vector<format::RingPosition> journalled;
  {
    const auto dead = Adopt();
    journalled = Drain(dead.get()).positions;
    // The kill: the batch is in the journal, the values are not in their file.
  }
  Record(2);
  const auto agent = Adopt();
  agent->consumer().SkipTo(journalled);
  EXPECT_EQ(Free(agent.get()), 3U) << "not before the rings were drained";
  const channel::Drained drained = Drain(agent.get());
  ASSERT_EQ(drained.tensors.size(), 1U);
  EXPECT_EQ(drained.tensors[0].bytes, 2 * kSlot);
  EXPECT_EQ(Free(agent.get()), 6U);
}

TEST_F(ProducerSlots, WhatTheJournalHasNotIsReadAgain) {
  Record(3);
  {
    const auto dead = Adopt();
    Drain(dead.get());
    // The kill: the slots are taken, the journal was never given the batch.
  }
  const auto agent = Adopt();
  const channel::Drained drained = Drain(agent.get());
  ASSERT_EQ(drained.tensors.size(), 1U);
  const auto values = agent->slab()->Data(drained.tensors[0].slot.value(), 3 * kSlot);
  ASSERT_EQ(values.size(), 3 * kSlot);
  EXPECT_TRUE(std::all_of(values.begin(), values.end(),
                          [](std::byte value) { return value == std::byte{'v'}; }));
  EXPECT_EQ(Free(agent.get()), 5U);
}

TEST_F(ProducerSlots, WhatTheJournalRefusedKeepsItsSlots) {
  Record(3);
  const auto agent = Adopt();
  Drain(agent.get());
  agent->consumer().Rollback();
  const channel::Drained again = Drain(agent.get());
  ASSERT_EQ(again.tensors.size(), 1U);
  EXPECT_EQ(agent->slab()->Data(again.tensors[0].slot.value(), 3 * kSlot).size(), 3 * kSlot);
}

class HistogramsUnderWay : public ProducerSlots {
 protected:
  std::uint64_t Dropped(Producer* producer) {
    Ledger ledger;
    producer->CountInto(&ledger);
    format::Batch batch;
    ledger.AddTo(1, 0, &batch);
    for (const auto& row : batch.rows.ledger) {
      if (row.name == "probe.histogram_dropped") return row.value;
    }
    return 0;
  }
};

TEST_F(HistogramsUnderWay, AreDroppedWithTheirProcess) {
  process_->CountHistogramsDropped(1);
  for (int i = 0; i < 3; ++i) process_->CountHistogramTaken();
  process_->CountHistogramDone();
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  const auto agent = Adopt(child);
  EXPECT_FALSE(agent->PollEnded());
  EXPECT_EQ(Dropped(agent.get()), 1U);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(agent->PollEnded());
  EXPECT_EQ(Dropped(agent.get()), 3U);
}

TEST_F(HistogramsUnderWay, AreDroppedWhereTheRecordingEndsBeforeTheProcess) {
  process_->CountHistogramTaken();
  const auto agent = Adopt();
  EXPECT_EQ(Dropped(agent.get()), 0U);
  EXPECT_TRUE(agent->LeftEvent(0).has_value());
  EXPECT_EQ(Dropped(agent.get()), 1U);
}

}  // namespace
}  // namespace telltale::agent
