// SPDX-License-Identifier: Apache-2.0
#include "store/sealer.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <type_traits>

#include "store/folder.h"
#include "store/journal_reader.h"
#include "store/segment.h"

namespace telltale::store {
namespace {

constexpr std::uint64_t kSealReadBytes = 1 << 20;

struct JournalContent {
  StringPool pool;
  format::Rows rows;
  std::int64_t watermark_before_ns = 0;
  std::int64_t watermark_after_ns = 0;
};

Status ReadJournal(const std::filesystem::path& path, JournalContent* out) {
  TELLTALE_ASSIGN_OR_RETURN(const std::unique_ptr<JournalFile> file, JournalFile::Open(path));
  JournalChunk chunk;
  do {
    chunk.records = 0;
    TELLTALE_RETURN_IF_ERROR(file->Read(true, kSealReadBytes, &out->pool, &chunk));
  } while (chunk.records > 0);
  if (chunk.header) out->watermark_before_ns = chunk.header->watermark_ns;
  out->watermark_after_ns = std::max(chunk.batch.watermark_ns, out->watermark_before_ns);
  out->rows = std::move(chunk.batch.rows);
  return {};
}

}  // namespace

Result<std::vector<SealedRecord>> SealJournal(const std::filesystem::path& folder,
                                              const std::string& writer, std::uint64_t number) {
  JournalContent content;
  TELLTALE_RETURN_IF_ERROR(ReadJournal(folder / JournalFileName(number), &content));
  std::vector<SealedRecord> records;
  Status status;
  format::ForEachTable(content.rows, [&](const auto& rows) {
    using Row = typename std::remove_cvref_t<decltype(rows)>::value_type;
    if (rows.empty() || !status.ok()) return;
    SegmentInfo info{.writer = writer,
                     .table = Row::kTable,
                     .journal = number,
                     .first_seq = rows.front().seq,
                     .last_seq = rows.back().seq,
                     .watermark_before_ns = content.watermark_before_ns,
                     .watermark_after_ns = content.watermark_after_ns};
    const std::string file = SegmentFileName(info.table, info.first_seq, info.last_seq);
    const std::filesystem::path path = folder / file;
    // A thread that was left behind may still be at the same journal: names of one's own. The bytes
    // are the same, so it does not matter whose rename comes last.
    const std::filesystem::path temporary =
        fmt::format("{}.{}{}", path.string(), ::gettid(), kTemporarySuffix);
    status = WriteSegment(temporary, content.rows, &info);
    Result<FileDigest> digest = FileDigest{};
    if (status.ok()) {
      digest = DigestFile(temporary);
      status = digest.status();
    }
    if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
      status = {Code::kIo, fmt::format("cannot name {}: {}", path.string(), std::strerror(errno))};
    }
    if (!status.ok()) {
      ::unlink(temporary.c_str());
      return;
    }
    records.push_back({.table = static_cast<std::uint8_t>(info.table),
                       .journal = number,
                       .first_seq = info.first_seq,
                       .last_seq = info.last_seq,
                       .rows = info.rows,
                       .file = file,
                       .bytes = digest->bytes,
                       .digest = digest->digest,
                       .watermark_ns = content.watermark_after_ns});
  });
  TELLTALE_RETURN_IF_ERROR(std::move(status));
  if (!records.empty()) TELLTALE_RETURN_IF_ERROR(SyncFolder(folder));
  for (SealedRecord& record : records) {
    record.segments_of_journal = static_cast<std::uint8_t>(records.size());
  }
  return records;
}

}  // namespace telltale::store
