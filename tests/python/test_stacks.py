# SPDX-License-Identifier: Apache-2.0
"""Where the threads of a training stand when it makes no steps: said in time, and seldom."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "python"
sys.path.insert(0, str(PACKAGE))

from telltale import _stacks  # noqa: E402
from telltale._session import OTHER, TRAINER  # noqa: E402


class Probe:
    """Takes what the process says."""

    def __init__(self) -> None:
        self.step = -1
        self.said: list[dict[str, Any]] = []

    def current(self) -> tuple[int, int]:
        return self.step, 0

    def event(self, kind: str, severity: int, subject: str, message: str, data: str) -> None:
        assert kind == "process.python"
        assert len(data.encode()) <= 4096
        self.said.append(json.loads(data))


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    there = Probe()
    monkeypatch.setattr(_stacks, "probe", there)
    monkeypatch.setattr(_stacks._Watching, "pid", 0)
    monkeypatch.setattr(_stacks._Watching, "ended", None)
    return there


@pytest.fixture
def stuck() -> Iterator[threading.Thread]:
    """A thread that waits for a lock nobody gives back until the test is over."""
    lock = threading.Lock()
    begun = threading.Event()

    def wait_for_ever() -> None:
        begun.set()
        with lock:
            pass

    with lock:
        thread = threading.Thread(target=wait_for_ever, name="writes the log")
        thread.start()
        begun.wait()
        yield thread
    thread.join()


def test_a_start_is_no_hang() -> None:
    quiet = _stacks.Quiet()
    assert [quiet.seconds((-1, 0), now) for now in range(0, 2000, 5)] == [None] * 400
    assert [quiet.seconds((0, 0), now) for now in range(2000, 4000, 5)] == [None] * 400


def test_silence_is_said_again_only_when_it_has_doubled() -> None:
    quiet = _stacks.Quiet()
    for step in range(5):
        assert quiet.seconds((step, 0), step * 5.0) is None
    said = [now for now in range(25, 400, 5) if quiet.seconds((4, 0), float(now)) is not None]
    # The newest step was seen at 20 s.
    assert said == [35, 50, 80, 140, 260]


def test_the_longest_step_is_the_measure() -> None:
    quiet = _stacks.Quiet()
    now = 0.0
    for step in range(4):
        for _ in range(8):  # 40 s a step.
            assert quiet.seconds((step, 0), now) is None
            now += 5
    begun = now
    assert quiet.seconds((4, 0), begun) is None
    assert quiet.seconds((4, 0), begun + 195) is None
    assert quiet.seconds((4, 0), begun + 200) == 200


def test_every_thread_stands_somewhere(stuck: threading.Thread) -> None:
    data = json.loads(_stacks.stacks(20.04))
    assert data["quiet_s"] == 20.0
    assert data["thread_count"] >= 2
    first = data["threads"][0]
    assert first["main"] and first["name"] == "MainThread"
    here = "test_every_thread_stands_somewhere"
    assert any("test_stacks.py:" in line and line.endswith(f" {here}") for line in first["lines"])
    (other,) = (each for each in data["threads"] if each["name"] == "writes the log")
    assert not other["main"]
    assert other["lines"][0].endswith(" wait_for_ever")


def test_more_than_an_event_holds_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = sys._getframe()
    monkeypatch.setattr(_stacks, "_lines", lambda each: [f"{id(each)}{'x' * 100}"] * 12)
    frames: dict[int, object] = {ident: object() for ident in range(1, 200)}
    frames[threading.main_thread().ident or 0] = frame
    monkeypatch.setattr(sys, "_current_frames", lambda: frames)
    text = _stacks.stacks(15)
    assert len(text.encode()) <= 4096
    data = json.loads(text)
    assert data["thread_count"] == 200
    assert 0 < len(data["threads"]) < 200
    assert data["threads"][0]["main"]


def test_the_watching_thread_is_none_of_them(probe: Probe, stuck: threading.Thread) -> None:
    quiet = _stacks.Quiet()
    for step in range(3):
        probe.step = step
        _stacks.look(quiet, float(step))
    done = threading.Thread(target=_stacks.look, args=(quiet, 100.0), name="telltale-stacks")
    done.start()
    done.join()
    (data,) = probe.said
    names = [each["name"] for each in data["threads"]]
    assert "telltale-stacks" not in names
    assert "writes the log" in names


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "telltale-stacks"]


def test_it_begins_once_in_a_trainer_with_threads(probe: Probe, stuck: threading.Thread) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    _stacks.begin(OTHER)
    assert watching() == []
    _stacks.begin(TRAINER)
    _stacks.begin(TRAINER)
    (thread,) = watching()
    assert thread.daemon
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    _stacks.end()
    thread.join(60)
    assert not thread.is_alive()


def test_a_program_of_one_thread_stays_one(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda path: ["1"])
    _stacks.begin(TRAINER)
    assert watching() == []
