// SPDX-License-Identifier: Apache-2.0
// The reading side of a run directory: the same for a live run, a finished one and a damaged one.
// Damage never stops a reader: what is readable is served, the rest is counted in Salvage.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/string_pool.h"
#include "format/records.gen.h"
#include "store/run_info.h"

namespace telltale::store {

/// What a reader had to skip. Zero everywhere on a healthy run.
struct Salvage {
  std::uint64_t damaged_blocks = 0;    ///< Journal blocks with bytes that no CRC vouches for.
  std::uint64_t torn_tails = 0;        ///< Journals that end inside a record.
  std::uint64_t unreadable_files = 0;  ///< Segments or journals that could not be opened at all.
  std::uint64_t missing_rows = 0;      ///< Gaps in sequence numbers.
  /// Rows left out because a number of theirs is out of bounds (format/bounds.h).
  std::uint64_t impossible_rows = 0;
  std::uint64_t foreign_files = 0;  ///< Files that are not ours, left alone.
  std::vector<std::string> notes;   ///< One line each: file, offset, what.
  bool any() const {
    return damaged_blocks > 0 || torn_tails > 0 || unreadable_files > 0 || missing_rows > 0 ||
           impossible_rows > 0;
  }
  /// Headers and names of files, which anybody may have written, say how many.
  void Missing(std::uint64_t rows) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    missing_rows = rows > kMost - missing_rows ? kMost : missing_rows + rows;
  }
  void Add(const Salvage& more) {
    damaged_blocks += more.damaged_blocks;
    torn_tails += more.torn_tails;
    unreadable_files += more.unreadable_files;
    Missing(more.missing_rows);
    impossible_rows += more.impossible_rows;
    foreign_files += more.foreign_files;
    notes.insert(notes.end(), more.notes.begin(), more.notes.end());
  }
};

/// One record in the order of readers. `writer` indexes Cursor::writers(); exactly one pointer of
/// the variant is what `table` says, valid until the next call of Cursor::Next.
struct OrderedRecord {
  std::int64_t ord_ns = 0;
  std::uint32_t writer = 0;
  format::TableId table{};
  const void* row = nullptr;

  template <class Row>
  const Row* As() const {
    return Row::kTable == table ? static_cast<const Row*>(row) : nullptr;
  }
};

struct CursorOptions {
  /// Writers whose folder name begins with this are left out (rules do not read findings).
  std::string exclude_prefix = "watch";
  /// Rows of tables not in this mask (bit = TableId) are not delivered nor, where possible,
  /// decoded.
  std::uint32_t table_mask = ~0U;
  /// A thread of the cursor's own reads the next piece while the caller looks at what it was given.
  /// Of a run that is over, whose writers it never gives up on.
  bool read_ahead = false;
};

/// A decision that depended on the moment and not on the records: those of `writer` with from_ns <=
/// ord_ns < at_ns and, a table, from_seq <= seq were delivered with ord_ns raised to at_ns.
struct Admission {
  std::string writer;
  std::int64_t from_ns = 0;
  std::int64_t at_ns = 0;
  /// First sequence number concerned, by TableId; a table that is not named: all.
  std::vector<std::pair<std::uint8_t, std::uint64_t>> from_seq;

  friend bool operator==(const Admission&, const Admission&) = default;
};
/// As a JSON object, for the event order.readmitted, and back.
std::string ToJson(const Admission& admission);
Result<Admission> AdmissionFromJson(std::string_view json);

/// Delivers the records of all writers in the order (ord_ns, writer, table, seq), each once, behind
/// the watermark: min over the writers that have not ended. The order depends on the records alone,
/// not on when or how often Next is called.
class Cursor {
 public:
  virtual ~Cursor() = default;
  /// Appends what has become deliverable, at most about `max_rows` at a time; empty when nothing is
  /// new. The writer that holds the others up is the one with the lowest watermark.
  virtual Status Next(std::size_t max_rows, std::vector<OrderedRecord>* out) = 0;
  /// All writers have ended (or the caller gave up on those that have not) and all was delivered.
  virtual bool AtEnd() const = 0;
  /// Everything with ord_ns below this was delivered.
  virtual std::int64_t frontier_ns() const = 0;
  virtual const std::vector<std::string>& writers() const = 0;
  /// Newest watermark of each writer, INT64_MAX where it ended.
  virtual std::vector<std::int64_t> watermarks() const = 0;
  /// Stops waiting for a writer at the present frontier. What was read of it and not delivered is
  /// kept back; once it writes again (or nobody is waited for any more) it is readmitted: its
  /// records with ord_ns below the frontier of that moment are delivered at the frontier, and it is
  /// waited for again. Do this only after Next has returned nothing.
  virtual void GiveUpOn(std::uint32_t writer) = 0;
  /// For a run that is over: those that hold the others up, and have no more to read, have died
  /// without their end record and are taken for ended; what was read of them keeps its place in the
  /// order. False where nobody is waited for. Do this only after Next has returned nothing.
  virtual bool CloseStragglers() = 0;
  /// The readmissions since the last call, those of writers that appeared late included. The
  /// watcher journals them and a replay calls Readmit for each before its first Next: it then
  /// delivers the same records in the same order.
  virtual std::vector<Admission> TakeAdmissions() = 0;
  virtual void Readmit(const Admission& admission) = 0;
  virtual const Salvage& salvage() const = 0;
};

class RunReader {
 public:
  /// `run` is a run directory. Code::kUnusable: no such run; kVersion: written by a newer format.
  static Result<std::unique_ptr<RunReader>> Open(const std::filesystem::path& run);
  virtual ~RunReader() = default;

  virtual const RunInfo& info() const = 0;
  /// Reads run.json again and derives the state as of now.
  virtual RunState state() = 0;
  virtual Result<std::unique_ptr<Cursor>> NewCursor(CursorOptions options = {}) = 0;
  /// Calls `visit` with pieces of the rows of the tables in the mask, in the order of (writer, seq)
  /// — sealed and journalled, each once — until it returns false. Rows are valid during the call.
  using Visitor = std::function<bool(const std::string& writer, const format::Rows& rows)>;
  virtual Status Scan(std::uint32_t table_mask, const Visitor& visit, Salvage* salvage) = 0;
  /// All rows of the tables in the mask, in the order of (writer, seq) — sealed and journalled,
  /// each once. Convenience for small tables and tests; large scans go by Cursor or Scan.
  virtual Status ReadAll(std::uint32_t table_mask, StringPool* pool, format::Rows* out,
                         Salvage* salvage) = 0;
};

constexpr std::uint32_t MaskOf(format::TableId id) { return 1U << static_cast<unsigned>(id); }

}  // namespace telltale::store
