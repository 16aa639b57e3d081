// SPDX-License-Identifier: Apache-2.0
// Bins and quantiles are those of numpy.histogram and numpy.quantile over the values as float64, to
// the bit: this file is compiled without contraction of products and sums.
#include "probe/histogram.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "probe/elements.h"
#include "probe/float_environment.h"
#include "probe/stats.h"

namespace telltale::probe {
namespace {

using format::kHistogramBins;

constexpr std::uint64_t kPoolBytes = 16 << 20;
constexpr std::uint64_t kScratchBytes = kMaxSample * sizeof(double);
/// Samples wait in a ring; the consumer's scratch lies behind it.
constexpr std::uint64_t kRingBytes = kPoolBytes - kScratchBytes;
constexpr std::uint64_t kSampleAlign = 64;
/// While less than half of the ring is left, a sample of a large tensor gets this part of that.
constexpr std::uint64_t kShareOfRest = 16;
constexpr int kLockTries = 200;
constexpr std::size_t kStackBytes = 256 << 10;
constexpr int kNice = 10;
/// At the end of the process: pauses for a sample that another thread is at.
constexpr int kFlushPauses = 2000;
constexpr timespec kFlushPause{0, 100'000};
/// Of the helper, for a drain: two seconds in all, in which an agent that died is followed by
/// another.
constexpr int kShortPauses = 50;
constexpr int kRoomPauses = 150;
constexpr timespec kShortPause{0, 1'000'000};
constexpr timespec kLongPause{0, 20'000'000};

enum HelperState : std::uint32_t { kNoHelper = 0, kStarting = 1, kRuns = 2, kRefused = 3 };

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ---- sorting ----

constexpr unsigned kDigitBits = 11;
constexpr std::uint32_t kDigits = 1U << kDigitBits;
/// Below it the counters of a digit cost more than comparisons.
constexpr std::uint32_t kFewKeys = 1024;

std::uint32_t KeyOf(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return bits ^ ((bits >> 31) != 0 ? ~0U : 1U << 31);
}
std::uint64_t KeyOf(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  return bits ^ ((bits >> 63) != 0 ? ~0ULL : 1ULL << 63);
}
double ValueOf(std::uint32_t key) {
  return static_cast<double>(std::bit_cast<float>(key ^ ((key >> 31) != 0 ? 1U << 31 : ~0U)));
}
double ValueOf(std::uint64_t key) {
  return std::bit_cast<double>(key ^ ((key >> 63) != 0 ? 1ULL << 63 : ~0ULL));
}

/// Sorts by digits from the lowest; returns which of the two holds the result.
template <class Key>
Key* Sort(Key* keys, std::uint32_t count, Key* scratch) {
  if (count < kFewKeys) {
    std::sort(keys, keys + count);
    return keys;
  }
  for (unsigned shift = 0; shift < sizeof(Key) * 8; shift += kDigitBits) {
    const auto digit = [shift](Key key) {
      return static_cast<std::uint32_t>(key >> shift) & (kDigits - 1);
    };
    std::uint32_t places[kDigits] = {};
    for (std::uint32_t i = 0; i < count; ++i) ++places[digit(keys[i])];
    if (places[digit(keys[0])] == count) continue;  // All alike.
    std::uint32_t sum = 0;
    for (std::uint32_t& place : places) {
      const std::uint32_t here = place;
      place = sum;
      sum += here;
    }
    for (std::uint32_t i = 0; i < count; ++i) scratch[places[digit(keys[i])]++] = keys[i];
    std::swap(keys, scratch);
  }
  return keys;
}

// ---- numpy's rules ----

/// The inner edges of numpy.linspace(low, high, kHistogramBins + 1).
class Edges {
 public:
  Edges(double low, double high) : low_(low), width_(high - low) {
    infinite_ = !std::isfinite(width_);
    step_ = infinite_ ? (high / 2 - low / 2) / kHistogramBins : width_ / kHistogramBins;
  }
  double operator[](std::uint32_t i) const {
    // numpy refuses a width that double cannot hold: by halves it can.
    if (infinite_) return (static_cast<double>(i) * step_ + low_ / 2) * 2;
    // A width so small that a step of it is none.
    if (step_ == 0) return static_cast<double>(i) / kHistogramBins * width_ + low_;
    return static_cast<double>(i) * step_ + low_;
  }

 private:
  double low_, width_, step_;
  bool infinite_;
};

/// numpy's linear interpolation between a and b.
double Between(double a, double b, double t) {
  const double difference = b - a;
  return t >= 0.5 ? b - difference * (1 - t) : a + difference * t;
}

template <class Value, class Key>
void Compute(Value* values, std::uint32_t count, void* scratch, format::HistogramRecord* record) {
  const DefaultFloatEnvironment environment;
  std::memset(record->bins, 0, sizeof record->bins);
  for (double& quantile : record->quantiles) quantile = kNan;
  std::uint32_t taken = 0;
  auto* keys = reinterpret_cast<Key*>(values);
  for (std::uint32_t i = 0; i < count; ++i) {
    Value value;
    std::memcpy(&value, &values[i], sizeof value);
    if (!std::isfinite(value)) continue;
    const Key key = KeyOf(value);
    std::memcpy(&keys[taken++], &key, sizeof key);
  }
  record->taken = taken;
  if (taken == 0 || !(record->min <= record->max)) {
    record->taken = 0;
    record->min = record->max = kNan;
    return;
  }
  const Key* sorted = Sort(keys, taken, static_cast<Key*>(scratch));
  if (record->min == record->max) {
    record->min -= 0.5;
    record->max += 0.5;
  }
  if (record->min == record->max) {
    record->bins[kHistogramBins / 2] = taken;  // So large that half a unit changes nothing.
  } else {
    const Edges edges(record->min, record->max);
    const Key* from = sorted;
    const Key* const end = sorted + taken;
    for (std::uint32_t i = 0; i + 1 < kHistogramBins; ++i) {
      const double edge = edges[i + 1];
      const Key* to =
          std::partition_point(from, end, [edge](Key key) { return ValueOf(key) < edge; });
      record->bins[i] = static_cast<std::uint64_t>(to - from);
      from = to;
    }
    record->bins[kHistogramBins - 1] = static_cast<std::uint64_t>(end - from);
  }
  for (std::uint32_t i = 0; i < format::kQuantiles; ++i) {
    const double at = static_cast<double>(taken - 1) * format::kQuantileRanks[i];
    const auto below = static_cast<std::uint32_t>(at);
    const std::uint32_t above = below + 1 < taken ? below + 1 : below;
    record->quantiles[i] =
        Between(ValueOf(sorted[below]), ValueOf(sorted[above]), at - static_cast<double>(below));
  }
}

// ---- taking a sample ----

/// Copies elements first, first + 1, ... as float.
void CopyAsFloat(const ArrayView& view, const Kernels& kernels, std::uint64_t first,
                 std::uint32_t count, float* out) {
  if (view.dtype == TT_DTYPE_F32) {
    CopyElements(view, first, count, out);
    return;
  }
  alignas(64) unsigned char buffer[kBlock * 2];
  CopyElements(view, first, count, buffer);
  if (view.dtype == TT_DTYPE_F16) {
    kernels.widen_f16(buffer, count, out);
  } else if (view.dtype == TT_DTYPE_BF16) {
    kernels.widen_bf16(buffer, count, out);
  } else {
    WithElementType(view.dtype, [&]<class T>() {
      for (std::uint32_t i = 0; i < count; ++i) out[i] = ToFloat(Load<T>(buffer, i));
    });
  }
}

void CopyAsDouble(const ArrayView& view, std::uint64_t first, std::uint32_t count, double* out) {
  if (view.dtype == TT_DTYPE_F64) {
    CopyElements(view, first, count, out);
    return;
  }
  alignas(64) unsigned char buffer[kBlock * 16];
  CopyElements(view, first, count, buffer);
  WidenToDouble(buffer, count, view.dtype, out);
}

/// Calls copy(first, n, at) for pieces of at most kBlock elements that make up the sample.
template <class Copy>
void ForEachPiece(std::uint64_t elements, std::uint32_t sample, Copy&& copy) {
  if (elements <= sample) {
    for (std::uint64_t at = 0; at < elements; at += kBlock) {
      copy(at, static_cast<std::uint32_t>(std::min<std::uint64_t>(kBlock, elements - at)),
           static_cast<std::uint32_t>(at));
    }
    return;
  }
  // Blocks spread evenly, the first and the last elements among them.
  const std::uint32_t blocks = sample / kSampleBlock;
  const std::uint64_t last = elements - kSampleBlock;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const std::uint64_t first =
        blocks == 1
            ? 0
            : static_cast<std::uint64_t>(static_cast<unsigned __int128>(last) * i / (blocks - 1));
    copy(first, kSampleBlock, i * kSampleBlock);
  }
}

}  // namespace

void ComputeHistogram(float* values, std::uint32_t count, void* scratch,
                      format::HistogramRecord* record) {
  Compute<float, std::uint32_t>(values, count, scratch, record);
}

void ComputeHistogram(double* values, std::uint32_t count, void* scratch,
                      format::HistogramRecord* record) {
  Compute<double, std::uint64_t>(values, count, scratch, record);
}

bool HistogramPool::MakePool() {
  void* map = ::mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return false;
  // A child neither needs the samples nor makes us pay for copies of their pages.
  ::madvise(map, kPoolBytes, MADV_WIPEONFORK);
  pool_.store(static_cast<char*>(map), std::memory_order_release);
  return true;
}

HistogramPool::Job* HistogramPool::Claim(std::uint64_t bytes) {
  bytes = (bytes + kSampleAlign - 1) / kSampleAlign * kSampleAlign;
  for (int tries = 0; lock_.exchange(1, std::memory_order_acquire) != 0; ++tries) {
    if (tries == kLockTries) return nullptr;
  }
  Job* job = nullptr;
  if (pool_.load(std::memory_order_relaxed) != nullptr || MakePool()) {
    const std::uint64_t head = pool_head_.load(std::memory_order_relaxed);
    const std::uint64_t place = head % kRingBytes;
    const std::uint64_t begin = head + (place + bytes > kRingBytes ? kRingBytes - place : 0);
    if (head_ - tail_.load(std::memory_order_acquire) < kJobs &&
        begin + bytes - pool_tail_.load(std::memory_order_acquire) <= kRingBytes) {
      job = &jobs_[head_ % kJobs];
      job->offset = begin % kRingBytes;
      job->end = begin + bytes;
      pool_head_.store(begin + bytes, std::memory_order_relaxed);
      claimed_.store(++head_, std::memory_order_release);
    }
  }
  lock_.store(0, std::memory_order_release);
  return job;
}

std::uint32_t HistogramPool::Affordable(std::uint32_t most, std::uint64_t value_bytes) const {
  // Other threads claim and free meanwhile: what comes of it is a size, Claim says whether it fits.
  const std::uint64_t tail = pool_tail_.load(std::memory_order_relaxed);
  const std::uint64_t head = pool_head_.load(std::memory_order_relaxed);
  const std::uint64_t used = head > tail ? head - tail : 0;
  const std::uint64_t left = used < kRingBytes ? kRingBytes - used : 0;
  if (left >= kRingBytes / 2) return most;
  const std::uint64_t fits = left / kShareOfRest / value_bytes / kSampleBlock * kSampleBlock;
  return std::min(most, static_cast<std::uint32_t>(std::max<std::uint64_t>(fits, kLeastSample)));
}

bool HistogramPool::Add(const ArrayView& view, std::uint32_t most,
                        const format::HistogramRecord& record) {
  most = SampleOf(most);
  // Elements that a stride of 0 repeats count as often as they are there: `view` has its order.
  const std::uint64_t elements = view.walk();
  const bool wide = !FitsFloat(view.dtype);
  const std::uint64_t value_bytes = wide ? sizeof(double) : sizeof(float);
  if (elements > most) most = Affordable(most, value_bytes);
  const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(elements, most));
  if (helper_.load(std::memory_order_acquire) != kRuns && !StartHelper()) return false;
  Job* job = Claim(count * value_bytes);
  if (job == nullptr) return false;
  producer_->CountHistogramTaken();
  job->count = count;
  job->wide = wide;
  job->name = record.header.name;
  job->flags = record.header.flags;
  job->dtype = record.dtype;
  job->time = record.time;
  job->step = record.step;
  job->elements = record.count;
  job->min = record.min;
  job->max = record.max;
  char* const to = pool_.load(std::memory_order_acquire) + job->offset;
  {
    const DefaultFloatEnvironment environment;
    const Kernels kernels = BestKernels();
    ForEachPiece(elements, most, [&](std::uint64_t first, std::uint32_t n, std::uint32_t at) {
      if (wide) {
        CopyAsDouble(view, first, n, reinterpret_cast<double*>(to) + at);
      } else {
        CopyAsFloat(view, kernels, first, n, reinterpret_cast<float*>(to) + at);
      }
    });
  }
  job->state.store(kReady, std::memory_order_release);
  Wake();
  return true;
}

void HistogramPool::Wake() {
  wake_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) == 0) return;
  const int saved = errno;
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&wake_), FUTEX_WAKE_PRIVATE, 1, nullptr,
            nullptr, 0);
  errno = saved;
}

HistogramPool::Work HistogramPool::WorkOne() {
  if (consumer_.exchange(1, std::memory_order_acquire) != 0) return Work::kBusy;
  Work work = Work::kNone;
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (tail != claimed_.load(std::memory_order_acquire)) {
    Job& job = jobs_[tail % kJobs];
    if (job.state.load(std::memory_order_acquire) == kReady) {
      char* const pool = pool_.load(std::memory_order_acquire);
      void* const scratch = pool + kRingBytes;
      format::HistogramRecord record{};
      record.header.flags = job.flags;
      record.header.name = job.name;
      record.time = job.time;
      record.step = job.step;
      record.count = job.elements;
      record.dtype = job.dtype;
      record.min = job.min;
      record.max = job.max;
      if (job.wide) {
        ComputeHistogram(reinterpret_cast<double*>(pool + job.offset), job.count, scratch, &record);
      } else {
        ComputeHistogram(reinterpret_cast<float*>(pool + job.offset), job.count, scratch, &record);
      }
      producer_->Histogram(record);
      producer_->CountHistogramDone();
      job.state.store(kEmpty, std::memory_order_relaxed);
      pool_tail_.store(job.end, std::memory_order_release);
      tail_.store(tail + 1, std::memory_order_release);
      work = Work::kDone;
    }
  }
  consumer_.store(0, std::memory_order_release);
  return work;
}

std::uint64_t HistogramPool::Left() const {
  const std::uint64_t tail = tail_.load(std::memory_order_acquire);
  return claimed_.load(std::memory_order_acquire) - tail;
}

bool HistogramPool::Flush() {
  // No more than is there now: other threads may go on adding.
  const std::uint64_t until = claimed_.load(std::memory_order_acquire);
  const auto done = [&] { return tail_.load(std::memory_order_acquire) >= until; };
  flushing_.fetch_add(1, std::memory_order_seq_cst);
  for (int pauses = 0; !done() && pauses < kFlushPauses;) {
    if (WorkOne() == Work::kDone) continue;
    // Another thread is at the next one.
    const int saved = errno;
    ::nanosleep(&kFlushPause, nullptr);
    errno = saved;
    ++pauses;
  }
  flushing_.fetch_sub(1, std::memory_order_seq_cst);
  Wake();  // For what came meanwhile, and where it was not the end after all.
  return done();
}

void HistogramPool::AwaitRoom() {
  for (int pauses = 0; pauses < kRoomPauses; ++pauses) {
    if (Left() == 0 || producer_->HasRoom(sizeof(format::HistogramRecord))) return;
    ::nanosleep(pauses < kShortPauses ? &kShortPause : &kLongPause, nullptr);
  }
}

void HistogramPool::Help() {
  ::prctl(PR_SET_NAME, "telltale-stats");
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
  for (;;) {
    const std::uint32_t seen = wake_.load(std::memory_order_seq_cst);
    // A flush would wait a nice thread's turn for each sample that is computed here.
    do {
      AwaitRoom();
    } while (!flushing() && WorkOne() == Work::kDone);
    sleeping_.store(1, std::memory_order_seq_cst);
    // Returns at once where a sample came since `seen` was read.
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&wake_), FUTEX_WAIT_PRIVATE, seen,
              nullptr, nullptr, 0);
    sleeping_.store(0, std::memory_order_seq_cst);
  }
}

void* HistogramPool::HelperMain(void* self) { static_cast<HistogramPool*>(self)->Help(); }

bool HistogramPool::StartHelper() {
  std::uint32_t state = kNoHelper;
  if (!helper_.compare_exchange_strong(state, kStarting, std::memory_order_acq_rel)) {
    // Samples may come while another thread starts it.
    return state != kRefused;
  }
  const int saved = errno;
  pthread_attr_t attributes;
  bool started = false;
  if (::pthread_attr_init(&attributes) == 0) {
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    // Signals are the user's: a new thread starts with its maker's mask.
    sigset_t all, before;
    ::sigfillset(&all);
    if (::pthread_sigmask(SIG_SETMASK, &all, &before) == 0) {
      pthread_t thread;
      const bool small = ::pthread_attr_setstacksize(&attributes, kStackBytes) == 0;
      started = small && ::pthread_create(&thread, &attributes, HelperMain, this) == 0;
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    ::pthread_attr_destroy(&attributes);
  }
  helper_.store(started ? kRuns : kRefused, std::memory_order_release);
  errno = saved;
  return started;
}

}  // namespace telltale::probe
