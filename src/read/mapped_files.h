// SPDX-License-Identifier: Apache-2.0
// The tensor files of a run as mappings: one a file, shared by all values that lie in it.
//
// Thread safety: none of MappedFiles; a mapping may be read and let go of by any thread. Ownership:
// a mapping lives as long as somebody holds it, whatever becomes of the file's name.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace telltale::read {

class MappedFile {
 public:
  /// The whole file as it is now. Code::kUnusable: no such file, or an empty one.
  static Result<std::shared_ptr<const MappedFile>> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  MappedFile(const std::byte* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  const std::byte* data_;
  std::uint64_t bytes_;
};

class MappedFiles {
 public:
  explicit MappedFiles(std::filesystem::path run) : run_(std::move(run)) {}

  /// A mapping of `file` (as the table tensors names it, below the writer's folder) that reaches to
  /// `end` at least; of the file with .part added while it is being written. Code::kPartial where
  /// the file ends before, kUnusable where there is none.
  Result<std::shared_ptr<const MappedFile>> Get(std::string_view writer, std::string_view file,
                                                std::uint64_t end);

 private:
  const std::filesystem::path run_;
  std::map<std::string, std::shared_ptr<const MappedFile>, std::less<>> open_;
};

}  // namespace telltale::read
