// SPDX-License-Identifier: Apache-2.0
#include "watch/watcher.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/json.h"
#include "base/process.h"
#include "base/run_files.h"
#include "store/folder.h"
#include "store/requests.h"
#include "watch/keep_request.h"

namespace telltale::watch {
namespace {

constexpr std::size_t kRowsAtATime = 8192;
/// An empty batch this often keeps the folder's watermark moving for its readers.
constexpr std::int64_t kWatermarkIntervalNs = 1'000'000'000;

constexpr std::int64_t kLookIntervalNs = 1'000'000'000;
/// Incidents around which the spans of detail are kept, in the life of a watcher.
constexpr std::size_t kMostKept = 256;

/// Bytes in the journals of a writer's folder.
std::uint64_t JournalBytes(const std::filesystem::path& folder) {
  std::uint64_t sum = 0;
  std::vector<run_files::Entry> entries;
  run_files::List(run_files::OfRun(folder), &entries);
  for (const run_files::Entry& entry : entries) {
    if (!entry.name.ends_with(".ttj")) continue;
    struct stat info {};
    const bool there = run_files::StatOf(run_files::OfFolder(folder / entry.name), &info);
    if (there && S_ISREG(info.st_mode)) sum += static_cast<std::uint64_t>(info.st_size);
  }
  return sum;
}

/// When a writer other than a watcher has written last, Unix ns by the file system.
std::int64_t ChangedLastNs(const std::filesystem::path& run) {
  std::int64_t newest = run_files::ChangedNs({run, "run.json"});
  for (const std::string& writer : store::ListWriters(run)) {
    const auto folder = store::ListFolder(run / writer);
    if (writer.starts_with("watch") || !folder.ok() || folder->journals.empty()) continue;
    const auto journal = run / writer / store::JournalFileName(folder->journals.back());
    const run_files::RunPath file = run_files::OfFolder(journal);
    if (run_files::IsFile(file)) newest = std::max(newest, run_files::ChangedNs(file));
  }
  return newest;
}

/// Ours, and that of our children who have ended: the reports.
std::int64_t OwnCpuNs() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  rusage children{};
  getrusage(RUSAGE_CHILDREN, &children);
  const std::int64_t seconds = t.tv_sec + children.ru_utime.tv_sec + children.ru_stime.tv_sec;
  const std::int64_t us = children.ru_utime.tv_usec + children.ru_stime.tv_usec;
  return seconds * 1'000'000'000 + t.tv_nsec + us * 1000;
}

}  // namespace

Result<std::unique_ptr<Watcher>> Watcher::Open(const std::filesystem::path& run,
                                               WatchOptions options) {
  TELLTALE_ASSIGN_OR_RETURN(auto reader, store::RunReader::Open(run));
  std::unique_ptr<Watcher> watcher(new Watcher(run, std::move(reader), options));
  // The lock of the folder first: two watchers must not read the same journal and go on from it.
  store::WriterOptions writer_options = options.writer;
  writer_options.clock = options.clock;
  TELLTALE_ASSIGN_OR_RETURN(watcher->writer_,
                            store::Writer::Open(run / "watch", "watch", writer_options));
  TELLTALE_ASSIGN_OR_RETURN(rules::WatchJournal journal,
                            rules::ReadWatchJournal(watcher->reader_.get()));
  watcher->known_ = std::move(journal.revisions);
  watcher->ends_ = std::move(journal.ends);
  TELLTALE_ASSIGN_OR_RETURN(watcher->rules_, rules::EngineOf(run, watcher->reader_->info()));
  if (!watcher->rules_.trouble.empty()) {
    std::fprintf(stderr, "watch: %s\n", watcher->rules_.trouble.c_str());
  }
  // A set that does not resolve has not become an engine: those by default set nothing off.
  auto specs = rules::Resolve(watcher->rules_.set);
  const store::RunInfo& info = watcher->reader_->info();
  const std::vector<rules::RuleSpec> chosen = specs.ok() ? *specs : std::vector<rules::RuleSpec>();
  const rules::ActionConsent& consent = rules::ActionConsent::OfUser();
  for (const std::string& line : rules::NotAgreedLines(chosen, consent)) {
    std::fprintf(stderr, "watch: %s\n", line.c_str());
  }
  watcher->dispatcher_ = std::make_unique<rules::Dispatcher>(
      chosen, rules::DispatcherOptions{run, info.id, info.name, HostName(), &consent});
  for (const rules::WatchJournal::ActionRow& row : journal.actions) {
    watcher->dispatcher_->Recall(row.kind, row.data, row.ord_ns);
  }
  store::CursorOptions cursor_options;
  cursor_options.table_mask = watcher->rules_.engine.table_mask();
  TELLTALE_ASSIGN_OR_RETURN(watcher->cursor_, watcher->reader_->NewCursor(cursor_options));
  watcher->rules_.values->Follow(watcher->cursor_.get());
  for (const store::Admission& a : journal.admissions) {
    watcher->cursor_->Readmit(a);
  }
  watcher->last_new_ns_ = options.clock->MonotonicNs();
  watcher->SeeWhetherLate();
  return watcher;
}

std::int64_t Watcher::NowRunNs() const {
  return options_.clock->MonotonicNs() + writer_->monotonic_to_run_ns();
}

Result<std::size_t> Watcher::Drain() {
  std::size_t count = 0;
  std::vector<store::OrderedRecord> records;
  while (true) {
    records.clear();
    TELLTALE_RETURN_IF_ERROR(cursor_->Next(kRowsAtATime, &records));
    rules_.engine.Feed(records);
    for (const store::Admission& a : cursor_->TakeAdmissions()) {
      given_up_.erase(a.writer);
      events_.push_back(
          {"order.readmitted", a.writer,
           fmt::format("{} is waited for again; its late records were moved", a.writer),
           store::ToJson(a)});
    }
    if (records.empty()) return count;
    count += records.size();
  }
}

/// Lets go of the one writer that holds up all others. What it writes later is moved, journalled by
/// an admission, and so comes in the same place in every replay.
void Watcher::WatchWriters() {
  const std::int64_t now = options_.clock->MonotonicNs();
  if (now - last_look_ns_ < kLookIntervalNs) return;
  last_look_ns_ = now;
  const std::vector<std::string>& writers = cursor_->writers();
  const std::vector<std::int64_t> watermarks = cursor_->watermarks();
  for (std::size_t i = 0; i < writers.size(); ++i) {
    auto [holder, fresh] = holders_.try_emplace(writers[i]);
    Holder& h = holder->second;
    if (fresh || h.watermark_ns != watermarks[i]) {
      h.watermark_ns = watermarks[i];
      h.changed_ns = now;
    }
    // The cursor does not read on in those that wait, so their watermarks stand still too.
    const std::uint64_t bytes = JournalBytes(run_ / writers[i]);
    if (fresh || h.bytes != bytes) {
      h.bytes = bytes;
      h.grew_ns = now;
    }
  }
  std::size_t lowest = writers.size();
  for (std::size_t i = 0; i < writers.size(); ++i) {
    if (given_up_.contains(writers[i]) ||
        watermarks[i] == std::numeric_limits<std::int64_t>::max()) {
      continue;
    }
    if (lowest == writers.size() || watermarks[i] < watermarks[lowest]) lowest = i;
  }
  if (lowest == writers.size()) return;
  const Holder& holder = holders_[writers[lowest]];
  if (now - holder.changed_ns < options_.give_up_ns) return;
  const bool others_advance = std::any_of(holders_.begin(), holders_.end(), [&](const auto& other) {
    return other.second.watermark_ns > holder.watermark_ns &&
           (other.second.grew_ns > holder.changed_ns ||
            other.second.watermark_ns == std::numeric_limits<std::int64_t>::max());
  });
  if (!others_advance) return;
  cursor_->GiveUpOn(static_cast<std::uint32_t>(lowest));
  given_up_.insert(writers[lowest]);
  const nlohmann::ordered_json data = {
      {"writer", writers[lowest]}, {"from_ns", cursor_->frontier_ns()}, {"at_ns", NowRunNs()}};
  events_.push_back({"order.gave_up", writers[lowest],
                     fmt::format("{} wrote nothing for {:.0f} s while others did; not waited for",
                                 writers[lowest], static_cast<double>(options_.give_up_ns) / 1e9),
                     JsonText(data)});
}

/// How old the run's last word is tells one clock alone, the file system's: it may be another
/// machine's. By it our own lock has just been written.
void Watcher::SeeWhetherLate() {
  came_late_ = reader_->state().state != "running";
  if (!came_late_) return;
  const std::int64_t now_ns =
      run_files::ChangedNs({run_, std::filesystem::path("watch") / store::kLockName});
  const std::int64_t last_ns = ChangedLastNs(run_);
  quiet_ = now_ns >= 0 && last_ns >= 0 && now_ns - last_ns >= options_.abandon_ns;
}

bool Watcher::Over() {
  // After the training's end the supervisor waits for the agent's last records, replaces an agent
  // that hangs, and says when it waits no longer: what comes until then belongs to the end.
  const store::RunState state = reader_->state();
  if (state.state == "running") {
    over_since_ns_ = 0;
    came_late_ = quiet_ = false;
    if (state.unrecorded) NoteLoss(*state.unrecorded, false);
    return false;
  }
  const std::int64_t now = options_.clock->MonotonicNs();
  if (over_since_ns_ == 0) over_since_ns_ = now;
  // Else a writer died for good without its end record, or goes on without its supervisor. Where
  // nothing was written for so long before we came there is nothing to wait for.
  if (cursor_->AtEnd() || quiet_) return true;
  const std::int64_t since =
      reader_->info().finished ? last_new_ns_ : std::max(last_new_ns_, over_since_ns_);
  return now - since >= options_.abandon_ns;
}

void Watcher::NoteLoss(const store::Unrecorded& lost, bool over) {
  if (std::exchange(over ? loss_ended_ : lost_, true)) return;
  lost_ = true;
  nlohmann::ordered_json data = {{"writer", lost.writer}, {"since_ns", lost.since_ns}};
  if (over) data["ended_ns"] = over_since_ns_ + writer_->monotonic_to_run_ns();
  events_.push_back(
      {"recording.lost", "run",
       over ? "The run is over and was not recorded to its end"
            : "The training goes on and is not recorded: supervisor and agent have gone",
       JsonText(data), "high"});
  last_ledger_ns_ = 0;  // It says so too.
}

/// Which findings only the end of the run, or of their process, has closed: their rows do not tell.
void Watcher::NoteEnd() {
  nlohmann::ordered_json incidents = nlohmann::ordered_json::array();
  for (const rules::Finding& finding : rules_.engine.findings()) {
    if (finding.until_end) incidents.push_back(finding.id);
  }
  const nlohmann::ordered_json data = {{"until_end", std::move(incidents)}};
  events_.push_back(
      {"rules.ended", "watch", "The run is over: what was open is closed", JsonText(data)});
}

/// The watcher of an attempt closes at its end what is open, which a later revision of the journal
/// must then undo: in another attempt the incident goes on, and the engine, which sees all attempts
/// as one, gives the number of that end to what comes next.
void Watcher::Number(rules::Finding* finding) {
  if (ends_.empty()) return;
  std::uint32_t& passed = passed_ends_[finding->id];
  while (true) {
    const auto end = ends_.find({finding->id, finding->revision + passed});
    if (end == ends_.end() || end->second == rules::DigestOf(rules::ToRow(*finding))) break;
    ++passed;
  }
  finding->revision += passed;
}

void Watcher::NoteStatuses() {
  const bool last = rules_.engine.ended() && !summed_up_;
  for (const rules::RuleState& state : rules_.engine.rule_states(last)) {
    const auto [known, fresh] = statuses_.try_emplace(state.name, state.status);
    // What was missing may have changed since the status did.
    const bool last_words = last && !(state.summary.empty() && state.missing.empty());
    if (!fresh && known->second == state.status && !last_words) continue;
    known->second = state.status;
    nlohmann::ordered_json data = {{"rule", state.name},
                                   {"status", rules::Name(state.status)},
                                   {"incidents", state.incidents},
                                   {"error", state.error},
                                   {"of", state.rule}};
    if (!state.partial.empty()) data["partial"] = state.partial;
    if (!state.missing.empty()) data["missing"] = state.missing;
    // Of the built-in ones everybody knows it.
    if (state.rule.empty() && state.wrong_result) data["wrong_result"] = true;
    if (last_words) {
      auto summary = ParseOrderedJson(state.summary);
      if (summary.is_object()) data["summary"] = std::move(summary);
    }
    const std::string& why = state.partial.empty() ? state.missing : state.partial;
    events_.push_back({"rule.status", "rule:" + state.name,
                       fmt::format("{}: {}{}{}", state.name, rules::Name(state.status),
                                   why.empty() ? "" : ": ", why),
                       JsonText(data)});
  }
  summed_up_ = rules_.engine.ended();
}

void Watcher::NoteActions(const std::vector<rules::Finding>& fresh, bool over) {
  const rules::Moment now = {NowRunNs(), options_.clock->RealtimeNs(), over,
                             store::NewestAttempt(reader_->info())};
  for (rules::ActionEvent& event : dispatcher_->Round(fresh, rules_.engine.findings(), now)) {
    events_.push_back({std::move(event.kind), std::move(event.subject), std::move(event.message),
                       std::move(event.data), std::move(event.severity)});
  }
}

void Watcher::KeepAround() {
  for (const rules::Finding& finding : std::exchange(to_keep_, {})) {
    if (kept_.size() >= kMostKept || !kept_.insert(finding.id).second) continue;
    Say(AskToKeep(run_, finding, options_.clock->RealtimeNs(),
                  store::NewestAttempt(reader_->info())));
  }
}

/// Everything of this round in one batch: a reader sees the decisions about order together with the
/// findings that rest on them. Where the disk refuses, it is all tried again in the next round.
Status Watcher::Flush() {
  const std::int64_t now = options_.clock->MonotonicNs();
  const std::int64_t run_now = NowRunNs();
  const bool ledger_due = now - last_ledger_ns_ >= options_.ledger_interval_ns ||
                          (rules_.engine.ended() && !last_ledger_);
  if (events_.empty() && findings_.empty() && !ledger_due &&
      run_now - last_watermark_ns_ < kWatermarkIntervalNs) {
    return {};
  }
  const auto& attempts = reader_->info().attempts;
  const std::uint32_t attempt = attempts.empty() ? 1 : attempts.back().number;
  std::vector<std::pair<std::string, std::uint64_t>> given;  // Rows point into it.
  format::Batch batch;
  batch.watermark_ns = run_now;
  for (const PendingEvent& event : events_) {
    format::EventRow row;
    row.time_ns = row.ord_ns = run_now;
    row.kind = event.kind;
    row.severity = event.severity;
    row.subject = event.subject;
    row.message = event.message;
    row.data = event.data;
    row.step = -1;
    row.attempt = attempt;
    batch.rows.events.push_back(row);
  }
  for (const rules::Finding& finding : findings_) {
    format::FindingRow row = rules::ToRow(finding);
    row.ord_ns = run_now;
    batch.rows.findings.push_back(row);
  }
  if (ledger_due) {
    const auto count = [&](std::string_view name, std::uint64_t value, std::string_view unit,
                           std::string_view subject = "watch") {
      format::LedgerRow row;
      row.time_ns = row.ord_ns = run_now;
      row.name = name;
      row.subject = subject;
      row.value = value;
      row.unit = unit;
      row.pid = ::getpid();
      row.attempt = attempt;
      batch.rows.ledger.push_back(row);
    };
    count("watch.records_read", records_, "records");
    count("watch.cpu_ns", static_cast<std::uint64_t>(OwnCpuNs()), "ns");
    const store::WriterCounters& written = writer_->counters();
    count("watch.journal_bytes", written.journal_bytes, "bytes");
    count("watch.salvaged_tails", written.salvaged_tails, "records");
    count("watch.sync_failures", written.sync_failures, "records");
    count("watch.write_failures", written.write_failures, "records");
    if (lost_) {
      count("run.agents_lost", 1, "agents", "run");
      batch.rows.ledger.back().loss = true;
      batch.rows.ledger.back().pid = 0;
    }
    for (const rules::RuleState& state : rules_.engine.rule_states(false)) {
      given.emplace_back("rule:" + state.name, state.records.value_or(0));
    }
    for (const auto& [subject, records] : given) {
      count("rule.records_read", records, "records", subject);
    }
  }
  TELLTALE_RETURN_IF_ERROR(writer_->Append(std::move(batch)));
  events_.clear();
  findings_.clear();
  last_watermark_ns_ = run_now;
  if (ledger_due) {
    last_ledger_ns_ = now;
    last_ledger_ = rules_.engine.ended();
  }
  return {};
}

Result<bool> Watcher::Poll() {
  std::size_t read = 0;
  if (!rules_.engine.ended()) {
    TELLTALE_ASSIGN_OR_RETURN(read, Drain());
  }
  records_ += read;
  if (read > 0) {
    last_new_ns_ = options_.clock->MonotonicNs();
  } else if (!rules_.engine.ended()) {
    WatchWriters();
  }
  const bool over = rules_.engine.ended() || (read == 0 && Over());
  if (over && !rules_.engine.ended()) {
    do {
      TELLTALE_ASSIGN_OR_RETURN(read, Drain());
      records_ += read;
    } while (cursor_->CloseStragglers());
    rules_.engine.End();
    const store::RunState state = reader_->state();
    if (!came_late_ && state.state != "running" && state.unrecorded) {
      NoteLoss(*state.unrecorded, true);
    }
    NoteEnd();
  }
  std::vector<rules::Finding> fresh;
  for (rules::Finding& finding : rules_.engine.TakeRevisions()) {
    Number(&finding);
    if (std::binary_search(known_.begin(), known_.end(), std::pair(finding.id, finding.revision))) {
      continue;
    }
    if (!over && WantsToKeep(finding)) to_keep_.push_back(finding);
    fresh.push_back(finding);
    findings_.push_back(std::move(finding));
  }
  NoteActions(fresh, over);
  NoteStatuses();
  // A full disk is no reason to stop: what could not be written is kept and tried again. The writer
  // counts its failures itself.
  const Status written = Flush();
  if (written.ok()) KeepAround();
  // Nothing is done that the disk does not say: the next watcher would do it again.
  if (written.ok() && dispatcher_->Journalled()) {
    writer_->Sync();
    actions_sync_ = true;
  }
  if (actions_sync_ && writer_->Synced()) {
    actions_sync_ = false;
    dispatcher_->Durable();
  }
  Say(written.ok() ? writer_->Tick() : written);
  if (!over) return false;
  if (ended_ns_ == 0) ended_ns_ = options_.clock->MonotonicNs();
  if (written.ok()) {
    if (!dispatcher_->idle()) {
      if (options_.clock->MonotonicNs() - ended_ns_ < options_.last_actions_ns) return false;
      dispatcher_->Stop();
      NoteActions({}, true);
      TELLTALE_RETURN_IF_ERROR(Flush());
    }
    // Not tried again here: the folder is let go of, and the next watcher takes it up.
    TELLTALE_RETURN_IF_ERROR(writer_->Close(true));
    return true;
  }
  if (over_ns_ == 0) over_ns_ = options_.clock->MonotonicNs();
  if (options_.clock->MonotonicNs() - over_ns_ < options_.last_words_ns) return false;
  return {written.code(), fmt::format("{} findings and {} events were not written: {}",
                                      findings_.size(), events_.size(), written.message())};
}

/// Errors of the disk go to the log, each once.
void Watcher::Say(const Status& status) {
  if (status.ok() || status.message() == said_) return;
  said_ = status.message();
  std::fprintf(stderr, "watch: %s\n", said_.c_str());
}

Status Watcher::Stop() {
  // What is being done is let go of, and the journal says so.
  dispatcher_->Stop();
  NoteActions({}, rules_.engine.ended());
  TELLTALE_RETURN_IF_ERROR(Flush());
  return writer_->Close(false);
}

}  // namespace telltale::watch
