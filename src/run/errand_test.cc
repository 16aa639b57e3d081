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

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>

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
  EXPECT_GT(::waitpid(-1, nullptr, 0), 0) << "its link has ended, and so does it";
}

TEST(StreamWriter, WritesInOrderToAFileAndToAPipe) {
  char file[] = "/tmp/tt-stream-XXXXXX";
  const int fd = ::mkstemp(file);
  ASSERT_GE(fd, 0);
  StreamWriter to_file(fd);
  EXPECT_TRUE(to_file.is_file());
  for (const char* line : {"one\n", "two\n", "three\n"}) to_file.Write(line);
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
