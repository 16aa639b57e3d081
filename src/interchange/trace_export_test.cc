// SPDX-License-Identifier: Apache-2.0
// That the tools themselves read the files is shown by tests/interchange/test_export.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "interchange/chrome_export.h"
#include "interchange/perfetto_export.h"
#include "interchange/speedscope_export.h"
#include "interchange/timeline_export.h"
#include "query/slice_testing.h"

namespace telltale::interchange {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using query::SliceRun;

constexpr std::int64_t kBase = 1'700'000'000'000'000'000;

/// A step in which an operator launches a kernel, its backward follows, and a tensor comes and
/// goes.
class TraceExports : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto host = [&](std::string_view category, std::string_view name, std::int64_t begin_us,
                          std::int64_t us) -> format::SliceRow& {
      format::SliceRow& row = run_.Host(category, name, kBase + begin_us * 1000, us * 1000);
      row.step = 4;
      return row;
    };
    host("step", "ProfilerStep#4", 0, 100);
    format::SliceRow& op = host("op", "aten::addmm", 10, 30);
    op.kind = "cpu_op";
    op.flow = 3;
    op.external = 11;
    op.args = R"({"Input Dims": [[4, 2]]})";
    host("runtime", "cudaLaunchKernel", 20, 5).correlation = 9;
    for (const std::int64_t sign : {1, -1}) {
      format::SliceRow& memory = host("memory", "[memory]", sign > 0 ? 22 : 30, 0);
      memory.bytes = 512 * sign;
      memory.args = R"({"Device Type": 1, "Device Id": 0, "Addr": 4096, "Total Allocated": 2048})";
    }
    host("op", "AddmmBackward0", 50, 20).flow = 3;
    format::SliceRow& kernel = run_.Device("sgemm", kBase + 30'000, 40'000);
    kernel.step = 4;
    kernel.correlation = 9;
    // Begins before the other has ended.
    run_.Device("overlapping", kBase + 60'000, 40'000).step = 4;
    format::MetricRow metric;
    metric.ord_ns = metric.time_ns = kBase + 5000;
    metric.node = "host1";
    metric.subject = "node";
    metric.name = "cpu.user";
    metric.unit = "percent";
    metric.value = 12.5;
    run_.rows().metrics.push_back(metric);
    format::ScalarRow loss;
    loss.ord_ns = loss.time_ns = kBase + 99'000;
    loss.name = "loss";
    loss.mode = "TRAIN";
    loss.value = 0.75;
    run_.rows().scalars.push_back(loss);
    format::EventRow event;
    event.ord_ns = event.time_ns = kBase;
    event.kind = "process.start";
    event.message = "it began";
    run_.rows().events.push_back(event);
    run_.Write();
  }

  template <class F>
  std::string Written(F&& write) {
    std::string out;
    const auto file = ExportFile::To([&](std::string_view piece) {
      out += piece;
      return true;
    });
    const auto report = write(file.get());
    EXPECT_TRUE(report.ok()) << report.status().message();
    return out;
  }

  SliceRun run_;
};

TEST_F(TraceExports, ChromeAsKinetoWritesIt) {
  const json trace =
      json::parse(Written([&](ExportFile* file) { return ExportChrome(run_.path(), file); }));
  EXPECT_EQ(trace["baseTimeNanoseconds"], kBase);
  std::map<std::string, json> slices;
  std::map<std::string, int> phases;
  for (const json& event : trace["traceEvents"]) {
    const std::string phase = event["ph"];
    phases[phase + " " + event.value("cat", "")]++;
    if (phase == "X") slices[event["name"]] = event;
  }
  const json& op = slices["aten::addmm"];
  EXPECT_EQ(op["ts"], 10);
  EXPECT_EQ(op["dur"], 30);
  EXPECT_EQ(op["cat"], "cpu_op");
  EXPECT_EQ(op["args"]["External id"], 11);
  EXPECT_EQ(op["args"]["step"], 4);
  EXPECT_EQ(op["args"]["Input Dims"], json::parse("[[4, 2]]"));
  EXPECT_EQ(slices["sgemm"]["args"]["correlation"], 9);
  EXPECT_EQ(slices["sgemm"]["args"]["stream"], 7);
  EXPECT_NE(slices["sgemm"]["pid"], op["pid"]);
  EXPECT_EQ(phases["s ac2g"], 1);
  EXPECT_EQ(phases["f ac2g"], 1);
  EXPECT_EQ(phases["s fwdbwd"], 1);
  EXPECT_EQ(phases["f fwdbwd"], 1);
  EXPECT_EQ(phases["i memory"], 2);
  EXPECT_EQ(phases["i event"], 1);
  EXPECT_EQ(phases["C "], 2);
}

TEST_F(TraceExports, ChromeWithoutCounters) {
  TraceExportOptions options;
  options.counters = false;
  const json trace = json::parse(
      Written([&](ExportFile* file) { return ExportChrome(run_.path(), file, options); }));
  for (const json& event : trace["traceEvents"]) EXPECT_NE(event["ph"], "C");
}

TEST_F(TraceExports, SpeedscopeEventsNest) {
  const json page = json::parse(
      Written([&](ExportFile* file) { return ExportSpeedscope(run_.path(), "run", file); }));
  ASSERT_EQ(page["profiles"].size(), 3U) << "the thread, the stream, and what overlaps on it";
  for (const json& profile : page["profiles"]) {
    std::vector<int> open;
    std::int64_t at = 0;
    for (const json& event : profile["events"]) {
      EXPECT_GE(event["at"].get<std::int64_t>(), at);
      at = event["at"];
      const int frame = event["frame"];
      ASSERT_LT(frame, static_cast<int>(page["shared"]["frames"].size()));
      if (event["type"] == "O") {
        open.push_back(frame);
      } else {
        ASSERT_FALSE(open.empty());
        EXPECT_EQ(open.back(), frame);
        open.pop_back();
      }
    }
    EXPECT_TRUE(open.empty());
  }
}

TEST_F(TraceExports, TimelineHasTensorFlowsGroups) {
  const fs::path folder = run_.path().parent_path();
  TimelineOptions options;
  options.path = [&](std::int64_t step) {
    return folder / ("timeline-" + std::to_string(step) + ".json");
  };
  const auto report = ExportTimelines(run_.path(), options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->files.size(), 1U);
  EXPECT_EQ(report->files[0].filename(), "timeline-4.json");
  const auto text = store::ReadWholeFile(report->files[0]);
  ASSERT_TRUE(text.ok());
  const json timeline = json::parse(*text);
  std::map<std::string, int> groups;
  std::map<std::string, json> by_name;
  std::multiset<std::string> phases;
  for (const json& event : timeline["traceEvents"]) {
    if (event["ph"] == "M") groups[event["args"]["name"]] = event["pid"];
    if (event["ph"] == "X") by_name[event["name"]] = event;
    phases.insert(event["ph"]);
  }
  ASSERT_EQ(groups.size(), 5U);
  EXPECT_EQ(groups["Allocators"], 0);
  const std::string cpu = "/job:worker/task:0/device:CPU:0";
  const std::string gpu = "/job:worker/task:0/device:GPU:0";
  EXPECT_EQ(by_name["aten::addmm"]["pid"], groups[cpu + " Compute"]);
  EXPECT_EQ(by_name["sgemm"]["pid"], groups[gpu + " Compute"]);
  EXPECT_EQ(groups[gpu + " Tensors"], groups[gpu + " Compute"] + 1);
  EXPECT_EQ(by_name["aten::addmm"]["args"]["op"], "aten::addmm");
  EXPECT_NE(by_name["sgemm"]["tid"], by_name["overlapping"]["tid"]) << "no two at once in a row";
  EXPECT_EQ(phases.count("s"), 1U) << "forward and backward lie in one row: no arrow";
  EXPECT_EQ(phases.count("t"), 1U);
  EXPECT_EQ(phases.count("N"), 1U);
  EXPECT_EQ(phases.count("O"), 1U);
  EXPECT_EQ(phases.count("D"), 1U);
  EXPECT_EQ(phases.count("C"), 2U);
  for (const json& event : timeline["traceEvents"]) {
    if (event["ph"] != "C") continue;
    EXPECT_EQ(event["args"]["GPU_0"], 2048);
  }
}

TEST_F(TraceExports, TimelineOfAStepThatIsNotThere) {
  TimelineOptions options;
  options.step = 5;
  options.path = [&](std::int64_t) { return run_.path() / "x"; };
  EXPECT_EQ(ExportTimelines(run_.path(), options).status().code(), Code::kUsage);
}

TEST_F(TraceExports, AFileIsThereWholeOrNotAtAll) {
  const fs::path path = run_.path().parent_path() / "out.json";
  {
    const auto file = ExportFile::Create(path, false);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Append("half").ok());
  }
  EXPECT_FALSE(fs::exists(path));
  for (const auto& entry : fs::directory_iterator(path.parent_path())) {
    EXPECT_EQ(entry.path().filename().string().find("out.json"), std::string::npos);
  }
  const auto none = ExportFile::Create(path.parent_path() / "no" / "such", false);
  EXPECT_EQ(none.status().code(), Code::kIo);
}

}  // namespace
}  // namespace telltale::interchange
