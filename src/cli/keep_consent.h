// SPDX-License-Identifier: Apache-2.0
// What the user of `telltale run` asks for by a set of rules: rules in Python and actions. It is
// kept in the user's home, for all commands to come. That disk may not answer, so a child writes,
// and the training waits for its start only so long.
//
// Thread safety: none.
#pragma once
#include <cstdint>

#include "base/status.h"
#include "base/units.h"
#include "rules/rule_set.h"

namespace telltale::cli {

inline constexpr std::int64_t kKeepConsentNs = 5 * kSecond;

/// Not ok: it is not known that it was kept, and why.
struct KeptConsent {
  Status python;
  Status actions;
};

/// For this process it holds in any case. Waits at most so long; a child that has not ended by then
/// is left behind, and is no child of ours. REQUIRES: we are one thread.
KeptConsent KeepConsent(const rules::RuleSet& set, std::int64_t patience_ns = kKeepConsentNs);

}  // namespace telltale::cli
