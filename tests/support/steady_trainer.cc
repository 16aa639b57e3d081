// SPDX-License-Identifier: Apache-2.0
// A training that records at a fixed rate, by the real probe: half spans, half values of the scalar
// "n", which count from 0, and 100 steps a second. What it could not do in time it makes up for.
// usage: steady_trainer FOLDER RECORDS_A_SECOND SECONDS
// It makes FOLDER/ready once it records, and begins when FOLDER/go is there.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>

#include "base/units.h"
#include "telltale/probe.h"

namespace {

std::int64_t Now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void SleepUntil(std::int64_t at_ns) {
  const timespec at{at_ns / 1'000'000'000, at_ns % 1'000'000'000};
  ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string folder = argv[1];
  const long per_ms = std::atol(argv[2]) / 2000;
  const long milliseconds = std::atol(argv[3]) * 1000;
  if (tt_init(TT_PROCESS_TRAINER, 0) != 1) return 3;
  const std::uint32_t n = tt_name("n", 1);
  const std::uint32_t work = tt_name("work", 4);
  std::ofstream(folder + "/ready") << ::getpid();
  while (::access((folder + "/go").c_str(), F_OK) != 0) SleepUntil(Now() + 10 * telltale::kMs);
  const std::int64_t begin = Now();
  long count = 0;
  for (long ms = 0; ms < milliseconds; ++ms) {
    SleepUntil(begin + ms * telltale::kMs);
    if (ms % 10 == 0) {
      tt_fetch_begin();
      tt_fetch_end(4);
      tt_forward_begin(TT_MODE_TRAIN);
      tt_forward_end(4);
      tt_backward_begin();
      tt_backward_end(1, 1.0 / static_cast<double>(ms + 1));
      tt_optimizer_begin(1);
      tt_optimizer_end(1, 0, 0.1);
      tt_step();
    }
    for (long i = 0; i < per_ms; ++i) {
      const std::uint64_t at = tt_now();
      tt_scalar(n, static_cast<double>(count++));
      tt_span(work, at, tt_now(), TT_SPAN_USER);
    }
  }
  tt_finish();
  return 0;
}
