// SPDX-License-Identifier: Apache-2.0
#include "interchange/xspace_import.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <protozero/pbf_writer.hpp>
#include <string>

#include "interchange/recording_sink.h"

namespace telltale::interchange {
namespace {

using protozero::pbf_writer;

constexpr std::int64_t kStartNs = 1'700'000'000'000'000'000;

/// A plane in the order in which protocol buffers are written: lines before the names they use.
class PlaneBuilder {
 public:
  explicit PlaneBuilder(const std::string& name) { plane_.add_string(2, name); }

  int Name(const std::string& name, const std::string& display = "") {
    std::string metadata;
    pbf_writer value(metadata);
    value.add_int64(1, ++names_);
    value.add_string(2, name);
    if (!display.empty()) value.add_string(4, display);
    Entry(4, names_, metadata);
    return names_;
  }
  int Stat(const std::string& name) {
    std::string metadata;
    pbf_writer value(metadata);
    value.add_int64(1, ++stats_);
    value.add_string(2, name);
    Entry(5, stats_, metadata);
    return stats_;
  }
  void Line(std::int64_t id, const std::string& name, std::int64_t timestamp_ns,
            const std::vector<std::string>& events) {
    std::string line;
    pbf_writer writer(line);
    writer.add_int64(1, id);
    writer.add_string(2, name);
    writer.add_int64(3, timestamp_ns);
    for (const std::string& event : events) writer.add_message(4, event);
    plane_.add_message(3, line);
  }
  void PlaneStat(const std::string& stat) { plane_.add_message(6, stat); }
  std::string Finish() {
    for (const auto& [field, entry] : entries_) plane_.add_message(field, entry);
    return bytes_;
  }

 private:
  void Entry(std::uint32_t field, int key, const std::string& value) {
    std::string entry;
    pbf_writer writer(entry);
    writer.add_int64(1, key);
    writer.add_message(2, value);
    entries_.emplace_back(field, entry);
  }
  std::string bytes_;
  pbf_writer plane_{bytes_};
  std::vector<std::pair<std::uint32_t, std::string>> entries_;
  int names_ = 0;
  int stats_ = 0;
};

std::string IntStat(int name, std::int64_t value) {
  std::string bytes;
  pbf_writer stat(bytes);
  stat.add_int64(1, name);
  stat.add_int64(4, value);
  return bytes;
}
std::string TextStat(int name, const std::string& value) {
  std::string bytes;
  pbf_writer stat(bytes);
  stat.add_int64(1, name);
  stat.add_string(5, value);
  return bytes;
}
std::string XEvent(int name, std::int64_t offset_ps, std::int64_t duration_ps,
                   const std::vector<std::string>& stats = {}) {
  std::string bytes;
  pbf_writer event(bytes);
  event.add_int64(1, name);
  event.add_int64(2, offset_ps);
  event.add_int64(3, duration_ps);
  for (const std::string& stat : stats) event.add_message(4, stat);
  return bytes;
}

std::string Space(const std::vector<std::string>& planes) {
  std::string bytes;
  pbf_writer space(bytes);
  for (const std::string& plane : planes) space.add_message(1, plane);
  space.add_string(4, "worker-0");
  return bytes;
}

std::string ExampleSpace() {
  PlaneBuilder host("/host:CPU");
  const int step_num = host.Stat("step_num");
  const int root = host.Stat("_r");
  const int correlation = host.Stat("correlation_id");
  const int train = host.Name("train");
  const int op = host.Name("dense/MatMul:MatMul");
  const int next = host.Name("IteratorGetNext");
  const int launch = host.Name("cuLaunchKernel");
  host.Line(4711, "python", 1'000,
            {XEvent(train, 0, 10'000'000, {IntStat(step_num, 7), IntStat(root, 1)}),
             XEvent(next, 1'000'000, 2'000'000), XEvent(op, 4'000'000, 1'000'000),
             XEvent(launch, 5'000'000, 500'000, {IntStat(correlation, 99)})});
  PlaneBuilder device("/device:GPU:1");
  const int device_correlation = device.Stat("correlation_id");
  const int copy = device.Stat("memcpy_details");
  const int gemm = device.Name("void gemm(...)", "gemm");
  const int h2d = device.Name("MemcpyH2D");
  device.Line(
      7, "Stream #7(Compute)", 1'000,
      {XEvent(gemm, 6'000'000, 3'000'000, {IntStat(device_correlation, 99)}),
       XEvent(h2d, 2'000'000, 1'000'000, {TextStat(copy, "kind_src:pageable size:4096 async:0")})});
  device.Line(100, "TensorFlow Ops", 1'000, {XEvent(gemm, 6'000'000, 3'000'000)});
  PlaneBuilder task("Task Environment");
  const int start = task.Stat("profile_start_time");
  task.PlaneStat(IntStat(start, kStartNs));
  return Space({host.Finish(), device.Finish(), task.Finish()});
}

TEST(XSpaceImportTest, HostAndDeviceLinesBecomeSlicesByTheWallClock) {
  const std::string bytes = ExampleSpace();
  EXPECT_TRUE(LooksLikeXSpace(bytes));
  RecordingSink sink;
  {
    TraceSource source(&sink, "a.xplane.pb", 0);
    ASSERT_TRUE(ImportXSpace(bytes, &source).ok());
  }
  EXPECT_EQ(sink.losses, 0U);
  ASSERT_EQ(sink.slices.size(), 7U);
  const auto train = sink.Named("train");
  EXPECT_EQ(train.category, "step");
  EXPECT_EQ(train.step, 7);
  EXPECT_EQ(train.time_ns, kStartNs + 1'000);
  EXPECT_EQ(train.duration_ns, 10'000);
  EXPECT_EQ(train.tid, 4711);
  EXPECT_EQ(train.device, -1);
  const auto op = sink.Named("dense/MatMul:MatMul");
  EXPECT_EQ(op.category, "op");
  EXPECT_EQ(op.step, 7) << "it lies in the step";
  EXPECT_EQ(sink.Named("IteratorGetNext").category, "data");
  const auto launch = sink.Named("cuLaunchKernel");
  EXPECT_EQ(launch.category, "runtime");
  const auto gemm = sink.Named("gemm");
  EXPECT_EQ(gemm.category, "kernel");
  EXPECT_EQ(gemm.correlation, launch.correlation);
  EXPECT_EQ(gemm.device, 1);
  EXPECT_EQ(gemm.stream, 7);
  EXPECT_EQ(gemm.args, "{\"name\":\"void gemm(...)\"}");
  const auto copy = sink.Named("MemcpyH2D");
  EXPECT_EQ(copy.category, "memcpy");
  EXPECT_EQ(copy.bytes, 4096);
  EXPECT_EQ(sink.slices.back().category, "device_annotation");
  ASSERT_EQ(sink.steps.size(), 1U);
  EXPECT_EQ(sink.steps[0].step, 7);
  EXPECT_EQ(sink.steps[0].data_wait_ns, 2'000);
  EXPECT_EQ(sink.steps[0].other_ns, 8'000);
}

TEST(XSpaceImportTest, AnEventThatIsDamagedCostsItselfAlone) {
  PlaneBuilder host("/host:CPU");
  const int name = host.Name("work");
  host.Line(1, "main", kStartNs,
            {XEvent(name, 0, 1'000), XEvent(99, 0, 1'000), XEvent(name, 5'000, -1),
             std::string("\x08\x01\x12", 3), XEvent(name, 9'000, 1'000)});
  RecordingSink sink;
  {
    TraceSource source(&sink, "a", 0);
    ASSERT_TRUE(ImportXSpace(Space({host.Finish()}), &source).ok());
  }
  EXPECT_EQ(sink.slices.size(), 2U);
  EXPECT_EQ(sink.counters["damaged"], 3U);
}

TEST(XSpaceImportTest, ACutFileGivesWhatStandsBeforeTheCut) {
  const std::string bytes = ExampleSpace();
  RecordingSink sink;
  {
    TraceSource source(&sink, "a", 0);
    // Within the second plane, whose names are behind its lines: those of the host are all there.
    ASSERT_TRUE(
        ImportXSpace(std::string_view(bytes).substr(0, bytes.size() * 6 / 10), &source).ok());
  }
  EXPECT_GE(sink.slices.size(), 4U);
  EXPECT_GT(sink.losses, 0U);
}

TEST(XSpaceImportTest, AFileThatWentThroughATextProgramGivesWhatIsWhole) {
  const std::filesystem::path path = std::filesystem::path(TELLTALE_SOURCE_DIR) / ".." / "shared" /
                                     "data" / "xprof" / "tpu_inference_2.xplane.pb";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no real file here: " << path;
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(LooksLikeXSpace(std::string_view(bytes).substr(0, 65536)));
  RecordingSink sink;
  {
    TraceSource source(&sink, "tpu", 0);
    const Status status = ImportXSpace(bytes, &source);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  EXPECT_FALSE(sink.slices.empty());
  EXPECT_GT(sink.counters["damaged"], 20'000U);
  for (const auto& slice : sink.slices) EXPECT_FALSE(slice.name.empty());
}

TEST(XSpaceImportTest, DamagedBytesAreNeverReadBeyond) {
  TryDamaged(ExampleSpace(), [](std::string_view bytes, TraceSource* source) {
    static_cast<void>(LooksLikeXSpace(bytes));
    static_cast<void>(ImportXSpace(bytes, source));
  });
}

}  // namespace
}  // namespace telltale::interchange
