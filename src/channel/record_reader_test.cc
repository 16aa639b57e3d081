// SPDX-License-Identifier: Apache-2.0
// Records of tensors: what a producer writes is what the consumer's rows say; what a hostile one
// writes is counted.
#include "channel/record_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "channel/testing.h"

namespace telltale::channel {
namespace {

std::uint32_t TensorName(Producer* producer, const std::string& collection,
                         const std::string& name) {
  const std::string text =
      format::kTensorMark + collection + std::string(1, format::kTensorMark) + name;
  return producer->Intern(text.data(), text.size());
}

format::HistogramRecord GoodHistogram(std::uint32_t name) {
  format::HistogramRecord record{};
  record.header.name = name;
  record.header.flags = 1;
  record.step = 8;
  record.count = 100;
  record.taken = 10;
  record.dtype = 3;
  record.min = -1;
  record.max = 2.5;
  for (std::uint32_t i = 0; i < format::kQuantiles; ++i) record.quantiles[i] = 0.5 * i;
  record.bins[0] = 7;
  record.bins[63] = 3;
  return record;
}

class RecordReaderTest : public testing::Test {
 protected:
  Drained Drain() {
    Drained drained = DrainAll(consumer_.get(), &pool_);
    consumer_->Commit();
    return drained;
  }
  format::TensorRecord Tensor(std::uint8_t flags) {
    format::TensorRecord record{};
    record.header.name = TensorName(&*producer_, "weights", "fc.weight");
    record.header.flags = flags;
    record.time = producer_->Now();
    record.step = 5;
    return record;
  }

  TestProducer producer_;
  std::unique_ptr<Consumer> consumer_ = producer_.Attach();
  StringPool pool_;
};

TEST_F(RecordReaderTest, ATensorsNameIsItsCollectionAndItsName) {
  struct Case {
    std::string text, name, collection;
  };
  const std::string mark(1, format::kTensorMark);
  const Case cases[] = {
      {mark + "weights" + mark + "conv1.weight", "conv1.weight", "weights"},
      {mark + "outputs" + mark, "", "outputs"},
      {mark + "outputs", "", "outputs"},
      {mark, "", ""},
      {mark + mark + "n", "n", ""},
      {mark + "a" + mark + "b" + mark + "c", "b" + mark + "c", "a"},
      {"plain", "plain", "of the record"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    format::StatRecord record{};
    record.header.name = producer_->Intern(c.text.data(), c.text.size());
    record.collection = producer_->Intern("of the record", 13);
    if (c.text[0] == format::kTensorMark) record.collection = 0;
    record.time = producer_->Now();
    producer_->Stat(record);
    const Drained drained = Drain();
    ASSERT_EQ(drained.rows.statistics.size(), 1u);
    EXPECT_EQ(drained.rows.statistics[0].name, c.name);
    EXPECT_EQ(drained.rows.statistics[0].collection, c.collection);
  }
}

TEST_F(RecordReaderTest, SpansOfDetailComeApartAndOfAnyCategory) {
  const std::uint32_t name = producer_->Intern("layer.0", 7);
  const std::uint64_t now = producer_->Now();
  producer_->Span(name, now, now, format::SpanFlags(0, 2), 3);
  producer_->Span(name, now, now, format::SpanFlags(1, 4) | format::kDetailFlag, 4);
  producer_->Span(name, now, now, format::SpanFlags(0, 5), 5);
  const Drained drained = Drain();
  ASSERT_EQ(drained.rows.spans.size(), 1U);
  EXPECT_EQ(drained.rows.spans[0].category, "data");
  ASSERT_EQ(drained.details.size(), 1U);
  EXPECT_EQ(drained.details[0].name, "layer.0");
  EXPECT_EQ(drained.details[0].category, "module");
  EXPECT_EQ(drained.details[0].mode, "EVAL");
  EXPECT_EQ(drained.details[0].step, 4);
  EXPECT_EQ(drained.records, 3U);
  EXPECT_EQ(consumer_->counters().malformed, 1U) << "a category that there is not";
}

TEST_F(RecordReaderTest, MoreStatisticsComeInOneRow) {
  format::StatMoreRecord record{};
  record.stat.header.name = TensorName(&*producer_, "gradients", "gradient/a");
  record.stat.header.flags = 2;
  record.stat.time = producer_->Now();
  record.stat.step = 3;
  record.stat.dtype = 16;
  record.stat.count = 4;
  record.stat.mean = 1.5;
  record.abs_min = 0.25;
  record.abs_std = 2;
  record.prod = -6;
  producer_->StatMore(record);
  producer_->Stat(record.stat);
  const Drained drained = Drain();
  ASSERT_EQ(drained.rows.statistics.size(), 2u);
  const format::StatisticRow& row = drained.rows.statistics[0];
  EXPECT_EQ(row.name, "gradient/a");
  EXPECT_EQ(row.collection, "gradients");
  EXPECT_EQ(row.dtype, "uint64");
  EXPECT_EQ(row.mode, "PREDICT");
  EXPECT_EQ(row.step, 3);
  EXPECT_EQ(row.mean, 1.5);
  EXPECT_TRUE(row.more);
  EXPECT_EQ(row.abs_min, 0.25);
  EXPECT_EQ(row.abs_std, 2);
  EXPECT_EQ(row.prod, -6);
  EXPECT_FALSE(drained.rows.statistics[1].more);
}

TEST_F(RecordReaderTest, HistogramsComeAsJsonLists) {
  format::HistogramRecord record = GoodHistogram(TensorName(&*producer_, "weights", "w"));
  record.quantiles[8] = std::numeric_limits<double>::quiet_NaN();
  record.time = producer_->Now();
  producer_->Histogram(record);
  const Drained drained = Drain();
  ASSERT_EQ(drained.rows.histograms.size(), 1u);
  const format::HistogramRow& row = drained.rows.histograms[0];
  EXPECT_EQ(row.name, "w");
  EXPECT_EQ(row.collection, "weights");
  EXPECT_EQ(row.dtype, "bfloat16");
  EXPECT_EQ(row.mode, "EVAL");
  EXPECT_EQ(row.step, 8);
  EXPECT_EQ(row.count, 100u);
  EXPECT_EQ(row.taken, 10u);
  EXPECT_EQ(row.min, -1);
  EXPECT_EQ(row.max, 2.5);
  std::string bins = "[7";
  for (int i = 1; i < 63; ++i) bins += ",0";
  EXPECT_EQ(row.bins, bins + ",3]");
  EXPECT_EQ(row.quantiles, "[0,0.5,1,1.5,2,2.5,3,3.5,null]");
}

TEST_F(RecordReaderTest, ShapesAloneAreRows) {
  format::TensorRecord record = Tensor(format::kShapeOnlyFlag | 1);
  record.dtype = 3;
  record.ndim = 3;
  const std::int64_t shape[] = {2, 0, 1LL << 40};
  ASSERT_TRUE(producer_->Tensor(record, shape, nullptr));
  record.ndim = 0;
  ASSERT_TRUE(producer_->Tensor(record, nullptr, nullptr));
  const Drained drained = Drain();
  EXPECT_TRUE(drained.tensors.empty());
  ASSERT_EQ(drained.rows.tensors.size(), 2u);
  const format::TensorRow& row = drained.rows.tensors[0];
  EXPECT_EQ(row.name, "fc.weight");
  EXPECT_EQ(row.collection, "weights");
  EXPECT_EQ(row.dtype, "BF16");
  EXPECT_EQ(row.shape, "[2,0,1099511627776]");
  EXPECT_EQ(row.mode, "EVAL");
  EXPECT_EQ(row.step, 5);
  EXPECT_EQ(row.file, "");
  EXPECT_EQ(row.bytes, 0u);
  EXPECT_EQ(drained.rows.tensors[1].shape, "[]");
}

TEST_F(RecordReaderTest, ValuesComeInlineOrByTheirSlot) {
  format::TensorRecord record = Tensor(format::kInlineFlag);
  record.dtype = 8;
  record.ndim = 1;
  record.bytes = 5;
  const std::int64_t five = 5;
  ASSERT_TRUE(producer_->Tensor(record, &five, "abcde"));
  record.header.flags = 2;
  record.dtype = 1;
  record.ndim = 2;
  record.bytes = 8 * 3000;
  record.slot = 17;
  const std::int64_t shape[] = {3, 1000};
  ASSERT_TRUE(producer_->Tensor(record, shape, nullptr));
  const Drained drained = Drain();
  EXPECT_TRUE(drained.rows.tensors.empty());
  ASSERT_EQ(drained.tensors.size(), 2u);
  const DrainedTensor& small = drained.tensors[0];
  EXPECT_EQ(small.name, "fc.weight");
  EXPECT_EQ(small.collection, "weights");
  EXPECT_EQ(small.values, "abcde");
  EXPECT_FALSE(small.slot.has_value());
  EXPECT_EQ(small.dtype, 8);
  EXPECT_EQ(small.mode, "TRAIN");
  EXPECT_EQ(small.pid, ::getpid());
  EXPECT_EQ(small.bytes, 5u);
  const DrainedTensor& large = drained.tensors[1];
  EXPECT_EQ(large.slot, 17u);
  EXPECT_EQ(large.mode, "PREDICT");
  EXPECT_EQ(large.shape, (std::vector<std::int64_t>{3, 1000}));
  EXPECT_EQ(large.bytes, 24'000u);
  EXPECT_TRUE(large.values.empty());
}

TEST_F(RecordReaderTest, TheLargestInlineRecordFits) {
  format::TensorRecord record = Tensor(format::kInlineFlag);
  record.dtype = 8;
  record.ndim = 16;
  record.bytes = format::kMaxInlineBytes;
  std::int64_t shape[16];
  for (std::int64_t& size : shape) size = 1;
  shape[15] = static_cast<std::int64_t>(format::kMaxInlineBytes);
  const std::string values(format::kMaxInlineBytes, 'v');
  ASSERT_TRUE(producer_->Tensor(record, shape, values.data()));
  const Drained drained = Drain();
  ASSERT_EQ(drained.tensors.size(), 1u);
  EXPECT_EQ(drained.tensors[0].values, values);
}

TEST_F(RecordReaderTest, NonsenseIsCountedAndSkippedAlone) {
  const std::int64_t two[] = {2, 3};
  const std::int64_t negative[] = {-2, -3};
  const std::int64_t huge[] = {1LL << 40, 1LL << 40};
  const auto tensor = [&](const std::function<void(format::TensorRecord*)>& spoil,
                          const std::int64_t* shape) {
    return [this, spoil, shape] {
      format::TensorRecord record = Tensor(0);
      record.ndim = 2;
      record.bytes = 24;
      spoil(&record);
      producer_->Tensor(record, shape, "0123456789012345678901234567");
    };
  };
  const auto histogram = [&](const std::function<void(format::HistogramRecord*)>& spoil) {
    return [this, spoil] {
      format::HistogramRecord record = GoodHistogram(1);
      record.time = producer_->Now();
      spoil(&record);
      producer_->Histogram(record);
    };
  };
  const std::function<void()> cases[] = {
      tensor([](format::TensorRecord* r) { r->dtype = 17; }, two),
      tensor([](format::TensorRecord* r) { r->bytes = 20; }, two),
      tensor([](format::TensorRecord* r) { r->bytes = ~0ULL; }, two),
      tensor([](format::TensorRecord*) {}, negative),
      tensor([](format::TensorRecord*) {}, huge),
      tensor([](format::TensorRecord* r) { r->header.name = 4000; }, two),
      tensor([](format::TensorRecord* r) { r->time = 1ULL << 63; }, two),
      histogram([](format::HistogramRecord* r) { r->dtype = 17; }),
      histogram([](format::HistogramRecord* r) { r->taken = 101; }),
      histogram([](format::HistogramRecord* r) { r->bins[5] = 1; }),
      histogram([](format::HistogramRecord* r) { r->bins[5] = ~0ULL; }),
      histogram([](format::HistogramRecord* r) { r->header.name = 4000; }),
  };
  TensorName(&*producer_, "weights", "w");
  std::uint64_t counted = 0;
  for (const auto& write : cases) {
    write();
    producer_->Scalar(0, 1, 1, 0, producer_->Now());
    const Drained drained = Drain();
    EXPECT_EQ(consumer_->counters().malformed, ++counted);
    EXPECT_TRUE(drained.tensors.empty());
    EXPECT_TRUE(drained.rows.histograms.empty());
    EXPECT_EQ(drained.rows.scalars.size(), 1u) << "what follows is read";
  }
}

TEST_F(RecordReaderTest, NumbersThatCannotBeAreMalformed) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::uint32_t name = producer_->Intern("loss", 4);
  const std::uint64_t now = producer_->Now();
  const auto step = [&](std::int64_t number, std::int64_t batch) {
    return [this, now, number, batch] {
      format::StepRecord record{};
      record.begin = now;
      record.step = number;
      record.batch_size = batch;
      producer_->Step(record);
    };
  };
  const auto stat = [&](std::uint64_t count) {
    return [this, now, count] {
      format::StatRecord record{};
      record.header.name = TensorName(&*producer_, "weights", "w");
      record.time = now;
      record.count = count;
      producer_->Stat(record);
    };
  };
  const std::function<void()> cases[] = {
      [&] { producer_->Scalar(name, 1, kLeast, 0, now); },
      [&] { producer_->Scalar(name, 1, kMost, 0, now); },
      [&] { producer_->Scalar(name, 1, -2, 0, now); },
      [&] { producer_->Scalar(name, 1, 1, 0, now + (std::uint64_t{1} << 45)); },
      [&] { producer_->Span(name, now, now, 0, kMost); },
      [&] { producer_->Event(name, 0, 0, "", 0, "", 0, kLeast, now); },
      step(kMost, 1),
      step(1, kLeast),
      step(1, kMost),
      stat(~std::uint64_t{0}),
  };
  std::uint64_t counted = 0;
  for (const auto& write : cases) {
    write();
    producer_->Scalar(name, 1, 1, 0, producer_->Now());
    const Drained drained = Drain();
    EXPECT_EQ(consumer_->counters().malformed, ++counted);
    EXPECT_EQ(drained.rows.scalars.size(), 1U) << "what follows is read";
    EXPECT_TRUE(drained.rows.steps.empty());
    EXPECT_TRUE(drained.rows.spans.empty());
    EXPECT_TRUE(drained.rows.statistics.empty());
    EXPECT_TRUE(drained.rows.events.empty());
  }
}

TEST_F(RecordReaderTest, ARankThatCannotBeIsNone) {
  producer_->SetRank(std::numeric_limits<std::int32_t>::max());
  producer_->Scalar(producer_->Intern("loss", 4), 1, 1, 0, producer_->Now());
  const Drained drained = Drain();
  ASSERT_EQ(drained.rows.scalars.size(), 1U);
  EXPECT_EQ(drained.rows.scalars[0].rank, 0);
}

TEST_F(RecordReaderTest, SizesThatALiesAboutItsRecordCannotReachPastIt) {
  // A record of 48 bytes that says it has 16 dimensions, and one that says it has inline values.
  format::TensorRecord record = Tensor(format::kInlineFlag);
  record.ndim = 1;
  record.dtype = 8;
  const std::int64_t zero = 0;
  for (const bool dimensions : {true, false}) {
    const Producer::ThreadRing* ring = producer_->Ring();
    char* at = ring->data + ring->place;
    ASSERT_TRUE(producer_->Tensor(record, &zero, nullptr));
    format::TensorRecord lie;
    std::memcpy(&lie, at, sizeof lie);
    if (dimensions) {
      lie.ndim = 16;
    } else {
      lie.bytes = 4096;
      const std::int64_t size = 4096;
      std::memcpy(at + sizeof lie, &size, sizeof size);
    }
    std::memcpy(at, &lie, sizeof lie);
    EXPECT_TRUE(Drain().tensors.empty());
  }
  EXPECT_EQ(consumer_->counters().malformed, 2u);
}

TEST_F(RecordReaderTest, CountersOfTheHeaderComeThrough) {
  producer_->CountRawDropped();
  producer_->CountHistogramsDropped(2);
  for (int i = 0; i < 5; ++i) producer_->CountHistogramTaken();
  producer_->CountHistogramDone();
  for (int i = 0; i < 3; ++i) producer_->CountUnanswered();
  const ProducerCounters counters = consumer_->counters();
  EXPECT_EQ(counters.raw_dropped, 1u);
  EXPECT_EQ(counters.histogram_dropped, 2u);
  EXPECT_EQ(counters.histograms_waiting, 4u);
  EXPECT_EQ(counters.unanswered, 3u);
}

TEST_F(RecordReaderTest, ReasonsThatTheNamesDoNotHaveAreLeftOut) {
  producer_->CountSkipped("why", 2);
  EXPECT_TRUE(consumer_->counters().skipped_for.empty()) << "its name comes with a drain";
  EXPECT_EQ(consumer_->counters().skipped, 2u);
  auto* header = const_cast<format::ArenaHeader*>(producer_->header());
  header->skip_reasons[1].name = 4000;
  header->skip_reasons[1].count = 7;
  header->skip_reasons[3].name = 1;  // Behind one that is not in use.
  Drain();
  const ProducerCounters counters = consumer_->counters();
  ASSERT_EQ(counters.skipped_for.size(), 1u);
  EXPECT_EQ(counters.skipped_for[0].name, "why");
  EXPECT_EQ(counters.skipped_for[0].count, 2u);
}

TEST_F(RecordReaderTest, AnArenaOfVersion10IsRead) {
  auto* header = const_cast<format::ArenaHeader*>(producer_->header());
  header->abi_minor = 0;
  header->header_bytes = format::kArenaHeaderBytesMin;
  auto consumer = Consumer::Attach(producer_.Fd());
  ASSERT_TRUE(consumer.ok()) << consumer.status().message();
  EXPECT_EQ((*consumer)->counters().raw_dropped, 0u);
  EXPECT_TRUE((*consumer)->counters().skipped_for.empty());
  header->header_bytes = format::kArenaHeaderBytesMin - 1;
  EXPECT_FALSE(Consumer::Attach(producer_.Fd()).ok());
}

}  // namespace
}  // namespace telltale::channel
