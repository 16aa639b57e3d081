# SPDX-License-Identifier: Apache-2.0
"""Windows of detail by torch.profiler (Kineto): operators, kernels, shapes, stacks and memory of some steps, written
as the Chrome trace that Kineto itself writes.

torch's own profiler object starts it; it is stopped beneath that, because there each event becomes an object of
Python, which takes the training seconds. Thread safety: the thread whose calls make the steps.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import threading
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ... import _session
from ..before import Before
from . import modules

if TYPE_CHECKING:
    from ..._run_files import Folder
    from ..._window_plan import Window

_torch: Any = None
_used = False  # A module has been called.

# Profilers that attach themselves to a process from outside, by what they leave in its environment.
_OTHERS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems (nsys)",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute (ncu)",
    "CUDA_INJECTION64_PATH": "a tool that CUDA loads (CUDA_INJECTION64_PATH)",
    "ROCP_TOOL_LIB": "rocprof",
}
# What an operator that autograd has recorded comes to in the trace, with those that it is made of and its backward
# pass (measured with torch 2.15); as much again for each of the words that add to it.
_BYTES_EACH = 2500
_LARGE = ("shapes", "memory", "stacks", "modules")
# By which torch.autograd.profiler starts a profiler: the user's, while a window is open, ends the window first.
_STARTERS = ("_prepare_profiler", "_enable_profiler")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What torch has to say of our use of it is not for the user's terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TorchTrace:
    """A _windows.Recorder."""

    kind = "trace"

    def __init__(self) -> None:
        self._thread = 0
        self._pid = 0
        self._running = False
        self._cuda = False
        self._step_mark: Any = None
        self._sequence = 0
        self._bytes_each = 0
        self._before = Before(self.kind, "the program starts torch.profiler itself", lambda: self._running)

    # ---- whether it can ----

    def in_use(self) -> bool:
        return _used

    def missing(self, window: Window) -> str:
        profiler = _torch.autograd.profiler
        there = all(hasattr(profiler, name) for name in (*_STARTERS, "_disable_profiler"))
        if not there or not _torch.autograd.kineto_available():
            return (
                f"no operators on this torch: {_torch.__version__} was built without Kineto; "
                "torch 2 from PyPI has it, and detail=python is recorded without"
            )
        return ""

    def conflict(self, window: Window) -> str:
        autograd = _torch._C._autograd
        enabled = getattr(autograd, "_profiler_enabled", None)
        if (enabled is not None and enabled()) or getattr(
            _torch.autograd.profiler, "_is_profiler_enabled", False
        ):
            return "torch.profiler is recording in this process"
        for variable, name in _OTHERS.items():
            if os.environ.get(variable):
                return f"{name} is recording this process"
        if _with_stack(window):
            from ..._profilers import profiler_at_work

            return profiler_at_work()
        return ""

    def busy(self) -> bool:
        if self._running and threading.get_ident() != self._thread:
            return True  # Kineto is stopped where it was started.
        cuda = _torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    # ---- start and stop ----

    def start(self, window: Window, facts: dict[str, Any]) -> None:
        self._cuda = "kernels" in window.detail and self._has_cuda()
        # Kineto logs its stages to the terminal in some versions, unless told otherwise before its first use.
        level = os.environ.get("KINETO_LOG_LEVEL")
        os.environ["KINETO_LOG_LEVEL"] = level or "99"
        try:
            with _quiet():
                profile = _torch.autograd.profiler.profile(**self._arguments(window))
                try:
                    profile._prepare_trace()
                    profile._start_trace()
                except BaseException:
                    with contextlib.suppress(Exception):
                        _torch.autograd.profiler._disable_profiler()
                    raise
        finally:
            if level is None:
                os.environ.pop("KINETO_LOG_LEVEL", None)
        self._running = True
        self._sequence = _sequence()
        self._bytes_each = _BYTES_EACH * (1 + sum(word in _LARGE for word in window.detail))
        self._thread = threading.get_ident()
        self._pid = os.getpid()
        for name in _STARTERS:
            self._before.put(_torch.autograd.profiler, name)
        self._tell("telltale", facts)
        for word, key in (("shapes", "record_shapes"), ("memory", "profile_memory"), ("flops", "with_flops")):
            if word in window.detail:
                self._tell(key, 1)
        if _with_stack(window):
            self._tell("with_stack", 1)
        distributed = _torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            self._tell(
                "distributedInfo",
                {
                    "backend": distributed.get_backend(),
                    "rank": distributed.get_rank(),
                    "world_size": distributed.get_world_size(),
                },
            )

    def size(self) -> int:
        sequence = _sequence()
        return (sequence - self._sequence) * self._bytes_each if sequence else 0

    def mark(self, label: str, step: int, mode: int) -> None:
        self._end_mark()
        mark = _torch.autograd.profiler.record_function(label)
        mark.__enter__()
        self._step_mark = mark

    def stop(self, folder: Folder, stem: str) -> list[str]:
        result = self._stop()
        name = stem + ".pt.trace.json"
        # Kineto writes by path, in some versions a file beside it too: into a new folder, which holds no link.
        scratch_name = f".{os.getpid()}.part"
        try:
            with folder.fresh(scratch_name) as scratch:
                result.save(scratch.path(name))
                with scratch.open(name) as file:
                    file.seek(-min(64, scratch.size(name)), os.SEEK_END)
                    if not file.read().rstrip().endswith(b"}"):
                        raise OSError(f"{name} was not written whole: the disk may be full")
                scratch.move(name, folder, name)
        finally:
            with contextlib.suppress(OSError):
                folder.remove(scratch_name)
        return [name]

    def drop(self) -> None:
        if self._running:
            self._stop()

    def forget(self) -> None:
        # Records go on in the copied thread, into memory that nobody frees: they are switched off for it.
        self._running = False
        self._step_mark = None
        self._before.take_back()
        switch = getattr(_torch._C._autograd, "_enable_record_function", None)
        if switch is not None:
            switch(False)

    # ---- beneath ----

    @staticmethod
    def _has_cuda() -> bool:
        activities = _torch._C._autograd._supported_activities()
        return bool(
            _torch.cuda.is_available()
            and _torch.cuda.is_initialized()
            and any(str(activity).endswith("CUDA") for activity in activities)
        )

    def _arguments(self, window: Window) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "record_shapes": "shapes" in window.detail,
            "profile_memory": "memory" in window.detail,
            "with_flops": "flops" in window.detail,
            "with_stack": _with_stack(window),
            "use_kineto": True,
            "use_cpu": True,
        }
        known = inspect.signature(_torch.autograd.profiler.profile.__init__).parameters
        if "use_device" in known:
            arguments["use_device"] = "cuda" if self._cuda else None
        else:
            arguments["use_cuda"] = self._cuda
        experimental = self._trace_only()
        if experimental is not None and not _with_stack(window):
            arguments["experimental_config"] = experimental
        return {name: value for name, value in arguments.items() if name in known}

    @staticmethod
    def _trace_only() -> Any:
        """Where torch can leave out what only its own tables need of the events (since 2.11 or so)."""
        make = getattr(_torch._C._profiler, "_ExperimentalConfig", None)
        try:
            return None if make is None else make(trace_only=True)
        except TypeError:
            return None

    @staticmethod
    def _tell(key: str, value: Any) -> None:
        _torch._C._autograd._add_metadata_json(key, json.dumps(value))

    def _end_mark(self) -> None:
        mark, self._step_mark = self._step_mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _stop(self) -> Any:
        if threading.get_ident() != self._thread or os.getpid() != self._pid:
            self._running = False
            raise RuntimeError("the window's thread is gone, and Kineto stops on no other")
        self._end_mark()
        self._before.take_back()
        self._running = False
        if self._cuda:
            # What the steps have launched runs to its end inside of the window.
            _torch.cuda.synchronize()
        profiler = _torch.autograd.profiler
        result = profiler._disable_profiler()
        stopped = getattr(profiler, "_run_on_profiler_stop", None)
        if stopped is not None:
            stopped()
        return result


def _sequence() -> int:
    """Operators that autograd has recorded in this thread; 0: torch does not say."""
    count = getattr(_torch._C._autograd, "_get_sequence_nr", None)
    return int(count()) if count is not None else 0


def _with_stack(window: Window) -> bool:
    """Modules come with the stacks: torch's own with_modules is of TorchScript alone."""
    return "stacks" in window.detail or "modules" in window.detail


def _root_seen() -> None:
    global _used
    _used = True


def install(torch: ModuleType) -> None:
    global _torch
    if _torch is None:
        _session.add_recorder(TorchTrace())
        modules.at_root(_root_seen)
    _torch = torch
