// SPDX-License-Identifier: Apache-2.0
#include "interchange/table_export.h"

#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <fmt/core.h>
#include <parquet/arrow/writer.h>
#include <parquet/properties.h>

#include <exception>
#include <memory>
#include <utility>

#include "query/query.h"
#include "query/table.h"
#include "store/arrow_rows.h"

namespace telltale::interchange {
namespace {

constexpr std::int64_t kExportRowGroup = 64 << 10;
constexpr int kExportZstdLevel = 3;

/// Arrow's way out, into a file of ours.
class ExportStream final : public arrow::io::OutputStream {
 public:
  explicit ExportStream(ExportFile* file) : file_(file) {}
  arrow::Status Write(const void* data, std::int64_t size) override {
    const Status status =
        file_->Append({static_cast<const char*>(data), static_cast<std::size_t>(size)});
    if (!status.ok()) return arrow::Status::IOError(status.message());
    at_ += size;
    return arrow::Status::OK();
  }
  arrow::Result<std::int64_t> Tell() const override { return at_; }
  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }

 private:
  ExportFile* const file_;
  std::int64_t at_ = 0;
  bool closed_ = false;
};

Status ArrowFailed(const std::filesystem::path& path, const arrow::Status& status) {
  std::string text = status.ToStringWithoutContextLines();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return {Code::kIo, fmt::format("cannot write {}: {}", path.string(), text)};
}

arrow::Result<std::shared_ptr<arrow::RecordBatch>> WithWriter(const std::string& writer,
                                                              const format::Rows& rows,
                                                              format::TableId table) {
  ARROW_ASSIGN_OR_RAISE(auto batch, store::RowsToArrow(rows, table));
  ARROW_ASSIGN_OR_RAISE(auto names,
                        arrow::MakeArrayFromScalar(arrow::StringScalar(writer), batch->num_rows()));
  return batch->AddColumn(0, arrow::field("writer", arrow::utf8(), false), names);
}

Result<TableExportReport> WriteParquet(const std::filesystem::path& run, format::TableId table,
                                       const std::filesystem::path& path) {
  TELLTALE_ASSIGN_OR_RETURN(const auto reader, store::RunReader::Open(run));
  TELLTALE_ASSIGN_OR_RETURN(const auto file, ExportFile::Create(path, false));
  const auto schema =
      store::ArrowSchemaOf(table)->AddField(0, arrow::field("writer", arrow::utf8(), false));
  if (!schema.ok()) return ArrowFailed(path, schema.status());
  const auto properties = parquet::WriterProperties::Builder()
                              .compression(arrow::Compression::ZSTD)
                              ->compression_level(kExportZstdLevel)
                              ->max_row_group_length(kExportRowGroup)
                              ->created_by("telltale")
                              ->build();
  // So that readers get back the very types.
  const auto as_arrow = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  auto writer = parquet::arrow::FileWriter::Open(**schema, arrow::default_memory_pool(),
                                                 std::make_shared<ExportStream>(file.get()),
                                                 properties, as_arrow);
  if (!writer.ok()) return ArrowFailed(path, writer.status());
  TableExportReport report;
  arrow::Status status;
  TELLTALE_RETURN_IF_ERROR(reader->Scan(
      store::MaskOf(table),
      [&](const std::string& name, const format::Rows& rows) {
        const auto batch = WithWriter(name, rows, table);
        status = batch.ok() ? (*writer)->WriteRecordBatch(**batch) : batch.status();
        if (batch.ok()) report.rows += static_cast<std::uint64_t>((*batch)->num_rows());
        return status.ok();
      },
      &report.salvage));
  if (status.ok()) status = (*writer)->Close();
  if (!status.ok()) return ArrowFailed(path, status);
  TELLTALE_RETURN_IF_ERROR(file->Commit());
  return report;
}

}  // namespace

Result<TableExportReport> ExportParquet(const std::filesystem::path& run, const std::string& table,
                                        const std::filesystem::path& path) {
  TELLTALE_ASSIGN_OR_RETURN(const query::Table known, query::Table::Named(table));
  try {
    return WriteParquet(run, known.id(), path);
  } catch (const std::exception& error) {  // Parquet's own code throws.
    return {Code::kIo, fmt::format("cannot write {}: {}", path.string(), error.what())};
  }
}

Result<TableExportReport> ExportCsv(const std::filesystem::path& run, const std::string& table,
                                    ExportFile* file) {
  TableExportReport report;
  Status failed;
  query::Query query;
  query.table = table;
  TELLTALE_RETURN_IF_ERROR(query::RunQuery(
      run, query,
      [&](std::string_view piece) {
        failed = file->Append(piece);
        return failed.ok();
      },
      &report.salvage));
  TELLTALE_RETURN_IF_ERROR(failed);
  TELLTALE_RETURN_IF_ERROR(file->Commit());
  return report;
}

}  // namespace telltale::interchange
