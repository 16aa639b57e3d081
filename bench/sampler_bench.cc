// SPDX-License-Identifier: Apache-2.0
// Cost of one sample of the machine and of this process, hot and at the agent's period. The peer is
// psutil reading the same things (bench/sampler_psutil.py).
#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "collect/sampler.h"

namespace {

using telltale::StringPool;
using telltale::collect::Sampler;

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::unique_ptr<Sampler> MakeSampler() {
  auto sampler = Sampler::Create({"/", "here"});
  sampler->SetRoots({static_cast<int>(::getpid())});
  return sampler;
}

void SampleHot(benchmark::State& state) {
  const auto sampler = MakeSampler();
  std::vector<telltale::format::MetricRow> rows;
  for (auto _ : state) {
    StringPool pool;
    rows.clear();
    sampler->Sample(0, &pool, &rows);
  }
  state.counters["rows"] = static_cast<double>(rows.size());
}
BENCHMARK(SampleHot)->Unit(benchmark::kMicrosecond);

/// As the agent does it: cold caches and a timer's wake-up are part of the cost.
void SamplePaced(benchmark::State& state) {
  const auto period = std::chrono::milliseconds(state.range(0));
  const auto sampler = MakeSampler();
  std::vector<telltale::format::MetricRow> rows;
  const double cpu_before = CpuSeconds();
  for (auto _ : state) {
    std::this_thread::sleep_for(period);
    StringPool pool;
    rows.clear();
    sampler->Sample(0, &pool, &rows);
  }
  const double cpu = (CpuSeconds() - cpu_before) / static_cast<double>(state.iterations());
  state.counters["cpu_us_per_sample"] = 1e6 * cpu;
  state.counters["percent_of_a_core"] = 100 * cpu / std::chrono::duration<double>(period).count();
}
BENCHMARK(SamplePaced)->Arg(100)->Iterations(50)->Unit(benchmark::kMillisecond);
BENCHMARK(SamplePaced)->Arg(500)->Iterations(20)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
