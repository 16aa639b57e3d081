# SPDX-License-Identifier: Apache-2.0
"""Keras on JAX: the state of a step passes through the hands of its function, so variables, inputs and labels are
read there. Gradients and what layers give are known only inside the compiled function, which stays as it is: at the
steps that are due they are computed once more, from the same state and batch, by a function of their own. So the
training's results cannot change; the cost is that of one more forward and backward, at those steps.
"""

from __future__ import annotations

import math
import random
from typing import Any, Callable

import numpy

from ... import _capture
from ..._native import probe
from .. import naming
from ..sharing import EVAL, PREDICT, TRAIN, batch_size, emit, failed, harmless, leaves, unavailable
from . import values
from .layers import FORWARD, Collector
from .rate import Rate
from .steps import Accumulation, Call, close, open_without_fetch, opened, place

_jax: Any = None
_keras_src: dict[str, Any] = {}


class _Again:
    """Computes what is due inside the function of one model a second time, beside it."""

    def __init__(self, model: Any, mode: int) -> None:
        self._model = model
        self._mode = mode
        # What is computed -> the function
        self._functions: dict[frozenset[str], Callable[..., Any]] = {}
        self._broken = False

    def _function(self, wanted: frozenset[str]) -> Callable[..., Any]:
        model, mode = self._model, self._mode
        unpack = _keras_src["trainers.data_adapters.data_adapter_utils"].unpack_x_y_sample_weight

        def gradients(state: Any, data: Any) -> list[tuple[str, str, Any]]:
            place.collector = collector = Collector(mode, wanted & {"gradients"})
            model.train_step(state, data)
            return collector.found

        def forward(state: Any, data: Any) -> list[tuple[str, str, Any]]:
            place.collector = collector = Collector(mode, wanted & set(FORWARD))
            arguments = {"training": mode == TRAIN} if model._call_has_training_arg else {}
            inputs = unpack(data)[0]
            # It calls what the model is made of, but not the model.
            collector.depth = 1
            outputs = model.stateless_call(state[0], state[1], inputs, **arguments)[0]
            collector.depth = 0
            collector.layer(model, (inputs,), outputs)
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
            return {
                f"{collection}\0{name}": value
                for collection, name, value in found
                if getattr(value, "_trace", None) is trace
            }

        return _jax.jit(compute) if model.jit_compile and not model.run_eagerly else compute

    def _first(self, function: Callable[..., Any], state: Any, data: Any) -> Any:
        """The first call traces the user's code, which may draw from Python's generators."""
        python, numpys, begin = random.getstate(), numpy.random.get_state(), probe.now()
        try:
            return function(state, data)
        finally:
            random.setstate(python)
            numpy.random.set_state(numpys)
            emit("capture.compiled", 0, self._model.name, "", {"framework": "keras"})
            probe.account(begin)

    def __call__(self, state: Any, data: Any, step: int) -> None:
        wanted = self._due(step)
        if not wanted or self._broken:
            return
        reason = _why_not()
        if reason is not None:
            self._broken = True
            for collection in sorted(wanted):
                unavailable("keras", collection, reason)
            return
        try:
            function = self._functions.get(wanted)
            if function is None:
                function = self._functions[wanted] = self._function(wanted)
                found = self._first(function, state, data)
            else:
                found = function(state, data)
            for key, value in found.items():
                collection, _, name = key.partition("\0")
                array = numpy.asarray(value)
                _capture.save(collection, name, array, step=step, mode=self._mode)
        except Exception as error:
            self._broken = True
            reason = f"computing it beside the step failed: {type(error).__name__}: {error}"
            for collection in sorted(wanted):
                unavailable("keras", collection, reason)
            failed("keras.jax_again", error)

    def _due(self, step: int) -> frozenset[str]:
        """Which collections have to be computed at this step."""
        found = {name for name in FORWARD if name != "labels" and probe.wanted(name)}
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


def _why_not() -> str | None:
    if _keras_src["backend.config"].is_nnx_enabled():
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

    def _rate_of(self, state: Any) -> float:
        if self._accumulation is None or not self._accumulation.coming() or len(state) < 3:
            return math.nan
        return float(self._rate.now(state[2]))

    @harmless("keras.fetched")
    def fetched(self, call: Call, state: Any, data: Any) -> None:
        """A batch is there, and the state before its update; `state` None: not the call's first batch."""
        begin = probe.now()
        call.sizes.append(batch_size(data))
        opened(call)
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
        self._again(state, data, call.step)

    @harmless("keras.end")
    def _end(self, call: Call, rate: float, result: Any) -> None:
        if not self._warned:
            self._warned = True
            unavailable("keras", "phase.forward", "forward, backward and update are one compiled function")
        updates = self._accumulation is not None and self._accumulation.updates()
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


def install(jax: Any, keras_src: dict[str, Any]) -> None:
    global _jax, _keras_src
    _jax, _keras_src = jax, keras_src
