# SPDX-License-Identifier: Apache-2.0
"""Rules of the user's own over a trial."""

from .req_tensors import RequiredTensors
from .rule import Rule
from .rule_invoker import invoke_rule

__all__ = ["RequiredTensors", "Rule", "invoke_rule"]
