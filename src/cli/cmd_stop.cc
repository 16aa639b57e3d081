// SPDX-License-Identifier: Apache-2.0
// telltale stop: ends a running training and says what happened to each process. The request
// is a file in the run directory that each machine's agent carries out, so it works from any
// machine that can write there.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/units.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/event_feed.h"
#include "cli/output.h"
#include "store/folder.h"
#include "store/requests.h"
#include "store/run_info.h"

namespace telltale::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kStatePeriodNs = kSecond / 2;
/// So long after the end of a run its agent may be silent, which has the rest to say.
constexpr std::int64_t kLastWordsNs = 15 * kSecond;
/// Beside the times of the stop itself: for the agent to see it, or to be started again.
constexpr int kMarginSeconds = 60;
constexpr int kMostSeconds = 86'400;

constexpr std::string_view kExamples =
    "  telltale stop telltale-runs/x\n"
    "  telltale stop telltale-runs/x --why 'the loss has settled'\n"
    "  telltale stop telltale-runs/x --no-checkpoint --grace 5 --kill\n"
    "  telltale stop telltale-runs/x --wait 0";

struct Args {
  std::string run;
  std::string why;
  bool checkpoint = false;
  bool no_checkpoint = false;
  bool kill = false;
  int checkpoint_s = 120;
  int grace_s = 30;
  std::optional<std::int64_t> wait_s;
  bool json = false;
};

std::string Text(const ordered_json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool True(const ordered_json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

std::int64_t Number(const ordered_json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

ordered_json List(const ordered_json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_array() ? *found : ordered_json::array();
}

/// What the agents of a run say of one request to stop, as it comes in.
class StopAnswers {
 public:
  /// Those who record now: each is to answer.
  void Expect(const std::vector<std::string>& agents) {
    for (const std::string& agent : agents) machines_[agent];
  }

  /// `id`: the request; lines to print are added.
  void See(const format::EventRow& event, const std::string& writer, const std::string& id,
           std::vector<std::string>* lines) {
    const bool saved =
        event.kind == "stop.saved" || event.kind == "stop.failed" || event.kind == "stop.kept";
    const bool ours = saved || event.kind == "stop.begun" || event.kind == "stop.signal" ||
                      event.kind == "request.done" || event.kind == "request.refused";
    if (!ours) return;
    const ordered_json data = ParseOrderedJson(event.data);
    const auto known = machines_.find(writer);
    const bool goes_on = known != machines_.end() && !known->second.goes_on_as.empty();
    if (Text(data, saved ? "request" : "id") != (goes_on ? known->second.goes_on_as : id)) return;
    const std::string_view where = store::MachineOf(writer);
    if (saved) {
      lines->push_back(
          fmt::format("{}: rank {} (pid {}): {}", where, event.rank, event.pid, event.message));
      return;
    }
    Machine& machine = machines_[writer];
    const std::string next = Text(data, "goes_on_as");
    if (event.kind == "request.done" && !next.empty()) {
      machine.goes_on_as = next;
      lines->push_back(fmt::format("{}: {}", where, event.message));
    } else if (event.kind == "request.done") {
      machine.done = true;
      machine.message = event.message;
      machine.answer = data;
    } else if (event.kind == "request.refused") {
      machine.refused = Text(data, "why");
      if (machine.refused.empty()) machine.refused = event.message;
    } else if (event.kind == "stop.signal") {
      lines->push_back(fmt::format("{}: {}", where, event.message));
    }
  }

  struct Machine {
    bool done = false;
    std::string refused;  ///< Why.
    std::string message;
    ordered_json answer;
    /// The stricter request that has taken the place of ours: from there on its account counts.
    std::string goes_on_as;
  };
  /// By writer.
  const std::map<std::string, Machine>& machines() const { return machines_; }
  bool AllSaid() const {
    return !machines_.empty() &&
           std::all_of(machines_.begin(), machines_.end(), [](const auto& each) {
             return each.second.done || !each.second.refused.empty();
           });
  }

 private:
  std::map<std::string, Machine> machines_;
};

/// "rank 3 (pid 12): saved a checkpoint; SIGTERM sent; has ended".
std::string LineOf(const ordered_json& process) {
  const std::int64_t pid = Number(process, "pid");
  std::string line = True(process, "root")
                         ? fmt::format("the command (pid {})", pid)
                         : fmt::format("rank {} (pid {})", Number(process, "rank"), pid);
  std::string_view separator = ": ";
  const auto add = [&](std::string_view words) {
    line += separator;
    line += words;
    separator = "; ";
  };
  const std::string answer = Text(process, "answer");
  if (answer == "saved") add("saved a checkpoint");
  if (answer == "failed") add("could not save its checkpoint");
  for (const auto& [key, name] :
       {std::pair("sigterm", "SIGTERM"), std::pair("sigkill", "SIGKILL")}) {
    const std::string outcome = Text(process, key);
    if (outcome == "sent") add(fmt::format("{} sent", name));
    if (outcome == "had ended") add(fmt::format("had ended before {} was sent", name));
    if (outcome == "failed") add(fmt::format("{} could not be sent", name));
    if (outcome == "unknown") add(fmt::format("{} may have been sent", name));
  }
  const std::string state = Text(process, "state");
  add(state == "ended"  ? "has ended"
      : state == "kept" ? "still running: only its trial was ended"
                        : "still running");
  return line;
}

void PrintAccount(const std::string& writer, const StopAnswers::Machine& machine) {
  Print("{}: {}\n", Printable(store::MachineOf(writer)), Printable(machine.message));
  for (const ordered_json& process : List(machine.answer, "processes")) {
    Print("  {}\n", Printable(LineOf(process)));
  }
  for (const ordered_json& failure : List(machine.answer, "failures")) {
    if (failure.is_string()) Print("  {}\n", Printable(failure.get<std::string>()));
  }
}

/// Says what is known of each machine and returns the exit code.
int Report(const Args& args, const std::string& id, const StopAnswers& answers,
           const std::optional<Status>& gave_up) {
  const auto fail = [](const Status& status) { return Fail("stop", status); };
  std::size_t left = 0;
  std::string refused;
  bool stopped = !answers.machines().empty();
  ordered_json machines = ordered_json::array();
  for (const auto& [writer, machine] : answers.machines()) {
    left += List(machine.answer, "left").size();
    stopped = stopped && machine.done && True(machine.answer, "stopped");
    if (refused.empty()) refused = machine.refused;
    ordered_json one = {{"machine", store::MachineOf(writer)}};
    one["answer"] = machine.done ? machine.answer : ordered_json();
    one["goes_on_as"] =
        machine.goes_on_as.empty() ? ordered_json() : ordered_json(machine.goes_on_as);
    one["refused"] = machine.refused.empty() ? ordered_json() : ordered_json(machine.refused);
    machines.push_back(std::move(one));
    if (!args.json && machine.done) PrintAccount(writer, machine);
  }
  if (args.json) {
    Print("{}\n", DocumentText(ordered_json{
                      {"request", id}, {"stopped", stopped}, {"machines", std::move(machines)}}));
  }
  if (!refused.empty()) {
    return fail({Code::kUsage, fmt::format("the request was refused: {}", refused)});
  }
  if (gave_up) return fail(*gave_up);
  if (left > 0) {
    return fail(
        {Code::kLimit, fmt::format("{} is not stopped: {} of its processes {} still running: {}",
                                   args.run, left, left == 1 ? "is" : "are",
                                   args.kill ? "SIGKILL did not end them yet, as when a process "
                                               "waits for a disk or a device that does not answer"
                                             : "run the command again with --kill, or with a "
                                               "longer --grace")});
  }
  return 0;
}

std::int32_t CommandOf(const store::RunInfo& info) {
  return info.attempts.empty() ? 0 : info.attempts.back().pid;
}

/// Supervisor and agent have ended: no other agent comes while this training goes on.
bool IsUnrecorded(const store::RunState& state) {
  return state.state == "running" && state.unrecorded;
}

Status NobodyStopsIt(const std::string& run, const store::RunInfo& info) {
  return {Code::kUnusable,
          fmt::format("{} is not recorded any more: its supervisor and its agent have ended, so no "
                      "request is carried out: end the training itself, process {} on {}",
                      run, CommandOf(info), info.host)};
}

/// Follows the run until each agent has answered. Not ok: why that was given up.
Result<std::optional<Status>> Follow(const Args& args, const std::string& id, std::int64_t wait_s,
                                     EventFeed* events, StopAnswers* answers) {
  const Clock& clock = Clock::System();
  const std::int64_t deadline = clock.MonotonicNs() + wait_s * kSecond;
  std::int64_t look_at_state = clock.MonotonicNs() + kStatePeriodNs;
  bool over = false;
  std::int64_t newest = 0;
  std::int64_t moved_at = clock.MonotonicNs();
  while (true) {
    std::vector<std::string> lines;
    TELLTALE_RETURN_IF_ERROR(
        events->Read([&](const format::EventRow& event, const std::string& writer) {
          answers->See(event, writer, id, &lines);
        }));
    if (!args.json) {
      for (const std::string& line : lines) Print("{}\n", Printable(line));
    }
    if (answers->AllSaid()) return std::optional<Status>();
    const std::int64_t now = clock.MonotonicNs();
    if (const std::int64_t read = events->newest_ns(); read != newest) {
      newest = read;
      moved_at = now;
    }
    const bool silent = now - moved_at >= kLastWordsNs;
    if (over && (events->AtEnd() || silent || now >= deadline)) {
      return std::optional(
          Status(Code::kUnusable,
                 fmt::format("{} has ended, but what happened to its processes was not recorded: "
                             "request {} has no answer",
                             args.run, id)));
    }
    if (now >= deadline) {
      return std::optional(Status(
          Code::kLimit,
          fmt::format("no answer within {} s: the request stays in {}/requests and is carried out "
                      "as soon as the run's recorder, the agent, sees it; the command of the "
                      "training is process {} on {}",
                      wait_s, args.run, CommandOf(events->reader().info()),
                      events->reader().info().host)));
    }
    if (now >= look_at_state) {
      look_at_state = now + kStatePeriodNs;
      const store::RunState state = events->reader().state();
      over = state.state != "running";
      if (IsUnrecorded(state)) {
        return std::optional(NobodyStopsIt(args.run, events->reader().info()));
      }
    }
    events->GiveUpOnTheDead();
    EventFeed::Pause();
  }
}

int Stop(const Args& args) {
  const auto fail = [](const Status& status) { return Fail("stop", status); };
  if (args.checkpoint && args.no_checkpoint) {
    return fail({Code::kUsage, "--checkpoint and --no-checkpoint exclude each other: give one"});
  }
  for (const auto& [name, value] :
       {std::pair("--checkpoint-seconds", std::int64_t{args.checkpoint_s}),
        std::pair("--grace", std::int64_t{args.grace_s}),
        std::pair("--wait", args.wait_s.value_or(0))}) {
    if (value < 0 || value > kMostSeconds) {
      return fail({Code::kUsage, fmt::format("{} {} is out of range: choose 0 to {} seconds", name,
                                             value, kMostSeconds)});
    }
  }
  auto events = EventFeed::Open(args.run);
  if (!events.ok()) return fail(events.status());
  const store::RunState state = events->reader().state();
  if (state.state != "running") {
    return fail({Code::kUnusable, fmt::format("{} is {}: only a running training can be stopped",
                                              args.run, state.state)});
  }
  if (IsUnrecorded(state)) return fail(NobodyStopsIt(args.run, events->reader().info()));
  const Status read = events->Read([](const format::EventRow&, const std::string&) {});
  if (!read.ok()) return fail(read);
  StopAnswers answers;
  answers.Expect(events->RecordingAgents());

  store::Request request;
  request.who = store::RequestWho();
  request.kind = "stop";
  request.body = JsonText(ordered_json{{"why", args.why},
                                       {"checkpoint", !args.no_checkpoint},
                                       {"checkpoint_seconds", args.checkpoint_s},
                                       {"grace_seconds", args.grace_s},
                                       {"kill", args.kill}});
  // It is of the attempt that runs, also where this machine's clock is behind, or was set back; who
  // reads no number of an attempt goes by the time.
  const store::RunInfo& info = events->reader().info();
  request.attempt = store::NewestAttempt(info);
  request.time_ns = Clock::System().RealtimeNs();
  if (!info.attempts.empty()) {
    request.time_ns = std::max(request.time_ns, info.attempts.back().start_ns);
  }
  const auto written = store::WriteRequest(args.run, std::move(request));
  if (!written.ok()) return fail(written.status());
  const std::string id = store::Hex(written->id);
  const std::int64_t checkpoint_s = args.no_checkpoint ? 0 : args.checkpoint_s;
  const std::int64_t longest_s = checkpoint_s + args.grace_s;
  if (!args.json) {
    const std::string saving =
        args.no_checkpoint
            ? std::string("no checkpoint is waited for")
            : fmt::format("processes that save a checkpoint have up to {} s for it", checkpoint_s);
    Print("request {}: {}; then SIGTERM is sent, and the processes have {} s to end{}\n", id,
          saving, args.grace_s, args.kill ? "; then SIGKILL is sent to those still running" : "");
  }
  const std::int64_t wait_s = args.wait_s.value_or(longest_s + kMarginSeconds);
  if (wait_s == 0) {
    if (args.json) Print("{}\n", DocumentText(ordered_json{{"request", id}}));
    return 0;
  }
  const auto followed = Follow(args, id, wait_s, &*events, &answers);
  if (!followed.ok()) return fail(followed.status());
  return Report(args, id, answers, *followed);
}

}  // namespace

void RegisterStop(CLI::App& app, Context* context) {
  CLI::App* command =
      AddCommand(app, "stop", "End a running training, and say what happened to each process",
                 std::string(kExamples), {0, 3, 8});
  auto args = std::make_shared<Args>();
  AddOption(command, "RUN", args->run, "Run directory of the training").Required();
  AddOption(command, "--why", args->why,
            "Reason for the stop, in one line; it is recorded and shown in the run's report");
  AddFlag(command, "--checkpoint", args->checkpoint,
          "Let processes that use telltale.on_stop save a checkpoint first; this is the default");
  AddFlag(command, "--no-checkpoint", args->no_checkpoint, "Do not wait for checkpoints");
  AddOption(command, "--checkpoint-seconds", args->checkpoint_s,
            "Longest time to wait for checkpoints, in seconds")
      .Default("120");
  AddOption(command, "--grace", args->grace_s,
            "Time that the processes have to end after SIGTERM, in seconds")
      .Default("30");
  AddFlag(command, "--kill", args->kill,
          "Send SIGKILL to processes that are still running after that time");
  AddOption(
      command, "--wait", args->wait_s,
      "Longest time to wait for the result, in seconds; 0 returns at once (default: as long as the "
      "stop may take)");
  AddJson(command, &args->json);
  OnRun(command, context, [args] { return Stop(*args); });
}

}  // namespace telltale::cli
