// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace telltale::cli {
namespace {

int output_error = 0;  ///< errno of the first write to stdout that failed.

void Remember() {
  if (output_error == 0) output_error = errno != 0 ? errno : EIO;
}

}  // namespace

void HoldStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is `fd`. Opened the wrong way round, so that its use still fails.
    const int mode = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", mode | O_CLOEXEC) < 0) return;
  }
}

bool WriteOut(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size()) return true;
  Remember();
  return false;
}

void WriteErr(std::string_view text) {
  [[maybe_unused]] const std::size_t n = std::fwrite(text.data(), 1, text.size(), stderr);
}

int OutputError() {
  if (std::fflush(stdout) != 0) Remember();
  return output_error;
}

}  // namespace telltale::cli
