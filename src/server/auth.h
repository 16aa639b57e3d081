// SPDX-License-Identifier: Apache-2.0
// Who may read: programs by the user's token, browsers by a session that a one-time code of the
// link opens. Token and session secret are the user's, kept in one private file, so a page survives
// a restart of the server and two servers on one machine share a cookie.
//
// Thread safety: none.
#pragma once
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"

namespace telltale::server {

class Auth {
 public:
  /// Reads the user's secrets, or makes them. Where no file can be kept (no home folder, a full
  /// disk) they live as long as this process; `note` then says why.
  static Result<Auth> Open(std::string* note);
  /// $XDG_STATE_HOME/telltale/serve-token, else ~/.local/state/telltale/serve-token; empty where
  /// neither is known.
  static std::filesystem::path File();
  /// With secrets of its own; for tests.
  static Result<Auth> Fresh();

  const std::string& token() const { return token_; }
  const std::string& session() const { return session_; }

  /// A new code, to be used once.
  Result<std::string> NewCode();
  /// True once for each code.
  bool TakeCode(std::string_view code);

  bool TokenOk(std::string_view token) const;
  bool SessionOk(std::string_view session) const;

 private:
  std::string token_, session_;
  std::deque<std::string> codes_;  ///< Not used yet, oldest first.
};

/// `bytes` random bytes in hex.
Result<std::string> RandomHex(std::size_t bytes);

}  // namespace telltale::server
