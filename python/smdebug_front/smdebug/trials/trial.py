# SPDX-License-Identifier: Apache-2.0
"""A trial: the steps, tensors, modes, workers and collections of one training.

Thread safety: one trial belongs to one thread at a time.
"""

import os
import re
import time
from bisect import bisect_left

from .._telltale.saved import Saved
from ..analysis.utils import refresh
from ..core.collection import Collection, CollectionKeys
from ..core.logger import get_logger
from ..core.modes import ModeKeys
from ..core.tensor import StepState, Tensor
from ..core.utils import flatten, match_inc
from ..exceptions import NoMoreData, SMDebugTypeError, SMDebugValueError, StepUnavailable, TensorUnavailable

# Steps that some worker has not finished, behind which the oldest count as finished.
_WAIT_WINDOW = "SMDEBUG_INCOMPLETE_STEP_WAIT_WINDOW"
_POLL_S = 0.1
_GLOBAL = (ModeKeys.GLOBAL, None)


def _number_at_end(name):
    found = re.search(r"_(\d+)$", name)
    return int(found.group(1)) if found else 0


class _Step:
    __slots__ = ("global_step", "names", "rows")

    def __init__(self):
        self.global_step = None
        self.names = set()
        # worker -> number of rows
        self.rows = {}


class Trial:
    """What smdebug.trials.create_trial gives. Each question looks first for what is new, except inside
    no_refresh().
    """

    def __init__(self, name, path, source, range_steps=None):
        begin, end = range_steps if range_steps is not None else (None, None)
        if begin is not None and end is not None and int(end) <= int(begin):
            raise SMDebugValueError(f"range_steps={range_steps!r}: the end must lie behind the begin")
        self.name = name
        self.path = path
        self.range_steps = range_steps
        self.logger = get_logger()
        self.dynamic_refresh = True
        self.loaded_all_steps = False
        self.last_complete_step = -1
        self._begin, self._end = begin or 0, end
        self._window = int(os.environ.get(_WAIT_WINDOW) or 1000)
        self._source = source
        self._collections = source.collections()
        self._tensors = {}
        # (mode, step in the mode) -> _Step, and back from the step over all modes
        self._steps = {}
        self._where = {}
        # Steps over all modes behind the last complete one
        self._open = set()
        self.refresh_data()

    # -- what the source tells --

    def add_step(self, mode, mode_step, global_step):
        self._steps.setdefault((mode, mode_step), _Step()).global_step = global_step
        self._where.setdefault(global_step, (mode, mode_step))
        if global_step > self.last_complete_step:
            self._open.add(global_step)

    def add_row(self, name, mode, mode_step, worker, make=Saved):
        step = self._steps.get((mode, mode_step))
        if step is None:
            step = self._steps[(mode, mode_step)] = _Step()
        step.names.add(name)
        step.rows[worker] = step.rows.get(worker, 0) + 1
        tensor = self._tensors.get(name)
        if tensor is None:
            tensor = self._tensors[name] = Tensor(name, self)
        return tensor.at(mode, mode_step, worker, make)

    def has_rows(self, mode, mode_step):
        return (mode, mode_step) in self._steps

    def all_written(self):
        """Whether all rows of every step are there."""
        return all(self._source.is_written(*where, step.rows) for where, step in self._steps.items())

    # -- looking for what is new --

    def refresh_data(self):
        """Takes in what is new now."""
        if self.loaded_all_steps:
            return
        self._source.poll(self)
        self._collections = self._source.collections()
        self.loaded_all_steps = self._source.ended
        self._complete()

    def maybe_refresh(self, name=None):
        """As refresh_data, unless the training has ended or refreshing is off."""
        if not self.loaded_all_steps and self.dynamic_refresh:
            self.refresh_data()

    def _complete(self):
        """Moves last_complete_step on: steps before a complete one that are not will never be."""
        known = sorted(self._open)
        last = self.last_complete_step
        if self.loaded_all_steps:
            last = known[-1] if known else last
        else:
            for number in reversed(known):
                where = self._where[number]
                if self._source.is_written(*where, self._steps[where].rows):
                    last = number
                    break
            else:
                if len(known) > self._window:
                    last = known[self._window // 2]
                    self.logger.info(
                        "smdebug (Telltale): %d steps wait for a worker: up to step %d they count as complete",
                        len(known),
                        last,
                    )
        if last != self.last_complete_step:
            self.last_complete_step = last
            self._open = {step for step in known if step > last}

    # -- steps and modes --

    def knows(self, mode, mode_step):
        """Whether a step is known and lies in the range of this trial."""
        step = self._steps.get((mode, mode_step))
        return step is not None and step.global_step is not None and self._in_range(step.global_step)

    def _in_range(self, global_step):
        return global_step >= self._begin and (self._end is None or global_step < self._end)

    def global_of(self, mode, mode_step):
        return self._steps[(mode, mode_step)].global_step

    def mode_step_of(self, mode, step):
        """(mode, step in it) of a step of a mode, or of one over all modes; None: not known."""
        where = self._where.get(step) if mode in _GLOBAL else (mode, step)
        return where if where is not None and self.knows(*where) else None

    def is_complete(self, mode, step):
        """Whether every worker has written a step, or will never."""
        where = self.mode_step_of(mode, step)
        if where is None:
            return False
        known = self._steps[where]
        return (
            self.loaded_all_steps
            or known.global_step <= self.last_complete_step
            or self._source.is_written(*where, known.rows)
        )

    def _all_steps(self, mode):
        if mode in _GLOBAL:
            return sorted(s for s in self._where if self._in_range(s))
        return sorted(s for each, s in self._steps if each == mode and self.knows(each, s))

    def steps(self, mode=ModeKeys.GLOBAL, show_incomplete_steps=False):
        """Steps at which anything was saved, ascending: of a mode, or over all modes; those that all workers
        have written, or all.
        """
        self.maybe_refresh()
        steps = self._all_steps(mode)
        return steps if show_incomplete_steps else [s for s in steps if self.is_complete(mode, s)]

    def modes(self):
        """The modes of which anything was saved, but for GLOBAL."""
        self.maybe_refresh()
        found = {mode for mode, step in self._steps if self.knows(mode, step)}
        return [mode for mode in ModeKeys if mode in found and mode is not ModeKeys.GLOBAL]

    def mode_modestep(self, global_step):
        """(mode, step in it) of a step over all modes; (None, None): it is not known."""
        if global_step not in self._where:
            self.maybe_refresh()
        return self.mode_step_of(ModeKeys.GLOBAL, global_step) or (None, None)

    def mode(self, global_step):
        """The mode of a step over all modes, or None."""
        return self.mode_modestep(global_step)[0]

    def mode_step(self, global_step):
        """The step in its mode of a step over all modes, or None."""
        return self.mode_modestep(global_step)[1]

    def global_step(self, mode, mode_step):
        """The step over all modes of a step of a mode, or None."""
        if mode in _GLOBAL:
            return mode_step
        if not self.knows(mode, mode_step):
            self.maybe_refresh()
        return self.global_of(mode, mode_step) if self.knows(mode, mode_step) else None

    def has_passed_step(self, step, mode=ModeKeys.GLOBAL):
        """AVAILABLE: every worker has written the step. UNAVAILABLE: it will never be there.
        NOT_YET_AVAILABLE: it may still come.
        """
        steps = self.steps(mode, show_incomplete_steps=True)
        place = bisect_left(steps, step)
        if place < len(steps):
            if steps[place] == step:
                complete = self.is_complete(mode, step)
                return StepState.AVAILABLE if complete else StepState.NOT_YET_AVAILABLE
            # A later step is there: this one was passed, unless that one is not finished either.
            passed = self.loaded_all_steps or any(self.is_complete(mode, later) for later in steps[place:])
            return StepState.UNAVAILABLE if passed else StepState.NOT_YET_AVAILABLE
        return StepState.UNAVAILABLE if self.loaded_all_steps else StepState.NOT_YET_AVAILABLE

    def wait_for_steps(self, required_steps, mode=ModeKeys.GLOBAL):
        """Returns once every worker has written these steps.

        Raises:
            StepUnavailable: the training has passed one of them and did not save it.
            NoMoreData: the training ended before one of them.
        """
        with refresh(self):
            for step in required_steps:
                while True:
                    state = self.has_passed_step(step, mode)
                    if state == StepState.AVAILABLE:
                        break
                    if state == StepState.UNAVAILABLE:
                        steps = self._all_steps(mode)
                        last = steps[-1] if steps else -1
                        if self.loaded_all_steps and step > last:
                            raise NoMoreData(step, mode, last)
                        raise StepUnavailable(step, mode)
                    time.sleep(_POLL_S)

    # -- tensors --

    def tensor(self, tname):
        """The tensor of that name.

        Raises:
            TensorUnavailable: none was saved so far.
        """
        if not self.has_tensor(tname):
            raise TensorUnavailable(tname)
        return self._tensors[tname]

    def has_tensor(self, tname):
        """Whether a tensor of that name was saved so far."""
        if tname not in self._tensors:
            self.maybe_refresh()
        return tname in self._tensors

    def tensor_names(
        self, show_prefixed_tensors=False, *, step=None, mode=ModeKeys.GLOBAL, regex=None, collection=None
    ):
        """Names of the tensors, sorted: of a step, of a mode, of those in whose name a pattern (or one of
        several) is found, of a collection (by name or object).

        Raises:
            ValueError: both regex and collection.
            TypeError: a collection that is none.
        """
        if regex is not None and collection is not None:
            raise SMDebugValueError("tensor_names takes regex or collection, not both")
        self.maybe_refresh()
        names = self._names_of(step, mode)
        if collection is not None:
            wanted = self._matcher(collection)
            names = [name for name in names if wanted(name)]
        elif regex is not None:
            patterns = flatten([regex] if isinstance(regex, str) else regex)
            names = [name for name in names if match_inc(name, patterns)]
        return sorted(names)

    def tensors(self, step=None, mode=ModeKeys.GLOBAL, regex=None, collection=None):
        """As tensor_names, by its older name."""
        return self.tensor_names(step=step, mode=mode, regex=regex, collection=collection)

    def _names_of(self, step, mode):
        if step is not None:
            where = self.mode_step_of(mode, step)
            return set(self._steps[where].names) if where else set()
        names = set()
        for (each, number), known in self._steps.items():
            if (mode in _GLOBAL or each == mode) and self.knows(each, number):
                names |= known.names
        return names

    def _matcher(self, collection):
        name = collection.name if isinstance(collection, Collection) else collection
        if not isinstance(name, str):
            raise SMDebugTypeError(f"collection={collection!r} must be a Collection or a name")
        known = self.collection(name)
        home = self._source.home
        return lambda tensor: known.matches(tensor) or home(tensor) == name

    def _in_order(self, step, mode, **which):
        names = self.tensor_names(step=step, mode=mode, **which)
        return [self.tensor(name).value(step, mode) for name in sorted(names, key=_number_at_end)]

    def inputs(self, step, mode=ModeKeys.GLOBAL):
        """Values of the model's inputs at a step, in order."""
        return self._in_order(step, mode, collection=CollectionKeys.INPUTS)

    def labels(self, step, mode=ModeKeys.GLOBAL):
        """Values of the labels at a step, in order."""
        return self._in_order(step, mode, regex="labels*")

    def predictions(self, step, mode=ModeKeys.GLOBAL):
        """Values of the model's predictions at a step, in order."""
        return self._in_order(step, mode, regex="predictions*")

    def reductions_of(self, name, mode, mode_step):
        """The reductions that the collections of a tensor ask for at a step, each once."""
        asked = {}
        for collection in self.collections().values():
            config = collection.reduction_config
            if config is None or not config.asked() or not collection.matches(name):
                continue
            if not self._source.is_saved(collection.name):
                continue
            config_of_mode = collection.save_config and collection.save_config.mode_save_configs[mode]
            if config_of_mode is None or config_of_mode.should_save_step(mode_step):
                asked.update(dict.fromkeys(config.asked()))
        return list(asked) or [(each, False) for each in ("min", "max", "mean", "std", "l1", "l2")]

    # -- workers and collections --

    @property
    def num_workers(self):
        return len(self._source.workers)

    def workers(self):
        """Names of the workers that save anything, sorted."""
        self.maybe_refresh()
        return list(self._source.workers)

    def collections(self):
        """The collections by name."""
        return self._collections.get_collections()

    def collection(self, coll_name):
        """The collection of that name."""
        return self._collections.get(coll_name)

    def __hash__(self):
        return hash((self.name, self.path))

    def __eq__(self, other):
        if not isinstance(other, Trial):
            return NotImplemented
        return (self.name, self.path) == (other.name, other.path)

    def __repr__(self):
        return (
            f"<{type(self).__module__}.{type(self).__name__} name={self.name} path={self.path} "
            f"steps={len(self._where)} tensors={len(self._tensors)}>"
        )


class LocalTrial(Trial):
    """A trial of a folder of this machine."""
