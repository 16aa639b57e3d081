// SPDX-License-Identifier: Apache-2.0
#include "cli/last_words.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
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

constexpr std::int64_t kQuietNs = 2 * kSecond;      ///< Then we say what takes so long...
constexpr std::int64_t kSayAgainNs = 15 * kSecond;  ///< ...and again how far it is.
constexpr std::int64_t kReserveNs = kSecond;        ///< Of the budget, for our own.
constexpr std::int64_t kTellNs = 500 * kMs;         ///< Between two words of progress.
constexpr std::int64_t kEndNs =
    200 * kMs;  ///< For a child that is told to end to take its file away.
constexpr int kLookMs = 50;
constexpr std::size_t kMostText = 4U << 20;
/// So long who reads our lines may take for the verdict.
constexpr unsigned kPrintSeconds = 30;

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

struct Waiting {
  const LastWordsOptions& options;
  const run::Outcome& outcome;
  std::int64_t begun_ns = Now();
  std::int64_t moved_ns = Now();  ///< When it last made progress.
  std::int64_t said_ns = 0;
  std::uint64_t records = 0;

  std::int64_t Deadline() const {
    const std::int64_t budget = outcome.ended_ns + run::kEndBudgetNs - kReserveNs;
    if (!outcome.store_answers) return budget;
    return std::min(std::max(budget, moved_ns + kReportSilenceNs),
                    outcome.ended_ns + kReportLimitNs);
  }
  void SayWhatTakesSoLong() {
    if (options.quiet ||
        Now() - std::max(begun_ns + kQuietNs - kSayAgainNs, said_ns) < kSayAgainNs) {
      return;
    }
    said_ns = Now();
    Say("telltale: writing the report{} (Ctrl-C: end without it)\n",
        records == 0 ? std::string() : fmt::format(": {} records read", records));
  }
};

/// Starts the child and takes what it says.
Came TakeReport(const LastWordsOptions& options, const run::Outcome& outcome, std::string* text) {
  Waiting waiting{options, outcome};
  if (waiting.begun_ns >= waiting.Deadline()) return Came::kNot;
  const report::VerdictOptions shown = report::VerdictOptions::For(stderr);
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return Came::kFailed;
  UniqueFd read_end(pipe[0]);
  UniqueFd write_end(pipe[1]);
  const int theirs = write_end.get();
  auto child = run::Errand::Start("telltale-report",
                                  [&](int link) {
                                    // Its lines come to us: the user's stream is not its to hold.
                                    if (::dup2(theirs, STDERR_FILENO) < 0) return 1;
                                    ::close(theirs);
                                    return MakeReport(options, shown, link);
                                  },
                                  {theirs});
  write_end.reset();
  if (!child.ok()) return Came::kFailed;
  while (true) {
    const bool signalled = Signalled();
    if (signalled || Now() >= waiting.Deadline()) {
      // One that waits for a disk hears none of it, and ends when that answers.
      child->Signal(SIGTERM);
      if (!child->Await(kEndNs)) child->Signal(SIGKILL);
      return signalled ? Came::kSignalled : Came::kNot;
    }
    waiting.SayWhatTakesSoLong();
    pollfd fds[] = {{read_end.get(), POLLIN, 0}, {child->link(), POLLIN, 0}};
    ::poll(fds, 2, kLookMs);
    std::uint64_t records = 0;
    while (child->link() >= 0) {
      const ssize_t got = ::recv(child->link(), &records, sizeof records, MSG_DONTWAIT);
      if (got == 0) child->EndLink();
      if (got != sizeof records) break;
      waiting.records = records;
      waiting.moved_ns = Now();
    }
    if ((fds[0].revents & (POLLIN | POLLHUP)) == 0) continue;
    char bytes[16384];
    const ssize_t got = ::read(read_end.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got > 0) {
      waiting.moved_ns = Now();
      text->append(bytes, std::min(static_cast<std::size_t>(got), kMostText - text->size()));
      continue;
    }
    // It has said all.
    const auto exit = child->Await(kSecond);
    return exit && exit->exit_code == 0 ? Came::kDone : Came::kFailed;
  }
}

ProcessExit as_the_training;  ///< For the handler below.

void EndAsTheTraining(int) { run::ExitAs(as_the_training); }

/// Writes to stderr, which nobody need read: a signal or the time ends us meanwhile, as the
/// training ended.
void TellUser(const std::string& text, const ProcessExit& exit) {
  if (run::StreamWriter stream(STDERR_FILENO); stream.is_file()) return stream.Write(text);
  as_the_training = exit;
  struct sigaction action {};
  action.sa_handler = EndAsTheTraining;
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM}) {
    ::sigaction(signal, &action, nullptr);
    ::sigaddset(&ends, signal);
  }
  ::alarm(kPrintSeconds);
  ::sigprocmask(SIG_UNBLOCK, &ends, nullptr);
  WriteErr(text);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  ::alarm(0);
}

}  // namespace

void SayLastWords(const LastWordsOptions& options, const run::Outcome& outcome) {
  std::vector<std::string> left = outcome.left;
  bool skipped = outcome.skipped;
  if (skipped) {
    left.emplace_back("the report");
  } else {
    std::string text;
    const Came came = TakeReport(options, outcome, &text);
    skipped = came == Came::kSignalled;
    if (came == Came::kNot || skipped) left.emplace_back("the report");
    if (came == Came::kFailed) {
      text += fmt::format(
          "telltale: no report: the process that writes it could not be started or "
          "was ended: `telltale report {}` tries it again\n",
          Printable(options.run.string()));
    }
    if (!text.empty()) TellUser(text, outcome.exit);
  }
  if (left.empty()) return;
  const std::string run = Printable(options.run.string());
  const std::string what = fmt::format("{}", fmt::join(left, ", "));
  const std::string line =
      skipped || outcome.store_answers
          ? fmt::format(
                "telltale: not waited for: {}: `telltale check {}` shows what was recorded, "
                "`telltale report {}` writes the report\n",
                what, run, run)
          : fmt::format(
                "telltale: not waited for: {}: the disk of {} does not answer, or takes "
                "nothing: once it does, `telltale check {}` shows what was recorded\n",
                what, run, run);
  TellUser(line, outcome.exit);
}

}  // namespace telltale::cli
