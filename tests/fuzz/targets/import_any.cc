// SPDX-License-Identifier: Apache-2.0
// The front door: what a file is of, and the importer that says it is its.
#include <span>

#include "importing.h"
#include "interchange/importer.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(import_any) {
  const auto file = interchange::LookAtFile(WriteInput(bytes, "input"));
  if (!file.ok()) return;
  const interchange::Importer* const importer = interchange::DetectImporter(*file);
  if (importer == nullptr) return;
  constexpr interchange::ImportLimits kLimits{
      .memory_bytes = 128U << 20, .inflated_bytes = 32U << 20, .events = 100'000};
  interchange::RecordingSink sink;
  static_cast<void>(importer->import(std::span(&*file, 1), kLimits, &sink));
  CheckSlices(sink);
}

}  // namespace telltale::fuzz
