// SPDX-License-Identifier: Apache-2.0
// GPUs by the library that tests/support/fake_nvml.cc stands for.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>

#include "base/units.h"
#include "collect/fixture.h"

namespace telltale::collect {
namespace {

class GpuTest : public SampledTree {
 protected:
  static constexpr double kGiB = 1 << 30;

  void SetUp() override { ::setenv("TELLTALE_FAKE_NVML", script().c_str(), 1); }
  void TearDown() override {
    sampler.reset();
    ::unsetenv("TELLTALE_FAKE_NVML");
  }
  std::string script() const { return tree.root() + "/gpus"; }
  /// Replaces the file in one step: the devices read it whenever they like.
  void Script(const std::string& text) const {
    tree.Write("gpus.new", text);
    std::filesystem::rename(tree.root() + "/gpus.new", script());
  }
  SamplerOptions GpuOptions() {
    SamplerOptions options = Options();
    options.nvml = TELLTALE_FAKE_NVML;
    return options;
  }
  /// The sample `after` later; its events are added to `events`.
  Values Next(std::int64_t after) {
    if (!sampler) sampler = Sampler::Create(GpuOptions());
    clock.Advance(after);
    Values values = Sample();
    for (SystemEvent& event : sampler->TakeEvents()) events.push_back(std::move(event));
    return values;
  }

  std::vector<SystemEvent> events;
};

TEST_F(GpuTest, WhatADeviceTells) {
  Script(
      "gpus 2\nutilization 50\nmemory_activity 20\nmemory_total 85899345920\n"
      "memory_reserved 1073741824\nmemory_used 21474836480\npower 350500\nclock_sm 1500\n"
      "throttle_reasons 4\ntemperature 61\n1.utilization 7\nmemory_temperature 70\n"
      "pcie_sent 1000\npcie_received 2000\necc_corrected 3\necc_uncorrected 1\nnvlink_sent 100\n"
      "nvlink_received 200\nnvlink_errors 5\n0.process.4711 1073741824\n"
      "1.process.4711 1073741824\n1.process.12 1048576\n");
  Next(0);  // The library is opened; the slow thread is asked from the next on.
  const Values v = Next(kSecond);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.utilization"), 50);
  EXPECT_DOUBLE_EQ(v.at("gpu:1 gpu.utilization"), 7);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.memory_activity"), 20);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.memory_total"), 80 * kGiB);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.memory_used"), 20 * kGiB);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.memory_free"), 59 * kGiB);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.memory_percent"), 25);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.power"), 350.5);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.power_limit"), 700);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.clock_sm"), 1500);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.clock_sm_max"), 1980);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.clock_memory"), 2619);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.throttle_reasons"), 4);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.temperature"), 61);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.memory_temperature"), 70);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.pcie_send_bytes_rate"), 1e6);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.pcie_recv_bytes_rate"), 2e6);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.ecc_corrected"), 3);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.ecc_uncorrected"), 1);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 gpu.process_memory"), 2 * kGiB);
  EXPECT_DOUBLE_EQ(v.at("proc:12 gpu.process_memory"), 1 << 20);
  EXPECT_EQ(v.count("gpu:0 gpu.nvlink_send_bytes_rate"), 0U) << "a rate begins with the second";
  EXPECT_TRUE(events.empty());

  Script("gpus 2\nnvlink_sent 300\nnvlink_received 200\nnvlink_errors 15\npcie_replays 8\n");
  const Values later = Next(2 * kSecond);
  EXPECT_DOUBLE_EQ(later.at("gpu:0 gpu.nvlink_send_bytes_rate"), 100 * 1024);
  EXPECT_DOUBLE_EQ(later.at("gpu:0 gpu.nvlink_recv_bytes_rate"), 0);
  EXPECT_DOUBLE_EQ(later.at("gpu:0 gpu.nvlink_errors_rate"), 5);
  EXPECT_DOUBLE_EQ(later.at("gpu:0 gpu.pcie_replays_rate"), 4);
  EXPECT_EQ(sampler->counters().unanswered, 0U);
}

TEST_F(GpuTest, WhatIsSlowComesOnceASecond) {
  Script("utilization 50\n");
  Next(0);
  EXPECT_EQ(Next(kSecond / 10).count("gpu:0 gpu.power_limit"), 1U);
  for (int i = 0; i < 9; ++i) {
    const Values v = Next(kSecond / 10);
    EXPECT_EQ(v.count("gpu:0 gpu.utilization"), 1U);
    EXPECT_EQ(v.count("gpu:0 gpu.power_limit"), 0U);
  }
  EXPECT_EQ(Next(kSecond / 10).count("gpu:0 gpu.power_limit"), 1U);
}

TEST_F(GpuTest, CountersOfTheDeviceStandForTheWindowOfTheBus) {
  Script(
      "gpm 1\nsm_active 40\ntensor_active 12.5\nmemory_bandwidth 30\npcie_sent 3\n"
      "pcie_received 2\n");
  Next(0);
  EXPECT_EQ(Next(kSecond).count("gpu:0 gpu.pcie_send_bytes_rate"), 0U) << "only the base";
  const Values v = Next(kSecond);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.sm_active"), 40);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.tensor_active"), 12.5);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.memory_bandwidth"), 30);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.pcie_send_bytes_rate"), 3.0 * (1 << 20));
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.pcie_recv_bytes_rate"), 2.0 * (1 << 20));
}

TEST_F(GpuTest, WhatIsNotSupportedIsLeftOut) {
  Script(
      "mig 1\nutilization no\nmemory_activity no\npcie_sent no\npcie_received no\n"
      "ecc_corrected no\necc_uncorrected no\nmemory_temperature no\n");
  Next(0);
  const Values v = Next(kSecond);
  EXPECT_EQ(v.count("gpu:0 gpu.utilization"), 0U);
  EXPECT_EQ(v.count("gpu:0 gpu.pcie_send_bytes_rate"), 0U);
  EXPECT_EQ(v.count("gpu:0 gpu.ecc_corrected"), 0U);
  EXPECT_EQ(v.count("gpu:0 gpu.memory_temperature"), 0U);
  EXPECT_DOUBLE_EQ(v.at("gpu:0 gpu.power"), 70);
}

TEST_F(GpuTest, ADeviceThatIsLostIsAnEventAndTheOthersGoOn) {
  Script("gpus 2\nutilization 50\n");
  Next(0);
  Next(kSecond);
  Script("gpus 2\nutilization 50\n1.lost 1\n");
  const Values v = Next(kSecond);
  EXPECT_EQ(v.count("gpu:0 gpu.utilization"), 1U);
  EXPECT_EQ(v.count("gpu:1 gpu.utilization"), 0U);
  Next(kSecond);
  ASSERT_EQ(events.size(), 1U) << "said once";
  EXPECT_EQ(events[0].kind, "gpu.lost");
  EXPECT_EQ(events[0].severity, "high");
  EXPECT_EQ(events[0].subject, "gpu:1");
  EXPECT_EQ(events[0].message, "gpu:1 is lost: the device is lost: it does not answer on the bus");

  Script("gpus 2\nutilization 50\n");
  EXPECT_EQ(Next(5 * kSecond).count("gpu:1 gpu.utilization"), 0U) << "asked every 10 s";
  EXPECT_EQ(Next(6 * kSecond).count("gpu:1 gpu.utilization"), 1U);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1].kind, "gpu.back");
}

TEST_F(GpuTest, ErrorsOfTheDeviceAreEvents) {
  Script("gpus 2\n");
  Next(0);
  Next(kSecond);
  Script("gpus 2\n1.xid 79\n0.xid 31\n0.xid 777\n");
  Next(kSecond);
  Next(kSecond);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].kind, "gpu.xid");
  EXPECT_EQ(events[0].severity, "high");
  EXPECT_EQ(events[0].subject, "gpu:1");
  EXPECT_EQ(events[0].message, "gpu:1 reports error XID 79: the device has fallen off the bus");
  EXPECT_EQ(events[0].data, R"({"gpu":1,"xid":79,"program":false})");
  EXPECT_EQ(events[1].severity, "medium") << "a program can cause it";
  EXPECT_EQ(events[2].message, "gpu:0 reports error XID 777");
}

TEST_F(GpuTest, ADriverThatHangsHoldsUpNothingAndIsSaid) {
  Script("utilization 50\n");
  Next(0);
  tree.Write("proc/meminfo", "MemTotal: 4 kB\n");
  Script("utilization 50\nhang 1\n");
  SamplerOptions options = GpuOptions();
  options.patience_ns = 1'000'000;
  sampler = Sampler::Create(options);
  Values v = Next(60 * kSecond);
  EXPECT_EQ(v.count("gpu:0 gpu.utilization"), 0U);
  EXPECT_EQ(v.count("node mem.total"), 1U);
  EXPECT_EQ(sampler->counters().unanswered, 1U);
  Next(29 * kSecond);
  EXPECT_TRUE(events.empty());
  Next(kSecond);
  Next(kSecond);
  ASSERT_EQ(events.size(), 1U) << "said once";
  EXPECT_EQ(events[0].kind, "gpu.silent");
  EXPECT_EQ(events[0].message, "the GPUs' driver has not answered for 30 s");
  Script("utilization 50\n");
  for (int i = 0; i < 6000 && v.count("gpu:0 gpu.utilization") == 0; ++i) {
    v = Next(kSecond);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(v.count("gpu:0 gpu.utilization"), 1U) << "it goes on once the driver does";
}

TEST_F(GpuTest, ANodeOf192CoresAndEightGpusIsTakenWhole) {
  constexpr int kCores = 192;
  const auto cores = [this](int ticks) {
    std::string text;
    for (int i = 0; i < kCores; ++i) {
      text += "cpu" + std::to_string(i) + " " + std::to_string(ticks) + " 0 0 " +
              std::to_string(ticks) + " 0 0 0 0 0 0\n";
    }
    tree.Write("proc/stat", text);
  };
  Script("gpus 8\nutilization 90\n7.utilization 3\n");
  cores(0);
  Next(0);
  cores(10);
  const Values v = Next(kSecond / 10);
  for (int i = 0; i < kCores; ++i) {
    EXPECT_DOUBLE_EQ(v.at("cpu:" + std::to_string(i) + " cpu.busy"), 50);
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_DOUBLE_EQ(v.at("gpu:" + std::to_string(i) + " gpu.utilization"), i == 7 ? 3 : 90);
  }
}

TEST_F(GpuTest, WithoutLibraryOrDriverThereIsNothing) {
  SamplerOptions options = GpuOptions();
  options.nvml = "/nowhere/libnvidia-ml.so.1";
  sampler = Sampler::Create(options);
  EXPECT_TRUE(Next(0).empty());
  EXPECT_TRUE(Next(kSecond).empty());
  ::unsetenv("TELLTALE_FAKE_NVML");
  sampler = Sampler::Create(GpuOptions());
  EXPECT_TRUE(Next(0).empty()) << "the driver is not loaded";
  EXPECT_TRUE(Next(kSecond).empty());
  EXPECT_TRUE(events.empty());
}

}  // namespace
}  // namespace telltale::collect
