// SPDX-License-Identifier: Apache-2.0
#include "collect/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/units.h"
#include "collect/fixture.h"

namespace telltale::collect {
namespace {

constexpr const char* kV2Mount =
    "25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

class CgroupTest : public SampledTree {
 protected:
  std::string root() const { return tree.root() + "/"; }
  std::string Folder(const std::string& path) const { return root() + "sys/fs/cgroup" + path; }
  void WriteGroup(const std::string& path, const std::map<std::string, std::string>& files) const {
    for (const auto& [name, text] : files) tree.Write("sys/fs/cgroup" + path + "/" + name, text);
  }
  void LayV2(const std::string& mount, const std::string& path) const {
    tree.Write("proc/self/mountinfo", "21 1 0:5 / /proc rw - proc proc rw\n" + mount);
    tree.Write("proc/self/cgroup", "0::" + path + "\n");
  }
  /// A slice with half the memory of the job in it, and a job with one and a half cores.
  void LaySlices() const {
    LayV2(kV2Mount, "/work.slice/job.scope");
    WriteGroup("", {{"cgroup.controllers", "cpuset cpu io memory pids\n"}});
    WriteGroup("/work.slice",
               {{"cgroup.controllers", "cpu memory pids\n"},
                {"cpu.max", "400000 100000\n"},
                {"memory.max", "1073741824\n"},
                {"memory.current", "900000000\n"},
                {"memory.events", "low 0\nhigh 3\nmax 10\noom 0\noom_kill 0\noom_group_kill 0\n"},
                {"pids.max", "max\n"}});
    WriteGroup("/work.slice/job.scope",
               {{"cgroup.controllers", "cpu memory pids\n"},
                {"cpu.max", "150000 100000\n"},
                {"cpu.stat",
                 "usage_usec 1000000\nuser_usec 800000\nsystem_usec 200000\nnr_periods 100\n"
                 "nr_throttled 10\nthrottled_usec 500000\nnr_bursts 0\nburst_usec 0\n"},
                {"memory.max", "2147483648\n"},
                {"memory.current", "5\n"},
                {"pids.max", "1024\n"},
                {"pids.current", "17\n"}});
  }
};

TEST_F(CgroupTest, VersionTwoIsTheFolderAndItsParents) {
  LaySlices();
  const CgroupPlaces places = FindCgroups(root(), "self");
  EXPECT_EQ(places.version(), 2);
  EXPECT_EQ(places.memory.folders,
            (std::vector{Folder("/work.slice/job.scope"), Folder("/work.slice"), Folder("")}));
  const auto cpu = CpuLimit(places.cpu);
  ASSERT_TRUE(cpu);
  EXPECT_DOUBLE_EQ(cpu->value, 1.5);
  const auto memory = MemoryLimit(places.memory);
  ASSERT_TRUE(memory);
  EXPECT_DOUBLE_EQ(memory->value, 1 << 30);
  EXPECT_EQ(memory->folder, Folder("/work.slice")) << "the parent's limit is the tighter one";
  ASSERT_TRUE(TasksLimit(places.pids));
  EXPECT_DOUBLE_EQ(TasksLimit(places.pids)->value, 1024);
}

TEST_F(CgroupTest, VersionTwoIsSampledWhereTheLimitBinds) {
  LaySlices();
  const Values first = Sample();
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.cpu_limit"), 1.5);
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.mem_limit"), 1 << 30);
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.mem_used"), 900000000);
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.oom_kills"), 0);
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.tasks"), 17);
  EXPECT_EQ(first.count("cgroup cgroup.cpu_used"), 0U);
  WriteGroup("/work.slice/job.scope",
             {{"cpu.stat",
               "usage_usec 1600000\nuser_usec 1\nsystem_usec 1\nnr_periods 105\nnr_throttled 14\n"
               "throttled_usec 700000\n"}});
  WriteGroup("/work.slice",
             {{"memory.events", "low 0\nhigh 4\nmax 13\noom 1\noom_kill 2\noom_group_kill 0\n"}});
  clock.Advance(kSecond / 2);
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.cpu_used"), 120);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.cpu_throttled"), 40);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.cpu_throttled_periods"), 80);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.mem_limit_hits_rate"), 8);
  EXPECT_EQ(v.count("cgroup cgroup.tasks"), 0U) << "slowly";
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.oom_kills"), 2);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.ooms"), 1);
}

TEST_F(CgroupTest, PressureIsTheGroupsOwnAndSwapIsWhereTheLimitBinds) {
  LaySlices();
  const auto pressure = [](const char* some, const char* full) {
    return std::string("some avg10=") + some + " avg60=0 avg300=0 total=1\nfull avg10=" + full +
           " avg60=0 avg300=0 total=1\n";
  };
  WriteGroup("/work.slice/job.scope", {{"cpu.pressure", pressure("12.5", "3")},
                                       {"io.pressure", pressure("4", "2")},
                                       {"memory.pressure", pressure("1", "0.5")}});
  WriteGroup("/work.slice",
             {{"cpu.pressure", pressure("99", "99")}, {"memory.swap.current", "4096\n"}});
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.psi_cpu_some10"), 12.5);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.psi_io_some10"), 4);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.psi_io_full10"), 2);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.psi_memory_some10"), 1);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.psi_memory_full10"), 0.5);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.swap_used"), 4096);
}

TEST_F(CgroupTest, ALimitThatIsChangedIsSeenWithinTenSeconds) {
  LaySlices();
  Sample();
  WriteGroup("/work.slice/job.scope", {{"cpu.max", "max 100000\n"}});
  clock.Advance(10 * kSecond);
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.cpu_limit"), 4);
  EXPECT_EQ(v.count("cgroup cgroup.cpu_throttled"), 0U) << "of another group than before";
}

TEST_F(CgroupTest, AGroupThatIsMadeAnewUnderTheSamePathIsRead) {
  LaySlices();
  Sample();
  const std::uint64_t resets = sampler->counters().counter_resets;
  const std::string job = "sys/fs/cgroup/work.slice/job.scope/cpu.stat";
  const auto write_used = [&](const char* used) {
    tree.Remove(job);  // Another file, not the one that is held.
    WriteGroup("/work.slice/job.scope", {{"cpu.stat", used}});
  };
  CutFile(job);
  write_used("usage_usec 5\n");
  clock.Advance(kSecond / 2);
  EXPECT_EQ(Sample().count("cgroup cgroup.cpu_used"), 0U);
  clock.Advance(kSecond / 2);
  EXPECT_EQ(Sample().count("cgroup cgroup.cpu_used"), 0U) << "the first reading of the new one";
  WriteGroup("/work.slice/job.scope", {{"cpu.stat", "usage_usec 300005\n"}});
  clock.Advance(kSecond / 2);
  EXPECT_DOUBLE_EQ(Sample().at("cgroup cgroup.cpu_used"), 60);
  EXPECT_EQ(sampler->counters().counter_resets, resets);
}

TEST_F(CgroupTest, AGroupThatIsMadeAnewLaterIsFoundWithinTenSeconds) {
  LaySlices();
  Sample();
  const std::string used = "sys/fs/cgroup/work.slice/memory.current";
  CutFile(used);
  tree.Remove(used);
  for (int i = 0; i < 3; ++i) {
    clock.Advance(kSecond / 2);
    EXPECT_EQ(Sample().count("cgroup cgroup.mem_used"), 0U);
  }
  const std::uint64_t unreadable = sampler->counters().unreadable;
  tree.Write(used, "7\n");
  clock.Advance(10 * kSecond);
  EXPECT_DOUBLE_EQ(Sample().at("cgroup cgroup.mem_used"), 7);
  EXPECT_EQ(sampler->counters().unreadable, unreadable);
}

TEST_F(CgroupTest, VersionOneHasAHierarchyAController) {
  tree.Write("proc/self/mountinfo",
             "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
             "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
             "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
             "34 31 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
             "35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  tree.Write("proc/self/cgroup",
             "3:pids:/a:b\n2:memory:/jobs/one\n1:cpu,cpuacct:/jobs/one\n0::/jobs/one\n");
  WriteGroup("/cpu,cpuacct/jobs/one",
             {{"cpu.cfs_quota_us", "50000\n"},
              {"cpu.cfs_period_us", "100000\n"},
              {"cpuacct.usage", "1000000000\n"},
              {"cpu.stat", "nr_periods 10\nnr_throttled 0\nthrottled_time 0\n"}});
  WriteGroup("/memory/jobs/one",
             {{"memory.limit_in_bytes", "536870912\n"},
              {"memory.usage_in_bytes", "1000\n"},
              {"memory.failcnt", "4\n"},
              {"memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}});
  WriteGroup("/memory/jobs", {{"memory.limit_in_bytes", "9223372036854771712\n"}});
  WriteGroup("/pids/a:b", {{"pids.max", "max\n"}, {"pids.current", "3\n"}});
  tree.MakeFolder("sys/fs/cgroup/unified/jobs/one");
  const Values first = Sample();
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.cpu_limit"), 0.5);
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.mem_limit"), 512 << 20);
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.oom_kills"), 1);
  EXPECT_DOUBLE_EQ(first.at("cgroup cgroup.tasks"), 3);
  EXPECT_EQ(first.count("cgroup cgroup.tasks_limit"), 0U);
  WriteGroup("/cpu,cpuacct/jobs/one",
             {{"cpuacct.usage", "1250000000\n"},
              {"cpu.stat", "nr_periods 15\nnr_throttled 5\nthrottled_time 300000000\n"}});
  WriteGroup("/memory/jobs/one", {{"memory.failcnt", "5\n"}});
  clock.Advance(kSecond / 2);
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.cpu_used"), 50);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.cpu_throttled"), 60);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.cpu_throttled_periods"), 100);
  EXPECT_DOUBLE_EQ(v.at("cgroup cgroup.mem_limit_hits_rate"), 2);
}

TEST_F(CgroupTest, InAContainerTheMountIsTheGroup) {
  // Without a namespace of its own a container is told the host's path, of which it sees the end.
  LayV2("25 30 0:23 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "/docker/abc/inner");
  WriteGroup("", {{"cgroup.controllers", "cpu memory\n"}, {"memory.max", "1048576\n"}});
  tree.MakeFolder("sys/fs/cgroup/inner");
  EXPECT_EQ(FindCgroups(root(), "self").memory.folders,
            (std::vector{Folder("/inner"), Folder("")}));
  // With one, a group beside its own is told as a way up; only the mount itself can be seen.
  for (const char* path : {"/../other", "/docker/else", "/docker/abcd"}) {
    tree.Write("proc/self/cgroup", std::string("0::") + path + "\n");
    const CgroupPlaces places = FindCgroups(root(), "self");
    EXPECT_EQ(places.memory.folders, (std::vector{Folder("")})) << path;
    ASSERT_TRUE(MemoryLimit(places.memory));
    EXPECT_DOUBLE_EQ(MemoryLimit(places.memory)->value, 1 << 20);
  }
}

TEST_F(CgroupTest, AMountWithABlankInItsName) {
  LayV2("25 30 0:23 / /sys/fs/c\\040group rw - cgroup2 cgroup2 rw\n", "/");
  tree.Write("sys/fs/c group/cgroup.controllers", "memory\n");
  EXPECT_EQ(FindCgroups(root(), "self").memory.folders, (std::vector{root() + "sys/fs/c group"}));
}

TEST_F(CgroupTest, WithoutGroupsAndWithNonsenseThereAreNoRows) {
  const CgroupPlaces none = FindCgroups(root(), "self");
  EXPECT_EQ(none.version(), 0);
  EXPECT_FALSE(CpuLimit(none.cpu));
  tree.Write("proc/self/mountinfo", "1 2\n - cgroup2 x y\n1 2 3 4 5 6\n");
  tree.Write("proc/self/cgroup", "0::\n::\nmemory\n1:memory\n");
  EXPECT_EQ(FindCgroups(root(), "self").version(), 0);
  LaySlices();
  WriteGroup("/work.slice/job.scope", {{"cpu.max", "\n"},
                                       {"cpu.stat", "usage_usec\nnr_periods x\n"},
                                       {"memory.max", "much\n"},
                                       {"pids.current", "-\n"}});
  WriteGroup("/work.slice", {{"cpu.max", "0 0\n"}, {"memory.max", ""}});
  sampler = nullptr;
  for (const auto& [name, value] : Sample()) {
    EXPECT_FALSE(name.starts_with("cgroup cgroup.cpu")) << name << ' ' << value;
    EXPECT_NE(name, "cgroup cgroup.tasks");
    EXPECT_NE(name, "cgroup cgroup.mem_limit");
  }
  EXPECT_GE(sampler->counters().malformed, 1U);
}

TEST(Cgroup, ThisProcessIsInTheGroupThatIsFound) {
  const CgroupPlaces places = FindCgroups("/", "self");
  if (places.memory.version == 0) GTEST_SKIP() << "no control group to be seen here";
  std::ifstream in(places.memory.folders.front() + "/cgroup.procs");
  ASSERT_TRUE(in.is_open());
  bool found = false;
  for (long pid; in >> pid;) found |= pid == ::getpid();
  EXPECT_TRUE(found) << places.memory.folders.front();
}

}  // namespace
}  // namespace telltale::collect
