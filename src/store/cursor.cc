// SPDX-License-Identifier: Apache-2.0
#include "store/cursor.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <future>
#include <limits>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/run_files.h"
#include "format/bounds.h"
#include "store/folder.h"
#include "store/follower.h"
#include "store/window_folder.h"
#include "store/worker.h"

namespace telltale::store {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kBegin = std::numeric_limits<std::int64_t>::min();
/// One for the piece that is read ahead and one for the one behind it.
constexpr std::size_t kMostSpares = 2;

/// A chunk and how many of its rows are still to be delivered.
struct LiveChunk {
  std::unique_ptr<RowChunk> rows;
  std::size_t pending = 0;
  std::list<LiveChunk>::iterator self;
};

struct Entry {
  std::int64_t ord_ns = 0;
  std::uint64_t seq = 0;
  const void* row = nullptr;
  LiveChunk* chunk = nullptr;
  std::uint32_t source = 0;
  format::TableId table{};
};

constexpr std::size_t kFetchAhead = 8;  ///< Rows.
constexpr std::size_t kCacheLine = 64;  ///< Bytes.

/// What each row begins with.
struct RowHead {
  std::uint64_t seq;
  std::int64_t ord_ns;
};

template <class Row>
constexpr bool BeginsWithHead() {
  return offsetof(Row, seq) == offsetof(RowHead, seq) &&
         offsetof(Row, ord_ns) == offsetof(RowHead, ord_ns);
}

/// What is to come of one table of one chunk, or was parked, in its order: of a chunk of thousands
/// of rows the heap holds one of these, and not the rows.
class Stream {
 public:
  /// Rows of one table that are in their order. REQUIRES: there is one.
  template <class Row>
  Stream(const std::vector<Row>& rows, LiveChunk* chunk, std::uint32_t source)
      : left_(rows.size()),
        row_(reinterpret_cast<const std::byte*>(rows.data())),
        stride_(sizeof(Row)) {
    static_assert(BeginsWithHead<Row>());
    front_.chunk = chunk;
    front_.source = source;
    front_.table = Row::kTable;
    TakeRow();
  }
  /// Entries in their order. REQUIRES: there is one.
  explicit Stream(std::vector<Entry> entries)
      : entries_(std::move(entries)), front_(entries_.front()), left_(entries_.size()) {}

  const Entry& front() const { return front_; }
  /// False where nothing is left.
  bool Next() {
    if (--left_ == 0) return false;
    if (row_ != nullptr) {
      row_ += stride_;
      TakeRow();
    } else {
      front_ = entries_[entries_.size() - left_];
    }
    return true;
  }

 private:
  void TakeRow() {
    // A piece is written column by column and read row by row: what comes soon is to be near by
    // then.
    if (left_ > kFetchAhead) {
      const std::byte* const soon = row_ + kFetchAhead * stride_;
      for (std::size_t at = 0; at < stride_; at += kCacheLine) __builtin_prefetch(soon + at);
    }
    RowHead head;
    std::memcpy(&head, row_, sizeof head);
    front_.ord_ns = head.ord_ns;
    front_.seq = head.seq;
    front_.row = row_;
  }

  std::vector<Entry> entries_;
  Entry front_;
  std::size_t left_ = 0;
  const std::byte* row_ = nullptr;  ///< Of the front; null: it is one of entries_.
  std::size_t stride_ = 0;
};

/// A follower with what it counts: one thread at a time has it.
struct Reading {
  Reading(const std::filesystem::path& folder, const std::string& name, std::uint32_t table_mask,
          bool final)
      : follower(folder, name, table_mask, final, &salvage) {}
  Salvage salvage;
  WriterFollower follower;
  std::unique_ptr<RowChunk> spare;  ///< Whose memory the next piece may have.
};

/// What an advance of a follower came to.
struct Advanced {
  Result<bool> progress = false;
  std::unique_ptr<RowChunk> rows;
};

Advanced AdvanceNow(Reading* reading) {
  Advanced out;
  out.rows = std::move(reading->spare);
  out.progress = reading->follower.Advance(&out.rows);
  return out;
}

struct Source {
  std::shared_ptr<Reading> reading;
  std::future<Advanced> ahead;  ///< Valid while another thread has the follower, or had it last.
  std::string name;
  // Of the follower, as the cursor last saw it:
  std::int64_t watermark_ns = kBegin;
  NextSeqs next_seq = FirstSeqs();
  bool ended = false;

  bool given_up = false;
  std::int64_t left_ns = kBegin;  ///< Frontier at which it was given up.
  bool flushed = false;           ///< All that had been read was delivered since.
  std::vector<Admission> admissions;
  std::vector<Entry> parked;  ///< Read before it was given up.
  bool silent = false;        ///< It is absent, and will be: a run that is over gets no more rows.

  bool waited_for() const { return !given_up && !ended; }
};

class CursorImpl final : public Cursor {
 public:
  CursorImpl(std::filesystem::path run, CursorOptions options, bool final)
      : run_(std::move(run)), options_(std::move(options)), final_(final) {}

  Status Next(std::size_t max_rows, std::vector<OrderedRecord>* out) override;
  bool AtEnd() const override;
  std::int64_t frontier_ns() const override { return frontier_ns_; }
  const std::vector<std::string>& writers() const override { return names_; }
  std::vector<std::int64_t> watermarks() const override;
  void GiveUpOn(std::uint32_t writer) override;
  bool CloseStragglers() override;
  std::vector<Admission> TakeAdmissions() override { return std::exchange(admissions_, {}); }
  void Readmit(const Admission& admission) override;
  const Salvage& salvage() const override { return salvage_; }

 private:
  void Discover();
  /// Takes the memory of what the caller has seen.
  void Reclaim();
  void TakeSpare(Reading* reading);
  /// Looks whether writers that are not waited for have written again.
  Status PollAbsent();
  Result<bool> Advance(std::uint32_t index);
  /// Rows to come of the source are not delivered before the present moment of the order.
  void Admit(Source* source, std::int64_t from_ns, const NextSeqs* from_seq);
  void Flush();
  /// All of one source. They need not be in their order.
  void Push(std::vector<Entry> entries);
  void Push(Stream stream);
  /// Lets another thread read on what will be asked for next.
  void ReadAhead();
  void Count(Salvage* salvage);
  void Deliver(std::int64_t limit_ns, std::size_t max_rows, std::vector<OrderedRecord>* out);

  /// Heap order: true where `a` comes after `b`.
  struct After {
    const std::vector<std::uint32_t>* rank;
    bool operator()(const Stream& a, const Stream& b) const {
      return (*this)(a.front(), b.front());
    }
    bool operator()(const Entry& a, const Entry& b) const {
      if (a.ord_ns != b.ord_ns) return a.ord_ns > b.ord_ns;
      if (a.source != b.source) return (*rank)[a.source] > (*rank)[b.source];
      if (a.table != b.table) return a.table > b.table;
      return a.seq > b.seq;
    }
  };

  const std::filesystem::path run_;
  const CursorOptions options_;
  const bool final_;
  Salvage salvage_;
  std::vector<Source> sources_;
  std::vector<std::string> names_;   ///< In the order of discovery.
  std::set<std::string> linked_;     ///< Links that were told of.
  std::vector<std::uint32_t> rank_;  ///< By name: the order does not depend on discovery.
  std::map<std::string, std::vector<Admission>, std::less<>> replayed_;
  std::vector<Admission> admissions_;
  std::vector<Stream> heap_;  ///< None of them is empty.
  std::list<LiveChunk> chunks_;
  std::list<LiveChunk> delivered_;  ///< Kept until the next call: the caller holds their rows.
  std::vector<std::unique_ptr<RowChunk>> spares_;  ///< To be read into; at most kMostSpares.
  std::int64_t frontier_ns_ = kBegin;
  std::int64_t last_delivered_ns_ = kBegin;
  std::unique_ptr<Worker> worker_;  ///< Of ReadAhead.
};

void CursorImpl::Discover() {
  const bool wants_slices = (options_.table_mask & MaskOf(format::TableId::kSlices)) != 0;
  std::vector<run_files::Entry> entries;
  run_files::List({run_, "."}, &entries);
  for (const run_files::Entry& entry : entries) {
    const std::string& name = entry.name;
    if (IsLinkedWriter(entry) && linked_.insert(name).second) {
      ++salvage_.unreadable_files;
      salvage_.notes.push_back(fmt::format("{}: {}", (run_ / name).string(), kLinkedWriter));
    }
    if (entry.kind != run_files::Kind::kFolder || name.starts_with('.') ||
        std::find(names_.begin(), names_.end(), name) != names_.end()) {
      continue;
    }
    if (!options_.exclude_prefix.empty() && name.starts_with(options_.exclude_prefix)) continue;
    if (name.starts_with(kWindowFolderPrefix) && !wants_slices) continue;
    if (!IsWriterFolder(run_ / name)) continue;
    Source& source = sources_.emplace_back();
    source.reading = std::make_shared<Reading>(run_ / name, name, options_.table_mask, final_);
    source.name = name;
    names_.push_back(name);
    if (const auto found = replayed_.find(name); found != replayed_.end()) {
      source.admissions = found->second;
    }
    Admit(&source, kBegin, nullptr);
  }
  std::vector<std::uint32_t> by_name(names_.size());
  for (std::uint32_t i = 0; i < by_name.size(); ++i) by_name[i] = i;
  std::sort(by_name.begin(), by_name.end(),
            [&](std::uint32_t a, std::uint32_t b) { return names_[a] < names_[b]; });
  rank_.resize(names_.size());
  for (std::uint32_t i = 0; i < by_name.size(); ++i) rank_[by_name[i]] = i;
}

void CursorImpl::Reclaim() {
  for (LiveChunk& chunk : delivered_) {
    if (spares_.size() < kMostSpares) spares_.push_back(std::move(chunk.rows));
  }
  delivered_.clear();
}

void CursorImpl::TakeSpare(Reading* reading) {
  if (spares_.empty() || reading->spare != nullptr) return;
  reading->spare = std::move(spares_.back());
  spares_.pop_back();
}

void CursorImpl::Admit(Source* source, std::int64_t from_ns, const NextSeqs* from_seq) {
  // Behind what was delivered at the frontier itself, where that was delivered in part.
  const std::int64_t at_ns =
      last_delivered_ns_ == kBegin ? frontier_ns_ : std::max(frontier_ns_, last_delivered_ns_ + 1);
  if (from_ns < at_ns) {
    Admission admission{source->name, from_ns, at_ns, {}};
    for (const format::TableDesc& table : format::kTables) {
      const auto id = static_cast<std::uint8_t>(table.id);
      if (from_seq != nullptr) admission.from_seq.emplace_back(id, (*from_seq)[id]);
    }
    admissions_.push_back(admission);
    source->admissions.push_back(std::move(admission));
  }
  Push(std::exchange(source->parked, {}));
}

void CursorImpl::Push(std::vector<Entry> entries) {
  if (entries.empty()) return;
  for (const Admission& one : sources_[entries.front().source].admissions) {
    for (Entry& entry : entries) {
      if (entry.ord_ns < one.from_ns || entry.ord_ns >= one.at_ns) continue;
      const auto concerned = [&](const auto& from) {
        return from.first == static_cast<std::uint8_t>(entry.table) && entry.seq < from.second;
      };
      if (std::none_of(one.from_seq.begin(), one.from_seq.end(), concerned)) {
        entry.ord_ns = one.at_ns;
      }
    }
  }
  const auto before = [after = After{&rank_}](const Entry& a, const Entry& b) {
    return after(b, a);
  };
  if (!std::is_sorted(entries.begin(), entries.end(), before)) {
    std::sort(entries.begin(), entries.end(), before);
  }
  Push(Stream(std::move(entries)));
}

void CursorImpl::Push(Stream stream) {
  heap_.push_back(std::move(stream));
  std::push_heap(heap_.begin(), heap_.end(), After{&rank_});
}

void CursorImpl::Count(Salvage* salvage) { salvage_.Add(std::exchange(*salvage, {})); }

void CursorImpl::ReadAhead() {
  if (!options_.read_ahead) return;
  Source* next = nullptr;
  for (Source& source : sources_) {
    if (source.ahead.valid()) return;
    if (!source.waited_for()) continue;
    if (next == nullptr || source.watermark_ns < next->watermark_ns) next = &source;
  }
  if (next == nullptr) return;
  if (worker_ == nullptr) worker_ = std::make_unique<Worker>(Worker::Priority::kNormal);
  TakeSpare(next->reading.get());
  auto promise = std::make_shared<std::promise<Advanced>>();
  next->ahead = promise->get_future();
  worker_->Post([promise, reading = next->reading] {
    try {
      promise->set_value(AdvanceNow(reading.get()));
    } catch (...) {  // Out of memory: who asks is told.
      promise->set_exception(std::current_exception());
    }
  });
}

Result<bool> CursorImpl::Advance(std::uint32_t index) {
  Source& source = sources_[index];
  // Where the source is not waited for, what it had before may have been delivered already.
  const bool absent = !source.waited_for();
  const NextSeqs seqs_before = source.next_seq;
  // One that has ended, as most have in a long run, would keep it for nothing.
  if (!absent && !source.ahead.valid()) TakeSpare(source.reading.get());
  Advanced advanced = source.ahead.valid() ? source.ahead.get() : AdvanceNow(source.reading.get());
  Count(&source.reading->salvage);
  const WriterFollower& follower = source.reading->follower;
  source.watermark_ns = follower.watermark_ns();
  source.next_seq = follower.next_seq();
  TELLTALE_ASSIGN_OR_RETURN(const bool progress, std::move(advanced.progress));
  if (!progress) return false;
  if (source.given_up && !source.flushed) {
    Admit(&source, source.left_ns, nullptr);
  } else if (absent) {
    Admit(&source, kBegin, &seqs_before);
  }
  source.given_up = false;
  source.ended = follower.ended();
  if (advanced.rows == nullptr) return true;
  const auto at = chunks_.emplace(chunks_.end());
  at->rows = std::move(advanced.rows);
  at->self = at;
  format::ForEachTable(at->rows->rows, [&](const auto& table) {
    using Row = typename std::remove_cvref_t<decltype(table)>::value_type;
    at->pending += table.size();
    if (table.empty()) return;
    if (source.admissions.empty() && (at->rows->in_order & MaskOf(Row::kTable)) != 0) {
      Push(Stream(table, &*at, index));
      return;
    }
    std::vector<Entry> entries;
    entries.reserve(table.size());
    for (const Row& row : table) {
      entries.push_back({.ord_ns = row.ord_ns,
                         .seq = row.seq,
                         .row = &row,
                         .chunk = &*at,
                         .source = index,
                         .table = Row::kTable});
    }
    Push(std::move(entries));
  });
  return true;
}

Status CursorImpl::PollAbsent() {
  for (std::uint32_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].waited_for() || sources_[i].silent) continue;
    TELLTALE_ASSIGN_OR_RETURN(const bool progress, Advance(i));
    sources_[i].silent = options_.read_ahead && !progress;
  }
  return {};
}

void CursorImpl::Flush() {
  for (Source& source : sources_) {
    if (!source.given_up || source.flushed) continue;
    Admit(&source, source.left_ns, nullptr);
    source.flushed = true;
  }
}

void CursorImpl::Deliver(std::int64_t limit_ns, std::size_t max_rows,
                         std::vector<OrderedRecord>* out) {
  const After after{&rank_};
  const auto due = [&](const Stream& stream) {
    return stream.front().ord_ns < limit_ns && out->size() < max_rows;
  };
  while (!heap_.empty() && due(heap_.front())) {
    std::pop_heap(heap_.begin(), heap_.end(), after);
    Stream& first = heap_.back();
    // Mostly several of one stream follow each other: the heap is asked where another comes first.
    const Stream* const other = heap_.size() > 1 ? &heap_.front() : nullptr;
    const std::int64_t alone_until = other == nullptr ? kNever : other->front().ord_ns;
    bool left = true;
    do {
      const Entry& entry = first.front();
      out->push_back({entry.ord_ns, entry.source, entry.table, entry.row});
      last_delivered_ns_ = entry.ord_ns;
      LiveChunk* const chunk = entry.chunk;
      if (--chunk->pending == 0) delivered_.splice(delivered_.end(), chunks_, chunk->self);
      left = first.Next();
    } while (left && due(first) &&
             (first.front().ord_ns < alone_until || other == nullptr || !after(first, *other)));
    if (left) {
      std::push_heap(heap_.begin(), heap_.end(), after);
    } else {
      heap_.pop_back();
    }
  }
}

Status CursorImpl::Next(std::size_t max_rows, std::vector<OrderedRecord>* out) {
  Reclaim();
  max_rows += out->size();
  if (!options_.read_ahead || sources_.empty()) Discover();
  TELLTALE_RETURN_IF_ERROR(PollAbsent());
  while (true) {
    std::int64_t limit = kNever;
    for (const Source& source : sources_) {
      if (source.waited_for()) limit = std::min(limit, source.watermark_ns);
    }
    if (limit == kNever) Flush();
    Deliver(limit, max_rows, out);
    if (limit == kNever) {
      // Finite, so that a writer that comes back (a further attempt) still finds its place.
      if (last_delivered_ns_ > kBegin) {
        frontier_ns_ = std::max(frontier_ns_, last_delivered_ns_ + (heap_.empty() ? 1 : 0));
      }
      return {};
    }
    const bool more_due = !heap_.empty() && heap_.front().front().ord_ns < limit;
    frontier_ns_ = std::max(frontier_ns_, more_due ? heap_.front().front().ord_ns : limit);
    if (more_due || out->size() >= max_rows) {
      ReadAhead();
      return {};
    }
    // Only what holds the others up is read on: the others' rows would pile up in memory.
    bool progress = false;
    for (std::uint32_t i = 0; i < sources_.size(); ++i) {
      if (!sources_[i].waited_for() || sources_[i].watermark_ns > limit) continue;
      TELLTALE_ASSIGN_OR_RETURN(const bool advanced, Advance(i));
      progress = progress || advanced;
    }
    if (!progress) return {};
  }
}

bool CursorImpl::AtEnd() const {
  for (const Source& source : sources_) {
    if (source.waited_for() || !source.parked.empty()) return false;
  }
  return heap_.empty() && (final_ || !sources_.empty());
}

std::vector<std::int64_t> CursorImpl::watermarks() const {
  std::vector<std::int64_t> all;
  for (const Source& source : sources_) {
    all.push_back(source.ended ? kNever : source.watermark_ns);
  }
  return all;
}

void CursorImpl::GiveUpOn(std::uint32_t writer) {
  if (writer >= sources_.size() || !sources_[writer].waited_for()) return;
  Source& source = sources_[writer];
  source.given_up = true;
  source.flushed = false;
  source.left_ns = frontier_ns_;
  const auto mine = std::partition(heap_.begin(), heap_.end(), [&](const Stream& stream) {
    return stream.front().source != writer;
  });
  source.parked.clear();
  for (auto at = mine; at != heap_.end(); ++at) {
    do {
      source.parked.push_back(at->front());
    } while (at->Next());
  }
  heap_.erase(mine, heap_.end());
  std::make_heap(heap_.begin(), heap_.end(), After{&rank_});
}

bool CursorImpl::CloseStragglers() {
  std::int64_t lowest = kNever;
  for (const Source& source : sources_) {
    if (source.waited_for()) lowest = std::min(lowest, source.watermark_ns);
  }
  bool closed = false;
  for (Source& source : sources_) {
    if (!source.waited_for() || source.watermark_ns > lowest) continue;
    source.ended = closed = true;
  }
  return closed;
}

void CursorImpl::Readmit(const Admission& admission) {
  replayed_[admission.writer].push_back(admission);
  for (Source& source : sources_) {
    if (source.name == admission.writer) source.admissions.push_back(admission);
  }
}

}  // namespace

std::string ToJson(const Admission& admission) {
  nlohmann::json json = {{"writer", admission.writer},
                         {"from_ns", admission.from_ns},
                         {"at_ns", admission.at_ns},
                         {"from_seq", admission.from_seq}};
  return JsonText(json);
}

Result<Admission> AdmissionFromJson(std::string_view json) {
  try {
    // Throws with the place where it is no JSON.
    const nlohmann::json in = nlohmann::json::parse(json);
    Admission admission;
    in.at("writer").get_to(admission.writer);
    in.at("from_ns").get_to(admission.from_ns);
    in.at("at_ns").get_to(admission.at_ns);
    in.at("from_seq").get_to(admission.from_seq);
    if (!format::IsWatermark(admission.from_ns) || !format::IsWatermark(admission.at_ns)) {
      return {Code::kUnusable, "not an admission: a time in it cannot be"};
    }
    return admission;
  } catch (const std::exception& error) {
    return {Code::kUnusable, "not an admission: " + JsonTrouble(error)};
  }
}

std::unique_ptr<Cursor> MakeCursor(std::filesystem::path run, CursorOptions options, bool final) {
  return std::make_unique<CursorImpl>(std::move(run), std::move(options), final);
}

}  // namespace telltale::store
