# SPDX-License-Identifier: Apache-2.0
"""Stands for TensorFlow where there is none: sessions that do what telltale.tensorflow sees of them, and a
RunMetadata of real bytes. `install()` puts it into sys.modules; `monitored(hook, runs)` drives a hook as a
MonitoredSession does.
"""

from __future__ import annotations

import sys
import time
import types
from typing import Any


def _varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


class RunOptions:
    NO_TRACE, FULL_TRACE = 0, 3

    def __init__(self, trace_level: int = 0) -> None:
        self.trace_level = trace_level
        self.timeout_in_ms = 0

    def CopyFrom(self, other: RunOptions) -> None:
        self.__dict__.update(other.__dict__)


class RunMetadata:
    """One operator on the CPU, which began `begin_us` after the epoch."""

    def __init__(self) -> None:
        self.begin_us = 0

    @property
    def step_stats(self) -> Any:
        nodes = [types.SimpleNamespace(node_name="layer/MatMul")]
        return types.SimpleNamespace(dev_stats=[types.SimpleNamespace(node_stats=nodes)])

    def SerializeToString(self) -> bytes:
        node = b"".join(
            (
                _field(1, b"layer/MatMul"),
                _field(2, self.begin_us),
                _field(3, 1),
                _field(4, 40),
                _field(5, 50),
                _field(8, b"[CPU] layer/MatMul = MatMul(x, w)"),
            )
        )
        device = _field(1, b"/job:localhost/replica:0/task:0/device:CPU:0") + _field(2, node)
        return _field(1, _field(1, device))


class Operation:
    name = "layer/MatMul"


class BaseSession:
    """A step is a run of "train"."""

    graph = types.SimpleNamespace(get_operations=lambda: [Operation, types.SimpleNamespace(name="other")])

    def __init__(self) -> None:
        self.global_step = 0
        self.traced: list[int] = []
        self.runs = 0

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        if fetches == "fail":
            raise ValueError("the user's own")
        if fetches == "global_step":
            return self.global_step
        self.runs += 1
        if options is not None and options.trace_level == RunOptions.FULL_TRACE:
            self.traced.append(self.runs - 1)
            run_metadata.begin_us = time.time_ns() // 1000
        if fetches == "train":
            self.global_step += 1
        return 10 * self.runs


class SessionRunHook:
    def begin(self) -> None: ...
    def before_run(self, run_context: Any) -> Any: ...
    def after_run(self, run_context: Any, run_values: Any) -> None: ...


class SessionRunArgs:
    def __init__(self, fetches: Any, feed_dict: Any = None, options: Any = None) -> None:
        self.fetches, self.options = fetches, options


def monitored(hook: Any, runs: int) -> list[int]:
    """The runs that were traced."""
    session = BaseSession()
    hook.begin()
    for _ in range(runs):
        asked = hook.before_run(types.SimpleNamespace(session=session))
        assert asked.fetches == {"global_step": "global_step"}
        metadata = RunMetadata()
        before = session.global_step
        session.run("train", options=asked.options, run_metadata=metadata)
        values = types.SimpleNamespace(results={"global_step": before}, run_metadata=metadata)
        hook.after_run(types.SimpleNamespace(session=session), values)
    return session.traced


def install() -> None:
    def module(name: str, **names: Any) -> Any:
        made = types.ModuleType(name)
        made.__dict__.update(names, __path__=[])
        sys.modules[name] = made
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, made)
        return made

    class Timeline:
        def __init__(self, step_stats: Any) -> None: ...
        def generate_chrome_trace_format(self, show_dataflow: bool, show_memory: bool) -> str:
            return f'{{"traceEvents": [], "show": [{int(show_dataflow)}, {int(show_memory)}]}}'

    train = types.SimpleNamespace(
        SessionRunHook=SessionRunHook,
        SessionRunArgs=SessionRunArgs,
        get_or_create_global_step=lambda: "global_step",
    )
    module("tensorflow")
    module("tensorflow.compat")
    module("tensorflow.compat.v1", train=train, RunOptions=RunOptions, RunMetadata=RunMetadata)
    module("tensorflow.python")
    module("tensorflow.python.client")
    module("tensorflow.python.client.session", BaseSession=BaseSession)
    module("tensorflow.python.client.timeline", Timeline=Timeline)
