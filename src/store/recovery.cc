// SPDX-License-Identifier: Apache-2.0
#include "store/recovery.h"

#include <algorithm>
#include <set>

#include "store/folder.h"
#include "store/journal_reader.h"

namespace telltale::store {
namespace {

constexpr std::uint64_t kRecoveryReadBytes = 1 << 20;

void Raise(std::uint64_t value, std::uint64_t* to) { *to = std::max(*to, value); }

class Recovery {
 public:
  explicit Recovery(const std::filesystem::path& folder) : folder_(folder) {}

  Result<RecoveredFolder> Run() {
    TELLTALE_ASSIGN_OR_RETURN(const FolderListing listing, ListFolder(folder_));
    for (const SegmentName& segment : listing.segments) {
      Raise(segment.last_seq + 1, &out_.next_seq[static_cast<std::uint8_t>(segment.table)]);
      files_.insert(segment.file);
    }
    for (const std::uint64_t number : listing.journals) {
      TELLTALE_RETURN_IF_ERROR(ReadJournal(number));
    }
    for (const SealedRecord& sealed : out_.sealed) {
      Raise(sealed.journal + 1, &out_.next_number);
      out_.watermark_ns = std::max(out_.watermark_ns, sealed.watermark_ns);
    }
    for (RecoveredJournal& journal : out_.journals) journal.sealed = IsSealed(journal);
    return std::move(out_);
  }

 private:
  Status ReadJournal(std::uint64_t number) {
    Raise(number + 1, &out_.next_number);
    out_.ended = false;
    RecoveredJournal& journal = out_.journals.emplace_back(RecoveredJournal{.number = number});
    auto file = JournalFile::Open(folder_ / JournalFileName(number));
    if (!file.ok()) return file.status();
    while (true) {
      StringPool pool;
      JournalChunk chunk;
      TELLTALE_RETURN_IF_ERROR((*file)->Read(true, kRecoveryReadBytes, &pool, &chunk));
      if (chunk.records == 0) break;
      Take(chunk, &journal);
    }
    for (const Damage& damage : (*file)->TakeDamage()) out_.torn_tails += damage.torn_tail ? 1 : 0;
    return {};
  }

  void Take(const JournalChunk& chunk, RecoveredJournal* journal) {
    if (chunk.header) {
      if (chunk.header->boot_id == BootId()) {
        out_.monotonic_to_run_ns = chunk.header->monotonic_to_run_ns;
      }
      out_.watermark_ns = std::max(out_.watermark_ns, chunk.header->watermark_ns);
      TakeSeqs(chunk.header->next_seq);
    }
    if (chunk.end) {
      out_.ended = true;
      out_.watermark_ns = std::max(out_.watermark_ns, chunk.end->watermark_ns);
      TakeSeqs(chunk.end->next_seq);
    }
    // Every journal repeats the records; the newest word on a file counts.
    for (const SealedRecord& sealed : chunk.sealed) {
      const auto [at, added] = sealed_at_.try_emplace(sealed.file, out_.sealed.size());
      if (added) {
        out_.sealed.push_back(sealed);
      } else {
        out_.sealed[at->second] = sealed;
      }
    }
    out_.watermark_ns = std::max(out_.watermark_ns, chunk.batch.watermark_ns);
    EnterPositions(chunk.batch.positions, &out_.positions);
    format::ForEachTable(chunk.batch.rows, [&](const auto& rows) {
      using Row = typename std::remove_cvref_t<decltype(rows)>::value_type;
      if (rows.empty()) return;
      journal->has_rows = true;
      Raise(rows.back().seq + 1, &out_.next_seq[static_cast<std::uint8_t>(Row::kTable)]);
    });
  }

  void TakeSeqs(const NextSeqs& seqs) {
    for (std::size_t i = 0; i < seqs.size(); ++i) Raise(seqs[i], &out_.next_seq[i]);
  }

  bool IsSealed(const RecoveredJournal& journal) const {
    if (!journal.has_rows) return true;
    int found = 0;
    int wanted = -1;
    for (const SealedRecord& sealed : out_.sealed) {
      if (sealed.journal != journal.number || !files_.contains(sealed.file)) continue;
      ++found;
      wanted = sealed.segments_of_journal;
    }
    return found == wanted;
  }

  const std::filesystem::path& folder_;
  RecoveredFolder out_;
  std::set<std::string> files_;
  std::map<std::string, std::size_t> sealed_at_;  ///< File to index in out_.sealed.
};

}  // namespace

void EnterPositions(const std::vector<format::RingPosition>& batch, RingPositions* positions) {
  for (const format::RingPosition& p : batch) {
    if (p.ring != format::kReleasedRing) {
      (*positions)[{p.producer, p.ring}] = p.position;
      continue;
    }
    positions->erase(positions->lower_bound({p.producer, 0}),
                     positions->upper_bound({p.producer, 0xffff}));
  }
}

Result<RecoveredFolder> RecoverFolder(const std::filesystem::path& folder) {
  return Recovery(folder).Run();
}

}  // namespace telltale::store
