// SPDX-License-Identifier: Apache-2.0
// Records of a journal without their checksums: header, batch, sealed, end.
#include "format/batch.h"
#include "fuzz.h"
#include "store/journal_format.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(journal_records) {
  StringPool pool;
  format::Batch batch;
  static_cast<void>(format::DecodeBatch(bytes, &pool, &batch));
  static_cast<void>(store::DecodeHeader(bytes));
  static_cast<void>(store::DecodeSealed(bytes));
  static_cast<void>(store::DecodeEnd(bytes));
}

}  // namespace telltale::fuzz
