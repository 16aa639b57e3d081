// SPDX-License-Identifier: Apache-2.0
// A folder that goes away with its owner, or with the process whatever ends it: a process of its
// own waits for that and takes the folder away.
//
// Thread safety: none; make it before other threads run, since it forks.
#pragma once
#include <sys/types.h>

#include <filesystem>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace telltale::interchange {

class ScratchFolder {
 public:
  /// Makes `parent`/`prefix`XXXXXX, for the owner alone. kIo.
  static Result<ScratchFolder> Create(const std::filesystem::path& parent,
                                      const std::string& prefix);
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&& other) noexcept;
  ~ScratchFolder();

  const std::filesystem::path& path() const { return path_; }
  /// For a child that must not keep the folder alive.
  void CloseInChild() { alive_.reset(); }

 private:
  ScratchFolder() = default;
  void Remove();

  std::filesystem::path path_;
  UniqueFd alive_;  ///< The guard reads its end when this process has gone.
  pid_t guard_ = -1;
};

}  // namespace telltale::interchange
