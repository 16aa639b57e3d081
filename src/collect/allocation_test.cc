// SPDX-License-Identifier: Apache-2.0
// Once it has seen everything the sampler allocates nothing: between the looks for new processes
// and changed limits a sample only reads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "base/clock.h"
#include "collect/sampler.h"

namespace {
thread_local std::size_t allocations = 0;
}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
// Not inlined: at a caller of one that is, g++ takes the other for a mismatch.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace telltale::collect {
namespace {

TEST(Sampler, ASampleBetweenTheLooksAllocatesNothing) {
  FakeClock clock;
  SamplerOptions options{"/", "here", &clock};
  options.patience_ns = 60'000'000'000;
  auto sampler = Sampler::Create(std::move(options));
  sampler->SetRoots({static_cast<int>(::getpid())});
  StringPool pool;
  std::vector<format::MetricRow> rows;
  constexpr int kWarmUp = 3;
  for (int i = 0; i < kWarmUp; ++i) {
    sampler->Sample(0, &pool, &rows);
    clock.Advance(100'000'000);
  }
  const std::size_t before_rows = rows.size();
  rows.reserve(10 * before_rows);
  const std::size_t before = allocations;
  sampler->Sample(0, &pool, &rows);
  EXPECT_EQ(allocations, before);
  EXPECT_GT(rows.size(), before_rows);
  clock.Advance(20'000'000'000);
  sampler->Sample(0, &pool, &rows);
  EXPECT_GT(allocations, before) << "the count does not count";
}

}  // namespace
}  // namespace telltale::collect
