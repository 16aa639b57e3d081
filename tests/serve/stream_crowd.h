// SPDX-License-Identifier: Apache-2.0
// Many open pages of one run: event streams that a thread reads, so that none of them is slow.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "serve/client.h"

namespace telltale::testing {

/// Room for so many descriptors more than usual; false where the system refuses it.
bool RaiseFileLimit(std::size_t descriptors);

class StreamCrowd {
 public:
  /// Opens `count` streams with `request`, and waits until each has had its first overview.
  StreamCrowd(std::uint16_t port, const std::string& request, std::size_t count);
  ~StreamCrowd();
  StreamCrowd(const StreamCrowd&) = delete;
  StreamCrowd& operator=(const StreamCrowd&) = delete;

  /// Whether all were opened and none was closed by the server until now.
  bool ok() const { return ok_; }
  std::uint64_t bytes() const { return bytes_; }
  double cpu_seconds() const { return static_cast<double>(cpu_ns_) / 1e9; }

 private:
  void Read();

  std::vector<std::unique_ptr<Connection>> streams_;
  std::atomic<bool> ok_{true};
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::int64_t> cpu_ns_{0};  ///< Of the thread that reads.
  std::thread thread_;
};

}  // namespace telltale::testing
