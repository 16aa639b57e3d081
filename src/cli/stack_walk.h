// SPDX-License-Identifier: Apache-2.0
// A profile's tree as stacks with values: what pprof and flame graphs are made of.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "analysis/profile/options.h"
#include "analysis/profile/pipeline.h"
#include "analysis/profile/tree.h"
#include "interchange/stack_samples.h"

namespace telltale::cli {

/// Calls `visit` with each node, its own values and the names from the outermost to it.
void WalkStacks(const analysis::profile::Tree& tree,
                const std::function<void(std::span<const std::string_view>,
                                         const analysis::profile::Stats&)>& visit);

/// The same of what is shown: a node's own is then what no shown child has.
void WalkShown(const analysis::profile::Tree& tree, const analysis::profile::Shown& root,
               const std::function<void(std::span<const std::string_view>,
                                        const analysis::profile::Stats&)>& visit);

/// A value of a node as a sample.
struct SampleValue {
  interchange::SampleType type;
  double (*value)(const analysis::profile::Stats&);
};

/// time, device, count, bytes.
const std::vector<SampleValue>& StackSampleValues();
/// count, and those that `select` names.
std::vector<SampleValue> SampleValuesOf(const analysis::profile::Options& options);

/// Rounded; overlapping slices may make a node's own time negative, which no sample can be.
std::int64_t SampleOf(double value);

}  // namespace telltale::cli
