// SPDX-License-Identifier: Apache-2.0
#include "store/batch_split.h"

#include <string_view>
#include <type_traits>
#include <unordered_set>

#include "store/journal_format.h"

namespace telltale::store {
namespace {

/// Collects rows until their encoding would pass the target.
class Splitter {
 public:
  explicit Splitter(std::int64_t watermark_before_ns) { part_.watermark_ns = watermark_before_ns; }

  template <class Row>
  void Add(const Row& row) {
    const std::size_t cost = Cost(row);
    if (bytes_ > 0 && bytes_ + cost > kBatchTargetBytes) {
      Flush(format::JournalRecord::kBatchPart);
      bytes_ = Cost(row);
    } else {
      bytes_ += cost;
    }
    format::ForEachTable(part_.rows, [&](auto& rows) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(rows)>, std::vector<Row>>) {
        rows.push_back(row);
      }
    });
  }

  std::vector<std::string> Finish(const format::Batch& batch) {
    part_.watermark_ns = batch.watermark_ns;
    part_.positions = batch.positions;
    Flush(format::JournalRecord::kBatch);
    return std::move(records_);
  }

 private:
  template <class Row>
  std::size_t Cost(const Row& row) {
    std::size_t bytes = 0;
    format::ForEachColumn<Row>([&](const format::ColumnDesc&, auto member) {
      using Value = std::remove_cvref_t<decltype(row.*member)>;
      if constexpr (std::is_same_v<Value, std::string_view>) {
        bytes += 4;
        if (texts_.insert(row.*member).second) bytes += 4 + (row.*member).size();
      } else {
        bytes += sizeof(Value);
      }
    });
    return bytes;
  }

  void Flush(format::JournalRecord kind) {
    std::string& record = records_.emplace_back();
    format::EncodeBatch(part_, &record);
    record[0] = static_cast<char>(kind);
    part_.rows = {};
    texts_.clear();
    bytes_ = 0;
  }

  format::Batch part_;
  std::size_t bytes_ = 0;
  std::unordered_set<std::string_view> texts_;
  std::vector<std::string> records_;
};

}  // namespace

std::vector<std::string> EncodeGroup(const format::Batch& batch, std::int64_t watermark_before_ns) {
  // Most batches are small: encode first, split where that was too much.
  std::vector<std::string> records(1);
  format::EncodeBatch(batch, &records[0]);
  if (records[0].size() <= kBatchTargetBytes) return records;
  Splitter splitter(watermark_before_ns);
  format::ForEachTable(batch.rows, [&](const auto& rows) {
    for (const auto& row : rows) splitter.Add(row);
  });
  return splitter.Finish(batch);
}

}  // namespace telltale::store
