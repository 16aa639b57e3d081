// SPDX-License-Identifier: Apache-2.0
#include "agent/budget.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

namespace telltale::agent {
namespace {

std::string Message(const plan::Governor::Decision& decision, double budget) {
  if (!decision.exceeded) {
    return fmt::format("statistics every {} steps: the probe cost {:.2f} % of step time",
                       decision.interval_steps, decision.probe_share * 100);
  }
  return fmt::format("the probe costs {:.2f} % of step time, the budget is {:.2f} %: {}",
                     decision.probe_share * 100, budget * 100,
                     decision.interval_steps == 0
                         ? std::string("there are no statistics to take less often")
                         : fmt::format("statistics are as rare as they get, every {} steps",
                                       decision.interval_steps));
}

}  // namespace

void Budget::Offer(const std::vector<format::StepRow>& steps) {
  for (const format::StepRow& step : steps) offered_.emplace_back(step.duration_ns, step.probe_ns);
}

void Budget::Commit(std::int64_t now_ns, Outbox* outbox) {
  for (const auto& [duration_ns, probe_ns] : offered_) {
    const auto decision = governor_.Add(duration_ns, probe_ns);
    if (!decision) continue;
    PendingEvent event;
    event.time_ns = now_ns;
    event.kind = "governor";
    if (decision->exceeded) {
      event.kind = "budget.exceeded";
      event.severity = "medium";
    }
    event.subject = "plan";
    event.message = Message(*decision, share_);
    event.data = nlohmann::ordered_json{
        {"stats_interval_steps", decision->interval_steps},
        {"probe_share", decision->probe_share},
        {"budget",
         share_}}.dump();
    outbox->Add(std::move(event));
  }
  offered_.clear();
}

}  // namespace telltale::agent
