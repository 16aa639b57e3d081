// SPDX-License-Identifier: Apache-2.0
// XSpace, whole and as a program for text leaves it.
#include "importing.h"
#include "interchange/xspace_import.h"
#include "interchange/xspace_salvage.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(xspace) {
  static_cast<void>(interchange::LooksLikeXSpace(bytes));
  TryImport(bytes, interchange::ImportXSpace);
  TryImport(bytes, interchange::SalvageXSpace);
}

}  // namespace telltale::fuzz
