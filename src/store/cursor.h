// SPDX-License-Identifier: Apache-2.0
// The cursor over all writers of a run; see store/reader.h.
#pragma once
#include <filesystem>
#include <memory>

#include "store/reader.h"

namespace telltale::store {

/// `final`: the run is over, nothing is being written any more.
std::unique_ptr<Cursor> MakeCursor(std::filesystem::path run, CursorOptions options, bool final);

}  // namespace telltale::store
