// SPDX-License-Identifier: Apache-2.0
// Who may read: programs by the user's token, browsers by a session. A session is opened by the
// one-time code of a link, within kCodeNs, or by the token, and is good for one server alone. Token
// and the secret that sessions are made from are the user's, kept in one private file, so a page
// survives a restart of its server.
//
// Thread safety: none.
#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace telltale::server {

class Auth {
 public:
  /// Reads the user's secrets, or makes them. Where no file can be kept (no home folder, a full
  /// disk) they live as long as this process; `note` then says why.
  static Result<Auth> Open(std::string* note, const Clock* clock = &CodeClock());
  /// $XDG_STATE_HOME/telltale/serve-token, else ~/.local/state/telltale/serve-token; empty where
  /// neither is known.
  static std::filesystem::path File();
  /// With secrets of its own; for tests.
  static Result<Auth> Fresh(const Clock* clock = &CodeClock());
  /// What codes expire by: its monotonic time goes on while the machine sleeps (CLOCK_BOOTTIME).
  static const Clock& CodeClock();

  /// Sessions from now on are those of the server with this name: the same again where a server of
  /// the same user, address and folders starts again, and no other's.
  void BindTo(std::string_view server);

  const std::string& token() const { return token_; }
  const std::string& session() const { return session_; }
  /// Opens /metrics and nothing else: made of the user's secret, so that all servers of the user
  /// accept it, and a scraper that knows it cannot read a run.
  const std::string& metrics_token() const { return metrics_token_; }

  /// How long a code can be used: a link may stand in a log that others read.
  static constexpr std::int64_t kCodeNs = 600'000'000'000;
  /// A new code, to be used once.
  Result<std::string> NewCode();
  enum class CodeIs : std::uint8_t { kGood, kExpired, kUnknown };
  /// kGood once for each code.
  CodeIs TakeCode(std::string_view code);
  /// Somebody has a link that opens a session still.
  bool CodeOpen() const;

  bool TokenOk(std::string_view token) const;
  bool SessionOk(std::string_view session) const;
  bool MetricsTokenOk(std::string_view token) const;

 private:
  struct Issued {
    std::string code;
    std::int64_t expires_ns = 0;  ///< By the clock.
  };
  const Clock* clock_ = &CodeClock();
  std::string token_;
  std::string secret_;   ///< Sessions are made from it.
  std::string session_;  ///< Of this server.
  std::string metrics_token_;
  std::deque<Issued> codes_;  ///< Not used yet, oldest first.
};

/// `bytes` random bytes in hex.
Result<std::string> RandomHex(std::size_t bytes);

}  // namespace telltale::server
