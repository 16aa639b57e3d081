# SPDX-License-Identifier: Apache-2.0
"""The hook for XGBoost: a callback of xgboost.train. A step is a boosting round."""

import json
import os
import re

import numpy as np
import xgboost

from .._telltale.guard import harmless
from .._telltale.recorder import RAW
from ..core.collection import DEFAULT_XGBOOST_COLLECTIONS, CollectionKeys
from ..core.hook import CHIEF_WORKER, BaseHook
from ..core.json_config import create_hook_from_json_config
from ..core.save_config import SaveConfig
from ..core.singleton_utils import set_hook
from ..exceptions import SMDebugError
from .collection import CollectionManager
from .trees import columns_of

DEFAULT_SAVE_CONFIG_INTERVAL = 10
_INCREASING_METRIC = re.compile("^[a-zA-Z0-9_]+-(auc|map)$")
_IMPORTANCES = ("weight", "gain", "cover", "total_gain", "total_cover")
_FORMATS = {
    "csv": "csv",
    "text/csv": "csv",
    "libsvm": "libsvm",
    "text/libsvm": "libsvm",
    "text/x-libsvm": "libsvm",
}


def _matrix(data):
    """A DMatrix of what a script gives as one.

    Raises:
        SMDebugError: neither a DMatrix nor (path of a local file, "csv" or "libsvm").
    """
    if data is None or isinstance(data, xgboost.DMatrix):
        return data
    if not (isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], str)):
        raise SMDebugError("train_data and validation_data must be a DMatrix or (file path, content type)")
    path, content = os.path.expanduser(data[0]), str(data[1] or "libsvm").lower()
    if not os.path.isfile(path):
        raise SMDebugError(f"no file {path}: only local files can be read")
    if content not in _FORMATS:
        raise SMDebugError(f"content type {data[1]!r}: one of {', '.join(_FORMATS)}")
    label = "&label_column=0" if _FORMATS[content] == "csv" else ""
    return xgboost.DMatrix(f"{path}?format={_FORMATS[content]}{label}")


def _array_of(values):
    """Of a list, as one text where it is of no one type or shape."""
    try:
        array = np.array(values)
    except ValueError:
        return np.array([str(values)])
    return np.array([str(values)]) if array.dtype.kind == "O" else array


class Hook(BaseHook, xgboost.callback.TrainingCallback):
    """
    hook = Hook(out_dir="out", train_data=dtrain, validation_data=dvalid, hyperparameters=params)
    xgboost.train(params, dtrain, evals=[(dvalid, "validation")], callbacks=[hook])
    """

    framework = "xgboost"
    manager_class = CollectionManager
    default_collections = DEFAULT_XGBOOST_COLLECTIONS
    default_include_collections = (CollectionKeys.METRICS,)

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
        hyperparameters=None,
        train_data=None,
        validation_data=None,
    ):
        """As BaseHook, with every 10th round where no save_config is given; reduction_config is ignored.

        Args:
            hyperparameters: dict, for the collection hyperparameters.
            train_data: DMatrix or (file path, content type), for average_shap and full_shap.
            validation_data: the same, for predictions and labels.
        """
        BaseHook.__init__(
            self,
            out_dir=out_dir,
            export_tensorboard=export_tensorboard,
            tensorboard_dir=tensorboard_dir,
            dry_run=dry_run,
            save_config=save_config or SaveConfig(save_interval=DEFAULT_SAVE_CONFIG_INTERVAL),
            include_regex=include_regex,
            include_collections=include_collections,
            save_all=save_all,
            include_workers=include_workers,
        )
        if reduction_config is not None:
            self.logger.warning("smdebug (Telltale): XGBoost's hook ignores reduction_config")
        self.hyperparameters = hyperparameters
        self.train_data = _matrix(train_data)
        self.validation_data = _matrix(validation_data)
        self._has_trees = None
        self._said = set()
        set_hook(self)

    @classmethod
    def create_from_json_file(cls, json_file_path=None):
        """As BaseHook's, with every 10th round where nothing is said."""
        defaults = {"save_interval": DEFAULT_SAVE_CONFIG_INTERVAL}
        return create_hook_from_json_config(cls, json_file_path, defaults)

    # -- what xgboost calls --

    def after_iteration(self, model, epoch, evals_log):
        """After each round. False: the training goes on."""
        self._after_round(model, epoch, evals_log)
        return False

    @harmless()
    def _after_round(self, model, epoch, evals_log):
        self._end_step()
        self.step = epoch
        if not self._open_step(epoch):
            return
        booster = model if isinstance(model, xgboost.Booster) else None
        for collection, write in (
            (CollectionKeys.HYPERPARAMETERS, self._write_hyperparameters),
            (CollectionKeys.METRICS, self._write_metrics),
            (CollectionKeys.LOSSES, self._write_losses),
            (CollectionKeys.PREDICTIONS, self._write_predictions),
            (CollectionKeys.LABELS, self._write_labels),
            (CollectionKeys.FEATURE_IMPORTANCE, self._write_feature_importance),
            (CollectionKeys.TREES, self._write_trees),
        ):
            if self._is_collection_due(collection):
                write(booster, evals_log)
        self._write_shap(booster)
        self._save_waiting()

    # -- what is saved --

    def _say_once(self, text):
        if text not in self._said:
            self._said.add(text)
            self.logger.warning("smdebug (Telltale): %s", text)

    def _write_hyperparameters(self, booster, evals_log):
        if not self.hyperparameters:
            self._say_once("the hook has no hyperparameters to save")
            return
        for name, value in self.hyperparameters.items():
            self._save(f"hyperparameters/{name}", value)

    @staticmethod
    def _metrics(evals_log):
        for data, metrics in evals_log.items():
            for metric, values in metrics.items():
                value = values[-1]
                # Cross-validation gives mean and deviation over its folds.
                yield f"{data}-{metric}", value[0] if isinstance(value, (tuple, list)) else value

    def _write_metrics(self, booster, evals_log):
        for name, value in self._metrics(evals_log):
            self._save(name, value)

    def _write_losses(self, booster, evals_log):
        if self._is_collection_due(CollectionKeys.METRICS):
            return  # They are saved already.
        for name, value in self._metrics(evals_log):
            if not _INCREASING_METRIC.match(name):
                self._save(name, value)

    def _write_predictions(self, booster, evals_log):
        if booster is None or self.validation_data is None:
            self._say_once("the hook has no validation_data to save predictions of")
            return
        self._save("predictions", booster.predict(self.validation_data))

    def _write_labels(self, booster, evals_log):
        if self.validation_data is None:
            self._say_once("the hook has no validation_data to save labels of")
            return
        self._save("labels", self.validation_data.get_label())

    def _is_of_trees(self, booster):
        if self._has_trees is None:
            name = json.loads(booster.save_config())["learner"]["gradient_booster"]["name"]
            self._has_trees = name in ("gbtree", "dart")
        return self._has_trees

    def _write_feature_importance(self, booster, evals_log):
        if booster is None or not self._is_of_trees(booster):
            self._say_once("feature importance is defined for one model of trees alone")
            return
        for kind in _IMPORTANCES:
            scores = booster.get_score(importance_type=kind)
            total = sum(scores.values())
            for feature, score in scores.items():
                self._save(f"feature_importance/{kind}/{feature}", score / total if total else 0.0)

    def _write_trees(self, booster, evals_log):
        if booster is None or not self._is_of_trees(booster):
            self._say_once("this model has no trees to save")
            return
        for name, values in columns_of(booster, self.step).items():
            self._save(f"trees/{name}", values)

    def _write_shap(self, booster):
        full = self._is_collection_due(CollectionKeys.FULL_SHAP)
        average = self._is_collection_due(CollectionKeys.AVERAGE_SHAP)
        if not full and not average:
            return
        if booster is None or self.train_data is None:
            self._say_once("the hook has no train_data to save SHAP values of")
            return
        values = booster.predict(self.train_data, pred_contribs=True)
        features = booster.feature_names or [f"f{number}" for number in range(booster.num_features())]
        means = values.mean(axis=tuple(range(values.ndim - 1)))
        for number, feature in enumerate([*features, "bias"]):
            if full:
                self._save(f"full_shap/{feature}", values[..., number])
            if average:
                self._save(f"average_shap/{feature}", means[number])

    # -- texts, which Telltale's tensors do not know: as UTF-8, a row of bytes each --

    def _save(self, name, value):
        if isinstance(value, (str, bytes)):
            value = np.array([value])
        elif isinstance(value, (list, tuple)):
            value = _array_of(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "US":
            self._save_texts(name, value)
        elif value is not None:
            super()._save(name, value)

    def _save_texts(self, name, texts):
        collections = [c for c in self._due if c.matches(name)]
        if not collections:
            return
        home = self._home_of(name, collections)
        for collection in collections:
            collection.add_tensor_name(name)
        encoded = np.char.encode(texts, "utf-8") if texts.dtype.kind == "U" else texts
        width = max(1, encoded.dtype.itemsize)
        rows = np.ascontiguousarray(encoded.astype(f"S{width}")).view(np.uint8).reshape(*texts.shape, width)
        tensor = self._recorder.tensor(f"{home}+text", name)
        if tensor:
            self._recorder.record_array(tensor, rows, RAW)

    # -- workers --

    def _worker_name(self):
        collective = getattr(xgboost, "collective", None)
        return f"worker_{collective.get_rank()}" if collective is not None else CHIEF_WORKER

    def _worker_count(self):
        collective = getattr(xgboost, "collective", None)
        return collective.get_world_size() if collective is not None else 1
