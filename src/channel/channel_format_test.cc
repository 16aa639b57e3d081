// SPDX-License-Identifier: Apache-2.0
// The hex examples of docs/formats/channel.md, byte for byte.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "channel/control_page.h"
#include "channel/producer.h"
#include "channel/registration.h"
#include "channel/slab.h"
#include "channel/testing.h"

namespace telltale::channel {
namespace {

/// Bytes of the page's code block of that kind.
std::string Example(const std::string& kind) {
  std::ifstream page(TELLTALE_SOURCE_DIR "/docs/formats/channel.md");
  std::string line, bytes;
  bool inside = false;
  while (std::getline(page, line)) {
    if (line.rfind("```", 0) == 0) {
      inside = line == "```" + kind;
    } else if (inside) {
      std::istringstream words(line);
      for (std::string word; words >> word;) {
        bytes.push_back(static_cast<char>(std::stoi(word, nullptr, 16)));
      }
    }
  }
  return bytes;
}

TEST(ChannelFormat, NamesAndRecordsAreThePagesExample) {
  TestProducer made(kTrainerPlan, format::ClockKind::kMonotonicNs);
  Producer& producer = *made;
  ASSERT_EQ(producer.Intern("forward", 7), 1u);
  ASSERT_EQ(producer.Intern("loss", 4), 2u);
  producer.Span(1, 1000, 1500, 1 << format::kCategoryShift, 7);
  producer.Scalar(2, 0.5, 7, 0, 2000);
  producer.Event(2, 3, 0, "NaN", 3, nullptr, 0, 7, 2001);

  const auto* arena = reinterpret_cast<const char*>(producer.header());
  const format::ArenaHeader& header = *producer.header();
  const std::string names = Example("names");
  EXPECT_EQ(std::string(arena + header.names_offset, header.names_published.load()), names);
  const auto* ring = reinterpret_cast<const format::RingEntry*>(arena + header.directory_offset);
  const std::string records = Example("ring");
  EXPECT_EQ(ring->head.load(), 104u);
  EXPECT_EQ(std::string(arena + ring->offset, 104), records);
  EXPECT_EQ(std::string(arena, 64), Example("header"));
  producer.CountSkipped("loss", 3);
  producer.CountSkipped("", 1);
  EXPECT_EQ(header.skipped.load(), 4u);
  EXPECT_EQ(std::string(arena + 728, 8) + std::string(arena + 768, 16), Example("skipped"));
}

/// The first bytes of a memfd.
std::string BytesOf(int fd, std::size_t bytes) {
  void* map = ::mmap(nullptr, format::kPageBytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return "";
  std::string out(static_cast<const char*>(map), bytes);
  ::munmap(map, format::kPageBytes);
  return out;
}

TEST(ChannelFormat, TensorRecordsAreThePagesExample) {
  TestProducer made(kTrainerPlan, format::ClockKind::kMonotonicNs);
  Producer& producer = *made;
  const std::string name =
      "\x1dweights\x1d"
      "conv1.weight";
  ASSERT_EQ(producer.Intern(name.data(), name.size()), 1u);
  const std::int64_t shape[] = {2, 1};
  const float values[] = {1, 2};
  format::TensorRecord record{};
  record.header.name = 1;
  record.header.flags = format::kInlineFlag;
  record.time = 3000;
  record.step = 7;
  record.bytes = sizeof values;
  record.ndim = 2;
  ASSERT_TRUE(producer.Tensor(record, shape, values));
  record.header.flags = format::kShapeOnlyFlag;
  record.time = 3001;
  record.bytes = 0;
  ASSERT_TRUE(producer.Tensor(record, shape, nullptr));

  const auto* arena = reinterpret_cast<const char*>(producer.header());
  const format::ArenaHeader& header = *producer.header();
  EXPECT_EQ(std::string(arena + header.names_offset, header.names_published.load()),
            Example("tensor-names"));
  const auto* ring = reinterpret_cast<const format::RingEntry*>(arena + header.directory_offset);
  EXPECT_EQ(std::string(arena + ring->offset, ring->head.load()), Example("tensor-ring"));
}

TEST(ChannelFormat, ControlPageAndSlabAreThePagesExamples) {
  auto page = ControlPage::Create(100);
  ASSERT_TRUE(page.ok()) << page.status().message();
  const format::ControlRule rule = ControlPage::EveryStep(1, 100);
  page->SetRules({&rule, 1}, 1, 64 << 20);
  page->PublishEpoch();
  EXPECT_EQ(BytesOf(page->fd(), 64), Example("control"));
  auto slab = CreateSlab(8 << 20);
  ASSERT_TRUE(slab.ok()) << slab.status().message();
  EXPECT_EQ(BytesOf(slab->get(), 16), Example("slab"));
}

TEST(ChannelFormat, MessageIsThePagesExample) {
  auto end = MakeMessage<AttemptEnd>(MessageType::kAttemptEnd);
  end.attempt = 1;
  end.exit_code = -1;
  end.signal = 9;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(&end), sizeof end), Example("message"));
}

}  // namespace
}  // namespace telltale::channel
