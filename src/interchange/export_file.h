// SPDX-License-Identifier: Apache-2.0
// Where an export goes, piece by piece: a file that is there whole or not at all, or a sink such as
// standard output; gzip where asked for. Memory: 256 KiB. Thread safety: none.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "base/status.h"

namespace telltale::interchange {

class ExportFile {
 public:
  /// Takes a piece; false where nobody reads any more.
  using Sink = std::function<bool(std::string_view)>;

  /// Writes beside `path` until Commit; what was there before is replaced then. Code::kIo.
  static Result<std::unique_ptr<ExportFile>> Create(const std::filesystem::path& path, bool gzip);
  static std::unique_ptr<ExportFile> To(Sink sink);
  virtual ~ExportFile() = default;

  /// Code::kIo; the file then stays as it was before.
  virtual Status Append(std::string_view bytes) = 0;
  virtual Status Commit() = 0;
};

}  // namespace telltale::interchange
