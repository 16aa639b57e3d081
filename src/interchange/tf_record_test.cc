// SPDX-License-Identifier: Apache-2.0
#include "interchange/tf_record.h"

#include <gtest/gtest.h>

#include <string>

namespace telltale::interchange {
namespace {

std::string RecordOf(std::string_view payload) {
  std::string record;
  AppendRecord(payload, &record);
  return record;
}

TEST(TfRecord, IsReadAsItWasWritten) {
  for (const std::string payload : {"", "a", "some payload"}) {
    const std::string record = RecordOf(payload);
    EXPECT_EQ(record.size(), payload.size() + kRecordFrameBytes);
    EXPECT_EQ(RecordPayload(record), payload);
    EXPECT_EQ(RecordPayload(record + "what follows"), payload);
  }
}

TEST(TfRecord, BeginsAsEveryEventFileOfTensorFlow) {
  // Its first record is 24 bytes long.
  const std::string record = RecordOf(std::string(24, 'x'));
  EXPECT_EQ(record.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7fK\"", 12));
}

TEST(TfRecord, TakesTheConstantChecksumOfSmdebug) {
  std::string record = RecordOf("payload");
  // The masked CRC-32C of "0x12345678", which stands for every payload's.
  const std::string constant = RecordOf("0x12345678");
  record.replace(record.size() - 4, 4, constant.substr(constant.size() - 4));
  EXPECT_EQ(RecordPayload(record), "payload");
}

TEST(TfRecord, RefusesWhatIsDamagedOrCut) {
  const std::string record = RecordOf("payload");
  for (std::size_t i = 0; i < record.size(); ++i) {
    std::string damaged = record;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_EQ(RecordPayload(damaged), std::nullopt) << i;
    EXPECT_EQ(RecordPayload(record.substr(0, i)), std::nullopt) << i;
  }
}

}  // namespace
}  // namespace telltale::interchange
