// SPDX-License-Identifier: Apache-2.0
// A training for fault tests that gives raw values at each step: a small tensor, which travels in
// its ring, and a large one, which travels in the slab. Every element is the number of the step, so
// that a value which was stored shows by itself whether it is right.
// usage: fault_raw_trainer ORACLE STEPS STEP_MICROSECONDS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "oracle.h"
#include "telltale/probe.h"

namespace {

struct Given {
  std::uint32_t id;
  std::vector<float> values;

  Given(const char* name, std::size_t length, std::size_t elements)
      : id(tt_tensor("weights", 7, name, length)), values(elements) {}

  void Record(long step) {
    if (tt_due(0, TT_STEP_OPEN, TT_MODE_OPEN) == 0) return;
    const std::uint32_t take = tt_due(id, TT_STEP_OPEN, TT_MODE_OPEN);
    if (take == 0) return;
    std::fill(values.begin(), values.end(), static_cast<float>(step));
    const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
    tt_array array{};
    array.data = values.data();
    array.dtype = TT_DTYPE_F32;
    array.ndim = 1;
    array.shape = shape;
    tt_record_tensor(id, &array, take, TT_STEP_OPEN, TT_MODE_OPEN);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  auto* oracle = telltale::fault::Oracle::Map(argv[1]);
  if (oracle == nullptr) return 2;
  const long steps = std::atol(argv[2]);
  const long step_us = std::atol(argv[3]);
  oracle->recording = tt_init(TT_PROCESS_TRAINER, 0) + 1;
  oracle->pid = ::getpid();
  Given small("small", 5, 10);
  Given large("large", 5, 16'000);
  const timespec pause{step_us / 1'000'000, step_us % 1'000'000 * 1000};
  for (long step = 0; step < steps; ++step) {
    tt_fetch_begin();
    tt_fetch_end(4);
    tt_forward_begin(TT_MODE_TRAIN);
    ::nanosleep(&pause, nullptr);
    tt_forward_end(4);
    const auto open = static_cast<long>(tt_current_step());
    small.Record(open);
    large.Record(open);
    tt_optimizer_begin(1);
    tt_optimizer_end(1, 0, 0.1);
    tt_step();
    oracle->committed = static_cast<std::uint64_t>(step) + 1;
  }
  tt_finish();
  return 0;
}
