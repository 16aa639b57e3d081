// SPDX-License-Identifier: Apache-2.0
// The events of a run that goes on, for a command that has asked its agents for something and waits
// for their answer. Not thread safe.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "store/cursor.h"
#include "store/reader.h"

namespace telltale::cli {

class EventFeed {
 public:
  /// The statuses of RunReader::Open and NewCursor.
  static Result<EventFeed> Open(const std::string& run);

  /// Calls see(const format::EventRow&, const std::string& writer) with each event that has become
  /// readable.
  template <class See>
  Status Read(See&& see) {
    while (true) {
      std::vector<store::OrderedRecord> records;
      TELLTALE_RETURN_IF_ERROR(cursor_->Next(kRowsAtOnce, &records));
      if (records.empty()) return {};
      for (const store::OrderedRecord& record : records) {
        const auto* event = record.As<format::EventRow>();
        if (event != nullptr) see(*event, cursor_->writers()[record.writer]);
      }
    }
  }

  /// To be called between two reads. A writer that is far behind the others has died: its records
  /// are not waited for.
  void GiveUpOnTheDead();
  /// Waits as long as lies between two reads.
  static void Pause();

  /// Folders of the agents that record now.
  std::vector<std::string> RecordingAgents() const;
  /// Run clock up to when all was read; it moves while an agent records.
  std::int64_t newest_ns() const;
  bool AtEnd() const { return cursor_->AtEnd(); }
  store::RunReader& reader() { return *reader_; }

 private:
  static constexpr std::size_t kRowsAtOnce = 4096;

  std::unique_ptr<store::RunReader> reader_;
  std::unique_ptr<store::Cursor> cursor_;
};

}  // namespace telltale::cli
