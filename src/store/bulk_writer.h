// SPDX-License-Identifier: Apache-2.0
// Writes the folder of a writer whose records are all there already: segments straight away, and at
// the end one journal that seals them and says that nothing follows. For imports; whoever makes the
// run makes it under another name, syncs it as a whole and renames it, so nothing here is synced.
//
// Thread safety: Place and Took from any thread, the rest from one.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/records.gen.h"
#include "store/journal_format.h"
#include "store/slice_segment.h"

namespace telltale::store {

class BulkWriter {
 public:
  /// Makes `folder` (0700), which must not be there.
  static Result<std::unique_ptr<BulkWriter>> Create(std::filesystem::path folder, std::string name);

  /// The next `rows` rows of slices, or of samples; the segment of them is then given to Took.
  SlicePlace Place(std::uint64_t rows, format::TableId table = format::TableId::kSlices);
  void Took(SealedRecord sealed);

  /// Writes the rows as segments; fills seq. Their ord_ns is not below 0.
  Status Seal(format::Rows* rows) { return SealUnit(rows, 0); }
  /// The last rows, and the end. `watermark_ns`: no row's ord_ns is above.
  Status Close(format::Rows* rows, std::int64_t watermark_ns);

  const std::filesystem::path& folder() const { return folder_; }

 private:
  BulkWriter(std::filesystem::path folder, std::string name)
      : folder_(std::move(folder)), name_(std::move(name)) {}
  Status SealUnit(format::Rows* rows, std::int64_t watermark_ns);

  const std::filesystem::path folder_;
  const std::string name_;
  std::mutex mutex_;  ///< Guards the rest.
  NextSeqs next_seq_ = FirstSeqs();
  std::uint64_t next_journal_ = 1;
  std::vector<SealedRecord> sealed_;
};

}  // namespace telltale::store
