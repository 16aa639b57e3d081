// SPDX-License-Identifier: Apache-2.0
#include "base/curl_handle.h"

#include <sys/socket.h>

#include <mutex>

namespace telltale {
namespace {

bool CurlIsReady() {
  static std::once_flag once;
  static bool ready = false;
  std::call_once(once, [] { ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK; });
  return ready;
}

/// Asks about the very address that is about to be connected: no second answer of a name server
/// comes between.
curl_socket_t OnSocket(void* user, curlsocktype purpose, curl_sockaddr* address) {
  auto* const guard = static_cast<CurlGuard*>(user);
  const bool allowed =
      purpose == CURLSOCKTYPE_IPCXN && (guard->allowed == nullptr || !*guard->allowed ||
                                        (*guard->allowed)(&address->addr, address->addrlen));
  if (!allowed) {
    guard->refused = true;
    return CURL_SOCKET_BAD;
  }
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

int OnProgress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto* const guard = static_cast<const CurlGuard*>(user);
  return guard->stop != nullptr && guard->stop->load() ? 1 : 0;
}

}  // namespace

CurlHandle NewCurl() { return CurlHandle(CurlIsReady() ? curl_easy_init() : nullptr); }

bool AppendTo(CurlList* list, const std::string& line) {
  curl_slist* const longer = curl_slist_append(list->get(), line.c_str());
  if (longer == nullptr) return false;
  // The head is the same once there is one.
  static_cast<void>(list->release());
  list->reset(longer);
  return true;
}

bool HasLineBreak(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos;
}

void SetGuard(CURL* handle, CurlGuard* guard) {
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
#if LIBCURL_VERSION_NUM >= 0x075700
  // A name server that does not answer would outlast every timeout: its thread ends by itself.
  curl_easy_setopt(handle, CURLOPT_QUICK_EXIT, 1L);
#endif
  curl_easy_setopt(handle, CURLOPT_FRESH_CONNECT, 1L);
  curl_easy_setopt(handle, CURLOPT_FORBID_REUSE, 1L);
  curl_easy_setopt(handle, CURLOPT_OPENSOCKETFUNCTION, &OnSocket);
  curl_easy_setopt(handle, CURLOPT_OPENSOCKETDATA, guard);
  curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, &OnProgress);
  curl_easy_setopt(handle, CURLOPT_XFERINFODATA, guard);
}

void TrustOnly(CURL* handle, const std::string& ca_file) {
  if (ca_file.empty()) return;
  curl_easy_setopt(handle, CURLOPT_CAINFO, ca_file.c_str());
  // Of the system's folder too, with some libraries of TLS.
  curl_easy_setopt(handle, CURLOPT_CAPATH, static_cast<const char*>(nullptr));
}

}  // namespace telltale
