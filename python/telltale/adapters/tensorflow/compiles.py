# SPDX-License-Identifier: Apache-2.0
"""Graphs that tf.function traces, the first time and again: the span `compile` and the event of that name for each.
And checkpoints of tf.train and tf.saved_model.
"""

from __future__ import annotations

import sys
from typing import Any

from ... import _session, _spans

_TRACING = "tensorflow.python.eager.polymorphic_function.tracing_compilation"


def _traced(args: tuple[Any, ...], kwargs: dict[str, Any], ns: int) -> None:
    options = kwargs.get("tracing_options", args[-1] if args else None)
    name = getattr(options, "name", None)
    facts: dict[str, Any] = {"by": "tf.function", "duration_ns": ns}
    if type(name) is str:
        # NAME/: of the same function it is traced again.
        facts["id"] = f"{name[:200]}/"
    _spans.emit("compile", "tf.function", facts)
    _session.graph_compiled()


def install(tensorflow: Any) -> None:
    _spans.timed((sys.modules[_TRACING],), "_create_concrete_function", "compile", told=_traced)
    checkpoints = tensorflow.train.Checkpoint
    for name in ("write", "save"):
        told = _spans.checkpoint("save", f"tf.train.Checkpoint.{name}", 1, "file_prefix")
        _spans.timed((checkpoints,), name, "checkpoint", told=told)
    for name in ("read", "restore"):
        told = _spans.checkpoint("load", f"tf.train.Checkpoint.{name}", 1, "save_path")
        _spans.timed((checkpoints,), name, "checkpoint.load", told=told)
