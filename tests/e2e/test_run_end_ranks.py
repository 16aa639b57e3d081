# SPDX-License-Identifier: Apache-2.0
"""One of several ranks dies, and the others follow: the first finding names the one that was first, however the
ranks were started.
"""

from pathlib import Path

import pytest
from conftest import Telltale
from run_ends import TORCH, Ends


@pytest.fixture
def ends(telltale: Telltale, tmp_path: Path) -> Ends:
    return Ends(telltale, tmp_path)


# Each rank trains four steps; then the second one fails, in line 18.
RANK = """
import torch.distributed as dist
import torch.multiprocessing as mp
def rank(i, port):
    if port: os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=i, world_size=2)
    train(4)
    dist.barrier()
    if i == 1:
        {fail}
    dist.barrier()
if __name__ == "__main__":
"""
SPAWNED = (
    TORCH
    + RANK
    + """
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0)); port = free.getsockname()[1]
    try:
        mp.spawn(rank, (port,), nprocs=2)
    except Exception:
        print("spawn has failed")
        sys.exit(4)
"""
)
LAUNCHED = (
    TORCH
    + RANK
    + """
    rank(int(os.environ["RANK"]), 0)
"""
)
# As torchrun does: when a rank has failed, it ends the others and then itself.
LAUNCHER = """
import os, socket, subprocess, sys, time
with socket.socket() as free:
    free.bind(("127.0.0.1", 0)); port = free.getsockname()[1]
ranks = [
    subprocess.Popen(
        [sys.executable, "train.py"],
        env={**os.environ, "RANK": str(i), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    )
    for i in range(2)
]
while not any(rank.poll() for rank in ranks):
    time.sleep(0.01)
for rank in ranks:
    rank.terminate()
for rank in ranks:
    rank.wait()
raise RuntimeError("a rank has failed")
"""


def the_second_rank_is_named(ends: Ends, message: str) -> None:
    finding = ends.first()
    assert message in finding["message"]
    assert finding["message"].startswith("Rank 1 ")
    assert finding["message"].endswith("; rank 0 followed")
    assert finding["evidence"]["rank"] == 1


# Which rank's last words come first on stderr is chance, with Telltale and without.
@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("raise KeyError('x')", "KeyError in train.py:18, step 3: 'x'"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "Rank 1 crashed with SIGSEGV after step 2"),
    ],
)
def test_a_spawned_rank_that_dies_first(ends: Ends, fail: str, message: str) -> None:
    (ends.folder / "train.py").write_text(SPAWNED.format(fail=fail).lstrip())
    done = ends.telltale.run(ends.run, ends.telltale.python, "train.py")
    assert (done.returncode, done.stdout) == (4, "spawn has failed\n")
    the_second_rank_is_named(ends, message)


def test_a_rank_of_a_launcher_that_dies_first(ends: Ends) -> None:
    (ends.folder / "train.py").write_text(LAUNCHED.format(fail="raise KeyError('x')").lstrip())
    (ends.folder / "launch.py").write_text(LAUNCHER.lstrip())
    done = ends.telltale.run(ends.run, ends.telltale.python, "launch.py")
    assert (done.returncode, done.stdout) == (1, "")
    the_second_rank_is_named(ends, "KeyError in train.py:18, step 3: 'x'")
