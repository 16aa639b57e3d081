# SPDX-License-Identifier: Apache-2.0
"""One training that was started on this machine."""

from __future__ import annotations

import datetime
import functools
import json
import signal
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ReadError, TrainingError
from . import _command
from .rules import RuleBase


class LocalTrainingJob:
    """A training under `telltale run`.

    Attributes:
        name: of the job.
        run: its run directory, for telltale.open and `telltale check`.
    """

    def __init__(
        self,
        name: str,
        run: Path,
        process: subprocess.Popen[bytes],
        rules: Sequence[RuleBase],
        hook_request: Mapping[str, Any] | None,
        log: Path | None,
    ) -> None:
        self.name = name
        self.run = run
        self._process = process
        self._rules = list(rules)
        self._hook_request = hook_request
        self._log = log
        self._asked_to_stop = False

    @property
    def job_name(self) -> str:
        """As name."""
        return self.name

    def wait(self, logs: str | bool = True) -> None:
        """Until the training has ended, and its report is written.

        Raises:
            TrainingError: it failed; not where stop(), a rule or a person ended it.

        Warns:
            UserWarning: a rule or a person ended it.
        """
        code = self._process.wait()
        if self._stopped_by:
            warnings.warn(
                f"the training {self.name} was stopped by {self._stopped_by}: its records are in {self.run}",
                stacklevel=2,
            )
        if code == 0 or self._asked_to_stop or self._stopped_by:
            return
        ended = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        printed = "" if self._log is None else f"; {_last_line(self._log)} (all it printed is in {self._log})"
        raise TrainingError(
            f"the training {self.name} ended {ended}: its records are in {self.run}{printed}",
            code,
            str(self.run),
        )

    def stop(self) -> None:
        """Asks the training to end (SIGTERM) and waits until it has."""
        if self._process.poll() is None:
            self._asked_to_stop = True
            self._process.terminate()
        self._process.wait()

    def status(self) -> str:
        """InProgress, Completed, Failed or Stopped."""
        code = self._process.poll()
        if code is None:
            return "InProgress"
        if self._asked_to_stop or self._stopped_by:
            return "Stopped"
        return "Completed" if code == 0 else "Failed"

    @functools.cached_property
    def _stopped_by(self) -> str:
        """Which rule or person has stopped the training, and why; "": none. To be asked once it has ended."""
        return _stopped_by(self.run)

    def rule_job_summary(self) -> list[dict[str, Any]]:
        """What the rules that the estimator was given say so far.

        Returns:
            One dict a rule: RuleConfigurationName, RuleEvaluationJobArn (the run directory: there is no other
            job), RuleEvaluationStatus (NoIssuesFound, IssuesFound,
            InProgress, Stopped, Error, and Telltale's NoData: what the rule needs was not recorded;
            Partial: it found nothing, in less than it had planned to look at; NotApplicable: the run is
            none that it is about; Suspended), StatusDetails (of IssuesFound: message and advice of the
            finding that costs most; of NoData and NotApplicable: what was missing; of Partial: how much it
            looked at; of Error and Suspended: why),
            LastModifiedTime. While the run has no records yet: InProgress.

        Raises:
            ReadError: the run cannot be read.
        """
        if not self._rules:
            return []
        try:
            document = _command.ask("check", str(self.run))
        except ReadError:
            if self._process.poll() is not None:
                raise
            document = None  # It has only begun.
        now = datetime.datetime.now(datetime.timezone.utc)
        summaries = []
        for rule in self._rules:
            status, details = _status_of(rule, document)
            summaries.append(
                {
                    "RuleConfigurationName": rule.name,
                    "RuleEvaluationJobArn": str(self.run),
                    "RuleEvaluationStatus": status,
                    "StatusDetails": details,
                    "LastModifiedTime": now,
                }
            )
        return summaries

    def describe(self) -> dict[str, Any]:
        """The facts of the job under SageMaker's keys, as far as there are such facts here."""
        facts: dict[str, Any] = {
            "TrainingJobName": self.name,
            "TrainingJobStatus": self.status(),
            "DebugRuleEvaluationStatuses": self.rule_job_summary(),
            "ModelArtifacts": {"S3ModelArtifacts": str(self.run.parent / f"{self.name}.job" / "model")},
        }
        if self._hook_request is not None:
            facts["DebugHookConfig"] = dict(self._hook_request)
        return facts

    def __repr__(self) -> str:
        return f"<LocalTrainingJob {self.name}: {self.status()}>"


def _stopped_by(run: Path) -> str:
    try:
        ends = _command.ask(
            *("query", str(run), "events", "--columns", "data"), *("--where", "kind = 'run.attempt_end'")
        )
    except ReadError:
        return ""  # No record says it.
    for end in ends:
        stopped = json.loads(end["data"]).get("stopped")
        if stopped:
            # The word of a rule begins with its name.
            return f"the rule {stopped['why']}" if stopped["rule"] else f"{stopped['who']}: {stopped['why']}"
    return ""


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        return str(error)
    return next((line for line in reversed(lines) if line.strip()), "it printed nothing")


def _status_of(rule: RuleBase, document: Any) -> tuple[str, str]:
    """(status, details) of one rule by the document of `telltale check --json`."""
    if document is None:
        return "InProgress", ""
    state = next((each for each in document["rules"] if each["name"] == rule.name), {"status": "NoData"})
    worst = next((finding for finding in document["findings"] if finding["rule"] == rule.name), None)
    if worst is None or "error" in state:
        details = f"Partial: {state['partial']}" if "partial" in state else state.get("missing", "")
        return state["status"], state.get("error", details)
    met = f"RuleEvaluationConditionMet: {worst['message']}. {worst['cause']} {worst['advice']}"
    return state["status"], met
