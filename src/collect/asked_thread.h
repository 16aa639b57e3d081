// SPDX-License-Identifier: Apache-2.0
// A thread that answers questions, one at a time, and may hang in one: a dead NFS server or a
// driver that does not return holds up this thread and nobody else.
//
// Thread safety: one thread asks. Ownership: `answer` owns, or shares, all that it touches, for
// where it hangs it outlives this object.
#pragma once
#include <chrono>
#include <functional>
#include <memory>

namespace telltale::collect {

class AskedThread {
 public:
  /// `answer` runs on the thread once for each Ask(); what it wrote can be read once idle.
  explicit AskedThread(std::function<void()> answer);
  /// A thread that is idle ends; one that is not is left behind.
  ~AskedThread();
  AskedThread(const AskedThread&) = delete;
  AskedThread& operator=(const AskedThread&) = delete;

  /// False, and nothing is asked, while it is at an earlier question or where no thread could be
  /// had. The first call starts the thread.
  bool Ask();
  /// Waits no longer than `patience` for it to be idle; whether it is.
  bool Await(std::chrono::nanoseconds patience);
  bool idle() { return Await(std::chrono::nanoseconds(0)); }

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  bool started_ = false;
};

}  // namespace telltale::collect
