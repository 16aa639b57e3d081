// SPDX-License-Identifier: Apache-2.0
// The calls: where a step begins and ends. step_state.cc keeps the time and writes the records.
#include "probe/step_machine.h"

#include <unistd.h>

#include <algorithm>

namespace telltale::probe {
namespace {

/// One call of so many measures its own cost, for all of them. A prime, so that it meets each kind
/// of call whatever the pattern of a step.
constexpr std::uint32_t kSampleCalls = 17;
/// A reading of the thread's core holds for so many times the longest call, 0.2 ms.
constexpr std::uint64_t kReadAgain = 10;
/// An optimizer made behind fewer calls of others may belong to them.
constexpr std::uint64_t kCallsOfAFit = 3;

}  // namespace

/// Around every entry: measures one in kSampleCalls.
class StepMachine::Call {
 public:
  explicit Call(StepMachine* machine) : machine_(machine), begin_(machine->producer_->Now()) {}
  ~Call() {
    if (++machine_->calls_ % kSampleCalls != 0 || machine_->current_ == nullptr) return;
    const std::uint64_t took = machine_->producer_->Now() - begin_;
    // A long one was interrupted by the scheduler: that is no measure of the others, and no cost.
    const std::uint64_t longest = machine_->longest_sample_;
    machine_->current_->probe += took < longest ? took * kSampleCalls : longest;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  std::uint64_t now() const { return begin_; }

 private:
  StepMachine* machine_;
  std::uint64_t begin_;
};

bool StepMachine::ForeignOrClaims(Claim claim) {
  std::uintptr_t owner = owner_.load(std::memory_order_relaxed);
  if (owner == 0 && (claim == Claim::kTrains || ::gettid() == ::getpid()) &&
      owner_.compare_exchange_strong(owner, Self(), std::memory_order_relaxed)) {
    return false;
  }
  // The owner only ran models. In the midst of a call it may be the one that trains: autograd runs
  // parts of a backward on threads of its own.
  if (owner != 0 && claim == Claim::kTrains && known_.count == 0 && !explicit_ &&
      machine_depth_ == 0 &&
      owner_.compare_exchange_strong(owner, Self(), std::memory_order_relaxed)) {
    if (eval_.open) Close(&eval_, producer_->Now());
    train_.open = pending_.open = false;
    current_ = nullptr;
    depth_ = lost_depth_ = 0;
    loss_sum_ = 0;
    loss_count_ = 0;
    if (late_open_ != 0) late_[late_open_ % kMaxLate].id = 0;
    late_open_ = 0;
    return false;
  }
  producer_->CountForeignThread();
  return true;
}

void StepMachine::FetchBegin() {
  if (Foreign()) return;
  const Call call(this);
  Charge(call.now());
  DropStale(true);
  if (AtBoundary()) {
    if (eval_.open) Close(&eval_, call.now());
    if (pending_.open && pending_.train && train_.open && known_.count == 1) {
      // One optimizer, and a pass that is followed by another fetch: an accumulation.
      CloseAtPending();
    }
    if (pending_.open) {
      current_ = &pending_;  // The fetch before it brought nothing that was used.
    } else {
      const bool whole =
          train_.ended != Ended::kNot || (train_.optimizer_calls > 0 && !explicit_ && CycleDone());
      if (train_.open && whole) Close(&train_, call.now());
      OpenPending(call.now(), true, false);
    }
    Publish();
  }
  Push(TT_PHASE_DATA_WAIT, call.now());
}

void StepMachine::FetchEnd(std::int64_t batch_size) {
  if (Foreign()) return;
  const Call call(this);
  Charge(call.now());
  Pop(TT_PHASE_DATA_WAIT, call.now());
  // Behind the last batch the loader is ahead by none.
  fetches_ended_ = batch_size < 0;
  if (current_ == nullptr || !AtBoundary() || batch_size <= 0) return;
  current_->fetched_batch = batch_size;
  current_->fetches = true;
  PutFetched(batch_size);
}

[[gnu::hot]] void StepMachine::TrainForward(std::uint64_t now) {
  if (eval_.open) {
    if (eval_.by_fetch) {
      EvalToPending();
    } else {
      Close(&eval_, now);
    }
  }
  if (pending_.open) {
    ResolveTrain();
    return;
  }
  if (train_.open && train_.ended != Ended::kNot) Close(&train_, now);
  if (!train_.open) {
    OpenTrain(now, false);
  } else if (train_.optimizer_calls > 0 && !explicit_) {
    // In a step that fetched, a second optimizer may have a forward of its own.
    if (CycleDone() && !train_.by_fetch) {
      Close(&train_, now);
      OpenTrain(now, false);
    } else {
      OpenPending(now, false, true);
    }
  } else {
    MarkPasses(now);
    current_ = &train_;
  }
}

void StepMachine::EvalForward(std::uint8_t mode, std::uint64_t now) {
  if (pending_.open && pending_.train) {
    current_ = &pending_;  // A teacher's forward inside a step of several optimizers.
    return;
  }
  if (pending_.open) {
    if (train_.open && train_.optimizer_calls > 0 && !explicit_) Close(&train_, pending_.begin);
    eval_ = pending_;
    eval_.mode = mode;
    pending_.open = false;
    FlushHeld(&eval_, next_number_[mode], mode);
    current_ = &eval_;
    return;
  }
  if (eval_.open && eval_.by_fetch) {
    current_ = &eval_;
    return;
  }
  if (eval_.open) {
    Close(&eval_, now);
  } else if (train_.open) {
    const bool inside =
        explicit_ || !TrainEnded() || (learned_ && !CycleDone() && train_.ended == Ended::kNot);
    if (inside) {
      current_ = &train_;
      return;
    }
    Close(&train_, now);
  }
  Reset(&eval_, now, false);
  eval_.mode = mode;
  current_ = &eval_;
}

void StepMachine::Acts() {
  if (!Owned() || explicit_ || !AtBoundary()) return;
  const Call call(this);
  Charge(call.now());
  if (!train_.open || train_.optimizer_calls == 0 || pending_.open) return;
  cycle_ = train_.called;
  learned_ = true;
  Close(&train_, call.now());
}

/// A pass of an agent, or of the network that it learns from: it begins and ends no step.
void StepMachine::ActForward(std::uint64_t now) {
  if (eval_.open) Close(&eval_, now);
  if (pending_.open) {
    current_ = &pending_;
  } else {
    current_ = train_.open ? &train_ : nullptr;
  }
}

[[gnu::hot]] void StepMachine::ForwardBegin(tt_mode mode) {
  if (Foreign()) return;
  const Call call(this);
  Charge(call.now());
  DropStale(false);
  if (!saw_forward_) {
    saw_forward_ = true;
    const std::uint32_t kind = producer_->Intern("run.first_forward", 17);
    producer_->Event(kind, TT_INFO, 0, nullptr, 0, nullptr, 0, -1, call.now());
  }
  if (AtBoundary()) {
    acting_ = mode == TT_MODE_GLOBAL;
    if (acting_) {
      ActForward(call.now());
    } else if (mode == TT_MODE_EVAL || mode == TT_MODE_PREDICT) {
      EvalForward(static_cast<std::uint8_t>(mode), call.now());
    } else {
      TrainForward(call.now());
    }
    ++forwards_;
    if (current_ != nullptr) {
      current_->active = true;
      current_->forwards = current_->forwards || !acting_;
    }
    if (current_ == &eval_) ++eval_.micro_steps;
    Publish();
  }
  Push(TT_PHASE_FORWARD, call.now());
}

[[gnu::hot]] void StepMachine::ForwardEnd(std::int64_t batch_size) {
  if (Foreign()) return;
  const Call call(this);
  Charge(call.now());
  Pop(TT_PHASE_FORWARD, call.now());
  if (current_ == nullptr || acting_ || (!AtBoundary() && !InOptimizer())) return;
  // Only the first forward of a micro-step tells its size.
  if (!current_->forward_batch_taken) TakeBatch(current_, batch_size);
}

[[gnu::hot]] void StepMachine::BackwardBegin() {
  if (Foreign(Claim::kTrains)) return;
  const Call call(this);
  Charge(call.now());
  if (AtBoundary()) {
    if (eval_.open && current_ == &eval_) EvalToPending();
    if (train_.open && train_.ended != Ended::kNot) Close(&train_, call.now());
    if (pending_.open) {
      ResolveTrain();
    } else if (!train_.open) {
      OpenTrain(call.now(), false);
    } else if (train_.optimizer_calls > 0 && !explicit_) {
      // No fetch and no forward was seen since the optimizer: this is all there is to cut at.
      OpenPending(call.now(), false, true);
    } else {
      current_ = &train_;
    }
    current_->active = true;
    Publish();
  }
  Push(TT_PHASE_BACKWARD, call.now());
}

[[gnu::hot]] void StepMachine::BackwardEnd(bool has_loss, double loss) {
  if (Foreign()) return;
  const Call call(this);
  Charge(call.now());
  Pop(TT_PHASE_BACKWARD, call.now());
  if (current_ == nullptr) return;
  ++backwards_;
  marked_ = false;
  ++current_->micro_steps;
  if (!current_->forwards && AtBoundary()) TakeBatch(current_, 0);  // A model without modules.
  current_->forward_batch_taken = false;
  if (has_loss) {
    loss_sum_ += loss;
    ++loss_count_;
  }
}

std::uint64_t StepMachine::LossLater() {
  if (Foreign(Claim::kTrains)) return 0;
  if (late_open_ == 0) {
    LateLosses& late = late_[(late_ids_ + 1) % kMaxLate];
    if (late.id != 0) return 0;
    late = LateLosses{};
    late.id = late_open_ = ++late_ids_;
  }
  ++late_[late_open_ % kMaxLate].missing;
  return late_open_;
}

void StepMachine::LossArrived(std::uint64_t loss, double value) {
  LateLosses& late = late_[loss % kMaxLate];
  if (loss == 0 || late.id != loss || late.missing == 0) return;
  late.sum += value;
  ++late.count;
  if (--late.missing == 0 && late.named) EmitLate(&late);
}

void StepMachine::OptimizerMade(std::uint64_t optimizer) {
  for (std::uint32_t i = 0; i < known_.count; ++i) {
    if (known_.ids[i] == optimizer) known_.ids[i] = 0;
  }
  std::uint32_t at = 0;
  while (at < made_count_ && made_[at].id != optimizer) ++at;
  if (at == kMaxMade) {
    std::copy(made_ + 1, made_ + kMaxMade, made_);
    at = --made_count_;
  }
  if (at == made_count_) ++made_count_;
  made_[at] = {optimizer, calls_of_optimizers_};
}

[[gnu::hot]] const StepMachine::Made* StepMachine::FindMade(std::uint64_t optimizer) const {
  const Made* const end = made_ + made_count_;
  const Made* const found =
      std::find_if(made_, end, [optimizer](const Made& made) { return made.id == optimizer; });
  return found == end ? nullptr : found;
}

/// Whether the first call of an optimizer is that of another fit, and no part of the step before
/// it: it was made when others had done their work, and none was called since.
bool StepMachine::BeginsFit(std::uint64_t optimizer) const {
  const Made* made = FindMade(optimizer);
  return made != nullptr && made->calls >= kCallsOfAFit && made->calls == calls_of_optimizers_;
}

[[gnu::hot]] void StepMachine::OptimizerBegin(std::uint64_t optimizer) {
  if (Foreign(Claim::kTrains)) return;
  const Call call(this);
  Charge(call.now());
  if (AtBoundary()) {
    // Without a backward it was no pass of the training.
    if (eval_.open && current_ == &eval_) Close(&eval_, call.now());
    if (pending_.open) {
      if (!train_.open) {
        PendingToTrain();
      } else if (explicit_ || (!train_.called.Contains(optimizer) && !BeginsFit(optimizer))) {
        MergePending();
      } else {
        CloseAtPending();
      }
    } else if (!train_.open) {
      OpenTrain(call.now(), false);
    } else if (!explicit_ && train_.called.Contains(optimizer)) {
      // It comes round again with nothing in between: its passes run in a closure, inside it.
      cycle_ = train_.called;
      learned_ = true;
      Close(&train_, call.now());
      OpenTrain(call.now(), false);
    }
    current_ = &train_;
    train_.active = true;
    Publish();
  }
  // Whatever was cleared before it: this step has an optimizer.
  train_.ended = Ended::kNot;
  Push(TT_PHASE_OPTIMIZER, call.now());
}

[[gnu::hot]] void StepMachine::OptimizerEnd(std::uint64_t optimizer, bool skipped,
                                            double learning_rate) {
  if (Foreign()) return;
  const Call call(this);
  Charge(call.now());
  Pop(TT_PHASE_OPTIMIZER, call.now());
  if (!train_.open) return;
  const std::uint32_t place = PlaceOf(optimizer);
  EmitLoss(place);
  EmitLearningRate(place, optimizer, learning_rate);
  ++calls_of_optimizers_;
  if (place < kMaxOptimizers) places_[place].last_call = calls_of_optimizers_;
  train_.called.Add(optimizer);
  if (learned_ && !together_.Contains(optimizer) && !CycleBegun()) {
    // Another training, with a cycle of its own.
    learned_ = false;
    together_.count = 0;
  }
  together_.Add(optimizer);
  ++train_.optimizer_calls;
  train_.skipped = train_.skipped || skipped;
  owner_count_ = 0;
}

/// The passes since the last call of an optimizer, if there are any, are a step of their own. It is
/// closed at the next boundary, which may have been: its batch was fetched.
void StepMachine::EndWithoutOptimizer(Ended how) {
  if (pending_.open && pending_.train && pending_.micro_steps > 0) {
    if (train_.open) Close(&train_, pending_.begin);
    PendingToTrain();
  }
  if (!train_.open || train_.optimizer_calls > 0 || train_.micro_steps == 0) return;
  train_.ended = how;
  if (marked_) {
    SplitAtMark();
  } else if (pending_.open) {
    Close(&train_, pending_.begin);
  }
}

void StepMachine::EndCleared() {
  const Call call(this);
  Charge(call.now());
  EndWithoutOptimizer(Ended::kCleared);
  Publish();
}

[[gnu::hot]] bool StepMachine::GradientsCleared(std::uint64_t owner, bool kept) {
  // A loop may begin with it, before any call that makes a thread the one that steps.
  const std::uintptr_t steps = owner_.load(std::memory_order_relaxed);
  if ((steps != 0 && steps != Self()) || explicit_ || !AtBoundary()) return false;
  std::uint32_t at = 0;
  while (at < owner_count_ && owners_[at].id != owner) ++at;
  if (at == kMaxOwners) return false;
  bool unused = false;
  if (at == owner_count_) {
    ++owner_count_;
  } else {
    // A loop without modules has no forwards.
    const bool passed = forwards_ != owners_[at].forwards || !saw_forward_;
    unused = passed && backwards_ != owners_[at].backwards;
  }
  owners_[at] = {owner, forwards_, backwards_};
  if (unused && !kept) [[unlikely]]
    EndCleared();
  return unused;
}

void StepMachine::GradientsUsed() {
  if (!Owned() || explicit_ || !AtBoundary() || known_.count > 0) return;
  EndWithoutOptimizer(Ended::kUsed);
}

void StepMachine::PhaseBegin(tt_phase phase) {
  if (static_cast<std::uint32_t>(phase) >= TT_PHASE_COUNT || Foreign()) return;
  const Call call(this);
  Charge(call.now());
  Push(phase, call.now());
}

void StepMachine::PhaseEnd(tt_phase phase) {
  if (static_cast<std::uint32_t>(phase) >= TT_PHASE_COUNT || Foreign()) return;
  const Call call(this);
  Charge(call.now());
  if (Pop(phase, call.now()) && current_ != nullptr) current_->active = true;
}

void StepMachine::ExplicitStep() {
  if (Foreign(Claim::kTrains)) return;
  const Call call(this);
  Charge(call.now());
  explicit_ = true;
  if (eval_.open) Close(&eval_, call.now());
  if (pending_.open) {
    if (train_.open) {
      MergePending();
    } else {
      PendingToTrain();
    }
  }
  if (train_.open) Close(&train_, call.now());
  OpenTrain(call.now(), false);
  Publish();
}

void StepMachine::Finish() {
  const Call call(this);
  Charge(call.now());
  // What follows the last phase is finalization, not part of the step.
  const std::uint64_t end = depth_ > 0 || last_activity_ == 0 ? call.now() : last_activity_;
  if (eval_.open) Close(&eval_, end);
  if (pending_.open && pending_.train) {
    if (train_.open) Close(&train_, pending_.begin);
    PendingToTrain();
  } else if (pending_.open) {
    if (train_.open) Close(&train_, pending_.begin);
    pending_.open = false;
    current_ = nullptr;
  }
  if (train_.open && train_.active) {
    if (train_.optimizer_calls == 0 && train_.micro_steps > 0 && train_.ended == Ended::kNot) {
      // The last one of those that went without an optimizer.
      train_.ended = known_.count == 0 && last_ended_ == Ended::kNot ? Ended::kUsed : last_ended_;
    }
    Close(&train_, end > train_.begin ? end : call.now());
  }
  train_.open = false;
  current_ = nullptr;
  Publish();
  for (std::uint64_t id = late_ids_ + 1; id <= late_ids_ + kMaxLate; ++id) {  // The oldest first.
    LateLosses& late = late_[id % kMaxLate];
    if (late.id != 0 && late.named && late.count > 0) EmitLate(&late);
  }
  if (finished_ || !any_step_) return;
  finished_ = true;
  producer_->Event(producer_->Intern("run.last_step", 13), TT_INFO, 0, nullptr, 0, nullptr, 0,
                   next_number_[TT_MODE_TRAIN] - 1, last_train_end_);
}

[[gnu::hot]] void StepMachine::Account(std::uint64_t begin) {
  const std::uintptr_t owner = owner_.load(std::memory_order_relaxed);
  const std::uint64_t now = producer_->Now();
  if (owner == 0 || now <= begin) return;
  if (owner != Self()) {
    elsewhere_.fetch_add(now - begin, std::memory_order_relaxed);
  } else if (current_ != nullptr) {
    const std::uint64_t took = now - begin;
    const std::uint64_t own = took - KeptFromCore(now, took);
    current_->probe += own;
    // A phase is what the training does: what is ours lies in `other`.
    Charge(now);
    if (depth_ == 0) return;
    std::uint64_t* const phases = current_->phases;
    const std::uint64_t taken = std::min(own, phases[stack_[depth_ - 1].phase]);
    phases[stack_[depth_ - 1].phase] -= taken;
    phases[TT_PHASE_OTHER] += taken;
  }
}

[[gnu::hot]] void StepMachine::BeginOwn(std::uint64_t now) {
  if (owner_.load(std::memory_order_relaxed) != Self()) return;
  // One reading is enough for captures that follow each other.
  if (core_read_ != 0 && now - core_read_ < kReadAgain * longest_sample_) return;
  core_read_ = ReadCoreTime(&core_) ? now : 0;
}

[[gnu::hot]] std::uint64_t StepMachine::KeptFromCore(std::uint64_t now, std::uint64_t took) {
  // Short ones were not kept from it for long; and none that did not say when it began.
  if (took < longest_sample_ || core_read_ == 0) return 0;
  const std::uint64_t wall = now - core_read_;
  if (wall > took + kReadAgain * longest_sample_) return 0;
  CoreTime core;
  if (!ReadCoreTime(&core)) return 0;
  const double ns_per_tick = 20e3 / static_cast<double>(longest_sample_);
  const auto ns = [&](std::uint64_t ticks) {
    return static_cast<std::uint64_t>(static_cast<double>(ticks) * ns_per_tick);
  };
  const std::uint64_t kept = KeptFromCoreNs(core_, core, ns(wall), ns(took));
  core_ = core;
  core_read_ = now;
  return std::min(took, static_cast<std::uint64_t>(static_cast<double>(kept) / ns_per_tick));
}

}  // namespace telltale::probe
