// SPDX-License-Identifier: Apache-2.0
// A Parquet segment, by each of the three that read one.
#include "store/segment.h"

#include "fuzz.h"
#include "store/segment_reader.h"
#include "store/segment_scan.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(segment) {
  const auto path = WriteInput(bytes, "segment");
  {
    StringPool pool;
    format::Rows rows;
    static_cast<void>(store::ReadSegment(path, &pool, &rows));
  }
  if (auto reader = store::SegmentReader::Open(path); reader.ok()) {
    while (!(*reader)->at_end()) {
      StringPool pool;
      format::Rows rows;
      if (!(*reader)->Read(1000, &pool, &rows).ok()) break;
    }
  }
  const auto info = store::ReadSegmentInfo(path);
  if (!info.ok()) return;
  const store::ScanRequest request{.table = info->table, .columns = {"seq", "time_ns"}};
  static_cast<void>(store::ScanSegment(path, "agent-n1", request, [](store::ScanPiece& piece) {
    Require(piece.rows > 0 && piece.columns.size() == 2);
    return Status();
  }));
}

}  // namespace telltale::fuzz
