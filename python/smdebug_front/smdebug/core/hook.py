# SPDX-License-Identifier: Apache-2.0
"""What the hooks of all frameworks share: collections, steps and modes, and what is saved when.

Steps count from 0 in each mode, and over all modes. A step that its mode's SaveConfig does not name costs a
comparison; of one that it names each tensor's collections are looked up once.

Thread safety: calls of one hook may come from any thread, but one at a time, as a training step makes them.
"""

import os
import weakref

from .._telltale import package
from .._telltale.guard import harmless, switch_off
from .._telltale.recorder import (
    HISTOGRAM,
    MORE,
    RAW,
    SHAPE,
    STATS,
    Recorder,
    pointer_folder,
    pointers,
    recording,
)
from ..exceptions import InvalidCollectionConfiguration, SMDebugRuntimeError, SMDebugTypeError
from .collection import NON_HISTOGRAM_COLLECTIONS, NON_REDUCTION_COLLECTIONS, Collection, CollectionKeys
from .collection_manager import CollectionManager
from .json_config import create_hook_from_json_config
from .logger import get_logger
from .modes import ALLOWED_MODE_NAMES, ModeKeys
from .reduction_config import ReductionConfig
from .save_config import SaveConfig
from .utils import flatten

CHIEF_WORKER = "worker_0"
# Reductions for which the statistics must hold more than the usual moments.
_MORE = {("prod", False), ("prod", True), ("min", True), ("std", True), ("variance", True)}
_UNKNOWN = object()
# Hooks to be closed as the process ends.
_open_hooks = weakref.WeakSet()
_at_end = False


def _close_all():
    for hook in list(_open_hooks):
        hook.close()


def _close_at_end(hook):
    global _at_end
    _open_hooks.add(hook)
    if not _at_end:
        _at_end = True
        # Also in forked children, whose end knows no atexit.
        package.part("_session").at_end(_close_all)


def _verified_out_dir(out_dir):
    if out_dir is None:
        raise SMDebugRuntimeError("out_dir is a required argument")
    out_dir = os.fspath(out_dir)
    folder = pointer_folder(out_dir)
    if folder is None:
        return out_dir
    if os.path.exists(os.path.join(folder, "training_job_end.ts")) or any(
        pointer.get("ended") for pointer in pointers(folder)
    ):
        raise SMDebugRuntimeError(
            f"the path {out_dir} already holds a training that has ended: name a folder that does not exist"
        )
    return out_dir if out_dir.startswith("s3://") else os.path.expanduser(out_dir)


class BaseHook:
    """A hook that is given to the training. One of a framework derives from it and calls _next_step() and
    _save(); it says of which framework it is, which collections it has, and how it reads a tensor.
    """

    framework = ""
    manager_class = CollectionManager
    # Collections that there are from the start, and those of them that are saved where nothing is said.
    default_collections = ()
    default_include_collections = ()
    # What an unpickled or copied hook sees: it does nothing.
    _live = False
    _due = ()

    def __init__(
        self,
        out_dir=None,
        export_tensorboard=False,
        tensorboard_dir=None,
        dry_run=False,
        reduction_config=None,
        save_config=None,
        include_regex=None,
        include_collections=None,
        save_all=False,
        include_workers="one",
    ):
        """
        Args:
            out_dir: folder that a trial is created from; must not hold a training that has ended. What is
                saved goes to the run of Telltale, and a file here names it.
            export_tensorboard, tensorboard_dir: either makes Telltale take histograms of the tensors whose
                collection has save_histogram; `telltale export` makes TensorBoard's files of a run.
            dry_run: nothing is saved.
            reduction_config: a ReductionConfig, for collections without one; None saves the values.
            save_config: a SaveConfig or what SaveConfig.parse takes, for collections without one.
            include_regex: patterns of names, for the collection `default`.
            include_collections: names of collections to save, besides those saved by default.
            save_all: saves every tensor.
            include_workers: "one" saves of the first worker alone, "all" of all.

        Raises:
            SMDebugRuntimeError: no out_dir, or one that holds a training that has ended.
            SMDebugTypeError, SMDebugValueError: a configuration that makes no sense.
        """
        self.out_dir = _verified_out_dir(out_dir)
        self.tensorboard_dir = tensorboard_dir or (
            os.path.join(self.out_dir, "tensorboard") if export_tensorboard else None
        )
        self.dry_run = dry_run
        self.save_config = SaveConfig.parse(save_config)
        if reduction_config is not None and not isinstance(reduction_config, ReductionConfig):
            raise SMDebugTypeError(f"reduction_config={reduction_config!r} must be a ReductionConfig")
        self.reduction_config = reduction_config or ReductionConfig(save_raw_tensor=True)
        self.include_regex = include_regex
        self.save_all = save_all
        self.save_all_workers = include_workers == "all"
        self.worker = None
        self.logger = get_logger()
        self.collection_manager = self.manager_class()
        if isinstance(include_collections, str):
            include_collections = [include_collections]
        self.include_collections = list(
            dict.fromkeys([*flatten(include_collections or ()), *self.default_include_collections])
        )
        if include_regex:
            self.collection_manager.get(CollectionKeys.DEFAULT).include(include_regex)
            self._include(CollectionKeys.DEFAULT)
        if save_all:
            self.collection_manager.get(CollectionKeys.ALL).include(".*")
            self._include(CollectionKeys.ALL)

        self.step = -1
        self.mode = ModeKeys.GLOBAL
        self.mode_steps = {ModeKeys.GLOBAL: -1}
        self.prepared_collections = False
        self._to_save = []
        self._due = ()
        # (names of the collections that are due) -> {name of a tensor -> (id, take) or None}
        self._decisions_by_due = {}
        self._decisions = {}
        self._waiting_scalars = {}
        self._waiting_tensors = {}
        self._known_names = -1
        self._writes = False
        self._closed = False
        self._recorder = None
        self._live = False
        self._start()

    def _start(self):
        if self.dry_run:
            self.logger.info("smdebug (Telltale): dry_run: nothing is saved")
            return
        try:
            if not recording():
                return
            self._recorder = Recorder(self.framework, self.out_dir)
            _close_at_end(self)
            self._live = True
        except Exception as error:
            switch_off(self, error)

    def _include(self, name):
        if name not in self.include_collections:
            self.include_collections.append(name)

    # A model that is pickled or copied takes its hooks along: the copy's do nothing.
    def __getstate__(self):
        return {}

    def __setstate__(self, state):
        pass

    def __repr__(self):
        if not self.__dict__:
            return f"<{type(self).__module__}.{type(self).__name__}: an inert copy>"
        return (
            f"<{type(self).__module__}.{type(self).__name__} out_dir={self.out_dir} step={self.step} "
            f"mode={self.mode.name} include_collections={self.include_collections} live={self._live}>"
        )

    # -- what a script calls --

    @classmethod
    def create_from_json_file(cls, json_file_path=None):
        """A hook as a JSON file configures it: the file named, else that of SMDEBUG_CONFIG_FILE_PATH, else
        SageMaker's. It becomes what get_hook() gives.

        Raises:
            FileNotFoundError: there is none.
        """
        return create_hook_from_json_config(cls, json_file_path)

    @classmethod
    def hook_from_config(cls, json_config_path=None):
        """As create_from_json_file, by its older name."""
        return cls.create_from_json_file(json_config_path)

    def get_collection(self, name, create=True):
        """The collection of that name, made where there is none and `create`."""
        return self.collection_manager.get(name, create=create)

    def get_collections(self):
        """The collections by name."""
        return self.collection_manager.get_collections()

    def add_collection(self, collection):
        """Adds a collection, in place of one of its name.

        Raises:
            SMDebugTypeError: it is none.
        """
        if not isinstance(collection, Collection):
            raise SMDebugTypeError(f"{collection!r} must be a Collection")
        self.collection_manager.add(collection)

    def set_mode(self, mode):
        """The mode of the steps that begin from here on. What is no mode is logged and ignored."""
        if not isinstance(mode, ModeKeys):
            get_logger().error(
                "smdebug (Telltale): set_mode(%r): no mode: one of %s", mode, ", ".join(ALLOWED_MODE_NAMES)
            )
            return
        self.mode = mode
        self.__dict__.setdefault("mode_steps", {}).setdefault(mode, -1)  # A copy of a hook has none.

    @harmless()
    def save_scalar(self, name, value, sm_metric=False, timestamp=None):
        """Saves a number: as the tensor "scalar/<name>" of the open step where that is one of those that are
        saved, else of the next that is (of several the last); as a scalar of Telltale's at once.

        Args:
            sm_metric: it belongs to the collection sm_metrics.
            timestamp: accepted; what is recorded has the time at which it is.
        """
        array = self._to_numpy(value)
        if array is None or array.size != 1:
            self.logger.error("smdebug (Telltale): save_scalar(%r): %r is no number", name, type(value))
            return
        name = f"scalar/{name}"
        home = "scalar"
        if sm_metric:
            home = CollectionKeys.SM_METRICS
            self.collection_manager.get(home).add_tensor_name(name)
        self._waiting_scalars[name] = (home, array)
        if self._recorder.has_step:
            self._recorder.scalar(name, float(array.reshape(()).real))

    @harmless()
    def save_tensor(self, tensor_name, tensor_value, collections_to_write=CollectionKeys.DEFAULT):
        """Saves a value under a name of its own, in the collection or collections named, at the open step
        where that is one of those that are saved, else at the next that is.
        """
        array = self._to_numpy(tensor_value)
        if array is None:
            self.logger.warning(
                "smdebug (Telltale): save_tensor(%r): no array can be made of it", tensor_name
            )
            return
        if isinstance(collections_to_write, str):
            collections_to_write = [collections_to_write]
        for name in collections_to_write:
            self.collection_manager.get(name).add_tensor_name(tensor_name)
        self._waiting_tensors[tensor_name] = (array, list(collections_to_write))
        self._save_waiting()

    @harmless()
    def record_tensor_value(self, tensor_name, tensor_value):
        """Saves a value that no module gives, a functional loss for example, as <tensor_name>_output_0."""
        self._save_outputs(tensor_name, tensor_value)

    def close(self):
        """Ends the open step; a trial of out_dir then waits for no more."""
        # A worker of a data loader that ends must not end the trial.
        if not self._live or self._recorder.is_inherited:
            return
        try:
            if self._recorder.has_step and self._writes:
                self._save_scalars()
            self._end_step()
            self._closed = True
            self._point(ended=True)
        except Exception as error:
            switch_off(self, error)

    # -- steps --

    def _prepare(self):
        """What is to be saved, looked at as late as the first step: scripts go on configuring until then."""
        self.prepared_collections = True
        self.save_config.merge_default_save_config(SaveConfig())
        everything = CollectionKeys.ALL in self.include_collections
        for name, collection in self.get_collections().items():
            if collection.save_config is None:
                collection.save_config = self.save_config
            else:
                collection.save_config.merge_default_save_config(self.save_config)
            if name in NON_REDUCTION_COLLECTIONS:
                collection.reduction_config = ReductionConfig(save_raw_tensor=True)
            elif collection.reduction_config is None:
                collection.reduction_config = self.reduction_config
            if not everything and name not in self.include_collections:
                continue
            if self._is_sound(collection):
                self._to_save.append(collection)
        self.worker = self._worker_name()
        self._writes = self.save_all_workers or self.worker == CHIEF_WORKER
        workers = self._worker_count() if self.save_all_workers else 1
        self._writes = self._writes and self._recorder.claim(self.worker, workers)
        if self._writes:
            self._point(ended=False)

    def _is_sound(self, collection):
        try:
            if collection.name not in self.default_collections and not (
                collection.include_regex or collection.tensor_names
            ):
                raise InvalidCollectionConfiguration(collection.name)
            collection.matches("")
        except Exception as error:  # Of the user's patterns too.
            self.logger.error("smdebug (Telltale): collection %s is not saved: %s", collection.name, error)
            return False
        return True

    def _next_step(self):
        """The next step of the mode begins. True: something of it is to be saved."""
        self._end_step()
        self.step += 1
        return self._open_step(self.mode_steps.get(self.mode, -1) + 1)

    def _open_step(self, mode_step):
        if not self.prepared_collections:
            self._prepare()
        elif self._writes and self._recorder.is_inherited:
            self._writes = self._recorder.claim(self.worker, 1)
        mode = self.mode
        self.mode_steps[mode] = mode_step
        self.mode_steps[ModeKeys.GLOBAL] = self.step
        if not self._writes:
            return False
        self._due = tuple(c for c in self._to_save if self._is_due(c, mode, mode_step))
        self._decisions = self._decisions_by_due.setdefault(tuple(c.name for c in self._due), {})
        if self._closed:
            self._closed = False
            self._point(ended=False)
        self._recorder.open_step(mode, mode_step, self.step)
        return bool(self._due)

    def _end_step(self):
        if self._recorder.has_step:
            if self._due:
                self._save_scalars()
            self._recorder.close_step()
            names = sum(len(c.tensor_names) for c in self.get_collections().values())
            if names != self._known_names:
                self._known_names = names
                self._point(ended=False)
        self._due = ()
        self._decisions = {}

    @staticmethod
    def _is_due(collection, mode, mode_step):
        if mode in (ModeKeys.EVAL, ModeKeys.PREDICT) and collection.name in (
            CollectionKeys.GRADIENTS,
            CollectionKeys.OPTIMIZER_VARIABLES,
        ):
            return False
        return collection.save_config.should_save_step(mode, mode_step)

    def _is_collection_due(self, name):
        return any(c.name == name for c in self._due)

    def _point(self, ended):
        saved = [collection.name for collection in self._to_save]
        self._recorder.point(self.collection_manager.to_json_dict(), saved, ended)

    # -- tensors --

    def _decide(self, name):
        """(id, what is taken) of a tensor at the steps at which the collections are due that now are; None:
        nothing.
        """
        self._decisions[name] = None
        collections = [c for c in self._due if c.matches(name)]
        if collections:
            home = self._home_of(name, collections)
            take = 0
            for collection in collections:
                collection.add_tensor_name(name)
                take |= self._take_of(collection)
            tensor = self._recorder.tensor(home, name) if take else 0
            if tensor:
                self._decisions[name] = (tensor, take)
        return self._decisions[name]

    def _take_of(self, collection):
        config = collection.reduction_config or self.reduction_config
        take = 0
        if config.save_raw_tensor:
            take |= RAW
        if config.save_shape:
            take |= SHAPE
        asked = config.asked()
        if asked:
            take |= STATS
            if _MORE.intersection(asked):
                take |= MORE
        if (
            self.tensorboard_dir
            and collection.save_histogram
            and collection.name not in NON_HISTOGRAM_COLLECTIONS
        ):
            take |= HISTOGRAM
        return take

    def _home_of(self, name, collections):
        """The one collection under which Telltale's tables have it: the most telling."""
        general = (CollectionKeys.DEFAULT, CollectionKeys.ALL)
        every = [c for c in self.get_collections().values() if c.name not in general]
        built_in = [c for c in every if c.name in self.default_collections]
        # One that was told of the tensor before one whose pattern happens to fit.
        for belongs in (Collection.has_tensor_name, Collection.matches):
            for collection in built_in:
                if belongs(collection, name):
                    return collection.name
        own = [c.name for c in collections if c.name not in general]
        return own[0] if own else collections[0].name

    def _save(self, name, value):
        """Saves a tensor of the open step where a collection that is due has it."""
        decision = self._decisions.get(name, _UNKNOWN)
        if decision is _UNKNOWN:
            decision = self._decide(name)
        if decision is not None:
            self._record(*decision, value)

    def _save_outputs(self, name, value):
        self._save(f"{name}_output_0", value)

    def _save_scalars(self):
        """Saves what save_scalar was given since the last step that was saved, at the open one."""
        waiting, self._waiting_scalars = self._waiting_scalars, {}
        for name, (home, array) in waiting.items():
            tensor = self._recorder.tensor(home, name)
            if tensor:
                self._recorder.record_array(tensor, array, RAW)

    def _save_waiting(self):
        """Saves what save_tensor was given, at a step at which anything is."""
        if not self._waiting_tensors or not self._due:
            return
        waiting, self._waiting_tensors = self._waiting_tensors, {}
        for name, (array, collections) in waiting.items():
            take = 0
            for collection in collections:
                take |= self._take_of(self.get_collection(collection))
            tensor = self._recorder.tensor(collections[0], name)
            if tensor and take:
                self._recorder.record_array(tensor, array, take)

    # -- what a framework does its own way --

    def _record(self, tensor, take, value):
        """Hands over a value of the framework's."""
        array = self._to_numpy(value)
        if array is None:
            self._recorder.skipped("type")
        else:
            self._recorder.record_array(tensor, array, take)

    def _to_numpy(self, value):
        """A numpy array of numbers or booleans, or None where there is none to be made."""
        import numpy as np

        try:
            array = np.array([value]) if np.isscalar(value) else np.asarray(value)
        except Exception:
            return None
        return array if array.dtype.kind in "biufc" else None

    def _worker_name(self):
        return CHIEF_WORKER

    def _worker_count(self):
        return 1


class CallbackHook(BaseHook):
    """A hook whose framework gives inputs and outputs of modules."""

    INPUT_TENSOR_SUFFIX = "_input_"
    OUTPUT_TENSOR_SUFFIX = "_output_"
    GRADIENT_PREFIX = "gradient/"
    SCALAR_PREFIX = "scalar/"

    def __init__(self, *args, **kwargs):
        # Name of a module with suffix -> next number in this step, for modules that run more than once.
        self._next_number = {}
        super().__init__(*args, **kwargs)

    def _next_step(self):
        self._next_number.clear()
        return super()._next_step()

    def _save_nested(self, prefix, value, number):
        if self._is_tensor(value):
            self._save(f"{prefix}{number}", value)
            return number + 1
        if isinstance(value, (tuple, list)):
            for part in value:
                number = self._save_nested(prefix, part, number)
        elif isinstance(value, dict):
            for part in value.values():
                number = self._save_nested(prefix, part, number)
        return number

    def _save_numbered(self, prefix, value):
        self._next_number[prefix] = self._save_nested(prefix, value, self._next_number.get(prefix, 0))

    def _save_inputs(self, name, value):
        self._save_numbered(name + self.INPUT_TENSOR_SUFFIX, value)

    def _save_outputs(self, name, value):
        self._save_numbered(name + self.OUTPUT_TENSOR_SUFFIX, value)

    def _is_tensor(self, value):
        raise NotImplementedError
