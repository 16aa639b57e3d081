// SPDX-License-Identifier: Apache-2.0
#include "run/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <exception>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/redact.h"
#include "base/run_files.h"
#include "run/command.h"
#include "store/window_folder.h"

namespace telltale::run {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxSameName = 1000;

std::string UtcTime(std::int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  return text;
}

Status IoError(const char* what, const fs::path& path, int error) {
  // A path that can never be is a slip of the pen, not the machine's trouble.
  const bool slip = error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP;
  return {slip ? Code::kUsage : Code::kIo,
          fmt::format("cannot {} '{}': {}: choose another folder with -o", what, path.string(),
                      std::strerror(error))};
}

/// What others than its owner may do to the folder; empty where they may do nothing.
std::string SharedWords(const fs::path& path, const struct stat& folder) {
  const bool others = (folder.st_mode & 022) != 0;
  if (!others && folder.st_uid == ::geteuid()) return {};
  const std::string who =
      folder.st_uid == ::geteuid()
          ? fmt::format("may be written to by others (mode {:04o})", folder.st_mode & 07777)
          : fmt::format("belongs to user {} (mode {:04o})", folder.st_uid, folder.st_mode & 07777);
  return fmt::format(
      "'{}' {}: whoever may write there can change or remove what is recorded; "
      "requests count only from the owner of the folder and from root",
      path.string(), who);
}

/// Folders of a run that we, or the training, write into.
bool IsWrittenInto(std::string_view name) {
  return name == "logs" || name == "requests" || name == "windows" || name == "watch" ||
         name == "stacks" || name.starts_with("agent") ||
         name.starts_with(store::kWindowFolderPrefix);
}

/// A run that is gone on with may be a stranger's: kUsage where it has something else, above all a
/// link, in the place of a file or folder of ours. The training writes by path, and would follow.
Status CheckPlain(const fs::path& run) {
  const auto wrong = [&](const fs::path& name, const run_files::Entry& entry, const char* kind) {
    const std::string why = entry.kind == run_files::Kind::kLink ? run_files::WhyNot(ELOOP)
                                                                 : fmt::format("it is no {}", kind);
    return Status(Code::kUsage, fmt::format("'{}': {}: remove it, or choose another folder with -o",
                                            (run / name).string(), why));
  };
  std::vector<run_files::Entry> entries;
  run_files::List({run, "."}, &entries);
  for (const run_files::Entry& entry : entries) {
    if (entry.name == "run.json" && entry.kind != run_files::Kind::kFile) {
      return wrong(entry.name, entry, "file");
    }
    if (!IsWrittenInto(entry.name)) continue;
    if (entry.kind != run_files::Kind::kFolder) return wrong(entry.name, entry, "folder");
    std::vector<run_files::Entry> inner;
    run_files::List({run, entry.name}, &inner);
    for (const run_files::Entry& one : inner) {
      const bool ours = one.kind == run_files::Kind::kFile || one.kind == run_files::Kind::kFolder;
      if (!ours) return wrong(fs::path(entry.name) / one.name, one, "file");
    }
  }
  return {};
}

/// Makes the folder of a new run; mkdir decides between two that start in the same second.
Result<fs::path> MakeDefault(const std::string& name) {
  const fs::path root = "telltale-runs";
  if (::mkdir(root.c_str(), 0777) != 0 && errno != EEXIST) return IoError("make", root, errno);
  const std::string base = UtcTime(Clock::System().RealtimeNs()) + "-" + name;
  for (int i = 1; i < kMaxSameName; ++i) {
    const fs::path path = root / (i == 1 ? base : fmt::format("{}-{}", base, i));
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) return IoError("make", path, errno);
  }
  return IoError("make", root / base, EEXIST);
}

}  // namespace

/// What a thread writes that lives as long as there is something to write.
struct RunDirectory::Writing {
  std::mutex mutex;
  std::optional<store::RunInfo> next;
  bool busy = false;  ///< There is a thread.
  Status outcome;     ///< Of the newest write, not yet told.

  void Run(const fs::path& path) {
    std::unique_lock lock(mutex);
    while (next) {
      try {
        const store::RunInfo info = std::move(*std::exchange(next, std::nullopt));
        lock.unlock();
        Status status = store::WriteRunInfo(path, info);
        lock.lock();
        outcome = std::move(status);
      } catch (const std::exception&) {
        // No memory for the words of an error: this one is not written, a newer one is tried.
        if (!lock.owns_lock()) lock.lock();
      }
    }
    busy = false;
  }
};

Result<RunDirectory> RunDirectory::Prepare(const RunRequest& request) {
  const std::string name = RunName(request.command);
  RunDirectory run;
  run.writing_ = std::make_shared<Writing>();
  std::error_code error;
  if (request.directory.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(run.path_, MakeDefault(name));
    run.made_ = true;
  } else {
    run.path_ = request.directory;
    if (const fs::path parent = run.path_.parent_path(); !parent.empty()) {
      fs::create_directories(parent, error);
      if (error) return IoError("make", parent, error.value());
    }
    run.made_ = ::mkdir(run.path_.c_str(), 0700) == 0;
    if (!run.made_ && errno != EEXIST) return IoError("make", run.path_, errno);
    if (!fs::is_directory(run.path_, error)) {
      return Status(Code::kUsage, fmt::format("'{}' is not a folder: choose another with -o",
                                              run.path_.string()));
    }
  }
  run.path_ = fs::absolute(run.path_, error).lexically_normal();
  if (error) return IoError("find", request.directory, error.value());
  if (!run.path_.has_filename()) run.path_ = run.path_.parent_path();

  run.lock_.reset(::open(run.path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!run.lock_) return IoError("open", run.path_, errno);
  if (::flock(run.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return Status(Code::kRunning,
                    fmt::format("'{}' is being recorded by another telltale run: wait for its end "
                                "or choose another folder with -o",
                                run.path_.string()));
    }
    return IoError("lock", run.path_, errno);
  }

  struct stat folder {};
  if (::fstat(run.lock_.get(), &folder) != 0) return IoError("open", run.path_, errno);
  if (!run.made_) run.warning_ = SharedWords(run.path_, folder);

  std::vector<run_files::Entry> entries;
  if (const int failed = run_files::List({run.path_, "."}, &entries); failed != 0) {
    return IoError("list", run.path_, failed);
  }
  if (run_files::Exists({run.path_, "run.json"})) {
    TELLTALE_RETURN_IF_ERROR(CheckPlain(run.path_));
    TELLTALE_ASSIGN_OR_RETURN(run.info_, store::ReadRunInfo(run.path_));
    run.before_ = run.info_;
    if (store::DeriveRunState(run.info_, run.path_).state == "running") {
      const store::Attempt* last =
          run.info_.attempts.empty() ? nullptr : &run.info_.attempts.back();
      return Status(
          Code::kRunning,
          fmt::format("the training of '{}' still runs (pid {} on {}): wait for its end "
                      "or choose another folder with -o",
                      run.path_.string(), last != nullptr ? last->pid : 0, run.info_.host));
    }
  } else if (!entries.empty()) {
    return Status(Code::kUsage, fmt::format("'{}' is not empty and holds no run: choose a new or "
                                            "empty folder, or an existing run, with -o",
                                            run.path_.string()));
  }

  store::RunInfo& info = run.info_;
  const std::int64_t now = Clock::System().RealtimeNs();
  if (info.attempts.empty()) {
    info.created_ns = now;
    info.id = run.path_.filename().string();
    info.name = name;
  }
  info.format_major = store::kRunFormatMajor;
  info.format_minor = store::kRunFormatMinor;
  info.command = Redacted(request.command);
  info.cwd = fs::current_path(error).string();
  info.host = HostName();
  info.boot_id = BootId();
  info.pid_namespace = PidNamespace();
  info.telltale_version = request.telltale_version;
  info.supervisor_pid = ::getpid();
  info.supervisor_start_ticks = ProcessStartTicks(::getpid());
  info.interval_ms = request.interval_ms;
  info.overhead_budget = request.overhead_budget;
  info.plan = request.plan;
  info.rules = request.rules;
  info.finished = false;
  store::Attempt attempt;
  attempt.number = info.attempts.empty() ? 1 : info.attempts.back().number + 1;
  attempt.start_ns = now;
  info.attempts.push_back(attempt);
  if (const int made = run_files::MakeFolder({run.path_, "logs"}); made != 0 && made != EEXIST) {
    Status failed = IoError("make", run.path_ / "logs", made);
    run.Abandon();
    return failed;
  }
  if (const Status failed = store::WriteRunInfo(run.path_, info); !failed.ok()) {
    run.Abandon();
    return Status(failed.code(),
                  failed.message() + ": free some space or choose another folder with -o");
  }
  return run;
}

void RunDirectory::Abandon() {
  std::error_code ignored;
  if (before_) {
    // Where the disk takes nothing it still holds the old one: run.json is replaced whole.
    [[maybe_unused]] const Status status = store::WriteRunInfo(path_, *before_);
    return;
  }
  // Prepare found it empty and holds its lock: all that is in it is ours, a helper's folder too.
  std::vector<run_files::Entry> ours;
  run_files::List({path_, "."}, &ours);
  for (const run_files::Entry& entry : ours) run_files::RemoveTree({path_, entry.name});
  if (made_) fs::remove(path_, ignored);
}

void RunDirectory::Started(pid_t pid) {
  info_.attempts.back().pid = pid;
  info_.attempts.back().pid_start_ticks = ProcessStartTicks(pid);
  Write();
}

void RunDirectory::Ended(const ProcessExit& exit) {
  store::Attempt& attempt = info_.attempts.back();
  attempt.end_ns = Clock::System().RealtimeNs();
  attempt.exit_code = exit.exit_code;
  attempt.signal = exit.signal;
  Write();
}

void RunDirectory::Finished() {
  info_.finished = true;
  Write();
}

Status RunDirectory::Written() {
  const std::scoped_lock lock(writing_->mutex);
  return std::exchange(writing_->outcome, {});
}

bool RunDirectory::Settled() const {
  const std::scoped_lock lock(writing_->mutex);
  return !writing_->busy;
}

void RunDirectory::Write() {
  const auto write = [writing = writing_, path = path_] { writing->Run(path); };
  {
    const std::scoped_lock lock(writing_->mutex);
    // One that is still to be written holds less than this.
    writing_->next = info_;
    if (std::exchange(writing_->busy, true)) return;
  }
  try {
    std::thread(write).detach();
  } catch (const std::exception&) {  // No thread is to be had.
    write();
  }
}

}  // namespace telltale::run
