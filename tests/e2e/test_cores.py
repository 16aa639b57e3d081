# SPDX-License-Identifier: Apache-2.0
"""A helper that crashes leaves no core: the environment is in it, and it would lie in the training's folder."""

import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import Telltale
from waiting import alive, await_helpers, processes, wait_until

TRAINING = """
import pathlib, resource, time
print(*resource.getrlimit(resource.RLIMIT_CORE), flush=True)
while not pathlib.Path("stop").exists():
    time.sleep(0.05)
"""
RULE = """
import telltale

class Mine(telltale.Rule):
    tables = ("steps",)
"""
HELPERS = ("agent", "watch", "serve", "rule")


def allow_cores() -> None:
    """`ulimit -c unlimited`, or as far as it goes."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except ValueError:
        most = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def core_limits(pid: int) -> list[str]:
    """Soft and hard."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max core file size")).split()[4:6]


def helpers(run: Path, folder: Path) -> dict[str, int]:
    """One of each kind that is there, by its kind; of the rule's processes the one with the rule."""
    found = {}
    for pid, words in processes().items():
        if words[1:2] in (["agent"], ["watch"], ["serve"]) and str(run) in words:
            found[words[1]] = pid
        elif f"{folder}/mine.py:Mine" in words:
            found["rule"] = max(pid, found.get("rule", 0))
    return found


def test_a_helper_that_crashes_leaves_no_core(telltale: Telltale, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    run = tmp_path / "run"
    (folder / "train.py").write_text(TRAINING)
    (folder / "mine.py").write_text(RULE)
    (folder / "rules.toml").write_text(f'[rules.mine]\npython = "{folder}/mine.py:Mine"\n')
    before = resource.getrlimit(resource.RLIMIT_CORE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 1 << 20:
        pytest.skip("this machine allows no cores")
    training = subprocess.Popen(
        [
            telltale.binary,
            "run",
            "--rules",
            folder / "rules.toml",
            "-o",
            run,
            "--",
            telltale.python,
            "train.py",
        ],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TELLTALE_PYTHON": telltale.python},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=allow_cores,
    )
    assert training.stdout is not None
    given = training.stdout.readline().split()
    try:
        assert int(given[0]) not in (0, 1), "the training may leave one"
        assert given[0] == given[1]
        for kind in HELPERS:
            pid = wait_until(f"the {kind}", lambda kind=kind: helpers(run, folder).get(kind), training)
            assert core_limits(pid) in (["0", "0"], ["1", "1"]), kind
            os.kill(pid, signal.SIGSEGV)
            wait_until(f"the end of the {kind}", lambda pid=pid: not alive(pid), training)
        assert core_limits(training.pid)[0] in ("0", "1")
        training.send_signal(signal.SIGSEGV)
        assert training.wait() == -signal.SIGSEGV
    finally:
        (folder / "stop").touch()
        training.kill()
        training.communicate()
        await_helpers(run)
    left = [path.name for root in (folder, run) for path in root.rglob("*core*")]
    assert left == []
