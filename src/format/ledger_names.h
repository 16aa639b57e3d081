// SPDX-License-Identifier: Apache-2.0
// Names of counters in the table `ledger` that those who write it and those who read it share.
#pragma once
#include <string_view>

namespace telltale::format {

/// What a process of the training wanted to record and did not, for a reason of its own.
inline constexpr std::string_view kSkipped = "probe.skipped";
/// Begins the names of its parts, by reason: no losses of their own, so that a sum has each once.
inline constexpr std::string_view kSkippedFor = "skipped.";
/// The part without a reason, or beyond the reasons that a process keeps apart.
inline constexpr std::string_view kSkippedOther = "other";

}  // namespace telltale::format
