// SPDX-License-Identifier: Apache-2.0
#include "store/segment.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/util/compression.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/unique_fd.h"
#include "store/arrow_rows.h"
#include "store/folder.h"
#include "store/parquet_column.h"
#include "store/segment_keys.h"

namespace telltale::store {
namespace {

constexpr int kSegmentFormat = 1;
constexpr std::int64_t kRowGroupRows = 128 << 10;
constexpr int kZstdLevel = 3;
/// Columns that count upwards: as differences they are small, and read ten times as fast.
constexpr const char* kCounting[] = {"seq", "ord_ns", "time_ns", "step"};

/// Columns of which hardly two values are the same: a dictionary of them is as long as they are.
constexpr const char* kMeasured[] = {"min", "max", "mean", "std", "l1", "l2"};
/// What of a measured column is tried, from its middle; a shorter column is compressed untried.
constexpr std::int64_t kSampleBytes = 32 << 10;
/// A column that keeps more than this share of its length is not compressed: unpacking random digits
/// took an eighth of a replay.
constexpr double kLeastGain = 0.85;

constexpr const char* kFormatKey = "telltale.format";
constexpr const char* kWriterKey = "telltale.writer";
constexpr const char* kTableKey = "telltale.table";
constexpr const char* kJournalKey = "telltale.journal";
constexpr const char* kFirstSeqKey = "telltale.first_seq";
constexpr const char* kLastSeqKey = "telltale.last_seq";
constexpr const char* kWatermarkBeforeKey = "telltale.watermark_before_ns";
constexpr const char* kWatermarkAfterKey = "telltale.watermark_after_ns";

Status FromArrow(const std::filesystem::path& path, const char* what, const arrow::Status& status) {
  // One line: Arrow's messages may hold several.
  std::string text = status.ToStringWithoutContextLines();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return {status.IsIOError() ? Code::kIo : Code::kUnusable,
          fmt::format("cannot {} {}: {}", what, path.string(), text)};
}

template <class T>
bool Parse(const arrow::KeyValueMetadata& metadata, const char* key, T* value) {
  const arrow::Result<std::string> text = metadata.Get(key);
  if (!text.ok()) return false;
  const char* const end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, *value);
  return error == std::errc() && at == end;
}

/// Parquet's own code throws; nothing of that may leave this file.
template <class F>
auto Guard(const std::filesystem::path& path, const char* what, F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& error) {
    return {Code::kUnusable, fmt::format("cannot {} {}: {}", what, path.string(), error.what())};
  }
}

Status SyncFile(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd && ::fsync(fd.get()) == 0) return {};
  return {Code::kIo, fmt::format("cannot sync {}: {}", path.string(), std::strerror(errno))};
}

}  // namespace

std::shared_ptr<const arrow::KeyValueMetadata> SegmentMetadata(const SegmentInfo& info) {
  return arrow::key_value_metadata(
      {kFormatKey, kWriterKey, kTableKey, kJournalKey, kFirstSeqKey, kLastSeqKey,
       kWatermarkBeforeKey, kWatermarkAfterKey},
      {std::to_string(kSegmentFormat), info.writer, std::string(FindTable(info.table)->name),
       std::to_string(info.journal), std::to_string(info.first_seq), std::to_string(info.last_seq),
       std::to_string(info.watermark_before_ns), std::to_string(info.watermark_after_ns)});
}

Result<SegmentInfo> SegmentInfoOf(const std::filesystem::path& path,
                                  const parquet::FileMetaData& file) {
  SegmentInfo info;
  int format = 0;
  const auto metadata = file.key_value_metadata();
  if (metadata == nullptr || !Parse(*metadata, kFormatKey, &format)) {
    return {Code::kUnusable, fmt::format("{} is no segment of ours: it lacks the key {}",
                                         path.string(), kFormatKey)};
  }
  if (format > kSegmentFormat) {
    return {
        Code::kVersion,
        fmt::format("{} was written by segment format {}, this telltale reads up to {}: install "
                    "a newer telltale",
                    path.string(), format, kSegmentFormat)};
  }
  info.writer = metadata->Get(kWriterKey).ValueOr("");
  const format::TableDesc* table = FindTable(metadata->Get(kTableKey).ValueOr(""));
  if (table == nullptr || !Parse(*metadata, kJournalKey, &info.journal) ||
      !Parse(*metadata, kFirstSeqKey, &info.first_seq) ||
      !Parse(*metadata, kLastSeqKey, &info.last_seq) ||
      !Parse(*metadata, kWatermarkBeforeKey, &info.watermark_before_ns) ||
      !Parse(*metadata, kWatermarkAfterKey, &info.watermark_after_ns)) {
    return {Code::kUnusable, fmt::format("{}: its metadata cannot be read", path.string())};
  }
  info.table = table->id;
  info.rows = static_cast<std::uint64_t>(file.num_rows());
  return info;
}

namespace {

/// Whether zstd makes the column shorter by enough.
bool WorthCompressing(const arrow::Array& column) {
  const auto* doubles = dynamic_cast<const arrow::DoubleArray*>(&column);
  const std::int64_t bytes = column.length() * std::int64_t{sizeof(double)};
  if (doubles == nullptr || bytes < kSampleBytes) return true;
  auto codec = arrow::util::Codec::Create(arrow::Compression::ZSTD, 1);
  if (!codec.ok()) return true;
  const std::int64_t first = (bytes - kSampleBytes) / 2 / std::int64_t{sizeof(double)};
  const auto* sample = reinterpret_cast<const std::uint8_t*>(doubles->raw_values() + first);
  std::vector<std::uint8_t> out(
      static_cast<std::size_t>((*codec)->MaxCompressedLen(kSampleBytes, sample)));
  const auto size = (*codec)->Compress(kSampleBytes, sample,
                                       static_cast<std::int64_t>(out.size()), out.data());
  return !size.ok() || static_cast<double>(*size) < kLeastGain * kSampleBytes;
}

}  // namespace

Status WriteSegment(const std::filesystem::path& path, const format::Rows& rows,
                    SegmentInfo* info) {
  return Guard(path, "write", [&]() -> Status {
    auto batch = RowsToArrow(rows, info->table);
    if (!batch.ok()) return FromArrow(path, "write", batch.status());
    info->rows = static_cast<std::uint64_t>((*batch)->num_rows());
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) {
      return {Code::kIo, fmt::format("cannot create {}: {}", path.string(), std::strerror(errno))};
    }
    auto file = arrow::io::FileOutputStream::Open(fd.get());
    if (!file.ok()) return FromArrow(path, "write", file.status());
    fd.release();  // The stream closes it.
    parquet::WriterProperties::Builder properties;
    properties.compression(arrow::Compression::ZSTD)
        ->compression_level(kZstdLevel)
        ->created_by("telltale")
        ->enable_page_checksum();
    for (const char* const column : kCounting) {
      if ((*batch)->schema()->GetFieldIndex(column) < 0) continue;
      properties.disable_dictionary(column)->encoding(column,
                                                      parquet::Encoding::DELTA_BINARY_PACKED);
    }
    for (const char* const column : kMeasured) {
      const auto values = (*batch)->GetColumnByName(column);
      if (!values) continue;
      properties.disable_dictionary(column);
      if (!WorthCompressing(*values)) {
        properties.compression(column, arrow::Compression::UNCOMPRESSED)
            ->compression_level(column, arrow::util::Codec::UseDefaultCompressionLevel());
      }
    }
    auto writer = parquet::arrow::FileWriter::Open(
        *(*batch)->schema(), arrow::default_memory_pool(), *file, properties.build());
    if (!writer.ok()) return FromArrow(path, "write", writer.status());
    const auto table = arrow::Table::FromRecordBatches({*batch});
    if (!table.ok()) return FromArrow(path, "write", table.status());
    arrow::Status status = (*writer)->AddKeyValueMetadata(SegmentMetadata(*info));
    if (status.ok()) status = (*writer)->WriteTable(**table, kRowGroupRows);
    if (status.ok()) status = (*writer)->Close();
    if (status.ok()) status = (*file)->Close();
    if (!status.ok()) return FromArrow(path, "write", status);
    return SyncFile(path);
  });
}

Result<SegmentInfo> ReadSegmentInfo(const std::filesystem::path& path) {
  return Guard(path, "read", [&]() -> Result<SegmentInfo> {
    const auto reader =
        parquet::ParquetFileReader::OpenFile(path.string(), false, CheckedReading());
    return SegmentInfoOf(path, *reader->metadata());
  });
}

Result<SegmentInfo> ReadSegment(const std::filesystem::path& path, StringPool* pool,
                                format::Rows* out) {
  return Guard(path, "read", [&]() -> Result<SegmentInfo> {
    auto parquet = parquet::ParquetFileReader::OpenFile(path.string(), false, CheckedReading());
    TELLTALE_ASSIGN_OR_RETURN(SegmentInfo info, SegmentInfoOf(path, *parquet->metadata()));
    // No thread pools of Arrow's: a reader may fork, and must not cost more than it seems to.
    parquet::ArrowReaderProperties properties(/*use_threads=*/false);
    properties.set_pre_buffer(false);
    // Texts repeat: as indices of a dictionary each is looked at once a row group.
    const parquet::SchemaDescriptor& schema = *parquet->metadata()->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      if (schema.Column(i)->physical_type() == parquet::Type::BYTE_ARRAY) {
        properties.set_read_dictionary(i, true);
      }
    }
    std::unique_ptr<parquet::arrow::FileReader> reader;
    arrow::Status status = parquet::arrow::FileReader::Make(
        arrow::default_memory_pool(), std::move(parquet), properties, &reader);
    if (!status.ok()) return FromArrow(path, "read", status);
    std::shared_ptr<arrow::Table> table;
    status = reader->ReadTable(&table);
    if (!status.ok()) return FromArrow(path, "read", status);
    arrow::TableBatchReader batches(*table);
    std::shared_ptr<arrow::RecordBatch> batch;
    while (true) {
      status = batches.ReadNext(&batch);
      if (!status.ok()) return FromArrow(path, "read", status);
      if (batch == nullptr) return info;
      status = ArrowToRows(*batch, info.table, pool, out);
      if (!status.ok()) return FromArrow(path, "read", status);
    }
  });
}

Result<FileDigest> DigestFile(const std::filesystem::path& path) {
  return DigestFile(path, 0, ~0ULL);
}

Result<FileDigest> DigestFile(const std::filesystem::path& path, std::uint64_t offset,
                              std::uint64_t length) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    return {errno == ENOENT ? Code::kUnusable : Code::kIo,
            fmt::format("cannot open {}: {}", path.string(), std::strerror(errno))};
  }
  return DigestFile(fd.get(), path, offset, length);
}

Result<FileDigest> DigestFile(int fd, const std::filesystem::path& path, std::uint64_t offset,
                              std::uint64_t length) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  FileDigest out;
  std::array<char, 65536> buffer;
  while (out.bytes < length) {
    const std::size_t want = std::min<std::uint64_t>(buffer.size(), length - out.bytes);
    const ssize_t n = ::pread(fd, buffer.data(), want, static_cast<off_t>(offset + out.bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return {Code::kIo, fmt::format("cannot read {}: {}", path.string(), std::strerror(errno))};
    }
    if (n == 0) break;
    XXH3_128bits_update(&state, buffer.data(), static_cast<std::size_t>(n));
    out.bytes += static_cast<std::uint64_t>(n);
  }
  if (length != ~0ULL && out.bytes < length) {
    return {Code::kPartial,
            fmt::format("{} ends before offset {}", path.string(), offset + length)};
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
  std::memcpy(out.digest.data(), canonical.digest, sizeof canonical.digest);
  return out;
}

std::string ToHex(const std::array<std::uint8_t, 16>& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace telltale::store
