# SPDX-License-Identifier: Apache-2.0
"""The whole way: `telltale run` around real trainings, read back by `telltale query`."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import AWAIT_PLAN, BUILD, LIMIT_S
from test_harmless import TRAINING
from test_processes import TRAIN, virtual_environment
from test_torch_data import LOADER
from waiting import await_helpers

TELLTALE = BUILD / "bin" / "telltale"


class Run:
    def __init__(self, folder: Path, options: list[str], command: list[str], cwd: Path):
        self.folder = folder
        words = [str(TELLTALE), "run", "--quiet", *options, "-o", str(folder), "--", *command]
        with subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # A child that hangs holds the pipes.
                raise
        await_helpers(folder)
        self.process = subprocess.CompletedProcess(words, process.returncode, out, err)

    def table(self, name: str, where: str = "") -> list[dict]:
        done = subprocess.run(
            [str(TELLTALE), "query", str(self.folder), name, "--format", "json"]
            + (["--where", where] if where else []),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def train_steps(self) -> list[int]:
        return [row["step"] for row in self.table("steps") if row["mode"] == "TRAIN"]

    def steps_by_pid(self) -> dict[int, list[int]]:
        steps: dict[int, list[int]] = {}
        for row in self.table("steps"):
            steps.setdefault(row["pid"], []).append(row["step"])
        return steps

    def span_counts(self, name: str) -> dict[int, int]:
        return collections.Counter(row["pid"] for row in self.table("spans", f"name = '{name}'"))

    def losses(self) -> list[dict]:
        return [row for row in self.table("ledger") if row["loss"] and row["value"] > 0]

    def facts(self, kind: str) -> dict[int, dict[str, Any]]:
        """What the events of a kind say, by pid; a process has at most one."""
        rows = self.table("events", f"kind = '{kind}'")
        facts = {row["pid"]: json.loads(row["data"]) for row in rows}
        assert len(facts) == len(rows)
        return facts

    def processes(self) -> dict[int, dict[str, Any]]:
        """What is said of each process where it begins; each was recorded until it ended."""
        started = self.facts("process.start")
        assert self.facts("process.exit").keys() == started.keys()
        for kind in ("probe.disabled", "producer.refused", "producer.left"):
            assert self.table("events", f"kind = '{kind}'") == []
        return started


@pytest.fixture
def run(telltale):
    def start(*command: str, options: tuple[str, ...] = ()) -> Run:
        return Run(telltale.folder / "run", list(options), list(command), telltale.folder)

    return start


def test_a_training_is_recorded_and_its_result_bit_identical(telltale, run):
    script = telltale.script(TRAINING)
    recorded = run(sys.executable, script)
    assert recorded.process.returncode == 0, recorded.process.stderr
    plain = telltale.plain([sys.executable, script])
    assert recorded.process.stdout.splitlines()[-1] == plain.stdout.splitlines()[-1]
    assert recorded.train_steps() == list(range(200))
    assert recorded.losses() == []


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


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_loader_are_recorded_as_such(telltale, run, method):
    end = f"\nif __name__ == '__main__': main(2, {method!r}); sys.exit(7)\n"
    recorded = run(sys.executable, telltale.script(LOADER + end))
    assert recorded.process.returncode == 7, recorded.process.stderr
    processes = recorded.processes()
    (trainer,) = [pid for pid, facts in processes.items() if facts["kind"] == "trainer"]
    workers = [pid for pid, facts in processes.items() if facts["kind"] == "worker"]
    assert len(workers) == 4 == len(processes) - 1  # Two an epoch.
    if method != "forkserver":
        assert {processes[worker]["parent_pid"] for worker in workers} == {trainer}
    labels = recorded.facts("worker.start")
    assert sorted(labels) == sorted(workers)
    assert sorted(facts["worker_id"] for facts in labels.values()) == [0, 0, 1, 1]
    assert recorded.steps_by_pid() == {trainer: list(range(16))}
    assert recorded.span_counts("fetch") == dict.fromkeys(workers, 4)
    assert recorded.losses() == []


@pytest.mark.parametrize("method, flags", [("fork", []), ("spawn", []), ("spawn", ["-I"])])
def test_children_that_train_are_told_apart(telltale, run, method, flags):
    script = telltale.script(
        f"""
        import json, multiprocessing, os, sys, telltale, torch
        net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        def train(n):
            for i in range(n):
                opt.zero_grad()
                with telltale.span("work"): net(torch.ones(3, 4)).sum().backward()
                opt.step()
        if __name__ == "__main__":
            train(2)
            context = multiprocessing.get_context({method!r})
            children = {{n: context.Process(target=train, args=(n,)) for n in (3, 4)}}
            for child in children.values(): child.start()
            for child in children.values(): child.join()
            train(3)
            print(json.dumps([[os.getpid(), 5]] + [[child.pid, n] for n, child in children.items()]))
            sys.exit(6 if all(child.exitcode == 0 for child in children.values()) else 1)
        """
    )
    recorded = run(sys.executable, *flags, script)
    assert recorded.process.returncode == 6, recorded.process.stderr
    made = dict(json.loads(recorded.process.stdout))
    parent, *children = made
    assert recorded.steps_by_pid() == {pid: list(range(steps)) for pid, steps in made.items()}
    assert recorded.span_counts("work") == made
    processes = recorded.processes()
    assert processes.keys() == made.keys()
    assert {facts["kind"] for facts in processes.values()} == {"trainer"}
    assert {processes[child]["parent_pid"] for child in children} == {parent}
    assert recorded.facts("optimizer").keys() == made.keys()
    assert recorded.losses() == []


FORKS = f"""
import json, os, sys, threading, telltale, torch
def await_plan(): {AWAIT_PLAN.strip()}
net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), lr=0.1)
def train(): opt.zero_grad(); net(torch.ones(3, 4)).sum().backward(); opt.step()
made = [0] * 3; stop = threading.Event()
def work(i):
    while not stop.is_set():
        with telltale.span("busy"): sum(range(2000))
        made[i] += 1
threads = [threading.Thread(target=work, args=(i,)) for i in range(len(made))]
await_plan()
for thread in threads: thread.start()
steps = 0; children = {{}}
for i in range(8):
    before = list(made)
    while any(now < then + 20 for now, then in zip(made, before)): train(); steps += 1
    pid = os.fork()
    if pid == 0:
        with telltale.span("child"):
            await_plan()
            for _ in range(3): train()
        if i % 2: os._exit(i)
        sys.exit(i)
    children[pid] = i
codes = {{pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children}}
stop.set()
for thread in threads: thread.join()
print(json.dumps([os.getpid(), steps, sum(made), list(children.items())]))
sys.exit(5 if codes == children else 1)
"""


@pytest.mark.parametrize("level", ["steps", "all"])
def test_forks_while_threads_record_neither_hang_nor_mix(telltale, run, level):
    options = ("--level", level, "--overhead", "100%")
    recorded = run(sys.executable, telltale.script(FORKS), options=options)
    assert recorded.process.returncode == 5, recorded.process.stderr
    parent, steps, spans, pairs = json.loads(recorded.process.stdout)
    children = dict(pairs)
    processes = recorded.processes()
    assert processes.keys() == {parent, *children}
    for child in children:
        assert processes[child]["parent_pid"] == parent
        assert processes[child]["parent_uuid"] == processes[parent]["uuid"]
    # os._exit leaves the open step open.
    expected = {child: [0, 1] if code % 2 else [0, 1, 2] for child, code in children.items()}
    assert recorded.steps_by_pid() == {parent: list(range(steps)), **expected}
    assert recorded.span_counts("child") == dict.fromkeys(children, 1)
    busy = recorded.table("spans", "name = 'busy'")
    assert {row["pid"] for row in busy} == {parent} and len({row["tid"] for row in busy}) == 3
    dropped = [row["value"] for row in recorded.losses() if row["name"] == "probe.records_dropped"]
    assert len(busy) <= spans <= len(busy) + max(dropped, default=0)
    assert {row["pid"] for row in recorded.table("statistics")} == processes.keys()
    if level == "all":  # Made by threads of the probe's, which os._exit may end before.
        helped = {row["pid"] for row in recorded.table("histograms")}
        assert {parent, *(child for child, code in children.items() if code % 2 == 0)} <= helped


@pytest.mark.parametrize("flags", [[], ["-I"]])
def test_a_virtual_environment_with_its_own_sitecustomize(telltale, run, tmp_path, flags):
    python, theirs = virtual_environment(sys.executable, tmp_path / "venv")
    packages = [entry for entry in sys.path if entry.endswith("-packages")]
    (theirs.parent / "packages.pth").write_text("\n".join(packages) + "\n")
    show = "import sitecustomize; print(sys.theirs, sitecustomize.__file__)\n"
    recorded = run(python, *flags, telltale.script(TRAIN + show))
    assert recorded.process.returncode == 0, recorded.process.stderr
    assert recorded.process.stdout.split() == [str(theirs)] * 2
    assert recorded.train_steps() == list(range(5))


def test_an_unrecorded_command_is_left_alone(telltale, run):
    recorded = run("sh", "-c", "echo hello; exit 3")
    assert recorded.process.returncode == 3
    assert "hello" in recorded.process.stdout.splitlines()
    assert recorded.table("steps") == []
