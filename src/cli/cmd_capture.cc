// SPDX-License-Identifier: Apache-2.0
// telltale capture: what a run records of tensors, and another plan for it while it goes on. The
// plan reaches the agent as a request in the run directory, so it works from any machine that can
// write there.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
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
#include "cli/plan_flags.h"
#include "cli/rule_flags.h"
#include "cli/rule_needs.h"
#include "cli/window_request.h"
#include "plan/capture_plan.h"
#include "plan/compiler.h"
#include "plan/plan_json.h"
#include "store/requests.h"

namespace telltale::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kExamples =
    "  telltale capture telltale-runs/x --show\n"
    "  telltale capture telltale-runs/x --collect 'gradients:histogram,interval=10'\n"
    "  telltale capture telltale-runs/x --level tensors\n"
    "  telltale capture telltale-runs/x --steps 5 --detail ops,kernels,shapes\n"
    "  telltale capture telltale-runs/x --keep-last 20";

struct Args {
  std::string run;
  PlanFlags plan;
  RuleFlags rules;                    ///< Those of --rule.
  std::optional<std::int64_t> steps;  ///< Of a window of detail.
  std::string detail;
  std::optional<std::int64_t> keep_last;  ///< Steps of the look-back ring.

  bool any() const { return plan.any() || rules.any() || window() || keep_last; }
  bool window() const { return steps.has_value() || !detail.empty(); }
  bool show = false;
  bool json = false;
  int wait_s = 10;
};

/// What the events of a run say of its plan, as they come in.
class PlanEvents {
 public:
  static Result<PlanEvents> Open(const std::string& run) {
    auto feed = EventFeed::Open(run);
    if (!feed.ok()) return feed.status();
    return PlanEvents(std::move(feed).value());
  }

  /// Reads what has become readable. `id`: the request whose answer is looked for.
  Status Read(const std::string& id) {
    return feed_.Read([&](const format::EventRow& event, const std::string&) { See(event, id); });
  }

  void GiveUpOnTheDead() { feed_.GiveUpOnTheDead(); }
  store::RunReader& reader() { return feed_.reader(); }
  const std::string& plan() const { return plan_; }  ///< JSON; empty: not known.
  std::uint64_t epoch() const { return epoch_; }
  const std::string& thinned() const { return thinned_; }  ///< The newest word of the governor.

  bool answered = false;
  bool refused = false;
  std::string message;
  ordered_json answer;
  /// Of the window that the answer names: what each process has said at its end.
  std::vector<std::string> Endings() const {
    std::vector<std::string> out;
    const std::string window = answered && !refused ? answer.value("windows", std::string()) : "";
    for (const auto& [of, line] : endings_) {
      if (!window.empty() && of == window) out.push_back(line);
    }
    if (!kept_.empty()) out.push_back(kept_);
    return out;
  }

 private:
  explicit PlanEvents(EventFeed feed) : feed_(std::move(feed)), plan_(feed_.reader().info().plan) {}

  /// Kept whether the answer is there yet or not: it may come after the end.
  void SeeWindow(const format::EventRow& event) {
    const auto data = ParseOrderedJson(event.data);
    const auto name = data.is_object() ? data.find("window") : data.end();
    if (name == data.end() || !name->is_string()) return;
    endings_.emplace_back(name->get<std::string>(),
                          fmt::format("rank {}: {}", event.rank, event.message));
  }

  void See(const format::EventRow& event, const std::string& id) {
    if (event.kind == "window.closed" || event.kind == "window.refused" ||
        event.kind == "window.failed") {
      SeeWindow(event);
      return;
    }
    if (event.kind == "lookback.kept") {
      const auto kept = ParseOrderedJson(event.data);
      const auto of = kept.is_object() ? kept.find("id") : kept.end();
      if (of != kept.end() && of->is_string() && of->get<std::string>() == id) {
        kept_ = std::string(event.message);
      }
      return;
    }
    const bool ours = event.kind == "plan" || event.kind == "request.done" ||
                      event.kind == "request.refused" || event.kind == "governor";
    if (!ours) return;
    const auto data = ParseOrderedJson(event.data);
    if (!data.is_object()) return;
    if (event.kind == "governor") {
      thinned_ = event.message;
    } else if (event.kind == "plan") {
      if (const auto found = data.find("plan"); found != data.end()) plan_ = found->dump();
      const auto count = data.find("epoch");
      if (count != data.end() && count->is_number_unsigned()) epoch_ = count->get<std::uint64_t>();
      thinned_.clear();
    } else if (const auto of = data.find("id");
               of != data.end() && of->is_string() && of->get<std::string>() == id) {
      answered = true;
      refused = event.kind == "request.refused";
      message = event.message;
      answer = data;
    }
  }

  EventFeed feed_;
  std::string plan_;
  std::uint64_t epoch_ = 0;
  std::string thinned_;
  std::vector<std::pair<std::string, std::string>> endings_;  ///< Window, line.
  std::string kept_;  ///< Of the look-back ring, once that is over.
};

/// The plan that holds now, as far as the records say.
Result<plan::CapturePlan> CurrentPlan(const PlanEvents& events) {
  if (events.plan().empty()) return plan::DefaultPlan();
  return plan::FromJson(events.plan());
}

/// What the rules of the run need.
std::vector<rules::Need> NeedsOfRun(const store::RunInfo& info) {
  const auto set = rules::RuleSetFromJson(info.rules);
  return rules::NeedsOf(set.ok() ? *set : rules::RuleSet());
}

void Show(const plan::CapturePlan& plan, PlanEvents& events, bool json) {
  const bool known = !events.plan().empty();
  if (json) {
    ordered_json out = {
        {"epoch", events.epoch()}, {"plan", nullptr}, {"governor", events.thinned()}};
    if (known) out["plan"] = ParseOrderedJson(plan::ToJson(plan));
    Print("{}\n", DocumentText(out));
    return;
  }
  if (!known) {
    WriteOut(
        "# The run has no plan in it: it was imported, or recorded before there were plans.\n"
        "# This is what is recorded where nothing is said:\n");
  }
  if (!events.thinned().empty()) Print("# {}\n", Printable(events.thinned()));
  WriteOut(ExplainPlan(plan, NeedsOfRun(events.reader().info())));
}

/// Writes the request, waits for the agent's answer and, of a window, for its end, and says both.
int Ask(const Args& args, const char* kind, std::string body, PlanEvents* events) {
  const auto fail = [](const Status& status) { return Fail("capture", status); };
  store::Request request;
  request.who = store::RequestWho();
  request.attempt = store::NewestAttempt(events->reader().info());
  request.kind = kind;
  request.body = std::move(body);
  const auto written = store::WriteRequest(args.run, std::move(request));
  if (!written.ok()) return fail(written.status());

  const std::string id = store::Hex(written->id);
  const Clock& clock = Clock::System();
  const std::int64_t deadline = clock.MonotonicNs() + args.wait_s * kSecond;
  while (true) {
    if (const Status read = events->Read(id); !read.ok()) return fail(read);
    if (events->refused) break;
    const bool ends = args.window() || args.keep_last;
    if (events->answered && (!ends || !events->Endings().empty())) break;
    if (clock.MonotonicNs() >= deadline) {
      if (events->answered) break;
      return fail(
          {Code::kLimit, fmt::format("no answer within {} s: the request stays in {}/requests "
                                     "and holds once the agent takes it: see `telltale capture "
                                     "{} --show`",
                                     args.wait_s, args.run, args.run)});
    }
    events->GiveUpOnTheDead();
    EventFeed::Pause();
  }
  if (events->refused) {
    const std::string why = events->answer.value("why", events->message);
    return fail({Code::kUsage, fmt::format("the agent refuses: {}", why)});
  }
  if (args.json) {
    ordered_json out = events->answer;
    if (args.window() || args.keep_last) out["ended"] = events->Endings();
    out["plan"] = ParseOrderedJson(events->plan());
    Print("{}\n", DocumentText(out));
  } else {
    Print("{}\n", Printable(events->message));
    const std::vector<std::string> endings = events->Endings();
    for (const std::string& line : endings) Print("{}\n", Printable(line));
    if (args.keep_last && endings.empty()) {
      Print(
          "the steps after are still being recorded: their end is an event of the run "
          "(lookback.kept)\n");
    } else if (args.window() && endings.empty()) {
      Print("it has not ended by now: its end is an event of the run (window.closed)\n");
    }
  }
  return 0;
}

/// The body of a request for the next steps.
Result<std::string> WindowAsked(const Args& args) {
  if (args.plan.any() || args.rules.any()) {
    return Status(Code::kUsage,
                  "--steps asks for a window of the next steps and nothing else: give the options "
                  "of the plan in a command of their own, or use --window");
  }
  if (!args.steps.has_value()) {
    return Status(Code::kUsage, "--detail is of --steps: write for example --steps 5");
  }
  return WindowBody(*args.steps, args.detail);
}

int Capture(const Args& args) {
  const auto fail = [](const Status& status) { return Fail("capture", status); };
  if (args.show && args.any()) {
    return fail({Code::kUsage, "--show changes nothing: leave it out, or the options of the plan"});
  }
  if (args.wait_s < 0 || args.wait_s > 3600) {
    return fail({Code::kUsage,
                 fmt::format("--wait {} is out of range: choose 0 to 3600 seconds", args.wait_s)});
  }
  auto events = PlanEvents::Open(args.run);
  if (!events.ok()) return fail(events.status());
  if (const Status read = events->Read({}); !read.ok()) return fail(read);
  const auto current = CurrentPlan(*events);
  if (!args.any()) {
    if (!current.ok()) return fail(current.status());
    Show(*current, *events, args.json);
    return 0;
  }

  const store::RunState state = events->reader().state();
  if (state.state != "running") {
    return fail({Code::kUnusable,
                 fmt::format("{} is {}: only a run that goes on can record something else: give "
                             "the options to `telltale run`",
                             args.run, state.state)});
  }
  if (args.keep_last) {
    if (args.plan.any() || args.rules.any() || args.window()) {
      return fail({Code::kUsage, "--keep-last asks for the steps just gone and nothing else"});
    }
    const std::int64_t steps = *args.keep_last;
    if (steps < 1) {
      return fail({Code::kUsage, fmt::format("--keep-last {}: write 1 or more", steps)});
    }
    return Ask(args, "lookback", JsonText(ordered_json{{"steps", steps}, {"after", steps}}),
               &*events);
  }
  if (args.window()) {
    const auto body = WindowAsked(args);
    if (!body.ok()) return fail(body.status());
    return Ask(args, "profile", *body, &*events);
  }
  const auto asked = RuleSetOf(args.rules);
  if (!asked.ok()) return fail(asked.status());
  const std::vector<rules::Need> needs = NeedsOfAsked(*asked, false);
  const plan::CapturePlan holds = args.plan.whole() || !current.ok() ? Nothing() : *current;
  auto plan = PlanOf(args.plan, holds, needs, holds);
  if (!plan.ok()) return fail(plan.status());
  MarkAsked(needs, &*plan);
  for (const std::string& line : LikelySlips(*plan)) Say("telltale capture: {}\n", line);
  const auto compiled = plan::Compiled::Create(*plan);
  if (!compiled.ok()) return fail(compiled.status());
  for (const std::string& line : Unserved(*compiled, needs)) Say("telltale capture: {}\n", line);
  ordered_json body;
  if (args.plan.whole()) {
    body = {{"base", "none"}};
    body["plan"] = ParseOrderedJson(plan::ToJson(*plan));
  } else {
    // Added by the agent to the plan that holds when it looks: two that ask at once undo nothing.
    auto added = PlanOf(args.plan, Nothing(), needs, holds);
    if (!added.ok()) return fail(added.status());
    MarkAsked(needs, &*added);
    body = {{"base", "current"}};
    body["plan"] = ParseOrderedJson(plan::ToJson(*added));
  }
  return Ask(args, "plan", JsonText(body), &*events);
}

}  // namespace

void RegisterCapture(CLI::App& app, Context* context) {
  CLI::App* command = AddCommand(app, "capture", "Show or change what a run records of tensors",
                                 std::string(kExamples), {0, 3, 8});
  auto args = std::make_shared<Args>();
  AddOption(command, "RUN", args->run, "Run directory").Required();
  AddPlanFlags(command, &args->plan);
  AddRuleFlag(command, &args->rules);
  AddOption(command, "--steps", args->steps,
            "Record the operators of the next so many steps of each process");
  AddOption(
      command, "--detail", args->detail,
      "What of them, with --steps: any of ops, kernels, shapes, stacks, memory, flops, modules, "
      "python (default ops,kernels,shapes)");
  AddOption(command, "--keep-last", args->keep_last,
            "Store the spans of detail of so many steps just gone, and of as many next ones");
  AddFlag(command, "--show", args->show, "Print the plan that holds, and what of it is thinned");
  AddOption(command, "--wait", args->wait_s,
            "Seconds to wait for the agent's answer, and for the end of a window")
      .Default("10");
  AddJson(command, &args->json);
  OnRun(command, context, [args] { return Capture(*args); });
}

}  // namespace telltale::cli
