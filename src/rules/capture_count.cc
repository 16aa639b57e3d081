// SPDX-License-Identifier: Apache-2.0
#include "rules/capture_count.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace telltale::rules {
namespace {

constexpr std::string_view kEverything = "all";

bool Has(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

format::TableId TableOf(std::string_view take) {
  if (take == "histogram") return format::TableId::kHistograms;
  return take == "values" || take == "shape" ? format::TableId::kTensors
                                             : format::TableId::kStatistics;
}

std::int64_t NumberOf(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

}  // namespace

std::string Captures::Words() const { return fmt::format("{} of {} captures", given, planned); }

bool CaptureCount::Planned::Due(std::int64_t step) const {
  if (std::binary_search(steps.begin(), steps.end(), step)) return true;
  return interval > 0 && step >= start && (end == 0 || step < end) && step % interval == 0;
}

void CaptureCount::SeeEvent(const format::EventRow& event) {
  if (event.kind != "plan") return;
  const auto data = ParseJson(event.data);
  if (!data.is_object()) return;
  const auto plan = data.find("plan");
  if (plan == data.end() || !plan->is_object()) return;
  const auto collections = plan->find("collections");
  if (collections == plan->end() || !collections->is_object()) return;
  plan_.clear();
  for (const auto& [name, collection] : collections->items()) {
    if (!collection.is_object()) continue;
    // A mode's own times, or those of every mode.
    const auto train = collection.find("train");
    const auto& when = train != collection.end() && train->is_object() ? *train : collection;
    Planned planned;
    planned.collection = name;
    planned.interval = NumberOf(when, "interval");
    planned.start = NumberOf(when, "start");
    planned.end = NumberOf(when, "end");
    if (when.contains("end") && planned.end <= planned.start) planned.interval = 0;
    if (const auto steps = when.find("steps"); steps != when.end() && steps->is_array()) {
      for (const auto& step : *steps) {
        if (step.is_number_integer()) planned.steps.push_back(step.get<std::int64_t>());
      }
      std::sort(planned.steps.begin(), planned.steps.end());
    }
    if (const auto take = collection.find("take"); take != collection.end() && take->is_array()) {
      for (const auto& word : *take) {
        if (!word.is_string()) continue;
        planned.take.push_back(word.get<std::string>());
        std::vector<std::string>& known = takes_[name];
        if (!Has(known, planned.take.back())) known.push_back(planned.take.back());
      }
    }
    plan_.push_back(std::move(planned));
  }
}

void CaptureCount::SeeStep(const format::StepRow& step) {
  if (step.mode != "TRAIN" || plan_.empty()) return;
  Process& process = processes_[{step.rank, step.pid, step.attempt}];
  ++process.steps;
  for (const Planned& planned : plan_) {
    if (!planned.Due(step.step)) continue;
    const auto found = process.due.find(planned.collection);
    found == process.due.end() ? process.due.emplace(planned.collection, 1).first->second
                               : ++found->second;
  }
}

/// No more than the rule needs: what comes seldom for a plan that takes all at every step may be
/// plenty for it.
std::int64_t CaptureCount::PlannedOf(const Process& process, const Need& need) const {
  std::int64_t due = 0;
  for (const std::string_view name : {std::string_view(need.collection), kEverything}) {
    const auto takes = takes_.find(name);
    if (takes == takes_.end() || !Has(takes->second, need.take)) continue;
    const auto found = process.due.find(name);
    if (found != process.due.end()) due = std::max(due, found->second);
  }
  if (need.interval == 0) return due;
  return std::min(due, (process.steps - 1) / need.interval + 1);
}

std::optional<Captures> CaptureCount::Of(const std::vector<Need>& needs,
                                         const std::vector<const Series*>& series) const {
  std::optional<Captures> least;
  std::map<ProcessKey, std::vector<const Series*>> by_process;
  for (const Series* one : series) {
    if (one->mode != "TRAIN" || one->id >= seen_.size()) continue;
    by_process[{one->rank, one->pid, one->attempt}].push_back(one);
  }
  for (const auto& [key, of_process] : by_process) {
    const auto known = processes_.find(key);
    if (known == processes_.end()) continue;
    const Process& process = known->second;
    for (const Need& need : needs) {
      const std::int64_t planned = PlannedOf(process, need);
      if (planned == 0) continue;
      // Of the collection that it names; of one that patterns fill nobody knows what belongs to it.
      std::int64_t of_it = 0;
      std::int64_t of_any = 0;
      for (const Series* one : of_process) {
        if (one->table != TableOf(need.take)) continue;
        of_any = std::max(of_any, seen_[one->id].count);
        if (one->collection == need.collection) of_it = std::max(of_it, seen_[one->id].count);
      }
      const std::int64_t given = of_it > 0 ? of_it : of_any;
      if (given == 0) continue;
      const Captures now{std::min(given, planned), planned};
      // The worse of two: the smaller part.
      if (!least || now.given * least->planned < least->given * now.planned) least = now;
    }
  }
  return least;
}

}  // namespace telltale::rules
