// SPDX-License-Identifier: Apache-2.0
#include "read/follow.h"

#include <arrow/api.h>

#include <limits>
#include <utility>

#include "query/table.h"

namespace telltale::read {
namespace {

constexpr std::size_t kRowsAtATime = 8192;
constexpr std::int64_t kLookIntervalNs = 500'000'000;
constexpr std::int64_t kEnded = std::numeric_limits<std::int64_t>::max();

}  // namespace

Result<std::unique_ptr<Follow>> Follow::Open(const std::filesystem::path& run,
                                             const std::vector<std::string>& tables,
                                             FollowOptions options) {
  std::unique_ptr<Follow> follow(new Follow(run, options));
  store::CursorOptions cursor;
  cursor.table_mask = 0;
  for (const std::string& name : tables) {
    TELLTALE_ASSIGN_OR_RETURN(const query::Table table, query::Table::Named(name));
    if ((cursor.table_mask & store::MaskOf(table.id())) != 0) continue;
    cursor.table_mask |= store::MaskOf(table.id());
    TELLTALE_ASSIGN_OR_RETURN(BatchShape shape, BatchShape::Of(table.id(), {}));
    follow->shapes_.push_back(std::move(shape));
    // Only the watcher writes findings; waiting for it delays all the others.
    if (table.id() == format::TableId::kFindings) cursor.exclude_prefix.clear();
  }
  if (follow->shapes_.empty()) {
    return {Code::kUsage, "no table to follow was named: name one, for example steps"};
  }
  TELLTALE_ASSIGN_OR_RETURN(follow->reader_, store::RunReader::Open(run));
  follow->was_over_ = follow->over_ = follow->reader_->state().state != "running";
  TELLTALE_ASSIGN_OR_RETURN(follow->cursor_, follow->reader_->NewCursor(cursor));
  follow->watch_log_.Advance(follow->was_over_);
  follow->watch_log_.Readmit(follow->cursor_.get());
  follow->looked_ns_ = follow->new_ns_ = options.clock->MonotonicNs();
  return follow;
}

Result<Follow::Piece> Follow::Next() {
  while (queue_.empty() && !ended_) {
    TELLTALE_ASSIGN_OR_RETURN(const bool more, Read());
    if (!more) break;
  }
  if (queue_.empty()) return Piece{.state = ended_ ? State::kEnd : State::kWait};
  Piece piece = std::move(queue_.front());
  queue_.pop_front();
  return piece;
}

/// False where nothing is new and asking again at once is of no use.
Result<bool> Follow::Read() {
  std::vector<store::OrderedRecord> records;
  given_ns_ = cursor_->frontier_ns();
  if (!was_over_ && watch_log_.Advance(false)) watch_log_.Readmit(cursor_.get());
  TELLTALE_RETURN_IF_ERROR(cursor_->Next(kRowsAtATime, &records));
  cursor_->TakeAdmissions();
  const std::int64_t now = options_.clock->MonotonicNs();
  if (!records.empty()) {
    new_ns_ = now;
    TELLTALE_RETURN_IF_ERROR(Queue(records));
    return true;
  }
  if (!Over()) {
    watch_log_.GiveUp(cursor_.get());
    LetGoOfTheSilent(now);
    return false;
  }
  if (cursor_->AtEnd()) {
    ended_ = true;
    return false;
  }
  if (!was_over_ && now - new_ns_ < options_.abandon_ns) return false;
  // Who has not said its end by now died without it.
  if (cursor_->CloseStragglers()) return true;
  ended_ = true;
  return false;
}

bool Follow::Over() {
  if (over_) return true;
  const std::int64_t now = options_.clock->MonotonicNs();
  if (now - looked_ns_ < kLookIntervalNs) return false;
  looked_ns_ = now;
  over_ = reader_->state().state != "running";
  return over_;
}

/// Watermarks move while a run goes on, even where nothing happens: one that stands still is that
/// of a writer that is gone.
void Follow::LetGoOfTheSilent(std::int64_t now_ns) {
  const std::vector<std::int64_t> watermarks = cursor_->watermarks();
  std::size_t lowest = watermarks.size();
  std::size_t alive = 0;
  for (std::size_t i = 0; i < watermarks.size(); ++i) {
    if (watermarks[i] == kEnded) continue;
    ++alive;
    if (lowest == watermarks.size() || watermarks[i] < watermarks[lowest]) lowest = i;
  }
  if (alive < 2) return;
  if (lowest_since_ns_ == 0 || watermarks[lowest] != lowest_ns_) {
    lowest_ns_ = watermarks[lowest];
    lowest_since_ns_ = now_ns;
  } else if (now_ns - lowest_since_ns_ >= options_.give_up_ns) {
    cursor_->GiveUpOn(static_cast<std::uint32_t>(lowest));
    lowest_since_ns_ = 0;
  }
}

Status Follow::Queue(const std::vector<store::OrderedRecord>& records) {
  for (const BatchShape& shape : shapes_) {
    format::Rows rows;
    std::vector<std::string_view> writers;
    format::ForEachTable(rows, [&](auto& of_table) {
      using Row = typename std::remove_cvref_t<decltype(of_table)>::value_type;
      if (Row::kTable != shape.table()) return;
      for (const store::OrderedRecord& record : records) {
        const Row* const row = record.As<Row>();
        if (row == nullptr) continue;
        // As delivered: that of a late record was moved to its place in the order.
        of_table.emplace_back(*row).ord_ns = record.ord_ns;
        writers.push_back(cursor_->writers()[record.writer]);
      }
    });
    if (writers.empty()) continue;
    auto batch = shape.Make(rows, writers);
    if (!batch.ok()) return FromArrow("cannot make a batch", batch.status());
    queue_.push_back({State::kRecords, shape.table(), std::move(batch).ValueUnsafe()});
  }
  return {};
}

}  // namespace telltale::read
