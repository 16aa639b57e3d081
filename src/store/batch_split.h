// SPDX-License-Identifier: Apache-2.0
// Encodes a batch as a group of journal records of a bounded size.
#pragma once
#include <string>
#include <vector>

#include "format/batch_encoder.h"
#include "format/text_index.h"

namespace telltale::store {

/// Thread safety: none.
class GroupEncoder {
 public:
  /// One kBatch, or kBatchPart records and the kBatch that ends their group; the positions and the
  /// batch's watermark go with the last, the parts carry `watermark_before_ns`. A single row above
  /// the target makes a record of its own.
  std::vector<std::string> Encode(const format::Batch& batch, std::int64_t watermark_before_ns);

 private:
  class Split;

  format::BatchEncoder encoder_;
  // Of the part that is being filled.
  format::Batch part_;
  format::TextIndex texts_;
};

}  // namespace telltale::store
