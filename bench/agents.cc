// SPDX-License-Identifier: Apache-2.0
#include "agents.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "support/sample_run.h"

namespace telltale::bench {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kPublishNs = 200 * kMs;
constexpr std::int64_t kSampleNs = 500 * kMs;

std::int64_t Now() { return Clock::System().MonotonicNs(); }

void Check(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "bench: {}\n", status.message());
  std::exit(1);
}

}  // namespace

Agents::Agents(const std::filesystem::path& run, int count) {
  std::filesystem::create_directories(run);
  testing::SampleRun sample;
  sample.start_ns = Clock::System().RealtimeNs();
  Check(store::WriteRunInfo(run, testing::MakeInfo(sample, false)));
  for (int i = 0; i < count; ++i) {
    const std::string name = fmt::format("agent-host{}", i);
    auto writer = store::Writer::Open(run / name, name);
    Check(writer.status());
    writers_.push_back(std::move(writer).value());
  }
  for (std::size_t i = 0; i < writers_.size(); ++i) {
    threads_.emplace_back([this, i] { Publish(i); });
  }
}

Agents::~Agents() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  for (const auto& writer : writers_) Check(writer->Close(true));
}

void Agents::Put(format::Rows rows) {
  const std::int64_t now = Now() + writers_.front()->monotonic_to_run_ns();
  format::ForEachTable(rows, [&](auto& table) {
    for (auto& row : table) row.time_ns = row.ord_ns = now;
  });
  const std::scoped_lock lock(mutex_);
  waiting_ = std::move(rows);
  ++put_;
}

std::int64_t Agents::WrittenNs() const {
  const std::uint64_t put = put_;
  while (written_ != put) std::this_thread::sleep_for(std::chrono::microseconds(200));
  return written_ns_;
}

void Agents::Publish(std::size_t index) {
  store::Writer& writer = *writers_[index];
  const std::int64_t offset = writer.monotonic_to_run_ns();
  const std::string node = fmt::format("host{}", index);
  std::int64_t next_sample = 0;
  // Every agent has a rhythm of its own.
  std::int64_t next = Now() + static_cast<std::int64_t>(index) * 67 * kMs;
  while (!stop_) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(next - Now()));
    next += kPublishNs;
    format::Batch batch;
    batch.watermark_ns = Now() + offset;
    std::uint64_t put = 0;
    if (index == 0) {
      const std::scoped_lock lock(mutex_);
      batch.rows = std::exchange(waiting_, {});
      put = put_;
    }
    if (batch.watermark_ns >= next_sample) {
      next_sample = batch.watermark_ns + kSampleNs;
      for (const std::string_view name : std::array{"cpu.idle", "cpu.iowait"}) {
        format::MetricRow row;
        row.time_ns = row.ord_ns = batch.watermark_ns;
        row.node = node;
        row.subject = "node";
        row.name = name;
        row.unit = "percent";
        row.value = 50;
        batch.rows.metrics.push_back(row);
      }
    }
    const std::int64_t before = Now();
    Check(writer.Append(std::move(batch)));
    if (index == 0 && put != written_) {
      written_ns_ = before;
      written_ = put;
    }
    Check(writer.Tick());
  }
}

}  // namespace telltale::bench
