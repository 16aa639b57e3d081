// SPDX-License-Identifier: Apache-2.0
// Slices by column, and the Parquet segment made of them: what importers write, who have millions
// of rows at once and no journal to seal. The file is one as any other (docs/formats/segments.md).
//
// Thread safety: WriteSliceSegment may run on several threads, a block each.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "store/journal_format.h"

namespace telltale::store {

/// What the slices of one row of a trace share.
struct SliceLane {
  std::int32_t rank = 0;
  std::int64_t pid = 0;
  std::int64_t tid = 0;
  std::int32_t device = -1;
  std::int64_t stream = -1;
  std::string lane;
};

/// Rows of the table slices; vectors of one length, but for those of words, which the codes index.
struct SliceBlock {
  std::vector<std::int64_t> time_ns, duration_ns, step, correlation, external, flow, bytes;
  std::vector<double> flops;
  std::vector<std::uint32_t> name, category, kind, lane, window;
  std::vector<std::int32_t> args_end;  ///< Where a row's text in `args` ends.

  std::vector<std::string_view> names, categories, kinds, windows;  ///< UTF-8; owned elsewhere.
  std::vector<SliceLane> lanes;
  std::string args;           ///< UTF-8.
  std::uint32_t attempt = 1;  ///< Of all rows.

  std::size_t rows() const { return time_ns.size(); }
};

/// Rows a block should have at most: one row group. Its args stay below 2 GiB.
inline constexpr std::size_t kSliceBlockRows = 128 << 10;

/// Which rows of which writer a segment holds.
struct SlicePlace {
  std::string writer;
  std::uint64_t journal = 0;
  std::uint64_t first_seq = 0;
};

/// Writes the block's rows, in their order, with ord_ns = end, not below 0. Not synced.
Result<SealedRecord> WriteSliceSegment(const std::filesystem::path& folder, const SlicePlace& place,
                                       const SliceBlock& block);

}  // namespace telltale::store
