// SPDX-License-Identifier: Apache-2.0
// What a writer's folder holds when a writer comes (back) to it.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "store/journal_format.h"

namespace telltale::store {

using RingKey = std::pair<std::array<std::uint8_t, 16>, std::uint16_t>;
using RingPositions = std::map<RingKey, std::uint64_t>;

/// Enters the positions of one batch; those of a producer that it says is released are dropped.
void EnterPositions(const std::vector<format::RingPosition>& batch, RingPositions* positions);

struct RecoveredJournal {
  std::uint64_t number = 0;
  bool has_rows = false;
  bool sealed = false;  ///< Segments of all its rows are durable; it only waits for deletion.
};

struct RecoveredFolder {
  NextSeqs next_seq = FirstSeqs();
  std::int64_t watermark_ns = 0;
  RingPositions positions;
  std::vector<SealedRecord> sealed;
  std::optional<std::int64_t> monotonic_to_run_ns;  ///< Where a journal of this boot says it.
  std::uint64_t next_number = 1;
  std::vector<RecoveredJournal> journals;
  std::uint64_t torn_tails = 0;
  bool ended = true;  ///< The newest journal, where there is one, ends with an end record.
};

/// Reads all journals and the names of the segments. Code::kVersion: a later format wrote here.
Result<RecoveredFolder> RecoverFolder(const std::filesystem::path& folder);

}  // namespace telltale::store
