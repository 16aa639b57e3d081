# SPDX-License-Identifier: Apache-2.0
"""Processes that carry a mark in their environment, and so does whatever they begin in turn, also as a daemon in a
session of its own. As a program, a guard: marked.py MARK ends them where its standard input ends without "done".
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

# Of a process: the marks of all who own it, with spaces between. It is not one of telltale's own variables, which tests
# take away.
VARIABLE = "TEST_PROCESS_MARKS"
LOOK_S = 0.05
# Of the processor: with less since the end of its test a process that wants it may not have been able to end.
LEAST_S = 1.0
LONGEST = 8


def marks(pid: int) -> list[str]:
    """Of a process; none where it has ended, is a zombie, or is another user's."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return []
    name = VARIABLE.encode() + b"="
    for entry in environment.split(b"\0"):
        if entry.startswith(name):
            return entry[len(name) :].decode(errors="replace").split()
    return []


def _words(pid: int) -> str:
    """Its command line, and how it stands."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "it has ended"
    return f"{' '.join(words.split())[:300]} (pid {pid}, {state}, child of {parent})"


def running(mark: str) -> dict[int, str]:
    """Processes of a mark but this one, and their command lines."""
    # Looked at twice: a process can be missed that has just begun or becomes another program.
    for _ in range(2):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        found = {pid: _words(pid) for pid in pids if pid != os.getpid() and mark in marks(pid)}
        if found:
            return found
    return {}


def end(mark: str) -> None:
    """Kills the processes of a mark, and those that they begin meanwhile."""
    while found := running(mark):
        for pid in found:
            try:
                process = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if mark in marks(pid):  # Still the same one, which the descriptor holds.
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
            finally:
                os.close(process)
        time.sleep(LOOK_S)


def _processor_s(pid: int) -> tuple[bool, float]:
    """Whether it wants the processor, and how much of it it has had."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False, 0.0
    return fields[0] == "R", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def await_end(mark: str, patience_s: float) -> dict[int, str]:
    """What of a mark has not ended by itself in time, and is ended now."""
    begun = time.monotonic()
    before: dict[int, float] = {}
    while found := running(mark):
        passed = time.monotonic() - begun
        late = []
        for pid in found:
            wants, had = _processor_s(pid)
            # A rule's process gives way to all others: where those leave it nothing, it cannot end either.
            waits = wants and had - before.setdefault(pid, had) < LEAST_S
            if passed > (LONGEST * patience_s if waits else patience_s):
                late.append(pid)
        if late:
            end(mark)
            return {pid: found[pid] for pid in late}
        time.sleep(LOOK_S)
    return {}


if __name__ == "__main__" and sys.stdin.buffer.read() != b"done":
    end(sys.argv[1])
