# SPDX-License-Identifier: Apache-2.0
"""The one hook of a process that get_hook() gives."""

import os

from ..exceptions import SMDebugTypeError, SMDebugValueError
from .logger import get_logger
from .utils import parse_bool

_hook = None


def wanted():
    """What the environment variable USE_SMDEBUG says."""
    try:
        return parse_bool(os.environ.get("USE_SMDEBUG") or None, True)
    except SMDebugValueError:
        return True


def get_hook(*, json_config_path=None, hook_class=None, create_if_not_exists=False):
    """The hook of this process, made from the JSON configuration where there is one and it is to be; else
    None.
    """
    global _hook
    if not wanted():
        return None
    if hook_class is None:
        if create_if_not_exists:
            raise ValueError("get_hook cannot make a hook of no type: name hook_type")
        return _hook
    if _hook is not None and not isinstance(_hook, hook_class):
        get_logger().info("the hook of this process is no %s: forgotten", hook_class.__name__)
        _hook = None
    if _hook is None and create_if_not_exists:
        try:
            set_hook(hook_class.create_from_json_file(json_file_path=json_config_path))
        except FileNotFoundError:
            pass
    return _hook


def set_hook(custom_hook):
    """Makes it the hook of this process."""
    from .hook import BaseHook

    if not isinstance(custom_hook, BaseHook):
        raise SMDebugTypeError(f"{custom_hook!r} is no hook")
    global _hook
    _hook = custom_hook


def del_hook():
    """Forgets the hook of this process."""
    global _hook
    _hook = None
