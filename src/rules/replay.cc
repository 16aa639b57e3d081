// SPDX-License-Identifier: Apache-2.0
#include "rules/replay.h"

#include <algorithm>
#include <utility>

namespace telltale::rules {
namespace {

constexpr std::size_t kRowsAtATime = 8192;

}  // namespace

Result<WatchJournal> ReadWatchJournal(store::RunReader* reader) {
  StringPool pool;
  format::Rows rows;
  store::Salvage salvage;
  TELLTALE_RETURN_IF_ERROR(reader->ReadAll(store::MaskOf(format::TableId::kEvents) |
                                               store::MaskOf(format::TableId::kFindings) |
                                               store::MaskOf(format::TableId::kLedger),
                                           &pool, &rows, &salvage));
  WatchJournal journal;
  for (const format::FindingRow& row : rows.findings) {
    journal.revisions.emplace_back(std::string(row.incident), row.revision);
  }
  // Cumulative for one watcher; after a restart it counts from zero again.
  std::uint64_t last = 0;
  for (const format::LedgerRow& row : rows.ledger) {
    if (row.name != "watch.cpu_ns") continue;
    journal.cpu_ns += row.value >= last ? row.value - last : row.value;
    last = row.value;
  }
  std::sort(journal.revisions.begin(), journal.revisions.end());
  std::stable_sort(rows.events.begin(), rows.events.end(),
                   [](const auto& a, const auto& b) { return a.ord_ns < b.ord_ns; });
  for (const format::EventRow& row : rows.events) {
    if (row.kind != "order.readmitted") continue;
    // What cannot be read is not ours: the order is then that of the records alone.
    if (auto admission = store::AdmissionFromJson(row.data); admission.ok()) {
      journal.admissions.push_back(std::move(admission).value());
    }
  }
  return journal;
}

Result<Replay> ReplayRun(const std::filesystem::path& run, const ReplayOptions& options) {
  TELLTALE_ASSIGN_OR_RETURN(auto reader, store::RunReader::Open(run));
  TELLTALE_ASSIGN_OR_RETURN(const WatchJournal journal, ReadWatchJournal(reader.get()));
  Replay out;
  // Before the records: a run that ends meanwhile is then read as one that still ran.
  out.state = reader->state();
  out.info = reader->info();
  Engine engine;
  store::CursorOptions cursor_options;
  cursor_options.table_mask = engine.table_mask() | options.sink_mask;
  TELLTALE_ASSIGN_OR_RETURN(auto cursor, reader->NewCursor(cursor_options));
  for (const store::Admission& a : journal.admissions) {
    cursor->Readmit(a);
  }
  std::vector<store::OrderedRecord> records;
  out.ended = out.state.state != "running";
  while (true) {
    records.clear();
    TELLTALE_RETURN_IF_ERROR(cursor->Next(kRowsAtATime, &records));
    // A writer that died without its end record must not hold up the others for ever.
    if (records.empty() && !(out.ended && cursor->CloseStragglers())) break;
    for (const store::OrderedRecord& record : records) {
      if (options.sink && (options.sink_mask & store::MaskOf(record.table)) != 0) {
        options.sink(record);
      }
      engine.Feed(record);
    }
  }
  if (out.ended) engine.End();
  out.writers = cursor->writers();
  out.watch_cpu_ns = journal.cpu_ns;
  out.salvage = cursor->salvage();
  out.rules = engine.rule_states();
  out.findings = Ranked(engine.findings());
  return out;
}

}  // namespace telltale::rules
