# SPDX-License-Identifier: Apache-2.0
"""The one hook of a process."""

from ..core import singleton_utils
from ..core.singleton_utils import del_hook, set_hook  # noqa: F401  Imported from here too.
from .keras import KerasHook
from .session import EstimatorHook, SessionHook

_CLASSES = {"keras": KerasHook, "session": SessionHook, "estimator": EstimatorHook}


def get_hook(hook_type=None, json_config_path=None, create_if_not_exists=False):
    """The hook of this process; else, where `create_if_not_exists`, one of type "keras", "session" or
    "estimator" made of the JSON configuration; else None.
    """
    return singleton_utils.get_hook(
        json_config_path=json_config_path,
        hook_class=_CLASSES.get(hook_type),
        create_if_not_exists=create_if_not_exists,
    )
