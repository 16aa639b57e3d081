// SPDX-License-Identifier: Apache-2.0
#include "store/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/unique_fd.h"

namespace telltale::store {
namespace {

constexpr std::string_view kJournalPrefix = "journal-";
constexpr std::string_view kJournalSuffix = ".ttj";
constexpr std::string_view kSegmentSuffix = ".parquet";

std::optional<std::uint64_t> ParseNumber(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0) return std::nullopt;
  return value;
}

Status IoError(const char* what, const std::filesystem::path& path) {
  return {Code::kIo, fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno))};
}

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};
using UniqueDir = std::unique_ptr<DIR, CloseDir>;

/// Writes from the file's begin; errno says why not.
bool WriteWhole(int fd, std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

std::string JournalFileName(std::uint64_t number) {
  return fmt::format("{}{:06}{}", kJournalPrefix, number, kJournalSuffix);
}

std::string SegmentFileName(format::TableId table, std::uint64_t first_seq,
                            std::uint64_t last_seq) {
  return fmt::format("{}-{:012}-{:012}{}", FindTable(table)->name, first_seq, last_seq,
                     kSegmentSuffix);
}

std::optional<std::uint64_t> ParseJournalName(std::string_view name) {
  if (!name.starts_with(kJournalPrefix) || !name.ends_with(kJournalSuffix)) return std::nullopt;
  name.remove_prefix(kJournalPrefix.size());
  name.remove_suffix(kJournalSuffix.size());
  return ParseNumber(name);
}

std::optional<SegmentName> ParseSegmentName(std::string_view name) {
  SegmentName segment{.file = std::string(name)};
  if (!name.ends_with(kSegmentSuffix)) return std::nullopt;
  name.remove_suffix(kSegmentSuffix.size());
  const std::size_t dash1 = name.find('-');
  if (dash1 == std::string_view::npos) return std::nullopt;
  const std::size_t dash2 = name.find('-', dash1 + 1);
  if (dash2 == std::string_view::npos) return std::nullopt;
  const format::TableDesc* table = FindTable(name.substr(0, dash1));
  const auto first = ParseNumber(name.substr(dash1 + 1, dash2 - dash1 - 1));
  const auto last = ParseNumber(name.substr(dash2 + 1));
  if (table == nullptr || !first || !last || *first > *last || !format::kAmountBound.Has(*last)) {
    return std::nullopt;
  }
  segment.table = table->id;
  segment.first_seq = *first;
  segment.last_seq = *last;
  return segment;
}

Result<FolderListing> ListFolder(const std::filesystem::path& folder) {
  const UniqueDir dir(::opendir(folder.c_str()));
  if (!dir) {
    return {errno == ENOENT || errno == ENOTDIR ? Code::kUnusable : Code::kIo,
            fmt::format("cannot list {}: {}", folder.string(), std::strerror(errno))};
  }
  FolderListing listing;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == ".." || name == kLockName || name == kTensorFolder) continue;
    // Whoever wrote the run may have put a pipe or a device there, whose opening has no end.
    const bool file =
        entry->d_type == DT_REG || entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN;
    if (!file) {
      listing.foreign.emplace_back(name);
    } else if (const auto number = ParseJournalName(name)) {
      listing.journals.push_back(*number);
    } else if (auto segment = ParseSegmentName(name)) {
      listing.segments.push_back(*std::move(segment));
    } else if (name.ends_with(kTemporarySuffix)) {
      listing.temporaries.emplace_back(name);
    } else {
      listing.foreign.emplace_back(name);
    }
  }
  std::sort(listing.journals.begin(), listing.journals.end());
  std::sort(listing.segments.begin(), listing.segments.end(),
            [](const SegmentName& a, const SegmentName& b) {
              return std::tie(a.table, a.first_seq, a.last_seq) <
                     std::tie(b.table, b.first_seq, b.last_seq);
            });
  std::sort(listing.foreign.begin(), listing.foreign.end());
  return listing;
}

bool IsWriterFolder(const std::filesystem::path& folder) {
  if (::access((folder / kLockName).c_str(), F_OK) == 0) return true;
  const Result<FolderListing> listing = ListFolder(folder);
  return listing.ok() && (!listing->journals.empty() || !listing->segments.empty());
}

std::vector<std::string> ListWriters(const std::filesystem::path& run) {
  std::vector<std::string> writers;
  const UniqueDir dir(::opendir(run.c_str()));
  if (!dir) return writers;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with('.') && IsWriterFolder(run / name)) writers.emplace_back(name);
  }
  std::sort(writers.begin(), writers.end());
  return writers;
}

const format::TableDesc* FindTable(std::string_view name) {
  for (const format::TableDesc& table : format::kTables) {
    if (table.name == name) return &table;
  }
  return nullptr;
}

const format::TableDesc* FindTable(format::TableId id) {
  for (const format::TableDesc& table : format::kTables) {
    if (table.id == id) return &table;
  }
  return nullptr;
}

Status SyncFolder(const std::filesystem::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return IoError("sync", folder);
  return {};
}

Status ReplaceFile(const std::filesystem::path& path, std::string_view bytes, std::size_t room) {
  const std::filesystem::path temporary = fmt::format("{}.{}.tmp", path.string(), ::getpid());
  const UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return IoError("write", path);
  if (room > 0) {
    // Not every file system can; the file is as good without.
    [[maybe_unused]] const int reserved =
        ::fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes.size() + room));
  }
  if (!WriteWhole(fd.get(), bytes) || ::fsync(fd.get()) != 0 ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    Status status = IoError("write", path);
    ::unlink(temporary.c_str());
    return status;
  }
  return SyncFolder(path.has_parent_path() ? path.parent_path() : ".");
}

Status OverwriteText(const std::filesystem::path& path, std::string_view text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return IoError("write over", path);
  std::string bytes(text);
  bytes.resize(std::max(bytes.size(), static_cast<std::size_t>(info.st_size)), '\n');
  // Before a byte is changed: half of the new text over half of the old one would be neither.
  if (::fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes.size())) != 0 &&
      (errno != EOPNOTSUPP || bytes.size() > static_cast<std::size_t>(info.st_blocks) * 512)) {
    return IoError("write over", path);
  }
  if (!WriteWhole(fd.get(), bytes) || ::fsync(fd.get()) != 0) return IoError("write over", path);
  return {};
}

Result<std::string> ReadWholeFile(const std::filesystem::path& path, std::uint64_t most_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    return {errno == ENOENT || errno == ENOTDIR ? Code::kUnusable : Code::kIo,
            fmt::format("cannot open {}: {}", path.string(), std::strerror(errno))};
  }
  std::string bytes;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError("read", path);
    if (n == 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(n));
    if (bytes.size() > most_bytes) {
      return {Code::kLimit, fmt::format("{} is above {} bytes", path.string(), most_bytes)};
    }
  }
}

const std::string& BootId() {
  static const std::string id = [] {
    Result<std::string> text = ReadWholeFile("/proc/sys/kernel/random/boot_id");
    std::string value = text.ok() ? std::move(text).value() : std::string("unknown");
    while (!value.empty() && value.back() == '\n') value.pop_back();
    return value;
  }();
  return id;
}

std::string HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

}  // namespace telltale::store
