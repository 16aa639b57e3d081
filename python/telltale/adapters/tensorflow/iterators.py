# SPDX-License-Identifier: Apache-2.0
"""tf.data: the wait for the next element where a loop takes it itself (GetNext), as the phase `data_wait` of its step and, where
it is long, as a span; and once what the pipeline is made of, stage by stage.

What a graph takes (the function that Keras' fit compiles) nobody sees from Python: a window of detail has its stages.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import weakref
from typing import Any, Callable

from ... import _spans
from ..._native import probe
from ..hooking import stand_in
from ..sharing import batch_size, harmless, inside
from . import tape

_LEAST_NS = 1_000_000
_MAX_STAGES = 32
# A program may make its pipeline anew for each epoch.
_MAX_PIPELINES = 8
# Attribute of a dataset of TensorFlow's -> what is told of it; -1 is TensorFlow's own choice.
_OPTIONS = {"_num_parallel_calls": "parallel", "_cycle_length": "cycle", "_buffer_size": "buffer"}
_ENDS = ("StopIteration", "OutOfRangeError")

_tf: Any = None
_pipelines: set[str] = set()
_seen: weakref.WeakSet[Any] = weakref.WeakSet()


class _State(threading.local):
    fetching = False


_state = _State()


def _option(dataset: Any, name: str) -> int | None:
    value: Any = getattr(dataset, name, None)
    value = value.numpy() if hasattr(value, "numpy") else value
    return int(value) if type(value).__name__ in ("int", "int32", "int64") else None


def _stages(dataset: Any) -> list[dict[str, Any]]:
    """The stages of a pipeline, the source first; as far as each has one input."""
    found: list[dict[str, Any]] = []
    while len(found) < _MAX_STAGES:
        name = type(dataset).__name__.strip("_")
        stage: dict[str, Any] = {"stage": name[:-7] if name.endswith("Dataset") else name}
        for attribute, told in _OPTIONS.items():
            value = _option(dataset, attribute)
            if value is not None:
                stage[told] = value
        if name != "OptionsDataset":  # Does nothing.
            found.append(stage)
        inputs = dataset._inputs()
        if len(inputs) != 1:
            break
        dataset = inputs[0]
    return found[::-1]


@harmless("tensorflow.pipeline")
def _tell_pipeline(iterator: Any) -> None:
    if len(_pipelines) >= _MAX_PIPELINES or iterator in _seen:
        return
    _seen.add(iterator)
    dataset = vars(iterator).get("_dataset")
    if dataset is None:
        return
    stages = _stages(dataset)
    text = json.dumps(stages)
    if text not in _pipelines:
        _pipelines.add(text)
        _spans.emit("tf.data", str(stages[-1]["stage"] if stages else ""), {"stages": stages})


@harmless("tensorflow.watch", False)
def _watches() -> bool:
    return not _state.fetching and bool(_tf.executing_eagerly()) and bool(probe.ready(0))


@harmless("tensorflow.fetch")
def _begin(steps: bool) -> None:
    _state.fetching = True
    if steps:
        tape.settle()
        probe.fetch_begin()


@harmless("tensorflow.fetch")
def _end(begin: int, steps: bool, size: int) -> None:
    _state.fetching = False
    if steps:
        probe.fetch_end(size)
    end = time.monotonic_ns()
    if end - begin >= _LEAST_NS:
        probe.span_ns("tf.data.get_next", begin, end, _spans.DATA)


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(self: Any) -> Any:
        if not _watches():
            return original(self)
        # Inside a model's function the steps are those of its own adapter.
        steps = not inside.model
        _tell_pipeline(self)
        _begin(steps)
        begin = time.monotonic_ns()
        try:
            element = original(self)
        except BaseException as error:
            _end(begin, steps, -1 if type(error).__name__ in _ENDS else 0)
            raise
        _end(begin, steps, batch_size(element))
        return element

    return hooked


def install(tensorflow: Any) -> None:
    global _tf
    _tf = tensorflow
    owner = sys.modules["tensorflow.python.data.ops.iterator_ops"].OwnedIterator
    for name in ("__next__", "get_next"):
        stand_in(owner, name, _next)
