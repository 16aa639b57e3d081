// SPDX-License-Identifier: Apache-2.0
// Preloaded into `telltale run`: from its third fsync on, the first two are of run.json and its folder
// before anything is started, each waits until the file SLOW_SYNC_GATE is gone. So a disk looks that has much
// else to do.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "supervisor_only.h"

enum { kBefore = 2, kPeriodUs = 1000 };

int fsync(int fd) {
  static atomic_int calls;
  const char* gate = getenv("SLOW_SYNC_GATE");
  if (gate != NULL && IsSupervisor() && atomic_fetch_add(&calls, 1) >= kBefore) {
    while (access(gate, F_OK) == 0) usleep(kPeriodUs);
  }
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return real(fd);
}
