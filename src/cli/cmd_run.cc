// SPDX-License-Identifier: Apache-2.0
// telltale run: records a training, and says at its end what is wrong with it.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/http_client.h"
#include "base/printable.h"
#include "base/run_files.h"
#include "channel/control_page.h"
#include "cli/command.h"
#include "cli/keep_consent.h"
#include "cli/last_words.h"
#include "cli/output.h"
#include "cli/plan_flags.h"
#include "cli/rule_flags.h"
#include "cli/rule_needs.h"
#include "cli/stack_flags.h"
#include "plan/capture_plan.h"
#include "plan/compiler.h"
#include "rules/actions/action_consent.h"
#include "run/command.h"
#include "run/process.h"
#include "run/registry.h"
#include "run/run_directory.h"
#include "run/supervisor.h"

namespace telltale::cli {
namespace {

namespace fs = std::filesystem;

struct Args {
  std::string output;
  std::string overhead = "1%";
  std::string look_back = "32";
  std::int64_t interval_ms = 500;
  bool quiet = false;
  bool json = false;
  bool no_serve = false;
  bool no_exception_text = false;
  std::string otlp;
  StackFlags stacks;
  PlanFlags plan;
  RuleFlags rules;
  bool explain = false;
};

constexpr plan::PassedSteps kNothingPassed{-1, -1, -1, -1};

constexpr std::string_view kExamples =
    "  telltale run -- python train.py --lr 0.1\n"
    "  telltale run -o runs/try-2 --interval 1000 -- torchrun --nproc-per-node 2 train.py\n"
    "  telltale run --quiet -- ./train.sh\n"
    "  telltale run --level tensors --collect 'losses:values,interval=1' -- python train.py\n"
    "  telltale run --rule VanishingGradient:threshold=1e-6 --no-rule InputBound -- python t.py\n"
    "  telltale run --rules rules.toml --price 32.77 -- python train.py\n"
    "  telltale run --otlp http://127.0.0.1:4318 -- python train.py\n"
    "  telltale run --stacks -- python train.py\n"
    "  telltale run --level tensors --explain-plan > plan.toml\n"
    "The exit code is the training's own; 127 or 126 where it cannot be started. Before it starts:";

/// "1%", "0.5" or "0.5 %" as a fraction.
Result<double> ParsePercent(std::string_view text) {
  std::string_view number = text;
  while (!number.empty() && (number.back() == '%' || number.back() == ' ')) number.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size() || !std::isfinite(value) ||
      value <= 0 || value > 100) {
    return Status(Code::kUsage, fmt::format("--overhead '{}' is not a percentage above 0 and up to "
                                            "100: write for example --overhead 1%",
                                            text));
  }
  return value / 100;
}

/// "off", or MiB, in bytes.
Result<std::uint64_t> ParseLookBack(std::string_view text) {
  if (text == "off") return std::uint64_t{0};
  std::uint64_t mib = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mib);
  if (error != std::errc() || end != text.data() + text.size() || mib > 4096) {
    return Status(Code::kUsage, fmt::format("--look-back '{}' is not a number of MiB up to 4096: "
                                            "write for example --look-back 32, or off",
                                            text));
  }
  return mib << 20;
}

/// The run's path as a user would type it.
std::string ShortPath(const fs::path& path) {
  std::error_code error;
  const fs::path relative = fs::relative(path, error);
  const bool below = !error && !relative.empty() && *relative.begin() != "..";
  return below ? relative.string() : path.string();
}

Status CheckUsage(const Args& args, const std::vector<std::string>& training) {
  if (training.empty()) {
    return {Code::kUsage,
            "no command to run: write it after two dashes: telltale run -- python train.py"};
  }
  if (args.interval_ms < 100 || args.interval_ms > 60'000) {
    return {Code::kUsage, fmt::format("--interval {} is out of range: choose 100 to 60000 "
                                      "milliseconds",
                                      args.interval_ms)};
  }
  if (!args.otlp.empty() && !IsHttpUrl(args.otlp)) {
    return {Code::kUsage, "--otlp: no address: write for example --otlp http://127.0.0.1:4318"};
  }
  return {};
}

/// Trouble of ours that must not keep the training from its start; other codes are the caller's.
bool IsOurs(const Status& status) {
  return status.code() == Code::kIo || status.code() == Code::kLimit;
}

/// The training takes our place. Returns only where it cannot be executed.
int StartUnrecorded(const Status& why, const std::vector<std::string>& training,
                    const run::GivenSignals& signals) {
  Say("telltale run: NOT RECORDED: {}: the training starts without Telltale\n",
      Printable(why.message()));
  const int error = run::BecomeTraining(training, signals);
  Fail("run", Status(Code::kUsage,
                     fmt::format("cannot start '{}': {}", training[0], std::strerror(error))));
  return error == ENOENT ? 127 : 126;
}

int Run(const Args& args, std::vector<std::string> training, const std::string& program) {
  run::SupervisorOptions options;
  // A line of ours to a pipe that nobody reads must not end us.
  options.signals = run::TakeSignals();
  const auto fail = [](const Status& status) { return Fail("run", status); };
  const auto set = RuleSetOf(args.rules);
  const auto plan = set.ok() ? PlanOfRun(args.plan, *set) : Result<plan::CapturePlan>(set.status());
  // Of all that run, whether they are captured or not.
  const std::vector<rules::Need> needs =
      set.ok() ? rules::NeedsOf(*set) : std::vector<rules::Need>();
  if (args.explain && training.empty()) {
    if (!plan.ok()) return fail(plan.status());
    WriteOut(args.json ? PrintableJson(plan::ToJson(*plan)) + "\n" : ExplainPlan(*plan, needs));
    return 0;
  }
  if (const Status status = CheckUsage(args, training); !status.ok()) return fail(status);
  if (!plan.ok()) return fail(plan.status());
  const auto compiled = plan::Compiled::Create(*plan);
  if (!compiled.ok()) return fail(compiled.status());
  const auto windows = plan::WindowsText(plan->windows);
  if (!windows.ok()) return fail(windows.status());
  const auto overhead = ParsePercent(args.overhead);
  if (!overhead.ok()) return fail(overhead.status());
  const auto look_back = ParseLookBack(args.look_back);
  if (!look_back.ok()) return fail(look_back.status());
  const auto stacks = StackArguments(args.stacks, overhead.value());
  if (!stacks.ok()) return fail(stacks.status());
  if (const run::Startable start = run::CheckStartable(training[0]); start.exit_code != 0) {
    fail(Status(Code::kUsage, start.message));
    return start.exit_code;
  }

  // Watcher, report and page run the rules in Python of this set, and the watcher carries out its
  // actions: its user asks for them now.
  const KeptConsent kept = KeepConsent(*set);
  const bool passed_on = rules::ActionConsent::PassOn(*set);
  if (!kept.python.ok() && !args.quiet) {
    Say("telltale: rules in Python run only with TELLTALE_PYTHON_RULES=on: that you asked for them "
        "cannot be kept: {}\n",
        Printable(kept.python.message()));
  }
  // Where its actions cannot be kept, the watcher of this run knows of them all the same.
  if (!kept.actions.ok() && !passed_on) {
    Say("telltale: actions are carried out only with TELLTALE_ACTIONS=on: that you asked for them "
        "cannot be kept, and they are too many to be handed over: {}\n",
        Printable(kept.actions.message()));
  }

  run::RunRequest request;
  request.directory = args.output;
  request.command = training;
  request.interval_ms = args.interval_ms;
  request.overhead_budget = overhead.value();
  request.plan = plan::ToJson(*plan);
  request.rules = rules::ToJson(*set);
  request.telltale_version = TELLTALE_VERSION;
  if (!run::DiskAnswers(request)) {
    return StartUnrecorded(
        Status(Code::kIo,
               fmt::format("the disk of '{}' does not answer: choose another folder with -o",
                           args.output.empty() ? "telltale-runs" : args.output)),
        training, options.signals);
  }
  bool refused = false;
  auto directory = run::RunDirectory::Prepare(request, &refused);
  if (!directory.ok()) {
    const Status& status = directory.status();
    return IsOurs(status) && !refused ? StartUnrecorded(status, training, options.signals)
                                      : fail(status);
  }
  auto registry = run::Registry::Create(
      directory->attempt(),
      [&, slab_bytes = plan->SlabBytes()](channel::ControlPage* page) {
        page->SetRules(compiled->rules(kNothingPassed), compiled->unanswered_mask(), slab_bytes,
                       compiled->collections());
        page->SetWindows(*windows);
        page->PublishEpoch();
      },
      plan->SlabBytes());
  if (!registry.ok()) {
    directory->Abandon();
    return StartUnrecorded(registry.status(), training, options.signals);
  }
  const std::string shown = ShortPath(directory->path());
  if (!args.quiet) {
    Say("telltale {} · run {} · {}\n", TELLTALE_VERSION, Printable(directory->info().name),
        Printable(shown));
  }
  if (!directory->warning().empty()) Say("telltale: {}\n", Printable(directory->warning()));

  if (!args.quiet) {
    for (const std::string& line : LikelySlips(*plan)) Say("telltale: {}\n", line);
  }
  const std::size_t lacking = Unserved(*compiled, needs).size();
  if (lacking > 0 && !args.quiet) {
    Say("telltale: {} of the rules get less than they need by this plan: --explain-plan says "
        "which, --rule NAME adds it\n",
        lacking);
  }

  if (!stacks->empty() && !args.quiet) {
    if (const std::string why = WhyNoStacks(training[0]); !why.empty()) {
      Say("telltale: --stacks: {}: the training goes on without\n", Printable(why));
    }
  }

  // Its stdout is the training's.
  if (args.explain) WriteErr(ExplainPlan(*plan, needs));

  options.program = program;
  options.python_dir = fs::path(program).parent_path().parent_path() / "lib/telltale/python";
  options.command = std::move(training);
  options.interval_ms = args.interval_ms;
  options.overhead_budget = overhead.value();
  options.look_back_bytes = look_back.value();
  options.quiet = args.quiet;
  options.serve = !args.no_serve;
  options.exception_text = !args.no_exception_text;
  options.otlp = args.otlp;
  options.stacks = *stacks;
  std::error_code error;
  if (!fs::exists(options.python_dir / "boot", error)) {
    Say("telltale: no Python adapter at {}: Python frameworks are not recorded: "
        "install telltale again\n",
        options.python_dir.string());
  }
  auto outcome = run::Supervise(options, &directory.value(), std::move(registry).value());
  if (!outcome.ok()) {
    directory->Abandon();
    return StartUnrecorded(outcome.status(), options.command, options.signals);
  }
  try {
    SayLastWords({shown, args.quiet, args.json}, *outcome);
  } catch (const std::exception&) {
    // No memory for the words of what went wrong: the exit is the training's.
  }
  run::ExitAs(outcome->exit);
}

}  // namespace

void RegisterRun(CLI::App& app, Context* context) {
  CLI::App* command =
      AddCommand(app, "run", "Run a training and watch it", std::string(kExamples), {3, 8, 9});
  auto args = std::make_shared<Args>();
  AddOption(command, "-o,--output", args->output,
            "Run directory: new, empty, or an existing run for its next attempt "
            "(default telltale-runs/<UTC time>-<name>)");
  AddOption(command, "--overhead", args->overhead,
            "Budget of step time, in percent: statistics are taken less often to keep it")
      .Default("1%");
  AddOption(command, "--interval", args->interval_ms,
            "Milliseconds between samples of the machine, 100 to 60000")
      .Default("500");
  AddOption(command, "--look-back", args->look_back,
            "MiB of memory for the newest spans of detail, kept around a finding; or off")
      .Default("32");
  AddPlanFlags(command, &args->plan);
  AddRuleFlags(command, &args->rules);
  AddFlag(command, "--explain-plan", args->explain,
          "Print the capture plan as a plan file; without a command, nothing else");
  AddFlag(command, "--quiet", args->quiet,
          "No status line, no live page, no verdict; warnings only");
  AddFlag(command, "--json", args->json,
          "Write the document of `check --json` to RUN/verdict.json at the end; with "
          "--explain-plan and no command, print the plan as JSON");
  AddFlag(command, "--no-serve", args->no_serve, "Start no live page");
  AddFlag(command, "--no-exception-text", args->no_exception_text,
          "Of exceptions that end the training record type and line, not the text: it may hold "
          "values");
  AddOption(command, "--otlp", args->otlp,
            "Push metrics to this OTLP/HTTP endpoint while the run goes on, as "
            "`export otlp --follow` does");
  AddStackFlags(command, &args->stacks);
  TakeExtras(command);  // A command without `--` gets a better word than the parser's.
  OnRun(command, context, [args, command, context] {
    if (const auto extra = ExtrasOf(command); !extra.empty()) {
      return Fail("run", Status(Code::kUsage,
                                fmt::format("unexpected '{}': write the command after two dashes: "
                                            "telltale run -- {}; options: telltale run --help",
                                            extra[0], extra[0])));
    }
    return Run(*args, context->training, context->program);
  });
}

}  // namespace telltale::cli
