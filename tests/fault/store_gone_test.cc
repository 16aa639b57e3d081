// SPDX-License-Identifier: Apache-2.0
// The store does not answer, is full or has gone when the training ends, or falls silent in what
// follows: `telltale run` ends within its budget, with the training's code, whatever is left
// behind. A frozen file system is the hardest of them: who touches it waits in the kernel, and no
// signal ends that. These need root, and a loop device.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/unique_fd.h"
#include "harness.h"
#include "store/run_info.h"

namespace telltale::fault {
namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::duration<double>;

// linux/fs.h and sys/mount.h cannot both be included.
constexpr unsigned long kFreeze = _IOWR('X', 119, int);
constexpr unsigned long kThaw = _IOWR('X', 120, int);

/// The promise (run::kEndBudgetNs).
constexpr Seconds kBudget(30);

/// An ext4 file system in a file, mounted by a loop device.
class Image {
 public:
  explicit Image(const Scratch& scratch) : at_(scratch / "store") { Make(scratch / "image"); }
  ~Image() {
    Thaw();
    folder_.reset();
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  /// Empty, or why there is none.
  const std::string& trouble() const { return trouble_; }
  fs::path run() const { return at_ / "run"; }
  fs::path log() const { return at_ / "log"; }
  void Freeze() {
    ASSERT_EQ(::ioctl(folder_.get(), kFreeze, 0), 0) << std::strerror(errno);
    frozen_ = true;
  }
  void Thaw() {
    if (std::exchange(frozen_, false)) ::ioctl(folder_.get(), kThaw, 0);
  }
  void Fill() const {
    const UniqueFd fd(::open((at_ / "ballast").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (off_t block = 1 << 20; block >= 1024; block /= 2) {
      off_t size = ::lseek(fd.get(), 0, SEEK_END);
      while (::posix_fallocate(fd.get(), size, block) == 0) size += block;
    }
  }
  /// The mount has gone, though not the file system under who still has it open.
  void Detach() {
    folder_.reset();
    ASSERT_EQ(::umount2(at_.c_str(), MNT_DETACH), 0);
    mounted_ = false;
  }
  void Remove() const { fs::remove_all(run()); }

 private:
  void Make(const std::string& file) {
    fs::create_directories(at_);
    {
      const UniqueFd made(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
      if (!made || ::ftruncate(made.get(), 256 << 20) != 0) return Trouble("make the image");
    }
    const std::string make = "PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -F " + file;
    if (std::system(make.c_str()) != 0) return Trouble("run mkfs.ext4");
    const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    const UniqueFd backing(::open(file.c_str(), O_RDWR | O_CLOEXEC));
    if (!control || !backing) return Trouble("open /dev/loop-control");
    // Another may take the number in between.
    for (int tries = 0; tries < 10 && !loop_; ++tries) {
      const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
      if (number < 0) return Trouble("get a loop device");
      const std::string device = fmt::format("/dev/loop{}", number);
      UniqueFd loop(::open(device.c_str(), O_RDWR | O_CLOEXEC));
      if (!loop || ::ioctl(loop.get(), LOOP_SET_FD, backing.get()) != 0) continue;
      loop_info64 info{};
      info.lo_flags = LO_FLAGS_AUTOCLEAR;  // Gone with the mount.
      ::ioctl(loop.get(), LOOP_SET_STATUS64, &info);
      loop_ = std::move(loop);
      if (::mount(device.c_str(), at_.c_str(), "ext4", 0, nullptr) != 0) return Trouble("mount");
      mounted_ = true;
      folder_.reset(::open(at_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    }
    if (!mounted_) Trouble("set up a loop device");
  }
  void Trouble(const char* what) {
    trouble_ = fmt::format("cannot {}: {}", what, std::strerror(errno));
  }

  const fs::path at_;
  UniqueFd loop_;
  UniqueFd folder_;
  bool mounted_ = false;
  bool frozen_ = false;
  std::string trouble_;
};

/// Where the run's two streams go: a pipe, as in `telltale run ... | tee`, or a file.
int stream = -1;

enum class Into { kPipe, kFileOnTheStore };

class StoreGone : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!image_.trouble().empty()) GTEST_SKIP() << image_.trouble() << ": not tested here";
  }
  void TearDown() override {
    image_.Thaw();
    if (started_.pid > 0) return;
    ExpectNobodyLeft();
  }
  /// A training that ends with `code` when it is told to.
  void Start(int code, Into into = Into::kPipe) {
    if (into == Into::kPipe) {
      int pipe[2];
      ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
      said_.reset(pipe[0]);
      into_.reset(pipe[1]);
    } else {
      into_.reset(::open(image_.log().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    }
    stream = into_.get();
    ASSERT_GE(stream, 0);
    const std::string script = fmt::format(
        "trap 'exit {1}' TERM; touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; "
        "done; exit {1}",
        Folder(), code);
    started_ = StartRun(image_.run(), {}, {"sh", "-c", script}, scratch_ / "err", [] {
      ::dup2(stream, STDOUT_FILENO);
      ::dup2(stream, STDERR_FILENO);
    });
    ASSERT_TRUE(Await([&] { return fs::exists(scratch_ / "runs"); })) << Text();
    // All that is ours is at work.
    ASSERT_TRUE(Await([&] {
      const auto info = store::ReadRunInfo(image_.run());
      Recorded recorded;
      ReadRun(image_.run(), &recorded);
      return info.ok() && info->attempts.back().pid > 0 && FindHelper("watch", image_.run()) != 0 &&
             CountEvents(recorded, "run.attempt_start") == 1;
    })) << Text();
  }
  std::string Folder() const { return (scratch_ / "x").parent_path().string(); }
  void EndTraining() {
    const UniqueFd go(::open((scratch_ / "go").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(go.valid());
    ended_ = std::chrono::steady_clock::now();
  }
  /// Nobody reads it, and it takes nothing any more.
  void FillThePipe() {
    ::fcntl(into_.get(), F_SETFL, O_NONBLOCK);
    const std::string page(4096, '\0');
    while (::write(into_.get(), page.data(), page.size()) > 0) {
    }
    ::fcntl(into_.get(), F_SETFL, 0);
  }
  /// One of ours is stopped until the store is frozen, which so happens before it has done its
  /// work.
  pid_t Stop(const char* kind) {
    const pid_t pid = FindHelper(kind, image_.run());
    EXPECT_GT(pid, 0) << kind;
    if (pid > 0) ::kill(pid, SIGSTOP);
    return pid;
  }
  bool AwaitRunInfo(const std::function<bool(const store::RunInfo&)>& condition) {
    return Await([&] {
      const auto info = store::ReadRunInfo(image_.run());
      return info.ok() && condition(*info);
    });
  }
  void ExpectNobodyLeft() {
    for (const char* kind : {"agent", "watch"}) {
      EXPECT_TRUE(Await([&] { return FindHelper(kind, image_.run()) == 0; })) << kind;
    }
  }
  Seconds SinceTheEnd() const { return std::chrono::steady_clock::now() - ended_; }
  /// What it has said so far. `eof`: whether nobody can say anything any more.
  std::string Text(bool* eof = nullptr) {
    into_.reset();
    if (!said_) return text_ = TextOf(image_.log());
    std::array<char, 4096> bytes;
    pollfd fd{said_.get(), POLLIN, 0};
    while (::poll(&fd, 1, 0) > 0) {
      const ssize_t got = ::read(said_.get(), bytes.data(), bytes.size());
      if (got <= 0) {
        if (eof != nullptr) *eof = got == 0;
        break;
      }
      text_.append(bytes.data(), static_cast<std::size_t>(got));
    }
    return text_;
  }
  bool Says(std::string_view what) {
    return Await([&] { return Text().find(what) != std::string::npos; });
  }
  /// It has ended as the training within the budget, and who reads its streams is not kept waiting.
  void ExpectEnd(int code) {
    EXPECT_EQ(started_.Wait(), code) << Text();
    const Seconds took = SinceTheEnd();
    started_.pid = -1;
    EXPECT_LE(took, kBudget) << Text();
    std::printf("ended %.1f s after the training, with %d\n", took.count(), code);
    RecordProperty("took_ms", static_cast<int>(took.count() * 1000));
    bool eof = !said_;
    EXPECT_TRUE(Await([&] { return eof || (Text(&eof), eof); }, std::chrono::seconds(10)))
        << "somebody who was left behind holds the user's stream";
    // Without what has filled the pipe.
    text_.erase(std::remove(text_.begin(), text_.end(), '\0'), text_.end());
    std::printf("%s", text_.c_str());
  }

  Scratch scratch_{"gone"};
  Image image_{scratch_};
  UniqueFd said_;  ///< What is said, where it goes into a pipe...
  UniqueFd into_;  ///< ...and the other end, until it is looked at.
  std::string text_;
  Started started_;
  std::chrono::steady_clock::time_point ended_;
};

class StoreGoneAtTheEnd : public StoreGone, public ::testing::WithParamInterface<int> {};

TEST_P(StoreGoneAtTheEnd, Frozen) {
  Start(GetParam());
  image_.Freeze();
  EndTraining();
  ExpectEnd(GetParam());
  EXPECT_NE(text_.find("the agent's last records"), std::string::npos) << text_;
  EXPECT_NE(text_.find("`telltale check "), std::string::npos) << text_;
  // Who was left behind does its work when it can.
  image_.Thaw();
  ASSERT_TRUE(AwaitRunInfo([&](const store::RunInfo& info) {
    return info.attempts.back().exit_code == GetParam() && info.finished;
  }));
  ExpectNobodyLeft();
  Recorded recorded;
  ReadRun(image_.run(), &recorded);
  EXPECT_EQ(recorded.state, GetParam() == 0 ? "finished" : "failed");
  EXPECT_EQ(CountEvents(recorded, "agent.stop"), 1U);
}

TEST_P(StoreGoneAtTheEnd, Full) {
  Start(GetParam());
  image_.Fill();
  EndTraining();
  ExpectEnd(GetParam());
  const auto info = store::ReadRunInfo(image_.run());
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->attempts.back().exit_code, GetParam()) << "it keeps room for that";
}

TEST_P(StoreGoneAtTheEnd, Unmounted) {
  Start(GetParam());
  ASSERT_NO_FATAL_FAILURE(image_.Detach());
  EndTraining();
  ExpectEnd(GetParam());
}

TEST_P(StoreGoneAtTheEnd, Removed) {
  Start(GetParam());
  image_.Remove();
  EndTraining();
  ExpectEnd(GetParam());
}

INSTANTIATE_TEST_SUITE_P(With, StoreGoneAtTheEnd, ::testing::Values(0, 7));

// It freezes only when it has taken how the training ended.

TEST_F(StoreGone, ItFreezesBeforeTheAgentHasWrittenItsLast) {
  Start(7);
  const pid_t agent = Stop("agent");
  EndTraining();
  ASSERT_TRUE(AwaitRunInfo(
      [](const store::RunInfo& info) { return info.attempts.back().exit_code.has_value(); }));
  image_.Freeze();
  ::kill(agent, SIGCONT);
  ExpectEnd(7);
  EXPECT_NE(text_.find("not waited for: the agent's last records, "), std::string::npos) << text_;
  image_.Thaw();
  ExpectNobodyLeft();
  Recorded recorded;
  ReadRun(image_.run(), &recorded);
  EXPECT_EQ(recorded.state, "failed");
  EXPECT_EQ(CountEvents(recorded, "agent.stop"), 1U);
}

TEST_F(StoreGone, ItFreezesBeforeTheWatcherHasWrittenItsLast) {
  Start(7);
  const pid_t watcher = Stop("watch");
  EndTraining();
  ASSERT_TRUE(AwaitRunInfo([](const store::RunInfo& info) { return info.finished; }));
  image_.Freeze();
  ::kill(watcher, SIGCONT);
  ExpectEnd(7);
  EXPECT_NE(text_.find("not waited for: the watcher's last findings, "), std::string::npos)
      << text_;
  EXPECT_NE(text_.find("the report: the disk of "), std::string::npos) << text_;
}

class StoreGoneInTheReport : public StoreGone, public ::testing::WithParamInterface<Into> {};

TEST_P(StoreGoneInTheReport, ItFreezes) {
  const fs::path gate = scratch_ / "gate";
  { const UniqueFd made(::open(gate.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)); }
  {
    // Until the store is frozen the report is held up.
    const ScopedVariable busy("SLOW_SYNC_GATE", gate.string());
    const ScopedVariable only("SLOW_SYNC_ONLY", "report.html");
    const Preload slow(TELLTALE_SLOW_SYNC);
    Start(7, GetParam());
  }
  EndTraining();
  ASSERT_TRUE(Says("telltale: writing the report")) << text_;
  image_.Freeze();
  fs::remove(gate);
  ExpectEnd(7);
  if (GetParam() == Into::kFileOnTheStore) return;  // Which takes nothing more.
  EXPECT_NE(text_.find("not waited for: the report: the disk of "), std::string::npos) << text_;
}

INSTANTIATE_TEST_SUITE_P(Saying, StoreGoneInTheReport,
                         ::testing::Values(Into::kPipe, Into::kFileOnTheStore),
                         [](const auto& into) {
                           return into.param == Into::kPipe ? "ToAPipe" : "ToAFileOnTheStore";
                         });

TEST_F(StoreGone, AFileOnAFrozenOneTakesNoLineAndHoldsUpNobody) {
  Start(7, Into::kFileOnTheStore);
  image_.Freeze();
  EndTraining();
  ExpectEnd(7);
}

TEST_F(StoreGone, AFrozenOneAndAReaderThatTakesNothingHaveOneBudget) {
  Start(7);
  FillThePipe();
  image_.Freeze();
  EndTraining();
  ExpectEnd(7);
}

TEST_F(StoreGone, ASignalEndsTheWaitForAFrozenOneAtOnce) {
  Start(7);
  image_.Freeze();
  EndTraining();
  ASSERT_TRUE(Says("waiting for the agent's last records")) << text_;
  const auto sent = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(started_.pid, SIGTERM), 0);
  EXPECT_EQ(started_.Wait(), 7) << Text();
  started_.pid = -1;
  const Seconds took = std::chrono::steady_clock::now() - sent;
  std::printf("ended %.2f s after the signal\n", took.count());
  EXPECT_LT(took, Seconds(10)) << "nothing is waited for any more: " << Text();
  EXPECT_NE(Text().find("not waited for: the agent's last records, "), std::string::npos) << text_;
}

TEST_F(StoreGone, AFrozenOneKeepsNoTrainingFromItsStart) {
  image_.Freeze();
  ended_ = std::chrono::steady_clock::now();
  started_ = StartRun(image_.run(), {}, {"sh", "-c", "exit 7"}, scratch_ / "err");
  EXPECT_EQ(started_.Wait(), 7) << started_.Err();
  EXPECT_LE(SinceTheEnd(), kBudget);
  started_.pid = -1;
  EXPECT_NE(started_.Err().find("NOT RECORDED: the disk of "), std::string::npos) << started_.Err();
}

TEST_F(StoreGone, AHomeOnAFrozenOneKeepsNoTrainingFromItsStart) {
  const fs::path home = image_.run().parent_path() / "home";
  fs::create_directories(home);
  const ScopedVariable state("XDG_STATE_HOME", home.string());
  // An action that its user asks for is kept there.
  std::ofstream(scratch_ / "rules.toml")
      << "defaults = false\n[[actions]]\nkind = \"webhook\"\nurl = \"https://example.org\"\n"
         "dry_run = false\n[rules.never]\nexpression = \"step:duration > 1000000\"\n";
  image_.Freeze();
  ended_ = std::chrono::steady_clock::now();
  started_ = StartRun(scratch_ / "run", {"--rules", (scratch_ / "rules.toml").string()},
                      {"sh", "-c", "exit 7"}, scratch_ / "err");
  EXPECT_EQ(started_.Wait(), 7) << started_.Err();
  EXPECT_LE(SinceTheEnd(), kBudget);
  started_.pid = -1;
  EXPECT_EQ(started_.Err().find("NOT RECORDED"), std::string::npos) << started_.Err();
  // Who was left behind keeps it when the disk answers.
  image_.Thaw();
  for (const char* kind : {"agent", "watch", "serve"}) {
    EXPECT_TRUE(Await([&] { return FindHelper(kind, scratch_ / "run") == 0; })) << kind;
  }
  EXPECT_TRUE(Await([&] { return fs::exists(home / "telltale/actions"); }));
}

TEST_F(StoreGone, AFrozenOneHoldsUpNoSignalToTheTraining) {
  Start(7);
  image_.Freeze();
  // Its helpers are killed and started again meanwhile, which asks the disk for their logs.
  const pid_t watcher = FindHelper("watch", image_.run());
  ASSERT_GT(watcher, 0);
  ::kill(watcher, SIGKILL);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // The case itself: so long it is frozen.
  ASSERT_EQ(::kill(started_.pid, SIGTERM), 0);
  ended_ = std::chrono::steady_clock::now();
  ExpectEnd(7);
}

}  // namespace
}  // namespace telltale::fault
