# SPDX-License-Identifier: Apache-2.0
"""The whole way: `telltale run` around real trainings, read back by `telltale query`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD, LIMIT_S
from test_harmless import TRAINING
from test_processes import TRAIN

TELLTALE = BUILD / "bin" / "telltale"


class Run:
    def __init__(self, folder: Path, command: list[str], cwd: Path):
        self.folder = folder
        self.process = subprocess.run(
            [str(TELLTALE), "run", "--quiet", "-o", str(folder), "--", *command],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def table(self, name: str) -> list[dict]:
        done = subprocess.run(
            [str(TELLTALE), "query", str(self.folder), name, "--format", "json"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def train_steps(self) -> list[int]:
        return [row["step"] for row in self.table("steps") if row["mode"] == "TRAIN"]


@pytest.fixture
def run(telltale):
    def start(*command: str) -> Run:
        return Run(telltale.folder / "run", list(command), telltale.folder)

    return start


def test_a_training_is_recorded_and_its_result_bit_identical(telltale, run):
    script = telltale.script(TRAINING)
    recorded = run(sys.executable, script)
    assert recorded.process.returncode == 0, recorded.process.stderr
    plain = telltale.plain([sys.executable, script])
    assert recorded.process.stdout.splitlines()[-1] == plain.stdout.splitlines()[-1]
    assert recorded.train_steps() == list(range(200))
    assert [row for row in recorded.table("ledger") if row["loss"] and row["value"] > 0] == []


@pytest.mark.parametrize("flag", ["-I", "-E", "-s", "-B"])
def test_the_flags_of_an_interpreter(telltale, run, flag):
    recorded = run(sys.executable, flag, telltale.script(TRAIN))
    assert recorded.process.returncode == 0, recorded.process.stderr
    assert recorded.train_steps() == list(range(5))


def test_an_interpreter_without_site(telltale, run):
    found = "import sys; sys.path += {!r}\n".format([p for p in sys.path if p.endswith("-packages")])
    recorded = run(sys.executable, "-S", telltale.script(found + TRAIN + "print('site' in sys.modules)\n"))
    assert recorded.process.returncode == 0, recorded.process.stderr
    assert recorded.process.stdout.splitlines()[-1] == "False"
    assert recorded.train_steps() == list(range(5))


def test_a_shell_wrapper_a_module_and_exec(telltale, run):
    telltale.script(TRAIN, "package/train.py")
    launcher = f"exec {sys.executable} -c 'import os, sys; os.execv(sys.executable, "
    launcher += '[sys.executable, "-m", "package.train"])\''
    recorded = run("sh", "-c", launcher)
    assert recorded.process.returncode == 0, recorded.process.stderr
    assert recorded.train_steps() == list(range(5))


def test_two_ranks_are_told_apart(telltale, run):
    script = telltale.script(
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(4):
            opt.zero_grad(); net(torch.ones(3, 4)).sum().backward()
            for p in net.parameters(): dist.all_reduce(p.grad)
            opt.step()
        """
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "-r", "1", "-t", "1"]
    port = str(30500 + os.getpid() % 1000)
    recorded = run(*launcher, "--nproc_per_node", "2", "--master_port", port, script)
    assert recorded.process.returncode == 0, recorded.process.stderr
    steps = recorded.table("steps")
    assert sorted((row["rank"], row["step"]) for row in steps) == [
        (rank, step) for rank in (0, 1) for step in range(4)
    ]
    assert all(row["comm_wait_ns"] > 0 for row in steps)


def test_an_unrecorded_command_is_left_alone(telltale, run):
    recorded = run("sh", "-c", "echo hello; exit 3")
    assert recorded.process.returncode == 3
    assert "hello" in recorded.process.stdout.splitlines()
    assert recorded.table("steps") == []
