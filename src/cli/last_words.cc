// SPDX-License-Identifier: Apache-2.0
#include "cli/last_words.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/printable.h"
#include "base/run_files.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "cli/check_json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "report/html.h"
#include "report/load.h"
#include "report/verdict.h"
#include "run/errand.h"
#include "store/folder.h"

namespace telltale::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSayAgainNs = 15 * kSecond;  ///< Between two lines that say how far it is.
/// Of the budget, for what follows the report, and for our own end.
constexpr std::int64_t kReserveNs = kSecond;
constexpr std::int64_t kLeaveNs = 500 * kMs;
constexpr std::int64_t kTellNs = 500 * kMs;  ///< Between two words of progress.
/// For a child that is told to end to take its file away.
constexpr std::int64_t kEndNs = 200 * kMs;
/// For the last line, where a signal has ended the wait.
constexpr std::int64_t kSkippedNs = kSecond;
constexpr std::int64_t kLeastNs = 100 * kMs;  ///< For who reads our lines, in any case.
constexpr int kLookMs = 50;
constexpr std::size_t kMostText = 4U << 20;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

/// Of the child, for its handler of SIGTERM: the run folder, and the name of the report in it
/// while it is being written.
int run_folder = -1;
char partial_name[256];

void TakePartialAway(int) {
  ::unlinkat(run_folder, partial_name, 0);
  ::_exit(1);
}

/// In the child: writes report.html, and to stderr the verdict. Whatever goes wrong here is one
/// line.
int MakeReport(const LastWordsOptions& options, const report::VerdictOptions& shown, int link) {
  const fs::path html = options.run / "report.html";
  const std::string partial = report::PartialPath(html, ::getpid()).filename().string();
  const UniqueFd folder = run_files::OpenFolder({options.run, "."});
  if (folder && partial.size() < sizeof partial_name) {
    std::memcpy(partial_name, partial.c_str(), partial.size() + 1);
    run_folder = folder.get();
    struct sigaction action {};
    action.sa_handler = TakePartialAway;
    ::sigaction(SIGTERM, &action, nullptr);
  }
  std::int64_t told_ns = 0;
  const auto progress = [&](std::uint64_t records) {
    if (Now() - told_ns < kTellNs) return;
    told_ns = Now();
    [[maybe_unused]] const ssize_t n =
        ::send(link, &records, sizeof records, MSG_NOSIGNAL | MSG_DONTWAIT);
  };
  Status failed;
  try {
    const auto data =
        report::Load(options.run, std::numeric_limits<std::int64_t>::max(), std::nullopt, progress);
    if (data.ok()) {
      failed = report::WriteReport(*data, html);
      if (options.json) {
        const fs::path file = options.run / "verdict.json";
        if (const Status written = store::ReplaceFile(file, CheckDocument(*data) + "\n");
            written.ok()) {
          Say("telltale: verdict in {}\n", Printable(file.string()));
        } else {
          Fail("run", written);
        }
      }
      if (!options.quiet) WriteErr("\n" + report::FormatVerdict(*data, shown));
    } else {
      failed = data.status();
    }
  } catch (const std::exception& error) {
    failed = Status(Code::kIo, fmt::format("no report: internal error: {}: the records are in {}",
                                           error.what(), options.run.string()));
  }
  if (!failed.ok()) Fail("run", failed);
  std::fflush(stderr);
  return 0;
}

/// Whether somebody does not want to wait.
bool Signalled() {
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::sigaddset(&ends, signal);
  const timespec none{};
  return ::sigtimedwait(&ends, nullptr, &none) > 0;
}

enum class Came { kDone, kNot, kSignalled, kFailed };

class LastWords {
 public:
  LastWords(const LastWordsOptions& options, run::Outcome& outcome, const ReportTask& task)
      : options_(options), outcome_(outcome), task_(task) {}
  void Say();

 private:
  Came TakeReport(std::string* text);
  /// Nothing was left behind, and the store answers, now.
  bool Patient();
  bool StoreAnswers();
  std::int64_t ReportDeadline();
  void SayWhatTakesSoLong();
  /// What was not waited for, as a line.
  std::string LeftLine(const std::vector<std::string>& left, bool skipped);
  /// Writes to the user's stream, which nobody need read: the time, or a signal, ends that.
  void Tell(const std::string& text, std::int64_t deadline_ns);
  bool AwaitStream(std::int64_t deadline_ns);

  const LastWordsOptions& options_;
  run::Outcome& outcome_;
  const ReportTask& task_;
  std::int64_t begun_ns_ = Now();
  std::int64_t moved_ns_ = Now();  ///< When the report last made progress.
  std::int64_t said_ns_ = 0;
  std::uint64_t records_ = 0;
};

bool LastWords::StoreAnswers() {
  return outcome_.store_answers && (outcome_.run == nullptr || outcome_.run->Answers());
}

bool LastWords::Patient() { return outcome_.left.empty() && StoreAnswers(); }

std::int64_t LastWords::ReportDeadline() {
  const std::int64_t budget = outcome_.ended_ns + run::kEndBudgetNs - kReserveNs;
  if (!Patient()) return budget;
  return std::min(std::max(budget, moved_ns_ + task_.silence_ns),
                  outcome_.ended_ns + task_.limit_ns);
}

void LastWords::SayWhatTakesSoLong() {
  const std::int64_t next_ns = said_ns_ == 0 ? begun_ns_ + task_.quiet_ns : said_ns_ + kSayAgainNs;
  if (options_.quiet || Now() < next_ns) return;
  said_ns_ = Now();
  outcome_.stream.Print(
      fmt::format("telltale: writing the report{} (Ctrl-C: end without it)",
                  records_ == 0 ? std::string() : fmt::format(": {} records read", records_)));
}

/// Starts the child and takes what it says.
Came LastWords::TakeReport(std::string* text) {
  if (begun_ns_ >= ReportDeadline()) return Came::kNot;
  const report::VerdictOptions shown = report::VerdictOptions::For(stderr);
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return Came::kFailed;
  UniqueFd read_end(pipe[0]);
  UniqueFd write_end(pipe[1]);
  const int theirs = write_end.get();
  auto child =
      run::Errand::Start("telltale-report",
                         [&](int link) {
                           // Its lines come to us: the user's stream is not its to hold.
                           if (::dup2(theirs, STDERR_FILENO) < 0) return 1;
                           ::close(theirs);
                           return task_.work ? task_.work(link) : MakeReport(options_, shown, link);
                         },
                         {theirs});
  write_end.reset();
  if (!child.ok()) return Came::kFailed;
  while (true) {
    const bool signalled = Signalled();
    if (signalled || Now() >= ReportDeadline()) {
      // One that waits for a disk hears none of it, and ends when that answers.
      child->Signal(SIGTERM);
      if (!child->Await(kEndNs)) child->Signal(SIGKILL);
      return signalled ? Came::kSignalled : Came::kNot;
    }
    SayWhatTakesSoLong();
    pollfd fds[] = {{read_end.get(), POLLIN, 0}, {child->link(), POLLIN, 0}};
    ::poll(fds, 2, kLookMs);
    std::uint64_t records = 0;
    while (child->link() >= 0) {
      const ssize_t got = ::recv(child->link(), &records, sizeof records, MSG_DONTWAIT);
      if (got == 0) child->EndLink();
      if (got != sizeof records) break;
      records_ = records;
      moved_ns_ = Now();
    }
    if ((fds[0].revents & (POLLIN | POLLHUP)) == 0) continue;
    char bytes[16384];
    const ssize_t got = ::read(read_end.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got > 0) {
      moved_ns_ = Now();
      text->append(bytes, std::min(static_cast<std::size_t>(got), kMostText - text->size()));
      continue;
    }
    // It has said all.
    const auto exit = child->Await(std::clamp<std::int64_t>(ReportDeadline() - Now(), 0, kSecond));
    return exit && exit->exit_code == 0 ? Came::kDone : Came::kFailed;
  }
}

std::string LastWords::LeftLine(const std::vector<std::string>& left, bool skipped) {
  if (left.empty()) return {};
  const std::string run = Printable(options_.run.string());
  const std::string what = fmt::format("{}", fmt::join(left, ", "));
  if (skipped || StoreAnswers()) {
    return fmt::format(
        "telltale: not waited for: {}: `telltale check {}` shows what was recorded, "
        "`telltale report {}` writes the report\n",
        what, run, run);
  }
  return fmt::format(
      "telltale: not waited for: {}: the disk of {} does not answer, or takes nothing: once it "
      "does, `telltale check {}` shows what was recorded\n",
      what, run, run);
}

ProcessExit as_the_training;  ///< For the handler below.

void EndAsTheTraining(int) { run::ExitAs(as_the_training); }

/// Waits until a file holds what was written to it. False: the time is up, or at a signal.
bool LastWords::AwaitStream(std::int64_t deadline_ns) {
  while (!outcome_.stream.Ready()) {
    if (Now() >= deadline_ns || Signalled()) return false;
    const timespec pause{0, kMs};
    ::nanosleep(&pause, nullptr);
  }
  return true;
}

void LastWords::Tell(const std::string& text, std::int64_t deadline_ns) {
  run::StreamWriter& stream = outcome_.stream;
  if (stream.is_file()) {
    if (!AwaitStream(deadline_ns)) return;
    stream.Write(stream.LeftOut() + text);
    AwaitStream(deadline_ns);
    return;
  }
  const std::string all = outcome_.undo + stream.LeftOut() + text;
  if (all.empty()) return;
  // A write may block whatever the stream says of itself (a terminal takes a part). A signal or the
  // time ends us meanwhile, as the training ended.
  as_the_training = outcome_.exit;
  struct sigaction action {};
  action.sa_handler = EndAsTheTraining;
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM}) {
    ::sigaction(signal, &action, nullptr);
    ::sigaddset(&ends, signal);
  }
  const std::int64_t left_ns = std::max(deadline_ns - Now(), kLeastNs);
  itimerval timer{};
  timer.it_value.tv_sec = left_ns / kSecond;
  timer.it_value.tv_usec = left_ns % kSecond / 1000;
  ::setitimer(ITIMER_REAL, &timer, nullptr);
  ::sigprocmask(SIG_UNBLOCK, &ends, nullptr);
  std::string_view bytes = all;
  while (!bytes.empty()) {
    const ssize_t n = ::write(stream.fd(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      // Whoever gave us the stream has made it one that never blocks.
      pollfd out{stream.fd(), POLLOUT, 0};
      ::poll(&out, 1, kLookMs);
      continue;
    }
    if (n <= 0) break;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  const itimerval none{};
  ::setitimer(ITIMER_REAL, &none, nullptr);
}

void LastWords::Say() {
  std::vector<std::string> left = outcome_.left;
  bool skipped = outcome_.skipped;
  std::string text;
  if (skipped) {
    left.emplace_back("the report");
  } else {
    const Came came = TakeReport(&text);
    skipped = came == Came::kSignalled;
    if (came == Came::kNot || skipped) left.emplace_back("the report");
    if (came == Came::kFailed) {
      text += fmt::format(
          "telltale: no report: the process that writes it could not be started or "
          "was ended: `telltale report {}` tries it again\n",
          Printable(options_.run.string()));
    }
  }
  std::int64_t deadline = outcome_.ended_ns + run::kEndBudgetNs - kLeaveNs;
  if (skipped) {
    deadline = Now() + kSkippedNs;
  } else if (Patient()) {
    deadline = std::max(deadline, Now() + kReaderPatienceNs);
  }
  text += LeftLine(left, skipped);
  // The folder is free before anybody who reads the verdict can start the next attempt.
  if (outcome_.run != nullptr) outcome_.run->Release();
  Tell(text, deadline);
}

}  // namespace

void SayLastWords(const LastWordsOptions& options, run::Outcome& outcome, const ReportTask& task) {
  LastWords(options, outcome, task).Say();
}

}  // namespace telltale::cli
