// SPDX-License-Identifier: Apache-2.0
// What the watchers of a run have journalled, followed as it grows: their decisions about the order
// of records, whether they came to their own end, and their rows for whoever wants them.
//
// Thread safety: none.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/follower.h"
#include "store/reader.h"
#include "store/run_info.h"

namespace telltale::store {

/// When a watcher saw the end of an attempt that nobody recorded; 0: it saw none.
struct SeenEnd {
  std::uint32_t attempt = 0;
  std::int64_t ns = 0;  ///< Run clock.
  /// Takes the word of an event.
  void Take(const format::EventRow& row);
};

class WatchLog {
 public:
  /// Rows of events and ledger are always read, those of the tables in `table_mask` too.
  explicit WatchLog(std::filesystem::path run, std::uint32_t table_mask = 0)
      : run_(std::move(run)), table_mask_(table_mask) {}
  WatchLog(const WatchLog&) = delete;
  WatchLog& operator=(const WatchLog&) = delete;

  using Visitor = std::function<void(const format::Rows& rows)>;
  /// Reads what is new; true where rows came in. `final`: no watcher is at work any more. What
  /// cannot be read is left out: the order is then that of the records alone.
  bool Advance(bool final, const Visitor& visit = {});

  /// Tells the cursor of the readmissions that came in since the last call. Those of a run that is
  /// over before its first Next; while it goes on before each: a decision is journalled after the
  /// records that it rests on, and may then come too late for a reader that was faster.
  void Readmit(Cursor* cursor);
  /// Lets the cursor give up on whom the watcher gave up on, at the same place of the order, or
  /// before it where that writer alone would keep us from it. Only where Next has returned nothing,
  /// and for a run that goes on: of one that is over the readmissions say it all.
  void GiveUp(Cursor* cursor);

  /// The watcher came to its own end, and that in the newest attempt: its findings are those of a
  /// replay of all records before watermark_ns(). Else it has died, was stopped, or still reads.
  bool CameToItsEnd(const RunInfo& info) const;
  /// When it wrote last, on the run clock.
  std::int64_t watermark_ns() const;
  /// When it saw the newest attempt's end, where nobody recorded that; else 0. On the run clock.
  std::int64_t seen_end_ns() const { return seen_end_.attempt >= attempt_ ? seen_end_.ns : 0; }

 private:
  void OnEvent(const format::EventRow& row);

  const std::filesystem::path run_;
  const std::uint32_t table_mask_;
  std::map<std::string, std::unique_ptr<WriterFollower>> folders_;
  Salvage salvage_;
  std::vector<Admission> admissions_;
  std::map<std::string, std::int64_t> gave_up_;  ///< Frontier at which, by writer.
  std::uint32_t attempt_ = 0;                    ///< The newest that a row names.
  SeenEnd seen_end_;
};

}  // namespace telltale::store
