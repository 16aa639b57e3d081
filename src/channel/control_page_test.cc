// SPDX-License-Identifier: Apache-2.0
// The control page between its writer and a producer: answers, rules under the sequence lock, what
// is no page.
#include "channel/control_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>

#include "channel/testing.h"

namespace telltale::channel {
namespace {

using format::ControlRule;

struct Copy {
  ControlRule rules[format::kControlRules];
  std::uint32_t unanswered = 77;
  std::uint64_t slab = 77;
  std::uint64_t sequence = 0;
};

Copy Read(Producer* producer) {
  Copy copy;
  copy.sequence = producer->ReadRules(copy.rules, &copy.unanswered, &copy.slab);
  return copy;
}

/// Writes to the page as a hostile or dying agent would.
format::ControlHeader* Map(const ControlPage& page) {
  void* map = ::mmap(nullptr, format::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page.fd(), 0);
  return static_cast<format::ControlHeader*>(map);
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
  EXPECT_EQ(producer->NameWord(7), format::kNameUnanswered);
  ASSERT_TRUE(producer->UseControlPage(page->ReadOnlyFd()->release()));
  page->SetName(7, format::kNameYes | 5U << format::kNameMaskShift);
  page->SetName(100'000, format::kNameYes);
  page->PublishEpoch();
  EXPECT_EQ(producer->PlanEpoch(), 1u);
  EXPECT_EQ(producer->NameWord(7), format::kNameYes | 5U << format::kNameMaskShift);
  EXPECT_EQ(producer->NameWord(8), format::kNameUnanswered);
  EXPECT_EQ(producer->NameWord(100'000), format::kNameUnanswered) << "no word of the page";
  auto again = ControlPage::Attach(UniqueFd(::dup(page->fd())));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->epoch(), 1u);
  again->SetName(7, format::kNameNo);
  EXPECT_EQ(producer->NameWord(7), format::kNameNo);
}

/// What the producer reads of the windows; "?" where it is to ask again.
std::string WindowsOf(Producer* producer, std::size_t room = format::kMaxWindowsBytes) {
  std::string text(format::kMaxWindowsBytes, '?');
  std::size_t bytes = 0;
  if (producer->ReadWindows(text.data(), room, &bytes) == 0) return "?";
  return text.substr(0, bytes);
}

TEST(ControlPage, WindowsReachTheProducerWhole) {
  auto page = ControlPage::Create(100);
  ASSERT_TRUE(page.ok());
  TestProducer producer;
  EXPECT_EQ(producer->WindowsSequence(), 0U) << "no page yet";
  ASSERT_TRUE(producer->UseControlPage(page->ReadOnlyFd()->release()));
  EXPECT_EQ(producer->WindowsSequence(), 0U) << "none were ever set";
  EXPECT_EQ(WindowsOf(&*producer), "?");
  page->SetWindows(R"({"w":{"every":10}})");
  const std::uint64_t first = producer->WindowsSequence();
  EXPECT_EQ(first, 2U);
  EXPECT_EQ(WindowsOf(&*producer), R"({"w":{"every":10}})");
  EXPECT_EQ(WindowsOf(&*producer, 5), "?") << "no room for it";
  page->SetWindows(R"({"w":{"every":10}})");
  EXPECT_EQ(producer->WindowsSequence(), first) << "nothing has changed";
  // A new writer goes on from there, also where its predecessor died in the midst.
  auto again = ControlPage::Attach(UniqueFd(::dup(page->fd())));
  ASSERT_TRUE(again.ok()) << again.status().message();
  auto* header =
      static_cast<char*>(::mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd(), 0));
  ASSERT_NE(static_cast<void*>(header), MAP_FAILED);
  const auto offset = reinterpret_cast<format::ControlHeader*>(header)->windows_offset;
  auto* windows = reinterpret_cast<format::ControlWindows*>(header + offset);
  windows->sequence.store(first + 1);
  EXPECT_EQ(WindowsOf(&*producer), "?") << "it is being written";
  again->SetWindows("{}");
  EXPECT_EQ(WindowsOf(&*producer), "{}");
  windows->bytes.store(1U << 30);
  EXPECT_EQ(WindowsOf(&*producer), "?") << "longer than a page can hold";
  again->SetWindows("");
  EXPECT_EQ(WindowsOf(&*producer), "");
  ::munmap(header, 65536);
}

TEST(ControlPage, RulesReachTheProducerAsTheyWereSet) {
  auto page = ControlPage::Create(16383);
  ASSERT_TRUE(page.ok());
  TestProducer producer;
  EXPECT_EQ(Read(&*producer).sequence, 0u) << "no page yet";
  ASSERT_TRUE(producer->UseControlPage(page->ReadOnlyFd()->release()));
  EXPECT_EQ(Read(&*producer).sequence, 0u) << "no rules yet";
  ControlRule rules[format::kControlRules + 3] = {};
  for (std::uint32_t i = 0; i < std::size(rules); ++i) {
    rules[i] = ControlPage::EveryStep(1 + i % 31, 10 + i);
    rules[i].when[2].listed = i;
    rules[i].when[2].list[31] = -static_cast<std::int64_t>(i);
  }
  page->SetRules(rules, 0x800001, 1 << 20);
  const Copy copy = Read(&*producer);
  EXPECT_EQ(copy.sequence, 2u);
  EXPECT_EQ(producer->RulesSequence(), 2u);
  EXPECT_EQ(copy.unanswered, 0x800001u);
  EXPECT_EQ(copy.slab, 1u << 20);
  EXPECT_EQ(std::memcmp(copy.rules, rules, sizeof copy.rules), 0) << "past 24 they are left out";
  page->SetRules({}, 0, 0);
  const Copy none = Read(&*producer);
  EXPECT_EQ(none.sequence, 4u);
  EXPECT_EQ(none.rules[0].take, 0u);
  EXPECT_EQ(none.rules[23].take, 0u);
}

TEST(ControlPage, AMillionWordsTakeMemoryAsTheyAreSet) {
  auto page = ControlPage::Create(1 << 20);
  ASSERT_TRUE(page.ok()) << page.status().message();
  const auto allocated = [&] {
    struct stat info {};
    EXPECT_EQ(::fstat(page->fd(), &info), 0);
    return static_cast<std::uint64_t>(info.st_blocks) * 512;
  };
  EXPECT_LT(allocated(), 160U << 10);
  TestProducer producer;
  ASSERT_TRUE(producer->UseControlPage(page->ReadOnlyFd()->release()));
  // The producer reads none that has no memory, so that reading gives none any.
  EXPECT_EQ(producer->NameWord(1 << 20), format::kNameUnanswered);
  EXPECT_EQ(producer->NameWord(20'000), format::kNameUnanswered);
  EXPECT_LT(allocated(), 160U << 10);
  page->SetName(20'000, format::kNameNo);
  EXPECT_EQ(producer->NameWord(20'000), format::kNameNo);
  EXPECT_LT(allocated(), 256U << 10);
  auto again = ControlPage::Attach(UniqueFd(::dup(page->fd())));
  ASSERT_TRUE(again.ok()) << again.status().message();
  again->SetName(1 << 20, format::kNameYes);
  EXPECT_EQ(producer->NameWord(1 << 20), format::kNameYes);
  EXPECT_EQ(producer->NameWord(20'000), format::kNameNo);
  // A page of the version before, whose words had memory all.
  auto* header = Map(*page);
  header->abi_minor = 1;
  header->words_ready.store(0);
  EXPECT_EQ(producer->NameWord(20'000), format::kNameNo);
}

TEST(ControlPage, AProbeOfVersion10FindsItsInterval) {
  auto page = ControlPage::Create(100);
  ASSERT_TRUE(page.ok());
  const ControlRule rules[] = {ControlPage::EveryStep(4, 1), ControlPage::EveryStep(3, 50),
                               ControlPage::EveryStep(1, 20)};
  page->SetRules(rules, 4, 0);
  const format::ControlHeader* header = Map(*page);
  EXPECT_EQ(header->stats_interval_steps.load(), 20u) << "the most frequent with statistics";
  EXPECT_EQ(header->flags.load(), format::kControlWantAll);
}

TEST(ControlPage, TheRateOfDetailOutlivesOtherRules) {
  auto page = ControlPage::Create(100);
  ASSERT_TRUE(page.ok());
  TestProducer producer;
  EXPECT_EQ(producer->ControlFlags(), 0u);
  ASSERT_TRUE(producer->UseControlPage(page->ReadOnlyFd()->release()));
  const ControlRule rule = ControlPage::EveryStep(1, 1);
  page->SetRules({&rule, 1}, 1, 0);
  page->SetDetail(20'000, false);
  constexpr std::uint32_t kRate = 20'000U << format::kControlDetailShift;
  EXPECT_EQ(producer->ControlFlags(), format::kControlWantAll | kRate);
  page->SetRules({}, 0, 0);
  EXPECT_EQ(producer->ControlFlags(), kRate);
  page->SetDetail(0xffffffff, true);
  EXPECT_EQ(producer->ControlFlags(),
            format::kControlDetailAll | format::kControlDetailMax << format::kControlDetailShift);
  page->SetDetail(0, false);
  EXPECT_EQ(producer->ControlFlags(), 0u);
}

TEST(ControlPage, ATornEditIsNotReadAndTheNextWriterEndsIt) {
  auto page = ControlPage::Create(100);
  ASSERT_TRUE(page.ok());
  TestProducer producer;
  ASSERT_TRUE(producer->UseControlPage(page->ReadOnlyFd()->release()));
  const ControlRule first = ControlPage::EveryStep(1, 7);
  page->SetRules({&first, 1}, 0, 0);
  page->BeginRules();
  page->SetName(3, format::kNameYes);
  EXPECT_EQ(Read(&*producer).sequence, 0u);
  // The agent dies here; the next one begins anew.
  auto next = ControlPage::Attach(UniqueFd(::dup(page->fd())));
  ASSERT_TRUE(next.ok());
  next->BeginRules();
  EXPECT_EQ(Read(&*producer).sequence, 0u);
  const ControlRule second = ControlPage::EveryStep(2, 9);
  next->SetRules({&second, 1}, 0, 0);
  const Copy copy = Read(&*producer);
  EXPECT_EQ(copy.sequence % 2, 0u);
  EXPECT_NE(copy.sequence, 0u);
  EXPECT_EQ(copy.rules[0].take, 2u);
}

TEST(ControlPage, ACopyIsNeverHalfOfOneAndHalfOfAnother) {
  auto page = ControlPage::Create(100);
  ASSERT_TRUE(page.ok());
  TestProducer producer;
  ASSERT_TRUE(producer->UseControlPage(page->ReadOnlyFd()->release()));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    ControlRule rules[format::kControlRules];
    for (std::uint32_t edit = 1; !stop.load(); ++edit) {
      for (ControlRule& rule : rules) rule = ControlPage::EveryStep(1, edit);
      page->SetRules(rules, edit, edit);
    }
  });
  int whole = 0;
  while (whole < 200) {
    const Copy copy = Read(&*producer);
    if (copy.sequence == 0) continue;
    ++whole;
    for (const ControlRule& rule : copy.rules) {
      EXPECT_EQ(rule.when[3].interval, copy.rules[0].when[0].interval);
    }
    EXPECT_EQ(copy.unanswered, copy.rules[0].when[0].interval);
    EXPECT_EQ(copy.slab, copy.rules[0].when[0].interval);
  }
  stop.store(true);
  writer.join();
}

TEST(ControlPage, TheProducerTakesNoRulesThatLieOutside) {
  for (const std::uint32_t offset : {1U, 32U, 1024U, 0xFFFFFFC0U}) {
    auto page = ControlPage::Create(100);
    ASSERT_TRUE(page.ok());
    Map(*page)->rules_offset = offset;
    TestProducer producer;
    ASSERT_TRUE(producer->UseControlPage(page->ReadOnlyFd()->release())) << "the words are good";
    Map(*page)->rules_sequence.store(2);
    EXPECT_EQ(Read(&*producer).sequence, offset == 1024U ? 2u : 0u) << offset;
    EXPECT_FALSE(ControlPage::Attach(UniqueFd(::dup(page->fd()))).ok());
  }
}

TEST(ControlPage, TheProducerRefusesOneThatCouldShrink) {
  TestProducer producer;
  const int fd = ::memfd_create("x", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, 8192), 0);
  EXPECT_FALSE(producer->UseControlPage(fd));
  EXPECT_EQ(producer->RulesSequence(), 0u);
}

}  // namespace
}  // namespace telltale::channel
