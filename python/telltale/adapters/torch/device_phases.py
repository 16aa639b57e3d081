# SPDX-License-Identifier: Apache-2.0
"""How long the phases of a step take on a CUDA device, without waiting for it: the event `device.phases`.

What the step machine measures is the host's time, in which kernels are only launched. Once a second, of one step,
an event of CUDA's is put on the stream at each begin and end of a phase; when the device has passed them all, which
is asked at a later step, their differences are the phases' times on the device. Nothing while a CUDA graph is
captured, and nothing beside a window of detail that listens to phases.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from ... import _session, _spans
from ..._native import note, probe
from . import modules

_PHASES = {1: "forward", 2: "backward", 3: "optimizer"}  # By tt_phase.
_OPTIMIZER = 3
# A step of many accumulated passes is not followed to its end.
_MAX_MARKS = 64

_torch: Any = None


class Cuda:
    """What is asked of the device's library; tests put another in its place."""

    @staticmethod
    def capturing() -> bool:
        return bool(_torch.cuda.is_current_stream_capturing())

    @staticmethod
    def mark() -> Any:
        """An event behind what the stream holds by now."""
        event = _torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class _Sample:
    """One step: its marks are (phase, whether it begins, event, when the host was there)."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, bool, Any, int]] = []
        self.step = -1

    def facts(self) -> dict[str, Any] | None:
        """Times on the device; None while it has not come so far."""
        if not all(event.query() for _, _, event, _ in self.marks):
            return None
        times: dict[str, float] = {}
        begun: dict[int, Any] = {}
        for phase, begins, event, _ in self.marks:
            if begins:
                begun.setdefault(phase, event)
            elif phase in begun:
                name = f"{_PHASES[phase]}_ns"
                times[name] = times.get(name, 0) + begun.pop(phase).elapsed_time(event) * 1e6
        first, last = self.marks[0], self.marks[-1]
        times["step_ns"] = first[2].elapsed_time(last[2]) * 1e6
        return {
            "step": self.step,
            **{name: round(value) for name, value in times.items()},
            "host_ns": last[3] - first[3],
        }


_open: _Sample | None = None
_flying: _Sample | None = None


def _close() -> None:
    global _open, _flying
    sample, _open = _open, None
    _session.listen_to_phases(_phase, False)
    if sample is not None and sample.marks:
        _flying = sample


def _drop() -> None:
    global _open, _flying
    _open = _flying = None
    _session.listen_to_phases(_phase, False)


def _phase(phase: int, begins: int) -> None:
    """A phase of the step that is sampled begins or ends."""
    taken = _open
    if taken is None or phase not in _PHASES:
        return
    try:
        if Cuda.capturing():
            _drop()
            return
        taken.marks.append((phase, bool(begins), Cuda.mark(), time.monotonic_ns()))
        if (phase == _OPTIMIZER and not begins) or len(taken.marks) >= _MAX_MARKS:
            # The number of a step is sure once its optimizer is called.
            taken.step = probe.current()[0]
            _close()
    except Exception as error:
        note(f"torch: phases on the device: {type(error).__name__}: {error}")
        _drop()
        _spans.not_each_second(sample)


def sample() -> None:
    """A step of training begins; about once a second."""
    global _open, _flying
    if Cuda.capturing():
        return
    if _open is not None:
        if not _session.listens_to_phases(_phase):
            _drop()  # A window of detail has begun meanwhile.
        return
    if _flying is not None:
        facts = _flying.facts()
        if facts is None:
            return
        _flying = None
        _spans.emit("device.phases", "cuda", facts)
    if _session.listen_to_phases(_phase, True):
        _open = _Sample()


def look() -> None:
    """The first forward of a root module: a device may be in use by now."""
    if _torch.cuda.is_initialized():
        _spans.each_second(sample)


def install(torch: ModuleType) -> None:
    global _torch
    _torch = torch
    modules.at_root(look)
    _session.on_wake(lambda _: _drop())  # A forked child has no events of its parent's.
