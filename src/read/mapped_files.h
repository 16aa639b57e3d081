// SPDX-License-Identifier: Apache-2.0
// The tensor files of a run as mappings: one a file, shared by all values that lie in it.
//
// Thread safety: none of MappedFiles; a mapping may be read and let go of by any thread, and lives
// as long as somebody holds it, whatever becomes of the file's name.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "store/tensor_file.h"

namespace telltale::read {

class MappedFiles {
 public:
  explicit MappedFiles(std::filesystem::path run) : run_(std::move(run)) {}

  /// A mapping of `file` (as the table tensors names it) that reaches to `end` at least.
  /// Code::kPartial where the file ends before, kUnusable where there is none.
  Result<std::shared_ptr<const store::TensorFile>> Get(std::string_view writer,
                                                       std::string_view file, std::uint64_t end);

 private:
  using Key = std::pair<std::string, std::string>;
  const std::filesystem::path run_;
  std::map<Key, std::shared_ptr<const store::TensorFile>> open_;
};

}  // namespace telltale::read
