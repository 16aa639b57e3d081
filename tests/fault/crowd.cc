// SPDX-License-Identifier: Apache-2.0
// A training of many processes for fault tests: N that register one after another and live on, then
// one command more beside them; when that has ended, they end too.
// usage: fault_crowd N COMMAND...    exit code: the command's; 3 where one of the N is not recorded
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "telltale/probe.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  int alive[2];  // Whoever reads it lives until the last write end is closed.
  int told[2];
  if (::pipe2(alive, O_CLOEXEC) != 0 || ::pipe2(told, O_CLOEXEC) != 0) return 2;
  for (long i = std::atol(argv[1]); i > 0; --i) {
    const pid_t pid = ::fork();
    if (pid < 0) return 2;
    char recorded = 0;
    if (pid == 0) {
      ::close(alive[1]);
      recorded = static_cast<char>(tt_init(TT_PROCESS_OTHER, 0));
      char end = 0;
      if (::write(told[1], &recorded, 1) == 1 && ::read(alive[0], &end, 1) == 0) tt_finish();
      ::_exit(0);
    }
    // One at a time, so that it is certain who comes last.
    if (::read(told[0], &recorded, 1) != 1 || recorded != 1) return 3;
  }
  const pid_t last = ::fork();
  if (last == 0) {
    ::execv(argv[2], argv + 2);
    ::_exit(127);
  }
  int status = 0;
  if (last < 0 || ::waitpid(last, &status, 0) != last) return 2;
  ::close(alive[1]);
  while (::wait(nullptr) > 0) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
