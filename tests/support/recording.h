// SPDX-License-Identifier: Apache-2.0
// A recording of steady_trainer under the real `telltale run`, and what has come of its records.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fault/harness.h"

namespace telltale::testing {

/// What the agents' journals of a run hold of what steady_trainer recorded.
struct Recorded {
  std::uint64_t values = 0;  ///< Of the scalar "n".
  std::uint64_t spans = 0;
  std::uint64_t missing = 0;  ///< Numbers of "n" below the highest that are not there.
  std::uint64_t twice = 0;
  std::uint64_t dropped = 0;  ///< As the ledger says.
  std::int64_t first_ns = 0;  ///< Run clock.
  std::int64_t last_ns = 0;
  double agent_cpu_s = 0;
  /// From a value to its being readable in the journal, ms.
  std::vector<double> lag_ms;
};

class Recording {
 public:
  /// Starts it in `folder`; the run is folder/root/live.
  Recording(const std::filesystem::path& folder, long records_a_second, long seconds);

  /// Waits until the training records; it begins with Go().
  bool AwaitReady();
  void Go();
  /// Follows the journals until the run is over.
  bool Follow(Recorded* out);

  std::filesystem::path root() const { return folder_ / "root"; }
  std::filesystem::path run() const { return root() / "live"; }
  std::string Err() const { return started_.Err(); }

 private:
  const std::filesystem::path folder_;
  fault::Started started_;
};

}  // namespace telltale::testing
