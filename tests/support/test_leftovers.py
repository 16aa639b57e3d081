# SPDX-License-Identifier: Apache-2.0
"""What ends the processes that tests leave behind, on sessions of pytest of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import marked
import pytest

SUPPORT = Path(__file__).parent
LIMIT_S = 240
# A shell that becomes a daemon in a session of its own, as the watcher does, and says so. Whoever reads it has its pid.
DAEMON = """
import subprocess, sys
import leftovers, pytest
leftovers.PATIENCE_S = float({patience!r})
def leave(seconds=1000):
    code = "import os, sys, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); os.close(1); time.sleep(float(sys.argv[1]))"
    made = subprocess.run([sys.executable, "-c", code, str(seconds)], stdout=subprocess.PIPE, text=True, check=True)
    with open("pids", "a") as file: file.write(made.stdout)
"""


class Session:
    """One of pytest on a module."""

    def __init__(self, folder: Path, text: str, patience: str = "0.2") -> None:
        self.folder = folder
        (folder / "test_it.py").write_text(DAEMON.format(patience=patience) + text)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "leftovers", "-p", "no:cacheprovider", "test_it.py"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SUPPORT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def said(self) -> str:
        return self.process.communicate(timeout=LIMIT_S)[0]

    def pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def alive(self) -> list[int]:
        """Of those that were left, those that run; one that nobody has waited for runs no more."""
        return [pid for pid in self.pids() if marked.marks(pid)]


def test_a_process_left_behind_is_ended_and_fails_its_test(tmp_path: Path) -> None:
    session = Session(tmp_path, "def test_one(): leave()\ndef test_two(): pass\n")
    said = session.said()
    assert session.process.returncode == 1, said
    assert "2 passed, 1 error" in said and "this test: " in said
    assert len(session.pids()) == 1 and session.alive() == []


def test_one_that_ends_soon_is_awaited(tmp_path: Path) -> None:
    session = Session(tmp_path, "def test_one(): leave(0.5)\n", patience=str(LIMIT_S))
    said = session.said()
    assert session.process.returncode == 0, said


def test_after_a_failure_the_rest_is_ended_at_once(tmp_path: Path) -> None:
    session = Session(tmp_path, "def test_one():\n    leave()\n    assert False\n", patience="1e9")
    said = session.said()
    assert "1 failed" in said and "error" not in said
    assert len(session.pids()) == 1 and session.alive() == []


@pytest.mark.parametrize("scope", ["function", "module"])
def test_a_set_up_that_fails_leaves_nothing_to_the_next_test(tmp_path: Path, scope: str) -> None:
    session = Session(
        tmp_path,
        f"""
import os
@pytest.fixture(scope="{scope}")
def broken():
    leave()
    assert False
def test_one(broken): pass
def test_two():
    import marked
    assert not marked.marks(int(open("pids").read()))
""",
        patience="1e9",
    )
    said = session.said()
    assert "1 passed, 1 error" in said, said


def test_a_wider_fixture_keeps_its_processes_for_all_tests_and_then_ends_them(tmp_path: Path) -> None:
    text = """
import os, signal
@pytest.fixture(scope="session")
def shared():
    leave()
    yield int(open("pids").read())
    {end}
@pytest.fixture(scope="session")
def environment(): return dict(os.environ)
@pytest.mark.parametrize("again", [1, 2])
def test_it(shared, again): os.kill(shared, 0)
"""
    (tmp_path / "good").mkdir()
    good = Session(tmp_path / "good", text.format(end="os.kill(int(open('pids').read()), signal.SIGKILL)"))
    said = good.said()
    assert good.process.returncode == 0, said
    (tmp_path / "bad").mkdir()
    bad = Session(tmp_path / "bad", text.format(end="pass"))
    said = bad.said()
    assert "2 passed, 1 error" in said and "the fixture shared: " in said, said
    assert bad.alive() == []


def test_an_environment_of_a_wider_fixture_makes_no_process_that_fixture_s(tmp_path: Path) -> None:
    session = Session(
        tmp_path,
        """
import os
@pytest.fixture(scope="session")
def environment(): return dict(os.environ)
def test_one(environment): subprocess.Popen(["sleep", "1000"], env=environment)
def test_two(environment): pass
def test_three(): subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"]})
""",
    )
    said = session.said()
    assert "3 passed, 2 errors" in said and said.count("this test: sleep 1000") >= 2, said


def test_where_pytest_is_killed_nothing_goes_on(tmp_path: Path) -> None:
    session = Session(tmp_path, "import time\ndef test_one():\n    leave()\n    time.sleep(1000)\n")
    deadline = time.monotonic() + LIMIT_S
    while not session.alive():
        assert session.process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    session.process.kill()
    session.said()
    while session.alive():
        assert time.monotonic() < deadline, "its processes go on"
        time.sleep(0.02)
