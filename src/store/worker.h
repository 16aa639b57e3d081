// SPDX-License-Identifier: Apache-2.0
// One thread that runs posted work in order: the sync and the seal each have one, so that a stalled
// disk never stalls the agent.
//
// Thread safety: Post from any thread; destroy from the owner's.
#pragma once
#include <functional>
#include <memory>
#include <thread>

namespace telltale::store {

class Worker {
 public:
  enum class Priority { kNormal, kIdle };
  explicit Worker(Priority priority);
  /// Drops what waits and gives the piece of work in progress two seconds to finish. A thread of
  /// idle priority may starve for minutes on a busy machine: it is then left behind, so work must
  /// own what it touches and do no harm when it goes on later.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Post(std::function<void()> work);
  /// Waits until all posted work is done.
  void Drain();

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state, Priority priority);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace telltale::store
