// SPDX-License-Identifier: Apache-2.0
// What the doctor says of machines that are unlike this one, and of this one.
#include "cli/doctor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace telltale::cli {
namespace {

namespace fs = std::filesystem;

class DoctorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "telltale-doctor-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name + "/";
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  Check On(const std::string& name) const {
    const auto checks = Examine({root_.string(), root_.string(), nvml_});
    const auto found = std::find_if(checks.begin(), checks.end(),
                                    [&](const Check& check) { return check.name == name; });
    EXPECT_NE(found, checks.end()) << name;
    return found == checks.end() ? Check{} : *found;
  }
  static bool Says(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  fs::path root_;
  std::string nvml_ = "/nowhere/libnvidia-ml.so.1";
};

TEST_F(DoctorTest, WhatRunNeedsWorksHereAndLeavesNothingBehind) {
  const auto before = std::distance(fs::directory_iterator(root_), fs::directory_iterator());
  std::set<std::string> names;
  for (const Check& check : Examine({"/", root_.string()})) {
    EXPECT_TRUE(names.insert(check.name).second) << check.name;
    EXPECT_NE(check.finding, Finding::kStops) << check.name << ": " << check.found;
    EXPECT_FALSE(check.found.empty()) << check.name;
    EXPECT_FALSE(check.effect.empty()) << check.name;
  }
  for (const char* name : {"pidfd", "memfd sealing", "clock", "perf", "ptrace scope", "cgroup",
                           "GPU library", "memory limit", "disk"}) {
    EXPECT_EQ(names.count(name), 1U) << name;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), fs::directory_iterator()), before);
}

TEST_F(DoctorTest, AFolderThatIsNotThereStops) {
  const auto checks = Examine({"/", (root_ / "missing").string()});
  const auto disk = std::find_if(checks.begin(), checks.end(),
                                 [](const Check& check) { return check.name == "disk"; });
  ASSERT_NE(disk, checks.end());
  EXPECT_EQ(disk->finding, Finding::kStops);
  EXPECT_TRUE(Says(disk->found, "No such file")) << disk->found;
}

TEST_F(DoctorTest, TheLimitsOfAContainer) {
  EXPECT_EQ(On("cgroup").finding, Finding::kMissing);
  Write("proc/self/mountinfo", "25 30 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("proc/self/cgroup", "0::/\n");
  Write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8388608 kB\n");
  Write("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
  EXPECT_EQ(On("cgroup").finding, Finding::kOk);
  EXPECT_EQ(On("memory limit").finding, Finding::kOk);
  EXPECT_TRUE(Says(On("memory limit").found, "8.0 GiB available"));
  Write("sys/fs/cgroup/cpu.max", "25000 100000\n");
  Write("sys/fs/cgroup/memory.max", "268435456\n");
  const Check group = On("cgroup");
  EXPECT_EQ(group.finding, Finding::kLimited);
  EXPECT_TRUE(Says(group.found, "version 2; limits: 0.25 cores, memory 256 MiB, tasks none"))
      << group.found;
  EXPECT_TRUE(Says(group.effect, "0.25 of")) << group.effect;
  const Check memory = On("memory limit");
  EXPECT_EQ(memory.finding, Finding::kLimited);
  EXPECT_TRUE(Says(memory.found, "control group 256 MiB")) << memory.found;
}

/// 192 sampled processes with five descriptors each and 256 recorded ones with two do not fit 1024.
TEST_F(DoctorTest, ALimitOfOpenFilesThatManyProcessesReachIsNamed) {
  const auto with_limit = [&](rlim_t most) {
    const rlimit files{std::min<rlim_t>(256, most), most};
    if (::setrlimit(RLIMIT_NOFILE, &files) != 0) ::_exit(2);
    const Check check = On("open files");
    std::fprintf(stderr, "%s: %s: %s", Name(check.finding).data(), check.found.c_str(),
                 check.effect.c_str());
    ::_exit(0);
  };
  EXPECT_EXIT(with_limit(1024), ::testing::ExitedWithCode(0),
              "limited: at most 1024: enough for some 128 processes");
  rlimit given{};
  ::getrlimit(RLIMIT_NOFILE, &given);
  if (given.rlim_max < 2048) return;
  EXPECT_EXIT(with_limit(2048), ::testing::ExitedWithCode(0), "ok: 256, may be raised to 2048: up");
}

TEST_F(DoctorTest, PtraceScopeIsNamed) {
  EXPECT_EQ(On("ptrace scope").finding, Finding::kOk);
  Write("proc/sys/kernel/yama/ptrace_scope", "2\n");
  EXPECT_EQ(On("ptrace scope").finding, Finding::kLimited);
  EXPECT_TRUE(Says(On("ptrace scope").found, "administrators only"));
  Write("proc/sys/kernel/yama/ptrace_scope", "x\n");
  EXPECT_EQ(On("ptrace scope").finding, Finding::kOk);
}

TEST_F(DoctorTest, WhatOfProcCannotBeReadIsNamed) {
  Write("proc/stat", "cpu 1\n");
  Write("proc/diskstats", "");
  Write("proc/self/io", "rchar: 1\n");
  const Check check = On("/proc");
  EXPECT_EQ(check.finding, Finding::kLimited);
  EXPECT_EQ(check.found, "cannot read /proc/pressure");
  Write("proc/pressure/cpu", "some avg10=0.00\n");
  EXPECT_EQ(On("/proc").finding, Finding::kOk);
}

TEST_F(DoctorTest, DevicesOfTheGraphicsCardAreCounted) {
  Write("dev/nvidia0", "");
  Write("dev/nvidia1", "");
  Write("dev/nvidiactl", "");
  const Check check = On("GPU library");
  EXPECT_EQ(check.finding, Finding::kLimited);
  EXPECT_EQ(check.found, "no /nowhere/libnvidia-ml.so.1; NVIDIA devices: 2");
  EXPECT_TRUE(Says(check.effect, "NVIDIA_DRIVER_CAPABILITIES")) << check.effect;
}

TEST_F(DoctorTest, WhatTheDriverSaysOfTheGraphicsCards) {
  EXPECT_EQ(On("GPU library").finding, Finding::kMissing);
  nvml_ = TELLTALE_FAKE_NVML;
  const std::string script = (root_ / "gpus").string();
  ::setenv("TELLTALE_FAKE_NVML", script.c_str(), 1);
  EXPECT_EQ(On("GPU library").found, "the driver is not loaded; NVIDIA devices: 0");
  Write("gpus", "gpus 2\n");
  Check check = On("GPU library");
  EXPECT_EQ(check.finding, Finding::kOk);
  EXPECT_EQ(check.found, "driver 000.00.fake: 2 × Fake H100, 80.0 GiB");
  Write("gpus", "gpus 3\ngpm 1\n1.mig 1\n2.lost 1\n");
  check = On("GPU library");
  ::unsetenv("TELLTALE_FAKE_NVML");
  EXPECT_EQ(check.finding, Finding::kLimited);
  EXPECT_TRUE(Says(check.effect, "tensor cores too; 1 partitioned (MIG)")) << check.effect;
  EXPECT_TRUE(Says(check.found, "1 × without an answer")) << check.found;
}

}  // namespace
}  // namespace telltale::cli
