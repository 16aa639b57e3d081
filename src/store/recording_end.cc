// SPDX-License-Identifier: Apache-2.0
#include "store/recording_end.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "base/run_files.h"
#include "base/string_pool.h"
#include "base/unique_fd.h"
#include "store/folder.h"
#include "store/journal_reader.h"
#include "store/reader.h"
#include "store/scan_writers.h"

namespace telltale::store {
namespace {

constexpr std::uint64_t kEndReadBytes = 1 << 20;
constexpr std::uint64_t kHeadBytes = 4096;
constexpr std::uint64_t kMostLock = 64;
/// Attempts before of which a loss is told.
constexpr std::size_t kMostBefore = 16;
/// Attempts of a run of which it is known whether they were recorded, the newest.
constexpr std::size_t kMostAttempts = 4096;

/// Whether both are the same folder; none where that cannot be told.
std::optional<bool> SameFolder(const std::filesystem::path& a, const std::filesystem::path& b) {
  const UniqueFd one = run_files::OpenFolder({a, "."});
  const UniqueFd other = run_files::OpenFolder({b, "."});
  struct stat of_one {};
  struct stat of_other {};
  if (!one || !other || ::fstat(one.get(), &of_one) != 0 || ::fstat(other.get(), &of_other) != 0) {
    return std::nullopt;
  }
  return of_one.st_dev == of_other.st_dev && of_one.st_ino == of_other.st_ino;
}

/// Whether the run's agent that holds the folder is at work on this machine. REQUIRES: its pid
/// means the same process to us.
bool AgentLives(const std::filesystem::path& run, const std::string& writer) {
  const Result<std::string> holder =
      ReadRunFile(run_files::OfFolder(run / writer / kLockName), kMostLock);
  if (!holder.ok()) return false;
  std::int32_t pid = 0;
  const auto [end, error] = std::from_chars(holder->data(), holder->data() + holder->size(), pid);
  if (error != std::errc() || pid <= 0) return false;
  // A zombie has no command line, and a later process with that number another one: the agent of
  // another run too.
  const std::vector<std::string> words = ProcessArguments(pid);
  for (std::size_t i = 1; i + 2 < words.size(); ++i) {
    if (words[i] != "agent" || words[i + 1] != "--run") continue;
    // A folder that was renamed meanwhile, or is of another mount, is taken for its own.
    const std::filesystem::path theirs = words[i + 2];
    return !theirs.is_absolute() || SameFolder(theirs, run).value_or(true);
  }
  return false;
}

/// The attempts of which the writer has a row. A row says it itself: clocks of two machines differ,
/// and the wall clock may be set between two attempts. `damaged`: there may have been rows of
/// others.
std::set<std::uint32_t> AttemptsOf(const std::filesystem::path& run, const std::string& writer,
                                   bool* damaged) {
  std::set<std::uint32_t> attempts;
  const auto add = [&](std::uint32_t attempt) {
    attempts.insert(attempt);
    // The newest are those that are asked for.
    if (attempts.size() > kMostAttempts) attempts.erase(attempts.begin());
  };
  const auto visit = [&](const std::string&, const format::Rows& rows) {
    for (const auto& row : rows.events) add(row.attempt);
    for (const auto& row : rows.ledger) add(row.attempt);
    return true;
  };
  Salvage salvage;
  const std::uint32_t tables = MaskOf(format::TableId::kEvents) | MaskOf(format::TableId::kLedger);
  // Of what cannot be read the rest is used.
  const Status read = ScanWriters(run, {writer}, true, tables, visit, &salvage);
  *damaged = !read.ok() || salvage.any();
  return attempts;
}

}  // namespace

std::optional<WriterEnd> EndOfWriter(const std::filesystem::path& folder) {
  const Result<FolderListing> listing = ListFolder(folder);
  if (!listing.ok()) return std::nullopt;
  WriterEnd out;
  // One that came and went before it could write anything has left its lock alone.
  if (listing->journals.empty()) {
    return listing->segments.empty() ? std::optional(out) : std::nullopt;
  }
  // Each journal begins with what those before it came to: the newest in which there is more than
  // that tells how the writer ended.
  for (auto number = listing->journals.rbegin(); number != listing->journals.rend(); ++number) {
    const auto file = JournalFile::Open(folder / JournalFileName(*number));
    if (!file.ok()) continue;
    std::int64_t begun_ns = 0;
    bool more = false;
    while (true) {
      StringPool pool;
      JournalChunk chunk;
      if (!(*file)->Read(true, kEndReadBytes, &pool, &chunk).ok() || chunk.records == 0) break;
      if (chunk.header) begun_ns = chunk.header->watermark_ns;
      out.watermark_ns = std::max({out.watermark_ns, begun_ns, chunk.batch.watermark_ns});
      more = more || chunk.batch.watermark_ns > begun_ns;
      format::ForEachTable(chunk.batch.rows,
                           [&](const auto& rows) { more = more || !rows.empty(); });
      if (chunk.end) {
        out.watermark_ns = std::max(out.watermark_ns, chunk.end->watermark_ns);
        out.ended = more = true;
      }
    }
    if (more) return out;
  }
  return out;
}

const RecordingEnd::Known& RecordingEnd::Look(const std::filesystem::path& run,
                                              const std::string& writer, bool which_attempts) {
  const std::filesystem::path folder = run / writer;
  Known now;
  now.read = true;
  if (const Result<FolderListing> listing = ListFolder(folder); listing.ok()) {
    if (!listing->journals.empty()) now.journal = listing->journals.back();
    now.segments = listing->segments.size();
  }
  struct stat file {};
  if (now.journal != 0 &&
      run_files::StatOf(run_files::OfFolder(folder / JournalFileName(now.journal)), &file)) {
    now.bytes = static_cast<std::uint64_t>(file.st_size);
  }
  Known& known = known_[writer];
  if (known.read && known.journal == now.journal && known.bytes == now.bytes &&
      known.segments == now.segments) {
    return known;
  }
  now.end = EndOfWriter(folder);
  if (which_attempts) now.attempts = AttemptsOf(run, writer, &now.damaged);
  known = now;
  return known;
}

RecordingLoss RecordingEnd::Find(const std::filesystem::path& run, const RunInfo& info,
                                 bool running) {
  const bool here = CanAskProcesses(info);
  if (running && (!here || ProcessAlive(info.supervisor_pid, info.supervisor_start_ticks))) {
    return {};
  }
  const bool several = info.attempts.size() > 1;
  const std::int64_t begin_ns = info.attempts.empty() ? 0 : info.attempts.back().start_ns;
  RecordingLoss out;
  bool recorded = false;  ///< Somebody has written something of the newest attempt.
  bool silent = false;    ///< Somebody came and wrote nothing.
  std::set<std::uint32_t> seen;
  bool damaged = false;
  for (const std::string& name : ListWriters(run)) {
    if (!name.starts_with(kAgentPrefix)) continue;
    const bool lives = here && AgentLives(run, name);
    // Its rows grow all the time, so they are not read as long as the run goes on.
    if (lives && (running || !several)) {
      recorded = true;
      continue;
    }
    const Known& known = Look(run, name, several);
    seen.insert(known.attempts.begin(), known.attempts.end());
    damaged = damaged || known.damaged;
    if (lives) {
      recorded = true;
      continue;
    }
    if (known.end && known.end->watermark_ns == 0) {
      silent = true;
      continue;
    }
    const bool newest = !several || (!known.attempts.empty() &&
                                     *known.attempts.rbegin() >= info.attempts.back().number);
    recorded = recorded || newest;
    if (!known.end || known.end->ended) continue;
    const Unrecorded lost{name, known.end->watermark_ns};
    if (!newest) {
      if (out.before.size() < kMostBefore) out.before.push_back(lost);
    } else if (!out.newest || lost.since_ns < out.newest->since_ns) {
      out.newest = lost;
    }
  }
  // A run that was imported has no agent and no supervisor.
  const bool expected = !info.attempts.empty() && (info.supervisor_pid != 0 || !info.finished);
  if (!recorded && (expected || silent)) out.newest = Unrecorded{{}, begin_ns};
  // Missing rows are told as damage; which attempt they were of is not known.
  if (!several || running || !expected || damaged || info.attempts.size() > kMostAttempts)
    return out;
  for (std::size_t i = 0; i + 1 < info.attempts.size(); ++i) {
    const Attempt& attempt = info.attempts[i];
    if (seen.contains(attempt.number) || out.before.size() >= kMostBefore) continue;
    out.before.push_back(Unrecorded{{}, attempt.start_ns});
  }
  return out;
}

std::int64_t RunClockNow(const std::filesystem::path& run) {
  const Clock& clock = Clock::System();
  for (const std::string& name : ListWriters(run)) {
    const Result<FolderListing> listing = ListFolder(run / name);
    if (!listing.ok() || listing->journals.empty()) continue;
    const auto file = JournalFile::Open(run / name / JournalFileName(listing->journals.back()));
    StringPool pool;
    JournalChunk chunk;
    if (!file.ok() || !(*file)->Read(false, kHeadBytes, &pool, &chunk).ok() || !chunk.header)
      continue;
    if (chunk.header->boot_id != BootId()) continue;
    return clock.MonotonicNs() + chunk.header->monotonic_to_run_ns;
  }
  return clock.RealtimeNs();
}

}  // namespace telltale::store
