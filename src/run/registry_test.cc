// SPDX-License-Identifier: Apache-2.0
// Who may register and who is refused, over the real socket.
#include "run/registry.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/process.h"

namespace telltale::run {
namespace {

using channel::MessageType;
using channel::RefuseReason;

constexpr std::uint64_t kArenaBytes = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

UniqueFd Arena(int seals) {
  UniqueFd fd(::memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), kArenaBytes), 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

/// Uuid of the i-th producer of a test.
std::array<std::uint8_t, 16> Uuid(std::size_t i) {
  std::array<std::uint8_t, 16> uuid{};
  std::memcpy(uuid.data(), &i, sizeof i);
  return uuid;
}

channel::Hello HelloOf(std::size_t i) {
  auto hello = channel::MakeMessage<channel::Hello>(MessageType::kHello);
  hello.abi_major = format::kChannelMajor;
  hello.abi_minor = format::kChannelMinor;
  hello.arena_header_bytes = sizeof(format::ArenaHeader);
  hello.ring_entry_bytes = sizeof(format::RingEntry);
  hello.arena_bytes = kArenaBytes;
  hello.name_limit = 100;
  hello.pid = ::getpid();
  hello.start_time_ticks = ProcessStartTicks(::getpid());
  std::memcpy(hello.uuid, Uuid(i).data(), sizeof hello.uuid);
  return hello;
}

UniqueFd Connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    socket.reset();
  }
  return socket;
}

/// What a peer is told.
struct Answer {
  bool closed = false;  ///< The registry has hung up; without another word, if nothing else is set.
  bool accepted = false;
  bool slab = false;
  std::optional<RefuseReason> refused;
  std::string text;
};

Answer ReadAnswer(int socket) {
  Answer answer;
  alignas(8) char bytes[512];
  int fds[channel::kMaxMessageFds];
  int count = 0;
  const std::ptrdiff_t got = channel::ReceiveMessage(socket, bytes, sizeof bytes, fds, &count);
  for (int i = 0; i < count; ++i) ::close(fds[i]);
  answer.closed = got == 0 || got == -ECONNRESET;
  if (got <= 0) return answer;
  channel::Accept accept;
  channel::Refuse refuse;
  const auto size = static_cast<std::size_t>(got);
  answer.accepted = channel::CheckMessage(bytes, size, MessageType::kAccept, &accept) && count >= 1;
  answer.slab = answer.accepted && count == 2;
  if (channel::CheckMessage(bytes, size, MessageType::kRefuse, &refuse)) {
    answer.refused = static_cast<RefuseReason>(refuse.reason);
    answer.text = refuse.text;
  }
  return answer;
}

class RegistryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TMPDIR", "/tmp", 1);  // Where another user can follow, but for the folder itself.
    auto registry = Registry::Create(1);
    ASSERT_TRUE(registry.ok()) << registry.status().message();
    registry_.emplace(std::move(registry).value());
  }
  void Serve(std::int64_t now_ns = 0) {
    registry_->Serve(now_ns, {.note = [this](const std::string& line) { notes_.push_back(line); },
                              .held = held_});
  }
  Answer Offer(const channel::Hello& hello, int arena) {
    const UniqueFd socket = Connect(registry_->socket_path());
    EXPECT_TRUE(socket);
    EXPECT_EQ(channel::SendMessage(socket.get(), &hello, sizeof hello, &arena, 1), 0);
    Serve();
    return ReadAnswer(socket.get());
  }

  std::optional<Registry> registry_;
  std::vector<std::string> notes_;
  std::function<void()> held_;
};

TEST_F(RegistryTest, TheCapHoldsIsSaidAndCountedAndAFreedPlaceIsTaken) {
  const UniqueFd arena = Arena(kSeals);
  for (std::size_t i = 0; i < kMaxProducers; ++i) {
    ASSERT_TRUE(Offer(HelloOf(i), arena.get()).accepted) << i;
  }
  EXPECT_EQ(registry_->producers().size(), 256U);
  EXPECT_TRUE(notes_.empty());

  for (std::size_t i = 0; i < 5; ++i) {
    const Answer answer = Offer(HelloOf(1000 + i), arena.get());
    EXPECT_EQ(answer.refused, RefuseReason::kTooManyProducers);
    EXPECT_NE(answer.text.find("256 processes"), std::string::npos) << answer.text;
    EXPECT_EQ(registry_->refused(), i + 1);
  }
  EXPECT_EQ(registry_->producers().size(), 256U);
  ASSERT_EQ(notes_.size(), 3U) << "all are counted, the first are told";
  EXPECT_NE(notes_[0].find(std::to_string(::getpid())), std::string::npos) << notes_[0];

  registry_->Release(Uuid(7));
  EXPECT_TRUE(Offer(HelloOf(2000), arena.get()).accepted);
  EXPECT_EQ(registry_->producers().size(), 256U);
}

TEST_F(RegistryTest, WhoeverTakesAProducerHasItBeforeItRecords) {
  const UniqueFd arena = Arena(kSeals);
  const UniqueFd socket = Connect(registry_->socket_path());
  const channel::Hello hello = HelloOf(1);
  const int fd = arena.get();
  ASSERT_EQ(channel::SendMessage(socket.get(), &hello, sizeof hello, &fd, 1), 0);
  int times = 0;
  held_ = [&] {
    ++times;
    ASSERT_EQ(registry_->producers().size(), 1U);
    EXPECT_TRUE(registry_->producers()[0].arena);
    char byte = 0;
    EXPECT_EQ(::recv(socket.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1) << "it waits still";
    EXPECT_EQ(errno, EAGAIN);
  };
  Serve();
  EXPECT_EQ(times, 1);
  EXPECT_TRUE(ReadAnswer(socket.get()).accepted);
}

TEST_F(RegistryTest, AnotherUsersProcessIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another user needs root: not tested here";
  constexpr uid_t kNobody = 65534;
  enum : int { kRefused = 0, kCannotBecome = 10, kNoWay = 11, kConnected = 12 };
  // What a process of that user meets at the socket.
  const auto spawn = [&](bool silent = false) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kNobody, kNobody, kNobody) != 0 ||
        ::setresuid(kNobody, kNobody, kNobody) != 0) {
      ::_exit(kCannotBecome);
    }
    const UniqueFd socket = Connect(registry_->socket_path());
    if (!socket) ::_exit(errno == EACCES ? kNoWay : kConnected);
    if (silent) ::_exit(kConnected);
    const channel::Hello hello = HelloOf(1);
    const UniqueFd arena = Arena(kSeals);
    const int fd = arena.get();
    if (channel::SendMessage(socket.get(), &hello, sizeof hello, &fd, 1) != 0) ::_exit(kConnected);
    pollfd wait{socket.get(), POLLIN, 0};
    ::poll(&wait, 1, 300'000);
    const Answer answer = ReadAnswer(socket.get());
    ::_exit(answer.refused == RefuseReason::kForeignUser ? kRefused : kConnected);
  };
  const auto wait = [&](pid_t pid) {
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      std::vector<pollfd> fds;
      registry_->AddTo(&fds);
      ::poll(fds.data(), fds.size(), 10);
      Serve();
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };

  // The folder is ours alone: the socket cannot even be reached.
  const int reached = wait(spawn());
  if (reached == kCannotBecome) GTEST_SKIP() << "no other user can be had in this namespace";
  EXPECT_EQ(reached, kNoWay);
  EXPECT_EQ(registry_->refused(), 0U);

  // Whoever gets a way to the socket all the same is refused by who it is.
  const std::filesystem::path path = registry_->socket_path();
  ASSERT_EQ(::chmod(path.parent_path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  EXPECT_EQ(wait(spawn()), kRefused);
  EXPECT_EQ(registry_->refused(), 1U);
  EXPECT_TRUE(registry_->producers().empty());
  ASSERT_EQ(notes_.size(), 1U);
  EXPECT_NE(notes_[0].find("of user 65534 refused"), std::string::npos) << notes_[0];

  // A probe that finds us to be of another user says no word.
  EXPECT_EQ(wait(spawn(true)), kConnected);
  Serve();
  EXPECT_EQ(registry_->refused(), 2U);
  ASSERT_EQ(notes_.size(), 2U);
  EXPECT_NE(notes_[1].find("of user 65534 refused"), std::string::npos) << notes_[1];
}

TEST_F(RegistryTest, AnArenaThatCouldChangeUnderUsIsRefused) {
  const UniqueFd sealed = Arena(kSeals);
  EXPECT_EQ(Offer(HelloOf(1), Arena(0).get()).refused, RefuseReason::kMalformed);
  EXPECT_EQ(Offer(HelloOf(2), Arena(F_SEAL_GROW | F_SEAL_SEAL).get()).refused,
            RefuseReason::kMalformed);
  channel::Hello larger = HelloOf(3);
  larger.arena_bytes = 2 * kArenaBytes;
  EXPECT_EQ(Offer(larger, sealed.get()).refused, RefuseReason::kMalformed);
  const UniqueFd socket = Connect(registry_->socket_path());
  const channel::Hello hello = HelloOf(4);
  ASSERT_EQ(channel::SendMessage(socket.get(), &hello, sizeof hello, nullptr, 0), 0);
  Serve();
  EXPECT_EQ(ReadAnswer(socket.get()).refused, RefuseReason::kMalformed);
  EXPECT_EQ(registry_->refused(), 4U);
  EXPECT_TRUE(registry_->producers().empty());
}

TEST_F(RegistryTest, ATrainerGetsASlab) {
  const UniqueFd arena = Arena(kSeals);
  EXPECT_TRUE(Offer(HelloOf(1), arena.get()).slab);
  channel::Hello worker = HelloOf(2);
  worker.process_kind = 1;
  EXPECT_FALSE(Offer(worker, arena.get()).slab);
  channel::Hello before = HelloOf(3);
  before.abi_minor = format::kChannelMinor - 1;
  const Answer answer = Offer(before, arena.get());
  EXPECT_TRUE(answer.accepted) << "the minor version before";
  EXPECT_TRUE(answer.slab);
  ASSERT_EQ(registry_->producers().size(), 3U);
  // The run holds it, so that what lies in it survives the agent.
  struct stat info {};
  ASSERT_EQ(::fstat(registry_->producers()[0].slab.get(), &info), 0);
  EXPECT_GE(static_cast<std::uint64_t>(info.st_size), kSlabBytes);
  EXPECT_LT(static_cast<std::uint64_t>(info.st_blocks) * 512, kSlabBytes / 16) << "it is sparse";
  EXPECT_FALSE(registry_->producers()[1].slab);
}

TEST_F(RegistryTest, TheSlabIsAsLargeAsThePlanAsksFor) {
  const UniqueFd arena = Arena(kSeals);
  // What a plan may not ask for, what a large one asks for, and less than a later one may want.
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> asked_and_made{
      {1ULL << 40, kMaxSlabBytes}, {1ULL << 30, 1ULL << 30}, {1, kSlabBytes}};
  for (const auto& [asked, made] : asked_and_made) {
    auto registry = Registry::Create(1, {}, asked);
    ASSERT_TRUE(registry.ok());
    registry_.emplace(std::move(registry).value());
    EXPECT_TRUE(Offer(HelloOf(1), arena.get()).slab);
    struct stat info {};
    ASSERT_EQ(::fstat(registry_->producers()[0].slab.get(), &info), 0);
    EXPECT_GE(static_cast<std::uint64_t>(info.st_size), made);
    EXPECT_LT(static_cast<std::uint64_t>(info.st_size), made + made / 512 + 8192);
    EXPECT_LT(static_cast<std::uint64_t>(info.st_blocks) * 512, made / 512 + 16384);
  }
}

TEST_F(RegistryTest, AControlPageIsWrittenBeforeItsProducerIsAccepted) {
  auto registry = Registry::Create(1, [](channel::ControlPage* page) { page->PublishEpoch(); });
  ASSERT_TRUE(registry.ok());
  registry_.emplace(std::move(registry).value());
  const UniqueFd arena = Arena(kSeals);
  EXPECT_TRUE(Offer(HelloOf(1), arena.get()).accepted);
  ASSERT_EQ(registry_->producers().size(), 1U);
  EXPECT_EQ(registry_->producers()[0].control.epoch(), 1U);
}

TEST_F(RegistryTest, AProcessThatEndedBeforeItCouldBeToldIsTakenAllTheSame) {
  const UniqueFd sealed = Arena(kSeals);
  const pid_t child = ::fork();
  if (child == 0) {
    const UniqueFd socket = Connect(registry_->socket_path());
    const channel::Hello hello = HelloOf(1);
    const int arena = sealed.get();
    ::_exit(channel::SendMessage(socket.get(), &hello, sizeof hello, &arena, 1) == 0 ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  Serve();
  ASSERT_EQ(registry_->producers().size(), 1U);
  EXPECT_EQ(registry_->producers().front().pid, child);
  EXPECT_TRUE(PidfdEnded(registry_->producers().front().pidfd.get()));
  EXPECT_EQ(registry_->refused(), 0U);
}

TEST_F(RegistryTest, WhoSaysNothingOrNonsenseIsDropped) {
  const UniqueFd silent = Connect(registry_->socket_path());
  const UniqueFd odd = Connect(registry_->socket_path());
  ASSERT_EQ(channel::SendMessage(odd.get(), "GET / HTTP/1.1", 14, nullptr, 0), 0);
  Serve();
  const Answer answer = ReadAnswer(odd.get());
  EXPECT_TRUE(answer.closed && !answer.accepted && !answer.refused);
  Serve(5'000'000'000);
  EXPECT_FALSE(ReadAnswer(silent.get()).closed);
  Serve(5'000'000'001);
  EXPECT_TRUE(ReadAnswer(silent.get()).closed);
  EXPECT_EQ(registry_->refused(), 0U);
}

}  // namespace
}  // namespace telltale::run
