// SPDX-License-Identifier: Apache-2.0
#include "store/batch_split.h"

#include <string_view>
#include <type_traits>
#include <utility>

#include "store/journal_format.h"

namespace telltale::store {
namespace {

template <class Value>
constexpr std::size_t SizeOfField() {
  return std::is_same_v<Value, std::string_view> ? 4 : sizeof(Value);
}

/// Bytes of a row without its texts.
template <class Row>
std::size_t SizeOfRow() {
  std::size_t bytes = 0;
  format::ForEachColumn<Row>([&](const format::ColumnDesc&, [[maybe_unused]] auto member) {
    bytes += SizeOfField<std::remove_cvref_t<decltype(std::declval<Row&>().*member)>>();
  });
  return bytes;
}

/// Sequence numbers are in a group once, and texts not counted.
std::size_t LeastBytes(const format::Rows& rows) {
  std::size_t bytes = 0;
  format::ForEachTable(rows, [&](const auto& table) {
    using Row = typename std::remove_cvref_t<decltype(table)>::value_type;
    bytes += table.size() * (SizeOfRow<Row>() - sizeof(Row::seq));
  });
  return bytes;
}

}  // namespace

/// Collects rows until their encoding would pass the target.
class GroupEncoder::Split {
 public:
  Split(GroupEncoder* encoder, std::int64_t watermark_before_ns) : e_(*encoder) {
    e_.part_.positions.clear();
    e_.part_.watermark_ns = watermark_before_ns;
    Begin();
  }

  template <class Row>
  void Add(const std::vector<Row>& rows, std::vector<Row>* part) {
    const std::size_t row_bytes = SizeOfRow<Row>();
    for (const Row& row : rows) {
      std::size_t cost = row_bytes + NewTexts(row);
      if (bytes_ > 0 && bytes_ + cost > kBatchTargetBytes) {
        Flush(format::JournalRecord::kBatchPart);
        cost = row_bytes + NewTexts(row);
      }
      bytes_ += cost;
      part->push_back(row);
    }
  }

  std::vector<std::string> Finish(const format::Batch& batch) {
    e_.part_.watermark_ns = batch.watermark_ns;
    e_.part_.positions = batch.positions;
    Flush(format::JournalRecord::kBatch);
    return std::move(records_);
  }

 private:
  /// Bytes of the texts that the part has not yet.
  template <class Row>
  std::size_t NewTexts(const Row& row) {
    std::size_t bytes = 0;
    format::ForEachColumn<Row>([&](const format::ColumnDesc&, auto member) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(row.*member)>, std::string_view>) {
        const std::size_t before = e_.texts_.texts().size();
        if (e_.texts_.Of(row.*member) == before) bytes += 4 + (row.*member).size();
      }
    });
    return bytes;
  }

  void Begin() {
    format::ForEachTable(e_.part_.rows, [](auto& rows) { rows.clear(); });
    e_.texts_.Clear();
    bytes_ = 0;
  }

  void Flush(format::JournalRecord kind) {
    std::string& record = records_.emplace_back();
    record.reserve(kBatchTargetBytes + kBatchTargetBytes / 16);
    e_.encoder_.Encode(e_.part_, &record);
    record[0] = static_cast<char>(kind);
    Begin();
  }

  GroupEncoder& e_;
  std::size_t bytes_ = 0;
  std::vector<std::string> records_;
};

std::vector<std::string> GroupEncoder::Encode(const format::Batch& batch,
                                              std::int64_t watermark_before_ns) {
  // Most batches are small: encode first, split where that was too much.
  if (LeastBytes(batch.rows) <= kBatchTargetBytes) {
    std::vector<std::string> records(1);
    encoder_.Encode(batch, &records[0]);
    if (records[0].size() <= kBatchTargetBytes) return records;
  }
  Split split(this, watermark_before_ns);
  format::ForEachTable(batch.rows, [&](const auto& rows) {
    using Row = typename std::remove_cvref_t<decltype(rows)>::value_type;
    format::ForEachTable(part_.rows, [&](auto& part) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(part)>, std::vector<Row>>) {
        split.Add(rows, &part);
      }
    });
  });
  return split.Finish(batch);
}

}  // namespace telltale::store
