// SPDX-License-Identifier: Apache-2.0
#include "run/plain_lines.h"

#include <fmt/format.h>

#include <utility>

namespace telltale::run {
namespace {

constexpr int kColumns = 160;  ///< A log has no width, but a line should not be endless.

}  // namespace

std::string PlainLines::Due(std::int64_t now_ns, std::int64_t unix_ns, const StatusFacts& facts,
                            bool colour) {
  if (now_ns < due_ns_) return {};
  due_ns_ = now_ns + kPeriodNs;
  std::string text = RenderStatus(facts, kColumns, colour);
  if (text == last_) return {};
  last_ = std::move(text);
  return fmt::format("telltale {}{}", LocalTime(unix_ns), last_);
}

}  // namespace telltale::run
