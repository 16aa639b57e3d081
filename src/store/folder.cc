// SPDX-License-Identifier: Apache-2.0
#include "store/folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/run_files.h"
#include "base/unique_fd.h"
#include "store/window_folder.h"

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
  return {Code::kIo,
          fmt::format("cannot {} {}: {}", what, path.string(), run_files::WhyNot(errno))};
}

std::filesystem::path Whole(const run_files::RunPath& path) { return path.run / path.beneath; }

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

std::string_view MachineOf(std::string_view writer) {
  return writer.starts_with(kAgentPrefix) ? writer.substr(kAgentPrefix.size()) : writer;
}

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
  std::vector<run_files::Entry> entries;
  if (const int error = run_files::List(run_files::OfRun(folder), &entries); error != 0) {
    return {error == ENOENT || error == ENOTDIR ? Code::kUnusable : Code::kIo,
            fmt::format("cannot list {}: {}", folder.string(), run_files::WhyNot(error))};
  }
  FolderListing listing;
  for (const run_files::Entry& entry : entries) {
    const std::string_view name = entry.name;
    if (name == kLockName || name == kTensorFolder) continue;
    // A link that bears the name of one of ours is named where it is opened: rows are missing.
    if (entry.kind != run_files::Kind::kFile && entry.kind != run_files::Kind::kLink) {
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
  if (run_files::IsFile(run_files::OfFolder(folder / kLockName))) return true;
  const Result<FolderListing> listing = ListFolder(folder);
  return listing.ok() && (!listing->journals.empty() || !listing->segments.empty());
}

std::vector<std::string> ListWriters(const std::filesystem::path& run) {
  std::vector<std::string> writers;
  std::vector<run_files::Entry> entries;
  if (run_files::List({run, "."}, &entries) != 0) return writers;
  for (run_files::Entry& entry : entries) {
    if (entry.kind == run_files::Kind::kFolder && !entry.name.starts_with('.') &&
        IsWriterFolder(run / entry.name)) {
      writers.push_back(std::move(entry.name));
    }
  }
  std::sort(writers.begin(), writers.end());
  return writers;
}

bool IsLinkedWriter(const run_files::Entry& entry) {
  if (entry.kind != run_files::Kind::kLink) return false;
  const std::string_view name = entry.name;
  return name == "watch" || name == "stacks" || name.starts_with("agent-") ||
         name.starts_with(kWindowFolderPrefix);
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
  const UniqueFd fd = run_files::OpenFolder({folder, "."});
  if (!fd || ::fsync(fd.get()) != 0) return IoError("sync", folder);
  return {};
}

Status ReplaceFile(const run_files::RunPath& path, std::string_view bytes, std::size_t room) {
  run_files::RunPath temporary = path;
  temporary.beneath += fmt::format(".{}.tmp", ::getpid());
  const UniqueFd fd = run_files::OpenToWrite(temporary, run_files::Writing::kFresh);
  if (!fd) return IoError("write", Whole(path));
  if (room > 0) {
    // Not every file system can; the file is as good without.
    [[maybe_unused]] const int reserved =
        ::fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes.size() + room));
  }
  int error = WriteWhole(fd.get(), bytes) && ::fsync(fd.get()) == 0 ? 0 : errno;
  if (error == 0) error = run_files::Rename(temporary, path);
  if (error != 0) {
    run_files::Remove(temporary);
    errno = error;
    return IoError("write", Whole(path));
  }
  const UniqueFd folder = run_files::OpenFolder({path.run, path.beneath.parent_path()});
  if (!folder || ::fsync(folder.get()) != 0) return IoError("sync", Whole(path).parent_path());
  return {};
}

Status ReplaceFile(const std::filesystem::path& path, std::string_view bytes, std::size_t room) {
  return ReplaceFile(run_files::OfRun(path), bytes, room);
}

Status OverwriteText(const std::filesystem::path& path, std::string_view text) {
  const UniqueFd fd = run_files::OpenToWrite(run_files::OfRun(path), run_files::Writing::kExisting);
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

Result<std::string> ReadOpenFile(const UniqueFd& fd, const std::filesystem::path& path,
                                 std::uint64_t most_bytes) {
  if (!fd) {
    return {errno == ENOENT || errno == ENOTDIR ? Code::kUnusable : Code::kIo,
            fmt::format("cannot open {}: {}", path.string(), run_files::WhyNot(errno))};
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

Result<std::string> ReadRunFile(const run_files::RunPath& path, std::uint64_t most_bytes) {
  const std::filesystem::path whole = Whole(path);
  return ReadOpenFile(run_files::OpenToRead(path), whole, most_bytes);
}

Result<std::string> ReadWholeFile(const std::filesystem::path& path, std::uint64_t most_bytes) {
  return ReadOpenFile(UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), path, most_bytes);
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
