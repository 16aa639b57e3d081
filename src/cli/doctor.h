// SPDX-License-Identifier: Apache-2.0
// What this machine allows Telltale to do, and what then happens. Each check tries the thing itself
// rather than a version number, changes nothing and needs no right of its own.
// Thread-safe: all functions are stateless.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace telltale::cli {

enum class Finding {
  kOk,       ///< Works.
  kLimited,  ///< Works, with less than there could be.
  kMissing,  ///< Is not there; what happens then is in `effect`.
  kStops,    ///< Is not there, and `telltale run` cannot record without it.
};
/// "ok", "limited", "missing", "stops".
std::string_view Name(Finding finding);

struct Check {
  std::string name;
  Finding finding = Finding::kOk;
  std::string found;   ///< What the machine said.
  std::string effect;  ///< What happens with it.
};

struct DoctorOptions {
  /// Below it lie proc/, sys/ and dev/; ends in '/'. Tests give a fixture tree.
  std::string root = "/";
  std::string folder = ".";  ///< Where runs would be written.
  std::string nvml = "libnvidia-ml.so.1";
};

/// All checks in the order of docs/cli.md.
std::vector<Check> Examine(const DoctorOptions& options);

}  // namespace telltale::cli
