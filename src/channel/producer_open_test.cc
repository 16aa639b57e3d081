// SPDX-License-Identifier: Apache-2.0
// To whom a producer hands its arena: to a supervisor of its own user or of root, and to nobody
// else who listens at the path that it was given.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>

#include "base/unique_fd.h"
#include "channel/producer.h"
#include "channel/registration.h"
#include "channel/ticks.h"

namespace telltale::channel {
namespace {

constexpr int kServed = 0;
constexpr int kLeftAlone = 1;
constexpr int kNotHere = 2;  ///< This machine does not let us try it.

bool Become(uid_t user) {
  return user == 0 || (::setgroups(0, nullptr) == 0 && ::setresgid(user, user, user) == 0 &&
                       ::setresuid(user, user, user) == 0);
}

int ExitCode(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

/// A process of `user` that listens in a folder that all may reach, until it is let go.
class Listener {
 public:
  explicit Listener(uid_t user) {
    char folder[] = "/tmp/telltale-open-test-XXXXXX";
    folder_ = ::mkdtemp(folder);
    ::chmod(folder, 0777);
    int ready[2];
    int stay[2];
    if (::pipe2(ready, O_CLOEXEC) != 0 || ::pipe2(stay, O_CLOEXEC) != 0) ::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ready[0]);
      ::close(stay[1]);
      ::_exit(Listen(user, ready[1], stay[0]));
    }
    ::close(ready[1]);
    ::close(stay[0]);
    stay_.reset(stay[1]);
    const UniqueFd is_ready(ready[0]);
    char byte = 0;
    listens_ = ::read(is_ready.get(), &byte, 1) == 1;
  }
  ~Listener() {
    if (pid_ > 0) HeardOf();
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/socket"; }
  bool listens() const { return listens_; }
  /// Lets it go: whether it was given anything.
  bool HeardOf() {
    stay_.reset();
    const int code = ExitCode(pid_);
    pid_ = -1;
    return code != 0;
  }

 private:
  int Listen(uid_t user, int ready, int stay) const {
    if (!Become(user)) return kNotHere;
    const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path().c_str());
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::chmod(path().c_str(), 0777) != 0 || ::listen(listener.get(), 4) != 0 ||
        ::write(ready, "", 1) != 1) {
      return kNotHere;
    }
    pollfd end{stay, POLLIN, 0};
    ::poll(&end, 1, -1);
    // What has come lies there, also of one that has ended.
    ::fcntl(listener.get(), F_SETFL, O_NONBLOCK);
    const UniqueFd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char bytes[512];
    return peer && ::recv(peer.get(), bytes, sizeof bytes, MSG_DONTWAIT) > 0 ? 1 : 0;
  }

  std::string folder_;
  pid_t pid_ = -1;
  UniqueFd stay_;
  bool listens_ = false;
};

/// What a training of `user` comes to at that socket; `unmapped`: in a user namespace in which no
/// id has a number.
int OpenAs(uid_t user, bool unmapped, const std::string& path) {
  const pid_t pid = ::fork();
  if (pid != 0) return ExitCode(pid);
  if (!Become(user) || (unmapped && ::unshare(CLONE_NEWUSER) != 0)) ::_exit(kNotHere);
  void* const memory =
      ::mmap(nullptr, sizeof(Producer), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* producer = static_cast<Producer*>(memory);
  const OpenResult opened = producer->Open(kSmallPlan, 0, 0, DetectClock(), nullptr, path.c_str());
  if (opened == OpenResult::kOk) ::_exit(kServed);
  const bool says = std::strstr(producer->refusal(), "another user listens") != nullptr;
  ::_exit(opened == OpenResult::kNoSupervisor && says ? kLeftAlone : -1);
}

/// Who trains, who listens, whether in a namespace without numbers, what becomes of it.
using Case = std::tuple<uid_t, uid_t, bool, int>;
class WhoListens : public ::testing::TestWithParam<Case> {};

TEST_P(WhoListens, HasTheArenaWhereItIsOurUserOrRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming other users needs root: not tested here";
  const auto [trains, listens, unmapped, expected] = GetParam();
  Listener listener(listens);
  if (!listener.listens()) GTEST_SKIP() << "no other user can be had in this namespace";
  const int became = OpenAs(trains, unmapped, listener.path());
  if (became == kNotHere) GTEST_SKIP() << "no such process can be had in this namespace";
  EXPECT_EQ(became, expected);
  EXPECT_EQ(listener.HeardOf(), expected == kServed);
}

INSTANTIATE_TEST_SUITE_P(
    Users, WhoListens,
    ::testing::Values(Case{0, 0, false, kServed}, Case{1001, 1001, false, kServed},
                      // A supervisor of root, a training that has dropped its rights.
                      Case{1001, 0, false, kServed}, Case{1001, 1002, false, kLeftAlone},
                      Case{0, 1002, false, kLeftAlone}, Case{65534, 65534, false, kServed},
                      Case{65534, 1002, false, kLeftAlone}, Case{0, 0, true, kServed},
                      Case{0, 1002, true, kLeftAlone}, Case{1001, 1001, true, kServed},
                      Case{1001, 1002, true, kLeftAlone}));

}  // namespace
}  // namespace telltale::channel
