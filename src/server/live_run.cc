// SPDX-License-Identifier: Apache-2.0
#include "server/live_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/run_files.h"
#include "base/units.h"
#include "report/html.h"
#include "rules/groups.h"
#include "rules/rule_set.h"
#include "server/isolated.h"
#include "server/json_text.h"
#include "server/overview.h"
#include "store/recording_end.h"

namespace telltale::server {
namespace {

/// Few enough that the server's thread never waits long for the lock.
constexpr std::size_t kRowsAtATime = 4096;
constexpr std::int64_t kStateEveryNs = 500 * kMs;
constexpr std::int64_t kPublishEveryNs = 480 * kMs;
/// Of reading the step times of a long run before its records.
constexpr std::chrono::milliseconds kOutlineLimit(100);
/// The run is over and nothing new came for so long: a writer without an end has died.
constexpr std::int64_t kStragglerNs = 2000 * kMs;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

/// Price and parameters, for what is said of findings. A set that cannot be read is told by the
/// engine; the defaults then stand.
void TakeRuleSet(rules::Replay* replay) {
  auto set = rules::RuleSetFromJson(replay->info.rules);
  replay->rule_set = set.ok() ? std::move(set).value() : rules::RuleSet();
}

}  // namespace

LiveRun::LiveRun(std::string id, std::filesystem::path path, LiveRunOptions options)
    : id_(std::move(id)),
      path_(std::move(path)),
      options_(std::move(options)),
      watched_(std::make_unique<rules::WatchedFindings>(path_)) {}

std::shared_ptr<const Snapshot> LiveRun::snapshot() const {
  const std::scoped_lock lock(mutex_);
  return snapshot_;
}

Result<std::string> LiveRun::Series(const SeriesQuery& query) const {
  answered_ = std::chrono::steady_clock::now();
  const std::scoped_lock lock(mutex_);
  return view_.SeriesJson(query);
}

Result<std::string> LiveRun::Heatmap(const HeatmapQuery& query) const {
  const Result<HeatMap> map = [&] {
    const std::scoped_lock lock(mutex_);
    return view_.Heatmap(query);
  }();
  if (!map.ok()) return map.status();
  return query.as_bytes ? HeatBytes(*map) : HeatJson(*map);
}

Result<std::shared_ptr<const std::string>> LiveRun::Report(std::uint64_t asked) const {
  const std::scoped_lock lock(mutex_);
  if (report_made_ < asked) return std::shared_ptr<const std::string>();
  return report_;
}

std::int64_t LiveRun::now_ns() const {
  const std::int64_t begin = begin_ns_;
  if (begin == 0) return 0;
  const std::int64_t end = ended_at_ns_;
  return std::max<std::int64_t>(
      0, (end != 0 ? end : Clock::System().MonotonicNs() + to_run_ns_) - begin);
}

void LiveRun::LimitPoints(std::size_t points) {
  if (points == view_.max_points()) return;
  const std::scoped_lock lock(mutex_);
  view_.LimitPoints(points);
}

Status LiveRun::Open() {
  TELLTALE_ASSIGN_OR_RETURN(reader_, store::RunReader::Open(path_));
  const store::RunState state = reader_->state();
  report::RunData& data = view_.data;
  const store::RunInfo& info = data.replay.info;
  {
    const std::scoped_lock lock(mutex_);
    data.path = path_;
    data.replay.state = state;
    data.replay.info = reader_->info();
    TakeRuleSet(&data.replay);
    data.replay.ended = state.state != "running";
    view_.begin_ns = info.created_ns;
    if (!info.attempts.empty() && info.attempts.front().start_ns > 0 &&
        (view_.begin_ns <= 0 || info.attempts.front().start_ns < view_.begin_ns)) {
      view_.begin_ns = info.attempts.front().start_ns;
    }
  }
  begin_ns_ = view_.begin_ns;
  to_run_ns_ = store::RunClockNow(path_) - Clock::System().MonotonicNs();
  // What the watcher decided about late writers, before the first record is ordered.
  ReadWatch();
  if (data.replay.ended && !watched_->log().CameToItsEnd(info)) {
    TELLTALE_ASSIGN_OR_RETURN(rules::RunEngine engine, rules::EngineOf(path_, info));
    engine_ = std::make_unique<rules::RunEngine>(std::move(engine));
  }
  store::CursorOptions options;
  options.table_mask = analysis::Summary::table_mask();
  if (engine_) options.table_mask |= engine_->engine.table_mask();
  TELLTALE_ASSIGN_OR_RETURN(cursor_, reader_->NewCursor(options));
  if (engine_) engine_->values->Follow(cursor_.get());
  watched_->log().Readmit(cursor_.get());
  if (view_.begin_ns > 0) {
    auto outline =
        ReadStepOutline(path_, view_.begin_ns, std::chrono::steady_clock::now() + kOutlineLimit);
    const std::scoped_lock lock(mutex_);
    if (outline) view_.TakeOutline(std::move(outline).value());
  }
  return {};
}

void LiveRun::Reset() {
  cursor_.reset();
  reader_.reset();
  watched_ = std::make_unique<rules::WatchedFindings>(path_);
  engine_.reset();
  judge_.reset();
  judged_.reset();
  decided_ = records_published_ = false;
  loading_ = changed_ = true;
  state_read_ns_ = last_new_ns_ = last_ord_ns_ = watch_read_ns_ = 0;
  info_time_ = 0;
  begin_ns_ = watermark_ns_ = ended_at_ns_ = 0;
  const std::size_t points = view_.max_points();
  const std::scoped_lock lock(mutex_);
  view_ = RunView();
  view_.LimitPoints(points);
}

void LiveRun::ReadState(std::int64_t now) {
  if (state_read_ns_ != 0 && now - state_read_ns_ < kStateEveryNs) return;
  state_read_ns_ = now;
  const std::int64_t written = run_files::ChangedNs({path_, "run.json"});
  report::RunData& data = view_.data;
  // A run that is over changes only by a further attempt, which writes run.json anew.
  if (written >= 0 && written == info_time_ && data.replay.ended) return;
  info_time_ = written;
  const store::RunState state = reader_->state();
  // Recorded anew in the same place; or it goes on, and what was read as the end of it was none.
  if (reader_->info().created_ns != data.replay.info.created_ns ||
      (data.replay.ended && state.state == "running")) {
    Reset();
    return;
  }
  const bool same = state.state == data.replay.state.state &&
                    state.unrecorded == data.replay.state.unrecorded &&
                    reader_->info().attempts.size() == data.replay.info.attempts.size();
  if (same && data.replay.ended) return;
  const std::scoped_lock lock(mutex_);
  data.replay.state = state;
  data.replay.info = reader_->info();
  TakeRuleSet(&data.replay);
  data.replay.ended = state.state != "running";
  if (same) return;
  changed_ = true;
  decided_ = false;
}

void LiveRun::ReadWatch() {
  const bool ended = view_.data.replay.ended;
  if (!watched_->Advance(ended)) return;
  decided_ = false;
  judge_.reset();
  watch_read_ns_ = Now();
  // The watcher of a further attempt knows more than a replay of those before.
  if (!ended) judged_.reset();
  if (cursor_ != nullptr) watched_->log().Readmit(cursor_.get());
  TakeFindings();
}

void LiveRun::TakeFindings() {
  std::vector<rules::Finding> findings;
  std::vector<rules::RuleState> states;
  std::size_t left_out = 0;
  if (judged_) {
    findings = judged_->findings;
    left_out = judged_->findings_left_out;
    states = judged_->rules;
  } else if (engine_) {
    findings = rules::Ranked(engine_->engine.findings(), &left_out);
    states = engine_->engine.rule_states();
  } else {
    findings = watched_->findings(&left_out);
    states = watched_->rules();
  }
  const std::scoped_lock lock(mutex_);
  view_.data.replay.findings = std::move(findings);
  view_.data.replay.findings_left_out = left_out;
  view_.data.replay.rules = std::move(states);
  view_.data.replay.actions = watched_->actions();
  view_.data.replay.watch_cpu_ns = watched_->cpu_ns();
  view_.data.replay.seen_end_ns = watched_->log().seen_end_ns();
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
    const bool ended = view_.data.replay.ended;
    if (records.empty()) {
      if (!ended) watched_->log().GiveUp(cursor_.get());
      const bool over =
          ended && (loading_ || now - last_new_ns_ >= kStragglerNs) && !cursor_->AtEnd();
      if (over && cursor_->CloseStragglers()) continue;
      return false;
    }
    last_new_ns_ = now;
    last_ord_ns_ = records.back().ord_ns;
    changed_ = true;
    decided_ = false;
    judge_.reset();
    if (engine_) {
      engine_->engine.Feed(records);
    }
    {
      const std::scoped_lock lock(mutex_);
      for (const store::OrderedRecord& record : records) view_.OnRecord(record);
    }
    if (std::chrono::steady_clock::now() >= deadline) return true;
  }
}

bool LiveRun::Decide(std::chrono::steady_clock::time_point deadline) {
  const rules::Replay& known = view_.data.replay;
  if (!known.ended) {
    engine_.reset();
    judge_.reset();
    return false;
  }
  if (decided_) return false;
  // Somebody may be about to write last words.
  if (!loading_ && Now() - std::max(last_new_ns_, watch_read_ns_) < kStragglerNs) return false;
  const auto decide = [this] {
    engine_.reset();
    judge_.reset();
    decided_ = changed_ = true;
    return false;
  };
  if (engine_) {
    engine_->engine.End();
    judged_.emplace();
    judged_->findings = rules::Ranked(engine_->engine.findings(), &judged_->findings_left_out);
    judged_->rules = engine_->engine.rule_states();
    return decide();
  }
  if (!judge_) {
    const bool whole = watched_->log().CameToItsEnd(known.info) &&
                       (last_new_ns_ == 0 || last_ord_ns_ < watched_->log().watermark_ns());
    if (whole) {
      judged_.reset();
      return decide();
    }
    auto judge = rules::Replayer::Open(path_);
    if (!judge.ok()) return decide();
    judge_ = std::move(judge).value();
  }
  std::vector<store::OrderedRecord> records;
  do {
    const auto more = judge_->Next(kRowsAtATime, &records);
    if (!more.ok()) return decide();
    if (*more) continue;
    judged_ = judge_->Take();
    return decide();
  } while (std::chrono::steady_clock::now() < deadline);
  return true;
}

bool LiveRun::Advance(std::chrono::milliseconds limit) {
  if (gave_up_) {
    // Not again and again: until somebody records or mends it.
    const std::int64_t written = run_files::ChangedNs({path_, "run.json"});
    const bool other = written >= 0 && written != gave_up_at_;
    const bool due = retry_at_ns_ && Now() >= *retry_at_ns_;
    if (!other && !due) return false;
    gave_up_ = false;
    Reset();
  }
  bool more = false;
  const Status read = Isolated(path_, [&] {
    if (options_.before_look) options_.before_look();
    more = ReadOn(limit);
  });
  if (read.ok()) return more;
  GiveUp(read);
  return false;
}

void LiveRun::GiveUp(const Status& why) {
  gave_up_ = changed_ = true;
  gave_up_at_ = run_files::ChangedNs({path_, "run.json"});
  retry_at_ns_.reset();
  if (why.code() == Code::kLimit) retry_at_ns_ = Now() + options_.retry_ns;
  error_ = why.message();
  loading_ = false;
  cursor_.reset();
  engine_.reset();
  judge_.reset();
}

bool LiveRun::ReadOn(std::chrono::milliseconds limit) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  if (cursor_) ReadState(Now());
  if (!cursor_) {
    if (const Status status = Open(); !status.ok()) {
      if (error_ != status.message()) changed_ = true;
      error_ = status.message();
      cursor_.reset();
      return false;
    }
    error_.clear();
    deadline = std::chrono::steady_clock::now() + limit;
  }
  ReadWatch();
  bool more = ReadRecords(deadline);
  if (begin_ns_ == 0 && view_.begin_ns != 0) begin_ns_ = view_.begin_ns;
  const std::int64_t frontier = cursor_->frontier_ns();
  if (frontier > view_.begin_ns) watermark_ns_ = frontier - view_.begin_ns;
  if (!more && error_.empty()) {
    more = Decide(deadline);
    if (!more && std::exchange(loading_, false)) {
      changed_ = true;
      const std::scoped_lock lock(mutex_);
      view_.DropOutline();
    }
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
  // Charts are asked for once the first records are known of: they are not made to wait.
  const bool first = !records_published_ && view_.data.summary.records > 0;
  if (!changed_ || (!now && !first && at - published_ns_ < kPublishEveryNs)) return false;
  changed_ = false;
  records_published_ = records_published_ || first;
  published_ns_ = at;
  auto next = std::make_shared<Snapshot>();
  next->version = ++version_;
  if (cursor_) {
    const rules::Replay& known = view_.data.replay;
    const bool judged = known.ended && !engine_ && watched_->log().CameToItsEnd(known.info);
    const Moment moment{.id = id_,
                        .now_ns = now_ns(),
                        .watermark_ns = watermark_ns_,
                        .loading = loading_,
                        .judged = judged,
                        .error = error_};
    const Status made = Isolated(path_, [&] { next->overview = OverviewJson(view_, moment); });
    if (!made.ok()) {
      GiveUp(made);
      next->error = error_;
    }
  } else {
    next->error = error_;
  }
  const std::scoped_lock lock(mutex_);
  snapshot_ = std::move(next);
  return true;
}

std::string LiveRun::WithFewStacks(const report::RunData& data) {
  return report::RenderReport(data, report::StackGraphsOf(data.path, kMostStacks));
}

bool LiveRun::MakeReport(const Render& render) {
  // The loader alone writes report_made_, so it reads it without the lock.
  const std::uint64_t asked = report_asked_;
  if (asked == report_made_ || !cursor_) return false;
  using Made = Result<std::shared_ptr<const std::string>>;
  // Made beforehand: there may be no memory for words either.
  Made no_memory(Code::kLimit, "no memory for the report now: ask again");
  Made made = [&] {
    try {
      return Made(std::make_shared<const std::string>(render(view_.data)));
    } catch (const std::bad_alloc&) {
      return std::move(no_memory);
    } catch (const std::exception& error) {
      return Made(Code::kUnusable, fmt::format("the report cannot be made here: {}: try 'telltale "
                                               "report {}'",
                                               error.what(), path_.string()));
    }
  }();
  const std::scoped_lock lock(mutex_);
  report_ = std::move(made);
  report_made_ = asked;
  return true;
}

}  // namespace telltale::server
