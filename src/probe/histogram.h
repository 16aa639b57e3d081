// SPDX-License-Identifier: Apache-2.0
// Histograms and quantiles: samples of tensors are copied to a bounded pool on the thread that has
// the tensor, and computed and recorded by a helper thread of ours.
//
// The pool (16 MiB of address space) and the thread are made when the first sample comes. Where
// much of it is taken, samples of large tensors become smaller, so that it is not the same tensors
// each time that have none. What finds no room is refused, never waited for; the thread itself may
// wait until its ring is drained. It sleeps on a futex, has all signals blocked, yields to others
// (nice) and touches nothing but the pool, so a process may end at any moment without it.
//
// Thread safety: Add and Flush may be called from any thread. Samples are computed in the order in
// which they were taken, by one thread at a time (`consumer_`). Lives in memory that is zero at
// first and that a forked child finds zero again: there is no helper then until a sample comes.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "channel/producer.h"
#include "format/channel_layout.h"
#include "probe/array_view.h"
#include "telltale/probe.h"

namespace telltale::probe {

/// Elements of a sample where the plan does not say, and the most that it may say.
inline constexpr std::uint32_t kDefaultSample = 65'536;
inline constexpr std::uint32_t kMaxSample = 262'144;
/// The least that a sample shrinks to where many wait.
inline constexpr std::uint32_t kLeastSample = 4096;
/// Elements that a sample takes from one place.
inline constexpr std::uint32_t kSampleBlock = TT_SAMPLE_BLOCK;
/// Elements of a sample for which `most` were asked (0: the plan does not say).
constexpr std::uint32_t SampleOf(std::uint32_t most) {
  if (most == 0) most = kDefaultSample;
  return std::clamp(most / kSampleBlock * kSampleBlock, kSampleBlock, kMaxSample);
}

/// Fills in bins, quantiles, taken, min and max from `count` values (of float or double), of which
/// those that are not finite are left out. `record` comes with the min and max of the tensor.
/// `values` is used up; `scratch` has room for as many.
void ComputeHistogram(float* values, std::uint32_t count, void* scratch,
                      format::HistogramRecord* record);
void ComputeHistogram(double* values, std::uint32_t count, void* scratch,
                      format::HistogramRecord* record);

class HistogramPool {
 public:
  void Init(channel::Producer* producer) { producer_ = producer; }
  /// Copies a sample of at most `most` elements: all of them where the tensor has no more, else
  /// `most`, or fewer where many samples wait. `record` has what is known of it: header (mode and
  /// name), time, step, count, dtype, min, max. False: no room, or no helper.
  bool Add(const ArrayView& view, std::uint32_t most, const format::HistogramRecord& record);
  /// Computes what is there, on this thread: at the end of the process. Waits for what another
  /// thread is at, 0.2 s of sleep in all. False: some is left then, which is recorded where the
  /// process goes on.
  bool Flush();
  /// A thread is in Flush; the helper leaves all to it.
  bool flushing() const { return flushing_.load(std::memory_order_seq_cst) != 0; }

 private:
  static constexpr std::uint32_t kJobs = 512;
  enum JobState : std::uint32_t { kEmpty = 0, kReady = 1 };
  struct Job {
    std::atomic<std::uint32_t> state;
    std::uint32_t count;
    bool wide;             ///< double, else float.
    std::uint64_t offset;  ///< In the pool.
    std::uint64_t end;     ///< pool_head_ after it.
    std::uint32_t name, dtype;
    std::uint8_t flags;
    std::uint64_t time, elements;
    std::int64_t step;
    double min, max;
  };
  enum class Work { kDone, kNone, kBusy };

  /// Room for `bytes`; null: there is none.
  Job* Claim(std::uint64_t bytes);
  /// Elements that a sample of `most` may have as full as the pool is now.
  std::uint32_t Affordable(std::uint32_t most, std::uint64_t value_bytes) const;
  [[gnu::cold]] bool MakePool();
  [[gnu::cold]] bool StartHelper();
  static void* HelperMain(void* self);
  [[noreturn]] void Help();
  /// Waits where a sample waits and the helper's ring is full, up to two seconds.
  void AwaitRoom();
  Work WorkOne();
  void Wake();
  std::uint64_t Left() const;  ///< Samples that wait, or that somebody is at.

  channel::Producer* producer_;
  std::atomic<char*> pool_;
  Job jobs_[kJobs];
  std::atomic<std::uint32_t> lock_;              ///< Around Claim; waited for only for a moment.
  std::uint64_t head_;                           ///< Jobs claimed; under lock_.
  std::atomic<std::uint64_t> pool_head_;         ///< Bytes claimed, never wraps; set under lock_.
  std::atomic<std::uint64_t> claimed_;           ///< head_, for the consumer.
  std::atomic<std::uint64_t> tail_, pool_tail_;  ///< Written by the consumer (release).
  std::atomic<std::uint32_t> consumer_;          ///< 1: a thread computes.
  std::atomic<std::uint32_t> helper_;            ///< HelperState.
  std::atomic<std::uint32_t> wake_;              ///< The futex: counts the samples.
  std::atomic<std::uint32_t> sleeping_;
  std::atomic<std::uint32_t> flushing_;  ///< Threads in Flush.
};

}  // namespace telltale::probe
