# SPDX-License-Identifier: Apache-2.0
"""What the default rules judge a boosted model by: event `boosting.model` (docs/formats/events.md).

It is made as a training ends, and at a few rounds before, so that a training that is cut off has one too. Its time
comes out of a budget of the process; its memory is bounded by rows. XGBoost only answers questions here, whose
answers it has at hand: predictions of an evaluation set are kept from the evaluation of the round.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any, Callable

from ..._native import probe
from . import cut_trees, events, hyperparameters, metrics

# Of the process's time since its first round, and what may be taken in any case: for the ends of trainings, and for
# what is taken before. It is our thread's time on a core, so that a busy machine takes nothing away.
_SHARE = 0.01
_ALLOWED_NS = 150_000_000
_ALLOWED_BEFORE_NS = 30_000_000
# Round of the first review, which comes again when there are twice as many.
_FIRST_ROUND = 10
# Rows whose labels are read; predictions, rows times classes, that XGBoost has at hand.
_MAX_LABELS = 4_000_000
_MAX_PREDICTIONS = 1_000_000
# Of a larger set so many rows, and so many rows times trees.
_MAX_ROWS = 10_000
_MAX_ROW_TREES = 1_000_000
_MAX_CLASSES = 256
_MAX_NAMED = 40
_MAX_DATA = 4000
_AT_ONCE = 1 << 20

_spent_ns = 0
_begun_ns = 0


def forget() -> None:
    """A forked child begins anew."""
    global _spent_ns, _begun_ns
    _spent_ns = _begun_ns = 0


class Review:
    """Of one training; of `cv` its first fold."""

    def __init__(self) -> None:
        self._next = _FIRST_ROUND
        self._rounds = 0
        self._cost_ns = 0  # Of the newest review: what the next one takes about.
        self._labels: dict[str, Any] | None = None
        self._refused: set[str] = set()

    def round(
        self, booster: Any, train: Any, evals: list[tuple[Any, str]], history: Any, number: int
    ) -> None:
        """A round has ended."""
        global _begun_ns
        if _begun_ns == 0:
            _begun_ns = probe.now()
        self._rounds += 1
        if self._rounds >= self._next:
            self._next = 2 * self._rounds
            self._take(booster, train, evals, history, number, final=False)

    def end(self, booster: Any, train: Any, evals: list[tuple[Any, str]], history: Any, number: int) -> None:
        """The training has ended; no round follows."""
        if self._rounds:
            self._take(booster, train, evals, history, number, final=True)

    def _take(
        self, booster: Any, train: Any, evals: list[tuple[Any, str]], history: Any, number: int, final: bool
    ) -> None:
        global _spent_ns
        begin, begin_cpu = probe.now(), time.thread_time_ns()
        share = _SHARE * (begin - _begun_ns)
        # What is taken before the end leaves the end its part.
        allowed = _ALLOWED_NS + share if final else _ALLOWED_BEFORE_NS + share / 2
        if _spent_ns + self._cost_ns > allowed:
            return
        facts: dict[str, Any] = {"training": number, "rounds": self._rounds, "final": final}
        try:
            self._fill(facts, booster, train, evals, history, final)
            _emit(number, facts)
        except Exception as error:
            events.failed("review", error)
        finally:
            self._cost_ns = time.thread_time_ns() - begin_cpu
            _spent_ns += self._cost_ns
            probe.account(begin)

    def _fill(
        self,
        facts: dict[str, Any],
        booster: Any,
        train: Any,
        evals: list[tuple[Any, str]],
        history: Any,
        final: bool,
    ) -> None:
        given = hyperparameters.of(booster)
        others = [(matrix, name) for matrix, name in evals if matrix is not train]
        facts["rows"] = int(train.num_row())
        self._part(facts, "losses", lambda: _losses(history, metrics.name_of(train, evals), others))
        objective = str(given.get("objective", ""))
        if given.get("booster", "gbtree") != "gbtree":
            return
        self._part(facts, "importance", lambda: _importance(booster, train))
        if objective.startswith(("binary:", "multi:")):
            if self._labels is None:
                self._part(facts, "labels", lambda: _labels(train, given))
                self._labels = facts.get("labels", {})
            elif self._labels:
                facts["labels"] = self._labels
            matrix, name = others[-1] if others else (train, "")
            classes = int(given.get("num_class", 2)) if objective.startswith("multi:") else 2
            if classes <= _MAX_CLASSES:
                self._part(facts, "evaluation", lambda: _evaluation(booster, matrix, classes, objective))
                if "evaluation" in facts:
                    facts["evaluation"].update(set=name[:60], of="evaluation" if others else "training")
        if final:
            matrix = others[-1][0] if others else None
            self._part(facts, "trees", lambda: cut_trees.facts(booster, train.num_row(), matrix, given))

    def _part(self, facts: dict[str, Any], part: str, make: Callable[[], dict[str, Any] | None]) -> None:
        if part in self._refused:
            return
        try:
            made = make()
            if made:
                facts[part] = made
        except Exception as error:
            self._refused.add(part)
            events.failed(f"review.{part}", error)


def _emit(number: int, facts: dict[str, Any]) -> None:
    text = json.dumps(facts, allow_nan=False)
    for part in ("trees", "evaluation", "labels", "importance"):
        if len(text) <= _MAX_DATA:
            break
        facts.pop(part, None)
        text = json.dumps(facts, allow_nan=False)
    probe.event("boosting.model", 0, f"training:{number}", "", text)


def _losses(history: Any, trained_on: str | None, others: list[tuple[Any, str]]) -> dict[str, Any] | None:
    """Of the first metric that is a loss: where it stands, and where the evaluation had it best."""
    if not history or not others:
        return None
    of_set = history.get(str(others[-1][1]), {})
    for metric, values in of_set.items():
        if not metrics.is_loss(metric):
            continue
        plain = [float(value[0] if isinstance(value, tuple) else value) for value in values]
        if not all(math.isfinite(value) for value in plain):
            return None
        best = min(range(len(plain)), key=plain.__getitem__)
        found = {"metric": metric[:60], "validation": plain[-1], "best": plain[best], "best_round": best}
        trained = history.get(trained_on, {}).get(metric) if trained_on is not None else None
        if trained:
            value = trained[-1]
            value = float(value[0] if isinstance(value, tuple) else value)
            if math.isfinite(value):
                found["train"] = value
        return found
    return None


def _importance(booster: Any, train: Any) -> dict[str, Any] | None:
    scores = booster.get_score(importance_type="total_gain")
    total = float(sum(scores.values()))
    if total <= 0:
        return None
    first = sorted(scores.items(), key=lambda item: -item[1])[:5]
    return {
        "kind": "total_gain",
        "features": int(train.num_col()),
        "used": len(scores),
        "top": [[str(name)[:80], round(float(score) / total, 5)] for name, score in first],
    }


def _labels(train: Any, given: dict[str, Any]) -> dict[str, Any] | None:
    rows = int(train.num_row())
    if rows > _MAX_LABELS:
        return None
    counts = _counts(train.get_label())
    if counts is None:
        return None
    by_rows = sorted(((number, index) for index, number in enumerate(counts) if number), reverse=True)
    half = _MAX_NAMED // 2
    named = by_rows if len(by_rows) <= _MAX_NAMED else by_rows[:half] + by_rows[-half:]
    weighted = float(given.get("scale_pos_weight", 1) or 1) != 1 or len(train.get_weight()) > 0
    return {
        "rows": rows,
        "classes": len(by_rows),
        "median": int(by_rows[len(by_rows) // 2][0]),
        "weighted": weighted,
        "counts": [[index, number] for number, index in named],
    }


def _counts(labels: Any) -> list[int] | None:
    """By class; None where labels are no classes."""
    import numpy

    total = numpy.zeros(0, numpy.int64)
    for begin in range(0, len(labels), _AT_ONCE):
        classes = _classes(labels[begin : begin + _AT_ONCE])
        if classes is None:
            return None
        found = numpy.bincount(classes, minlength=len(total))
        found[: len(total)] += total
        total = found
    return [int(number) for number in total]


def _classes(labels: Any) -> Any:
    """Whole numbers from 0 on, fewer than 10,000; None where they are others."""
    import numpy

    if labels.ndim != 1 or len(labels) == 0 or not numpy.isfinite(labels).all():
        return None
    classes = labels.astype(numpy.int64)
    if (classes != labels).any() or classes.min() < 0 or classes.max() >= 10_000:
        return None
    return classes


def sample(booster: Any, matrix: Any, classes: int) -> Any:
    """The matrix where XGBoost has its predictions at hand and they are few; else rows spread over it."""
    rows = int(matrix.num_row())
    if rows * max(1, classes) <= _MAX_PREDICTIONS:
        return matrix
    import numpy

    trees = max(1, booster.num_boosted_rounds() * max(1, classes))
    limit = max(1, min(_MAX_ROWS, _MAX_ROW_TREES // trees))
    return matrix.slice(numpy.linspace(0, rows - 1, limit).astype("int32"), allow_groups=True)


def _evaluation(booster: Any, matrix: Any, classes: int, objective: str) -> dict[str, Any] | None:
    import numpy

    taken = sample(booster, matrix, classes)
    labels = _classes(taken.get_label())
    if labels is None or labels.max() >= classes:
        return None
    predicted = numpy.asarray(booster.predict(taken))
    if objective.startswith("multi:"):
        guesses = predicted.argmax(axis=1) if predicted.ndim == 2 else predicted.astype(numpy.int64)
    else:
        guesses = (predicted > (0 if objective == "binary:logitraw" else 0.5)).astype(numpy.int64)
    if guesses.shape != labels.shape:
        return None
    counts = numpy.bincount(labels * classes + guesses, minlength=classes * classes).reshape(classes, classes)
    rows, right = counts.sum(axis=1), counts.diagonal()
    shown = sorted((index for index in range(classes) if rows[index]), key=lambda c: right[c] / rows[c])
    return {
        "rows": len(labels),
        "right": int(right.sum()),
        "classes": len(shown),
        "most": int(rows.max()),
        "by_class": [[index, int(rows[index]), int(right[index])] for index in shown[:_MAX_NAMED]],
        "pairs": _pairs(counts),
    }


def _pairs(counts: Any) -> list[list[int]]:
    """The pairs of classes that are taken for each other most: [a, b, a as a, a as b, b as a, b as b]."""
    import numpy

    first, second = numpy.triu_indices(len(counts), 1)
    swapped = counts[first, second] + counts[second, first]
    share = swapped / numpy.maximum(1, swapped + counts[first, first] + counts[second, second])
    found = []
    for at in numpy.argsort(-share, kind="stable")[:5]:
        a, b = first[at], second[at]
        if swapped[at]:
            found.append([int(a), int(b), *(int(counts[i, j]) for i, j in ((a, a), (a, b), (b, a), (b, b)))])
    return found
