// SPDX-License-Identifier: Apache-2.0
#include "plan/governor.h"

#include <bit>
#include <cmath>
#include <limits>

namespace telltale::plan {
namespace {

constexpr std::uint32_t kMaxStretch = 1024;
constexpr std::uint32_t kMaxSamplingStretch = 8;
/// It acts above the budget and then aims so far below it, so that it settles, and because what the
/// probe can account for is not all: caches that a capture displaced slow the steps after it down.
constexpr double kTarget = 0.5;
/// Lists of steps that cost more than this part of the budget leave too little to the rest.
constexpr double kMostListed = 0.75;
/// Where the probe's fixed cost leaves nothing, what is taken may still cost this part of the
/// budget: a run without any statistics would not be cheaper in a way that its user could see.
constexpr double kFloor = 0.1;
/// Steps of a mode whose durations are of warming up.
constexpr std::int64_t kWarmUpSteps = 2;
constexpr std::size_t kMinWork = 3;
/// A step that is longer than so many medians of the newest ones has waited for something.
constexpr double kPause = 3;
/// A cost that was seen once counts where it is so many times the budget; one of the first steps
/// alone, which find neither memory nor code in place, where it is so many times.
constexpr double kPlain = 2;
constexpr double kPlainCold = 10;
/// What was seen less than kSureTimes, or dear in one of many, may stretch so many times at once: a
/// capture that another process kept from its core for 0.2 s says little of the next one, which at
/// 1024 times its interval would not come for minutes.
constexpr std::uint32_t kUnsureTimes = 16;
constexpr std::size_t kSureTimes = 3;
/// Steady: the mean is no more than so many medians.
constexpr double kSteady = 3;
/// Lists are judged by what they have cost over so many steps at least.
constexpr std::int64_t kMinListedSteps = 20;
constexpr std::size_t kMinBase = 16;

/// Taken back at most once in so much step time, and only where this part of the stretch is enough.
constexpr double kBackNs = 5e9;
constexpr double kBackRoom = 0.6;
/// What was shed comes back after so much step time at a part of the budget, stretched. Where it
/// proved too dear again, after twice as much the next time, up to an hour.
constexpr double kUnshedNs = 60e9;
constexpr double kMaxUnshedNs = 3600e9;
constexpr double kUnshedShare = 0.25;
constexpr std::uint32_t kUnshedStretch = 64;
static_assert(kUnshedStretch * kUnsureTimes <= kMaxStretch);
/// So long a mode that makes less than this part of the steps may hold up the taking back.
constexpr double kPatienceNs = 60e9;
constexpr std::int64_t kRarePart = 10;
constexpr double kClearlyInside = 0.8;
/// Part of the budget that Telltale's own processes may take before the machine is sampled less
/// often.
constexpr double kOwnPart = 0.5;
constexpr double kOwnTarget = 0.3;

/// Histograms are made beside the training: stretching lowers what that costs, but is seen only
/// later.
constexpr int kOwnTimes = 4;

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

bool DueByInterval(const When& when, std::uint32_t stretch, std::int64_t step) {
  const std::uint32_t interval = Stretched(when.interval, stretch);
  return interval != 0 && when.start <= step && step < when.end && step % interval == 0;
}

}  // namespace

Governor::Governor(double budget, std::span<const PlannedRule> rules, std::int64_t run_begin_ns)
    : budget_(budget), run_begin_ns_(run_begin_ns) {
  Take(rules);
}

void Governor::Take(std::span<const PlannedRule> rules) {
  rules_.assign(rules.begin(), rules.end());
  thinning_ = {};
  for (Mode& mode : modes_) mode.first = -1;
  listed_.assign(rules_.size(), 0);
  asked_stretch_ = 1;
  Forget();
  exceeded_ = {};
  capped_ = false;
  unshed_ns_ = kUnshedNs;
  unshed_ = false;
}

void Governor::SetRules(std::span<const PlannedRule> rules) {
  Take(rules);
  waiting_ = true;
}

/// What taking costs: it is another thing now, or was measured with little else known.
void Governor::Forget() {
  for (Mode& mode : modes_) {
    mode.extra.assign(rules_.size(), {});
    mode.listed_ns = 0;
    mode.steps = 0;
  }
  since_ns_ = 0;
}

double Governor::so_far() const {
  const double probe = all_ns_ > 0 ? probe_ns_ / all_ns_ : 0;
  return probe + (own_wall_ns_ > 0 ? own_ns_ / own_wall_ns_ : 0);
}

double Governor::Work(const Mode& mode) const {
  return std::max(mode.work.mean_up_to(kPause * mode.work.median()), 1.0);
}

/// The first kAskedCaptures come at the interval; from then on it grows with the steps that the
/// process has made, so that as many captures lie in them, whatever they are.
std::uint32_t Governor::Owed(std::size_t rule, std::size_t which) const {
  const PlannedRule& planned = rules_[rule];
  const When& when = planned.when[which];
  if (!Exempt(rule)) return 0;
  const Mode& mode = modes_[which];
  const std::int64_t made = mode.newest - std::max(std::min(mode.first, mode.newest), when.start);
  const std::int64_t interval =
      std::max<std::int64_t>(1, Stretched(when.interval, asked_stretch_)) * kAskedCaptures;
  const std::int64_t times = std::max<std::int64_t>(0, made) / interval;
  const auto doubled = std::bit_ceil(static_cast<std::uint64_t>(times) + 1);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(kMaxStretch, doubled * asked_stretch_));
}

bool Governor::KeepAsked() {
  const bool any = std::any_of(rules_.begin(), rules_.end(), [](const auto& r) { return r.asked; });
  if (!any || (thinning_.stretch == 1 && thinning_.shed == 0)) {
    return !std::exchange(thinning_.kept, {}).empty();
  }
  std::vector<Kept> kept(rules_.size(), Kept{});
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    for (std::size_t which = 0; which < modes_.size(); ++which) {
      kept[i][which] = std::min(Owed(i, which), thinning_.stretch);
    }
  }
  if (kept == thinning_.kept) return false;
  thinning_.kept = std::move(kept);
  return true;
}

std::optional<Governor::TooDear> Governor::LookAtAsked(std::size_t which, std::int64_t now_ns) {
  const Mode& mode = modes_[which];
  if (mode.work.count() < kMinWork || asked_stretch_ >= kMaxStretch) return {};
  // Of steps that are due together one rule has the whole cost.
  const auto cost_of = [&](std::size_t i) {
    const Extra& extra = mode.extra[i];
    if (!Exempt(i) || rules_[i].when[which].interval == 0 || extra.cost.count() == 0) return 0.0;
    if (extra.warm_up) return extra.cost.median() / kPlainCold;
    // One that was kept from its core says nothing of the others.
    return extra.cost.count() < 2 ? 0.0 : extra.cost.median();
  };
  const double work = Work(mode);
  const auto made = static_cast<double>(mode.newest - mode.first);
  const auto passed = std::max(0.0, static_cast<double>(now_ns - run_begin_ns_));
  const auto share_at = [&](std::uint32_t stretch) {
    double share = 0;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const double all_ns = cost_of(i) * kAskedCaptures;
      const double steps =
          static_cast<double>(Stretched(rules_[i].when[which].interval, stretch)) * kAskedCaptures;
      share += all_ns / std::max(1.0, all_ns + passed + std::max(0.0, steps - made) * work);
    }
    return share;
  };
  const double most = std::max(kAskedShare, BudgetAt(work));
  const std::uint32_t before = asked_stretch_;
  while (asked_stretch_ < kMaxStretch && share_at(asked_stretch_) > most) asked_stretch_ *= 2;
  if (asked_stretch_ == before) return {};
  double capture_ns = 0;
  for (std::size_t i = 0; i < rules_.size(); ++i) capture_ns += cost_of(i);
  return TooDear{asked_stretch_, capture_ns, share_at(before)};
}

void Governor::Published(std::int64_t now_ns) {
  waiting_ = false;
  published_ns_ = now_ns;
}

void Governor::Learn(const StepCost& cost, Mode* mode) {
  // Each process of a training has first steps of its own.
  const bool warm_up = mode->seen < kWarmUpSteps || cost.step < kWarmUpSteps;
  ++mode->seen;
  ++mode->steps;
  mode->numbers.Add(cost.step);
  mode->newest = mode->numbers.max();
  if (mode->first < 0 || mode->newest < mode->first) mode->first = mode->newest;
  const std::int64_t probe = std::clamp<std::int64_t>(cost.probe_ns, 0, cost.duration_ns);
  if (!warm_up) mode->work.Add(cost.duration_ns - probe);
  since_ns_ += std::min(static_cast<double>(cost.duration_ns),
                        kPause * mode->work.median() + static_cast<double>(probe));

  // The rarest rule that was due answers for the step: those that are due more often are seen
  // without it.
  std::size_t rarest = kNone;
  bool listed = false;
  bool owed = true;  // Nothing but what is beyond the budget.
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    if (Left(thinning_, rules_[i], i) == 0) continue;
    const When& when = rules_[i].when[cost.mode];
    if (when.Listed(cost.step)) {
      listed = true;
      owed = owed && Owed(i, cost.mode) > 0;
      ++listed_[i];
    }
    if (DueByInterval(when, thinning_.StretchOf(i, cost.mode), cost.step)) {
      if (rarest == kNone || when.interval > rules_[rarest].when[cost.mode].interval) rarest = i;
    }
  }
  if (rarest == kNone && !listed) {
    if (!warm_up) mode->base.Add(probe);
    return;
  }
  const double extra = std::max(0.0, static_cast<double>(probe) - mode->base.mean());
  if (rarest == kNone) {
    if (!owed) mode->listed_ns += extra;
    return;
  }
  LearnExtra(cost, extra, warm_up, rarest, mode);
}

void Governor::LearnExtra(const StepCost& cost, double extra, bool warm_up, std::size_t rarest,
                          Mode* mode) {
  const std::uint32_t interval = rules_[rarest].when[cost.mode].interval;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const When& when = rules_[i].when[cost.mode];
    if (i == rarest || when.interval != interval ||
        !DueByInterval(when, thinning_.StretchOf(i, cost.mode), cost.step)) {
      continue;
    }
    ++mode->extra[i].beside;
  }
  Extra& known = mode->extra[rarest];
  if (known.warm_up && !warm_up) {
    known.cost.Clear();
    known.more.Clear();
    known.warm_up = false;
  }
  if (warm_up && known.cost.count() == 0) known.warm_up = true;
  known.cost.Add(static_cast<std::int64_t>(extra));
  known.more.Add(static_cast<std::int64_t>(extra));
}

Governor::Estimate Governor::EstimateOf(const Mode& mode, std::size_t which) const {
  Estimate out;
  if (mode.work.count() < kMinWork) return out;
  const double work = Work(mode);
  out.budget = BudgetAt(work);
  const double base = mode.base.mean();
  const double listed = mode.steps >= kMinListedSteps && ListsGoOn(mode, which)
                            ? mode.listed_ns / static_cast<double>(mode.steps)
                            : 0;
  double planned = 0;  // A step, at no stretch.
  double lasting = 0;
  double dearest = 0;
  double asked = 0;  // As it is taken now.
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const When& when = rules_[i].when[which];
    if (when.interval == 0 || mode.newest >= when.end) continue;
    const Extra& extra = mode.extra[i];
    // What is owed to what was asked for is no matter of the budget.
    const std::uint32_t owed = Owed(i, which);
    const double counts = owed == 0 ? 1 : 1 - 1.0 / owed;
    const double rate = extra.cost.mean() / when.interval * counts;
    planned += rate;
    lasting += std::max(extra.cost.mean(), extra.more.mean()) / when.interval * counts;
    if (owed != 0) {
      asked += extra.cost.mean() / when.interval / std::min(owed, thinning_.stretch) -
               rate / thinning_.stretch;
    }
    if (rate > dearest) {
      dearest = rate;
      out.sure = extra.cost.count() >= kSureTimes && !extra.warm_up;
      out.cold = extra.warm_up;
      out.steady = out.sure && extra.cost.mean() <= kSteady * extra.cost.median();
    }
  }
  const double now = planned / thinning_.stretch;
  const auto share = [&](double ns) { return ns / (work + base + listed + now + asked); };
  out.seen = true;
  out.fixed = share(base);
  out.listed = share(listed);
  out.share = out.fixed + own_share_ + out.listed + share(now);
  out.asked = share(asked);
  const double room = std::max(work * (out.budget * kTarget - own_share_) - base - listed,
                               work * out.budget * kFloor);
  out.needed = std::max(1.0, planned / room);
  out.lasting = std::max(1.0, lasting / room);
  const double most = std::max(work * (out.budget - own_share_) - base - listed,
                               work * out.budget * kFloor / kTarget);
  out.acts = planned / most;
  return out;
}

bool Governor::ListsGoOn(const Mode& mode, std::size_t which) const {
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const std::vector<std::int64_t>& steps = rules_[i].when[which].steps;
    if (Left(thinning_, rules_[i], i) != 0 && !steps.empty() && steps.back() > mode.newest) {
      return true;
    }
  }
  return false;
}

bool Governor::KnowsAll() const {
  std::int64_t steps = 0;
  for (const Mode& mode : modes_) steps += mode.steps;
  for (std::size_t which = 0; which < modes_.size(); ++which) {
    const Mode& mode = modes_[which];
    if (mode.work.count() < kMinWork) continue;
    if (since_ns_ >= kPatienceNs && mode.steps < steps / kRarePart) continue;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const When& when = rules_[i].when[which];
      if (when.interval == 0 || mode.newest < when.start || mode.newest >= when.end) continue;
      if (Left(thinning_, rules_[i], i) == 0) continue;
      const Extra& extra = mode.extra[i];
      if (static_cast<std::int64_t>(extra.cost.count()) + extra.beside < 2) return false;
    }
  }
  return true;
}

/// Whether the plan has something that this stage gives up.
bool Governor::Sheddable(std::uint32_t stage) const {
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const PlannedRule& rule = rules_[i];
    if (Exempt(i)) continue;
    if ((rule.take & Allowed(stage - 1, rule.core)) != (rule.take & Allowed(stage, rule.core))) {
      return true;
    }
  }
  return false;
}

bool Governor::ShedNext() {
  for (std::uint32_t stage = thinning_.shed + 1; stage <= kShedOrder.size(); ++stage) {
    if (!Sheddable(stage)) continue;
    thinning_.shed = stage;
    if (unshed_) unshed_ns_ = std::min(2 * unshed_ns_, kMaxUnshedNs);
    unshed_ = false;
    return true;
  }
  return false;
}

Governor::Decision Governor::Say(const Estimate& estimate, bool exceeded) const {
  return {thinning_,
          sampling_stretch_,
          estimate.share + estimate.asked,
          own_share_,
          so_far(),
          estimate.budget,
          exceeded,
          {}};
}

std::optional<Governor::Decision> Governor::Add(const StepCost& cost) {
  if (cost.mode >= modes_.size() || cost.step < 0 || cost.duration_ns <= 0) return {};
  probe_ns_ += static_cast<double>(cost.probe_ns);
  all_ns_ += static_cast<double>(cost.duration_ns);
  if (run_begin_ns_ == 0) run_begin_ns_ = cost.begin_ns;
  if (waiting_ || cost.begin_ns < published_ns_) return {};
  Mode& mode = modes_[cost.mode];
  Learn(cost, &mode);

  const auto too_dear = LookAtAsked(cost.mode, cost.begin_ns + cost.duration_ns);
  auto decision = Decide(cost, mode);
  if (too_dear && thinning_.stretch < asked_stretch_) {
    thinning_.stretch = asked_stretch_;
    waiting_ = true;
  }
  if (KeepAsked()) waiting_ = true;
  if (too_dear) {
    if (!decision) decision = Say(EstimateOf(mode, cost.mode), false);
    decision->too_dear = too_dear;
  }
  if (decision) decision->thinning = thinning_;
  return decision;
}

std::optional<Governor::Decision> Governor::Decide(const StepCost& cost, const Mode& mode) {
  const Estimate own = EstimateOf(mode, cost.mode);
  if (!own.seen) return {};
  const double budget = own.budget;
  const Thinning before = thinning_;
  const double plain = own.cold ? kPlainCold : capped_ ? 1 : kPlain;
  // Lists are not stretched: where they alone are too dear, only shedding helps.
  const bool lists = own.listed > budget * kMostListed;
  // Plain by what is taken: the probe's fixed cost, which no thinning changes, proves nothing.
  const bool plainly =
      own.acts > plain * thinning_.stretch || (lists && own.share > plain * budget);
  const bool above = own.share > budget && (own.sure || plainly);
  if (above && (lists || own.acts > thinning_.stretch)) {
    const std::uint32_t most =
        own.steady ? kMaxStretch : std::min(kMaxStretch, kUnsureTimes * thinning_.stretch);
    const double wanted = std::ceil(std::min<double>(own.needed, most));
    thinning_.stretch = std::max(thinning_.stretch, static_cast<std::uint32_t>(wanted));
    const bool stretched = before.stretch == kMaxStretch || own.steady;
    if (lists || (own.needed > kMaxStretch && stretched)) ShedNext();
    if (thinning_ != before) {
      capped_ = own.needed > most && most < kMaxStretch;
      Forget();
      waiting_ = true;
      return Say(own, false);
    }
  }

  // What no thinning changes, or all that there is to thin is: said once.
  const bool fixed =
      (own.fixed > budget && mode.base.count() >= kMinBase) || own_above_ >= kOwnTimes;
  // By what the verdict says, too: not by the newest steps alone.
  const bool nothing_left = fixed || (above && (lists || own.acts > thinning_.stretch));
  if (nothing_left && so_far() > budget) {
    const bool said = std::find(exceeded_.begin(), exceeded_.end(), true) != exceeded_.end();
    exceeded_[cost.mode] = true;
    if (!said) return Say(own, true);
  } else if (own.share < budget * kClearlyInside) {
    exceeded_[cost.mode] = false;
  }

  if (since_ns_ < kBackNs || (thinning_.stretch == 1 && thinning_.shed == 0)) return {};
  if (!KnowsAll()) return {};
  double needed = 1;
  double taken = 0;
  Estimate now = own;
  for (std::size_t which = 0; which < modes_.size(); ++which) {
    const Estimate estimate = EstimateOf(modes_[which], which);
    needed = std::max(needed, estimate.lasting);
    now.share = std::max(now.share, estimate.share);
    taken = std::max(taken, estimate.share - estimate.fixed - own_share_);
  }
  // Not by the share: where the probe alone is above the budget, what is taken has its part still.
  if (thinning_.stretch > 1) {
    const std::uint32_t back =
        std::max(static_cast<std::uint32_t>(std::ceil(needed)), thinning_.stretch / 2);
    // Nothing is waited for that nobody would publish.
    if (needed > thinning_.stretch * kBackRoom || back >= thinning_.stretch) return {};
    thinning_.stretch = back;
  } else {
    if (since_ns_ < unshed_ns_ || taken > budget * kUnshedShare) return {};
    // Back to the stage below it that gave something up.
    do {
      --thinning_.shed;
    } while (thinning_.shed > 0 && !Sheddable(thinning_.shed));
    thinning_.stretch = kUnshedStretch;
    unshed_ = true;
  }
  capped_ = false;
  Forget();
  waiting_ = true;
  return Say(now, false);
}

std::optional<Governor::Decision> Governor::AddOwn(double share, std::int64_t wall_ns) {
  own_share_ = std::max(0.0, share);
  own_ns_ += own_share_ * static_cast<double>(wall_ns);
  own_wall_ns_ += static_cast<double>(wall_ns);
  Estimate own;
  own.share = own_share_;
  own.budget = modes_[0].work.count() >= kMinWork ? BudgetAt(Work(modes_[0])) : budget_;
  own_above_ = own_share_ > own.budget ? own_above_ + 1 : 0;
  const std::uint32_t before = sampling_stretch_;
  if (own_share_ > own.budget * kOwnPart && sampling_stretch_ < kMaxSamplingStretch) {
    const double wanted = std::ceil(sampling_stretch_ * own_share_ / (own.budget * kOwnTarget));
    sampling_stretch_ = static_cast<std::uint32_t>(std::min<double>(kMaxSamplingStretch, wanted));
  } else if (sampling_stretch_ > 1 && own_share_ * 2 < own.budget * kOwnTarget) {
    sampling_stretch_ /= 2;
  }
  if (sampling_stretch_ == before) return {};
  return Say(own, false);
}

}  // namespace telltale::plan
