// SPDX-License-Identifier: Apache-2.0
// Parquet segments: rows of one table from one journal. docs/formats/segments.md. Arrow stays
// inside the .cc file.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"
#include "base/string_pool.h"
#include "format/records.gen.h"

namespace telltale::store {

/// What the key-value metadata of a segment say.
struct SegmentInfo {
  std::string writer;
  format::TableId table{};
  std::uint64_t journal = 0;
  std::uint64_t first_seq = 0;
  std::uint64_t last_seq = 0;
  std::uint64_t rows = 0;  ///< Less than last - first + 1 where the journal was damaged.
  std::int64_t watermark_before_ns = 0;
  std::int64_t watermark_after_ns = 0;
};

/// Writes the rows that `rows` holds of `info.table` to `path`, syncs it. Fills info.rows.
Status WriteSegment(const std::filesystem::path& path, const format::Rows& rows, SegmentInfo* info);

/// Reads only the footer. Code::kUnusable: no such file, or none of ours; kVersion: a later format.
Result<SegmentInfo> ReadSegmentInfo(const std::filesystem::path& path);

/// Appends all rows. Columns this version does not know are skipped, missing ones are zero.
Result<SegmentInfo> ReadSegment(const std::filesystem::path& path, StringPool* pool,
                                format::Rows* out);

/// XXH3-128 of a file in canonical order, and its size.
struct FileDigest {
  std::array<std::uint8_t, 16> digest{};
  std::uint64_t bytes = 0;
};
Result<FileDigest> DigestFile(const std::filesystem::path& path);
/// Of `length` bytes from `offset` on; Code::kPartial where the file ends before.
Result<FileDigest> DigestFile(const std::filesystem::path& path, std::uint64_t offset,
                              std::uint64_t length);
/// The same of an open file; `path` is for messages.
Result<FileDigest> DigestFile(int fd, const std::filesystem::path& path, std::uint64_t offset,
                              std::uint64_t length);
std::string ToHex(const std::array<std::uint8_t, 16>& digest);

}  // namespace telltale::store
