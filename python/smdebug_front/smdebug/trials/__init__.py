# SPDX-License-Identifier: Apache-2.0
"""Reading what was saved, while it is being saved and afterwards."""

from .trial import LocalTrial, Trial
from .utils import create_trial

__all__ = ["LocalTrial", "Trial", "create_trial"]
