// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace/critical_path.h"

#include <gtest/gtest.h>

#include "analysis/trace/trace_testing.h"

namespace telltale::analysis::trace {
namespace {

std::int64_t BoundNs(const CriticalPath& path, PathBound bound) {
  return path.by_bound()[static_cast<std::size_t>(bound)].value();
}

CriticalPath Path(const Trace& trace) {
  auto path = CriticalPath::Of(trace, Scope(), {0, 1'000'000'000});
  EXPECT_TRUE(path.ok()) << path.status().message();
  return std::move(path).value();
}

TEST(CriticalPathTest, OperatorsOfAThreadFollowEachOther) {
  // Gaps between outermost operators cost nothing, those within one are its own.
  const Trace trace = TraceMaker().Op("a", 0, 10).Op("b", 2, 3).Op("c", 50, 5).Make();
  const CriticalPath path = Path(trace);
  EXPECT_EQ(path.length_ns(), 15'000);
  EXPECT_EQ(BoundNs(path, PathBound::kHost), 15'000);
  std::int64_t in_b = 0;
  for (const PathEdge& edge : path.edges()) {
    if (edge.row != kNoRow && trace.NameOf(edge.row) == "b") in_b += edge.weight_ns;
  }
  EXPECT_EQ(in_b, 3'000);
}

// op 0-10 launches at 2; kernel 5-105; a synchronising call 20-110 waits for it; op 120-130.
TraceMaker Synced() {
  TraceMaker maker;
  maker.Op("launches", 0, 10).Launched("gemm", 2, 5, 100);
  maker.Op("waits", 19, 95).Call("cudaStreamSynchronize", 20, 90, 9);
  maker.Work(Category::kSync, "Stream Sync", 20, 90, {.correlation = 9});
  maker.Op("after", 120, 10);
  return maker;
}

TEST(CriticalPathTest, ASynchronisingCallTakesAsLongAsTheDevice) {
  const Trace trace = Synced().Make();
  const CriticalPath path = Path(trace);
  // To the launch 2, launch to kernel 3, kernel 100, then from the call's end to the end of its
  // operator 4 and the last operator 10.
  EXPECT_EQ(path.length_ns(), 119'000);
  EXPECT_EQ(BoundNs(path, PathBound::kHost), 16'000);
  EXPECT_EQ(BoundNs(path, PathBound::kLaunch), 3'000);
  EXPECT_EQ(BoundNs(path, PathBound::kCompute), 100'000);
}

TEST(CriticalPathTest, WhatIf) {
  const Trace trace = Synced().Make();
  const CriticalPath path = Path(trace);
  const auto saved = [&](std::string_view text) {
    const auto what_if = ParseWhatIf(text);
    EXPECT_TRUE(what_if.ok());
    return path.SavedBy(*what_if);
  };
  EXPECT_EQ(saved("launch=0"), 3'000);
  EXPECT_EQ(saved("gemm=0.5"), 50'000);
  EXPECT_EQ(saved("compute=1"), 0);
  EXPECT_EQ(saved("data=0"), 0);
  // Without the kernel the host's own chain bounds it: 10 + 1 + 4 + 10.
  EXPECT_EQ(saved("gemm=0"), 119'000 - 25'000);
  EXPECT_FALSE(ParseWhatIf("data").ok());
  EXPECT_FALSE(ParseWhatIf("=0").ok());
  EXPECT_FALSE(ParseWhatIf("data=-1").ok());
  EXPECT_FALSE(ParseWhatIf("data=fast").ok());
}

TEST(CriticalPathTest, DataLoadingIsANodeWhateverTheTraceCallsIt) {
  TraceMaker maker;
  maker.On(Category::kData, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 60,
           {.kind = "user_annotation"});
  maker.Op("aten::copy_", 10, 20).Op("forward", 60, 40);
  const Trace trace = maker.Make();
  const CriticalPath path = Path(trace);
  EXPECT_EQ(path.length_ns(), 100'000);
  EXPECT_EQ(BoundNs(path, PathBound::kData), 60'000);
  EXPECT_EQ(path.SavedBy(*ParseWhatIf("data=0")), 60'000);
}

TEST(CriticalPathTest, KernelsOfAFullStreamFollowEachOther) {
  TraceMaker maker;
  maker.Op("op", 0, 10);
  maker.Launched("a", 1, 5, 50);
  maker.Launched("b", 3, 57, 40);  // Launched while a was waited for: a gap of 2 us.
  const Trace trace = maker.Make();
  const CriticalPath path = Path(trace);
  // From a's begin: b was outstanding then, so a's launch does not count.
  EXPECT_EQ(path.length_ns(), 92'000);
  EXPECT_EQ(BoundNs(path, PathBound::kGaps), 2'000);
  EXPECT_EQ(BoundNs(path, PathBound::kCompute), 90'000);
  EXPECT_EQ(path.SavedBy(*ParseWhatIf("gaps=0")), 2'000);
}

TEST(CriticalPathTest, AStreamWaitsForTheEventOfAnother) {
  TraceMaker maker(0, {.events = true});
  maker.Op("op", 0, 40);
  maker.Launched("producer", 1, 5, 100, 7);  // 5-105
  maker.Call("cudaEventRecord", 4, 1, 50);
  maker.Call("cudaStreamWaitEvent", 6, 1, 51);
  maker.Work(Category::kSync, "Stream Wait Event", 6, 0,
             {.correlation = 51,
              .stream = 20,
              .args = R"({"wait_on_stream": 7,"wait_on_cuda_event_record_corr_id": 50})"});
  maker.Launched("consumer", 8, 106, 30, 20);  // 106-136
  const Trace trace = maker.Make();
  const CriticalPath path = Path(trace);
  // To the launch 1, launch 4, producer 100, consumer 30: the wait itself has no length.
  EXPECT_EQ(path.length_ns(), 135'000);
  EXPECT_EQ(BoundNs(path, PathBound::kCompute), 130'000);
}

TEST(CriticalPathTest, EventsAreThoseOfTheirRecording) {
  TraceMaker maker(0, {.events = true});
  maker.Op("op", 0, 40);
  maker.Launched("producer", 1, 5, 100, 7);
  maker.Call("cudaEventRecord", 4, 1, 50);
  maker.Call("cudaStreamWaitEvent", 6, 1, 51);
  maker.Work(Category::kSync, "Stream Wait Event", 6, 0,
             {.correlation = 51,
              .stream = 20,
              .args = R"({"wait_on_stream": 7,"wait_on_cuda_event_record_corr_id": 50})"});
  maker.Launched("consumer", 8, 106, 30, 20).Recording(0, 200);
  // Another window of detail counts its events from the same number on.
  maker.Op("later", 5000, 40).Launched("other", 5001, 5005, 10, 7);
  maker.Call("cudaEventRecord", 5004, 1, 50).Recording(5000, 5100);
  const Trace trace = maker.Make();
  const auto path = CriticalPath::Of(trace, Scope(), {0, 200'000});
  ASSERT_TRUE(path.ok()) << path.status().message();
  EXPECT_EQ(path->length_ns(), 135'000);
  EXPECT_EQ(BoundNs(*path, PathBound::kCompute), 130'000);
}

TEST(CriticalPathTest, NothingInTheWindowIsSaid) {
  const Trace trace = TraceMaker().Op("a", 0, 10).Make();
  const auto path = CriticalPath::Of(trace, Scope(), {20'000, 30'000});
  ASSERT_FALSE(path.ok());
  EXPECT_EQ(path.status().code(), Code::kUnusable);
}

TEST(CriticalPathTest, MarksThatContradictTheTimesAreSaidOrHarmless) {
  // A call that is to end after a kernel that it launches itself, which the kernel waits for.
  TraceMaker maker;
  maker.Op("op", 0, 100).Call("cudaLaunchKernel", 10, 50, 1).Kernel("k", 20, 10, 1);
  maker.Work(Category::kSync, "Stream Sync", 12, 30, {.correlation = 1});
  const Trace trace = maker.Make();
  const auto path = CriticalPath::Of(trace, Scope(), {0, 1'000'000});
  EXPECT_TRUE(path.ok() || path.status().code() == Code::kUnusable);
}

}  // namespace
}  // namespace telltale::analysis::trace
