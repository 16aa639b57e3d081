// SPDX-License-Identifier: Apache-2.0
// What a reader says of a row that it leaves out because of a number that cannot be.
#pragma once
#include <fmt/core.h>

#include <filesystem>
#include <string>

#include "format/bounds.h"
#include "store/folder.h"

namespace telltale::store {

/// REQUIRES: !format::InBounds(row). `folder`: of the writer.
template <class Row>
std::string ImpossibleRow(const std::filesystem::path& folder, const Row& row) {
  std::string what;
  format::ForEachOutOfBounds(row, [&](const format::ColumnDesc& column, auto value) {
    what += fmt::format("{}{} = {}", what.empty() ? "" : ", ", column.name, value);
  });
  return fmt::format("{}: row {} of table {} is left out: {} cannot be", folder.string(), row.seq,
                     FindTable(Row::kTable)->name, what);
}

}  // namespace telltale::store
