// SPDX-License-Identifier: Apache-2.0
// The consumer: hand-over between consumers, death of the producer, hostile producers, clocks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "channel/clock_map.h"
#include "channel/record_reader.h"
#include "channel/testing.h"

namespace telltale::channel {
namespace {

void WriteNumbers(Producer* producer, std::int64_t from, std::int64_t to) {
  for (std::int64_t i = from; i < to; ++i) producer->Scalar(0, 0, i, 0, producer->Now());
}

std::vector<std::int64_t> Numbers(const Drained& drained) {
  std::vector<std::int64_t> out;
  for (const format::ScalarRow& row : drained.rows.scalars) out.push_back(row.step);
  return out;
}

std::vector<std::int64_t> Range(std::int64_t from, std::int64_t to) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = from; i < to; ++i) out.push_back(i);
  return out;
}

TEST(Consumer, ANewOneGetsWhatWasNotCommitted) {
  TestProducer producer;
  StringPool pool;
  WriteNumbers(&*producer, 0, 10);
  {
    auto first = producer.Attach();
    DrainAll(first.get(), &pool);
    first->Commit();
    WriteNumbers(&*producer, 10, 20);
    EXPECT_EQ(Numbers(DrainAll(first.get(), &pool)), Range(10, 20));
  }  // Died between draining and commit.
  auto second = producer.Attach();
  EXPECT_EQ(Numbers(DrainAll(second.get(), &pool)), Range(10, 20));
}

TEST(Consumer, SkipToLeavesOutWhatTheJournalHas) {
  TestProducer producer;
  StringPool pool;
  WriteNumbers(&*producer, 0, 10);
  std::vector<format::RingPosition> journalled;
  {
    auto first = producer.Attach();
    journalled = DrainAll(first.get(), &pool).positions;
  }
  WriteNumbers(&*producer, 10, 15);
  auto second = producer.Attach();
  format::RingPosition foreign = journalled.at(0);
  foreign.producer[0] ^= 1;
  foreign.position = 1 << 20;
  second->SkipTo({foreign});
  second->SkipTo(journalled);
  EXPECT_EQ(Numbers(DrainAll(second.get(), &pool)), Range(10, 15));
}

TEST(Consumer, ARingThatIsMoreThanAQuarterFullIsSaid) {
  TestProducer producer;
  auto consumer = producer.Attach();
  StringPool pool;
  const auto filling = [&](std::size_t max_bytes) {
    Drained drained;
    consumer->Drain(max_bytes, 0, &pool, &drained);
    return drained.filling;
  };
  constexpr std::int64_t kScalarBytes = 32;
  constexpr std::int64_t kQuarter = (512 << 10) / 4 / kScalarBytes;
  EXPECT_FALSE(filling(1 << 20));
  WriteNumbers(&*producer, 0, kQuarter * 3 / 4);
  EXPECT_FALSE(filling(1 << 20));
  WriteNumbers(&*producer, 0, kQuarter / 2);
  EXPECT_TRUE(filling(4096)) << "it is not free before the commit";
  DrainAll(consumer.get(), &pool);
  consumer->Commit();
  EXPECT_FALSE(filling(1 << 20));
  // The rings of other threads are smaller.
  std::thread([&] { WriteNumbers(&*producer, 0, kQuarter / 4); }).join();
  EXPECT_TRUE(filling(1 << 20));
}

TEST(Consumer, RollbackDeliversAgain) {
  TestProducer producer;
  auto consumer = producer.Attach();
  StringPool pool;
  WriteNumbers(&*producer, 0, 10);
  EXPECT_EQ(Numbers(DrainAll(consumer.get(), &pool)), Range(0, 10));
  consumer->Rollback();
  WriteNumbers(&*producer, 10, 12);
  EXPECT_EQ(Numbers(DrainAll(consumer.get(), &pool)), Range(0, 12));
  consumer->Commit();
  EXPECT_TRUE(DrainAll(consumer.get(), &pool).rows.scalars.empty());
}

TEST(Consumer, WhatIsMalformedCountsOnceHoweverOftenItIsDelivered) {
  TestProducer producer;
  auto consumer = producer.Attach();
  StringPool pool;
  WriteNumbers(&*producer, 0, 3);
  const format::RecordHeader unknown_kind{77, 0, 32, 0};
  std::memcpy(producer->Ring()->data + 32, &unknown_kind, sizeof unknown_kind);
  for (int i = 0; i < 3; ++i) {
    DrainAll(consumer.get(), &pool);
    EXPECT_EQ(consumer->counters().malformed, 1u);
    consumer->Rollback();
  }
  DrainAll(consumer.get(), &pool);
  consumer->Commit();
  EXPECT_EQ(consumer->counters().malformed, 1u);
  consumer->Rollback();
  EXPECT_EQ(consumer->counters().malformed, 1u) << "what is committed stays";
}

TEST(Consumer, ASmallBudgetTakesEverythingInPieces) {
  TestProducer producer;
  auto consumer = producer.Attach();
  StringPool pool;
  WriteNumbers(&*producer, 0, 5000);
  Drained out;
  int drains = 1;
  while (consumer->Drain(1000, 0, &pool, &out)) ++drains;
  EXPECT_EQ(Numbers(out), Range(0, 5000));
  EXPECT_GT(drains, 15);
  EXPECT_EQ(consumer->counters().malformed, 0u);
}

TEST(Consumer, AKilledProducerLeavesAPrefixWithoutGaps) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    TestProducer producer;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const std::string text(1000, 'e');
      const Producer::ThreadRing* ring = producer->Ring();
      for (std::int64_t i = 0;; ++i) {
        // Never so far ahead that it must drop: each number has to be found again.
        while (ring->head - ring->entry->tail.load() > ring->size / 2) ::sched_yield();
        if (i % 5 == 0) {
          producer->Event(0, 0, 0, text.data(), static_cast<std::size_t>(i % 1000), nullptr, 0, i,
                          producer->Now());
        } else {
          producer->Scalar(0, 0, i, 0, producer->Now());
        }
      }
    }
    auto consumer = producer.Attach();
    StringPool pool;
    std::set<std::int64_t> seen;
    std::uint64_t taken = 0;
    const auto drain = [&] {
      const Drained drained = DrainAll(consumer.get(), &pool);
      consumer->Commit();
      taken += drained.records;
      for (const auto& row : drained.rows.scalars) seen.insert(row.step);
      for (const auto& row : drained.rows.events) seen.insert(row.step);
    };
    const std::size_t enough = 1 + random() % 10'000;
    while (seen.size() < enough) drain();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    drain();
    const ProducerCounters counters = consumer->counters();
    EXPECT_EQ(counters.malformed, 0u);
    EXPECT_EQ(taken, seen.size());
    // One may have been counted and not yet published when the signal came.
    EXPECT_LE(counters.produced - taken, 1u);
    EXPECT_EQ(counters.dropped, 0u);
    EXPECT_EQ(*seen.rbegin() + 1, static_cast<std::int64_t>(seen.size()));
  }
}

TEST(Consumer, RandomBytesInTheArenaDuringDrainsHarmNobody) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 12; ++round) {
    TestProducer producer;
    auto consumer = producer.Attach();
    auto* arena =
        reinterpret_cast<unsigned char*>(const_cast<format::ArenaHeader*>(producer->header()));
    const std::uint64_t bytes = producer->header()->arena_bytes;
    const std::uint64_t interesting = producer->header()->names_offset + 4096;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::uint64_t state = 88172645463325252ULL + static_cast<unsigned>(round);
      for (;;) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Half of them where they hurt: header, directory, first names.
        const std::uint64_t at = (state & 1) != 0 ? state % interesting : state % bytes;
        arena[at] = static_cast<unsigned char>(state >> 56);
      }
    }
    StringPool pool;
    for (int i = 0; i < 300; ++i) {
      const std::uint32_t name = static_cast<std::uint32_t>(random() % 100);
      for (int k = 0; k < 50; ++k) {
        producer->Scalar(name, 1, k, 0, producer->Now());
        producer->Event(name, 0, name, "hello", 5, "{}", 2, k, producer->Now());
      }
      Drained out;
      consumer->Drain(1 << 20, 0, &pool, &out);
      if (i % 3 == 0) consumer->Rollback();
      consumer->Commit();
      consumer->counters();
      consumer->disabled_reason();
      consumer->info();
      if (i % 50 == 0) {
        // A new consumer meets the mess too; it may refuse it.
        auto other = Consumer::Attach(producer.Fd());
        if (other.ok()) (*other)->Drain(1 << 20, 0, &pool, &out);
      }
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

struct Hostile {
  const char* what;
  std::uint8_t kind;
  std::uint16_t size;
  std::uint32_t name;
  bool skips_the_ring;
};

TEST(Consumer, ImpossibleRecordsAreCountedAndSkipped) {
  const Hostile cases[] = {
      {"size 0", 1, 0, 0, true},           {"size below a header", 1, 4, 0, true},
      {"unaligned", 1, 33, 0, true},       {"too small for its kind", 2, 32, 0, true},
      {"past the head", 1, 8192, 0, true}, {"unknown name", 1, 32, 5000, false},
      {"unknown kind", 77, 32, 0, false},
  };
  for (const Hostile& hostile : cases) {
    SCOPED_TRACE(hostile.what);
    TestProducer producer;
    auto consumer = producer.Attach();
    StringPool pool;
    WriteNumbers(&*producer, 0, 3);
    auto* ring = producer->Ring();
    format::RecordHeader header{hostile.kind, 0, hostile.size, hostile.name};
    std::memcpy(ring->data + 32, &header, sizeof header);
    EXPECT_EQ(Numbers(DrainAll(consumer.get(), &pool)),
              hostile.skips_the_ring ? Range(0, 1) : (std::vector<std::int64_t>{0, 2}));
    EXPECT_EQ(consumer->counters().malformed, 1u);
    consumer->Commit();
    WriteNumbers(&*producer, 7, 9);
    EXPECT_EQ(Numbers(DrainAll(consumer.get(), &pool)), Range(7, 9));
  }
}

TEST(Consumer, AHeadOutOfRangeIsMalformedAndTheRingGoesOn) {
  TestProducer producer;
  auto consumer = producer.Attach();
  StringPool pool;
  WriteNumbers(&*producer, 0, 3);
  format::RingEntry* entry = producer->Ring()->entry;
  entry->head.store(~0ULL << 3);
  EXPECT_TRUE(DrainAll(consumer.get(), &pool).rows.scalars.empty());
  entry->head.store(96);
  EXPECT_TRUE(DrainAll(consumer.get(), &pool).rows.scalars.empty());
  EXPECT_EQ(consumer->counters().malformed, 2u);
  WriteNumbers(&*producer, 3, 5);
  EXPECT_EQ(Numbers(DrainAll(consumer.get(), &pool)), Range(3, 5));
}

TEST(Consumer, RefusesWhatIsNoArena) {
  const auto refused = [](UniqueFd fd) {
    auto consumer = Consumer::Attach(std::move(fd));
    return consumer.ok() ? std::string() : consumer.status().message();
  };
  UniqueFd empty(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_NE(refused(UniqueFd(::dup(empty.get()))), "");
  ASSERT_EQ(::ftruncate(empty.get(), 1 << 20), 0);
  EXPECT_NE(refused(UniqueFd(::dup(empty.get()))).find("not sealed"), std::string::npos);
  ASSERT_EQ(::fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_NE(refused(UniqueFd(::dup(empty.get()))).find("magic"), std::string::npos);

  TestProducer producer;
  auto* header = const_cast<format::ArenaHeader*>(producer->header());
  header->abi_major = 2;
  auto other = Consumer::Attach(producer.Fd());
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), Code::kVersion);
  EXPECT_NE(other.status().message().find("2.2"), std::string::npos);
  EXPECT_NE(other.status().message().find("1.2"), std::string::npos);
  header->abi_major = 1;
  header->directory_offset = header->arena_bytes - 64;
  EXPECT_NE(refused(producer.Fd()), "");
}

TEST(Consumer, InfoAndReasonComeThrough) {
  TestProducer producer;
  auto consumer = producer.Attach();
  producer->SetRank(3);
  EXPECT_EQ(consumer->info().rank, 3);
  EXPECT_EQ(consumer->info().pid, ::getpid());
  EXPECT_EQ(consumer->disabled_reason(), "");
  producer->Disable("first\xFF", 6);
  producer->Disable("second", 6);
  EXPECT_EQ(consumer->disabled_reason(), "first\\xff");
}

TEST(Consumer, TimesAreTheMonotonicClocksToAMicrosecond) {
  for (const auto clock : {DetectClock(), format::ClockKind::kMonotonicNs}) {
    TestProducer producer(kSmallPlan, clock);
    auto consumer = producer.Attach();
    StringPool pool;
    for (int i = 0; i < 5; ++i) {
      const std::int64_t before = MonotonicNs();
      const std::uint64_t ticks = producer->Now();
      const std::int64_t after = MonotonicNs();
      producer->Span(0, ticks, ticks, 0, 0);
      while (MonotonicNs() < after + 200'000) {
      }
      Drained out;
      consumer->Drain(1 << 20, 1'000'000, &pool, &out);
      consumer->Commit();
      ASSERT_EQ(out.rows.spans.size(), 1u);
      EXPECT_GE(out.rows.spans[0].time_ns, before + 1'000'000 - 1000);
      EXPECT_LE(out.rows.spans[0].time_ns, after + 1'000'000 + 1000);
      EXPECT_EQ(out.rows.spans[0].duration_ns, 0);
    }
  }
}

TEST(ClockMap, InterpolatesBetweenReadingsAndBendsWithTheKernel) {
  // 2 ticks a ns; from 1 s on the kernel's clock runs 500 ppm slow.
  ClockMap map({1000, 0}, {1000, 0});
  map.Update({1000 + 2'000'000'000, 1'000'000'000});
  EXPECT_EQ(map.ToMonotonicNs(1000 + 1'000'000'000), 500'000'000);
  map.Update({1000 + 4'000'000'000, 1'000'000'000 + 999'500'000});
  EXPECT_EQ(map.ToMonotonicNs(1000 + 3'000'000'000), 1'000'000'000 + 499'750'000);
  EXPECT_EQ(map.ToMonotonicNs(1000 + 4'000'000'000), 1'999'500'000);
  EXPECT_FALSE(map.ToMonotonicNs(1ULL << 63).has_value());
}

TEST(PrintableUtf8, KeepsWhatIsValidAndShowsWhatIsNot) {
  using std::string_literals::operator""s;
  const auto printable = [](const std::string& text) { return PrintableUtf8(text); };
  EXPECT_EQ(printable("a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"),
            "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(printable("\xC3"), "\\xc3");
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // A lone surrogate.
  EXPECT_EQ(printable("\xC0\x80"), "\\xc0\\x80");
  EXPECT_EQ(printable("\xF5\x80\x80\x80x"), "\\xf5\\x80\\x80\\x80x");
  EXPECT_EQ(printable("a\0b"s), "a\0b"s);
}

}  // namespace
}  // namespace telltale::channel
