// SPDX-License-Identifier: Apache-2.0
#include "collect/sampler.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <set>
#include <string_view>

#include "base/units.h"
#include "collect/catalogue.h"
#include "collect/counter.h"
#include "collect/fixture.h"

namespace telltale::collect {
namespace {

TEST(CounterDelta, GrowsWrapsAndResets) {
  EXPECT_EQ(CounterDelta(5, 12), 7U);
  EXPECT_EQ(CounterDelta(0xffffff00, 0x10), 0x110U);
  EXPECT_EQ(CounterDelta(1000, 10), std::nullopt);
  EXPECT_EQ(CounterDelta(1ULL << 40, 10), std::nullopt);
  EXPECT_EQ(CounterDelta(~0ULL, ~0ULL), 0U);
}

TEST_F(SampledTree, SharesOfACoreAreOverTheInterval) {
  tree.Write("proc/stat",
             "cpu  100 0 50 800 10 0 5 5 0 0\ncpu0 100 0 50 800 10 0 5 5 0 0\nintr 1\n");
  EXPECT_TRUE(Sample().empty());  // Only the base.
  tree.Write("proc/stat", "cpu  110 10 60 820 20 5 10 15 9 9\ncpu0 110 10 60 820 20 5 10 15 9 9\n");
  clock.Advance(kSecond);
  const Values v = Sample();
  // 20 + 20 + 10 + 10 + 20 = 80 ticks; guest time is within user already.
  EXPECT_DOUBLE_EQ(v.at("cpu:0 cpu.user"), 25);
  EXPECT_DOUBLE_EQ(v.at("cpu:0 cpu.system"), 25);
  EXPECT_DOUBLE_EQ(v.at("cpu:0 cpu.iowait"), 12.5);
  EXPECT_DOUBLE_EQ(v.at("cpu:0 cpu.steal"), 12.5);
  EXPECT_DOUBLE_EQ(v.at("cpu:0 cpu.idle"), 25);
  EXPECT_DOUBLE_EQ(v.at("cpu:0 cpu.busy"), 62.5);
  EXPECT_DOUBLE_EQ(v.at("node cpu.user"), 25);
}

TEST_F(SampledTree, BetweenWholeSamplesMemoryGoesOn) {
  tree.Write("proc/stat", "cpu0 0 0 0 0 0 0 0 0\n");
  tree.Write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n");
  Sample();
  clock.Advance(kSecond);
  tree.Write("proc/stat", "cpu0 50 0 0 50 0 0 0 0\n");
  rows.clear();
  sampler->Sample(0, &pool, &rows, Sampler::Part::kVital);
  std::set<std::string_view> names;
  for (const format::MetricRow& row : rows) names.insert(row.name);
  EXPECT_TRUE(names.contains("mem.available"));
  EXPECT_FALSE(names.contains("cpu.user"));
  // A rate goes on from the last whole sample.
  clock.Advance(kSecond);
  tree.Write("proc/stat", "cpu0 150 0 0 50 0 0 0 0\n");
  EXPECT_DOUBLE_EQ(Sample().at("cpu:0 cpu.user"), 75);
}

TEST_F(SampledTree, ACoreThatComesBackBeginsAnew) {
  const auto write = [this](int zero, const std::string& one) {
    tree.Write("proc/stat", "cpu0 " + std::to_string(zero) + " 0 0 0 0 0 0 0\n" + one);
  };
  write(0, "cpu1 500 0 0 0 0 0 0 0\n");
  Sample();
  write(10, "");
  EXPECT_EQ(Sample().count("cpu:1 cpu.user"), 0U);
  write(20, "cpu1 900 0 0 0 0 0 0 0\n");
  const Values back = Sample();
  EXPECT_EQ(back.count("cpu:1 cpu.user"), 0U);
  EXPECT_EQ(back.count("cpu:0 cpu.user"), 1U);
  write(30, "cpu1 910 0 0 10 0 0 0 0\n");
  EXPECT_DOUBLE_EQ(Sample().at("cpu:1 cpu.user"), 50);
  EXPECT_EQ(sampler->counters().counter_resets, 0U);
}

TEST_F(SampledTree, ACounterThatWasResetGivesNoValueAndIsCounted) {
  tree.Write("proc/stat", "cpu0 500 0 0 100 0 0 0 0\n");
  Sample();
  tree.Write("proc/stat", "cpu0 3 0 0 110 0 0 0 0\n");
  EXPECT_TRUE(Sample().empty());
  EXPECT_EQ(sampler->counters().counter_resets, 1U);
  tree.Write("proc/stat", "cpu0 13 0 0 120 0 0 0 0\n");
  EXPECT_DOUBLE_EQ(Sample().at("cpu:0 cpu.user"), 50);
}

TEST_F(SampledTree, IdleTimeThatTheKernelCorrectsBackwardsIsNoReset) {
  tree.Write("proc/stat", "cpu0 10 0 0 100 7 0 0 0\n");
  Sample();
  tree.Write("proc/stat", "cpu0 20 0 0 110 6 0 0 0\n");
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("cpu:0 cpu.iowait"), 0);
  EXPECT_DOUBLE_EQ(v.at("cpu:0 cpu.user"), 50);
  EXPECT_EQ(sampler->counters().counter_resets, 0U);
}

TEST_F(SampledTree, TasksOfTheMachine) {
  const std::string interrupts = "intr 99 1 2 3\n";
  tree.Write("proc/stat", "cpu0 1 0 0 9 0 0 0 0\n" + interrupts +
                              "ctxt 1000\nbtime 1\nprocesses 50\nprocs_running 3\n"
                              "procs_blocked 1\nsoftirq 1 2\n");
  EXPECT_EQ(Sample(), (Values{{"node cpu.tasks_running", 3}, {"node cpu.tasks_blocked", 1}}));
  tree.Write("proc/stat", interrupts +
                              "ctxt 5000\nbtime 1\nprocesses 60\nprocs_running 7\n"
                              "procs_blocked 0\n");
  clock.Advance(2 * kSecond);
  EXPECT_EQ(Sample(), (Values{{"node cpu.switches_rate", 2000},
                              {"node cpu.forks_rate", 5},
                              {"node cpu.tasks_running", 7},
                              {"node cpu.tasks_blocked", 0}}));
}

TEST_F(SampledTree, TimeInTheQueueOfACore) {
  const auto write = [this](std::uint64_t zero, std::uint64_t one) {
    tree.Write("proc/schedstat", "version 17\ntimestamp 4\ncpu0 0 0 0 0 0 0 77 " +
                                     std::to_string(zero) +
                                     " 5\ndomain0 MC 3 1 2 3 4 5 6 7\ncpu1 0 0 0 0 0 0 77 " +
                                     std::to_string(one) + " 5\n");
  };
  write(1'000'000'000, 5);
  EXPECT_TRUE(Sample().empty());
  write(2'500'000'000, 500'000'005);
  clock.Advance(4 * kSecond);
  EXPECT_TRUE(Sample().empty()) << "every 5 s";
  clock.Advance(kSecond);
  EXPECT_EQ(Sample(), (Values{{"cpu:0 cpu.run_delay", 30},
                              {"cpu:1 cpu.run_delay", 10},
                              {"node cpu.run_delay", 40}}));
  tree.Write("proc/schedstat", "version 14\ncpu0 1 2 3 4 5 6 7 8 9\n");
  clock.Advance(5 * kSecond);
  EXPECT_TRUE(Sample().empty());
  EXPECT_EQ(sampler->counters().malformed, 1U) << "an old version's unit is another";
}

TEST_F(SampledTree, Memory) {
  tree.Write("proc/meminfo",
             "MemTotal:       4000 kB\nMemFree: 1 kB\nMemAvailable:   1000 kB\n"
             "Buffers: 5 kB\nCached: 10 kB\nSwapCached: 9 kB\n"
             "SwapTotal:       300 kB\nSwapFree:        100 kB\n");
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("node mem.total"), 4000 * 1024);
  EXPECT_DOUBLE_EQ(v.at("node mem.available"), 1000 * 1024);
  EXPECT_DOUBLE_EQ(v.at("node mem.used"), 3000 * 1024);
  EXPECT_DOUBLE_EQ(v.at("node mem.cached"), 15 * 1024);
  EXPECT_DOUBLE_EQ(v.at("node swap.total"), 300 * 1024);
  EXPECT_DOUBLE_EQ(v.at("node swap.used"), 200 * 1024);
}

TEST_F(SampledTree, SwappingIsBytesMovedAndFaultsAreThoseThatWaited) {
  tree.Write("proc/vmstat",
             "nr_free_pages 1\npgfault 100\npgmajfault 10\npswpin 100\npswpout 1000\n");
  EXPECT_TRUE(Sample().empty());
  tree.Write("proc/vmstat",
             "nr_free_pages 1\npgfault 900\npgmajfault 16\npswpin 104\npswpout 1000\n");
  clock.Advance(2 * kSecond);
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("node swap.in_bytes_rate"),
                   2.0 * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  EXPECT_DOUBLE_EQ(v.at("node swap.out_bytes_rate"), 0);
  EXPECT_DOUBLE_EQ(v.at("node mem.major_faults_rate"), 3);
  EXPECT_DOUBLE_EQ(v.at("node mem.faults_rate"), 400);
}

TEST_F(SampledTree, FrequencyComesFromCpufreqEveryFiveSeconds) {
  tree.MakeFolder("sys/devices/system/cpu/cpu0");  // Without: it is offline, say.
  tree.Write("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "2400000\n");
  tree.Write("proc/cpuinfo", "processor : 0\ncpu MHz : 9\n");
  EXPECT_EQ(Sample(), (Values{{"cpu:1 cpu.frequency", 2400}}));
  tree.Write("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "1200000\n");
  clock.Advance(4 * kSecond);
  EXPECT_TRUE(Sample().empty());
  clock.Advance(kSecond);
  EXPECT_EQ(Sample(), (Values{{"cpu:1 cpu.frequency", 1200}}));
}

TEST_F(SampledTree, WithoutCpufreqTheFrequencyComesFromCpuinfo) {
  tree.Write("proc/cpuinfo",
             "processor\t: 0\ncpu MHz\t\t: 2596.140\n\nprocessor\t: 7\ncpu MHz\t\t: 800.5\n");
  EXPECT_EQ(Sample(), (Values{{"cpu:0 cpu.frequency", 2596.14}, {"cpu:7 cpu.frequency", 800.5}}));
}

TEST_F(SampledTree, DisksAreRatesOfWholeDevices) {
  tree.MakeFolder("sys/block/vda");
  tree.MakeFolder("sys/block/cciss!c0d0");
  const std::string others = "7 0 loop0 9 0 9 9 9 0 9 9 0 9 9\n8 1 vda1 9 0 9 9 9 0 9 9 0 9 9\n";
  tree.Write("proc/diskstats",
             "254 0 vda 100 0 2000 5 10 0 80 5 0 4294967000 9 1 2 3 4\n"
             "1 0 cciss/c0d0 0 0 0 0 0 0 0 0 0 0 0\n" +
                 others);
  Sample();
  tree.Write("proc/diskstats",
             "254 0 vda 300 0 6000 605 30 0 280 95 0 704 5009 1 2 3 4\n"
             "1 0 cciss/c0d0 0 0 0 0 0 0 0 0 0 0 0\n" +
                 others);
  clock.Advance(2 * kSecond);
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("disk:vda disk.read_bytes_rate"), 4000 * 512 / 2.0);
  EXPECT_DOUBLE_EQ(v.at("disk:vda disk.write_bytes_rate"), 200 * 512 / 2.0);
  EXPECT_DOUBLE_EQ(v.at("disk:vda disk.read_ops_rate"), 100);
  EXPECT_DOUBLE_EQ(v.at("disk:vda disk.write_ops_rate"), 10);
  EXPECT_DOUBLE_EQ(v.at("disk:vda disk.busy"), 50);  // 1,000 ms over the wrap, in 2 s.
  EXPECT_DOUBLE_EQ(v.at("disk:vda disk.read_latency"), 600 / 200.0);
  EXPECT_DOUBLE_EQ(v.at("disk:vda disk.write_latency"), 90 / 20.0);
  EXPECT_DOUBLE_EQ(v.at("disk:vda disk.queue"), 2.5);
  EXPECT_EQ(v.count("disk:cciss/c0d0 disk.read_latency"), 0U) << "it did nothing";
  EXPECT_EQ(v.count("disk:cciss/c0d0 disk.busy"), 1U);
  EXPECT_EQ(v.size(), 14U) << "a loop device or a partition was sampled";
}

TEST_F(SampledTree, ADiskThatIsPluggedInAgainBeginsAnew) {
  tree.MakeFolder("sys/block/sda");
  tree.Write("proc/diskstats", "8 0 sda 100 0 2000 5 10 0 80 5 0 10 9\n");
  Sample();
  tree.Write("proc/diskstats", "");
  clock.Advance(kSecond);
  Sample();
  tree.Write("proc/diskstats", "8 0 sda 900 0 9000 5 10 0 80 5 0 10 9\n");
  clock.Advance(kSecond);
  EXPECT_TRUE(Sample().empty());
}

TEST_F(SampledTree, NetworkInterfaces) {
  const std::string head = "Inter-|   Receive |  Transmit\n face |bytes packets|bytes\n";
  tree.Write("proc/net/dev", head +
                                 "  eth0:1000 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n"
                                 "  ifb0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
  Sample();
  tree.Write("proc/net/dev", head +
                                 "  eth0:3000 9 1 2 0 0 0 0 600 9 3 4 0 0 0 0\n"
                                 "  ifb0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
  clock.Advance(kSecond / 2);
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("net:eth0 net.recv_bytes_rate"), 4000);
  EXPECT_DOUBLE_EQ(v.at("net:eth0 net.send_bytes_rate"), 200);
  EXPECT_DOUBLE_EQ(v.at("net:eth0 net.recv_packets_rate"), 16);
  EXPECT_DOUBLE_EQ(v.at("net:eth0 net.send_packets_rate"), 16);
  EXPECT_DOUBLE_EQ(v.at("net:eth0 net.errors_rate"), 8);
  EXPECT_DOUBLE_EQ(v.at("net:eth0 net.drops_rate"), 12);
  EXPECT_EQ(v.size(), 6U) << "an interface without traffic was sampled";
}

TEST_F(SampledTree, TcpSegmentsThatWereSentOnceMore) {
  const auto write = [this](int sent, int again, const char* errors) {
    tree.Write("proc/net/snmp",
               "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm MaxConn OutSegs RetransSegs InErrs\n"
               "Tcp: 1 -1 " +
                   std::to_string(sent) + " " + std::to_string(again) + " " + errors + "\n");
  };
  write(1000, 10, "0");
  EXPECT_TRUE(Sample().empty());
  write(3000, 30, "4");
  clock.Advance(2 * kSecond);
  EXPECT_EQ(Sample(), (Values{{"node net.tcp_segments_rate", 1000},
                              {"node net.tcp_retransmits_rate", 10},
                              {"node net.tcp_errors_rate", 2}}));
  write(3000, 30, "x");
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().size(), 2U);
  tree.Write("proc/net/snmp", "Tcp: OutSegs\n");
  clock.Advance(kSecond / 2);
  EXPECT_TRUE(Sample().empty()) << "every second";
  EXPECT_EQ(sampler->counters().malformed, 1U);
  clock.Advance(kSecond / 2);
  EXPECT_TRUE(Sample().empty());
  EXPECT_EQ(sampler->counters().malformed, 2U);
}

TEST_F(SampledTree, NfsCallsAndHowLongTheyTook) {
  const auto write = [this](int factor) {
    const auto line = [factor](const char* name, int calls, int resent, int ms) {
      return "\t    " + std::string(name) + " " + std::to_string(calls * factor) + " " +
             std::to_string((calls + resent) * factor) + " " + std::to_string(resent * factor) +
             " 7 7 7 7 " + std::to_string(ms * factor) + "\n";
    };
    tree.Write("proc/self/mountstats",
               "device proc mounted on /proc with fstype proc\n"
               "device server:/data mounted on /mnt/my\\040data with fstype nfs4 statvers=1.1\n"
               "\topts:\trw\n\tage:\t10\n\tbytes:\t9 9 9 9 " +
                   std::to_string(4096 * factor) + " " + std::to_string(512 * factor) +
                   " 1 1\n\tper-op statistics\n" + line("NULL:", 0, 0, 0) +
                   line("READ:", 10, 2, 50) + line("WRITE:", 4, 0, 80) + line("GETATTR:", 6, 0, 6) +
                   "\ndevice /dev/vda mounted on / with fstype ext4\n");
  };
  write(1);
  EXPECT_EQ(Sample().count("nfs:/mnt/my data nfs.read_ops_rate"), 0U);
  write(3);
  clock.Advance(2 * kSecond);
  EXPECT_EQ(Sample(), (Values{{"nfs:/mnt/my data nfs.read_bytes_rate", 4096},
                              {"nfs:/mnt/my data nfs.write_bytes_rate", 512},
                              {"nfs:/mnt/my data nfs.read_ops_rate", 10},
                              {"nfs:/mnt/my data nfs.write_ops_rate", 4},
                              {"nfs:/mnt/my data nfs.other_ops_rate", 6},
                              {"nfs:/mnt/my data nfs.read_latency", 5},
                              {"nfs:/mnt/my data nfs.write_latency", 20},
                              {"nfs:/mnt/my data nfs.other_latency", 1},
                              {"nfs:/mnt/my data nfs.retransmits_rate", 2},
                              {"nfs:/mnt/my data nfs.timeouts_rate", 2}}));
  clock.Advance(kSecond / 2);
  EXPECT_TRUE(Sample().empty()) << "every second";
  tree.Write("proc/self/mountstats",
             "device x mounted on /mnt with fstype nfs\nbytes: 1 2\nper-op statistics\nREAD: 1\n"
             "device\nbytes:\n");
  clock.Advance(kSecond);
  EXPECT_TRUE(Sample().empty());
  EXPECT_EQ(sampler->counters().malformed, 2U);
}

TEST_F(SampledTree, Pressure) {
  tree.Write("proc/pressure/cpu",
             "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\n"
             "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
  tree.Write("proc/pressure/io",
             "some avg10=1.25 avg60=0 avg300=0 total=5\n"
             "full avg10=0.50 avg60=0 avg300=0 total=5\n");
  const Values v = Sample();
  EXPECT_DOUBLE_EQ(v.at("psi psi.cpu.some10"), 12.5);
  EXPECT_DOUBLE_EQ(v.at("psi psi.io.some10"), 1.25);
  EXPECT_DOUBLE_EQ(v.at("psi psi.io.full10"), 0.5);
  EXPECT_EQ(v.size(), 3U);
  tree.Write("proc/pressure/cpu", "some avg10=50.00 avg60=1.00 avg300=0.00 total=9\n");
  clock.Advance(kSecond / 2);
  EXPECT_EQ(Sample(), v) << "in every sample, read every second";
  clock.Advance(kSecond / 2);
  EXPECT_DOUBLE_EQ(Sample().at("psi psi.cpu.some10"), 50);
  tree.Write("proc/pressure/cpu", "");
  clock.Advance(kSecond);
  EXPECT_EQ(Sample().count("psi psi.cpu.some10"), 0U) << "what is not known any more";
}

TEST_F(SampledTree, ASourceThatIsNotThereIsCountedOnceAndTriedAgainLater) {
  EXPECT_TRUE(Sample().empty());
  const std::uint64_t sources = sampler->counters().unreadable;
  // stat, cpuinfo, meminfo, vmstat, diskstats, net/dev, net/snmp, mountinfo and three of pressure.
  EXPECT_EQ(sources, 11U);
  clock.Advance(kSecond);
  Sample();
  EXPECT_EQ(sampler->counters().unreadable, sources);
  tree.Write("proc/meminfo", "MemTotal: 4 kB\n");
  clock.Advance(60 * kSecond);
  EXPECT_EQ(Sample().count("node mem.total"), 1U);
}

TEST_F(SampledTree, NonsenseIsCountedAndNeverFatal) {
  tree.Write("proc/stat", "cpu\ncpuX 1 2 3\ncpu99999999 1 2 3 4 5\ncpu0 a b\n");
  tree.Write("proc/meminfo", "MemTotal: many kB\nMemTotal:\n\n:\n");
  tree.Write("proc/diskstats", "8\n8 0\n8 0 sda\n8 0 sda x\n");
  tree.Write("proc/net/dev", "eth0\n:\neth0: 1 2\n");
  tree.Write("proc/pressure/cpu", "some\nsome avg10=\nsome avg10=much\n");
  tree.Write("proc/vmstat", "pswpin\npgmajfault many\npsw\npg\n\n");
  tree.Write("proc/cpuinfo",
             "cpu MHz : 5\nprocessor : 0\ncpu MHz :\ncpu MHz\nprocessor : x\ncpu MHz : 5\n"
             "processor : 99999999\ncpu MHz : 5\n");
  EXPECT_TRUE(Sample().empty());
  EXPECT_EQ(sampler->counters().malformed, 20U);
}

TEST_F(SampledTree, RowsCarryTheRunClockTheNodeAndTheCataloguesUnit) {
  tree.Write("proc/meminfo", "MemTotal: 4 kB\n");
  sampler = Sampler::Create(Options());
  sampler->Sample(1000, &pool, &rows);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].time_ns, clock.monotonic_ns + 1000);
  EXPECT_EQ(rows[0].ord_ns, rows[0].time_ns);
  EXPECT_EQ(rows[0].node, "host");
  EXPECT_EQ(rows[0].unit, "bytes");
  EXPECT_EQ(rows[0].seq, 0U);
}

TEST(Catalogue, NamesAreUniqueAndSaidWhole) {
  std::set<std::string_view> names;
  for (const MetricDesc& metric : Catalogue()) {
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name << " twice";
    for (const std::string_view text : {metric.unit, metric.subject, metric.source, metric.doc}) {
      EXPECT_FALSE(text.empty()) << metric.name;
      EXPECT_EQ(text.find('|'), std::string_view::npos) << metric.name << " breaks the table";
    }
    EXPECT_TRUE(metric.doc.ends_with('.')) << metric.name;
    EXPECT_EQ(
        metric.name.ends_with("_rate"),
        metric.kind == MetricKind::kRate && (metric.unit == "1/s" || metric.unit == "bytes/s"))
        << metric.name;
  }
}

TEST(Sampler, ThisMachineHasCoresAndMemory) {
  auto sampler = Sampler::Create({"/", "here"});
  sampler->SetRoots({static_cast<int>(::getpid())});
  StringPool pool;
  std::vector<format::MetricRow> rows;
  sampler->Sample(0, &pool, &rows);
  bool has_memory = false;
  bool has_self = false;
  for (const format::MetricRow& row : rows) {
    EXPECT_TRUE(std::isfinite(row.value)) << row.subject << ' ' << row.name;
    has_memory |= row.name == "mem.total" && row.value > 0;
    has_self |= row.name == "proc.rss" && row.pid == ::getpid() && row.value > 0;
  }
  EXPECT_TRUE(has_memory);
  EXPECT_TRUE(has_self);
}

}  // namespace
}  // namespace telltale::collect
