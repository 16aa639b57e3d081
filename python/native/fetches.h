// SPDX-License-Identifier: Apache-2.0
//
// What batches cost in the process that makes them: for how long a fetch computes and for how long
// it waits, its items against the collation, what it reads, how large batches are. Summed up, and
// told each few seconds as the event `dataloader.fetches`.
//
// Thread safety: everything here is touched with the GIL held.
#pragma once

#include <cstdint>

#include "items.h"
#include "py_api.h"

namespace telltale::native {

/// This is a forked child: what was summed up so far is its parent's.
void ForgetFetches();

/// In a training process: a batch that a worker had ready was taken, which took so long. Told now
/// and then as the event `dataloader.handover`.
void TookHandOver(std::uint64_t ticks);

/// The kernel's counters of this process and thread; -1 what cannot be read.
struct KernelCounters {
  std::int64_t read_calls = -1, read_bytes = -1, storage_bytes = -1;
  std::int64_t process_cpu_ns = -1;
  std::int64_t run_delay_ns = -1;  ///< Of the thread: it was ready to run and had no core.
};

/// One fetch, from its construction to End.
class FetchCost {
 public:
  FetchCost();
  ~FetchCost();
  FetchCost(const FetchCost&) = delete;
  FetchCost& operator=(const FetchCost&) = delete;

  /// It has ended well, with `batch`; `begin` and `end` by tt_now.
  void End(std::uint64_t begin, std::uint64_t end, const WatchedItems& items, PyObject* batch);

 private:
  void Take(std::uint64_t begin, std::uint64_t end, std::int64_t cpu_ns, const WatchedItems& items,
            PyObject* batch);

  bool profiled_;  ///< By the adapter; its time counts for nothing.
  bool looked_;    ///< The kernel's counters are read around this one.
  KernelCounters counters_;
  std::int64_t cpu_ns_;
};

}  // namespace telltale::native
