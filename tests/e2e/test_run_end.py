# SPDX-License-Identifier: Apache-2.0
"""Every way in which a training ends badly: the first finding says how, at which line and of which rank, and output
and exit are byte for byte what they are without Telltale.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Telltale
from run_ends import HIGH, LOW, MEDIUM, STEPS, TORCH, Ends


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
    assert finding["message"] == "KeyError in train.py:8, step 4: 'täst'"
    assert "raised in train.py:8 load, called by train.py:10 <module>" in finding["cause"]
    assert "No checkpoint was saved" in finding["cause"]
    assert str(ends.folder / "train.py:8") in finding["advice"]


def test_the_text_of_an_exception_can_be_kept_out(ends: Ends) -> None:
    script = STEPS + "train()\nraise ValueError('secret 4711')\n"
    finding = ends(script, "--no-exception-text")
    assert finding["message"] == "ValueError in train.py:7, step 4"
    events = ends.telltale.rows(ends.run, "events")
    assert [event["step"] for event in events if event["kind"] == "process.exception"] == [4]
    assert "secret 4711" not in str(events)
    files = [path.read_bytes() for path in ends.run.rglob("*") if path.suffix in (".html", ".json", ".jsonl")]
    assert files and b"secret 4711" not in b"".join(files)


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
    assert finding["message"] == "RuntimeError in train.py:15, step 4"
    assert "while ValueError was being handled" in finding["cause"]
    places = [
        row["message"] for row in ends.telltale.rows(ends.run, "events") if row["kind"] == "process.exception"
    ]
    # Of two threads: which record is drained first is not said.
    assert sorted(places) == ["FileNotFoundError in train.py:10", "RuntimeError in train.py:15"]


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
    assert finding["message"].startswith("Hostile in train.py:16, step 4: xxx")
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
    assert finding["message"] == "Thread logger: ValueError in train.py:7, step 4: dies"
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
    assert finding["message"] == "DataLoader worker 0: IndexError in train.py:16, step 2: no sample 17"
    assert "train.py:16 fail, called by train.py:13 __getitem__" in finding["cause"]


def test_a_worker_that_is_killed(ends: Ends) -> None:
    finding = ends(WORKER.format(fail="os.kill(os.getpid(), signal.SIGKILL)", more=""), dead_worker=True)
    assert ends.code == 1
    assert finding["message"].startswith("DataLoader worker 0 was killed by SIGKILL after step ")
    assert finding["severity"] == HIGH


@pytest.mark.parametrize(
    ("end", "code", "severity", "message"),
    [
        ("sys.exit(3)", 3, MEDIUM, "The training ended with exit code 3 after step 3"),
        ("os._exit(7)", 7, MEDIUM, "The training ended with exit code 7 after step 3"),
        ("os.abort()", -6, HIGH, "The training aborted (SIGABRT) after step 3"),
        ("ctypes.string_at(0)", -11, HIGH, "The training crashed with SIGSEGV after step 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, HIGH, "The training was killed by SIGKILL after step 3"),
        (
            "os.kill(os.getpid(), signal.SIGTERM)",
            -15,
            MEDIUM,
            "The training was ended by SIGTERM after step 3",
        ),
        ("raise KeyboardInterrupt", -2, LOW, "KeyboardInterrupt in train.py:7, step 4"),
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
    finding = ends(script, prefix=small, dead_worker=True)
    assert ends.code == 1
    assert finding["severity"] == HIGH
    assert re.match(
        r"DataLoader worker 0 was killed by SIGBUS: /dev/shm \(16 MiB\) was (most likely )?full$",
        finding["message"],
    )
    assert "--shm-size" in finding["advice"] and "set_sharing_strategy" in finding["advice"]
