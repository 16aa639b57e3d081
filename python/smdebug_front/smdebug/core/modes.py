# SPDX-License-Identifier: Apache-2.0
"""What a step is part of."""

from enum import Enum


class ModeKeys(Enum):
    """GLOBAL is the mode of a script that never calls set_mode, and counts the steps of all modes."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4


ALLOWED_MODES = list(ModeKeys)
ALLOWED_MODE_NAMES = [mode.name for mode in ModeKeys]
