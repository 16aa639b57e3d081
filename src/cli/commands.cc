// SPDX-License-Identifier: Apache-2.0
// The table of subcommands and what they share.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "base/given_name.h"
#include "base/printable.h"
#include "cli/command.h"
#include "cli/output.h"

namespace telltale::cli {
namespace {

constexpr std::array kCommands = {
    // clang-format off: one line a subcommand, so that additions do not collide.
    static_cast<RegisterFn>(RegisterRun),
    RegisterCapture,
    RegisterStop,
    RegisterCheck,
    RegisterCompare,
    RegisterAnalyze,
    RegisterAdvise,
    RegisterReport,
    RegisterProfile,
    RegisterLs,
    RegisterVerify,
    RegisterQuery,
    RegisterImport,
    RegisterExport,
    RegisterRules,
    RegisterDoctor,
    RegisterServe,
    RegisterSmdebugPath,
    RegisterVersion,
    RegisterWatch,
    RegisterAgent,
    RegisterStacks,
    // clang-format on
};

struct ExitCode {
  int code;
  std::string_view words;
};
constexpr ExitCode kExitCodes[] = {
    {0, "ok"},
    {2, "wrong usage"},
    {3, "input unusable"},
    {4, "a limit was reached"},
    {5, "storage or I/O"},
    {6, "authentication"},
    {7, "partial: damaged or not recorded to its end, the rest was used"},
    {8, "version"},
    {9, "already running"},
    {kExitFinding, "a finding at or above --fail-on, or a regression"},
};
constexpr int kOfEveryCommand[] = {2, 4, 5};
constexpr std::size_t kHelpColumns = 96;

}  // namespace

int Fail(std::string_view command, const Status& status) {
  Say("telltale {}: {}\n", command, Printable(TextAsGiven(status.message())));
  return static_cast<int>(status.code());
}

std::string ExitCodeLines(std::vector<int> codes) {
  const bool all = codes.empty();
  codes.insert(codes.end(), std::begin(kOfEveryCommand), std::end(kOfEveryCommand));
  std::string out = "Exit codes:";
  std::size_t column = out.size();
  std::string_view separator;
  for (const ExitCode& known : kExitCodes) {
    if (!all && std::find(codes.begin(), codes.end(), known.code) == codes.end()) continue;
    const std::string text = fmt::format("{} {}", known.code, known.words);
    out += separator;
    if (column + text.size() + 2 > kHelpColumns) {
      out += "\n ";
      column = 1;
    }
    out += " " + text;
    column += text.size() + 2;
    separator = ";";
  }
  return out;
}

CLI::App* AddCommand(CLI::App& app, std::string name, std::string summary, std::string examples,
                     std::vector<int> codes) {
  CLI::App* command = app.add_subcommand(std::move(name), std::move(summary));
  if (!examples.empty()) examples = "Examples:\n" + examples + "\n";
  command->footer(examples + ExitCodeLines(std::move(codes)));
  return command;
}

void Hide(CLI::App* command) { command->group(""); }

void NeedSubcommand(CLI::App* command) { command->require_subcommand(1); }

void TakeExtras(CLI::App* command) { command->allow_extras(); }

std::vector<std::string> ExtrasOf(const CLI::App* command) { return command->remaining(); }

void AddJson(CLI::App* command, bool* json) {
  AddFlag(command, "--json", *json, "Print one JSON document instead of text");
}

void OnRun(CLI::App* command, Context* context, std::function<int()> body) {
  command->callback([command, context, body = std::move(body)] {
    // Library exceptions end here: no stack trace, one line.
    try {
      context->exit_code = body();
    } catch (const CLI::Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      context->exit_code = Fail(
          command->get_name(),
          Status(Code::kLimit, "out of memory: the machine gave no more: free some and retry"));
    } catch (const std::exception& error) {
      context->exit_code = Fail(command->get_name(),
                                Status(Code::kIo, fmt::format("internal error: {}: please report "
                                                              "it with the command",
                                                              error.what())));
    }
  });
}

void OnRunStatus(CLI::App* command, Context* context, std::function<Status()> body) {
  OnRun(command, context, [command, body = std::move(body)] {
    const Status status = body();
    return status.ok() ? 0 : Fail(command->get_name(), status);
  });
}

void RegisterAll(CLI::App& app, Context* context) {
  for (RegisterFn add : kCommands) add(app, context);
}

}  // namespace telltale::cli
