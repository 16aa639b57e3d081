// SPDX-License-Identifier: Apache-2.0
// One HTTP request over libcurl: what pushes metrics, calls webhooks and speaks to AWS. It follows
// no redirect, speaks nothing but HTTP and HTTPS, and keeps a bounded part of the answer.
//
// Thread safety: any thread; a call blocks for at most its timeout.
#pragma once
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace telltale {

/// Makes a request one of AWS: Signature Version 4, over method, address, headers and body.
struct AwsSignature {
  std::string access_key, secret_key;
  std::string session_token;  ///< Empty where the credentials are lasting ones.
  std::string region, service;
};

/// Whether an address may be connected to: asked of the very one, after names are resolved.
using AddressAllowed = std::function<bool(const sockaddr* address, socklen_t size)>;

struct HttpRequest {
  std::string method = "POST";
  std::string url;
  std::vector<std::string> headers;  ///< "Name: value"; no line breaks.
  std::string body;
  std::int64_t connect_timeout_ms = 5'000;
  std::int64_t timeout_ms = 10'000;  ///< Of the whole request.
  std::size_t most_answer_bytes = 64 << 10;
  std::string ca_file;  ///< Empty: the system's authorities.
  std::optional<AwsSignature> aws;
  /// What keeps a request that somebody else configured from the machine's own network. Empty: all
  /// may be. Where it is given and `proxy` is not, no proxy is used; else the proxy's is asked of.
  AddressAllowed address_allowed;
  /// None: as the environment says; empty: no proxy.
  std::optional<std::string> proxy;
  /// Looked at about once a second: true ends the request. Null: nobody ends it.
  const std::atomic<bool>* stop = nullptr;
};

struct HttpResponse {
  int status = 0;
  std::string body;  ///< Cut at most_answer_bytes.
  /// Of Retry-After, in seconds; a date is given as what is left until then.
  std::optional<std::int64_t> retry_after_s;
};

/// kUsage: the address or a header is none, or address_allowed has refused it; kIo: no answer came,
/// in words that name the host and neither path nor credentials; kAuth: the certificate is not
/// trusted.
Result<HttpResponse> SendHttp(const HttpRequest& request);

/// http:// or https:// with a host.
bool IsHttpUrl(std::string_view url);
/// "https://host:4318" of an address, for messages; "?" where it is none.
std::string HttpOrigin(std::string_view url);
/// True where the address names no path of its own ("" or "/").
bool HasNoPath(std::string_view url);

/// As application/x-www-form-urlencoded and signatures of AWS want it: all but letters, digits and
/// "-._~" as %XX.
std::string PercentEncoded(std::string_view text);

}  // namespace telltale
