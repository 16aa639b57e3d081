// SPDX-License-Identifier: Apache-2.0
// Capture against a real control page and a real slab: which rules are due, edits, what is
// recorded.
#include "probe/capture.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/control_page.h"
#include "channel/slab.h"
#include "channel/testing.h"

namespace telltale::probe {
namespace {

using channel::ControlPage;
using format::ControlRule;
using format::ControlWhen;

TEST(DueAtAStep, IntervalRangeAndList) {
  ControlWhen when{};
  when.interval = 10;
  when.start = 20;
  when.end = 45;
  std::vector<std::int64_t> due;
  for (std::int64_t step = -20; step < 100; ++step) {
    if (Due(when, step)) due.push_back(step);
  }
  EXPECT_EQ(due, (std::vector<std::int64_t>{20, 30, 40}));
  when.listed = 3;
  when.list[0] = 3;
  when.list[1] = 45;
  when.list[2] = 99;
  when.list[3] = 77;  // Past `listed`.
  due.clear();
  for (std::int64_t step = -20; step < 100; ++step) {
    if (Due(when, step)) due.push_back(step);
  }
  EXPECT_EQ(due, (std::vector<std::int64_t>{3, 20, 30, 40, 45, 99}));
  when.interval = 0;
  EXPECT_FALSE(Due(when, 20));
  EXPECT_TRUE(Due(when, 3));
  when.listed = ~0U;  // Nonsense reads no further than the list.
  EXPECT_FALSE(Due(when, 1));
}

class CaptureTest : public testing::Test {
 protected:
  void SetUp() override {
    capture_ = static_cast<Capture*>(::mmap(nullptr, sizeof(Capture), PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    auto page = ControlPage::Create(producer_->header()->name_limit);
    ASSERT_TRUE(page.ok()) << page.status().message();
    page_.emplace(std::move(page).value());
    ASSERT_TRUE(producer_->UseControlPage(page_->ReadOnlyFd()->release()));
    capture_->Init(&*producer_);
  }
  void GiveSlab(std::uint64_t bytes) {
    auto fd = channel::CreateSlab(bytes);
    ASSERT_TRUE(fd.ok());
    ASSERT_TRUE(producer_->slab().Map(::dup(fd->get())));
    auto reader = channel::SlabReader::Attach(std::move(fd).value());
    ASSERT_TRUE(reader.ok());
    slab_.emplace(std::move(reader).value());
  }
  std::uint32_t Tensor(const std::string& name) {
    const std::string text =
        "\x1d"
        "c"
        "\x1d" +
        name;
    return producer_->Intern(text.data(), text.size());
  }
  void Answer(std::uint32_t tensor, std::uint32_t mask) {
    page_->SetName(tensor,
                   mask == 0 ? format::kNameNo : format::kNameYes | mask << format::kNameMaskShift);
  }
  void SetRules(const std::vector<ControlRule>& rules, std::uint32_t unanswered = 0,
                std::uint64_t slab_bytes = 64 << 20) {
    page_->SetRules(rules, unanswered, slab_bytes);
  }
  channel::Drained Drain() {
    channel::Drained drained = channel::DrainAll(consumer_.get(), &strings_);
    consumer_->Commit();
    return drained;
  }

  channel::TestProducer producer_;
  std::unique_ptr<channel::Consumer> consumer_ = producer_.Attach();
  std::optional<ControlPage> page_;
  std::optional<channel::SlabReader> slab_;
  Capture* capture_ = nullptr;
  StringPool strings_;
};

TEST_F(CaptureTest, ATensorIsAskedForWhatItsDueRulesTakeTogether) {
  const std::uint32_t a = Tensor("a"), b = Tensor("b"), no = Tensor("no"), later = Tensor("later");
  Answer(a, 0b011);
  Answer(b, 0b100);
  Answer(no, 0);
  SetRules({ControlPage::EveryStep(TT_TAKE_STATS, 2), ControlPage::EveryStep(TT_TAKE_RAW, 3),
            ControlPage::EveryStep(TT_TAKE_SHAPE, 4)});
  for (std::int64_t step = 0; step < 13; ++step) {
    SCOPED_TRACE(step);
    capture_->StepChanged(step, TT_MODE_TRAIN);
    const std::uint32_t of_a =
        (step % 2 == 0 ? TT_TAKE_STATS : 0) | (step % 3 == 0 ? TT_TAKE_RAW : 0);
    const std::uint32_t of_b = step % 4 == 0 ? TT_TAKE_SHAPE : 0;
    EXPECT_EQ(capture_->DueNow(a), of_a);
    EXPECT_EQ(capture_->DueNow(b), of_b);
    EXPECT_EQ(capture_->DueNow(no), 0u);
    EXPECT_EQ(capture_->any_due(), of_a | of_b);
    EXPECT_EQ(capture_->DueAt(a, step, TT_MODE_EVAL), of_a);
    EXPECT_EQ(capture_->DueAt(0, step, TT_MODE_EVAL), of_a | of_b);
  }
  EXPECT_EQ(capture_->Wanted(a), std::uint32_t{TT_TAKE_STATS | TT_TAKE_RAW});
  EXPECT_EQ(capture_->Wanted(no), 0u);
  EXPECT_EQ(capture_->Wanted(later), TT_TAKE_UNKNOWN);
  EXPECT_EQ(consumer_->counters().unanswered, 0u);
  capture_->StepChanged(1, TT_MODE_TRAIN);
  capture_->DueNow(later);
  EXPECT_EQ(consumer_->counters().unanswered, 0u) << "nothing is due";
  capture_->StepChanged(2, TT_MODE_TRAIN);
  capture_->DueNow(later);
  EXPECT_EQ(consumer_->counters().unanswered, 1u);
}

TEST_F(CaptureTest, ANameWithoutAnswerIsTakenByRulesOfEveryTensor) {
  const std::uint32_t later = Tensor("later");
  SetRules({ControlPage::EveryStep(TT_TAKE_STATS, 1), ControlPage::EveryStep(TT_TAKE_RAW, 1)},
           0b01);
  capture_->StepChanged(0, TT_MODE_EVAL);
  EXPECT_EQ(capture_->DueNow(later), std::uint32_t{TT_TAKE_STATS});
  EXPECT_EQ(capture_->Wanted(later), TT_TAKE_STATS | TT_TAKE_UNKNOWN);
  EXPECT_EQ(consumer_->counters().unanswered, 0u);
}

TEST_F(CaptureTest, ACollectionThatLeavesNoDoubtNeedsNoAnswer) {
  const auto tensor = [&](std::string_view collection, std::string_view name) {
    std::string text(1, format::kTensorMark);
    text.append(collection).append(1, format::kTensorMark).append(name);
    return producer_->Intern(text.data(), text.size());
  };
  const std::uint32_t weight = tensor("weights", "w");
  const std::uint32_t gradient = tensor("gradients", "g");
  const std::uint32_t output = tensor("outputs", "o");
  const std::uint32_t outputs = tensor("outputs", "");
  const std::uint32_t mine = tensor("mine", "m");
  std::vector<format::ControlCollection> known(std::size(format::kKnownCollections));
  known[0] = {0b01, 0b01};  // weights
  known[2] = {0b00, 0b00};  // gradients
  known[6] = {0b01, 0b11};  // outputs
  const std::vector<ControlRule> rules = {ControlPage::EveryStep(TT_TAKE_STATS, 1),
                                          ControlPage::EveryStep(TT_TAKE_RAW, 1)};
  page_->SetRules(rules, 0, 0, known);
  capture_->StepChanged(0, TT_MODE_TRAIN);
  EXPECT_EQ(capture_->DueNow(weight), std::uint32_t{TT_TAKE_STATS});
  EXPECT_EQ(capture_->DueNow(gradient), 0u);
  EXPECT_EQ(capture_->Wanted(gradient), 0u);
  EXPECT_EQ(consumer_->counters().unanswered, 0u);
  EXPECT_EQ(capture_->DueNow(output), std::uint32_t{TT_TAKE_STATS});
  EXPECT_EQ(capture_->Wanted(output), TT_TAKE_STATS | TT_TAKE_UNKNOWN);
  EXPECT_EQ(capture_->Wanted(outputs), std::uint32_t{TT_TAKE_STATS | TT_TAKE_RAW});
  EXPECT_EQ(capture_->Wanted(mine), TT_TAKE_UNKNOWN);
}

TEST_F(CaptureTest, TheFirstRulesAreTakenUpWithinAStep) {
  const std::uint32_t tensor = Tensor("a");
  capture_->StepChanged(0, TT_MODE_TRAIN);
  EXPECT_EQ(capture_->any_due(), 0u);
  Answer(tensor, 1);
  SetRules({ControlPage::EveryStep(TT_TAKE_STATS, 100)});
  EXPECT_EQ(capture_->any_due(), std::uint32_t{TT_TAKE_STATS});
  EXPECT_EQ(capture_->DueNow(tensor), std::uint32_t{TT_TAKE_STATS});
}

TEST_F(CaptureTest, AnEditIsTakenUpWithTheNextStep) {
  const std::uint32_t a = Tensor("a");
  Answer(a, 1);
  SetRules({ControlPage::EveryStep(TT_TAKE_STATS, 1)});
  capture_->StepChanged(0, TT_MODE_TRAIN);
  const std::uint64_t first = capture_->epoch();
  EXPECT_EQ(capture_->DueNow(a), std::uint32_t{TT_TAKE_STATS});
  // An edit in the midst of which the agent dies changes nothing.
  page_->BeginRules();
  capture_->StepChanged(1, TT_MODE_TRAIN);
  EXPECT_EQ(capture_->DueNow(a), std::uint32_t{TT_TAKE_STATS});
  EXPECT_EQ(capture_->epoch(), first);
  SetRules({ControlPage::EveryStep(TT_TAKE_SHAPE, 1)});
  EXPECT_EQ(capture_->DueNow(a), std::uint32_t{TT_TAKE_STATS}) << "within the step nothing changes";
  capture_->StepChanged(2, TT_MODE_TRAIN);
  EXPECT_EQ(capture_->DueNow(a), std::uint32_t{TT_TAKE_SHAPE});
  EXPECT_NE(capture_->epoch(), first);
  // Who numbers steps himself opens none.
  SetRules({ControlPage::EveryStep(TT_TAKE_RAW, 1)});
  EXPECT_EQ(capture_->DueAt(a, 7, TT_MODE_PREDICT), std::uint32_t{TT_TAKE_RAW});
}

TEST_F(CaptureTest, NewAnswersGoWithNewRulesAlone) {
  const std::uint32_t early = Tensor("early"), late = Tensor("late");
  Answer(early, 0b01);
  SetRules({ControlPage::EveryStep(TT_TAKE_STATS, 1), ControlPage::EveryStep(TT_TAKE_RAW, 1)});
  capture_->StepChanged(0, TT_MODE_TRAIN);
  Answer(late, 0b01);
  EXPECT_EQ(capture_->DueNow(early), std::uint32_t{TT_TAKE_STATS});
  EXPECT_EQ(capture_->DueNow(late), std::uint32_t{TT_TAKE_STATS});
  // In the new plan the second bit is of statistics, and "early" is not taken.
  page_->BeginRules();
  Answer(early, 0);
  Answer(late, 0b10);
  EXPECT_EQ(capture_->DueNow(early), std::uint32_t{TT_TAKE_STATS})
      << "its answer under the old one";
  EXPECT_EQ(capture_->DueNow(late), 0u) << "its old answer is lost";
  EXPECT_EQ(consumer_->counters().unanswered, 1u);
  EXPECT_EQ(capture_->Wanted(late), TT_TAKE_UNKNOWN);
  SetRules({ControlPage::EveryStep(TT_TAKE_SHAPE, 1), ControlPage::EveryStep(TT_TAKE_STATS, 1)});
  EXPECT_EQ(capture_->DueNow(early), std::uint32_t{TT_TAKE_STATS}) << "within the step";
  EXPECT_EQ(capture_->DueNow(late), 0u);
  capture_->StepChanged(1, TT_MODE_TRAIN);
  EXPECT_EQ(capture_->DueNow(early), 0u);
  EXPECT_EQ(capture_->DueNow(late), std::uint32_t{TT_TAKE_STATS});
  EXPECT_EQ(consumer_->counters().unanswered, 2u);
}

TEST_F(CaptureTest, EditsWhileThreadsAskLeaveWholeRules) {
  const std::uint32_t a = Tensor("a");
  Answer(a, 1);
  SetRules({ControlPage::EveryStep(1, 1)});
  capture_->StepChanged(0, TT_MODE_TRAIN);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        const std::uint32_t now = capture_->DueAt(a, 4, TT_MODE_TRAIN);
        if (now == 0 || now > 31) wrong.fetch_add(1);
      }
    });
  }
  for (std::uint32_t i = 0; i < 2000; ++i) {
    SetRules({ControlPage::EveryStep(1 + i % 31, 1)});
    capture_->StepChanged(i, TT_MODE_TRAIN);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  SetRules({ControlPage::EveryStep(5, 1)});
  capture_->StepChanged(0, TT_MODE_EVAL);
  EXPECT_EQ(capture_->DueNow(a), 5u) << "no update was lost";
}

TEST_F(CaptureTest, ValuesGoInlineOrThroughTheSlabInCOrder) {
  GiveSlab(1 << 20);
  const std::uint32_t a = Tensor("a");
  SetRules({ControlPage::EveryStep(TT_TAKE_RAW, 1)});
  capture_->StepChanged(0, TT_MODE_TRAIN);
  std::vector<std::int16_t> memory(64 * 64);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::int16_t>(i);
  for (const std::int64_t side : {3, 60}) {
    const std::int64_t shape[] = {side, side};
    const std::int64_t transposed[] = {1, 64};
    const tt_array array{memory.data(), TT_DTYPE_I16, 2, shape, transposed};
    capture_->Record(a, array, TT_TAKE_RAW, 9, TT_MODE_EVAL);
    const channel::Drained drained = Drain();
    ASSERT_EQ(drained.tensors.size(), 1u);
    const channel::DrainedTensor& tensor = drained.tensors[0];
    EXPECT_EQ(tensor.slot.has_value(), side == 60);
    EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{side, side}));
    EXPECT_EQ(tensor.step, 9);
    EXPECT_EQ(tensor.mode, "EVAL");
    std::vector<std::int16_t> got(static_cast<std::size_t>(side * side));
    ASSERT_EQ(tensor.bytes, got.size() * 2);
    if (tensor.slot) {
      const auto data = slab_->Data(*tensor.slot, tensor.bytes);
      ASSERT_EQ(data.size(), tensor.bytes);
      std::memcpy(got.data(), data.data(), data.size());
    } else {
      ASSERT_EQ(tensor.values.size(), tensor.bytes);
      std::memcpy(got.data(), tensor.values.data(), tensor.bytes);
    }
    for (std::int64_t i = 0; i < side; ++i) {
      for (std::int64_t k = 0; k < side; ++k) {
        EXPECT_EQ(got[static_cast<std::size_t>(i * side + k)], i + 64 * k);
      }
    }
  }
}

TEST_F(CaptureTest, WhereThereIsNoRoomValuesAreCounted) {
  const std::uint32_t a = Tensor("a");
  const std::vector<float> values(5000, 1.0f);
  const std::int64_t count = 5000;
  const tt_array array{values.data(), TT_DTYPE_F32, 1, &count, nullptr};
  SetRules({ControlPage::EveryStep(TT_TAKE_RAW, 1)});
  capture_->StepChanged(0, TT_MODE_TRAIN);
  capture_->Record(a, array, TT_TAKE_RAW, 0, TT_MODE_TRAIN);
  EXPECT_EQ(consumer_->counters().raw_dropped, 1u) << "no slab";
  GiveSlab(40'000);
  std::vector<std::uint32_t> recorded;
  for (int i = 0; i < 3; ++i) {
    recorded.push_back(capture_->Record(a, array, TT_TAKE_RAW | TT_TAKE_MORE, 0, TT_MODE_TRAIN));
  }
  constexpr std::uint32_t kStats = TT_TAKE_STATS | TT_TAKE_MORE;
  EXPECT_EQ(recorded,
            (std::vector<std::uint32_t>{kStats | TT_TAKE_RAW, kStats | TT_TAKE_RAW, kStats}));
  EXPECT_EQ(Drain().tensors.size(), 2u);
  EXPECT_EQ(consumer_->counters().raw_dropped, 2u);
  slab_->Free(0, 40'000);
  SetRules({ControlPage::EveryStep(TT_TAKE_RAW, 1)}, 0, 0);
  capture_->StepChanged(1, TT_MODE_TRAIN);
  capture_->Record(a, array, TT_TAKE_RAW, 0, TT_MODE_TRAIN);
  EXPECT_EQ(consumer_->counters().raw_dropped, 3u) << "the plan allows none";
  // Repeated by a stride of 0 to more than there is memory for.
  const std::int64_t huge = std::int64_t{1} << 62, still = 0;
  capture_->Record(a, {values.data(), TT_DTYPE_F32, 1, &huge, &still}, TT_TAKE_RAW, 0,
                   TT_MODE_TRAIN);
  EXPECT_EQ(consumer_->counters().raw_dropped, 4u);
  EXPECT_TRUE(Drain().rows.tensors.empty());
  EXPECT_EQ(capture_->Record(a, array, TT_TAKE_RAW | TT_TAKE_SHAPE, 0, TT_MODE_TRAIN),
            std::uint32_t{TT_TAKE_SHAPE});
  EXPECT_EQ(consumer_->counters().raw_dropped, 5u);
  const channel::Drained drained = Drain();
  EXPECT_TRUE(drained.tensors.empty());
  ASSERT_EQ(drained.rows.tensors.size(), 1u) << "the shape was asked for too, and has room";
  EXPECT_EQ(drained.rows.tensors[0].shape, "[5000]");
}

TEST_F(CaptureTest, ARecordThatFindsNoRingGivesItsSlotsBack) {
  GiveSlab(20'000);
  const std::uint32_t a = Tensor("a");
  const std::vector<float> values(2000, 1.0f);
  const std::int64_t count = 2000;
  const tt_array array{values.data(), TT_DTYPE_F32, 1, &count, nullptr};
  SetRules({ControlPage::EveryStep(TT_TAKE_RAW, 1)});
  capture_->StepChanged(0, TT_MODE_TRAIN);
  while (consumer_->counters().dropped == 0) producer_->Scalar(0, 0, 0, 0, producer_->Now());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(capture_->Record(a, array, TT_TAKE_RAW, i, TT_MODE_TRAIN), 0u);
  }
  EXPECT_EQ(capture_->Record(a, array, TT_TAKE_STATS, 0, TT_MODE_TRAIN), 0u);
  EXPECT_EQ(consumer_->counters().dropped, 102u);
  EXPECT_EQ(consumer_->counters().raw_dropped, 0u) << "the slab has room for two at a time";
  EXPECT_TRUE(Drain().tensors.empty());
  EXPECT_EQ(capture_->Record(a, array, TT_TAKE_RAW, 0, TT_MODE_TRAIN), std::uint32_t{TT_TAKE_RAW});
  EXPECT_EQ(Drain().tensors.size(), 1u);
}

TEST_F(CaptureTest, TheRuleSaysHowLargeASampleIs) {
  const std::uint32_t a = Tensor("a"), b = Tensor("b");
  Answer(a, 0b01);
  Answer(b, 0b11);
  std::vector<ControlRule> rules(2, ControlPage::EveryStep(TT_TAKE_HISTOGRAM, 1));
  rules[0].max_elements = 128;
  rules[1].max_elements = 1280;
  SetRules(rules);
  capture_->StepChanged(0, TT_MODE_TRAIN);
  const std::vector<double> values(100'000, 1.0);
  const std::int64_t count = 100'000;
  const tt_array array{values.data(), TT_DTYPE_F64, 1, &count, nullptr};
  for (const std::uint32_t tensor : {a, b, Tensor("unasked")}) {
    capture_->Record(tensor, array, TT_TAKE_HISTOGRAM, 0, TT_MODE_TRAIN);
    capture_->Flush();
  }
  const channel::Drained drained = Drain();
  EXPECT_EQ(drained.rows.statistics.size(), 3u) << "it brings the statistics with it";
  std::vector<std::uint64_t> taken;
  for (const auto& row : drained.rows.histograms) taken.push_back(row.taken);
  std::sort(taken.begin(), taken.end());
  EXPECT_EQ(taken, (std::vector<std::uint64_t>{128, 1280, kDefaultSample}));
}

TEST_F(CaptureTest, EmptyScalarAndExpandedTensors) {
  const std::uint32_t a = Tensor("a");
  const float value = 2.5f;
  const std::int64_t empty[] = {3, 0};
  const std::int64_t large[] = {1 << 20, 1 << 20}, still[] = {0, 0};
  capture_->Record(a, {nullptr, TT_DTYPE_F32, 2, empty, nullptr}, 31, 1, TT_MODE_TRAIN);
  capture_->Record(a, {&value, TT_DTYPE_F32, 0, nullptr, nullptr}, 31, 2, TT_MODE_TRAIN);
  capture_->Record(a, {&value, TT_DTYPE_F32, 2, large, still}, TT_TAKE_STATS | TT_TAKE_SHAPE, 3,
                   TT_MODE_TRAIN);
  capture_->Flush();
  const channel::Drained drained = Drain();
  ASSERT_EQ(drained.rows.statistics.size(), 3u);
  EXPECT_EQ(drained.rows.statistics[0].count, 0u);
  EXPECT_TRUE(std::isnan(drained.rows.statistics[0].min));
  EXPECT_EQ(drained.rows.statistics[1].count, 1u);
  EXPECT_EQ(drained.rows.statistics[1].prod, 2.5);
  EXPECT_EQ(drained.rows.statistics[2].count, 1ULL << 40);
  EXPECT_EQ(drained.rows.statistics[2].mean, 2.5);
  EXPECT_EQ(drained.rows.statistics[2].l1, 2.5 * 0x1p40);
  EXPECT_EQ(drained.rows.histograms.size(), 2u);
  ASSERT_EQ(drained.tensors.size(), 2u);
  EXPECT_EQ(drained.tensors[0].bytes, 0u);
  EXPECT_EQ(drained.tensors[1].values.size(), 4u);
  ASSERT_EQ(drained.rows.tensors.size(), 1u);
  EXPECT_EQ(drained.rows.tensors[0].shape, "[1048576,1048576]");
  EXPECT_EQ(consumer_->counters().malformed, 0u);
}

TEST_F(CaptureTest, AHistogramIsMadeOfASampleOfATensorThatIsElsewhere) {
  const std::uint32_t a = Tensor("a");
  Answer(a, 1);
  std::vector<ControlRule> rules(1, ControlPage::EveryStep(TT_TAKE_HISTOGRAM, 1));
  rules[0].max_elements = 1000;
  SetRules(rules);
  capture_->StepChanged(4, TT_MODE_TRAIN);
  EXPECT_EQ(SampleOf(capture_->SampleSize(a, 4, TT_MODE_TRAIN)), 960u);
  EXPECT_EQ(SampleOf(capture_->SampleSize(Tensor("b"), 4, TT_MODE_TRAIN)), kDefaultSample);
  const float values[] = {1, 2, 3, 4};
  const std::int64_t four = 4, none = 0;
  const tt_array sample{values, TT_DTYPE_F32, 1, &four, nullptr};
  tt_stats stats{};
  stats.count = 1'000'000;
  stats.min = -8;
  stats.max = 8;
  EXPECT_TRUE(capture_->RecordSample(a, sample, stats, 2, TT_MODE_EVAL));
  stats.count = 0;
  stats.min = stats.max = std::nan("");
  EXPECT_TRUE(capture_->RecordSample(a, {nullptr, TT_DTYPE_F32, 1, &none, nullptr}, stats, 3,
                                     TT_MODE_TRAIN));
  EXPECT_FALSE(capture_->RecordSample(0, sample, stats, 3, TT_MODE_TRAIN));
  EXPECT_FALSE(capture_->RecordSample(a, {nullptr, TT_DTYPE_F32, 1, &four, nullptr}, stats, 3,
                                      TT_MODE_TRAIN));
  capture_->Flush();
  EXPECT_EQ(consumer_->counters().skipped, 2u);
  const channel::Drained drained = Drain();
  EXPECT_TRUE(drained.rows.statistics.empty());
  ASSERT_EQ(drained.rows.histograms.size(), 2u);
  const auto& row = drained.rows.histograms[0];
  EXPECT_EQ(row.count, 1'000'000u);
  EXPECT_EQ(row.taken, 4u);
  EXPECT_EQ(row.min, -8);
  EXPECT_EQ(row.max, 8);
  EXPECT_EQ(row.step, 2);
  EXPECT_EQ(row.mode, "EVAL");
  EXPECT_EQ(drained.rows.histograms[1].taken, 0u);
}

TEST_F(CaptureTest, ComputedStatisticsHaveMoreWhereItIsGiven) {
  const std::uint32_t a = Tensor("a");
  tt_stats stats{};
  stats.count = 3;
  const tt_more_stats more{0.5, 0.25, -24};
  capture_->RecordStats(a, 0, stats, TT_DTYPE_F32, 5, TT_MODE_TRAIN);
  capture_->RecordStats(a, 0, stats, TT_DTYPE_F32, 6, TT_MODE_TRAIN, &more);
  const channel::Drained drained = Drain();
  ASSERT_EQ(drained.rows.statistics.size(), 2u);
  EXPECT_FALSE(drained.rows.statistics[0].more);
  const auto& row = drained.rows.statistics[1];
  EXPECT_TRUE(row.more);
  EXPECT_EQ(row.count, 3u);
  EXPECT_EQ(row.step, 6);
  EXPECT_EQ(row.abs_min, 0.5);
  EXPECT_EQ(row.abs_std, 0.25);
  EXPECT_EQ(row.prod, -24);
}

TEST_F(CaptureTest, TheBoundOfRawValuesIsToldWhereTheyCanBeTaken) {
  SetRules({ControlPage::EveryStep(TT_TAKE_RAW, 1)}, 0, 30'000);
  capture_->StepChanged(0, TT_MODE_TRAIN);
  EXPECT_EQ(capture_->slab_bytes(), 0u) << "there is no slab";
  GiveSlab(40'000);
  EXPECT_EQ(capture_->slab_bytes(), 30'000u);
}

}  // namespace
}  // namespace telltale::probe
