# SPDX-License-Identifier: Apache-2.0
"""report.html while the run goes on and after each kind of end: whole at any moment, and final in the
end, whoever dies."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPO, Telltale
from waiting import PATIENCE_S, alive, children, wait_until

TRAIN = REPO / "tests/web/train_live.py"


class Live:
    """A training under `telltale run` that goes on until it is stopped or killed."""

    def __init__(self, telltale: Telltale, run: Path) -> None:
        self.run = run
        self.report = run / "report.html"
        self.stop_file = run.parent / "stop"
        self.process = subprocess.Popen(
            [telltale.binary, "run", "--no-serve", "-o", run, "--", telltale.python, TRAIN, self.stop_file],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(
            "a training with its helpers",
            lambda: {"train", "agent", "watch"} <= set(self.pids()),
            self.process,
        )

    def pids(self) -> dict[str, int]:
        """Of the training and its helpers."""
        return {
            "train" if words[1] == str(TRAIN) else words[1]: pid
            for pid, words in children(self.process.pid).items()
            if len(words) > 1
        }

    def kill(self, who: str) -> None:
        os.kill(wait_until(who, lambda: self.pids().get(who), self.process), signal.SIGKILL)

    def read(self) -> str:
        """The report; never a part of it."""
        html = self.report.read_text() if self.report.exists() else ""
        assert html == "" or html.endswith("</html>\n"), html[-200:]
        return html

    def says(self, text: str) -> bool:
        return text in self.read()

    def steps(self) -> int:
        match = re.search(r"([\d,]+) steps</span>", self.read())
        return int(match[1].replace(",", "")) if match else -1

    def wait_for_another(self, what: str) -> None:
        """A report that is newer than what is there now."""
        before = self.report.stat().st_mtime_ns
        wait_until(what, lambda: self.report.stat().st_mtime_ns > before)

    def end(self) -> int:
        self.stop_file.touch()
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def live(telltale: Telltale, tmp_path: Path) -> Iterator[Live]:
    live = Live(telltale, tmp_path / "run")
    try:
        yield live
    finally:
        live.end()


def head(live: Live) -> str:
    return live.read().split("<h1 ")[0].split("</style>")[1]


def test_it_is_there_while_the_run_goes_on_and_after_the_training_is_killed(live: Live) -> None:
    wait_until("a first report", lambda: live.says("still running"))
    assert "Still running: this is what was recorded until " in live.read()
    first = live.steps()
    wait_until("a second report", lambda: live.steps() > first >= 0)
    live.kill("train")
    assert live.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert "killed, signal 9 (KILL)" in head(live)
    assert "till running" not in live.read()
    assert [p.name for p in live.run.glob("report.html*")] == ["report.html"]


def test_helpers_that_die_do_not_end_it(live: Live) -> None:
    wait_until("a first report", lambda: live.says("still running"))
    for who in ("agent", "watch"):
        live.kill(who)
        live.wait_for_another(f"a report after the death of {who}")
    assert live.end() == 0
    assert "finished" in head(live)
    assert "gap" in live.read().split("What this report cannot say")[1], "the agent was away"


def test_without_the_supervisor_the_watcher_writes_the_last_one(live: Live) -> None:
    wait_until("a first report", lambda: live.says("still running"))
    helpers = live.pids()
    live.process.kill()
    live.process.wait()
    live.stop_file.touch()
    wait_until("the end of all helpers", lambda: not any(map(alive, helpers.values())))
    # How it ended nobody of ours saw, unless the kernel tells.
    assert re.search("finished|lost", head(live)), head(live)
    assert "till running" not in live.read()
