// SPDX-License-Identifier: Apache-2.0
// The batch: the atomic unit of a journal. Rows of any tables, the ring positions up to which they
// were taken, and the watermark that holds after them; a reader sees all of it or nothing, which is
// what makes "once and nothing twice" hold over a crash. Layout: docs/formats/journal.md.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/string_pool.h"
#include "format/records.gen.h"

namespace telltale::format {

/// First byte of every journal record, permanent.
enum class JournalRecord : std::uint8_t {
  kHeader = 1,
  kBatch = 2,
  kSealed = 3,
  kEnd = 4,
  kBatchPart = 5,  ///< A batch that counts only together with the kBatch that ends its group.
};

/// Up to where a producer's ring had been read when the batch was made.
struct RingPosition {
  std::array<std::uint8_t, 16> producer{};  ///< The arena's uuid.
  std::uint16_t ring = 0;
  std::uint64_t position = 0;  ///< The ring's monotonic byte position.

  friend bool operator==(const RingPosition&, const RingPosition&) = default;
};

/// Rows of one record, all tables together: ours have some 24 KiB (store/journal_format.h), and a
/// row in memory is many times as large as one that a stranger's record has of a column of a byte.
inline constexpr std::uint32_t kMaxBatchRows = 1U << 16;

/// A position with this ring, which no arena has, says that the producer is gone for good and its
/// positions are needed no more.
inline constexpr std::uint16_t kReleasedRing = 0xfffc;

struct Batch {
  std::int64_t watermark_ns =
      0;  ///< No later batch of this writer holds a row with a smaller ord_ns.
  std::vector<RingPosition> positions;
  Rows rows;
};

/// Appends the batch to `out`, kind byte included.
/// REQUIRES: within each table the rows' seq count up by one; at most kMaxBatchRows.
void EncodeBatch(const Batch& batch, std::string* out);

/// Reads what EncodeBatch wrote, as kBatch or kBatchPart; strings are interned in `pool`,
/// bytes that are no UTF-8 replaced. Unknown tables and columns are
/// skipped, missing columns are zero. Any malformed input gives Code::kUnusable and never reads out
/// of bounds.
Status DecodeBatch(std::string_view bytes, StringPool* pool, Batch* out);

}  // namespace telltale::format
