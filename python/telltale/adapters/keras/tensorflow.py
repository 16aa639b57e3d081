# SPDX-License-Identifier: Apache-2.0
"""Keras on TensorFlow: variables are read from the host before a step; what is only known inside the compiled
function comes out by a branch in its graph (../tensorflow/graph.py).
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Callable

from ..._native import probe
from ..hooking import stand_in
from ..sharing import PREDICT, TRAIN, batch_size, harmless, inside, unavailable
from ..tensorflow import graph, tape
from ..tensorflow.values import note_updates
from . import values
from .layers import FORWARD, Collector
from .rate import Rate
from .steps import Accumulation, Call, close, open_without_fetch, place

_IN_GRAPH = (*FORWARD, "gradients")


def _wanted(mode: int) -> frozenset[str]:
    names = _IN_GRAPH if mode == TRAIN else FORWARD
    return frozenset(name for name in names if probe.wanted(name))


class GraphCollector(Collector):
    """Puts what it gathers into the graph that is being traced; records it at once where nothing is traced."""

    def __init__(self, mode: int, wanted: frozenset[str], names: set[tuple[str, str]]) -> None:
        """`names`: (collection, name) of what the graph brings out, to which it adds."""
        super().__init__(mode, wanted)
        self._graph: Any = None
        self._names = names

    def number(self, collection: str, name: str) -> str | None:
        # A call may trace its function several times: what repeats itself in another graph is no second call.
        current = graph.current()
        if current is not self._graph:
            self._graph = current
            self._times.clear()
        return super().number(collection, name)

    def flush(self) -> None:
        found, self.found = self.found, []
        symbolic = [item for item in found if graph.is_symbolic(item[2])]
        if symbolic:
            graph.add(symbolic)
            self._names.update((collection, name) for collection, name, _ in symbolic)
        call = place.call
        if call is None or len(symbolic) == len(found) or not call.captured:
            return
        for collection, name, value in found:
            if not graph.is_symbolic(value):
                values.save(collection, name, value, call.step, call.mode)


class _Function:
    """A model's train, test or predict function with the recording around it."""

    def __init__(self, model: Any, function: Callable[..., Any], mode: int) -> None:
        self._model = model
        self._function = function
        self._mode = mode
        self._rate = Rate(lambda: model.optimizer)
        # The learning rate of the call in progress.
        self._now = math.nan
        self._accumulation = Accumulation(model.optimizer) if mode == TRAIN else None
        self._epoch = -1
        # The newest step that was recorded, and the one whose variables were: where the call only found the data used
        # up, the next one is of the same step.
        self._captured = -1
        self._weighed = -1
        # The collections that the graph brings out; None: not traced yet.
        self._traced: frozenset[str] | None = None
        # (collection, name) of what it brings out.
        self._names: set[tuple[str, str]] = set()
        self._warned = False

    def __call__(self, *args: Any) -> Any:
        if not probe.ready(0) or place.call is not None:
            return self._function(*args)
        begin = probe.now()
        again = self._traced_again()
        if again is not None:
            probe.account(begin)
            return again(*args)
        call = self._begin(args)
        if call is None:
            return self._function(*args)
        probe.account(begin)
        inside.model = True
        inside.model_trains = inside.model_trains or self._mode == TRAIN
        try:
            result = self._function(*args)
        finally:
            inside.model = False
            place.call = place.collector = None
            _close_gate()
        begin = probe.now()
        self._end(call)
        probe.account(begin)
        return result

    @harmless("keras.retrace")
    def _traced_again(self) -> Any:
        """The model's function made anew, where the plan has come to ask for what this one's graph lacks."""
        epoch = probe.plan_epoch()
        if self._traced is None or epoch == self._epoch:
            return None
        self._epoch = epoch
        if _wanted(self._mode) <= self._traced:
            return None
        # No third time for this one, should the model not make another.
        self._traced = frozenset(_IN_GRAPH)
        kind = "train" if self._mode == TRAIN else "predict" if self._mode == PREDICT else "test"
        getattr(self._model, f"make_{kind}_function")(force=True)
        made = getattr(self._model, f"{kind}_function")
        return made if callable(made) and getattr(made, "__wrapped__", None) is not self._function else None

    @harmless("keras.begin")
    def _begin(self, args: tuple[Any, ...]) -> Call | None:
        call = Call(self._model, self._mode)
        open_without_fetch(call)
        call.sizes = _sizes(args, self._mode)
        if self._accumulation is not None and self._accumulation.coming(max(len(call.sizes), 1)):
            self._now = float(self._rate.now())
        if self._traced is None:
            self._traced = _wanted(self._mode)
        # The batches of one update are one step: the first is recorded.
        if call.step != self._captured and values.due(call.step, call.mode):
            call.captured = True
            if self._due_inside(call):
                graph.gate.open(call.step, call.mode)
            if self._mode == TRAIN and call.step != self._weighed:
                self._weighed = call.step
                self._variables(call.step)
        if not self._warned:
            self._warned = True
            unavailable("keras", "phase.data_wait", "TensorFlow fetches batches inside the compiled function")
            unavailable("keras", "phase.forward", "forward, backward and update are one compiled function")
        if self._traced:
            place.collector = GraphCollector(self._mode, self._traced, self._names)
        place.call = call
        return call

    def _due_inside(self, call: Call) -> bool:
        """Whether the graph has to bring something out; before it is traced, whether it may have to."""
        if not self._names:
            return bool(self._traced)
        return any(probe.due(probe.tensor(*name), call.step, call.mode) for name in self._names)

    def _variables(self, step: int) -> None:
        trainable = self._model.trainable_variables
        values.weights(trainable, trainable, step)
        if self._model.optimizer is not None:
            state = self._model.optimizer.variables
            values.optimizer_state(state, state, step)

    @harmless("keras.end")
    def _end(self, call: Call) -> None:
        if call.captured:
            self._captured = call.step
        batches = max(len(call.sizes), 1)
        updates = self._accumulation is not None and self._accumulation.updates(batches)
        close(call, updates, self._now if updates else math.nan)


@harmless("tensorflow.gate")
def _close_gate() -> None:
    graph.gate.close()


def _sizes(args: tuple[Any, ...], mode: int) -> list[int]:
    """Samples of each batch of the coming call."""
    if mode == PREDICT:
        return [batch_size(data) for data in args[0]] if args and isinstance(args[0], list) else []
    sizes, place.sizes = place.sizes, []
    return sizes


# Iterator -> (samples of a batch, batches, samples of the last one; 0: not known), of the present epoch: to ask costs
# an operation of TensorFlow's, or is code of the user's.
_known_sizes: weakref.WeakKeyDictionary[Any, tuple[int, int, int]] = weakref.WeakKeyDictionary()


def _ask_sizes(iterator: Any) -> tuple[int, int, int]:
    adapter = iterator.data_adapter
    size = int(adapter.batch_size or 0)
    if not size or iterator.steps_per_epoch:
        return size, 0, 0
    last = adapter.partial_batch_size if adapter.has_partial_batch else size
    return size, int(adapter.num_batches or 0), int(last or size)


@harmless("keras.sizes")
def _note_sizes(iterator: Any, begin: int, end: int) -> None:
    place.sizes = []
    known = _known_sizes.get(iterator)
    if begin == 0 or known is None:
        known = _known_sizes[iterator] = _ask_sizes(iterator)
    size, count, last = known
    sizes = [size] * (end - begin + 1)
    if count:
        sizes = sizes[: max(count - begin, 1)]
        if begin + len(sizes) == count:
            sizes[-1] = last
    place.sizes = sizes


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    """TFEpochIterator.__next__: tells which batches come, and fetches none."""

    def hooked(self: Any) -> Any:
        item = original(self)
        _note_sizes(self, item[0], item[1])
        return item

    return hooked


def wrap(model: Any, function: Callable[..., Any], mode: int) -> Callable[..., Any]:
    recording = _Function(model, function, mode)

    def call(*args: Any) -> Any:
        return recording(*args)

    return call


@harmless("keras.updates")
def _note_updates(optimizer: Any, gradients: Any, variables: Any) -> None:
    if variables is None:
        variables = optimizer._trainable_variables
    if isinstance(gradients, (list, tuple)):
        note_updates(gradients, variables, optimizer.variables)


def around(eager: Any) -> Any:
    """What an optimizer's call in a loop of the user's does beside its work."""

    def call(optimizer: Any, gradients: Any, variables: Any) -> Any:
        _note_updates(optimizer, gradients, variables)
        if inside.model:
            return None
        tape.applied()
        return eager(optimizer, gradients, variables)

    return call


def install(trainer_module: Any, tensorflow: Any) -> None:
    graph.install(tensorflow)
    stand_in(trainer_module.TFEpochIterator, "__next__", _next)
