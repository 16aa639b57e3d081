// SPDX-License-Identifier: Apache-2.0
#include "channel/control_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

namespace telltale::channel {
namespace {

using format::ControlHeader;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::uint32_t kWordsOffset = 64;

Status IoError(const char* what) {
  return {Code::kIo, std::string("control page: ") + what + " failed: " + std::strerror(errno)};
}

std::size_t PageBytesFor(std::uint32_t words) {
  const std::size_t raw = kWordsOffset + std::size_t{words} * sizeof(std::uint32_t);
  return (raw + format::kPageBytes - 1) / format::kPageBytes * format::kPageBytes;
}

}  // namespace

Result<ControlPage> ControlPage::Create(std::uint32_t name_limit) {
  const std::uint32_t words = std::min(name_limit, format::kMaxNames - 1) + 1;
  const std::size_t bytes = PageBytesFor(words);
  UniqueFd fd(::memfd_create("telltale-control", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return IoError("memfd_create");
  // Allocated now: a hole that cannot be filled later would be a SIGBUS in the user's process.
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    errno = error;
    return IoError("posix_fallocate");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return IoError("sealing");
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return IoError("mmap");
  auto* header = new (map) ControlHeader{};
  header->magic = format::kControlMagic;
  header->abi_major = format::kChannelMajor;
  header->abi_minor = format::kChannelMinor;
  header->words_offset = kWordsOffset;
  header->words = words;
  return ControlPage(std::move(fd), map, bytes, words);
}

Result<ControlPage> ControlPage::Attach(UniqueFd fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return IoError("fstat");
  const auto bytes = static_cast<std::size_t>(info.st_size);
  if (bytes < format::kPageBytes || (::fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals) {
    return Status{Code::kUnusable, "control page: not sealed, or too small"};
  }
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return IoError("mmap");
  ControlPage page(std::move(fd), map, bytes, 0);
  const std::uint32_t words = page.header()->words;
  if (page.header()->magic != format::kControlMagic ||
      page.header()->words_offset != kWordsOffset || words > format::kMaxNames ||
      PageBytesFor(words) > bytes) {
    return Status{Code::kUnusable, "control page: no valid header"};
  }
  page.words_ = words;
  return page;
}

ControlPage::ControlPage(ControlPage&& other) noexcept
    : fd_(std::move(other.fd_)),
      map_(std::exchange(other.map_, nullptr)),
      bytes_(other.bytes_),
      words_(other.words_) {}

ControlPage& ControlPage::operator=(ControlPage&& other) noexcept {
  if (this != &other) {
    if (map_ != nullptr) ::munmap(map_, bytes_);
    fd_ = std::move(other.fd_);
    map_ = std::exchange(other.map_, nullptr);
    bytes_ = other.bytes_;
    words_ = other.words_;
  }
  return *this;
}

ControlPage::~ControlPage() {
  if (map_ != nullptr) ::munmap(map_, bytes_);
}

Result<UniqueFd> ControlPage::ReadOnlyFd() const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd_.get());
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return IoError("reopening read-only through /proc/self/fd");
  return fd;
}

std::atomic<std::uint32_t>* ControlPage::words() const {
  return reinterpret_cast<std::atomic<std::uint32_t>*>(static_cast<char*>(map_) + kWordsOffset);
}

void ControlPage::SetStatsInterval(std::uint32_t steps) {
  header()->stats_interval_steps.store(steps, std::memory_order_release);
}

std::uint32_t ControlPage::stats_interval() const {
  return header()->stats_interval_steps.load(std::memory_order_relaxed);
}

void ControlPage::SetName(std::uint32_t name, std::uint32_t word) {
  if (name < words_) words()[name].store(word, std::memory_order_release);
}

void ControlPage::SetWantAll(bool all) {
  header()->flags.store(all ? format::kControlWantAll : 0, std::memory_order_release);
}

void ControlPage::PublishEpoch() { header()->epoch.fetch_add(1, std::memory_order_release); }

std::uint64_t ControlPage::epoch() const { return header()->epoch.load(std::memory_order_relaxed); }

}  // namespace telltale::channel
