// SPDX-License-Identifier: Apache-2.0
// A run directory whose files were replaced: links, pipes, folders, duplicates, cut and huge files.
// The input's first byte says who reads it; the rest is operations of three bytes: what is done, to
// which file, and how much.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "fuzz.h"
#include "healthy_run.h"
#include "run_readers.h"
#include "store/requests.h"

namespace telltale::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::array kReaders = {CheckRun, MeasureRun, ServeRun, QueryRun, ExportRun, WriteIntoRun};

std::vector<fs::path> PathsOf(const fs::path& run) {
  std::vector<fs::path> paths = {run / "run.json"};
  std::error_code error;
  for (fs::recursive_directory_iterator at(run, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().filename() != "run.json") paths.push_back(at->path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<fs::path> EntriesOf(const fs::path& folder) {
  std::vector<fs::path> entries(fs::directory_iterator(folder), {});
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// Whether the way to it from the run leads through no link: what an earlier operation made must
/// not lead a later one out of the run, or round in a circle.
bool LiesInTheRun(const fs::path& run, const fs::path& path) {
  std::error_code error;
  for (fs::path at = path.parent_path(); at != run; at = at.parent_path()) {
    if (fs::is_symlink(fs::symlink_status(at, error))) return false;
  }
  return true;
}

/// A copy under a name that is free, links as links. A file that was made huge is left out: the
/// disk would hold its copy in full.
void Copy(const fs::path& from, const fs::path& to) {
  constexpr std::uintmax_t kMostBytes = 1 << 20;
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(to, ignored))) return;
  const fs::file_status what = fs::symlink_status(from, ignored);
  if (fs::is_symlink(what)) {
    fs::copy_symlink(from, to, ignored);
  } else if (fs::is_directory(what)) {
    fs::create_directory(to, ignored);
    for (fs::directory_iterator at(from, ignored), end; !ignored && at != end;
         at.increment(ignored)) {
      Copy(at->path(), to / at->path().filename());
    }
  } else if (fs::is_regular_file(what) && fs::file_size(from, ignored) <= kMostBytes) {
    fs::copy_file(from, to, ignored);
  }
}

/// What is no plain file stays as it is.
UniqueFd OpenToWrite(const fs::path& path, int how) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | how, 0600));
}

void Resize(const fs::path& path, std::int64_t bytes) {
  if (const UniqueFd fd = OpenToWrite(path, 0)) static_cast<void>(::ftruncate(fd.get(), bytes));
}

void Append(const fs::path& path, const std::string& bytes) {
  const UniqueFd fd = OpenToWrite(path, O_CREAT | O_APPEND);
  if (fd) static_cast<void>(!::write(fd.get(), bytes.data(), bytes.size()));
}

void Change(const fs::path& run, std::uint8_t what, const fs::path& path, std::uint8_t much) {
  if (!LiesInTheRun(run, path)) return;
  std::error_code ignored;
  const auto link_to = [&](const fs::path& to) {
    fs::remove_all(path, ignored);
    fs::create_symlink(to, path, ignored);
  };
  switch (what % 10) {
    case 0:
      fs::remove_all(path, ignored);
      break;
    case 1: {
      const std::array<fs::path, 6> ends = {ScratchRoot() / "outside", path,       "nowhere", run,
                                            run.parent_path(),         "/dev/null"};
      link_to(ends[much % ends.size()]);
      break;
    }
    case 2:
      fs::remove_all(path, ignored);
      static_cast<void>(::mkfifo(path.c_str(), 0600));
      break;
    case 3:
      fs::remove_all(path, ignored);
      fs::create_directory(path, ignored);
      break;
    case 4:
      Copy(path, path.string() + std::to_string(much));
      break;
    case 5:
      Resize(path, much);
      break;
    case 6:
      Append(path, std::string(much, static_cast<char>(much)));
      break;
    case 7:
      Resize(path, std::int64_t{1} << (much % 42));
      break;
    case 8:
      fs::rename(path, path.parent_path() / ("journal-" + std::to_string(much) + ".ttj"), ignored);
      break;
    default: {
      const auto all = PathsOf(run);
      fs::rename(path, all[much % all.size()], ignored);
    }
  }
}

}  // namespace

TELLTALE_FUZZ_TARGET(run_tree) {
  if (bytes.empty()) return;
  const auto read = kReaders[static_cast<std::uint8_t>(bytes.front()) % kReaders.size()];
  bytes.remove_prefix(1);
  const fs::path outside = WriteInput("outside", "outside");
  const fs::path run = ScratchRoot() / "run";
  std::error_code ignored;
  fs::remove_all(run, ignored);
  fs::copy(HealthyRun(), run, fs::copy_options::recursive);
  const std::vector<fs::path> paths = PathsOf(run);
  for (std::size_t i = 0; i + 3 <= bytes.size() && i < 48; i += 3) {
    Change(run, static_cast<std::uint8_t>(bytes[i]),
           paths[static_cast<std::uint8_t>(bytes[i + 1]) % paths.size()],
           static_cast<std::uint8_t>(bytes[i + 2]));
  }
  const std::vector<fs::path> around = EntriesOf(ScratchRoot());
  read(run);
  static_cast<void>(store::RequestReader(run).Poll());
  // Nobody has followed a link out of the run and written there.
  Require(ReadAll(outside) == "outside");
  Require(EntriesOf(ScratchRoot()) == around);
}

}  // namespace telltale::fuzz
