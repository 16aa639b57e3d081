// SPDX-License-Identifier: Apache-2.0
// Messages, versions, control page.
#include "channel/registration.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "channel/testing.h"

namespace telltale::channel {
namespace {

Hello GoodHello(std::uint16_t major, std::uint16_t minor) {
  auto hello = MakeMessage<Hello>(MessageType::kHello);
  hello.abi_major = major;
  hello.abi_minor = minor;
  hello.arena_header_bytes = sizeof(format::ArenaHeader);
  hello.ring_entry_bytes = sizeof(format::RingEntry);
  hello.arena_bytes = 1 << 20;
  hello.name_limit = 100;
  hello.pid = 4711;
  return hello;
}

TEST(JudgeHello, TakesMinorNAndNMinusOneAndNamesBothVersionsElse) {
  constexpr std::uint16_t kMajor = 3, kMinor = 5;
  for (std::uint16_t major = 1; major <= 5; ++major) {
    for (std::uint16_t minor = 3; minor <= 7; ++minor) {
      char text[240];
      const std::uint32_t reason =
          JudgeHello(GoodHello(major, minor), kMajor, kMinor, text, sizeof text);
      RefuseReason expected{};
      if (major != kMajor) {
        expected = RefuseReason::kMajorDiffers;
      } else if (minor > kMinor) {
        expected = RefuseReason::kMinorTooNew;
      } else if (minor < kMinor - 1) {
        expected = RefuseReason::kMinorTooOld;
      }
      EXPECT_EQ(reason, static_cast<std::uint32_t>(expected)) << major << "." << minor;
      if (reason == 0) continue;
      const std::string line = text;
      EXPECT_NE(line.find(std::to_string(major) + "." + std::to_string(minor)), std::string::npos);
      EXPECT_NE(line.find("3.5"), std::string::npos);
      EXPECT_NE(line.find("4711"), std::string::npos);
    }
  }
}

TEST(JudgeHello, RefusesAnotherLayoutAndFitsAnyBuffer) {
  Hello hello = GoodHello(format::kChannelMajor, format::kChannelMinor);
  char text[240];
  EXPECT_EQ(JudgeHello(hello, text, sizeof text), 0u);
  hello.ring_entry_bytes = 128;
  EXPECT_EQ(JudgeHello(hello, text, sizeof text),
            static_cast<std::uint32_t>(RefuseReason::kLayoutDiffers));
  char small[10];
  JudgeHello(hello, small, sizeof small);
  EXPECT_EQ(std::string(small).size(), 9u);
}

TEST(CheckMessage, TakesLongerOnesAndNothingElse) {
  const auto end = MakeMessage<AttemptEnd>(MessageType::kAttemptEnd);
  AttemptEnd out;
  EXPECT_TRUE(CheckMessage(&end, sizeof end, MessageType::kAttemptEnd, &out));
  EXPECT_FALSE(CheckMessage(&end, sizeof end, MessageType::kAttemptStart, &out));
  EXPECT_FALSE(CheckMessage(&end, sizeof end - 1, MessageType::kAttemptEnd, &out));
  EXPECT_FALSE(CheckMessage(&end, 3, MessageType::kAttemptEnd, &out));
  // A later version's message with a field more.
  char longer[sizeof end + 8] = {};
  AttemptEnd later = end;
  later.header.bytes = sizeof longer;
  std::memcpy(longer, &later, sizeof later);
  EXPECT_TRUE(CheckMessage(longer, sizeof longer, MessageType::kAttemptEnd, &out));
  EXPECT_FALSE(CheckMessage(longer, sizeof end, MessageType::kAttemptEnd, &out));
}

TEST(Messages, WhatADeadPeerHadSentIsStillRead) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  UniqueFd a(sockets[0]), b(sockets[1]);
  ASSERT_EQ(SendMessage(a.get(), "last words", 10, nullptr, 0), 0);
  ASSERT_EQ(SendMessage(b.get(), "unread", 6, nullptr, 0), 0);
  a.reset();
  char bytes[64];
  int fds[kMaxMessageFds];
  int count = -1;
  EXPECT_EQ(ReceiveMessage(b.get(), bytes, sizeof bytes, fds, &count), 10);
  EXPECT_EQ(ReceiveMessage(b.get(), bytes, sizeof bytes, fds, &count), 0);
}

TEST(Messages, DescriptorsTravelAndTooManyAreClosed) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const UniqueFd a(sockets[0]), b(sockets[1]);
  char bytes[64];
  int fds[kMaxMessageFds];
  int count = -1;
  EXPECT_EQ(ReceiveMessage(b.get(), bytes, sizeof bytes, fds, &count), -EAGAIN);
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  UniqueFd reading(pipes[0]), writing(pipes[1]);
  const int sent[5] = {writing.get(), reading.get(), writing.get(), writing.get(), writing.get()};
  ASSERT_EQ(SendMessage(a.get(), "hello", 5, sent, 4), 0);
  EXPECT_EQ(SendMessage(a.get(), "hello", 5, sent, 5), EINVAL);
  EXPECT_EQ(ReceiveMessage(b.get(), bytes, sizeof bytes, fds, &count), 5);
  ASSERT_EQ(count, 4);
  writing.reset();
  EXPECT_EQ(::write(fds[0], "x", 1), 1);
  EXPECT_NE(::fcntl(fds[0], F_GETFD) & FD_CLOEXEC, 0);
  for (const int fd : fds) ::close(fd);
  EXPECT_EQ(::read(reading.get(), bytes, 2), 1);
  EXPECT_EQ(::read(reading.get(), bytes, 2), 0) << "a write end is still open";
}

}  // namespace
}  // namespace telltale::channel
