// SPDX-License-Identifier: Apache-2.0
// telltale run around a command that is not harmed: exit codes, signals, usage, attempts.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "harness.h"
#include "store/recovery.h"
#include "store/run_info.h"
#include "store/writer.h"

namespace telltale::fault {
namespace {

TEST(Run, ExitCodeComesThrough) {
  Scratch scratch("exit");
  for (const int code : {0, 3, 130}) {
    const auto run = scratch / std::to_string(code);
    Started started =
        StartRun(run, {}, {"sh", "-c", "exit " + std::to_string(code)}, scratch / "err");
    EXPECT_EQ(started.Wait(), code) << started.Err();
    Recorded recorded;
    ReadRun(run, &recorded);
    EXPECT_EQ(recorded.state, code == 0 ? "finished" : "failed");
    EXPECT_EQ(recorded.exit_code, code);
    EXPECT_EQ(CountEvents(recorded, "run.attempt_start"), 1U);
    EXPECT_EQ(CountEvents(recorded, "run.attempt_end"), 1U);
  }
}

TEST(Run, ACommandThatCannotStartSaysSoAsAShellDoes) {
  Scratch scratch("start");
  Started started = StartRun(scratch / "run", {}, {"no-such-program-here"}, scratch / "err");
  EXPECT_EQ(started.Wait(), 127);
  EXPECT_NE(started.Err().find("not found on PATH"), std::string::npos) << started.Err();
  EXPECT_FALSE(std::filesystem::exists(scratch / "run")) << "nothing ran, nothing is left";
  started = StartRun(scratch / "run", {}, {"/proc/version"}, scratch / "err");
  EXPECT_EQ(started.Wait(), 126);
  // What only the kernel finds out, at exec.
  std::ofstream(scratch / "script") << "#!/no/such/interpreter\n";
  std::filesystem::permissions(scratch / "script", std::filesystem::perms::owner_all);
  started = StartRun(scratch / "run", {}, {scratch / "script"}, scratch / "err");
  EXPECT_EQ(started.Wait(), 127);
  EXPECT_NE(started.Err().find("cannot start"), std::string::npos) << started.Err();
}

TEST(Run, WrongUsageIsOneLineAndTwo) {
  Scratch scratch("usage");
  std::filesystem::create_directories(scratch / "foreign");
  std::ofstream(scratch / "foreign/file") << "mine";
  struct Case {
    std::string run;
    std::vector<std::string> options;
    std::vector<std::string> command;
    std::string says;
  };
  for (const Case& c : std::vector<Case>{{"new", {"--interval", "99"}, {"true"}, "--interval 99"},
                                         {"new", {"--interval", "x"}, {"true"}, "interval"},
                                         {"new", {"--overhead", "0"}, {"true"}, "--overhead '0'"},
                                         {"new", {"--what"}, {"true"}, "--what"},
                                         {"new", {}, {}, "no command"},
                                         {"foreign", {}, {"true"}, "is not empty"},
                                         {"foreign/file", {}, {"true"}, "not a folder"},
                                         {"foreign/file/x", {}, {"true"}, "Not a directory"}}) {
    Started started = StartRun(scratch / c.run, c.options, c.command, scratch / "err");
    EXPECT_EQ(started.Wait(), 2) << c.says;
    const std::string err = started.Err();
    EXPECT_NE(err.find(c.says), std::string::npos) << err;
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  }
  EXPECT_FALSE(std::filesystem::exists(scratch / "new"));
}

TEST(Run, ABrokenStderrChangesNothing) {
  Scratch scratch("stderr");
  // A full disk, a closed descriptor, a pipe that nobody reads.
  for (const char* broken : {"2> /dev/full", "2>&-", "2>&1 | true"}) {
    for (const int code : {0, 3}) {
      const auto run = scratch / "run";
      const auto answer = scratch / "code";
      std::filesystem::remove_all(run);
      std::filesystem::remove(answer);
      const std::string script = "{ " + TelltalePath() + " run -o " + run.string() +
                                 " -- sh -c 'exit " + std::to_string(code) + "'; echo $? > " +
                                 answer.string() + "; } " + broken;
      ASSERT_NE(std::system(script.c_str()), -1);
      int got = -1;
      std::ifstream(answer) >> got;
      EXPECT_EQ(got, code) << script;
      Recorded recorded;
      ReadRun(run, &recorded);
      EXPECT_EQ(recorded.exit_code, code) << broken << ": " << recorded.state;
      EXPECT_TRUE(std::filesystem::exists(run / "report.html")) << broken;
    }
  }
}

TEST(Run, ASignalWhileTheReportIsWrittenEndsUsAsTheTraining) {
  Scratch scratch("skip");
  const std::filesystem::path gate = scratch / "gate";
  std::ofstream(gate).put('\n');
  Started started;
  {
    // The report is held up: the disk does not take it.
    const ScopedVariable busy("SLOW_SYNC_GATE", gate.string());
    const ScopedVariable only("SLOW_SYNC_ONLY", "report.html");
    const Preload slow(TELLTALE_SLOW_SYNC);
    started = StartRun(scratch / "run", {}, {"sh", "-c", "exit 3"}, scratch / "err");
  }
  ASSERT_TRUE(Await([&] { return started.Err().find("writing the report") != std::string::npos; }))
      << started.Err();
  ASSERT_EQ(::kill(started.pid, SIGTERM), 0);
  EXPECT_EQ(started.Wait(), 3) << started.Err();
  EXPECT_NE(started.Err().find("not waited for: the report: "), std::string::npos) << started.Err();
  for (const auto& entry : std::filesystem::directory_iterator(scratch / "run")) {
    EXPECT_NE(entry.path().extension(), ".tmp") << "what it had begun is left: " << entry.path();
  }
}

/// While it lives, TMPDIR names a folder in which nobody, root neither, can make a file.
class NoSocketFolder {
 public:
  NoSocketFolder() {
    if (const char* given = ::getenv("TMPDIR"); given != nullptr) given_ = given;
    ::setenv("TMPDIR", "/proc", 1);
  }
  ~NoSocketFolder() {
    if (given_) {
      ::setenv("TMPDIR", given_->c_str(), 1);
    } else {
      ::unsetenv("TMPDIR");
    }
  }
  NoSocketFolder(const NoSocketFolder&) = delete;
  NoSocketFolder& operator=(const NoSocketFolder&) = delete;

 private:
  std::optional<std::string> given_;
};

/// The training starts unrecorded: one line says so, and its end is its own.
void ExpectUnrecorded(const std::filesystem::path& run, const std::filesystem::path& err,
                      const std::string& says) {
  struct End {
    std::string script;
    int code;
  };
  // The second needs the environment to be as we were given it.
  for (const End& end : std::vector<End>{{"exit 3", 3},
                                         {"test -z \"$TELLTALE_SOCKET$TELLTALE_RUN\"", 0},
                                         {"kill -TERM $$", -SIGTERM}}) {
    for (const char* option : {"--no-serve", "--quiet"}) {
      Started started = StartRun(run, {option}, {"sh", "-c", end.script}, err);
      EXPECT_EQ(started.Wait(), end.code) << started.Err();
      const std::string text = started.Err();
      EXPECT_EQ(text.rfind("telltale run: NOT RECORDED: ", 0), 0U) << text;
      EXPECT_NE(text.find(says), std::string::npos) << text;
      EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    }
  }
  Started started = StartRun(run, {"--interval", "99"}, {"true"}, err);
  EXPECT_EQ(started.Wait(), 2) << "wrong usage stays an error";
}

TEST(Run, WhereNoRunCanBeMadeTheTrainingStartsUnrecorded) {
  Scratch scratch("unwritable");
  // A folder in which nobody, root neither, can make one.
  ExpectUnrecorded("/proc/telltale-run", scratch / "err", "choose another folder with -o");
}

TEST(Run, WhereNoProcessCanRegisterTheTrainingStartsUnrecorded) {
  Scratch scratch("unregistered");
  const NoSocketFolder no_folder;
  ExpectUnrecorded(scratch / "run", scratch / "err", "set TMPDIR");
  EXPECT_FALSE(std::filesystem::exists(scratch / "run")) << "nothing was recorded";
}

TEST(Run, AnAttemptThatIsNotRecordedLeavesTheRunAsItWas) {
  Scratch scratch("unregistered-attempt");
  Started first = StartRun(scratch / "run", {}, {"sh", "-c", "exit 3"}, scratch / "err");
  ASSERT_EQ(first.Wait(), 3) << first.Err();
  const NoSocketFolder no_folder;
  Started second = StartRun(scratch / "run", {}, {"true"}, scratch / "err");
  EXPECT_EQ(second.Wait(), 0) << second.Err();
  const auto info = store::ReadRunInfo(scratch / "run");
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->attempts.size(), 1U);
  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(recorded.state, "failed");
}

TEST(Run, SignalOfTheTrainingIsRaisedAgain) {
  Scratch scratch("signal");
  for (const int signal : {SIGKILL, SIGSEGV, SIGTERM}) {
    const auto run = scratch / std::to_string(signal);
    Started started =
        StartRun(run, {}, {"sh", "-c", "kill -" + std::to_string(signal) + " $$"}, scratch / "err");
    EXPECT_EQ(started.Wait(), -signal);
    Recorded recorded;
    ReadRun(run, &recorded);
    EXPECT_EQ(recorded.state, "killed");
    EXPECT_EQ(recorded.signal, signal);
  }
}

TEST(Run, ASignalSentToUsReachesTheTraining) {
  Scratch scratch("forward");
  Oracle* oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Started started = StartRun(
      scratch / "run", {}, {TrainerPath(), scratch / "oracle", "1000000", "1000"}, scratch / "err");
  ASSERT_TRUE(Await([&] { return oracle->committed > 10; })) << started.Err();
  ::kill(started.pid, SIGTERM);
  EXPECT_EQ(started.Wait(), -SIGTERM);
  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(recorded.signal, SIGTERM);
  EXPECT_EQ(CheckOnce(recorded, oracle->committed), "");
}

TEST(Run, StandardStreamsAreTheTrainingsOwn) {
  Scratch scratch("streams");
  int out[2];
  ASSERT_EQ(::pipe(out), 0);
  const int saved = ::dup(STDOUT_FILENO);
  ::dup2(out[1], STDOUT_FILENO);
  Started started = StartRun(scratch / "run", {}, {"sh", "-c", "printf a; printf b >&2; printf c"},
                             scratch / "err");
  ::dup2(saved, STDOUT_FILENO);
  ::close(saved);
  ::close(out[1]);
  EXPECT_EQ(started.Wait(), 0);
  std::string text;
  char bytes[256];
  ssize_t n = 0;
  // Helpers have no end of the pipe: it closes with the run.
  while ((n = ::read(out[0], bytes, sizeof bytes)) > 0)
    text.append(bytes, static_cast<std::size_t>(n));
  ::close(out[0]);
  EXPECT_EQ(text, "ac");
  const std::string err = started.Err();
  EXPECT_EQ(err.rfind("telltale ", 0), 0U) << "the path comes first: " << err;
  EXPECT_NE(err.find((scratch / "run").string()), std::string::npos) << err;
}

TEST(Run, SecretsOfTheCommandLineAreTheTrainingsAndAreNotStored) {
  Scratch scratch("secrets");
  const std::string got = scratch / "got";
  Oracle* oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  const std::vector<std::string> arguments = {scratch / "oracle",
                                              "1000000",
                                              "1000",
                                              "0",
                                              "-",
                                              "--hub-token",
                                              "canary-1",
                                              "--api-key=canary-2",
                                              "MY_SECRET=canary",
                                              "https://me:canary@host/x",
                                              "--tokenizer",
                                              "kept"};
  // The command and the process that registers have them.
  std::vector<std::string> command = {
      "sh", "-c", "printf '%s\\n' \"$@\" > " + got + "; exec \"$0\" \"$@\"", TrainerPath()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Started started = StartRun(scratch / "run", {}, command, scratch / "err");
  // The kernel tells the words of a process for as long as it is there.
  ASSERT_TRUE(Await([&] {
    Recorded so_far;
    ReadRun(scratch / "run", &so_far);
    return oracle->committed > 10 && CountEvents(so_far, "process.start") > 0;
  })) << started.Err();
  ::kill(started.pid, SIGTERM);
  EXPECT_EQ(started.Wait(), -SIGTERM) << started.Err();
  std::string given;
  for (const std::string& argument : arguments) given += argument + "\n";
  EXPECT_EQ(TextOf(got), given);

  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(CountEvents(recorded, "process.start"), 1U);
  for (const auto& row : recorded.rows.events) {
    EXPECT_EQ(row.data.find("canary"), std::string_view::npos) << row.kind << row.data;
    if (row.kind != "process.start" && row.kind != "run.attempt_start") continue;
    EXPECT_NE(row.data.find("kept"), std::string_view::npos) << row.data;
    EXPECT_NE(row.data.find("https://***@host/x"), std::string_view::npos) << row.data;
  }
  const auto info = store::ReadRunInfo(scratch / "run");
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->command.size(), command.size());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch / "run")) {
    if (!entry.is_regular_file()) continue;
    EXPECT_EQ(TextOf(entry.path()).find("canary"), std::string::npos) << entry.path();
  }
}

/// As a daemon that has no use for the ends of its children starts us: the kernel would reap ours.
TEST(Run, WhereSigchldWasIgnoredTheEndOfTheTrainingIsSeenAndItStaysIgnoredInside) {
  Scratch scratch("sigchld");
  const auto ignore = [] { ::signal(SIGCHLD, SIG_IGN); };
  Started failing =
      StartRun(scratch / "failing", {}, {"sh", "-c", "exit 5"}, scratch / "err", ignore);
  EXPECT_EQ(failing.Wait(), 5) << failing.Err();
  // Not through a shell, which takes SIGCHLD for itself.
  Started looking =
      StartRun(scratch / "looking", {}, {"cp", "/proc/self/status", scratch / "inside"},
               scratch / "err", ignore);
  EXPECT_EQ(looking.Wait(), 0) << looking.Err();
  Recorded recorded;
  ReadRun(scratch / "failing", &recorded);
  EXPECT_EQ(recorded.state, "failed");
  EXPECT_EQ(recorded.exit_code, 5);
  EXPECT_EQ(CountEvents(recorded, "agent.stop"), 1U) << "its last words were waited for";
  std::ifstream file(scratch / "inside");
  std::uint64_t ignored = 0;
  for (std::string word; file >> word;) {
    if (word == "SigIgn:") file >> std::hex >> ignored;
  }
  EXPECT_NE(ignored & (std::uint64_t{1} << (SIGCHLD - 1)), 0U);
}

TEST(Run, DispositionsAndMaskOfSignalsAreThoseWeWereGiven) {
  Scratch scratch("mask");
  Started started = StartRun(
      scratch / "run", {},
      {"sh", "-c", "grep -E 'SigBlk|SigIgn' /proc/self/status > " + (scratch / "inside").string()},
      scratch / "err");
  ASSERT_EQ(started.Wait(), 0);
  const auto read = [](const std::filesystem::path& path) {
    std::ifstream file(path);
    std::string line;
    std::string text;
    while (std::getline(file, line)) {
      if (line.starts_with("SigBlk") || line.starts_with("SigIgn")) text += line + "\n";
    }
    return text;
  };
  EXPECT_EQ(read(scratch / "inside"), read("/proc/self/status"));
}

TEST(Run, SecondRunOnAFinishedOneIsItsNextAttempt) {
  Scratch scratch("attempts");
  for (int i = 1; i <= 2; ++i) {
    Started started = StartRun(
        scratch / "run", {}, {TrainerPath(), scratch / ("oracle" + std::to_string(i)), "20", "100"},
        scratch / "err");
    ASSERT_EQ(started.Wait(), 0) << started.Err();
  }
  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(CheckOnce(recorded, 20, 1), "");
  EXPECT_EQ(CheckOnce(recorded, 20, 2), "");
  EXPECT_EQ(CountEvents(recorded, "run.attempt_start"), 2U);
}

TEST(Run, ARunningRunIsNotTakenOver) {
  Scratch scratch("running");
  Oracle* oracle = Oracle::Map((scratch / "oracle").c_str());
  ASSERT_NE(oracle, nullptr);
  Started first = StartRun(scratch / "run", {},
                           {TrainerPath(), scratch / "oracle", "1000000", "1000"}, scratch / "err");
  ASSERT_TRUE(Await([&] { return oracle->committed > 0; })) << first.Err();
  Started second = StartRun(scratch / "run", {}, {"true"}, scratch / "err2");
  EXPECT_EQ(second.Wait(), 9) << second.Err();
  ::kill(oracle->pid, SIGKILL);
  EXPECT_EQ(first.Wait(), -SIGKILL);
}

TEST(Run, MoreProcessesThanOneAreRecorded) {
  Scratch scratch("many");
  std::string script;
  for (int i = 0; i < 8; ++i) {
    script +=
        TrainerPath() + " " + (scratch / ("oracle" + std::to_string(i))).string() + " 50 1000 & ";
  }
  Started started = StartRun(scratch / "run", {}, {"sh", "-c", script + "wait"}, scratch / "err");
  EXPECT_EQ(started.Wait(), 0) << started.Err();
  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  EXPECT_EQ(CountEvents(recorded, "process.start"), 8U);
  EXPECT_EQ(CountEvents(recorded, "process.exit"), 8U);
  EXPECT_EQ(std::count_if(recorded.rows.scalars.begin(), recorded.rows.scalars.end(),
                          [](const auto& row) { return row.name == "mark"; }),
            8 * 50);
}

TEST(Run, OfProcessesThatHaveEndedNoPositionsAreCarriedOn) {
  Scratch scratch("short-lived");
  const std::string trainer = TrainerPath() + " " + (scratch / "oracle").string() + " 2 100";
  for (const char* count : {"100", "1"}) {
    Started started = StartRun(
        scratch / "run", {},
        {"sh", "-c", "for i in $(seq " + std::string(count) + "); do " + trainer + "; done"},
        scratch / "err");
    EXPECT_EQ(started.Wait(), 0) << started.Err();
    std::size_t writers = 0;
    for (const auto& entry : std::filesystem::directory_iterator(scratch / "run")) {
      if (!entry.path().filename().string().starts_with("agent-")) continue;
      ++writers;
      const auto folder = store::RecoverFolder(entry.path());
      ASSERT_TRUE(folder.ok()) << folder.status().message();
      EXPECT_LE(folder->positions.size(), 1U) << "the attempt's mark alone";
      // As an agent leaves it that is killed before it could let go of a producer.
      auto writer = store::Writer::Open(entry.path(), entry.path().filename());
      ASSERT_TRUE(writer.ok()) << writer.status().message();
      ASSERT_TRUE((*writer)->Append({.positions = {{{1, 2, 3}, 0, 640}}}).ok());
    }
    EXPECT_EQ(writers, 1U);
  }
  Recorded recorded;
  ReadRun(scratch / "run", &recorded);
  for (const char* once : {"process.start", "process.exit"}) {
    EXPECT_EQ(CountEvents(recorded, once), 101U) << once;
  }
  EXPECT_EQ(recorded.rows.steps.size(), 202U);
}

}  // namespace
}  // namespace telltale::fault
