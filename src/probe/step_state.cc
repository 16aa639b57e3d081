// SPDX-License-Identifier: Apache-2.0
// The state between the calls: exclusive time and the stack, opening, merging and closing of steps,
// and the records that come of them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "probe/capture.h"
#include "probe/step_machine.h"

namespace telltale::probe {
namespace {

constexpr std::uint64_t kSpansPerSecond = 2000;
/// An unchanged learning rate is repeated this often.
constexpr std::int64_t kRateEvery = 50;

constexpr const char* kPhaseNames[TT_PHASE_COUNT] = {"data_wait", "forward",   "backward",
                                                     "optimizer", "comm_wait", "other"};

/// Batches by which a loader is taken to be ahead at most, from one step to the next.
constexpr std::uint32_t kMostAhead = 4;

bool IsMachinePhase(std::uint8_t phase) { return phase <= TT_PHASE_OPTIMIZER; }

}  // namespace

bool StepMachine::Optimizers::Contains(std::uint64_t id) const {
  for (std::uint32_t i = 0; i < count; ++i) {
    if (ids[i] == id) return true;
  }
  return false;
}

void StepMachine::Optimizers::Add(std::uint64_t id) {
  if (count < kMaxOptimizers && !Contains(id)) ids[count++] = id;
}

void StepMachine::Init(channel::Producer* producer, Capture* capture) {
  producer_ = producer;
  capture_ = capture;
  const auto intern = [&](const char* text) { return producer_->Intern(text, std::strlen(text)); };
  for (int i = 0; i < TT_PHASE_COUNT; ++i) phase_names_[i] = intern(kPhaseNames[i]);
  skipped_name_ = intern("optimizer.skipped");
  places_[0].loss_name = intern("loss");
  places_[0].rate_name = intern("lr");
  // ns where the clock is CLOCK_MONOTONIC; for the TSC measured since the arena was made.
  const channel::ClockPair now =
      channel::ReadClockPair(static_cast<format::ClockKind>(producer_->header()->clock_kind));
  const auto ticks = static_cast<double>(now.ticks - producer_->header()->anchor_ticks);
  const auto ns = static_cast<double>(now.monotonic_ns - producer_->header()->anchor_monotonic_ns);
  const double per_second = ns > 0 && ticks > 0 ? ticks / ns * 1e9 : 2e9;
  ticks_per_span_ = static_cast<std::uint64_t>(per_second / kSpansPerSecond) + 1;
  bucket_full_ = static_cast<std::uint64_t>(per_second) + ticks_per_span_;
  longest_sample_ = static_cast<std::uint64_t>(per_second * 20e-6);
  bucket_ = bucket_full_;
  bucket_time_ = now.ticks;
  published_step_.store(-1, std::memory_order_relaxed);
  published_train_.store(-1, std::memory_order_relaxed);
  published_mode_.store(TT_MODE_GLOBAL, std::memory_order_relaxed);
}

// ---- time and the stack ----

[[gnu::hot]] void StepMachine::Charge(std::uint64_t now) {
  if (now > last_) {
    if (current_ != nullptr) {
      const std::uint8_t phase =
          depth_ == 0 ? static_cast<std::uint8_t>(TT_PHASE_OTHER) : stack_[depth_ - 1].phase;
      current_->phases[phase] += now - last_;
    }
    last_ = now;
  }
}

[[gnu::hot]] void StepMachine::Push(tt_phase phase, std::uint64_t now) {
  if (IsMachinePhase(static_cast<std::uint8_t>(phase))) ++machine_depth_;
  if (depth_ == kMaxDepth) {
    ++lost_depth_;
    return;
  }
  stack_[depth_++] = {now, static_cast<std::uint8_t>(phase)};
}

[[gnu::hot]] bool StepMachine::Pop(tt_phase phase, std::uint64_t now) {
  last_activity_ = now;
  const auto wanted = static_cast<std::uint8_t>(phase);
  if (lost_depth_ > 0) {
    --lost_depth_;
    if (IsMachinePhase(wanted) && machine_depth_ > 0) --machine_depth_;
    return false;
  }
  // Frames above the wanted one were never ended (an exception passed through): they end here.
  std::uint32_t at = depth_;
  while (at > 0 && stack_[at - 1].phase != wanted) --at;
  if (at == 0) return false;
  const std::uint64_t begin = stack_[at - 1].begin;
  while (depth_ >= at) {
    --depth_;
    if (IsMachinePhase(stack_[depth_].phase) && machine_depth_ > 0) --machine_depth_;
  }
  if (current_ == nullptr) return true;
  if (phase == TT_PHASE_DATA_WAIT && current_ == &pending_ && !pending_.train) {
    if (pending_.held_count < kMaxHeld) {
      pending_.held[pending_.held_count++] = {begin, now};
    } else {
      producer_->CountThinned(1);
    }
  } else {
    PhaseSpan(phase_names_[wanted], begin, now, step(), mode());
  }
  return true;
}

bool StepMachine::InOptimizer() const {
  if (machine_depth_ != 1) return false;
  return std::any_of(stack_, stack_ + depth_,
                     [](const Frame& frame) { return frame.phase == TT_PHASE_OPTIMIZER; });
}

/// Drops frames that an exception left behind: no fetch and no root forward begins inside them.
[[gnu::hot]] void StepMachine::DropStale(bool whole_stack) {
  while (depth_ > 0) {
    const std::uint8_t top = stack_[depth_ - 1].phase;
    if (top != TT_PHASE_FORWARD && (!whole_stack || top == TT_PHASE_DATA_WAIT)) return;
    if (!IsMachinePhase(top) && machine_depth_ == 0) return;
    --depth_;
    if (IsMachinePhase(top)) --machine_depth_;
  }
}

[[gnu::hot]] void StepMachine::PhaseSpan(std::uint32_t name, std::uint64_t begin, std::uint64_t end,
                                         std::int64_t step, std::uint8_t mode) {
  if (last_ > bucket_time_) {
    bucket_ += last_ - bucket_time_;
    if (bucket_ > bucket_full_) bucket_ = bucket_full_;
    bucket_time_ = last_;
  }
  if (bucket_ < ticks_per_span_) {
    producer_->CountThinned(1);
    return;
  }
  bucket_ -= ticks_per_span_;
  producer_->Span(name, begin, end,
                  static_cast<std::uint8_t>(mode | TT_SPAN_PHASE << format::kCategoryShift), step);
}

[[gnu::hot]] void StepMachine::FlushHeld(OpenStep* step, std::int64_t number, std::uint8_t mode) {
  for (std::uint32_t i = 0; i < step->held_count; ++i) {
    PhaseSpan(phase_names_[TT_PHASE_DATA_WAIT], step->held[i].begin, step->held[i].end, number,
              mode);
  }
  step->held_count = 0;
}

// ---- batches ----

void StepMachine::PutFetched(std::int64_t size) {
  if (fetched_count_ == kMaxFetched) DropFetched(0);
  fetched_[fetched_count_++] = size;
  fetched_since_ = true;
}

[[gnu::hot]] void StepMachine::DropFetched(std::uint32_t at) {
  std::copy(fetched_ + at + 1, fetched_ + fetched_count_, fetched_ + at);
  --fetched_count_;
}

/// The batch of a micro-step: one that was fetched, of the size that the model was called with if
/// there is one, else the oldest. A second pass over the same batch adds nothing, and the one batch
/// by which the loader is ahead is not its. `size` 0: not known.
[[gnu::hot]] void StepMachine::TakeBatch(OpenStep* step, std::int64_t size) {
  const bool another =
      step->fetched_batches == 0 || fetched_since_ || fetches_ended_ || fetched_count_ > 1;
  if (fetched_count_ > 0 && another) {
    std::uint32_t at = 0;
    while (at < fetched_count_ && fetched_[at] != size) ++at;
    if (at == fetched_count_) at = 0;
    step->batch_size += fetched_[at];
    DropFetched(at);
    fetched_since_ = false;
    ++step->fetched_batches;
    step->fetched_batch = 0;
    step->forward_batch_taken = true;
  } else if (step->fetched_batches == 0 && size > 0) {
    step->batch_size += size;
    step->forward_batch_taken = true;
  }
}

// ---- optimizers ----

/// The place of an optimizer that was called; kMaxOptimizers: there is none left.
[[gnu::hot]] std::uint32_t StepMachine::PlaceOf(std::uint64_t optimizer) {
  std::uint32_t at = 0;
  while (at < known_.count && known_.ids[at] != optimizer) ++at;
  const Made* made = FindMade(optimizer);
  if (at == known_.count && made != nullptr) {
    // That of one which it follows: not called since this one was made, nor in this step.
    const std::uint64_t before = calls_of_optimizers_ - train_.optimizer_calls;
    for (std::uint32_t i = 0; i < known_.count && at == known_.count; ++i) {
      if (places_[i].last_call <= std::min(made->calls, before)) at = i;
    }
  }
  if (made != nullptr) {
    if (at < kMaxOptimizers) places_[at].rate = {};
    std::copy(made + 1, static_cast<const Made*>(made_ + made_count_), made_ + (made - made_));
    --made_count_;
  }
  if (at == kMaxOptimizers) return at;
  known_.ids[at] = optimizer;
  known_.count = std::max(known_.count, at + 1);
  return at;
}

// ---- opening and closing ----

[[gnu::hot]] void StepMachine::Reset(OpenStep* step, std::uint64_t now, bool by_fetch) {
  // What is held is written before held_count says so.
  std::memset(static_cast<void*>(step), 0, offsetof(OpenStep, held));
  step->open = true;
  step->by_fetch = by_fetch;
  step->begin = now;
}

[[gnu::hot]] void StepMachine::OpenTrain(std::uint64_t now, bool by_fetch) {
  Reset(&train_, now, by_fetch);
  train_.mode = TT_MODE_TRAIN;
  current_ = &train_;
}

[[gnu::hot]] void StepMachine::OpenPending(std::uint64_t now, bool by_fetch, bool train) {
  Reset(&pending_, now, by_fetch);
  pending_.train = train;
  current_ = &pending_;
}

/// The pending step is the open TRAIN step from here on. REQUIRES: no TRAIN step is open.
[[gnu::hot]] void StepMachine::PendingToTrain() {
  FlushHeld(&pending_, next_number_[TT_MODE_TRAIN], TT_MODE_TRAIN);
  train_ = pending_;
  train_.mode = TT_MODE_TRAIN;
  train_.train = false;
  pending_.open = false;
  current_ = &train_;
}

/// The pending step was a part of the open TRAIN step.
void StepMachine::MergePending() {
  FlushHeld(&pending_, next_number_[TT_MODE_TRAIN], TT_MODE_TRAIN);
  fetches_again_ = fetches_again_ || (pending_.by_fetch && train_.optimizer_calls > 0);
  for (int i = 0; i < TT_PHASE_COUNT; ++i) train_.phases[i] += pending_.phases[i];
  train_.micro_steps += pending_.micro_steps;
  train_.batch_size += pending_.batch_size;
  train_.fetched_batches += pending_.fetched_batches;
  train_.forwards = train_.forwards || pending_.forwards;
  train_.fetches = train_.fetches || pending_.fetches;
  if (pending_.fetched_batch != 0) train_.fetched_batch = pending_.fetched_batch;
  train_.probe += pending_.probe;
  train_.by_fetch = train_.by_fetch || pending_.by_fetch;
  train_.active = train_.active || pending_.active;
  pending_.open = false;
  current_ = &train_;
}

/// What was taken for evaluation trains after all (a teacher's forward came first, or a model in
/// eval mode is trained).
void StepMachine::EvalToPending() {
  // What was recorded under its number was no other evaluation's.
  ++next_number_[eval_.mode];
  pending_ = eval_;
  pending_.train = false;
  pending_.micro_steps = 0;
  eval_.open = false;
  current_ = &pending_;
}

/// The pending step turns out to be TRAIN.
[[gnu::hot]] void StepMachine::ResolveTrain() {
  if (pending_.train) {
    current_ = &pending_;
  } else if (!train_.open) {
    PendingToTrain();
  } else if (train_.optimizer_calls == 0 || explicit_) {
    MarkPasses(pending_.begin);
    MergePending();
  } else {
    pending_.train = true;
    FlushHeld(&pending_, PendingNumber(), TT_MODE_TRAIN);
    current_ = &pending_;
  }
}

/// A forward begins that may be the next step's.
void StepMachine::MarkPasses(std::uint64_t now) {
  if (marked_ || explicit_ || train_.micro_steps == 0 || train_.optimizer_calls > 0) return;
  mark_ = train_;
  mark_end_ = now;
  marked_ = true;
}

/// The open TRAIN step ended where it was marked; what has followed is the next one.
void StepMachine::SplitAtMark() {
  OpenStep next = train_;
  const Ended how = train_.ended;
  next.ended = Ended::kNot;
  next.by_fetch = train_.fetched_batch != 0 || train_.by_fetch;
  next.begin = mark_end_;
  next.micro_steps -= mark_.micro_steps;
  next.batch_size -= mark_.batch_size;
  next.fetched_batches -= mark_.fetched_batches;
  next.probe -= mark_.probe;
  for (int i = 0; i < TT_PHASE_COUNT; ++i) next.phases[i] -= mark_.phases[i];
  train_ = mark_;
  train_.fetched_batch = 0;
  train_.ended = how;
  Close(&train_, mark_end_);
  train_ = next;
  current_ = &train_;
}

/// The open TRAIN step was whole: the pending one is the next.
void StepMachine::CloseAtPending() {
  // A batch that the rest of the cycle did not use: a generator steps at some batches only.
  if (pending_.by_fetch && learned_ && !CycleDone()) fetches_again_ = false;
  cycle_ = train_.called;
  learned_ = true;
  Close(&train_, pending_.begin);
  PendingToTrain();
}

[[gnu::hot]] bool StepMachine::CycleDone() const {
  if (!learned_) return false;
  for (std::uint32_t i = 0; i < cycle_.count; ++i) {
    if (!train_.called.Contains(cycle_.ids[i])) return false;
  }
  return true;
}

/// Whether any optimizer of the cycle was called in the open TRAIN step.
[[gnu::hot]] bool StepMachine::CycleBegun() const {
  for (std::uint32_t i = 0; i < cycle_.count; ++i) {
    if (train_.called.Contains(cycle_.ids[i])) return true;
  }
  return false;
}

[[gnu::hot]] void StepMachine::Close(OpenStep* step, std::uint64_t end) {
  if (step->ended != Ended::kNot) {
    step->skipped = step->ended == Ended::kCleared;
    EmitLoss(0);  // Of no optimizer, which is `loss` too.
  }
  if (step->batch_size == 0 && step->fetched_batch != 0) {
    // What used the batch was not seen.
    step->batch_size = step->fetched_batch;
    if (fetched_count_ > 0) DropFetched(fetched_count_ - 1);
  }
  if (step->skipped) {
    producer_->Scalar(skipped_name_, 1, next_number_[step->mode], step->mode, last_);
  }
  format::StepRecord record{};
  record.header.flags =
      static_cast<std::uint8_t>(step->mode | (step->skipped ? format::kSkippedFlag : 0));
  record.begin = step->begin;
  record.duration = end > step->begin ? end - step->begin : 0;
  record.step = next_number_[step->mode]++;
  for (int i = 0; i < TT_PHASE_OTHER; ++i) record.phases[i] = step->phases[i];
  record.micro_steps = step->micro_steps;
  record.optimizer_calls = step->optimizer_calls;
  record.batch_size = step->batch_size;
  record.probe = step->probe + elsewhere_.exchange(0, std::memory_order_relaxed);
  producer_->Step(record);
  if (step->mode == TT_MODE_TRAIN) {
    last_train_end_ = record.begin + record.duration;
    any_step_ = true;
    last_ended_ = step->ended;
  }
  if (step == &train_) marked_ = false;
  // What is left over was not used and will not be.
  const std::uint32_t ahead = step->fetches ? kMostAhead : 0;
  while (step->mode == TT_MODE_TRAIN && fetched_count_ > ahead) DropFetched(0);
  step->open = false;
  if (current_ == step) current_ = nullptr;
}

/// The number that a pending TRAIN step will most likely have.
std::int64_t StepMachine::PendingNumber() const {
  const std::int64_t next = next_number_[TT_MODE_TRAIN];
  if (!train_.open) return next;
  const bool own_forward = known_.count > 1 && train_.by_fetch && !pending_.by_fetch;
  const bool rest_of_cycle = learned_ && !CycleDone() && (!pending_.by_fetch || fetches_again_);
  const bool same = train_.optimizer_calls == 0 || explicit_ || own_forward || rest_of_cycle;
  return same ? next : next + 1;
}

[[gnu::hot]] void StepMachine::Publish() {
  std::int64_t step = published_step_.load(std::memory_order_relaxed);
  const std::int64_t before = step;
  std::uint8_t mode = published_mode_.load(std::memory_order_relaxed);
  const std::uint8_t mode_before = mode;
  std::int64_t train = next_number_[TT_MODE_TRAIN] - 1;
  if (train_.open) train = next_number_[TT_MODE_TRAIN];
  if (pending_.open && pending_.train) train = PendingNumber();
  if (current_ == &eval_) {
    step = next_number_[eval_.mode];
    mode = eval_.mode;
  } else if (current_ != nullptr) {
    step = current_ == &pending_ ? PendingNumber() : next_number_[TT_MODE_TRAIN];
    mode = TT_MODE_TRAIN;
  }
  published_train_.store(train, std::memory_order_relaxed);
  if (step == before && mode == mode_before) return;
  published_step_.store(step, std::memory_order_relaxed);
  published_mode_.store(mode, std::memory_order_relaxed);
  if (capture_ != nullptr) capture_->StepChanged(step, mode);
}

// ---- scalars ----

/// The losses since the last call of an optimizer are those of the one at `place`: those that were
/// read are recorded, those that arrive later learn their name and step.
[[gnu::hot]] void StepMachine::EmitLoss(std::uint32_t place) {
  if (loss_count_ == 0 && late_open_ == 0) return;
  const std::uint32_t order = std::min(place, kMaxOptimizers - 1);
  if (places_[order].loss_name == 0) {
    const char text[] = {'l', 'o', 's', 's', '.', static_cast<char>('0' + order)};
    places_[order].loss_name = producer_->Intern(text, sizeof text);
  }
  const std::int64_t step = next_number_[TT_MODE_TRAIN];
  if (late_open_ != 0) {
    LateLosses& late = late_[late_open_ % kMaxLate];
    late_open_ = 0;
    late.name = places_[order].loss_name;
    late.step = step;
    late.named = true;
    if (late.missing == 0) EmitLate(&late);
  }
  if (loss_count_ == 0) return;
  producer_->Scalar(places_[order].loss_name, loss_sum_ / loss_count_, step, TT_MODE_TRAIN, last_);
  loss_sum_ = 0;
  loss_count_ = 0;
}

/// REQUIRES: named, and at least one has arrived.
void StepMachine::EmitLate(LateLosses* late) {
  producer_->Scalar(late->name, late->sum / late->count, late->step, TT_MODE_TRAIN,
                    producer_->Now());
  late->id = 0;
}

[[gnu::hot]] void StepMachine::EmitLearningRate(std::uint32_t place, std::uint64_t optimizer,
                                                double value) {
  if (std::isnan(value) || place >= kMaxOptimizers) return;
  const std::int64_t step = next_number_[TT_MODE_TRAIN];
  LearningRate& rate = places_[place].rate;
  const bool first = rate.optimizer != optimizer;
  if (!first && rate.value == value && step < rate.step + kRateEvery) return;
  rate = {optimizer, value, step};
  if (places_[place].rate_name == 0) {
    const char text[] = {'l', 'r', '.', static_cast<char>('0' + place)};
    places_[place].rate_name = producer_->Intern(text, sizeof text);
  }
  producer_->Scalar(places_[place].rate_name, value, step, TT_MODE_TRAIN, last_);
}

}  // namespace telltale::probe
