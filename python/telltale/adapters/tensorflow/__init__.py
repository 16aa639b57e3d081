# SPDX-License-Identifier: Apache-2.0
"""TensorFlow loops of the user's own, by tf.GradientTape: steps, phases and losses; gradients and weights where the
plan asks. Eager loops and loops inside tf.function; models trained by Keras' fit are the Keras adapter's.

Only methods of TensorFlow's own classes are replaced. This package imports nothing of TensorFlow: what is loaded
is taken from the module it is given and from sys.modules.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

from ... import _session
from ..._native import note, probe
from .. import xspace
from ..sharing import forget, harmless
from . import calls, compiles, graph, iterators, tape

_tensorflow: Any = None


@harmless("tensorflow.framework")
def _tell(kind: int) -> None:
    if kind != _session.TRAINER:
        return
    forget()
    facts = {"name": "tensorflow", "version": str(_tensorflow.__version__)}
    probe.event("framework", 0, "tensorflow", "", json.dumps(facts))


def install(tensorflow: ModuleType) -> None:
    """Hooks TensorFlow, once its import has ended."""
    global _tensorflow
    if probe is None:
        return
    _session.start()
    _tensorflow = tensorflow
    _session.on_wake(_tell)
    xspace.use_tensorflow(tensorflow)
    if probe.active():
        _tell(_session.TRAINER)
    for part in (graph, tape, calls, compiles, iterators):
        try:
            part.install(tensorflow)
        except Exception as error:
            note(f"tensorflow: {part.__name__} not hooked: {type(error).__name__}: {error}")
