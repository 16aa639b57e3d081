// SPDX-License-Identifier: Apache-2.0
// Rows of one table by column, as Arrow has them, until a row group is full. Included only by .cc
// files that use Arrow.
//
// Thread safety: none.
#pragma once
#include <arrow/api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "format/records.gen.h"
#include "format/text_index.h"

namespace telltale::store {

class GroupColumns {
 public:
  explicit GroupColumns(format::TableId table);

  /// Takes rows of the table from the `from`th on, at most `most`; returns how many there were.
  /// Texts must live until Clear().
  std::size_t Take(const format::Rows& rows, std::size_t from, std::size_t most);

  std::size_t rows() const { return rows_; }
  /// Texts are indices of a dictionary: each is hashed once, not once a row.
  const std::shared_ptr<arrow::Schema>& schema() const { return schema_; }
  /// A column of all rows, in the memory of this object but for bool: for as long as nothing is
  /// taken or cleared.
  arrow::Result<std::shared_ptr<arrow::Array>> Column(int column) const;
  /// Forgets the rows and keeps the room.
  void Clear();

 private:
  struct Values {
    std::vector<std::byte> bytes;              ///< Of a text its number, of a bool a byte.
    std::unique_ptr<format::TextIndex> texts;  ///< Of a column of texts only.
  };

  template <class Row>
  void TakeRows(const Row* rows, std::size_t count);

  format::TableId table_;
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<Values> values_;
  std::size_t rows_ = 0;
};

}  // namespace telltale::store
