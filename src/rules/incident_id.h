// SPDX-License-Identifier: Apache-2.0
// The id of an incident: a hash of the rule, the subject and where it began, and, where another one
// of them began there before, the how manieth it is; the same in every replay.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "rules/rule.h"

namespace telltale::rules {

/// `before`: how many began there before it.
inline std::string IncidentId(std::string_view rule, const Incident& incident,
                              std::uint32_t before = 0) {
  std::string text = fmt::format("{}\x1f{}\x1f{}\x1f{}", rule, incident.subject,
                                 incident.first_step, incident.start_ns);
  if (before > 0) text += fmt::format("\x1f{}", before);
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a.
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ULL;
  return fmt::format("{:016x}", hash);
}

}  // namespace telltale::rules
