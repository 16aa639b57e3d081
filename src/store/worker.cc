// SPDX-License-Identifier: Apache-2.0
#include "store/worker.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>

namespace telltale::store {
namespace {

constexpr std::chrono::seconds kGrace{2};

/// Idle beside the threads of our own session only: where sessions share the cores (autogroup) ours
/// has a whole share, and less (/proc/self/autogroup) would hold up the draining of the rings too.
void GoIdle() {
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
  // ioprio_set(IOPRIO_WHO_PROCESS, this thread, IOPRIO_CLASS_IDLE << 13); glibc has no wrapper.
  ::syscall(SYS_ioprio_set, 1, 0, 3 << 13);
}

}  // namespace

struct Worker::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;  ///< Guarded by mutex.
  bool busy = false;                        ///< Guarded by mutex.
  bool stop = false;                        ///< Guarded by mutex.
};

Worker::Worker(Priority priority) : state_(std::make_shared<State>()) {
  // Signals are for the threads of the program, not for ours.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([state = state_, priority] { Run(state, priority); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Worker::~Worker() {
  bool idle = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->stop = true;
    state_->queue.clear();
    state_->changed.notify_all();
    idle = state_->changed.wait_for(lock, kGrace, [&] { return !state_->busy; });
  }
  if (idle) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Worker::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(work));
  }
  state_->changed.notify_all();
}

void Worker::Drain() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->queue.empty() && !state_->busy; });
}

void Worker::Run(const std::shared_ptr<State>& state, Priority priority) {
  if (priority == Priority::kIdle) GoIdle();
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return state->stop || !state->queue.empty(); });
    if (state->stop) return;
    std::function<void()> work = std::move(state->queue.front());
    state->queue.pop_front();
    state->busy = true;
    lock.unlock();
    work();
    work = nullptr;  // What it holds goes before the owner hears that it is done.
    lock.lock();
    state->busy = false;
    state->changed.notify_all();
  }
}

}  // namespace telltale::store
