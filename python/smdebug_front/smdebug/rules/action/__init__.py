# SPDX-License-Identifier: Apache-2.0
"""What a rule does when it fires."""

from .action import Actions

__all__ = ["Actions"]
