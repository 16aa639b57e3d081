// SPDX-License-Identifier: Apache-2.0
#include "plan/governor.h"

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

Governor::Governor(double budget, std::span<const PlannedRule> rules) : budget_(budget) {
  Take(rules);
}

void Governor::Take(std::span<const PlannedRule> rules) {
  rules_.assign(rules.begin(), rules.end());
  thinning_ = {};
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
  const std::int64_t probe = std::clamp<std::int64_t>(cost.probe_ns, 0, cost.duration_ns);
  if (!warm_up) mode->work.Add(cost.duration_ns - probe);
  since_ns_ += std::min(static_cast<double>(cost.duration_ns),
                        kPause * mode->work.median() + static_cast<double>(probe));

  // The rarest rule that was due answers for the step: those that are due more often are seen
  // without it.
  std::size_t rarest = kNone;
  bool listed = false;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    if ((rules_[i].take & Allowed(thinning_.shed, rules_[i].core)) == 0) continue;
    const When& when = rules_[i].when[cost.mode];
    if (DueByInterval(when, thinning_.stretch, cost.step)) {
      if (rarest == kNone || when.interval > rules_[rarest].when[cost.mode].interval) rarest = i;
    } else {
      listed = listed || when.Listed(cost.step);
    }
  }
  if (rarest == kNone && !listed) {
    if (!warm_up) mode->base.Add(probe);
    return;
  }
  const double extra = std::max(0.0, static_cast<double>(probe) - mode->base.mean());
  if (rarest == kNone) {
    mode->listed_ns += extra;
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
        !DueByInterval(when, thinning_.stretch, cost.step)) {
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
  const double work = std::max(mode.work.mean_up_to(kPause * mode.work.median()), 1.0);
  const double base = mode.base.mean();
  const double listed = mode.steps >= kMinListedSteps && ListsGoOn(mode, which)
                            ? mode.listed_ns / static_cast<double>(mode.steps)
                            : 0;
  double planned = 0;  // A step, at no stretch.
  double lasting = 0;
  double dearest = 0;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const When& when = rules_[i].when[which];
    if (when.interval == 0 || mode.newest >= when.end) continue;
    const Extra& extra = mode.extra[i];
    const double rate = extra.cost.mean() / when.interval;
    planned += rate;
    lasting += std::max(extra.cost.mean(), extra.more.mean()) / when.interval;
    if (rate > dearest) {
      dearest = rate;
      out.sure = extra.cost.count() >= kSureTimes && !extra.warm_up;
      out.cold = extra.warm_up;
      out.steady = out.sure && extra.cost.mean() <= kSteady * extra.cost.median();
    }
  }
  const double now = planned / thinning_.stretch;
  const auto share = [&](double ns) { return ns / (work + base + listed + now); };
  out.seen = true;
  out.fixed = share(base);
  out.listed = share(listed);
  out.share = out.fixed + own_share_ + out.listed + share(now);
  const double room =
      std::max(work * (budget_ * kTarget - own_share_) - base - listed, work * budget_ * kFloor);
  out.needed = std::max(1.0, planned / room);
  out.lasting = std::max(1.0, lasting / room);
  const double most =
      std::max(work * (budget_ - own_share_) - base - listed, work * budget_ * kFloor / kTarget);
  out.acts = planned / most;
  return out;
}

bool Governor::ListsGoOn(const Mode& mode, std::size_t which) const {
  return std::any_of(rules_.begin(), rules_.end(), [&](const PlannedRule& rule) {
    const std::vector<std::int64_t>& steps = rule.when[which].steps;
    return (rule.take & Allowed(thinning_.shed, rule.core)) != 0 && !steps.empty() &&
           steps.back() > mode.newest;
  });
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
      if ((rules_[i].take & Allowed(thinning_.shed, rules_[i].core)) == 0) continue;
      const Extra& extra = mode.extra[i];
      if (static_cast<std::int64_t>(extra.cost.count()) + extra.beside < 2) return false;
    }
  }
  return true;
}

/// Whether the plan has something that this stage gives up.
bool Governor::Sheddable(std::uint32_t stage) const {
  return std::any_of(rules_.begin(), rules_.end(), [&](const PlannedRule& rule) {
    return (rule.take & Allowed(stage - 1, rule.core)) != (rule.take & Allowed(stage, rule.core));
  });
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

Governor::Decision Governor::Say(double share, bool exceeded) const {
  return {thinning_, sampling_stretch_, share, own_share_, exceeded};
}

std::optional<Governor::Decision> Governor::Add(const StepCost& cost) {
  if (waiting_ || cost.begin_ns < published_ns_ || cost.mode >= modes_.size() || cost.step < 0 ||
      cost.duration_ns <= 0) {
    return {};
  }
  Mode& mode = modes_[cost.mode];
  Learn(cost, &mode);

  const Estimate own = EstimateOf(mode, cost.mode);
  if (!own.seen) return {};
  const Thinning before = thinning_;
  const double plain = own.cold ? kPlainCold : capped_ ? 1 : kPlain;
  // Lists are not stretched: where they alone are too dear, only shedding helps.
  const bool lists = own.listed > budget_ * kMostListed;
  // Plain by what is taken: the probe's fixed cost, which no thinning changes, proves nothing.
  const bool plainly =
      own.acts > plain * thinning_.stretch || (lists && own.share > plain * budget_);
  const bool above = own.share > budget_ && (own.sure || plainly);
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
      return Say(own.share, false);
    }
  }

  // What no thinning changes, or all that there is to thin is: said once.
  const bool fixed =
      (own.fixed > budget_ && mode.base.count() >= kMinBase) || own_above_ >= kOwnTimes;
  if (fixed || (above && (lists || own.acts > thinning_.stretch))) {
    const bool said = std::find(exceeded_.begin(), exceeded_.end(), true) != exceeded_.end();
    exceeded_[cost.mode] = true;
    if (!said) return Say(own.share, true);
  } else if (own.share < budget_ * kClearlyInside) {
    exceeded_[cost.mode] = false;
  }

  if (since_ns_ < kBackNs || (thinning_.stretch == 1 && thinning_.shed == 0)) return {};
  if (!KnowsAll()) return {};
  double needed = 1;
  double share = 0;
  double taken = 0;
  for (std::size_t which = 0; which < modes_.size(); ++which) {
    const Estimate estimate = EstimateOf(modes_[which], which);
    needed = std::max(needed, estimate.lasting);
    share = std::max(share, estimate.share);
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
    if (since_ns_ < unshed_ns_ || taken > budget_ * kUnshedShare) return {};
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
  return Say(share, false);
}

std::optional<Governor::Decision> Governor::AddOwn(double share) {
  own_share_ = std::max(0.0, share);
  own_above_ = own_share_ > budget_ ? own_above_ + 1 : 0;
  const std::uint32_t before = sampling_stretch_;
  if (own_share_ > budget_ * kOwnPart && sampling_stretch_ < kMaxSamplingStretch) {
    const double wanted = std::ceil(sampling_stretch_ * own_share_ / (budget_ * kOwnTarget));
    sampling_stretch_ = static_cast<std::uint32_t>(std::min<double>(kMaxSamplingStretch, wanted));
  } else if (sampling_stretch_ > 1 && own_share_ * 2 < budget_ * kOwnTarget) {
    sampling_stretch_ /= 2;
  }
  if (sampling_stretch_ == before) return {};
  return Say(own_share_, false);
}

}  // namespace telltale::plan
