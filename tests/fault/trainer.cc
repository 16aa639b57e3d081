// SPDX-License-Identifier: Apache-2.0
// A training for fault tests: real probe, real steps of a fixed length, no framework. It tells an
// oracle file what it has committed.
// usage: fault_trainer ORACLE STEPS STEP_MICROSECONDS [EXIT_CODE | segv | int [wait | compute]]
// wait: a step's time goes into its fetch, so that a rule has something to find; compute: into
// arithmetic, always as much, about what a processor does in that time.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "oracle.h"
#include "telltale/probe.h"

namespace {

telltale::fault::Oracle* oracle = nullptr;

std::int64_t Now(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void Compute(long us) {
  constexpr long kRoundsAMicrosecond = 500;
  static volatile std::uint64_t result = 88172645463325252ULL;
  std::uint64_t x = result;
  for (long i = us * kRoundsAMicrosecond; i > 0; --i) {
    x ^= x << 13U;
    x ^= x >> 7U;
    x ^= x << 17U;
  }
  result = x;
}

void OnInterrupt(int) { oracle->signals.fetch_add(1); }

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  oracle = telltale::fault::Oracle::Map(argv[1]);
  if (oracle == nullptr) return 2;
  const long steps = std::atol(argv[2]);
  const long step_us = std::atol(argv[3]);
  const char* end = argc > 4 ? argv[4] : "0";
  const bool wait = argc > 5 && std::strcmp(argv[5], "wait") == 0;
  const bool compute = argc > 5 && std::strcmp(argv[5], "compute") == 0;
  if (std::strcmp(end, "int") == 0) ::signal(SIGINT, OnInterrupt);
  oracle->recording = tt_init(TT_PROCESS_TRAINER, 0) + 1;
  oracle->pid = ::getpid();
  const std::uint32_t mark = tt_name("mark", 4);
  int after_signal = 0;
  const timespec pause{step_us / 1'000'000, step_us % 1'000'000 * 1000};
  for (long step = 0; step < steps; ++step) {
    tt_fetch_begin();
    if (wait) ::nanosleep(&pause, nullptr);
    tt_fetch_end(4);
    tt_forward_begin(TT_MODE_TRAIN);
    if (compute) {
      Compute(step_us);
    } else if (!wait) {
      ::nanosleep(&pause, nullptr);
    }
    tt_forward_end(4);
    tt_backward_begin();
    tt_backward_end(1, 1.0 / static_cast<double>(step + 1));
    tt_optimizer_begin(1);
    tt_optimizer_end(1, 0, 0.1);
    tt_scalar(mark, static_cast<double>(step));
    tt_step();
    if (step < telltale::fault::Oracle::kMaxSteps) {
      oracle->end_ns[step] = Now(CLOCK_MONOTONIC);
      oracle->cpu_ns[step] = Now(CLOCK_THREAD_CPUTIME_ID);
    }
    oracle->committed = static_cast<std::uint64_t>(step) + 1;
    // Some more steps, in which a second signal would show.
    if (oracle->signals > 0 && ++after_signal > 200) break;
  }
  tt_finish();
  if (std::strcmp(end, "segv") == 0) ::raise(SIGSEGV);
  return std::atoi(end);
}
