// SPDX-License-Identifier: Apache-2.0
#include "store/bulk_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/run_files.h"
#include "base/unique_fd.h"
#include "store/folder.h"
#include "store/journal_writer.h"
#include "store/segment.h"

namespace telltale::store {

Result<std::unique_ptr<BulkWriter>> BulkWriter::Create(std::filesystem::path folder,
                                                       std::string name) {
  if (const int error = run_files::MakeFolder(run_files::OfRun(folder)); error != 0) {
    return {Code::kIo,
            fmt::format("cannot create {}: {}", folder.string(), run_files::WhyNot(error))};
  }
  // By it a folder is known as a writer's.
  const std::filesystem::path lock = folder / kLockName;
  const UniqueFd fd = run_files::OpenToWrite(run_files::OfFolder(lock), run_files::Writing::kKept);
  if (!fd) {
    return {Code::kIo,
            fmt::format("cannot create {}: {}", lock.string(), run_files::WhyNot(errno))};
  }
  return std::unique_ptr<BulkWriter>(new BulkWriter(std::move(folder), std::move(name)));
}

SlicePlace BulkWriter::Place(std::uint64_t rows, format::TableId table) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& seq = next_seq_[static_cast<std::uint8_t>(table)];
  SlicePlace place{name_, next_journal_++, seq};
  seq += rows;
  return place;
}

void BulkWriter::Took(SealedRecord sealed) {
  const std::lock_guard lock(mutex_);
  sealed_.push_back(std::move(sealed));
}

Status BulkWriter::SealUnit(format::Rows* rows, std::int64_t watermark_ns) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t journal = next_journal_++;
  Status status;
  std::vector<SealedRecord> records;
  format::ForEachTable(*rows, [&](auto& table) {
    using Row = typename std::remove_cvref_t<decltype(table)>::value_type;
    if (table.empty() || !status.ok()) return;
    std::uint64_t& next = next_seq_[static_cast<std::uint8_t>(Row::kTable)];
    const std::uint64_t first = next;
    for (Row& row : table) row.seq = next++;
    SegmentInfo info{.writer = name_,
                     .table = Row::kTable,
                     .journal = journal,
                     .first_seq = first,
                     .last_seq = next - 1,
                     .watermark_after_ns = watermark_ns};
    const std::string file = SegmentFileName(info.table, info.first_seq, info.last_seq);
    status = WriteSegment(folder_ / file, *rows, &info);
    Result<FileDigest> digest = FileDigest{};
    if (status.ok()) {
      digest = DigestFile(folder_ / file);
      status = digest.status();
    }
    if (!status.ok()) return;
    records.push_back({.table = static_cast<std::uint8_t>(info.table),
                       .journal = journal,
                       .first_seq = info.first_seq,
                       .last_seq = info.last_seq,
                       .rows = info.rows,
                       .file = file,
                       .bytes = digest->bytes,
                       .digest = digest->digest,
                       .watermark_ns = watermark_ns});
  });
  for (SealedRecord& record : records) {
    record.segments_of_journal = static_cast<std::uint8_t>(records.size());
    sealed_.push_back(std::move(record));
  }
  return status;
}

Status BulkWriter::Close(format::Rows* rows, std::int64_t watermark_ns) {
  TELLTALE_RETURN_IF_ERROR(SealUnit(rows, watermark_ns));
  const std::lock_guard lock(mutex_);
  // Threads end in any order; the file does not tell.
  std::sort(sealed_.begin(), sealed_.end(), [](const SealedRecord& a, const SealedRecord& b) {
    return std::pair(a.journal, a.table) < std::pair(b.journal, b.table);
  });
  std::vector<std::string> journal;
  journal.push_back(Encode(JournalHeader{.writer = name_,
                                         .number = next_journal_,
                                         .created_ns = watermark_ns,
                                         .watermark_ns = watermark_ns,
                                         .next_seq = next_seq_}));
  for (const SealedRecord& sealed : sealed_) journal.push_back(Encode(sealed));
  journal.push_back(Encode(
      EndRecord{.watermark_ns = watermark_ns, .ended_ns = watermark_ns, .next_seq = next_seq_}));
  bool no_space = false;
  return JournalWriter::Create(folder_ / JournalFileName(next_journal_), journal, &no_space)
      .status();
}

}  // namespace telltale::store
