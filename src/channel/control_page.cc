// SPDX-License-Identifier: Apache-2.0
#include "channel/control_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <string>

namespace telltale::channel {
namespace {

using format::ControlHeader;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::uint32_t kWordsOffset = sizeof(ControlHeader);
/// Words that have memory from the start: as many names as a process has without experts.
constexpr std::uint32_t kFirstWords = 1U << 14;
constexpr std::size_t kWordBytes = sizeof(std::uint32_t);

Status IoError(const char* what) {
  return {Code::kIo, std::string("control page: ") + what + " failed: " + std::strerror(errno)};
}

std::size_t RulesOffset(std::uint32_t words) {
  return (kWordsOffset + words * kWordBytes + 63) / 64 * 64;
}

std::size_t WindowsOffset(std::uint32_t words) {
  return (RulesOffset(words) + format::kControlRulesBytes + 63) / 64 * 64;
}

std::size_t PageBytesFor(std::uint32_t words) {
  const std::size_t raw = WindowsOffset(words) + sizeof(format::ControlWindows);
  return (raw + format::kPageBytes - 1) / format::kPageBytes * format::kPageBytes;
}

}  // namespace

Result<ControlPage> ControlPage::Create(std::uint32_t name_limit) {
  const std::uint32_t words = std::min(name_limit, format::kMaxNames - 1) + 1;
  const std::size_t bytes = PageBytesFor(words);
  UniqueFd fd(::memfd_create("telltale-control", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return IoError("memfd_create");
  const std::uint32_t ready = std::min(words, kFirstWords);
  // Allocated now: a hole that cannot be filled later would be a SIGBUS in the user's process.
  const std::size_t rules = RulesOffset(words);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return IoError("ftruncate");
  for (const auto& [from, to] :
       {std::pair(std::size_t{0}, kWordsOffset + ready * kWordBytes), std::pair(rules, bytes)}) {
    const auto length = static_cast<off_t>(to - from);
    if (const int error = ::posix_fallocate(fd.get(), static_cast<off_t>(from), length);
        error != 0) {
      errno = error;
      return IoError("posix_fallocate");
    }
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
  header->rules_offset = static_cast<std::uint32_t>(RulesOffset(words));
  header->windows_offset = static_cast<std::uint32_t>(WindowsOffset(words));
  header->words_ready.store(ready, std::memory_order_relaxed);
  ControlPage page(std::move(fd), map, bytes, words);
  page.ready_ = ready;
  return page;
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
      PageBytesFor(words) > bytes || page.header()->rules_offset != RulesOffset(words) ||
      page.header()->windows_offset != WindowsOffset(words)) {
    return Status{Code::kUnusable, "control page: no valid header"};
  }
  page.words_ = words;
  page.ready_ = std::min(page.header()->words_ready.load(std::memory_order_relaxed), words);
  return page;
}

ControlPage::ControlPage(ControlPage&& other) noexcept
    : fd_(std::move(other.fd_)),
      map_(std::exchange(other.map_, nullptr)),
      bytes_(other.bytes_),
      words_(other.words_),
      ready_(other.ready_) {}

ControlPage& ControlPage::operator=(ControlPage&& other) noexcept {
  if (this != &other) {
    if (map_ != nullptr) ::munmap(map_, bytes_);
    fd_ = std::move(other.fd_);
    map_ = std::exchange(other.map_, nullptr);
    bytes_ = other.bytes_;
    words_ = other.words_;
    ready_ = other.ready_;
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

std::uint64_t* ControlPage::rules() const {
  return reinterpret_cast<std::uint64_t*>(static_cast<char*>(map_) + RulesOffset(words_));
}

format::ControlWindows* ControlPage::windows() const {
  return reinterpret_cast<format::ControlWindows*>(static_cast<char*>(map_) +
                                                   WindowsOffset(words_));
}

void ControlPage::SetWindows(std::string_view text) {
  format::ControlWindows& w = *windows();
  if (text.size() > format::kMaxWindowsBytes) text = {};
  const std::uint64_t before = w.sequence.load(std::memory_order_relaxed);
  const auto word_at = [&](std::size_t at) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
    return word;
  };
  bool same = before % 2 == 0 && w.bytes.load(std::memory_order_relaxed) == text.size();
  for (std::size_t at = 0; same && at < text.size(); at += 8) {
    same = w.text[at / 8].load(std::memory_order_relaxed) == word_at(at);
  }
  if (same) return;
  // Odd already: a predecessor died in the midst of it.
  w.sequence.store(before | 1, std::memory_order_release);
  for (std::size_t at = 0; at < text.size(); at += 8) {
    w.text[at / 8].store(word_at(at), std::memory_order_release);
  }
  w.bytes.store(static_cast<std::uint32_t>(text.size()), std::memory_order_release);
  w.sequence.store((before | 1) + 1, std::memory_order_release);
}

void ControlPage::SetName(std::uint32_t name, std::uint32_t word) {
  if (name >= words_ || (name >= ready_ && !MakeReady(name))) return;
  words()[name].store(word, std::memory_order_release);
}

bool ControlPage::MakeReady(std::uint32_t name) {
  const std::uint32_t to = std::min(std::max(name + 1, ready_ * 2), words_);
  const auto from = static_cast<off_t>(kWordsOffset + ready_ * kWordBytes);
  const auto length = static_cast<off_t>((to - ready_) * kWordBytes);
  if (::posix_fallocate(fd_.get(), from, length) != 0) return false;
  ready_ = to;
  header()->words_ready.store(to, std::memory_order_release);
  return true;
}

void ControlPage::BeginRules() {
  std::atomic<std::uint64_t>& sequence = header()->rules_sequence;
  // Odd already: a predecessor died in the midst of it.
  sequence.store(sequence.load(std::memory_order_relaxed) | 1, std::memory_order_release);
}

void ControlPage::SetRules(std::span<const format::ControlRule> rules,
                           std::uint32_t unanswered_mask, std::uint64_t slab_bytes,
                           std::span<const format::ControlCollection> collections) {
  BeginRules();
  rules = rules.first(std::min<std::size_t>(rules.size(), format::kControlRules));
  // Release, each: none may appear before the sequence is odd.
  std::uint64_t* out = this->rules();
  std::uint32_t interval = 0;
  for (std::size_t i = 0; i < format::kControlRules; ++i) {
    const format::ControlRule rule = i < rules.size() ? rules[i] : format::ControlRule{};
    std::uint64_t words[sizeof rule / sizeof(std::uint64_t)];
    std::memcpy(words, &rule, sizeof rule);
    for (const std::uint64_t word : words) __atomic_store_n(out++, word, __ATOMIC_RELEASE);
    // Statistics of TRAIN steps, the most frequent: all that a probe of version 1.0 knows.
    const std::uint32_t every = rule.when[0].interval;
    if ((rule.take & 1) != 0 && every != 0 && (interval == 0 || every < interval)) {
      interval = every;
    }
  }
  for (std::size_t i = 0; i < format::kControlCollections; ++i) {
    const format::ControlCollection known =
        i < collections.size() ? collections[i]
                               : format::ControlCollection{0, format::kCouldUnknown};
    std::uint64_t word = 0;
    std::memcpy(&word, &known, sizeof word);
    __atomic_store_n(out++, word, __ATOMIC_RELEASE);
  }
  ControlHeader& h = *header();
  h.unanswered_mask.store(unanswered_mask, std::memory_order_release);
  h.slab_bytes.store(slab_bytes, std::memory_order_release);
  h.stats_interval_steps.store(interval, std::memory_order_release);
  const std::uint32_t detail = h.flags.load(std::memory_order_relaxed) & ~format::kControlWantAll;
  h.flags.store(detail | (unanswered_mask != 0 ? format::kControlWantAll : 0),
                std::memory_order_release);
  h.rules_sequence.store(h.rules_sequence.load(std::memory_order_relaxed) + 1,
                         std::memory_order_release);
}

format::ControlRule ControlPage::EveryStep(std::uint32_t take, std::uint32_t interval) {
  format::ControlRule rule{};
  rule.take = take;
  for (format::ControlWhen& when : rule.when) {
    when.interval = interval;
    when.end = std::numeric_limits<std::int64_t>::max();
  }
  return rule;
}

void ControlPage::SetDetail(std::uint32_t spans_per_second, bool all) {
  std::atomic<std::uint32_t>& flags = header()->flags;
  flags.store((flags.load(std::memory_order_relaxed) & format::kControlWantAll) |
                  (all ? format::kControlDetailAll : 0) |
                  std::min(spans_per_second, format::kControlDetailMax)
                      << format::kControlDetailShift,
              std::memory_order_release);
}

void ControlPage::PublishEpoch() { header()->epoch.fetch_add(1, std::memory_order_release); }

std::uint64_t ControlPage::epoch() const { return header()->epoch.load(std::memory_order_relaxed); }

}  // namespace telltale::channel
