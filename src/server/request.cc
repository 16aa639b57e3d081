// SPDX-License-Identifier: Apache-2.0
#include "server/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace telltale::server {
namespace {

constexpr std::size_t kMaxPoints = 4000;
constexpr std::size_t kMaxColumns = 2000;
constexpr std::size_t kMaxQuestions = 64;

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool IsOfAName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}

int Hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> Decode(std::string_view text, bool plus_is_space) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size() || Hex(text[i + 1]) < 0 || Hex(text[i + 2]) < 0) return std::nullopt;
      const auto c = static_cast<char>(Hex(text[i + 1]) * 16 + Hex(text[i + 2]));
      if (c == '\0') return std::nullopt;
      out += c;
      i += 2;
    } else {
      out += text[i] == '+' && plus_is_space ? ' ' : text[i];
    }
  }
  return out;
}

/// Digits alone, with an optional minus.
bool ParseNumber(std::string_view text, std::int64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

Status TakeNumber(const Target& target, const char* name, std::int64_t low, std::int64_t high,
                  std::int64_t* out) {
  const auto found = target.query.find(name);
  if (found == target.query.end()) return {};
  std::int64_t value = 0;
  if (!ParseNumber(found->second, &value) || value < low || value > high) {
    return {Code::kUsage, fmt::format("{}={}: a whole number from {} to {} is needed", name,
                                      found->second, low, high)};
  }
  *out = value;
  return {};
}

Status TakeWindow(const Target& target, std::int64_t* from, std::int64_t* to) {
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  TELLTALE_RETURN_IF_ERROR(TakeNumber(target, "from", -kFar, kFar, from));
  TELLTALE_RETURN_IF_ERROR(TakeNumber(target, "to", -kFar, kFar, to));
  if (*to != 0 && *to <= *from) {
    return {Code::kUsage, fmt::format("to={} is not after from={}", *to, *from)};
  }
  return {};
}

std::string TakeText(const Target& target, const char* name) {
  const auto found = target.query.find(name);
  return found == target.query.end() ? std::string() : found->second;
}

}  // namespace

std::optional<Target> ParseTarget(std::string_view target) {
  if (target.empty() || target.front() != '/') return std::nullopt;
  Target out;
  target = target.substr(0, target.find('#'));
  const auto question = target.find('?');
  std::string_view path = target.substr(0, question);
  while (!path.empty()) {
    path.remove_prefix(1);  // The slash.
    const auto slash = std::min(path.find('/'), path.size());
    auto part = Decode(path.substr(0, slash), false);
    if (!part || *part == "." || *part == "..") return std::nullopt;
    out.path.push_back(std::move(*part));
    path.remove_prefix(slash);
  }
  if (question == std::string_view::npos) return out;
  std::string_view query = target.substr(question + 1);
  while (!query.empty()) {
    const auto end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    const auto equals = std::min(pair.find('='), pair.size());
    auto name = Decode(pair.substr(0, equals), true);
    auto value = Decode(equals < pair.size() ? pair.substr(equals + 1) : "", true);
    if (!name || !value) return std::nullopt;
    out.query[*name] = *value;
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return out;
}

std::string HostName(std::string_view host) {
  std::string_view name = host;
  std::string_view port;
  if (host.starts_with('[')) {
    const auto end = host.find(']');
    if (end == std::string_view::npos) return {};
    name = host.substr(0, end + 1);
    port = host.substr(end + 1);
    if (!port.empty() && port.front() != ':') return {};
  } else {
    const auto colon = host.find(':');
    if (colon != host.rfind(':')) return Lower(fmt::format("[{}]", host));  // A bare IPv6 address.
    name = host.substr(0, colon);
    if (colon != std::string_view::npos) port = host.substr(colon);
    if (!std::all_of(name.begin(), name.end(), IsOfAName)) return {};
  }
  if (!port.empty()) port.remove_prefix(1);
  if (!std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return {};
  }
  return Lower(name);
}

HostList::HostList(const std::vector<std::string>& addresses, const std::vector<std::string>& more)
    : names_{"127.0.0.1", "localhost", "[::1]"} {
  for (const std::string& address : addresses) names_.push_back(HostName(address));
  for (const std::string& host : more) names_.push_back(HostName(host));
}

bool HostList::Allows(std::string_view host_header) const {
  const std::string name = HostName(host_header);
  return !name.empty() && std::find(names_.begin(), names_.end(), name) != names_.end();
}

bool CrossOrigin(std::string_view origin, std::string_view site, std::string_view host_header) {
  // The host is on the allow-list; a proxy in front may speak TLS.
  const std::string host = Lower(host_header);
  if (!origin.empty() && Lower(origin) != "http://" + host && Lower(origin) != "https://" + host) {
    return true;
  }
  return site == "cross-site" || site == "same-site";
}

std::string_view CookieValue(std::string_view header, std::string_view name) {
  while (!header.empty()) {
    const auto end = std::min(header.find(';'), header.size());
    std::string_view one = header.substr(0, end);
    while (one.starts_with(' ')) one.remove_prefix(1);
    if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=') {
      return one.substr(name.size() + 1);
    }
    header.remove_prefix(std::min(end + 1, header.size()));
  }
  return {};
}

std::string SessionCode(std::string_view body) {
  const nlohmann::json said = ParseJson(body);
  if (!said.is_object() || !said.contains("code") || !said["code"].is_string()) return {};
  return said["code"].get<std::string>();
}

Result<SeriesQuery> ParseSeries(const Target& target) {
  SeriesQuery query;
  const std::string kind = TakeText(target, "kind");
  if (kind == "scalar") {
    query.kind = SeriesKind::kScalar;
  } else if (kind == "steps") {
    query.kind = SeriesKind::kSteps;
  } else if (kind != "metric" && !kind.empty()) {
    return Status(Code::kUsage, fmt::format("kind={}: choose metric, scalar or steps", kind));
  }
  query.name = TakeText(target, "name");
  if (query.name.empty()) {
    return Status(Code::kUsage, "no name: name one of the overview's metrics or scalars");
  }
  query.subject = TakeText(target, "subject");
  query.mode = TakeText(target, "mode");
  query.with_step = TakeText(target, "x") == "step";
  TELLTALE_RETURN_IF_ERROR(TakeWindow(target, &query.from_ns, &query.to_ns));
  auto points = static_cast<std::int64_t>(query.points);
  TELLTALE_RETURN_IF_ERROR(TakeNumber(target, "points", 1, kMaxPoints, &points));
  query.points = static_cast<std::size_t>(points);
  return query;
}

Result<std::vector<SeriesQuery>> ParseManySeries(const Target& target) {
  std::vector<SeriesQuery> queries;
  for (auto at = target.query.find("q0"); at != target.query.end();
       at = target.query.find(fmt::format("q{}", queries.size()))) {
    if (queries.size() == kMaxQuestions) {
      return Status(Code::kUsage, fmt::format("more than {} series in one request", kMaxQuestions));
    }
    auto one = ParseTarget("/?" + at->second);
    if (!one) {
      return Status(Code::kUsage, fmt::format("{}={}: an escape is broken", at->first, at->second));
    }
    one->query.insert(target.query.begin(), target.query.end());
    TELLTALE_ASSIGN_OR_RETURN(SeriesQuery query, ParseSeries(*one));
    queries.push_back(std::move(query));
  }
  return queries;
}

Result<HeatmapQuery> ParseHeatmap(const Target& target) {
  HeatmapQuery query;
  query.name = TakeText(target, "name");
  if (query.name.empty()) query.name = "cpu.busy";
  TELLTALE_RETURN_IF_ERROR(TakeWindow(target, &query.from_ns, &query.to_ns));
  auto columns = static_cast<std::int64_t>(query.columns);
  TELLTALE_RETURN_IF_ERROR(TakeNumber(target, "columns", 1, kMaxColumns, &columns));
  query.columns = static_cast<std::size_t>(columns);
  const std::string as = TakeText(target, "as");
  if (as != "bytes" && as != "json" && !as.empty()) {
    return Status(Code::kUsage, fmt::format("as={}: choose bytes or json", as));
  }
  query.as_bytes = as == "bytes";
  return query;
}

}  // namespace telltale::server
