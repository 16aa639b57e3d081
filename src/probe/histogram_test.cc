// SPDX-License-Identifier: Apache-2.0
// Bins and quantiles against numpy's rules written out element by element, and against numbers that
// numpy gave; the pool: order, bounds, threads, the end of the process.
#include "probe/histogram.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "channel/testing.h"

namespace telltale::probe {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Result {
  std::vector<std::uint64_t> bins = std::vector<std::uint64_t>(64);
  std::vector<double> quantiles;
  double min = kNan, max = kNan;
  std::uint64_t taken = 0;
};

/// numpy/lib/_histograms_impl.py for equal bins of a range, and numpy.quantile's linear method.
Result AsNumpy(const std::vector<double>& all, double low, double high) {
  Result r;
  std::vector<double> values;
  for (const double x : all) {
    if (std::isfinite(x)) values.push_back(x);
  }
  r.taken = values.size();
  if (values.empty()) {
    r.quantiles.assign(9, kNan);
    return r;
  }
  if (low == high) {
    low -= 0.5;
    high += 0.5;
  }
  r.min = low;
  r.max = high;
  std::vector<double> edges(65);
  const double step = (high - low) / 64;
  for (int i = 0; i < 65; ++i) {
    const volatile double product = i * step;  // Not to be contracted.
    edges[static_cast<std::size_t>(i)] = product + low;
  }
  edges[64] = high;
  for (const double x : values) {
    auto index = static_cast<std::size_t>((x - low) / (high - low) * 64);
    if (index == 64) --index;
    if (x < edges[index]) {
      --index;
    } else if (x >= edges[index + 1] && index != 63) {
      ++index;
    }
    ++r.bins[index];
  }
  std::sort(values.begin(), values.end());
  for (const double rank : format::kQuantileRanks) {
    const double at = static_cast<double>(values.size() - 1) * rank;
    const auto below = static_cast<std::size_t>(std::floor(at));
    const double a = values[below];
    const double b = values[std::min(below + 1, values.size() - 1)];
    const double t = at - std::floor(at);
    const volatile double up = (b - a) * t, down = (b - a) * (1 - t);
    r.quantiles.push_back(t >= 0.5 ? b - down : a + up);
  }
  return r;
}

template <class T>
Result Ours(std::vector<T> values, double low, double high) {
  std::vector<T> scratch(values.size());
  format::HistogramRecord record{};
  record.min = low;
  record.max = high;
  ComputeHistogram(values.data(), static_cast<std::uint32_t>(values.size()), scratch.data(),
                   &record);
  Result r;
  r.bins.assign(record.bins, record.bins + 64);
  r.quantiles.assign(record.quantiles, record.quantiles + 9);
  r.min = record.min;
  r.max = record.max;
  r.taken = record.taken;
  return r;
}

void ExpectSame(const Result& got, const Result& expected) {
  EXPECT_EQ(got.taken, expected.taken);
  EXPECT_EQ(got.bins, expected.bins);
  for (std::size_t i = 0; i < 9; ++i) {
    if (std::isnan(expected.quantiles[i])) {
      EXPECT_TRUE(std::isnan(got.quantiles[i]));
    } else {
      EXPECT_EQ(got.quantiles[i], expected.quantiles[i]) << i;
    }
  }
  if (expected.taken == 0) {
    EXPECT_TRUE(std::isnan(got.min) && std::isnan(got.max));
    return;
  }
  EXPECT_EQ(got.min, expected.min);
  EXPECT_EQ(got.max, expected.max);
}

template <class T>
void Check(const std::vector<T>& values) {
  double low = kInf, high = -kInf;
  for (const T x : values) {
    if (!std::isfinite(x)) continue;
    low = std::min(low, static_cast<double>(x));
    high = std::max(high, static_cast<double>(x));
  }
  if (low > high) low = high = kNan;
  ExpectSame(Ours(values, low, high),
             AsNumpy(std::vector<double>(values.begin(), values.end()), low, high));
}

template <class T>
class HistogramOf : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(HistogramOf, Types);

TYPED_TEST(HistogramOf, RandomValuesOfAnyCount) {
  using T = TypeParam;
  std::mt19937_64 random(5);
  for (const std::size_t count : {1, 2, 3, 63, 64, 65, 1000, 1023, 1024, 1025, 5000, 65'536}) {
    SCOPED_TRACE(count);
    std::vector<T> normal(count), wide(count), few(count);
    for (std::size_t i = 0; i < count; ++i) {
      normal[i] = static_cast<T>(std::normal_distribution<double>(0.01, 0.3)(random));
      wide[i] = static_cast<T>(std::exp(std::normal_distribution<double>(0, 20)(random)));
      if (i % 2 == 0) wide[i] = -wide[i];
      few[i] = static_cast<T>(random() % 5) / 4;  // On the edges of bins.
    }
    Check(normal);
    Check(wide);
    Check(few);
  }
}

TYPED_TEST(HistogramOf, WhatIsSpecial) {
  using T = TypeParam;
  const T nan = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
  Check(std::vector<T>{});
  Check(std::vector<T>{nan, inf, -inf});
  Check(std::vector<T>{nan, 1, inf, 2, -inf, 3, nan});
  Check(std::vector<T>(100, T{7}));
  Check(std::vector<T>(3000, T{0}));
  Check(std::vector<T>{T{-0.0}, T{0.0}, T{-0.0}, T{1}});
  std::vector<T> steps(2000);
  std::iota(steps.begin(), steps.end(), T{0});
  Check(steps);
  std::reverse(steps.begin(), steps.end());
  Check(steps);
}

TEST(Histogram, ARangeThatDoubleCannotDivideHoldsEverythingAllTheSame) {
  const auto total = [](const Result& r) {
    return std::accumulate(r.bins.begin(), r.bins.end(), std::uint64_t{0});
  };
  EXPECT_EQ(total(Ours(std::vector<double>(10, 1e300), 1e300, 1e300)), 10u);
  const double largest = std::numeric_limits<double>::max();
  const Result all = Ours(std::vector<double>{-largest, 0, largest}, -largest, largest);
  EXPECT_EQ(total(all), 3u);
  EXPECT_EQ(all.bins[0], 1u);
  EXPECT_EQ(all.bins[32], 1u);
  EXPECT_EQ(all.bins[63], 1u);
  const double tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(total(Ours(std::vector<double>{0, tiny, 2 * tiny}, 0, 2 * tiny)), 3u);
  // Values that changed since their statistics were taken.
  EXPECT_EQ(total(Ours(std::vector<double>{-5, 0.5, 9}, 0, 1)), 3u);
}

TEST(Histogram, NumbersThatNumpyGave) {
  // a = numpy.arange(10.) ** 2; numpy.histogram(a, 64) and numpy.quantile(a, ranks).
  std::vector<double> values;
  for (int i = 0; i < 10; ++i) values.push_back(i * i);
  const Result r = Ours(values, 0, 81);
  std::vector<std::uint64_t> bins(64);
  for (const std::size_t bin : {0, 0, 3, 7, 12, 19, 28, 38, 50, 63}) ++bins[bin];
  EXPECT_EQ(r.bins, bins);
  const double quantiles[] = {0.09, 0.45, 0.9, 5.25, 20.5, 45.75, 65.7, 73.35, 79.47};
  for (std::size_t i = 0; i < 9; ++i) EXPECT_NEAR(r.quantiles[i], quantiles[i], 1e-12);
}

class PoolTest : public testing::Test {
 protected:
  void SetUp() override {
    pool_ =
        static_cast<HistogramPool*>(::mmap(nullptr, sizeof(HistogramPool), PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    pool_->Init(&*producer_);
  }
  bool Add(const std::vector<float>& values, std::int64_t step, std::uint32_t most = 0) {
    const auto count = static_cast<std::int64_t>(values.size());
    ArrayView view;
    EXPECT_TRUE(MakeView({values.data(), TT_DTYPE_F32, 1, &count, nullptr}, &view));
    format::HistogramRecord record{};
    record.step = step;
    record.time = producer_->Now();
    record.count = values.size();
    record.min = *std::min_element(values.begin(), values.end());
    record.max = *std::max_element(values.begin(), values.end());
    return pool_->Add(view, most, record);
  }
  /// As long as a flush waits for the helper's thread, at least.
  static constexpr auto kFlushLimit = std::chrono::milliseconds(200);
  /// What is there, at least so many where they come in time: the helper's thread, which is
  /// nice, may not be done where a flush ends.
  std::vector<format::HistogramRow> Rows(std::size_t wanted = 0) {
    using Clock = std::chrono::steady_clock;
    std::vector<format::HistogramRow> rows;
    const auto deadline = Clock::now() + std::chrono::minutes(5);
    do {
      const auto begin = Clock::now();
      pool_->Flush();
      const auto took = Clock::now() - begin;
      const auto more = channel::DrainAll(consumer_.get(), &strings_).rows.histograms;
      rows.insert(rows.end(), more.begin(), more.end());
      consumer_->Commit();
      if (rows.size() < wanted && took < kFlushLimit) {
        ADD_FAILURE() << "a flush came back before all was there";
        break;
      }
    } while (rows.size() < wanted && Clock::now() < deadline);
    return rows;
  }

  channel::TestProducer producer_{channel::kTrainerPlan};
  std::unique_ptr<channel::Consumer> consumer_ = producer_.Attach();
  HistogramPool* pool_ = nullptr;
  StringPool strings_;
};

TEST_F(PoolTest, EveryTakenSampleBecomesARecordOrWasRefused) {
  std::vector<float> values(50'000);
  std::iota(values.begin(), values.end(), 0.0f);
  std::set<std::int64_t> taken;
  std::set<std::int64_t> got;
  const auto take = [&](std::size_t wanted) {
    for (const auto& row : Rows(wanted)) {
      EXPECT_TRUE(got.insert(row.step).second) << row.step;
      EXPECT_EQ(row.taken, 50'000u);
    }
  };
  for (std::int64_t step = 0; step < 600; ++step) {
    if (Add(values, step)) taken.insert(step);
    // The channel holds the records of some hundred.
    if (step % 50 == 49) take(0);
  }
  EXPECT_GE(taken.size(), 14u * 5) << "as many as the pool holds go in without any wait";
  take(taken.size() - got.size());
  EXPECT_EQ(got, taken);
}

/// Memory that holds up who reads it until it is opened. One at a time.
class HeldPage {
 public:
  HeldPage() : size_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    reached_ = opened_ = false;
    page_ = ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      if (info->si_addr != page_) {  // No fault of ours: it comes again, and is told of.
        ::sigaction(SIGSEGV, &before_, nullptr);
        return;
      }
      const int saved = errno;
      reached_ = true;
      constexpr timespec kPause{0, 1'000'000};
      while (!opened_) ::nanosleep(&kPause, nullptr);
      errno = saved;
    };
    ::sigaction(SIGSEGV, &action, &before_);
  }
  ~HeldPage() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(page_, size_);
  }
  HeldPage(const HeldPage&) = delete;
  HeldPage& operator=(const HeldPage&) = delete;
  void Open() {
    ::mprotect(page_, size_, PROT_READ);
    opened_ = true;
  }
  const float* data() const { return static_cast<const float*>(page_); }
  bool reached() const { return reached_; }

 private:
  static inline std::atomic<bool> reached_, opened_;
  static inline void* page_;
  static inline struct sigaction before_;
  const std::size_t size_;
};

/// A sample that a thread is taking for as long as it is held up.
class SlowSample {
 public:
  SlowSample(HistogramPool* pool, std::uint64_t time)
      : thread_([this, pool, time] {
          const std::int64_t count = 16;
          ArrayView view;
          EXPECT_TRUE(MakeView({page_.data(), TT_DTYPE_F32, 1, &count, nullptr}, &view));
          format::HistogramRecord record{};
          record.step = 1;
          record.time = time;
          record.count = 16;
          EXPECT_TRUE(pool->Add(view, 0, record));
          ended_ = true;
        }) {
    while (!page_.reached() && !ended_) std::this_thread::yield();
  }
  ~SlowSample() { Finish(); }
  SlowSample(const SlowSample&) = delete;
  SlowSample& operator=(const SlowSample&) = delete;
  void Finish() {
    page_.Open();
    if (thread_.joinable()) thread_.join();
  }

 private:
  HeldPage page_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

TEST_F(PoolTest, WhatAFlushLeavesIsKnownToWait) {
  SlowSample slow(pool_, producer_->Now());
  ASSERT_TRUE(Add({1, 2, 3}, 2)) << "it waits behind the first";
  EXPECT_EQ(consumer_->counters().histograms_waiting, 2u);
  EXPECT_FALSE(pool_->Flush());
  EXPECT_EQ(consumer_->counters().histograms_waiting, 2u);
  slow.Finish();
  EXPECT_EQ(Rows(2).size(), 2u) << "it was not the end after all";
  while (!pool_->Flush()) {
  }
  EXPECT_EQ(consumer_->counters().histograms_waiting, 0u);
  EXPECT_EQ(consumer_->counters().histogram_dropped, 0u);
}

TEST_F(PoolTest, TheHelperLeavesAllToAFlush) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  for (;;) {
    SlowSample slow(pool_, producer_->Now());
    for (std::int64_t step = 2; step <= 40; ++step) ASSERT_TRUE(Add({1, 2, 3}, step));
    std::atomic<bool> flushed = false;
    bool all = false;
    std::thread flush([&] {
      all = pool_->Flush();
      flushed = true;
    });
    while (!pool_->flushing() && !flushed) std::this_thread::yield();
    slow.Finish();
    flush.join();
    const channel::Drained drained = channel::DrainAll(consumer_.get(), &strings_);
    consumer_->Commit();
    const std::size_t rows = drained.rows.histograms.size();
    if (all) {
      EXPECT_EQ(rows, 40u);
      std::set<std::uint32_t> rings;
      for (const format::RingPosition& position : drained.positions) rings.insert(position.ring);
      EXPECT_EQ(rings.size(), 1u) << "the thread's that flushes";
      return;
    }
    // The machine was too slow, and the flush gave up.
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    ASSERT_EQ(Rows(40 - rows).size(), 40 - rows);
  }
}

TEST_F(PoolTest, ALargeTensorGivesASampleSpreadOverIt) {
  std::vector<float> values(1'000'000);
  std::iota(values.begin(), values.end(), 0.0f);
  ASSERT_TRUE(Add(values, 1));
  ASSERT_TRUE(Add(values, 2, 640));
  ASSERT_TRUE(Add(values, 3, 1));
  ASSERT_TRUE(Add(values, 4, ~0U));
  const auto rows = Rows(4);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].taken, kDefaultSample);
  EXPECT_EQ(rows[0].count, 1'000'000u);
  EXPECT_EQ(rows[0].max, 999'999);
  std::string bins(rows[0].bins);
  std::replace(bins.begin(), bins.end(), ',', ' ');
  std::istringstream stream(bins.substr(1));
  for (int i = 0; i < 64; ++i) {
    std::uint64_t bin = 0;
    stream >> bin;
    EXPECT_NEAR(static_cast<double>(bin), 1024, 64) << i;
  }
  EXPECT_EQ(rows[1].taken, 640u);
  EXPECT_EQ(rows[2].taken, 64u);
  EXPECT_EQ(rows[3].taken, kMaxSample);
}

TEST_F(PoolTest, ABurstOfLargeTensorsGetsSmallerSamplesInsteadOfNone) {
  // Of 256 KiB each the pool holds 56, and may not be emptied before the last one comes.
  std::vector<float> values(100'000);
  std::iota(values.begin(), values.end(), 0.0f);
  for (std::int64_t step = 0; step < 90; ++step) EXPECT_TRUE(Add(values, step)) << step;
  const auto rows = Rows(90);
  EXPECT_EQ(rows.size(), 90u);
  for (const auto& row : rows) {
    EXPECT_GE(row.taken, kLeastSample);
    EXPECT_LE(row.taken, kDefaultSample);
    EXPECT_EQ(row.count, 100'000u);
    EXPECT_EQ(row.max, 99'999);
  }
}

TEST_F(PoolTest, ABurstOfSmallTensorsWaitsForTheDrainOfTheHelpersRing) {
  ASSERT_NE(producer_->Ring(), nullptr) << "the large ring is this thread's, as in a training";
  // The helper's holds 384 histograms.
  const std::vector<float> values = {1, 2, 3, 4};
  std::size_t taken = 0;
  for (std::int64_t step = 0; step < 500; ++step) taken += Add(values, step) ? 1 : 0;
  EXPECT_EQ(taken, 500u);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  const auto late = [&] { return std::chrono::steady_clock::now() > deadline; };
  while (consumer_->counters().produced < 384 && !late()) std::this_thread::yield();
  std::size_t rows = 0;
  while (rows < taken && consumer_->counters().dropped == 0 && !late()) {
    rows += channel::DrainAll(consumer_.get(), &strings_).rows.histograms.size();
    consumer_->Commit();
  }
  EXPECT_EQ(rows, taken);
  EXPECT_EQ(consumer_->counters().dropped, 0u);
}

TEST_F(PoolTest, EveryDtypeAndStrideIsWidened) {
  const std::uint8_t bytes[] = {1, 2, 3, 4, 5, 6};
  const std::int64_t integers[] = {-1, 0, 1LL << 40, 7};
  const float complex[] = {3, 4, 0, 0, -5, 12};
  const std::uint16_t half[] = {0x3C00, 0xC000};  // 1, -2.
  const std::int64_t three = 3, four = 4, two = 2, every_second = 2;
  const tt_array arrays[] = {{bytes, TT_DTYPE_U8, 1, &three, &every_second},
                             {integers, TT_DTYPE_I64, 1, &four, nullptr},
                             {complex, TT_DTYPE_C64, 1, &three, nullptr},
                             {half, TT_DTYPE_F16, 1, &two, nullptr},
                             {half, TT_DTYPE_BF16, 1, &two, nullptr}};
  for (const tt_array& array : arrays) {
    ArrayView view;
    ASSERT_TRUE(MakeView(array, &view));
    tt_stats stats;
    ComputeViewStats(view, BestKernels(), &stats);
    format::HistogramRecord record{};
    record.time = producer_->Now();
    record.count = view.count;
    record.dtype = static_cast<std::uint32_t>(array.dtype);
    record.min = stats.min;
    record.max = stats.max;
    ASSERT_TRUE(pool_->Add(view, 0, record));
  }
  const auto rows = Rows(5);
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0].quantiles.substr(0, 6), "[1.04,") << rows[0].quantiles;
  EXPECT_EQ(rows[1].max, 1099511627776.0);
  EXPECT_EQ(rows[2].max, 13);
  EXPECT_EQ(rows[2].min, 0);
  EXPECT_EQ(rows[3].min, -2);
  for (const auto& row : rows) EXPECT_EQ(row.taken, row.count);
}

TEST_F(PoolTest, SamplesOfSeveralThreadsAllArrive) {
  const std::vector<float> values = {1, 2, 3, 4};
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        if (Add(values, t * 1000 + i)) taken.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto wanted = static_cast<std::size_t>(taken.load());
  EXPECT_EQ(Rows(wanted).size(), wanted);
  EXPECT_GT(taken.load(), 0);
}

}  // namespace
}  // namespace telltale::probe
