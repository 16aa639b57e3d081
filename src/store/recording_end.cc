// SPDX-License-Identifier: Apache-2.0
#include "store/recording_end.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/clock.h"
#include "base/process.h"
#include "base/run_files.h"
#include "base/string_pool.h"
#include "store/folder.h"
#include "store/journal_reader.h"

namespace telltale::store {
namespace {

constexpr std::uint64_t kEndReadBytes = 1 << 20;
constexpr std::uint64_t kHeadBytes = 4096;
constexpr std::uint64_t kMostLock = 64;

/// Whether the agent that holds the folder is at work on this machine. REQUIRES: its pid means the
/// same process to us.
bool AgentLives(const std::filesystem::path& folder) {
  const Result<std::string> holder =
      ReadRunFile(run_files::OfFolder(folder / kLockName), kMostLock);
  if (!holder.ok()) return false;
  std::int32_t pid = 0;
  const auto [end, error] = std::from_chars(holder->data(), holder->data() + holder->size(), pid);
  // A zombie has no command line, and a later process with that number another one.
  return error == std::errc() && pid > 0 &&
         ProcessCommandLine(pid).find(" agent --run ") != std::string::npos;
}

}  // namespace

std::optional<WriterEnd> EndOfWriter(const std::filesystem::path& folder) {
  const Result<FolderListing> listing = ListFolder(folder);
  if (!listing.ok() || listing->journals.empty()) return std::nullopt;
  // Each journal begins with the watermark of the one before: the newest that can be read has it
  // all.
  for (auto number = listing->journals.rbegin(); number != listing->journals.rend(); ++number) {
    const auto file = JournalFile::Open(folder / JournalFileName(*number));
    if (!file.ok()) continue;
    WriterEnd out;
    bool any = false;
    while (true) {
      StringPool pool;
      JournalChunk chunk;
      if (!(*file)->Read(true, kEndReadBytes, &pool, &chunk).ok() || chunk.records == 0) break;
      any = true;
      if (chunk.header) out.watermark_ns = std::max(out.watermark_ns, chunk.header->watermark_ns);
      out.watermark_ns = std::max(out.watermark_ns, chunk.batch.watermark_ns);
      if (chunk.end) {
        out.watermark_ns = std::max(out.watermark_ns, chunk.end->watermark_ns);
        out.ended = true;
      }
    }
    if (any) return out;
  }
  return WriterEnd{};
}

std::optional<Unrecorded> RecordingEnd::Find(const std::filesystem::path& run, const RunInfo& info,
                                             bool running) {
  const bool here = CanAskProcesses(info);
  if (running && (!here || ProcessAlive(info.supervisor_pid, info.supervisor_start_ticks))) {
    return std::nullopt;
  }
  const std::int64_t begin_ns = info.attempts.empty() ? 0 : info.attempts.back().start_ns;
  std::optional<Unrecorded> out;
  bool any = false;
  for (const std::string& name : ListWriters(run)) {
    if (!name.starts_with(kAgentPrefix)) continue;
    any = true;
    const std::filesystem::path folder = run / name;
    if (here && AgentLives(folder)) continue;
    Known& known = known_[name];
    const Result<FolderListing> listing = ListFolder(folder);
    const std::uint64_t journal =
        listing.ok() && !listing->journals.empty() ? listing->journals.back() : 0;
    struct stat file {};
    const bool seen =
        journal != 0 &&
        run_files::StatOf(run_files::OfFolder(folder / JournalFileName(journal)), &file);
    const std::uint64_t bytes = seen ? static_cast<std::uint64_t>(file.st_size) : 0;
    if (known.journal != journal || known.bytes != bytes || bytes == 0) {
      known = {journal, bytes, EndOfWriter(folder)};
    }
    if (!known.end || known.end->ended) continue;
    // One that wrote nothing has recorded nothing of this attempt.
    const std::int64_t since_ns = known.end->watermark_ns == 0 ? begin_ns : known.end->watermark_ns;
    if (!out || since_ns < out->since_ns) out = Unrecorded{name, since_ns};
  }
  // No agent came so far as to have a folder.
  if (!any && !info.finished && !info.attempts.empty()) out = Unrecorded{{}, begin_ns};
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
