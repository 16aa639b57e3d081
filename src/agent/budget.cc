// SPDX-License-Identifier: Apache-2.0
#include "agent/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/json.h"

namespace telltale::agent {
namespace {

constexpr std::array<std::string_view, 4> kModes = {"TRAIN", "EVAL", "PREDICT", "GLOBAL"};

/// What is not taken any more, in the order in which it was given up.
std::vector<std::string> ShedWords(std::uint32_t shed) {
  const auto end = plan::kShedOrder.begin() + std::min<std::size_t>(shed, plan::kShedOrder.size());
  return {plan::kShedOrder.begin(), end};
}

/// What the plan takes at intervals and shedding has left.
std::vector<plan::PlannedInterval> StillTaken(std::span<const plan::PlannedInterval> intervals,
                                              std::uint32_t shed) {
  std::vector<plan::PlannedInterval> left;
  std::copy_if(intervals.begin(), intervals.end(), std::back_inserter(left),
               [&](const plan::PlannedInterval& interval) {
                 return (interval.take & plan::Allowed(shed, interval.core)) != 0;
               });
  return left;
}

/// Which collections are taken less often, with the interval that holds and the planned one.
std::string Stretched(std::span<const plan::PlannedInterval> intervals, std::uint32_t stretch) {
  constexpr std::size_t kShown = 8;
  const auto shown = intervals.first(std::min(intervals.size(), kShown));
  std::string words;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const std::uint32_t steps = shown[i].steps;
    const auto& mode = shown[i].mode;
    words += shown[i].collection;
    const bool last = i + 1 == shown.size();
    if (!last && shown[i + 1].mode == mode && shown[i + 1].steps == steps) {
      words += ", ";
      continue;
    }
    if (mode) words += fmt::format(" in {}", kModes[*mode]);
    words += fmt::format(" each {} steps instead of {}{}", plan::Stretched(steps, stretch), steps,
                         last ? "" : "; ");
  }
  const std::size_t more = intervals.size() - shown.size();
  return fmt::format(" ({}{})", words, more > 0 ? fmt::format("; and {} more", more) : "");
}

/// Whether it is less than what is planned.
bool Thinned(const plan::Governor::Decision& decision) {
  return decision.thinning != plan::Thinning{} || decision.sampling_stretch > 1;
}

/// What the decision comes to.
std::string Done(const plan::Governor::Decision& decision,
                 std::span<const plan::PlannedInterval> intervals) {
  std::string done;
  const auto add = [&](const std::string& text) { done += (done.empty() ? "" : ", ") + text; };
  const auto taken = StillTaken(intervals, decision.thinning.shed);
  if (decision.thinning.stretch > 1 && !taken.empty()) {
    add(fmt::format("tensors are taken {} times less often than planned{}",
                    decision.thinning.stretch, Stretched(taken, decision.thinning.stretch)));
  }
  if (decision.thinning.shed > 0) {
    std::string words;
    for (const std::string& word : ShedWords(decision.thinning.shed)) {
      words += (words.empty() ? "" : ", ") + word;
    }
    add(fmt::format("not taken any more: {}", words));
  }
  if (decision.sampling_stretch > 1) {
    add(fmt::format("the machine is sampled {} times less often", decision.sampling_stretch));
  }
  return done.empty() ? "everything is taken as planned again" : done;
}

}  // namespace

std::optional<unsigned> ModeOf(std::string_view mode) {
  const auto* const found = std::find(kModes.begin(), kModes.end(), mode);
  if (found == kModes.end()) return {};
  return static_cast<unsigned>(found - kModes.begin());
}

void Budget::Offer(const std::vector<format::StepRow>& steps) {
  for (const format::StepRow& step : steps) {
    const auto mode = ModeOf(step.mode);
    if (!mode) continue;
    offered_.push_back({*mode, step.step, step.time_ns, step.duration_ns, step.probe_ns});
  }
}

PendingEvent Budget::EventOf(const plan::Governor::Decision& decision, std::string message,
                             bool costs, std::int64_t now_ns) {
  said_ = decision;
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "governor";
  event.subject = "plan";
  event.message = std::move(message);
  nlohmann::ordered_json data = {{"stretch", decision.thinning.stretch},
                                 {"shed", ShedWords(decision.thinning.shed)},
                                 {"sampling_stretch", decision.sampling_stretch}};
  if (costs) {
    data["share"] = decision.share;
    data["own_share"] = decision.own_share;
  }
  data["budget"] = share_;
  event.data = JsonText(data);
  event.marks = {{{}, kThinnedMarkRing, Thinned(decision) ? 1U : 0U}};
  return event;
}

void Budget::Say(const plan::Governor::Decision& decision, std::int64_t now_ns, Outbox* outbox) {
  const std::string done =
      decision.exceeded ? "nothing is left to take less often" : Done(decision, intervals_);
  PendingEvent event =
      EventOf(decision,
              fmt::format("Telltale costs {:.2f} % of step time, the budget is {:.2f} %: {}",
                          decision.share * 100, share_ * 100, done),
              true, now_ns);
  if (decision.exceeded) {
    strained_until_ns_ = now_ns + kStrainNs;
    event.kind = "budget.exceeded";
    event.severity = "medium";
  }
  outbox->Add(std::move(event));
}

void Budget::SayAgain(std::string_view after, std::int64_t now_ns, Outbox* outbox, bool thinned) {
  if (!thinned && !Thinned(said_)) return;
  plan::Governor::Decision now = said_;
  now.thinning = governor_.thinning();
  now.sampling_stretch = governor_.sampling_stretch();
  now.exceeded = false;
  // What it cost is still so where it goes on.
  const bool costs = Thinned(said_) && now.thinning == said_.thinning;
  outbox->Add(EventOf(now, fmt::format("{}: {}", after, Done(now, intervals_)), costs, now_ns));
}

void Budget::Commit(std::int64_t now_ns, Outbox* outbox) {
  for (const plan::StepCost& cost : offered_) {
    if (const auto decision = governor_.Add(cost)) Say(*decision, now_ns, outbox);
  }
  offered_.clear();
}

void Budget::OwnCost(double share, std::int64_t now_ns, Outbox* outbox) {
  if (const auto decision = governor_.AddOwn(share)) Say(*decision, now_ns, outbox);
}

}  // namespace telltale::agent
