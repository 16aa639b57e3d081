// SPDX-License-Identifier: Apache-2.0
#include "run/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"
#include "base/units.h"
#include "channel/registration.h"
#include "run/change_lines.h"
#include "run/command.h"
#include "run/errand.h"
#include "run/plain_lines.h"
#include "run/process.h"
#include "run/registry.h"
#include "run/restart.h"
#include "run/status_feed.h"

namespace telltale::run {
namespace {

constexpr std::int64_t kDrawPeriodNs = 500 * kMs;  ///< At most two redraws a second.
/// Of the budget of the end, for our own.
constexpr std::int64_t kReserveNs = 2 * kSecond;
/// For the agent after the end, and for all that follows it where the store does not answer.
constexpr std::int64_t kEndPatienceNs = kEndBudgetNs - kReserveNs;
/// For the watcher after the agent, which it takes for dead 10 s after its last record, where the
/// store answers.
constexpr std::int64_t kLastPatienceNs = 15 * kSecond;
constexpr std::int64_t kEndSilenceNs = 2 * kSecond;     ///< Then we say what we wait for.
constexpr std::int64_t kAgentSilenceNs = 15 * kSecond;  ///< A hung agent is killed and replaced.
constexpr std::int64_t kSealSilenceNs = 30 * kSecond;   ///< The same while it seals its journal.
constexpr std::int64_t kServerEndNs = 100 * kMs;        ///< For a server that nobody looks at.
constexpr std::int64_t kBlindPeriodNs = 50 * kMs;       ///< A training without a pidfd is asked.
constexpr std::int64_t kForever = INT64_MAX;
/// The agent has up to seven descriptors for a process, and its own.
constexpr rlim_t kWantedFiles = 4096;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

/// Signals that are read from a descriptor. Terminal ones reach the training by themselves, since
/// it is in our process group; what somebody sends to us is meant for the training.
constexpr int kForwarded[] = {SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2};

/// kernel.yama.ptrace_scope, 0 where there is none.
int YamaScope() {
  const UniqueFd fd(::open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC));
  char text[8] = {};
  return fd && ::read(fd.get(), text, sizeof text - 1) > 0 ? std::atoi(text) : 0;
}

/// One of our own processes: its life, and when to start it again.
struct Helper {
  const char* name;  ///< Of its subcommand, and its log...
  const char* word;  ///< ...and as a person calls it.
  Child child{};
  RestartPolicy policy{};
  std::int64_t start_at_ns = kForever;  ///< When due.
  bool given_up = false;
  bool done = false;    ///< Has ended as it should.
  bool killed = false;  ///< By us, since it hung.
  bool alive() const { return child.pid > 0; }
};

class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, RunDirectory* run, Registry registry)
      : options_(options),
        run_(*run),
        registry_(std::move(registry)),
        terminal_(STDERR_FILENO, !options.quiet) {}
  ~Supervisor();

  Result<Outcome> Run();

 private:
  /// Starts agent, watcher and training; errno where the training could not be executed, else 0.
  Result<int> Start();
  void Accompany(int exec_errno);
  void AwaitTraining(const char* why);
  Status BlockSignals();
  void RaiseFileLimit();
  std::vector<std::string> Environment() const;

  void StartAgent();
  void StartWatcher();
  void StartServer();
  void StartStacks();
  void ReadLink();
  void EndServer();
  void GiveUp();
  template <class Message>
  bool SendToAgent(const Message& message, std::initializer_list<int> fds);
  bool HandOver();
  void TellAgent();
  void HelperDied(Helper* helper, std::int64_t now, bool hopeless = false);
  void ReadAgent();

  void Turn(std::int64_t deadline_ns);
  void ReadSignals();
  void Reap(std::int64_t now);
  void CheckAgentHang(std::int64_t now);
  void Draw(std::int64_t now);
  void PrintChanges(std::int64_t now, bool last);
  void DropFeed(std::string_view why);
  void Note(const Status& status);
  void Warn(std::string_view line) {
    terminal_.Print(fmt::format("telltale: {}", Printable(line)));
  }
  /// Waits until `done` or the deadline, which what happens meanwhile may move; says for what, and
  /// notes it where it was not waited for.
  template <class Deadline, class Done>
  void Await(std::string_view what, Deadline deadline_ns, Done done);

  const SupervisorOptions& options_;
  RunDirectory& run_;
  Registry registry_;
  Terminal terminal_;
  std::unique_ptr<StatusFeed> feed_;
  PlainLines plain_lines_{Now()};
  ChangeLines change_lines_{Now(), run_.path().string()};

  rlimit old_files_{};
  UniqueFd signals_;

  Child training_;
  std::optional<ProcessExit> training_exit_;
  Helper agent_{.name = "agent", .word = "agent"};
  Helper watcher_{.name = "watch", .word = "watcher"};
  Helper server_{.name = "serve", .word = "server"};
  Helper stacks_{.name = "stacks", .word = "sampler"};
  UniqueFd page_link_;  ///< From the server: one line, the link and whether the token is kept.
  std::string page_line_;
  std::string page_port_ = "0";
  UniqueFd link_;  ///< To the agent.
  std::int64_t agent_heard_ns_ = 0;
  std::int64_t agent_died_ns_ = 0;
  bool told_start_ = false;  ///< The present agent knows...
  bool told_end_ = false;
  std::uint64_t told_refused_ = 0;
  std::string told_undo_;
  bool ending_ = false;  ///< The training has ended...
  std::int64_t ending_since_ns_ = 0;
  bool skip_end_ = false;          ///< The user does not want to wait for agent and watcher.
  std::vector<std::string> left_;  ///< Outcome::left.
  bool disk_full_ = false;
  std::int64_t next_draw_ns_ = 0;
};

Supervisor::~Supervisor() {
  feed_.reset();
  terminal_.GiveRow();
  if (::sigismember(&options_.signals.mask, SIGTSTP) == 1) return;
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);
}

Status Supervisor::BlockSignals() {
  // Blocked, never ignored or handled: a disposition would be inherited by the training. (What
  // TakeSignals has changed it gets back.)
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : kForwarded) ::sigaddset(&set, signal);
  ::sigaddset(&set, SIGWINCH);
  ::sigaddset(&set, SIGCONT);
  if (terminal_.uses_row()) ::sigaddset(&set, SIGTSTP);
  sigset_t with_pipe = set;
  ::sigaddset(&with_pipe, SIGPIPE);
  if (::sigprocmask(SIG_BLOCK, &with_pipe, nullptr) != 0) {
    return {Code::kIo, fmt::format("cannot block signals: {}", std::strerror(errno))};
  }
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_)
    return {Code::kLimit,
            fmt::format("cannot make a signalfd: {}: free descriptors", std::strerror(errno))};
  return {};
}

void Supervisor::RaiseFileLimit() {
  if (::getrlimit(RLIMIT_NOFILE, &old_files_) != 0) return;
  rlimit wanted = old_files_;
  wanted.rlim_cur = std::max(wanted.rlim_cur, std::min(kWantedFiles, wanted.rlim_max));
  ::setrlimit(RLIMIT_NOFILE, &wanted);
}

std::vector<std::string> Supervisor::Environment() const {
  std::vector<std::string> out;
  std::string python_path = (options_.python_dir / "boot").string();
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    if (entry.starts_with("TELLTALE_SOCKET=") || entry.starts_with("TELLTALE_RUN=") ||
        entry.starts_with("TELLTALE_ATTEMPT=") || entry.starts_with("TELLTALE_PROBE_LOG=") ||
        entry.starts_with("TELLTALE_PYTHON_DIR=") || entry.starts_with("TELLTALE_PTRACER=") ||
        entry.starts_with("TELLTALE_ACTIONS_AGREED=") ||
        (!options_.exception_text && entry.starts_with("TELLTALE_EXCEPTION_TEXT="))) {
      continue;
    }
    if (constexpr std::string_view kKey = "PYTHONPATH="; entry.starts_with(kKey)) {
      if (entry.size() > kKey.size()) python_path += ":" + std::string(entry.substr(kKey.size()));
      continue;
    }
    out.emplace_back(entry);
  }
  out.push_back("PYTHONPATH=" + python_path);
  out.push_back("TELLTALE_PYTHON_DIR=" + options_.python_dir.string());
  out.push_back("TELLTALE_SOCKET=" + registry_.socket_path());
  out.push_back("TELLTALE_RUN=" + run_.path().string());
  out.push_back(fmt::format("TELLTALE_ATTEMPT={}", run_.attempt()));
  out.push_back("TELLTALE_PROBE_LOG=" + (run_.path() / "logs" / "probe.log").string());
  if (!options_.exception_text) out.emplace_back("TELLTALE_EXCEPTION_TEXT=0");
  // Yama lets a process be read by its parents, or by whom it names and their children.
  if (!options_.stacks.empty() && YamaScope() == 1) {
    out.push_back(fmt::format("TELLTALE_PTRACER={}", ::getpid()));
  }
  return out;
}

void Supervisor::StartAgent() {
  const std::int64_t now = Now();
  agent_.start_at_ns = kForever;
  agent_.policy.Started(now);
  agent_heard_ns_ = now;
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    HelperDied(&agent_, now);
    return;
  }
  link_.reset(pair[0]);
  const UniqueFd theirs(pair[1]);
  std::vector<std::string> command = {options_.program, "agent",
                                      "--run",          run_.path().string(),
                                      "--fd",           std::to_string(kInheritedFd),
                                      "--socket",       registry_.socket_path(),
                                      "--supervisor",   std::to_string(::getpid()),
                                      "--interval",     std::to_string(options_.interval_ms),
                                      "--overhead",     fmt::format("{}", options_.overhead_budget),
                                      "--look-back",    std::to_string(options_.look_back_bytes)};
  if (agent_died_ns_ != 0) {
    command.insert(command.end(), {"--gap-from", std::to_string(agent_died_ns_)});
  }
  auto child = SpawnHelper(command, run_.path() / "logs" / "agent.log", theirs.get());
  if (!child.ok()) {
    HelperDied(&agent_, now);
    return;
  }
  agent_.child = std::move(child).value();
  told_start_ = told_end_ = false;
  told_refused_ = 0;
  told_undo_.clear();
  for (HeldProducer& producer : registry_.producers()) producer.handed = false;
  TellAgent();
}

void Supervisor::StartWatcher() {
  const std::int64_t now = Now();
  watcher_.start_at_ns = kForever;
  watcher_.policy.Started(now);
  std::vector<std::string> command = {options_.program, "watch", run_.path().string(),
                                      "--supervisor", std::to_string(::getpid())};
  if (!options_.otlp.empty()) command.insert(command.end(), {"--otlp", options_.otlp});
  auto child = SpawnHelper(command, run_.path() / "logs" / "watch.log", -1);
  if (!child.ok()) {
    HelperDied(&watcher_, now);
    return;
  }
  watcher_.child = std::move(child).value();
}

void Supervisor::StartServer() {
  const std::int64_t now = Now();
  server_.start_at_ns = kForever;
  server_.policy.Started(now);
  int pair[2];
  if (::pipe2(pair, O_CLOEXEC | O_NONBLOCK) != 0) {
    HelperDied(&server_, now);
    return;
  }
  page_link_.reset(pair[0]);
  page_line_.clear();
  const UniqueFd theirs(pair[1]);
  // The port of the server before, so that open pages find the new one.
  auto child =
      SpawnHelper({options_.program, "serve", "--link-fd", std::to_string(kInheritedFd), "--port",
                   page_port_, "--parent", std::to_string(::getpid()), run_.path().string()},
                  run_.path() / "logs" / "serve.log", theirs.get());
  if (!child.ok()) {
    HelperDied(&server_, now);
    return;
  }
  server_.child = std::move(child).value();
}

void Supervisor::StartStacks() {
  const std::int64_t now = Now();
  stacks_.start_at_ns = kForever;
  stacks_.policy.Started(now);
  std::vector<std::string> command = {options_.program, "stacks", run_.path().string()};
  command.insert(command.end(), options_.stacks.begin(), options_.stacks.end());
  auto child = SpawnHelper(command, run_.path() / "logs" / "stacks.log", -1);
  if (!child.ok()) {
    HelperDied(&stacks_, now);
    return;
  }
  stacks_.child = std::move(child).value();
}

void Supervisor::ReadLink() {
  if (!page_link_) return;
  char bytes[512];
  const ssize_t n = ::read(page_link_.get(), bytes, sizeof bytes);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) page_line_.append(bytes, static_cast<std::size_t>(n));
  const auto end = page_line_.find('\n');
  if (n > 0 && end == std::string::npos && page_line_.size() < sizeof bytes) return;
  page_link_.reset();
  if (end == std::string::npos) return;
  page_line_.resize(end);
  const auto space = page_line_.find(' ');
  const bool token_kept =
      space != std::string::npos && page_line_.compare(space, std::string::npos, " kept") == 0;
  page_line_.resize(std::min(space, page_line_.size()));
  const auto slash = page_line_.find("/#");
  const auto colon = page_line_.rfind(':', slash);
  if (slash == std::string::npos || colon == std::string::npos) return;
  page_port_ = page_line_.substr(colon + 1, slash - colon - 1);
  if (token_kept && ::isatty(STDERR_FILENO) == 0) {
    // A log that others may read, and that is read when the code has long expired.
    terminal_.Print(
        fmt::format("telltale: live page {}/ (sign in with what `telltale serve "
                    "--print-token` prints)",
                    page_line_.substr(0, slash)));
    return;
  }
  terminal_.Print(fmt::format("telltale: live page {}", page_line_));
}

/// Pages that are open get the last words, which the server gives them by itself.
void Supervisor::EndServer() {
  if (!server_.alive()) return;
  ::kill(server_.child.pid, SIGTERM);  // Our child and not reaped: the pid is its own.
  const std::int64_t deadline = Now() + kServerEndNs;
  while (server_.alive() && Now() < deadline) Turn(deadline);
}

/// Takes back what was set up for a training that could not be started.
void Supervisor::GiveUp() {
  for (Helper* helper : {&agent_, &watcher_, &server_, &stacks_}) {
    if (!helper->alive()) continue;
    ::kill(helper->child.pid, SIGKILL);  // Our child and not reaped: the pid is its own.
    ReapWithin(helper->child.pid, kReserveNs);
    helper->child = {};
  }
  ::setrlimit(RLIMIT_NOFILE, &old_files_);
}

template <class Message>
bool Supervisor::SendToAgent(const Message& message, std::initializer_list<int> fds) {
  return link_ && channel::SendMessage(link_.get(), &message, sizeof message, std::data(fds),
                                       static_cast<int>(fds.size())) == 0;
}

/// Whom the agent records. Never the end, before which all who have come must be handed over. True
/// when it knows all of them.
bool Supervisor::HandOver() {
  const store::Attempt& attempt = run_.info().attempts.back();
  if (!told_start_ && attempt.pid > 0) {
    auto start = channel::MakeMessage<channel::AttemptStart>(channel::MessageType::kAttemptStart);
    start.attempt = attempt.number;
    start.pid = attempt.pid;
    start.start_time_ticks = static_cast<std::int64_t>(attempt.pid_start_ticks);
    // Without a pidfd of ours the agent tries to get one itself.
    const bool sent =
        training_.pidfd ? SendToAgent(start, {training_.pidfd.get()}) : SendToAgent(start, {});
    if (!sent) return false;
    told_start_ = true;
  }
  for (HeldProducer& producer : registry_.producers()) {
    if (producer.handed) continue;
    auto add = channel::MakeMessage<channel::AddProducer>(channel::MessageType::kAddProducer);
    add.attempt = run_.attempt();
    add.pid = producer.pid;
    std::copy(producer.uuid.begin(), producer.uuid.end(), add.uuid);
    const int arena = producer.arena.get();
    const int control = producer.control.fd();
    const int pidfd = producer.pidfd.get();
    const bool sent = producer.slab ? SendToAgent(add, {arena, control, pidfd, producer.slab.get()})
                                    : SendToAgent(add, {arena, control, pidfd});
    if (!sent) return false;
    producer.handed = true;
  }
  return true;
}

/// Tells the agent what it does not know yet, in order; a full socket is tried again later.
void Supervisor::TellAgent() {
  if (!link_ || !HandOver()) return;
  if (std::string undo = terminal_.Undo(); undo != told_undo_) {
    auto message = channel::MakeMessage<channel::TerminalUndo>(channel::MessageType::kTerminalUndo);
    message.bytes = static_cast<std::uint32_t>(std::min(undo.size(), sizeof message.text));
    std::memcpy(message.text, undo.data(), message.bytes);
    const bool sent =
        undo.empty() ? SendToAgent(message, {}) : SendToAgent(message, {STDERR_FILENO});
    if (!sent) return;
    told_undo_ = std::move(undo);
  }
  if (registry_.refused() != told_refused_) {
    auto refused = channel::MakeMessage<channel::Refused>(channel::MessageType::kRefused);
    refused.count = registry_.refused();
    if (!SendToAgent(refused, {})) return;
    told_refused_ = refused.count;
  }
  if (!training_exit_ || told_end_) return;
  auto end = channel::MakeMessage<channel::AttemptEnd>(channel::MessageType::kAttemptEnd);
  end.attempt = run_.attempt();
  end.exit_code = training_exit_->exit_code.value_or(-1);
  end.signal = training_exit_->signal.value_or(0);
  const auto end_run = channel::MakeMessage<channel::EndRun>(channel::MessageType::kEndRun);
  // Said twice where the second did not fit: the agent takes the first for known.
  told_end_ = SendToAgent(end, {}) && SendToAgent(end_run, {});
}

void Supervisor::HelperDied(Helper* helper, std::int64_t now, bool hopeless) {
  helper->child = {};
  helper->killed = false;
  const auto again = hopeless ? std::nullopt : helper->policy.Died(now);
  if (again) {
    helper->start_at_ns = *again;
    return;
  }
  helper->start_at_ns = kForever;
  if (std::exchange(helper->given_up, true)) return;
  if (helper == &server_) {
    if (!ending_) {
      Warn(
          fmt::format("the server does not stay up: the training goes on, without its live page: "
                      "see {}/logs/serve.log",
                      run_.path().string()));
    }
    return;
  }
  if (helper == &stacks_) {
    Warn(fmt::format("no more stacks are sampled: the training goes on: see {}/logs/stacks.log",
                     run_.path().string()));
    return;
  }
  if (ending_) {
    Warn(
        fmt::format("the {} could not write its last words, the report lacks them: see "
                    "{}/logs/{}.log",
                    helper->word, run_.path().string(), helper->name));
    return;
  }
  Warn(fmt::format(
      "the {} does not stay up and is not started again: the training goes on, {}: "
      "see {}/logs/{}.log",
      helper->word, helper == &agent_ ? "nothing more is recorded" : "no more findings come live",
      run_.path().string(), helper->name));
}

void Supervisor::ReadAgent() {
  alignas(8) char bytes[1024];
  while (link_) {
    int raw[channel::kMaxMessageFds];
    int count = 0;
    const std::ptrdiff_t size =
        channel::ReceiveMessage(link_.get(), bytes, sizeof bytes, raw, &count);
    for (int i = 0; i < count; ++i) ::close(raw[i]);
    if (size == -EAGAIN) return;
    if (size <= 0) {
      link_.reset();
      return;
    }
    const auto length = static_cast<std::size_t>(size);
    agent_heard_ns_ = Now();
    channel::ReleaseProducer release;
    channel::AgentStatus status;
    if (channel::CheckMessage(bytes, length, channel::MessageType::kReleaseProducer, &release)) {
      registry_.Release(std::to_array(release.uuid));
    } else if (channel::CheckMessage(bytes, length, channel::MessageType::kAgentStatus, &status)) {
      const bool full = status.disk_full != 0;
      if (full != disk_full_) {
        Warn(full ? fmt::format("the disk of {} takes no more records: the training goes on, "
                                "samples are dropped and counted: free some space",
                                run_.path().string())
                  : fmt::format("the disk takes records again, {} dropped so far", status.dropped));
      }
      disk_full_ = full;
    }
  }
}

void Supervisor::ReadSignals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    const bool by_kernel = info.ssi_code == SI_KERNEL;
    if (signal == SIGWINCH) {
      terminal_.Renew();
    } else if (signal == SIGTSTP) {
      // Stop as we would have without us, with the terminal as it was.
      terminal_.GiveRow();
      TellAgent();
      sigset_t stop;
      ::sigemptyset(&stop);
      ::sigaddset(&stop, SIGTSTP);
      ::raise(SIGTSTP);
      ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);
      ::sigprocmask(SIG_BLOCK, &stop, nullptr);  // SIGCONT, the next signal, takes the row again.
    } else if (signal == SIGCONT) {
      terminal_.Renew();
      agent_heard_ns_ = Now();  // The silence was ours.
    } else if (training_.pid > 0) {
      // A key of the terminal, or its end, has reached the training's process group by itself.
      if (!by_kernel) ::kill(training_.pid, signal);
    } else if (signal == SIGINT || signal == SIGTERM || signal == SIGQUIT || signal == SIGHUP) {
      skip_end_ = true;
    }
  }
}

void Supervisor::Reap(std::int64_t now) {
  int status = 0;
  if (training_.pid > 0 && ::waitpid(training_.pid, &status, WNOHANG) == training_.pid) {
    training_exit_ = FromWaitStatus(status);
    training_.pid = -1;
  }
  for (Helper* helper : {&agent_, &watcher_, &server_, &stacks_}) {
    if (!helper->alive() || ::waitpid(helper->child.pid, &status, WNOHANG) != helper->child.pid) {
      continue;
    }
    const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    // Where no stacks can be sampled that is said, and its work is done.
    if (well && (ending_ || helper == &stacks_)) {
      helper->child = {};
      helper->done = true;
    } else {
      // What a start would not change: wrong arguments, a version that it does not know.
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
      const bool hopeless =
          code == static_cast<int>(Code::kUsage) || code == static_cast<int>(Code::kVersion) ||
          // It has tried for as long as is sensible: the disk does not take the last words, or the
          // run is not there any more.
          (ending_ &&
           (code == static_cast<int>(Code::kIo) || code == static_cast<int>(Code::kUnusable)));
      HelperDied(helper, now, hopeless);
    }
    if (helper == &agent_) {
      ReadAgent();
      link_.reset();
      agent_died_ns_ = now;
    }
  }
}

void Supervisor::CheckAgentHang(std::int64_t now) {
  // Sealing the last journal may take its time, and the agent is silent then.
  const std::int64_t limit = told_end_ ? kSealSilenceNs : kAgentSilenceNs;
  if (!agent_.alive() || agent_.killed || now - agent_heard_ns_ < limit) return;
  Warn(fmt::format(
      "the agent has said nothing for {} s: it is started again as soon as it has ended",
      limit / kSecond));
  // Our child and not reaped: the pid is its own. One that waits for a disk ends when that answers.
  ::kill(agent_.child.pid, SIGKILL);
  agent_.killed = true;
}

void Supervisor::Draw(std::int64_t now) {
  if (!feed_ || now < next_draw_ns_) return;
  feed_->Read();
  if (feed_->over()) return DropFeed("the process that reads it has ended");
  next_draw_ns_ = now + kDrawPeriodNs;
  if (terminal_.has_row()) {
    std::uint64_t more = 0;
    static_cast<void>(feed_->TakeChanges(&more));
    terminal_.DrawRow(RenderStatus(feed_->facts(), terminal_.columns(), terminal_.colour()));
    return;
  }
  PrintChanges(now, false);
  // A terminal that may come to have the row is not filled with lines.
  if (terminal_.uses_row()) return;
  const std::string line =
      plain_lines_.Due(now, Clock::System().RealtimeNs(), feed_->facts(), terminal_.colour());
  if (!line.empty()) terminal_.Print(line);
}

void Supervisor::PrintChanges(std::int64_t now, bool last) {
  std::uint64_t more = 0;
  const std::vector<FindingChange> changes = feed_->TakeChanges(&more);
  for (const std::string& line : change_lines_.Due(now, changes, more, terminal_.colour(), last)) {
    terminal_.Print(line);
  }
}

void Supervisor::DropFeed(std::string_view why) {
  feed_.reset();
  terminal_.ForgoRow();
  Warn(fmt::format("no status line from here on: {}: the training is recorded all the same", why));
}

/// One turn of the loop: waits for something to do, at most until `deadline_ns`, and does it.
void Supervisor::Turn(std::int64_t deadline_ns) {
  std::int64_t now = Now();
  std::int64_t until = std::min({deadline_ns, agent_.start_at_ns, watcher_.start_at_ns,
                                 server_.start_at_ns, stacks_.start_at_ns});
  until = std::min(until, now + kSecond);
  if (feed_) until = std::min(until, next_draw_ns_);
  std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}};
  if (link_) fds.push_back({link_.get(), POLLIN, 0});
  if (training_.pid > 0) {
    // It may have failed for want of a descriptor. Our child and not reaped: the pid is its own.
    if (!training_.pidfd) training_.pidfd = OpenPidfd(training_.pid);
    if (training_.pidfd) {
      fds.push_back({training_.pidfd.get(), POLLIN, 0});
    } else {
      until = std::min(until, now + kBlindPeriodNs);
    }
  }
  if (page_link_) fds.push_back({page_link_.get(), POLLIN, 0});
  if (run_.fd() >= 0) fds.push_back({run_.fd(), POLLIN, 0});
  for (const Helper* helper : {&agent_, &watcher_, &server_, &stacks_}) {
    if (helper->alive()) fds.push_back({helper->child.pidfd.get(), POLLIN, 0});
  }
  registry_.AddTo(&fds);
  const std::int64_t left_ms = std::max<std::int64_t>(0, (until - now + kMs - 1) / kMs);
  ::poll(fds.data(), fds.size(), static_cast<int>(left_ms));
  now = Now();
  terminal_.Retry();
  ReadSignals();
  ReadAgent();
  ReadLink();
  Reap(now);
  registry_.Serve(now, {.note = [this](const std::string& line) { Warn(line); },
                        .held = [this] { HandOver(); }});
  if (now >= agent_.start_at_ns) StartAgent();
  if (now >= watcher_.start_at_ns) StartWatcher();
  if (now >= server_.start_at_ns) StartServer();
  if (now >= stacks_.start_at_ns) StartStacks();
  TellAgent();
  Note(run_.Written());
  CheckAgentHang(now);
  Draw(now);
}

template <class Deadline, class Done>
void Supervisor::Await(std::string_view what, Deadline deadline_ns, Done done) {
  bool said = false;
  while (!done()) {
    if (skip_end_ || Now() > deadline_ns()) {
      left_.emplace_back(what);
      return;
    }
    if (Now() - ending_since_ns_ > kEndSilenceNs && !std::exchange(said, true) && !options_.quiet) {
      Warn(fmt::format("waiting for {} (Ctrl-C: do not wait)", what));
    }
    Turn(Now() + 100 * kMs);
  }
}

Result<int> Supervisor::Start() {
  RaiseFileLimit();
  terminal_.TakeRow();
  TELLTALE_RETURN_IF_ERROR(BlockSignals());
  TELLTALE_RETURN_IF_ERROR(run_.StartWriter());
  StartAgent();
  StartWatcher();
  auto started = SpawnTraining(ThroughBoot(options_.command, options_.python_dir / "boot/boot.py"),
                               Environment(), options_.signals, old_files_);
  if (!started.ok()) return started.status();
  training_ = std::move(started).value();
  return training_.exec_errno;
}

Result<Outcome> Supervisor::Run() {
  const auto start = [this]() -> Result<int> {
    try {
      return Start();
    } catch (const std::exception& error) {
      return Status(Code::kLimit, fmt::format("cannot start the training: {}", error.what()));
    }
  };
  const Result<int> exec_errno = start();
  if (!exec_errno.ok()) {
    GiveUp();
    return exec_errno.status();
  }
  Outcome outcome;
  if (*exec_errno != 0) training_exit_ = ProcessExit{*exec_errno == ENOENT ? 127 : 126, {}};
  // From here on the training's end is ours, whatever becomes of the recording.
  try {
    Accompany(*exec_errno);
    outcome.store_answers = run_.Answers() && !disk_full_;
    outcome.run = &run_;
  } catch (const std::exception& error) {
    AwaitTraining(error.what());
    outcome.store_answers = false;
  }
  outcome.left = std::move(left_);
  outcome.skipped = skip_end_;
  outcome.ended_ns = ending_since_ns_;
  outcome.exit = *training_exit_;
  try {
    outcome.stream = terminal_.Leave(&outcome.undo);
  } catch (const std::exception&) {
    // No memory for what gives the terminal back: the agent does.
  }
  return outcome;
}

/// While the training runs, and until all is written or not waited for any more.
void Supervisor::Accompany(int exec_errno) {
  if (exec_errno != 0) {
    Warn(fmt::format("cannot start '{}': {}", options_.command[0], std::strerror(exec_errno)));
  } else {
    run_.Started(training_.pid);
    TellAgent();  // From here on it knows whom to record, whatever becomes of us.
  }
  if (options_.serve && !options_.quiet && !training_exit_) StartServer();
  if (!options_.stacks.empty() && !training_exit_) StartStacks();
  if (!options_.quiet) {
    feed_ = StatusFeed::Start(run_.path(), run_.attempt());
    if (!feed_) DropFeed("no process is to be had");
  }
  while (!training_exit_) Turn(kForever);

  ending_ = true;
  ending_since_ns_ = Now();
  run_.Ended(*training_exit_);
  terminal_.GiveRow();
  // Where the store answers nobody is cut short who is at work; where it does not, or the agent was
  // left behind, without whom the rest lacks its end, all that follows has one budget.
  const std::int64_t deadline = ending_since_ns_ + kEndPatienceNs;
  const auto until = [&](std::int64_t ns) {
    return run_.Answers() && !disk_full_ && left_.empty() ? ns : deadline;
  };
  Await(
      "the agent's last records", [&] { return deadline; },
      [this] { return agent_.done || agent_.given_up; });
  run_.Finished();
  // However long the agent took.
  const std::int64_t last = std::max(deadline, Now() + kLastPatienceNs);
  const auto last_deadline = [&] { return until(last); };
  Await("the watcher's last findings", last_deadline,
        [this] { return watcher_.done || watcher_.given_up; });
  // Else its last piece is lost where all that is left of a container dies with us.
  Await("the last stacks", last_deadline,
        [this] { return !stacks_.alive() && stacks_.start_at_ns == kForever; });
  EndServer();
  Await("run.json", last_deadline, [this] { return run_.Settled(); });
  Note(run_.Written());
  if (!feed_) return;
  feed_->Read();
  if (::isatty(STDERR_FILENO) == 0) PrintChanges(Now(), true);
}

/// Something of ours has failed that must not, no memory is left: nothing is done any more but what
/// the training cannot do without. Its signals are passed on and its end is waited for, with no
/// memory; agent and watcher go on as when we have died.
void Supervisor::AwaitTraining(const char* why) {
  link_.reset();
  registry_.Close();
  feed_.reset();
  terminal_.GiveRow();
  const auto attempt = [](const auto& what) {
    try {
      what();
    } catch (const std::exception&) {
      // It was worth a try.
    }
  };
  attempt([&] {
    Warn(
        fmt::format("internal error: {}: the training goes on, its new processes are not "
                    "recorded, and no helper is started again",
                    why));
  });
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  if (::sigismember(&options_.signals.mask, SIGTSTP) != 1) {
    ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);
  }
  const auto turn = [this](int timeout_ms) {
    terminal_.Retry();
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {training_.pidfd.get(), POLLIN, 0}};
    ::poll(fds, training_.pid > 0 && training_.pidfd ? 2 : 1, timeout_ms);
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      const bool meant_for_it =
          std::find(std::begin(kForwarded), std::end(kForwarded), signal) != std::end(kForwarded);
      if (!meant_for_it) continue;
      if (training_.pid <= 0) {
        skip_end_ = skip_end_ || (signal != SIGUSR1 && signal != SIGUSR2);
      } else if (info.ssi_code != SI_KERNEL) {
        ::kill(training_.pid, signal);
      }
    }
    int status = 0;
    if (training_.pid > 0 && ::waitpid(training_.pid, &status, WNOHANG) == training_.pid) {
      training_exit_ = FromWaitStatus(status);
      training_.pid = -1;
    }
  };
  constexpr int kBlindPeriodMs = static_cast<int>(kBlindPeriodNs / kMs);
  while (!training_exit_) turn(training_.pidfd ? -1 : kBlindPeriodMs);
  ending_since_ns_ = Now();
  attempt([&] { run_.Ended(*training_exit_); });
  const std::int64_t deadline = Now() + kLastPatienceNs;
  const auto settled = [&] {
    bool known = true;  // Where there is no memory to ask for it.
    attempt([&] { known = run_.Settled(); });
    return known;
  };
  while (!settled() && !skip_end_ && Now() < deadline) turn(kBlindPeriodMs);
}

void Supervisor::Note(const Status& status) {
  if (!status.ok()) Warn(status.message());
}

}  // namespace

Result<Outcome> Supervise(const SupervisorOptions& options, RunDirectory* run, Registry registry) {
  Supervisor supervisor(options, run, std::move(registry));
  return supervisor.Run();
}

void ExitAs(const ProcessExit& exit) {
  if (exit.signal) {
    // A core of ours would say nothing about the training.
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::prctl(PR_SET_DUMPABLE, 0);
    ::signal(*exit.signal, SIG_DFL);
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, *exit.signal);
    ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
    ::raise(*exit.signal);
    ::_exit(128 + *exit.signal);
  }
  ::_exit(exit.exit_code.value_or(1));
}

}  // namespace telltale::run
