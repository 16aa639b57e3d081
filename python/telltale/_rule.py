# SPDX-License-Identifier: Apache-2.0
"""telltale.Rule: the base of rules in Python. They run beside the training, never in it: each in a process
of its own (rule_host.py), which is given the records of the run in their order. docs/guide/custom-rules.md.

Thread safety: none; all methods are called on one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

_Sink = Callable[[str, "dict[str, Any]"], None]


class Record:
    """One record: its columns are attributes, `record.loss` no, `record.value` yes (docs/formats/records.md).

    Attributes:
        table: "steps", "scalars", ...
        ord_ns: time by which records are ordered, nanoseconds since the Unix epoch by the run's clock.
        row: the columns, a dict.
    """

    __slots__ = ("ord_ns", "row", "table")

    def __init__(self, table: str, ord_ns: int, row: dict[str, Any]) -> None:
        self.table = table
        self.ord_ns = ord_ns
        self.row = row

    def __getattr__(self, name: str) -> Any:
        try:
            return self.row[name]
        except KeyError:
            raise AttributeError(f"a record of {self.table} has no column {name!r}") from None

    def __repr__(self) -> str:
        return f"<{self.table} {self.row}>"


class Rule:
    """A rule of your own. Override on_record(), or invoke_at_step() as in smdebug.

    A rule may use nothing but the records, their times and its parameters: then a replay says what was said
    live. No clock, no randomness, no network.

    Class attributes:
        tables: the tables whose records it is given.
        summary: what it finds, one line.
        advice: what to do about it; of each report that gives none.
        wrong_result: what it finds makes the result wrong, not only slow.

    Example:
        class LossAbove(telltale.Rule):
            tables = ("scalars",)

            def __init__(self, limit="10"):
                self.limit = float(limit)

            def on_record(self, record):
                if record.name == "loss" and record.value > self.limit:
                    self.report("loss", severity="high", message="The loss is too high",
                                evidence={"loss": record.value})
    """

    tables: tuple[str, ...] = ("steps",)
    summary: str = ""
    advice: str = ""
    wrong_result: bool = False

    _sink: _Sink | None = None
    _now: Record | None = None
    _step: int = -1
    _began: dict[str, dict[str, int]] | None = None
    _run: str = ""
    _trial: Any = None

    @property
    def run(self) -> str:
        """Folder of the run, for telltale.open(); empty where a script feeds the rule."""
        return self._run

    @property
    def base_trial(self) -> Any:
        """The run as a trial of smdebug, for invoke_at_step()."""
        if self._trial is None:
            if not self._run:
                raise RuntimeError("there is no trial: a script feeds this rule, not a run")
            from smdebug.trials import create_trial

            self._trial = create_trial(self._run)
        return self._trial

    def on_record(self, record: Record) -> None:
        """One record of one of `tables`, in the order of all readers."""

    def on_end(self) -> None:
        """No record follows. What is open then is closed as what lasted until the end."""

    def report(
        self,
        subject: str = "run",
        *,
        severity: str = "medium",
        message: str = "",
        evidence: Mapping[str, Any] | None = None,
        cause: str = "",
        advice: str = "",
        first_step: int | None = None,
        last_step: int | None = None,
        start_ns: int | None = None,
        cost_seconds: float = 0.0,
        confidence: float = 1.0,
    ) -> None:
        """Opens the incident of `subject`, or says its present state where it is open.

        Args:
            subject: what it is about: "rank 0", a tensor, "gpu:3"; 1 to 200 bytes.
            severity: "info", "low", "medium" or "high".
            message: at most eight words; the rule's name without.
            evidence: the numbers that prove it; texts, numbers, lists and dicts of them.
            cause: a sentence with numbers; "cause not found" without.
            advice: the next thing to do.
            first_step, last_step: steps concerned; without, those of TRAIN when it began and now.
            start_ns: when it began, nanoseconds by the run's clock; without, the record of the first report.
            cost_seconds: time lost so far.
            confidence: 0 to 1.
        """
        now_ns = self._now.ord_ns if self._now is not None else 0
        began = self._open().setdefault(subject, {"step": self._step, "ns": now_ns})
        self._tell(
            "report",
            {
                "subject": subject,
                "severity": severity,
                "message": message,
                "evidence": dict(evidence or {}),
                "cause": cause,
                "advice": advice,
                "first_step": int(began["step"] if first_step is None else first_step),
                "last_step": int(self._step if last_step is None else last_step),
                "start_ns": int(began["ns"] if start_ns is None else start_ns),
                "end_ns": int(now_ns),
                "cost_seconds": float(cost_seconds),
                "confidence": float(confidence),
            },
        )

    def close(self, subject: str = "run") -> None:
        """Closes the incident: it lasted until what it is about ended. Nothing where none is open."""
        self._end("close", subject)

    def recover(self, subject: str = "run") -> None:
        """Closes the incident: it is over by itself. Nothing where none is open."""
        self._end("recover", subject)

    def is_open(self, subject: str = "run") -> bool:
        """Whether the incident is open."""
        return subject in self._open()

    def _open(self) -> dict[str, dict[str, int]]:
        # Not in __init__, which rules need not call.
        if self._began is None:
            self._began = {}
        return self._began

    def _end(self, kind: str, subject: str) -> None:
        if self._open().pop(subject, None) is None:
            return
        now_ns = self._now.ord_ns if self._now is not None else 0
        self._tell(kind, {"subject": subject, "last_step": self._step, "end_ns": now_ns})

    def _tell(self, kind: str, body: dict[str, Any]) -> None:
        if self._sink is None:
            raise RuntimeError("a rule reports while it is given records, not before")
        self._sink(kind, body)
