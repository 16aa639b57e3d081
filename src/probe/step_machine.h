// SPDX-License-Identifier: Apache-2.0
// Cuts the stream of fetches, forwards, backwards and optimizer calls into steps and phases.
//
// A TRAIN step closes at the next data fetch or root forward once every optimizer of the cycle has
// been called. The cycle (one optimizer, or the several of a GAN) is learned: while it is not
// known, or not complete, a boundary only opens a pending step, which becomes the next one when an
// optimizer comes round again, and else is merged back. A pending step's mode is open too: it was
// begun by a fetch, and the forward that follows says whether it is TRAIN or EVAL.
// Without an optimizer's call a step ends where its gradients are thrown away, or were used by the
// program itself (GradientsCleared, GradientsUsed): it closes at the next boundary.
// Exclusive time: a tick belongs to the phase on top of the stack, else to `other`; what we account
// for as our own always to `other`.
//
// Thread safety: one thread drives it (see Claim; others are counted and ignored, Finish,
// LossArrived and Account apart). Where threads may follow each other so, the caller lets no two
// calls run at once (Python's GIL does). step() and mode() may be read from any. Lives in memory
// that is zero at first; no exceptions, no allocation.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "channel/producer.h"
#include "probe/own_core.h"
#include "telltale/probe.h"

namespace telltale::probe {

class Capture;

class StepMachine {
 public:
  /// Interns the names it uses. `producer` and `capture`, which is told of the steps, outlive it.
  void Init(channel::Producer* producer, Capture* capture = nullptr);

  void FetchBegin();
  void FetchEnd(std::int64_t batch_size);
  void ForwardBegin(tt_mode mode);
  void ForwardEnd(std::int64_t batch_size);
  void BackwardBegin();
  void BackwardEnd(bool has_loss, double loss);
  /// Before BackwardBegin, of a loss that is read later: what it is called then, or 0: not taken.
  std::uint64_t LossLater();
  void LossArrived(std::uint64_t loss, double value);
  /// An optimizer of this id is made; one that had the id before is gone.
  void OptimizerMade(std::uint64_t optimizer);
  void OptimizerBegin(std::uint64_t optimizer);
  void OptimizerEnd(std::uint64_t optimizer, bool skipped, double learning_rate);
  /// The gradients that `owner` (an optimizer, a model) has are cleared. Where it has cleared them
  /// before, a forward and a backward lie in between and no call of an optimizer, those gradients
  /// were computed for nothing: the step is one whose optimizer was skipped. `kept`: they were not,
  /// or nobody can tell. True where the step ended so, or would have but for `kept`.
  bool GradientsCleared(std::uint64_t owner, bool kept);
  /// The gradients of the passes so far were used by the program itself, where no optimizer is
  /// known.
  void GradientsUsed();
  /// The environment of an agent goes on: a step whose optimizers were called has ended.
  void Acts();
  void PhaseBegin(tt_phase phase);
  void PhaseEnd(tt_phase phase);
  void ExplicitStep();
  void Finish();
  /// Time since `begin` was ours, on whatever thread: a framework may call us on threads of its own
  /// while the one that steps waits for them. Of the thread that steps it is taken off the open
  /// phase and lies in `other`.
  void Account(std::uint64_t begin);
  /// A capture of ours begins `now`, on this thread: until it is accounted for, what another
  /// process takes of the core counts as no cost of it.
  void BeginOwn(std::uint64_t now);

  /// Step and mode for records made now; -1 and GLOBAL before the first.
  std::int64_t step() const { return published_step_.load(std::memory_order_relaxed); }
  std::uint8_t mode() const { return published_mode_.load(std::memory_order_relaxed); }
  /// Of the channel's clock, about.
  std::uint64_t ticks_per_second() const { return bucket_full_ - ticks_per_span_; }
  /// Whether the calling thread is the one that steps.
  bool Owned() const { return owner_.load(std::memory_order_relaxed) == Self(); }
  std::int64_t train_step() const { return published_train_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint32_t kMaxOptimizers = 8;
  static constexpr std::uint32_t kMaxDepth = 32;
  static constexpr std::uint32_t kMaxHeld = 4;
  static constexpr std::uint32_t kMaxLate = 64;
  static constexpr std::uint32_t kMaxOwners = 8;
  static constexpr std::uint32_t kMaxFetched = 128;
  static constexpr std::uint32_t kMaxMade = 16;

  /// What ended a step without a call of an optimizer.
  enum class Ended : std::uint8_t { kNot, kCleared, kUsed };

  struct Optimizers {
    std::uint32_t count;
    std::uint64_t ids[kMaxOptimizers];

    bool Contains(std::uint64_t id) const;
    void Add(std::uint64_t id);
  };
  struct Interval {
    std::uint64_t begin, end;
  };
  struct OpenStep {
    bool open;
    bool by_fetch;  ///< Began at a fetch (and not at a forward).
    bool train;     ///< Of a pending step: its mode is settled, its number is not.
    bool skipped;
    bool active;  ///< Anything happened in it.
    bool forward_batch_taken;
    bool forwards;  ///< A root forward was part of it.
    bool fetches;   ///< A fetch that brought a batch was.
    Ended ended;
    std::uint8_t mode;
    std::uint64_t begin;
    std::uint64_t phases[TT_PHASE_COUNT];
    std::uint32_t micro_steps, optimizer_calls;
    std::uint32_t fetched_batches;  ///< Fetched ones that its micro-steps have used.
    std::int64_t batch_size;        ///< Of the micro-steps so far.
    std::int64_t fetched_batch;     ///< Of its newest fetch, while no micro-step has used it.
    std::uint64_t probe;
    std::uint32_t held_count;
    Optimizers called;
    Interval held[kMaxHeld];  ///< data_wait spans that wait for the step's mode and number.
  };
  struct Frame {
    std::uint64_t begin;
    std::uint8_t phase;
  };
  /// Who has cleared gradients since the last call of an optimizer.
  struct Owner {
    std::uint64_t id;
    std::uint32_t forwards, backwards;  ///< Of forwards_ and backwards_, then.
  };
  /// An optimizer that has not been called since it was made.
  struct Made {
    std::uint64_t id;
    std::uint64_t calls;  ///< Of calls_of_optimizers_, then.
  };
  struct LearningRate {
    std::uint64_t optimizer;
    double value;
    std::int64_t step;  ///< When it was last recorded.
  };
  /// What is known of the optimizer at one place of known_.
  struct Place {
    std::uint64_t last_call;  ///< calls_of_optimizers_ at its newest.
    LearningRate rate;
    std::uint32_t loss_name, rate_name;  ///< 0: not interned yet.
  };
  /// The losses before one call of an optimizer that are read later.
  struct LateLosses {
    std::uint64_t id;  ///< 0: free.
    std::int64_t step;
    double sum;           ///< Of those that have arrived.
    std::uint32_t count;  ///< How many have.
    std::uint32_t missing;
    std::uint32_t name;
    bool named;  ///< The optimizer was called: `name` and `step` are known.
  };
  class Call;

  /// What a call says of its thread: one that trains makes the machine its own, or takes it over
  /// from one that never called an optimizer; else only the main thread does, and only the first.
  enum class Claim : std::uint8_t { kMain, kTrains };
  bool Foreign(Claim claim = Claim::kMain) {
    return __builtin_expect(owner_.load(std::memory_order_relaxed) != Self(), 0) &&
           ForeignOrClaims(claim);
  }
  /// Tells this thread from the other living ones.
  static std::uintptr_t Self() { return static_cast<std::uintptr_t>(::pthread_self()); }
  [[gnu::cold]] bool ForeignOrClaims(Claim claim);
  /// Ticks of the last `took` in which the thread was kept from its core.
  std::uint64_t KeptFromCore(std::uint64_t now, std::uint64_t took);
  void Charge(std::uint64_t now);
  void Push(tt_phase phase, std::uint64_t now);
  bool Pop(tt_phase phase, std::uint64_t now);
  void DropStale(bool whole_stack);
  bool AtBoundary() const { return machine_depth_ == 0; }
  /// Whether a closure runs that an optimizer was given.
  bool InOptimizer() const;

  void Reset(OpenStep* step, std::uint64_t now, bool by_fetch);
  void OpenTrain(std::uint64_t now, bool by_fetch);
  void OpenPending(std::uint64_t now, bool by_fetch, bool train);
  void PendingToTrain();
  [[gnu::cold]] void MergePending();
  [[gnu::cold]] void EndWithoutOptimizer(Ended how);
  [[gnu::cold]] void EndCleared();
  void MarkPasses(std::uint64_t now);
  [[gnu::cold]] void SplitAtMark();
  [[gnu::cold]] void CloseAtPending();
  [[gnu::cold]] void EvalToPending();
  void ResolveTrain();
  void TrainForward(std::uint64_t now);
  [[gnu::cold]] void EvalForward(std::uint8_t mode, std::uint64_t now);
  [[gnu::cold]] void ActForward(std::uint64_t now);
  bool CycleDone() const;
  bool CycleBegun() const;
  void Close(OpenStep* step, std::uint64_t end);
  void Publish();
  std::int64_t PendingNumber() const;

  /// Whether the open TRAIN step has all that makes one, but for the rest of a cycle.
  bool TrainEnded() const { return train_.optimizer_calls > 0 || train_.ended != Ended::kNot; }

  void PhaseSpan(std::uint32_t name, std::uint64_t begin, std::uint64_t end, std::int64_t step,
                 std::uint8_t mode);
  void FlushHeld(OpenStep* step, std::int64_t number, std::uint8_t mode);
  void EmitLoss(std::uint32_t place);
  void EmitLate(LateLosses* late);
  void EmitLearningRate(std::uint32_t place, std::uint64_t optimizer, double value);

  void PutFetched(std::int64_t size);
  void DropFetched(std::uint32_t at);
  void TakeBatch(OpenStep* step, std::int64_t size);

  const Made* FindMade(std::uint64_t optimizer) const;
  bool BeginsFit(std::uint64_t optimizer) const;
  std::uint32_t PlaceOf(std::uint64_t optimizer);

  // What each step touches comes first and lies together: a step of the framework has been through
  // the caches, so that each line more is one more that has to come from memory.
  channel::Producer* producer_;
  Capture* capture_;
  std::atomic<std::uintptr_t> owner_;  ///< Self() of the thread that steps; 0: none yet.
  OpenStep* current_;                  ///< Which one time is charged to; null: none.
  std::uint64_t last_;                 ///< Charged up to here.
  std::uint64_t last_activity_;        ///< End of the last phase.
  std::uint64_t longest_sample_;       ///< Ticks of 20 us: no call takes longer by itself.
  std::uint32_t calls_;
  std::uint32_t depth_;
  std::uint32_t lost_depth_;     ///< Frames past the stack's room.
  std::uint32_t machine_depth_;  ///< Frames of fetch, forward, backward, optimizer.

  bool learned_;
  bool fetches_again_;  ///< Optimizers of one step have batches of their own.
  bool explicit_;
  bool saw_forward_;
  bool acting_;  ///< The newest root forward was that of an agent that acts.
  bool finished_;
  bool any_step_;
  bool marked_;         ///< There is a mark_.
  bool fetched_since_;  ///< A batch came since one was used.
  bool fetches_ended_;  ///< The newest fetch ended an epoch.
  Ended last_ended_;    ///< Of the newest TRAIN step that has closed.
  std::uint32_t owner_count_;
  std::uint32_t forwards_, backwards_;  ///< Root forwards and backwards so far.
  std::uint32_t made_count_;
  std::uint32_t fetched_count_;
  std::uint32_t loss_count_;
  std::uint32_t skipped_name_;
  double loss_sum_;
  std::uint64_t calls_of_optimizers_;
  std::uint64_t late_open_;  ///< Id of those that the next call of an optimizer names; 0: none.

  std::uint64_t ticks_per_span_;  ///< The span budget: one span each so many ticks.
  std::uint64_t bucket_full_;     ///< Ticks that a full bucket holds.
  std::uint64_t bucket_;          ///< Ticks in the bucket.
  std::uint64_t bucket_time_;
  std::uint64_t last_train_end_;
  std::int64_t next_number_[3];           ///< By tt_mode.
  std::atomic<std::uint64_t> elsewhere_;  ///< Accounted for by other threads since a step closed.
  std::atomic<std::int64_t> published_step_, published_train_;
  std::atomic<std::uint8_t> published_mode_;
  std::uint32_t phase_names_[TT_PHASE_COUNT];

  Frame stack_[kMaxDepth];
  OpenStep train_, pending_, eval_;

  Owner owners_[kMaxOwners];
  /// By place, which names its loss and rate: the first is `loss`. An optimizer of a later fit has
  /// the place of the one that it follows. Id 0: that one is gone.
  Optimizers known_;
  Optimizers cycle_;
  Optimizers together_;  ///< Called since the first that had none of the cycle in its step.
  Place places_[kMaxOptimizers];
  Made made_[kMaxMade];

  /// The open TRAIN step as its newest backward left it, where passes without one have followed:
  /// if its gradients are cleared, these are the next step's.
  OpenStep mark_;
  std::uint64_t mark_end_;

  /// Sizes of the batches that were fetched and that no micro-step has used, the oldest first: a
  /// loader may be some batches ahead of the training.
  std::int64_t fetched_[kMaxFetched];

  std::uint64_t late_ids_;     ///< Given so far.
  LateLosses late_[kMaxLate];  ///< By id % kMaxLate.

  // The last reading of what the kernel counts of the thread that steps.
  CoreTime core_;
  std::uint64_t core_read_;  ///< When; 0: there is none.
};

}  // namespace telltale::probe
