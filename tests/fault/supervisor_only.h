/* SPDX-License-Identifier: Apache-2.0 */
/* For what is preloaded into `telltale run` and meant for it alone: helpers and the training
 * inherit the environment. */
#pragma once
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static inline int IsSupervisor(void) {
  char line[4096] = {0};
  const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t got = read(fd, line, sizeof line - 1);
  close(fd);
  const size_t first = strlen(line) + 1;
  return got > 0 && first < (size_t)got && strcmp(line + first, "run") == 0;
}
