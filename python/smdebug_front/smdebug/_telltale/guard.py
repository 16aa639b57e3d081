# SPDX-License-Identifier: Apache-2.0
"""Keeps failures of a hook out of the training."""

import functools

from ..core.logger import get_logger
from . import package


def harmless(result=None):
    """Decorates a method of a hook: it does nothing where the hook is not live; a failure switches the hook
    off, is logged once, and the caller gets `result`.
    """

    def decorate(method):
        @functools.wraps(method)
        def guarded(self, *args, **kwargs):
            if not self._live:
                return result
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                switch_off(self, error)
                return result

        return guarded

    return decorate


def switch_off(hook, error):
    """The hook saves nothing from here on."""
    hook._live = False
    try:
        get_logger().error(
            "smdebug (Telltale): the hook failed and is switched off; the training goes on", exc_info=error
        )
        package.part("_native").note(f"smdebug hook switched off: {type(error).__name__}: {error}")
    except Exception:  # A logging handler of the user's that fails is not ours to mend.
        pass
