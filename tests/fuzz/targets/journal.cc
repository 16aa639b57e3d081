// SPDX-License-Identifier: Apache-2.0
// A journal, as a file that may grow and as one that will not.
#include "fuzz.h"
#include "store/journal_reader.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(journal) {
  const auto path = WriteInput(bytes, "journal-000001.ttj");
  for (const bool final : {false, true}) {
    auto file = store::JournalFile::Open(path);
    Require(file.ok());
    while (true) {
      StringPool pool;
      store::JournalChunk chunk;
      if (!(*file)->Read(final, 1 << 20, &pool, &chunk).ok() || chunk.records == 0) break;
    }
    for (const store::Damage& damage : (*file)->TakeDamage()) {
      Require(damage.offset <= bytes.size() && damage.bytes <= bytes.size() - damage.offset);
    }
  }
}

}  // namespace telltale::fuzz
