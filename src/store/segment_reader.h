// SPDX-License-Identifier: Apache-2.0
// The rows of one segment in pieces, straight from the pages of its columns: what replays a run of
// days must not hold a segment of it, and reads nothing of a column that is one value all through.
//
// Thread safety: none. Memory: the columns of one row group as they lie in the file, and one page
// of each.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/status.h"
#include "base/string_pool.h"
#include "format/records.gen.h"
#include "store/segment.h"

namespace telltale::store {

class SegmentReader {
 public:
  /// Reads the footer. Code::kUnusable: no such file, none of ours, or damaged; kVersion: a later
  /// format.
  static Result<std::unique_ptr<SegmentReader>> Open(const std::filesystem::path& path);
  ~SegmentReader();
  SegmentReader(const SegmentReader&) = delete;
  SegmentReader& operator=(const SegmentReader&) = delete;

  const SegmentInfo& info() const;
  const std::filesystem::path& path() const;
  bool at_end() const;
  /// No row to come has a smaller ord_ns; INT64_MAX where none comes.
  std::int64_t least_ord_ns() const;
  /// Appends the next rows, at most `max_rows`, in the order of the file; their texts lie in
  /// `pool`. Columns this version does not know are skipped, missing ones are zero. Where it fails
  /// nothing of this call was appended, and nothing more can be read.
  Status Read(std::size_t max_rows, StringPool* pool, format::Rows* out);

 private:
  class Impl;
  explicit SegmentReader(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace telltale::store
