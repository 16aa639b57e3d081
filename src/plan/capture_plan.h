// SPDX-License-Identifier: Apache-2.0
// The capture plan: which tensors' statistics to record, how often. Regular expressions are RE2's
// (linear time) and are matched here, never in the training's process: the agent publishes yes or
// no for each name.
// Thread safety: const methods may be called from any thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale::plan {

struct CapturePlan {
  std::uint32_t stats_interval_steps = 100;   ///< 0: no statistics.
  std::vector<std::string> include = {".*"};  ///< A name must match one of these somewhere...
  std::vector<std::string> exclude;           ///< ...and none of these.

  /// True where no name needs to be looked at.
  bool TakesEveryName() const {
    return exclude.empty() && include.size() == 1 && include[0] == ".*";
  }

  friend bool operator==(const CapturePlan&, const CapturePlan&) = default;
};

/// The plan as a JSON object, for the record of what was asked.
std::string ToJson(const CapturePlan& plan);
/// Reads what ToJson wrote; missing keys take the default. kUsage names the key that is wrong.
Result<CapturePlan> FromJson(std::string_view text);

class Matcher {
 public:
  /// kUsage names the pattern that RE2 does not take, and why.
  static Result<Matcher> Create(const CapturePlan& plan);
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;
  ~Matcher();

  bool Wants(std::string_view name) const;

 private:
  struct Patterns;
  explicit Matcher(std::unique_ptr<Patterns> patterns);
  std::unique_ptr<Patterns> patterns_;
};

}  // namespace telltale::plan
