// SPDX-License-Identifier: Apache-2.0
#include "read/mapped_files.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/unique_fd.h"

namespace telltale::read {
namespace {

constexpr std::string_view kPartSuffix = ".part";

/// A run may come from anywhere: its index must not name files outside of it.
bool StaysInside(std::string_view file) {
  const std::filesystem::path path(file);
  if (file.empty() || path.is_absolute()) return false;
  for (const std::filesystem::path& part : path) {
    if (part == "..") return false;
  }
  return true;
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    return {errno == ENOENT ? Code::kUnusable : Code::kIo,
            fmt::format("cannot open {}: {}", path.string(), std::strerror(errno))};
  }
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  if (!S_ISREG(info.st_mode) || bytes == 0) {
    return {Code::kUnusable, fmt::format("{} holds no tensors: it is empty", path.string())};
  }
  void* const data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return {Code::kIo, fmt::format("cannot map {}: {}", path.string(), std::strerror(errno))};
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile(static_cast<const std::byte*>(data), bytes));
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(data_), bytes_); }

Result<std::shared_ptr<const MappedFile>> MappedFiles::Get(std::string_view writer,
                                                           std::string_view file,
                                                           std::uint64_t end) {
  const std::filesystem::path path = run_ / writer / file;
  std::string key = path.string();
  if (const auto found = open_.find(key); found != open_.end()) {
    if (found->second->bytes() >= end) return found->second;
    open_.erase(found);  // It grew since; who holds the old mapping keeps it.
  }
  if (!StaysInside(file)) {
    return {Code::kUnusable,
            fmt::format("the index names '{}', which is no file of the run", file)};
  }
  std::filesystem::path part = path;
  part += kPartSuffix;
  // Renamed between the two looks, it has its final name at the third.
  auto opened = MappedFile::Open(path);
  if (!opened.ok()) opened = MappedFile::Open(part);
  if (!opened.ok()) opened = MappedFile::Open(path);
  if (!opened.ok()) return opened.status();
  std::shared_ptr<const MappedFile> mapping = std::move(opened).value();
  if (mapping->bytes() < end) {
    return {Code::kPartial,
            fmt::format("{} ends at byte {}, but values lie up to byte {}: part of it is lost",
                        path.string(), mapping->bytes(), end)};
  }
  open_.emplace(std::move(key), mapping);
  return mapping;
}

}  // namespace telltale::read
