# SPDX-License-Identifier: Apache-2.0
"""What a rule that fires sets off: StopTraining, Email, SMS, and lists of them."""

from __future__ import annotations

import json
import re

from ..errors import ConfigError

_JOB_PREFIX = re.compile(r"[A-Za-z0-9\-]+")
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_PHONE = re.compile(r"\+\d{1,15}")


def _checked(what: str, value: str, pattern: re.Pattern[str], example: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ConfigError(f"{what}: {value!r} cannot be used: write for example {example!r}")
    return value


class Action:
    """Base of the actions."""

    def __init__(self, **action_parameters: str | None) -> None:
        given = {key: value for key, value in action_parameters.items() if value is not None}
        self.action_parameters = {**given, "name": type(self).__name__.lower()}

    def serialize(self) -> str:
        """As a JSON object."""
        return json.dumps(self.action_parameters)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.action_parameters})"


class StopTraining(Action):
    """Stops the training whose name begins so; of None the one that the rule watches.

    Raises:
        ConfigError: the prefix has other characters than letters, digits and hyphens.
    """

    def __init__(self, training_job_prefix: str | None = None) -> None:
        if training_job_prefix is not None:
            _checked("StopTraining", training_job_prefix, _JOB_PREFIX, "my-training")
        super().__init__(training_job_prefix=training_job_prefix)


class Email(Action):
    """Writes to an address.

    Raises:
        ConfigError: it is none.
    """

    def __init__(self, email_address: str) -> None:
        super().__init__(endpoint=_checked("Email", email_address, _ADDRESS, "someone@example.org"))


class SMS(Action):
    """Sends a text to a telephone number of the form +15551234.

    Raises:
        ConfigError: it is none.
    """

    def __init__(self, phone_number: str) -> None:
        super().__init__(endpoint=_checked("SMS", phone_number, _PHONE, "+15551234567"))


class ActionList:
    """Several actions of one rule.

    Raises:
        ConfigError: something in it is no action.
    """

    def __init__(self, *actions: Action) -> None:
        for action in actions:
            if not isinstance(action, Action):
                raise ConfigError(f"ActionList: {action!r} is no action: write for example StopTraining()")
        self.actions = actions

    def serialize(self) -> str:
        """As a JSON list."""
        return "[" + ", ".join(action.serialize() for action in self.actions) + "]"

    def __repr__(self) -> str:
        return f"ActionList{self.actions}"


def of(actions: Action | ActionList | None) -> tuple[Action, ...]:
    """The actions, whichever way they were given.

    Raises:
        ConfigError: neither an action nor a list of them.
    """
    if actions is None:
        return ()
    if isinstance(actions, Action):
        return (actions,)
    if isinstance(actions, ActionList):
        return actions.actions
    raise ConfigError(f"actions: {actions!r} is neither an Action nor an ActionList")
