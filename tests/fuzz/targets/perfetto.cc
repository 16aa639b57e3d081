// SPDX-License-Identifier: Apache-2.0
// Perfetto's track events.
#include "importing.h"
#include "interchange/perfetto_import.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(perfetto) {
  static_cast<void>(interchange::LooksLikePerfetto(bytes));
  TryImport(bytes, interchange::ImportPerfetto);
}

}  // namespace telltale::fuzz
