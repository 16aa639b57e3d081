// SPDX-License-Identifier: Apache-2.0
// RUN/logs/stacks: the pieces that py-spy writes, ours and those that a sampler before us has left.
// A py-spy whose sampler died ends by itself and writes its piece then: they are looked for all the
// time. Thread safety: none.
#pragma once
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace telltale::stacks {

struct RecordedPiece {
  std::filesystem::path file;
  std::int64_t start_ns = 0;  ///< Monotonic.
  int rate = 1;
  std::int64_t due_ns = 0;  ///< Monotonic: when it is read.
};

class PieceFolder {
 public:
  explicit PieceFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& path() const { return folder_; }
  /// The file of a piece of ours, which is then none of those that were left.
  std::filesystem::path Begin(std::int64_t start_ns, int rate);
  /// Those that were left and not told of before, oldest first. They may still be written: due
  /// `patience_ns` after `now_ns`. Those of another boot, whose times mean nothing, are removed and
  /// counted in `lost`.
  std::vector<RecordedPiece> Left(std::int64_t now_ns, std::int64_t patience_ns,
                                  std::uint64_t* lost);

 private:
  const std::filesystem::path folder_;
  std::set<std::string> known_;  ///< Names.
};

}  // namespace telltale::stacks
