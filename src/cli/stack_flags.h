// SPDX-License-Identifier: Apache-2.0
// The options of `telltale run` that sample Python stacks.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command.h"

namespace telltale::cli {

struct StackFlags {
  std::string rate = "off";  ///< Empty: given without a value.
  bool native = false;
  bool pause = false;
};

/// Adds --stacks, --stacks-native and --stacks-pause.
void AddStackFlags(CLI::App* command, StackFlags* flags);

/// The arguments of `telltale stacks` behind the run; none where no stacks are asked for.
Result<std::vector<std::string>> StackArguments(const StackFlags& flags, double overhead);

/// Why none can be sampled of this command here, as far as that can be known before it runs.
std::string WhyNoStacks(const std::string& command);

}  // namespace telltale::cli
