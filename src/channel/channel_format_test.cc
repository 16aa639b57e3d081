// SPDX-License-Identifier: Apache-2.0
// The hex examples of docs/formats/channel.md, byte for byte.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "channel/producer.h"
#include "channel/registration.h"
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
