// SPDX-License-Identifier: Apache-2.0
// The only unit that includes GnuTLS.
#include "server/tls.h"

#include <fmt/format.h>
#include <gnutls/gnutls.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace telltale::server {
namespace {

constexpr const char* kPriority = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
/// Of warnings and the like in a row, in which nothing else came.
constexpr int kMostTries = 16;

}  // namespace

/// What GnuTLS reads and writes by.
struct TlsSession::Transport {
  static ssize_t Pull(gnutls_transport_ptr_t self, void* out, std::size_t room) {
    auto* const session = static_cast<TlsSession*>(self);
    const int fd = session->descriptor_();
    const ssize_t n = fd < 0 ? -1 : ::recv(fd, out, room, MSG_DONTWAIT);
    if (n < 0) gnutls_transport_set_errno(session->session_, fd < 0 ? ECONNRESET : errno);
    return n;
  }
  static ssize_t Push(gnutls_transport_ptr_t self, const void* bytes, std::size_t size) {
    auto* const session = static_cast<TlsSession*>(self);
    const int fd = session->descriptor_();
    const ssize_t n = fd < 0 ? -1 : ::send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) gnutls_transport_set_errno(session->session_, fd < 0 ? ECONNRESET : errno);
    return n;
  }
};

Result<std::shared_ptr<const TlsCertificate>> TlsCertificate::Load(
    const std::filesystem::path& certificate, const std::filesystem::path& key) {
  const std::shared_ptr<TlsCertificate> made(new TlsCertificate);
  const auto failed = [&](int error) {
    return Status(Code::kUsage,
                  fmt::format("--tls-cert {} and --tls-key {}: {}: give a certificate in PEM, with "
                              "its chain, and the key that belongs to it",
                              certificate.string(), key.string(), gnutls_strerror(error)));
  };
  if (const int error = gnutls_certificate_allocate_credentials(&made->credentials_); error < 0) {
    return failed(error);
  }
  if (const int error = gnutls_certificate_set_x509_key_file(
          made->credentials_, certificate.c_str(), key.c_str(), GNUTLS_X509_FMT_PEM);
      error < 0) {
    return failed(error);
  }
  if (const int error = gnutls_priority_init(&made->priority_, kPriority, nullptr); error < 0) {
    return failed(error);
  }
  return std::shared_ptr<const TlsCertificate>(made);
}

TlsCertificate::~TlsCertificate() {
  if (priority_ != nullptr) gnutls_priority_deinit(priority_);
  if (credentials_ != nullptr) gnutls_certificate_free_credentials(credentials_);
}

TlsSession::TlsSession(std::shared_ptr<const TlsCertificate> certificate,
                       std::function<int()> descriptor)
    : certificate_(std::move(certificate)), descriptor_(std::move(descriptor)) {
  constexpr unsigned kFlags =
      GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL | GNUTLS_NO_TICKETS;
  if (gnutls_init(&session_, kFlags) < 0) {
    session_ = nullptr;
    return;
  }
  if (gnutls_priority_set(session_, certificate_->priority_) < 0 ||
      gnutls_credentials_set(session_, GNUTLS_CRD_CERTIFICATE, certificate_->credentials_) < 0) {
    gnutls_deinit(std::exchange(session_, nullptr));
    return;
  }
  gnutls_certificate_server_set_request(session_, GNUTLS_CERT_IGNORE);
  gnutls_transport_set_ptr(session_, this);
  gnutls_transport_set_pull_function(session_, Transport::Pull);
  gnutls_transport_set_push_function(session_, Transport::Push);
  // Who waits, waits outside: a pull never blocks.
  gnutls_handshake_set_timeout(session_, GNUTLS_INDEFINITE_TIMEOUT);
}

TlsSession::~TlsSession() {
  if (session_ != nullptr) gnutls_deinit(session_);
}

TlsSession::Did TlsSession::After(long result) const {
  if (result >= 0) return {Is::kDone, static_cast<std::size_t>(result)};
  if (result == GNUTLS_E_AGAIN || result == GNUTLS_E_INTERRUPTED) {
    return {gnutls_record_get_direction(session_) == 0 ? Is::kMustRead : Is::kMustWrite, 0};
  }
  return {Is::kEnded, 0};
}

TlsSession::Did TlsSession::Handshake() {
  if (session_ == nullptr) return {};
  int result = GNUTLS_E_SUCCESS;
  for (int tries = 0; tries < kMostTries; ++tries) {
    result = gnutls_handshake(session_);
    if (result != GNUTLS_E_WARNING_ALERT_RECEIVED && result != GNUTLS_E_GOT_APPLICATION_DATA) break;
  }
  return After(result);
}

TlsSession::Did TlsSession::Receive(char* out, std::size_t room) {
  ssize_t result = 0;
  for (int tries = 0; tries < kMostTries; ++tries) {
    result = gnutls_record_recv(session_, out, room);
    if (result != GNUTLS_E_WARNING_ALERT_RECEIVED) break;
  }
  // Nothing is the end; another handshake, which only 1.2 knows, is not done.
  return result == 0 ? Did() : After(result);
}

TlsSession::Did TlsSession::Send(const char* bytes, std::size_t size) {
  return After(gnutls_record_send(session_, bytes, size));
}

void TlsSession::Bye() {
  if (session_ != nullptr) gnutls_bye(session_, GNUTLS_SHUT_WR);
}

}  // namespace telltale::server
