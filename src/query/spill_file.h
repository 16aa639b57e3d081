// SPDX-License-Identifier: Apache-2.0
// An unlinked file of the temporary folder: what does not fit in memory waits there. Gone with its
// owner, however that ends. Thread safety: none.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace telltale::query {

class SpillFile {
 public:
  /// Appends; opens the file at the first call. Code::kIo names the folder and what to do.
  Status Append(std::string_view bytes);
  /// Writes out what is buffered: before the first Read.
  Status Flush();
  /// Up to `size` bytes at `offset`, less at the end.
  Status Read(std::uint64_t offset, std::size_t size, std::string* out) const;
  std::uint64_t size() const { return size_; }

 private:
  Status Fail(const char* what) const;

  UniqueFd fd_;
  std::string folder_;
  std::string buffer_;
  std::uint64_t size_ = 0;
};

}  // namespace telltale::query
