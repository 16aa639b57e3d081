// SPDX-License-Identifier: Apache-2.0
#include "probe/capture.h"

#include <cstddef>

#include "format/dtypes.h"
#include "probe/array_view.h"
#include "probe/more_stats.h"
#include "probe/stats.h"

namespace telltale::probe {
namespace {

using format::ControlRule;
using format::kControlRules;

/// A field of rules that another thread may be writing anew: harmless whichever it is.
template <class T>
T Relaxed(const T& field) {
  return __atomic_load_n(&field, __ATOMIC_RELAXED);
}

std::uint32_t DueMask(const ControlRule* rules, std::int64_t step, std::uint8_t mode) {
  std::uint32_t mask = 0;
  for (std::uint32_t i = 0; i < kControlRules; ++i) {
    if (Relaxed(rules[i].take) != 0 && Due(rules[i].when[mode & format::kModeMask], step))
      mask |= 1U << i;
  }
  return mask;
}

/// What the rules of the mask take together.
std::uint32_t TakeOfMask(const ControlRule* rules, std::uint32_t mask) {
  std::uint32_t take = 0;
  mask &= (1U << kControlRules) - 1;
  for (; mask != 0; mask &= mask - 1) take |= Relaxed(rules[__builtin_ctz(mask)].take);
  return take;
}

void FillStat(const tt_stats& stats, tt_dtype dtype, format::StatRecord* record) {
  record->dtype = static_cast<std::uint32_t>(dtype);
  record->count = stats.count;
  record->nan_count = stats.nan_count;
  record->inf_count = stats.inf_count;
  record->zero_count = stats.zero_count;
  record->min = stats.min;
  record->max = stats.max;
  record->mean = stats.mean;
  record->std = stats.std;
  record->l1 = stats.l1;
  record->l2 = stats.l2;
}

}  // namespace

bool Due(const format::ControlWhen& when, std::int64_t step) {
  if (step < 0) return false;
  const std::uint32_t interval = Relaxed(when.interval);
  if (interval != 0 && step >= Relaxed(when.start) && step < Relaxed(when.end) &&
      step % interval == 0) {
    return true;
  }
  constexpr std::uint32_t kRoom = sizeof when.list / sizeof when.list[0];
  const std::uint32_t said = Relaxed(when.listed);
  const std::uint32_t listed = said < kRoom ? said : kRoom;
  for (std::uint32_t i = 0; i < listed; ++i) {
    if (Relaxed(when.list[i]) == step) return true;
  }
  return false;
}

void Capture::Init(channel::Producer* producer) {
  producer_ = producer;
  histograms_.Init(producer);
  StepChanged(-1, TT_MODE_GLOBAL);
}

void Capture::StepChanged(std::int64_t step, std::uint8_t mode) {
  step_.store(step, std::memory_order_relaxed);
  mode_.store(mode, std::memory_order_relaxed);
  Update();
}

void Capture::Update() {
  // Sequentially consistent: who finds it busy has said so before the other one looks again.
  dirty_.store(1);
  while (dirty_.load() != 0 && busy_.exchange(1) == 0) {
    dirty_.store(0);
    UpdateOnce();
    busy_.store(0);
  }
}

void Capture::UpdateOnce() {
  std::uint64_t index = now_.load(std::memory_order_relaxed) >> 32;
  if (producer_->RulesSequence() != sequence()) {
    Rules& other = rules_[1 - index];
    const std::uint64_t copied =
        producer_->ReadRules(other.rules, &other.unanswered_mask, &other.slab_bytes,
                             other.collections, other.words, kWords);
    if (copied != 0) {
      index = 1 - index;
      other.sequence.store(copied, std::memory_order_relaxed);
    }
  }
  const Rules& rules = rules_[index];
  const std::uint32_t due =
      DueMask(rules.rules, step_.load(std::memory_order_relaxed),
              static_cast<std::uint8_t>(mode_.load(std::memory_order_relaxed)));
  now_.store(index << 32 | due, std::memory_order_release);
  any_due_.store(TakeOfMask(rules.rules, due), std::memory_order_relaxed);
}

std::uint32_t Capture::WordOf(std::uint32_t tensor, const Rules& rules) const {
  const std::uint32_t copied =
      tensor < kWords ? Relaxed(rules.words[tensor]) : format::kNameUnanswered;
  if (copied != format::kNameUnanswered) return copied;
  // Answered since, if at all; as soon as other rules are being written it may be a word of theirs.
  const std::uint32_t word = producer_->NameWord(tensor);
  const bool same = producer_->RulesSequence() == rules.sequence.load(std::memory_order_relaxed);
  return same ? word : format::kNameUnanswered;
}

bool Capture::MaskOf(std::uint32_t tensor, const Rules& rules, std::uint32_t* mask) const {
  const std::uint32_t word = WordOf(tensor, rules);
  if (word == format::kNameUnanswered) {
    *mask = Relaxed(rules.unanswered_mask);
    bool whole = false;
    const int known = producer_->KnownCollection(tensor, &whole);
    if (known < 0) return false;
    // Copied rules of no page are zeros: nothing is known then.
    const std::uint32_t could = Relaxed(rules.collections[known].could);
    if (rules.sequence.load(std::memory_order_relaxed) == 0 || could == format::kCouldUnknown) {
      return false;
    }
    const std::uint32_t takes = Relaxed(rules.collections[known].takes);
    *mask |= whole ? could : takes;
    return whole || takes == could;
  }
  *mask = (word & format::kNameYes) != 0 ? word >> format::kNameMaskShift : 0;
  return true;
}

std::uint32_t Capture::TakeOf(std::uint32_t tensor, const Rules& rules, std::uint32_t due_mask) {
  if (due_mask == 0) return 0;
  std::uint32_t mask = 0;
  const bool answered = MaskOf(tensor, rules, &mask);
  const std::uint32_t take = TakeOfMask(rules.rules, mask & due_mask);
  if (!answered && take == 0) producer_->CountUnanswered();
  return take;
}

std::uint32_t Capture::DueNow(std::uint32_t tensor) {
  if (sequence() == 0) LookForNewRules();
  const std::uint64_t now = now_.load(std::memory_order_acquire);
  return TakeOf(tensor, InUse(now), static_cast<std::uint32_t>(now));
}

std::uint32_t Capture::DueAt(std::uint32_t tensor, std::int64_t step, std::uint8_t mode) {
  LookForNewRules();
  const Rules& rules = InUse(now_.load(std::memory_order_acquire));
  const std::uint32_t due = DueMask(rules.rules, step, mode);
  return tensor == 0 ? TakeOfMask(rules.rules, due) : TakeOf(tensor, rules, due);
}

std::uint32_t Capture::Wanted(std::uint32_t tensor) {
  LookForNewRules();
  const Rules& rules = InUse(now_.load(std::memory_order_acquire));
  std::uint32_t mask = 0;
  const bool answered = MaskOf(tensor, rules, &mask);
  return TakeOfMask(rules.rules, mask) | (answered ? 0 : std::uint32_t{TT_TAKE_UNKNOWN});
}

std::uint64_t Capture::epoch() {
  LookForNewRules();
  return sequence();
}

std::uint32_t Capture::SampleSize(std::uint32_t tensor, std::int64_t step,
                                  std::uint8_t mode) const {
  const Rules& rules = InUse(now_.load(std::memory_order_acquire));
  std::uint32_t mask = 0;
  MaskOf(tensor, rules, &mask);
  mask &= DueMask(rules.rules, step, mode);
  std::uint32_t most = 0;
  for (; mask != 0; mask &= mask - 1) {
    const ControlRule& rule = rules.rules[__builtin_ctz(mask)];
    if ((Relaxed(rule.take) & TT_TAKE_HISTOGRAM) == 0) continue;
    const std::uint32_t said = Relaxed(rule.max_elements);
    const std::uint32_t wanted = said == 0 ? kDefaultSample : said;
    most = wanted > most ? wanted : most;
  }
  return most;
}

std::uint64_t Capture::slab_bytes() const {
  if (!producer_->slab().mapped()) return 0;
  return Relaxed(InUse(now_.load(std::memory_order_acquire)).slab_bytes);
}

std::uint32_t Capture::Record(std::uint32_t tensor, const tt_array& array, std::uint32_t take,
                              std::int64_t step, std::uint8_t mode) {
  ArrayView view;
  if (tensor == 0 || !MakeView(array, &view)) {
    // Without an id the table of names is full: it has no room for a reason either.
    producer_->CountSkipped(tensor == 0 ? "" : "capture.array", 1);
    return 0;
  }
  std::uint32_t recorded = 0;
  mode &= format::kModeMask;
  const std::uint64_t time = producer_->Now();
  if ((take & (TT_TAKE_STATS | TT_TAKE_MORE | TT_TAKE_HISTOGRAM)) != 0) {
    ArrayView any_order = view;
    ForgetOrder(&any_order);
    tt_stats stats;
    const bool more_too = (take & TT_TAKE_MORE) != 0;
    Magnitudes magnitudes;
    ComputeViewStats(any_order, BestKernels(), &stats, more_too ? &magnitudes : nullptr);
    format::StatMoreRecord record{};
    record.stat.header.flags = mode;
    record.stat.header.name = tensor;
    record.stat.time = time;
    record.stat.step = step;
    FillStat(stats, array.dtype, &record.stat);
    if (more_too) {
      tt_more_stats more;
      ComputeMoreStats(any_order, stats, &magnitudes, &more);
      record.abs_min = more.abs_min;
      record.abs_std = more.abs_std;
      record.prod = more.prod;
      if (producer_->StatMore(record)) recorded |= TT_TAKE_STATS | TT_TAKE_MORE;
    } else if (producer_->Stat(record.stat)) {
      recorded |= TT_TAKE_STATS;
    }
    if ((take & TT_TAKE_HISTOGRAM) != 0) {
      format::HistogramRecord histogram{};
      histogram.header.flags = mode;
      histogram.header.name = tensor;
      histogram.time = time;
      histogram.step = step;
      histogram.count = stats.count;
      histogram.dtype = static_cast<std::uint32_t>(array.dtype);
      histogram.min = stats.min;
      histogram.max = stats.max;
      if (histograms_.Add(view, SampleSize(tensor, step, mode), histogram)) {
        recorded |= TT_TAKE_HISTOGRAM;
      } else {
        producer_->CountHistogramsDropped(1);
      }
    }
  }
  if ((take & (TT_TAKE_RAW | TT_TAKE_SHAPE)) == 0) return recorded;
  format::TensorRecord record{};
  record.header.flags = mode;
  record.header.name = tensor;
  record.time = time;
  record.step = step;
  record.dtype = static_cast<std::uint8_t>(array.dtype);
  record.ndim = static_cast<std::uint8_t>(array.ndim);
  // Values that find no room leave the shape, where that was asked for too.
  if ((take & TT_TAKE_RAW) != 0 && RecordRaw(array, view, record)) {
    return recorded | (take & (TT_TAKE_RAW | TT_TAKE_SHAPE));
  }
  if ((take & TT_TAKE_SHAPE) == 0) return recorded;
  record.header.flags |= format::kShapeOnlyFlag;
  return producer_->Tensor(record, array.shape, nullptr) ? recorded | TT_TAKE_SHAPE : recorded;
}

bool Capture::RecordRaw(const tt_array& array, const ArrayView& view, format::TensorRecord record) {
  if (__builtin_mul_overflow(view.count, std::uint64_t{view.element_bytes}, &record.bytes)) {
    producer_->CountRawDropped();
    return false;
  }
  if (record.bytes <= format::kMaxInlineBytes) {
    record.header.flags |= format::kInlineFlag;
    alignas(16) unsigned char buffer[format::kMaxInlineBytes];
    const void* values = view.data;
    if (!view.contiguous()) {
      CopyElements(view, 0, view.count, buffer);
      values = buffer;
    }
    return producer_->Tensor(record, array.shape, values);
  }
  const std::uint64_t limit = Relaxed(InUse(now_.load(std::memory_order_acquire)).slab_bytes);
  channel::SlabWriter& slab = producer_->slab();
  void* data = nullptr;
  if (!slab.Claim(record.bytes, limit, &record.slot, &data)) {
    producer_->CountRawDropped();
    return false;
  }
  CopyElements(view, 0, view.count, data);
  slab.Publish(record.slot, record.bytes);
  if (producer_->Tensor(record, array.shape, nullptr)) return true;
  slab.Abandon(record.slot, record.bytes);
  return false;
}

void Capture::RecordStats(std::uint32_t tensor, std::uint32_t collection, const tt_stats& stats,
                          tt_dtype dtype, std::int64_t step, std::uint8_t mode,
                          const tt_more_stats* more) {
  if (static_cast<std::uint32_t>(dtype) >= format::kDtypeCount) {
    producer_->CountSkipped("capture.dtype", 1);
    return;
  }
  format::StatMoreRecord record{};
  record.stat.header.flags = static_cast<std::uint8_t>(mode & format::kModeMask);
  record.stat.header.name = tensor;
  record.stat.time = producer_->Now();
  record.stat.step = step;
  FillStat(stats, dtype, &record.stat);
  record.stat.collection = collection;
  if (more == nullptr) {
    producer_->Stat(record.stat);
    return;
  }
  record.abs_min = more->abs_min;
  record.abs_std = more->abs_std;
  record.prod = more->prod;
  producer_->StatMore(record);
}

bool Capture::RecordSample(std::uint32_t tensor, const tt_array& sample, const tt_stats& stats,
                           std::int64_t step, std::uint8_t mode) {
  ArrayView view;
  if (tensor == 0 || !MakeView(sample, &view)) {
    producer_->CountSkipped(tensor == 0 ? "" : "capture.array", 1);
    return false;
  }
  mode &= format::kModeMask;
  format::HistogramRecord histogram{};
  histogram.header.flags = mode;
  histogram.header.name = tensor;
  histogram.time = producer_->Now();
  histogram.step = step;
  histogram.count = stats.count;
  histogram.dtype = static_cast<std::uint32_t>(sample.dtype);
  histogram.min = stats.min;
  histogram.max = stats.max;
  if (histograms_.Add(view, SampleSize(tensor, step, mode), histogram)) return true;
  producer_->CountHistogramsDropped(1);
  return false;
}

}  // namespace telltale::probe
