# SPDX-License-Identifier: Apache-2.0
"""Runs a script that ends badly with and without Telltale, compares what each says and how each ends, and gives the
first finding. Of the tests of how a run ended.
"""

import os
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from conftest import Telltale

# A training in a few lines, with telltale's own calls or as a loop of torch.
STEPS = """
import ctypes, os, signal, sys, threading, time
import telltale
def train(count=5):
    for _ in range(count):
        telltale.step()
"""
TORCH = """
import os, signal, sys, threading, time, torch
torch.manual_seed(0); torch.set_num_threads(1)
net = torch.nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.01)
def step(batch):
    opt.zero_grad(); net(batch).mean().backward(); opt.step()
def train(count=5):
    for _ in range(count):
        step(torch.ones(2, 4))
"""
HIGH, MEDIUM, LOW = "high", "medium", "low"
# What torch makes of a worker that was killed: by chance its own look at the worker, or what the main process was
# doing with it, comes first.
WORKER_DIED = re.compile(
    rb"RuntimeError: DataLoader worker \(pid(\(s\))? \d+\) (is killed by signal: |exited unexpectedly)"
    rb"|EOFError|(ConnectionReset|ConnectionRefused|BrokenPipe|FileNotFound)Error\b"
)


class Ends:
    """Runs a script with and without Telltale and compares what each prints and how each ends."""

    def __init__(self, telltale: Telltale, folder: Path) -> None:
        self.telltale = telltale
        self.folder = folder
        self.run = folder / "run"

    def __call__(
        self, script: str, *options: str, prefix: tuple[str, ...] = (), dead_worker: bool = False
    ) -> dict[str, Any]:
        """The first finding of `train.py`, which is run twice.

        Args:
            prefix: a command in front of both.
            dead_worker: torch says on stderr that a worker was killed, by chance in one of several ways. Both must
                be one of them, and nothing on it may be ours.
        """
        path = self.folder / "train.py"
        path.write_text(textwrap.dedent(script).lstrip())
        # Only what is recorded has telltale to import.
        package = str(self.telltale.binary.parents[1] / "lib/telltale/python")
        command = [*prefix, self.telltale.python, str(path)]
        kept = dict(os.environ)
        alone = subprocess.run(
            command,
            capture_output=True,
            timeout=100,
            cwd=self.folder,
            env={**kept, "PYTHONPATH": package},
            check=False,
        )
        with_us = subprocess.run(
            [*prefix, str(self.telltale.binary), "run", "--quiet", "-o", str(self.run), *options, "--"]
            + command[len(prefix) :],
            capture_output=True,
            timeout=200,
            cwd=self.folder,
            env=kept,
            check=False,
        )
        assert with_us.returncode == alone.returncode
        assert with_us.stdout == alone.stdout
        if dead_worker:
            assert WORKER_DIED.search(alone.stderr), alone.stderr
            assert WORKER_DIED.search(with_us.stderr), with_us.stderr
            assert b"telltale" not in with_us.stderr.lower(), with_us.stderr
        else:
            assert without_pids(with_us.stderr) == without_pids(alone.stderr)
        self.code = with_us.returncode
        return self.first()

    def first(self) -> dict[str, Any]:
        findings = self.telltale.check(self.run)["findings"]
        assert findings, "no finding"
        assert [each["rule"] for each in findings].count("RunEnd") == 1
        assert findings[0]["rule"] == "RunEnd"
        return findings[0]


def without_pids(text: bytes) -> bytes:
    """Numbers of processes and addresses differ from one run to the next."""
    return re.sub(rb"\bpid(\(s\))? \d+|0x[0-9a-f]{6,}|torch_\d+_\d+_\d+", b"N", text)
