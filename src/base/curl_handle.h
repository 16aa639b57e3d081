// SPDX-License-Identifier: Apache-2.0
// What http_client.cc and mail_client.cc share; nobody else sees libcurl. Thread safety: stateless,
// a handle is of one thread.
#pragma once
#include <curl/curl.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "base/http_client.h"

namespace telltale {

struct EndCurl {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using CurlHandle = std::unique_ptr<CURL, EndCurl>;
using CurlList = std::unique_ptr<curl_slist, EndCurl>;
using CurlUrl = std::unique_ptr<CURLU, EndCurl>;

/// Null: no memory, or libcurl does not work here.
CurlHandle NewCurl();
/// False: no memory.
bool AppendTo(CurlList* list, const std::string& line);
bool HasLineBreak(std::string_view text);

/// What is asked while a transfer runs. It outlives the transfer.
struct CurlGuard {
  const AddressAllowed* allowed = nullptr;
  const std::atomic<bool>* stop = nullptr;
  bool refused = false;  ///< An address was.
};
/// No signals, no ~/.netrc, no connection of another request, each address asked about.
void SetGuard(CURL* handle, CurlGuard* guard);
/// Trusts these authorities instead of the system's. Empty: those.
void TrustOnly(CURL* handle, const std::string& ca_file);

}  // namespace telltale
