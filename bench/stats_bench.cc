// SPDX-License-Identifier: Apache-2.0
// The statistics kernels beside a plain vectorised sum over the same memory, interleaved.
// usage: stats_bench [MiB] [rounds]; exit code 1 where the fastest of them is below its limit.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "bench/plain_sum.h"
#include "probe/stats.h"

namespace {

using telltale::probe::Kernels;

constexpr double kLeastPercent = 60;  // Of the plain sum.

struct Row {
  std::string name;
  std::function<void()> run;
  std::vector<double> gb_per_s;
};

}  // namespace

int main(int argc, char** argv) {
  const std::size_t mib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 256;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  std::vector<float> data(mib << 18);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  // Repeats a table: drawing 64 M values would take longer than the benchmark.
  std::vector<float> table(1 << 16);
  for (float& x : table) x = normal(random);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = table[(i * 7) & 0xFFFF];

  volatile float sink = 0;
  tt_stats stats{};
  std::vector<Row> rows;
  rows.push_back({"plain sum, 512 bit",
                  [&] { sink = telltale::bench::PlainSum(data.data(), data.size(), true); },
                  {}});
  rows.push_back({"plain sum, 256 bit",
                  [&] { sink = telltale::bench::PlainSum(data.data(), data.size(), false); },
                  {}});
  const auto add_kernel = [&](const char* name, const Kernels& kernels) {
    if (kernels.block_f32 == nullptr) return;
    rows.push_back({name,
                    [&data, &stats, kernels] {
                      telltale::probe::ComputeStats(data.data(), data.size(), TT_DTYPE_F32, kernels,
                                                    &stats);
                    },
                    {}});
  };
  add_kernel("statistics, AVX-512", telltale::probe::KernelsAvx512());
  add_kernel("statistics, AVX2", telltale::probe::KernelsAvx2());
  add_kernel("statistics, portable", telltale::probe::KernelsPortable());
  std::vector<std::uint16_t> bfloats(data.size() * 2);
  for (std::size_t i = 0; i < bfloats.size(); ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &data[i / 2], sizeof bits);
    bfloats[i] = static_cast<std::uint16_t>(bits >> 16);
  }
  const auto add_dtype = [&](const char* name, const void* from, tt_dtype dtype,
                             std::size_t bytes) {
    rows.push_back({name,
                    [&data, &stats, from, dtype, bytes] {
                      tt_compute_stats(from, data.size() * 4 / bytes, dtype, &stats);
                    },
                    {}});
  };
  add_dtype("bfloat16", bfloats.data(), TT_DTYPE_BF16, 2);
  add_dtype("int8", data.data(), TT_DTYPE_I8, 1);
  add_dtype("int64", data.data(), TT_DTYPE_I64, 8);

  for (int round = -1; round < rounds; ++round) {
    for (Row& row : rows) {
      const auto begin = std::chrono::steady_clock::now();
      row.run();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (round >= 0)
        row.gb_per_s.push_back(1e-9 * 4.0 * static_cast<double>(data.size()) / took.count());
    }
  }
  double limit = 0;
  double best = 0;
  for (Row& row : rows) {
    std::sort(row.gb_per_s.begin(), row.gb_per_s.end());
    const double median = row.gb_per_s[row.gb_per_s.size() / 2];
    const bool plain = row.name.starts_with("plain");
    if (plain) limit = std::max(limit, median);
    // The limit holds for float32; the other types are shown beside it.
    if (row.name.starts_with("statistics")) best = std::max(best, median);
    std::printf("  %-22s %6.2f GB/s [%.2f..%.2f]", row.name.c_str(), median, row.gb_per_s.front(),
                row.gb_per_s.back());
    std::printf(plain ? "\n" : "   %3.0f %% of the plain sum\n", 100 * median / limit);
  }
  const double percent = 100 * best / limit;
  std::printf(
      "  nine statistics of %zu MiB in one pass: %.0f %% of the plain sum   limit %.0f %%\n", mib,
      percent, kLeastPercent);
  return percent >= kLeastPercent ? 0 : 1;
}
