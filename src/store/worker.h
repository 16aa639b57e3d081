// SPDX-License-Identifier: Apache-2.0
// One thread that runs posted work in order: the sync and the seal each have one, so that a stalled
// disk never stalls the agent.
//
// Thread safety: Post from any thread; destroy from the owner's.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace telltale::store {

class Worker {
 public:
  enum class Priority { kNormal, kIdle };
  explicit Worker(Priority priority);
  /// Finishes the piece of work in progress, at normal priority where that is allowed; what waits
  /// is dropped.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Post(std::function<void()> work);
  /// Waits until all posted work is done.
  void Drain();

 private:
  void Run(Priority priority);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  ///< Guarded by mutex_.
  bool busy_ = false;                        ///< Guarded by mutex_.
  int tid_ = 0;                              ///< Of a thread of idle priority; guarded by mutex_.
  bool stop_ = false;                        ///< Guarded by mutex_.
  std::thread thread_;
};

}  // namespace telltale::store
