// SPDX-License-Identifier: Apache-2.0
#include "base/http_client.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/curl_handle.h"
#include "base/printable.h"

namespace telltale {
namespace {

CurlUrl ParseUrl(std::string_view text) {
  CurlUrl url(curl_url());
  if (!url || curl_url_set(url.get(), CURLUPART_URL, std::string(text).c_str(), 0) != CURLUE_OK) {
    return nullptr;
  }
  return url;
}

std::string Part(CURLU* url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, 0) != CURLUE_OK || text == nullptr) return {};
  std::string out(text);
  curl_free(text);
  return out;
}

struct Answer {
  std::string* body;
  std::size_t most;
};

/// Takes all and keeps the first of it: an answer that is cut off would be an error.
std::size_t OnBody(char* bytes, std::size_t size, std::size_t count, void* user) {
  auto* const answer = static_cast<Answer*>(user);
  const std::size_t room = answer->most - std::min(answer->most, answer->body->size());
  answer->body->append(bytes, std::min(room, size * count));
  return size * count;
}

}  // namespace

bool IsHttpUrl(std::string_view url) {
  return (url.starts_with("http://") || url.starts_with("https://")) && !HasLineBreak(url) &&
         ParseUrl(url) != nullptr;
}

std::string HttpOrigin(std::string_view url) {
  const CurlUrl parsed = ParseUrl(url);
  if (!parsed) return "?";
  std::string out = fmt::format("{}://{}", Part(parsed.get(), CURLUPART_SCHEME),
                                Part(parsed.get(), CURLUPART_HOST));
  if (const std::string port = Part(parsed.get(), CURLUPART_PORT); !port.empty()) out += ":" + port;
  return Printable(out);
}

bool HasNoPath(std::string_view url) {
  const CurlUrl parsed = ParseUrl(url);
  if (!parsed) return false;
  const std::string path = Part(parsed.get(), CURLUPART_PATH);
  return path.empty() || path == "/";
}

std::string PercentEncoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Result<HttpResponse> SendHttp(const HttpRequest& request) {
  const std::string origin = HttpOrigin(request.url);
  if (!IsHttpUrl(request.url)) {
    return {Code::kUsage,
            "the address does not begin with http:// or https://: write it like https://host/path"};
  }
  const CurlHandle curl = NewCurl();
  if (!curl) {
    return {Code::kLimit, fmt::format("{}: no request can be made: out of memory", origin)};
  }
  CURL* const handle = curl.get();

  CurlList headers;
  const auto add = [&](const std::string& line) { return AppendTo(&headers, line); };
  for (const std::string& line : request.headers) {
    if (HasLineBreak(line) || line.find(':') == std::string::npos || line.front() == ':') {
      return {Code::kUsage, "a header is not of the form 'Name: value'"};
    }
    if (!add(line)) return {Code::kLimit, "out of memory"};
  }
  if (request.aws) {
    const AwsSignature& aws = *request.aws;
    if (HasLineBreak(aws.session_token))
      return {Code::kUsage, "the AWS session token holds a line break: set it anew"};
    if (!aws.session_token.empty() && !add("X-Amz-Security-Token: " + aws.session_token)) {
      return {Code::kLimit, "out of memory"};
    }
    const std::string how = fmt::format("aws:amz:{}:{}", aws.region, aws.service);
    curl_easy_setopt(handle, CURLOPT_AWS_SIGV4, how.c_str());
    curl_easy_setopt(handle, CURLOPT_USERNAME, aws.access_key.c_str());
    curl_easy_setopt(handle, CURLOPT_PASSWORD, aws.secret_key.c_str());
  } else if (!add("Expect:")) {
    // A body is sent at once. (It would be signed, and never sent, in a request of AWS.)
    return {Code::kLimit, "out of memory"};
  }

  HttpResponse response;
  Answer answer{&response.body, request.most_answer_bytes};
  CurlGuard guard{&request.address_allowed, request.stop};
  curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "telltale");
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(request.connect_timeout_ms));
  curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout_ms));
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &OnBody);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &answer);
  SetGuard(handle, &guard);
  if (request.proxy) {
    curl_easy_setopt(handle, CURLOPT_PROXY, request.proxy->c_str());
  } else if (request.address_allowed) {
    // The proxy's address would be the one that is asked about.
    curl_easy_setopt(handle, CURLOPT_PROXY, "");
  }
  TrustOnly(handle, request.ca_file);
  if (request.method == "GET") {
    curl_easy_setopt(handle, CURLOPT_HTTPGET, 1L);
  } else {
    curl_easy_setopt(handle, CURLOPT_POST, 1L);
    curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(handle, CURLOPT_POSTFIELDS, request.body.data());
    if (request.method != "POST") {
      curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
  }

  const CURLcode code = curl_easy_perform(handle);
  if (code != CURLE_OK) {
    const bool trust = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
    if (guard.refused) {
      return {Code::kUsage, fmt::format("{}: its address is not allowed", origin)};
    }
    return {trust ? Code::kAuth : Code::kIo,
            fmt::format("{}: {}", origin, curl_easy_strerror(code))};
  }
  long status = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  response.status = static_cast<int>(status);
  curl_off_t retry_after = 0;
  if (curl_easy_getinfo(handle, CURLINFO_RETRY_AFTER, &retry_after) == CURLE_OK &&
      retry_after > 0) {
    response.retry_after_s = static_cast<std::int64_t>(retry_after);
  }
  return response;
}

}  // namespace telltale
