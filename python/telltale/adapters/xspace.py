# SPDX-License-Identifier: Apache-2.0
"""Windows of detail by the profiler that TensorFlow and JAX share: an XSpace, kept as the profiler writes it
(`*.xplane.pb`). Thread safety: the thread whose calls make the steps.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from .. import _session
from .._native import note
from .._run_files import Folder
from .before import Before

if TYPE_CHECKING:
    from .._window_plan import Window


class XSpaceTrace:
    """A _windows.Recorder; what differs between the two frameworks is in the classes below."""

    kind = "trace"

    def __init__(self) -> None:
        self._running = False
        # The profiler writes by path, all that it wants: into a new folder, which holds no link.
        self._scratch: Folder | None = None
        self._windows: Folder | None = None
        self._step_mark: Any = None
        self._before = Before(self.kind, "the program starts the profiler itself", lambda: self._running)

    def _begin(self, folder: str, window: Window) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def _annotation(self, step: int) -> Any:
        raise NotImplementedError

    def _starters(self) -> list[tuple[Any, str]]:
        """(module, name) of what starts the profiler for the program."""
        raise NotImplementedError

    def in_use(self) -> bool:
        return True

    def missing(self, window: Window) -> str:
        return ""

    def conflict(self, window: Window) -> str:
        if "stacks" in window.detail:
            from .._profilers import profiler_at_work

            return profiler_at_work()
        return ""

    def busy(self) -> bool:
        return False

    def start(self, window: Window, facts: dict[str, Any]) -> None:
        with Folder.of_run() as run:
            self._windows = run.folder("windows", make=True)
        try:
            self._scratch = self._windows.fresh(_scratch_name())
            self._begin(self._windows.path(_scratch_name()), window)
        except Exception as error:
            self._clean()
            if "already" in str(error).lower() or "another profiler" in str(error).lower():
                from .._windows import ConflictError

                raise ConflictError("the framework's profiler is recording in this process") from None
            raise
        self._running = True
        for module, name in self._starters():
            self._before.put(module, name)

    def size(self) -> int:
        return 0

    def mark(self, label: str, step: int, mode: int) -> None:
        self._end_mark()
        mark = self._annotation(step)
        mark.__enter__()
        self._step_mark = mark

    def stop(self, folder: Folder, stem: str) -> list[str]:
        self._stop()
        names: list[str] = []
        try:
            if self._scratch is not None:
                _move_spaces(self._scratch, folder, stem, names)
        finally:
            self._clean()
        if not names:
            raise OSError("the profiler has written no file: the disk may be full")
        return names

    def drop(self) -> None:
        if self._running:
            self._stop()
        self._clean()

    def forget(self) -> None:
        # The profiler's threads are not in the child, and its annotations check for them themselves.
        self._running = False
        self._step_mark = None
        self._before.take_back()
        self._close()

    def _clean(self) -> None:
        """Takes the new folder away, where there is one."""
        if self._windows is not None:
            with contextlib.suppress(OSError):
                self._windows.remove(_scratch_name())
        self._close()

    def _close(self) -> None:
        for folder in (self._scratch, self._windows):
            if folder is not None:
                folder.close()
        self._scratch = self._windows = None

    def _end_mark(self) -> None:
        mark, self._step_mark = self._step_mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _stop(self) -> None:
        self._end_mark()
        self._before.take_back()
        self._running = False
        self._end()


def _scratch_name() -> str:
    return f".{os.getpid()}.part"


def _move_spaces(scratch: Folder, folder: Folder, stem: str, names: list[str]) -> None:
    """Takes what the profiler has written out of the folders that it has made."""
    for name in scratch.names():
        if name.endswith(".xplane.pb"):
            index = len(names)
            names.append(f"{stem}{f'-{index}' if index else ''}.xplane.pb")
            scratch.move(name, folder, names[-1])
            continue
        try:
            inner = scratch.folder(name)
        except OSError:
            continue  # No folder.
        with inner:
            _move_spaces(inner, folder, stem, names)


class TensorFlowTrace(XSpaceTrace):
    """By tf.profiler.experimental."""

    def __init__(self, tensorflow: Any) -> None:
        super().__init__()
        self._tensorflow = tensorflow

    def _begin(self, folder: str, window: Window) -> None:
        profiler = self._tensorflow.profiler.experimental
        profiler.start(
            folder,
            options=profiler.ProfilerOptions(
                host_tracer_level=2,
                python_tracer_level=int("stacks" in window.detail),
                device_tracer_level=int("kernels" in window.detail),
            ),
        )

    def _end(self) -> None:
        self._tensorflow.profiler.experimental.stop()

    def _annotation(self, step: int) -> Any:
        return self._tensorflow.profiler.experimental.Trace("train", step_num=step, _r=1)

    def _starters(self) -> list[tuple[Any, str]]:
        inner = sys.modules.get("tensorflow.python.profiler.profiler_v2")
        return [
            (module, "start")
            for module in (self._tensorflow.profiler.experimental, inner)
            if module is not None
        ]


class JaxTrace(XSpaceTrace):
    """By jax.profiler."""

    @property
    def _jax(self) -> Any:
        return sys.modules["jax"]

    def _begin(self, folder: str, window: Window) -> None:
        profiler = self._jax.profiler
        options: dict[str, Any] = {}
        kinds = getattr(profiler, "ProfileOptions", None)
        if kinds is not None:
            asked = kinds()
            asked.python_tracer_level = int("stacks" in window.detail)
            asked.host_tracer_level = 2
            options["profiler_options"] = asked
        profiler.start_trace(folder, **options)

    def _end(self) -> None:
        self._jax.profiler.stop_trace()

    def _annotation(self, step: int) -> Any:
        return self._jax.profiler.StepTraceAnnotation("train", step_num=step)

    def _starters(self) -> list[tuple[Any, str]]:
        inner = sys.modules.get("jax._src.profiler")
        return [(module, "start_trace") for module in (self._jax.profiler, inner) if module is not None]


def use_tensorflow(tensorflow: Any) -> None:
    """TensorFlow is there."""
    _session.add_recorder(TensorFlowTrace(tensorflow))


def use_jax() -> None:
    """JAX makes the steps: its own profiler before TensorFlow's."""
    try:
        _session.add_recorder(JaxTrace(), first=True)
    except Exception as error:
        note(f"windows: {type(error).__name__}: {error}")
