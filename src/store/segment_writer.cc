// SPDX-License-Identifier: Apache-2.0
#include "store/segment_writer.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/util/compression.h>
#include <fmt/core.h>
#include <parquet/arrow/writer.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/run_files.h"
#include "base/unique_fd.h"
#include "store/group_columns.h"
#include "store/segment_keys.h"

namespace telltale::store {
namespace {

constexpr std::size_t kRowGroupRows = 128 << 10;
constexpr int kZstdLevel = 3;
/// Columns that count upwards: as differences they are small, and read ten times as fast.
constexpr const char* kCounting[] = {"seq", "ord_ns", "time_ns", "step"};

/// Columns of which hardly two values are the same: a dictionary of them is as long as they are.
constexpr const char* kMeasured[] = {"min", "max", "mean", "std", "l1", "l2"};
/// What of a measured column is tried, in pieces from all over it; a shorter column is compressed
/// untried.
constexpr std::int64_t kSampleBytes = 32 << 10;
constexpr std::int64_t kSamplePieces = 8;
/// A column that keeps more than this share of its length is not compressed: unpacking random
/// digits took an eighth of a replay.
constexpr double kLeastGain = 0.85;

/// Whether zstd makes the column shorter by enough.
bool WorthCompressing(const arrow::Array& column) {
  const auto* doubles = dynamic_cast<const arrow::DoubleArray*>(&column);
  const std::int64_t bytes = column.length() * std::int64_t{sizeof(double)};
  if (doubles == nullptr || bytes < kSampleBytes) return true;
  auto codec = arrow::util::Codec::Create(arrow::Compression::ZSTD, 1);
  if (!codec.ok()) return true;
  const auto* values = reinterpret_cast<const std::uint8_t*>(doubles->raw_values());
  std::vector<std::uint8_t> sample(kSampleBytes);
  constexpr std::int64_t kPiece = kSampleBytes / kSamplePieces;
  for (std::int64_t i = 0; i < kSamplePieces; ++i) {
    const std::int64_t from = (bytes - kPiece) * i / (kSamplePieces - 1) & ~std::int64_t{7};
    std::memcpy(sample.data() + i * kPiece, values + from, kPiece);
  }
  std::vector<std::uint8_t> out(
      static_cast<std::size_t>((*codec)->MaxCompressedLen(kSampleBytes, sample.data())));
  const auto size = (*codec)->Compress(kSampleBytes, sample.data(),
                                       static_cast<std::int64_t>(out.size()), out.data());
  return !size.ok() || static_cast<double>(*size) < kLeastGain * kSampleBytes;
}

/// For the rest of the file by its first row group.
arrow::Result<std::shared_ptr<parquet::WriterProperties>> PropertiesFor(const GroupColumns& group) {
  parquet::WriterProperties::Builder properties;
  properties.compression(arrow::Compression::ZSTD)
      ->compression_level(kZstdLevel)
      ->created_by("telltale")
      ->enable_page_checksum();
  for (const char* const column : kCounting) {
    if (group.schema()->GetFieldIndex(column) < 0) continue;
    properties.disable_dictionary(column)->encoding(column, parquet::Encoding::DELTA_BINARY_PACKED);
  }
  for (const char* const column : kMeasured) {
    const int at = group.schema()->GetFieldIndex(column);
    if (at < 0) continue;
    properties.disable_dictionary(column);
    ARROW_ASSIGN_OR_RAISE(const auto values, group.Column(at));
    if (!WorthCompressing(*values)) {
      properties.compression(column, arrow::Compression::UNCOMPRESSED)
          ->compression_level(column, arrow::util::Codec::UseDefaultCompressionLevel());
    }
  }
  return properties.build();
}

}  // namespace

class SegmentWriter::Impl {
 public:
  Impl(std::filesystem::path path, format::TableId table, bool made)
      : path_(std::move(path)), made_(made), group_(table) {}

  Status Append(const format::Rows& rows) {
    return Guarded([&]() -> arrow::Status {
      std::size_t from = 0;
      while (const std::size_t taken = group_.Take(rows, from, kRowGroupRows - group_.rows())) {
        from += taken;
        if (group_.rows() == kRowGroupRows) ARROW_RETURN_NOT_OK(WriteGroup());
      }
      return arrow::Status::OK();
    });
  }

  Status Finish(SegmentInfo* info) {
    return Guarded([&]() -> arrow::Status {
      if (group_.rows() > 0 || !writer_) ARROW_RETURN_NOT_OK(WriteGroup());
      info->rows = rows_;
      ARROW_RETURN_NOT_OK(writer_->AddKeyValueMetadata(SegmentMetadata(*info)));
      ARROW_RETURN_NOT_OK(writer_->Close());
      if (::fsync(file_->file_descriptor()) != 0) {
        return arrow::Status::IOError("cannot sync: ", std::strerror(errno));
      }
      return file_->Close();
    });
  }

 private:
  /// Parquet's own code throws; nothing of that may leave this file.
  template <class F>
  Status Guarded(F&& f) {
    try {
      const arrow::Status status = f();
      if (status.ok()) return {};
      // One line: Arrow's messages may hold several.
      std::string text = status.ToStringWithoutContextLines();
      std::replace(text.begin(), text.end(), '\n', ' ');
      return {status.IsIOError() ? Code::kIo : Code::kUnusable,
              fmt::format("cannot write {}: {}", path_.string(), text)};
    } catch (const std::exception& error) {
      return {Code::kUnusable, fmt::format("cannot write {}: {}", path_.string(), error.what())};
    }
  }

  arrow::Status Open() {
    UniqueFd fd =
        run_files::OpenToWrite(run_files::OfFolder(path_),
                               made_ ? run_files::Writing::kEmptied : run_files::Writing::kFresh);
    if (!fd) return arrow::Status::IOError("cannot open it: ", run_files::WhyNot(errno));
    ARROW_ASSIGN_OR_RAISE(file_, arrow::io::FileOutputStream::Open(fd.get()));
    fd.release();  // The stream closes it.
    ARROW_ASSIGN_OR_RAISE(auto properties, PropertiesFor(group_));
    return parquet::arrow::FileWriter::Open(*group_.schema(), arrow::default_memory_pool(), file_,
                                            std::move(properties))
        .Value(&writer_);
  }

  /// What was taken so far, as a row group.
  arrow::Status WriteGroup() {
    if (!writer_) ARROW_RETURN_NOT_OK(Open());
    if (group_.rows() == 0) return arrow::Status::OK();
    ARROW_RETURN_NOT_OK(writer_->NewRowGroup());
    for (int i = 0; i < group_.schema()->num_fields(); ++i) {
      ARROW_ASSIGN_OR_RAISE(const auto column, group_.Column(i));
      ARROW_RETURN_NOT_OK(writer_->WriteColumnChunk(*column));
    }
    rows_ += group_.rows();
    group_.Clear();
    return arrow::Status::OK();
  }

  const std::filesystem::path path_;
  const bool made_;
  GroupColumns group_;
  std::shared_ptr<arrow::io::FileOutputStream> file_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
  std::uint64_t rows_ = 0;
};

SegmentWriter::SegmentWriter(std::filesystem::path path, format::TableId table, bool made)
    : impl_(std::make_unique<Impl>(std::move(path), table, made)) {}

SegmentWriter::~SegmentWriter() = default;

Status SegmentWriter::Append(const format::Rows& rows) { return impl_->Append(rows); }

Status SegmentWriter::Finish(SegmentInfo* info) { return impl_->Finish(info); }

}  // namespace telltale::store
