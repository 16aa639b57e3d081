// SPDX-License-Identifier: Apache-2.0
#include "agent/capture.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/json.h"
#include "base/process.h"
#include "base/toml_tree.h"
#include "plan/profiler_config.h"
#include "plan/window.h"
#include "store/folder.h"

namespace telltale::agent {
namespace {

using nlohmann::ordered_json;

/// So long an answer waits for the first step under the new plan: an evaluation of another mode, a
/// checkpoint or a step of minutes may be in between.
constexpr std::int64_t kAnswerPatienceNs = 2'000'000'000;
constexpr std::array<std::string_view, 4> kModeNames = {"TRAIN", "EVAL", "PREDICT", "GLOBAL"};
constexpr std::int64_t kConfigPeriodNs = 1'000'000'000;
constexpr std::uint64_t kMaxConfigBytes = 1 << 20;
/// Windows that open once, when they are asked for: so many of the newest stay in the plan.
constexpr std::size_t kMaxOnce = 8;

/// Those that open once are over by the time that as many others were asked for.
void ForgetOldWindows(std::vector<plan::Window>* windows) {
  auto once = static_cast<std::size_t>(
      std::count_if(windows->begin(), windows->end(), [](const auto& w) { return w.next != 0; }));
  std::erase_if(*windows, [&](const plan::Window& window) {
    if (window.next == 0 || once <= kMaxOnce) return false;
    --once;
    return true;
  });
}

/// Collections that the plan of a request itself names.
std::set<std::string> NamesOf(const ordered_json& request) {
  std::set<std::string> names;
  const auto add = [&](const auto& plan) {
    const auto found = plan.find("collections");
    if (found == plan.end() || !found->is_object()) return;
    for (const auto& [name, ignored] : found->items()) names.insert(name);
  };
  if (const auto plan = request.find("plan"); plan != request.end() && plan->is_object()) {
    add(*plan);
  } else if (const auto toml = request.find("toml"); toml != request.end() && toml->is_string()) {
    const auto tree = TomlTree::Parse(toml->get<std::string>(), "plan", "docs/formats/plan.md");
    if (tree.ok()) add(tree->root());
  }
  return names;
}

}  // namespace

Result<std::unique_ptr<Capture>> Capture::Create(CaptureOptions options, Answered answered) {
  TELLTALE_ASSIGN_OR_RETURN(plan::Compiled compiled, plan::Compiled::Create(options.plan));
  TELLTALE_ASSIGN_OR_RETURN(std::string windows, plan::WindowsText(options.plan.windows));
  return std::unique_ptr<Capture>(new Capture(std::move(options), std::move(answered),
                                              std::move(compiled), std::move(windows)));
}

Capture::Capture(CaptureOptions options, Answered answered, plan::Compiled compiled,
                 std::string windows)
    : options_(std::move(options)),
      answered_(std::move(answered)),
      plan_(options_.plan),
      compiled_(std::move(compiled)),
      windows_(std::move(windows)),
      budget_(options_.overhead_budget, compiled_.planned(), compiled_.intervals(),
              options_.attempt_start_ns),
      requests_(options_.run) {}

void Capture::SayPlan(const std::string& who, const std::string& id, std::int64_t now_ns,
                      Outbox* outbox) {
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "plan";
  event.subject = "plan";
  event.message = fmt::format("capture plan {}, level {}, by {}", epoch_, plan_.level, who);
  ordered_json data = {{"epoch", epoch_}, {"who", who}};
  if (!id.empty()) data["request"] = id;
  data["plan"] = ParseOrderedJson(plan::ToJson(plan_));
  event.data = JsonText(data);
  outbox->Add(std::move(event));
  budget_.SayAgain("Another plan", now_ns, outbox);
}

/// {"plan": {...}} or {"toml": "...", "where": "plan.toml"}, with "base": "current" where it is
/// added to the plan as it is.
Result<plan::CapturePlan> Capture::PlanOf(const std::string& body, std::int64_t asked_ns) const {
  try {
    const ordered_json json = ParseOrderedJson(body);
    const auto wrong = [](std::string what) { return Status(Code::kUsage, std::move(what)); };
    if (!json.is_object()) return wrong("the request holds no JSON object");
    const std::string base = json.value("base", std::string("none"));
    if (base != "none" && base != "current") {
      return wrong(fmt::format("base '{}' is unknown: write current or none", base));
    }
    if (const auto trouble = json.find("trouble"); trouble != json.end() && trouble->is_string()) {
      return wrong(trouble->get<std::string>());
    }
    const plan::Stands stands = base == "current" ? plan::Stands::kAdded : plan::Stands::kAlone;
    plan::CapturePlan asked;
    if (const auto plan = json.find("plan"); plan != json.end()) {
      TELLTALE_ASSIGN_OR_RETURN(asked, plan::FromJson(JsonText(*plan), stands));
    } else if (const auto toml = json.find("toml"); toml != json.end() && toml->is_string()) {
      TELLTALE_ASSIGN_OR_RETURN(
          asked, plan::FromToml(toml->get<std::string>(), json.value("where", std::string("plan")),
                                stands));
    } else {
      return wrong("the request holds neither plan nor toml");
    }
    // From inside the training: what it names is asked for by name, what a level has is not.
    if (json.value("asked", false)) {
      const std::set<std::string> names = NamesOf(json);
      for (plan::Collection& collection : asked.collections) {
        if (names.contains(collection.name)) collection.asked = true;
      }
    }
    for (plan::Window& window : asked.windows) {
      if (window.next != 0 && window.asked_ns == 0) window.asked_ns = asked_ns;
    }
    return base == "current" ? plan::Union(plan_, asked) : asked;
  } catch (const std::exception& error) {
    return Status(Code::kUsage, fmt::format("the request cannot be read: {}", JsonTrouble(error)));
  }
}

/// Takes the plan over, or leaves everything as it is.
Status Capture::Edit(const std::string& body, std::int64_t asked_ns) {
  TELLTALE_ASSIGN_OR_RETURN(plan::CapturePlan plan, PlanOf(body, asked_ns));
  return Edit(std::move(plan));
}

Status Capture::Edit(plan::CapturePlan plan) {
  TELLTALE_ASSIGN_OR_RETURN(plan::Compiled compiled, plan::Compiled::Create(plan));
  TELLTALE_ASSIGN_OR_RETURN(std::string windows, plan::WindowsText(plan.windows));
  // What the governor knows is of the tensors that are taken: a window changes nothing of it.
  const bool same_tensors = plan.collections == plan_.collections;
  plan_ = std::move(plan);
  compiled_ = std::move(compiled);
  windows_ = std::move(windows);
  if (same_tensors) {
    compiled_.Apply(budget_.thinning());
  } else {
    budget_.Restart(compiled_.planned(), compiled_.intervals());
  }
  ++epoch_;
  edited_ = true;
  return {};
}

/// {"windows": {NAME: {...}}}, with "" as the name of one that has none of its own; or, of a rule's
/// action, {"steps": N, "detail": [...], "incident": ID}: the next N steps.
Status Capture::EditWindows(const store::Request& request, std::string* windows) {
  try {
    const ordered_json body = ParseOrderedJson(request.body);
    const auto wrong = [](std::string what) { return Status(Code::kUsage, std::move(what)); };
    if (!body.is_object()) return wrong("the request holds no JSON object");
    ordered_json asked = ordered_json::object();
    if (const auto found = body.find("windows"); found != body.end()) {
      asked = *found;
    } else {
      asked[""] = {{"next", body.value("steps", ordered_json(5))}};
      if (body.contains("detail")) asked[""]["detail"] = body["detail"];
    }
    if (!asked.is_object() || asked.empty()) return wrong("the request asks for no window");
    const std::string incident = body.value("incident", std::string());
    const std::string own =
        incident.empty() ? "capture-" + store::Hex(request.id).substr(24) : "incident-" + incident;
    ordered_json named = ordered_json::object();
    windows->clear();
    for (auto& [name, window] : asked.items()) {
      const std::string& as = name.empty() ? own : name;
      named[as] = window;
      if (window.is_object() && window.contains("next")) named[as]["asked_ns"] = AskedNs(request);
      *windows += (windows->empty() ? "" : ", ") + as;
    }
    const ordered_json plan = {{"collections", ordered_json::object()}, {"windows", named}};
    TELLTALE_ASSIGN_OR_RETURN(const plan::CapturePlan more, plan::FromJson(JsonText(plan)));
    plan::CapturePlan all = plan::Union(plan_, more);
    ForgetOldWindows(&all.windows);
    return Edit(std::move(all));
  } catch (const std::exception& error) {
    return Status(Code::kUsage, fmt::format("the request cannot be read: {}", JsonTrouble(error)));
  }
}

void Capture::Refuse(const store::RequestId& id, const std::string& who, const std::string& why,
                     std::int64_t now_ns, Outbox* outbox) const {
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "request.refused";
  event.severity = "low";
  event.subject = "plan";
  event.message = fmt::format("a request of {} is refused: {}", who, why);
  event.data = JsonText(ordered_json{{"id", store::Hex(id)}, {"who", who}, {"why", why}});
  if (id != store::RequestId{}) event.marks = {{id, kRequestMarkRing, 1}};
  outbox->Add(std::move(event));
}

void Capture::Done(const Open& open, const SeenStep* step, std::int64_t now_ns,
                   Outbox* outbox) const {
  PendingEvent event;
  event.time_ns = now_ns;
  event.kind = "request.done";
  event.subject = "plan";
  ordered_json data = {{"id", store::Hex(open.id)}, {"who", open.who}, {"epoch", epoch_}};
  if (step != nullptr) {
    data["mode"] = kModeNames[step->mode];
    data["step"] = step->step;
    event.message = fmt::format("capture plan {} holds from {} step {} on", epoch_,
                                kModeNames[step->mode], step->step);
  } else if (newest_[0] >= 0) {
    // Known only once a step has ended under it, and none has for a while.
    data["mode"] = kModeNames[0];
    data["after_step"] = newest_[0];
    event.message = fmt::format(
        "capture plan {} holds from the step that begins next: {} step {} is the "
        "newest that has ended",
        epoch_, kModeNames[0], newest_[0]);
  } else {
    event.message = fmt::format("capture plan {} holds from the first step on", epoch_);
  }
  if (!open.windows.empty()) {
    data["windows"] = open.windows;
    event.message = step != nullptr ? fmt::format("window {} is asked for, from {} step {} on",
                                                  open.windows, kModeNames[step->mode], step->step)
                                    : fmt::format(
                                          "window {} is asked for, from the step that "
                                          "begins next on",
                                          open.windows);
  }
  event.data = JsonText(data);
  event.marks = {{open.id, kRequestMarkRing, 1}};
  outbox->Add(std::move(event));
}

bool Capture::Earlier(const store::Request& request) const {
  // The clock that its time is by may have been set since the attempt began.
  if (request.attempt != 0 && options_.attempt != 0) return request.attempt < options_.attempt;
  return request.time_ns < options_.attempt_start_ns;
}

std::int64_t Capture::AskedNs(const store::Request& request) const {
  const bool of_this = request.attempt != 0 && request.attempt == options_.attempt;
  return of_this ? std::max(request.time_ns, options_.attempt_start_ns) : request.time_ns;
}

void Capture::Take(const store::Request& request, std::int64_t now_ns, Outbox* outbox) {
  const bool earlier = Earlier(request);
  if (answered_(request.id)) {
    // A predecessor has said so; what it took over holds on.
    if (earlier) return;
    if (request.kind == "stop" && options_.stop_answered) options_.stop_answered(request);
    std::string ignored;
    [[maybe_unused]] const Status refused_then_and_now =
        request.kind == "plan"      ? Edit(request.body, AskedNs(request))
        : request.kind == "profile" ? EditWindows(request, &ignored)
                                    : Status();
    return;
  }
  if (request.kind == "stop" && options_.stop) {
    // Also where it comes late: a stop of the attempt before must not end this one.
    const Status taken = earlier
                             ? Status(Code::kUsage, "the attempt that it was asked of has ended")
                             : options_.stop(request, now_ns, outbox);
    if (!taken.ok()) Refuse(request.id, request.who, taken.message(), now_ns, outbox);
  } else if (request.kind == "lookback" && options_.look_back) {
    // Of an attempt that is over nothing is held any more.
    const Status taken = earlier
                             ? Status(Code::kUsage, "the attempt that it was asked of has ended")
                             : options_.look_back(request, now_ns, outbox);
    // A watcher's, of every finding of the attempts before: nobody waits for the answer.
    const bool silent = earlier && request.who == "watch";
    if (!taken.ok() && !silent) {
      Refuse(request.id, request.who, taken.message(), now_ns, outbox);
    }
  } else if (request.kind != "plan" && request.kind != "profile") {
    Refuse(request.id, request.who,
           fmt::format("this telltale knows no request '{}'", request.kind), now_ns, outbox);
  } else if (earlier && first_look_) {
    Refuse(request.id, request.who, "the attempt that it was asked of has ended: ask again", now_ns,
           outbox);
  } else {
    std::string windows;
    const Status status = request.kind == "plan" ? Edit(request.body, AskedNs(request))
                                                 : EditWindows(request, &windows);
    if (!status.ok()) {
      Refuse(request.id, request.who, status.message(), now_ns, outbox);
      return;
    }
    SayPlan(request.who, store::Hex(request.id), now_ns, outbox);
    open_.push_back({request.id, request.who, 0, std::move(windows)});
  }
}

void Capture::LookAtProfilerConfig(std::int64_t now_ns, Outbox* outbox) {
  if (options_.profiler_config.empty() ||
      (config_looked_ns_ != 0 && now_ns - config_looked_ns_ < kConfigPeriodNs)) {
    return;
  }
  config_looked_ns_ = now_ns;
  struct stat there {};
  std::int64_t changed = 0;
  if (::stat(options_.profiler_config.c_str(), &there) == 0 && S_ISREG(there.st_mode)) {
    changed = std::int64_t{there.st_mtim.tv_sec} * 1'000'000'000 + there.st_mtim.tv_nsec;
  }
  if (changed == config_changed_ns_) return;
  config_changed_ns_ = changed;
  const std::string who = options_.profiler_config.string();
  plan::CapturePlan plan = plan_;
  std::erase_if(plan.windows, [](const plan::Window& window) {
    return window.name.starts_with(plan::kProfilerConfigPrefix);
  });
  if (changed != 0) {
    const auto text = store::ReadWholeFile(options_.profiler_config, kMaxConfigBytes);
    const auto windows = text.ok() ? plan::WindowsOfProfilerConfig(*text)
                                   : Result<std::vector<plan::Window>>(text.status());
    if (!windows.ok()) {
      Refuse({}, who, windows.status().message(), now_ns, outbox);
      return;
    }
    plan.windows.insert(plan.windows.end(), windows->begin(), windows->end());
  }
  if (plan.windows == plan_.windows) return;
  if (const Status status = Edit(std::move(plan)); !status.ok()) {
    Refuse({}, who, status.message(), now_ns, outbox);
  } else {
    SayPlan(who, {}, now_ns, outbox);
  }
}

void Capture::Poll(std::int64_t now_ns, Outbox* outbox) {
  LookAtProfilerConfig(now_ns, outbox);
  store::RequestReader::Found found = requests_.Poll();
  for (const auto& damaged : found.damaged) {
    if (!answered_(damaged.id)) Refuse(damaged.id, damaged.who, damaged.why, now_ns, outbox);
  }
  // A stop that is under way comes before one that may take its place, whenever they were asked.
  if (options_.stop_begun) {
    std::stable_partition(found.requests.begin(), found.requests.end(),
                          [&](const auto& request) { return options_.stop_begun(request.id); });
  }
  for (const store::Request& request : found.requests) Take(request, now_ns, outbox);
  first_look_ = false;
  std::erase_if(open_, [&](const Open& open) {
    if (open.published_ns == 0) return false;
    if (producers_ && now_ns - open.published_ns < kAnswerPatienceNs) return false;
    Done(open, nullptr, now_ns, outbox);
    return true;
  });
}

void Capture::Offer(const format::Rows& rows) {
  budget_.Offer(rows.steps);
  for (const format::StepRow& row : rows.steps) {
    if (const auto mode = ModeOf(row.mode)) steps_.push_back({*mode, row.step, row.time_ns});
  }
  for (const format::EventRow& row : rows.events) {
    if (row.kind != "plan.request") continue;
    asked_.push_back({fmt::format("telltale.capture, rank {}, pid {}", row.rank, row.pid),
                      std::string(row.data)});
  }
}

void Capture::Settle(bool taken, std::int64_t now_ns, Outbox* outbox) {
  if (!taken) {
    budget_.Rollback();
    steps_.clear();
    asked_.clear();
    return;
  }
  for (const SeenStep& seen : steps_) {
    newest_[seen.mode] = std::max(newest_[seen.mode], seen.step);
    std::erase_if(open_, [&](const Open& open) {
      if (open.published_ns == 0 || seen.begin_ns < open.published_ns) return false;
      Done(open, &seen, now_ns, outbox);
      return true;
    });
  }
  steps_.clear();
  budget_.Commit(now_ns, outbox);
  for (const Asked& asked : asked_) {
    // As a file it outlives this agent, and leaves its trace like every other.
    store::Request request;
    request.who = asked.who;
    request.attempt = options_.attempt;
    request.kind = "plan";
    request.body = asked.body;
    const auto written = store::WriteRequest(options_.run, std::move(request));
    if (written.ok()) continue;
    if (written.status().code() != Code::kIo) {
      Refuse({}, asked.who, written.status().message(), now_ns, outbox);
    } else if (const Status status = Edit(asked.body, Clock::System().RealtimeNs()); !status.ok()) {
      Refuse({}, asked.who, status.message(), now_ns, outbox);
    } else {
      SayPlan(asked.who, {}, now_ns, outbox);
    }
  }
  asked_.clear();
}

void Capture::CountOwn(std::uint64_t cpu_ns, std::int64_t now_ns, Outbox* outbox) {
  if (const auto share = own_cpu_.Share(cpu_ns, now_ns)) {
    budget_.OwnCost(*share, own_cpu_.wall_ns(), now_ns, outbox);
  }
}

bool Capture::TakesHistograms() const {
  const auto planned = compiled_.planned();
  return std::any_of(planned.begin(), planned.end(), [](const plan::PlannedRule& rule) {
    return (rule.take & plan::kHistogram) != 0;
  });
}

void Capture::Introduce(Producer* producer) const {
  producer->PublishWindows(windows_);
  producer->Publish(compiled_, plan_.SlabBytes(), Producer::Names::kAgain);
}

bool Capture::AnswerNames(Producer* producer) const {
  // The edit is published next: until then a probe has rules that the new answers do not fit.
  if (edited_) return true;
  const bool any = producer->AnswerNames(compiled_);
  return (compiled_.slides() && producer->Slide(compiled_, plan_.SlabBytes())) || any;
}

void Capture::Publish(const Producers& producers, const std::function<std::int64_t()>& run_now) {
  const bool thinned = compiled_.thinning() != budget_.thinning();
  if (!thinned && !edited_) return;
  compiled_.Apply(budget_.thinning());
  const auto names = edited_ ? Producer::Names::kAgain : Producer::Names::kKept;
  for (const auto& producer : producers) {
    producer->PublishWindows(windows_);
    producer->Publish(compiled_, plan_.SlabBytes(), names);
  }
  const std::int64_t now_ns = run_now();
  budget_.Published(now_ns);
  for (Open& open : open_) {
    if (open.published_ns == 0) open.published_ns = now_ns;
  }
  producers_ = !producers.empty();
  edited_ = false;
}

}  // namespace telltale::agent
