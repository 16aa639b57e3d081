# SPDX-License-Identifier: Apache-2.0
"""The measure of waiting: it sees what sleeps, and neither what computes nor what stands in a processor's queue."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until
from waits import Waits

SPINS = "while True: pass"
# A long time for one who waits; that of a start does not come near it.
LONG_S = 1.0
EVER_S = 1e9


@contextlib.contextmanager
def python(code: str, cpu: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """An interpreter that has begun its code; on one processor, where that is said."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"import os\nos.write(1, b'begun')\n{code}"],
        stdout=subprocess.PIPE,
        preexec_fn=None if cpu is None else lambda: os.sched_setaffinity(0, {cpu}),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"begun"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def processor_ns(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """On a processor, and in its queue."""
    on, queued, _ = map(int, Path(f"/proc/{process.pid}/schedstat").read_text().split())
    return on, queued


@pytest.mark.parametrize(
    "code",
    [
        "os.read(os.open('pipe', os.O_RDONLY), 1)",
        "import time\nwhile True: time.sleep(0.001)",
        "if os.fork() == 0: os.wait() if os.fork() else os.open('pipe', os.O_RDONLY)\nos.wait()",
    ],
    ids=["for-a-pipe", "again-and-again", "in-a-grandchild"],
)
def test_who_waits_is_seen_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with python(code) as process, Waits(process.pid, LONG_S) as waits:
        process.wait()
    assert waits.too_long and "python" in waits.who


def test_who_computes_does_not_wait() -> None:
    with python(SPINS) as process, Waits(process.pid, EVER_S) as waits:
        wait_until("a second of computing", lambda: processor_ns(process)[0] > 1.5e9 * LONG_S)
    assert waits.seconds < LONG_S


def test_who_waits_for_a_child_that_computes_does_not_wait() -> None:
    with python(f"if os.fork() == 0:\n  {SPINS}\nos.wait()") as process:
        with Waits(process.pid, EVER_S) as waits:
            child = int(
                wait_until("its child", Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text)
            )
            stat = Path(f"/proc/{child}/schedstat")
            wait_until("a second of computing", lambda: int(stat.read_text().split()[0]) > 1.5e9 * LONG_S)
        os.kill(child, 9)
    assert waits.seconds < LONG_S


def test_who_stands_in_a_processors_queue_does_not_wait() -> None:
    cpu = min(os.sched_getaffinity(0))
    beside = python(SPINS, cpu), python(SPINS, cpu)
    with beside[0], beside[1], python(SPINS, cpu) as process, Waits(process.pid, EVER_S) as waits:
        wait_until("seconds in the queue", lambda: processor_ns(process)[1] > 1.5e9 * LONG_S)
    assert waits.seconds < LONG_S
