// SPDX-License-Identifier: Apache-2.0
// A client of the server as a test needs it: says byte for byte what it likes, over loopback. And
// the server itself in a thread.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "server/http_server.h"

namespace telltale::testing {

struct Reply {
  int status = 0;                              ///< 0: no answer.
  std::map<std::string, std::string> headers;  ///< Names in lower case.
  std::string body;
};

class Connection {
 public:
  explicit Connection(std::uint16_t port);
  bool ok() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  /// Sends the bytes as they are.
  bool Send(std::string_view bytes);
  /// One answer with a Content-Length.
  Reply Receive();
  /// Reads on until `text` has come; false at the end of the stream or after `limit`.
  bool Await(std::string_view text, std::chrono::milliseconds limit = std::chrono::minutes(5));
  /// All that came and was not taken.
  std::string& received() { return received_; }
  /// Reads what is there; false at the end of the stream.
  bool Read(std::chrono::milliseconds limit);

 private:
  UniqueFd fd_;
  std::string received_;
};

/// The server over `paths`, running until the end of the scope.
class RunningServer {
 public:
  explicit RunningServer(std::vector<std::filesystem::path> paths,
                         std::vector<std::string> allow_hosts = {});
  /// `linked` is called once code() is made, before anything is served.
  RunningServer(server::ServerOptions options, server::Auth auth,
                const std::function<void()>& linked = {});
  ~RunningServer();
  std::uint16_t port() const { return port_; }
  const std::string& token() const { return token_; }
  const std::string& code() const { return code_; }
  const std::string& link() const { return link_; }
  /// POSTs the code; the answer's cookie as a header line.
  std::string SignIn(const std::string& code) const;
  void Stop() { server_->Stop(); }

  /// Sends one request with the right Host on a connection of its own. `headers`: whole lines.
  Reply Ask(std::string_view method, std::string_view target,
            const std::vector<std::string>& headers = {}, std::string_view body = {}) const;
  /// GET with the token.
  Reply Get(std::string_view target) const;
  std::string bearer() const { return "Authorization: Bearer " + token_; }

 private:
  void Start(server::ServerOptions options, server::Auth auth, const std::function<void()>& linked);

  std::unique_ptr<server::Server> server_;
  std::uint16_t port_ = 0;
  std::string token_, code_, link_;
  std::thread thread_;
};

}  // namespace telltale::testing
