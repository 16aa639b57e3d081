// SPDX-License-Identifier: Apache-2.0
// The sampler over files that a real kernel wrote (testdata/README.md), beside values worked out
// from them by hand.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/units.h"
#include "collect/fixture.h"

namespace telltale::collect {
namespace {

namespace fs = std::filesystem;

class RecordedTest : public SampledTree {
 protected:
  void Lay(const std::string& name) const {
    const fs::path from = fs::path(TELLTALE_COLLECT_TESTDATA) / name;
    std::size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(from)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      tree.Write(fs::relative(entry.path(), from).string(),
                 std::string(std::istreambuf_iterator<char>(in), {}));
      ++files;
    }
    ASSERT_GT(files, 0U) << from;
  }
};

TEST_F(RecordedTest, EverySourceOfARealMachine) {
  Lay("linux-6.18-cgroup-v1/first");
  sampler = Sampler::Create(Options());
  sampler->SetRoots({4711});
  const Values first = Sample();
  EXPECT_DOUBLE_EQ(first.at("cpu:1 cpu.frequency"), 2596.140);
  EXPECT_DOUBLE_EQ(first.at("node mem.total"), 24684084.0 * 1024);
  EXPECT_DOUBLE_EQ(first.at("node swap.total"), 0);
  EXPECT_DOUBLE_EQ(first.at("proc:4711 proc.swap"), 0);
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.mem_used"), 10326016);
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.oom_kills"), 0);
  EXPECT_EQ(first.count("cgroup cgroup.mem_limit"), 0U) << "no limit was taken for one";
  EXPECT_EQ(first.count("cgroup cgroup.cpu_limit"), 0U);

  Lay("linux-6.18-cgroup-v1/second");
  clock.Advance(2 * kSecond);
  const Values v = Sample();
  // cpu1: 20 user, 2 system, nothing else.
  EXPECT_DOUBLE_EQ(v.at("cpu:1 cpu.user"), 100 * 20 / 22.0);
  EXPECT_DOUBLE_EQ(v.at("cpu:1 cpu.busy"), 100);
  EXPECT_DOUBLE_EQ(v.at("disk:vda disk.write_bytes_rate"), (178663088 - 178646672) * 512 / 2.0);
  EXPECT_DOUBLE_EQ(v.at("disk:vda disk.read_ops_rate"), 0);
  EXPECT_DOUBLE_EQ(v.at("net:eth0 net.recv_bytes_rate"), 0);
  EXPECT_DOUBLE_EQ(v.at("net:eth0 net.drops_rate"), 0);
  EXPECT_DOUBLE_EQ(v.at("node swap.in_bytes_rate"), 0);
  EXPECT_DOUBLE_EQ(v.at("node mem.major_faults_rate"), 0);
  const double hz = static_cast<double>(::sysconf(_SC_CLK_TCK));
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.cpu_user"), 100 * (4 - 1) / hz / 2);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.cpu_system"), 100 * (14 - 0) / hz / 2);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.cpu"), 100 * (18 - 1) / hz / 2);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.rss"),
                   2920.0 * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.read_bytes_rate"), 0);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.write_bytes_rate"), 8626176 / 2.0);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.read_calls_rate"), (203 - 109) / 2.0);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.write_calls_rate"), 36 / 2.0);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.read_call_bytes_rate"), (3409636 - 772105) / 2.0);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.write_call_bytes_rate"), 8402577 / 2.0);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.voluntary_switches_rate"), (47 - 2) / 2.0);
  EXPECT_DOUBLE_EQ(v.at("proc:4711 proc.involuntary_switches_rate"), 16 / 2.0);
  EXPECT_DOUBLE_EQ(v.at("proc:tree proc.involuntary_switches_rate"), 16 / 2.0);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.cpu_used"),
                   (19248124806603.0 - 19247717467078.0) * 1e-9 / 2 * 100);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.mem_used"), 20025344);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.mem_limit_hits_rate"), 0);
  EXPECT_EQ(sampler->counters().unreadable, 0U);
  EXPECT_EQ(sampler->counters().malformed, 0U);
  EXPECT_EQ(sampler->counters().counter_resets, 0U);
}

}  // namespace
}  // namespace telltale::collect
