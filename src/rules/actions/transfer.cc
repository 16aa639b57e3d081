// SPDX-License-Identifier: Apache-2.0
#include "rules/actions/transfer.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/printable.h"
#include "rules/actions/address_guard.h"

namespace telltale::rules {
namespace {

constexpr std::size_t kMaxAnswerBytes = 4096;
/// A server that sends more than this is cut off.
constexpr std::size_t kMaxReadBytes = 1U << 20;
constexpr double kMaxPauseSeconds = 60;

struct State {
  const Transfer* transfer;
  const std::atomic<bool>* stop;
  std::string body;
  std::size_t read = 0;
  std::size_t sent = 0;
  bool refused = false;
};

/// Of the very address that is about to be connected.
curl_socket_t OpenSocket(void* user, curlsocktype purpose, curl_sockaddr* address) {
  auto* state = static_cast<State*>(user);
  const Reach reach = ReachOf(&address->addr, address->addrlen);
  const bool allowed =
      reach == Reach::kPublic || (reach == Reach::kPrivate && state->transfer->allow_private);
  if (purpose != CURLSOCKTYPE_IPCXN || !allowed) {
    state->refused = true;
    return CURL_SOCKET_BAD;
  }
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

std::size_t OnBody(char* bytes, std::size_t size, std::size_t count, void* user) {
  auto* state = static_cast<State*>(user);
  const std::size_t n = size * count;
  state->read += n;
  if (state->read > kMaxReadBytes) return 0;
  if (state->body.size() < kMaxAnswerBytes) {
    state->body.append(bytes, std::min(n, kMaxAnswerBytes - state->body.size()));
  }
  return n;
}

std::size_t OnUpload(char* bytes, std::size_t size, std::size_t count, void* user) {
  auto* state = static_cast<State*>(user);
  const std::string& text = state->transfer->body;
  const std::size_t n = std::min(size * count, text.size() - state->sent);
  std::memcpy(bytes, text.data() + state->sent, n);
  state->sent += n;
  return n;
}

int OnProgress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<State*>(user)->stop->load() ? 1 : 0;
}

struct ListFree {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using List = std::unique_ptr<curl_slist, ListFree>;

bool Add(List* list, const std::string& text) {
  curl_slist* longer = curl_slist_append(list->get(), text.c_str());
  if (longer == nullptr) return false;
  // The head is the same once there is one.
  [[maybe_unused]] curl_slist* same = list->release();
  list->reset(longer);
  return true;
}

struct EasyFree {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
};

bool MayHelp(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_WEIRD_SERVER_REPLY:
      return true;
    default:
      return false;
  }
}

}  // namespace

Answer Send(const Transfer& transfer, const std::atomic<bool>& stop) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  Answer answer;
  const std::unique_ptr<CURL, EasyFree> owner(curl_easy_init());
  CURL* curl = owner.get();
  if (curl == nullptr) {
    answer.error = "no memory";
    return answer;
  }
  State state{&transfer, &stop, {}, 0, 0, false};
  const bool mail = !transfer.mail_from.empty();
  char words[CURL_ERROR_SIZE] = {};
  List headers;
  List recipients;
  bool ok = true;
  const auto set = [&](CURLoption option, auto value) {
    ok = ok && curl_easy_setopt(curl, option, value) == CURLE_OK;
  };
  set(CURLOPT_ERRORBUFFER, static_cast<char*>(words));
  set(CURLOPT_URL, transfer.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, mail ? "smtp,smtps" : "http,https");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  set(CURLOPT_PROXY, transfer.proxy.c_str());
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(std::max(1.0, transfer.timeout_seconds * 1000)));
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::max(1.0, transfer.timeout_seconds * 1000)));
  set(CURLOPT_OPENSOCKETFUNCTION, &OpenSocket);
  set(CURLOPT_OPENSOCKETDATA, &state);
  set(CURLOPT_WRITEFUNCTION, &OnBody);
  set(CURLOPT_WRITEDATA, &state);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &OnProgress);
  set(CURLOPT_XFERINFODATA, &state);
  set(CURLOPT_SSL_VERIFYPEER, 1L);
  set(CURLOPT_SSL_VERIFYHOST, 2L);
  set(CURLOPT_FRESH_CONNECT, 1L);
  set(CURLOPT_FORBID_REUSE, 1L);
  if (!transfer.ca_file.empty()) set(CURLOPT_CAINFO, transfer.ca_file.c_str());
  if (!transfer.user.empty()) {
    set(CURLOPT_USERNAME, transfer.user.c_str());
    set(CURLOPT_PASSWORD, transfer.password.c_str());
  }
  if (mail) {
    if (transfer.starttls) set(CURLOPT_USE_SSL, static_cast<long>(CURLUSESSL_ALL));
    const std::string from = "<" + transfer.mail_from + ">";
    set(CURLOPT_MAIL_FROM, from.c_str());
    for (const std::string& to : transfer.mail_to) ok = Add(&recipients, "<" + to + ">") && ok;
    set(CURLOPT_MAIL_RCPT, recipients.get());
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_READFUNCTION, &OnUpload);
    set(CURLOPT_READDATA, &state);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(transfer.body.size()));
  } else {
    for (const std::string& header : transfer.headers) ok = Add(&headers, header) && ok;
    // No wait for a "100 Continue" that many receivers never send.
    ok = Add(&headers, "Expect:") && ok;
    set(CURLOPT_HTTPHEADER, headers.get());
    set(CURLOPT_USERAGENT, "telltale");
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(transfer.body.size()));
    set(CURLOPT_POSTFIELDS, transfer.body.c_str());
    if (!transfer.sigv4.empty()) set(CURLOPT_AWS_SIGV4, transfer.sigv4.c_str());
  }
  if (!ok) {
    answer.error = "libcurl does not take the request";
    return answer;
  }
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer.code);
  answer.body = std::move(state.body);
  if (state.refused && code != CURLE_OK) {
    answer.refused = true;
    answer.error =
        "its address is not one of the open internet: allow_private = true lets private ones";
    return answer;
  }
  if (code != CURLE_OK) {
    answer.error = words[0] != '\0' ? words : curl_easy_strerror(code);
    // A mail server's "not now" comes as an error of the login, the recipients or the data.
    answer.retry = MayHelp(code) || (mail && answer.code >= 400 && answer.code < 500);
    return answer;
  }
  if (!mail && (answer.code < 200 || answer.code >= 300)) {
    answer.error =
        answer.code >= 300 && answer.code < 400
            ? fmt::format("HTTP {}: it sends elsewhere, which is not followed", answer.code)
            : fmt::format("HTTP {}", answer.code);
    answer.retry =
        answer.code == 408 || answer.code == 425 || answer.code == 429 || answer.code >= 500;
    curl_off_t after = 0;
    if (curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &after) == CURLE_OK) {
      answer.retry_after_seconds = static_cast<double>(after);
    }
  }
  return answer;
}

Status SendAndRetry(const Transfer& transfer, int retries, const std::atomic<bool>& stop,
                    const Pause& pause, const std::function<Answer()>& send) {
  double wait = 1;
  for (int tried = 1;; ++tried, wait *= 2) {
    const Answer answer = send ? send() : Send(transfer, stop);
    if (answer.error.empty()) return {};
    const double seconds = std::min(kMaxPauseSeconds, std::max(wait, answer.retry_after_seconds));
    if (!answer.retry || tried > retries || stop.load() || !pause(seconds)) {
      // The URL is left out: that of a webhook is a secret.
      return {Code::kIo, fmt::format("{}{}", Printable(answer.error),
                                     tried > 1 ? fmt::format(" ({} tries)", tried) : "")};
    }
  }
}

}  // namespace telltale::rules
