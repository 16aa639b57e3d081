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


class ConfigError(TelltaleError, ValueError):
    """A setting makes no sense; the message says which, why, and what to write."""


class UnsupportedError(ConfigError):
    """A setting is understood, and what it asks for is not there (yet). `setting` is what was asked for."""

    def __init__(self, setting: str, why: str, advice: str) -> None:
        super().__init__(f"{setting}: {why}: {advice}")
        self.setting = setting


class TrainingError(TelltaleError):
    """A training that was started here has failed. `code` is its exit code, `run` the run directory."""

    def __init__(self, message: str, code: int, run: str) -> None:
        super().__init__(message)
        self.code = code
        self.run = run


class TrialStopped(TelltaleError):  # noqa: N818
    """A rule or a person has stopped the trial. The `with telltale.trial()` that it belongs to takes it."""
