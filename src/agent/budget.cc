// SPDX-License-Identifier: Apache-2.0
#include "agent/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
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

/// Collections that are taken less often, by what is taken of them: with the interval that holds
/// and the planned one.
std::string Intervals(std::span<const plan::PlannedInterval> intervals, std::uint32_t stretch) {
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
  return fmt::format("{}{}", words, more > 0 ? fmt::format("; and {} more", more) : "");
}

/// "8.2 ms", "1.3 s".
std::string Taking(double ns) {
  if (ns < 1e6) return fmt::format("{:.0f} µs", ns / 1e3);
  return ns < 1e9 ? fmt::format("{:.3g} ms", ns / 1e6) : fmt::format("{:.3g} s", ns / 1e9);
}

/// Whether it is less than what is planned.
bool Thinned(const plan::Governor::Decision& decision) {
  return decision.thinning != plan::Thinning{} || decision.sampling_stretch > 1;
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
    data["so_far"] = decision.so_far;
  }
  data["budget"] = decision.budget > 0 ? decision.budget : share_;
  if (decision.too_dear) {
    data["asked"] = {{"stretch", decision.too_dear->stretch},
                     {"capture_ns", std::llround(decision.too_dear->capture_ns)},
                     {"share", decision.too_dear->share}};
  }
  event.data = JsonText(data);
  event.marks = {{{}, kThinnedMarkRing, Thinned(decision) ? 1U : 0U}};
  return event;
}

std::string Budget::Done(const plan::Governor::Decision& decision) const {
  const plan::Thinning& thinning = decision.thinning;
  std::string done;
  const auto add = [&](const std::string& text) { done += (done.empty() ? "" : ", ") + text; };
  std::vector<plan::PlannedInterval> thinned;
  std::vector<plan::PlannedInterval> asked;
  for (const plan::PlannedInterval& interval : intervals_) {
    const plan::PlannedRule& rule = rules_[interval.rule];
    if (plan::Left(thinning, rule, interval.rule) == 0) continue;
    const bool kept = interval.rule < thinning.kept.size() &&
                      thinning.kept[interval.rule][interval.mode.value_or(0)] > 0;
    (kept ? asked : thinned).push_back(interval);
  }
  if (thinning.stretch > 1 && !thinned.empty()) {
    add(fmt::format("tensors are taken {} times less often than planned ({})", thinning.stretch,
                    Intervals(thinned, thinning.stretch)));
  }
  if (thinning.stretch > 1 && !asked.empty()) {
    add(fmt::format("what was asked for by name is thinned after its first {} captures ({})",
                    plan::Governor::kAskedCaptures, Intervals(asked, thinning.stretch)));
  }
  if (thinning.shed > 0) {
    std::string words;
    for (const std::string& word : ShedWords(thinning.shed)) {
      words += (words.empty() ? "" : ", ") + word;
    }
    add(fmt::format("not taken any more{}: {}",
                    asked.empty() ? "" : ", but of what was asked for by name", words));
  }
  if (decision.sampling_stretch > 1) {
    add(fmt::format("the machine is sampled {} times less often, but for memory and processes",
                    decision.sampling_stretch));
  }
  return done.empty() ? "everything is taken as planned again" : done;
}

void Budget::Say(const plan::Governor::Decision& decision, std::int64_t now_ns, Outbox* outbox) {
  std::string message;
  if (decision.exceeded) {
    message = fmt::format(
        "Telltale has cost {:.2f} % of the time of the steps until then, the budget is {:.2f} %: "
        "nothing is left to take less often",
        decision.so_far * 100, decision.budget * 100);
  } else {
    message = fmt::format(
        "At this pace Telltale costs {:.2f} % of step time ({:.2f} % so far), the budget is {:.2f} "
        "%: {}",
        decision.share * 100, decision.so_far * 100, decision.budget * 100, Done(decision));
  }
  if (decision.too_dear) {
    message = fmt::format(
        "The first {} captures of what was asked for by name would take {:.0f} % of the run, {} "
        "each: it is taken {} times less often. {}",
        plan::Governor::kAskedCaptures, decision.too_dear->share * 100,
        Taking(decision.too_dear->capture_ns), decision.too_dear->stretch, message);
  }
  PendingEvent event = EventOf(decision, std::move(message), true, now_ns);
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
  outbox->Add(EventOf(now, fmt::format("{}: {}", after, Done(now)), costs, now_ns));
}

void Budget::Commit(std::int64_t now_ns, Outbox* outbox) {
  for (const plan::StepCost& cost : offered_) {
    if (const auto decision = governor_.Add(cost)) Say(*decision, now_ns, outbox);
  }
  offered_.clear();
}

void Budget::OwnCost(double share, std::int64_t wall_ns, std::int64_t now_ns, Outbox* outbox) {
  if (const auto decision = governor_.AddOwn(share, wall_ns)) Say(*decision, now_ns, outbox);
}

}  // namespace telltale::agent
