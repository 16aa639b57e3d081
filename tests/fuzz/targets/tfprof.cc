// SPDX-License-Identifier: Apache-2.0
// tfprof's ProfileProto.
#include "importing.h"
#include "interchange/tfprof_import.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(tfprof) {
  static_cast<void>(interchange::LooksLikeTfprof(bytes));
  TryImport(bytes, interchange::ImportTfprof);
}

}  // namespace telltale::fuzz
