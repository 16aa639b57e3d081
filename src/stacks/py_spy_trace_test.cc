// SPDX-License-Identifier: Apache-2.0
#include "stacks/py_spy_trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace telltale::stacks {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

/// Events as py-spy writes them.
class TraceText {
 public:
  void Begin(int pid, std::int64_t tid, std::int64_t us, const std::string& name,
             const std::string& file = "", int line = 0) {
    Add("B", pid, tid, us, name, file, line);
  }
  void End(int pid, std::int64_t tid, std::int64_t us, const std::string& name,
           const std::string& file = "", int line = 0) {
    Add("E", pid, tid, us, name, file, line);
  }
  std::string Text() const { return events_.dump(); }

 private:
  void Add(const char* phase, int pid, std::int64_t tid, std::int64_t us, const std::string& name,
           const std::string& file, int line) {
    events_.push_back({{"args", {{"filename", file}, {"line", line}}},
                       {"cat", "py-spy"},
                       {"name", name},
                       {"ph", phase},
                       {"pid", pid},
                       {"tid", tid},
                       {"ts", us}});
  }
  json events_ = json::array();
};

Names FramesOf(const PySpyTrace& trace, const Observation& seen) {
  Names out;
  for (const std::uint32_t frame : seen.frames) out.push_back(trace.names[frame]);
  return out;
}

constexpr std::int64_t kThread = 140332112683072;

TEST(PySpyTraceTest, AThreadStandsWhereItWasSeenUntilItIsSeenElsewhere) {
  TraceText text;
  text.Begin(10, kThread, 70, "process 10:\"python t.py\"");
  text.Begin(10, kThread, 70, "thread (10): MainThread");
  text.Begin(10, kThread, 70, "<module>", "/w/t.py", 1);
  text.Begin(10, kThread, 70, "hot", "/w/t.py", 3);
  text.End(10, kThread, 120, "hot", "/w/t.py", 3);
  text.Begin(10, kThread, 120, "cold", "/usr/lib/python3.11/threading.py", 9);
  const auto trace = ParsePySpyTrace(text.Text(), "/w");
  ASSERT_TRUE(trace.ok());
  ASSERT_EQ(trace->threads.size(), 1U);
  const ThreadTimeline& thread = trace->threads[0];
  EXPECT_EQ(thread.pid, 10);
  EXPECT_EQ(thread.tid, 10);
  EXPECT_TRUE(thread.main());
  EXPECT_EQ(thread.name, "MainThread");
  ASSERT_EQ(thread.seen.size(), 2U);
  EXPECT_EQ(thread.seen[0].at_ns, 70'000);
  EXPECT_EQ(FramesOf(*trace, thread.seen[0]), (Names{"t.py(1): <module>", "t.py(3): hot"}));
  EXPECT_EQ(thread.seen[1].at_ns, 120'000);
  EXPECT_EQ(FramesOf(*trace, thread.seen[1]),
            (Names{"t.py(1): <module>", "threading.py(9): cold"}));
  EXPECT_EQ(trace->end_ns, 120'000);
  EXPECT_EQ(trace->damaged, 0U);
}

TEST(PySpyTraceTest, ForkedWorkersThatShareANumberAreToldApart) {
  // A fork keeps the interpreter's number of its thread: py-spy takes both for one.
  TraceText text;
  const auto stack = [&](int pid, std::int64_t us, const char* name) {
    if (pid == 11) text.Begin(pid, kThread, us, "process 10:\"python\"");
    text.Begin(pid, kThread, us, pid == 11 ? "process 11:\"python\"" : "process 10:\"python\"");
    text.Begin(pid, kThread, us, pid == 11 ? "thread (11): MainThread" : "thread (10): MainThread");
    text.Begin(pid, kThread, us, name, "t.py", 1);
  };
  stack(10, 100, "train");
  // The new one's pid stands in the ends of the old one too; the process above both stays.
  for (const std::int64_t us : {101, 151}) {
    text.End(11, kThread, us, "train", "t.py", 1);
    text.End(11, kThread, us, "thread (10): MainThread");
    text.Begin(11, kThread, us, "process 11:\"python\"");
    text.Begin(11, kThread, us, "thread (11): MainThread");
    text.Begin(11, kThread, us, "load", "t.py", 2);
    if (us == 151) break;
    text.End(10, kThread, 150, "load", "t.py", 2);
    text.End(10, kThread, 150, "thread (11): MainThread");
    text.End(10, kThread, 150, "process 11:\"python\"");
    text.Begin(10, kThread, 150, "thread (10): MainThread");
    text.Begin(10, kThread, 150, "train", "t.py", 1);
  }
  const auto trace = ParsePySpyTrace(text.Text(), "");
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->damaged, 0U);
  ASSERT_EQ(trace->threads.size(), 2U);
  EXPECT_EQ(trace->threads[0].pid, 10);
  EXPECT_EQ(trace->threads[0].seen.size(), 1U) << "it stood still";
  EXPECT_EQ(trace->threads[1].pid, 11);
  EXPECT_EQ(trace->threads[1].ancestors, (std::vector<std::int64_t>{10}));
  EXPECT_EQ(trace->threads[1].seen.size(), 1U);
  EXPECT_EQ(FramesOf(*trace, trace->threads[1].seen[0]), (Names{"t.py(2): load"}));
}

TEST(PySpyTraceTest, HostileNamesAreNamesAndNothingElse) {
  TraceText text;
  text.Begin(10, kThread, 1, "process 10:\"python\"");
  text.Begin(10, kThread, 1, "thread (10): <script>\u202e;\n");
  text.Begin(10, kThread, 1, "process 99:\"not one\"", "t.py", 1);
  text.Begin(10, kThread, 1, "thread (7): nor this");
  text.Begin(10, kThread, 1, std::string(4000, 'x'), "</script>\x1b[2J.py", 1);
  text.Begin(10, kThread, 1, "", "", 0);
  const auto trace = ParsePySpyTrace(text.Text(), "");
  ASSERT_TRUE(trace.ok());
  ASSERT_EQ(trace->threads.size(), 1U);
  EXPECT_EQ(trace->threads[0].pid, 10);
  EXPECT_EQ(trace->threads[0].tid, 10);
  const Names frames = FramesOf(*trace, trace->threads[0].seen[0]);
  ASSERT_EQ(frames.size(), 4U);
  EXPECT_EQ(frames[0], "t.py(1): process 99:\"not one\"");
  EXPECT_EQ(frames[1], "thread (7): nor this");
  EXPECT_LT(frames[2].size(), 600U);
  EXPECT_EQ(frames[3], "");
}

TEST(PySpyTraceTest, BrokenFilesGiveWhatIsWhole) {
  EXPECT_EQ(ParsePySpyTrace("", "").status().code(), Code::kUnusable);
  EXPECT_EQ(ParsePySpyTrace("{}", "").status().code(), Code::kUnusable);
  const auto empty = ParsePySpyTrace("[]", "");
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->threads.empty());

  TraceText text;
  text.Begin(10, kThread, 1, "process 10:\"python\"");
  text.Begin(10, kThread, 1, "thread (10)");
  text.Begin(10, kThread, 1, "main", "t.py", 1);
  text.End(10, kThread, 2, "another", "t.py", 1);
  for (int i = 0; i < 5; ++i) text.End(10, kThread, 3, "nothing is open", "t.py", 1);
  text.Begin(10, kThread, -5, "before the begin", "t.py", 1);
  text.Begin(10, kThread, INT64_MAX / 2, "in a million years", "t.py", 1);
  const std::string whole = text.Text();
  const auto odd = ParsePySpyTrace(whole, "");
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ(odd->threads.size(), 1U);
  EXPECT_GT(odd->damaged, 3U);
  // Cut anywhere it neither fails to end nor reads beyond.
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    const auto cut = ParsePySpyTrace(std::string_view(whole).substr(0, size), "");
    EXPECT_TRUE(!cut.ok() || cut->damaged > 0) << size;
  }
}

TEST(FrameTextTest, NamesPackagesFromTheirTop) {
  EXPECT_EQ(FrameText("/v/lib/python3.11/site-packages/torch/nn/functional.py", 12, "relu", ""),
            "torch/nn/functional.py(12): relu");
  EXPECT_EQ(FrameText("/usr/lib/python3.11/threading.py", 9, "run", ""), "threading.py(9): run");
  EXPECT_EQ(FrameText("/home/a/train.py", 1, "main", "/home/a"), "train.py(1): main");
  EXPECT_EQ(FrameText("/home/ab/train.py", 1, "main", "/home/a"), "/home/ab/train.py(1): main");
  EXPECT_EQ(FrameText("", 0, "native_thing", "/home/a"), "native_thing");
}

}  // namespace
}  // namespace telltale::stacks
