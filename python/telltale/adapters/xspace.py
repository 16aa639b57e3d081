# SPDX-License-Identifier: Apache-2.0
"""Windows of detail by the profiler that TensorFlow and JAX share: an XSpace, kept as the profiler writes it
(`*.xplane.pb`). Thread safety: the thread whose calls make the steps.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _session
from .._native import note
from .before import Before

if TYPE_CHECKING:
    from .._window_plan import Window


class XSpaceTrace:
    """A _windows.Recorder; what differs between the two frameworks is in the classes below."""

    kind = "trace"

    def __init__(self) -> None:
        self._running = False
        self._folder = ""
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
        self._folder = os.path.join(os.environ["TELLTALE_RUN"], "windows", f".{os.getpid()}.part")
        try:
            self._begin(self._folder, window)
        except Exception as error:
            shutil.rmtree(self._folder, ignore_errors=True)
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

    def stop(self, path: str) -> list[str]:
        self._stop()
        names = []
        try:
            for index, file in enumerate(sorted(Path(self._folder).rglob("*.xplane.pb"))):
                name = f"{path}{f'-{index}' if index else ''}.xplane.pb"
                os.replace(file, name)
                names.append(os.path.basename(name))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        if not names:
            raise OSError("the profiler has written no file: the disk may be full")
        return names

    def drop(self) -> None:
        if self._running:
            self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        # The profiler's threads are not in the child, and its annotations check for them themselves.
        self._running = False
        self._step_mark = None
        self._before.take_back()

    def _end_mark(self) -> None:
        mark, self._step_mark = self._step_mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _stop(self) -> None:
        self._end_mark()
        self._before.take_back()
        self._running = False
        self._end()


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
