// SPDX-License-Identifier: Apache-2.0
// Trees worked out by hand: every number below can be checked with pencil and paper.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

#include "analysis/profile/build.h"
#include "analysis/profile/pipeline.h"
#include "analysis/profile/print.h"
#include "query/slice_testing.h"

namespace telltale::analysis::profile {
namespace {

using query::SliceRun;

/// One step of one thread, in microseconds:
///
///   0                                                  100
///   step ProfilerStep#1 ------------------------------- |
///   python train.py(3): main 0..100
///     python model.py(7): forward 10..60
///       module nn.Module: Linear_0 10..60
///         op aten::linear 12..58 (flow 5, flops 1000)
///           op aten::addmm 20..50 (Input Dims)
///             memory +512 at 22, -128 at 30, +64 at 40
///             runtime cudaLaunchKernel 44..48, correlation 9
///     annotation optimizer 70..90
///       op aten::add_ 72..82
///   thread 2, without Python:
///     op AddmmBackward0 60..80 (flow 5)
///       runtime cudaLaunchKernel 65..68, correlation 10
///   stream 7: sgemm 55..85 (9), sgemm 85..105 (10), memcpy 110..115 (no launch, 4096 bytes)
class Profiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto host = [&](std::string_view category, std::string_view name, std::int64_t begin,
                          std::int64_t end) -> format::SliceRow& {
      format::SliceRow& row = run_.Host(category, name, begin * 1000, (end - begin) * 1000);
      row.step = 1;
      return row;
    };
    host("step", "ProfilerStep#1", 0, 100);
    host("python", "train.py(3): main", 0, 100);
    host("python", "model.py(7): forward", 10, 60);
    host("module", "nn.Module: Linear_0", 10, 60);
    format::SliceRow& linear = host("op", "aten::linear", 12, 58);
    linear.flow = 5;
    linear.flops = 1000;
    host("op", "aten::addmm", 20, 50).args =
        R"({"Input Dims": [[64], [32, 128], []], "Input type": ["float"]})";
    host("memory", "[memory]", 22, 22).bytes = 512;
    host("memory", "[memory]", 30, 30).bytes = -128;
    host("memory", "[memory]", 40, 40).bytes = 64;
    host("runtime", "cudaLaunchKernel", 44, 48).correlation = 9;
    host("annotation", "optimizer", 70, 90);
    host("op", "aten::add_", 72, 82);
    format::SliceRow& backward = host("op", "AddmmBackward0", 60, 80);
    backward.tid = 2;
    backward.lane = "thread 2";
    backward.flow = 5;
    format::SliceRow& launch = host("runtime", "cudaLaunchKernel", 65, 68);
    launch.tid = 2;
    launch.lane = "thread 2";
    launch.correlation = 10;
    const auto device = [&](std::string_view name, std::int64_t begin,
                            std::int64_t end) -> format::SliceRow& {
      format::SliceRow& row = run_.Device(name, begin * 1000, (end - begin) * 1000);
      row.step = 1;
      return row;
    };
    device("sgemm", 55, 85).correlation = 9;
    device("sgemm", 85, 105).correlation = 10;
    format::SliceRow& copy = device("Memcpy HtoD", 110, 115);
    copy.category = "memcpy";
    copy.bytes = 4096;
  }

  Profile Build(const View& view, const BuildOptions& options = {}) {
    if (!written_) run_.Write();
    written_ = true;
    auto profile = BuildProfile(run_.path(), view, options);
    EXPECT_TRUE(profile.ok()) << profile.status().message();
    if (!profile.ok()) return {};
    return std::move(profile).value();
  }

  static Options Parse(const OptionTexts& texts) {
    auto options = Options::Parse(texts);
    EXPECT_TRUE(options.ok()) << options.status().message();
    if (!options.ok()) return {};
    return std::move(options).value();
  }

  static std::string Text(const Profile& profile, const View& view, const OptionTexts& texts) {
    const Options options = Parse(texts);
    return ProfileText(profile, view, Choose(profile.tree, view.list, options), options);
  }

  SliceRun run_;
  bool written_ = false;
};

constexpr std::int64_t kDeep = 100;

TEST_F(Profiles, ScopeNestsModulesRangesAndOperators) {
  const Profile profile = Build(kScopeView);
  EXPECT_EQ(profile.steps, 1U);
  EXPECT_EQ(profile.unplaced, 1U);
  EXPECT_EQ(Text(profile, kScopeView, {.max_depth = kDeep}),
            "node name | total execution time | accelerator execution time | cpu execution time | "
            "op occurrence (run|defined)\n"
            "_TFProfRoot (--/145us, --/55us, --/90us, --/6|--/6)\n"
            "  nn.Module: Linear_0 (4us/80us, 0us/30us, 4us/50us, 1/3|1/3)\n"
            "    aten::linear (16us/76us, 0us/30us, 16us/46us, 1/2|1/2)\n"
            "      aten::addmm (60us/60us, 30us/30us, 30us/30us, 1/1|1/1)\n"
            "  AddmmBackward0 (40us/40us, 20us/20us, 20us/20us, 1/1|1/1)\n"
            "  optimizer (10us/20us, 0us/0us, 10us/20us, 1/2|1/2)\n"
            "    aten::add_ (10us/10us, 0us/0us, 10us/10us, 1/1|1/1)\n"
            "  (launch not recorded) (5us/5us, 5us/5us, 0us/0us, 0/0|0/0)\n");
}

TEST_F(Profiles, OperatorsAreRankedByTheirOwnTime) {
  const Profile profile = Build(kOpView);
  const Options options = Parse({.max_depth = 3, .select = "micros"});
  const Shown root = Choose(profile.tree, true, options);
  ASSERT_EQ(root.children.size(), 3U);
  const Node& first = profile.tree.node(root.children[0].id);
  EXPECT_EQ(first.name, "aten::addmm");
  EXPECT_EQ(first.self.host_ns, 30'000);
  EXPECT_EQ(first.self.device_ns, 30'000);
  EXPECT_EQ(root.total.micros(), 131) << "all lines, those beyond max_depth too";
  EXPECT_EQ(root.children[0].total.micros(), 131);
  EXPECT_EQ(root.children[1].total.micros(), 71) << "AddmmBackward0 and those after it";
  const Node& linear = profile.tree.node(root.children[2].id);
  EXPECT_EQ(linear.name, "aten::linear");
  EXPECT_EQ(linear.self.host_ns, 16'000);
  EXPECT_EQ(linear.host_with_callees_ns, 46'000);
  EXPECT_EQ(linear.device_with_callees_ns, 30'000);
  EXPECT_EQ(linear.self.float_ops, 1000);
  const std::string text = Text(profile, kOpView, {.max_depth = 1, .select = "cpu_micros"});
  EXPECT_EQ(text,
            "node name | cpu execution time\n"
            "aten::addmm                      30us (100.00%, 39.47%)\n");
}

TEST_F(Profiles, BackwardHangsBelowItsForwardOperator) {
  EXPECT_EQ(Text(Build(kGraphView), kGraphView, {.max_depth = kDeep, .select = "cpu_micros"}),
            "node name | cpu execution time\n"
            "_TFProfRoot (--/76us)\n"
            "  aten::linear (16us/66us)\n"
            "    aten::addmm (30us/30us)\n"
            "    AddmmBackward0 (20us/20us)\n"
            "  aten::add_ (10us/10us)\n"
            "  (launch not recorded) (0us/0us)\n");
}

TEST_F(Profiles, LinesOfPythonOwnWhatTheyLaunched) {
  EXPECT_EQ(Text(Build(kCodeView), kCodeView, {.max_depth = kDeep, .select = "micros"}),
            "node name | total execution time | accelerator execution time | cpu execution time\n"
            "_TFProfRoot (--/175us, --/55us, --/120us)\n"
            "  train.py(3): main (50us/170us, 0us/50us, 50us/120us)\n"
            "    model.py(7): forward (120us/120us, 50us/50us, 70us/70us)\n"
            "  (launch not recorded) (5us/5us, 5us/5us, 0us/0us)\n")
      << "the backward operator of another thread counts with the line of its forward";
}

TEST_F(Profiles, NumbersOfCausesBeginAnewInEachRecording) {
  format::SliceRow* row = &run_.Host("op", "aten::conv2d", 1'000'000, 20'000);
  row->flow = 5;  // Of aten::linear in the other one.
  row->window = "second.json";
  row = &run_.Host("runtime", "cudaLaunchKernel", 1'004'000, 1'000);
  row->correlation = 9;
  row->window = "second.json";
  row = &run_.Device("conv", 1'030'000, 7'000);
  row->correlation = 9;
  row->window = "second.json";
  row = &run_.Device("without a launch", 1'040'000, 3'000);
  row->correlation = 10;
  row->window = "second.json";
  const Profile profile = Build(kGraphView, {.sum = true});
  EXPECT_EQ(profile.unplaced, 2U) << "the copy, and what the first recording's launch did not do";
  const auto of = [&](std::string_view name) {
    NodeId found = kRoot;
    for (NodeId id = 1; id < profile.tree.size(); ++id) {
      if (profile.tree.node(id).name == name) found = id;
    }
    return found;
  };
  EXPECT_EQ(profile.tree.node(of("aten::conv2d")).self.device_ns, 7'000);
  EXPECT_EQ(profile.tree.node(of("aten::conv2d")).parent, kRoot);
  EXPECT_EQ(profile.tree.node(of("aten::addmm")).self.device_ns, 30'000);
}

TEST_F(Profiles, OperatorsThatCarryTheirStackCountWithIt) {
  SliceRun run;
  run.Host("op", "aten::relu", 0, 10'000).args =
      R"({"Call stack": "nn.py(5): relu;train.py(9): step;"})";
  run.Host("op", "aten::tanh", 20'000, 5000);
  run.Write();
  const auto profile = BuildProfile(run.path(), kCodeView);
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(Text(*profile, kCodeView, {.select = "cpu_micros"}),
            "node name | cpu execution time\n"
            "_TFProfRoot (--/15us)\n"
            "  train.py(9): step (0us/10us)\n"
            "    nn.py(5): relu (10us/10us)\n"
            "  (no Python stack) (5us/5us)\n");
}

TEST_F(Profiles, KernelsByName) {
  EXPECT_EQ(Text(Build(kKernelView), kKernelView, {.select = "accelerator_micros,occurrence"}),
            "node name | accelerator execution time | op occurrence (run|defined)\n"
            "sgemm                            50us (100.00%, 90.91%),        2|1\n"
            "Memcpy HtoD                          5us (9.09%, 9.09%),        1|1\n");
}

TEST_F(Profiles, ModulesAlone) {
  EXPECT_EQ(Text(Build(kModuleView), kModuleView, {.select = "micros,float_ops"}),
            "node name | # float_ops | total execution time | accelerator execution time | cpu "
            "execution time\n"
            "_TFProfRoot (--/1.00k flops, --/105us, --/55us, --/50us)\n"
            "  nn.Module: Linear_0 (1.00k/1.00k flops, 80us/80us, 30us/30us, 50us/50us)\n"
            "  (launched outside of these) (0/0 flops, 20us/20us, 20us/20us, 0us/0us)\n"
            "  (launch not recorded) (0/0 flops, 5us/5us, 5us/5us, 0us/0us)\n");
}

TEST_F(Profiles, MemoryOfTheInnermostOperator) {
  const Profile profile = Build(kOpView);
  EXPECT_EQ(
      Text(profile, kOpView,
           {.min_bytes = 1, .select = "bytes,peak_bytes,residual_bytes,output_bytes"}),
      "node name | requested bytes | peak bytes | residual bytes | output bytes\n"
      "aten::addmm                     576B (100.00%, 100.00%),        512B (100.00%, 100.00%),"
      "        448B (100.00%, 100.00%),            0B (100.00%, 0.00%)\n");
}

TEST_F(Profiles, ShapesWhereAskedFor) {
  const Profile profile = Build(kOpView, {.input_shapes = true});
  const std::string text =
      Text(profile, kOpView, {.show_name_regexes = "aten::addmm", .select = "input_shapes"});
  EXPECT_NE(text.find("input_type: 0:64|1:32x128|2:unknown\t(run*1)\texec_time: 30us\n"),
            std::string::npos)
      << text;
}

TEST_F(Profiles, WhatIsNotAccountedIsNotCounted) {
  const Profile profile = Build(kScopeView);
  EXPECT_EQ(
      Text(profile, kScopeView,
           {.max_depth = kDeep, .account_type_regexes = "annotation", .select = "cpu_micros"}),
      "node name | cpu execution time\n"
      "_TFProfRoot (--/10us)\n"
      "  optimizer (10us/10us)\n");
  EXPECT_EQ(Text(profile, kScopeView,
                 {.max_depth = kDeep,
                  .account_type_regexes = ".*GPU:0",
                  .select = "accelerator_micros,device"}),
            "node name | accelerator execution time | assigned devices\n"
            "_TFProfRoot (--/55us)\n"
            "  nn.Module: Linear_0 (--/30us, /job:worker/task:0/device:CPU:0)\n"
            "    aten::linear (--/30us, /job:worker/task:0/device:CPU:0)\n"
            "      aten::addmm (30us/30us, "
            "/job:worker/task:0/device:CPU:0|/job:worker/task:0/device:GPU:0)\n"
            "  AddmmBackward0 (20us/20us, "
            "/job:worker/task:0/device:CPU:0|/job:worker/task:0/device:GPU:0)\n"
            "  (launch not recorded) (5us/5us, /job:worker/task:0/device:GPU:0)\n");
}

TEST_F(Profiles, HiddenNodesStillCountInTheirParents) {
  const Profile profile = Build(kScopeView);
  EXPECT_EQ(Text(profile, kScopeView,
                 {.max_depth = kDeep,
                  .start_name_regexes = "nn.*",
                  .hide_name_regexes = "aten::linear",
                  .select = "cpu_micros"}),
            "node name | cpu execution time\n"
            "_TFProfRoot (--/90us)\n"
            "  nn.Module: Linear_0 (4us/50us)\n"
            "    aten::addmm (30us/30us)\n");
  EXPECT_EQ(Text(profile, kScopeView,
                 {.max_depth = kDeep,
                  .start_name_regexes = "nn.*",
                  .hide_name_regexes = "aten::linear",
                  .account_displayed_op_only = true,
                  .select = "cpu_micros"}),
            "node name | cpu execution time\n"
            "_TFProfRoot (--/34us)\n"
            "  nn.Module: Linear_0 (4us/34us)\n"
            "    aten::addmm (30us/30us)\n");
  EXPECT_EQ(Text(profile, kScopeView,
                 {.max_depth = kDeep, .trim_name_regexes = "nn.*,Addmm.*", .select = "cpu_micros"}),
            "node name | cpu execution time\n"
            "_TFProfRoot (--/90us)\n"
            "  optimizer (10us/20us)\n"
            "    aten::add_ (10us/10us)\n"
            "  (launch not recorded) (0us/0us)\n");
  EXPECT_EQ(
      Text(profile, kScopeView,
           {.max_depth = 2, .min_cpu_micros = 20, .order_by = "name", .select = "cpu_micros"}),
      "node name | cpu execution time\n"
      "_TFProfRoot (--/90us)\n"
      "  AddmmBackward0 (20us/20us)\n"
      "  nn.Module: Linear_0 (4us/50us)\n"
      "  optimizer (10us/20us)\n");
}

TEST_F(Profiles, StepsAreAveragedAndWhatLiesOutsideIsLeftOut) {
  SliceRun run;
  for (const int step : {1, 2}) {
    run.Host("op", "aten::relu", step * 100'000, step * 10'000).step = step;
  }
  run.Host("op", "aten::relu", 0, 50'000);
  run.Write();
  const auto average = BuildProfile(run.path(), kOpView);
  ASSERT_TRUE(average.ok());
  EXPECT_EQ(average->steps, 2U);
  EXPECT_EQ(average->outside, 1U);
  EXPECT_EQ(average->tree.node(1).self.host_ns, 15'000);
  EXPECT_EQ(average->tree.node(1).self.occurrence, 1);
  const auto second = BuildProfile(run.path(), kOpView, {.step = 2});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->tree.node(1).self.host_ns, 20'000);
  const auto sum = BuildProfile(run.path(), kOpView, {.sum = true});
  ASSERT_TRUE(sum.ok());
  EXPECT_EQ(sum->tree.node(1).self.host_ns, 80'000);
  const auto none = BuildProfile(run.path(), kOpView, {.step = 7});
  EXPECT_EQ(none.status().code(), Code::kUsage);
}

TEST_F(Profiles, AFlameGraphHasAllLevelsAndKernelsAsLeaves) {
  const Profile profile = Build(kStackView, {.sum = true});
  const std::string text =
      Text(profile, kStackView, {.max_depth = kDeep, .select = "accelerator_micros"});
  EXPECT_NE(text.find("            sgemm (30us/30us)\n"), std::string::npos) << text;
}

class TwoSources : public Profiles {
 protected:
  void SetUp() override {
    Profiles::SetUp();
    for (const char* name : {"main thread", "forward", "model.py(7): forward"}) {
      format::SliceRow& row = run_.Host("python", name, 0, 9'000'000);
      row.window = query::kSampledStacks;
      row.lane = "main thread (1)";
      row.step = 7;
    }
  }
  std::set<std::string> Tops(SliceSource source) {
    const Profile profile = Build(kStackView, {.sum = true, .source = source});
    std::set<std::string> out;
    for (const NodeId id : profile.tree.node(kRoot).children) {
      out.insert(std::string(profile.tree.node(id).name));
    }
    return out;
  }
};

TEST_F(TwoSources, AreApartBelowANodeEach) {
  const Profile both = Build(kStackView, {.sum = true, .source = SliceSource::kBoth});
  EXPECT_TRUE(both.sampled);
  EXPECT_TRUE(both.traced);
  EXPECT_EQ(Tops(SliceSource::kBoth),
            (std::set<std::string>{std::string(kSampledNode), std::string(kTraceNode)}));
  double sampled_ns = 0;
  double device_ns = 0;
  for (NodeId id = 1; id < both.tree.size(); ++id) {
    NodeId top = id;
    while (both.tree.node(top).parent != kRoot) top = both.tree.node(top).parent;
    const Stats& self = both.tree.node(id).self;
    if (both.tree.node(top).name == kSampledNode) {
      sampled_ns += self.host_ns;
      EXPECT_EQ(self.device_ns, 0);
    } else {
      device_ns += self.device_ns;
    }
  }
  EXPECT_EQ(sampled_ns, 9'000'000);
  EXPECT_EQ(device_ns, 55'000) << "kernels, and a copy whose launch nobody has seen";
}

TEST_F(TwoSources, EitherIsThereByItself) {
  EXPECT_EQ(Tops(SliceSource::kSampled), std::set<std::string>{"main thread"});
  const auto traced = Tops(SliceSource::kTrace);
  EXPECT_FALSE(traced.contains("main thread"));
  EXPECT_TRUE(traced.contains("train.py(3): main"));
  EXPECT_TRUE(Build(kStackView, {.sum = true, .source = SliceSource::kSampled}).sampled);
}

TEST_F(Profiles, OfOneSourceAloneThereIsNoSuchNode) {
  const Profile profile = Build(kStackView, {.sum = true, .source = SliceSource::kBoth});
  EXPECT_FALSE(profile.sampled);
  EXPECT_EQ(profile.tree.node(profile.tree.node(kRoot).children[0]).name, "train.py(3): main");
}

TEST_F(Profiles, WeightsByTheirNames) {
  for (const std::int64_t step : {1, 2}) {
    format::StatisticRow row;
    row.name = "layer1.conv.weight";
    row.collection = "weights";
    row.dtype = "float32";
    row.mode = "TRAIN";
    row.step = step;
    row.count = 1200;
    row.mean = 0.5;
    run_.rows().statistics.push_back(row);
  }
  format::TensorRow bias;
  bias.name = "layer1.conv.bias";
  bias.collection = "biases";
  bias.dtype = "F32";
  bias.shape = "[4, 2]";
  run_.rows().tensors.push_back(bias);
  const Profile profile = Build(kScopeView, {.parameters = true, .tensor_values = true});
  EXPECT_EQ(Text(profile, kScopeView,
                 {.max_depth = kDeep,
                  .account_type_regexes = "Variable,VariableV2",
                  .select = "params,tensor_value"}),
            "node name | # parameters\n"
            "_TFProfRoot (--/1.21k params)\n"
            "  layer1 (--/1.21k params)\n"
            "    conv (--/1.21k params)\n"
            "      bias (8/8 params)\n"
            "      weight (1.20k/1.20k params)\n"
            "        step 2: mean 0.5, std 0, min 0, max 0\n");
}

TEST_F(Profiles, JsonHasTfprofsNames) {
  const Profile profile = Build(kOpView);
  const Options options = Parse({.max_depth = 1});
  const auto json = ProfileJson(profile, kOpView, Choose(profile.tree, true, options), options);
  EXPECT_EQ(json["view"], "op");
  EXPECT_EQ(json["steps"], 1);
  const auto& first = json["root"]["children"][0];
  EXPECT_EQ(first["name"], "aten::addmm");
  EXPECT_EQ(first["exec_micros"], 60.0);
  EXPECT_EQ(first["accelerator_exec_micros_with_callees"], 30.0);
  EXPECT_EQ(first["run_count"], 1.0);
}

TEST(ProfileOptions, SayWhatIsWrong) {
  const auto regex = Options::Parse({.trim_name_regexes = "a(,b"});
  EXPECT_EQ(regex.status().code(), Code::kUsage);
  EXPECT_NE(regex.status().message().find("--trim_name_regexes: 'a('"), std::string::npos);
  EXPECT_EQ(Options::Parse({.order_by = "size"}).status().code(), Code::kUsage);
  EXPECT_EQ(Options::Parse({.select = "micros,ram"}).status().code(), Code::kUsage);
  EXPECT_EQ(Output::Parse("pprof:outfile=").status().code(), Code::kUsage);
  const auto file = Output::Parse("timeline:outfile=/tmp/x");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->file, "/tmp/x");
}

TEST(ProfileNumbers, AsTfprofWritesThem) {
  EXPECT_EQ(NumberText(999), "999");
  EXPECT_EQ(NumberText(2.5), "2.50");
  EXPECT_EQ(NumberText(1234), "1.23k");
  EXPECT_EQ(BytesText(2'720'570'000), "2.72GB");
  EXPECT_EQ(MicrosText(1'370'000), "1.37sec");
  EXPECT_EQ(MicrosText(708'140), "708.14ms");
}

}  // namespace
}  // namespace telltale::analysis::profile
