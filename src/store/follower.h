// SPDX-License-Identifier: Apache-2.0
// Reads the records of one writer in the order of sequence numbers, each once, from segments and
// journals, while the writer goes on appending, rotating, sealing and deleting.
//
// Thread safety: none. Memory: one chunk at a time, and the pages of a row group of each segment of
// one journal.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/string_pool.h"
#include "format/records.gen.h"
#include "store/folder.h"
#include "store/journal_reader.h"
#include "store/reader.h"
#include "store/segment_reader.h"

namespace telltale::store {

/// Rows with the strings they point to.
struct RowChunk {
  StringPool pool;
  format::Rows rows;
  /// Tables (bit = TableId) whose rows are in the order of (ord_ns, seq).
  std::uint32_t in_order = 0;

  /// The memory of its rows stays.
  void Clear();
};

class WriterFollower {
 public:
  /// `salvage` outlives the follower. `final`: the writer is known to be gone, so what its last
  /// journal ends with is damage, not a write in progress.
  WriterFollower(std::filesystem::path folder, std::string name, std::uint32_t table_mask,
                 bool final, Salvage* salvage);

  /// Reads the next piece, if there is one: true when rows, a newer watermark or the end came in.
  /// `chunk` is null where the piece held no rows of the mask. The chunk that it holds before is
  /// no more: its memory takes rows to come. Fails only with kVersion or kIo.
  Result<bool> Advance(std::unique_ptr<RowChunk>* chunk);

  const std::string& name() const { return name_; }
  /// No row to come has a smaller ord_ns.
  std::int64_t watermark_ns() const { return watermark_ns_; }
  /// First sequence number, a table, that was not read yet.
  const NextSeqs& next_seq() const { return next_seq_; }
  /// The writer said that nothing follows, and no later journal says otherwise.
  bool ended() const { return ended_; }

 private:
  /// An empty one, with the memory of one that was handed back where there is one.
  std::unique_ptr<RowChunk> NewChunk();
  Result<bool> ReadTail(std::unique_ptr<RowChunk>* chunk);
  Result<bool> OpenNextUnit(std::unique_ptr<RowChunk>* chunk);
  bool HasSuccessor();
  /// Segments that come next in their table, by journal.
  std::map<std::uint64_t, std::vector<SegmentName>> NextSegments(
      const std::vector<SegmentName>& segments);
  bool MissesRowsBefore(const std::vector<SegmentName>& segments, const JournalChunk& head) const;
  void OpenSegments(const std::vector<SegmentName>& segments);
  /// A piece of the segment whose rows come next, or what the unit's journal began with.
  Result<bool> ReadSegments(std::unique_ptr<RowChunk>* chunk);
  /// Nothing comes of the segments before this.
  std::int64_t LeastOfSegments() const;
  Result<bool> FinishOpening(std::unique_ptr<RowChunk>* chunk);
  void TakeHeader(const JournalChunk& chunk);
  /// What a row that is read now can have.
  std::uint64_t MostSeq(format::TableId table) const;
  void SkipTo(const NextSeqs& seqs);
  /// Drops rows that were delivered before and those that cannot be, counts gaps, clears what the
  /// mask leaves out, looks which are in order; true where rows are left.
  bool Sift(RowChunk* chunk);
  /// Drops and counts rows with numbers out of bounds.
  template <class Row>
  void LeaveOutImpossible(std::vector<Row>* rows);
  /// Counts one. Returns true.
  template <class Row>
  bool ImpossibleRowLeftOut(const Row& row);
  std::optional<std::uint64_t> JournalOf(const SegmentName& segment);
  void NoteDamage();
  void Note(std::string text);

  const std::filesystem::path folder_;
  const std::string name_;
  const std::uint32_t table_mask_;
  const bool final_;
  Salvage* const salvage_;

  std::unique_ptr<RowChunk> spare_;  ///< Handed back; null: none.
  NextSeqs next_seq_ = FirstSeqs();
  std::int64_t watermark_ns_;
  bool ended_ = false;
  std::uint64_t unit_ = 0;  ///< Number of the journal being read, or read last.
  /// What is to come of the unit's segments, and the journal's head, which comes behind them.
  std::vector<std::unique_ptr<SegmentReader>> segments_;
  std::int64_t segments_watermark_;  ///< When the unit's journal ended.
  std::unique_ptr<RowChunk> head_rows_;
  std::unique_ptr<JournalChunk> head_;
  std::unique_ptr<JournalFile> tail_;
  NextSeqs tail_first_{};    ///< As the tail's header says; zeros before it was taken.
  bool tail_final_ = false;  ///< A successor was seen: the tail does not grow any more.
  std::uint32_t idle_polls_ = 0;
  std::map<std::string, std::uint64_t> journal_of_;  ///< Segment file to the journal it came from.
  std::map<std::string, bool> noted_;                ///< Files that a note was made of.
};

}  // namespace telltale::store
