// SPDX-License-Identifier: Apache-2.0
// The server: one thread for all connections, coroutines over Boost.Beast, and the loader's thread
// behind the cache. What it answers is in docs/serve.md. It only ever reads run directories; what a
// page asks of a training is handed to whoever opened the server.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/auth.h"

namespace telltale::server {

struct ServerOptions {
  std::string bind = "127.0.0.1";  ///< An address, IPv4 or IPv6.
  std::uint16_t port = 0;          ///< 0: one that is free.
  std::vector<std::string> allow_hosts;
  std::vector<std::filesystem::path> paths;
  /// Speaks TLS alone, with this certificate and key. Empty: HTTP without.
  std::filesystem::path tls_certificate, tls_key;
  /// Runs held in memory at once, those with an open page included; more are refused.
  std::size_t max_loaded_runs = 32;
  /// How long a connection may be silent that has not signed in, and how long any request may take
  /// from its first byte to its last.
  std::chrono::milliseconds stranger_patience = std::chrono::seconds(10);
  std::chrono::milliseconds request_patience = std::chrono::seconds(10);
  /// POST /api/runs/ID/window: asks the training of the run in the folder for what the body says,
  /// in a thread of its own, one at a time; the answer as JSON. None: 405.
  std::function<Result<std::string>(const std::filesystem::path& run, const std::string& body)>
      ask_window;
  /// SIGINT, SIGTERM and SIGHUP end Run() in good order.
  bool handle_signals = false;
};

class Server {
 public:
  /// Listens; answers once Run() is called. kRunning: the port is taken. kUsage: no address, or no
  /// certificate.
  static Result<std::unique_ptr<Server>> Open(ServerOptions options, Auth auth);
  virtual ~Server() = default;

  virtual std::uint16_t port() const = 0;
  /// http://127.0.0.1:PORT/#code=..., or https, good for one browser and for Auth::kCodeNs. Before
  /// Run() or in its thread.
  virtual Result<std::string> NewLink() = 0;
  /// Serves until Stop() or a signal.
  virtual void Run() = 0;
  /// From any thread: streams get what came last, then Run() returns.
  virtual void Stop() = 0;
};

}  // namespace telltale::server
