# SPDX-License-Identifier: Apache-2.0
"""The one hook of a process."""

from ..core import singleton_utils
from ..core.singleton_utils import del_hook, set_hook  # noqa: F401  Imported from here too.
from .hook import Hook


def get_hook(json_config_path=None, create_if_not_exists=True):
    """The hook of this process, else one made of the JSON configuration, else None."""
    return singleton_utils.get_hook(
        json_config_path=json_config_path, hook_class=Hook, create_if_not_exists=create_if_not_exists
    )
