// SPDX-License-Identifier: Apache-2.0
// Follows a run: what the cursor delivers, as batches of one table each. Never waits. What the
// run's watcher decided about late writers holds here too, so a run that is over comes in the order
// in which the rules saw it.
//
// Thread safety: none. Memory: what one call of the cursor delivers, and what the cursor holds
// back.
#pragma once
#include <arrow/type_fwd.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "read/batch_out.h"
#include "store/reader.h"
#include "store/watch_log.h"

namespace telltale::read {

struct FollowOptions {
  const Clock* clock = &Clock::System();
  /// A writer that holds the others up for this long is no longer waited for while the run goes on;
  /// what it writes later is given at the moment of its return.
  std::int64_t give_up_ns = 10'000'000'000;
  /// The run is over but a writer has not said its end: nothing new for this long, and it never
  /// will.
  std::int64_t abandon_ns = 10'000'000'000;
};

class Follow {
 public:
  /// Code::kUsage: no such table, or none named.
  static Result<std::unique_ptr<Follow>> Open(const std::filesystem::path& run,
                                              const std::vector<std::string>& tables,
                                              FollowOptions options = {});

  enum class State { kRecords, kWait, kEnd };
  struct Piece {
    State state = State::kWait;
    format::TableId table{};
    std::shared_ptr<arrow::RecordBatch> batch;
  };
  Result<Piece> Next();
  /// Everything with ord_ns below this was given.
  std::int64_t frontier_ns() const { return queue_.empty() ? cursor_->frontier_ns() : given_ns_; }
  const store::Salvage& salvage() const { return cursor_->salvage(); }

 private:
  Follow(const std::filesystem::path& run, FollowOptions options)
      : options_(options), watch_log_(run) {}
  Result<bool> Read();
  Status Queue(const std::vector<store::OrderedRecord>& records);
  bool Over();
  void LetGoOfTheSilent(std::int64_t now_ns);

  const FollowOptions options_;
  std::unique_ptr<store::RunReader> reader_;
  std::unique_ptr<store::Cursor> cursor_;
  store::WatchLog watch_log_;
  std::vector<BatchShape> shapes_;
  std::deque<Piece> queue_;
  std::int64_t given_ns_ = std::numeric_limits<std::int64_t>::min();  ///< Before the queue's rows.
  bool was_over_ = false;  ///< When the cursor was made: nothing more is written.
  bool over_ = false;
  std::int64_t looked_ns_ = 0;  ///< At run.json, by the clock.
  std::int64_t new_ns_ = 0;     ///< Something new, by the clock.
  std::int64_t lowest_ns_ = 0;  ///< Watermark that held the others up.
  std::int64_t lowest_since_ns_ = 0;
  bool ended_ = false;
};

}  // namespace telltale::read
