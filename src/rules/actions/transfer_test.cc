// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/transfer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace telltale::rules {
namespace {

Answer Failed(bool retry, double after = 0) {
  Answer answer;
  answer.error = "HTTP 503";
  answer.retry = retry;
  answer.retry_after_seconds = after;
  return answer;
}

TEST(Transfer, TriesAgainWithLongerAndLongerPauses) {
  const std::atomic<bool> stop = false;
  std::vector<double> pauses;
  int tries = 0;
  const Status status = SendAndRetry(
      {}, 3, stop,
      [&](double seconds) {
        pauses.push_back(seconds);
        return true;
      },
      [&] {
        ++tries;
        return Failed(true, tries == 2 ? 500 : 0);
      });
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(tries, 4);
  EXPECT_EQ(pauses, (std::vector<double>{1, 60, 4}));
}

TEST(Transfer, DoesNotRepeatWhatIsNoUse) {
  const std::atomic<bool> stop = false;
  int tries = 0;
  const Status status = SendAndRetry(
      {}, 3, stop, [](double) { return true; },
      [&] {
        ++tries;
        return Failed(false);
      });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(tries, 1);
}

TEST(Transfer, ThisMachineIsNotReachedUnlessItIsAllowed) {
  const std::atomic<bool> stop = false;
  for (const char* url : {"http://127.0.0.1:9/", "http://localhost:9/", "http://[::1]:9/",
                          "http://2130706433:9/", "http://0x7f.1:9/"}) {
    Transfer transfer;
    transfer.url = url;
    transfer.timeout_seconds = 10;
    const Answer answer = Send(transfer, stop);
    EXPECT_FALSE(answer.error.empty()) << url;
    EXPECT_TRUE(answer.refused || answer.code == 0) << url;
    EXPECT_FALSE(answer.refused && answer.retry) << url;
  }
  Transfer metadata;
  metadata.url = "http://169.254.169.254/latest/meta-data/";
  metadata.allow_private = true;
  EXPECT_TRUE(Send(metadata, stop).refused);
}

TEST(Transfer, OtherProtocolsAreNone) {
  const std::atomic<bool> stop = false;
  Transfer transfer;
  transfer.url = "file:///etc/hostname";
  const Answer answer = Send(transfer, stop);
  EXPECT_FALSE(answer.error.empty());
  EXPECT_TRUE(answer.body.empty());
}

}  // namespace
}  // namespace telltale::rules
