# SPDX-License-Identifier: Apache-2.0
"""Actions of a rule, from the JSON that SageMaker passes: [{"name": "stoptraining"}, ...]."""

import json

from ...core.logger import get_logger
from ...exceptions import SMDebugValueError

_KNOWN = ("stoptraining", "sms", "email")


class Actions:
    """The actions of one rule. Telltale does not carry them out from here: it logs what was asked for."""

    def __init__(self, actions_str, rule_name):
        """
        Raises:
            SMDebugValueError: no JSON of an action or a list of them.
        """
        self._rule_name = rule_name
        self._names = []
        if actions_str is None or not str(actions_str).strip():
            return
        try:
            actions = json.loads(actions_str)
        except (TypeError, ValueError) as error:
            raise SMDebugValueError(f"action_str={actions_str!r} is no JSON: {error}") from error
        for action in actions if isinstance(actions, list) else [actions]:
            name = str(action.get("name", "")).lower() if isinstance(action, dict) else ""
            if name in _KNOWN:
                self._names.append(name)
            else:
                get_logger().warning("smdebug (Telltale): rule %s: no action %r", rule_name, action)

    def invoke(self, message=""):
        """The rule has fired."""
        for name in self._names:
            get_logger().warning(
                "smdebug (Telltale): %s: the action %s is not carried out here",
                message or self._rule_name,
                name,
            )
