# SPDX-License-Identifier: Apache-2.0
"""SageMaker Debugger's names for XGBoost; any version from 1.3 on."""

from .. import CollectionKeys, ReductionConfig, SaveConfig, SaveConfigMode, modes
from ..core.collection import Collection
from ..core.singleton_utils import del_hook, set_hook
from ..trials import create_trial
from .hook import Hook
from .singleton_utils import get_hook

__all__ = [
    "Collection",
    "CollectionKeys",
    "Hook",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]
