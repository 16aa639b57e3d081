# SPDX-License-Identifier: Apache-2.0
"""Prints the table of `make verdicts`, and the list of troubles that README.md carries."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from judging import Figure, Row
from layout import Input

HEADER = ("input", "expected", "said", "cause right")
_WIDTHS = (40, 48, 92, 12)
_INDENT = " " * 4


def _cell(text: str, width: int) -> str:
    return (text if len(text) <= width else text[: width - 3] + "...").ljust(width)


def line(cells: tuple[str, ...]) -> str:
    """One line of the table."""
    return "  ".join(_cell(cell, width) for cell, width in zip(cells, _WIDTHS)).rstrip()


def answer(row: Row) -> str:
    """What stands in the last column."""
    if row.problem:
        return "not run"
    if row.input.part == "programs":
        return "no" if row.false or row.wrong else "yes"
    if row.input.part == "troubles" and row.input.cured:
        return "alarmed" if row.alarms else "quiet"
    return row.right


def of_row(row: Row) -> str:
    """A row, and below it what its columns have no room for."""
    later = f" [issue {row.input.later}]" if row.input.later else ""
    lines = [line((row.input.label + later, row.input.expect.words(), row.said, answer(row)))]
    if row.problem:
        lines.append(f"{_INDENT}cannot be judged: {row.problem}")
    if row.wrong:
        lines.append(f"{_INDENT}not as expected: {'; '.join(row.wrong)}")
    if row.false:
        lines.append(f"{_INDENT}false: {', '.join(row.false)}")
    elif row.input.cured and row.alarms:
        lines.append(f"{_INDENT}alarmed by: {', '.join(row.alarms)}")
    return "\n".join(lines)


def of_json(row: Row) -> dict[str, Any]:
    """A row for --json."""
    document = asdict(row)
    document.pop("input")
    return {
        "part": row.input.part,
        "name": row.input.name,
        "cured": row.input.cured,
        "expected": row.input.expect.words(),
        "answer": answer(row),
        "later": row.input.later,
        **document,
    }


def document(rows: list[Row], figures: list[Figure]) -> dict[str, Any]:
    """What --json writes."""
    return {
        "rows": [of_json(row) for row in rows],
        "figures": [{"text": figure.text, "good": figure.good} for figure in figures],
    }


def list_of(troubles: list[tuple[Input, Input]]) -> str:
    """The table of troubles with their links, as README.md carries it."""
    lines = ["| Trouble | Kind | What it is | Report |", "|---|---|---|---|"]
    for ill, _ in troubles:
        title = ill.title.replace("|", "\\|")
        lines.append(f"| [{ill.name}](troubles/{ill.name}/train.py) | {ill.kind} | {title} | <{ill.link}> |")
    return "\n".join(lines) + "\n"
