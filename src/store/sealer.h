// SPDX-License-Identifier: Apache-2.0
// Turns one finished journal into Parquet segments, one a table.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/journal_format.h"

namespace telltale::store {

/// Lets a thread that was left behind begin no further file of a folder that is finished. One
/// thread enters at a time.
class SealGate {
 public:
  /// False: it is closed. Else Leave() follows.
  bool Enter() {
    inside_ = true;
    if (closed_) inside_ = false;
    return inside_;
  }
  void Leave() { inside_ = false; }
  /// Waits for who is inside, for a second at most: that thread may have no core.
  void Close();

 private:
  std::atomic<bool> inside_{false};
  std::atomic<bool> closed_{false};
};

/// Writes the segments of journal `number` of `folder`, each under a temporary name, synced,
/// renamed; then syncs the folder. What an earlier, interrupted call left is replaced. Returns one
/// record a segment; none where the journal holds no rows. Thread-safe, for the same journal
/// too: its bytes decide those of its segments. Fails once `gate`, where there is one, is closed.
Result<std::vector<SealedRecord>> SealJournal(const std::filesystem::path& folder,
                                              const std::string& writer, std::uint64_t number,
                                              SealGate* gate = nullptr);

}  // namespace telltale::store
