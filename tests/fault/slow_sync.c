// SPDX-License-Identifier: Apache-2.0
// Preloaded into `telltale run` and what it forks: from the third fsync on, the first two are of run.json
// and its folder before anything is started, each waits until the file SLOW_SYNC_GATE is gone. So a disk looks
// that has much else to do. SLOW_SYNC_ONLY: of files alone whose path holds this.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "supervisor_only.h"

enum { kBefore = 2, kPeriodUs = 1000 };

static int IsMeant(int fd) {
  const char* only = getenv("SLOW_SYNC_ONLY");
  if (only == NULL) return 1;
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  path[size < 0 ? 0 : size] = '\0';
  return strstr(path, only) != NULL;
}

int fsync(int fd) {
  static atomic_int calls;
  const char* gate = getenv("SLOW_SYNC_GATE");
  if (gate != NULL && IsMeant(fd) && IsSupervisor() &&
      (getenv("SLOW_SYNC_ONLY") != NULL || atomic_fetch_add(&calls, 1) >= kBefore)) {
    while (access(gate, F_OK) == 0) usleep(kPeriodUs);
  }
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return real(fd);
}
