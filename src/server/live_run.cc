// SPDX-License-Identifier: Apache-2.0
#include "server/live_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "report/html.h"
#include "server/overview.h"
#include "store/folder.h"

namespace telltale::server {
namespace {

using format::TableId;

/// Few enough that the server's thread never waits long for the lock.
constexpr std::size_t kRowsAtATime = 4096;
constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kStateEveryNs = 500 * kMs;
constexpr std::int64_t kPublishEveryNs = 480 * kMs;
/// The run is over and nothing new came for so long: a writer without an end has died.
constexpr std::int64_t kStragglerNs = 2000 * kMs;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

rules::Severity SeverityOf(std::string_view name) {
  for (const auto severity :
       {rules::Severity::kInfo, rules::Severity::kMedium, rules::Severity::kHigh}) {
    if (rules::Name(severity) == name) return severity;
  }
  return rules::Severity::kLow;
}

rules::RuleStatus StatusOf(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(rules::RuleStatus::kError); ++i) {
    const auto status = static_cast<rules::RuleStatus>(i);
    if (rules::Name(status) == name) return status;
  }
  return rules::RuleStatus::kInProgress;
}

}  // namespace

LiveRun::LiveRun(std::string id, std::filesystem::path path)
    : id_(std::move(id)), path_(std::move(path)) {}

std::shared_ptr<const Snapshot> LiveRun::snapshot() const {
  const std::scoped_lock lock(mutex_);
  return snapshot_;
}

Result<std::string> LiveRun::Series(const SeriesQuery& query) const {
  const std::scoped_lock lock(mutex_);
  return view_.SeriesJson(query);
}

Result<std::string> LiveRun::Heatmap(const HeatmapQuery& query) const {
  const std::scoped_lock lock(mutex_);
  return view_.HeatmapJson(query);
}

std::string LiveRun::Report() const {
  const std::scoped_lock lock(mutex_);
  return report::RenderReport(view_.data);
}

std::int64_t LiveRun::now_ns() const {
  const std::int64_t begin = begin_ns_;
  if (begin == 0) return 0;
  const std::int64_t end = ended_at_ns_;
  return std::max<std::int64_t>(0, (end != 0 ? end : Clock::System().RealtimeNs()) - begin);
}

Status LiveRun::Open() {
  TELLTALE_ASSIGN_OR_RETURN(reader_, store::RunReader::Open(path_));
  report::RunData& data = view_.data;
  data.path = path_;
  data.replay.state = reader_->state();
  data.replay.info = reader_->info();
  data.replay.ended = data.replay.state.state != "running";
  const std::vector<std::string> writers = store::ListWriters(path_);
  const bool watched = std::any_of(writers.begin(), writers.end(), [](const std::string& name) {
    return name.starts_with("watch");
  });
  if (data.replay.ended && !watched) engine_ = std::make_unique<rules::Engine>();
  store::CursorOptions options;
  options.table_mask = analysis::Summary::table_mask();
  if (engine_) options.table_mask |= engine_->table_mask();
  const store::RunInfo& info = data.replay.info;
  {
    const std::scoped_lock lock(mutex_);
    view_.begin_ns = info.created_ns;
    if (!info.attempts.empty() && info.attempts.front().start_ns > 0 &&
        (view_.begin_ns <= 0 || info.attempts.front().start_ns < view_.begin_ns)) {
      view_.begin_ns = info.attempts.front().start_ns;
    }
  }
  begin_ns_ = view_.begin_ns;
  // What the watcher decided about late writers, before the first record is ordered.
  ReadWatch();
  TELLTALE_ASSIGN_OR_RETURN(cursor_, reader_->NewCursor(options));
  for (const store::Admission& admission : admissions_) cursor_->Readmit(admission);
  admissions_.clear();
  return {};
}

void LiveRun::ReadState(std::int64_t now) {
  if (state_read_ns_ != 0 && now - state_read_ns_ < kStateEveryNs) return;
  state_read_ns_ = now;
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path_ / "run.json", error);
  report::RunData& data = view_.data;
  // A run that is over changes only by a further attempt, which writes run.json anew.
  if (!error && written == info_time_ && data.replay.ended) return;
  info_time_ = written;
  const store::RunState state = reader_->state();
  const bool same = state.state == data.replay.state.state &&
                    reader_->info().attempts.size() == data.replay.info.attempts.size();
  if (same && data.replay.ended) return;
  const std::scoped_lock lock(mutex_);
  data.replay.state = state;
  data.replay.info = reader_->info();
  data.replay.ended = state.state != "running";
  if (!same) changed_ = true;
}

void LiveRun::OnFinding(const format::FindingRow& row) {
  rules::Finding& finding = findings_[std::string(row.incident)];
  if (row.revision < finding.revision) return;
  finding.id = row.incident;
  finding.revision = row.revision;
  finding.rule = row.rule;
  finding.open = row.state == "open";
  if (!finding.open) closed_ns_[finding.id] = row.ord_ns;
  rules::Incident& incident = finding.incident;
  incident.subject = row.subject;
  incident.severity = SeverityOf(row.severity);
  incident.first_step = row.first_step;
  incident.last_step = row.last_step;
  incident.start_ns = row.start_ns;
  incident.end_ns = row.end_ns;
  incident.message = row.message;
  incident.evidence = row.evidence;
  incident.cause = row.cause;
  incident.cost_seconds = row.cost_seconds;
  incident.advice = row.advice;
  incident.confidence = row.confidence;
}

void LiveRun::OnWatchEvent(const format::EventRow& row) {
  const auto data = nlohmann::json::parse(row.data, nullptr, false);
  if (!data.is_object()) return;
  const auto text = [&](const char* key) {
    const auto found = data.find(key);
    return found != data.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (row.kind == "rule.status") {
    rules::RuleState& rule = rules_[text("rule")];
    rule.name = text("rule");
    rule.status = StatusOf(text("status"));
    rule.error = text("error");
    if (const auto found = data.find("incidents");
        found != data.end() && found->is_number_unsigned()) {
      rule.incidents = found->get<std::uint32_t>();
    }
  } else if (row.kind == "order.gave_up") {
    gave_up_.insert(text("writer"));
  } else if (row.kind == "order.readmitted") {
    gave_up_.erase(text("writer"));
    // Later ones this cursor decides by itself.
    auto admission = store::AdmissionFromJson(row.data);
    if (cursor_ == nullptr && admission.ok()) admissions_.push_back(std::move(admission).value());
  }
}

bool LiveRun::ReadWatch() {
  for (const std::string& name : store::ListWriters(path_)) {
    if (!name.starts_with("watch") || watchers_.contains(name)) continue;
    constexpr std::uint32_t kMask = store::MaskOf(TableId::kFindings) |
                                    store::MaskOf(TableId::kEvents) |
                                    store::MaskOf(TableId::kLedger);
    watchers_[name] = std::make_unique<store::WriterFollower>(
        path_ / name, name, kMask, view_.data.replay.ended, &watch_salvage_);
  }
  bool any = false;
  for (auto& [name, follower] : watchers_) {
    while (true) {
      std::unique_ptr<store::RowChunk> chunk;
      const Result<bool> progress = follower->Advance(&chunk);
      if (!progress.ok() || !*progress) break;
      if (chunk == nullptr) continue;
      for (const format::FindingRow& row : chunk->rows.findings) OnFinding(row);
      for (const format::EventRow& row : chunk->rows.events) OnWatchEvent(row);
      for (const format::LedgerRow& row : chunk->rows.ledger) {
        if (row.name == "watch.cpu_ns") watch_cpu_ns_[row.pid] = row.value;
      }
      any = true;
    }
  }
  if (any) TakeFindings();
  return any;
}

void LiveRun::TakeFindings() {
  std::vector<rules::Finding> findings;
  std::vector<rules::RuleState> states;
  if (engine_) {
    findings = engine_->findings();
    states = engine_->rule_states();
  } else {
    std::int64_t end_ns = 0;
    for (const auto& [number, attempt] : view_.data.summary.attempts) {
      end_ns = std::max(end_ns, attempt.end_ns);
    }
    for (auto& [id, finding] : findings_) {
      // Closed since nothing follows, and not since it was over.
      finding.until_end =
          !finding.open && view_.data.replay.ended && end_ns != 0 && closed_ns_[id] >= end_ns;
      findings.push_back(finding);
    }
    for (const auto& [name, state] : rules_) states.push_back(state);
  }
  std::uint64_t cpu = 0;
  for (const auto& [pid, ns] : watch_cpu_ns_) cpu += ns;
  findings = rules::Ranked(std::move(findings));
  const std::scoped_lock lock(mutex_);
  view_.data.replay.findings = std::move(findings);
  view_.data.replay.rules = std::move(states);
  view_.data.replay.watch_cpu_ns = cpu;
  changed_ = true;
}

bool LiveRun::ReadRecords(std::chrono::steady_clock::time_point deadline) {
  std::vector<store::OrderedRecord> records;
  const std::int64_t now = Now();
  while (true) {
    records.clear();
    if (const Status status = cursor_->Next(kRowsAtATime, &records); !status.ok()) {
      if (error_ != status.message()) changed_ = true;
      error_ = status.message();
      return false;
    }
    if (!error_.empty()) {
      error_.clear();
      changed_ = true;
    }
    if (records.empty()) {
      for (std::uint32_t i = 0; i < cursor_->writers().size(); ++i) {
        if (gave_up_.erase(cursor_->writers()[i]) > 0) cursor_->GiveUpOn(i);
      }
      const bool over = view_.data.replay.ended &&
                        (loading_ || now - last_new_ns_ >= kStragglerNs) && !cursor_->AtEnd();
      if (over && cursor_->CloseStragglers()) continue;
      return false;
    }
    last_new_ns_ = now;
    changed_ = true;
    if (engine_) {
      for (const store::OrderedRecord& record : records) engine_->Feed(record);
    }
    {
      const std::scoped_lock lock(mutex_);
      for (const store::OrderedRecord& record : records) view_.OnRecord(record);
    }
    if (std::chrono::steady_clock::now() >= deadline) return true;
  }
}

bool LiveRun::Advance(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  if (!cursor_) {
    if (const Status status = Open(); !status.ok()) {
      if (error_ != status.message()) changed_ = true;
      error_ = status.message();
      cursor_.reset();
      return false;
    }
    error_.clear();
  }
  ReadState(Now());
  ReadWatch();
  // What to show first is known before the first record is read.
  if (version_ == 0) Publish(true);
  const bool more = ReadRecords(deadline);
  if (begin_ns_ == 0 && view_.begin_ns != 0) begin_ns_ = view_.begin_ns;
  const std::int64_t frontier = cursor_->frontier_ns();
  if (frontier > view_.begin_ns) watermark_ns_ = frontier - view_.begin_ns;
  if (!more && error_.empty() && std::exchange(loading_, false)) {
    if (engine_ && !engine_->ended()) engine_->End();
    changed_ = true;
  }
  if (changed_) TakeFindings();
  if (changed_) {
    store::Salvage salvage = cursor_->salvage();
    const std::scoped_lock lock(mutex_);
    view_.data.replay.salvage = std::move(salvage);
    view_.data.replay.writers = cursor_->writers();
  }
  const store::RunInfo& info = view_.data.replay.info;
  std::int64_t end = 0;
  if (view_.data.replay.ended) {
    end = view_.data.summary.last_ns;
    if (!info.attempts.empty()) end = std::max(end, info.attempts.back().end_ns);
  }
  ended_at_ns_ = end;
  return more;
}

bool LiveRun::Publish(bool now) {
  const std::int64_t at = Now();
  if (!changed_ || (!now && at - published_ns_ < kPublishEveryNs)) return false;
  changed_ = false;
  published_ns_ = at;
  auto next = std::make_shared<Snapshot>();
  next->version = ++version_;
  if (cursor_) {
    next->overview = OverviewJson(view_, {id_, now_ns(), watermark_ns_, loading_, error_});
  } else {
    next->error = error_;
  }
  const std::scoped_lock lock(mutex_);
  snapshot_ = std::move(next);
  return true;
}

}  // namespace telltale::server
