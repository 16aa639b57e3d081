# SPDX-License-Identifier: Apache-2.0
"""The logger `smdebug`.

A logger of the module logging without handlers of its own: where the user configures none, warnings go to
stderr as Python does it, and nothing else is printed. SMDEBUG_LOG_LEVEL (debug, info, warning, error,
critical, off) and SMDEBUG_LOG_PATH are heeded.
"""

import logging
import os

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": logging.CRITICAL + 1,
}
_ready = False


def get_logger(name="smdebug"):
    """The logger, set up at the first call."""
    global _ready
    logger = logging.getLogger(name)
    if not _ready:
        _ready = True
        level = _LEVELS.get(os.environ.get("SMDEBUG_LOG_LEVEL", "").lower())
        if level is not None:
            logger.setLevel(level)
        path = os.environ.get("SMDEBUG_LOG_PATH")
        if path:
            try:
                handler = logging.FileHandler(path, delay=True)
                handler.setFormatter(logging.Formatter("[%(asctime)s %(levelname)s] %(message)s"))
                logger.addHandler(handler)
            except OSError:  # Where it cannot be written, the training goes on all the same.
                pass
    return logger
