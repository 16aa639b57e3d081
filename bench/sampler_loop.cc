// SPDX-License-Identifier: Apache-2.0
// What it takes to sample this machine and a tree of processes every 100 ms, for
// bench/agent_cost.py: by our sampler, without GPUs, pressure, control group, TCP, NFS and run
// queues, which psutil has not either; or by bare reads of the same files that look at nothing,
// which is what the kernel takes to make their texts.
//
// usage: sampler_loop sampler|bare PID SECONDS
// prints one JSON line: {"percent_of_a_core": .., "samples": ..}
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "collect/sampler.h"

namespace {

constexpr std::chrono::milliseconds kPeriod{100};
constexpr long kSamplesOfASecond = 10;

double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Percent of a core that `sample` takes, called with its number every 100 ms.
void Measure(double seconds, const std::function<void(long)>& sample) {
  sample(0);  // Opens what stays open.
  const auto begin = std::chrono::steady_clock::now();
  const double before = CpuSeconds();
  const auto samples = static_cast<long>(seconds * kSamplesOfASecond);
  for (long i = 1; i <= samples; ++i) {
    std::this_thread::sleep_until(begin + i * kPeriod);
    sample(i);
  }
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("{\"percent_of_a_core\": %.4f, \"samples\": %ld}\n",
              100 * (CpuSeconds() - before) / wall, samples);
}

void BySampler(int pid, double seconds) {
  telltale::collect::SamplerOptions options;
  options.node = "here";
  options.nvml.clear();
  options.common_only = true;
  const auto sampler = telltale::collect::Sampler::Create(std::move(options));
  sampler->SetRoots({pid});
  std::vector<telltale::format::MetricRow> rows;
  telltale::StringPool pool;
  Measure(seconds, [&](long) {
    rows.clear();
    sampler->Sample(0, &pool, &rows);
  });
}

void AddTree(const std::string& pid, std::vector<std::string>* out) {
  out->push_back(pid);
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + pid + "/task", error)) {
    std::ifstream children(task.path() / "children");
    for (std::string child; children >> child;) AddTree(child, out);
  }
}

void ByBareReads(const std::string& pid, double seconds) {
  std::vector<int> quick, slow;
  const auto add = [](const std::string& path, std::vector<int>* out) {
    if (const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) out->push_back(fd);
  };
  for (const char* name : {"stat", "meminfo", "vmstat", "diskstats", "net/dev"}) {
    add(std::string("/proc/") + name, &quick);
  }
  std::vector<std::string> tree;
  AddTree(pid, &tree);
  for (const std::string& member : tree) {
    add("/proc/" + member + "/stat", &quick);
    add("/proc/" + member + "/io", &quick);
    add("/proc/" + member + "/status", &slow);
  }
  std::vector<char> buffer(64 << 10);
  const auto read_all = [&](const std::vector<int>& files) {
    for (const int fd : files) {
      ssize_t n = 0;
      for (off_t at = 0; (n = ::pread(fd, buffer.data(), buffer.size(), at)) > 0; at += n) {
      }
    }
  };
  Measure(seconds, [&](long number) {
    read_all(quick);
    if (number % kSamplesOfASecond == 0) read_all(slow);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string_view how = argv[1];
  const double seconds = std::atof(argv[3]);
  if (how == "sampler") {
    BySampler(std::atoi(argv[2]), seconds);
  } else if (how == "bare") {
    ByBareReads(argv[2], seconds);
  } else {
    return 2;
  }
  return 0;
}
