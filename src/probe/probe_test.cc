// SPDX-License-Identifier: Apache-2.0
// The C ABI as a user's process meets it: each case runs in a child process, registers over a real
// socket, and is read back by a real consumer.
#include "telltale/probe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "channel/consumer.h"
#include "channel/control_page.h"
#include "channel/registration.h"
#include "channel/slab.h"
#include "channel/testing.h"
#include "telltale/probe.hpp"

namespace telltale::probe {
namespace {

using channel::Consumer;
using channel::ControlPage;

/// The supervisor's end: takes HELLOs and answers them.
class ProbeTest : public testing::Test {
 protected:
  struct Registered {
    channel::Hello hello;
    std::unique_ptr<Consumer> consumer;
    ControlPage control;
    std::optional<channel::SlabReader> slab;
  };

  void SetUp() override {
    char folder[] = "/tmp/telltale-probe-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, Path("socket").c_str());
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(listener_.get(), 16), 0);
    ::setenv("TELLTALE_SOCKET", Path("socket").c_str(), 1);
    ::setenv("TELLTALE_PROBE_LOG", Path("probe.log").c_str(), 1);
    ::unsetenv("RANK");
  }
  void TearDown() override {
    ::unlink(Path("socket").c_str());
    ::unlink(Path("probe.log").c_str());
    ::rmdir(folder_.c_str());
    ::unsetenv("TELLTALE_SOCKET");
  }
  std::string Path(const char* name) const { return folder_ + "/" + name; }
  std::string LogText() const {
    std::ostringstream text;
    text << std::ifstream(Path("probe.log")).rdbuf();
    return text.str();
  }

  /// Runs `body` in a child and answers its HELLOs until it ends; true where it returned true.
  bool RunChild(const std::function<bool()>& body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body() ? 0 : 1);
    int status = 0;
    for (;;) {
      const bool ended = ::waitpid(child, &status, WNOHANG) == child;
      while (Answer()) {
      }
      if (ended) break;
      pollfd wait[16] = {{listener_.get(), POLLIN, 0}};
      nfds_t count = 1;
      for (const UniqueFd& socket : sockets_) wait[count++] = {socket.get(), POLLIN, 0};
      ::poll(wait, count, 5);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  bool Answer() {
    UniqueFd accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const bool any = accepted.valid();
    if (any) sockets_.push_back(std::move(accepted));
    for (std::size_t i = 0; i < sockets_.size();) {
      channel::Hello hello;
      char bytes[512];
      int fds[channel::kMaxMessageFds];
      int count = 0;
      const auto got = channel::ReceiveMessage(sockets_[i].get(), bytes, sizeof bytes, fds, &count);
      if (got == -EAGAIN) {
        ++i;
        continue;
      }
      if (got > 0 && count == 1 &&
          channel::CheckMessage(bytes, static_cast<std::size_t>(got), channel::MessageType::kHello,
                                &hello)) {
        Reply(sockets_[i].get(), hello, UniqueFd(fds[0]));
      }
      sockets_.erase(sockets_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return any;
  }

  void Reply(int socket, const channel::Hello& hello, UniqueFd arena) {
    if (refuse_) {
      auto refuse = channel::MakeMessage<channel::Refuse>(channel::MessageType::kRefuse);
      std::strcpy(refuse.text, "because the test says so");
      channel::SendMessage(socket, &refuse, sizeof refuse, nullptr, 0);
      return;
    }
    auto control = ControlPage::Create(hello.name_limit);
    auto consumer = Consumer::Attach(std::move(arena));
    ASSERT_TRUE(control.ok() && consumer.ok()) << consumer.status().message();
    if (prepare_control_) prepare_control_(&*control);
    auto accept = channel::MakeMessage<channel::Accept>(channel::MessageType::kAccept);
    auto read_only = control->ReadOnlyFd();
    UniqueFd slab;
    std::optional<channel::SlabReader> reader;
    if (with_slab_) {
      auto made = channel::CreateSlab(1 << 20);
      ASSERT_TRUE(made.ok()) << made.status().message();
      slab = std::move(made).value();
      auto attached = channel::SlabReader::Attach(UniqueFd(::dup(slab.get())));
      ASSERT_TRUE(attached.ok()) << attached.status().message();
      reader.emplace(std::move(attached).value());
    }
    const int fds[] = {read_only->get(), slab.get()};
    channel::SendMessage(socket, &accept, sizeof accept, fds, slab ? 2 : 1);
    registered_.push_back({hello, std::move(*consumer), std::move(*control), std::move(reader)});
  }

  format::Rows RowsOf(std::size_t i) {
    return channel::DrainAll(registered_.at(i).consumer.get(), &pool_).rows;
  }

  std::string folder_;
  UniqueFd listener_;
  std::vector<UniqueFd> sockets_;
  std::vector<Registered> registered_;
  std::function<void(ControlPage*)> prepare_control_;
  bool refuse_ = false;
  bool with_slab_ = false;
  StringPool pool_;
};

TEST_F(ProbeTest, RecordsOfAllKindsArrive) {
  ::setenv("RANK", "5", 1);
  ASSERT_TRUE(RunChild([] {
    if (tt_init(TT_PROCESS_TRAINER, -1) != 1 || tt_init(TT_PROCESS_OTHER, 0) != 1) return false;
    {
      Span span("outer");
      Log("accuracy", 0.5);
    }
    tt_event(Name("kind"), TT_LOW, Name("subject"), "message", 7, "{\"a\":1}", 7);
    const float values[3] = {1, 2, 3};
    tt_record_stats(Name("weight"), Name("weights"), values, 3, TT_DTYPE_F32);
    tt_scalar_at(Name("late"), 2, 17, TT_MODE_EVAL);
    return tt_active() == 1;
  }));
  ASSERT_EQ(registered_.size(), 1u);
  EXPECT_EQ(registered_[0].hello.process_kind, TT_PROCESS_TRAINER);
  EXPECT_EQ(registered_[0].consumer->info().rank, 5);
  const format::Rows rows = RowsOf(0);
  ASSERT_EQ(rows.spans.size(), 1u);
  EXPECT_EQ(rows.spans[0].name, "outer");
  EXPECT_EQ(rows.spans[0].category, "user");
  EXPECT_EQ(rows.spans[0].step, -1);
  ASSERT_EQ(rows.scalars.size(), 2u);
  EXPECT_EQ(rows.scalars[0].name, "accuracy");
  EXPECT_EQ(rows.scalars[0].mode, "GLOBAL");
  EXPECT_EQ(rows.scalars[1].step, 17);
  EXPECT_EQ(rows.scalars[1].mode, "EVAL");
  ASSERT_EQ(rows.events.size(), 1u);
  EXPECT_EQ(rows.events[0].kind, "kind");
  EXPECT_EQ(rows.events[0].severity, "low");
  EXPECT_EQ(rows.events[0].subject, "subject");
  EXPECT_EQ(rows.events[0].message, "message");
  EXPECT_EQ(rows.events[0].data, "{\"a\":1}");
  ASSERT_EQ(rows.statistics.size(), 1u);
  EXPECT_EQ(rows.statistics[0].name, "weight");
  EXPECT_EQ(rows.statistics[0].collection, "weights");
  EXPECT_EQ(rows.statistics[0].dtype, "float32");
  EXPECT_EQ(rows.statistics[0].mean, 2);
  EXPECT_FALSE(std::ifstream(Path("probe.log")).good());
}

TEST_F(ProbeTest, SpansOfDetailAreForTheStepsOfTheThreadThatTrains) {
  prepare_control_ = [](ControlPage* page) { page->SetDetail(1000, false); };
  ASSERT_TRUE(RunChild([] {
    if (tt_detail_pass() != 0 || tt_init(TT_PROCESS_TRAINER, -1) != 1) return false;
    if (tt_detail_pass() != 0) return false;  // Nobody steps yet.
    tt_forward_begin(TT_MODE_TRAIN);
    if (tt_detail_pass() != 1) return false;
    tt_detail_span(Name("layer.0"), tt_now(), tt_now(), TT_SPAN_MODULE);
    int elsewhere = 1;
    std::thread([&] { elsewhere = tt_detail_pass(); }).join();
    tt_forward_end(4);
    return elsewhere == 0;
  }));
  const channel::Drained drained = channel::DrainAll(registered_.at(0).consumer.get(), &pool_);
  ASSERT_EQ(drained.details.size(), 1u);
  EXPECT_EQ(drained.details[0].name, "layer.0");
  EXPECT_EQ(drained.details[0].category, "module");
  EXPECT_EQ(drained.details[0].mode, "TRAIN");
  EXPECT_EQ(drained.details[0].step, 0);
}

TEST_F(ProbeTest, NoDetailIsRecordedWhereNothingTakesIt) {
  ASSERT_TRUE(RunChild([] {
    if (tt_init(TT_PROCESS_TRAINER, -1) != 1) return false;
    tt_forward_begin(TT_MODE_TRAIN);
    return tt_detail_pass() == 0;
  }));
}

TEST_F(ProbeTest, WithoutTelltaleNothingHappens) {
  ::unsetenv("TELLTALE_SOCKET");
  ASSERT_TRUE(RunChild([] {
    errno = 77;
    const bool off = tt_init(TT_PROCESS_TRAINER, -1) == 0 && tt_active() == 0;
    { Span span("nothing"); }
    tt_fetch_begin();
    tt_fetch_end(1);
    tt_forward_begin(TT_MODE_TRAIN);
    tt_step();
    tt_finish();
    tt_loss_arrived(1, 2);
    tt_disable("x", 1);
    return off && tt_name("a", 1) == 0 && tt_current_step() == -1 && tt_wants_stats(0) == 0 &&
           tt_loss_later() == 0 && tt_reinit_after_fork(TT_PROCESS_WORKER) == 0 && errno == 77;
  }));
  EXPECT_TRUE(registered_.empty());
  EXPECT_FALSE(std::ifstream(Path("probe.log")).good());
}

TEST_F(ProbeTest, ASupervisorThatIsGoneIsLoggedOnce) {
  ::setenv("TELLTALE_SOCKET", "/nonexistent/socket", 1);
  ASSERT_TRUE(RunChild([] {
    errno = 77;
    return tt_init(TT_PROCESS_TRAINER, -1) == 0 && tt_init(TT_PROCESS_TRAINER, -1) == 0 &&
           errno == 77;
  }));
  const std::string log = LogText();
  EXPECT_NE(log.find("cannot be reached"), std::string::npos);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
}

TEST_F(ProbeTest, ALimitOnFileSizesSwitchesItOffAndKillsNobody) {
  ASSERT_TRUE(RunChild([] {
    const rlimit limit{512 << 10, 512 << 10};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0 && tt_init(TT_PROCESS_TRAINER, -1) == 0;
  }));
}

TEST_F(ProbeTest, MemoryForTheSmallArenaOnlyIsEnoughForATrainer) {
  ASSERT_TRUE(RunChild([] {
    const rlimit limit{2 << 20, 2 << 20};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0 && tt_init(TT_PROCESS_TRAINER, -1) == 1;
  }));
  EXPECT_EQ(registered_.at(0).hello.arena_bytes, 1u << 20);
  EXPECT_EQ(registered_[0].hello.process_kind, TT_PROCESS_TRAINER);
}

TEST_F(ProbeTest, ARefusalSwitchesItOffAndIsLogged) {
  refuse_ = true;
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, -1);
    // A slow supervisor answers later; it is looked for when a step closes.
    for (int i = 0; tt_active() == 1 && i < 10'000; ++i) {
      tt_step();
      ::usleep(1000);
    }
    return tt_active() == 0;
  }));
  EXPECT_NE(LogText().find("because the test says so"), std::string::npos);
}

/// Arenas mapped into this process.
int MappedArenas() {
  int count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("telltale-arena") != std::string::npos) ++count;
  }
  return count;
}

TEST_F(ProbeTest, ARefusedProcessKeepsNoArena) {
  refuse_ = true;
  // Only an answer that comes within tt_init's wait counts here.
  bool early = false;
  for (int i = 0; !early && i < 200; ++i) {
    early = RunChild([] {
      const int before = MappedArenas();
      return tt_init(TT_PROCESS_TRAINER, -1) == 0 && MappedArenas() == before;
    });
  }
  EXPECT_TRUE(early);
}

TEST_F(ProbeTest, WithoutASupervisorNoArenaIsKept) {
  ::setenv("TELLTALE_SOCKET", "/nonexistent/socket", 1);
  EXPECT_TRUE(RunChild([] {
    const int before = MappedArenas();
    return tt_init(TT_PROCESS_TRAINER, -1) == 0 && MappedArenas() == before;
  }));
}

TEST_F(ProbeTest, DisablingStopsItForGoodAndSaysWhy) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, -1);
    tt_scalar(Name("before"), 1);
    tt_disable("hook failed", 11);
    tt_scalar(1, 2);
    return tt_active() == 0 && tt_init(TT_PROCESS_TRAINER, -1) == 0;
  }));
  EXPECT_EQ(registered_.at(0).consumer->disabled_reason(), "hook failed");
  EXPECT_EQ(RowsOf(0).scalars.size(), 1u);
}

TEST_F(ProbeTest, AForkedChildIsSilentUntilItRegistersItself) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 2);
    tt_scalar(Name("parent"), 1);
    const pid_t child = ::fork();
    if (child == 0) {
      tt_scalar(1, 2);
      Span span("silent");
      const bool silent = tt_active() == 0 && tt_init(TT_PROCESS_TRAINER, -1) == 0;
      const bool again = tt_reinit_after_fork(TT_PROCESS_WORKER) == 1;
      tt_scalar(Name("child"), 3);
      ::_exit(silent && again ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    tt_scalar(Name("parent"), 4);
    return status == 0;
  }));
  ASSERT_EQ(registered_.size(), 2u);
  EXPECT_EQ(RowsOf(0).scalars.size(), 2u);
  const format::Rows rows = RowsOf(1);
  ASSERT_EQ(rows.scalars.size(), 1u);
  EXPECT_EQ(rows.scalars[0].name, "child");
  EXPECT_TRUE(rows.spans.empty()) << "a span that began before the fork";
  EXPECT_EQ(registered_[1].consumer->info().parent_uuid, registered_[0].consumer->info().uuid);
  EXPECT_EQ(registered_[1].consumer->info().kind, TT_PROCESS_WORKER);
}

TEST_F(ProbeTest, AChildThatWasForkedPastLibcIsSilentToo) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer does not survive a fork past it";
#endif
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    const auto child = static_cast<pid_t>(::syscall(SYS_fork));
    if (child == 0) {
      tt_scalar(1, 2);
      ::syscall(SYS_exit_group, tt_active());
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    return status == 0;
  }));
  EXPECT_EQ(registered_.at(0).consumer->counters().produced, 0u);
}

TEST_F(ProbeTest, ForkingWhileThreadsRecordNeitherHangsNorWritesTwice) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&stop, t] {
        for (int i = 0; !stop.load(); ++i) {
          const std::string name = "n" + std::to_string(t * 1000 + i % 500);
          tt_scalar(tt_name(name.data(), name.size()), 1);
        }
      });
    }
    bool good = true;
    for (int i = 0; i < 50; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        for (int k = 0; k < 1000; ++k) tt_scalar(tt_name("child", 5), 9);
        ::_exit(tt_active());
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      good = good && status == 0;
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    return good;
  }));
  for (const format::ScalarRow& row : RowsOf(0).scalars) ASSERT_EQ(row.value, 1);
  EXPECT_EQ(registered_[0].consumer->counters().malformed, 0u);
}

TEST_F(ProbeTest, AThreadThatForksAndEndsInTheChildLeavesTheParentsRingAlone) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    bool good = false;
    std::thread([&good] {
      tt_scalar(1, 1);
      const pid_t child = ::fork();
      if (child == 0) {
        // The last thread's end ends the process; the sanitizers' leak checks are not wanted then.
        std::atexit([] { ::_exit(0); });
        ::pthread_exit(nullptr);
      }
      int status = 1;
      ::waitpid(child, &status, 0);
      good = status == 0;
      tt_scalar(1, 1);
    }).join();
    return good;
  }));
  EXPECT_EQ(RowsOf(0).scalars.size(), 2u);
}

/// A rule of TRAIN steps that `interval` divides, for all names below 100 and those without answer.
void AskForEven(ControlPage* page, std::uint32_t take) {
  format::ControlRule rule = ControlPage::EveryStep(take, 2);
  for (const std::size_t mode : {1, 2, 3}) rule.when[mode] = {};
  for (std::uint32_t name = 1; name < 100; ++name) {
    page->SetName(name, format::kNameYes | 1U << format::kNameMaskShift);
  }
  page->SetRules({&rule, 1}, 0, 64 << 20);
}

/// The answer may come after tt_init; steps look for it.
bool StepUntilAnyIsDue() {
  for (int i = 0; i < 10'000 && tt_due(0, TT_STEP_OPEN, TT_MODE_OPEN) == 0; ++i) {
    tt_step();
    ::usleep(1000);
  }
  return tt_due(0, TT_STEP_OPEN, TT_MODE_OPEN) != 0;
}

TEST_F(ProbeTest, WhatIsDueFollowsTheControlPage) {
  prepare_control_ = [](ControlPage* page) { AskForEven(page, TT_TAKE_STATS | TT_TAKE_RAW); };
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    const std::uint32_t yes = tt_tensor("weights", 7, "yes", 3);
    if (yes == 0 || yes != tt_tensor("weights", 7, "yes", 3) ||
        yes == tt_tensor("biases", 6, "yes", 3)) {
      return false;
    }
    std::uint32_t unanswered = 0;
    for (int i = 0; i < 200; ++i) {
      const std::string name = "w" + std::to_string(i);
      unanswered = tt_tensor("weights", 7, name.data(), name.size());
    }
    std::int64_t open = 0;
    if (tt_current(&open) != TT_MODE_GLOBAL || open != -1) return false;
    if (tt_due(0, TT_STEP_OPEN, TT_MODE_OPEN) != 0) return false;  // No step yet.
    if (!StepUntilAnyIsDue() || tt_plan_epoch() == 0) return false;
    const std::uint32_t asked = TT_TAKE_STATS | TT_TAKE_RAW;
    if (tt_wanted(yes) != asked || tt_wanted(unanswered) != TT_TAKE_UNKNOWN) return false;
    for (int i = 0; i < 10; ++i) {
      const bool even = tt_current_step() % 2 == 0;
      const std::uint32_t now = even ? asked : 0;
      if (tt_due(0, TT_STEP_OPEN, TT_MODE_OPEN) != now || tt_due(yes, TT_STEP_OPEN, -1) != now ||
          tt_due(unanswered, TT_STEP_OPEN, -1) != 0 || tt_wants_stats(0) != (even ? 1 : 0) ||
          tt_wants_stats(yes) != (even ? 1 : 0) ||
          tt_wants_stats(tt_name("plain", 5)) != (even ? 1 : 0) ||
          tt_wants_stats(unanswered) != 0) {
        return false;
      }
      if (tt_current(&open) != TT_MODE_TRAIN || open != tt_current_step()) return false;
      tt_step();
    }
    return tt_due(yes, 6, TT_MODE_TRAIN) == asked && tt_due(yes, 7, TT_MODE_TRAIN) == 0 &&
           tt_due(yes, 6, TT_MODE_EVAL) == 0 && tt_due(0, 8, TT_MODE_TRAIN) == asked &&
           tt_due(yes, -2, TT_MODE_TRAIN) == 0;
  }));
  // 5 even steps, twice each.
  EXPECT_EQ(registered_.at(0).consumer->counters().unanswered, 10u);
  EXPECT_EQ(registered_.at(0).consumer->counters().skipped, 0u);
}

TEST_F(ProbeTest, ATensorIsGivenOverTheRealChannel) {
  with_slab_ = true;
  prepare_control_ = [](ControlPage* page) { AskForEven(page, 31); };
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    const std::uint32_t tensor = tt_tensor("weights", 7, "w", 1);
    if (!StepUntilAnyIsDue()) return false;
    std::vector<float> values(3000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 7;
    const std::int64_t shape[] = {3, 1000};
    const tt_array array{values.data(), TT_DTYPE_F32, 2, shape, nullptr};
    errno = 77;
    tt_record_tensor(tensor, &array, tt_due(tensor, TT_STEP_OPEN, -1), TT_STEP_OPEN, TT_MODE_OPEN);
    tt_record_tensor(tensor, &array, TT_TAKE_SHAPE, 41, TT_MODE_EVAL);
    const bool kept = errno == 77;
    tt_finish();  // The histogram is there now.
    return kept;
  }));
  channel::Drained drained = channel::DrainAll(registered_.at(0).consumer.get(), &pool_);
  ASSERT_EQ(drained.rows.statistics.size(), 1u);
  EXPECT_TRUE(drained.rows.statistics[0].more);
  EXPECT_EQ(drained.rows.statistics[0].count, 3000u);
  EXPECT_EQ(drained.rows.statistics[0].collection, "weights");
  EXPECT_EQ(drained.rows.statistics[0].prod, 0) << "one of them is zero";
  ASSERT_EQ(drained.rows.histograms.size(), 1u);
  EXPECT_EQ(drained.rows.histograms[0].taken, 3000u);
  ASSERT_EQ(drained.rows.tensors.size(), 1u);
  EXPECT_EQ(drained.rows.tensors[0].shape, "[3,1000]");
  EXPECT_EQ(drained.rows.tensors[0].step, 41);
  EXPECT_EQ(drained.rows.tensors[0].mode, "EVAL");
  ASSERT_EQ(drained.tensors.size(), 1u);
  ASSERT_TRUE(drained.tensors[0].slot.has_value());
  ASSERT_TRUE(registered_[0].slab.has_value());
  const auto data = registered_[0].slab->Data(*drained.tensors[0].slot, drained.tensors[0].bytes);
  ASSERT_EQ(data.size(), 12'000u);
  float last = 0;
  std::memcpy(&last, data.data() + 11'996, sizeof last);
  EXPECT_EQ(last, 2992);
}

TEST_F(ProbeTest, AForkedChildHasAHelperOfItsOwn) {
  prepare_control_ = [](ControlPage* page) { AskForEven(page, TT_TAKE_HISTOGRAM); };
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    const float values[] = {1, 2, 3};
    const std::int64_t three = 3;
    const tt_array array{values, TT_DTYPE_F32, 1, &three, nullptr};
    const auto give = [&] {
      tt_record_tensor(tt_tensor("weights", 7, "w", 1), &array, TT_TAKE_HISTOGRAM, 2,
                       TT_MODE_TRAIN);
      tt_finish();
    };
    give();
    const pid_t child = ::fork();
    if (child == 0) {
      tt_record_tensor(1, &array, TT_TAKE_HISTOGRAM, 2, TT_MODE_TRAIN);  // Not registered.
      const bool again = tt_reinit_after_fork(TT_PROCESS_TRAINER) == 1;
      give();
      ::_exit(again ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    give();
    return status == 0;
  }));
  EXPECT_EQ(RowsOf(0).histograms.size(), 2u);
  EXPECT_EQ(RowsOf(1).histograms.size(), 1u);
}

TEST_F(ProbeTest, NonsenseGivenIsCountedAndRefused) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    const float value = 1;
    const std::int64_t one = 1, negative = -1;
    const std::int64_t huge[] = {1LL << 40, 1LL << 40};
    const tt_array good{&value, TT_DTYPE_F32, 1, &one, nullptr};
    const tt_array bad[] = {{&value, static_cast<tt_dtype>(99), 1, &one, nullptr},
                            {&value, TT_DTYPE_F32, 17, &one, nullptr},
                            {&value, TT_DTYPE_F32, 1, nullptr, nullptr},
                            {&value, TT_DTYPE_F32, 1, &negative, nullptr},
                            {&value, TT_DTYPE_F32, 2, huge, nullptr},
                            {nullptr, TT_DTYPE_F32, 1, &one, nullptr}};
    const std::uint32_t tensor = tt_tensor("c", 1, "n", 1);
    for (const tt_array& array : bad) tt_record_tensor(tensor, &array, 31, 1, TT_MODE_TRAIN);
    tt_record_tensor(0, &good, 31, 1, TT_MODE_TRAIN);
    tt_record_tensor(tensor, nullptr, 31, 1, TT_MODE_TRAIN);
    tt_record_computed(tensor, nullptr, TT_DTYPE_F32, 1, TT_MODE_TRAIN);
    tt_record_tensor(tensor, &good, 0, 1, TT_MODE_TRAIN);
    return tt_tensor(nullptr, 5, "n", 1) == 0 && tt_active() == 1;
  }));
  const format::Rows rows = RowsOf(0);
  EXPECT_TRUE(rows.statistics.empty());
  EXPECT_TRUE(rows.tensors.empty());
  EXPECT_EQ(registered_[0].consumer->counters().skipped, 7u);
}

/// What was skipped, by reason; "" for what has none.
std::map<std::string, std::uint64_t> Reasons(Consumer* consumer, StringPool* pool) {
  channel::DrainAll(consumer, pool);  // Which brings the names.
  std::map<std::string, std::uint64_t> out;
  const channel::ProducerCounters counters = consumer->counters();
  std::uint64_t sum = counters.skipped_other;
  for (const auto& reason : counters.skipped_for) {
    EXPECT_TRUE(out.emplace(reason.name, reason.count).second) << "each reason once";
    sum += reason.count;
  }
  if (counters.skipped_other > 0) out[""] = counters.skipped_other;
  EXPECT_EQ(sum, counters.skipped);
  return out;
}

TEST_F(ProbeTest, WhatIsSkippedIsCountedByItsReason) {
  ASSERT_TRUE(RunChild([] {
    tt_count_skipped(1, 1);  // Nobody records.
    tt_init(TT_PROCESS_TRAINER, 0);
    const std::uint32_t device = tt_name("loss.device", 11);
    tt_count_skipped(device, 40);
    tt_count_skipped(tt_name("jax.donated", 11), 1);
    tt_count_skipped(device, 2);
    // None of these is a name.
    for (const std::uint32_t none : {0U, tt_tensor("c", 1, "n", 1), 9000U, ~0U, tt_name("", 0)}) {
      tt_count_skipped(none, 1);
    }
    const float value = 1;
    tt_record_stats(device, device, &value, 1, static_cast<tt_dtype>(99));
    return true;
  }));
  const std::map<std::string, std::uint64_t> wanted = {
      {"", 5}, {"capture.dtype", 1}, {"jax.donated", 1}, {"loss.device", 42}};
  EXPECT_EQ(Reasons(registered_.at(0).consumer.get(), &pool_), wanted);
}

TEST_F(ProbeTest, ThreadsCountTheSameReasonsAndThoseBeyondTheTableTogether) {
  constexpr std::uint32_t kThreads = 8, kNames = 100;
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([t] {
        for (std::uint32_t i = 0; i < kNames; ++i) {
          const std::string name = "r" + std::to_string((i * 7 + t * 13) % kNames);
          tt_count_skipped(tt_name(name.data(), name.size()), 3);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return true;
  }));
  const auto reasons = Reasons(registered_.at(0).consumer.get(), &pool_);
  EXPECT_EQ(registered_[0].consumer->counters().skipped, kThreads * kNames * 3);
  ASSERT_EQ(reasons.size(), format::kSkipReasons + 1);
  for (const auto& [name, count] : reasons) {
    EXPECT_EQ(count, kThreads * 3 * (name.empty() ? kNames - format::kSkipReasons : 1)) << name;
  }
}

TEST_F(ProbeTest, NeitherAFullRingNorAKillLosesWhatWasSkipped) {
  EXPECT_FALSE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    const std::uint32_t name = tt_name("why", 3);
    for (int i = 0; i < 1'000'000; ++i) {
      tt_scalar(name, i);
      tt_count_skipped(name, 1);
    }
    return ::kill(::getpid(), SIGKILL) != 0;
  }));
  const std::map<std::string, std::uint64_t> wanted = {{"why", 1'000'000}};
  EXPECT_EQ(Reasons(registered_.at(0).consumer.get(), &pool_), wanted);
  EXPECT_GT(registered_[0].consumer->counters().dropped, 0u);
}

TEST_F(ProbeTest, WhatWasComputedElsewhereIsRecordedOrRefused) {
  ASSERT_TRUE(RunChild([] {
    const float values[] = {1, 2, 3};
    const std::int64_t three = 3;
    const tt_array sample{values, TT_DTYPE_F32, 1, &three, nullptr};
    tt_stats stats{};
    stats.count = 7;
    stats.max = 3;
    const tt_more_stats more{1, 2, 6};
    // Before there is a probe.
    if (tt_sample_size(1, 0, 0) != 0 || tt_slab_bytes() != 0) return false;
    if (tt_record_sample(1, &sample, &stats, 0, 0) != 0) return false;
    tt_record_computed_more(1, &stats, &more, TT_DTYPE_F32, 0, 0);
    tt_init(TT_PROCESS_TRAINER, 0);
    const std::uint32_t tensor = tt_tensor("c", 1, "n", 1);
    tt_record_computed_more(tensor, &stats, &more, TT_DTYPE_F32, 1, TT_MODE_TRAIN);
    tt_record_computed_more(0, &stats, &more, TT_DTYPE_F32, 1, TT_MODE_TRAIN);
    tt_record_computed_more(tensor, &stats, &more, static_cast<tt_dtype>(99), 1, TT_MODE_TRAIN);
    tt_record_computed_more(tensor, nullptr, &more, TT_DTYPE_F32, 1, TT_MODE_TRAIN);
    tt_record_computed_more(tensor, &stats, nullptr, TT_DTYPE_F32, 1, TT_MODE_TRAIN);
    const bool good = tt_record_sample(tensor, &sample, &stats, 1, TT_MODE_TRAIN) == 1 &&
                      tt_record_sample(tensor, nullptr, &stats, 1, TT_MODE_TRAIN) == 0 &&
                      tt_record_sample(tensor, &sample, nullptr, 1, TT_MODE_TRAIN) == 0 &&
                      tt_record_sample(0, &sample, &stats, 1, TT_MODE_TRAIN) == 0 &&
                      tt_sample_size(tensor, 1, TT_MODE_TRAIN) == 65'536;
    tt_finish();
    return good;
  }));
  const format::Rows rows = RowsOf(0);
  ASSERT_EQ(rows.statistics.size(), 1u);
  EXPECT_EQ(rows.statistics[0].prod, 6);
  ASSERT_EQ(rows.histograms.size(), 1u);
  EXPECT_EQ(rows.histograms[0].taken, 3u);
  EXPECT_EQ(rows.histograms[0].count, 7u);
  EXPECT_EQ(registered_[0].consumer->counters().skipped, 3u);
}

TEST_F(ProbeTest, NamesOfTensorsAreCutAndKeptApart) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    const std::string large(1 << 20, 'n');
    const std::string strange("a/../\0b\xf0\x9f\x98\x80", 11);
    const tt_stats stats{};
    const std::uint32_t ids[] = {
        tt_tensor("weights", 7, large.data(), large.size()),
        tt_tensor("weights", 7, strange.data(), strange.size()),
        tt_tensor("we\x1dights", 8, "n", 1),
        tt_tensor(large.data(), large.size(), "n", 1),
    };
    for (const std::uint32_t id : ids) tt_record_computed(id, &stats, TT_DTYPE_F32, 1, 0);
    return true;
  }));
  const format::Rows rows = RowsOf(0);
  ASSERT_EQ(rows.statistics.size(), 4u);
  const std::string cut(rows.statistics[0].name);
  EXPECT_EQ(cut.size(), 4096U - 9);
  EXPECT_EQ(cut.substr(0, cut.size() - 16), std::string(4096 - 9 - 17, 'n') + "#");
  EXPECT_EQ(rows.statistics[0].collection, "weights");
  EXPECT_EQ(rows.statistics[1].name, std::string("a/../\0b\xf0\x9f\x98\x80", 11));
  EXPECT_EQ(rows.statistics[2].collection, "we_ights");
  EXPECT_EQ(rows.statistics[2].name, "n");
  EXPECT_EQ(rows.statistics[3].collection, std::string(256, 'n'));
}

TEST_F(ProbeTest, CallsFromASecondThreadDoNotDisturbTheSteps) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    tt_step();
    std::thread([] {
      tt_step();
      tt_fetch_begin();
      tt_fetch_end(3);
    }).join();
    tt_step();
    std::thread([] { tt_finish(); }).join();
    return true;
  }));
  EXPECT_EQ(RowsOf(0).steps.size(), 1u);
  EXPECT_EQ(registered_[0].consumer->counters().foreign_thread, 3u);
}

TEST_F(ProbeTest, ALossMayArriveAfterItsStep) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    std::uint64_t losses[2] = {};
    for (std::uint64_t& loss : losses) {
      loss = tt_loss_later();
      tt_backward_begin();
      tt_backward_end(0, 0);
      tt_optimizer_begin(1);
      tt_optimizer_end(1, 0, std::nan(""));
    }
    tt_loss_arrived(losses[0], 5);
    const pid_t child = ::fork();
    if (child == 0) {
      // What the parent was given means nothing here, before and after it registers.
      tt_loss_arrived(losses[1], 7);
      const bool again = tt_reinit_after_fork(TT_PROCESS_TRAINER) == 1;
      tt_loss_arrived(losses[1], 7);
      ::_exit(again ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    tt_loss_arrived(losses[1], 6);
    return status == 0 && losses[0] != 0;
  }));
  const format::Rows rows = RowsOf(0);
  ASSERT_EQ(rows.scalars.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rows.scalars[i].name, "loss");
    EXPECT_EQ(rows.scalars[i].step, static_cast<std::int64_t>(i));
    EXPECT_EQ(rows.scalars[i].value, 5.0 + static_cast<double>(i));
  }
  EXPECT_TRUE(RowsOf(1).scalars.empty());
}

TEST_F(ProbeTest, AccountedTimeIsInTheStep) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    tt_step();
    const std::uint64_t begin = tt_now();
    while (tt_now() - begin < 3'000'000) {
    }
    tt_account(begin);
    tt_step();
    tt_finish();
    return true;
  }));
  const format::Rows rows = RowsOf(0);
  ASSERT_EQ(rows.steps.size(), 1u);
  EXPECT_GT(rows.steps[0].probe_ns, rows.steps[0].duration_ns / 2);
  EXPECT_LE(rows.steps[0].probe_ns, rows.steps[0].duration_ns);
}

TEST_F(ProbeTest, AccountedTimeIsTakenOffThePhaseThatItLayIn) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    tt_step();
    tt_fetch_begin();
    const std::uint64_t begin = tt_now();
    while (tt_now() - begin < 30'000'000) {
    }
    tt_account(begin);
    tt_fetch_end(4);
    tt_forward_begin(TT_MODE_TRAIN);
    tt_forward_end(0);
    tt_step();
    tt_finish();
    return true;
  }));
  const format::Rows rows = RowsOf(0);
  ASSERT_EQ(rows.steps.size(), 1u);
  const format::StepRow& step = rows.steps[0];
  EXPECT_GT(step.probe_ns, 0);
  EXPECT_GE(step.other_ns, step.probe_ns * 9 / 10);
  EXPECT_LT(step.data_wait_ns, step.other_ns);
  EXPECT_EQ(step.data_wait_ns + step.forward_ns + step.backward_ns + step.optimizer_ns +
                step.comm_wait_ns + step.other_ns,
            step.duration_ns);
}

TEST_F(ProbeTest, TimeOnAnotherThreadIsInTheStepThatClosesNext) {
  ASSERT_TRUE(RunChild([] {
    tt_init(TT_PROCESS_TRAINER, 0);
    const std::uint64_t begin = tt_now();
    tt_step();
    // As a framework that runs its graph on threads of its own while the caller waits.
    std::thread([begin] {
      while (tt_now() - begin < 30'000'000) {
      }
      tt_account(begin);
    }).join();
    tt_step();
    tt_step();
    tt_finish();
    return true;
  }));
  const format::Rows rows = RowsOf(0);
  ASSERT_EQ(rows.steps.size(), 2u);
  EXPECT_GT(rows.steps[0].probe_ns, rows.steps[0].duration_ns / 2);
  EXPECT_LE(rows.steps[0].probe_ns, rows.steps[0].duration_ns);
  EXPECT_LT(rows.steps[1].probe_ns, rows.steps[0].duration_ns / 2) << "once";
}

}  // namespace
}  // namespace telltale::probe
