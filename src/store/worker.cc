// SPDX-License-Identifier: Apache-2.0
#include "store/worker.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

namespace telltale::store {
namespace {

void GoIdle() {
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
  // ioprio_set(IOPRIO_WHO_PROCESS, this thread, IOPRIO_CLASS_IDLE << 13); glibc has no wrapper.
  ::syscall(SYS_ioprio_set, 1, 0, 3 << 13);
}

}  // namespace

Worker::Worker(Priority priority) {
  // Signals are for the threads of the program, not for ours.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, priority] { Run(priority); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    queue_.clear();
    // Somebody waits now. Without the right to it (RLIMIT_NICE) the thread stays slow.
    if (tid_ > 0) {
      const sched_param none{};
      ::sched_setscheduler(tid_, SCHED_OTHER, &none);
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(tid_), 0);
      ::syscall(SYS_ioprio_set, 1, tid_, 2 << 13 | 4);
    }
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void Worker::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

void Worker::Run(Priority priority) {
  if (priority == Priority::kIdle) GoIdle();
  std::unique_lock lock(mutex_);
  if (priority == Priority::kIdle) tid_ = static_cast<int>(::syscall(SYS_gettid));
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace telltale::store
