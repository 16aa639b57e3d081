# SPDX-License-Identifier: Apache-2.0
"""One tensor of a trial: the steps at which it was saved, its values, its reductions."""

import bisect
from enum import Enum

from ..exceptions import (
    InvalidWorker,
    NoMoreData,
    ShapeUnavailableForStep,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailableForStep,
)
from .modes import ModeKeys
from .reductions import check_name, get_numpy_reduction


class StepState(Enum):
    """What is known of a step."""

    UNAVAILABLE = 0
    AVAILABLE = 1
    NOT_YET_AVAILABLE = 2


class Tensor:
    """A tensor by its name. Steps are those of `mode`; of GLOBAL they count over all modes."""

    def __init__(self, name, trial):
        self.name = name
        self.original_name = None
        self.trial = trial
        # mode -> step in the mode -> worker -> what was saved (Saved)
        self._saved = {}

    # -- what the trial tells it --

    def at(self, mode, mode_step, worker, make):
        """What was saved at a step by a worker, made by `make()` where there is nothing yet."""
        workers = self._saved.setdefault(mode, {}).setdefault(mode_step, {})
        saved = workers.get(worker)
        if saved is None:
            saved = workers[worker] = make()
        return saved

    def has_step(self, mode, mode_step):
        return mode_step in self._saved.get(mode, ())

    # -- steps --

    def steps(self, mode=ModeKeys.GLOBAL, show_incomplete_steps=False):
        """Steps at which it was saved, ascending; those that all workers have written, or all."""
        self.trial.maybe_refresh()
        return [
            step
            for step in self._all_steps(mode)
            if show_incomplete_steps or self.trial.is_complete(mode, step)
        ]

    def _all_steps(self, mode):
        if mode not in (ModeKeys.GLOBAL, None):
            steps = [s for s in self._saved.get(mode, ()) if self.trial.knows(mode, s)]
        else:
            steps = [
                self.trial.global_of(each, s)
                for each, saved in self._saved.items()
                for s in saved
                if self.trial.knows(each, s)
            ]
        return sorted(steps)

    def prev_steps(self, step, n=None, mode=ModeKeys.GLOBAL):
        """The last `n` (all of None) steps up to `step`, itself included, at which it was saved."""
        steps = self.steps(mode=mode)
        steps = steps[: bisect.bisect_right(steps, step)]
        return steps[-n:] if n else steps

    def workers(self, step_num, mode=ModeKeys.GLOBAL):
        """The workers that saved it at a step.

        Raises:
            TensorUnavailableForStep: none did.
        """
        workers = self._workers_at(step_num, mode)
        if not workers:
            self.trial.maybe_refresh()
            workers = self._workers_at(step_num, mode)
        if not workers:
            raise TensorUnavailableForStep(self.name, step_num, mode)
        return sorted(workers)

    def _workers_at(self, step_num, mode):
        where = self.trial.mode_step_of(mode, step_num)
        return self._saved.get(where[0], {}).get(where[1]) if where else None

    def _at(self, step_num, mode, worker):
        """What was saved at a step.

        Raises:
            StepUnavailable, StepNotYetAvailable, NoMoreData, TensorUnavailableForStep, InvalidWorker.
        """
        workers = self._workers_at(step_num, mode)
        if not workers:
            self.trial.maybe_refresh()
            workers = self._workers_at(step_num, mode)
        if not workers:
            self._raise_missing(step_num, mode)
        if worker is None:
            return workers[min(workers)]
        if worker not in workers:
            raise InvalidWorker(worker)
        return workers[worker]

    def _raise_missing(self, step_num, mode):
        state = self.trial.has_passed_step(step_num, mode)
        if state == StepState.AVAILABLE:
            raise TensorUnavailableForStep(self.name, step_num, mode)
        steps = self.trial.steps(mode, show_incomplete_steps=True)
        if self.trial.loaded_all_steps and (not steps or step_num > steps[-1]):
            raise NoMoreData(step_num, mode, steps[-1] if steps else -1)
        if state == StepState.UNAVAILABLE:
            raise StepUnavailable(step_num, mode)
        raise StepNotYetAvailable(step_num, mode)

    # -- values --

    def value(self, step_num, mode=ModeKeys.GLOBAL, worker=None):
        """The values at a step, as a numpy array of the tensor's shape and type (bfloat16 and float8, which
        numpy does not have, as float32); of the first worker, or of the one named.

        Raises:
            TensorUnavailableForStep: they were not saved; perhaps its reductions were.
            StepUnavailable, StepNotYetAvailable, NoMoreData: nothing was saved at the step.
            InvalidWorker: that worker saved nothing of it at the step.
        """
        saved = self._at(step_num, mode, worker)
        value = saved.value()
        if value is None:
            raise TensorUnavailableForStep(self.name, step_num, mode, saved.has_statistics)
        return value

    def values(self, mode=ModeKeys.GLOBAL, worker=None):
        """{step: value} of all steps of the mode."""
        return {step: self.value(step, mode, worker) for step in self.steps(mode)}

    def shape(self, step_num, mode=ModeKeys.GLOBAL, worker=None):
        """The shape at a step, a tuple.

        Raises:
            ShapeUnavailableForStep: neither shape nor values were saved.
        """
        shape = self._at(step_num, mode, worker).shape()
        if shape is None:
            raise ShapeUnavailableForStep(self.name, step_num, mode)
        return shape

    def shapes(self, mode=ModeKeys.GLOBAL, worker=None):
        """{step: shape} of all steps of the mode."""
        return {step: self.shape(step, mode, worker) for step in self.steps(mode)}

    def reduction_value(self, step_num, reduction_name, mode=ModeKeys.GLOBAL, worker=None, abs=False):
        """A reduction at a step, of the absolute values with `abs`: the one that was saved, else computed of
        the values.

        Raises:
            SMDebugValueError: no reduction is called so.
            TensorUnavailableForStep: neither was saved.
        """
        check_name(reduction_name)
        saved = self._at(step_num, mode, worker)
        value = saved.reduction(reduction_name, abs)
        if value is None:
            data = saved.value()
            if data is None:
                raise TensorUnavailableForStep(self.name, step_num, mode, saved.has_statistics)
            value = get_numpy_reduction(reduction_name, data, abs)
        return value

    def reduction_values(self, step_num, mode=ModeKeys.GLOBAL, worker=None):
        """{(name, of absolute values): value} of the reductions that were saved at a step."""
        saved = self._at(step_num, mode, worker)
        if not saved.has_statistics:
            return {}
        found = {}
        for name, absolute in self.trial.reductions_of(self.name, *self.trial.mode_step_of(mode, step_num)):
            value = saved.reduction(name, absolute)
            if value is not None:
                found[(name, absolute)] = value
        return found

    def __repr__(self):
        return f"<smdebug tensor {self.name}>"
