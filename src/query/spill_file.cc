// SPDX-License-Identifier: Apache-2.0
#include "query/spill_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace telltale::query {
namespace {

constexpr std::size_t kSpillBufferBytes = 1 << 20;

}  // namespace

Status SpillFile::Fail(const char* what) const {
  return {Code::kIo, fmt::format("cannot {} a temporary file in {}: {}: make room there, or set "
                                 "TMPDIR to a folder of another disk",
                                 what, folder_, std::strerror(errno))};
}

Status SpillFile::Append(std::string_view bytes) {
  if (!fd_) {
    std::error_code error;
    folder_ = std::filesystem::temp_directory_path(error).string();
    if (error) folder_ = "/tmp";
    std::string name = folder_ + "/telltale-XXXXXX";
    fd_.reset(::mkostemp(name.data(), O_CLOEXEC));
    if (!fd_) return Fail("create");
    ::unlink(name.c_str());
  }
  buffer_ += bytes;
  size_ += bytes.size();
  return buffer_.size() < kSpillBufferBytes ? Status() : Flush();
}

Status SpillFile::Flush() {
  for (std::size_t done = 0; done < buffer_.size();) {
    const ssize_t n = ::write(fd_.get(), buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Fail("write");
    done += static_cast<std::size_t>(n);
  }
  buffer_.clear();
  return {};
}

Status SpillFile::Read(std::uint64_t offset, std::size_t size, std::string* out) const {
  out->resize(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n =
        ::pread(fd_.get(), out->data() + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail("read");
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  out->resize(done);
  return {};
}

}  // namespace telltale::query
