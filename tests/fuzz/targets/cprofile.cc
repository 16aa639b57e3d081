// SPDX-License-Identifier: Apache-2.0
// What Python's cProfile and profile save.
#include "importing.h"
#include "interchange/pstats_import.h"
#include "interchange/pstats_reader.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(cprofile) {
  static_cast<void>(interchange::LooksLikePstats(bytes));
  TryImport(bytes, [](std::string_view text, interchange::TraceSource* source) {
    return interchange::ImportPstats(text, {}, source);
  });
}

}  // namespace telltale::fuzz
