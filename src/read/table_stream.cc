// SPDX-License-Identifier: Apache-2.0
#include "read/table_stream.h"

#include <arrow/api.h>

#include <utility>

#include "query/expression.h"
#include "query/table.h"
#include "read/batch_out.h"
#include "store/folder.h"
#include "store/follower.h"

namespace telltale::read {
namespace {

arrow::Status ToArrow(const Status& status) {
  return status.code() == Code::kIo ? arrow::Status::IOError(status.message())
                                    : arrow::Status::Invalid(status.message());
}

class TableStream final : public arrow::RecordBatchReader {
 public:
  TableStream(std::filesystem::path run, query::Table table, BatchShape shape, bool final,
              std::function<void(const store::Salvage&)> done)
      : run_(std::move(run)),
        table_(std::move(table)),
        shape_(std::move(shape)),
        final_(final),
        done_(std::move(done)),
        writers_(store::ListWriters(run_)) {}

  Status Where(const std::string& text) {
    TELLTALE_ASSIGN_OR_RETURN(where_, query::Expression::Parse(text, table_));
    return {};
  }

  std::shared_ptr<arrow::Schema> schema() const override { return shape_.schema(); }

  arrow::Status ReadNext(std::shared_ptr<arrow::RecordBatch>* out) override {
    *out = nullptr;
    while (next_writer_ <= writers_.size()) {
      if (follower_ == nullptr) {
        if (next_writer_ == writers_.size()) break;
        const std::string& name = writers_[next_writer_];
        follower_ = std::make_unique<store::WriterFollower>(
            run_ / name, name, store::MaskOf(shape_.table()), final_, &salvage_);
      }
      std::unique_ptr<store::RowChunk> chunk;
      const Result<bool> progress = follower_->Advance(&chunk);
      if (!progress.ok()) return ToArrow(progress.status());
      if (!*progress) {
        follower_ = nullptr;
        ++next_writer_;
        continue;
      }
      if (chunk == nullptr || !Sift(&chunk->rows)) continue;
      ARROW_ASSIGN_OR_RAISE(*out, shape_.Make(chunk->rows, {follower_->name()}));
      return arrow::Status::OK();
    }
    if (done_) std::exchange(done_, nullptr)(salvage_);
    return arrow::Status::OK();
  }

 private:
  /// Keeps the rows that meet the condition; false where none is left.
  bool Sift(format::Rows* rows) {
    bool any = false;
    format::ForEachTable(*rows, [&](auto& of_table) {
      using Row = typename std::remove_cvref_t<decltype(of_table)>::value_type;
      if (Row::kTable != shape_.table()) return;
      if (where_ != nullptr) {
        std::erase_if(of_table, [&](const Row& row) {
          return !where_->Matches(query::RowRef{follower_->name(), &row});
        });
      }
      any = !of_table.empty();
    });
    return any;
  }

  const std::filesystem::path run_;
  const query::Table table_;
  const BatchShape shape_;
  const bool final_;
  std::function<void(const store::Salvage&)> done_;
  const std::vector<std::string> writers_;
  std::unique_ptr<query::Expression> where_;
  std::size_t next_writer_ = 0;
  std::unique_ptr<store::WriterFollower> follower_;
  store::Salvage salvage_;
};

}  // namespace

Result<std::shared_ptr<arrow::RecordBatchReader>> OpenTable(
    const std::filesystem::path& run, const TableQuery& query, bool final,
    std::function<void(const store::Salvage&)> done) {
  TELLTALE_ASSIGN_OR_RETURN(query::Table table, query::Table::Named(query.table));
  TELLTALE_ASSIGN_OR_RETURN(BatchShape shape, BatchShape::Of(table.id(), query.columns));
  auto stream = std::make_shared<TableStream>(run, std::move(table), std::move(shape), final,
                                              std::move(done));
  if (!query.where.empty()) TELLTALE_RETURN_IF_ERROR(stream->Where(query.where));
  return std::shared_ptr<arrow::RecordBatchReader>(std::move(stream));
}

}  // namespace telltale::read
