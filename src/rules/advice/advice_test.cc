// SPDX-License-Identifier: Apache-2.0
// Each check fires on a trace or facts with its fault planted, and is silent where it is cured.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "analysis/trace/trace_testing.h"
#include "rules/advice/advise.h"
#include "rules/finding_json.h"
#include "rules/groups.h"

namespace telltale::rules::advice {
namespace {

using trace::Category;
using trace::TraceMaker;

RunFacts FactsOf(const trace::Trace& one) {
  RunFacts out;
  out.has_trace = true;
  out.ranks.push_back(RankFactsOf(one));
  return out;
}

std::vector<Finding> Of(const RunFacts& facts, std::string_view check) {
  return AdviseOn(facts, {std::string(check)}).findings;
}

RuleStatus StatusOf(const RunFacts& facts, std::string_view check) {
  return AdviseOn(facts, {std::string(check)}).checks.at(0).status;
}

/// What the first one says; empty where there is none.
std::string MessageOf(const RunFacts& facts, std::string_view check) {
  const auto found = Of(facts, check);
  return found.empty() ? std::string() : found[0].incident.message;
}

nlohmann::ordered_json EvidenceOf(const Finding& finding) { return ToJson(finding)["evidence"]; }

/// A step is: wait for data, an operator that first computes on the host and then launches one
/// kernel, the kernel. Microseconds.
struct Plan {
  double data = 0, host = 0, call = 5, kernel = 900;
  std::string_view kernel_name = "ampere_h16816gemm_128x64";
  std::string_view device_name = "aten::mm";
  int steps = 4;
};

TraceMaker Training(const Plan& plan) {
  TraceMaker maker(0, kTraceNeeds);
  double t = 0;
  for (int i = 0; i < plan.steps; ++i) {
    const double op = t + plan.data;
    const double call = op + plan.host;
    maker.Step(i, t, plan.data + plan.host + plan.call + 1);
    if (plan.data > 0) {
      maker.On(Category::kData, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t,
               plan.data, {});
    }
    maker.Op(plan.device_name, op, plan.host + plan.call);
    maker.Call("cudaLaunchKernel", call, plan.call, 100 + i);
    maker.Kernel(plan.kernel_name, call + plan.call, plan.kernel, 100 + i);
    t = call + plan.call + plan.kernel;
  }
  return maker;
}

RunFacts Trained(const Plan& plan) { return FactsOf(Training(plan).Make()); }

/// A rank of 10 steps and one second, whose device works for 0.9 s of it.
RankFacts Rank(std::int32_t number = 0) {
  RankFacts rank;
  rank.rank = number;
  for (std::int64_t step = 1; step <= 10; ++step) rank.steps.push_back(step);
  rank.begin_ns = 1'000'000'000;
  rank.end_ns = 2'000'000'000;
  rank.wall_ns = 1'000'000'000;
  rank.role_ns[static_cast<std::size_t>(trace::StepRole::kKernel)] = 900'000'000;
  rank.role_ns[static_cast<std::size_t>(trace::StepRole::kOther)] = 100'000'000;
  rank.devices.push_back({.device = 0, .busy_ns = 900'000'000, .kernel_ns = 900'000'000});
  return rank;
}

RunFacts RunWith(std::vector<RankFacts> ranks) {
  RunFacts out;
  out.has_trace = true;
  out.ranks = std::move(ranks);
  return out;
}

NameTotal Named(std::string_view name, Category category, double share, bool on_device) {
  const auto ns = static_cast<std::int64_t>(share * 1e9);
  return {.name = std::string(name),
          .category = category,
          .on_device = on_device,
          .count = 10,
          .total_ns = ns,
          .self_ns = ns,
          .host_ns = on_device ? 0 : ns};
}

TEST(AdviceTest, AnIdleDeviceIsToldWithWhatItWaitsFor) {
  const auto found = Of(Trained({.data = 800, .kernel = 100}), "AcceleratorUtilization");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].incident.severity, Severity::kMedium);
  EXPECT_EQ(found[0].incident.subject, "rank 0");
  EXPECT_NE(found[0].incident.cause.find("waits for data"), std::string::npos);
  EXPECT_NEAR(EvidenceOf(found[0])["utilization"].get<double>(), 100.0 / 905, 1e-3);
  EXPECT_NEAR(EvidenceOf(found[0])["idle_seconds"].get<double>(), 4 * 805e-6, 1e-6);
  EXPECT_EQ(found[0].incident.first_step, 0);
  EXPECT_EQ(found[0].incident.last_step, 3);

  const auto half = Of(Trained({.host = 600, .kernel = 400}), "AcceleratorUtilization");
  ASSERT_EQ(half.size(), 1U);
  EXPECT_EQ(half[0].incident.severity, Severity::kLow);
  EXPECT_NE(half[0].incident.cause.find("busy between launches"), std::string::npos);
  EXPECT_TRUE(Of(Trained({}), "AcceleratorUtilization").empty());
}

TEST(AdviceTest, ConcurrentStreamsAreNoMoreThanTheDevice) {
  // Two kernels at once for 40 % of the time: tfprof's sum would say 80 %.
  TraceMaker maker(0, kTraceNeeds);
  for (int i = 0; i < 3; ++i) {
    maker.Step(i, i * 1000, 1000).Op("aten::mm", i * 1000, 900);
    maker.Launched("a", i * 1000, i * 1000 + 10, 400, 7);
    maker.Launched("b", i * 1000 + 2, i * 1000 + 10, 400, 8);
  }
  const auto found = Of(FactsOf(maker.Make()), "AcceleratorUtilization");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NEAR(EvidenceOf(found[0])["utilization"].get<double>(), 0.4, 0.01);
}

TEST(AdviceTest, AWaitForDataIsItsShareOfTheSteps) {
  const auto found = Of(Trained({.data = 300, .kernel = 695}), "InputPipeline");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].incident.severity, Severity::kHigh);
  EXPECT_NEAR(EvidenceOf(found[0])["share"].get<double>(), 0.3, 1e-6);
  EXPECT_NEAR(found[0].incident.cost_seconds, 4 * 300e-6, 1e-9);
  EXPECT_EQ(EvidenceOf(found[0])["assumption"],
            "assumes that each batch is ready when the step "
            "asks for it");
  EXPECT_EQ(Of(Trained({.data = 100, .kernel = 895}), "InputPipeline").at(0).incident.severity,
            Severity::kMedium);
  EXPECT_TRUE(Of(Trained({.data = 40}), "InputPipeline").empty());
}

TEST(AdviceTest, InputStagesAreXProfs) {
  EXPECT_EQ(StageOf("Iterator::Root::TFRecord", Category::kData), InputStage::kDemandedRead);
  EXPECT_EQ(StageOf("Iterator::Prefetch::TFRecord", Category::kData), InputStage::kAdvancedRead);
  EXPECT_EQ(StageOf("Iterator::Root::ParallelMapV2", Category::kData), InputStage::kPreprocessing);
  EXPECT_EQ(StageOf("InfeedEnqueueTuple", Category::kData), InputStage::kEnqueue);
  EXPECT_EQ(StageOf("enumerate(DataLoader)#x.__next__", Category::kData), InputStage::kUnknown);
  EXPECT_EQ(StageOf("open", Category::kIo), InputStage::kDemandedRead);

  // What operators do within the wait is preprocessing.
  TraceMaker maker = Training({.data = 500, .kernel = 500});
  maker.Op("aten::stack", 10, 450);
  const auto found = Of(FactsOf(maker.Make()), "InputPipeline");
  ASSERT_EQ(found.size(), 1U);
  const auto evidence = EvidenceOf(found[0]);
  EXPECT_NEAR(evidence["stages"]["preprocessing"].get<double>(), 450.0 / 2000, 1e-3);
  EXPECT_NEAR(evidence["stages"]["unknown"].get<double>(), 1550.0 / 2000, 1e-3);
}

TEST(AdviceTest, LaunchesThatTheDeviceWaitsFor) {
  const auto found = Of(Trained({.call = 200, .kernel = 100}), "KernelLaunch");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].incident.severity, Severity::kHigh);
  EXPECT_NEAR(found[0].incident.cost_seconds, 4 * 200e-6, 1e-9);
  EXPECT_EQ(found[0].incident.advice.find("TF_GPU_THREAD_MODE"), std::string::npos);
  EXPECT_TRUE(Of(Trained({}), "KernelLaunch").empty());
  RankFacts rank = Rank();
  rank.role_ns[static_cast<std::size_t>(trace::StepRole::kRuntime)] = 50'000'000;
  rank.names.push_back(Named("Iterator::Prefetch", Category::kData, 0.1, false));
  const auto tf = Of(RunWith({rank}), "KernelLaunch");
  ASSERT_EQ(tf.size(), 1U);
  EXPECT_NE(tf[0].incident.advice.find("TF_GPU_THREAD_MODE"), std::string::npos);
}

TEST(AdviceTest, CallsThatAreNoLaunches) {
  RankFacts rank = Rank();
  rank.role_ns[static_cast<std::size_t>(trace::StepRole::kRuntime)] = 90'000'000;
  rank.names.push_back(Named("cudaMalloc", Category::kRuntime, 0.08, false));
  rank.names.push_back(Named("cudaLaunchKernel", Category::kRuntime, 0.01, false));
  const auto found = Of(RunWith({rank}), "KernelLaunch");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(EvidenceOf(found[0])["longest_call"], "cudaMalloc");
  EXPECT_EQ(found[0].incident.advice.find("torch.compile"), std::string::npos);
}

TEST(AdviceTest, TimeOfTheHostBetweenLaunches) {
  const auto found = Of(Trained({.host = 300, .kernel = 695}), "HostBound");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].incident.severity, Severity::kHigh);
  EXPECT_NEAR(EvidenceOf(found[0])["share"].get<double>(), 0.3, 1e-6);
  EXPECT_EQ(EvidenceOf(found[0])["longest"], "aten::mm");
  EXPECT_TRUE(Of(Trained({}), "HostBound").empty());
  // Without a device the host is what computes.
  TraceMaker host(0, kTraceNeeds);
  host.Step(0, 0, 1000).Step(1, 1000, 1000).Op("aten::mm", 0, 1900);
  EXPECT_EQ(StatusOf(FactsOf(host.Make()), "HostBound"), RuleStatus::kNotApplicable);
  EXPECT_EQ(StatusOf(RunFacts(), "HostBound"), RuleStatus::kNoData);
}

TEST(AdviceTest, CopiesThatNoKernelHides) {
  const auto copied = [](std::string_view name, double begin, double length) {
    TraceMaker maker = Training({});
    for (int i = 0; i < 4; ++i) {
      const double t = i * 905.0 + begin;
      maker.Call("cudaMemcpyAsync", t, 1, 200 + i);
      maker.Work(Category::kMemcpy, name, t + 1, length,
                 {.correlation = 200 + i, .stream = 9, .bytes = 1'000'000});
    }
    return FactsOf(maker.Make());
  };
  // Over the time in which nothing else runs: the kernel of the last step has ended by then.
  RankFacts rank = Rank();
  rank.role_ns[static_cast<std::size_t>(trace::StepRole::kMemcpy)] = 120'000'000;
  rank.names.push_back(Named("Memcpy HtoD (Pageable -> Device)", Category::kMemcpy, 0.12, true));
  const auto found = Of(RunWith({rank}), "DataTransfer");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].incident.severity, Severity::kMedium);
  EXPECT_NE(found[0].incident.advice.find("pin_memory"), std::string::npos);
  EXPECT_NEAR(found[0].incident.cost_seconds, 0.12, 1e-9);
  EXPECT_TRUE(Of(copied("Memcpy HtoD (Pinned -> Device)", 100, 200), "DataTransfer").empty());
  const auto pageable = Of(copied("Memcpy HtoD (Pageable -> Device)", 100, 200), "DataTransfer");
  ASSERT_EQ(pageable.size(), 1U);
  EXPECT_EQ(EvidenceOf(pageable[0])["bytes"], 4'000'000);
}

TEST(AdviceTest, TensorCoresThatStandIdle) {
  const auto found = Of(Trained({.kernel_name = "ampere_sgemm_128x64_tn"}), "MixedPrecision");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].incident.severity, Severity::kMedium);
  EXPECT_NEAR(found[0].incident.cost_seconds, 4 * 900e-6 / 2, 1e-9);
  EXPECT_TRUE(Of(Trained({}), "MixedPrecision").empty());
  // Names that the plug-in's list does not know.
  EXPECT_TRUE(Of(Trained({.kernel_name = "nvjet_tst_128x64"}), "MixedPrecision").empty());
  // Kernels too short to matter.
  EXPECT_TRUE(Of(Trained({.host = 900, .kernel = 4, .kernel_name = "ampere_sgemm_128x64_tn"}),
                 "MixedPrecision")
                  .empty());
  // Nothing that tensor cores could do.
  EXPECT_TRUE(
      Of(Trained({.kernel_name = "add_kernel", .device_name = "aten::add"}), "MixedPrecision")
          .empty());
  RunFacts old = Trained({.kernel_name = "maxwell_sgemm"});
  old.ranks[0].compute_major = 6;
  EXPECT_TRUE(Of(old, "MixedPrecision").empty());
}

TEST(AdviceTest, CommunicationThatNothingHides) {
  const auto talking = [](double begin) {
    TraceMaker maker = Training({.kernel = 700});
    for (int i = 0; i < 4; ++i) {
      const double t = i * 705.0;
      maker.Call("cudaLaunchKernel", t, 1, 300 + i);
      maker.Kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", t + begin, 300, 300 + i,
                   20);
    }
    return FactsOf(maker.Make());
  };
  const auto found = Of(talking(600), "CommunicationBound");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_GE(found[0].incident.severity, Severity::kLow);
  EXPECT_GT(EvidenceOf(found[0])["hidden_share"].get<double>(), 0.1);
  EXPECT_TRUE(Of(talking(100), "CommunicationBound").empty());
  EXPECT_EQ(StatusOf(Trained({}), "CommunicationBound"), RuleStatus::kNotApplicable);

  RankFacts xla = Rank();
  xla.names.push_back(Named("all-reduce.3", Category::kKernel, 0.07, true));
  ASSERT_EQ(Of(RunWith({xla}), "CommunicationBound").size(), 1U);
  EXPECT_EQ(Of(RunWith({xla}), "CommunicationBound").at(0).incident.severity, Severity::kMedium);
}

TEST(AdviceTest, RanksThatTalkOverTheHost) {
  RankFacts rank = Rank();
  rank.names.push_back(Named("gloo:all_reduce", Category::kComm, 0.2, false));
  EXPECT_EQ(Of(RunWith({rank}), "CommunicationBackend").size(), 1U);
  rank.names.back().name = "nccl:all_reduce";
  EXPECT_TRUE(Of(RunWith({rank}), "CommunicationBackend").empty());
  EXPECT_EQ(StatusOf(RunWith({rank}), "CommunicationBackend"), RuleStatus::kNoIssuesFound);
  EXPECT_EQ(StatusOf(RunWith({Rank()}), "CommunicationBackend"), RuleStatus::kNotApplicable);
  RankFacts by_backend = Rank();
  by_backend.backend = "gloo";
  EXPECT_EQ(Of(RunWith({by_backend}), "CommunicationBackend").size(), 1U);
  // The host alone has nothing better.
  by_backend.devices.clear();
  EXPECT_TRUE(Of(RunWith({by_backend}), "CommunicationBackend").empty());
}

TEST(AdviceTest, OneProcessWithSeveralDevices) {
  RankFacts rank = Rank();
  rank.names.push_back(Named("DataParallel.forward", Category::kAnnotation, 0.5, false));
  EXPECT_TRUE(Of(RunWith({rank}), "DataParallel").empty());
  rank.devices.push_back({.device = 1, .busy_ns = 100'000'000});
  ASSERT_EQ(Of(RunWith({rank}), "DataParallel").size(), 1U);
  EXPECT_EQ(EvidenceOf(Of(RunWith({rank}), "DataParallel").at(0))["devices"].size(), 2U);
  rank.names.back().name = "DistributedDataParallel.forward";
  EXPECT_TRUE(Of(RunWith({rank}), "DataParallel").empty());
}

TEST(AdviceTest, ADevicesMemory) {
  RankFacts rank = Rank();
  EXPECT_EQ(StatusOf(RunWith({rank}), "MemoryPressure"), RuleStatus::kNoData);
  rank.device_memory = 1000;
  rank.peak_memory = 950;
  EXPECT_EQ(Of(RunWith({rank}), "MemoryPressure").size(), 1U);
  rank.peak_memory = 900;
  EXPECT_TRUE(Of(RunWith({rank}), "MemoryPressure").empty());
}

TEST(AdviceTest, CompilationAfterTheFirstStep) {
  const auto compiled = [](double at) {
    TraceMaker maker = Training({});
    for (int i = 0; i < 2; ++i) {
      maker.On(Category::kCompile, "Compile", at + i * 100, 80, {.tid = 5});
      maker.On(Category::kCompile, "Lowering", at + i * 100 + 10, 40, {.tid = 5});
    }
    return FactsOf(maker.Make());
  };
  const auto found = Of(compiled(1000), "Retracing");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(EvidenceOf(found[0])["compilations"], 2);
  EXPECT_NEAR(found[0].incident.cost_seconds, 160e-6, 1e-9);
  EXPECT_TRUE(Of(compiled(10), "Retracing").empty());
  EXPECT_EQ(StatusOf(compiled(10), "Retracing"), RuleStatus::kNoIssuesFound);
  EXPECT_EQ(StatusOf(Trained({}), "Retracing"), RuleStatus::kNotApplicable);
}

TEST(AdviceTest, WaitsOfTheHostCountWhereTheDeviceIdles) {
  RankFacts rank = Rank();
  rank.names.push_back(Named("cudaStreamSynchronize", Category::kRuntime, 0.5, false));
  const auto found = Of(RunWith({rank}), "HostWaits");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NEAR(EvidenceOf(found[0])["share"].get<double>(), 0.1, 1e-6);
  rank.devices[0].busy_ns = rank.wall_ns.value();
  EXPECT_TRUE(Of(RunWith({rank}), "HostWaits").empty());
}

TEST(AdviceTest, WhatBoundsTheDevice) {
  RankFacts rank = Rank();
  rank.peak_flops = 100e12;
  rank.flops_wall_ns = rank.wall_ns;
  rank.flops = 80e12;
  ASSERT_EQ(Of(RunWith({rank}), "RooflineBound").size(), 1U);
  EXPECT_EQ(MessageOf(RunWith({rank}), "RooflineBound"), "Compute-bound");
  rank.flops = 10e12;
  rank.names.push_back(Named("vectorized_elementwise_kernel", Category::kKernel, 0.8, true));
  EXPECT_EQ(MessageOf(RunWith({rank}), "RooflineBound"), "Memory-bound");
  rank.names.back().total_ns = 200'000'000;
  rank.devices[0].busy_ns = 800'000'000;
  EXPECT_EQ(MessageOf(RunWith({rank}), "RooflineBound"), "Latency-bound");
  rank.flops = 60e12;
  EXPECT_TRUE(Of(RunWith({rank}), "RooflineBound").empty());
}

TEST(AdviceTest, SumsThatNothingHoldsAreTheMostThereIs) {
  RankFacts rank = Rank();
  rank.wall_ns = std::numeric_limits<std::int64_t>::max();
  rank.role_ns[static_cast<std::size_t>(trace::StepRole::kMemcpy)] = rank.wall_ns;
  rank.role_ns[static_cast<std::size_t>(trace::StepRole::kDataLoader)] = rank.wall_ns;
  for (DeviceFacts& device : rank.devices) device.kernel_ns = rank.wall_ns;
  rank.devices.push_back(rank.devices.front());
  rank.eligible_share = 1;
  // Two of each: their sum is beyond 64 bits.
  for (int i = 0; i < 2; ++i) {
    for (const auto& [name, category, on_device] :
         {std::tuple("cudaStreamSynchronize", Category::kRuntime, false),
          std::tuple("collect", Category::kGc, false),
          std::tuple("RecvTensor", Category::kComm, false),
          std::tuple("debug_print", Category::kOp, false),
          std::tuple("BatchNorm", Category::kModule, false),
          std::tuple("aten::mm", Category::kOp, false), std::tuple("gemm", Category::kKernel, true),
          std::tuple("Memcpy HtoD (Pageable -> Device)", Category::kMemcpy, true)}) {
      NameTotal total = Named(name, category, 1, on_device);
      total.total_ns = total.self_ns = total.host_ns = total.device_ns = rank.wall_ns;
      total.bytes = rank.wall_ns;
      rank.names.push_back(std::move(total));
    }
  }
  for (const char* check :
       {"HostWaits", "GarbageCollection", "RemoteTransfers", "DebugPrint", "UnfusedBatchNorm",
        "DataTransfer", "MixedPrecision", "ExpensiveOperation"}) {
    const auto found = Of(RunWith({rank}), check);
    ASSERT_FALSE(found.empty()) << check;
    for (const Finding& one : found) {
      EXPECT_GE(one.incident.cost_seconds, 0) << check;
      const auto evidence = EvidenceOf(one);
      for (const auto& [key, value] : evidence.items()) {
        if (value.is_number()) {
          EXPECT_GE(value.get<double>(), 0) << check << " " << key;
        }
      }
    }
  }
}

TEST(AdviceTest, ARankThatTheOthersWaitFor) {
  const auto ranks = [](std::int64_t slow_ns) {
    std::vector<RankFacts> out;
    for (std::int32_t i = 0; i < 4; ++i) out.push_back(Rank(i));
    out[2].wall_ns += slow_ns;
    return RunWith(std::move(out));
  };
  const auto found = Of(ranks(200'000'000), "SlowRank");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].incident.subject, "rank 2");
  EXPECT_NEAR(found[0].incident.cost_seconds, 0.2, 1e-9);
  EXPECT_TRUE(Of(ranks(50'000'000), "SlowRank").empty());
  EXPECT_EQ(StatusOf(RunWith({Rank()}), "SlowRank"), RuleStatus::kNotApplicable);

  // Of two ranks, by who comes last to a collective.
  RunFacts two = RunWith({Rank(0), Rank(1)});
  two.stragglers.ranks = {{.rank = 1, .steps = 9, .late_share = 0.2, .late_ns = 20'000'000},
                          {.rank = 0, .steps = 1, .late_share = 0.01, .late_ns = 1'000'000}};
  ASSERT_EQ(Of(two, "SlowRank").size(), 1U);
  EXPECT_EQ(Of(two, "SlowRank").at(0).incident.subject, "rank 1");
  two.stragglers.ranks[0].late_share = 0.05;
  EXPECT_TRUE(Of(two, "SlowRank").empty());
}

TEST(AdviceTest, ANodesCoresAndMemory) {
  EXPECT_EQ(StatusOf(RunWith({Rank()}), "JobUtilization"), RuleStatus::kNoData);
  RunFacts run;
  run.jobs = {{.node = "a", .cpu_share = 0.95, .memory_share = 0.2, .samples = 5},
              {.node = "b", .cpu_share = 0.3, .memory_share = 0.93, .samples = 5},
              {.node = "c", .cpu_share = 0.3, .memory_share = 0.3, .samples = 5}};
  const auto found = Of(run, "JobUtilization");
  ASSERT_EQ(found.size(), 2U);
  std::set<std::string> subjects;
  for (const Finding& finding : found) subjects.insert(finding.incident.subject);
  EXPECT_EQ(subjects, (std::set<std::string>{"node a", "node b"}));
}

TEST(AdviceTest, WhatTakesTheMostTime) {
  TraceMaker maker = Training({.host = 20, .kernel = 500});
  // A line of Python from begin to end, and a shorter one in it that calls a small operator.
  maker.On(Category::kPython, "train.py(10): main", 0, 3000, {});
  maker.On(Category::kPython, "loss.py(5): loss", 1600, 400, {});
  maker.Op("aten::sum", 1700, 50);
  maker.On(Category::kModule, "nn.Module: Linear_0", 0, 400, {.tid = 3});
  const auto found = Of(FactsOf(maker.Make()), "ExpensiveOperation");
  std::set<std::string> subjects;
  for (const Finding& finding : found) {
    subjects.insert(finding.incident.subject);
    EXPECT_EQ(finding.incident.severity, Severity::kInfo);
    EXPECT_EQ(finding.incident.cost_seconds, 0);
  }
  EXPECT_EQ(subjects,
            (std::set<std::string>{"rank 0, operators", "rank 0, modules", "rank 0, code"}));
  for (const Finding& finding : found) {
    const auto top = EvidenceOf(finding)["top"];
    if (finding.incident.subject == "rank 0, operators") {
      EXPECT_EQ(top[0]["name"], "aten::mm");
      EXPECT_NEAR(top[0]["device_seconds"].get<double>(), 4 * 500e-6, 1e-9);
    }
    if (finding.incident.subject == "rank 0, code") {
      // The shorter frame is below a millisecond.
      ASSERT_EQ(top.size(), 1U);
      EXPECT_EQ(top[0]["name"], "train.py(10): main");
      EXPECT_NEAR(top[0]["host_seconds"].get<double>(), 2600e-6, 1e-9);
    }
  }
}

struct NameCase {
  std::string_view check;
  NameTotal planted;
  double cured;  ///< Share with which it is silent.
  bool with_kernels = true;
};

/// Checks that go by a name and its share.
std::vector<NameCase> NameCases() {
  return {
      {"AsyncWait", Named("copy-done.4", Category::kMemcpy, 0.2, true), 0.1},
      {"BarrierCores", Named("barrier-cores.1", Category::kKernel, 0.15, true), 0.05},
      {"DataFormat", Named("void nchwToNhwcKernel<float>", Category::kKernel, 0.2, true), 0.01},
      {"DataShuffle", Named("transpose.7", Category::kKernel, 0.6, true), 0.05},
      {"DebugPrint", Named("debug_callback", Category::kAnnotation, 0.06, false), 0.005},
      {"EagerExecution", Named("EagerLocalExecute: Add", Category::kAnnotation, 0.4, false), 0.05},
      {"GarbageCollection", Named("gc", Category::kGc, 0.06, false), 0.005},
      {"InfeedOutfeed", Named("infeed.1", Category::kMemcpy, 0.25, true), 0.04},
      {"RemoteTransfers", Named("RecvTensor", Category::kComm, 0.2, false), 0.01},
      {"SparseCore", Named("SparseCore lookup", Category::kKernel, 0.12, true), 0.005},
  };
}

TEST(AdviceTest, NamesWithTheirShares) {
  for (const NameCase& one : NameCases()) {
    RankFacts rank = Rank();
    rank.names.push_back(Named("gemm", Category::kKernel, 0.8, true));
    rank.names.push_back(one.planted);
    const auto found = Of(RunWith({rank}), one.check);
    ASSERT_EQ(found.size(), 1U) << one.check;
    EXPECT_GE(found[0].incident.severity, Severity::kLow) << one.check;
    const auto ns = static_cast<std::int64_t>(one.cured * 1e9);
    NameTotal& name = rank.names.back();
    name.total_ns = name.self_ns = ns;
    name.host_ns = name.on_device ? 0 : ns;
    EXPECT_TRUE(Of(RunWith({rank}), one.check).empty()) << one.check;
  }
}

TEST(AdviceTest, BatchNormalisationInPieces) {
  RankFacts rank = Rank();
  EXPECT_EQ(StatusOf(RunWith({rank}), "UnfusedBatchNorm"), RuleStatus::kNotApplicable);
  rank.names.push_back(Named("model/BatchNorm/moments:Mean", Category::kOp, 0.1, false));
  EXPECT_EQ(Of(RunWith({rank}), "UnfusedBatchNorm").size(), 1U);
  rank.names.push_back(Named("model/bn/FusedBatchNormV3", Category::kOp, 0.1, false));
  EXPECT_TRUE(Of(RunWith({rank}), "UnfusedBatchNorm").empty());
}

TEST(AdviceTest, FindingsAreThoseOfRules) {
  const Advice all = AdviseOn(Trained({.data = 800, .kernel = 100}));
  ASSERT_FALSE(all.findings.empty());
  EXPECT_EQ(all.steps, 4U);
  std::set<std::string> ids;
  for (const Finding& finding : all.findings) {
    const auto json = ToJson(finding);
    EXPECT_TRUE(ids.insert(finding.id).second);
    EXPECT_TRUE(json["evidence"].is_object()) << json;
    EXPECT_FALSE(finding.incident.message.empty());
    EXPECT_FALSE(finding.incident.cause.empty());
    EXPECT_FALSE(finding.incident.advice.empty());
    // What costs time says what it assumes.
    EXPECT_EQ(finding.incident.cost_seconds > 0, json["evidence"].contains("assumption")) << json;
    EXPECT_LE(finding.incident.cost_seconds, all.wall_seconds);
  }
  // By cost, as everywhere.
  EXPECT_EQ(all.findings.front().rule, "InputPipeline");
  const Advice again = AdviseOn(Trained({.data = 800, .kernel = 100}));
  ASSERT_EQ(again.findings.size(), all.findings.size());
  for (std::size_t i = 0; i < all.findings.size(); ++i) {
    EXPECT_EQ(again.findings[i].id, all.findings[i].id);
  }
}

TEST(AdviceTest, FindingsThatAreLeftOutAreCounted) {
  std::vector<RankFacts> ranks;
  for (std::int32_t rank = 0; rank < 600; ++rank) {
    ranks.push_back(Rank(rank));
    ranks.back().devices[0].busy_ns = 100'000'000;
  }
  const Advice many = AdviseOn(RunWith(ranks), {"AcceleratorUtilization"});
  EXPECT_EQ(many.findings.size(), kMostRanked);
  EXPECT_EQ(many.findings_left_out, 600 - kMostRanked);

  ranks.resize(20);
  Replay replay;
  for (std::size_t i = 0; i < kMostRanked; ++i) {
    Finding& finding = replay.findings.emplace_back();
    finding.rule = "InputBound";
    finding.incident.subject = fmt::format("rank {}", 1000 + i);
    finding.id = finding.incident.subject;
  }
  replay.findings_left_out = 7;
  AddAdvice(AdviseOn(RunWith(ranks), {"AcceleratorUtilization"}), &replay);
  EXPECT_EQ(replay.findings.size(), kMostRanked);
  EXPECT_EQ(replay.findings_left_out, 27U);
  EXPECT_EQ(replay.rules.size(), 1U);
}

TEST(AdviceTest, ATrainingWithoutFaultIsLeftAlone) {
  for (const Finding& finding : AdviseOn(Trained({.call = 3, .kernel = 997})).findings) {
    EXPECT_EQ(finding.incident.severity, Severity::kInfo) << finding.rule;
  }
}

TEST(AdviceTest, CostsDoNotAddUpToMoreThanTheTime) {
  const Advice all = AdviseOn(Trained({.data = 300, .host = 200, .call = 100, .kernel = 300}));
  double sum = 0;
  for (const Finding& finding : all.findings) {
    // What would be gained of kernels themselves is apart from what they wait for.
    sum += finding.incident.cost_seconds;
  }
  EXPECT_LE(sum, all.wall_seconds);
  EXPECT_GT(sum, 0.6 * all.wall_seconds);
}

TEST(AdviceTest, ChecksAreSortedAndSayWhoseTheyAre) {
  std::string_view before;
  for (const Check* check : Checks()) {
    EXPECT_LT(before, check->name);
    before = check->name;
    EXPECT_FALSE(check->asks.empty());
    EXPECT_FALSE(check->peers.empty());
    EXPECT_FALSE(check->formula.empty());
    if (!check->rule.empty()) {
      EXPECT_NE(FindRule(check->rule), nullptr) << check->rule;
    }
    // A finding's name says which of both found it.
    EXPECT_EQ(FindRule(check->name), nullptr) << check->name;
  }
}

}  // namespace
}  // namespace telltale::rules::advice
