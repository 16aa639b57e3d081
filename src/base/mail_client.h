// SPDX-License-Identifier: Apache-2.0
// Hands one mail to an SMTP server over libcurl. With `starttls` nothing goes out in plain text: a
// server that does not offer it gets no mail.
//
// Thread safety: any thread; a call blocks for at most its timeout.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/http_client.h"
#include "base/status.h"

namespace telltale {

struct MailRequest {
  std::string server;  ///< "smtp://HOST:PORT/OUR-NAME", smtps:// for TLS from the first byte.
  bool starttls = true;
  std::string user, password;  ///< Empty user: does not sign in.
  std::string from;            ///< Addresses, checked by the caller.
  std::vector<std::string> to;
  std::string text;     ///< Header lines and body, with CRLF.
  std::string ca_file;  ///< Empty: the system's authorities.
  std::int64_t timeout_ms = 30'000;
  AddressAllowed address_allowed;           ///< As of HttpRequest.
  const std::atomic<bool>* stop = nullptr;  ///< Likewise.
};

struct MailOutcome {
  Status status;       ///< kUsage: it makes no sense; kAuth: no trust; kIo: it was not taken.
  bool retry = false;  ///< It may be taken later.
};

MailOutcome SendMail(const MailRequest& request);

}  // namespace telltale
