// SPDX-License-Identifier: Apache-2.0
// LearningRateSchedule: a schedule has taken the learning rate away: it fell to next to nothing
// long before the end, mostly since the scheduler is stepped at each batch and was meant for each
// epoch, or it is 0 in most steps.
//
// The schedules that people use end near 0 too, but only at their end.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/saturate.h"
#include "rules/builtin/loop_rule.h"
#include "rules/groups.h"
#include "rules/registry.h"

namespace telltale::rules::learning_rate_schedule {
namespace {

constexpr ParameterDesc kParameters[] = {
    {"small", 0.0001, "", "Of its largest: a learning rate below it moves nothing."},
    {"small_percent", 20, "%", "Share of the steps so far in which it must be so small."},
    {"zero_percent", 50, "%", "Share of the steps so far in which it must be 0."},
    {"min_steps", 100, "steps", "Steps with such a rate before anything is said."},
};

struct Scheduler {
  double calls = 0;
  double optimizer_steps = 0;
  bool epoch = false;
  std::string settings;
};

struct Process : LoopProcess {
  // Of the learning rate, one value a step: the largest of those that were recorded in it.
  std::int64_t rate_step = -1;
  bool pending = false;  ///< Its step may have another one.
  double rate = 0;
  std::int64_t rate_ns = 0;
  double largest = 0;
  Sum count = 0;  ///< Steps that had one.
  Sum zeros = 0;  ///< With 0.
  std::int64_t first_zero = -1;
  std::int64_t first_zero_ns = 0;
  Sum small = 0;  ///< Below `small` of the largest, in a row up to now.
  std::int64_t small_step = -1;
  std::int64_t small_ns = 0;
  Sum say_at = 0;  ///< Of `count`: when figures are said again.
  /// Most groups of parameters of an optimizer; of the first the rate is known, and the largest of
  /// all where `largest_group` is not negative.
  double groups = 1;
  double first_group = 0;
  double largest_group = -1;
  Sum first_zeros = 0;  ///< Steps in which only the first group had 0, in a row up to now.
  std::int64_t first_zero_step = -1;
  std::int64_t first_zero_group_ns = 0;
  std::map<std::string, Scheduler> schedulers;
};

std::string Number(double value) { return fmt::format("{:.3g}", value); }

/// Those whose rate only ever falls and was meant to fall once an epoch.
bool Decays(std::string_view scheduler) {
  for (const std::string_view name :
       {"StepLR", "MultiStepLR", "ExponentialLR", "MultiplicativeLR"}) {
    if (scheduler == name) return true;
  }
  return false;
}

class LearningRateSchedule final : public LoopRule<Process> {
 public:
  explicit LearningRateSchedule(const Parameters& p)
      : small_(p.Get("small")),
        small_share_(p.Get("small_percent") / 100),
        zero_share_(p.Get("zero_percent") / 100),
        min_steps_(std::max<std::int64_t>(10, p.GetInt("min_steps"))) {}

  bool Wants(const Series& series) override {
    return series.table != format::TableId::kScalars ||
           (series.mode == "TRAIN" && (series.name == "lr" || series.name == "lr.largest"));
  }

 protected:
  std::string Lacks() const override { return "no learning rate was recorded"; }
  bool Reads(std::string_view kind) const override {
    return kind == "scheduler" || kind == "optimizer";
  }

  void OnEvent(const format::EventRow& event, const nlohmann::json& data,
               Process* process) override {
    if (event.kind == "optimizer") {
      // Another phase of the training has another rate.
      Take(process, process->last_step + 1);
      process->groups = std::max(process->groups, NumberIn(data, "groups", 1));
      process->largest = 0;
      process->small = 0;
      process->largest_group = -1;
      process->first_zeros = 0;
      return;
    }
    Scheduler& scheduler = process->schedulers[TextIn(data, "class")];
    scheduler.calls = NumberIn(data, "calls");
    scheduler.optimizer_steps = NumberIn(data, "optimizer_steps", scheduler.optimizer_steps);
    scheduler.epoch = FlagIn(data, "epoch_argument");
    scheduler.settings.clear();
    if (const auto settings = data.find("settings");
        settings != data.end() && settings->is_object()) {
      for (const auto& [name, value] : settings->items()) {
        scheduler.settings +=
            fmt::format("{}{}={}", scheduler.settings.empty() ? "" : ", ", name, value.dump());
      }
    }
    if (IsSaid(*process, "")) SaySmall(process);
  }

  void OnScalar(const format::ScalarRow& row, Process* process) override {
    if (!std::isfinite(row.value) || row.value < 0) return;
    SeesData();
    const bool of_all = row.name == "lr.largest";
    if (row.step > process->rate_step) {
      Take(process, row.step);
      process->pending = true;
      process->rate_step = row.step;
      // Each of the two is told where it changes alone.
      process->rate = std::max(0.0, of_all ? process->first_group : process->largest_group);
      process->rate_ns = row.time_ns;
      if (!of_all) process->first_group = 0;
    } else if (row.step < process->rate_step) {
      return;
    }
    if (of_all) {
      process->largest_group = row.value;
      process->rate = std::max(row.value, process->first_group);
    } else {
      // Of several optimizers: the training goes on while one of them has a rate.
      process->first_group = std::max(process->first_group, row.value);
      process->rate = std::max(process->rate, row.value);
    }
  }

  void OnExit(Process* process) override {
    process->say_at = 0;  // What is said last has the figures of the whole training.
    Take(process, process->last_step + 1);
  }

 private:
  /// The rate held until the step `next`: it is recorded where it changes, and now and then.
  void Take(Process* process, std::int64_t next) {
    if (!process->pending) return;
    process->pending = false;
    const std::int64_t held = std::max<std::int64_t>(1, next - process->rate_step);
    const double rate = process->rate;
    process->count += held;
    process->largest = std::max(process->largest, rate);
    if (rate == 0) {
      if (process->zeros == 0) {
        process->first_zero = process->rate_step;
        process->first_zero_ns = process->rate_ns;
      }
      process->zeros += held;
    }
    if (rate < small_ * process->largest) {
      if (process->small == 0) {
        process->small_step = process->rate_step;
        process->small_ns = process->rate_ns;
      }
      process->small += held;
    } else {
      process->small = 0;
    }
    JudgeFirstGroup(process, held);
    Judge(process);
  }

  /// The first group alone has a rate of 0.
  void JudgeFirstGroup(Process* process, std::int64_t held) {
    if (process->largest_group <= 0 || process->first_group > 0) {
      process->first_zeros = 0;
      TakeBack(process, "first group");
      return;
    }
    if (process->first_zeros == 0) {
      process->first_zero_step = process->rate_step;
      process->first_zero_group_ns = process->rate_ns;
    }
    process->first_zeros += held;
    if (process->first_zeros < min_steps_ ||
        static_cast<double>(process->first_zeros) <
            zero_share_ * static_cast<double>(process->count)) {
      return;
    }
    if (IsSaid(*process, "first group") && process->count < process->say_at) return;
    // It may be frozen so on purpose.
    Incident incident =
        BeginAt(process->first_zero_step, process->first_zero_group_ns, Severity::kLow);
    incident.message = fmt::format("Parameter group 0 of {:.0f} has a learning rate of 0",
                                   std::max(2.0, process->groups));
    incident.cause = fmt::format(
        "It was so in {} of {} steps: the weights of this group do not move, whatever their "
        "gradients are. The largest learning rate of all groups is {}.",
        process->first_zeros.value(), process->count.value(), Number(process->largest_group));
    incident.advice =
        "Where these weights are to learn, give their group a learning rate above 0; where they "
        "are to stay, freeze them with requires_grad_(False), which saves their gradients.";
    incident.confidence = 0.95;
    incident.evidence = EvidenceOf(*process, nullptr, true);
    process->say_at = process->count + kSayEvery;
    Say(process, "first group", std::move(incident));
  }

  void Judge(Process* process) {
    const auto count = static_cast<double>(process->count);
    const double zero = static_cast<double>(process->zeros) / count;
    if (process->zeros >= min_steps_ && zero >= zero_share_) {
      TakeBack(process, "");
      SayZero(process);
      return;
    }
    if (IsSaid(*process, "zero") && zero < zero_share_ / 2) TakeBack(process, "zero");
    if (process->small >= min_steps_ &&
        static_cast<double>(process->small) >= small_share_ * count && !IsSaid(*process, "zero")) {
      if (!IsSaid(*process, "") || process->count >= process->say_at) SaySmall(process);
    } else if (process->small == 0) {
      TakeBack(process, "");
    }
  }

  /// The scheduler that takes the rate down at each step of the optimizer; null: none is known.
  static const std::pair<const std::string, Scheduler>* ByBatch(const Process& process) {
    for (const auto& entry : process.schedulers) {
      const Scheduler& scheduler = entry.second;
      if (!scheduler.epoch && scheduler.calls >= kSureCalls &&
          scheduler.calls >= 0.9 * scheduler.optimizer_steps) {
        return &entry;
      }
    }
    return nullptr;
  }

  void SaySmall(Process* process) {
    const auto* by_batch = ByBatch(*process);
    const bool sure = by_batch != nullptr && Decays(by_batch->first);
    // A plateau may have been what it waited for; another schedule may be the user's own.
    if (!sure && process->schedulers.contains("ReduceLROnPlateau")) return;
    // Of several groups of parameters the rate of the first alone is known.
    Incident incident = BeginAt(process->small_step, process->small_ns,
                                sure                     ? Severity::kHigh
                                : OneOfSeveral(*process) ? Severity::kLow
                                                         : Severity::kMedium);
    const std::string fell = fmt::format("the learning rate fell from {} to {}",
                                         Number(process->largest), Number(process->rate));
    if (by_batch != nullptr) {
      incident.message =
          fmt::format("{}.step() is called at every step: {}", by_batch->first, fell);
      incident.cause = fmt::format(
          "{} ({}) has stepped with each step of the optimizer; since step {} the learning rate is "
          "below {} of its largest, and the weights hardly move.",
          by_batch->first,
          by_batch->second.settings.empty() ? "settings not known" : by_batch->second.settings,
          process->small_step, Number(small_));
      incident.advice = fmt::format(
          "Call scheduler.step() once an epoch, behind the loop over the batches, or give {} "
          "settings that count steps{}.",
          by_batch->first, by_batch->first == "StepLR" ? " (a larger step_size)" : "");
    } else {
      incident.message = fmt::format("T{}", fell.substr(1));
      incident.cause = fmt::format(
          "Since step {} the learning rate is below {} of its largest, in {} of {} steps so far: "
          "the weights hardly move. The schedule is over long before the training is.",
          process->small_step, Number(small_), process->small.value(), process->count.value());
      incident.advice =
          "Look at what the schedule counts, steps or epochs, and at the number of steps that it "
          "was made for; end the training where the schedule ends.";
    }
    incident.confidence = sure ? 0.95 : 0.75;
    incident.evidence = EvidenceOf(*process, by_batch);
    process->say_at = process->count + kSayEvery;
    Say(process, "", std::move(incident));
  }

  void SayZero(Process* process) {
    if (IsSaid(*process, "zero") && process->count < process->say_at) return;
    // A first group that is frozen by a rate of 0 is so on purpose.
    Incident incident =
        BeginAt(process->first_zero, process->first_zero_ns,
                OneOfSeveral(*process) && process->largest == 0 ? Severity::kLow : Severity::kHigh);
    incident.message = fmt::format(
        "The learning rate{} is 0 in {} of {} steps",
        OneOfSeveral(*process) ? fmt::format(" of parameter group 0 of {:.0f}", process->groups)
                               : std::string(),
        process->zeros.value(), process->count.value());
    const bool scheduled = !process->schedulers.empty() || process->largest > 0;
    std::string by = "no scheduler of torch's was seen";
    if (!process->schedulers.empty()) {
      by = fmt::format("the scheduler is {}", process->schedulers.begin()->first);
    }
    incident.cause = fmt::format(
        "With a learning rate of 0 no weight moves, whatever the gradients are; {}. The largest "
        "rate so far is {}.",
        by, Number(process->largest));
    incident.advice =
        scheduled
            ? "Print what the schedule gives for the first steps: a warm-up that divides "
              "whole numbers with // is 0 until its end, and a schedule made for fewer steps "
              "stays at 0 when these are over."
            : "Give the optimizer a learning rate above 0; where something sets it, print what "
              "that gives for the first steps: a division of whole numbers with // gives 0.";
    incident.confidence = 0.95;
    incident.evidence = EvidenceOf(*process, ByBatch(*process));
    process->say_at = process->count + kSayEvery;
    Say(process, "zero", std::move(incident));
  }

  /// Nothing is known of the rates of the other groups of parameters.
  static bool OneOfSeveral(const Process& process) {
    return process.groups > 1 && process.largest_group < 0;
  }

  static std::string EvidenceOf(const Process& process,
                                const std::pair<const std::string, Scheduler>* by_batch,
                                bool stands = false) {
    nlohmann::ordered_json evidence;
    if (stands) evidence[kExplains] = {"WeightUpdateRatio", "UnchangedTensor"};
    evidence["largest"] = process.largest;
    evidence["now"] = process.rate;
    evidence["steps"] = process.count.value();
    evidence["zero_steps"] = process.zeros.value();
    evidence["small_steps"] = process.small.value();
    if (by_batch != nullptr) {
      evidence["scheduler"] = by_batch->first;
      evidence["calls"] = by_batch->second.calls;
      evidence["optimizer_steps"] = by_batch->second.optimizer_steps;
    }
    return JsonText(evidence);
  }

  static constexpr std::int64_t kSayEvery = 50;
  static constexpr double kSureCalls = 10;

  const double small_;
  const double small_share_;
  const double zero_share_;
  const std::int64_t min_steps_;
};

}  // namespace

const RuleDesc kLearningRateScheduleDesc{
    .name = "LearningRateSchedule",
    .summary = "The schedule has taken the learning rate away, or holds it at 0.",
    .formula =
        "rate = the largest scalar `lr` of a TRAIN step, of several parameter groups `lr.largest`. "
        "Small: below `small` of the largest so "
        "far, in min_steps steps in a row up to now that are small_percent of all so far: high "
        "where an event `scheduler` says that StepLR, MultiStepLR, ExponentialLR or "
        "MultiplicativeLR steps at least 9 times in 10 steps of the optimizer, else medium; "
        "nothing where the rate is ReduceLROnPlateau's. 0 in zero_percent of the steps so far, and "
        "in min_steps: high; low where the optimizer has several groups of parameters, whose first "
        "may be frozen so, and only its rate is known. Low likewise where the first group alone "
        "has a rate of 0. A schedule that ends at 0 is small only in its last steps. Over where "
        "the rate is larger again.",
    .how_to_fix =
        "Call scheduler.step() as often as the schedule counts: once an epoch, or once a step with "
        "settings in steps. Divide with / in a schedule of your own.",
    .table_mask = store::MaskOf(format::TableId::kSteps) | store::MaskOf(format::TableId::kEvents) |
                  store::MaskOf(format::TableId::kScalars),
    .wrong_result = true,
    .parameters = kParameters,
    .example = "scheduler = StepLR(optimizer, step_size=1, gamma=0.9)  # and step() at each batch",
    .standing = {.theme = Theme::kLearning, .order = 2},
    .data_mask = DataMask(Datum::kSteps),
};

std::unique_ptr<Rule> MakeLearningRateSchedule(const Parameters& parameters) {
  return std::make_unique<LearningRateSchedule>(parameters);
}

}  // namespace telltale::rules::learning_rate_schedule
