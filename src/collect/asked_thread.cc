// SPDX-License-Identifier: Apache-2.0
#include "collect/asked_thread.h"

#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace telltale::collect {

struct AskedThread::State {
  explicit State(std::function<void()> what) : answer(std::move(what)) {}

  const std::function<void()> answer;
  std::mutex mutex;  ///< Guards what follows.
  std::condition_variable asked, answered;
  bool busy = false;
  bool stop = false;
  bool gone = false;  ///< The thread has left.
};

AskedThread::AskedThread(std::function<void()> answer)
    : state_(std::make_shared<State>(std::move(answer))) {}

AskedThread::~AskedThread() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->asked.notify_one();
  // It is between two questions: it leaves at once, and must not be there when the process ends.
  if (started_ && !state_->busy) state_->answered.wait(lock, [this] { return state_->gone; });
}

void AskedThread::Run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->asked.wait(lock, [&] { return state->busy || state->stop; });
    if (state->stop) break;
    lock.unlock();
    state->answer();
    lock.lock();
    state->busy = false;
    state->answered.notify_one();
  }
  state->gone = true;
  state->answered.notify_one();
}

bool AskedThread::Ask() {
  {
    const std::scoped_lock lock(state_->mutex);
    if (state_->busy) return false;
    state_->busy = true;
  }
  if (started_) {
    state_->asked.notify_one();
    return true;
  }
  // Signals are the business of the thread that asks.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([state = state_] { Run(state); }).detach();
    started_ = true;
  } catch (const std::system_error&) {
    const std::scoped_lock lock(state_->mutex);
    state_->busy = false;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started_;
}

bool AskedThread::Await(std::chrono::nanoseconds patience) {
  std::unique_lock lock(state_->mutex);
  const auto is_idle = [this] { return !state_->busy; };
  return patience.count() <= 0 ? is_idle() : state_->answered.wait_for(lock, patience, is_idle);
}

}  // namespace telltale::collect
