// SPDX-License-Identifier: Apache-2.0
// Writes one segment, rows as they come: what it holds is a row group by column and no more,
// however long the journal is, and the next group is put into the same memory. Arrow stays inside
// the .cc files.
//
// Thread safety: none.
#pragma once
#include <filesystem>
#include <memory>

#include "base/status.h"
#include "format/records.gen.h"
#include "store/segment.h"

namespace telltale::store {

class SegmentWriter {
 public:
  /// Makes the file when there is something to write, or writes to one that is `made` already and
  /// fails where that is gone.
  SegmentWriter(std::filesystem::path path, format::TableId table, bool made = false);
  /// Closes the file; what was not finished is left as it is.
  ~SegmentWriter();
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  /// Takes what `rows` holds of the table. Texts must live as long as the writer.
  Status Append(const format::Rows& rows);
  /// Writes the rest, and what `info` says into the metadata; syncs. Fills info->rows.
  Status Finish(SegmentInfo* info);

 private:
  class Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace telltale::store
