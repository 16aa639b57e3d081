// SPDX-License-Identifier: Apache-2.0
// Makes an arena and registers it with the supervisor.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "channel/producer.h"
#include "channel/registration.h"

namespace telltale::channel {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr char kForeign[] =
    "another user listens where the supervisor of telltale run did, and gets nothing";

constexpr std::uint64_t RoundUp(std::uint64_t n, std::uint64_t to) {
  return (n + to - 1) / to * to;
}

void MakeUuid(std::uint8_t* out) {
  if (::getrandom(out, 16, GRND_NONBLOCK) != 16) {
    // Early boot only. Unique enough on one machine.
    const std::uint64_t parts[2] = {static_cast<std::uint64_t>(MonotonicNs()),
                                    static_cast<std::uint64_t>(::getpid())};
    std::memcpy(out, parts, 16);
  }
  out[6] = static_cast<std::uint8_t>((out[6] & 0x0F) | 0x40);  // RFC 4122 version 4.
  out[8] = static_cast<std::uint8_t>((out[8] & 0x3F) | 0x80);
}

/// Field 22 of /proc/self/stat, 0 where it cannot be read.
std::uint64_t StartTimeTicks() {
  const int fd = ::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  const ssize_t got = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  const char* at = std::strrchr(text, ')');  // The command may hold spaces and brackets.
  if (at == nullptr) return 0;
  for (int field = 2; field < 22; ++field) {
    at = std::strchr(at + 1, ' ');
    if (at == nullptr) return 0;
  }
  std::uint64_t value = 0;
  for (++at; *at >= '0' && *at <= '9'; ++at)
    value = value * 10 + static_cast<std::uint64_t>(*at - '0');
  return value;
}

std::uint64_t InodeOf(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
}

/// Past a limit on the size of files, allocating would be a SIGXFSZ.
bool FileSizeAllows(std::uint64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes;
}

/// Without a limit: one that is there is the training's, which may need all of it.
bool AddressSpaceIsFree() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

/// Maps a part of the arena in its place. Allocated and mapped at once: memory that is short shows
/// here, never as a SIGBUS later.
bool MapAllocated(int fd, char* arena, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return true;
  // A signal undoes what was allocated; a timer that is faster than the allocation would do so
  // forever.
  int error = EINTR;
  for (int tries = 0; error == EINTR && tries < 64; ++tries) {
    error = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  return error == 0 && ::mmap(arena + offset, bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd,
                              static_cast<off_t>(offset)) != MAP_FAILED;
}

/// connect() that waits a few ms where the supervisor's queue is full (many workers at once).
bool ConnectSoon(int socket, const sockaddr_un& address) {
  for (int tries = 0; tries < 10; ++tries) {
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      return true;
    }
    if (errno != EAGAIN && errno != EINTR) return false;
    ::poll(nullptr, 0, 1);
  }
  return false;
}

/// What an id that has no number in our user namespace reads as.
constexpr uid_t kNoNumber = 65534;

/// Whether who listens there may have what we record, and may tell us what to record: a process of
/// our own user, or of root. Where the supervisor was killed its path is free for anybody.
bool ServesUs(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  if (peer.uid == 0) return true;
  if (peer.uid != ::geteuid()) return false;
  // In a user namespace that has no number for our own id, all that it has none for read the same.
  // The kernel knows better: whether we may send the other one a signal.
  return peer.uid != kNoNumber || (peer.pid > 0 && ::kill(peer.pid, 0) == 0);
}

}  // namespace

bool Producer::MakeArena(const ArenaPlan& plan, std::uint64_t rings_offset) {
  const std::uint64_t bytes = plan.arena_bytes + plan.more_names_bytes;
  if (!FileSizeAllows(bytes) || (plan.more_names_bytes > 0 && !AddressSpaceIsFree())) return false;
  arena_fd_ = ::memfd_create("telltale-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (arena_fd_ < 0) return false;
  const std::uint64_t first = rings_offset - plan.more_names_bytes;
  // Only reserved: it has no page, is in no core, and cannot be touched by mistake.
  void* map = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  arena_ = map == MAP_FAILED ? nullptr : static_cast<char*>(map);
  arena_bytes_ = bytes;
  if (arena_ != nullptr && ::ftruncate(arena_fd_, static_cast<off_t>(bytes)) == 0 &&
      MapAllocated(arena_fd_, arena_, 0, first) &&
      MapAllocated(arena_fd_, arena_, rings_offset, bytes - rings_offset) &&
      ::fcntl(arena_fd_, F_ADD_SEALS, kSeals) == 0) {
    return true;
  }
  if (arena_ != nullptr) ::munmap(arena_, bytes);
  arena_ = nullptr;
  ::close(arena_fd_);
  arena_fd_ = -1;
  return false;
}

OpenResult Producer::Open(const ArenaPlan& plan, std::uint8_t process_kind, std::int32_t rank,
                          format::ClockKind clock, const std::uint8_t* parent_uuid,
                          const char* socket_path) {
  constexpr std::uint32_t kRingRoom = sizeof rings_ / sizeof rings_[0];
  if (plan.rings > kRingRoom || plan.rings == 0) return OpenResult::kNoMemory;
  socket_ = -1;
  clock_ = clock;
  const std::uint64_t rings_bytes =
      plan.main_ring_bytes + std::uint64_t{plan.rings - 1} * plan.ring_bytes;
  const std::uint64_t rings_offset = plan.arena_bytes + plan.more_names_bytes - rings_bytes;
  if (!MakeArena(plan, rings_offset)) return OpenResult::kNoMemory;

  header_ = new (arena_) format::ArenaHeader{};
  format::ArenaHeader& h = *header_;
  h.abi_major = format::kChannelMajor;
  h.abi_minor = format::kChannelMinor;
  h.header_bytes = sizeof(format::ArenaHeader);
  h.ring_entry_bytes = sizeof(format::RingEntry);
  h.ring_count = plan.rings;
  h.arena_bytes = arena_bytes_;
  h.directory_offset = format::kPageBytes;
  h.names_offset = RoundUp(h.directory_offset + plan.rings * sizeof(format::RingEntry), 64);
  h.names_bytes = rings_offset - h.names_offset;
  h.name_limit = plan.name_limit;
  h.process_kind = process_kind;
  h.clock_kind = static_cast<std::uint8_t>(clock);
  MakeUuid(h.uuid);
  if (parent_uuid != nullptr) std::memcpy(h.parent_uuid, parent_uuid, sizeof h.parent_uuid);
  h.pid = ::getpid();
  h.parent_pid = ::getppid();
  h.start_time_ticks = StartTimeTicks();
  const ClockPair anchor = ReadClockPair(clock);
  h.anchor_ticks = anchor.ticks;
  h.anchor_monotonic_ns = anchor.monotonic_ns;
  h.rank.store(rank, std::memory_order_relaxed);

  ring_count_ = plan.rings;
  directory_ = new (arena_ + h.directory_offset) format::RingEntry[plan.rings]{};
  std::uint64_t offset = rings_offset;
  for (std::uint32_t i = 0; i < plan.rings; ++i) {
    const std::uint64_t size = i == 0 ? plan.main_ring_bytes : plan.ring_bytes;
    directory_[i].offset = offset;
    directory_[i].size = size;
    rings_[i] = {};
    rings_[i].entry = &directory_[i];
    rings_[i].data = arena_ + offset;
    rings_[i].size = size;
    offset += size;
  }
  // Last, so that nobody takes half a header for a whole one.
  std::atomic_ref(h.magic).store(format::kArenaMagic, std::memory_order_release);
  // A descriptor of its own, above the standard streams; without one the names do not grow.
  const NameTable::Growth growth{
      plan.more_names_bytes == 0 ? -1 : ::fcntl(arena_fd_, F_DUPFD_CLOEXEC, 3), h.names_offset,
      h.names_bytes - plan.more_names_bytes};
  if (!names_.Open(header_, arena_ + h.names_offset, growth)) {
    Close();
    ::close(arena_fd_);
    arena_fd_ = -1;
    return OpenResult::kNoMemory;
  }
  serial_ = NextSerial();
  if (socket_path == nullptr) return OpenResult::kOk;
  return Register(socket_path, process_kind) ? OpenResult::kOk : OpenResult::kNoSupervisor;
}

bool Producer::Register(const char* socket_path, std::uint8_t process_kind) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(socket_path);
  bool sent = false;
  if (length < sizeof address.sun_path) {
    std::memcpy(address.sun_path, socket_path, length + 1);
    socket_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool connected = socket_ >= 0 && ConnectSoon(socket_, address);
    const bool ours = connected && ServesUs(socket_);
    if (connected && !ours) std::memcpy(refusal_, kForeign, sizeof kForeign);
    if (ours) {
      auto hello = MakeMessage<Hello>(MessageType::kHello);
      hello.abi_major = format::kChannelMajor;
      hello.abi_minor = format::kChannelMinor;
      hello.arena_header_bytes = sizeof(format::ArenaHeader);
      hello.ring_entry_bytes = sizeof(format::RingEntry);
      hello.name_limit = header_->name_limit;
      hello.arena_bytes = header_->arena_bytes;
      hello.start_time_ticks = header_->start_time_ticks;
      hello.pid = header_->pid;
      hello.process_kind = process_kind;
      std::memcpy(hello.uuid, header_->uuid, sizeof hello.uuid);
      std::memcpy(hello.parent_uuid, header_->parent_uuid, sizeof hello.parent_uuid);
      sent = SendMessage(socket_, &hello, sizeof hello, &arena_fd_, 1) == 0;
    }
  }
  // The mapping and the message keep the arena alive.
  ::close(arena_fd_);
  arena_fd_ = -1;
  if (!sent) {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
    return false;
  }
  socket_inode_ = InodeOf(socket_);
  return true;
}

void Producer::Close() {
  if (arena_ == nullptr) return;
  names_.Close();
  ::munmap(arena_, arena_bytes_);
  arena_ = nullptr;
}

int Producer::TakeArenaFd() {
  const int fd = arena_fd_;
  arena_fd_ = -1;
  return fd;
}

void Producer::CloseSocket() {
  ::close(socket_);
  socket_ = -1;
}

void Producer::PollAccept(int wait_ms) {
  if (socket_ < 0) return;
  const int saved = errno;
  // A program that closed all descriptors may have given ours to something of its own.
  if (InodeOf(socket_) != socket_inode_) {
    socket_ = -1;
    errno = saved;
    return;
  }
  if (wait_ms > 0) {
    pollfd wait{socket_, POLLIN, 0};
    ::poll(&wait, 1, wait_ms);
  }
  alignas(8) char bytes[512];
  int fds[kMaxMessageFds];
  int fd_count = 0;
  const std::ptrdiff_t got = ReceiveMessage(socket_, bytes, sizeof bytes, fds, &fd_count);
  if (got == -EAGAIN) {
    errno = saved;
    return;
  }
  Accept accept;
  Refuse refuse;
  int used = 0;
  if (got > 0 && fd_count > 0 &&
      CheckMessage(bytes, static_cast<std::size_t>(got), MessageType::kAccept, &accept)) {
    // The slab first: rules that ask for raw values must find it.
    if (fd_count > 1) slab_.Map(fds[1]);
    UseControlPage(fds[0]);
    used = fd_count > 1 ? 2 : 1;
  } else if (got > 0 &&
             CheckMessage(bytes, static_cast<std::size_t>(got), MessageType::kRefuse, &refuse)) {
    refuse.text[sizeof refuse.text - 1] = 0;
    std::memcpy(refusal_, refuse.text, sizeof refusal_);
    if (refusal_[0] == 0) std::memcpy(refusal_, "refused by the supervisor", 26);
  }
  for (int i = used; i < fd_count; ++i) ::close(fds[i]);
  CloseSocket();
  errno = saved;
}

bool Producer::UseControlPage(int fd) {
  struct stat info {};
  bool good = false;
  if (::fstat(fd, &info) == 0 && info.st_size >= static_cast<off_t>(format::kPageBytes) &&
      (::fcntl(fd, F_GET_SEALS) & kSeals) == kSeals) {
    const auto bytes = static_cast<std::size_t>(info.st_size);
    void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) {
      const auto* control = static_cast<const format::ControlHeader*>(map);
      const std::uint64_t offset = control->words_offset;
      const std::uint64_t words = control->words;
      const std::uint64_t rules = control->rules_offset;
      good = control->magic == format::kControlMagic &&
             control->abi_major == format::kChannelMajor && offset % 4 == 0 &&
             offset >= format::kControlHeaderBytesMin && words <= format::kMaxNames &&
             offset + words * sizeof(std::uint32_t) <= bytes;
      if (good) {
        words_ = reinterpret_cast<const std::atomic<std::uint32_t>*>(static_cast<const char*>(map) +
                                                                     offset);
        word_count_ = static_cast<std::uint32_t>(words);
        // A supervisor of version 1.0 has no rules: then nothing is captured.
        const bool has_rules = control->abi_minor >= 1 && rules % 64 == 0 &&
                               rules >= format::kControlHeaderBytesMin &&
                               rules + format::kControlRulesBytes <= bytes;
        rules_ = has_rules
                     ? reinterpret_cast<const std::uint64_t*>(static_cast<const char*>(map) + rules)
                     : nullptr;
        const std::uint64_t windows = control->windows_offset;
        const bool has_windows = windows % 64 == 0 && windows >= format::kControlHeaderBytesMin &&
                                 windows + sizeof(format::ControlWindows) <= bytes;
        windows_ = has_windows ? reinterpret_cast<const format::ControlWindows*>(
                                     static_cast<const char*>(map) + windows)
                               : nullptr;
        control_.store(control, std::memory_order_release);
      } else {
        ::munmap(map, bytes);
      }
    }
  }
  ::close(fd);
  return good;
}

}  // namespace telltale::channel
