// SPDX-License-Identifier: Apache-2.0
#include "read/mapped_files.h"

#include <fmt/core.h>

#include <cstddef>

namespace telltale::read {
namespace {

/// The kernel allows a process some 65,000 mappings in all.
constexpr std::size_t kMaxOpen = 1024;

}  // namespace

Result<std::shared_ptr<const store::TensorFile>> MappedFiles::Get(std::string_view writer,
                                                                  std::string_view file,
                                                                  std::uint64_t end) {
  Key key(writer, file);
  if (const auto found = open_.find(key); found != open_.end()) {
    if (found->second->bytes().size() >= end) return found->second;
    open_.erase(found);  // It grew since; who holds the old mapping keeps it.
  }
  TELLTALE_ASSIGN_OR_RETURN(auto mapping, store::TensorFile::Open(run_ / writer, file));
  if (mapping->bytes().size() < end) {
    return {Code::kPartial,
            fmt::format("{}/{} ends at byte {}, but values lie up to byte {}: part of it is lost",
                        writer, file, mapping->bytes().size(), end)};
  }
  // Whoever holds values of it keeps the mapping; mostly they are read in the order of names.
  if (open_.size() >= kMaxOpen) open_.erase(open_.begin());
  open_.emplace(std::move(key), mapping);
  return mapping;
}

}  // namespace telltale::read
