// SPDX-License-Identifier: Apache-2.0
#include "store/sealer.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/run_files.h"
#include "base/unique_fd.h"
#include "store/folder.h"
#include "store/journal_reader.h"
#include "store/segment.h"
#include "store/segment_writer.h"

namespace telltale::store {
namespace {

/// So little that its rows are still in the cache when they are put into columns.
constexpr std::uint64_t kSealReadBytes = 128 << 10;

/// The segments of one journal while it is read: each table's, from its first row on.
class JournalSealing {
 public:
  JournalSealing(const std::filesystem::path& folder, const std::string& writer,
                 std::uint64_t number, SealGate* gate)
      : folder_(folder), writer_(writer), number_(number), gate_(gate) {}
  ~JournalSealing() {
    for (const Segment& segment : segments_) {
      if (!segment.temporary.empty()) run_files::Remove(run_files::OfFolder(segment.temporary));
    }
  }
  JournalSealing(const JournalSealing&) = delete;
  JournalSealing& operator=(const JournalSealing&) = delete;

  Status Run() {
    TELLTALE_ASSIGN_OR_RETURN(const std::unique_ptr<JournalFile> file,
                              JournalFile::Open(folder_ / JournalFileName(number_)));
    StringPool pool;
    JournalChunk chunk;
    do {
      chunk.records = 0;
      chunk.batch.positions.clear();
      format::ForEachTable(chunk.batch.rows, [](auto& rows) { rows.clear(); });
      TELLTALE_RETURN_IF_ERROR(file->Read(true, kSealReadBytes, &pool, &chunk));
      TELLTALE_RETURN_IF_ERROR(Append(chunk.batch.rows));
    } while (chunk.records > 0);
    if (chunk.header) watermark_before_ns_ = chunk.header->watermark_ns;
    watermark_after_ns_ = std::max(chunk.batch.watermark_ns, watermark_before_ns_);
    for (Segment& segment : segments_) {
      if (segment.columns) TELLTALE_RETURN_IF_ERROR(Finish(&segment));
    }
    return records_.empty() ? Status() : SyncFolder(folder_);
  }

  std::vector<SealedRecord> TakeRecords() {
    for (SealedRecord& record : records_) {
      record.segments_of_journal = static_cast<std::uint8_t>(records_.size());
    }
    return std::move(records_);
  }

 private:
  struct Segment {
    SegmentInfo info;
    std::filesystem::path temporary;  ///< Empty once it has its name.
    std::unique_ptr<SegmentWriter> columns;
  };

  Status Append(const format::Rows& rows) {
    Status status;
    auto at = segments_.begin();
    format::ForEachTable(rows, [&](const auto& of_table) {
      using Row = typename std::remove_cvref_t<decltype(of_table)>::value_type;
      Segment& segment = *at++;
      if (of_table.empty() || !status.ok()) return;
      if (!segment.columns) status = Begin(Row::kTable, of_table.front().seq, &segment);
      if (!status.ok()) return;
      segment.info.last_seq = of_table.back().seq;
      status = segment.columns->Append(rows);
    });
    return status;
  }

  Status Begin(format::TableId table, std::uint64_t first_seq, Segment* segment) {
    if (gate_ != nullptr && !gate_->Enter()) {
      return {Code::kRunning, fmt::format("{} is finished already", folder_.string())};
    }
    segment->info.table = table;
    segment->info.first_seq = first_seq;
    // A thread that was left behind may still be at the same journal: names of one's own. The bytes
    // are the same, so it does not matter whose rename comes last. The last row is not known yet.
    segment->temporary = folder_ / fmt::format("{}-{:012}.parquet.{}{}", FindTable(table)->name,
                                               first_seq, ::gettid(), kTemporarySuffix);
    const UniqueFd made =
        run_files::OpenToWrite(run_files::OfFolder(segment->temporary), run_files::Writing::kFresh);
    const int error = errno;
    if (gate_ != nullptr) gate_->Leave();
    if (!made) {
      return {Code::kIo, fmt::format("cannot create {}: {}", segment->temporary.string(),
                                     run_files::WhyNot(error))};
    }
    segment->columns = std::make_unique<SegmentWriter>(segment->temporary, table, true);
    return {};
  }

  Status Finish(Segment* segment) {
    SegmentInfo& info = segment->info;
    info.writer = writer_;
    info.journal = number_;
    info.watermark_before_ns = watermark_before_ns_;
    info.watermark_after_ns = watermark_after_ns_;
    TELLTALE_RETURN_IF_ERROR(segment->columns->Finish(&info));
    segment->columns.reset();
    TELLTALE_ASSIGN_OR_RETURN(const FileDigest digest, DigestFile(segment->temporary));
    const std::string file = SegmentFileName(info.table, info.first_seq, info.last_seq);
    const std::filesystem::path path = folder_ / file;
    if (const int error =
            run_files::Rename(run_files::OfFolder(segment->temporary), run_files::OfFolder(path));
        error != 0) {
      return {Code::kIo,
              fmt::format("cannot name {}: {}", path.string(), run_files::WhyNot(error))};
    }
    segment->temporary.clear();
    records_.push_back({.table = static_cast<std::uint8_t>(info.table),
                        .journal = number_,
                        .first_seq = info.first_seq,
                        .last_seq = info.last_seq,
                        .rows = info.rows,
                        .file = file,
                        .bytes = digest.bytes,
                        .digest = digest.digest,
                        .watermark_ns = watermark_after_ns_});
    return {};
  }

  const std::filesystem::path& folder_;
  const std::string& writer_;
  const std::uint64_t number_;
  SealGate* const gate_;
  std::array<Segment, format::kTables.size()> segments_;
  std::int64_t watermark_before_ns_ = 0;
  std::int64_t watermark_after_ns_ = 0;
  std::vector<SealedRecord> records_;
};

}  // namespace

void SealGate::Close() {
  closed_ = true;
  for (int i = 0; i < 100 && inside_; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Result<std::vector<SealedRecord>> SealJournal(const std::filesystem::path& folder,
                                              const std::string& writer, std::uint64_t number,
                                              SealGate* gate) {
  JournalSealing sealing(folder, writer, number, gate);
  TELLTALE_RETURN_IF_ERROR(sealing.Run());
  return sealing.TakeRecords();
}

}  // namespace telltale::store
