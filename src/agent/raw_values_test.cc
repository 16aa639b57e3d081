// SPDX-License-Identifier: Apache-2.0
#include "agent/raw_values.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "channel/slab.h"
#include "channel/slab_writer.h"
#include "store/store_testing.h"
#include "store/verify.h"
#include "telltale/probe.h"

namespace telltale::agent {
namespace {

/// An agent's handling of raw values, with its journal, that dies and comes again.
class RawValuesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store::MakeRun(run_);
    Start();
  }
  void Start() {
    journal_ = store::Writer::Open(folder_, "agent-a").value();
    TensorWriterOptions options;
    options.min_free_bytes = full_ ? 1ULL << 62 : 0;
    raw_ = std::make_unique<RawValues>(folder_, journal_->RecoveredPositions(), options);
    ledger_ = Ledger();
  }
  /// As by kill -9: what is not in the journal is gone.
  void Die() {
    raw_.reset();
    ASSERT_TRUE(journal_->Close(false).ok());
    journal_.reset();
  }

  static std::vector<channel::DrainedTensor> Tensors(int n) {
    std::vector<channel::DrainedTensor> tensors;
    for (int i = 0; i < n; ++i) {
      channel::DrainedTensor tensor;
      tensor.name = "w";
      tensor.collection = "weights";
      tensor.step = i;
      tensor.mode = "TRAIN";
      tensor.dtype = TT_DTYPE_U8;
      tensor.shape = {4};
      tensor.bytes = 4;
      tensor.values = "1234";
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }
  /// One tick: a drain's tensors and whatever rows there are, `ledger` as every few seconds.
  void Tick(int tensors, bool ledger, bool taken = true) {
    format::Batch batch;
    raw_->Offer(Tensors(tensors), nullptr, &batch);
    if (ledger) {
      raw_->CountInto(7, &ledger_);
      ledger_.AddTo(1, 0, &batch);
    }
    raw_->AddTo(ledger, &batch);
    if (taken) {
      ASSERT_TRUE(journal_->Append(std::move(batch)).ok());
      if (ledger) ledger_.Sent();
    }
    raw_->Settle(taken, 1);
  }
  void TickUntil(const std::function<bool()>& done) {
    for (int i = 0; i < 300'000 && !done(); ++i) {
      Tick(0, false);
      ::usleep(1000);
    }
    ASSERT_TRUE(done());
  }
  /// The counter's value in the journal: the sum over all agents.
  std::uint64_t Counted(std::string_view name) {
    const auto all = store::ReadEverything(run_);
    std::uint64_t value = 0;
    for (const auto& row : all->rows.ledger) {
      if (row.name == name) value += row.value;
    }
    return value;
  }
  std::size_t Rows() { return store::ReadEverything(run_)->rows.tensors.size(); }

  store::TempFolder temp_;
  std::filesystem::path run_ = temp_.path() / "run";
  std::filesystem::path folder_ = run_ / "agent-a";
  bool full_ = false;
  std::unique_ptr<store::Writer> journal_;
  std::unique_ptr<RawValues> raw_;
  Ledger ledger_;
};

TEST_F(RawValuesTest, WhatTheJournalRefusedIsNotStoredUntilItIsTaken) {
  Tick(3, false, false);
  raw_->Finish();
  EXPECT_TRUE(raw_->finished()) << "nothing is on the way";
  Die();
  Start();
  Tick(3, false);
  TickUntil([&] { return Rows() == 3; });
  // Rows that the journal refuses are offered again.
  Tick(2, false);
  for (int i = 0; i < 100; ++i) Tick(0, false, false);
  TickUntil([&] { return Rows() == 5; });
  Die();
  Start();
  Tick(0, true);
  EXPECT_EQ(Counted("raw.lost"), 0U);
}

TEST_F(RawValuesTest, WhatDiedWithAnAgentIsCountedOnceByTheNext) {
  Tick(4, false);
  TickUntil([&] { return Rows() == 4; });
  // Their rows do not come to the journal any more, whatever the disk has of them.
  Tick(3, false);
  Die();
  Start();
  Tick(0, true);
  EXPECT_EQ(Counted("raw.lost"), 3U);
  Die();
  Start();
  Tick(0, true);
  EXPECT_EQ(Counted("raw.lost"), 3U) << "it is known";
}

TEST_F(RawValuesTest, AnAgentThatDiesBeforeItCountedLeavesThatToTheNext) {
  Tick(3, false);
  Die();
  Start();
  Tick(2, false);  // No ledger yet.
  TickUntil([&] {
    std::size_t tensors = 0;
    const auto all = store::ReadEverything(run_);
    for (const auto& row : all->rows.tensors) tensors += row.name == "w" ? 1 : 0;
    return tensors == 2;
  });
  Die();
  Start();
  Tick(0, true);
  EXPECT_EQ(Counted("raw.lost"), 3U);
}

TEST_F(RawValuesTest, SlotsAreTakenBeforeTheJournalHasTheirRecord) {
  UniqueFd fd = channel::CreateSlab(4 * format::kSlotBytes).value();
  channel::SlabWriter producer{};  // It lives in memory that is zero at first.
  ASSERT_TRUE(producer.Map(::dup(fd.get())));
  auto slab =
      std::make_shared<channel::SlabReader>(channel::SlabReader::Attach(std::move(fd)).value());
  std::uint32_t slot = 0;
  void* data = nullptr;
  ASSERT_TRUE(producer.Claim(4, ~0ULL, &slot, &data));
  std::memcpy(data, "abcd", 4);
  producer.Publish(slot, 4);
  const auto tick = [&](bool taken) {
    std::vector<channel::DrainedTensor> tensors = Tensors(1);
    tensors[0].values.clear();
    tensors[0].slot = slot;
    format::Batch batch;
    raw_->Offer(std::move(tensors), slab, &batch);
    EXPECT_TRUE(slab->Taken()[slot]) << "a kill from here on must not leave it to nobody";
    raw_->AddTo(false, &batch);
    if (taken) {
      ASSERT_TRUE(journal_->Append(std::move(batch)).ok());
    }
    raw_->Settle(taken, 1);
  };
  tick(false);
  EXPECT_EQ(slab->Data(slot, 4).size(), 4U) << "its record is drained again";
  tick(true);
  TickUntil([&] { return Rows() == 1; });
  EXPECT_TRUE(slab->Data(slot, 1).empty()) << "free again";
}

TEST_F(RawValuesTest, DropsAreSettledOnlyWithTheirCounter) {
  full_ = true;
  Die();
  Start();
  Tick(3, false);
  raw_->Finish();
  TickUntil([&] { return raw_->finished(); });
  Die();  // Nobody was told of the drops.
  Start();
  Tick(0, true);
  EXPECT_EQ(Counted("raw.dropped_disk"), 0U);
  EXPECT_EQ(Counted("raw.lost"), 3U);
  Tick(2, false);
  raw_->Finish();
  TickUntil([&] { return raw_->finished(); });
  Tick(0, true);
  EXPECT_EQ(Counted("raw.dropped_disk"), 2U);
  Die();
  Start();
  Tick(0, true);
  EXPECT_EQ(Counted("raw.lost"), 3U);
}

}  // namespace
}  // namespace telltale::agent
