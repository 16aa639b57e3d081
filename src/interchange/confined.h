// SPDX-License-Identifier: Apache-2.0
// What reads other tools' files may be fooled by them: it runs in a child process that may do
// little, and answers through a pipe.
//
// Thread safety: none; not while other threads run, since the child is a fork.
#pragma once
#include <functional>
#include <string>

#include "base/status.h"
#include "interchange/import.h"
#include "interchange/scratch_folder.h"

namespace telltale::interchange {

struct ConfinedImport {
  ImportLimits limits;
  std::string subject;  ///< The file, for what is said of a failure.
  /// Reads and writes. May throw.
  std::function<Result<ImportSummary>()> body;
};

/// In this process. kLimit where it ran out of memory, kUnusable where it threw anything else.
Result<ImportSummary> RunHere(const ConfinedImport& import);

/// In a child with the limits; the child does not keep `scratch` alive.
Result<ImportSummary> RunInChild(const ConfinedImport& import, ScratchFolder* scratch);

}  // namespace telltale::interchange
