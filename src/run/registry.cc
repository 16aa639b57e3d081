// SPDX-License-Identifier: Apache-2.0
#include "run/registry.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/process.h"
#include "channel/slab.h"
#include "run/errand.h"
#include "telltale/probe.h"

namespace telltale::run {
namespace {

using channel::RefuseReason;

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5.
#endif

constexpr std::size_t kMaxPending = 512;
constexpr int kBacklog = 512;
/// A peer that says nothing for so long is dropped.
constexpr std::int64_t kPatienceNs = 5'000'000'000;
/// Refusals that are told to the user; the rest is only counted.
constexpr std::uint64_t kMaxNotes = 3;
/// One that has just been made may not listen yet.
constexpr std::time_t kDeadAfterSeconds = 60;
constexpr std::size_t kMostLookedAt = 10'000;  ///< Of what lies among the temporary files.
constexpr int kArenaSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status SetUpError(const char* what, const std::string& where) {
  return {Code::kIo, fmt::format("cannot {} '{}': {}: set TMPDIR to a folder that can be written",
                                 what, where, std::strerror(errno))};
}

/// pidfd of the peer, certain not to be of a later process with the same pid.
UniqueFd PeerPidfd(int socket, std::int32_t pid, std::uint64_t start_ticks) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    return UniqueFd(fd);
  }
  UniqueFd opened = OpenPidfd(pid);
  // It has ended already, but its arena holds all that it recorded: a descriptor that is readable,
  // as the pidfd of a process that has ended is, stands for it.
  if (!opened && errno == ESRCH) return UniqueFd(::eventfd(1, EFD_CLOEXEC));
  // Of a later process, or of one that counts time otherwise: whether it lives cannot be told.
  if (opened && ProcessStartTicks(pid) != start_ticks) opened.reset();
  return opened;
}

bool SoundArena(int fd, std::uint64_t bytes) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
         static_cast<std::uint64_t>(info.st_size) == bytes &&
         (::fcntl(fd, F_GET_SEALS) & kArenaSeals) == kArenaSeals;
}

/// A trainer's slab. Without one its raw values are skipped, and counted by the probe.
UniqueFd SlabFor(const channel::Hello& hello, std::uint64_t bytes) {
  if (hello.process_kind != TT_PROCESS_TRAINER) return {};
  // Past a limit on the size of files making it would be a SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0) return {};
  if (limit.rlim_cur < 2 * bytes) bytes = kSlabBytes;
  if (limit.rlim_cur < 2 * bytes) return {};
  auto slab = channel::CreateSlab(bytes);
  return slab.ok() ? std::move(slab).value() : UniqueFd();
}

/// Whether nobody will ever answer there: it was made for long, and nobody listens.
bool IsDead(const std::string& socket_path) {
  struct stat info {};
  if (::lstat(socket_path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode) ||
      info.st_uid != ::geteuid() || ::time(nullptr) - info.st_mtime < kDeadAfterSeconds) {
    return false;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe &&
         ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
         errno == ECONNREFUSED;
}

/// Removes the folders of supervisors that were killed together with their agents: nobody else was
/// left to do it. Ours alone, and as it was made: a folder with a socket.
void RemoveDead(const std::string& parent) {
  std::error_code error;
  std::size_t looked_at = 0;
  for (std::filesystem::directory_iterator at(parent, error), end;
       !error && at != end && ++looked_at < kMostLookedAt; at.increment(error)) {
    const std::string name = at->path().filename().string();
    constexpr std::string_view kPrefix = "telltale-";
    constexpr std::size_t kRandom = 6;
    if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + kRandom) continue;
    struct stat info {};
    if (::lstat(at->path().c_str(), &info) != 0 || !S_ISDIR(info.st_mode) ||
        info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
      continue;
    }
    const std::string socket_path = at->path().string() + "/socket";
    if (!IsDead(socket_path)) continue;
    ::unlink(socket_path.c_str());
    ::rmdir(at->path().c_str());
  }
}

}  // namespace

Result<Registry> Registry::Create(std::uint32_t attempt, FirstPage first_page,
                                  std::uint64_t slab_bytes) {
  Registry registry;
  registry.attempt_ = attempt;
  registry.first_page_ = std::move(first_page);
  registry.slab_bytes_ = std::clamp(slab_bytes, kSlabBytes, kMaxSlabBytes);
  const char* tmp = ::getenv("TMPDIR");
  // sun_path holds 107 characters: a long TMPDIR cannot be used.
  std::string folder = tmp != nullptr && tmp[0] == '/' && std::strlen(tmp) < 64 ? tmp : "/tmp";
  RemoveDead(folder);
  folder += "/telltale-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return SetUpError("make a private folder like", folder);
  registry.folder_ = folder;
  registry.socket_path_ = folder + "/socket";
  registry.listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, registry.socket_path_.c_str(), registry.socket_path_.size() + 1);
  if (!registry.listener_ ||
      ::bind(registry.listener_.get(), reinterpret_cast<const sockaddr*>(&address),
             sizeof address) != 0 ||
      ::listen(registry.listener_.get(), kBacklog) != 0) {
    return SetUpError("listen on", registry.socket_path_);
  }
  return registry;
}

Registry::~Registry() { Close(); }

void Registry::Close() {
  if (folder_.empty()) return;  // Moved from, or closed.
  listener_.reset();
  pending_.clear();
  RemoveWithFolder(socket_path_.c_str(), folder_.c_str());
  folder_.clear();
}

void Registry::AddTo(std::vector<pollfd>* fds) const {
  if (pending_.size() < kMaxPending) fds->push_back({listener_.get(), POLLIN, 0});
  for (const Pending& peer : pending_) fds->push_back({peer.socket.get(), POLLIN, 0});
}

void Registry::Serve(std::int64_t now_ns, const Callbacks& callbacks) {
  while (pending_.size() < kMaxPending) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) break;
    pending_.push_back({std::move(socket), now_ns});
  }
  std::erase_if(pending_, [&](const Pending& peer) {
    return ServeOne(peer.socket, callbacks) || now_ns - peer.since_ns > kPatienceNs;
  });
}

bool Registry::ServeOne(const UniqueFd& socket, const Callbacks& callbacks) {
  const auto& note = callbacks.note;
  alignas(8) char bytes[1024];
  int raw[channel::kMaxMessageFds];
  int count = 0;
  const std::ptrdiff_t size =
      channel::ReceiveMessage(socket.get(), bytes, sizeof bytes, raw, &count);
  if (size == -EAGAIN) return false;
  std::vector<UniqueFd> fds;
  for (int i = 0; i < count; ++i) fds.emplace_back(raw[i]);

  // First, and also of one that has hung up without a word: a probe that finds us to be of another
  // user says none.
  ucred peer{};
  socklen_t peer_size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) != 0) return true;
  if (peer.uid != ::geteuid()) {
    Refuse(socket, RefuseReason::kForeignUser,
           fmt::format("process {} of user {} refused: the run belongs to user {}", peer.pid,
                       peer.uid, ::geteuid()),
           note);
    return true;
  }
  if (size <= 0) return true;
  channel::Hello hello;
  if (!channel::CheckMessage(bytes, static_cast<std::size_t>(size), channel::MessageType::kHello,
                             &hello)) {
    return true;
  }
  char text[sizeof(channel::Refuse::text)];
  if (const std::uint32_t reason = channel::JudgeHello(hello, text, sizeof text); reason != 0) {
    Refuse(socket, static_cast<RefuseReason>(reason), text, note);
    return true;
  }
  if (producers_.size() >= kMaxProducers) {
    Refuse(socket, RefuseReason::kTooManyProducers,
           fmt::format("process {} is not recorded: {} processes are already", peer.pid,
                       kMaxProducers),
           note);
    return true;
  }
  UniqueFd pidfd = PeerPidfd(socket.get(), peer.pid, hello.start_time_ticks);
  if (fds.size() != 1 || !SoundArena(fds[0].get(), hello.arena_bytes) || !pidfd) {
    Refuse(
        socket, RefuseReason::kMalformed,
        fmt::format("process {} refused: its arena is not a sealed memfd of the size it says, or "
                    "its end could not be seen",
                    peer.pid),
        note);
    return true;
  }
  auto page = channel::ControlPage::Create(hello.name_limit);
  auto read_only = page.ok() ? page->ReadOnlyFd() : Result<UniqueFd>(page.status());
  if (!read_only.ok()) {
    Refuse(socket, RefuseReason::kTooManyProducers, read_only.status().message(), note);
    return true;
  }
  if (first_page_) first_page_(&*page);
  HeldProducer producer{{},
                        peer.pid,
                        std::move(fds[0]),
                        std::move(page).value(),
                        std::move(pidfd),
                        SlabFor(hello, slab_bytes_)};
  std::copy(std::begin(hello.uuid), std::end(hello.uuid), producer.uuid.begin());
  auto accept = channel::MakeMessage<channel::Accept>(channel::MessageType::kAccept);
  accept.abi_major = format::kChannelMajor;
  accept.abi_minor = format::kChannelMinor;
  accept.attempt = attempt_;
  producers_.push_back(std::move(producer));
  const int slab = producers_.back().slab.get();
  if (callbacks.held) callbacks.held();
  const int given[] = {read_only->get(), slab};
  // Where it has ended before it could be told, what it recorded is in the arena all the same.
  channel::SendMessage(socket.get(), &accept, sizeof accept, given, slab >= 0 ? 2 : 1);
  return true;
}

void Registry::Refuse(const UniqueFd& socket, RefuseReason reason, const std::string& text,
                      const std::function<void(const std::string&)>& note) {
  auto refuse = channel::MakeMessage<channel::Refuse>(channel::MessageType::kRefuse);
  refuse.abi_major = format::kChannelMajor;
  refuse.abi_minor = format::kChannelMinor;
  refuse.reason = static_cast<std::uint32_t>(reason);
  std::memcpy(refuse.text, text.data(), std::min(text.size(), sizeof refuse.text - 1));
  channel::SendMessage(socket.get(), &refuse, sizeof refuse, nullptr, 0);
  if (++refused_ <= kMaxNotes) note(text);
}

void Registry::Release(const std::array<std::uint8_t, 16>& uuid) {
  std::erase_if(producers_, [&](const HeldProducer& held) { return held.uuid == uuid; });
}

}  // namespace telltale::run
