// SPDX-License-Identifier: Apache-2.0
// Runs in the user's process too: no exceptions, no allocation, no stdio.
#include "channel/registration.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace telltale::channel {
namespace {

/// Bounded text without stdio.
class Line {
 public:
  Line(char* out, std::size_t capacity) : out_(out), capacity_(capacity) {
    if (capacity_ > 0) out_[0] = 0;
  }
  Line& operator<<(const char* text) {
    while (*text != 0 && used_ + 1 < capacity_) out_[used_++] = *text++;
    if (capacity_ > 0) out_[used_] = 0;
    return *this;
  }
  Line& operator<<(std::uint64_t value) {
    char digits[21];
    std::size_t at = sizeof digits;
    digits[--at] = 0;
    do {
      digits[--at] = static_cast<char>('0' + value % 10);
      value /= 10;
    } while (value != 0);
    return *this << &digits[at];
  }

 private:
  char* out_;
  std::size_t capacity_;
  std::size_t used_ = 0;
};

}  // namespace

std::uint32_t JudgeHello(const Hello& hello, std::uint16_t major, std::uint16_t minor, char* text,
                         std::size_t text_bytes) {
  Line line(text, text_bytes);
  const auto versions = [&](const char* what, const char* advice) {
    line << "probe of process " << static_cast<std::uint64_t>(hello.pid) << " refused: " << what
         << ": the probe has channel version " << std::uint64_t{hello.abi_major} << "."
         << std::uint64_t{hello.abi_minor} << ", this telltale " << std::uint64_t{major} << "."
         << std::uint64_t{minor} << "; " << advice;
  };
  if (hello.abi_major != major) {
    versions("major versions differ", "install the same version on both sides");
    return static_cast<std::uint32_t>(RefuseReason::kMajorDiffers);
  }
  if (hello.abi_minor > minor) {
    versions("its version is newer", "upgrade the telltale command");
    return static_cast<std::uint32_t>(RefuseReason::kMinorTooNew);
  }
  if (hello.abi_minor + 1U < minor) {
    versions("its version is too old", "upgrade telltale in the training's environment");
    return static_cast<std::uint32_t>(RefuseReason::kMinorTooOld);
  }
  if (hello.arena_header_bytes < format::kArenaHeaderBytesMin ||
      hello.ring_entry_bytes != sizeof(format::RingEntry) ||
      hello.arena_bytes > format::kMaxArenaBytes || hello.name_limit >= format::kMaxNames) {
    versions("its arena's layout is not what its version says", "install a matching version");
    return static_cast<std::uint32_t>(RefuseReason::kLayoutDiffers);
  }
  return 0;
}

int SendMessage(int socket, const void* bytes, std::size_t size, const int* fds, int fd_count) {
  if (fd_count > kMaxMessageFds) return EINVAL;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxMessageFds * sizeof(int))] = {};
  iovec part{const_cast<void*>(bytes), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd_count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(static_cast<std::size_t>(fd_count) * sizeof(int));
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(static_cast<std::size_t>(fd_count) * sizeof(int));
    std::memcpy(CMSG_DATA(head), fds, static_cast<std::size_t>(fd_count) * sizeof(int));
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return 0;
    if (errno != EINTR) return errno;
  }
}

std::ptrdiff_t ReceiveMessage(int socket, void* bytes, std::size_t capacity, int* fds,
                              int* fd_count) {
  // Room for more than we take, so that a sender of too many does not leave us a truncated list.
  constexpr int kRoom = 16;
  alignas(cmsghdr) char control[CMSG_SPACE(kRoom * sizeof(int))];
  iovec part{bytes, capacity};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  *fd_count = 0;
  ssize_t got = 0;
  // A peer that died with messages of ours unread is told of as ECONNRESET, once, ahead of what it
  // had sent before.
  do {
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0) return -errno;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
      if (*fd_count < kMaxMessageFds) {
        fds[(*fd_count)++] = fd;
      } else {
        ::close(fd);
      }
    }
  }
  return got;
}

}  // namespace telltale::channel
