// SPDX-License-Identifier: Apache-2.0
#include "rules/replay.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "rules/groups.h"

namespace telltale::rules {
namespace {

/// Their list is some 130 KB, which the core's cache holds beside the rows.
constexpr std::size_t kRowsAtATime = 4096;

}  // namespace

std::size_t DigestOf(const format::FindingRow& row) {
  const auto said = std::tuple(row.severity, row.state, row.first_step, row.last_step, row.start_ns,
                               row.end_ns, row.message, row.evidence, row.cause, row.cost_seconds,
                               row.advice, row.confidence);
  return std::hash<std::string>()(fmt::format("{}", fmt::join(said, "\x1f")));
}

Result<WatchJournal> ReadWatchJournal(store::RunReader* reader) {
  struct Known {
    std::int64_t ord_ns;
    std::string kind, data;
  };
  std::vector<Known> events;
  // Revisions that close.
  struct Closed {
    std::int64_t ord_ns = 0;
    std::size_t digest = 0;
  };
  std::map<std::pair<std::string, std::uint32_t>, Closed> closed;
  std::set<std::int64_t> ends_ns;
  WatchJournal journal;
  // Cumulative for one watcher; after a restart it counts from zero again.
  std::uint64_t last = 0;
  // The ledger of a run of days is larger than all that is kept of it.
  const auto visit = [&](const std::string&, const format::Rows& rows) {
    for (const format::FindingRow& row : rows.findings) {
      const auto& revision =
          journal.revisions.emplace_back(std::string(row.incident), row.revision);
      if (row.state == "closed") closed[revision] = {row.ord_ns, DigestOf(row)};
    }
    for (const format::LedgerRow& row : rows.ledger) {
      if (row.name != "watch.cpu_ns") continue;
      journal.cpu_ns += row.value >= last ? row.value - last : row.value;
      last = row.value;
    }
    for (const format::EventRow& row : rows.events) {
      if (row.kind == "rules.ended") ends_ns.insert(row.ord_ns);
      journal.seen_end.Take(row);
      if (!row.kind.starts_with("action.") && row.kind != "order.readmitted") continue;
      events.push_back({row.ord_ns, std::string(row.kind), std::string(row.data)});
    }
    return true;
  };
  store::Salvage salvage;
  TELLTALE_RETURN_IF_ERROR(reader->Scan(store::MaskOf(format::TableId::kEvents) |
                                            store::MaskOf(format::TableId::kFindings) |
                                            store::MaskOf(format::TableId::kLedger),
                                        visit, &salvage));
  std::sort(journal.revisions.begin(), journal.revisions.end());
  // The watcher writes both as one.
  for (const auto& [revision, row] : closed) {
    if (ends_ns.contains(row.ord_ns)) journal.ends.emplace(revision, row.digest);
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Known& a, const Known& b) { return a.ord_ns < b.ord_ns; });
  for (Known& event : events) {
    if (event.kind != "order.readmitted") {
      journal.actions.push_back({std::move(event.kind), std::move(event.data), event.ord_ns});
      continue;
    }
    // What cannot be read is not ours: the order is then that of the records alone.
    if (auto admission = store::AdmissionFromJson(event.data); admission.ok()) {
      journal.admissions.push_back(std::move(admission).value());
    }
  }
  return journal;
}

Result<std::unique_ptr<Replayer>> Replayer::Open(const std::filesystem::path& run,
                                                 std::uint32_t more_tables,
                                                 const std::optional<RuleSet>& rules) {
  std::unique_ptr<Replayer> replayer(new Replayer());
  TELLTALE_ASSIGN_OR_RETURN(replayer->reader_, store::RunReader::Open(run));
  TELLTALE_ASSIGN_OR_RETURN(const WatchJournal journal, ReadWatchJournal(replayer->reader_.get()));
  // Before the records: a run that ends meanwhile is then read as one that still ran.
  Replay& out = replayer->out_;
  out.state = replayer->reader_->state();
  out.info = replayer->reader_->info();
  out.ended = out.state.state != "running";
  out.watch_cpu_ns = journal.cpu_ns;
  const bool of_newest =
      out.info.attempts.empty() || journal.seen_end.attempt >= out.info.attempts.back().number;
  out.seen_end_ns = of_newest ? journal.seen_end.ns : 0;
  ActionLog actions;
  for (const WatchJournal::ActionRow& row : journal.actions) actions.OnEvent(row.kind, row.data);
  out.actions = actions.actions();
  TELLTALE_ASSIGN_OR_RETURN(replayer->rules_, EngineOf(run, out.info, rules));
  out.rule_set = replayer->rules_.set;
  out.rules_trouble = replayer->rules_.trouble;
  store::CursorOptions options;
  options.table_mask = replayer->rules_.engine.table_mask() | more_tables;
  options.read_ahead = out.ended;
  TELLTALE_ASSIGN_OR_RETURN(replayer->cursor_, replayer->reader_->NewCursor(options));
  replayer->rules_.values->Follow(replayer->cursor_.get());
  for (const store::Admission& a : journal.admissions) replayer->cursor_->Readmit(a);
  return replayer;
}

Result<bool> Replayer::Next(std::size_t max_rows, std::vector<store::OrderedRecord>* records) {
  records->clear();
  TELLTALE_RETURN_IF_ERROR(cursor_->Next(max_rows, records));
  // A writer that died without its end record must not hold up the others for ever.
  if (records->empty() && !(out_.ended && cursor_->CloseStragglers())) return false;
  rules_.engine.Feed(*records);
  return true;
}

Replay Replayer::Take() {
  if (out_.ended) rules_.engine.End();
  out_.writers = cursor_->writers();
  out_.salvage = cursor_->salvage();
  out_.rules = rules_.engine.rule_states();
  out_.findings = Ranked(rules_.engine.findings(), &out_.findings_left_out);
  return std::move(out_);
}

Result<Replay> ReplayRun(const std::filesystem::path& run, const ReplayOptions& options) {
  TELLTALE_ASSIGN_OR_RETURN(const auto replayer,
                            Replayer::Open(run, options.sink_mask, options.rules));
  std::vector<store::OrderedRecord> records;
  while (true) {
    TELLTALE_ASSIGN_OR_RETURN(const bool more, replayer->Next(kRowsAtATime, &records));
    if (!more) return replayer->Take();
    if (options.sink) {
      for (const store::OrderedRecord& record : records) {
        if ((options.sink_mask & store::MaskOf(record.table)) != 0) options.sink(record);
      }
    }
    if (replayer->PastWhileRunning(options.until_ns)) return replayer->Take();
  }
}

}  // namespace telltale::rules
