// SPDX-License-Identifier: Apache-2.0
// When to start a helper again that has died: at once after a long life, with growing pauses when
// it keeps dying young, never again after too many.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

namespace telltale::run {

class RestartPolicy {
 public:
  static constexpr std::int64_t kFirstDelayNs = 100'000'000;
  /// The start of the process comes on top: back within 5 s.
  static constexpr std::int64_t kLastDelayNs = 4'000'000'000;
  static constexpr std::int64_t kLongLifeNs = 30'000'000'000;
  static constexpr int kMaxQuickFailures = 20;

  void Started(std::int64_t now_ns) { started_ns_ = now_ns; }
  /// It has died: when to start it again, or none to give up.
  std::optional<std::int64_t> Died(std::int64_t now_ns) {
    if (now_ns - started_ns_ >= kLongLifeNs) quick_failures_ = 0;
    if (++quick_failures_ > kMaxQuickFailures) return {};
    const int doublings = std::min(quick_failures_ - 1, 10);
    return now_ns + std::min(kFirstDelayNs << doublings, kLastDelayNs);
  }

 private:
  std::int64_t started_ns_ = 0;
  int quick_failures_ = 0;
};

}  // namespace telltale::run
