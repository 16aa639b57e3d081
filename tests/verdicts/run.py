# SPDX-License-Identifier: Apache-2.0
"""Runs programs with a known right verdict under telltale and prints input, expected, said, cause right, and the
figures. README.md says what the parts are; exit code 1 while a figure is short of what is wanted.

usage: run.py [--only cases|troubles|programs] [--match NAME] [--keep FOLDER [--again]] [--json FILE] [--telltale PATH]
       run.py --list        the table of troubles, as README.md carries it
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import judging
import layout
import records
import table
from judging import Row
from layout import Input
from running import Ran, Runner

PARTS = ("cases", "troubles", "programs")


def chosen(options: argparse.Namespace) -> list[Input]:
    """The inputs that the options ask for. Says on stderr what is left out as a whole."""
    parts = (options.only,) if options.only else PARTS
    found: list[Input] = []
    if "cases" in parts:
        folder = Path(os.environ.get("TELLTALE_CASES", layout.REPO.parent / "shared/cases"))
        if folder.is_dir():
            found += layout.cases(folder)
        else:
            print("cases: skipped, TELLTALE_CASES names no folder", file=sys.stderr)
    if "troubles" in parts:
        # The cured one first: averages of the machine still hold what the ill one did to it.
        found += [one for ill, cured in layout.troubles() for one in (cured, ill)]
    if "programs" in parts:
        found += layout.programs()
    for one in found:
        for path in (one.folder, one.folder / "train.py", one.folder / one.command[0]):
            layout.refuse_sealed(path)
    return [
        replace(one, timeout_s=one.timeout_s * options.patience)
        for one in found
        if options.match in one.name and (options.later or not one.later)
    ]


def told_by_command(runner: Runner, one: Input, ran: Ran) -> bool:
    """Whether the verdict names the command that tells, and that command gives the right cause."""
    command = one.command_that_tells
    if not command or not judging.names_command(ran.findings, command):
        return False
    if command[0] == "check":
        again = Ran(out=ran.out)
        runner.check(again, *command[1:])
    else:
        again = runner.run(one, suffix="-again", more=command[1:])
    return not again.problem and judging.cause_right(again.findings, one.expect) != "no"


def judge_program(runner: Runner, row: Row, ran: Ran) -> None:
    """Findings of medium or high are false unless confirmed; records are those of the instrumented twin."""
    twin: dict[str, Any] | None = None
    if not runner.again:
        try:
            twin = records.run_twin(row.input)
        except records.TwinError as error:
            row.problem = f"twin: {error}"
            return
    row.false = [
        f"{finding['rule']} ({finding['severity']}, {finding.get('cost_seconds') or 0:.1f} s)"
        for finding in judging.serious(ran.findings)
        if not judging.confirmed(finding, row.input.confirmed, twin)
    ]
    row.wrong = []
    if twin is not None:
        steps, scalars = runner.query(ran.out, "steps"), runner.query(ran.out, "scalars")
        row.wrong = records.differences(row.input, twin, steps, scalars)
    row.right = "no" if row.false or row.wrong else "yes"


def row_of(runner: Runner, one: Input) -> Row:
    """Runs and judges one input."""
    ran = runner.run(one)
    row = Row(input=one, problem=ran.problem, seconds=ran.seconds)
    expect = replace(one.expect, stdout=()) if runner.again else one.expect
    judging.judge(row, ran.findings, ran.run, ran.stdout, expect)
    if row.problem:
        row.right = ""
        return row
    if row.right == "no" and not row.wrong and told_by_command(runner, one, ran):
        row.right = "command"
    if one.part == "programs":
        judge_program(runner, row, ran)
    return row


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    # The program that runs has a session of its own; it is ended with us, also where we run in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n", 1)[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--match", default="", metavar="NAME", help="inputs that have this in their name")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="runs are kept there; else they are removed"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="no program runs: the runs in --keep FOLDER are judged anew; what programs print, and their twins, "
        "are not compared",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="the rows and figures as a document")
    parser.add_argument("--jobs", type=int, choices=[1], default=1, help="one program at a time: times count")
    parser.add_argument(
        "--patience",
        type=float,
        default=1,
        metavar="X",
        help="limits of time so many times as long, on a busy machine",
    )
    parser.add_argument("--later", action="store_true", help="also what belongs to a later issue")
    parser.add_argument("--telltale", type=Path, default=layout.REPO / "build/release/bin/telltale")
    parser.add_argument("--list", action="store_true", help="print the table of troubles for README.md")
    options = parser.parse_args()
    try:
        if options.list:
            print(table.list_of(layout.troubles()), end="")
            return 0
        # A name that is a path is read as one: it must not lead to what is sealed.
        layout.refuse_sealed(layout.HERE / options.match if options.match else layout.HERE)
        inputs = chosen(options)
    except (layout.LayoutError, layout.SealedError) as error:
        print(f"verdicts: {error}", file=sys.stderr)
        return 2
    if options.again and not options.keep:
        print("verdicts: --again judges the runs of a folder: --keep FOLDER", file=sys.stderr)
        return 2
    if not inputs:
        print("verdicts: no input has this name: run.py --match NAME", file=sys.stderr)
        return 2
    if not options.telltale.is_file():
        print(f"verdicts: {options.telltale} is missing: make build", file=sys.stderr)
        return 2
    rows: list[Row] = []
    print(table.line(table.HEADER), flush=True)
    with tempfile.TemporaryDirectory(prefix="verdicts-") as folder:
        kept = (options.keep or Path(folder)).resolve()
        kept.mkdir(parents=True, exist_ok=True)
        runner = Runner(options.telltale.resolve(), kept, options.again)
        for one in inputs:
            rows.append(row_of(runner, one))
            print(table.of_row(rows[-1]), flush=True)
            figures = judging.figures(rows, everything=not options.match)
            # After each row: the table takes long, and who stops it keeps what there is.
            if options.json:
                options.json.write_text(
                    json.dumps(table.document(rows, figures), indent=1) + "\n", encoding="utf-8"
                )
    for figure in figures:
        print(f"{'   ' if figure.good else 'NO '}{figure.text}")
    return 0 if all(figure.good for figure in figures) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
