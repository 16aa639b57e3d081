// SPDX-License-Identifier: Apache-2.0
// Rings and names: wrap, overflow, threads, and the accounts that must close.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "channel/testing.h"

namespace telltale::channel {
namespace {

void WriteScalars(Producer* producer, std::int64_t from, std::int64_t to) {
  const std::uint32_t name = producer->Intern("n", 1);
  for (std::int64_t i = from; i < to; ++i) {
    producer->Scalar(name, static_cast<double>(i), i, 0, producer->Now());
  }
}

TEST(Ring, WrapsManyTimesWithRecordsOfAllSizes) {
  TestProducer producer;
  auto consumer = producer.Attach();
  StringPool pool;
  const std::uint32_t kind = producer->Intern("kind", 4);
  std::int64_t next = 0, expected = 0;
  std::uint64_t taken = 0;
  // 512 KiB hold about 60 rounds; 2,000 rounds wrap some 30 times.
  for (int round = 0; round < 2000; ++round) {
    const std::string text(static_cast<std::size_t>(round * 37 % 4097), 'x');
    producer->Event(kind, 1, kind, text.data(), text.size(), nullptr, 0, next, producer->Now());
    ++next;
    WriteScalars(&*producer, next, next + round % 7);
    next += round % 7;
    if (round % 20 != 19) continue;
    const Drained drained = DrainAll(consumer.get(), &pool);
    consumer->Commit();
    taken += drained.records;
    std::size_t events = 0, scalars = 0;
    while (events < drained.rows.events.size() || scalars < drained.rows.scalars.size()) {
      if (events < drained.rows.events.size() && drained.rows.events[events].step == expected) {
        ++events;
      } else {
        ASSERT_LT(scalars, drained.rows.scalars.size());
        ASSERT_EQ(drained.rows.scalars[scalars].step, expected);
        ++scalars;
      }
      ++expected;
    }
  }
  EXPECT_EQ(expected, next);
  EXPECT_EQ(consumer->counters().produced, taken);
  EXPECT_EQ(consumer->counters().dropped, 0u);
  EXPECT_EQ(consumer->counters().malformed, 0u);
}

TEST(Ring, OverflowDropsTheNewestAndTheAccountCloses) {
  TestProducer producer;
  auto consumer = producer.Attach();
  StringPool pool;
  constexpr std::int64_t kWritten = 100'000;  // 512 KiB hold 15,564 besides the reserve.
  WriteScalars(&*producer, 0, kWritten);
  const Drained drained = DrainAll(consumer.get(), &pool);
  const ProducerCounters counters = consumer->counters();
  EXPECT_EQ(counters.produced, static_cast<std::uint64_t>(kWritten));
  EXPECT_EQ(counters.produced, drained.records + counters.dropped);
  EXPECT_EQ(drained.records, (512u << 10) / 20 * 19 / 32);
  for (std::size_t i = 0; i < drained.rows.scalars.size(); ++i) {
    ASSERT_EQ(drained.rows.scalars[i].step, static_cast<std::int64_t>(i));
  }
  // Nothing is free before the commit.
  WriteScalars(&*producer, 0, 10);
  EXPECT_EQ(consumer->counters().dropped, counters.dropped + 10);
  consumer->Commit();
  WriteScalars(&*producer, 0, 10);
  EXPECT_EQ(consumer->counters().dropped, counters.dropped + 10);
  EXPECT_EQ(DrainAll(consumer.get(), &pool).rows.scalars.size(), 10u);
}

TEST(Ring, TheReserveIsForStepsAndEvents) {
  TestProducer producer;
  auto consumer = producer.Attach();
  StringPool pool;
  WriteScalars(&*producer, 0, 20'000);
  const std::uint64_t dropped = consumer->counters().dropped;
  ASSERT_GT(dropped, 0u);
  format::StepRecord step{};
  for (int i = 0; i < 100; ++i) {
    step.step = i;
    step.begin = producer->Now();
    producer->Step(step);
  }
  EXPECT_EQ(consumer->counters().dropped, dropped);
  EXPECT_EQ(DrainAll(consumer.get(), &pool).rows.steps.size(), 100u);
}

TEST(Ring, ATailThatIsNonsenseIsNotBelieved) {
  TestProducer producer;
  const auto* arena = reinterpret_cast<const char*>(producer->header());
  auto* entry = reinterpret_cast<format::RingEntry*>(const_cast<char*>(arena) +
                                                     producer->header()->directory_offset);
  WriteScalars(&*producer, 0, 20'000);
  const std::uint64_t head = entry->head.load();
  for (const std::uint64_t tail : {head + 8, ~std::uint64_t{0}, ~std::uint64_t{0} - 4096}) {
    entry->tail.store(tail);
    WriteScalars(&*producer, 0, 100);
    EXPECT_EQ(entry->head.load(), head);
  }
}

TEST(Ring, SixtyFourThreadsAtOnceLoseNothingUncounted) {
  TestProducer producer(kTrainerPlan);
  auto consumer = producer.Attach();
  constexpr int kThreads = 64, kEach = 2000;
  std::atomic<int> running{kThreads};
  std::vector<std::jthread> threads;  // Joined also where the test ends early.
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::string name = "thread " + std::to_string(t % 16);
      for (int i = 0; i < kEach; ++i) {
        const std::uint32_t id = producer->Intern(name.data(), name.size());
        const std::uint64_t now = producer->Now();
        producer->Span(id, now, now + 5, 0, i);
      }
      running.fetch_sub(1);
    });
  }
  std::uint64_t taken = 0, folded = 0;
  bool last = false;
  while (!last) {
    last = running.load() == 0;
    StringPool pool;
    const Drained drained = DrainAll(consumer.get(), &pool);
    consumer->Commit();
    taken += drained.records;
    for (const format::SpanRow& span : drained.rows.spans) {
      // Folded where the thread that was adding a name did not run for as long as others wait.
      if (span.name == "(folded)") {
        ++folded;
      } else {
        ASSERT_EQ(span.name.substr(0, 7), "thread ");
      }
    }
  }
  threads.clear();
  const ProducerCounters counters = consumer->counters();
  EXPECT_EQ(counters.produced, static_cast<std::uint64_t>(kThreads) * kEach);
  EXPECT_EQ(counters.produced, taken + counters.dropped);
  EXPECT_EQ(counters.malformed, 0u);
  EXPECT_LE(folded, counters.names_folded);
  EXPECT_LE(counters.names_folded, folded + counters.dropped);
  EXPECT_LE(consumer->name_count(), 16u);  // Each text once.
}

TEST(Ring, ARingOfAnEndedThreadIsUsedAgainOnceDrained) {
  TestProducer producer;
  auto consumer = producer.Attach();
  StringPool pool;
  WriteScalars(&*producer, 0, 1);  // This thread has the first.
  // Four rings for others: each round's threads end before the next begin.
  for (int round = 0; round < 3; ++round) {
    std::int32_t tids[4];
    for (int t = 0; t < 4; ++t) {
      std::thread([&, t] {
        const std::uint64_t now = producer->Now();
        producer->Span(0, now, now, 0, round * 4 + t);
        tids[t] = ::gettid();
      }).join();
    }
    // All four are full of undrained records: a fifth thread finds no ring.
    std::thread([&] { WriteScalars(&*producer, 0, 3); }).join();
    const Drained drained = DrainAll(consumer.get(), &pool);
    consumer->Commit();
    ASSERT_EQ(drained.rows.spans.size(), 4u);
    for (int t = 0; t < 4; ++t) {
      bool found = false;
      for (const format::SpanRow& span : drained.rows.spans) {
        found = found || (span.step == round * 4 + t && span.tid == tids[t]);
      }
      EXPECT_TRUE(found) << round << " " << t;
    }
  }
  EXPECT_EQ(consumer->counters().dropped, 9u);
  EXPECT_EQ(consumer->counters().produced, 9u + 1 + 12);
}

TEST(Names, SameTextSameIdCutAndFolded) {
  TestProducer producer;
  auto consumer = producer.Attach();
  const std::string longest(5000, 'a');
  const std::uint32_t cut = producer->Intern(longest.data(), longest.size());
  EXPECT_EQ(producer->Intern(longest.data(), longest.size()), cut);
  const std::uint32_t full = producer->Intern(longest.data(), 4096);
  EXPECT_NE(full, cut);
  // What differs only behind the cut is two names.
  std::string other = longest;
  other.back() = 'b';
  EXPECT_NE(producer->Intern(other.data(), other.size()), cut);
  // A cut never splits a character: this one begins a byte before it.
  const std::string umlauts = std::string(4077, 'b') + "\xE2\x82\xAC" + std::string(100, 'b');
  const std::uint32_t whole = producer->Intern(umlauts.data(), umlauts.size());
  EXPECT_EQ(producer->Intern("\0nul\xFF", 5), producer->Intern("\0nul\xFF", 5));
  std::uint32_t last = 1;
  int folded = 0;
  for (int i = 0; i < 70'000; ++i) {
    const std::string name = "layer." + std::to_string(i);
    last = producer->Intern(name.data(), name.size());
    folded += last == 0 ? 1 : 0;
  }
  EXPECT_EQ(last, 0u);
  StringPool pool;
  DrainAll(consumer.get(), &pool);
  EXPECT_EQ(consumer->counters().names_folded, static_cast<std::uint64_t>(folded) + 4)
      << "each cut is counted";
  const std::string name = std::string(consumer->name(cut));
  EXPECT_EQ(name.size(), 4096U);
  EXPECT_EQ(name.substr(0, 4080), std::string(4079, 'a') + "#");
  EXPECT_EQ(name.find_first_not_of("0123456789abcdef", 4080), std::string::npos);
  EXPECT_EQ(consumer->name(full), std::string(4096, 'a'));
  // As long as it was, the mark has to be where a character ends.
  EXPECT_EQ(std::string(consumer->name(whole)).substr(0, 4078), std::string(4077, 'b') + "#");
  EXPECT_EQ(consumer->name(5), std::string("\0nul", 4) + "\\xff");
  EXPECT_EQ(consumer->name(6), "layer.0");
}

/// Bytes of memory that the file has.
std::uint64_t Allocated(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_blocks) * 512 : 0;
}

std::string Expert(int i) {
  return "model.layers." + std::to_string(i / 1000) + ".block_sparse_moe.experts." +
         std::to_string(i % 1000) + ".down_proj.weight.as.long.as.such.names.are";
}

TEST(Names, AMillionAreKeptApartAndFewTakeNoMemoryForThem) {
  TestProducer producer(kTrainerPlan);
  EXPECT_EQ(Allocated(producer.Fd().get()), 16U << 20) << "what a training without experts has";
  constexpr int kNames = 1'000'000;
  for (int i = 0; i < kNames; ++i) {
    const std::string name = Expert(i);
    ASSERT_EQ(producer->Intern(name.data(), name.size()), static_cast<std::uint32_t>(i) + 1) << i;
  }
  for (int i = 0; i < kNames; i += 7) {
    const std::string name = Expert(i);
    ASSERT_EQ(producer->Intern(name.data(), name.size()), static_cast<std::uint32_t>(i) + 1) << i;
  }
  auto consumer = producer.Attach();
  StringPool pool;
  DrainAll(consumer.get(), &pool);
  ASSERT_EQ(consumer->name_count(), static_cast<std::uint32_t>(kNames));
  for (int i = 0; i < kNames; i += 11) {
    ASSERT_EQ(consumer->name(static_cast<std::uint32_t>(i) + 1), Expert(i));
  }
  EXPECT_EQ(consumer->counters().names_folded, 0U);
  EXPECT_EQ(consumer->counters().malformed, 0U);
  // More than the table has ids for are folded, and counted.
  std::uint32_t last = 1;
  for (int i = kNames; last != 0 && i < 2 * kNames; ++i) {
    const std::string name = "short " + std::to_string(i);
    last = producer->Intern(name.data(), name.size());
  }
  EXPECT_EQ(last, 0U);
  EXPECT_EQ(consumer->counters().names_folded, 1U);
}

TEST(Names, ThreadsThatAddWhileTheTableGrowsAgree) {
  TestProducer producer(kTrainerPlan);
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kNames = 60'000;  // Past the first level and over pieces of the area.
  std::vector<std::vector<std::uint32_t>> ids(kThreads, std::vector<std::uint32_t>(kNames));
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < kNames; ++i) {
          const std::size_t n = (i + t * kNames / kThreads) % kNames;
          const std::string name = Expert(static_cast<int>(n));
          // Folded where a thread that adds a name does not run for as long as others wait.
          while ((ids[t][n] = producer->Intern(name.data(), name.size())) == 0) {
            std::this_thread::yield();
          }
        }
      });
    }
  }
  std::set<std::uint32_t> seen;
  for (std::size_t i = 0; i < kNames; ++i) {
    for (const std::vector<std::uint32_t>& each : ids) ASSERT_EQ(each[i], ids[0][i]) << i;
    ASSERT_TRUE(seen.insert(ids[0][i]).second) << i;
  }
}

TEST(Names, WithoutItsDescriptorTheTableStaysAsItIs) {
  TestProducer producer(kTrainerPlan);
  // A training that closes all descriptors and opens its own in their place.
  struct stat arena {};
  ASSERT_EQ(::fstat(producer.Fd().get(), &arena), 0);
  char path[] = "/tmp/telltale-names-XXXXXX";
  const UniqueFd file(::mkstemp(path));
  ::unlink(path);
  ASSERT_TRUE(file);
  for (int fd = 3; fd < 1024; ++fd) {
    struct stat info {};
    if (::fstat(fd, &info) != 0 || info.st_ino != arena.st_ino || info.st_dev != arena.st_dev) {
      continue;
    }
    ASSERT_EQ(::dup2(file.get(), fd), fd);
  }
  std::uint32_t last = 1;
  for (int i = 0; last != 0 && i < 100'000; ++i) {
    const std::string name = Expert(i);
    last = producer->Intern(name.data(), name.size());
  }
  EXPECT_EQ(last, 0U) << "the names of the first piece, and no more";
  EXPECT_EQ(Allocated(file.get()), 0U) << "the training's own file is as it was";
}

TEST(Names, ALimitOnTheAddressSpaceIsLeftToTheTraining) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limit{1ULL << 62, before.rlim_max};
  if (before.rlim_cur != RLIM_INFINITY || ::setrlimit(RLIMIT_AS, &limit) != 0) {
    GTEST_SKIP() << "there is a limit already";
  }
  auto* producer = static_cast<Producer*>(::mmap(nullptr, sizeof(Producer), PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const OpenResult large = producer->Open(kTrainerPlan, 0, 0, DetectClock(), nullptr, nullptr);
  const OpenResult small =
      producer->Open(kLimitedTrainerPlan, 0, 0, DetectClock(), nullptr, nullptr);
  ::setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(large, OpenResult::kNoMemory);
  EXPECT_EQ(small, OpenResult::kOk);
  EXPECT_EQ(producer->header()->arena_bytes, 16U << 20);
}

}  // namespace
}  // namespace telltale::channel
