// SPDX-License-Identifier: Apache-2.0
#include "interchange/sync_tree.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/unique_fd.h"
#include "store/folder.h"

namespace telltale::interchange {

namespace fs = std::filesystem;

Status SyncTree(const fs::path& folder) {
  std::vector<fs::path> folders = {folder};
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (at->is_directory(error)) {
      folders.push_back(at->path());
      continue;
    }
    const UniqueFd fd(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd || ::fsync(fd.get()) != 0) {
      return {Code::kIo, fmt::format("cannot make {} durable: {}: nothing was imported",
                                     at->path().string(), std::strerror(errno))};
    }
  }
  if (error) {
    return {Code::kIo, fmt::format("cannot list {}: {}", folder.string(), error.message())};
  }
  for (auto one = folders.rbegin(); one != folders.rend(); ++one) {
    TELLTALE_RETURN_IF_ERROR(store::SyncFolder(*one));
  }
  return {};
}

}  // namespace telltale::interchange
