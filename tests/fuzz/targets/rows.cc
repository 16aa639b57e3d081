// SPDX-License-Identifier: Apache-2.0
// Rows as a batch of a journal holds them, through everything that concludes something from rows.
#include "format/batch.h"
#include "fuzz.h"
#include "judged.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(rows) {
  StringPool pool;
  format::Batch batch;
  if (format::DecodeBatch(bytes, &pool, &batch).ok()) JudgeRows(&batch.rows);
}

}  // namespace telltale::fuzz
