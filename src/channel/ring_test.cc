// SPDX-License-Identifier: Apache-2.0
// Rings and names: wrap, overflow, threads, and the accounts that must close.
#include <gtest/gtest.h>

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
  EXPECT_EQ(producer->Intern(longest.data(), 4096), cut);
  // A cut never splits a character.
  const std::string umlauts = std::string(4095, 'b') + "\xC3\xA4";
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
  EXPECT_EQ(consumer->counters().names_folded, static_cast<std::uint64_t>(folded) + 2)
      << "each cut is counted";
  EXPECT_EQ(consumer->name(cut), std::string(4096, 'a'));
  EXPECT_EQ(consumer->name(whole), std::string(4095, 'b'));
  EXPECT_EQ(consumer->name(3), std::string("\0nul", 4) + "\\xff");
  EXPECT_EQ(consumer->name(4), "layer.0");
}

}  // namespace
}  // namespace telltale::channel
