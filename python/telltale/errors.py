# SPDX-License-Identifier: Apache-2.0
"""The exceptions of this package. The recording calls (step, span, log) raise none of them."""


class TelltaleError(Exception):
    """Base of every exception that Telltale raises on purpose."""


class ReadError(TelltaleError):
    """A run could not be read. `code` is the exit code that the command line would have."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class DamageWarning(UserWarning):
    """Part of a run could not be read; what was returned is the rest."""
