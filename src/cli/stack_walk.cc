// SPDX-License-Identifier: Apache-2.0
#include "cli/stack_walk.h"

#include <algorithm>
#include <cmath>

namespace telltale::cli {
namespace {

using analysis::profile::Column;
using analysis::profile::kRoot;
using analysis::profile::NodeId;
using analysis::profile::Shown;
using analysis::profile::Stats;
using analysis::profile::Tree;
using Visit = std::function<void(std::span<const std::string_view>, const Stats&)>;

double HostTime(const Stats& stats) { return stats.host_ns; }
double DeviceTime(const Stats& stats) { return stats.device_ns; }
double BothTimes(const Stats& stats) { return stats.host_ns + stats.device_ns; }
double Occurrence(const Stats& stats) { return stats.occurrence; }
double Requested(const Stats& stats) { return stats.requested_bytes; }

void WalkNode(const Tree& tree, NodeId id, std::vector<std::string_view>* frames,
              const Visit& visit) {
  if (id != kRoot) {
    frames->push_back(tree.node(id).name);
    visit(*frames, tree.node(id).self);
  }
  for (const NodeId child : tree.node(id).children) WalkNode(tree, child, frames, visit);
  if (id != kRoot) frames->pop_back();
}

void Subtract(const Stats& other, Stats* from) {
  from->host_ns -= other.host_ns;
  from->device_ns -= other.device_ns;
  from->occurrence -= other.occurrence;
  from->requested_bytes -= other.requested_bytes;
  from->peak_bytes -= other.peak_bytes;
  from->residual_bytes -= other.residual_bytes;
  from->output_bytes -= other.output_bytes;
  from->float_ops -= other.float_ops;
  from->params -= other.params;
}

void WalkShownNode(const Tree& tree, const Shown& node, std::vector<std::string_view>* frames,
                   const Visit& visit) {
  if (node.id != kRoot) {
    frames->push_back(tree.node(node.id).name);
    Stats own = node.total;
    for (const Shown& child : node.children) Subtract(child.total, &own);
    visit(*frames, own);
  }
  for (const Shown& child : node.children) WalkShownNode(tree, child, frames, visit);
  if (node.id != kRoot) frames->pop_back();
}

}  // namespace

void WalkStacks(const Tree& tree, const Visit& visit) {
  std::vector<std::string_view> frames;
  WalkNode(tree, kRoot, &frames, visit);
}

void WalkShown(const Tree& tree, const Shown& root, const Visit& visit) {
  std::vector<std::string_view> frames;
  WalkShownNode(tree, root, &frames, visit);
}

const std::vector<SampleValue>& StackSampleValues() {
  static const std::vector<SampleValue> all{{{"time", "nanoseconds"}, HostTime},
                                            {{"device", "nanoseconds"}, DeviceTime},
                                            {{"count", "count"}, Occurrence},
                                            {{"bytes", "bytes"}, Requested}};
  return all;
}

std::vector<SampleValue> SampleValuesOf(const analysis::profile::Options& options) {
  std::vector<SampleValue> out{{{"count", "count"}, Occurrence}};
  const std::pair<Column, SampleValue> known[] = {
      {Column::kMicros, {{"micros", "nanoseconds"}, BothTimes}},
      {Column::kAcceleratorMicros, {{"accelerator_micros", "nanoseconds"}, DeviceTime}},
      {Column::kCpuMicros, {{"cpu_micros", "nanoseconds"}, HostTime}},
      {Column::kBytes, {{"bytes", "bytes"}, Requested}},
      {Column::kPeakBytes,
       {{"peak_bytes", "bytes"}, [](const Stats& stats) { return stats.peak_bytes; }}},
      {Column::kResidualBytes,
       {{"residual_bytes", "bytes"}, [](const Stats& stats) { return stats.residual_bytes; }}},
      {Column::kOutputBytes,
       {{"output_bytes", "bytes"}, [](const Stats& stats) { return stats.output_bytes; }}},
      {Column::kParams, {{"params", "count"}, [](const Stats& stats) { return stats.params; }}},
      {Column::kFloatOps,
       {{"float_ops", "count"}, [](const Stats& stats) { return stats.float_ops; }}},
  };
  for (const auto& [column, value] : known) {
    if (options.Selects(column)) out.push_back(value);
  }
  return out;
}

std::int64_t SampleOf(double value) {
  return static_cast<std::int64_t>(std::llround(std::clamp(value, 0.0, 9e18)));
}

}  // namespace telltale::cli
