// SPDX-License-Identifier: Apache-2.0
// TLS 1.2 and 1.3 of the server's connections, by GnuTLS: docs/decisions/0011-tls-by-gnutls.md. The
// session does no waiting: it says what has to be waited for.
//
// Thread safety: none; a session in one thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/status.h"

struct gnutls_session_int;
struct gnutls_certificate_credentials_st;
struct gnutls_priority_st;

namespace telltale::server {

/// A certificate with its chain, and its key.
class TlsCertificate {
 public:
  /// Both in PEM. kUsage: one cannot be read, or they do not belong together.
  static Result<std::shared_ptr<const TlsCertificate>> Load(
      const std::filesystem::path& certificate, const std::filesystem::path& key);
  ~TlsCertificate();
  TlsCertificate(const TlsCertificate&) = delete;
  TlsCertificate& operator=(const TlsCertificate&) = delete;

 private:
  friend class TlsSession;
  TlsCertificate() = default;

  gnutls_certificate_credentials_st* credentials_ = nullptr;
  gnutls_priority_st* priority_ = nullptr;
};

class TlsSession {
 public:
  enum class Is : std::uint8_t {
    kDone,       ///< And `bytes` of them.
    kMustRead,   ///< Again once the descriptor can be read, ...
    kMustWrite,  ///< ... or written; what was to be sent as it was.
    kEnded,      ///< By the peer, or by an error.
  };
  struct Did {
    Is is = Is::kEnded;
    std::size_t bytes = 0;
  };

  /// `descriptor` gives the socket, -1 once it is closed.
  TlsSession(std::shared_ptr<const TlsCertificate> certificate, std::function<int()> descriptor);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  Did Handshake();
  Did Receive(char* out, std::size_t room);
  Did Send(const char* bytes, std::size_t size);
  /// Tells the peer that no more comes, if it takes that at once.
  void Bye();

 private:
  struct Transport;
  Did After(long result) const;

  std::shared_ptr<const TlsCertificate> certificate_;
  std::function<int()> descriptor_;
  gnutls_session_int* session_ = nullptr;
};

}  // namespace telltale::server
