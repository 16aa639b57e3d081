// SPDX-License-Identifier: Apache-2.0
// What is in a request, and whether its sender may send it: text in, text out, no socket, so that
// each rule can be tested by itself.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/run_view.h"

namespace telltale::server {

/// The target of a request: path segments and parameters, decoded.
struct Target {
  std::vector<std::string> path;
  std::map<std::string, std::string> query;
};
/// None where it is no path, a segment is . or .., or an escape is broken.
std::optional<Target> ParseTarget(std::string_view target);

/// Name of a Host header (or of an address), lower case and without port; [::1] keeps its brackets.
/// Empty where it is none.
std::string HostName(std::string_view host);

class HostList {
 public:
  /// Loopback names, the addresses that the server listens at, and `more`.
  HostList(const std::vector<std::string>& addresses, const std::vector<std::string>& more);
  bool Allows(std::string_view host_header) const;

 private:
  std::vector<std::string> names_;
};

/// True where a browser says that another page sends this: `origin` and `site` are the headers
/// Origin and Sec-Fetch-Site, empty where absent.
bool CrossOrigin(std::string_view origin, std::string_view site, std::string_view host_header);

/// Value of one cookie; empty where absent.
std::string_view CookieValue(std::string_view header, std::string_view name);

/// The code or token in the body by which a browser signs in, {"code": "..."}; empty where there is
/// none.
std::string SessionCode(std::string_view body);

Result<SeriesQuery> ParseSeries(const Target& target);
/// Several questions in one request: `q0`, `q1`, ... are each the parameters of a series; what one
/// does not say (the window, as a rule) the request's own parameters say. Empty where it is no such
/// request.
Result<std::vector<SeriesQuery>> ParseManySeries(const Target& target);
Result<HeatmapQuery> ParseHeatmap(const Target& target);

}  // namespace telltale::server
