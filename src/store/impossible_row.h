// SPDX-License-Identifier: Apache-2.0
// What a reader says of a row that it leaves out because of a number that cannot be.
#pragma once
#include <fmt/core.h>

#include <filesystem>
#include <string>

#include "format/bounds.h"
#include "store/folder.h"

namespace telltale::store {

/// The highest sequence number of a row.
inline constexpr auto kMostSeq = static_cast<std::uint64_t>(format::kAmountBound.most);

/// The highest of a row in a journal of `bytes` bytes whose header says `first`, 0 where it says
/// none: each row takes more than one. Without this bound one row would make all true ones behind
/// it look as if they had been read before.
constexpr std::uint64_t MostSeqOfJournal(std::uint64_t first, std::uint64_t bytes) {
  return first == 0 || first > kMostSeq || bytes > kMostSeq - first ? kMostSeq : first + bytes;
}

/// REQUIRES: !format::InBounds(row), or its sequence number is higher than it can be. `folder`: of
/// the writer.
template <class Row>
std::string ImpossibleRow(const std::filesystem::path& folder, const Row& row) {
  std::string what;
  format::ForEachOutOfBounds(row, [&](const format::ColumnDesc& column, auto value) {
    what += fmt::format("{}{} = {}", what.empty() ? "" : ", ", column.name, value);
  });
  if (what.empty()) what = fmt::format("seq = {}", row.seq);
  return fmt::format("{}: row {} of table {} is left out: {} cannot be", folder.string(), row.seq,
                     FindTable(Row::kTable)->name, what);
}

}  // namespace telltale::store
