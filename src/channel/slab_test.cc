// SPDX-License-Identifier: Apache-2.0
// The slab between its producer and the agent: claims, hand-over, hostile slots, short memory.
#include "channel/slab.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace telltale::channel {
namespace {

constexpr std::uint64_t kSlot = format::kSlotBytes;

class SlabTest : public testing::Test {
 protected:
  void Make(std::uint64_t bytes) {
    auto fd = CreateSlab(bytes);
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    fd_ = std::move(fd).value();
    // In zeroed memory, as in the user's process.
    writer_ = static_cast<SlabWriter*>(::mmap(nullptr, sizeof(SlabWriter), PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_TRUE(writer_->Map(::dup(fd_.get())));
    limit_ = bytes;
  }
  SlabReader Reader() {
    auto reader = SlabReader::Attach(UniqueFd(::dup(fd_.get())));
    EXPECT_TRUE(reader.ok()) << reader.status().message();
    return std::move(reader).value();
  }
  /// The slot of a run of `bytes`, filled with `fill` and published; -1: no room.
  std::int64_t Put(std::uint64_t bytes, char fill) {
    std::uint32_t slot = 0;
    void* data = nullptr;
    if (!writer_->Claim(bytes, limit_, &slot, &data)) return -1;
    std::memset(data, fill, bytes);
    writer_->Publish(slot, bytes);
    return slot;
  }
  std::uint64_t Backed() const {
    struct stat info {};
    ::fstat(fd_.get(), &info);
    return static_cast<std::uint64_t>(info.st_blocks) * 512;
  }

  UniqueFd fd_;
  SlabWriter* writer_ = nullptr;
  std::uint64_t limit_ = 0;
};

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_F(SlabTest, ValuesGoThroughAndTheirSlotsComeBack) {
  Make(64 * kSlot);
  SlabReader reader = Reader();
  EXPECT_EQ(reader.slots(), 64u);
  for (int round = 0; round < 20; ++round) {
    const std::uint64_t bytes = 10 * kSlot + 5;
    std::vector<std::uint32_t> slots;
    for (char fill = 'a'; fill < 'f'; ++fill) {
      const std::int64_t slot = Put(bytes, fill);
      ASSERT_GE(slot, 0);
      slots.push_back(static_cast<std::uint32_t>(slot));
    }
    EXPECT_EQ(Put(bytes, 'x'), -1) << "9 slots are left, 11 would be needed";
    EXPECT_GE(Put(9 * kSlot, 'y'), 0);
    char fill = 'a';
    for (const std::uint32_t slot : slots) {
      reader.Take(slot, bytes);
      EXPECT_EQ(Text(reader.Data(slot, bytes)), std::string(bytes, fill++));
    }
    for (std::uint32_t slot = 0; slot < 64; ++slot) reader.Free(slot, 1);
  }
}

TEST_F(SlabTest, TheLimitIsKept) {
  Make(64 * kSlot);
  limit_ = 3 * kSlot + 100;
  EXPECT_EQ(Put(4 * kSlot, 'a'), -1);
  EXPECT_EQ(Put(3 * kSlot, 'a'), 0);
  EXPECT_EQ(Put(1, 'a'), -1);
  limit_ = 0;
  EXPECT_EQ(Put(1, 'a'), -1);
  limit_ = ~0ULL;
  EXPECT_EQ(Put(1, 'a'), 3) << "the slab's own size is the other limit";
  std::uint32_t slot = 0;
  void* data = nullptr;
  EXPECT_FALSE(writer_->Claim(~0ULL, limit_, &slot, &data));
}

TEST_F(SlabTest, MemoryIsTakenAsItIsNeeded) {
  Make(64 << 20);
  EXPECT_LT(Backed(), 1u << 20);
  SlabReader reader = Reader();
  for (int i = 0; i < 100; ++i) {
    const std::int64_t slot = Put(1 << 20, 'a');
    ASSERT_GE(slot, 0);
    reader.Free(static_cast<std::uint32_t>(slot), 1 << 20);
  }
  EXPECT_LE(Backed(), 9u << 20) << "a reader that keeps up needs no more";
  EXPECT_GE(Put(40 << 20, 'b'), 0);
  EXPECT_GE(Backed(), 40u << 20);
}

TEST_F(SlabTest, ARunAcrossWhatIsBackedAndWhatIsNot) {
  Make(32 << 20);
  std::vector<std::int64_t> slots;
  // 5 MiB at a time does not divide the pieces of 8 MiB.
  for (int i = 0; i < 6; ++i) slots.push_back(Put(5 << 20, static_cast<char>('a' + i)));
  SlabReader reader = Reader();
  for (int i = 0; i < 6; ++i) {
    ASSERT_GE(slots[static_cast<std::size_t>(i)], 0) << i;
    const auto data =
        reader.Data(static_cast<std::uint32_t>(slots[static_cast<std::size_t>(i)]), 5 << 20);
    ASSERT_EQ(data.size(), 5u << 20);
    EXPECT_EQ(data.front(), std::byte(static_cast<unsigned char>('a' + i)));
    EXPECT_EQ(data.back(), std::byte(static_cast<unsigned char>('a' + i)));
  }
  EXPECT_EQ(Put(5 << 20, 'x'), -1);
}

TEST_F(SlabTest, AbandonedRunsAreFree) {
  Make(4 * kSlot);
  std::uint32_t slot = 9;
  void* data = nullptr;
  ASSERT_TRUE(writer_->Claim(4 * kSlot, limit_, &slot, &data));
  EXPECT_EQ(Put(1, 'a'), -1);
  writer_->Abandon(slot, 4 * kSlot);
  EXPECT_EQ(Put(4 * kSlot, 'a'), 0);
}

TEST_F(SlabTest, SlotsThatAreNotFilledOrOutOfRangeHoldNothing) {
  Make(8 * kSlot);
  SlabReader reader = Reader();
  EXPECT_TRUE(reader.Data(0, 1).empty()) << "free";
  std::uint32_t slot = 0;
  void* data = nullptr;
  ASSERT_TRUE(writer_->Claim(2 * kSlot, limit_, &slot, &data));
  EXPECT_TRUE(reader.Data(slot, 1).empty()) << "being filled";
  reader.Take(slot, 2 * kSlot);
  reader.Free(slot, 2 * kSlot);
  EXPECT_EQ(Put(7 * kSlot, 'a'), -1) << "what is being filled is not the reader's to free";
  writer_->Publish(slot, 2 * kSlot);
  EXPECT_EQ(reader.Data(slot, 2 * kSlot).size(), 2 * kSlot);
  EXPECT_TRUE(reader.Data(slot, 2 * kSlot + 1).empty()) << "the third slot is free";
  for (const std::uint32_t hostile : {8U, 9U, ~0U}) {
    EXPECT_TRUE(reader.Data(hostile, 1).empty());
    reader.Take(hostile, 1);
    reader.Free(hostile, 1);
  }
  EXPECT_TRUE(reader.Data(7, 2 * kSlot).empty());
  EXPECT_TRUE(reader.Data(0, ~0ULL).empty());
  reader.Free(0, ~0ULL);
  reader.Free(7, 2 * kSlot);
  EXPECT_EQ(reader.Data(slot, 2 * kSlot).size(), 2 * kSlot);
}

TEST_F(SlabTest, ANewAgentFreesOfWhatADeadOneHadTakenWhatItChooses) {
  Make(8 * kSlot);
  const auto taken = static_cast<std::uint32_t>(Put(3 * kSlot, 'a'));
  const auto waiting = static_cast<std::uint32_t>(Put(2 * kSlot, 'b'));
  const auto kept = static_cast<std::uint32_t>(Put(kSlot, 'c'));
  {
    SlabReader first = Reader();
    first.Take(taken, 3 * kSlot);
    first.Take(kept, kSlot);
    EXPECT_FALSE(first.Data(taken, 3 * kSlot).empty()) << "taken, and read later";
  }
  SlabReader second = Reader();
  std::vector<bool> nobodys = second.Taken();
  EXPECT_EQ(nobodys, (std::vector<bool>{true, true, true, false, false, true, false, false}));
  nobodys[kept] = false;
  nobodys.resize(100, true);  // Further than there are slots.
  EXPECT_EQ(second.FreeTaken(nobodys), 3u);
  EXPECT_EQ(second.FreeTaken(nobodys), 0u);
  EXPECT_TRUE(second.Data(taken, 3 * kSlot).empty());
  EXPECT_EQ(Text(second.Data(kept, kSlot)), std::string(kSlot, 'c'));
  EXPECT_EQ(Text(second.Data(waiting, 2 * kSlot)), std::string(2 * kSlot, 'b'));
}

TEST_F(SlabTest, AReaderMoves) {
  Make(8 * kSlot);
  const auto slot = static_cast<std::uint32_t>(Put(10, 'a'));
  SlabReader first = Reader();
  SlabReader second = std::move(first);
  EXPECT_EQ(Text(second.Data(slot, 10)), std::string(10, 'a'));
  first = Reader();
  EXPECT_EQ(Text(first.Data(slot, 10)), std::string(10, 'a'));
}

TEST_F(SlabTest, ThreadsNeverShareASlot) {
  Make(256 * kSlot);
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> torn{0};
  std::atomic<int> claims{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 2000; ++i) {
        const std::uint64_t bytes = random() % (20 * kSlot) + 1;
        std::uint32_t slot = 0;
        void* data = nullptr;
        if (!writer_->Claim(bytes, limit_, &slot, &data)) continue;
        claims.fetch_add(1);
        std::memset(data, t, bytes);
        writer_->Publish(slot, bytes);
        const auto* values = static_cast<const char*>(data);
        if (values[0] != t || values[bytes - 1] != t || values[bytes / 2] != t) torn.fetch_add(1);
        writer_->Abandon(slot, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn.load(), 0);
  EXPECT_GT(claims.load(), 0);
  EXPECT_EQ(Put(256 * kSlot, 'a'), 0) << "all were given back";
}

TEST_F(SlabTest, WhatIsNoSlabIsRefusedByBothSides) {
  const auto refused = [](UniqueFd fd) {
    auto* writer = static_cast<SlabWriter*>(::mmap(
        nullptr, sizeof(SlabWriter), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const bool mapped = writer->Map(::dup(fd.get()));
    return !mapped && !SlabReader::Attach(std::move(fd)).ok();
  };
  UniqueFd plain(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_TRUE(refused(UniqueFd(::dup(plain.get()))));
  ASSERT_EQ(::ftruncate(plain.get(), 1 << 20), 0);
  EXPECT_TRUE(refused(UniqueFd(::dup(plain.get())))) << "not sealed";
  ASSERT_EQ(::fcntl(plain.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(refused(UniqueFd(::dup(plain.get())))) << "no magic";
  for (int field = 0; field < 3; ++field) {
    auto slab = CreateSlab(16 * kSlot);
    ASSERT_TRUE(slab.ok());
    void* map =
        ::mmap(nullptr, format::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, slab->get(), 0);
    auto* header = static_cast<format::SlabHeader*>(map);
    if (field == 0) header->slots = 17;
    if (field == 1) header->slots = 0xFFFFFFFF;
    if (field == 2) header->slots_offset = 0xFFFFF000;
    EXPECT_TRUE(refused(std::move(slab).value())) << field;
  }
  EXPECT_FALSE(CreateSlab(1ULL << 50).ok());
}

TEST_F(SlabTest, ADescriptorThatIsAnotherFileByNowIsNotWrittenTo) {
  auto fd = CreateSlab(16 << 20);
  ASSERT_TRUE(fd.ok());
  auto* writer = static_cast<SlabWriter*>(::mmap(
      nullptr, sizeof(SlabWriter), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const int given = ::dup(fd->get());
  ASSERT_TRUE(writer->Map(given));
  // As a program that closes every descriptor and opens its own.
  UniqueFd users(::memfd_create("users", MFD_CLOEXEC));
  ASSERT_EQ(::dup2(users.get(), given), given);
  std::uint32_t slot = 0;
  void* data = nullptr;
  EXPECT_FALSE(writer->Claim(1, ~0ULL, &slot, &data));
  struct stat info {};
  ASSERT_EQ(::fstat(users.get(), &info), 0);
  EXPECT_EQ(info.st_size, 0);
  EXPECT_EQ(info.st_blocks, 0);
  ::close(given);
}

}  // namespace
}  // namespace telltale::channel
