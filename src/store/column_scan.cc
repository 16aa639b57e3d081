// SPDX-License-Identifier: Apache-2.0
#include "store/column_scan.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/string_pool.h"
#include "store/folder.h"
#include "store/impossible_row.h"
#include "store/journal_reader.h"
#include "store/segment_scan.h"

namespace telltale::store {
namespace {

constexpr std::uint64_t kScanChunkBytes = 256 << 10;
constexpr std::size_t kMaxScanNotes = 1000;

/// Sequence numbers that were read, as ranges: those that touch are one, so that the segments of a
/// long run are few of them.
class Coverage {
 public:
  void Add(std::uint64_t first, std::uint64_t last) {
    // The first one that ends at `first` - 1 or behind it, and those that begin at `last` + 1 or
    // before it: sequence numbers begin at 1, and none is the largest there is.
    auto begin = std::lower_bound(ranges_.begin(), ranges_.end(), first,
                                  [](const Range& range, std::uint64_t seq) {
                                    return range.second < seq && range.second + 1 < seq;
                                  });
    auto end = begin;
    for (; end != ranges_.end() && (end->first <= last || end->first - 1 <= last); ++end) {
      first = std::min(first, end->first);
      last = std::max(last, end->second);
    }
    begin = ranges_.erase(begin, end);
    ranges_.insert(begin, {first, last});
  }
  bool Has(std::uint64_t seq) const { return Holds(seq, seq); }
  /// All of [first, last], which may be empty.
  bool Holds(std::uint64_t first, std::uint64_t last) const {
    if (first > last) return true;
    const auto after =
        std::upper_bound(ranges_.begin(), ranges_.end(), first,
                         [](std::uint64_t seq, const Range& range) { return seq < range.first; });
    return after != ranges_.begin() && last <= std::prev(after)->second;
  }

 private:
  using Range = std::pair<std::uint64_t, std::uint64_t>;
  std::vector<Range> ranges_;  ///< Ascending, with gaps between them.
};

struct OpenJournal {
  std::unique_ptr<JournalFile> file;
  StringPool pool;
  JournalChunk head;
};

/// Appends one field to a column of its type.
template <class Value>
void Append(const Value& value, ScanColumn* column) {
  if constexpr (std::is_same_v<Value, std::string_view>) {
    if (column->texts.empty() || column->texts.back() != value) column->texts.push_back(value);
    column->codes.push_back(static_cast<std::uint32_t>(column->texts.size() - 1));
  } else if constexpr (std::is_same_v<Value, double>) {
    column->reals.push_back(value);
  } else {
    column->ints.push_back(static_cast<std::int64_t>(value));
  }
}

/// What a column can hold: u64 as the bits of an i64, so that what is above those is below zero.
format::Bound BoundOfColumn(format::TableId table, std::string_view name) {
  for (const format::ColumnDesc& column : FindTable(table)->columns) {
    if (column.name == name) return {column.least, column.most};
  }
  return {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
}

template <class Value>
void Drop(const std::vector<char>& left_out, std::vector<Value>* values) {
  if (values->empty()) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < left_out.size(); ++i) {
    if (left_out[i] == 0) (*values)[kept++] = (*values)[i];
  }
  values->resize(kept);
}

class WriterScan {
 public:
  WriterScan(std::filesystem::path folder, std::string writer, const ScanRequest& request,
             const ScanVisitor& visit, Salvage* salvage)
      : folder_(std::move(folder)),
        writer_(std::move(writer)),
        request_(request),
        visit_(visit),
        salvage_(salvage) {}

  Status Run() {
    TELLTALE_RETURN_IF_ERROR(OpenJournals());
    TELLTALE_RETURN_IF_ERROR(ReadSegments());
    for (std::size_t i = 0; i < journals_.size(); ++i) {
      TELLTALE_RETURN_IF_ERROR(ReadJournal(i));
      journals_[i].reset();
    }
    if (highest_ > seen_) salvage_->Missing(highest_ - seen_);
    return {};
  }

 private:
  /// Before the segments are listed: a journal that is deleted meanwhile is in them, and what is
  /// open stays readable.
  Status OpenJournals() {
    const Result<FolderListing> listing = ListFolder(folder_);
    if (!listing.ok()) return {};
    for (const std::uint64_t number : listing->journals) {
      auto opened = JournalFile::Open(folder_ / JournalFileName(number));
      if (!opened.ok()) {
        if (opened.status().code() != Code::kUnusable) Unreadable(opened.status());
        continue;
      }
      auto journal = std::make_unique<OpenJournal>();
      journal->file = std::move(opened).value();
      // One record: the header.
      TELLTALE_RETURN_IF_ERROR(journal->file->Read(false, 1, &journal->pool, &journal->head));
      journals_.push_back(std::move(journal));
    }
    return {};
  }

  Status ReadSegments() {
    const Result<FolderListing> listing = ListFolder(folder_);
    if (!listing.ok()) return {};
    for (const SegmentName& segment : listing->segments) {
      if (segment.table != request_.table) continue;
      Status stopped;
      bool given = false;
      const auto visit = [&](ScanPiece& piece) {
        given = true;
        LeaveOutImpossible(segment, &piece);
        if (piece.rows > 0) stopped = visit_(piece);
        return stopped;
      };
      const Result<std::uint64_t> rows =
          ScanSegment(folder_ / segment.file, writer_, request_, visit);
      if (!stopped.ok()) return stopped;
      if (!rows.ok()) {
        Unreadable(rows.status());
        // Its journal may be there still; but no row is given twice.
        if (!given) continue;
      }
      covered_.Add(segment.first_seq, segment.last_seq);
      seen_ += rows.ok() ? *rows : 0;
      highest_ = std::max(highest_, segment.last_seq);
    }
    return {};
  }

  /// Drops and counts the rows of a segment with a number out of bounds in a column asked for.
  void LeaveOutImpossible(const SegmentName& segment, ScanPiece* piece) {
    std::vector<char> left_out;
    for (std::size_t i = 0; i < piece->columns.size(); ++i) {
      const ScanColumn& column = piece->columns[i];
      const format::Bound bound = BoundOfColumn(request_.table, request_.columns[i]);
      for (std::size_t at = 0; at < column.ints.size(); ++at) {
        if (bound.Has(column.ints[at])) continue;
        left_out.resize(piece->rows);
        if (column.constant) {
          left_out.assign(piece->rows, 1);
        } else {
          left_out[at] = 1;
        }
      }
    }
    if (left_out.empty()) return;
    for (ScanColumn& column : piece->columns) {
      if (column.constant) continue;
      Drop(left_out, &column.ints);
      Drop(left_out, &column.reals);
      Drop(left_out, &column.codes);
    }
    const auto count =
        static_cast<std::uint64_t>(std::count(left_out.begin(), left_out.end(), char{1}));
    piece->rows -= count;
    salvage_->impossible_rows += count;
    Note(fmt::format("{}: {} rows with a number that cannot be are left out",
                     (folder_ / segment.file).string(), count));
  }

  /// Whether the segments hold all that the journal has of the table.
  bool Sealed(std::size_t index) const {
    if (index + 1 >= journals_.size()) return false;
    const auto& begin = journals_[index]->head.header;
    const auto& end = journals_[index + 1]->head.header;
    const auto at = static_cast<std::size_t>(request_.table);
    if (!begin || !end || begin->next_seq[at] == 0 || end->next_seq[at] == 0) return false;
    return covered_.Holds(begin->next_seq[at], end->next_seq[at] - 1);
  }

  Status ReadJournal(std::size_t index) {
    if (Sealed(index)) return {};
    OpenJournal& journal = *journals_[index];
    // The head is the header, or the first batch where the header is damaged.
    if (journal.head.header) {
      first_in_journal_ = journal.head.header->next_seq[static_cast<std::size_t>(request_.table)];
    } else {
      first_in_journal_ = 0;
    }
    TELLTALE_RETURN_IF_ERROR(Give(journal.head.batch.rows, journal.file->file_size()));
    const bool final = request_.final || index + 1 < journals_.size();
    while (true) {
      StringPool pool;
      JournalChunk chunk;
      const Status status = journal.file->Read(final, kScanChunkBytes, &pool, &chunk);
      NoteDamage(journal.file.get());
      if (!status.ok()) return status;
      if (chunk.records == 0) return {};
      TELLTALE_RETURN_IF_ERROR(Give(chunk.batch.rows, journal.file->file_size()));
    }
  }

  /// `bytes`: of the journal that they are from.
  Status Give(const format::Rows& rows, std::uint64_t bytes) {
    const std::uint64_t most_seq = MostSeqOfJournal(first_in_journal_, bytes);
    ScanPiece piece{.writer = writer_};
    piece.columns.resize(request_.columns.size());
    format::ForEachTable(rows, [&](const auto& of_table) {
      using Row = typename std::remove_cvref_t<decltype(of_table)>::value_type;
      if (Row::kTable == request_.table) Gather<Row>(of_table, most_seq, &piece);
    });
    return piece.rows == 0 ? Status() : visit_(piece);
  }

  template <class Row>
  void Gather(const std::vector<Row>& rows, std::uint64_t most_seq, ScanPiece* piece) {
    std::vector<const Row*> chosen;
    for (const Row& row : rows) {
      if (covered_.Has(row.seq) || row.seq <= highest_in_journals_) continue;
      const bool can_be = row.seq <= most_seq;
      if (can_be) {
        highest_in_journals_ = row.seq;
        highest_ = std::max(highest_, row.seq);
        ++seen_;
      }
      if (!can_be || !format::InBounds(row)) {
        ++salvage_->impossible_rows;
        Note(ImpossibleRow(folder_, row));
        continue;
      }
      if constexpr (requires { row.name; }) {
        if (request_.name && row.name != *request_.name) continue;
      }
      if constexpr (requires { row.step; }) {
        if (request_.steps && !request_.steps->Has(row.step)) continue;
      }
      if constexpr (requires { row.file; }) {
        if (request_.file && row.file != *request_.file) continue;
      }
      chosen.push_back(&row);
    }
    if (request_.not_empty) DropEmpty(&chosen);
    piece->rows = chosen.size();
    if (chosen.empty()) return;
    format::ForEachColumn<Row>([&](const format::ColumnDesc& desc, auto member) {
      for (std::size_t i = 0; i < request_.columns.size(); ++i) {
        if (request_.columns[i] != desc.name) continue;
        for (const Row* row : chosen) Append(row->*member, &piece->columns[i]);
      }
    });
  }

  template <class Row>
  void DropEmpty(std::vector<const Row*>* rows) {
    format::ForEachColumn<Row>([&](const format::ColumnDesc& desc, auto member) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(std::declval<Row>().*member)>,
                                   std::string_view>) {
        if (desc.name != *request_.not_empty) return;
        std::erase_if(*rows, [&](const Row* row) { return (row->*member).empty(); });
      }
    });
  }

  void Unreadable(const Status& why) {
    ++salvage_->unreadable_files;
    Note(why.message());
  }

  void NoteDamage(JournalFile* file) {
    for (const Damage& damage : file->TakeDamage()) {
      if (damage.torn_tail) {
        ++salvage_->torn_tails;
      } else {
        ++salvage_->damaged_blocks;
      }
      Note(fmt::format("{}: offset {}: {} bytes: {}", file->path().string(), damage.offset,
                       damage.bytes, damage.what));
    }
  }

  void Note(std::string text) {
    if (salvage_->notes.size() < kMaxScanNotes) salvage_->notes.push_back(std::move(text));
  }

  const std::filesystem::path folder_;
  const std::string writer_;
  const ScanRequest& request_;
  const ScanVisitor& visit_;
  Salvage* const salvage_;
  std::vector<std::unique_ptr<OpenJournal>> journals_;
  Coverage covered_;
  std::uint64_t seen_ = 0;
  std::uint64_t highest_ = 0;
  std::uint64_t highest_in_journals_ = 0;
  std::uint64_t first_in_journal_ = 0;  ///< As the header of the one being read says; 0: nothing.
};

Status Check(const ScanRequest& request) {
  const auto missing = [&](std::string_view name) -> Status {
    return {Code::kUsage,
            fmt::format("table {} has no column '{}'", FindTable(request.table)->name, name)};
  };
  for (const std::string& name : request.columns) {
    if (!TypeOfColumn(request.table, name)) return missing(name);
  }
  if (request.steps && !TypeOfColumn(request.table, "step")) return missing("step");
  if (request.file && !TypeOfColumn(request.table, "file")) return missing("file");
  return {};
}

}  // namespace

std::optional<format::ColumnType> TypeOfColumn(format::TableId table, std::string_view name) {
  for (const format::ColumnDesc& column : FindTable(table)->columns) {
    if (column.name == name) return column.type;
  }
  return std::nullopt;
}

Status ScanColumns(const std::filesystem::path& run, const ScanRequest& request,
                   const ScanVisitor& visit, Salvage* salvage) {
  TELLTALE_RETURN_IF_ERROR(Check(request));
  for (const std::string& writer : ListWriters(run)) {
    TELLTALE_RETURN_IF_ERROR(ScanWriterColumns(run / writer, request, visit, salvage));
  }
  return {};
}

Status ScanWriterColumns(const std::filesystem::path& folder, const ScanRequest& request,
                         const ScanVisitor& visit, Salvage* salvage) {
  TELLTALE_RETURN_IF_ERROR(Check(request));
  return WriterScan(folder, folder.filename().string(), request, visit, salvage).Run();
}

}  // namespace telltale::store
