// SPDX-License-Identifier: Apache-2.0
#include "run/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/redact.h"
#include "base/run_files.h"
#include "base/units.h"
#include "run/command.h"
#include "store/requests.h"
#include "store/window_folder.h"

namespace telltale::run {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxSameName = 1000;
constexpr const char* kDefaultRoot = "telltale-runs";
constexpr std::int64_t kStartPatienceNs =
    20 * kSecond;  ///< For the disk before the training starts.
constexpr std::int64_t kLockPatienceNs = 300 * kMs;
constexpr std::int64_t kReleasePatienceNs = kSecond;
/// A disk is asked again so long after its last answer, and is silent when none comes for so long.
constexpr std::int64_t kAskPeriodNs = 500 * kMs;
constexpr std::int64_t kSilenceNs = kSecond;
constexpr int kDeepestFolder = 16;  ///< Beneath a run folder; those of ours lie at most 3 deep.

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
      "requests count only from {}",
      path.string(), who, store::WhoMayAsk(folder.st_uid));
}

/// Folders of a run that we, or the training, write into.
bool IsWrittenInto(std::string_view name) {
  return name == "logs" || name == "requests" || name == "windows" || name == "watch" ||
         name == "stacks" || name == "smdebug" || name.starts_with("agent") ||
         name.starts_with(store::kWindowFolderPrefix);
}

/// The folder that was named will not do: kUsage. Where a link stands in its place it is not the
/// name that is wrong but what lies there: kIo, and `refused`.
Status Unfit(const fs::path& path, std::string_view why, bool* refused) {
  std::error_code error;
  *refused = fs::is_symlink(path, error);
  if (!*refused) return {Code::kUsage, fmt::format("'{}' {}", path.string(), why)};
  return {Code::kIo, fmt::format("'{}', a link to '{}', {}", path.string(),
                                 fs::read_symlink(path, error).string(), why)};
}

Status NotPlain(const fs::path& path, const std::string& why) {
  return {Code::kUsage,
          fmt::format("'{}': {}: remove it, or choose another folder with -o", path.string(), why)};
}

Status NotPlain(const fs::path& path, run_files::Kind is, const char* wanted) {
  return NotPlain(path, is == run_files::Kind::kLink ? run_files::WhyNot(ELOOP)
                                                     : fmt::format("it is no {}", wanted));
}

/// Of all beneath a folder.
Status CheckBeneath(const fs::path& run, const fs::path& folder, int depth) {
  if (depth > kDeepestFolder) {
    return NotPlain(run / folder,
                    fmt::format("it lies deeper than the {} folders of any run", kDeepestFolder));
  }
  std::vector<run_files::Entry> entries;
  if (const int error = run_files::List({run, folder}, &entries); error != 0) {
    return IoError("list", run / folder, error);
  }
  for (const run_files::Entry& entry : entries) {
    const fs::path name = folder / entry.name;
    if (entry.kind == run_files::Kind::kFolder) {
      TELLTALE_RETURN_IF_ERROR(CheckBeneath(run, name, depth + 1));
    } else if (entry.kind != run_files::Kind::kFile) {
      return NotPlain(run / name, entry.kind, "file");
    }
  }
  return {};
}

/// A run that is gone on with may be a stranger's: kUsage where it has something else, above all a
/// link, in the place of a file or folder of ours. What libraries write in the training they write
/// by path, and would follow.
Status CheckPlain(const fs::path& run) {
  std::vector<run_files::Entry> entries;
  if (const int error = run_files::List({run, "."}, &entries); error != 0) {
    return IoError("list", run, error);
  }
  for (const run_files::Entry& entry : entries) {
    if (entry.name == "run.json" && entry.kind != run_files::Kind::kFile) {
      return NotPlain(run / entry.name, entry.kind, "file");
    }
    if (!IsWrittenInto(entry.name)) continue;
    if (entry.kind != run_files::Kind::kFolder) {
      return NotPlain(run / entry.name, entry.kind, "folder");
    }
    TELLTALE_RETURN_IF_ERROR(CheckBeneath(run, entry.name, 1));
  }
  return {};
}

/// Makes the folder of a new run; mkdir decides between two that start in the same second.
Result<fs::path> MakeDefault(const std::string& name) {
  const fs::path root = kDefaultRoot;
  if (::mkdir(root.c_str(), 0777) != 0 && errno != EEXIST) return IoError("make", root, errno);
  const std::string base = UtcTime(Clock::System().RealtimeNs()) + "-" + name;
  for (int i = 1; i < kMaxSameName; ++i) {
    const fs::path path = root / (i == 1 ? base : fmt::format("{}-{}", base, i));
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) return IoError("make", path, errno);
  }
  return IoError("make", root / base, EEXIST);
}

/// One that was killed a moment ago may have a process left that is about to end. errno says why
/// not.
bool Lock(int fd) {
  const std::int64_t deadline = Clock::System().MonotonicNs() + kLockPatienceNs;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || Clock::System().MonotonicNs() >= deadline) return false;
    const timespec pause{0, 10 * kMs};
    ::nanosleep(&pause, nullptr);
    errno = EWOULDBLOCK;
  }
  return true;
}

}  // namespace

/// What the writer of run.json is told, and what it answers. Between processes of one program.
struct RunDirectory::Change {
  enum class What : std::uint8_t { kStarted, kEnded, kFinished, kNothing };
  std::uint64_t number;
  What what;
  pid_t pid;
  std::uint64_t pid_start_ticks;
  std::int64_t end_ns;
  bool has_exit_code, has_signal;
  int exit_code, signal;
};

namespace {

struct Answer {
  std::uint64_t number;
  Code code;
  char text[512];
};

}  // namespace

void RunDirectory::Apply(const Change& change, store::RunInfo* info) {
  store::Attempt& attempt = info->attempts.back();
  switch (change.what) {
    case Change::What::kStarted:
      attempt.pid = change.pid;
      attempt.pid_start_ticks = change.pid_start_ticks;
      break;
    case Change::What::kEnded:
      attempt.end_ns = change.end_ns;
      if (change.has_exit_code) attempt.exit_code = change.exit_code;
      if (change.has_signal) attempt.signal = change.signal;
      break;
    case Change::What::kFinished:
      info->finished = true;
      break;
    case Change::What::kNothing:  // Whether the disk answers.
      break;
  }
}

/// The writer's life: it ends when it has written all that it was told and nobody is there to tell
/// it more.
int RunDirectory::KeepWriting(int link, const fs::path& path, store::RunInfo info) {
  while (true) {
    Change change;
    ssize_t got = ::recv(link, &change, sizeof change, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof change) return got == 0 ? 0 : 1;
    do {
      Apply(change, &info);
      got = ::recv(link, &change, sizeof change, MSG_DONTWAIT);
    } while (got == sizeof change);
    Answer answer{change.number, Code::kOk, {}};
    try {
      const Status status = store::WriteRunInfo(path, info);
      answer.code = status.code();
      std::snprintf(answer.text, sizeof answer.text, "%s", status.message().c_str());
    } catch (const std::exception&) {
      answer.code = Code::kIo;  // No memory for the words of an error.
      std::snprintf(answer.text, sizeof answer.text, "cannot write run.json: out of memory");
    }
    [[maybe_unused]] const ssize_t n = ::send(link, &answer, sizeof answer, MSG_NOSIGNAL);
  }
}

bool DiskAnswers(const RunRequest& request) {
  const fs::path wanted = request.directory.empty() ? fs::path(kDefaultRoot) : request.directory;
  const auto touch = [&] {
    std::error_code error;
    fs::path folder = fs::absolute(wanted, error);
    while (folder.has_relative_path() && !fs::exists(folder, error)) folder = folder.parent_path();
    // Gone with its descriptor; and where the file system has none such it has answered.
    const UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  };
  return EndsWithin(touch, kStartPatienceNs);
}

Result<RunDirectory> RunDirectory::Prepare(const RunRequest& request, bool* refused) {
  *refused = false;
  const std::string name = RunName(request.command);
  RunDirectory run;
  std::error_code error;
  if (request.directory.empty()) {
    TELLTALE_ASSIGN_OR_RETURN(run.path_, MakeDefault(name));
    run.made_ = true;
  } else {
    run.path_ = request.directory;
    if (!run.path_.has_filename()) run.path_ = run.path_.parent_path();  // "RUN/"
    if (const fs::path parent = run.path_.parent_path(); !parent.empty()) {
      fs::create_directories(parent, error);
      if (error) return IoError("make", parent, error.value());
    }
    run.made_ = ::mkdir(run.path_.c_str(), 0700) == 0;
    if (!run.made_ && errno != EEXIST) return IoError("make", run.path_, errno);
    if (!fs::is_directory(run.path_, error)) {
      return Unfit(run.path_, "is not a folder: choose another with -o", refused);
    }
  }
  run.path_ = fs::absolute(run.path_, error).lexically_normal();
  if (error) return IoError("find", request.directory, error.value());
  if (!run.path_.has_filename()) run.path_ = run.path_.parent_path();

  run.lock_.reset(::open(run.path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!run.lock_) return IoError("open", run.path_, errno);
  if (!Lock(run.lock_.get())) {
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
    if (const Status plain = CheckPlain(run.path_); !plain.ok()) {
      // A folder that cannot be listed is trouble of the disk, and keeps no training from its
      // start.
      *refused = plain.code() == Code::kUsage;
      return {Code::kIo, plain.message()};
    }
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
    return Unfit(run.path_,
                 "is not empty and holds no run: choose a new or empty folder, or an existing run, "
                 "with -o",
                 refused);
  }

  store::RunInfo& info = run.info_;
  const std::int64_t now = Clock::System().RealtimeNs();
  run.started_ns_ = Clock::System().MonotonicNs();
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
  // It was told nothing: it ends with its link, and not as a child of the training.
  writer_.EndLink();
  static_cast<void>(writer_.Await(kReleasePatienceNs));
  writer_.Leave();
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

Status RunDirectory::StartWriter() {
  auto writer =
      Errand::Start("telltale-write", [this](int link) { return KeepWriting(link, path_, info_); },
                    // Nobody may record into the folder before it has written.
                    {lock_.get()});
  if (!writer.ok()) return writer.status();
  writer_ = std::move(writer).value();
  return {};
}

void RunDirectory::Started(pid_t pid) {
  Change change{};
  change.what = Change::What::kStarted;
  change.pid = pid;
  change.pid_start_ticks = ProcessStartTicks(pid);
  Tell(change);
}

void RunDirectory::Ended(const ProcessExit& exit) {
  Change change{};
  change.what = Change::What::kEnded;
  // The wall clock may have been set meanwhile, and the records' clock was not.
  change.end_ns = info_.attempts.back().start_ns + (Clock::System().MonotonicNs() - started_ns_);
  change.has_exit_code = exit.exit_code.has_value();
  change.exit_code = exit.exit_code.value_or(0);
  change.has_signal = exit.signal.has_value();
  change.signal = exit.signal.value_or(0);
  Tell(change);
}

void RunDirectory::Finished() {
  Change change{};
  change.what = Change::What::kFinished;
  Tell(change);
}

Status RunDirectory::Written() {
  ReadAnswers();
  return std::exchange(outcome_, {});
}

bool RunDirectory::Settled() {
  ReadAnswers();
  return answered_ >= told_;
}

bool RunDirectory::Answers() {
  ReadAnswers();
  const std::int64_t since_ns = Clock::System().MonotonicNs() - asked_ns_;
  if (answered_ != asked_) return taken_ && since_ns < kSilenceNs;
  if (taken_ && since_ns >= kAskPeriodNs) {
    Change nothing{};
    nothing.what = Change::What::kNothing;
    Ask(nothing);
  }
  return taken_;
}

void RunDirectory::Tell(Change change) {
  Ask(change);
  told_ = asked_;
}

void RunDirectory::Ask(Change change) {
  if (answered_ == asked_) asked_ns_ = Clock::System().MonotonicNs();
  change.number = ++asked_;
  Apply(change, &info_);
  if (writer_.link() < 0) return Answered(asked_, false);  // There is no writer any more.
  if (!Send(change)) ReadAnswers();                        // It has died, which starts another.
}

void RunDirectory::Answered(std::uint64_t number, bool taken) {
  answered_ = std::max(answered_, number);
  taken_ = taken;
  asked_ns_ = Clock::System().MonotonicNs();
}

bool RunDirectory::Send(const Change& change) {
  return ::send(writer_.link(), &change, sizeof change, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         sizeof change;
}

void RunDirectory::Fail(Status status) {
  Answered(asked_, false);
  outcome_ = std::move(status);
}

void RunDirectory::ReadAnswers() {
  while (writer_.link() >= 0) {
    Answer answer;
    const ssize_t got = ::recv(writer_.link(), &answer, sizeof answer, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got == sizeof answer) {
      answer.text[sizeof answer.text - 1] = '\0';
      Answered(answer.number, answer.code == Code::kOk);
      if (!taken_) outcome_ = Status(answer.code, answer.text);
      continue;
    }
    // It was killed. What it was told is in our copy: another begins with that.
    writer_.Leave();
    constexpr int kMostDeaths = 5;
    Status failed(Code::kIo, "run.json is not written: the process that does it was killed");
    if (++writers_died_ <= kMostDeaths) failed = StartWriter();
    if (failed.ok() && answered_ == asked_) return;
    Change again{};
    again.number = asked_;
    again.what = Change::What::kNothing;
    if (failed.ok() && !Send(again)) failed = Status(Code::kIo, "run.json is not written");
    if (!failed.ok()) return Fail(std::move(failed));
  }
}

void RunDirectory::Release() {
  ReadAnswers();
  writer_.EndLink();
  // Who comes next finds the folder free, and no file that is being written. A disk that is silent
  // is not waited for.
  const std::int64_t since_ns = Clock::System().MonotonicNs() - asked_ns_;
  if (answered_ == asked_) {
    static_cast<void>(writer_.Await(kReleasePatienceNs));
  } else if (since_ns < kSilenceNs) {
    static_cast<void>(writer_.Await(kLockPatienceNs));
  }
  writer_.Leave();
  lock_.reset();
}

}  // namespace telltale::run
