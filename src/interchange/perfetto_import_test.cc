// SPDX-License-Identifier: Apache-2.0
#include "interchange/perfetto_import.h"

#include <gtest/gtest.h>

#include <protozero/pbf_writer.hpp>
#include <string>

#include "interchange/recording_sink.h"

namespace telltale::interchange {
namespace {

using protozero::pbf_writer;

std::string Message(std::uint32_t field, const std::string& value) {
  std::string bytes;
  pbf_writer(bytes).add_message(field, value);
  return bytes;
}
std::string Number(std::uint32_t field, std::uint64_t value) {
  std::string bytes;
  pbf_writer(bytes).add_uint64(field, value);
  return bytes;
}
std::string Text(std::uint32_t field, const std::string& value) {
  std::string bytes;
  pbf_writer(bytes).add_string(field, value);
  return bytes;
}
std::string Packet(const std::string& fields) { return Message(1, fields); }
std::string Interned(std::uint32_t field, std::uint64_t id, const std::string& text) {
  return Message(field, Number(1, id) + Text(2, text));
}
std::string Clock(std::uint64_t id, std::uint64_t value) {
  return Message(1, Number(1, id) + Number(2, value));
}

constexpr std::uint64_t kThreadTrack = 0x1234;
constexpr std::uint64_t kCounterTrack = 0x5678;
constexpr std::int64_t kWallNs = 1'700'000'000'000'000'000;

std::string TrackEventPacket(std::uint64_t time_ns, const std::string& event) {
  return Packet(Number(8, time_ns) + Number(10, 1) + Message(11, event));
}

std::string ExamplePerfetto() {
  std::string trace;
  trace += Packet(Number(10, 1) + Message(6, Clock(1, kWallNs) + Clock(6, 5'000)));
  trace += Packet(
      Number(10, 1) + Number(13, 1) + Message(59, Message(11, Number(11, kThreadTrack))) +
      Message(12, Interned(1, 1, "cpu_op") + Interned(2, 1, "forward") + Interned(3, 1, "rows")));
  trace += Packet(Number(10, 1) +
                  Message(60, Number(1, kThreadTrack) +
                                  Message(4, Number(1, 77) + Number(2, 78) + Text(5, "main"))));
  trace += Packet(Number(10, 1) + Message(60, Number(1, kCounterTrack) + Text(2, "batch bytes") +
                                                  Message(8, Number(3, 3) + Number(4, 1024))));
  // A step around an operator; the operator by interned names on the sequence's own track.
  trace += TrackEventPacket(6'000, Number(9, 1) + Text(22, "step") + Text(23, "ProfilerStep#4"));
  trace += TrackEventPacket(6'100, Number(3, 1) + Number(9, 1) + Number(10, 1) +
                                       Message(4, Number(1, 1) + Number(4, 32)));
  trace += TrackEventPacket(6'400, Number(9, 2));
  trace += TrackEventPacket(6'500, Number(9, 3) + Text(22, "cpu_op") + Text(23, "mark"));
  trace += TrackEventPacket(7'000, Number(9, 2));
  trace += TrackEventPacket(6'700, Number(9, 4) + Number(11, kCounterTrack) + Number(30, 3));
  // Of the older form, complete.
  trace += TrackEventPacket(6'800, Text(23, "old") + Message(6, Number(2, 'X') + Number(3, 2)));
  // A packet of another kind.
  trace += Packet(Number(8, 1) + Message(2, "abc"));
  return trace;
}

TEST(PerfettoImportTest, TrackEventsBecomeSlicesStepsAndMetrics) {
  const std::string bytes = ExamplePerfetto();
  EXPECT_TRUE(LooksLikePerfetto(bytes));
  RecordingSink sink;
  {
    TraceSource source(&sink, "a.pftrace", 2);
    ASSERT_TRUE(ImportPerfetto(bytes, &source).ok());
  }
  EXPECT_EQ(sink.losses, 0U);
  EXPECT_EQ(sink.counters["left_out"], 1U);
  ASSERT_EQ(sink.slices.size(), 4U);
  const auto forward = sink.Named("forward");
  EXPECT_EQ(forward.category, "op");
  EXPECT_EQ(forward.kind, "cpu_op");
  EXPECT_EQ(forward.time_ns, kWallNs + 1'100) << "by the wall clock";
  EXPECT_EQ(forward.duration_ns, 300);
  EXPECT_EQ(forward.pid, 77);
  EXPECT_EQ(forward.tid, 78);
  EXPECT_EQ(forward.lane, "thread 78 (main)");
  EXPECT_EQ(forward.args, R"({"rows":32})");
  EXPECT_EQ(forward.step, 4);
  EXPECT_EQ(forward.rank, 2);
  EXPECT_EQ(sink.Named("mark").duration_ns, 0);
  EXPECT_EQ(sink.Named("old").duration_ns, 2'000);
  EXPECT_EQ(sink.Named("ProfilerStep#4").category, "step");
  ASSERT_EQ(sink.steps.size(), 1U);
  EXPECT_EQ(sink.steps[0].step, 4);
  ASSERT_EQ(sink.metrics.size(), 1U);
  EXPECT_EQ(sink.metrics[0].name, "batch bytes");
  EXPECT_EQ(sink.metrics[0].value, 3 * 1024);
  EXPECT_EQ(sink.metrics[0].unit, "bytes");
}

TEST(PerfettoImportTest, ClocksThatCountFromPacketToPacket) {
  std::string trace;
  // Clock 64 of the sequence counts microseconds from one packet to the next, from 10 000 ns on.
  const std::string counted =
      Message(1, Number(1, 64) + Number(2, 0) + Number(3, 1) + Number(4, 1'000));
  trace += Packet(Number(10, 9) + Message(6, counted + Clock(6, 10'000)));
  const auto event = [](std::uint64_t delta, const std::string& fields) {
    return Packet(Number(8, delta) + Number(10, 9) + Number(58, 64) + fields);
  };
  trace += event(5, Message(11, Number(9, 3) + Text(23, "a")));
  trace += event(2, "");  // Counts, though it has no event.
  trace += event(3, Message(11, Number(9, 3) + Text(23, "b")));
  RecordingSink sink;
  {
    TraceSource source(&sink, "a", 0);
    ASSERT_TRUE(ImportPerfetto(trace, &source).ok());
  }
  EXPECT_EQ(sink.Named("a").time_ns, 15'000);
  EXPECT_EQ(sink.Named("b").time_ns, 20'000);
}

TEST(PerfettoImportTest, WhatHasNoEndIsCounted) {
  std::string trace;
  trace += TrackEventPacket(1'000, Number(9, 2));                     // Ends nothing.
  trace += TrackEventPacket(2'000, Number(9, 1) + Text(23, "open"));  // Never ends.
  trace += TrackEventPacket(3'000, Number(9, 1) + Text(23, "inner"));
  trace += TrackEventPacket(2'500, Number(9, 2));  // Before it began.
  RecordingSink sink;
  {
    TraceSource source(&sink, "a", 0);
    ASSERT_TRUE(ImportPerfetto(trace, &source).ok());
  }
  EXPECT_TRUE(sink.slices.empty());
  EXPECT_EQ(sink.counters["damaged"], 3U);
}

TEST(PerfettoImportTest, DamagedBytesAreNeverReadBeyond) {
  TryDamaged(ExamplePerfetto(), [](std::string_view bytes, TraceSource* source) {
    static_cast<void>(LooksLikePerfetto(bytes));
    static_cast<void>(ImportPerfetto(bytes, source));
  });
}

}  // namespace
}  // namespace telltale::interchange
