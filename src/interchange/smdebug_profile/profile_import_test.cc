// SPDX-License-Identifier: Apache-2.0
#include "interchange/smdebug_profile/profile_import.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "interchange/json_scan.h"
#include "interchange/recording_sink.h"
#include "interchange/smdebug_profile/profile_files.h"
#include "interchange/smdebug_profile/system_metrics.h"
#include "interchange/smdebug_profile/timeline.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;

const fs::path kShared = fs::path(TELLTALE_SOURCE_DIR) / ".." / "shared" / "data" / "smdebug";

class SmdebugProfileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("telltale-smprof-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  Status Import(const fs::path& path, RecordingSink* sink) {
    auto file = LookAtFile(path);
    EXPECT_TRUE(file.ok()) << file.status().message();
    if (!file.ok()) return file.status();
    EXPECT_TRUE(DetectSmdebugProfile(*file) || DetectHorovod(*file));
    return DetectHorovod(*file) && !DetectSmdebugProfile(*file)
               ? ImportHorovod(std::span(&*file, 1), {}, sink)
               : ImportSmdebugProfile(std::span(&*file, 1), {}, sink);
  }

  fs::path folder_;
};

std::string MetricLine(const std::string& type, const std::string& name,
                       const std::string& dimension, double value, const std::string& time) {
  return R"({"Type": ")" + type + R"(", "Name":")" + name + R"(", "Dimension": ")" + dimension +
         R"(", "Value":)" + std::to_string(value) + R"(,"NodeId":"algo-1","Timestamp":)" + time +
         "}\n";
}

TEST_F(SmdebugProfileTest, SystemMetricsHaveTheNamesThatRulesAskFor) {
  std::string text;
  for (const char* const time : {"1700000040.25", "1700000040.75"}) {
    text += MetricLine("cpu", "cpu0", "CPUUtilization", 80, time);
    text += MetricLine("cpu", "cpu0", "I/OWaitPercentage", 10, time);
    text += MetricLine("cpu", "cpu1", "CPUUtilization", 20, time);
    text += MetricLine("gpu", "gpu3", "GPUUtilization", 55, time);
    text += MetricLine("gpu", "gpu3", "GPUMemoryUtilization", 44, time);
    text += MetricLine("memory", "MemoryUsedPercent", "", 12, time);
    text += MetricLine("i/o", "ReadThroughputInBytesPerSecond", "", 1e6, time);
    text += MetricLine("network", "ReceiveBytesPerSecond", "Algorithm", 2e6, time);
    text += MetricLine("odd", "thing", "Strangeness", 7, time);
  }
  store::MetricBlock block;
  SystemMetrics metrics(&block);
  metrics.Read(text);
  EXPECT_EQ(metrics.damaged(), 0U);
  EXPECT_EQ(metrics.read(), 18U);
  std::map<std::string, double> last;
  for (std::size_t i = 0; i < block.rows(); ++i) {
    const store::MetricSeries& series = block.names[block.series[i]];
    EXPECT_EQ(series.node, "algo-1");
    if (block.time_ns[i] == 1'700'000'040'750'000'000) {
      last[series.subject + " " + series.name + " " + series.unit] = block.value[i];
    }
  }
  const std::map<std::string, double> expected = {
      {"cpu:0 cpu.idle percent", 10},
      {"cpu:0 cpu.iowait percent", 10},
      {"cpu:1 cpu.idle percent", 80},
      {"node cpu.busy percent", 50},
      {"node cpu.iowait percent", 10},
      {"node cpu.idle percent", 40},
      {"gpu:3 gpu.utilization percent", 55},
      {"gpu:3 gpu.memory_percent percent", 44},
      {"node mem.used_percent percent", 12},
      {"disk:all disk.read_bytes_rate bytes/s", 1e6},
      {"net:algorithm net.recv_bytes_rate bytes/s", 2e6},
      {"thing smdebug.odd.Strangeness ", 7}};
  EXPECT_EQ(last, expected);
}

TEST_F(SmdebugProfileTest, ALineThatIsCutCostsItselfAlone) {
  const std::string line = MetricLine("gpu", "gpu0", "GPUUtilization", 55, "1700000040.25");
  store::MetricBlock block;
  SystemMetrics metrics(&block);
  metrics.Read(line + line.substr(0, 40) + "\n" + line + line.substr(0, 70));
  EXPECT_EQ(block.rows(), 2U);
  EXPECT_EQ(metrics.damaged(), 2U);
}

/// What was read, a text a sample.
std::vector<std::string> Samples(const store::MetricBlock& block) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < block.rows(); ++i) {
    const store::MetricSeries& series = block.names[block.series[i]];
    out.push_back(series.node + " " + series.subject + " " + series.name + " " +
                  std::to_string(block.time_ns[i]) + " " + std::to_string(block.value[i]));
  }
  return out;
}

/// One of a GPU or, of an odd series, of a core, in one of several forms: the numbers among the
/// words, before them, behind others of their name, as strings.
std::string LineOfForm(std::size_t form, std::size_t series, const std::string& value,
                       const std::string& time) {
  const std::string type = series % 2 == 1 ? "cpu" : "gpu";
  const std::string name =
      R"("Type": ")" + type + R"(", "Name": ")" + type + std::to_string(series / 2) + '"';
  const std::string rest = R"("Dimension": ")" +
                           std::string(series % 2 == 1 ? "CPUUtilization" : "GPUUtilization") +
                           R"(", "NodeId": "algo-1")";
  switch (form) {
    case 0:
      return "{" + name + R"(, "Value": )" + value + ", " + rest + R"(, "Timestamp": )" + time +
             "}\n";
    case 1:
      return R"({"Timestamp":)" + time + R"(,"Value":)" + value + "," + name + "," + rest + "}\n";
    case 2:
      return R"({"Value": 1, "Timestamp": 3, )" + name + R"(, "Value": )" + value + " , " + rest +
             R"(, "Timestamp": )" + time + R"( , "More": [1, {"Value": 3}]})" + "\n";
    default:
      return R"({"Value": ")" + value + R"(", "Timestamp" : ")" + time + "\", " + name + ", " +
             rest + "}\n";
  }
}

TEST_F(SmdebugProfileTest, LinesLikeThoseBeforeAreReadAsIfTheyWereTheFirst) {
  std::mt19937 dice(7);
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(dice() % end); };
  const std::vector<std::string> values = {"0", ".72", "-1.5e3", "nan", "1e999", "007", "\"8\"",
                                           "",  "-",   "+1",     "inf", "1 ",    "{}",  "null"};
  const std::vector<std::string> times = {"9223372036854775807", "", ".5e3", "-1", "1e9", "1."};
  const std::string strange = R"({}[]",:0 .e-n)";
  for (int round = 0; round < 300; ++round) {
    const std::size_t form = below(4);
    std::string files[2];
    std::vector<std::string> alone;
    std::uint64_t damaged = 0;
    for (std::size_t at = 0; at < 60; ++at) {
      const std::size_t other = below(20) == 0 ? below(4) : form;
      const std::size_t series = below(10) == 0 ? below(8) : at % 6;
      const std::string value = below(5) == 0 ? values[below(values.size())] : "6.72";
      const std::string time = below(10) == 0 ? times[below(times.size())]
                                              : "170000004" + std::to_string(at / 6) + ".25";
      std::string text = LineOfForm(other, series, value, time);
      if (below(6) == 0) {
        const std::size_t where = below(text.size() - 1);
        text[where] = strange[below(strange.size())];
      }
      if (below(10) == 0) text.erase(below(text.size() - 1), 1);
      files[at / 30] += text;
      store::MetricBlock block;
      SystemMetrics metrics(&block);
      metrics.Read(text);
      damaged += metrics.damaged();
      for (std::string& sample : Samples(block)) alone.push_back(std::move(sample));
    }
    store::MetricBlock block;
    SystemMetrics metrics(&block);
    // Of the first nothing is left when the second is read.
    for (const std::string& file : files) metrics.Read(std::string(file));
    std::vector<std::string> together = Samples(block);
    // What is computed over the cores of one time belongs to no line of theirs.
    for (auto* const samples : {&together, &alone}) {
      std::erase_if(*samples, [](const std::string& sample) {
        return sample.find(" gpu.utilization ") == std::string::npos;
      });
    }
    ASSERT_EQ(together, alone) << files[0] << files[1];
    EXPECT_EQ(metrics.damaged(), damaged) << files[0] << files[1];
  }
}

TEST_F(SmdebugProfileTest, CoresAreSummedUpWhetherOrNotALineIsLikeThoseBefore) {
  std::string alike;
  std::string unlike;
  for (std::size_t at = 0; at < 30; ++at) {
    const std::string time = "170000004" + std::to_string(at / 3) + ".25";
    const std::string value = std::to_string(at) + ".5";
    alike += LineOfForm(0, at % 3 * 2 + 1, value, time);
    unlike += LineOfForm(at % 2 == 0 ? 0 : 3, at % 3 * 2 + 1, value, time);
  }
  store::MetricBlock one;
  SystemMetrics(&one).Read(alike);
  store::MetricBlock other;
  SystemMetrics(&other).Read(unlike);
  EXPECT_EQ(Samples(one).size(), 10U * (3 + 2)) << "idle of each core, busy and idle of the node";
  EXPECT_EQ(Samples(one), Samples(other));
}

constexpr const char* kTimeline = R"([
{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1700000000000000}},
{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Step:ModeKeys.TRAIN"}},
{"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "gpu_functions-dev:2"}},
{"name": "process_name", "ph": "M", "pid": 3, "args": {"name": "DataLoaderIter"}},
{"name": "Step:ModeKeys.TRAIN", "pid": 1, "ph": "X", "ts": 1000, "dur": 500, "args": {"pid": 97, "step_num": "3"}},
{"name": "Memcpy HtoD", "pid": 2, "ph": "X", "ts": 1100.5, "dur": 20, "args": {"pid": 97, "tid": 5, "device": "2"}},
{"name": "DataLoaderIter::GetNext", "pid": 3, "ph": "X", "ts": 1600, "dur": 300, "args": {"pid": 97, "bytes_fetched": 77}},
{"name": "Step:ModeKeys.TRAIN", "pid": 1, "ph": "X", "ts": 2000, "dur": 500, "args": {"pid": 97, "step_num": "4"}}
]
)";

TEST_F(SmdebugProfileTest, TimelinesBecomeSlicesAndSteps) {
  Write("framework/pevents/2023111422/1700000001000000_0-algo-1_pythontimeline.json", kTimeline);
  Write("system/incremental/2023111422/1700000040.algo-1.json",
        MetricLine("gpu", "gpu0", "GPUUtilization", 55, "1700000040.25"));
  Write("framework/readme.txt", "nothing");
  RecordingSink sink;
  const Status status = Import(folder_, &sink);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(sink.losses, 0U);
  EXPECT_EQ(sink.counters["left_out_files"], 1U);
  ASSERT_EQ(sink.slices.size(), 4U);
  const auto copy = sink.Named("Memcpy HtoD");
  EXPECT_EQ(copy.category, "memcpy");
  EXPECT_EQ(copy.kind, "gpu_functions-dev:2");
  EXPECT_EQ(copy.device, 2);
  EXPECT_EQ(copy.stream, 5);
  EXPECT_EQ(copy.time_ns, 1'700'000'000'001'100'500);
  EXPECT_EQ(copy.step, 3) << "it lies in the step";
  EXPECT_EQ(copy.args, R"({"device":"2"})");
  const auto fetch = sink.Named("DataLoaderIter::GetNext");
  EXPECT_EQ(fetch.category, "data");
  EXPECT_EQ(fetch.bytes, 77);
  EXPECT_EQ(fetch.pid, 97);
  ASSERT_EQ(sink.steps.size(), 2U);
  EXPECT_EQ(sink.steps[0].step, 3);
  EXPECT_EQ(sink.steps[0].mode, "TRAIN");
  EXPECT_EQ(sink.steps[0].duration_ns, 1'000'000) << "until the next begins";
  EXPECT_EQ(sink.steps[0].data_wait_ns, 300'000);
  EXPECT_EQ(sink.steps[0].other_ns, 700'000);
  ASSERT_EQ(sink.metrics.size(), 1U);
  EXPECT_EQ(sink.metrics[0].name, "gpu.utilization");
}

TEST_F(SmdebugProfileTest, SmallFilesShareSegmentsInTheOrderOfTheirTimes) {
  constexpr int kFiles = 40;
  for (int i = 0; i < kFiles; ++i) {
    const std::string time = std::to_string(1'700'000'001 + i);
    for (const char* const node : {"0-algo-1", "1-algo-2"}) {
      Write("framework/pevents/2023111422/" + time + "000000_" + node + "_pythontimeline.json",
            kTimeline);
    }
    Write("system/incremental/2023111422/" + time + ".algo-1.json",
          MetricLine("gpu", "gpu0", "GPUUtilization", i, time));
  }
  RecordingSink sink;
  ASSERT_TRUE(Import(folder_, &sink).ok());
  ASSERT_EQ(sink.slices.size(), 2U * kFiles * 4U);
  ASSERT_EQ(sink.metrics.size(), std::size_t{kFiles});
  EXPECT_EQ(sink.blocks, 3U) << "one a rank, and one of samples";
  EXPECT_EQ(sink.steps.size(), 4U) << "the same two of each rank in all files";
  for (std::size_t i = 0; i < kFiles; ++i) {
    EXPECT_EQ(sink.metrics[i].value, static_cast<double>(i));
    const std::string time = std::to_string(1'700'000'001 + i);
    for (const std::size_t rank : {0U, 1U}) {
      const auto& copy = sink.slices[(rank * kFiles + i) * 4 + 1];
      EXPECT_EQ(copy.rank, static_cast<std::int32_t>(rank));
      EXPECT_EQ(copy.name, "Memcpy HtoD");
      EXPECT_EQ(copy.args, R"({"device":"2"})");
      EXPECT_NE(copy.window.find(time), std::string::npos) << copy.window;
    }
  }
}

TEST_F(SmdebugProfileTest, NodesAreRanks) {
  const auto file = [](const std::string& node) {
    return ClassifyProfileFile("f/1_" + node + "_pythontimeline.json", "x");
  };
  EXPECT_EQ(file("0-algo-1").node, "0-algo-1");
  EXPECT_EQ(file("4487_0000").node, "4487_0000");
  const std::map<std::string, std::int32_t> ranks = {
      {"0-algo-1", 0}, {"1-algo-1", 1}, {"2-algo-2", 2}};
  EXPECT_EQ(RanksOfNodes({file("1-algo-1"), file("0-algo-1"), file("2-algo-2")}), ranks);
  // Process ids, by host.
  const std::map<std::string, std::int32_t> processes = {{"97-algo-2", 1}, {"4711-algo-1", 0}};
  EXPECT_EQ(RanksOfNodes({file("97-algo-2"), file("4711-algo-1")}), processes);
}

TEST_F(SmdebugProfileTest, RealFilesOfSmdebugImport) {
  if (!fs::exists(kShared)) GTEST_SKIP() << "no real files here: " << kShared;
  RecordingSink traces;
  ASSERT_TRUE(Import(kShared / "test_traces", &traces).ok());
  EXPECT_EQ(traces.losses, 0U);
  EXPECT_EQ(traces.slices.size(), 4U);
  EXPECT_EQ(traces.Named("event1").step, 1);
  EXPECT_EQ(traces.Named("event1").time_ns, 1'589'930'988'663'519'000);
  EXPECT_EQ(traces.Named("event1").duration_ns, 1'000'000'000);
  EXPECT_GT(traces.metrics.size(), 60U);

  RecordingSink model;
  ASSERT_TRUE(Import(kShared / "model_timeline_traces", &model).ok());
  EXPECT_EQ(model.losses, 0U);
  EXPECT_EQ(model.Named("dataset::GetNext").category, "data");
  EXPECT_EQ(model.Named("kAllReduce").category, "comm");

  RecordingSink cut;
  ASSERT_TRUE(Import(kShared / "1591160699.algo-1.json.corrupt", &cut).ok());
  EXPECT_EQ(cut.counters["damaged"], 1U) << "the line that is cut in the middle";
  EXPECT_GT(cut.metrics.size(), 7U);

  RecordingSink horovod;
  ASSERT_TRUE(Import(kShared / "horovod_timeline_small.json", &horovod).ok());
  EXPECT_GT(horovod.slices.size(), 20U);
  const auto negotiate = horovod.Named("NEGOTIATE_ALLREDUCE");
  EXPECT_EQ(negotiate.category, "comm");
  EXPECT_GT(negotiate.duration_ns, 0);
  EXPECT_NE(negotiate.kind.find("HorovodAllreduce"), std::string::npos) << "the tensor";
}

TEST_F(SmdebugProfileTest, DamagedTextIsNeverReadBeyond) {
  TryDamaged(kTimeline, [](std::string_view text, TraceSource* source) {
    const Timeline read = ReadTimeline(text, {.window = "w"}, [&](store::SliceBlock* block) {
      source->sink()->Put(0, {}, *block);
    });
    EXPECT_LE(read.slices, 4U);
    static_cast<void>(ReadTimelineSteps(text));
  });
  const std::string line = MetricLine("cpu", "cpu0", "CPUUtilization", 80, "1700000040.25");
  TryDamaged(line + line + line, [](std::string_view text, TraceSource* source) {
    static_cast<void>(source);
    store::MetricBlock block;
    SystemMetrics(&block).Read(text);
  });
}

TEST(JsonScanTest, NumbersAreExact) {
  const auto scaled = [](std::string_view text, int digits) {
    return JsonValue{JsonValue::Kind::kNumber, text, false}.Scaled(digits);
  };
  EXPECT_EQ(scaled("1591160699.4570894", 6), 1'591'160'699'457'089);
  EXPECT_EQ(scaled("12", 3), 12'000);
  EXPECT_EQ(scaled("-1.5", 3), -1'500);
  EXPECT_EQ(scaled("1e3", 3), 1'000'000);
  EXPECT_EQ(scaled("99999999999999999999", 3), std::nullopt);
  EXPECT_EQ(scaled("1.2.3", 3), std::nullopt);
  EXPECT_EQ(scaled("", 3), std::nullopt);
  EXPECT_EQ(scaled("1700000040.2", 6), 1'700'000'040'200'000);
  EXPECT_EQ(scaled("9223372036854775807", 0), INT64_MAX);
  EXPECT_EQ(scaled("123456789012345.678", 3), 123'456'789'012'345'678);
  EXPECT_EQ(scaled("1234567890123456789", 3), std::nullopt);
}

TEST(JsonScanTest, StringsOfAnyLengthEndWhereTheyDo) {
  for (std::size_t length = 0; length < 70; ++length) {
    const std::string plain(length, 'x');
    std::string escaped = plain;
    escaped += R"(\")";
    escaped += plain;
    std::string text = "{\"";
    text += plain;
    text += "\":\"";
    text += escaped;
    text += "\"}";
    JsonScanner scanner(text);
    ASSERT_TRUE(scanner.FindObject());
    EXPECT_TRUE(scanner.ReadObject([&](std::string_view key, const JsonValue& value) {
      EXPECT_EQ(key, plain);
      EXPECT_EQ(value.text, escaped);
      EXPECT_TRUE(value.escaped);
    }));
    JsonScanner cut(std::string_view(text).substr(0, text.size() - 2));
    ASSERT_TRUE(cut.FindObject());
    EXPECT_FALSE(cut.ReadObject([](std::string_view, const JsonValue&) {}));
  }
}

TEST(JsonScanTest, EscapesAreReplaced) {
  std::string scratch;
  const JsonValue value{JsonValue::Kind::kString, R"(a\"b\u00e9\n\ud83d\ude00)", true};
  EXPECT_EQ(JsonUnescape(value, &scratch), "a\"b\xC3\xA9\n\xF0\x9F\x98\x80");
}

}  // namespace
}  // namespace telltale::interchange
