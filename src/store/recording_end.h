// SPDX-License-Identifier: Apache-2.0
// Whether the recording of a run came to its end. An agent writes an end record as its last word;
// one that was killed, and whom nobody followed, has not: what happened from its last watermark on
// is not known.
//
// Thread safety: none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/run_info.h"

namespace telltale::store {

/// How the journals of a writer's folder end.
struct WriterEnd {
  bool ended = false;             ///< By an end record.
  std::int64_t watermark_ns = 0;  ///< Of what it wrote last, on the run clock; 0: it wrote nothing.
};
/// None where it cannot be told: there is no journal, all is in segments.
std::optional<WriterEnd> EndOfWriter(const std::filesystem::path& folder);

/// What the agents have not recorded.
struct RecordingLoss {
  /// Of the newest attempt.
  std::optional<Unrecorded> newest;
  /// Of attempts before, where no agent of a later attempt has come to the same folder to say it,
  /// or where no agent has written anything of the attempt.
  std::vector<Unrecorded> before;
};

class RecordingEnd {
 public:
  /// Nothing where the run's agents have said their last word, or may still say it. `running`: as
  /// its state is. What has not changed since the last call is not read again.
  RecordingLoss Find(const std::filesystem::path& run, const RunInfo& info, bool running);

 private:
  struct Known {
    bool read = false;
    std::uint64_t journal = 0;
    std::uint64_t bytes = 0;
    std::size_t segments = 0;
    std::optional<WriterEnd> end;
    /// That it has recorded anything of, where the run has several.
    std::set<std::uint32_t> attempts;
    bool damaged = false;  ///< A part of its rows cannot be read.
  };
  const Known& Look(const std::filesystem::path& run, const std::string& writer,
                    bool which_attempts);

  std::map<std::string, Known> known_;
};

/// The present time of the run's clock, which no step of the wall clock changes: that of a writer
/// of this boot; else the wall clock's.
std::int64_t RunClockNow(const std::filesystem::path& run);

}  // namespace telltale::store
