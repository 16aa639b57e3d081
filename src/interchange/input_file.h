// SPDX-License-Identifier: Apache-2.0
// A file to read: by its path, or by a descriptor where somebody holds it open, since another file
// may have come under its name meanwhile.
#pragma once
#include <filesystem>
#include <utility>

namespace telltale::interchange {

struct InputFile {
  /// Most are named by their path alone.
  InputFile(std::filesystem::path named)  // NOLINT(google-explicit-constructor)
      : path(std::move(named)) {}
  InputFile(std::filesystem::path named, int open) : path(std::move(named)), held(open) {}

  std::filesystem::path path;  ///< Where it is held open, for words alone.
  int held = -1;               ///< -1: it is opened by its path.
};

}  // namespace telltale::interchange
