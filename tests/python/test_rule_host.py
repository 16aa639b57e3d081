# SPDX-License-Identifier: Apache-2.0
"""The process of a rule in Python: what it answers, and how it ends where the rule does what none may."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, PYTHON_DIR


class Host:
    """A host with a rule, from the parent's side."""

    def __init__(self, folder: Path, code: str, *options: str, parameters: dict[str, str] | None = None):
        self.file = folder / "rules_of_mine.py"
        self.file.write_text(textwrap.dedent(code))
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT_S)
        command = [sys.executable, "-m", "telltale.rule_host", "--rule", f"{self.file}:Mine"]
        command += ["--parameters", json.dumps(parameters or {}), "--fd", str(theirs.fileno()), *options]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TELLTALE_")}
        environment["PYTHONPATH"] = str(PYTHON_DIR)
        self.process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self.line = ours
        self.reader = ours.makefile("rb")

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self.reader.readline()))

    def send(self, message: dict[str, Any]) -> None:
        self.line.sendall(json.dumps(message).encode() + b"\n")

    def answers(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """What came before done, or with an error at the end."""
        self.send(message)
        out: list[dict[str, Any]] = []
        while True:
            line = self.reader.readline()
            if not line:
                return [*out, {"ended": self.process.wait(LIMIT_S)}]
            answer = json.loads(line)
            if "done" in answer:
                return out
            out.append(answer)
            if "error" in answer:
                return out

    def close(self) -> None:
        self.reader.close()
        self.line.close()
        try:
            self.process.wait(LIMIT_S)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def make(tmp_path: Path) -> Iterable[Any]:
    hosts: list[Host] = []

    def new(code: str, *options: str, **more: Any) -> Host:
        hosts.append(Host(tmp_path, code, *options, **more))
        return hosts[-1]

    yield new
    for host in hosts:
        host.close()


def step(number: int, **more: Any) -> list[Any]:
    row = {"step": number, "mode": "TRAIN", "rank": 0, "attempt": 1, "time_ns": 1000 * number, **more}
    return ["steps", 1000 * number + 500, row]


OWN = """
    import telltale

    class Mine(telltale.Rule):
        tables = ("steps", "scalars")
        summary = "Steps past a limit."
        advice = "Stop."

        def __init__(self, limit="3"):
            self.limit = int(limit)

        def on_record(self, record):
            print("not a report")
            if record.table != "steps":
                return
            if record.step >= self.limit and record.step < self.limit + 2:
                self.report("rank 0", severity="high", evidence={"step": record.step, "loss": float("nan")})
            elif self.is_open("rank 0"):
                self.recover("rank 0")
"""


def test_a_rule_reports_and_recovers(make: Any) -> None:
    host = make(OWN, parameters={"limit": "5"})
    assert host.read() == {
        "ready": {
            "tables": ["steps", "scalars"],
            "summary": "Steps past a limit.",
            "advice": "Stop.",
            "wrong_result": False,
        }
    }
    host.send({"bind": {"run": ""}})
    assert host.answers({"rows": [step(n) for n in range(5)]}) == []
    (first,) = host.answers({"rows": [step(5)]})
    assert first["report"]["subject"] == "rank 0"
    assert first["report"]["first_step"] == 5
    assert first["report"]["start_ns"] == 5500
    assert first["report"]["evidence"] == {"step": 5, "loss": "NaN"}
    second, over = host.answers({"rows": [step(6), step(7)]})
    assert second["report"]["first_step"] == 5
    assert second["report"]["last_step"] == 6
    assert over["recover"] == {"subject": "rank 0", "last_step": 7, "end_ns": 7500}
    assert host.answers({"end": {}}) == []


def test_smdebugs_form_is_asked_once_a_step(make: Any) -> None:
    host = make(
        """
        import telltale

        class Mine(telltale.Rule):
            def invoke_at_step(self, step):
                assert step not in (self.seen if hasattr(self, "seen") else set())
                self.seen = {*getattr(self, "seen", ()), step}
                return step >= 2
        """
    )
    assert host.read()["ready"]["tables"] == ["steps"]
    host.send({"bind": {"run": ""}})
    rows = [step(1), step(1, rank=1), step(2), step(2, rank=1), step(9, mode="EVAL")]
    (report,) = host.answers({"rows": rows})
    assert report["report"]["first_step"] == 2
    assert report["report"]["message"] == "Mine"


def test_a_step_that_was_not_saved_is_passed_over(make: Any) -> None:
    host = make(
        """
        import telltale
        from smdebug.exceptions import RuleEvaluationConditionMet, StepUnavailable, TensorUnavailable

        class Mine(telltale.Rule):
            def invoke_at_step(self, step):
                if step == 1:
                    raise StepUnavailable(step)
                if step == 2:
                    raise RuleEvaluationConditionMet("Mine", step)
                if step == 3:
                    raise TensorUnavailable("weight")
                return False
        """
    )
    assert host.read()["ready"]["tables"] == ["steps"]
    host.send({"bind": {"run": ""}})
    assert host.answers({"rows": [step(1)]}) == []
    (report,) = host.answers({"rows": [step(2)]})
    assert report["report"]["first_step"] == 2
    assert host.answers({"rows": [step(3)]}) == []  # Not known: it is as it was.
    (recovered,) = host.answers({"rows": [step(4)]})
    assert recovered["recover"]["last_step"] == 4


def test_other_trials_are_given_as_trials(make: Any) -> None:
    host = make(
        """
        import sys
        import types

        trials = types.ModuleType("smdebug.trials")
        trials.create_trial = lambda path: "trial of " + path
        sys.modules["smdebug.trials"] = trials

        class Mine:
            def __init__(self, base_trial, other_trials=None, limit="1"):
                assert base_trial == "trial of /run"
                assert other_trials == ["trial of /a", "trial of /b"]
                self.limit = int(limit)

            def invoke_at_step(self, step):
                return step >= self.limit
        """,
        parameters={"other_trial_1": "/b", "limit": "3", "other_trial_0": "/a"},
    )
    host.read()
    host.send({"bind": {"run": "/run"}})
    (report,) = host.answers({"rows": [step(2), step(3)]})
    assert report["report"]["first_step"] == 3


def test_what_a_rule_requires_is_named_anew_for_each_step(make: Any) -> None:
    host = make(
        """
        import telltale

        class Required:
            def __init__(self):
                self.names = []

            def clear(self):
                self.names = []

        class Mine(telltale.Rule):
            req_tensors = Required()

            def set_required_tensors(self, step):
                self.req_tensors.names.append(step)

            def invoke_at_step(self, step):
                return self.req_tensors.names == [step]
        """
    )
    host.read()
    host.send({"bind": {"run": ""}})
    for number in (1, 2):
        (report,) = host.answers({"rows": [step(number)]})
        assert report["report"]["last_step"] == number


def test_an_error_is_told_with_its_place(make: Any) -> None:
    host = make(
        """
        import telltale

        class Mine(telltale.Rule):
            def on_record(self, record):
                raise ValueError("no such layer")
        """
    )
    host.read()
    (error,) = host.answers({"rows": [step(1)]})
    assert error["error"]["text"] == "ValueError: no such layer (rules_of_mine.py:6)"
    assert host.process.wait(LIMIT_S) == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Other: pass", "has no class Mine"),
        ("class Mine: pass", "is no rule"),
        ("import no_such_module_of_mine", "ModuleNotFoundError"),
        ("raise SystemExit(0)", "SystemExit"),
    ],
)
def test_what_is_no_rule_is_refused(make: Any, code: str, said: str) -> None:
    assert said in make(code).read()["error"]["text"]


def test_memory_is_limited(make: Any) -> None:
    host = make(
        """
        import telltale

        class Mine(telltale.Rule):
            def on_record(self, record):
                self.kept = bytearray(1 << 30)
        """,
        "--memory-mib",
        "256",
    )
    host.read()
    (error,) = host.answers({"rows": [step(1)]})
    assert "memory" in error["error"]["text"]


def test_processor_time_is_limited(make: Any) -> None:
    host = make(
        """
        import telltale

        class Mine(telltale.Rule):
            def on_record(self, record):
                while True:
                    pass
        """,
        "--cpu-seconds",
        "1",
    )
    host.read()
    assert host.answers({"rows": [step(1)]}) == [{"ended": -signal.SIGXCPU}]


def test_a_rule_that_sleeps_ends_with_its_parent(make: Any) -> None:
    host = make(
        """
        import time
        import telltale

        class Mine(telltale.Rule):
            def on_record(self, record):
                time.sleep(1e6)
        """
    )
    host.read()
    host.send({"rows": [step(1)]})
    host.close()
    assert host.process.returncode == 0


DAEMONS = """
    import os
    import time
    import telltale

    class Mine(telltale.Rule):
        tables = ("steps",)

        def __init__(self, fifo, count):
            self.fifo, self.count = fifo, int(count)

        def on_record(self, record):
            if record.step == 2:
                raise ValueError("enough")
            if record.step == 3:
                os.kill(os.getpid(), 9)
            for _ in range(self.count):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        os.setsid()
                        with open(self.fifo, "wb", buffering=0) as held:
                            held.write(b".")
                            time.sleep(1e6)
                    os._exit(0)
"""


@pytest.mark.parametrize("end", ["the parent closes the line", "the rule raises", "the rule is killed"])
def test_what_a_rule_starts_ends_with_it_also_what_leaves_session_and_group(
    make: Any, tmp_path: Path, end: str
) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    host = make(DAEMONS, parameters={"fifo": str(fifo), "count": "20"})
    host.read()
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as held:
        os.set_blocking(held.fileno(), True)
        with open(fifo, "wb", buffering=0):  # Until the first of them has opened it.
            assert host.answers({"rows": [step(1)]}) == []
            begun = b""
            while len(begun) < 20:
                begun += held.read(20)
        if end == "the parent closes the line":
            host.close()
            assert host.process.returncode == 0
        elif end == "the rule raises":
            (error,) = host.answers({"rows": [step(2)]})
            assert "enough" in error["error"]["text"]
        else:
            assert host.answers({"rows": [step(3)]}) == [{"ended": -signal.SIGKILL}]
        assert held.read(1) == b"", "all that held the other end have ended"


def test_a_rule_that_starts_processes_without_an_end_is_ended(make: Any, tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    host = make(DAEMONS, parameters={"fifo": str(fifo), "count": "400"})
    host.read()
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as held:
        os.set_blocking(held.fileno(), True)
        said = host.answers({"rows": [step(1)]})
        if said == []:  # All were started before they were counted.
            said = [host.read()]
        assert "more than 256 processes" in said[-1]["error"]["text"]
        assert host.process.wait(LIMIT_S) == 1
        while held.read(400):
            pass
