// SPDX-License-Identifier: Apache-2.0
#include "agent/tensor_writer.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <deque>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/run_files.h"
#include "base/unique_fd.h"
#include "store/folder.h"

namespace telltale::agent {
namespace {

using std::chrono::steady_clock;

/// A disk that refused is asked again so much later, and what comes meanwhile is dropped at once.
constexpr std::chrono::milliseconds kRefusedPause{500};
/// Between looks at a file that may have got nothing for long.
constexpr std::chrono::milliseconds kLook{1000};
/// So much may be written between two looks at the free space.
constexpr std::uint64_t kSpaceCheckBytes = 4U << 20;
/// How long the thread may take to end what it is doing.
constexpr std::chrono::seconds kGrace{2};

/// What lies in tensors/ when a writer comes to it.
struct Found {
  std::uint64_t next_number = 1;
  std::set<std::string> parts;  ///< As rows name them.
};

Found Look(const std::filesystem::path& folder) {
  Found found;
  std::vector<run_files::Entry> entries;
  run_files::List(run_files::OfFolder(folder / store::kTensorFolder), &entries);
  for (const run_files::Entry& entry : entries) {
    const auto name = store::ParseTensorFileName(entry.name);
    if (!name) continue;
    found.next_number = std::max(found.next_number, name->number + 1);
    if (name->part) found.parts.insert(store::TensorFileName(name->number));
  }
  return found;
}

}  // namespace

/// An index row with its texts.
struct TensorWriter::Row {
  format::TensorRow row;  ///< Its views are set when it is offered.
  std::string name, collection, mode, shape, file, digest;
  std::string_view dtype;                ///< Of the table of dtypes, or empty.
  bool is_tensor = true;                 ///< Not a header's.
  bool in_index = true;                  ///< False: nothing to journal, only to seal.
  std::shared_ptr<const UniqueFd> seal;  ///< The file, which this row completes.

  void SetViews() {
    row.name = name;
    row.collection = collection;
    row.mode = mode;
    row.shape = shape;
    row.file = file;
    row.digest = digest;
    row.dtype = dtype;
  }
};

/// A tensor whose values wait for the disk.
struct TensorWriter::Job {
  Row row;
  std::string values;                         ///< Where they came in the ring.
  std::shared_ptr<channel::SlabReader> slab;  ///< Where not.
  std::uint32_t slot = 0;

  void FreeSlots() const {
    if (slab != nullptr) slab->Free(slot, row.row.bytes);
  }
};

/// What the two threads share.
struct TensorWriter::State {
  State(std::filesystem::path in, TensorWriterOptions with)
      : folder(std::move(in)), options(std::move(with)) {}

  const std::filesystem::path folder;
  const TensorWriterOptions options;
  Found found;  ///< Set before the thread starts.
  // The agent's alone: taken from `done`, not yet in the journal.
  std::deque<Row> rows;
  std::size_t offered = 0;

  mutable std::mutex mutex;
  std::condition_variable changed;
  // All that follows is guarded by the mutex.
  std::deque<Job> jobs;
  std::uint64_t waiting_bytes = 0;
  bool working = false;  ///< One job is out of the queue.
  bool finish = false;
  bool finished = false;
  bool stop = false;
  bool ended = false;  ///< The thread.
  std::deque<Row> done;
  std::uint64_t seals = 0;  ///< Posted, not done.
  TensorCounters counters;
};

/// The thread.
class TensorWriter::Loop {
 public:
  explicit Loop(std::shared_ptr<State> state)
      : state_(std::move(state)), s_(*state_), next_number_(s_.found.next_number) {}

  void Run() {
    FinishParts();
    std::unique_lock lock(s_.mutex);
    while (!s_.stop) {
      if (s_.jobs.empty()) {
        if (s_.finish) {
          lock.unlock();
          CloseFile();
          CloseRest();
          lock.lock();
          s_.finished = s_.jobs.empty();
          s_.changed.notify_all();
          if (s_.finished) break;
        }
        const auto something = [&] { return s_.stop || s_.finish || !s_.jobs.empty(); };
        if (file_ == nullptr && unclosed_.empty()) {
          s_.changed.wait(lock, something);
        } else if (!s_.changed.wait_for(lock, std::min(kLook, s_.options.idle), something)) {
          lock.unlock();
          if (file_ != nullptr && steady_clock::now() - added_at_ >= s_.options.idle) CloseFile();
          CloseRest();
          lock.lock();
        }
        continue;
      }
      Job job = std::move(s_.jobs.front());
      s_.jobs.pop_front();
      s_.waiting_bytes -= job.values.size();
      s_.working = true;
      lock.unlock();
      std::uint64_t TensorCounters::*dropped = Write(&job);
      job.FreeSlots();
      job.slab.reset();  // The agent asks whether anybody uses it.
      lock.lock();
      s_.working = false;
      // Else it was counted when the writer gave up.
      if (!s_.stop) Settle(&job, dropped);
    }
    // What the disk gave no header keeps the name of an unfinished file.
    s_.counters.unfinished_files += unclosed_.size() + (file_ != nullptr ? 1 : 0);
    s_.ended = true;
    s_.changed.notify_all();
  }

 private:
  /// REQUIRES: the mutex.
  void Settle(Job* job, std::uint64_t TensorCounters::*dropped) {
    if (dropped != nullptr) {
      ++(s_.counters.*dropped);
      return;
    }
    ++s_.counters.stored;
    s_.counters.stored_bytes += job->row.row.bytes;
    s_.done.push_back(std::move(job->row));
  }

  /// The disk refused: says so once, and is left alone for a while.
  std::uint64_t TensorCounters::*Refused(const Status& status) {
    if (!refused_) std::fprintf(stderr, "agent: raw values: %s\n", status.message().c_str());
    refused_ = true;
    again_at_ = steady_clock::now() + kRefusedPause;
    return &TensorCounters::dropped_disk;
  }

  Status CheckSpace(std::uint64_t bytes) {
    unchecked_bytes_ += bytes;
    if (!refused_ && unchecked_bytes_ < kSpaceCheckBytes) return {};
    const auto free = run_files::FreeBytes(run_files::OfRun(s_.folder));
    if (!free) return {};  // The write itself will tell.
    if (*free >= s_.options.min_free_bytes + bytes) {
      unchecked_bytes_ = 0;
      return {};
    }
    return {Code::kIo, fmt::format("{} has {} MiB free: no more are stored: free some space",
                                   s_.folder.string(), *free >> 20)};
  }

  /// Null where the values are in the file, else where it is counted that they are not.
  std::uint64_t TensorCounters::*Write(Job* job) {
    Row& row = job->row;
    if (refused_ && steady_clock::now() < again_at_) return &TensorCounters::dropped_disk;
    std::span<const std::byte> values = std::as_bytes(std::span(job->values));
    if (job->slab != nullptr) {
      values = job->slab->Data(job->slot, row.row.bytes);
      if (values.size() != row.row.bytes) return &TensorCounters::dropped_slab;
    }
    row.SetViews();
    if (file_ != nullptr &&
        (file_->size() >= s_.options.close_bytes || file_->broken() || !file_->HasRoom(row.row))) {
      CloseFile();
    }
    if (const Status space = CheckSpace(row.row.bytes); !space.ok()) return Refused(space);
    if (s_.options.before_write) s_.options.before_write();
    if (file_ == nullptr) {
      bool no_space = false;
      auto file = store::TensorFileWriter::Create(s_.folder, next_number_, &no_space,
                                                  s_.options.header_bytes);
      if (!file.ok()) return Refused(file.status());
      ++next_number_;
      file_ = std::move(file).value();
    }
    const Result<store::Placed> placed = file_->Append(row.row, values);
    if (!placed.ok()) {
      // A name that no header has room for: the disk is not to blame.
      if (placed.status().code() == Code::kLimit) return &TensorCounters::dropped_slab;
      return Refused(placed.status());
    }
    refused_ = false;
    added_at_ = steady_clock::now();
    row.file = file_->file();
    row.digest = placed->digest;
    row.row.offset = placed->offset;
    last_.time_ns = row.row.time_ns;
    last_.attempt = row.row.attempt;
    return nullptr;
  }

  /// Writes the header of the file, which is sealed once that header's row is in the journal.
  void CloseFile() {
    if (file_ == nullptr) return;
    unclosed_.push_back(std::move(file_));
    CloseRest();
  }

  void CloseRest() {
    std::erase_if(unclosed_, [&](const std::unique_ptr<store::TensorFileWriter>& file) {
      if (file->empty()) {
        const auto part = s_.folder / (file->file() + std::string(store::kPartSuffix));
        run_files::Remove(run_files::OfSubfolder(part));
        return true;
      }
      const Result<store::Placed> placed = file->WriteHeader();
      if (!placed.ok()) {
        if (!std::exchange(said_, true)) {
          std::fprintf(stderr, "agent: raw values: %s\n", placed.status().message().c_str());
        }
        return false;
      }
      PushHeader(file->file(), file->fd(), *placed);
      return true;
    });
  }

  void PushHeader(const std::string& file, std::shared_ptr<const UniqueFd> fd,
                  const store::Placed& placed) {
    Row row;
    row.row = last_;
    row.row.offset = placed.offset;
    row.row.bytes = placed.bytes;
    row.name = store::kHeaderRow;
    row.file = file;
    row.digest = placed.digest;
    row.is_tensor = false;
    row.seal = std::move(fd);
    const std::lock_guard lock(s_.mutex);
    s_.done.push_back(std::move(row));
  }

  void FinishParts() {
    if (s_.found.parts.empty()) return;
    const auto index = store::ReadTensorIndex(s_.folder, s_.found.parts);
    for (const std::string& file : s_.found.parts) {
      Status status = index.status();
      if (index.ok()) status = FinishOne(file, **index);
      if (status.ok()) continue;
      std::fprintf(stderr, "agent: raw values: %s\n", status.message().c_str());
      const std::lock_guard lock(s_.mutex);
      ++s_.counters.unfinished_files;
    }
  }

  Status FinishOne(const std::string& file, const store::TensorIndex& index) {
    const auto found = index.rows.find(file);
    std::span<const format::TensorRow> rows;
    if (found != index.rows.end()) rows = found->second;
    TELLTALE_ASSIGN_OR_RETURN(const store::FinishedPart done,
                              store::FinishPart(s_.folder, file, rows));
    if (done.fd == nullptr) return {};
    last_.time_ns = rows.back().time_ns;
    last_.attempt = rows.back().attempt;
    if (done.header) {
      PushHeader(file, done.fd, *done.header);
      return {};
    }
    Row row;
    row.file = file;
    row.is_tensor = row.in_index = false;
    row.seal = done.fd;
    const std::lock_guard lock(s_.mutex);
    s_.done.push_back(std::move(row));
    return {};
  }

  const std::shared_ptr<State> state_;
  State& s_;
  std::uint64_t next_number_;
  std::unique_ptr<store::TensorFileWriter> file_;
  /// Full or idle, but the disk did not take their headers yet.
  std::vector<std::unique_ptr<store::TensorFileWriter>> unclosed_;
  steady_clock::time_point added_at_;
  format::TensorRow last_;  ///< Time and attempt of the newest tensor: a header's row has them too.
  bool refused_ = false;    ///< The disk took nothing at the last try.
  bool said_ = false;
  steady_clock::time_point again_at_;
  std::uint64_t unchecked_bytes_ = kSpaceCheckBytes;
};

TensorWriter::TensorWriter(std::filesystem::path folder, TensorWriterOptions options)
    : state_(std::make_shared<State>(std::move(folder), std::move(options))) {
  state_->found = Look(state_->folder);
  if (!state_->found.parts.empty()) Start();
}

TensorWriter::~TensorWriter() {
  GiveUp();
  if (!thread_.joinable()) return;
  std::unique_lock lock(state_->mutex);
  const bool ended = state_->changed.wait_for(lock, kGrace, [&] { return state_->ended; });
  lock.unlock();
  // A disk that hangs holds the thread, not us.
  ended ? thread_.join() : thread_.detach();
}

void TensorWriter::Start() {
  if (thread_.joinable()) return;
  // Signals are for the threads of the program, not for this one.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([state = state_] { Loop(state).Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void TensorWriter::Add(const channel::DrainedTensor& tensor,
                       std::shared_ptr<channel::SlabReader> slab, std::uint32_t attempt) {
  Job job;
  job.row.row.bytes = tensor.bytes;
  const store::TensorDtype* const dtype = store::FindTensorDtype(tensor.dtype);
  if (tensor.slot) {
    job.slab = std::move(slab);
    job.slot = *tensor.slot;
  }
  const bool there = tensor.slot ? job.slab != nullptr : tensor.values.size() == tensor.bytes;
  const bool sound =
      dtype != nullptr && store::TensorBytes(tensor.shape, dtype->bytes) == tensor.bytes;
  std::unique_lock lock(state_->mutex);
  std::uint64_t TensorCounters::*dropped = nullptr;
  if (!there || !sound) {
    dropped = &TensorCounters::dropped_slab;
  } else if (state_->stop || state_->finish) {
    dropped = &TensorCounters::dropped_end;
  } else if (state_->waiting_bytes + tensor.values.size() > state_->options.max_waiting_bytes ||
             state_->rows.size() + state_->done.size() >= state_->options.max_waiting_rows) {
    dropped = &TensorCounters::dropped_queue;
  }
  if (dropped != nullptr) {
    ++(state_->counters.*dropped);
    lock.unlock();
    job.FreeSlots();
    return;
  }
  lock.unlock();
  job.values = tensor.values;
  job.row.name = tensor.name;
  job.row.collection = tensor.collection;
  job.row.mode = tensor.mode;
  job.row.shape = store::ShapeText(tensor.shape);
  job.row.dtype = dtype->name;
  job.row.row.ord_ns = tensor.time_ns;
  job.row.row.time_ns = tensor.time_ns;
  job.row.row.step = tensor.step;
  job.row.row.rank = tensor.rank;
  job.row.row.pid = tensor.pid;
  job.row.row.attempt = attempt;
  Start();
  lock.lock();
  state_->waiting_bytes += job.values.size();
  state_->jobs.push_back(std::move(job));
  lock.unlock();
  state_->changed.notify_all();
}

std::uint64_t TensorWriter::AddTo(format::Batch* batch) {
  std::deque<Row>& rows = state_->rows;
  {
    const std::lock_guard lock(state_->mutex);
    std::move(state_->done.begin(), state_->done.end(), std::back_inserter(rows));
    state_->done.clear();
  }
  state_->offered = std::min(rows.size(), state_->options.max_rows);
  std::uint64_t tensors = 0;
  for (std::size_t i = 0; i < state_->offered; ++i) {
    Row& row = rows[i];
    if (!row.in_index) continue;
    row.SetViews();
    row.row.ord_ns = row.row.time_ns;
    batch->rows.tensors.push_back(row.row);
    tensors += row.is_tensor ? 1 : 0;
  }
  return tensors;
}

void TensorWriter::Sent() {
  for (; state_->offered > 0; --state_->offered) {
    if (state_->rows.front().seal != nullptr) Seal(state_->rows.front());
    state_->rows.pop_front();
  }
}

bool TensorWriter::HasRows() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->rows.empty() || !state_->done.empty();
}

bool TensorWriter::waits() const {
  const std::lock_guard lock(state_->mutex);
  return state_->working || !state_->jobs.empty() || !state_->rows.empty() || !state_->done.empty();
}

void TensorWriter::Seal(const Row& row) {
  if (sync_ == nullptr) sync_ = std::make_unique<store::Worker>(store::Worker::Priority::kNormal);
  {
    const std::lock_guard lock(state_->mutex);
    ++state_->seals;
  }
  sync_->Post([state = state_, fd = row.seal, file = row.file] {
    const Status status = store::SealTensorFile(fd->get(), state->folder, file);
    if (!status.ok()) std::fprintf(stderr, "agent: raw values: %s\n", status.message().c_str());
    const std::lock_guard lock(state->mutex);
    --state->seals;
    // Its rows hold all the same; nobody asks such a file for another sync.
    if (!status.ok()) ++state->counters.sync_failures;
    state->changed.notify_all();
  });
}

void TensorWriter::Finish() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->finish = true;
    if (!thread_.joinable()) state_->finished = true;
  }
  state_->changed.notify_all();
}

bool TensorWriter::finished() const {
  const std::lock_guard lock(state_->mutex);
  return state_->finished;
}

void TensorWriter::GiveUp() {
  std::deque<Job> jobs;
  {
    const std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->stop, true)) return;
    jobs.swap(state_->jobs);
    state_->counters.dropped_end += jobs.size() + (state_->working ? 1 : 0);
  }
  state_->changed.notify_all();
  for (const Job& job : jobs) job.FreeSlots();
}

bool TensorWriter::AwaitSeals(std::chrono::milliseconds limit) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, limit, [&] { return state_->seals == 0; });
}

TensorCounters TensorWriter::counters() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counters;
}

}  // namespace telltale::agent
