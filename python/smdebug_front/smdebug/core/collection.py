# SPDX-License-Identifier: Apache-2.0
"""A named set of tensors and what is saved of them."""

import json

from ..exceptions import SMDebugTypeError, SMDebugValueError
from .reduction_config import ReductionConfig
from .save_config import SaveConfig, SaveConfigMode
from .utils import match_inc


class CollectionKeys:
    """Names of the built-in collections."""

    DEFAULT = "default"
    ALL = "all"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    LOSSES = "losses"
    BIASES = "biases"
    LAYERS = "layers"
    SM_METRICS = "sm_metrics"
    OPTIMIZER_VARIABLES = "optimizer_variables"
    TENSORFLOW_SUMMARIES = "tensorflow_summaries"
    METRICS = "metrics"
    HYPERPARAMETERS = "hyperparameters"
    PREDICTIONS = "predictions"
    LABELS = "labels"
    FEATURE_IMPORTANCE = "feature_importance"
    AVERAGE_SHAP = "average_shap"
    FULL_SHAP = "full_shap"
    TREES = "trees"


# Saved as they are: no reduction, no histogram.
SCALAR_COLLECTIONS = {
    CollectionKeys.LOSSES,
    CollectionKeys.METRICS,
    CollectionKeys.FEATURE_IMPORTANCE,
    CollectionKeys.AVERAGE_SHAP,
    CollectionKeys.SM_METRICS,
}
NON_REDUCTION_COLLECTIONS = SCALAR_COLLECTIONS | {CollectionKeys.TENSORFLOW_SUMMARIES}
NON_HISTOGRAM_COLLECTIONS = NON_REDUCTION_COLLECTIONS

DEFAULT_PYTORCH_COLLECTIONS = [
    CollectionKeys.ALL,
    CollectionKeys.DEFAULT,
    CollectionKeys.WEIGHTS,
    CollectionKeys.BIASES,
    CollectionKeys.GRADIENTS,
    CollectionKeys.LOSSES,
]
DEFAULT_TF_COLLECTIONS = [
    *DEFAULT_PYTORCH_COLLECTIONS,
    CollectionKeys.METRICS,
    CollectionKeys.INPUTS,
    CollectionKeys.OUTPUTS,
    CollectionKeys.LAYERS,
    CollectionKeys.SM_METRICS,
    CollectionKeys.OPTIMIZER_VARIABLES,
]
DEFAULT_XGBOOST_COLLECTIONS = [
    CollectionKeys.ALL,
    CollectionKeys.DEFAULT,
    CollectionKeys.HYPERPARAMETERS,
    CollectionKeys.METRICS,
    CollectionKeys.LOSSES,
    CollectionKeys.PREDICTIONS,
    CollectionKeys.LABELS,
    CollectionKeys.FEATURE_IMPORTANCE,
    CollectionKeys.AVERAGE_SHAP,
    CollectionKeys.FULL_SHAP,
    CollectionKeys.TREES,
]


class Collection:
    """A tensor belongs to it by its name: one of `tensor_names`, or one in which a pattern of `include_regex`
    is found. `save_config` and `reduction_config` of None are the hook's.
    """

    def __init__(
        self,
        name,
        include_regex=None,
        tensor_names=None,
        reduction_config=None,
        save_config=None,
        save_histogram=True,
    ):
        self.name = name
        self.include_regex = []
        if include_regex:
            self.include(include_regex)
        self.tensor_names = tensor_names
        self.reduction_config = reduction_config
        self.save_config = save_config
        self.save_histogram = save_histogram

    @property
    def tensor_names(self):
        return self._tensor_names

    @tensor_names.setter
    def tensor_names(self, tensor_names):
        if tensor_names is None:
            tensor_names = ()
        elif not isinstance(tensor_names, (list, set, tuple)):
            raise SMDebugTypeError("tensor_names must be a list or a set")
        self._tensor_names = set(tensor_names)

    def include(self, t):
        """Adds a pattern, or a list of patterns.

        Raises:
            SMDebugTypeError: something else.
        """
        if isinstance(t, (list, tuple)):
            for pattern in t:
                self.include(pattern)
        elif isinstance(t, str):
            self.include_regex.append(t)
        else:
            raise SMDebugTypeError("include() takes a regular expression or a list of them")

    @property
    def reduction_config(self):
        return self._reduction_config

    @reduction_config.setter
    def reduction_config(self, reduction_config):
        if reduction_config is not None and not isinstance(reduction_config, ReductionConfig):
            raise SMDebugTypeError(f"reduction_config={reduction_config!r} must be a ReductionConfig")
        self._reduction_config = reduction_config

    @property
    def save_config(self):
        return self._save_config

    @save_config.setter
    def save_config(self, save_config):
        if save_config is None or isinstance(save_config, SaveConfig):
            self._save_config = save_config
        elif isinstance(save_config, (dict, SaveConfigMode)):
            self._save_config = SaveConfig.parse(save_config)
        else:
            raise SMDebugTypeError(f"save_config={save_config!r} must be a SaveConfig or a dict by mode")

    def has_tensor_name(self, tname):
        return tname in self._tensor_names

    def add_tensor_name(self, tname):
        self._tensor_names.add(tname)

    def remove_tensor_name(self, tname):
        self._tensor_names.discard(tname)

    def matches(self, tname):
        """Whether the tensor of this name belongs to it."""
        return tname in self._tensor_names or match_inc(tname, self.include_regex)

    def to_json_dict(self):
        return {
            "name": self.name,
            "include_regex": list(self.include_regex),
            "tensor_names": sorted(self._tensor_names),
            "reduction_config": self.reduction_config.to_json_dict() if self.reduction_config else None,
            "save_config": self.save_config.to_json_dict() if self.save_config else None,
            "save_histogram": self.save_histogram,
        }

    def to_json(self):
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(cls, params):
        if not isinstance(params, dict):
            raise SMDebugValueError(f"{params!r} must be a dict")
        return cls(
            params.get("name"),
            include_regex=params.get("include_regex") or None,
            tensor_names=params.get("tensor_names") or None,
            reduction_config=ReductionConfig.from_dict(params.get("reduction_config")),
            save_config=SaveConfig.from_dict(params.get("save_config")),
            save_histogram=params.get("save_histogram", True),
        )

    @classmethod
    def from_json(cls, json_str):
        return cls.from_dict(json.loads(json_str))

    def __eq__(self, other):
        if not isinstance(other, Collection):
            return NotImplemented
        return self.to_json_dict() == other.to_json_dict()

    def __hash__(self):
        return hash(self.name)

    def __str__(self):
        return str(self.to_json_dict())

    def __repr__(self):
        return f"<class Collection: name={self.name}>"
