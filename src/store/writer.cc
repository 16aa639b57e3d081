// SPDX-License-Identifier: Apache-2.0
#include "store/writer.h"

#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/run_files.h"
#include "store/batch_split.h"
#include "store/folder.h"
#include "store/journal_writer.h"
#include "store/recovery.h"
#include "store/sealer.h"
#include "store/worker.h"

namespace telltale::store {
namespace {

constexpr std::uint64_t kSpaceCheckBytes = 1 << 20;
constexpr std::int64_t kSpaceCheckNs = 1'000'000'000;
constexpr std::int64_t kSealRetryNs = 10'000'000'000;
constexpr std::uint64_t kMostLockBytes = 64;        ///< The number of a process.
constexpr std::size_t kPositionsPerBatch = 60'000;  ///< The count is 16 bits wide.

/// What the threads report; guarded by its mutex, shared so that it outlives the writer if it must.
struct Shared {
  struct Sealing {
    std::uint64_t journal = 0;
    Status status;
    std::vector<SealedRecord> records;
  };
  std::mutex mutex;
  std::uint64_t synced_ticket = 0;
  std::uint64_t settled_ticket = 0;  ///< Likewise, or failed.
  bool sync_failed = false;
  std::vector<Sealing> sealings;
  SealGate gate;  ///< Not guarded.
};

/// A journal that is complete; it is sealed, then deleted, in the order of numbers.
struct OldJournal {
  std::uint64_t number = 0;
  bool sealed = false;            ///< Its sealed records are in the active journal...
  std::uint64_t sync_ticket = 0;  ///< ...and durable after this sync.
  std::int64_t delete_at_ns = 0;
  bool sealing = false;
  std::int64_t retry_at_ns = 0;
};

class WriterImpl final : public Writer {
 public:
  WriterImpl(std::filesystem::path folder, std::string name, WriterOptions options, UniqueFd lock)
      : folder_(std::move(folder)),
        name_(std::move(name)),
        options_(options),
        lock_(std::move(lock)) {}

  Status Recover();
  Status Append(format::Batch batch) override;
  Status Tick() override;
  void Sync() override;
  bool Synced() const override;
  std::vector<format::RingPosition> RecoveredPositions() const override { return recovered_; }
  std::optional<std::int64_t> unended_since_ns() const override { return unended_since_ns_; }
  std::int64_t monotonic_to_run_ns() const override { return monotonic_to_run_ns_; }
  WriterCounters counters() const override { return counters_; }
  bool disk_full() const override { return disk_full_; }
  Status Close(bool ended) override;

 private:
  std::int64_t Now() const { return options_.clock->MonotonicNs(); }
  Status BeginJournal();
  Status Rotate();
  Status CheckSpace(std::uint64_t bytes);
  Status Write(const std::vector<std::string>& records);
  void RequestSync();
  void RequestSeals();
  Status TakeSealings();
  Status Took(std::uint64_t journal, const std::vector<SealedRecord>& records);
  void DeleteDue(bool all);
  void RemoveTemporaries();
  Status SealAllNow();

  const std::filesystem::path folder_;
  const std::string name_;
  const WriterOptions options_;
  UniqueFd lock_;

  NextSeqs next_seq_ = FirstSeqs();
  std::int64_t watermark_ns_ = 0;
  RingPositions positions_;
  GroupEncoder encoder_;
  std::vector<format::RingPosition> recovered_;
  std::vector<SealedRecord> sealed_;
  std::int64_t monotonic_to_run_ns_ = 0;
  std::optional<std::int64_t> unended_since_ns_;
  WriterCounters counters_;

  std::unique_ptr<JournalWriter> journal_;
  std::uint64_t next_number_ = 1;
  std::uint64_t active_number_ = 0;
  std::int64_t journal_began_ns_ = 0;
  std::uint64_t head_bytes_ = 0;  ///< Of the active journal: what its predecessors hand on.
  std::uint64_t rows_in_journal_ = 0;
  std::vector<OldJournal> old_;

  bool disk_full_ = false;
  std::int64_t space_checked_ns_ = 0;
  std::uint64_t space_unchecked_bytes_ = ~0ULL >> 1;

  std::uint64_t sync_ticket_ = 0;
  std::uint64_t synced_bytes_ = 0;  ///< Of the active journal, as last asked for.
  std::int64_t synced_at_ns_ = 0;
  std::uint64_t asked_ticket_ = 0;  ///< Of the last Sync().
  std::int64_t asked_at_ns_ = 0;
  bool closed_ = false;

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  // Last, so that the threads end before what they use.
  std::unique_ptr<Worker> sync_thread_;
  std::unique_ptr<Worker> seal_thread_;
};

Status WriterImpl::Recover() {
  RemoveTemporaries();
  TELLTALE_ASSIGN_OR_RETURN(RecoveredFolder found, RecoverFolder(folder_));
  next_seq_ = found.next_seq;
  watermark_ns_ = found.watermark_ns;
  positions_ = std::move(found.positions);
  sealed_ = std::move(found.sealed);
  next_number_ = found.next_number;
  counters_.salvaged_tails = found.torn_tails;
  if (!found.ended) unended_since_ns_ = found.watermark_ns;
  monotonic_to_run_ns_ = found.monotonic_to_run_ns.value_or(options_.clock->RealtimeNs() - Now());
  for (const auto& [key, position] : positions_) {
    recovered_.push_back({key.first, key.second, position});
  }
  sync_thread_ = std::make_unique<Worker>(Worker::Priority::kNormal);
  seal_thread_ = std::make_unique<Worker>(Worker::Priority::kIdle);
  for (const RecoveredJournal& journal : found.journals) {
    old_.push_back({.number = journal.number,
                    .sealed = journal.sealed,
                    .delete_at_ns = Now() + options_.delete_delay_ns});
  }
  // A full disk is no reason not to open: the first Append tries again.
  if (const Status status = BeginJournal(); !status.ok() && !disk_full_) return status;
  for (OldJournal& journal : old_) journal.sync_ticket = sync_ticket_;
  RequestSeals();
  return {};
}

Status WriterImpl::BeginJournal() {
  const std::uint64_t number = next_number_;
  std::vector<std::string> records;
  records.push_back(Encode(JournalHeader{.writer = name_,
                                         .number = number,
                                         .monotonic_to_run_ns = monotonic_to_run_ns_,
                                         .boot_id = BootId(),
                                         .created_ns = Now() + monotonic_to_run_ns_,
                                         .watermark_ns = watermark_ns_,
                                         .next_seq = next_seq_}));
  for (const SealedRecord& sealed : sealed_) records.push_back(Encode(sealed));
  // The journals that hold the ring positions will be deleted: carry them.
  format::Batch carried{.watermark_ns = watermark_ns_};
  for (auto at = positions_.begin(); at != positions_.end();) {
    carried.positions.push_back({at->first.first, at->first.second, at->second});
    if (++at == positions_.end() || carried.positions.size() == kPositionsPerBatch) {
      format::EncodeBatch(carried, &records.emplace_back());
      carried.positions.clear();
    }
  }
  TELLTALE_RETURN_IF_ERROR(CheckSpace(kSpaceCheckBytes));
  auto journal = JournalWriter::Create(folder_ / JournalFileName(number), records, &disk_full_);
  if (!journal.ok()) return journal.status();
  if (journal_ != nullptr) old_.push_back({.number = active_number_});
  disk_full_ = false;
  journal_ = std::move(journal).value();
  head_bytes_ = journal_->size();
  counters_.journal_bytes += head_bytes_;
  active_number_ = number;
  next_number_ = number + 1;
  journal_began_ns_ = Now();
  rows_in_journal_ = 0;
  synced_bytes_ = 0;
  RequestSync();
  return {};
}

Status WriterImpl::CheckSpace(std::uint64_t bytes) {
  space_unchecked_bytes_ += bytes;
  if (!disk_full_ && space_unchecked_bytes_ < kSpaceCheckBytes &&
      Now() - space_checked_ns_ < kSpaceCheckNs) {
    return {};
  }
  space_checked_ns_ = Now();
  space_unchecked_bytes_ = 0;
  const auto free = run_files::FreeBytes(run_files::OfRun(folder_));
  if (!free || *free >= options_.min_free_bytes) return {};  // The write itself will tell.
  disk_full_ = true;
  return {Code::kIo,
          fmt::format("{} has {} MiB free, less than the {} MiB that Telltale leaves alone; free "
                      "some space, recording then resumes",
                      folder_.string(), *free >> 20, options_.min_free_bytes >> 20)};
}

Status WriterImpl::Write(const std::vector<std::string>& records) {
  if (journal_ == nullptr || journal_->broken()) TELLTALE_RETURN_IF_ERROR(BeginJournal());
  std::uint64_t bytes = 0;
  for (const std::string& record : records) bytes += record.size();
  TELLTALE_RETURN_IF_ERROR(CheckSpace(bytes));
  const std::uint64_t before = journal_->size();
  if (Status status = journal_->Append(records); !status.ok()) {
    disk_full_ = true;
    return status;
  }
  disk_full_ = false;
  counters_.journal_bytes += journal_->size() - before;
  return {};
}

Status WriterImpl::Append(format::Batch batch) {
  NextSeqs next_seq = next_seq_;
  std::uint64_t rows_added = 0;
  std::uint64_t late = 0;
  format::ForEachTable(batch.rows, [&](auto& rows) {
    using Row = typename std::remove_cvref_t<decltype(rows)>::value_type;
    std::uint64_t& seq = next_seq[static_cast<std::uint8_t>(Row::kTable)];
    for (Row& row : rows) {
      row.seq = seq++;
      if (row.ord_ns < watermark_ns_) {
        row.ord_ns = watermark_ns_;
        ++late;
      }
    }
    rows_added += rows.size();
  });
  batch.watermark_ns = std::max(batch.watermark_ns, watermark_ns_);
  if (Status status = Write(encoder_.Encode(batch, watermark_ns_)); !status.ok()) {
    ++counters_.write_failures;
    return status;
  }
  next_seq_ = next_seq;
  watermark_ns_ = batch.watermark_ns;
  EnterPositions(batch.positions, &positions_);
  counters_.rows += rows_added;
  counters_.late_rows += late;
  rows_in_journal_ += rows_added;
  return {};
}

void WriterImpl::RequestSync() {
  const std::uint64_t ticket = ++sync_ticket_;
  synced_bytes_ = journal_->size();
  synced_at_ns_ = Now();
  sync_thread_->Post([fd = journal_->fd(), folder = folder_, ticket, shared = shared_] {
    const bool good = ::fdatasync(fd->get()) == 0 && SyncFolder(folder).ok();
    const std::lock_guard lock(shared->mutex);
    shared->settled_ticket = ticket;
    // After a failed sync nobody knows what is on the disk: it is never asked again of this file.
    if (good) {
      shared->synced_ticket = ticket;
    } else {
      shared->sync_failed = true;
    }
  });
}

void WriterImpl::Sync() {
  if (closed_ || journal_ == nullptr) return;
  RequestSync();
  asked_ticket_ = sync_ticket_;
  asked_at_ns_ = Now();
}

bool WriterImpl::Synced() const {
  if (closed_ || Now() - asked_at_ns_ >= kSyncPatienceNs) return true;
  const std::lock_guard lock(shared_->mutex);
  return shared_->settled_ticket >= asked_ticket_;
}

void WriterImpl::RequestSeals() {
  for (OldJournal& journal : old_) {
    if (journal.sealed || journal.sealing || Now() < journal.retry_at_ns) continue;
    journal.sealing = true;
    seal_thread_->Post([folder = folder_, name = name_, number = journal.number, shared = shared_] {
      Result<std::vector<SealedRecord>> records = SealJournal(folder, name, number, &shared->gate);
      const std::lock_guard lock(shared->mutex);
      Shared::Sealing& done = shared->sealings.emplace_back();
      done.journal = number;
      if (records.ok()) {
        done.records = std::move(records).value();
      } else {
        done.status = records.status();
      }
    });
  }
}

Status WriterImpl::Took(std::uint64_t number, const std::vector<SealedRecord>& records) {
  std::vector<std::string> encoded;
  for (const SealedRecord& record : records) encoded.push_back(Encode(record));
  if (!encoded.empty()) TELLTALE_RETURN_IF_ERROR(Write(encoded));
  for (const SealedRecord& record : records) {
    counters_.segment_bytes += record.bytes;
    // A seal that is done again after a crash replaces what was said of the same file.
    std::erase_if(sealed_, [&](const SealedRecord& old) { return old.file == record.file; });
    sealed_.push_back(record);
  }
  for (OldJournal& journal : old_) {
    if (journal.number != number) continue;
    journal.sealing = false;
    journal.sealed = true;
    journal.delete_at_ns = Now() + options_.delete_delay_ns;
    journal.sync_ticket = sync_ticket_ + 1;  // The next sync covers the records.
  }
  return {};
}

Status WriterImpl::TakeSealings() {
  std::vector<Shared::Sealing> sealings;
  {
    const std::lock_guard lock(shared_->mutex);
    sealings.swap(shared_->sealings);
  }
  Status first_error;
  for (Shared::Sealing& sealing : sealings) {
    Status status = sealing.status;
    if (status.ok()) status = Took(sealing.journal, sealing.records);
    if (status.ok()) continue;
    if (first_error.ok()) first_error = status;
    for (OldJournal& journal : old_) {
      if (journal.number != sealing.journal) continue;
      journal.sealing = false;
      journal.retry_at_ns = Now() + kSealRetryNs;
    }
  }
  return first_error;
}

void WriterImpl::DeleteDue(bool all) {
  std::uint64_t synced = 0;
  {
    const std::lock_guard lock(shared_->mutex);
    synced = shared_->synced_ticket;
  }
  // In the order of numbers: readers take a missing journal for the sign that its successor is due.
  std::sort(old_.begin(), old_.end(),
            [](const OldJournal& a, const OldJournal& b) { return a.number < b.number; });
  while (!old_.empty()) {
    const OldJournal& journal = old_.front();
    const bool due = all || disk_full_ || Now() >= journal.delete_at_ns;
    if (!journal.sealed || journal.sync_ticket > synced || !due) break;
    run_files::Remove(run_files::OfFolder(folder_ / JournalFileName(journal.number)));
    old_.erase(old_.begin());
  }
}

void WriterImpl::RemoveTemporaries() {
  const Result<FolderListing> listing = ListFolder(folder_);
  if (!listing.ok()) return;
  for (const std::string& file : listing->temporaries) {
    run_files::Remove(run_files::OfFolder(folder_ / file));
  }
}

Status WriterImpl::Rotate() {
  TELLTALE_RETURN_IF_ERROR(BeginJournal());
  RequestSeals();
  return {};
}

Status WriterImpl::Tick() {
  if (closed_) return {};
  Status status = TakeSealings();
  bool sync_failed = false;
  {
    const std::lock_guard lock(shared_->mutex);
    std::swap(sync_failed, shared_->sync_failed);
  }
  const auto keep = [&](Status next) {
    if (status.ok()) status = std::move(next);
  };
  if (sync_failed) {
    ++counters_.sync_failures;
    keep({Code::kIo, fmt::format("cannot sync {}: the disk reports an error; the journal was "
                                 "closed and a new one begun, check the disk",
                                 folder_.string())});
  }
  if (journal_ != nullptr) {
    const bool old_enough = Now() - journal_began_ns_ >= options_.seal_interval_ns;
    const bool large = journal_->size() - head_bytes_ >= options_.seal_bytes;
    if (sync_failed || (rows_in_journal_ > 0 && old_enough) || large) {
      if (const Status rotated = Rotate(); !rotated.ok() && !disk_full_) keep(rotated);
    } else if (Now() - synced_at_ns_ >= options_.sync_interval_ns &&
               journal_->size() > synced_bytes_) {
      RequestSync();
    }
  }
  RequestSeals();
  DeleteDue(false);
  return status;
}

Status WriterImpl::SealAllNow() {
  Status first_error;
  for (std::size_t i = 0; i < old_.size(); ++i) {
    if (old_[i].sealed) continue;
    const std::uint64_t number = old_[i].number;
    Result<std::vector<SealedRecord>> records = SealJournal(folder_, name_, number);
    Status status = records.ok() ? Took(number, *records) : records.status();
    if (!status.ok() && first_error.ok()) first_error = status;
  }
  return first_error;
}

Status WriterImpl::Close(bool ended) {
  if (closed_) return {};
  closed_ = true;
  // The thread of idle priority may starve on a busy machine: what it does not finish soon is done
  // here again.
  seal_thread_.reset();
  Status status = TakeSealings();
  if (ended) {
    if (journal_ != nullptr && rows_in_journal_ > 0) {
      if (const Status begun = BeginJournal(); status.ok()) status = begun;
    }
    if (const Status sealed = SealAllNow(); status.ok()) status = sealed;
    const EndRecord end{.watermark_ns = watermark_ns_,
                        .ended_ns = Now() + monotonic_to_run_ns_,
                        .next_seq = next_seq_};
    if (const Status written = Write({Encode(end)}); status.ok()) status = written;
  }
  if (journal_ != nullptr) RequestSync();
  sync_thread_->Drain();
  sync_thread_.reset();
  if (ended) {
    DeleteDue(true);
    shared_->gate.Close();
    RemoveTemporaries();
  }
  journal_.reset();
  lock_.reset();
  return status;
}

}  // namespace

Result<std::unique_ptr<Writer>> Writer::Open(std::filesystem::path folder, std::string name,
                                             WriterOptions options) {
  if (const int error = run_files::MakeFolder(run_files::OfRun(folder));
      error != 0 && error != EEXIST) {
    return {Code::kIo,
            fmt::format("cannot create {}: {}", folder.string(), run_files::WhyNot(error))};
  }
  const std::filesystem::path lock_path = folder / kLockName;
  UniqueFd lock = run_files::OpenToWrite(run_files::OfFolder(lock_path), run_files::Writing::kKept);
  if (!lock) {
    return {Code::kIo,
            fmt::format("cannot open {}: {}", lock_path.string(), run_files::WhyNot(errno))};
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    const auto holder = ReadRunFile(run_files::OfFolder(lock_path), kMostLockBytes);
    return {Code::kRunning,
            fmt::format("{} is being written by process {}; end it or choose another run folder",
                        folder.string(), holder.ok() && !holder->empty() ? *holder : "(unknown)")};
  }
  // For people and for the message above; the lock itself is the kernel's.
  const std::string pid = fmt::format("{}", ::getpid());
  if (::ftruncate(lock.get(), 0) != 0 ||
      ::pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    // A full disk: the lock holds all the same.
  }
  auto writer =
      std::make_unique<WriterImpl>(std::move(folder), std::move(name), options, std::move(lock));
  TELLTALE_RETURN_IF_ERROR(writer->Recover());
  return std::unique_ptr<Writer>(std::move(writer));
}

}  // namespace telltale::store
