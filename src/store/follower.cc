// SPDX-License-Identifier: Apache-2.0
#include "store/follower.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "base/run_files.h"
#include "format/bounds.h"
#include "store/impossible_row.h"

namespace telltale::store {
namespace {

constexpr std::uint64_t kChunkBytes = 256 << 10;
/// Rows of a segment at a time: of the widest table some 250 KB, which the next level of a core's
/// cache still has when they are looked at.
constexpr std::size_t kPieceRows = 1 << 10;
constexpr std::uint32_t kIdlePollsPerListing = 64;
constexpr std::size_t kMaxNotes = 1000;

struct Looked {
  bool follow = true;    ///< They are the rows from `next` on, none missing and none twice.
  bool in_order = true;  ///< Of ord_ns.
  bool possible = true;  ///< Every number is within its bounds.
};

/// In one pass: rows are wide, and more of them than the nearest cache holds.
template <class Row>
Looked Look(const std::vector<Row>& rows, std::uint64_t next) {
  Looked looked;
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  for (const Row& row : rows) {
    looked.follow = looked.follow && row.seq == next++;
    looked.in_order = looked.in_order && row.ord_ns >= last;
    looked.possible = looked.possible && format::InBounds(row);
    last = row.ord_ns;
  }
  return looked;
}

std::uint64_t& SeqOf(NextSeqs* seqs, format::TableId table) {
  return (*seqs)[static_cast<std::uint8_t>(table)];
}

}  // namespace

void RowChunk::Clear() {
  pool = {};
  format::ForEachTable(rows, [](auto& table) { table.clear(); });
  in_order = 0;
}

WriterFollower::WriterFollower(std::filesystem::path folder, std::string name,
                               std::uint32_t table_mask, bool final, Salvage* salvage)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      table_mask_(table_mask),
      final_(final),
      salvage_(salvage),
      watermark_ns_(std::numeric_limits<std::int64_t>::min()),
      segments_watermark_(watermark_ns_) {}

Result<bool> WriterFollower::Advance(std::unique_ptr<RowChunk>* chunk) {
  if (*chunk != nullptr) {
    spare_ = std::move(*chunk);
    spare_->Clear();
  }
  if (head_ != nullptr) return ReadSegments(chunk);
  if (tail_ == nullptr) return OpenNextUnit(chunk);
  return ReadTail(chunk);
}

std::unique_ptr<RowChunk> WriterFollower::NewChunk() {
  return spare_ != nullptr ? std::move(spare_) : std::make_unique<RowChunk>();
}

Result<bool> WriterFollower::ReadTail(std::unique_ptr<RowChunk>* chunk) {
  auto rows = NewChunk();
  JournalChunk read;
  while (true) {
    const Status status = tail_->Read(tail_final_ || final_, kChunkBytes, &rows->pool, &read);
    NoteDamage();
    if (!status.ok()) return status;
    if (read.records > 0) break;
    if (tail_final_) {
      tail_.reset();
      return OpenNextUnit(chunk);
    }
    if (!HasSuccessor()) return false;
    tail_final_ = true;
  }
  TakeHeader(read);
  watermark_ns_ = std::max(watermark_ns_, read.batch.watermark_ns);
  rows->rows = std::move(read.batch.rows);
  if (Sift(rows.get())) *chunk = std::move(rows);
  if (read.end) {
    watermark_ns_ = std::max(watermark_ns_, read.end->watermark_ns);
    SkipTo(read.end->next_seq);
    ended_ = true;
  }
  return true;
}

bool WriterFollower::HasSuccessor() {
  const std::filesystem::path next = folder_ / JournalFileName(unit_ + 1);
  if (run_files::IsFile(run_files::OfFolder(next))) return true;
  // Journals are deleted in the order of numbers, after their successor began.
  if (tail_->unlinked()) return true;
  if (++idle_polls_ % kIdlePollsPerListing != 0) return false;
  const Result<FolderListing> listing = ListFolder(folder_);
  return listing.ok() && !listing->journals.empty() && listing->journals.back() > unit_;
}

std::optional<std::uint64_t> WriterFollower::JournalOf(const SegmentName& segment) {
  if (const auto found = journal_of_.find(segment.file); found != journal_of_.end()) {
    return found->second;
  }
  const Result<SegmentInfo> info = ReadSegmentInfo(folder_ / segment.file);
  if (!info.ok()) {
    if (noted_.try_emplace(segment.file, true).second) {
      ++salvage_->unreadable_files;
      Note(info.status().message());
    }
    return std::nullopt;
  }
  journal_of_.emplace(segment.file, info->journal);
  return info->journal;
}

bool WriterFollower::MissesRowsBefore(const std::vector<SegmentName>& segments,
                                      const JournalChunk& head) const {
  for (const SegmentName& segment : segments) {
    if (segment.first_seq > next_seq_[static_cast<std::uint8_t>(segment.table)]) return true;
  }
  if (!segments.empty() || !head.header) return false;
  for (std::size_t i = 0; i < next_seq_.size(); ++i) {
    if (head.header->next_seq[i] > next_seq_[i]) return true;
  }
  return false;
}

/// Journals rise with the rows of a table, so of those further on not even the head is read: a long
/// run has hundreds of segments, and its first row waits for none of them.
std::map<std::uint64_t, std::vector<SegmentName>> WriterFollower::NextSegments(
    const std::vector<SegmentName>& segments) {
  std::map<std::uint64_t, std::vector<SegmentName>> found;
  std::optional<format::TableId> table;
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t next = kNone;  // Journal that comes next in this table.
  bool passed = false;
  for (const SegmentName& segment : segments) {
    if (table != segment.table) {
      table = segment.table;
      next = kNone;
      passed = false;
    }
    if (passed || segment.last_seq < next_seq_[static_cast<std::uint8_t>(segment.table)]) continue;
    const auto journal = JournalOf(segment);
    if (!journal) continue;
    passed = next != kNone && *journal > next;
    if (passed) continue;
    if (next == kNone && *journal > unit_) next = *journal;
    found[*journal].push_back(segment);
  }
  return found;
}

Result<bool> WriterFollower::OpenNextUnit(std::unique_ptr<RowChunk>* chunk) {
  // A listing is not atomic: a journal may vanish while its segments appear. So rows that seem to
  // be missing, and a journal that is gone when it is opened, are looked for once more.
  for (int attempt = 0;; ++attempt) {
    const bool last_attempt = attempt == 3;
    const Result<FolderListing> listing = ListFolder(folder_);
    if (!listing.ok()) return false;
    for (const std::string& file : listing->foreign) {
      if (!noted_.try_emplace(file, true).second) continue;
      ++salvage_->foreign_files;
      Note(fmt::format("{}: not ours, left alone", (folder_ / file).string()));
    }
    auto segments = NextSegments(listing->segments);
    std::uint64_t unit = std::numeric_limits<std::uint64_t>::max();
    const auto journal =
        std::upper_bound(listing->journals.begin(), listing->journals.end(), unit_);
    const auto with_segments = segments.upper_bound(unit_);
    if (journal != listing->journals.end()) unit = *journal;
    if (with_segments != segments.end()) unit = std::min(unit, with_segments->first);
    if (unit == std::numeric_limits<std::uint64_t>::max()) return false;

    auto head_rows = std::make_unique<RowChunk>();
    auto head = std::make_unique<JournalChunk>();
    std::unique_ptr<JournalFile> file;
    if (journal != listing->journals.end() && *journal == unit) {
      auto opened = JournalFile::Open(folder_ / JournalFileName(unit));
      if (opened.ok()) {
        file = std::move(opened).value();
        // One record: the header.
        TELLTALE_RETURN_IF_ERROR(file->Read(false, 1, &head_rows->pool, head.get()));
      } else if (!last_attempt) {
        continue;
      } else {
        ++salvage_->unreadable_files;
        Note(opened.status().message());
      }
    }
    if (MissesRowsBefore(segments[unit], *head) && attempt == 0) continue;

    unit_ = unit;
    ended_ = false;
    tail_ = std::move(file);
    tail_final_ = false;
    head_ = std::move(head);
    head_rows_ = std::move(head_rows);
    tail_first_ = {};
    OpenSegments(segments[unit]);
    return ReadSegments(chunk);
  }
}

void WriterFollower::OpenSegments(const std::vector<SegmentName>& segments) {
  segments_watermark_ = watermark_ns_;
  for (const SegmentName& segment : segments) {
    auto opened = SegmentReader::Open(folder_ / segment.file);
    if (!opened.ok()) {
      ++salvage_->unreadable_files;
      Note(opened.status().message());
      continue;
    }
    const SegmentInfo& info = (*opened)->info();
    segments_watermark_ = std::max(segments_watermark_, info.watermark_after_ns);
    if ((table_mask_ & MaskOf(segment.table)) != 0) {  // Sift counts.
      segments_.push_back(std::move(opened).value());
      continue;
    }
    std::uint64_t& next = SeqOf(&next_seq_, segment.table);
    if (segment.first_seq > next) salvage_->Missing(segment.first_seq - next);
    const std::uint64_t range = segment.last_seq - segment.first_seq + 1;
    if (info.rows < range) salvage_->Missing(range - info.rows);
    next = std::max(next, segment.last_seq + 1);
  }
}

std::int64_t WriterFollower::LeastOfSegments() const {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto& segment : segments_) least = std::min(least, segment->least_ord_ns());
  return least;
}

Result<bool> WriterFollower::ReadSegments(std::unique_ptr<RowChunk>* chunk) {
  std::erase_if(segments_, [](const auto& segment) { return segment->at_end(); });
  if (segments_.empty()) return FinishOpening(chunk);
  SegmentReader* const next =
      std::min_element(segments_.begin(), segments_.end(), [](const auto& a, const auto& b) {
        return a->least_ord_ns() < b->least_ord_ns();
      })->get();
  auto rows = NewChunk();
  if (const Status read = next->Read(kPieceRows, &rows->pool, &rows->rows); !read.ok()) {
    // What its journal still has of it comes from there.
    ++salvage_->unreadable_files;
    Note(read.message());
  }
  // What is in the journal alone may be of any moment since it began.
  if (tail_ == nullptr) {
    watermark_ns_ = std::max(watermark_ns_, std::min(LeastOfSegments(), segments_watermark_));
  }
  if (Sift(rows.get())) *chunk = std::move(rows);
  return true;
}

Result<bool> WriterFollower::FinishOpening(std::unique_ptr<RowChunk>* chunk) {
  const std::unique_ptr<JournalChunk> head = std::move(head_);
  auto rows = std::move(head_rows_);
  if (tail_ == nullptr) watermark_ns_ = std::max(watermark_ns_, segments_watermark_);
  TakeHeader(*head);
  // The head is the header, or the first batch where the header is damaged.
  rows->rows = std::move(head->batch.rows);
  if (head->end) ended_ = true;
  NoteDamage();
  if (Sift(rows.get())) *chunk = std::move(rows);
  return true;
}

void WriterFollower::TakeHeader(const JournalChunk& chunk) {
  if (!chunk.header) return;
  watermark_ns_ = std::max(watermark_ns_, chunk.header->watermark_ns);
  tail_first_ = chunk.header->next_seq;
  SkipTo(chunk.header->next_seq);
}

std::uint64_t WriterFollower::MostSeq(format::TableId table) const {
  const std::uint64_t first = tail_first_[static_cast<std::uint8_t>(table)];
  return tail_ == nullptr ? kMostSeq : MostSeqOfJournal(first, tail_->file_size());
}

void WriterFollower::SkipTo(const NextSeqs& seqs) {
  for (std::size_t i = 0; i < seqs.size(); ++i) {
    if (seqs[i] <= next_seq_[i]) continue;
    salvage_->Missing(seqs[i] - next_seq_[i]);
    Note(fmt::format("{}: rows {} to {} of table {} are missing", folder_.string(), next_seq_[i],
                     seqs[i] - 1, i));
    next_seq_[i] = seqs[i];
  }
}

bool WriterFollower::Sift(RowChunk* chunk) {
  bool left = false;
  format::ForEachTable(chunk->rows, [&](auto& table) {
    using Row = typename std::remove_cvref_t<decltype(table)>::value_type;
    std::uint64_t& next = SeqOf(&next_seq_, Row::kTable);
    const std::uint64_t most = MostSeq(Row::kTable);
    std::uint64_t missing = 0;
    Looked looked = Look(table, next);
    if (!looked.follow) {
      std::erase_if(table, [&](const Row& row) {
        if (row.seq < next) return true;
        if (row.seq > most) return ImpossibleRowLeftOut(row);
        missing += row.seq - next;
        next = row.seq + 1;
        return false;
      });
      looked = Look(table, 0);
    } else if (!table.empty()) {
      next = table.back().seq + 1;
    }
    if (missing > 0) {
      salvage_->Missing(missing);
      Note(fmt::format("{}: {} rows before row {} of table {} are missing", folder_.string(),
                       missing, next, FindTable(Row::kTable)->name));
    }
    if (!looked.possible) {
      LeaveOutImpossible(&table);
      looked = Look(table, 0);
    }
    if ((table_mask_ & MaskOf(Row::kTable)) == 0) table.clear();
    // What is left has rising sequence numbers.
    if (looked.in_order) chunk->in_order |= MaskOf(Row::kTable);
    left = left || !table.empty();
  });
  return left;
}

template <class Row>
void WriterFollower::LeaveOutImpossible(std::vector<Row>* rows) {
  std::erase_if(
      *rows, [&](const Row& row) { return !format::InBounds(row) && ImpossibleRowLeftOut(row); });
}

template <class Row>
bool WriterFollower::ImpossibleRowLeftOut(const Row& row) {
  ++salvage_->impossible_rows;
  Note(ImpossibleRow(folder_, row));
  return true;
}

void WriterFollower::NoteDamage() {
  if (tail_ == nullptr) return;
  for (const Damage& damage : tail_->TakeDamage()) {
    if (damage.torn_tail) {
      ++salvage_->torn_tails;
    } else {
      ++salvage_->damaged_blocks;
    }
    Note(fmt::format("{}: offset {}: {} bytes: {}", tail_->path().string(), damage.offset,
                     damage.bytes, damage.what));
  }
}

void WriterFollower::Note(std::string text) {
  if (salvage_->notes.size() < kMaxNotes) salvage_->notes.push_back(std::move(text));
}

}  // namespace telltale::store
