// SPDX-License-Identifier: Apache-2.0
// Known ends are found by the texts of Python and torch, and the allocator's numbers are read.
#include "rules/builtin/known_ends.h"

#include <gtest/gtest.h>

#include <csignal>

namespace telltale::rules {
namespace {

constexpr double kGiB = 1073741824.0;

TEST(KnownEnds, AreFoundByTypeAndText) {
  const KnownEnd* norm = FindKnownEnd(
      "ValueError",
      "Expected more than 1 value per channel when training, got input size torch.Size([1, 64])");
  ASSERT_NE(norm, nullptr);
  EXPECT_NE(norm->advice.find("drop_last=True"), std::string_view::npos);
  EXPECT_NE(FindKnownEnd("IndexError", "Target 10 is out of bounds."), nullptr);
  EXPECT_NE(FindKnownEnd("ModuleNotFoundError", ""), nullptr);
}

TEST(KnownEnds, WithoutTheTextOnlyTheTypeIsKnown) {
  EXPECT_EQ(FindKnownEnd("ValueError", ""), nullptr);
  EXPECT_EQ(FindKnownEnd("IndexError", ""), nullptr);
  EXPECT_EQ(FindKnownEnd("KeyError", "'Target'"), nullptr);
}

TEST(KnownEnds, SignalsHaveNames) {
  EXPECT_EQ(SignalName(SIGSEGV), "SIGSEGV");
  EXPECT_EQ(SignalName(SIGUSR1), "SIGUSR1");
  EXPECT_EQ(SignalName(42), "signal 42");
  EXPECT_EQ(FindKnownSignal(42), nullptr);
}

TEST(CudaMemory, ReadsTheWordsOfTorch1) {
  const auto memory = CudaMemoryOf(
      "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.75 GiB total capacity; 9.50 GiB "
      "already allocated; 512.00 MiB free; 14.50 GiB reserved in total by PyTorch) If reserved "
      "memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.");
  ASSERT_TRUE(memory);
  EXPECT_DOUBLE_EQ(memory->wanted, 2 * kGiB);
  EXPECT_DOUBLE_EQ(memory->total.value(), 15.75 * kGiB);
  EXPECT_DOUBLE_EQ(memory->free.value(), 0.5 * kGiB);
  EXPECT_DOUBLE_EQ(memory->allocated.value(), 9.5 * kGiB);
  EXPECT_DOUBLE_EQ(memory->idle.value(), 5 * kGiB);
}

TEST(CudaMemory, ReadsTheWordsOfTorch2) {
  const auto memory = CudaMemoryOf(
      "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.75 GiB of "
      "which 12.50 MiB is free. Process 17 has 15.70 GiB memory in use. Of the allocated memory "
      "14.25 GiB is allocated by PyTorch, and 256.00 MiB is reserved by PyTorch but unallocated.");
  ASSERT_TRUE(memory);
  EXPECT_DOUBLE_EQ(memory->wanted, 20 * kGiB / 1024);
  EXPECT_DOUBLE_EQ(memory->total.value(), 15.75 * kGiB);
  EXPECT_DOUBLE_EQ(memory->free.value(), 12.5 * kGiB / 1024);
  EXPECT_DOUBLE_EQ(memory->allocated.value(), 14.25 * kGiB);
  EXPECT_DOUBLE_EQ(memory->idle.value(), 0.25 * kGiB);
}

TEST(CudaMemory, OtherTextsHaveNone) {
  EXPECT_FALSE(CudaMemoryOf(""));
  EXPECT_FALSE(CudaMemoryOf("CUDA out of memory."));
  EXPECT_FALSE(CudaMemoryOf("Tried to allocate 2.00 GiB"));
  EXPECT_FALSE(CudaMemoryOf("CUDA out of memory. Tried to allocate much"));
  const auto bare = CudaMemoryOf("CUDA out of memory. Tried to allocate 2.00 GiB");
  ASSERT_TRUE(bare);
  EXPECT_FALSE(bare->total);
}

}  // namespace
}  // namespace telltale::rules
