// SPDX-License-Identifier: Apache-2.0
// What the plan asks of tensors, and taking it: a private copy of the control page's rules and of
// its words for names, which of the rules are due at the open step, and the records of a tensor
// that was given.
//
// Thread safety: all of it may be called from any thread. The rules are copied by one thread at a
// time (`busy_`); nobody waits for it: who finds it busy leaves word (`dirty_`) and goes by the
// rules as they were. There are two copies, of which `now_` names the one in use. Lives in memory
// that is zero at first; no exceptions, no allocation, errno as the caller sees to.
#pragma once
#include <atomic>
#include <cstdint>

#include "channel/producer.h"
#include "format/channel_layout.h"
#include "format/control_collections.h"
#include "probe/histogram.h"
#include "telltale/probe.h"

namespace telltale::probe {

struct ArrayView;

/// Whether a mode's rule is due at the step.
bool Due(const format::ControlWhen& when, std::int64_t step);

class Capture {
 public:
  /// `producer` outlives it. Takes the rules up where there are any.
  void Init(channel::Producer* producer);
  /// The open step is another one: finds out which rules are due, new ones first.
  void StepChanged(std::int64_t step, std::uint8_t mode);

  /// TT_TAKE_ bits that any tensor is asked for at the open step. The first rules are taken up
  /// within a step: a process registers as its first step begins, and that step is of most plans.
  std::uint32_t any_due() {
    if (sequence() == 0) LookForNewRules();
    return any_due_.load(std::memory_order_relaxed);
  }
  /// Of one tensor, at the open step.
  std::uint32_t DueNow(std::uint32_t tensor);
  /// At any step; tensor 0: of any tensor.
  std::uint32_t DueAt(std::uint32_t tensor, std::int64_t step, std::uint8_t mode);
  /// What the tensor is asked for at some step or other; TT_TAKE_UNKNOWN where it has no answer
  /// yet.
  std::uint32_t Wanted(std::uint32_t tensor);
  /// Changes when the rules do.
  std::uint64_t epoch();

  /// As tt_record_tensor, and returns what that returns.
  std::uint32_t Record(std::uint32_t tensor, const tt_array& array, std::uint32_t take,
                       std::int64_t step, std::uint8_t mode);
  /// Statistics that are there already. `collection`: name id for a name that is no tensor's, else
  /// 0.
  void RecordStats(std::uint32_t tensor, std::uint32_t collection, const tt_stats& stats,
                   tt_dtype dtype, std::int64_t step, std::uint8_t mode,
                   const tt_more_stats* more = nullptr);
  /// As tt_record_sample.
  bool RecordSample(std::uint32_t tensor, const tt_array& sample, const tt_stats& stats,
                    std::int64_t step, std::uint8_t mode);
  /// Elements that the rules due then ask of a sample; 0: none asks for one. See SampleOf.
  std::uint32_t SampleSize(std::uint32_t tensor, std::int64_t step, std::uint8_t mode) const;
  /// Bound of the raw values on their way; 0: none are taken but inline ones.
  std::uint64_t slab_bytes() const;
  /// Records what is still being computed, at the end of the process.
  void Flush() { histograms_.Flush(); }

 private:
  /// Words that a copy has room for: those of the largest arena.
  static constexpr std::uint32_t kWords = channel::kTrainerPlan.name_limit + 1;
  struct Rules {
    std::atomic<std::uint64_t> sequence;  ///< 0: none were copied.
    format::ControlRule rules[format::kControlRules];
    std::uint32_t unanswered_mask;
    std::uint64_t slab_bytes;
    format::ControlCollection collections[format::kControlCollections];
    std::uint32_t words[kWords];  ///< As they were with the rules; kNameUnanswered: none by then.
  };

  void Update();
  void UpdateOnce();
  void LookForNewRules() {
    if (producer_->RulesSequence() != sequence()) Update();
  }
  const Rules& InUse(std::uint64_t now) const { return rules_[now >> 32]; }
  /// Of the copy in use.
  std::uint64_t sequence() const {
    return InUse(now_.load(std::memory_order_acquire)).sequence.load(std::memory_order_relaxed);
  }
  /// The plan's word for the tensor, as far as it is one of these rules.
  std::uint32_t WordOf(std::uint32_t tensor, const Rules& rules) const;
  /// Rules that the tensor's name has been answered with, or that its collection leaves no doubt
  /// of; false: not answered (and the mask is that of rules that take it whatever its name).
  bool MaskOf(std::uint32_t tensor, const Rules& rules, std::uint32_t* mask) const;
  std::uint32_t TakeOf(std::uint32_t tensor, const Rules& rules, std::uint32_t due_mask);
  /// False: there is no room for the values or their record (counted), and nothing was recorded.
  bool RecordRaw(const tt_array& array, const ArrayView& view, format::TensorRecord record);

  channel::Producer* producer_;
  HistogramPool histograms_;
  Rules rules_[2];
  /// Index of the copy in use << 32 | mask of its rules that are due at the open step.
  std::atomic<std::uint64_t> now_;
  std::atomic<std::uint32_t> any_due_;
  std::atomic<std::int64_t> step_;  ///< The open step.
  std::atomic<std::uint32_t> mode_;
  std::atomic<std::uint32_t> dirty_, busy_;
};

}  // namespace telltale::probe
