// SPDX-License-Identifier: Apache-2.0
#include "interchange/scratch_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace telltale::interchange {
namespace {

/// Waits for the end of the pipe, then takes the folder away.
[[noreturn]] void GuardFolder(int pipe, const std::filesystem::path& folder) {
  ::setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
  // Whoever reads our output must not wait for this process too.
  ::dup2(pipe, 0);
  ::close_range(1, ~0U, 0);
  char byte = 0;
  while (::read(0, &byte, 1) < 0 && errno == EINTR) {
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  ::_exit(0);
}

}  // namespace

Result<ScratchFolder> ScratchFolder::Create(const std::filesystem::path& parent,
                                            const std::string& prefix) {
  std::string name = (parent / (prefix + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) {
    return {Code::kIo, fmt::format("cannot create a folder in {}: {}",
                                   parent.empty() ? "." : parent.string(), std::strerror(errno))};
  }
  ScratchFolder made;
  made.path_ = std::filesystem::absolute(name);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return {Code::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno))};
  }
  const UniqueFd read_end(ends[0]);
  made.alive_ = UniqueFd(ends[1]);
  made.guard_ = ::fork();
  if (made.guard_ == 0) GuardFolder(read_end.get(), made.path_);
  if (made.guard_ < 0) {
    return {Code::kIo, fmt::format("cannot start a process: {}", std::strerror(errno))};
  }
  return made;
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      alive_(std::move(other.alive_)),
      guard_(std::exchange(other.guard_, -1)) {}

ScratchFolder& ScratchFolder::operator=(ScratchFolder&& other) noexcept {
  if (this == &other) return *this;
  Remove();
  path_ = std::exchange(other.path_, {});
  alive_ = std::move(other.alive_);
  guard_ = std::exchange(other.guard_, -1);
  return *this;
}

ScratchFolder::~ScratchFolder() { Remove(); }

void ScratchFolder::Remove() {
  if (path_.empty()) return;
  alive_.reset();
  if (guard_ > 0) {
    while (::waitpid(guard_, nullptr, 0) < 0 && errno == EINTR) {
    }
  } else {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  path_.clear();
}

}  // namespace telltale::interchange
