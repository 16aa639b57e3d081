// SPDX-License-Identifier: Apache-2.0
#include "store/segment.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <fmt/core.h>
#include <parquet/arrow/reader.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/run_files.h"
#include "base/unique_fd.h"
#include "format/bounds.h"
#include "store/arrow_rows.h"
#include "store/folder.h"
#include "store/hole_budget.h"
#include "store/parquet_column.h"
#include "store/segment_keys.h"
#include "store/segment_writer.h"

namespace telltale::store {
namespace {

constexpr int kSegmentFormat = 1;

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

}  // namespace

std::shared_ptr<const arrow::KeyValueMetadata> SegmentMetadata(const SegmentInfo& info) {
  return arrow::key_value_metadata(
      {kFormatKey, kWriterKey, kTableKey, kJournalKey, kFirstSeqKey, kLastSeqKey,
       kWatermarkBeforeKey, kWatermarkAfterKey},
      {std::to_string(kSegmentFormat), info.writer, std::string(FindTable(info.table)->name),
       std::to_string(info.journal), std::to_string(info.first_seq), std::to_string(info.last_seq),
       std::to_string(info.watermark_before_ns), std::to_string(info.watermark_after_ns)});
}

namespace {

/// Rows that row groups claim which cannot be: a footer of some KB may claim any number of them,
/// and of a column that is missing or of one value no page is read.
std::optional<std::string> ImpossibleRows(const SegmentInfo& info,
                                          const parquet::FileMetaData& file) {
  std::uint64_t rows = 0;
  for (int i = 0; i < file.num_row_groups(); ++i) {
    const std::int64_t of_group = file.RowGroup(i)->num_rows();
    if (of_group < 0 || of_group > kMaxGroupRows) {
      return fmt::format("a row group of {} rows", of_group);
    }
    rows += static_cast<std::uint64_t>(of_group);
  }
  if (!std::cmp_equal(rows, file.num_rows())) {
    return fmt::format("{} rows, and {} in its row groups", file.num_rows(), rows);
  }
  const std::uint64_t range = info.last_seq - info.first_seq + 1;
  if (rows <= range) return std::nullopt;
  return fmt::format("{} rows, and sequence numbers for {}", rows, range);
}

/// What the name of a segment says, where that is not what its metadata say.
bool IsNamedOtherwise(const std::filesystem::path& path, const SegmentInfo& info) {
  const auto name = ParseSegmentName(path.filename().string());
  return name && (name->table != info.table || name->first_seq != info.first_seq ||
                  name->last_seq != info.last_seq);
}

}  // namespace

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
  if (!format::IsWatermark(info.watermark_before_ns) ||
      !format::IsWatermark(info.watermark_after_ns) || info.first_seq > info.last_seq ||
      !format::kAmountBound.Has(info.last_seq)) {
    return {Code::kUnusable, fmt::format("{}: a number of its metadata cannot be", path.string())};
  }
  info.table = table->id;
  if (IsNamedOtherwise(path, info)) {
    return {Code::kUnusable,
            fmt::format("{}: its name and its metadata say different rows", path.string())};
  }
  if (const auto impossible = ImpossibleRows(info, file)) {
    return {Code::kUnusable, fmt::format("{}: {}: that cannot be", path.string(), *impossible)};
  }
  info.rows = static_cast<std::uint64_t>(file.num_rows());
  return info;
}

Status WriteSegment(const std::filesystem::path& path, const format::Rows& rows,
                    SegmentInfo* info) {
  SegmentWriter writer(path, info->table);
  TELLTALE_RETURN_IF_ERROR(writer.Append(rows));
  return writer.Finish(info);
}

std::unique_ptr<parquet::ParquetFileReader> OpenParquet(const std::filesystem::path& path) {
  UniqueFd fd = run_files::OpenToRead(run_files::OfFolder(path));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    throw parquet::ParquetException("cannot open it: " + run_files::WhyNot(errno));
  }
  // Its footer may ask for any of the bytes that it says, at once.
  if (IsMostlyHole(fd.get(), info)) {
    throw parquet::ParquetException(
        fmt::format("it says that it has {} bytes and takes up {} of the disk", info.st_size,
                    info.st_blocks * 512));
  }
  auto file = arrow::io::ReadableFile::Open(fd.get());
  if (!file.ok()) throw parquet::ParquetException(file.status().ToStringWithoutContextLines());
  fd.release();  // The reader closes it.
  return parquet::ParquetFileReader::Open(*std::move(file), CheckedReading());
}

Result<SegmentInfo> ReadSegmentInfo(const std::filesystem::path& path) {
  return Guard(path, "read", [&]() -> Result<SegmentInfo> {
    const auto reader = OpenParquet(path);
    return SegmentInfoOf(path, *reader->metadata());
  });
}

Result<SegmentInfo> ReadSegment(const std::filesystem::path& path, StringPool* pool,
                                format::Rows* out) {
  return Guard(path, "read", [&]() -> Result<SegmentInfo> {
    auto parquet = OpenParquet(path);
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
  const UniqueFd fd = run_files::OpenToRead(run_files::OfFolder(path));
  if (!fd) {
    return {errno == ENOENT ? Code::kUnusable : Code::kIo,
            fmt::format("cannot open {}: {}", path.string(), run_files::WhyNot(errno))};
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
