# SPDX-License-Identifier: Apache-2.0
"""SageMaker Debugger's names for TensorFlow 2 and Keras 3."""

from .. import CollectionKeys, ReductionConfig, SaveConfig, SaveConfigMode, modes
from ..core.singleton_utils import del_hook, set_hook
from ..trials import create_trial
from .collection import Collection
from .keras import KerasHook
from .session import EstimatorHook, SessionHook
from .singleton_utils import get_hook

__all__ = [
    "Collection",
    "CollectionKeys",
    "EstimatorHook",
    "KerasHook",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "SessionHook",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]
