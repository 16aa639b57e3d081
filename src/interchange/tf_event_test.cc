// SPDX-License-Identifier: Apache-2.0
#include "interchange/tf_event.h"

#include <gtest/gtest.h>

#include <protozero/pbf_writer.hpp>
#include <string>

namespace telltale::interchange {
namespace {

/// An event with a tensor, as the documentation of the messages numbers their fields.
std::string TensorEvent(std::string_view tag, TfType type, const std::vector<std::int64_t>& shape,
                        std::string_view content) {
  std::string bytes;
  protozero::pbf_writer event(bytes);
  event.add_double(1, 12.5);
  event.add_int64(2, 7);
  event.add_string(99, "of a later version");
  protozero::pbf_writer summary(event, 5);
  protozero::pbf_writer value(summary, 1);
  value.add_string(1, std::string(tag));
  {
    protozero::pbf_writer metadata(value, 9);
    metadata.add_string(2, "a display name");
  }
  protozero::pbf_writer tensor(value, 8);
  tensor.add_enum(1, static_cast<std::int32_t>(type));
  {
    protozero::pbf_writer extents(tensor, 2);
    for (const std::int64_t extent : shape) {
      protozero::pbf_writer dimension(extents, 2);
      if (extent != 0) dimension.add_int64(1, extent);
      dimension.add_string(2, "its name");
    }
  }
  tensor.add_bytes(4, content.data(), content.size());
  tensor.commit();
  value.commit();
  summary.commit();
  return bytes;
}

TEST(TfEvent, ReadsATensor) {
  const std::string bytes = TensorEvent("conv1.weight", TfType::kInt16, {2, 0, 3}, "123456");
  const auto event = ParseEvent(bytes);
  ASSERT_TRUE(event.ok()) << event.status().message();
  EXPECT_EQ(event->wall_time_s, 12.5);
  EXPECT_EQ(event->step, 7);
  ASSERT_EQ(event->values.size(), 1U);
  const EventValue& value = event->values[0];
  EXPECT_EQ(value.tag, "conv1.weight");
  EXPECT_TRUE(value.is_tensor);
  EXPECT_EQ(value.type, static_cast<std::int32_t>(TfType::kInt16));
  EXPECT_EQ(value.shape, (std::vector<std::int64_t>{2, 0, 3}));
  EXPECT_EQ(value.content, "123456");
  EXPECT_FALSE(value.simple);
}

TEST(TfEvent, ReadsAScalarAsItWasWritten) {
  const auto event = ParseEvent(ScalarEvent(3.25, -1, "loss/train", 0.5));
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->wall_time_s, 3.25);
  EXPECT_EQ(event->step, -1);
  ASSERT_EQ(event->values.size(), 1U);
  EXPECT_EQ(event->values[0].tag, "loss/train");
  EXPECT_EQ(event->values[0].simple, 0.5);
}

TEST(TfEvent, BeginsAFileAsTensorBoardWantsIt) {
  EXPECT_EQ(VersionEvent(0), std::string("\x09\0\0\0\0\0\0\0\0\x1a\x0d"
                                         "brain.Event:2",
                                         24));
}

TEST(TfEvent, RefusesWhatIsNone) {
  const std::string bytes = TensorEvent("a", TfType::kFloat, {1}, "1234");
  EXPECT_FALSE(ParseEvent(bytes.substr(0, bytes.size() - 3)).ok());
  EXPECT_FALSE(ParseEvent("\xff\xff\xff").ok());
  // Whatever it says, it ends and reads nothing that is not there.
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const auto event = ParseEvent(damaged);
      EXPECT_TRUE(event.ok() || event.status().code() == Code::kUnusable);
    }
  }
}

}  // namespace
}  // namespace telltale::interchange
