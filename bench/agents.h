// SPDX-License-Identifier: Apache-2.0
// The agents of a live run as its readers see them: each a store::Writer in a thread of its own
// that publishes rows and a watermark every 200 ms, which is the slowest that an agent does, and
// samples the machine every 500 ms.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "store/writer.h"

namespace telltale::bench {

class Agents {
 public:
  /// A running run in `run`, which is made, with `count` writers.
  Agents(const std::filesystem::path& run, int count);
  ~Agents();
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;

  /// What the training does: waits in the first agent's ring until that one's next look. Times of
  /// the rows are set here. Any thread, one at a time.
  void Put(format::Rows rows);
  /// CLOCK_MONOTONIC ns just before the batch with what was last put went into the journal; waits
  /// for it.
  std::int64_t WrittenNs() const;

 private:
  void Publish(std::size_t index);

  std::vector<std::unique_ptr<store::Writer>> writers_;
  std::mutex mutex_;  ///< Guards waiting_ and put_.
  format::Rows waiting_;
  std::uint64_t put_ = 0;
  std::atomic<std::uint64_t> written_{0};
  std::atomic<std::int64_t> written_ns_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace telltale::bench
