// SPDX-License-Identifier: Apache-2.0
// The frame of the command line: what every subcommand shares. One file a subcommand,
// cmd_<name>.cc, with one function Register<Name> that adds it to the parser; the table in
// commands.cc lists them.
//
// A subcommand sets Context::exit_code; an error is one line on stderr, written by Fail().
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/option.h"

namespace telltale::cli {

/// A finding or a regression that --fail-on names: the one exit code that no Status has.
inline constexpr int kExitFinding = 10;

struct Context {
  std::string program;  ///< Absolute path of this binary, for the children that it starts.
  /// What follows the first `--` of `telltale run`, never looked at by the parser: the training's
  /// words may be anything, also words of ours.
  std::vector<std::string> training;
  int exit_code = 0;
};

/// Writes `telltale <command>: <message>` to stderr, line breaks made visible, and returns the exit
/// code that belongs to the status.
int Fail(std::string_view command, const Status& status);

/// "Exit codes: 0 ok; 2 wrong usage; ...", of the codes given, or of all.
std::string ExitCodeLines(std::vector<int> codes = {});

/// Adds the subcommand `name`. `examples` go below the help text, one a line, and then `codes`, the
/// exit codes of its own besides those that every command has (2, 4 and 5).
CLI::App* AddCommand(CLI::App& app, std::string name, std::string summary, std::string examples,
                     std::vector<int> codes);

/// Not in the help: nobody starts it by hand.
void Hide(CLI::App* command);
/// One of the subcommands below it must be given.
void NeedSubcommand(CLI::App* command);
/// Arguments that the parser does not know are no error of its own; ExtrasOf tells them while the
/// command runs.
void TakeExtras(CLI::App* command);
std::vector<std::string> ExtrasOf(const CLI::App* command);

/// Adds --json to the subcommand.
void AddJson(CLI::App* command, bool* json);

/// Runs `body` when the subcommand was chosen. It returns the exit code; a Status or an exception
/// becomes the line of Fail().
void OnRun(CLI::App* command, Context* context, std::function<int()> body);
void OnRunStatus(CLI::App* command, Context* context, std::function<Status()> body);

using RegisterFn = void (*)(CLI::App& app, Context* context);

// One line a subcommand, here and in the table of commands.cc.
void RegisterRun(CLI::App& app, Context* context);
void RegisterCapture(CLI::App& app, Context* context);
void RegisterStop(CLI::App& app, Context* context);
void RegisterCheck(CLI::App& app, Context* context);
void RegisterCompare(CLI::App& app, Context* context);
void RegisterAnalyze(CLI::App& app, Context* context);
void RegisterAdvise(CLI::App& app, Context* context);
void RegisterReport(CLI::App& app, Context* context);
void RegisterProfile(CLI::App& app, Context* context);
void RegisterLs(CLI::App& app, Context* context);
void RegisterQuery(CLI::App& app, Context* context);
void RegisterImport(CLI::App& app, Context* context);
void RegisterExport(CLI::App& app, Context* context);
void RegisterVerify(CLI::App& app, Context* context);
void RegisterRules(CLI::App& app, Context* context);
void RegisterWatch(CLI::App& app, Context* context);
void RegisterDoctor(CLI::App& app, Context* context);
void RegisterSmdebugPath(CLI::App& app, Context* context);
void RegisterVersion(CLI::App& app, Context* context);
void RegisterServe(CLI::App& app, Context* context);
void RegisterAgent(CLI::App& app, Context* context);
void RegisterStacks(CLI::App& app, Context* context);

/// Registers every subcommand in the order of the help text.
void RegisterAll(CLI::App& app, Context* context);

}  // namespace telltale::cli
