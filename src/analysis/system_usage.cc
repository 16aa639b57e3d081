// SPDX-License-Identifier: Apache-2.0
#include "analysis/system_usage.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace telltale::analysis {
namespace {

constexpr double kHigh = 90;
constexpr double kLow = 10;
constexpr double kHalf = 50;
constexpr std::size_t kMostUnequal = 16;

std::size_t BinOf(double percent) {
  const double bin = percent / 100 * static_cast<double>(kUsageBins);
  return static_cast<std::size_t>(std::clamp(bin, 0.0, static_cast<double>(kUsageBins - 1)));
}

std::uint64_t CountOf(const UsageHistogram& histogram) {
  std::uint64_t sum = 0;
  for (const std::uint64_t count : histogram) sum += count;
  return sum;
}

/// REQUIRES: neither is empty.
double Distance(const UsageHistogram& a, const UsageHistogram& b) {
  const auto all_a = static_cast<double>(CountOf(a));
  const auto all_b = static_cast<double>(CountOf(b));
  double divergence = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double p = static_cast<double>(a[i]) / all_a;
    const double q = static_cast<double>(b[i]) / all_b;
    const double m = (p + q) / 2;
    if (p > 0) divergence += p * std::log(p / m) / 2;
    if (q > 0) divergence += q * std::log(q / m) / 2;
  }
  return std::sqrt(std::max(0.0, divergence));
}

}  // namespace

void UsageCounts::Add(double percent) {
  ++samples;
  zero += percent == 0 ? 1 : 0;
  below_half += percent < kHalf ? 1 : 0;
  ++histogram[BinOf(percent)];
}

void UsageCounts::Add(const UsageCounts& other) {
  samples += other.samples;
  zero += other.zero;
  below_half += other.below_half;
  for (std::size_t i = 0; i < histogram.size(); ++i) histogram[i] += other.histogram[i];
}

void GpuTime::Add(const GpuTime& other) {
  high += other.high;
  suboptimal += other.suboptimal;
  low += other.low;
  cpu_bottleneck += other.cpu_bottleneck;
  initialization += other.initialization;
  finalization += other.finalization;
}

std::uint32_t SystemUsage::table_mask() {
  return store::MaskOf(format::TableId::kMetrics) | store::MaskOf(format::TableId::kSteps);
}

void SystemUsage::OnRecord(const store::OrderedRecord& record) {
  if (const auto* metric = record.As<format::MetricRow>()) {
    OnMetric(*metric);
  } else if (const auto* step = record.As<format::StepRow>()) {
    if (step->mode == "TRAIN") OnStep();
  }
}

void SystemUsage::OnMetric(const format::MetricRow& row) {
  if (!std::isfinite(row.value)) return;
  if (row.name == "cpu.idle" && row.subject.starts_with("cpu:")) {
    // Rounding of a rate may leave the scale.
    const double busy = std::clamp(100 - row.value, 0.0, 100.0);
    pending_.cores.Add(busy);
    auto node = load_.find(row.node);
    if (node == load_.end()) {
      if (known_cores_ >= kMaxCores) return;
      node = load_.try_emplace(std::string(row.node)).first;
    }
    const auto core = node->second.find(row.subject);
    if (core != node->second.end()) {
      core->second = busy;
    } else if (known_cores_ < kMaxCores) {
      node->second.emplace(row.subject, busy);
      ++known_cores_;
    }
    return;
  }
  if (row.name != "gpu.utilization") return;
  const double value = std::clamp(row.value, 0.0, 100.0);
  pending_.gpus.Add(value);
  Subject subject(row.node, row.subject);
  if (pending_.each.size() < kMaxGpus || pending_.each.contains(subject)) {
    ++pending_.each[std::move(subject)][BinOf(value)];
  }
  if (value > kHigh) {
    ++pending_.time.high;
  } else if (value > kLow) {
    ++pending_.time.suboptimal;
  } else {
    const auto node = load_.find(row.node);
    const bool busy =
        node != load_.end() && std::any_of(node->second.begin(), node->second.end(),
                                           [](const auto& core) { return core.second > kHigh; });
    ++(busy ? pending_.time.cpu_bottleneck : pending_.time.low);
  }
}

void SystemUsage::OnStep() {
  if (pending_.gpus.samples + pending_.cores.samples > 0) {
    Part& into = stepped_ ? loop_ : before_;
    into.gpus.Add(pending_.gpus);
    into.cores.Add(pending_.cores);
    into.time.Add(pending_.time);
    for (const auto& [subject, histogram] : pending_.each) {
      if (into.each.size() >= kMaxGpus && !into.each.contains(subject)) continue;
      UsageHistogram& all = into.each[subject];
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += histogram[i];
    }
    pending_ = {};
  }
  stepped_ = true;
}

UsageCounts SystemUsage::gpus() const {
  UsageCounts out = before_.gpus;
  out.Add(loop_.gpus);
  out.Add(pending_.gpus);
  return out;
}

UsageCounts SystemUsage::cores() const {
  UsageCounts out = before_.cores;
  out.Add(loop_.cores);
  out.Add(pending_.cores);
  return out;
}

GpuTime SystemUsage::gpu_time() const {
  GpuTime out = loop_.time;
  out.initialization = before_.time.all();
  (stepped_ ? out.finalization : out.initialization) += pending_.time.all();
  return out;
}

std::vector<UnequalGpus> SystemUsage::unequal() const {
  std::vector<UnequalGpus> out;
  const auto name = [&](const Subject& subject) {
    const bool alone = loop_.each.begin()->first.first == loop_.each.rbegin()->first.first;
    return alone ? subject.second : subject.second + " on " + subject.first;
  };
  for (auto a = loop_.each.begin(); a != loop_.each.end(); ++a) {
    for (auto b = std::next(a); b != loop_.each.end(); ++b) {
      const double distance = Distance(a->second, b->second);
      if (distance > kUnequal) out.push_back({name(a->first), name(b->first), distance});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const UnequalGpus& x, const UnequalGpus& y) {
    return x.distance > y.distance;
  });
  if (out.size() > kMostUnequal) out.resize(kMostUnequal);
  return out;
}

}  // namespace telltale::analysis
