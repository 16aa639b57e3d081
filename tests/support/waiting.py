# SPDX-License-Identifier: Apache-2.0
"""Waiting for conditions, as long as the slowest machine may take."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

# Of awaited conditions, of programs that end by themselves and of answers; never of a wait.
PATIENCE_S = 600.0
LOOK_S = 0.05
Found = TypeVar("Found")


def wait_until(what: str, there: Callable[[], Found], process: Any = None, look_s: float = LOOK_S) -> Found:
    """What `there` gives once it is true; meanwhile the process of subprocess.Popen must run. `look_s`: longer where a
    look is dear.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not (found := there()):
        assert process is None or process.poll() is None, f"{what} does not come: its process has ended"
        assert time.monotonic() < deadline, f"{what} does not come"
        time.sleep(look_s)
    return found


def alive(pid: int) -> bool:
    """Whether it runs. One that has ended and that nobody has waited for is still there, in a container for ever."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def processes() -> dict[int, list[str]]:
    """Command lines by pid; each may end while it is looked at. One that ends has none any more, but still its locks."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
                found[int(name)] = words[:-1]
    return found


def children(parent: int) -> dict[int, list[str]]:
    """Command lines of the processes whose parent that is, by pid."""
    found = {}
    for pid, words in processes().items():
        with contextlib.suppress(OSError):
            if words and int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found[pid] = words
    return found


def await_helpers(run: Path) -> None:
    """Waits until all that writes into a run has ended: on a machine that is busy enough `telltale run` leaves its agent
    and its watcher behind, to end by themselves.
    """
    ours = (str(run), os.path.realpath(run))
    kinds = (["agent"], ["watch"], ["stacks"], ["import"], ["export"])

    def helps(pid: int, words: list[str]) -> bool:
        if words:
            return words[1:2] in kinds and any(each in words[2:] for each in ours)
        # It may be one that ends.
        try:
            return "(telltale)" in Path(f"/proc/{pid}/stat").read_text() and alive(pid)
        except OSError:
            return False

    wait_until(
        f"the end of the helpers of {run}",
        lambda: not any(helps(pid, words) for pid, words in processes().items()),
    )
