// SPDX-License-Identifier: Apache-2.0
// Samples by column, and the Parquet segment made of them: for importers, who have millions at once
// and no journal to seal. The file is one as any other (docs/formats/segments.md).
//
// Thread safety: WriteMetricSegment may run on several threads, a block each.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/journal_format.h"
#include "store/slice_segment.h"

namespace telltale::store {

/// What the samples of one series share; UTF-8.
struct MetricSeries {
  std::string node, subject, name, unit;
};

/// Rows of the table metrics; `series` indexes `names`.
struct MetricBlock {
  std::vector<std::int64_t> time_ns;
  std::vector<double> value;
  std::vector<std::uint32_t> series;
  std::vector<MetricSeries> names;

  std::size_t rows() const { return time_ns.size(); }
  void Add(std::int64_t time, std::uint32_t of, double what) {
    time_ns.push_back(time);
    value.push_back(what);
    series.push_back(of);
  }
};

/// Writes the block's rows, in their order, with ord_ns = time_ns, not below 0. Not synced.
Result<SealedRecord> WriteMetricSegment(const std::filesystem::path& folder,
                                        const SlicePlace& place, const MetricBlock& block);

}  // namespace telltale::store
