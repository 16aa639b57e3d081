// SPDX-License-Identifier: Apache-2.0
// Keeps what Telltale costs the training inside the budget. It controls on what Telltale accounts
// for: the probe's time in each step, and the share that its own processes take where cores are
// scarce; never on a measured slow-down. docs/guide/governor.md says in words what is here.
//
// From the steps it learns three things a mode: how long a step works, what the probe costs in one
// where nothing is taken, and what taking costs, by rule. So it knows what the plan will cost
// before a whole interval has passed, and by how much to stretch. A step that waited for something
// (a checkpoint, an input stall, a paused process) says nothing of how long steps work: what a
// pause takes pays for no capture.
//
// What the user asked for by name goes before the budget: so many captures of it, spread over the
// run, are taken in any case, and do not count as what the plan costs; unless they alone would take
// a fifth of the run. Deterministic: decides from what it was given alone. Thread safety: none.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/thinning.h"

namespace telltale::plan {

/// A step that has ended.
struct StepCost {
  unsigned mode = 0;  ///< tt_mode.
  std::int64_t step = 0;
  std::int64_t begin_ns = 0;
  std::int64_t duration_ns = 0;
  std::int64_t probe_ns = 0;  ///< Of the duration.
};

/// The mean of the last N.
template <std::size_t N>
class Newest {
 public:
  void Add(std::int64_t value) {
    values_[count_ % N] = value;
    ++count_;
  }
  void Clear() { count_ = 0; }
  std::size_t count() const { return count_; }  ///< Of all that were added.
  double mean() const {
    const std::size_t n = std::min(count_, N);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(values_[i]);
    return n == 0 ? 0 : sum / static_cast<double>(n);
  }
  /// The lower one where there are two; 0: nothing was added.
  double median() const {
    const std::size_t n = std::min(count_, N);
    if (n == 0) return 0;
    std::array<std::int64_t, N> sorted = values_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((n - 1) / 2);
    std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(n));
    return static_cast<double>(*middle);
  }
  /// 0: nothing was added.
  std::int64_t max() const {
    const auto end = values_.begin() + static_cast<std::ptrdiff_t>(std::min(count_, N));
    return end == values_.begin() ? 0 : *std::max_element(values_.begin(), end);
  }
  /// The mean of those that are no more than `limit`.
  double mean_up_to(double limit) const {
    const std::size_t n = std::min(count_, N);
    double sum = 0;
    int taken = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(values_[i]);
      if (value > limit) continue;
      sum += value;
      ++taken;
    }
    return taken == 0 ? 0 : sum / taken;
  }

 private:
  std::array<std::int64_t, N> values_{};
  std::size_t count_ = 0;
};

class Governor {
 public:
  /// Captures of what was asked for by name that no budget takes away: the first so many at their
  /// interval, and half as many each time that the run has doubled its steps.
  static constexpr std::int64_t kAskedCaptures = 20;
  /// Part of the run's time that these may take.
  static constexpr double kAskedShare = 0.2;
  /// A budget is this much of each step at least.
  static constexpr double kLeastNs = 10'000;

  /// `budget` is a fraction of step time. `run_begin_ns`: by the clock of the steps; 0: not known,
  /// the first step counts.
  Governor(double budget, std::span<const PlannedRule> rules, std::int64_t run_begin_ns = 0);

  /// Another plan: nothing is thinned and what taking costs is learnt anew. Steps count no more
  /// until Published(): those that come before have gone by the old plan.
  void SetRules(std::span<const PlannedRule> rules);

  /// What was asked for by name and costs too much.
  struct TooDear {
    std::uint32_t stretch = 1;  ///< Its intervals are so many times those asked for, at least.
    double capture_ns = 0;      ///< One capture of all of it.
    double share = 0;           ///< Of the run, what the captures would cost that it is owed.
  };

  struct Decision {
    Thinning thinning;
    std::uint32_t sampling_stretch = 1;  ///< Of the interval between samples of the machine.
    double share = 0;  ///< Of step time that Telltale costs as it is now, own processes included.
    double own_share = 0;  ///< Of that, its own processes.
    /// Of all steps so far, what Telltale has cost; own processes included.
    double so_far = 0;
    double budget = 0;  ///< What holds at steps of this length.
    /// The cost is above the budget and nothing is left to thin.
    bool exceeded = false;
    std::optional<TooDear> too_dear;
  };

  /// Gives a decision where it changes the thinning, or finds for the first time that the budget
  /// cannot be kept (found again only after the cost was clearly inside). After a decision that
  /// changes the thinning steps count no more until Published().
  std::optional<Decision> Add(const StepCost& cost);
  /// What Telltale's own processes take from the training, as a share of step time; 0 where cores
  /// are idle. `wall_ns`: for so long.
  std::optional<Decision> AddOwn(double share, std::int64_t wall_ns);
  /// The rules went to the producers at this time; steps that began before are of the old ones.
  void Published(std::int64_t now_ns);

  const Thinning& thinning() const { return thinning_; }
  std::uint32_t sampling_stretch() const { return sampling_stretch_; }
  /// Of all steps so far, the part that Telltale has cost: what the verdict says at the end.
  double so_far() const;
  /// Of the time that AddOwn was told of, in ns: what own processes took, and all.
  double own_ns() const { return own_ns_; }
  double own_wall_ns() const { return own_wall_ns_; }

 private:
  /// What one rule costs where it is due.
  struct Extra {
    Newest<8> cost;
    Newest<32> more;       ///< The same, for what is taken back: eight may all be cheap by chance.
    bool warm_up = false;  ///< The only one so far is of the first steps: the next one replaces it.
    std::int64_t beside = 0;  ///< Steps of it whose cost another rule of the same interval has.
  };
  struct Mode {
    std::int64_t seen = 0;
    /// Numbers of its newest steps: of ranks that are not abreast, and of workers that were started
    /// again and begin anew.
    Newest<32> numbers;
    std::int64_t newest = -1;  ///< The largest of them.
    std::int64_t first = -1;   ///< Of this plan; -1: none yet.
    Newest<32> work;           ///< Duration without the probe.
    Newest<32> base;           ///< Probe where nothing was due.
    std::vector<Extra> extra;  ///< By rule.
    double listed_ns = 0;      ///< Cost of steps that only lists name, since the last decision.
    std::int64_t steps = 0;    ///< Since the last decision.
  };
  struct Estimate {
    double share = 0;    ///< Of step time, as thinned now.
    double fixed = 0;    ///< Of that, the probe where nothing is taken.
    double needed = 1;   ///< Stretch that would bring it inside.
    double lasting = 1;  ///< The same by more captures, where those say more.
    double listed = 0;   ///< Of that, what lists of steps cost.
    double acts = 0;     ///< Below this stretch it is above what it may be.
    double asked = 0;    ///< Of step time, what was asked for by name and is beyond the budget.
    double budget = 0;   ///< At steps of this length.
    /// Three captures of the dearest rule were seen, and not of first steps alone.
    bool sure = false;
    bool steady = false;  ///< And not a few of them make the mean.
    bool cold = false;    ///< Of the dearest rule, the first steps alone were seen.
    bool seen = false;    ///< Something is known of this mode.
  };

  void Take(std::span<const PlannedRule> rules);
  double BudgetAt(double work_ns) const { return std::max(budget_, kLeastNs / work_ns); }
  double Work(const Mode& mode) const;
  /// So many times its interval at most a rule that was asked for is stretched now; 0: as others.
  std::uint32_t Owed(std::size_t rule, std::size_t which) const;
  /// Brings thinning_.kept up to the steps. True where that changes when something is taken.
  bool KeepAsked();
  /// Whether what is owed to what was asked for would take too much of the run.
  std::optional<TooDear> LookAtAsked(std::size_t which, std::int64_t now_ns);
  void Learn(const StepCost& cost, Mode* mode);
  /// What a step cost above the usual is the cost of the rarest rule that was due.
  void LearnExtra(const StepCost& cost, double extra, bool warm_up, std::size_t rarest, Mode* mode);
  std::optional<Decision> Decide(const StepCost& cost, const Mode& mode);
  Estimate EstimateOf(const Mode& mode, std::size_t which) const;
  /// Some list still names a step to come.
  bool ListsGoOn(const Mode& mode, std::size_t which) const;
  /// Every rule that can still come due was seen twice.
  bool KnowsAll() const;
  bool Sheddable(std::uint32_t stage) const;
  /// It was asked for by name and loses nothing.
  bool Exempt(std::size_t rule) const {
    return rules_[rule].asked && listed_[rule] < kAskedCaptures;
  }
  bool ShedNext();
  void Forget();
  Decision Say(const Estimate& estimate, bool exceeded) const;

  const double budget_;
  std::int64_t run_begin_ns_;
  std::vector<PlannedRule> rules_;
  Thinning thinning_;
  std::uint32_t sampling_stretch_ = 1;
  std::array<Mode, 4> modes_;
  std::vector<std::int64_t> listed_;  ///< By rule: steps of its lists that came.
  std::uint32_t asked_stretch_ = 1;   ///< Of what was asked for: more would be too dear.
  double probe_ns_ = 0;               ///< Of all steps.
  double all_ns_ = 0;
  double own_ns_ = 0;  ///< Of own_wall_ns_, by own processes.
  double own_wall_ns_ = 0;
  double own_share_ = 0;
  int own_above_ = 0;     ///< So often in a row own processes alone were above the budget.
  bool waiting_ = false;  ///< For Published().
  std::int64_t published_ns_ = 0;
  double since_ns_ = 0;             ///< Duration of the steps counted since the last decision.
  double unshed_ns_ = 0;            ///< So much of it before what was shed comes back.
  bool unshed_ = false;             ///< Something came back, and nothing was shed since.
  bool capped_ = false;             ///< The last decision stretched less than the cost asked for.
  std::array<bool, 4> exceeded_{};  ///< By mode: above the budget, and not clearly better since.
};

}  // namespace telltale::plan
