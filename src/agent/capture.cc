// SPDX-License-Identifier: Apache-2.0
#include "agent/capture.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/process.h"

namespace telltale::agent {
namespace {

using nlohmann::ordered_json;

/// So long an answer waits for the first step under the new plan: an evaluation of another mode, a
/// checkpoint or a step of minutes may be in between.
constexpr std::int64_t kAnswerPatienceNs = 2'000'000'000;
constexpr std::array<std::string_view, 4> kModeNames = {"TRAIN", "EVAL", "PREDICT", "GLOBAL"};

}  // namespace

Result<std::unique_ptr<Capture>> Capture::Create(CaptureOptions options, Answered answered) {
  TELLTALE_ASSIGN_OR_RETURN(plan::Compiled compiled, plan::Compiled::Create(options.plan));
  return std::unique_ptr<Capture>(
      new Capture(std::move(options), std::move(answered), std::move(compiled)));
}

Capture::Capture(CaptureOptions options, Answered answered, plan::Compiled compiled)
    : options_(std::move(options)),
      answered_(std::move(answered)),
      plan_(options_.plan),
      compiled_(std::move(compiled)),
      budget_(options_.overhead_budget, compiled_.planned()),
      requests_(options_.run) {}

void Capture::SayPlan(const std::string& who, const std::string& id, std::int64_t now_ns,
                      Outbox* outbox) const {
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
}

/// {"plan": {...}} or {"toml": "...", "where": "plan.toml"}, with "base": "current" where it is
/// added to the plan as it is.
Result<plan::CapturePlan> Capture::PlanOf(const std::string& body) const {
  try {
    const ordered_json json = ParseOrderedJson(body);
    const auto wrong = [](std::string what) { return Status(Code::kUsage, std::move(what)); };
    if (!json.is_object()) return wrong("the request holds no JSON object");
    const std::string base = json.value("base", std::string("none"));
    if (base != "none" && base != "current") {
      return wrong(fmt::format("base '{}' is none: write current or none", base));
    }
    if (const auto trouble = json.find("trouble"); trouble != json.end() && trouble->is_string()) {
      return wrong(trouble->get<std::string>());
    }
    plan::CapturePlan asked;
    if (const auto plan = json.find("plan"); plan != json.end()) {
      TELLTALE_ASSIGN_OR_RETURN(asked, plan::FromJson(JsonText(*plan)));
    } else if (const auto toml = json.find("toml"); toml != json.end() && toml->is_string()) {
      TELLTALE_ASSIGN_OR_RETURN(asked, plan::FromToml(toml->get<std::string>(),
                                                      json.value("where", std::string("plan"))));
    } else {
      return wrong("the request holds neither plan nor toml");
    }
    return base == "current" ? plan::Union(plan_, asked) : asked;
  } catch (const std::exception& error) {
    return Status(Code::kUsage, fmt::format("the request cannot be read: {}", error.what()));
  }
}

/// Takes the plan over, or leaves everything as it is.
Status Capture::Edit(const std::string& body) {
  TELLTALE_ASSIGN_OR_RETURN(plan::CapturePlan plan, PlanOf(body));
  TELLTALE_ASSIGN_OR_RETURN(plan::Compiled compiled, plan::Compiled::Create(plan));
  plan_ = std::move(plan);
  compiled_ = std::move(compiled);
  budget_.Restart(compiled_.planned());
  ++epoch_;
  edited_ = true;
  return {};
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
  event.data = JsonText(data);
  event.marks = {{open.id, kRequestMarkRing, 1}};
  outbox->Add(std::move(event));
}

void Capture::Take(const store::Request& request, std::int64_t now_ns, Outbox* outbox) {
  const bool earlier = request.time_ns < options_.attempt_start_ns;
  if (answered_(request.id)) {
    // A predecessor has said so; what it took over holds on.
    if (earlier || request.kind != "plan") return;
    [[maybe_unused]] const Status refused_then_and_now = Edit(request.body);
    return;
  }
  if (request.kind == "stop" && options_.stop) {
    // Also where it comes late: a stop of the attempt before must not end this one.
    const Status taken = earlier
                             ? Status(Code::kUsage, "the attempt that it was asked of has ended")
                             : options_.stop(request, now_ns, outbox);
    if (!taken.ok()) Refuse(request.id, request.who, taken.message(), now_ns, outbox);
  } else if (request.kind == "profile") {
    Refuse(request.id, request.who, "this telltale records no profiler windows yet", now_ns,
           outbox);
  } else if (request.kind != "plan") {
    Refuse(request.id, request.who,
           fmt::format("this telltale knows no request '{}'", request.kind), now_ns, outbox);
  } else if (earlier && first_look_) {
    Refuse(request.id, request.who, "the attempt that it was asked of has ended: ask again", now_ns,
           outbox);
  } else if (const Status status = Edit(request.body); !status.ok()) {
    Refuse(request.id, request.who, status.message(), now_ns, outbox);
  } else {
    SayPlan(request.who, store::Hex(request.id), now_ns, outbox);
    open_.push_back({request.id, request.who, 0});
  }
}

void Capture::Poll(std::int64_t now_ns, Outbox* outbox) {
  const store::RequestReader::Found found = requests_.Poll();
  for (const auto& damaged : found.damaged) {
    if (!answered_(damaged.id)) Refuse(damaged.id, damaged.who, damaged.why, now_ns, outbox);
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
    request.kind = "plan";
    request.body = asked.body;
    const auto written = store::WriteRequest(options_.run, std::move(request));
    if (written.ok()) continue;
    if (written.status().code() != Code::kIo) {
      Refuse({}, asked.who, written.status().message(), now_ns, outbox);
    } else if (const Status status = Edit(asked.body); !status.ok()) {
      Refuse({}, asked.who, status.message(), now_ns, outbox);
    } else {
      SayPlan(asked.who, {}, now_ns, outbox);
    }
  }
  asked_.clear();
}

void Capture::CountOwn(std::uint64_t cpu_ns, std::int64_t now_ns, Outbox* outbox) {
  const auto cores = static_cast<unsigned>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  if (const auto share = own_cpu_.Share(cpu_ns, now_ns, cores)) {
    budget_.OwnCost(*share, now_ns, outbox);
  }
}

bool Capture::TakesHistograms() const {
  const auto planned = compiled_.planned();
  return std::any_of(planned.begin(), planned.end(), [](const plan::PlannedRule& rule) {
    return (rule.take & plan::kHistogram) != 0;
  });
}

void Capture::Introduce(Producer* producer) const {
  producer->Publish(compiled_, plan_.slab_bytes, Producer::Names::kAgain);
}

void Capture::AnswerNames(Producer* producer) const {
  // The edit is published next: until then a probe has rules that the new answers do not fit.
  if (edited_) return;
  producer->AnswerNames(compiled_);
  if (compiled_.slides()) producer->Slide(compiled_, plan_.slab_bytes);
}

void Capture::Publish(const Producers& producers, const std::function<std::int64_t()>& run_now) {
  const bool thinned = compiled_.thinning() != budget_.thinning();
  if (!thinned && !edited_) return;
  compiled_.Apply(budget_.thinning());
  const auto names = edited_ ? Producer::Names::kAgain : Producer::Names::kKept;
  for (const auto& producer : producers) producer->Publish(compiled_, plan_.slab_bytes, names);
  const std::int64_t now_ns = run_now();
  budget_.Published(now_ns);
  for (Open& open : open_) {
    if (open.published_ns == 0) open.published_ns = now_ns;
  }
  producers_ = !producers.empty();
  edited_ = false;
}

}  // namespace telltale::agent
