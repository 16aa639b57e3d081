# SPDX-License-Identifier: Apache-2.0
"""Checks that what runs inside the user's process cannot end it, throw into it or start threads,
but for the one helper thread.

usage: check_symbols.py NM ARCHIVE...
"""

import re
import subprocess
import sys

BANNED = re.compile(
    r"^(abort|exit|_exit|_Exit|quick_exit|atexit|on_exit|__cxa_atexit|__cxa_thread_atexit(_impl)?"
    r"|__assert_fail|raise|kill|pthread_create|pthread_kill|pthread_exit|signal|sigaction|sigprocmask"
    r"|pthread_sigmask|__cxa_(throw|rethrow|allocate_exception|begin_catch|guard_acquire|pure_virtual)"
    r"|_ZSt9terminatev|_ZSt\d+__throw_\w+|_Unwind_\w+|malloc|calloc|realloc|free|_Zn[wa]\w+|_Zd[la]\w+"
    r"|f?printf|__f?printf_chk|puts|fputs|fopen|fwrite|setenv|putenv|unsetenv)$"
)


ALLOWED = {
    # The helper thread of the histograms: started with all signals blocked, never waited for.
    "histogram.cc.o": {"pthread_create", "pthread_sigmask"},
    # Signal 0 to the supervisor, which sends nothing: it asks the kernel whose process that is.
    "producer_open.cc.o": {"kill"},
}


def main() -> int:
    nm, archives = sys.argv[1], sys.argv[2:]
    found = []
    undefined = 0
    for archive in archives:
        listing = subprocess.run([nm, "-A", "-u", archive], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            name = line.split()[-1].split("@")[0]
            undefined += 1
            member = line.split()[0].rstrip(":").rsplit(":", 1)[-1]
            if BANNED.match(name) and name not in ALLOWED.get(member, ()):
                found.append(line.strip())
    for line in found:
        print(f"banned symbol in the probe: {line}")
    if undefined == 0:
        print("no undefined symbols were listed: nm found nothing to check")
    return 1 if found or undefined == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
