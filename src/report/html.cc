// SPDX-License-Identifier: Apache-2.0
#include "report/html.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace telltale::report {

std::filesystem::path PartialPath(const std::filesystem::path& out, int pid) {
  return fmt::format("{}.{}.tmp", out.string(), pid);
}

Status WriteReport(const RunData& data, const std::filesystem::path& out) {
  const std::string html = RenderReport(data, StackGraphsOf(data.path));
  const std::filesystem::path partial = PartialPath(out, ::getpid());
  const auto fail = [&](std::string_view what) {
    const int error = errno;
    ::unlink(partial.c_str());
    return Status(Code::kIo,
                  fmt::format("{}: cannot {}: {}: free space or give another file with -o",
                              out.string(), what, strerrordesc_np(error)));
  };
  UniqueFd fd(::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) return fail("create it");
  for (std::size_t done = 0; done < html.size();) {
    const ssize_t wrote = ::write(fd.get(), html.data() + done, html.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return fail("write it");
    done += static_cast<std::size_t>(wrote);
  }
  if (::fsync(fd.get()) != 0) return fail("sync it");
  fd.reset();
  if (::rename(partial.c_str(), out.c_str()) != 0) return fail("rename it into place");
  return {};
}

}  // namespace telltale::report
