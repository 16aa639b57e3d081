# SPDX-License-Identifier: Apache-2.0
"""ProfilerHook and ProfileContext for sessions of tf.compat.v1, under the names that TensorFlow 1 gave them.

    from telltale.tensorflow import ProfilerHook, ProfileContext

    with tf.compat.v1.train.MonitoredSession(hooks=[ProfilerHook(save_steps=100)]) as session: ...
    with ProfileContext("/tmp/profile"): train()

Each run that they trace is a window of detail (docs/guide/windows.md): its RunMetadata is kept in the run, and its
operators become rows of `slices`. Outside `telltale run` the files go where the arguments say, for `telltale profile`.

Thread safety: a hook belongs to its session's thread. Under a ProfileContext any threads may run sessions; of those
that run at once one is counted and traced.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable

from . import _session
from ._native import note, probe
from ._run_files import window_folder
from ._window_plan import rank

try:
    _v1: Any = importlib.import_module("tensorflow.compat.v1")
    _Hook: Any = _v1.train.SessionRunHook
except ImportError:
    _v1, _Hook = None, object

__all__ = ["ProfileContext", "ProfilerHook"]

# Left free on the disk beside what is written.
_FREE_BYTES = 64 << 20
# Of traces that wait to be written.
_MOST_KEPT_BYTES = 64 << 20
_WARMUP_STEPS = 10
_MAX_TRACED_STEPS = 100


def _need_tensorflow() -> None:
    if _v1 is None:
        raise ImportError("telltale.tensorflow: there is no TensorFlow in this Python")


def _need_room(folder: int | Path, name: str, size: int) -> None:
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < size + _FREE_BYTES:
        raise OSError(f"the disk has no room for {name}")


def _write(path: Path, data: bytes) -> None:
    """A file in a folder that the program has named."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _need_room(path.parent, path.name, len(data))
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)


class _Trace:
    """What TensorFlow told of one session.run."""

    def __init__(self, step: int, metadata: bytes, clocks: dict[str, int]) -> None:
        self.step, self.metadata, self.clocks = step, metadata, clocks

    def keep(self, name: str) -> None:
        """As a window of the run, where there is one. May raise Exception."""
        if probe is None or not probe.ready(0):
            return
        begin = time.perf_counter()
        file = f"rank{rank()}-step{self.step}-{os.getpid()}.run_metadata.pb"
        with window_folder(name) as folder:
            _need_room(folder.fd, file, len(self.metadata))
            folder.write(file, self.metadata)
        took_ms = round((time.perf_counter() - begin) * 1000, 3)
        facts = {
            "window": name,
            "kind": "trace",
            "mode": "train",
            "first": self.step,
            "last": self.step,
            "detail": ["ops"],
            "files": {f"windows/{name}/{file}": len(self.metadata)},
            "file_count": 1,
            "early": "",
            "begin_ms": 0.0,
            "end_ms": took_ms,
            **self.clocks,
        }
        message = (
            f"window {name}: step {self.step}, {len(self.metadata):,} bytes; its end took {took_ms:.0f} ms"
        )
        probe.event("window.closed", 0, "windows", message, json.dumps(facts))


def _clocks() -> dict[str, int]:
    return {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()}


class _Timer:
    """Each so many steps or seconds; the first time counts from the first step."""

    def __init__(self, steps: int | None, seconds: float | None) -> None:
        if (steps is None) == (seconds is None):
            raise ValueError("ProfilerHook: give save_steps or save_secs, and not both")
        self._steps, self._seconds = steps, seconds
        self._step, self._time = -1, 0.0

    def due(self, step: int) -> bool:
        if step == self._step:
            return False
        if self._seconds is not None:
            return time.monotonic() >= self._time + self._seconds
        return step >= self._step + (self._steps or 0)

    def taken(self, step: int) -> None:
        self._step, self._time = step, time.monotonic()


class ProfilerHook(_Hook):
    """Traces one run of the session each `save_steps` global steps or `save_secs` seconds, never the first.

    Args:
        save_steps: every so many global steps.
        save_secs: every so many seconds. One of both is given.
        output_dir: where `timeline-STEP.json` and `run_metadata-STEP.pb` go besides; empty: nowhere.
        show_dataflow: arrows in the timeline.
        show_memory: allocations in the timeline.

    Raises:
        ImportError: there is no TensorFlow.
        ValueError: both or none of save_steps and save_secs.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ) -> None:
        _need_tensorflow()
        self._timer = _Timer(save_steps, save_secs)
        self._folder = output_dir
        self._show = {"show_dataflow": show_dataflow, "show_memory": show_memory}
        self._next_step: int | None = None
        self._tracing = False
        self._began: dict[str, int] = {}
        self._global_step: Any = None

    def begin(self) -> None:
        """Called by the session's owner."""
        util = sys.modules.get("tensorflow.python.training.training_util")
        read = getattr(util, "_get_or_create_global_step_read", None)
        self._global_step = read() if read is not None else _v1.train.get_or_create_global_step()

    def before_run(self, run_context: Any) -> Any:
        """Called by the session before each run."""
        self._tracing = self._next_step is not None and self._timer.due(self._next_step)
        options = None
        if self._tracing:
            _session.yield_window("trace", "a ProfilerHook traces a run of the session")
            self._began = _clocks()
            options = _v1.RunOptions(trace_level=_v1.RunOptions.FULL_TRACE)
        return _v1.train.SessionRunArgs({"global_step": self._global_step}, options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Called by the session after each run."""
        before = int(run_values.results["global_step"])
        step = before + 1
        if self._next_step is None:
            self._timer.taken(before)
        if self._tracing:
            step = int(run_context.session.run(self._global_step))
            self._timer.taken(step)
            try:
                self._save(step, run_values.run_metadata)
            except Exception as error:
                note(f"ProfilerHook: {type(error).__name__}: {error}")
        self._next_step = step + 1

    def _save(self, step: int, metadata: Any) -> None:
        trace = _Trace(step, metadata.SerializeToString(), self._began)
        trace.keep("profiler-hook")
        if not self._folder:
            return
        folder = Path(self._folder)
        _write(folder / f"run_metadata-{step}.pb", trace.metadata)
        timeline = importlib.import_module("tensorflow.python.client.timeline")
        text = timeline.Timeline(metadata.step_stats).generate_chrome_trace_format(**self._show)
        _write(folder / f"timeline-{step}.json", text.encode())


class ProfileContext:
    """Traces runs of all sessions within a `with` block, each counted as a step.

    Without `trace_steps` it chooses: after ten steps those that fetch what was not fetched before, and up to the
    hundredth some at random while less than half of the graph's operators were seen.

    Args:
        profile_dir: where `run_metadata_STEP` of each goes; empty: into the run alone.
        trace_steps: the steps to trace, at most 100.
        dump_steps: at which steps what was traced is written, besides the block's end and wherever 64 MiB wait.
        enabled: False: nothing happens.
        debug: a `run_metadata_STEP.txt` beside each, to be read by people.

    Raises:
        ImportError: there is no TensorFlow.
        ValueError: more than 100 steps.
    """

    _active: ProfileContext | None = None

    def __init__(
        self,
        profile_dir: str,
        trace_steps: Iterable[int] | None = None,
        dump_steps: Iterable[int] | None = None,
        enabled: bool = True,
        debug: bool = False,
    ) -> None:
        _need_tensorflow()
        self._enabled, self._debug = enabled, debug
        self._folder = profile_dir
        self._trace_steps = None if trace_steps is None else set(trace_steps)
        if self._trace_steps is not None and len(self._trace_steps) > _MAX_TRACED_STEPS:
            raise ValueError(
                f"ProfileContext: {len(self._trace_steps)} steps: at most {_MAX_TRACED_STEPS} are traced"
            )
        self._dump_steps = {_MAX_TRACED_STEPS} if dump_steps is None else set(dump_steps)
        self._lock = threading.Lock()
        self._random = random.Random(111)
        self._step = 0
        self._trace_next = self._dump_next = False
        self._fetched: set[str] = set()
        self._seen: set[str] = set()
        self._traces: list[_Trace] = []
        self._texts: dict[int, str] = {}
        self._undo: Callable[[], None] | None = None

    def trace_next_step(self) -> None:
        """Traces the next run."""
        self._trace_next = True

    def dump_next_step(self) -> None:
        """Writes what was traced after the next run."""
        self._dump_next = True

    def __enter__(self) -> ProfileContext:
        if not self._enabled:
            return self
        if ProfileContext._active is not None:
            raise RuntimeError("ProfileContext: there is one already: leave it first")
        session = importlib.import_module("tensorflow.python.client.session").BaseSession
        there = session.run
        context = self

        def run(
            self: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
        ) -> Any:
            return context._run(there, self, fetches, feed_dict, options, run_metadata)

        def undo() -> None:
            if session.run is run:
                session.run = there

        session.run = run
        self._undo = undo
        ProfileContext._active = self
        return self

    def __exit__(self, *exception: object) -> None:
        if self._undo is None:
            return
        self._undo()
        self._undo = None
        ProfileContext._active = None
        self._dump()

    def _run(
        self, there: Any, session: Any, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any
    ) -> Any:
        if self._undo is None or not self._lock.acquire(blocking=False):
            return there(session, fetches, feed_dict, options, run_metadata)
        try:
            step = self._step
            self._step += 1
            if not self._traces_now(step, session, fetches):
                return there(session, fetches, feed_dict, options, run_metadata)
            began = _clocks()
            asked = _v1.RunOptions(trace_level=_v1.RunOptions.FULL_TRACE)
            if options is not None:
                asked.CopyFrom(options)
                asked.trace_level = _v1.RunOptions.FULL_TRACE
            told = run_metadata if run_metadata is not None else _v1.RunMetadata()
            result = there(session, fetches, feed_dict, asked, told)
            self._take(step, told, began)
            return result
        finally:
            if self._dump_next or step in self._dump_steps:
                self._dump_next = False
                self._dump()
            self._lock.release()

    def _traces_now(self, step: int, session: Any, fetches: Any) -> bool:
        """Whether this run is traced; what goes wrong in finding out is not the session's."""
        try:
            if not self._due(step, session, fetches):
                return False
            _session.yield_window("trace", "a ProfileContext traces a run of the session")
            return True
        except Exception as error:
            note(f"ProfileContext: {type(error).__name__}: {error}")
            return False

    def _due(self, step: int, session: Any, fetches: Any) -> bool:
        if self._trace_next:
            self._trace_next = False
            return True
        if self._trace_steps is not None:
            return step in self._trace_steps
        if step <= _WARMUP_STEPS:
            return False
        fetched = str(fetches)
        if fetched not in self._fetched and len(self._fetched) < _MAX_TRACED_STEPS:
            self._fetched.add(fetched)
            return True
        # Two times of eleven, as TensorFlow's own.
        return step < _MAX_TRACED_STEPS and self._coverage(session) < 0.5 and self._random.randint(0, 10) < 2

    def _coverage(self, session: Any) -> float:
        """Share of the graph's operators that were traced."""
        names = {operation.name for operation in session.graph.get_operations()}
        return len(self._seen & names) / max(len(names), 1)

    def _take(self, step: int, metadata: Any, began: dict[str, int]) -> None:
        try:
            self._traces.append(_Trace(step, metadata.SerializeToString(), began))
            for device in metadata.step_stats.dev_stats:
                self._seen.update(node.node_name for node in device.node_stats)
            if self._debug:
                self._texts[step] = str(metadata)
            if sum(len(trace.metadata) for trace in self._traces) > _MOST_KEPT_BYTES:
                self._dump()
        except Exception as error:
            note(f"ProfileContext: {type(error).__name__}: {error}")

    def _dump(self) -> None:
        traces, self._traces = self._traces, []
        texts, self._texts = self._texts, {}
        for trace in traces:
            try:
                trace.keep("profile-context")
                if not self._folder:
                    continue
                name = f"run_metadata_{trace.step}"
                _write(Path(self._folder) / name, trace.metadata)
                if trace.step in texts:
                    _write(Path(self._folder) / f"{name}.txt", texts[trace.step].encode())
            except Exception as error:
                note(f"ProfileContext: {type(error).__name__}: {error}")
