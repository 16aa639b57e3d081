// SPDX-License-Identifier: Apache-2.0
#include "channel/slab.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

namespace telltale::channel {
namespace {

using format::kPageBytes;
using format::kSlotBytes;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::uint64_t kMaxSlots = (16ULL << 30) / kSlotBytes;

Status IoError(const char* what) {
  return {Code::kIo, std::string("slab: ") + what + " failed: " + std::strerror(errno)};
}

Status Unusable(const char* what) {
  return {Code::kUnusable, std::string("slab refused: ") + what + "; raw values are not stored"};
}

bool Filled(std::uint32_t state) {
  return state == format::kSlotFull || state == format::kSlotTaken;
}

}  // namespace

Result<UniqueFd> CreateSlab(std::uint64_t bytes) {
  const std::uint64_t slots = SlotsOf(bytes);
  if (slots > kMaxSlots) return Status{Code::kUsage, "slab: more than 16 GiB were asked for"};
  const std::uint64_t table = slots * sizeof(std::uint32_t);
  const std::uint64_t offset = kPageBytes + (table + kPageBytes - 1) / kPageBytes * kPageBytes;
  UniqueFd fd(::memfd_create("telltale-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return IoError("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(offset + slots * kSlotBytes)) != 0) {
    return IoError("ftruncate");
  }
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(offset)); error != 0) {
    errno = error;
    return IoError("posix_fallocate");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return IoError("sealing");
  void* map = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return IoError("mmap");
  auto* header = new (map) format::SlabHeader{};
  header->magic = format::kSlabMagic;
  header->slots = static_cast<std::uint32_t>(slots);
  header->slots_offset = static_cast<std::uint32_t>(offset);
  ::munmap(map, kPageBytes);
  return fd;
}

Result<SlabReader> SlabReader::Attach(UniqueFd fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return IoError("fstat");
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  // Unsealed, the producer could truncate it under us: a SIGBUS.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return Unusable("it is not sealed");
  if (bytes < 2 * kPageBytes) return Unusable("it is too small");
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return IoError("mmap");
  SlabReader reader(static_cast<char*>(map), bytes, 0, 0);
  format::SlabHeader header;  // A private copy: the producer may change it at any time.
  std::memcpy(&header, map, sizeof header);
  const std::uint64_t slots = header.slots;
  const std::uint64_t offset = header.slots_offset;
  if (header.magic != format::kSlabMagic || slots == 0 || offset % kPageBytes != 0 ||
      offset < kPageBytes + slots * sizeof(std::uint32_t) || offset > bytes ||
      slots > (bytes - offset) / kSlotBytes) {
    return Unusable("it has no valid header");
  }
  reader.slots_ = header.slots;
  reader.slots_offset_ = offset;
  return reader;
}

SlabReader::SlabReader(SlabReader&& other) noexcept
    : map_(std::exchange(other.map_, nullptr)),
      bytes_(other.bytes_),
      slots_(std::exchange(other.slots_, 0)),
      slots_offset_(other.slots_offset_) {}

SlabReader& SlabReader::operator=(SlabReader&& other) noexcept {
  if (this != &other) {
    if (map_ != nullptr) ::munmap(map_, bytes_);
    map_ = std::exchange(other.map_, nullptr);
    bytes_ = other.bytes_;
    slots_ = std::exchange(other.slots_, 0);
    slots_offset_ = other.slots_offset_;
  }
  return *this;
}

SlabReader::~SlabReader() {
  if (map_ != nullptr) ::munmap(map_, bytes_);
}

std::uint64_t SlabReader::Run(std::uint32_t slot, std::uint64_t bytes) const {
  const std::uint64_t need = SlotsOf(bytes);
  return slot < slots_ && need <= slots_ - slot ? need : 0;
}

std::span<const std::byte> SlabReader::Data(std::uint32_t slot, std::uint64_t bytes) const {
  const std::uint64_t need = Run(slot, bytes);
  if (need == 0) return {};
  for (std::uint64_t i = slot; i < slot + need; ++i) {
    if (!Filled(words()[i].load(std::memory_order_acquire))) return {};
  }
  return {reinterpret_cast<const std::byte*>(map_ + slots_offset_ + slot * kSlotBytes), bytes};
}

void SlabReader::Take(std::uint32_t slot, std::uint64_t bytes) {
  const std::uint64_t need = Run(slot, bytes);
  for (std::uint64_t i = slot; i < slot + need; ++i) {
    std::uint32_t full = format::kSlotFull;
    words()[i].compare_exchange_strong(full, format::kSlotTaken, std::memory_order_acq_rel);
  }
}

void SlabReader::Free(std::uint32_t slot, std::uint64_t bytes) {
  const std::uint64_t need = Run(slot, bytes);
  for (std::uint64_t i = slot; i < slot + need; ++i) {
    // What the producer is filling is not ours, whatever a record says.
    std::uint32_t state = words()[i].load(std::memory_order_acquire);
    if (Filled(state)) {
      words()[i].compare_exchange_strong(state, format::kSlotFree, std::memory_order_acq_rel);
    }
  }
}

std::vector<bool> SlabReader::Taken() const {
  std::vector<bool> taken(slots_);
  for (std::uint64_t i = 0; i < slots_; ++i) {
    taken[i] = words()[i].load(std::memory_order_acquire) == format::kSlotTaken;
  }
  return taken;
}

std::uint64_t SlabReader::FreeTaken(const std::vector<bool>& slots) {
  std::uint64_t freed = 0;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(slots_, slots.size()); ++i) {
    if (!slots[i]) continue;
    std::uint32_t taken = format::kSlotTaken;
    if (words()[i].compare_exchange_strong(taken, format::kSlotFree, std::memory_order_acq_rel)) {
      ++freed;
    }
  }
  return freed;
}

}  // namespace telltale::channel
