// SPDX-License-Identifier: Apache-2.0
#include "store/bulk_columns.h"

#include <arrow/io/file.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <parquet/arrow/writer.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/run_files.h"
#include "base/unique_fd.h"
#include "store/folder.h"
#include "store/segment_keys.h"

namespace telltale::store {
namespace {

constexpr int kBulkZstdLevel = 1;

arrow::Status WriteBulkFile(const arrow::FieldVector& fields, const arrow::ArrayVector& columns,
                            const std::shared_ptr<parquet::WriterProperties>& properties,
                            const SegmentInfo& info, int fd) {
  ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::FileOutputStream::Open(fd));
  ARROW_ASSIGN_OR_RAISE(
      auto writer, parquet::arrow::FileWriter::Open(
                       *arrow::schema(fields), arrow::default_memory_pool(), file, properties));
  ARROW_RETURN_NOT_OK(writer->AddKeyValueMetadata(SegmentMetadata(info)));
  ARROW_RETURN_NOT_OK(writer->NewRowGroup());
  for (const auto& column : columns) ARROW_RETURN_NOT_OK(writer->WriteColumnChunk(*column));
  ARROW_RETURN_NOT_OK(writer->Close());
  // The disk begins now, by the many threads that write, and not when the one that syncs comes to
  // it. Where it cannot, nothing is lost.
  (void)::sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
  return file->Close();
}

}  // namespace

ArrowColumn WordsColumn(const std::vector<std::uint32_t>& codes,
                        const std::vector<std::string_view>& words) {
  // A dictionary that has a word twice is read wrongly: Parquet's writer numbers them anew.
  std::unordered_map<std::string_view, std::int32_t> known;
  std::vector<std::int32_t> number_of(words.size());
  arrow::StringBuilder texts;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto [at, is_new] = known.try_emplace(words[i], static_cast<std::int32_t>(known.size()));
    if (is_new) ARROW_RETURN_NOT_OK(texts.Append(words[i]));
    number_of[i] = at->second;
  }
  std::shared_ptr<arrow::Array> dictionary;
  ARROW_RETURN_NOT_OK(texts.Finish(&dictionary));
  std::shared_ptr<arrow::Buffer> numbers = arrow::Buffer::Wrap(codes.data(), codes.size());
  if (known.size() < words.size()) {
    ARROW_ASSIGN_OR_RAISE(
        numbers,
        arrow::AllocateBuffer(static_cast<std::int64_t>(codes.size() * sizeof(std::int32_t))));
    auto* const to = numbers->mutable_data_as<std::int32_t>();
    std::transform(codes.begin(), codes.end(), to,
                   [&](std::uint32_t code) { return number_of[code]; });
  }
  const auto indices = arrow::MakeArray(
      arrow::ArrayData::Make(arrow::int32(), static_cast<std::int64_t>(codes.size()),
                             {nullptr, std::move(numbers)}, /*null_count=*/0));
  return arrow::DictionaryArray::FromArrays(arrow::dictionary(arrow::int32(), arrow::utf8()),
                                            indices, dictionary);
}

parquet::WriterProperties::Builder BulkProperties(std::span<const std::string_view> deltas) {
  parquet::WriterProperties::Builder properties;
  properties.compression(arrow::Compression::ZSTD)
      ->compression_level(kBulkZstdLevel)
      ->created_by("telltale")
      ->enable_page_checksum();
  for (const std::string_view delta : deltas) {
    const std::string column(delta);
    properties.disable_dictionary(column)->encoding(column, parquet::Encoding::DELTA_BINARY_PACKED);
  }
  return properties;
}

Result<SealedRecord> WriteColumns(const std::filesystem::path& folder, const SlicePlace& place,
                                  format::TableId table, std::uint64_t rows,
                                  const arrow::FieldVector& fields,
                                  const arrow::ArrayVector& columns,
                                  const std::shared_ptr<parquet::WriterProperties>& properties) {
  const SegmentInfo info{.writer = place.writer,
                         .table = table,
                         .journal = place.journal,
                         .first_seq = place.first_seq,
                         .last_seq = place.first_seq + rows - 1,
                         .rows = rows};
  const std::string name = SegmentFileName(info.table, info.first_seq, info.last_seq);
  const std::filesystem::path path = folder / name;
  try {
    UniqueFd fd = run_files::OpenToWrite(run_files::OfFolder(path), run_files::Writing::kFresh);
    if (!fd) {
      return {Code::kIo,
              fmt::format("cannot create {}: {}", path.string(), run_files::WhyNot(errno))};
    }
    const arrow::Status status = WriteBulkFile(fields, columns, properties, info, fd.release());
    if (!status.ok()) {
      std::string text = status.ToStringWithoutContextLines();
      std::replace(text.begin(), text.end(), '\n', ' ');
      return {status.IsOutOfMemory() ? Code::kLimit : Code::kIo,
              fmt::format("cannot write {}: {}", path.string(), text)};
    }
  } catch (const std::bad_alloc&) {
    return {Code::kLimit, fmt::format("cannot write {}: out of memory", path.string())};
  } catch (const std::exception& error) {
    return {Code::kIo, fmt::format("cannot write {}: {}", path.string(), error.what())};
  }
  TELLTALE_ASSIGN_OR_RETURN(const FileDigest digest, DigestFile(path));
  return SealedRecord{.table = static_cast<std::uint8_t>(info.table),
                      .journal = place.journal,
                      .segments_of_journal = 1,
                      .first_seq = info.first_seq,
                      .last_seq = info.last_seq,
                      .rows = rows,
                      .file = name,
                      .bytes = digest.bytes,
                      .digest = digest.digest};
}

}  // namespace telltale::store
