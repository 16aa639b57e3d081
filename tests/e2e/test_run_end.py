# SPDX-License-Identifier: Apache-2.0
"""Every way in which a training ends badly: the first finding says how, at which line and of which rank, and output
and exit are byte for byte what they are without Telltale.
"""

import os
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
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


class Ends:
    """Runs a script with and without Telltale and compares what each prints and how each ends."""

    def __init__(self, telltale: Telltale, folder: Path) -> None:
        self.telltale = telltale
        self.folder = folder
        self.run = folder / "run"

    def __call__(
        self, script: str, *options: str, prefix: tuple[str, ...] = (), noisy: bool = False
    ) -> dict[str, Any]:
        """The first finding of `train.py`, which is run twice.

        Args:
            prefix: a command in front of both.
            noisy: where the program was when a worker's death reached it is chance: of what it says on stderr
                only the last line is compared.
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
        said = last_line if noisy else without_pids
        assert said(with_us.stderr) == said(alone.stderr)
        self.code = with_us.returncode
        return self.first()

    def first(self) -> dict[str, Any]:
        findings = self.telltale.check(self.run)["findings"]
        assert findings, "no finding"
        assert [each["rule"] for each in findings].count("RunEnd") == 1
        assert findings[0]["rule"] == "RunEnd"
        return findings[0]


def last_line(text: bytes) -> bytes:
    return without_pids(text.strip().rpartition(b"\n")[2])


def without_pids(text: bytes) -> bytes:
    """Numbers of processes and addresses differ from one run to the next."""
    return re.sub(rb"\bpid(\(s\))? \d+|0x[0-9a-f]{6,}|torch_\d+_\d+_\d+", b"N", text)


@pytest.fixture
def ends(telltale: Telltale, tmp_path: Path) -> Ends:
    return Ends(telltale, tmp_path)


def test_an_exception_in_main(ends: Ends) -> None:
    finding = ends(
        STEPS
        + """
def load(name):
    return {"a": 1}[name]
train()
load("täst")
"""
    )
    assert ends.code == 1
    assert finding["severity"] == HIGH
    assert finding["message"] == "KeyError in train.py:7, step 5: 'täst'"
    assert "raised in train.py:7 load, called by train.py:9 <module>" in finding["cause"]
    assert "No checkpoint was saved" in finding["cause"]
    assert str(ends.folder / "train.py:7") in finding["advice"]


def test_the_text_of_an_exception_can_be_kept_out(ends: Ends) -> None:
    script = STEPS + "train()\nraise ValueError('secret 4711')\n"
    finding = ends(script, "--no-exception-text")
    assert finding["message"] == "ValueError in train.py:8, step 5"
    recorded = b"".join(path.read_bytes() for path in ends.run.rglob("*") if path.is_file())
    assert b"process.exception" in recorded
    assert b"secret 4711" not in recorded


def test_an_exception_before_anything_of_ours_is_loaded(ends: Ends) -> None:
    finding = ends("import json\nimport no_such_module\n")
    assert finding["message"] == "ModuleNotFoundError in train.py:2: No module named 'no_such_module'"
    assert "pip install" in finding["advice"]


def test_hooks_of_the_program_stay_its_own(ends: Ends) -> None:
    finding = ends(
        STEPS
        + """
print(sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__)
sys.excepthook = lambda kind, value, traceback: print("mine:", kind.__name__, len(str(traceback)) > 0)
threading.excepthook = lambda args: print("thread:", args.exc_type.__name__)
def bad(): raise OSError(2, "gone", "x")
thread = threading.Thread(target=bad); thread.start(); thread.join()
import atexit
atexit.register(print, "first"); atexit.register(print, "last")
train()
raise RuntimeError from ValueError(1)
"""
    )
    assert finding["message"] == "RuntimeError in train.py:14, step 5"
    assert "while ValueError was being handled" in finding["cause"]
    places = [
        row["message"] for row in ends.telltale.rows(ends.run, "events") if row["kind"] == "process.exception"
    ]
    assert places == ["OSError in train.py:9", "RuntimeError in train.py:14"]


def test_exceptions_that_harm_who_looks_at_them(ends: Ends) -> None:
    finding = ends(
        STEPS
        + """
class Bad(Exception):
    def __str__(self): print("asked"); raise SystemExit(9)
    __repr__ = __str__
class Hostile(Exception, metaclass=type):
    pass
train()
try:
    raise Bad(Bad(), "text", 7)
except Bad:
    raise Hostile("x" * 5000, Bad()) from None
"""
    )
    assert finding["message"].startswith("Hostile in train.py:14, step 5: xxx")
    assert len(finding["evidence"]["text"]) == 1024


def test_an_exception_in_a_thread(ends: Ends) -> None:
    finding = ends(
        STEPS
        + """
def bad(): raise ValueError("dies")
train()
thread = threading.Thread(target=bad, name="logger"); thread.start(); thread.join()
sys.exit(3)
"""
    )
    assert ends.code == 3
    assert finding["message"] == "Thread logger: ValueError in train.py:6, step 5: dies"
    assert "ended a thread" in finding["cause"]


WORKER = (
    TORCH
    + """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        if i == 17: fail(i)
        return torch.ones(4)
def fail(i):
    {fail}
if __name__ == "__main__":
    for batch in torch.utils.data.DataLoader(Data(), 8, num_workers=1{more}):
        step(batch)
"""
)


def test_an_exception_in_a_worker(ends: Ends) -> None:
    finding = ends(WORKER.format(fail="raise IndexError(f'no sample {i}')", more=""))
    assert ends.code == 1
    assert finding["message"] == "DataLoader worker 0: IndexError in train.py:15, step 2: no sample 17"
    assert "train.py:15 fail, called by train.py:12 __getitem__" in finding["cause"]


def test_a_worker_that_is_killed(ends: Ends) -> None:
    finding = ends(WORKER.format(fail="os.kill(os.getpid(), signal.SIGKILL)", more=""), noisy=True)
    assert ends.code == 1
    assert finding["message"].startswith("DataLoader worker 0 was killed by SIGKILL after step ")
    assert finding["severity"] == HIGH


RANKS = (
    TORCH
    + """
import torch.distributed as dist
import torch.multiprocessing as mp
def rank(i, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=i, world_size=2)
    train(4)
    dist.barrier()
    if i == 1:
        {fail}
    dist.barrier()
if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0)); port = free.getsockname()[1]
    try:
        mp.spawn(rank, (port,), nprocs=2)
    except BaseException as error:
        sys.exit(4 if "Process 1" in str(error) or "process 1" in str(error) else 5)
"""
)


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("raise KeyError('x')", "KeyError in train.py:18, step 3: 'x'"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "Rank 1 crashed with SIGSEGV after step 2"),
    ],
)
def test_a_rank_that_dies_first(ends: Ends, fail: str, message: str) -> None:
    # Which rank's noise comes first is chance: only the finding is looked at.
    path = ends.folder / "train.py"
    path.write_text(RANKS.format(fail=fail).lstrip())
    ends.telltale.run(ends.run, ends.telltale.python, path)
    finding = ends.first()
    assert message in finding["message"]
    assert finding["message"].startswith("Rank 1 ")
    assert finding["message"].endswith("; rank 0 followed")
    assert finding["evidence"]["rank"] == 1


@pytest.mark.parametrize(
    ("end", "code", "severity", "message"),
    [
        ("sys.exit(3)", 3, MEDIUM, "The training ended with exit code 3 after step 4"),
        ("os._exit(7)", 7, MEDIUM, "The training ended with exit code 7 after step 4"),
        ("os.abort()", -6, HIGH, "The training aborted (SIGABRT) after step 4"),
        ("ctypes.string_at(0)", -11, HIGH, "The training crashed with SIGSEGV after step 4"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, HIGH, "The training was killed by SIGKILL after step 4"),
        (
            "os.kill(os.getpid(), signal.SIGTERM)",
            -15,
            MEDIUM,
            "The training was ended by SIGTERM after step 4",
        ),
        ("raise KeyboardInterrupt", -2, LOW, "KeyboardInterrupt in train.py:8, step 5"),
    ],
)
def test_other_ends(ends: Ends, end: str, code: int, severity: str, message: str) -> None:
    finding = ends(STEPS + f"train()\n{end}\n")
    assert (ends.code, finding["severity"], finding["message"]) == (code, severity, message)


def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes a control group or mounts a file system")


@pytest.fixture
def control_group(tmp_path: Path) -> Iterator[Path]:
    """A control group that has 300 MiB of memory."""
    as_root()
    name = f"telltale-test-{os.getpid()}"
    second = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = Path("/sys/fs/cgroup") / name if second else Path("/sys/fs/cgroup/memory") / name
    try:
        if second:
            Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(300 << 20))
    except OSError as error:
        pytest.skip(f"no control group of memory can be made here: {error}")
    yield group
    group.rmdir()


def test_the_kernels_out_of_memory_killer(ends: Ends, control_group: Path) -> None:
    enter = ("sh", "-c", f'echo $$ > {control_group}/cgroup.procs; exec "$@"', "sh")
    finding = ends(
        STEPS
        + """
train()
held = []
while True:
    held.append(b"x" * (8 << 20))
    train(1)
""",
        prefix=enter,
    )
    assert ends.code == -9
    assert finding["severity"] == HIGH
    assert (
        finding["message"]
        == "The kernel's out-of-memory killer ended the training: the control group's limit is 300 MiB"
    )
    assert finding["evidence"]["oom_kills"] >= 1
    assert "docker run --memory" in finding["advice"]


def test_a_full_shared_memory(ends: Ends) -> None:
    as_root()
    small = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"', "sh")
    if subprocess.run([*small, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    script = (
        TORCH
        + """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, i): return torch.ones(3, 128, 128)
if __name__ == "__main__":
    for batch in torch.utils.data.DataLoader(Data(), 64, num_workers=1):
        step(batch.flatten()[:4])
"""
    )
    finding = ends(script, prefix=small, noisy=True)
    assert ends.code == 1
    assert finding["severity"] == HIGH
    assert re.match(
        r"DataLoader worker 0 was killed by SIGBUS: /dev/shm \(16 MiB\) was (most likely )?full$",
        finding["message"],
    )
    assert "--shm-size" in finding["advice"] and "set_sharing_strategy" in finding["advice"]
