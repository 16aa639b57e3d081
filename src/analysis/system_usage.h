// SPDX-License-Identifier: Apache-2.0
// How well the machine was used, sample by sample: how many samples of GPUs and cores were at zero
// and below a half, their histograms over the run and in the training loop, what GPU time went to,
// and which GPUs were used unlike each other. One pass; the same live and afterwards.
//
// Thread safety: none. Memory: about 1 KB a GPU, at most kMaxGpus; 16 bytes a core.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/records.gen.h"
#include "store/reader.h"

namespace telltale::analysis {

inline constexpr std::size_t kUsageBins = 50;  ///< Of 2 % each; 100 % is in the last.
using UsageHistogram = std::array<std::uint64_t, kUsageBins>;

/// Samples of all devices of a kind.
struct UsageCounts {
  std::uint64_t samples = 0;
  std::uint64_t zero = 0;
  std::uint64_t below_half = 0;  ///< Below 50 %, those at zero too.
  UsageHistogram histogram{};

  void Add(double percent);
  void Add(const UsageCounts& other);
};

/// Samples of GPUs, each under one word.
struct GpuTime {
  std::uint64_t high = 0;            ///< In the loop: above 90 %.
  std::uint64_t suboptimal = 0;      ///< Above 10 %.
  std::uint64_t low = 0;             ///< At most 10 %.
  std::uint64_t cpu_bottleneck = 0;  ///< At most 10 % while a core of its node was above 90 %.
  std::uint64_t initialization = 0;  ///< Until the first TRAIN step was made.
  std::uint64_t finalization = 0;    ///< After the last one.

  void Add(const GpuTime& other);
  std::uint64_t all() const {
    return high + suboptimal + low + cpu_bottleneck + initialization + finalization;
  }
};

/// Two GPUs whose histograms in the loop differ.
struct UnequalGpus {
  std::string a, b;
  double distance = 0;  ///< Square root of the Jensen-Shannon divergence, 0 to 0.83.
};

class SystemUsage {
 public:
  static constexpr std::size_t kMaxGpus = 256;
  static constexpr std::size_t kMaxCores = 4096;
  /// Distance from which two GPUs are unequal.
  static constexpr double kUnequal = 0.5;

  /// Tables that it reads; those of Summary have them.
  static std::uint32_t table_mask();
  void OnRecord(const store::OrderedRecord& record);

  UsageCounts gpus() const;
  UsageCounts cores() const;
  /// In the training loop: between the first and the newest TRAIN step.
  const UsageCounts& gpus_in_loop() const { return loop_.gpus; }
  const UsageCounts& cores_in_loop() const { return loop_.cores; }
  GpuTime gpu_time() const;
  /// By distance, largest first; at most 16.
  std::vector<UnequalGpus> unequal() const;

 private:
  using Subject = std::pair<std::string, std::string>;  ///< Node and device.

  /// What was counted in a part of the run.
  struct Part {
    UsageCounts gpus, cores;
    GpuTime time;
    std::map<Subject, UsageHistogram> each;  ///< Of each GPU.
  };

  void OnMetric(const format::MetricRow& row);
  void OnStep();

  Part before_;  ///< Of the loop.
  Part loop_;
  Part pending_;  ///< Since the newest step: of the loop once another comes.
  bool stepped_ = false;
  /// Newest load of each core, by node; and how many cores of it are known.
  std::map<std::string, std::map<std::string, double, std::less<>>, std::less<>> load_;
  std::size_t known_cores_ = 0;
};

}  // namespace telltale::analysis
