# SPDX-License-Identifier: Apache-2.0
"""Compares what a run has recorded of a healthy program with what its instrumented twin counted (twin.py): steps,
losses, learning rates, modes and batch sizes.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from layout import HERE, ONE_THREAD, PYTHONS, REPO, Input
from running import end_group

Rows = list[dict[str, Any]]
FIELDS = ("steps", "losses", "learning rates", "modes", "batch sizes")


class TwinError(Exception):
    """The twin could not run; the text says why."""


def run_twin(one: Input) -> dict[str, Any]:
    """Runs the twin of a program and returns its counts."""
    with tempfile.TemporaryDirectory(prefix="twin-") as folder:
        work, counts = Path(folder) / "work", Path(folder) / "counts.json"
        shutil.copytree(one.folder, work)
        command = [str(PYTHONS[one.python]), str(HERE / "twin.py"), str(work), *one.command[1:]]
        command += ["--json", str(counts), "--patch", str(one.twin.get("patch", "torch"))]
        env = {name: value for name, value in os.environ.items() if not name.startswith("TELLTALE_")}
        # A file, and not a pipe: workers that outlive their program would keep it open.
        with (
            open(Path(folder) / "stderr", "wb+") as stderr,
            subprocess.Popen(
                command,
                cwd=work,
                env={**env, **ONE_THREAD, **one.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            ) as process,
        ):
            try:
                process.wait(one.timeout_s)
            except subprocess.TimeoutExpired as error:
                raise TwinError(f"took above {one.timeout_s:.0f} s") from error
            finally:
                end_group(process)
            stderr.seek(0)
            text = stderr.read().decode(errors="replace")
        if not counts.is_file():
            lines = text.strip().splitlines() or ["no word"]
            raise TwinError(f"exit code {process.returncode}: {lines[-1][:200]}")
        document: dict[str, Any] = json.loads(counts.read_text(encoding="utf-8"))
        return document


def equal(a: Any, b: Any) -> bool:
    """Two numbers up to float32's rounding, NaN equal to NaN."""
    if a is None or b is None:
        return a is None and b is None
    a, b = float(a), float(b)
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-7)


def mean(values: list[float | None]) -> float | None:
    """The mean of those that are numbers; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def first_difference(name: str, expected: list[Any], found: list[Any]) -> str:
    """In words where two lists begin to differ; empty where they do not."""
    for index, (a, b) in enumerate(zip(expected, found)):
        if not equal(a, b):
            count = sum(not equal(x, y) for x, y in zip(expected, found))
            return f"{name}: {b} and not {a} at step {index} ({count} of {len(expected)} differ)"
    if len(expected) != len(found):
        return f"{name}: {len(found)} and not {len(expected)}"
    return ""


def _in_mode(rows: Rows, mode: str) -> Rows:
    return [row for row in rows if row["mode"] == mode]


def _scalar(scalars: Rows, name: str, steps: list[int]) -> list[Any]:
    """The value of a name at each step, None where there is none."""
    by_step = {row["step"]: row["value"] for row in scalars if row["name"] == name and row["mode"] == "TRAIN"}
    return [by_step.get(step) for step in steps]


def _lasting(values: list[Any]) -> list[Any]:
    """Each None replaced by the value before it: of what is recorded when it changes."""
    newest = None
    lasting = []
    for value in values:
        newest = newest if value is None else value
        lasting.append(newest)
    return lasting


def _places(groups: list[Rows]) -> dict[int, int]:
    """Optimizer -> the place that names its losses and rates: loss, loss.1, ... They have them in the order of their
    first steps; one that comes when another has had its last step (the next fit) follows it in its place. `groups`: the
    updates of each step.
    """
    last = {update["optimizer"]: step for step, group in enumerate(groups) for update in group}
    holders: list[int] = []
    places: dict[int, int] = {}
    for step, group in enumerate(groups):
        for optimizer in dict.fromkeys(update["optimizer"] for update in group):
            if optimizer in places:
                continue
            free = [place for place, holder in enumerate(holders) if last[holder] < step]
            places[optimizer] = free[0] if free else len(holders)
            holders[places[optimizer] : places[optimizer] + 1] = [optimizer]
    return places


def _torch(twin: dict[str, Any], steps: Rows, scalars: Rows, settings: dict[str, Any]) -> dict[str, str]:
    train = sorted(_in_mode(steps, "TRAIN"), key=lambda row: row["step"])
    updates = twin["updates"]
    found = {}
    calls = sum(row["optimizer_calls"] for row in train)
    found["steps"] = "" if calls == len(updates) else f"steps: {calls} updates and not {len(updates)}"
    # A last pass without an update is a step of its own; others are none.
    without = sum(row["optimizer_calls"] == 0 for row in train)
    if not found["steps"] and without > bool(twin.get("losses")):
        found["steps"] = f"steps: {without} without an update"
    # Several optimizers that take turns make one step: a step has as many updates as it says.
    groups, begin = [], 0
    for row in train:
        groups.append(updates[begin : begin + row["optimizer_calls"]])
        begin += row["optimizer_calls"]
    numbers = [row["step"] for row in train]
    losses, rates = [], []
    places = _places(groups)
    for index in range(1 + max(places.values(), default=-1)):
        suffix = f".{index}" if index else ""
        of_one = [[update for update in group if places[update["optimizer"]] == index] for group in groups]
        expected = [mean([loss for update in one for loss in update["losses"]]) for one in of_one]
        losses.append(first_difference(f"loss{suffix}", expected, _scalar(scalars, f"loss{suffix}", numbers)))
        first = [one[0]["lr"][0] if one and one[0]["lr"] else None for one in of_one]
        # A rate is recorded where it changes.
        said = _lasting(_scalar(scalars, f"lr{suffix}", numbers))
        at = [place for place, value in enumerate(first) if value is not None]
        rates.append(
            first_difference(f"lr{suffix}", [first[place] for place in at], [said[place] for place in at])
        )
    found["losses"] = next((text for text in losses if text), "")
    found["learning rates"] = next((text for text in rates if text), "")
    # batches: what models were called with; fetched: what loaders gave.
    where = str(settings.get("batch", "batches"))
    sizes = [sum(sum(update[where]) for update in group) for group in groups]
    found["batch sizes"] = first_difference("batch size", sizes, [row["batch_size"] for row in train])
    passes = sum(row["micro_steps"] for row in [*_in_mode(steps, "EVAL"), *_in_mode(steps, "PREDICT")])
    expected_passes = int(settings.get("evaluations", len(twin["evaluations"])))
    found["modes"] = (
        ""
        if passes == expected_passes
        else f"modes: {passes} passes outside of training and not {expected_passes}"
    )
    return found


def _xgboost(twin: dict[str, Any], steps: Rows, scalars: Rows) -> dict[str, str]:
    train = _in_mode(steps, "TRAIN")
    rounds = twin["rounds"]
    found = dict.fromkeys(FIELDS, "")
    if len(train) != len(rounds):
        found["steps"] = f"steps: {len(train)} rounds and not {len(rounds)}"
    numbers = [row["step"] for row in sorted(train, key=lambda row: row["step"])]
    for name in sorted({name for one in rounds for name in one}):
        expected = [one.get(name) for one in rounds]
        found["losses"] = found["losses"] or first_difference(name, expected, _scalar(scalars, name, numbers))
    return found


def _keras(twin: dict[str, Any], steps: Rows, scalars: Rows) -> dict[str, str]:
    counts = twin["keras"]
    train = sorted(_in_mode(steps, "TRAIN"), key=lambda row: row["step"])
    found = dict.fromkeys(FIELDS, "")
    if len(train) != len(counts["train"]):
        found["steps"] = f"steps: {len(train)} batches and not {len(counts['train'])}"
    for mode, name in (("EVAL", "test"), ("PREDICT", "predict")):
        passes = sum(row["micro_steps"] for row in _in_mode(steps, mode))
        if passes != len(counts[name]):
            found["modes"] = f"modes: {passes} batches of {mode} and not {len(counts[name])}"
    numbers = [row["step"] for row in train]
    # On torch the loss of each batch is recorded, which goes backward; elsewhere what Keras logs, a running mean.
    losses = twin["losses"] or counts["loss"]
    found["losses"] = first_difference("loss", losses, _scalar(scalars, "loss", numbers))
    rates = {round(value, 9) for value in counts["lr"]}
    seen = {round(row["value"], 9) for row in scalars if row["name"] in ("lr", "learning_rate")}
    if not rates <= seen:
        found["learning rates"] = f"lr: {sorted(rates - seen)} not recorded"
    return found


def differences(one: Input, twin: dict[str, Any], steps: Rows, scalars: Rows) -> list[str]:
    """What differs, in words, but for what a page says is not covered."""
    kind = str(one.twin.get("patch", "torch"))
    if kind == "xgboost":
        found = _xgboost(twin, steps, scalars)
    elif kind.startswith("keras"):
        found = _keras(twin, steps, scalars)
    else:
        found = _torch(twin, steps, scalars, one.twin)
    wrong = [text for name, text in found.items() if text and name not in one.uncovered]
    expected = one.expect.steps
    train = len(_in_mode(steps, "TRAIN"))
    if expected and train != expected and "steps" not in one.uncovered:
        wrong.append(f"steps: {train} and not {expected}")
    return wrong


def unsaid(one: Input) -> list[str]:
    """Of what is called not covered: what no page says. Each names a page and the words in it."""
    missing = []
    for name, where in one.uncovered.items():
        page = REPO / where.get("page", "")
        if name not in FIELDS or not page.is_file() or where["text"] not in page.read_text(encoding="utf-8"):
            missing.append(f"{one.name}: {name}: '{where.get('text')}' is not in {where.get('page')}")
    return missing
