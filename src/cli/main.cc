// SPDX-License-Identifier: Apache-2.0
// telltale: reads the command line, runs one subcommand, maps every failure to one line and an exit
// code of the table in docs/cli.md.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/process.h"
#include "cli/command.h"
#include "cli/output.h"
#include "rules/foreign.h"
#include "rules/run_engine.h"

namespace telltale::cli {
namespace {

std::string ProgramPath(const char* argv0) {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : argv0;
}

/// The subcommand a usage error is about, for its "--help".
std::string Named(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) return command->get_name();
  return {};
}

/// The innermost command that was given, with its words before it.
const CLI::App* Innermost(const CLI::App* app, std::string* words) {
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    *words += (words->empty() ? "" : " ") + app->get_name();
  }
  return app;
}

/// "run, capture, ...": the commands below this one.
std::string Commands(const CLI::App& app) {
  std::string out;
  for (const CLI::App* one :
       app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); })) {
    out += (out.empty() ? "" : ", ") + one->get_name();
  }
  return out;
}

/// What is wrong where something required is missing: a word that nobody knows says more than what
/// the parser wanted in its place.
std::string WhatIsMissing(const CLI::App& app, const CLI::RequiredError& error) {
  std::string words;
  const CLI::App* command = Innermost(&app, &words);
  const std::vector<std::string> unknown = command->remaining();
  std::string what = error.what();
  if (!unknown.empty() && unknown.front().starts_with('-')) {
    what = fmt::format("no option '{}'", unknown.front());
  } else if (command->get_require_subcommand_min() > 0) {
    what = unknown.empty() ? "no command" : fmt::format("no command '{}'", unknown.front());
  }
  if (command->get_require_subcommand_min() == 0) return what;
  return fmt::format("{}: {} are {}", what,
                     words.empty() ? "commands" : fmt::format("commands of `telltale {}`", words),
                     Commands(*command));
}

int Main(int argc, char** argv) {
  CLI::App app("Telltale shows what a training run is doing, why it is slow and why it goes wrong.",
               "telltale");
  Context context;
  context.program = ProgramPath(argc > 0 ? argv[0] : "telltale");
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "Print this help");
  app.set_version_flag("--version", TELLTALE_VERSION, "Print the version");
  app.footer(
      "Examples:\n"
      "  telltale run -- python train.py\n"
      "  telltale check telltale-runs/20261120-150412-train\n"
      "`telltale COMMAND --help` has more.\n" +
      ExitCodeLines());
  rules::SetForeignMaker(rules::ForeignRules(rules::ForeignOptionsOfEnvironment()));
  RegisterAll(app, &context);
  const bool runs_training = argc > 1 && std::string_view(argv[1]) == "run";
  // `run` gives the training its own limit back (run::TakeSignals).
  if (!runs_training) LeaveNoCore();
  if (runs_training) {
    char** const end = argv + argc;
    char** const dashes = std::find_if(
        argv + 2, end, [](const char* word) { return std::string_view(word) == "--"; });
    if (dashes != end) context.training.assign(dashes + 1, end);
    argc = static_cast<int>(dashes - argv);
  }
  if (argc <= 1) {
    WriteErr(app.help());
    return static_cast<int>(Code::kUsage);
  }
  const auto named = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argv[1][0] != '-' && std::as_const(app).get_subcommands(named).empty()) {
    return Fail("usage", Status(Code::kUsage, fmt::format("no command '{}': commands are {}: see "
                                                          "`telltale --help`",
                                                          argv[1], Commands(app))));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    // The help of the innermost command that asked.
    const CLI::App* innermost = &app;
    std::string above;
    while (!innermost->get_subcommands().empty()) {
      above += (above.empty() ? "" : " ") + innermost->get_name();
      innermost = innermost->get_subcommands().front();
    }
    WriteOut(innermost->help(above));
    return 0;
  } catch (const CLI::CallForAllHelp&) {
    WriteOut(app.help("", CLI::AppFormatMode::All));
    return 0;
  } catch (const CLI::CallForVersion&) {
    WriteOut(TELLTALE_VERSION "\n");
    return 0;
  } catch (const CLI::ParseError& error) {
    const std::string command = Named(app);
    const std::string help =
        command.empty() ? "telltale --help" : "telltale " + command + " --help";
    const auto* const required = dynamic_cast<const CLI::RequiredError*>(&error);
    return Fail(command.empty() ? "usage" : command,
                Status(Code::kUsage, fmt::format("{}: see `{}`",
                                                 required != nullptr ? WhatIsMissing(app, *required)
                                                                     : error.what(),
                                                 help)));
  }
  return context.exit_code;
}

/// The exit code, once all that was printed is out or is known not to be.
int Finish(int argc, char** argv, int code) {
  const int error = OutputError();
  if (error == 0 || error == EPIPE) return code;  // The reader of a pipe had enough.
  return Fail(argc > 1 ? argv[1] : "usage",
              Status(Code::kIo, fmt::format("cannot write the output: {}: make room or write "
                                            "elsewhere",
                                            std::strerror(error))));
}

}  // namespace
}  // namespace telltale::cli

int main(int argc, char** argv) {
  telltale::cli::HoldStandardStreams();
  try {
    return telltale::cli::Finish(argc, argv, telltale::cli::Main(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "telltale: internal error: %s: please report it with the command\n",
                 error.what());
    return 5;
  }
}
