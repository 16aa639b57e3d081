// SPDX-License-Identifier: Apache-2.0
// Encodes one batch after the other and keeps the room that it needs for it; EncodeBatch() of
// format/batch.h does one alone.
//
// Thread safety: none.
#pragma once
#include <string>

#include "format/batch.h"
#include "format/text_index.h"

namespace telltale::format {

class BatchEncoder {
 public:
  /// Appends the batch to `out`, kind byte included.
  /// REQUIRES: within each table the rows' seq count up by one.
  void Encode(const Batch& batch, std::string* out);

 private:
  TextIndex texts_;
  std::string groups_;
};

}  // namespace telltale::format
