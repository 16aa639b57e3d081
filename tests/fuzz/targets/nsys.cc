// SPDX-License-Identifier: Apache-2.0
// Nsight Systems' export: a database of SQLite, which is a file.
#include "importing.h"
#include "interchange/nsys_import.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(nsys) {
  static_cast<void>(interchange::LooksLikeSqlite(bytes));
  const auto path = WriteInput(bytes, "report.sqlite");
  TryImport(bytes, [&path](std::string_view, interchange::TraceSource* source) {
    return interchange::ImportNsys(path, source);
  });
}

}  // namespace telltale::fuzz
