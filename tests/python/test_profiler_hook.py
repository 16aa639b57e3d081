# SPDX-License-Identifier: Apache-2.0
"""telltale.tensorflow where there is no TensorFlow: which runs of a session are traced, what is kept of them, and
that the program's own runs are as they were. With TensorFlow: tests/frameworks/test_profiler_hook.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parents[1] / "support"
PRELUDE = f"""
import json, sys
sys.path.insert(0, {os.fspath(SUPPORT)!r})
import fake_sessions
fake_sessions.install()
from telltale.tensorflow import ProfileContext, ProfilerHook
from fake_sessions import BaseSession, RunMetadata, RunOptions
"""


@pytest.fixture
def run(telltale, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()

    def run(text: str):
        recording = telltale.python(PRELUDE + text, env={"PROBE_HOST_RUN": str(folder)})
        assert recording.code == 0, recording.err
        assert recording.err == "" and telltale.probe_log() == ""
        recording.folder = folder
        return recording

    return run


def kept(recording):
    """Steps of the windows, whose files must be as the events say."""
    steps = []
    for row in recording.events("window.closed"):
        facts = row["facts"]
        ((name, size),) = facts["files"].items()
        assert (recording.folder / name).stat().st_size == size
        assert facts["first"] == facts["last"] and facts["realtime_ns"] > 0
        steps.append(facts["first"])
    return steps


def test_the_hook_traces_a_run_each_so_many_steps_and_never_the_first(run):
    recording = run("print(json.dumps(fake_sessions.monitored(ProfilerHook(save_steps=3), 10)))")
    # The runs 2, 5 and 8 are those after which the global step is 3, 6 and 9.
    assert json.loads(recording.out) == [2, 5, 8]
    assert kept(recording) == [3, 6, 9]
    names = sorted(path.name.split("-")[1] for path in (recording.folder / "windows/profiler-hook").iterdir())
    assert names == ["step3", "step6", "step9"]


def test_the_hook_by_seconds_and_into_a_folder(run, tmp_path):
    own = tmp_path / "own"
    recording = run(
        f"""
import itertools, time
clock = itertools.count()
time.monotonic = lambda: float(next(clock))  # Each look at it is a second.
hook = ProfilerHook(save_secs=2, output_dir={str(own)!r}, show_memory=True)
print(json.dumps(fake_sessions.monitored(hook, 6)))
"""
    )
    traced = json.loads(recording.out)
    assert 0 not in traced and traced
    assert len(kept(recording)) == len(traced)
    step = traced[0] + 1
    assert json.loads((own / f"timeline-{step}.json").read_text())["show"] == [1, 1]
    assert (own / f"run_metadata-{step}.pb").stat().st_size > 50


def test_a_hook_needs_steps_or_seconds(run):
    recording = run(
        """
for wrong in ({}, {"save_steps": 1, "save_secs": 1}):
    try: ProfilerHook(**wrong)
    except ValueError as error: print(error)
"""
    )
    assert recording.out.count("save_steps or save_secs") == 2


def test_a_context_traces_the_steps_that_were_asked_for(run, tmp_path):
    own = tmp_path / "own"
    recording = run(
        f"""
there = BaseSession.run
session = BaseSession()
mine = RunMetadata()
options = RunOptions()
options.timeout_in_ms = 7
with ProfileContext({str(own)!r}, trace_steps=[2, 4], dump_steps=[3], debug=True) as context:
    results = [session.run("train", options=options, run_metadata=mine) for _ in range(4)]
    written = sorted(path.name for path in __import__("pathlib").Path({str(own)!r}).iterdir())
    results += [session.run("train") for _ in range(2)]
    try: session.run("fail")
    except ValueError as error: results.append(str(error))
print(json.dumps([results, session.traced, written, options.trace_level, mine.begin_us > 0, BaseSession.run is there]))
"""
    )
    results, traced, written, level, told, restored = json.loads(recording.out)
    assert results == [10, 20, 30, 40, 50, 60, "the user's own"]
    assert traced == [2, 4]
    assert written == ["run_metadata_2", "run_metadata_2.txt"], "after step 3, where it was asked for"
    assert (level, told, restored) == (0, True, True), (
        "the user's options are as they were, the metadata is told"
    )
    assert (own / "run_metadata_4").exists()
    assert kept(recording) == [2, 4]


def test_a_context_chooses_what_was_not_fetched_before(run):
    recording = run(
        """
session = BaseSession()
with ProfileContext("") as context:
    for step in range(20): session.run("train" if step != 15 else "other")
    context.trace_next_step()
    session.run("train")
print(json.dumps(session.traced))
"""
    )
    # Half of the graph has been seen at the first one: nothing is left to chance.
    assert json.loads(recording.out) == [11, 15, 20]
    assert kept(recording) == [11, 15, 20]


def test_what_is_too_much_is_refused_and_what_is_off_does_nothing(run):
    recording = run(
        """
try: ProfileContext("", trace_steps=range(101))
except ValueError as error: print(error)
there = BaseSession.run
with ProfileContext("", enabled=False): print(BaseSession.run is there)
with ProfileContext(""):
    try: ProfileContext("").__enter__()
    except RuntimeError as error: print(error)
print(BaseSession.run is there)
"""
    )
    many, off, second, after = recording.out.splitlines()
    assert "101" in many and (off, after) == ("True", "True") and "one already" in second
    assert recording.events("window.closed") == []


def test_a_trace_that_cannot_be_written_harms_nobody(telltale, tmp_path):
    (tmp_path / "run").write_text("no folder")
    recording = telltale.python(
        PRELUDE + "print(json.dumps(fake_sessions.monitored(ProfilerHook(save_steps=2), 4)))",
        env={"PROBE_HOST_RUN": str(tmp_path / "run")},
    )
    assert (recording.code, recording.out) == (0, "[1, 3]\n"), recording.err
    assert "ProfilerHook: NotADirectoryError" in telltale.probe_log()
    assert recording.events("window.closed") == []
