# SPDX-License-Identifier: Apache-2.0
"""Keras on JAX: the state of a step passes through the hands of its function, so variables, inputs and labels are
read there. Gradients and what layers give are known only inside the compiled function, which stays as it is: at the
steps that are due they are computed once more, from the same state and batch, by a function of their own. So the
training's results cannot change; the cost is that of one more forward and backward, at those steps. Where nothing is
compiled (run_eagerly, jit_compile=False) the step's own pass is recorded: to run the user's code twice might change
what it keeps outside of the state.

What is computed once more is held all at once until it is recorded. Where that would be too much it is computed in
parts, each by a function of its own, and what does not fit into so many is left out: counted, and said.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from typing import Any, Callable

import numpy

from ..._native import probe
from .. import naming, xspace
from ..hooking import stand_in
from ..sharing import EVAL, PREDICT, TRAIN, batch_size, emit, failed, harmless, leaves, unavailable
from . import layers, values
from .layers import FORWARD, Collector
from .rate import Rate
from .steps import Accumulation, Call, close, open_without_fetch, opened, place

_jax: Any = None
_keras_src: dict[str, Any] = {}
# Collections, and the keys of what is computed of them. A key is the collection and the name, with NUL between.
_Part = tuple[frozenset[str], frozenset[str]]
# What is held at once of what was computed. A training's memory may grow by 64 MiB, of which the channel and samples for
# histograms leave 20; a pass needs the batch once more, room for itself and its code, and the allocator keeps some of it.
_HELD_BYTES = 8 << 20
# Functions of one model and mode that compute a part: each costs a compilation, and a pass at the steps that are due.
_MAX_PARTS = 4
# Shapes of batches of which the arrays are remembered.
_MAX_SHAPES = 64
# Names of what was left out that are said.
_MAX_SAID = 5


class _AtOnce(Collector):
    """Records what the step's own pass computes, where nothing is compiled."""

    def __init__(self, mode: int, wanted: frozenset[str], step: int) -> None:
        super().__init__(mode, wanted)
        self._step = step

    def flush(self) -> None:
        found, self.found = self.found, []
        for collection, name, value in found:
            array = _concrete(value)
            if array is None:
                probe.count_skipped("keras.traced", 1)
            else:
                values.save(collection, name, array, self._step, self.mode)


def _concrete(value: Any) -> Any:
    """The array that stands behind a derivative's tracer; None: there is none (a loop's body, a checkpoint's)."""
    for _ in range(8):
        if value is None or not isinstance(value, _jax.core.Tracer):
            return value
        value = getattr(value, "primal", None)
    return None


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """To trace the user's code is to run it, and it may draw from Python's generators: they are put back."""
    python, numpys = random.getstate(), numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(numpys)


class _Again:
    """Computes what is due inside the function of one model a second time, beside it."""

    def __init__(self, model: Any, mode: int) -> None:
        self._model = model
        self._mode = mode
        # (collections, the keys of a part; None: all that is found of them) -> the function
        self._functions: dict[tuple[frozenset[str], frozenset[str] | None], Callable[..., Any]] = {}
        self._compiled: set[tuple[frozenset[str], frozenset[str] | None]] = set()
        self._known_parts: set[_Part] = set()
        # (collections, shapes of the batch) -> key of each array that is found -> its bytes
        self._sizes: dict[Any, dict[str, int]] = {}
        # Collections that cannot be had.
        self._broken: frozenset[str] = frozenset()
        # Collections of which it was said that something is left out.
        self._said: set[str] = set()
        # Collection -> the names that were found in it
        self._names: dict[str, list[str]] = {}

    def _function(self, wanted: frozenset[str], keys: frozenset[str] | None) -> Callable[..., Any]:
        known = self._functions.get((wanted, keys))
        if known is not None:
            return known
        model, mode = self._model, self._mode
        unpack = _keras_src["trainers.data_adapters.data_adapter_utils"].unpack_x_y_sample_weight

        def gradients(state: Any, data: Any) -> list[tuple[str, str, Any]]:
            place.collector = collector = Collector(mode, wanted & {"gradients"})
            model.train_step(state, data)
            return collector.found

        def forward(state: Any, data: Any) -> list[tuple[str, str, Any]]:
            place.collector = collector = Collector(mode, wanted & set(FORWARD))
            arguments = {"training": mode == TRAIN} if model._call_has_training_arg else {}
            model.stateless_call(state[0], state[1], unpack(data)[0], **arguments)
            return collector.found

        def compute(state: Any, data: Any) -> dict[str, Any]:
            found = []
            try:
                if "gradients" in wanted:
                    found += gradients(state, data)
                if not wanted.isdisjoint(FORWARD):
                    found += forward(state, data)
            finally:
                place.collector = None
            # What a loop inside a layer (a scan) makes means nothing outside of it.
            trace = getattr(_jax.tree_util.tree_leaves(state)[0], "_trace", None)
            by_key = {f"{collection}\0{name}": value for collection, name, value in found}
            return {
                key: value
                for key, value in by_key.items()
                if getattr(value, "_trace", None) is trace and (keys is None or key in keys)
            }

        function = self._functions[wanted, keys] = _jax.jit(compute)
        return function

    def __call__(self, state: Any, data: Any, step: int) -> None:
        wanted = self.due(step) - self._broken
        if not wanted:
            return
        reason = _why_not()
        if reason is not None:
            self._give_up(wanted, reason)
            return
        try:
            for collections, keys in self._parts(wanted, state, data, step):
                self._record(collections, keys, state, data, step)
        except Exception as error:
            # A step of the user's own may not call its model as ours does: then the gradients can be had alone.
            lost = wanted - {"gradients"} or wanted
            self._give_up(lost, f"computing it beside the step failed: {type(error).__name__}: {error}")
            failed("keras.jax_again", error)

    def _record(
        self, collections: frozenset[str], keys: frozenset[str] | None, state: Any, data: Any, step: int
    ) -> None:
        function = self._function(collections, keys)
        if (collections, keys) not in self._compiled:
            self._compiled.add((collections, keys))
            emit("capture.compiled", 0, self._model.name, "", {"framework": "keras"})
        # A batch of another shape is traced anew.
        with _generators_kept():
            found: dict[str, Any] = function(state, data)
        for key, value in found.items():
            collection, _, name = key.partition("\0")
            values.save(collection, name, value, step, self._mode)

    def _sizes_of(self, wanted: frozenset[str], state: Any, data: Any) -> dict[str, int]:
        """Key -> bytes of what would be computed for this batch; computes nothing."""
        leaves_of_batch = _jax.tree_util.tree_leaves(data)
        shapes = tuple(
            (getattr(leaf, "shape", None), str(getattr(leaf, "dtype", ""))) for leaf in leaves_of_batch
        )
        sizes = self._sizes.get((wanted, shapes))
        if sizes is None:
            with _generators_kept():
                found = _jax.eval_shape(self._function(wanted, None), state, data)
            sizes = {key: math.prod(value.shape) * _item_bytes(value.dtype) for key, value in found.items()}
            if len(self._sizes) >= _MAX_SHAPES:
                self._sizes.clear()
            self._sizes[wanted, shapes] = sizes
        return sizes

    def _parts(
        self, wanted: frozenset[str], state: Any, data: Any, step: int
    ) -> list[tuple[frozenset[str], frozenset[str] | None]]:
        """What to compute one after the other: collections, and their keys; None for all of them."""
        sizes = self._sizes_of(wanted, state, data)
        names: dict[str, list[str]] = {collection: [] for collection in wanted}
        due = set()
        for key in sizes:
            collection, _, name = key.partition("\0")
            names[collection].append(name)
            if probe.due(probe.tensor(collection, name), step, self._mode):
                due.add(key)
        self._names.update(names)
        if not due:
            return []
        if sum(sizes.values()) <= _HELD_BYTES:
            return [(wanted, None)]
        parts: list[tuple[frozenset[str], frozenset[str] | None]] = []
        left_out = set(due)
        for part in _divided(sizes):
            if not due.isdisjoint(part[1]) and self._has_room_for(part):
                parts.append(part)
                left_out -= part[1]
        if left_out:
            self._leave_out([key for key in sizes if key in left_out])
        return parts

    def _has_room_for(self, part: _Part) -> bool:
        """Whether there is a function for a part, or may be one from here on."""
        if part not in self._known_parts:
            if len(self._known_parts) >= _MAX_PARTS:
                return False
            self._known_parts.add(part)
        return True

    def _leave_out(self, keys: list[str]) -> None:
        probe.count_skipped("keras.jax_memory", len(keys))
        for collection in sorted({key.partition("\0")[0] for key in keys} - self._said):
            self._said.add(collection)
            names = [key.partition("\0")[2] for key in keys if key.startswith(collection + "\0")]
            more = f" and {len(names) - _MAX_SAID} more" if len(names) > _MAX_SAID else ""
            reason = (
                f"{', '.join(names[:_MAX_SAID])}{more}: what is computed beside the step is held in memory until it is "
                f"recorded, so that is done of at most {_MAX_PARTS} parts of {_HELD_BYTES >> 20} MiB"
            )
            unavailable("keras", collection, reason)

    def _give_up(self, collections: frozenset[str], reason: str) -> None:
        self._broken |= collections
        for collection in sorted(collections):
            unavailable("keras", collection, reason)

    def due(self, step: int) -> frozenset[str]:
        """Which collections are known only inside the function and are due at this step."""
        found = {
            collection
            for collection in FORWARD
            if collection != "labels" and probe.wanted(collection) and self._any_due(collection, step)
        }
        if self._mode != EVAL:
            # In training they are outputs, and predict() gives them back.
            found.discard("predictions")
        if self._mode == TRAIN:
            if probe.wanted("gradients") and any(
                probe.due(probe.tensor("gradients", naming.of_gradient(variable)), step, TRAIN)
                for variable in self._model.trainable_variables
            ):
                found.add("gradients")
        return frozenset(found)

    def _any_due(self, collection: str, step: int) -> bool:
        """Whether one of the collection is due; until its names are known, whether one may be."""
        names = self._names.get(collection)
        if names is None:
            return True
        return any(probe.due(probe.tensor(collection, name), step, self._mode) for name in names)


def _item_bytes(dtype: Any) -> int:
    return int(getattr(dtype, "itemsize", 8))


def _divided(sizes: dict[str, int]) -> list[_Part]:
    """Keys in parts that may be held at once, gradients first: with them comes a backward pass."""
    divided: list[_Part] = []
    for of_gradients in (True, False):
        parts: list[list[str]] = []
        held: list[int] = []
        for key, size in sizes.items():
            if key.startswith("gradients\0") is not of_gradients or size > _HELD_BYTES:
                continue
            fits = (at for at, bytes_of_part in enumerate(held) if bytes_of_part + size <= _HELD_BYTES)
            at = next(fits, len(parts))
            if at == len(parts):
                parts.append([])
                held.append(0)
            parts[at].append(key)
            held[at] += size
        divided += [(frozenset(key.partition("\0")[0] for key in part), frozenset(part)) for part in parts]
    return divided


def _why_not() -> str | None:
    if getattr(_keras_src["backend.config"], "is_nnx_enabled", bool)():
        return "Keras runs with flax.nnx, whose state is not in the step's arguments"
    if _jax.process_count() > 1:
        return "several processes compute one step, and all would have to compute it again at once"
    return None


class _Timed:
    """Iterates over a call's batches as the one it stands for; the wait for each is told."""

    def __init__(self, iterator: Any, function: _Function, call: Call, state: Any) -> None:
        self._iterator = iterator
        self._function = function
        self._call = call
        self._state = state

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        fetched = _begin_fetch()
        try:
            data = next(self._iterator)
        except BaseException as error:
            if fetched:
                _end_fetch(-1 if isinstance(error, StopIteration) else 0)
            raise
        if fetched:
            _end_fetch(0)
            self._function.fetched(self._call, self._state, data)
            self._state = None
        return data


@harmless("keras.fetch", False)
def _begin_fetch() -> bool:
    probe.fetch_begin()
    return True


@harmless("keras.fetch")
def _end_fetch(size: int) -> None:
    probe.fetch_end(size)


class _Function:
    """A model's train, test or predict function with the recording around it."""

    def __init__(self, model: Any, function: Callable[..., Any], mode: int) -> None:
        self._model = model
        self._function = function
        self._mode = mode
        self._rate = Rate(lambda: model.optimizer)
        self._accumulation = Accumulation(model.optimizer) if mode == TRAIN else None
        self._again = _Again(model, mode)
        # As Keras decides when it makes the function.
        self._compiled = bool(model.jit_compile and not model.run_eagerly)
        self._warned = False
        self._captured = -1

    def __call__(self, state: Any, iterator: Any) -> Any:
        if not probe.ready(0) or place.call is not None:
            return self._function(state, iterator)
        call = Call(self._model, self._mode)
        place.call = call
        rate = self._rate_of(state)
        try:
            if hasattr(iterator, "__next__"):
                iterator = _Timed(iterator, self, call, state)
            else:
                self._given(call, state, iterator)
            result = self._function(state, iterator)
        finally:
            place.call = place.collector = None
        begin = probe.now()
        self._end(call, rate, result)
        probe.account(begin)
        return result

    @harmless("keras.given")
    def _given(self, call: Call, state: Any, batches: Any) -> None:
        """Before Keras 3.6 the function is given its batches."""
        open_without_fetch(call)
        for number, data in enumerate(batches):
            self.fetched(call, state if number == 0 else None, data)

    @harmless("keras.learning_rate", math.nan)
    def _rate_of(self, state: Any) -> float:
        batches = self._model.steps_per_execution
        if self._accumulation is None or not self._accumulation.coming(batches) or len(state) < 3:
            return math.nan
        return float(self._rate.now(state[2]))

    @harmless("keras.fetched")
    def fetched(self, call: Call, state: Any, data: Any) -> None:
        """A batch is there, and the state before its update; `state` None: not the call's first batch."""
        begin = probe.now()
        call.sizes.append(batch_size(data))
        opened(call)
        place.collector = None
        # The batches of one update are one step: the first is recorded.
        if state is not None and call.step != self._captured and values.due(call.step, call.mode):
            self._captured = call.step
            call.captured = True
            self._capture(call, state, data)
        probe.account(begin)

    def _capture(self, call: Call, state: Any, data: Any) -> None:
        if self._mode == TRAIN:
            values.weights(self._model.trainable_variables, state[0], call.step)
            if self._model.optimizer is not None and len(state) > 2:
                values.optimizer_state(self._model.optimizer.variables, state[2], call.step)
        if self._mode in (TRAIN, EVAL):
            values.labels(data, call.step, call.mode)
        if self._compiled:
            self._again(state, data, call.step)
            return
        wanted = self._again.due(call.step)
        if wanted:
            place.collector = _AtOnce(call.mode, wanted, call.step)

    @harmless("keras.end")
    def _end(self, call: Call, rate: float, result: Any) -> None:
        if not self._warned:
            self._warned = True
            unavailable("keras", "phase.forward", "forward, backward and update are one compiled function")
        updates = self._accumulation is not None and self._accumulation.updates(max(len(call.sizes), 1))
        close(call, updates, rate if updates else math.nan)
        if self._mode == PREDICT and call.captured and probe.wanted("predictions"):
            name = naming.of_layer(self._model)
            for suffix, value in leaves(result[0]):
                values.save("predictions", f"{name}.output{suffix}", value, call.step, PREDICT)


def wrap(model: Any, function: Callable[..., Any], mode: int) -> Callable[..., Any]:
    recording = _Function(model, function, mode)

    def call(state: Any, iterator: Any) -> Any:
        return recording(state, iterator)

    return call


def _stateless_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Layer.stateless_call, by which a step calls its model: a root's call, though not by __call__."""

    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        collector = place.collector
        if collector is None or not collector.layers:
            return original(self, *args, **kwargs)
        collector.depth += 1
        try:
            result = original(self, *args, **kwargs)
        finally:
            collector.depth -= 1
        # In front of what the model is given there is its state; its outputs are the first of what comes back.
        layers.called(collector, self, args[2:], result[0])
        return result

    return hooked


def install(jax: Any, keras_src: dict[str, Any]) -> None:
    global _jax, _keras_src
    _jax, _keras_src = jax, keras_src
    xspace.use_jax()
    stand_in(keras_src["layers.layer"].Layer, "stateless_call", _stateless_call)
