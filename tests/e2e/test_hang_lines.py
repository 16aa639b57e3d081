# SPDX-License-Identifier: Apache-2.0
"""A training with threads says at which lines of Python they stand; who wants no thread of ours has none."""

import json
from pathlib import Path

from conftest import Telltale

# A minute of silence is told to the watching thread's own code, so that nobody waits for it.
TRAIN = """
import sys, threading, torch
held = threading.Lock(); held.acquire()
def writes_the_log():
    with held: pass
logger = threading.Thread(target=writes_the_log, name="logger"); logger.start()
torch.set_num_threads(1)
net = torch.nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.01)
def train():
    loss = net(torch.ones(2, 4)).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
for _ in range(5): train()
print("threads", sorted(thread.name for thread in threading.enumerate()))
if len(sys.argv) > 1:
    from telltale import _stacks
    quiet = _stacks.Quiet()
    for mark in (1, 2, _stacks.probe.current()): quiet.seconds(mark, 0.0)
    looking = threading.Thread(target=_stacks.look, args=(quiet, 60.0)); looking.start(); looking.join()
held.release(); logger.join()
"""


def test_the_lines_of_every_thread_are_recorded(telltale: Telltale, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = telltale.run(tmp_path / "run", telltale.python, tmp_path / "train.py", "look")
    assert done.returncode == 0, done.stderr
    assert "'telltale-stacks'" in done.stdout
    (event,) = (row for row in telltale.rows(tmp_path / "run", "events") if row["kind"] == "process.python")
    assert event["pid"] > 0
    data = json.loads(event["data"]) if isinstance(event["data"], str) else event["data"]
    assert data["quiet_s"] == 60
    threads = {each["name"]: each for each in data["threads"]}
    assert threads["MainThread"]["main"]
    assert any("train.py:" in line for line in threads["MainThread"]["lines"])
    assert any(line.endswith(" writes_the_log") for line in threads["logger"]["lines"])


def test_who_wants_no_thread_gets_none(telltale: Telltale, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = telltale.run(
        tmp_path / "run",
        telltale.python,
        tmp_path / "train.py",
        env={"TELLTALE_PYTHON_STACKS": "off"},
    )
    assert done.returncode == 0, done.stderr
    assert "threads" in done.stdout
    assert "telltale-stacks" not in done.stdout
