// SPDX-License-Identifier: Apache-2.0
#include "base/mail_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/curl_handle.h"

namespace telltale {
namespace {

struct Upload {
  std::string_view left;
};

std::size_t OnUpload(char* bytes, std::size_t size, std::size_t count, void* user) {
  auto* const upload = static_cast<Upload*>(user);
  const std::size_t n = std::min(size * count, upload->left.size());
  std::memcpy(bytes, upload->left.data(), n);
  upload->left.remove_prefix(n);
  return n;
}

/// What a server says beyond its codes is nobody's.
std::size_t OnAnswerLine(char*, std::size_t size, std::size_t count, void*) { return size * count; }

bool IsAddress(const std::string& text) {
  return !text.empty() && !HasLineBreak(text) && text.find_first_of("<> ") == std::string::npos;
}

bool MayHelp(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_WEIRD_SERVER_REPLY:
      return true;
    default:
      return false;
  }
}

}  // namespace

MailOutcome SendMail(const MailRequest& request) {
  const bool implicit = request.server.starts_with("smtps://");
  if ((!implicit && !request.server.starts_with("smtp://")) || HasLineBreak(request.server)) {
    return {
        {Code::kUsage,
         "the mail server does not begin with smtp:// or smtps://: write it like smtp://host:587"}};
  }
  if (request.to.empty() || !IsAddress(request.from) ||
      !std::all_of(request.to.begin(), request.to.end(), &IsAddress)) {
    return {
        {Code::kUsage, "an address of the mail is not valid: write it like someone@example.org"}};
  }
  if (!request.user.empty() && !request.starttls && !implicit) {
    return {{Code::kUsage, "a password is not sent in the clear"}};
  }
  const CurlHandle curl = NewCurl();
  if (!curl) return {{Code::kLimit, "no mail can be sent: out of memory"}};
  CURL* const handle = curl.get();
  CurlList recipients;
  for (const std::string& to : request.to) {
    if (!AppendTo(&recipients, "<" + to + ">")) return {{Code::kLimit, "out of memory"}};
  }
  CurlGuard guard{&request.address_allowed, request.stop};
  Upload upload{request.text};
  const std::string from = "<" + request.from + ">";
  const long tls = request.starttls && !implicit ? static_cast<long>(CURLUSESSL_ALL)
                                                 : static_cast<long>(CURLUSESSL_NONE);
  curl_easy_setopt(handle, CURLOPT_URL, request.server.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "smtp,smtps");
  curl_easy_setopt(handle, CURLOPT_PROXY, "");
  SetGuard(handle, &guard);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.timeout_ms));
  curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout_ms));
  // A refusal of the option must not become a mail in the clear.
  if (curl_easy_setopt(handle, CURLOPT_USE_SSL, tls) != CURLE_OK) {
    return {{Code::kUsage, "libcurl has no TLS"}};
  }
  TrustOnly(handle, request.ca_file);
  if (!request.user.empty()) {
    curl_easy_setopt(handle, CURLOPT_USERNAME, request.user.c_str());
    curl_easy_setopt(handle, CURLOPT_PASSWORD, request.password.c_str());
  }
  curl_easy_setopt(handle, CURLOPT_MAIL_FROM, from.c_str());
  curl_easy_setopt(handle, CURLOPT_MAIL_RCPT, recipients.get());
  curl_easy_setopt(handle, CURLOPT_UPLOAD, 1L);
  curl_easy_setopt(handle, CURLOPT_READFUNCTION, &OnUpload);
  curl_easy_setopt(handle, CURLOPT_READDATA, &upload);
  curl_easy_setopt(handle, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.text.size()));
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &OnAnswerLine);

  const CURLcode code = curl_easy_perform(handle);
  if (code == CURLE_OK) return {};
  if (guard.refused) return {{Code::kUsage, "the mail server's address is not allowed"}};
  long answer = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &answer);
  const bool trust = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
                     code == CURLE_USE_SSL_FAILED || code == CURLE_LOGIN_DENIED;
  // A server's "not now" comes as an error of the login, the recipients or the data.
  const bool later = answer >= 400 && answer < 500;
  return {{trust && !later ? Code::kAuth : Code::kIo,
           fmt::format("{}{}", curl_easy_strerror(code),
                       answer > 0 ? fmt::format(" (the server's last answer was {})", answer)
                                  : std::string())},
          MayHelp(code) || later};
}

}  // namespace telltale
