// SPDX-License-Identifier: Apache-2.0
#include "run/errand.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/units.h"

namespace telltale::run {
namespace {

constexpr std::int64_t kPatienceNs = 300 * kSecond;

int CountOpenFiles() {
  int count = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(dir)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(dir);
  return count - 1;  // The folder's own.
}

TEST(Errand, HoldsNothingOfOursButWhatItIsGiven) {
  int kept[2];
  int other[2];
  ASSERT_EQ(::pipe(kept), 0);
  ASSERT_EQ(::pipe(other), 0);
  auto errand =
      Errand::Start("test",
                    [&](int link) {
                      if (::fcntl(kept[1], F_GETFD) < 0 || ::fcntl(link, F_GETFD) < 0) return 1;
                      if (::fcntl(other[0], F_GETFD) >= 0 || ::fcntl(other[1], F_GETFD) >= 0)
                        return 2;
                      if (CountOpenFiles() != 5) return 3;
                      for (int stream = 0; stream < 3; ++stream) {
                        struct stat info {};
                        if (::fstat(stream, &info) != 0 || info.st_rdev != makedev(1, 3)) return 4;
                      }
                      return ::getsid(0) == ::getpid() ? 0 : 5;
                    },
                    {kept[1]});
  ASSERT_TRUE(errand.ok()) << errand.status().message();
  const auto exit = errand->Await(kPatienceNs);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->exit_code, 0);
  for (const int fd : {kept[0], kept[1], other[0], other[1]}) ::close(fd);
}

TEST(Errand, TheLinkCarriesMessagesAndEndsWithUs) {
  auto errand = Errand::Start("test", [](int link) {
    char text[16];
    ssize_t got = 0;
    while ((got = ::recv(link, text, sizeof text, 0)) > 0) {
      if (::send(link, text, static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) return 1;
    }
    return got == 0 ? 7 : 1;
  });
  ASSERT_TRUE(errand.ok());
  ASSERT_EQ(::send(errand->link(), "ab", 2, 0), 2);
  char text[16];
  ssize_t got = -1;
  while (got < 0) got = ::recv(errand->link(), text, sizeof text, 0);
  EXPECT_EQ(std::string(text, static_cast<std::size_t>(got)), "ab");
  EXPECT_FALSE(errand->Exit());
  errand->EndLink();
  const auto exit = errand->Await(kPatienceNs);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->exit_code, 7);
}

TEST(Errand, AnExceptionEndsTheChildAlone) {
  auto errand = Errand::Start("test", [](int) -> int { throw std::bad_alloc(); });
  ASSERT_TRUE(errand.ok());
  const auto exit = errand->Await(kPatienceNs);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->exit_code, 1);
}

TEST(Errand, WhoEndsAllOfOursDoesNotEndIt) {
  auto errand = Errand::Start("test", [](int link) {
    char byte = 0;
    if (::send(link, "", 1, MSG_NOSIGNAL) != 1) return 1;
    return ::recv(link, &byte, 1, 0) == 0 ? 0 : 1;
  });
  ASSERT_TRUE(errand.ok());
  char byte = 1;
  while (::recv(errand->link(), &byte, 1, 0) < 0) {
  }
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) errand->Signal(signal);
  errand->EndLink();
  const auto exit = errand->Await(kPatienceNs);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->exit_code, 0);
}

TEST(Errand, OneThatDoesNotEndIsLeftBehind) {
  auto errand = Errand::Start("test", [](int link) {
    char byte = 0;
    static_cast<void>(::recv(link, &byte, 1, 0));
    return 0;
  });
  ASSERT_TRUE(errand.ok());
  EXPECT_FALSE(errand->Await(kMs));
  EXPECT_TRUE(errand->started());
  errand->Leave();
  EXPECT_FALSE(errand->started());
  // Its link has ended, and so does it; where that was at once, Leave has reaped it.
  EXPECT_TRUE(::waitpid(-1, nullptr, 0) > 0 || errno == ECHILD);
}

/// A pipe that takes nothing until it is read.
class FullPipe {
 public:
  FullPipe() {
    EXPECT_EQ(::pipe2(ends_, O_CLOEXEC), 0);
    ::fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    const std::string page(4096, '.');
    while (::write(ends_[1], page.data(), page.size()) > 0) {
    }
    ::fcntl(ends_[1], F_SETFL, 0);
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~FullPipe() {
    for (const int fd : ends_) ::close(fd);
  }
  int in() const { return ends_[1]; }
  /// What has been written to it, without what has filled it.
  std::string Read() {
    char bytes[4096];
    std::string text;
    for (ssize_t n = 0; (n = ::read(ends_[0], bytes, sizeof bytes)) > 0;) {
      text.append(bytes, static_cast<std::size_t>(n));
    }
    return text.substr(std::min(text.find_first_not_of('.'), text.size()));
  }

 private:
  int ends_[2] = {-1, -1};
};

void AwaitReady(StreamWriter* writer) {
  const std::int64_t deadline = Clock::System().MonotonicNs() + kPatienceNs;
  while (!writer->Ready() && Clock::System().MonotonicNs() < deadline) ::usleep(1000);
  ASSERT_TRUE(writer->Ready());
}

TEST(StreamWriter, WritesInOrderToAFileAndToAPipe) {
  char file[] = "/tmp/tt-stream-XXXXXX";
  const int fd = ::mkstemp(file);
  ASSERT_GE(fd, 0);
  StreamWriter to_file(fd);
  EXPECT_TRUE(to_file.is_file());
  for (const char* line : {"one\n", "two\n", "three\n"}) {
    EXPECT_TRUE(to_file.Write(line));
    AwaitReady(&to_file);
  }
  std::ifstream in(file);
  std::string text;
  for (std::string line; std::getline(in, line);) text += line + " ";
  EXPECT_EQ(text, "one two three ");
  ::close(fd);
  ::unlink(file);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  StreamWriter to_pipe(pipe[1]);
  EXPECT_FALSE(to_pipe.is_file());
  to_pipe.Write("four");
  char bytes[8];
  EXPECT_EQ(::read(pipe[0], bytes, sizeof bytes), 4);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(StreamWriter, LinesThatAPipeDoesNotTakeAreCountedAndNobodyWaits) {
  FullPipe pipe;
  StreamWriter writer(pipe.in());
  EXPECT_FALSE(writer.Ready());
  writer.Print("one");
  writer.Print("two\nthree");
  EXPECT_FALSE(writer.Write("bytes"));
  EXPECT_EQ(pipe.Read(), "");
  writer.Print("four");
  EXPECT_EQ(pipe.Read(),
            "telltale: 3 lines of Telltale are missing here: nothing could be written\nfour\n");
  writer.Print("five");
  EXPECT_EQ(pipe.Read(), "five\n") << "it is said once";
}

TEST(StreamWriter, LinesThatAFileDoesNotTakeAreCountedAndComeInOrder) {
  FullPipe pipe;
  // As a file on a disk that does not answer: the child that writes does not come back.
  StreamWriter writer(pipe.in(), true);
  writer.Print("one");
  EXPECT_FALSE(writer.Ready());
  writer.Print("two");
  StreamWriter next = std::move(writer);
  next.Print("three");
  std::string text = pipe.Read();
  AwaitReady(&next);
  EXPECT_EQ(next.LeftOut(),
            "telltale: 2 lines of Telltale are missing here: nothing could be written\n");
  EXPECT_EQ(next.LeftOut(), "");
  next.Print("four");
  AwaitReady(&next);
  text += pipe.Read();
  EXPECT_EQ(text, "one\nfour\n");
}

TEST(EndsWithin, WhatEndsHasAnswered) {
  EXPECT_TRUE(EndsWithin([] {}, kPatienceNs));
  EXPECT_TRUE(EndsWithin([] { throw std::bad_alloc(); }, kPatienceNs));
}

TEST(EndsWithin, WhatDoesNotEndIsLeftBehindAndIsNoChildOfOurs) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  // It ends with us, or with its file.
  const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(pipe[0]);
  EXPECT_FALSE(EndsWithin(
      [&] {
        const int fd = ::open(path.c_str(), O_RDONLY);
        char byte = 0;
        static_cast<void>(::read(fd, &byte, 1));
      },
      50 * kMs));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child of ours would be the training's";
  EXPECT_EQ(errno, ECHILD);
  ::close(pipe[1]);
  ::close(pipe[0]);
}

TEST(EndsWithin, AProcessBetweenThatDoesNotEndIsNoAnswer) {
  EXPECT_FALSE(EndsWithin([] { ::kill(::getppid(), SIGSTOP); }, 50 * kMs));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(EndsWithin, AProcessBetweenThatIsKilledSaysNothingAndIsAskedAgain) {
  char file[] = "/tmp/tt-killed-XXXXXX";
  const int fd = ::mkstemp(file);
  ASSERT_GE(fd, 0);
  // The first is killed, as for want of memory; the second finds that there was one.
  EXPECT_TRUE(EndsWithin(
      [&] {
        if (::unlink(file) == 0) ::kill(::getppid(), SIGKILL);
      },
      kPatienceNs));
  EXPECT_NE(::access(file, F_OK), 0);
  ::close(fd);
}

TEST(RemoveWithFolder, RemovesAFileAndItsFolder) {
  char folder[] = "/tmp/tt-errand-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string file = std::string(folder) + "/socket";
  std::ofstream(file).put('\n');
  RemoveWithFolder(file.c_str(), folder);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace telltale::run
