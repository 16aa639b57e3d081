// SPDX-License-Identifier: Apache-2.0
// Divergence: from some step on the loss goes up and stays up: which step, and what changed there.
//
// LossNotDecreasing says at leisure that a training has gained nothing. Here a cumulative sum finds
// the point at which the level changed, so that it is said tens of steps after it, with the step
// to go back to. A jump that comes back is LossSpike's.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "rules/builtin/loss_cause.h"
#include "rules/builtin/losses.h"
#include "rules/builtin/numbers.h"
#include "rules/groups.h"
#include "rules/registry.h"

namespace telltale::rules::divergence {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"patience_steps", 30, "steps", "Losses after the change before anything is said."},
    {"rise_percent", 20, "%", "Of the level before: a smaller rise is none."},
    {"least_percent", 5, "%", "Of the first losses: a smaller rise is none."},
    {"stddev", 5, "σ", "Deviations by which the level must have risen."},
    {"log_stddev", 2.5, "σ",
     "The same of the losses' logarithms, where all are above 0: losses of small batches lie far "
     "above their median now and then."},
};

constexpr std::size_t kMinReference = 20;
constexpr std::size_t kReference = 60;
constexpr std::size_t kNewest = 15;  ///< Losses that make the level now.
/// What a loss above the reference adds at most, and what each takes off (in σ).
constexpr double kClip = 5;
constexpr double kDrift = 1;
constexpr double kThreshold = 60;
constexpr std::int64_t kFastSteps = 3;
constexpr std::int64_t kNewLevelSteps = 500;  ///< Undecided for so long: it is the level now.

struct Trace : TrainingProcess {
  std::deque<LossPoint> reference;  ///< The newest before the change.
  Level level;
  std::vector<double> values;  ///< Of which `level` was taken.
  std::size_t measured = 0;    ///< Losses in `reference` when `level` was taken.
  std::vector<double> first;
  double start = 0;  ///< Median of the first three.
  std::int64_t seen = 0;

  double sum = 0;
  LossPoint change;        ///< Where the sum left 0.
  std::int64_t above = 0;  ///< Losses since.
  std::deque<double> newest;
  double peak = 0;  ///< Highest level since the change.
  bool went_bad = false;
  std::int64_t bad_step = -1;

  LossPoint rose;  ///< The first of those that never came below twice the start.
  std::int64_t over_start = 0;
  bool from_start = false;
};

class Divergence final : public LossRule<Trace> {
 public:
  explicit Divergence(const Parameters& p)
      : patience_(
            std::max<std::int64_t>(static_cast<std::int64_t>(kNewest), p.GetInt("patience_steps"))),
        rise_(p.Get("rise_percent") / 100),
        least_(p.Get("least_percent") / 100),
        stddev_(p.Get("stddev")),
        log_stddev_(p.Get("log_stddev")) {}

 private:
  void OnLoss(Trace* trace, const LossPoint& p, Reporter* reporter) override {
    if (!std::isfinite(p.value)) {
      // Not by a rise: NonFiniteOrigin's.
      if (!trace->open) {
        if (!RisenFast(*trace)) return;
        trace->from_start = false;
        Open(trace, p, reporter);
      }
      if (trace->went_bad) {  // Nothing new but the time.
        Extend(trace, p);
        reporter->Report(trace->incident);
        return;
      }
      trace->went_bad = true;
      trace->bad_step = p.step;
      Tell(trace, p, reporter);
      return;
    }
    if (!p.alone) return;  // What one model gains the other loses.
    ++trace->seen;
    if (trace->first.size() < 3) {
      trace->first.push_back(p.value);
      trace->start = MedianOf(trace->first);
    }
    trace->newest.push_back(p.value);
    if (trace->newest.size() > kNewest) trace->newest.pop_front();
    if (trace->open) {
      Follow(trace, p, reporter);
      return;
    }
    if (FromStart(trace, p)) {
      trace->change = trace->rose;
      trace->level = {trace->start, 0};
      trace->from_start = true;
      Open(trace, p, reporter);
      return;
    }
    if (trace->reference.size() < kMinReference) {
      Keep(trace, p);
      return;
    }
    SeesData();
    Measure(trace);
    const double sigma =
        std::max({trace->level.sigma, 0.01 * std::abs(trace->level.median), 1e-12});
    const double z = (p.value - trace->level.median) / sigma;
    const double sum = std::max(0.0, trace->sum + std::clamp(z, -kClip, kClip) - kDrift);
    if (sum == 0) {
      trace->sum = 0;
      trace->above = 0;
      Keep(trace, p);
      return;
    }
    if (trace->sum == 0) trace->change = p;
    trace->sum = sum;
    ++trace->above;
    if (trace->above >= patience_ && sum > kThreshold && Risen(*trace)) {
      trace->from_start = false;
      Open(trace, p, reporter);
    } else if (trace->above > kNewLevelSteps) {
      trace->sum = 0;
      trace->above = 0;
      trace->reference.clear();
      trace->measured = 0;
    }
  }

  static void Keep(Trace* trace, const LossPoint& p) {
    trace->reference.push_back(p);
    ++trace->measured;
    if (trace->reference.size() > kReference) trace->reference.pop_front();
  }

  /// The level of the reference, taken anew each few losses.
  static void Measure(Trace* trace) {
    if (trace->measured < 10 && trace->level.sigma > 0) return;
    trace->measured = 0;
    trace->values.clear();
    for (const LossPoint& p : trace->reference) trace->values.push_back(p.value);
    trace->level = LevelOf(trace->values);
  }

  /// The level of the losses' logarithms, where all are above 0.
  static std::optional<Level> LogarithmsOf(const std::vector<double>& values) {
    std::vector<double> logarithms;
    for (const double value : values) {
      if (!(value > 0)) return std::nullopt;
      logarithms.push_back(std::log(value));
    }
    if (logarithms.empty()) return std::nullopt;
    return LevelOf(std::move(logarithms));
  }

  static double Now(const Trace& trace) {
    return MedianOf({trace.newest.begin(), trace.newest.end()});
  }

  bool Risen(const Trace& trace) const { return RisenTo(trace, Now(trace)); }

  bool RisenTo(const Trace& trace, double now) const {
    const double rise = now - trace.level.median;
    if (rise <= rise_ * std::abs(trace.level.median) || rise <= least_ * std::abs(trace.start) ||
        rise <= stddev_ * trace.level.sigma) {
      return false;
    }
    // Seldom asked, and dear: not where the level is taken.
    const std::optional<Level> logarithms = LogarithmsOf(trace.values);
    return !logarithms || std::log(now) - logarithms->median > log_stddev_ * logarithms->sigma;
  }

  /// On its way up to Inf, too fast for patience: the newest losses alone are above.
  bool RisenFast(const Trace& trace) const {
    if (trace.above < kFastSteps || std::ssize(trace.newest) < kFastSteps) return false;
    return RisenTo(trace, MedianOf({trace.newest.end() - kFastSteps, trace.newest.end()}));
  }

  /// Before there is a level to compare with: every loss above twice the first.
  bool FromStart(Trace* trace, const LossPoint& p) {
    if (trace->seen > 3 * patience_ || trace->first.size() < 3) return false;
    const double limit = trace->start + std::max(std::abs(trace->start), 1e-12);
    if (p.value <= limit) {
      trace->over_start = 0;
      return false;
    }
    if (trace->over_start++ == 0) trace->rose = p;
    if (trace->over_start >= patience_) SeesData();
    return trace->over_start >= patience_;
  }

  void Open(Trace* trace, const LossPoint& p, Reporter* reporter) {
    traces().Open(trace, trace->change.step, trace->change.time_ns);
    trace->peak = Now(*trace);
    trace->went_bad = false;
    trace->bad_step = -1;
    Tell(trace, p, reporter);
  }

  void Follow(Trace* trace, const LossPoint& p, Reporter* reporter) {
    const double now = Now(*trace);
    trace->peak = std::max(trace->peak, now);
    const double before = trace->level.median;
    // Of a peak above the level of the beginning most falls back by itself: what had been learned
    // counts.
    const double high = trace->start > before ? std::min(trace->peak, trace->start) : trace->peak;
    if (now <= before + 0.3 * (high - before)) {
      Describe(trace, p);
      Recover(trace, reporter);
      trace->sum = 0;
      trace->above = 0;
      trace->reference.clear();
      trace->measured = 0;
      trace->level = {};
      trace->went_bad = false;
      trace->bad_step = -1;
      trace->seen = 3 * patience_ + 1;  // Its start is long ago.
      return;
    }
    Tell(trace, p, reporter);
  }

  void Tell(Trace* trace, const LossPoint& p, Reporter* reporter) {
    Describe(trace, p);
    reporter->Report(trace->incident);
  }

  static void Extend(Trace* trace, const LossPoint& p) {
    Incident& incident = trace->incident;
    incident.last_step = std::max(incident.first_step, p.step);
    incident.end_ns = std::max(incident.start_ns, p.time_ns);
    incident.cost_seconds = std::max(0.0, p.worked_s - trace->change.worked_s);
  }

  void Describe(Trace* trace, const LossPoint& p) {
    Incident& incident = trace->incident;
    const double now = Now(*trace);
    const double before = trace->level.median;
    const LossPoint& change = trace->change;
    Extend(trace, p);
    double lr_before = 0;
    for (const LossPoint& r : trace->reference) {
      if (std::isfinite(r.lr) && r.step < change.step) lr_before = r.lr;
    }
    if (!trace->reference.empty() && lr_before > 0) {
      // A rate that rises slowly rose before the loss did: against the begin of the reference.
      const double begin = trace->reference.front().lr;
      if (begin > 0) lr_before = std::min(lr_before, begin);
    }
    const bool rate = lr_before > 0 && p.lr > 1.2 * lr_before;
    const bool lost = now > trace->start || trace->went_bad;
    const double gained = std::max(trace->start - before, 0.0);
    const Severity severity =
        lost || now - before > 0.5 * gained ? Severity::kHigh : Severity::kMedium;
    incident.severity = std::max(incident.severity, severity);
    incident.message = trace->went_bad
                           ? std::string("The loss diverged and is no number")
                           : fmt::format("The loss diverges since step {}", change.step);
    const std::string rise =
        fmt::format("The loss was {} before step {} and is {} since{}", Figure(before), change.step,
                    Figure(now),
                    trace->went_bad ? fmt::format("; in step {} it was no number", trace->bad_step)
                                    : std::string());
    const std::string back = fmt::format("Go back to a checkpoint before step {}", change.step);
    std::vector<std::string> explained_by;
    if (LossCause loop = LoopCause(traces().FactsOf(trace)); !loop.cause.empty()) {
      explained_by = std::move(loop.explained_by);
      incident.cause = fmt::format("{}. {}", rise, loop.cause);
      incident.advice = std::move(loop.advice);
    } else if (rate) {
      incident.cause = fmt::format("{}, while the learning rate rose from {} to {}.", rise,
                                   Figure(lr_before), Figure(p.lr));
      incident.advice =
          fmt::format("{} and keep the learning rate at or below {}.", back, Figure(lr_before));
    } else if (trace->from_start) {
      incident.cause = std::isfinite(p.lr)
                           ? fmt::format(
                                 "The loss rose from {} to {} within the first {} steps at "
                                 "learning rate {}: the steps are too large.",
                                 Figure(trace->start), Figure(now), p.step + 1, Figure(p.lr))
                           : fmt::format(
                                 "The loss rose from {} to {} within the first {} steps: "
                                 "the steps are too large.",
                                 Figure(trace->start), Figure(now), p.step + 1);
      incident.advice = std::isfinite(p.lr)
                            ? fmt::format(
                                  "Lower the learning rate from {} to {} and look whether the "
                                  "first 100 steps go down.",
                                  Figure(p.lr), Figure(p.lr / 10))
                            : std::string(
                                  "Lower the learning rate tenfold and look whether the first 100 "
                                  "steps go down.");
    } else {
      incident.cause = "cause not found";
      incident.advice = fmt::format(
          "{}; look at the batches of steps {} to {} (an epoch's begin, another data set, a "
          "resumed "
          "optimizer without its state).{}",
          back, change.step, change.step + 10,
          trace->went_bad ? " Run again with `--rule NonFiniteOrigin`: it names the first module "
                            "and step that is not finite."
                          : "");
    }
    incident.confidence = trace->went_bad ? 1 : lost ? 0.95 : rate ? 0.75 : 0.85;

    nlohmann::ordered_json evidence;
    evidence["change_step"] = change.step;
    if (!explained_by.empty()) evidence[kExplainedBy] = explained_by;
    evidence["before"] = Rounded(before);
    evidence["deviation"] = Rounded(trace->level.sigma);
    evidence["now"] = Rounded(now);
    evidence["peak"] = Rounded(trace->peak);
    evidence["start"] = Rounded(trace->start);
    evidence["score"] = Rounded(trace->sum);
    if (std::isfinite(p.lr)) evidence["learning_rate"] = Rounded(p.lr);
    if (lr_before > 0) evidence["learning_rate_before"] = Rounded(lr_before);
    if (trace->bad_step >= 0) evidence["not_finite_step"] = trace->bad_step;
    incident.evidence = JsonText(evidence);
  }

  const std::int64_t patience_;
  const double rise_;
  const double least_;
  const double stddev_;
  const double log_stddev_;
};

}  // namespace

const RuleDesc kDivergenceDesc{
    .name = "Divergence",
    .summary = "From some step on the training loss goes up and stays up.",
    .formula =
        "median and σ = scaled median absolute deviation (at least 1 % of the median) of the "
        "newest 60 losses before the change. A cumulative sum S = max(0, S + z − 1), z = (loss − "
        "median) / σ held between −5 and 5; the change is the loss at which S left 0. It diverges "
        "where S > 60 after patience_steps, and the median of the newest 15 losses exceeds the "
        "level before by more than rise_percent of it, by more than least_percent of the first "
        "losses, by more than stddev × σ and, where all of the 60 are above 0, its logarithm "
        "theirs by more than log_stddev of their deviations. Also where in the first 3 × "
        "patience_steps, patience_steps losses in a row are above twice the start (median of the "
        "first three). High where the level is above the start, or more than half of what was "
        "gained is lost, or the loss became NaN or Inf (then three losses above do); else medium. "
        "Losses of steps that the optimizer skipped are left out. Not judged where there are "
        "several losses (a GAN: what one model gains the other loses), and in reinforcement "
        "learning (the event environment, losses that change their sign again and again, rollouts "
        "between the steps, scalars such as policy_loss). Another fit in the process begins anew: "
        "another training of XGBoost's; or a new optimizer, or 20 steps in a row that the "
        "optimizer skipped, after which the loss is back above the middle between its start and "
        "its best. Over where the level is back within 30 % of the rise (where it went above "
        "the start, of the part up to the start), and where its process ends. Cost = time of the "
        "steps since the change, less waits for data.",
    .how_to_fix =
        "Go back to a checkpoint before the step that is named. Lower the learning rate, warm it "
        "up over more steps, clip gradients. A cyclic schedule that restarts raises the loss by "
        "design.",
    .table_mask = store::MaskOf(format::TableId::kScalars) |
                  store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents),
    .wrong_result = true,
    .parameters = kParameters,
    .captures = {},
    .family = Family::kOwn,
    .by_default = true,
    .example = "A scheduler multiplies the learning rate by 1.01 in each step, without end.",
    .standing = {.theme = Theme::kNumbers, .order = 2},
    .data_mask = DataMask(Datum::kLoss),
};

std::unique_ptr<Rule> MakeDivergence(const Parameters& parameters) {
  return std::make_unique<Divergence>(parameters);
}

}  // namespace telltale::rules::divergence
