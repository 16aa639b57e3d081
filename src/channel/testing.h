// SPDX-License-Identifier: Apache-2.0
// What tests of the channel and of the probe share: a producer without a supervisor.
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>
#include <utility>

#include "base/string_pool.h"
#include "channel/consumer.h"
#include "channel/producer.h"
#include "channel/ticks.h"

namespace telltale::channel {

/// A producer in zeroed memory, as in the user's process; its mappings stay until the process ends,
/// as there.
class TestProducer {
 public:
  explicit TestProducer(const ArenaPlan& plan = kSmallPlan, format::ClockKind clock = DetectClock())
      : producer_(static_cast<Producer*>(::mmap(nullptr, sizeof(Producer), PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_EQ(producer_->Open(plan, 0, 0, clock, nullptr, nullptr), OpenResult::kOk);
    fd_ = UniqueFd(producer_->TakeArenaFd());
  }
  Producer& operator*() { return *producer_; }
  Producer* operator->() { return producer_; }
  /// Another descriptor of the arena, as the supervisor keeps.
  UniqueFd Fd() const { return UniqueFd(::dup(fd_.get())); }
  std::unique_ptr<Consumer> Attach() const {
    auto consumer = Consumer::Attach(Fd());
    EXPECT_TRUE(consumer.ok()) << consumer.status().message();
    return consumer.ok() ? std::move(consumer).value() : nullptr;
  }

 private:
  Producer* producer_;
  UniqueFd fd_;
};

/// Everything that is in the arena now.
inline Drained DrainAll(Consumer* consumer, StringPool* pool) {
  Drained out;
  while (consumer->Drain(1 << 20, 0, pool, &out)) {
  }
  return out;
}

}  // namespace telltale::channel
