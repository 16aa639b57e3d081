// SPDX-License-Identifier: Apache-2.0
// What the server takes apart of a request by itself: its target and headers. (Its lines are
// Boost.Beast's to read.)
#include "fuzz.h"
#include "server/request.h"

namespace telltale::fuzz {

TELLTALE_FUZZ_TARGET(http_target) {
  static const server::HostList hosts(std::vector<std::string>{"127.0.0.1"}, {"example.org"});
  static_cast<void>(server::HostName(bytes));
  static_cast<void>(hosts.Allows(bytes));
  static_cast<void>(server::CookieValue(bytes, "telltale"));
  static_cast<void>(server::CrossOrigin(bytes, "", "127.0.0.1:7117"));
  const auto target = server::ParseTarget(bytes);
  if (!target) return;
  for (const std::string& part : target->path) Require(part != "." && part != "..");
  static_cast<void>(server::ParseSeries(*target));
  static_cast<void>(server::ParseManySeries(*target));
  static_cast<void>(server::ParseHeatmap(*target));
}

}  // namespace telltale::fuzz
