// SPDX-License-Identifier: Apache-2.0
#include "interchange/tfprof_import.h"

#include <gtest/gtest.h>

#include <protozero/pbf_writer.hpp>
#include <string>

#include "interchange/recording_sink.h"
#include "interchange/xspace_import.h"

namespace telltale::interchange {
namespace {

using protozero::pbf_writer;

template <class Key>
std::string MapOf(const Key& key, const std::string& value) {
  std::string bytes;
  pbf_writer entry(bytes);
  if constexpr (std::is_integral_v<Key>) {
    entry.add_int64(1, key);
  } else {
    entry.add_string(1, key);
  }
  entry.add_message(2, value);
  return bytes;
}

std::string Tuple(std::initializer_list<std::int64_t> values) {
  std::string bytes;
  pbf_writer(bytes).add_packed_int64(1, values.begin(), values.end());
  return bytes;
}
std::string Times(std::initializer_list<std::string> tuples) {
  std::string bytes;
  for (const std::string& tuple : tuples) pbf_writer(bytes).add_message(1, tuple);
  return bytes;
}

std::string Exec(std::int64_t start_us, std::int64_t end_us) {
  std::string memory;
  pbf_writer(memory).add_int64(6, 1000);
  pbf_writer(memory).add_int64(9, 64);
  std::string bytes;
  pbf_writer exec(bytes);
  exec.add_int64(1, 2);
  exec.add_int64(2, start_us);
  exec.add_int64(3, end_us);
  exec.add_message(
      4, MapOf(std::string("/device:GPU:0/stream:all"), Times({Tuple({start_us + 5, 20})})));
  exec.add_message(5, MapOf(std::string("/job:localhost/replica:0/task:0/device:GPU:0"),
                            Times({Tuple({start_us + 1, 3}), Tuple({start_us + 30, 4})})));
  exec.add_message(7, memory);
  return bytes;
}

std::string ExampleProfile() {
  std::string trace;
  pbf_writer(trace).add_int64(2, 12);
  pbf_writer(trace).add_int64(6, 1);
  pbf_writer(trace).add_int64(7, 2);
  std::string inner;
  pbf_writer(inner).add_int64(2, 30);
  pbf_writer(inner).add_int64(6, 1);
  pbf_writer(inner).add_int64(7, 3);
  std::string code;
  pbf_writer(code).add_message(1, trace);
  pbf_writer(code).add_message(1, inner);
  std::string node;
  pbf_writer writer(node);
  writer.add_string(1, "layer/MatMul");
  writer.add_int64(8, 2'000'000);
  writer.add_string(9, "MatMul");
  writer.add_message(10, code);
  writer.add_message(12, MapOf(std::int64_t{3}, Exec(1'000'000, 1'000'100)));
  writer.add_message(12, MapOf(std::int64_t{4}, Exec(1'000'200, 1'000'260)));
  writer.add_message(16, MapOf(std::int64_t{1}, Tuple({8, 4})));
  std::string bytes;
  pbf_writer profile(bytes);
  profile.add_message(1, MapOf(std::int64_t{0}, node));
  const std::string texts[] = {"train.py", "main", "build"};
  for (int i = 0; i < 3; ++i) profile.add_message(4, MapOf(std::int64_t{i + 1}, texts[i]));
  return bytes;
}

TEST(TfprofImportTest, OperatorsAreSlicesOfTheStepsTheyRanIn) {
  const std::string bytes = ExampleProfile();
  EXPECT_TRUE(LooksLikeTfprof(bytes));
  EXPECT_FALSE(LooksLikeXSpace(bytes));
  RecordingSink sink;
  {
    TraceSource source(&sink, "profile_100", 0);
    ASSERT_TRUE(ImportTfprof(bytes, &source).ok());
  }
  EXPECT_EQ(sink.losses, 0U);
  ASSERT_EQ(sink.slices.size(), 2U * 3U + 2U) << "two steps of three runs, and the steps";
  int kernels = 0;
  for (const auto& slice : sink.slices) {
    if (slice.category != "kernel") continue;
    ++kernels;
    EXPECT_EQ(slice.device, 0);
    EXPECT_EQ(slice.name, "layer/MatMul");
  }
  EXPECT_EQ(kernels, 2);
  const auto& host = *std::find_if(sink.slices.begin(), sink.slices.end(),
                                   [](const auto& slice) { return slice.category == "op"; });
  EXPECT_EQ(host.step, 3);
  EXPECT_EQ(host.kind, "MatMul");
  EXPECT_EQ(host.time_ns, 1'000'001'000);
  EXPECT_EQ(host.duration_ns, 3'000);
  EXPECT_EQ(host.flops, 2e6);
  EXPECT_EQ(host.args, R"({"Input Dims":[[],[8,4]],)"
                       R"("Call stack":"train.py(30): build;train.py(12): main",)"
                       R"("run_count":2,"requested_bytes":1000,"output_bytes":64})");
  ASSERT_EQ(sink.steps.size(), 2U);
  EXPECT_EQ(sink.steps[0].step, 3);
  EXPECT_EQ(sink.steps[0].duration_ns, 200'000) << "until the next begins";
  EXPECT_EQ(sink.steps[1].duration_ns, 60'000);
}

TEST(TfprofImportTest, DamagedBytesAreNeverReadBeyond) {
  TryDamaged(ExampleProfile(), [](std::string_view bytes, TraceSource* source) {
    static_cast<void>(LooksLikeTfprof(bytes));
    static_cast<void>(ImportTfprof(bytes, source));
  });
}

}  // namespace
}  // namespace telltale::interchange
