// SPDX-License-Identifier: Apache-2.0
// Which GPUs the driver's library finds on this machine, once, for people who ask what will be
// recorded. Thread-safe.
#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace telltale::collect {

struct GpuInventory {
  struct Gpu {
    std::string name;  ///< Empty where the device does not answer.
    double memory_bytes = 0;
    bool mig = false;       ///< Partitioned.
    bool counters = false;  ///< Hopper and later: busy multiprocessors and tensor cores are told.
  };
  bool library = false;  ///< It is there.
  std::string problem;   ///< Why no device can be read; empty where they can, or there is none.
  std::string driver;    ///< Its version.
  std::vector<Gpu> gpus;
};

/// Loads `library` in a thread of its own and waits no longer than `patience` for its answers.
GpuInventory FindGpus(const std::string& library, std::chrono::nanoseconds patience);

}  // namespace telltale::collect
