// SPDX-License-Identifier: Apache-2.0
// Appends records to one journal file in LevelDB's block format. An append is all or nothing for
// readers that follow the group rule of docs/formats/journal.md; a failed one leaves no bytes.
//
// Thread safety: none. The descriptor may be synced from another thread.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace telltale::store {

class JournalWriter {
 public:
  /// Creates `path` with the given records: written under a temporary name and renamed, so that a
  /// journal that can be seen has its header and its predecessor is final.
  /// `no_space` says whether a failure was for want of room.
  static Result<std::unique_ptr<JournalWriter>> Create(const std::filesystem::path& path,
                                                       std::span<const std::string> records,
                                                       bool* no_space);

  /// Appends the records with one write. On failure the file is cut back to where it was; where
  /// even that fails `broken()` is true and a new journal must be begun.
  Status Append(std::span<const std::string> records);

  std::uint64_t size() const { return size_; }
  bool broken() const { return broken_; }
  /// The last failure was for want of room.
  bool no_space() const { return no_space_; }
  const std::filesystem::path& path() const { return path_; }
  std::shared_ptr<const UniqueFd> fd() const { return fd_; }

 private:
  JournalWriter(std::filesystem::path path, UniqueFd fd);

  std::filesystem::path path_;
  std::shared_ptr<const UniqueFd> fd_;
  std::uint64_t size_ = 0;
  bool broken_ = false;
  bool no_space_ = false;
  std::string buffer_;  ///< Kept for its capacity.
};

/// Splits `record` into fragments as they stand at file offset `offset` and appends them to `out`,
/// block padding included.
void AppendFragments(std::string_view record, std::uint64_t offset, std::string* out);

/// True for the errors that mean "no room": the caller keeps its data and tries again.
bool IsNoSpace(int error);

}  // namespace telltale::store
