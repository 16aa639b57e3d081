// SPDX-License-Identifier: Apache-2.0
// The sampler's way from a piece that was left to the slices of the run; without py-spy.
#include "stacks/sampler.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>

#include "store/store_testing.h"

namespace telltale::stacks {
namespace {

std::string Event(char phase, int us, std::string_view name, std::string_view file) {
  return fmt::format(R"({{"args":{{"filename":"{}","line":1}},"cat":"py-spy","name":"{}",)"
                     R"("ph":"{}","pid":10,"tid":4711,"ts":{}}})",
                     file, name, phase, us);
}

/// A run that is over, whose sampler has left a piece of one thread: `looks` of 1 ms each, every
/// time in another function.
void MakeRunWithPiece(const std::filesystem::path& run, int looks) {
  store::MakeRun(run);
  auto agent = store::Writer::Open(run / "agent-a", "agent-a");
  ASSERT_TRUE(agent.ok()) << agent.status().message();
  ASSERT_TRUE((*agent)->Append(store::Scalars(0, 1)).ok());
  ASSERT_TRUE((*agent)->Close(true).ok());
  std::string events = "[" + Event('B', 0, "process 10:t.py", "") + "," +
                       Event('B', 0, "thread (10): MainThread", "");
  for (int i = 0; i < looks; ++i) {
    const std::string_view name = i % 2 == 0 ? "even" : "odd";
    events += "," + Event('B', i * 1000, name, "/w/t.py");
    events += "," + Event('E', i * 1000 + 1000, name, "/w/t.py");
  }
  std::filesystem::create_directories(run / "logs" / "stacks");
  std::ofstream(run / "logs" / "stacks" / "piece-1-20.json") << events << "]";
}

TEST(SamplerTest, PortionsOfAPieceKeepTheirTimes) {
  const store::TempFolder folder;
  const std::filesystem::path run = folder.path() / "run";
  constexpr int kLooks = static_cast<int>(kSlicesAtOnce) * 3 / 2;
  MakeRunWithPiece(run, kLooks);
  auto sampler = Sampler::Open(run);
  ASSERT_TRUE(sampler.ok()) << sampler.status().message();
  bool done = false;
  for (int i = 0; i < 100 && !done; ++i) {
    const auto polled = (*sampler)->Poll();
    ASSERT_TRUE(polled.ok()) << polled.status().message();
    done = *polled;
  }
  ASSERT_TRUE(done);
  const auto all = store::ReadEverything(run);
  EXPECT_GT(all->rows.slices.size(), kSlicesAtOnce) << "more than one portion";
  std::size_t moved = 0;
  for (const format::SliceRow& row : all->rows.slices) {
    moved += row.ord_ns != row.time_ns + row.duration_ns ? 1 : 0;
  }
  EXPECT_EQ(moved, 0U) << "no portion of it made the next one late";
}

}  // namespace
}  // namespace telltale::stacks
