// SPDX-License-Identifier: Apache-2.0
#include "collect/kept_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace telltale::collect {
namespace {

constexpr std::size_t kFirstBufferBytes = 16 << 10;
// /proc/stat has a line of all interrupts and one a core: 1 MiB is several thousand cores.
constexpr std::size_t kMaxBufferBytes = 1 << 20;

/// Reads the file from its start; a seq_file of many records gives some of them a call, so until
/// nothing more comes.
bool ReadWhole(int fd, bool one_record, std::string* buffer, std::size_t* size) {
  if (buffer->size() < kFirstBufferBytes) buffer->resize(kFirstBufferBytes);
  std::size_t at = 0;
  for (;;) {
    if (at == buffer->size()) {
      if (buffer->size() >= kMaxBufferBytes) break;
      buffer->resize(buffer->size() * 2);
    }
    const std::size_t room = buffer->size() - at;
    const ssize_t n = ::pread(fd, buffer->data() + at, room, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    if (n == 0) break;
    at += static_cast<std::size_t>(n);
    if (one_record && static_cast<std::size_t>(n) < room) break;
  }
  *size = at;
  return true;
}

}  // namespace

KeptFile::KeptFile(std::string path, Text text, std::int64_t retry_ns)
    : path_(std::move(path)), retry_ns_(retry_ns), one_record_(text == Text::kOneRecord) {}

std::optional<std::string_view> KeptFile::Read(std::int64_t now_ns, std::string* buffer,
                                               bool* failed) {
  if (!fd_) {
    if (path_.empty() || now_ns < retry_at_ns_) return std::nullopt;
    fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  }
  std::size_t size = 0;
  if (fd_ && ReadWhole(fd_.get(), one_record_, buffer, &size))
    return std::string_view(buffer->data(), size);
  *failed = true;
  fd_.reset();
  retry_at_ns_ = retry_ns_ == 0 ? INT64_MAX : now_ns + retry_ns_;
  return std::nullopt;
}

}  // namespace telltale::collect
