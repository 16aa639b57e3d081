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

#include "channel/control_page.h"
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
  const int sent[3] = {writing.get(), reading.get(), writing.get()};
  ASSERT_EQ(SendMessage(a.get(), "hello", 5, sent, 3), 0);
  EXPECT_EQ(SendMessage(a.get(), "hello", 5, sent, 4), EINVAL);
  EXPECT_EQ(ReceiveMessage(b.get(), bytes, sizeof bytes, fds, &count), 5);
  ASSERT_EQ(count, 3);
  writing.reset();
  EXPECT_EQ(::write(fds[0], "x", 1), 1);
  EXPECT_NE(::fcntl(fds[0], F_GETFD) & FD_CLOEXEC, 0);
  for (const int fd : fds) ::close(fd);
  EXPECT_EQ(::read(reading.get(), bytes, 2), 1);
  EXPECT_EQ(::read(reading.get(), bytes, 2), 0) << "a write end is still open";
}

TEST(ControlPage, TheProbesDescriptorCannotWrite) {
  auto page = ControlPage::Create(100);
  ASSERT_TRUE(page.ok()) << page.status().message();
  auto read_only = page->ReadOnlyFd();
  ASSERT_TRUE(read_only.ok());
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, read_only->get(), 0),
            MAP_FAILED);
  EXPECT_NE(::ftruncate(page->fd(), 0), 0);
}

TEST(ControlPage, AnswersReachTheProducerAndSurviveANewWriter) {
  auto page = ControlPage::Create(100);
  ASSERT_TRUE(page.ok());
  TestProducer producer;
  EXPECT_EQ(producer->StatsInterval(), 0u);
  ASSERT_TRUE(producer->UseControlPage(page->ReadOnlyFd()->release()));
  page->SetStatsInterval(50);
  page->SetName(7, format::kNameYes);
  page->SetName(100'000, format::kNameYes);
  page->PublishEpoch();
  EXPECT_EQ(producer->StatsInterval(), 50u);
  EXPECT_EQ(producer->NameWord(7), format::kNameYes);
  EXPECT_EQ(producer->NameWord(8), format::kNameUnanswered);
  EXPECT_EQ(producer->NameWord(100'000), format::kNameUnanswered);
  page->SetWantAll(true);
  EXPECT_EQ(producer->NameWord(8), format::kNameYes) << "a plan of every name needs no answers";
  EXPECT_EQ(producer->NameWord(100'000), format::kNameUnanswered) << "no word of the page";
  page->SetName(7, format::kNameNo);
  EXPECT_EQ(producer->NameWord(7), format::kNameNo) << "an answer goes first";
  page->SetWantAll(false);
  EXPECT_EQ(producer->NameWord(8), format::kNameUnanswered);
  auto again = ControlPage::Attach(UniqueFd(::dup(page->fd())));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->epoch(), 1u);
  EXPECT_EQ(again->stats_interval(), 50u);
  again->SetName(8, format::kNameNo);
  EXPECT_EQ(producer->NameWord(8), format::kNameNo);
}

TEST(ControlPage, TheProducerRefusesOneThatCouldShrink) {
  TestProducer producer;
  const int fd = ::memfd_create("x", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, 8192), 0);
  EXPECT_FALSE(producer->UseControlPage(fd));
  EXPECT_EQ(producer->StatsInterval(), 0u);
}

}  // namespace
}  // namespace telltale::channel
