// SPDX-License-Identifier: Apache-2.0
#include "report/html.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/run_files.h"
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
    run_files::Remove(run_files::OfRun(partial));
    return Status(Code::kIo,
                  fmt::format("{}: cannot {}: {}: free space or give another file with -o",
                              out.string(), what, run_files::WhyNot(error)));
  };
  // In a run folder all is for its owner alone.
  UniqueFd fd = run_files::OpenToWrite(run_files::OfRun(partial), run_files::Writing::kFresh,
                                       run_files::LiesInARun(out) ? 0600 : 0644);
  if (!fd) return fail("create it");
  for (std::size_t done = 0; done < html.size();) {
    const ssize_t wrote = ::write(fd.get(), html.data() + done, html.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return fail("write it");
    done += static_cast<std::size_t>(wrote);
  }
  if (::fsync(fd.get()) != 0) return fail("sync it");
  fd.reset();
  errno = run_files::Rename(run_files::OfRun(partial), run_files::OfRun(out));
  if (errno != 0) return fail("rename it into place");
  return {};
}

}  // namespace telltale::report
