// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/dispatcher.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/json.h"
#include "rules/actions/kinds.h"

namespace telltale::rules {
namespace {

using nlohmann::ordered_json;

/// More can only come of a rule without a cool-down that finds something all the time.
constexpr std::size_t kMostTasks = 1000;

std::string Text(const ordered_json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::int64_t Integer(const ordered_json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

/// "stop the training", "post to a webhook".
std::string_view Words(std::string_view kind) {
  if (kind == "stop") return "stop the training";
  if (kind == "webhook") return "post to a webhook";
  if (kind == "email") return "send a mail";
  if (kind == "sms") return "send a text message";
  if (kind == "program") return "run a program";
  if (kind == "capture") return "keep whole tensors";
  if (kind == "profile") return "start a profiler window";
  return kind;
}

ActionEvent Done(const std::string& rule, const std::string& kind, const std::string& action_id,
                 const std::string& key, const std::vector<std::string>& keys,
                 std::string_view outcome, const std::string& detail) {
  return {"action.done", outcome == "done" ? "info" : "medium", "rule:" + rule,
          fmt::format("{}: {}: {}", Words(kind), outcome, detail),
          JsonText(ordered_json{{"key", key},
                                {"action", kind},
                                {"id", action_id},
                                {"keys", keys},
                                {"outcome", outcome},
                                {"detail", detail}})};
}

}  // namespace

/// A few threads for what takes its time; the jobs of one action come one after the other.
class Dispatcher::Workers {
 public:
  ~Workers() { Stop(); }

  void Submit(const std::string& action_id, std::function<Outcome()> job) {
    Lane& lane = lanes_[std::hash<std::string>()(action_id) % lanes_.size()];
    const std::lock_guard lock(mutex_);
    lane.jobs.push_back(std::move(job));
    if (!lane.thread.joinable()) lane.thread = std::thread([this, &lane] { Run(&lane); });
    wake_.notify_all();
  }

  std::vector<Outcome> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(outcomes_, {});
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      wake_.notify_all();
    }
    for (Lane& lane : lanes_) {
      if (lane.thread.joinable()) lane.thread.join();
    }
  }

  const std::atomic<bool>& stopped() const { return stop_; }

  /// Waits so long; false where it is time to end.
  bool Wait(double seconds) {
    std::unique_lock lock(mutex_);
    return !wake_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [this] { return stop_.load(); });
  }

 private:
  struct Lane {
    std::deque<std::function<Outcome()>> jobs;
    std::thread thread;
  };

  void Run(Lane* lane) {
    // A server that hangs up is an error to handle, not the end.
    sigset_t pipe;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_.load() || !lane->jobs.empty(); });
      if (stop_.load()) return;
      const std::function<Outcome()> job = std::move(lane->jobs.front());
      lane->jobs.pop_front();
      lock.unlock();
      Outcome outcome = job();
      lock.lock();
      outcome.cut_short = stop_.load() && !outcome.status.ok();
      outcomes_.push_back(std::move(outcome));
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stop_ = false;
  std::array<Lane, 16> lanes_;  ///< A slow server holds up few others.
  std::vector<Outcome> outcomes_;
};

Dispatcher::Dispatcher(const std::vector<RuleSpec>& rules, DispatcherOptions options)
    : options_(std::move(options)),
      decider_(rules, options_.consent),
      workers_(std::make_unique<Workers>()) {}

Dispatcher::~Dispatcher() = default;

void Dispatcher::Stop() {
  stopped_ = true;
  workers_->Stop();
}

bool Dispatcher::idle() const { return tasks_.empty() && recalled_.empty() && outcomes_.empty(); }

void Dispatcher::Recall(std::string_view kind, std::string_view data, std::int64_t run_ns) {
  const ordered_json json = ParseOrderedJson(data);
  if (!json.is_object()) return;
  const std::string key = Text(json, "key");
  if (key.empty()) return;
  if (kind == "action.decided") {
    const std::string held = Text(json, "held");
    decider_.Recall(key, Text(json, "rule"), Text(json, "id"), held, run_ns);
    if (held.empty()) {
      recalled_.push_back(
          {key, Text(json, "rule"), Text(json, "incident"), Text(json, "id"), Text(json, "action"),
           Integer(json, "due_ns"), Integer(json, "unix_ns"),
           static_cast<std::uint32_t>(std::clamp<std::int64_t>(
               Integer(json, "attempt"), 0, std::numeric_limits<std::uint32_t>::max())),
           false});
    }
    return;
  }
  std::vector<std::string> keys = {key};
  if (const auto more = json.find("keys"); more != json.end() && more->is_array()) {
    for (const ordered_json& each : *more) {
      if (each.is_string()) keys.push_back(each.get<std::string>());
    }
  }
  const auto named = [&](const Recalled& r) {
    return std::find(keys.begin(), keys.end(), r.key) != keys.end();
  };
  if (kind == "action.done") {
    std::erase_if(recalled_, named);
  } else if (kind == "action.started") {
    for (Recalled& r : recalled_) r.started = r.started || named(r);
  }
}

std::string Dispatcher::WhyTooLate(std::string_view kind, const Finding& finding,
                                   const Moment& now) {
  const ActionKind* known = FindActionKind(kind);
  if (known == nullptr || !known->of_the_training) return {};
  if (now.over) return "the training had ended before";
  return finding.open ? std::string() : "what set it off was over before";
}

void Dispatcher::Let(const Task& task, const std::string& why, std::vector<ActionEvent>* out) {
  const Decision& d = task.decision;
  out->push_back(Done(d.finding.rule, d.spec.kind, d.action_id, d.key, {d.key}, "failed", why));
}

/// What a watcher before us has decided and not done.
void Dispatcher::TakeUp(const std::vector<Finding>& all, const Moment& now,
                        std::vector<ActionEvent>* out) {
  for (const Recalled& r : std::exchange(recalled_, {})) {
    const ActionSpec* spec = decider_.Find(r.rule, r.action_id);
    const auto finding =
        std::find_if(all.begin(), all.end(), [&](const Finding& f) { return f.id == r.incident; });
    const ActionKind* kind = FindActionKind(r.kind);
    std::string why;
    if (r.started && (kind == nullptr || !kind->repeatable)) {
      why = "the watcher ended while it was being done; it is not done a second time";
    } else if (spec != nullptr && !decider_.WhyNot(r.rule, r.action_id).empty()) {
      // What another user's watcher has decided, or what the run's files make of it.
      why = fmt::format("it is {} by who runs this watcher", decider_.WhyNot(r.rule, r.action_id));
    } else if (spec == nullptr || kind == nullptr || (finding == all.end() && now.over)) {
      why = "the rules have changed since it was decided";
    } else if (finding == all.end()) {
      // The records that lead to it have not been read again yet.
      recalled_.push_back(r);
      continue;
    } else {
      why = WhyTooLate(r.kind, *finding, now);
    }
    if (!why.empty()) {
      out->push_back(
          Done(r.rule, r.kind, r.action_id, r.key, {r.key}, r.started ? "unknown" : "failed", why));
      continue;
    }
    Task task;
    task.decision = {r.key, r.action_id, *spec, *finding, r.due_ns, r.unix_ns, r.attempt, {}};
    task.stage = Stage::kWaiting;
    tasks_.push_back(std::move(task));
  }
}

/// What is due begins: first in the journal.
void Dispatcher::Start(const std::vector<Finding>& all, const Moment& now,
                       std::vector<ActionEvent>* out) {
  // What waited for others may be over by now.
  std::erase_if(tasks_, [&](const Task& task) {
    const bool ready = task.stage == Stage::kWaiting || task.stage == Stage::kDecided;
    if (!ready || (task.decision.due_ns > now.run_ns && !now.over)) return false;
    const auto finding = std::find_if(
        all.begin(), all.end(), [&](const Finding& f) { return f.id == task.decision.finding.id; });
    const std::string why =
        finding == all.end() ? "" : WhyTooLate(task.decision.spec.kind, *finding, now);
    if (why.empty()) return false;
    Let(task, why, out);
    return true;
  });
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    const Task& first = tasks_[i];
    const bool ready = first.stage == Stage::kWaiting || first.stage == Stage::kDecided;
    if (!ready || (first.decision.due_ns > now.run_ns && !now.over)) continue;
    const ActionSpec& spec = first.decision.spec;
    const bool groups = TellsOfMany(spec.kind);
    const std::string lead = first.decision.key;
    const std::string id = first.decision.action_id;
    std::vector<std::string> keys;
    for (std::size_t k = i; k < tasks_.size(); ++k) {
      Task& task = tasks_[k];
      const bool waits = task.stage == Stage::kWaiting || task.stage == Stage::kDecided;
      if (!waits || task.decision.action_id != id || (k != i && !groups)) continue;
      task.stage = Stage::kStarting;
      task.lead = lead;
      keys.push_back(task.decision.key);
    }
    out->push_back(
        {"action.started", "info", "rule:" + tasks_[i].decision.finding.rule,
         fmt::format("{}: begins", Words(spec.kind)),
         JsonText(ordered_json{{"key", lead}, {"action", spec.kind}, {"id", id}, {"keys", keys}})});
  }
}

void Dispatcher::Finish(bool last, std::vector<ActionEvent>* out) {
  std::vector<Outcome> outcomes = std::exchange(outcomes_, {});
  for (Outcome& outcome : workers_->Take()) outcomes.push_back(std::move(outcome));
  for (const Outcome& outcome : outcomes) {
    std::vector<std::string> keys;
    std::string rule, kind, id;
    for (const Task& task : tasks_) {
      if (task.lead != outcome.lead) continue;
      if (keys.empty()) {
        rule = task.decision.finding.rule;
        kind = task.decision.spec.kind;
        id = task.decision.action_id;
      }
      keys.push_back(task.decision.key);
    }
    std::erase_if(tasks_, [&](const Task& task) { return task.lead == outcome.lead; });
    if (keys.empty()) continue;
    const ActionKind* known = FindActionKind(kind);
    // The next watcher does it again, under the same key.
    if (outcome.cut_short && !last && known != nullptr && known->repeatable) continue;
    out->push_back(Done(rule, kind, id, outcome.lead, keys, outcome.status.ok() ? "done" : "failed",
                        outcome.status.ok() ? outcome.detail : outcome.status.message()));
  }
}

std::vector<ActionEvent> Dispatcher::Round(const std::vector<Finding>& fresh,
                                           const std::vector<Finding>& all, const Moment& now) {
  std::vector<ActionEvent> out;
  if (stopped_) {
    // What has not begun is the next watcher's.
    Finish(now.over, &out);
    if (!now.over) return out;
    for (const Task& task : std::exchange(tasks_, {})) {
      Let(task, "the recording ended before it was done", &out);
    }
    return out;
  }
  TakeUp(all, now, &out);
  for (Decision& decision : decider_.Decide(fresh, now)) {
    const Finding& finding = decision.finding;
    if (decision.held.empty() && tasks_.size() >= kMostTasks) decision.held = "too many wait";
    const std::string what =
        decision.held.empty() ? fmt::format("{}: {}: {}", Words(decision.spec.kind), finding.rule,
                                            finding.incident.message)
        : decision.held == kDryRun
            ? fmt::format("would {}: {}: {}", Words(decision.spec.kind), finding.rule,
                          finding.incident.message)
            : fmt::format("does not {} ({}): {}: {}", Words(decision.spec.kind), decision.held,
                          finding.rule, finding.incident.message);
    out.push_back({"action.decided", "info", "rule:" + finding.rule, what,
                   JsonText(ordered_json{{"key", decision.key},
                                         {"action", decision.spec.kind},
                                         {"id", decision.action_id},
                                         {"rule", finding.rule},
                                         {"incident", finding.id},
                                         {"severity", Name(finding.incident.severity)},
                                         {"held", decision.held},
                                         {"due_ns", decision.due_ns},
                                         {"unix_ns", decision.unix_ns},
                                         {"attempt", decision.attempt}})});
    if (!decision.held.empty()) continue;
    Task task;
    task.decision = std::move(decision);
    tasks_.push_back(std::move(task));
  }
  Start(all, now, &out);
  Finish(false, &out);
  return out;
}

bool Dispatcher::Journalled() {
  bool any = false;
  for (Task& task : tasks_) {
    if (task.stage == Stage::kDecided) task.stage = Stage::kWaiting;
    if (task.stage != Stage::kStarting) continue;
    task.stage = Stage::kJournalled;
    any = true;
  }
  return any;
}

void Dispatcher::Durable() {
  std::vector<std::string> leads;
  for (Task& task : tasks_) {
    if (task.stage != Stage::kJournalled) continue;
    task.stage = Stage::kActing;
    if (task.decision.key == task.lead) leads.push_back(task.lead);
  }
  for (const std::string& lead : leads) Perform(lead);
}

void Dispatcher::Perform(const std::string& lead) {
  Notice notice;
  notice.key = lead;
  notice.run = options_.run_id;
  notice.name = options_.run_name;
  notice.host = options_.host;
  notice.path = options_.run.string();
  ActionSpec spec;
  std::string id;
  ActContext at;
  for (const Task& task : tasks_) {
    if (task.lead != lead) continue;
    if (notice.findings.empty()) {
      spec = task.decision.spec;
      id = task.decision.action_id;
      at.unix_ns = task.decision.unix_ns;
      at.attempt = task.decision.attempt;
    }
    notice.findings.push_back(task.decision.finding);
    notice.held += decider_.TakeHeld(task.decision.finding.rule, task.decision.action_id);
  }
  if (notice.findings.empty()) return;
  at.run = options_.run;
  at.stop = &workers_->stopped();
  at.pause = [workers = workers_.get()](double seconds) { return workers->Wait(seconds); };
  auto job = [lead, spec, notice = std::move(notice), at]() -> Outcome {
    const Result<std::string> done = Act(spec, notice, at);
    return {lead, done.status(), done.ok() ? *done : std::string(), false};
  };
  if (!ActsOnNet(spec)) {
    outcomes_.push_back(job());
    return;
  }
  try {
    workers_->Submit(id, job);
  } catch (const std::exception& error) {
    // No thread can be had.
    outcomes_.push_back({lead, Status(Code::kLimit, error.what()), {}, false});
  }
}

}  // namespace telltale::rules
