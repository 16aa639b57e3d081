// SPDX-License-Identifier: Apache-2.0
// Many pages at once: 500 event streams of a live run on the server's one thread.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "client.h"
#include "store/writer.h"
#include "stream_crowd.h"
#include "support/recording.h"
#include "support/sample_run.h"
#include "support/temp_folder.h"

namespace telltale {
namespace {

namespace fs = std::filesystem;
using testing::Connection;

constexpr std::size_t kStreams = 500;

TEST(StreamsTest, FiveHundredFollowOneRun) {
  ASSERT_TRUE(testing::RaiseFileLimit(2 * kStreams));
  const testing::TempFolder folder("streams");
  const fs::path root = folder.path();
  testing::SampleRun sample;
  sample.steps = 400;
  fs::create_directories(root / "live");
  ASSERT_TRUE(store::WriteRunInfo(root / "live", testing::MakeInfo(sample, false)).ok());
  auto writer = store::Writer::Open(root / "live/agent-a", "agent-a");
  ASSERT_TRUE(writer.ok());
  {
    const testing::RunningServer server({root});
    std::vector<std::unique_ptr<Connection>> streams;
    for (std::size_t i = 0; i < kStreams; ++i) {
      streams.push_back(std::make_unique<Connection>(server.port()));
      ASSERT_TRUE(streams.back()->ok()) << i;
      streams.back()->Send(fmt::format(
          "GET /api/runs/live/stream HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n", server.bearer()));
    }
    for (auto& stream : streams) ASSERT_TRUE(stream->Await("event: overview"));
    StringPool pool;
    std::vector<double> request_ms;
    for (format::Batch& batch : testing::Cut(testing::MakeRows(sample, &pool), 200'000'000)) {
      ASSERT_TRUE((*writer)->Append(std::move(batch)).ok());
      const auto begin = std::chrono::steady_clock::now();
      ASSERT_EQ(server.Get("/api/runs/live/overview").status, 200);
      request_ms.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
              .count());
    }
    ASSERT_TRUE((*writer)->Close(true).ok());
    // Every one of them gets to the end.
    for (auto& stream : streams) ASSERT_TRUE(stream->Await("\"steps\":400,"));
    std::sort(request_ms.begin(), request_ms.end());
    RecordProperty("request_p99_ms",
                   fmt::format("{:.1f}", request_ms[request_ms.size() * 99 / 100]));
    fmt::print("{} requests beside {} streams: median {:.1f} ms, p99 {:.1f} ms\n",
               request_ms.size(), kStreams, request_ms[request_ms.size() / 2],
               request_ms[request_ms.size() * 99 / 100]);
  }
}

/// More records than a ring has room for, at a fixed rate: where the streams held up the agent,
/// some of them would be dropped.
TEST(StreamsTest, ARecordingBesideThemLosesNothing) {
  constexpr long kRecordsASecond = 40'000;
  constexpr long kSeconds = 10;
  ASSERT_TRUE(testing::RaiseFileLimit(2 * kStreams));
  const fault::Scratch scratch("streams");
  testing::Recording recording(scratch / "", kRecordsASecond, kSeconds);
  ASSERT_TRUE(recording.AwaitReady()) << recording.Err();
  const testing::RunningServer server({recording.root()});
  const testing::StreamCrowd crowd(
      server.port(),
      fmt::format("GET /api/runs/live/stream HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n",
                  server.bearer()),
      kStreams);
  ASSERT_TRUE(crowd.ok());
  recording.Go();
  testing::Recorded recorded;
  ASSERT_TRUE(recording.Follow(&recorded)) << recording.Err();
  EXPECT_TRUE(crowd.ok()) << "the server closed a stream";
  EXPECT_EQ(recorded.values, static_cast<std::uint64_t>(kRecordsASecond * kSeconds / 2));
  EXPECT_EQ(recorded.spans, recorded.values);
  EXPECT_EQ(recorded.missing, 0U);
  EXPECT_EQ(recorded.twice, 0U);
  EXPECT_EQ(recorded.dropped, 0U);
}

}  // namespace
}  // namespace telltale
