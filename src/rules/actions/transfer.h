// SPDX-License-Identifier: Apache-2.0
// One HTTP request or one mail over libcurl, with its guards: TLS is verified, no redirect is
// followed, no address is connected that the guard refuses, nothing larger than an answer may be is
// read. Thread safety: Send may be called by several threads at once.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace telltale::rules {

struct Transfer {
  std::string url;
  bool allow_private = false;  ///< Link-local addresses are refused in any case.
  std::string proxy;           ///< Empty: none, whatever the environment says.
  std::string ca_file;         ///< Empty: the system's.
  double timeout_seconds = 10;
  std::string user, password;  ///< Of AWS: the key's id and the key.

  // HTTP:
  std::string body;
  std::vector<std::string> headers;  ///< "Name: value".
  std::string sigv4;                 ///< "aws:amz:REGION:SERVICE"; empty: not signed.

  // Mail:
  std::string mail_from;
  std::vector<std::string> mail_to;
  bool starttls = false;  ///< Required where it is set.
};

struct Answer {
  long code = 0;                   ///< Of HTTP or SMTP; 0: there was none.
  std::string body;                ///< Its first 4 KiB.
  std::string error;               ///< Why there was no answer.
  bool refused = false;            ///< By the guard: another try is no use.
  bool retry = false;              ///< Another try may help.
  double retry_after_seconds = 0;  ///< What the server asked for.
};

/// `stop`: checked about once a second; true ends the transfer.
Answer Send(const Transfer& transfer, const std::atomic<bool>& stop);

/// Sends, and again after 1, 2, 4, ... s (or what the server asked for, 60 s at most) where it may
/// help. `pause` waits and gives false where there is no time for that. kIo: what was said last.
using Pause = std::function<bool(double seconds)>;
Status SendAndRetry(const Transfer& transfer, int retries, const std::atomic<bool>& stop,
                    const Pause& pause, const std::function<Answer()>& send = {});

}  // namespace telltale::rules
