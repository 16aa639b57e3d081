// SPDX-License-Identifier: Apache-2.0
#include "interchange/step_stats_import.h"

#include <gtest/gtest.h>

#include <protozero/pbf_writer.hpp>
#include <string>

#include "interchange/recording_sink.h"
#include "interchange/tf_device.h"

namespace telltale::interchange {
namespace {

using protozero::pbf_writer;

std::string NodeStats(const std::string& name, const std::string& label, std::int64_t start_us,
                      std::int64_t op_start_us, std::int64_t op_end_us) {
  std::string bytes;
  pbf_writer node(bytes);
  node.add_string(1, name);
  node.add_int64(2, start_us);
  node.add_int64(3, op_start_us);
  node.add_int64(4, op_end_us);
  node.add_int64(5, op_end_us + 1);
  if (!label.empty()) node.add_string(8, label);
  node.add_int64(9, start_us - 2);
  node.add_uint32(10, 33);
  return bytes;
}

std::string WithMemory(std::string node) {
  std::string record;
  pbf_writer(record).add_int64(1, 1'000'020);
  pbf_writer(record).add_int64(2, -512);
  std::string memory;
  pbf_writer writer(memory);
  writer.add_string(1, "GPU_0_bfc");
  writer.add_int64(2, 4096);
  writer.add_int64(3, 8192);
  writer.add_message(6, record);
  pbf_writer(node).add_message(6, memory);
  return node;
}

std::string DeviceStats(const std::string& device, const std::vector<std::string>& nodes) {
  std::string bytes;
  pbf_writer writer(bytes);
  writer.add_string(1, device);
  for (const std::string& node : nodes) writer.add_message(2, node);
  return bytes;
}

std::string Stats() {
  std::string bytes;
  pbf_writer stats(bytes);
  stats.add_message(
      1, DeviceStats("/job:localhost/replica:0/task:0/device:CPU:0",
                     {WithMemory(NodeStats("conv1", "conv1 = Conv2D(x, w)", 1'000'000, 5, 25)),
                      NodeStats("x/_2", "[CPU] x/_2 = _Recv()", 1'000'100, 0, 50)}));
  stats.add_message(
      1, DeviceStats("/device:GPU:0/stream:7", {NodeStats("conv1:Conv2D", "", 1'000'010, 0, 90)}));
  stats.add_message(1, DeviceStats("/device:GPU:0/stream:all",
                                   {NodeStats("conv1:Conv2D", "", 1'000'010, 0, 90)}));
  stats.add_message(1,
                    DeviceStats("/device:GPU:0/memcpy", {NodeStats("copy", "", 1'000'005, 0, 3)}));
  return bytes;
}

std::string RunMetadata() {
  std::string bytes;
  pbf_writer(bytes).add_message(1, Stats());
  return bytes;
}

void CheckStats(const std::string& bytes) {
  RecordingSink sink;
  {
    TraceSource source(&sink, "run_metadata", 0);
    ASSERT_TRUE(ImportStepStats(bytes, &source).ok());
  }
  EXPECT_EQ(sink.losses, 0U);
  EXPECT_EQ(sink.counters["left_out"], 1U) << "stream:all says once more what the streams say";
  ASSERT_EQ(sink.slices.size(), 5U);
  const auto op = sink.Named("conv1");
  EXPECT_EQ(op.category, "op");
  EXPECT_EQ(op.kind, "Conv2D");
  EXPECT_EQ(op.time_ns, 1'000'005'000);
  EXPECT_EQ(op.duration_ns, 20'000);
  EXPECT_EQ(op.tid, 33);
  EXPECT_NE(op.args.find(R"("requested_bytes":4096,"peak_bytes":8192)"), std::string::npos)
      << op.args;
  const auto kernel = sink.Named("conv1:Conv2D");
  EXPECT_EQ(kernel.category, "kernel");
  EXPECT_EQ(kernel.device, 0);
  EXPECT_EQ(kernel.stream, 7);
  EXPECT_EQ(kernel.external, op.external) << "the kernel goes back to its operator";
  EXPECT_NE(op.external, 0);
  EXPECT_EQ(sink.Named("x/_2").category, "comm");
  EXPECT_EQ(sink.Named("copy").category, "memcpy");
  const auto memory = sink.Named("GPU_0_bfc");
  EXPECT_EQ(memory.category, "memory");
  EXPECT_EQ(memory.bytes, -512);
  EXPECT_EQ(memory.time_ns, 1'000'020'000);
}

TEST(StepStatsImportTest, RunMetadataAndItsStepStatsAreTheSame) {
  EXPECT_TRUE(LooksLikeRunMetadata(RunMetadata()));
  EXPECT_FALSE(LooksLikeStepStats(RunMetadata()));
  EXPECT_TRUE(LooksLikeStepStats(Stats()));
  EXPECT_FALSE(LooksLikeRunMetadata(Stats()));
  CheckStats(RunMetadata());
  CheckStats(Stats());
}

TEST(StepStatsImportTest, AnOperatorOfAnImpossibleTimeCostsItselfAlone) {
  std::string bytes;
  pbf_writer(bytes).add_message(
      1, DeviceStats("/device:CPU:0",
                     {NodeStats("a", "", 100, 10, 5), NodeStats("b", "", -5, 0, 1),
                      NodeStats("c", "", INT64_MAX, 0, 1), NodeStats("good", "", 100, 0, 1)}));
  RecordingSink sink;
  {
    TraceSource source(&sink, "a", 0);
    ASSERT_TRUE(ImportStepStats(bytes, &source).ok());
  }
  EXPECT_EQ(sink.slices.size(), 1U);
  EXPECT_EQ(sink.counters["damaged"], 3U);
}

TEST(StepStatsImportTest, DamagedBytesAreNeverReadBeyond) {
  TryDamaged(RunMetadata(), [](std::string_view bytes, TraceSource* source) {
    static_cast<void>(LooksLikeRunMetadata(bytes));
    static_cast<void>(ImportStepStats(bytes, source));
  });
}

TEST(TfDeviceTest, NamesOfDevices) {
  const TfDevice stream = ParseTfDevice("/job:worker/replica:0/task:2/device:GPU:3/stream:14");
  EXPECT_TRUE(stream.on_device);
  EXPECT_EQ(stream.device, 3);
  EXPECT_EQ(stream.stream, 14);
  EXPECT_EQ(stream.task, 2);
  EXPECT_FALSE(stream.all_streams);
  EXPECT_TRUE(ParseTfDevice("/gpu:0/stream:all").all_streams);
  EXPECT_TRUE(ParseTfDevice("/gpu:1/memcpy").copies);
  EXPECT_EQ(ParseTfDevice("/gpu:1/memcpy").device, 1);
  // The host's part of what is placed on a device.
  EXPECT_FALSE(ParseTfDevice("/job:localhost/replica:0/task:0/device:GPU:0").on_device);
  EXPECT_EQ(ParseTfDevice("").device, -1);
}

}  // namespace
}  // namespace telltale::interchange
