// SPDX-License-Identifier: Apache-2.0
// telltale query: rows of one table as CSV or JSON.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/printable.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/run_or_trace.h"
#include "query/query.h"

namespace telltale::cli {
namespace {

struct Args {
  std::string run;
  query::Query query;
  std::uint64_t limit = 0;
  std::string format = "csv";
  bool json = false;
};

int Run(const Args& args) {
  query::Query query = args.query;
  if (args.json || args.format == "json") query.format = query::Format::kJson;
  store::Salvage salvage;
  // Other programs get every byte; a terminal would obey some.
  const bool shown = ::isatty(STDOUT_FILENO) == 1;
  const Status status = query::RunQuery(
      args.run, query,
      [&](std::string_view piece) {
        const std::string text = shown ? PrintableLines(piece) : std::string();
        if (shown) piece = text;
        return WriteOut(piece);
      },
      &salvage);
  if (!status.ok()) return Fail("query", status);
  if (OutputError() != 0) return 0;  // Main says so, unless the reader had enough.
  if (!salvage.any()) return 0;
  return Fail(
      "query",
      {Code::kPartial,
       fmt::format("{} is damaged, the rest was printed: {} damaged blocks, {} torn tails, "
                   "{} unreadable files, {} rows missing, {} rows with impossible numbers; "
                   "`telltale verify` names them",
                   args.run, salvage.damaged_blocks, salvage.torn_tails, salvage.unreadable_files,
                   salvage.missing_rows, salvage.impossible_rows)});
}

}  // namespace

void RegisterQuery(CLI::App& app, Context* context) {
  auto args = std::make_shared<Args>();
  CLI::App* command = AddCommand(
      app, "query", "Print rows of a table as CSV or JSON",
      "  telltale query RUN steps --columns step,duration_ns,data_wait_ns\n"
      "  telltale query RUN scalars --where \"name = 'loss' and step >= 100\" --limit 20\n"
      "  telltale query RUN metrics --where \"name like 'cpu.%' and subject != 'node'\" --format "
      "json\n"
      "Conditions: = != < <= > >=, and, or, not, parentheses, in (1, 2), like 'a%'; texts in "
      "single "
      "quotes.\nTables and columns: docs/formats/records.md; every table has the column writer "
      "besides. Rows come by\nwriter and sequence number. JSON has no NaN or infinity: they are "
      "null there, NaN, Inf and -Inf in CSV.",
      {0, 3, 7, 8});
  AddOption(command, "RUN", args->run, "Run directory, or a trace").Required();
  AddOption(command, "TABLE", args->query.table, "Table, for example steps").Required();
  AddOption(command, "--columns", args->query.columns, "Columns to print, in this order")
      .SeparatedBy(',');
  AddOption(command, "--where", args->query.where, "Condition that rows must meet");
  AddOption(command, "--format", args->format, "csv or json").OneOf({"csv", "json"});
  const Option limit = AddOption(command, "--limit", args->limit, "At most so many rows");
  AddJson(command, &args->json);
  OnRun(command, context, [args, limit] {
    if (limit.given()) args->query.limit = args->limit;
    return WithRun("query", &args->run, [&] { return Run(*args); });
  });
}

}  // namespace telltale::cli
