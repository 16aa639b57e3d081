# SPDX-License-Identifier: Apache-2.0
"""Reads what `make verdicts` runs: troubles/*/case.toml, cases/*.toml and programs/*/program.toml. README.md
describes the files. What lies under sealed/ is read by the tests of this layout alone and never becomes an input.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
SEALED = HERE / "sealed"
KINDS = ("loop", "numerics", "input", "speed", "end", "memory", "ranks", "hang")
# Threads that wait for each other on cores that others use would make times of seconds out of milliseconds.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# What `python` of a file may be, and the interpreter that it names.
PYTHONS = {
    "debian": REPO / ".venv/bin/python",
    "frameworks": REPO / ".venv-frameworks/bin/python",
    "verdicts": REPO / ".venv-verdicts/bin/python",
}


class LayoutError(Exception):
    """A file is not as README.md says; the text names the file and what to change."""


class SealedError(Exception):
    """Somebody asked for a sealed program."""


@dataclass(frozen=True)
class Expect:
    """What the verdict of one run must be. Every part that is given must hold."""

    cause: tuple[tuple[str, ...], ...] = ()  # all groups in one finding of medium or high
    never: tuple[str, ...] = ()  # such a finding is not the right one
    forbid: tuple[str, ...] = ()  # no finding of medium or high says this
    no_rules: tuple[str, ...] = ()  # no finding of medium or high is of these rules
    stdout: tuple[str, ...] = ()  # what the program itself prints, for jobs that print statuses
    steps: int = 0  # the run has so many steps
    quiet: bool = False  # no finding of medium or high at all

    def words(self) -> str:
        """The expectation as the table prints it."""
        parts = [" + ".join("|".join(group) for group in self.cause)] if self.cause else []
        parts += ["nothing"] if self.quiet else []
        parts += [f"no {rule}" for rule in self.no_rules]
        parts += [f"not '{pattern}'" for pattern in self.forbid]
        parts += [f"prints '{pattern}'" for pattern in self.stdout]
        parts += [f"{self.steps} steps"] if self.steps else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Input:
    """One program to run, and what is to be said of it."""

    name: str
    part: str  # cases, troubles or programs
    folder: Path  # copied to where the program runs
    command: tuple[str, ...]  # what follows the interpreter; {tmp} is a folder that `prepare` has filled
    expect: Expect = Expect()
    title: str = ""
    link: str = ""
    kind: str = ""
    python: str = "debian"
    timeout_s: float = 120
    exit: int | None = 0
    truth: str = ""
    cured: bool = False
    options: tuple[str, ...] = ()  # more options of `telltale run`
    command_that_tells: tuple[
        str, ...
    ] = ()  # of `telltale run` or `telltale check`: counts where the verdict names it
    prepare: str = ""  # what the program reads, made by prepare.py
    runner: str = (
        "run"  # run: under `telltale run`; job: starts Telltale by itself; shm16: with a /dev/shm of 16 MB
    )
    later: str = ""  # the issue that this one belongs to: it is shown, and not counted
    framework: str = ""
    style: str = ""
    env: dict[str, str] = field(default_factory=dict)
    confirmed: tuple[dict[str, Any], ...] = ()  # findings that a counter confirms
    uncovered: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # field of the records: page and its words
    twin: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.name} (cured)" if self.cured else self.name


def refuse_sealed(path: Path) -> None:
    """Raises SealedError where the path is sealed/ or under it, also by a link or by `..`."""
    if path.resolve().is_relative_to(SEALED.resolve()):
        raise SealedError(f"{path}: sealed programs are not run before issue M; choose another one")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LayoutError(f"{path}: {error}") from error


def _known(path: Path, table: dict[str, Any], *names: str) -> None:
    unknown = sorted(set(table) - set(names))
    if unknown:
        raise LayoutError(f"{path}: unknown {', '.join(unknown)}; known are {', '.join(names)}")


def _patterns(path: Path, value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise LayoutError(f"{path}: {what} is no list of regular expressions")
    for pattern in value:
        try:
            re.compile(pattern)
        except re.error as error:
            raise LayoutError(f"{path}: {what}: '{pattern}' is no regular expression: {error}") from error
    return tuple(value)


def read_expect(path: Path, table: dict[str, Any]) -> Expect:
    """The table [expect] of a file."""
    _known(path, table, "cause", "never", "forbid", "no_rules", "stdout", "steps", "quiet")
    groups = table.get("cause", [])
    if not isinstance(groups, list):
        raise LayoutError(f"{path}: cause is no list of groups")
    expect = Expect(
        cause=tuple(_patterns(path, group, "a group of cause") for group in groups),
        never=_patterns(path, table.get("never", []), "never"),
        forbid=_patterns(path, table.get("forbid", []), "forbid"),
        no_rules=_patterns(path, table.get("no_rules", []), "no_rules"),
        stdout=_patterns(path, table.get("stdout", []), "stdout"),
        steps=int(table.get("steps", 0)),
        quiet=bool(table.get("quiet", False)),
    )
    if not expect.words() or not all(expect.cause):
        raise LayoutError(f"{path}: [expect] expects nothing; an empty group matches no finding")
    return expect


def read_trouble(folder: Path) -> tuple[Input, Input]:
    """The ill program of a folder and its cured twin."""
    path = folder / "case.toml"
    table = _read(path)
    _known(path, table, "title", "link", "kind", "python", "timeout_s", "exit", "truth", "expect")
    for name in ("title", "link", "kind", "truth", "expect"):
        if not table.get(name):
            raise LayoutError(f"{path}: {name} is missing")
    if table["kind"] not in KINDS:
        raise LayoutError(f"{path}: kind '{table['kind']}'; known are {', '.join(KINDS)}")
    if table.get("python", "debian") not in PYTHONS:
        raise LayoutError(f"{path}: python '{table['python']}'; known are {', '.join(PYTHONS)}")
    if not str(table["link"]).startswith("https://"):
        raise LayoutError(f"{path}: link is no address")
    if not (folder / "train.py").is_file():
        raise LayoutError(f"{folder}: train.py is missing")
    truth = table["truth"]
    _known(path, truth, "ill", "cured")
    _patterns(path, [truth.get("ill", ""), truth.get("cured", "")], "truth")
    expect = read_expect(path, table["expect"])
    if not expect.cause:
        raise LayoutError(f"{path}: [expect] has no cause")
    both = {
        "name": folder.name,
        "part": "troubles",
        "folder": folder,
        "title": table["title"],
        "link": table["link"],
        "kind": table["kind"],
        "python": table.get("python", "debian"),
        "timeout_s": float(table.get("timeout_s", 120)),
    }
    ill = Input(**both, command=("train.py",), expect=expect, exit=table.get("exit", 0), truth=truth["ill"])
    cured = Input(
        **both,
        command=("train.py", "cured"),
        expect=Expect(quiet=True),
        exit=0,
        truth=truth["cured"],
        cured=True,
    )
    return ill, cured


def read_case(path: Path, folder: Path) -> list[Input]:
    """The runs of one file of cases/; folder holds the cases themselves."""
    table = _read(path)
    _known(path, table, "title", "input", "right", "later", "run")
    for name in ("title", "input", "right", "run"):
        if not table.get(name):
            raise LayoutError(f"{path}: {name} is missing")
    inputs = []
    for run in table["run"]:
        _known(
            path,
            run,
            *(
                "name",
                "command",
                "kind",
                "python",
                "options",
                "prepare",
                "runner",
                "timeout_s",
                "exit",
                "env",
            ),
            *("cured", "command_that_tells", "expect", "later"),
        )
        if run.get("runner", "run") not in ("run", "job", "shm16"):
            raise LayoutError(f"{path}: runner '{run['runner']}'; known are run, job, shm16")
        inputs.append(
            Input(
                name=f"{path.stem}/{run['name']}" if run.get("name") else path.stem,
                part="cases",
                folder=folder / table["input"],
                command=tuple(run["command"]),
                expect=read_expect(path, run["expect"]),
                title=table["title"],
                kind=run.get("kind", ""),
                python=run.get("python", "debian"),
                timeout_s=float(run.get("timeout_s", 120)),
                exit=run.get("exit", 0),
                cured=bool(run.get("cured", False)),
                options=tuple(run.get("options", [])),
                command_that_tells=tuple(run.get("command_that_tells", [])),
                prepare=run.get("prepare", ""),
                runner=run.get("runner", "run"),
                later=run.get("later", table.get("later", "")),
                env=dict(run.get("env", {})),
            )
        )
    return inputs


def read_program(folder: Path) -> Input:
    """The healthy program of a folder."""
    path = folder / "program.toml"
    table = _read(path)
    _known(
        path,
        table,
        *("title", "framework", "style", "python", "timeout_s", "steps", "command", "env", "twin"),
        *("confirmed", "uncovered"),
    )
    for name in ("title", "framework", "style", "python"):
        if not table.get(name):
            raise LayoutError(f"{path}: {name} is missing")
    if table["python"] not in PYTHONS:
        raise LayoutError(f"{path}: python '{table['python']}'; known are {', '.join(PYTHONS)}")
    for entry in table.get("confirmed", []):
        _known(path, entry, "rule", "text", "counter", "least", "why")
        if not entry.get("rule") or not entry.get("why"):
            raise LayoutError(f"{path}: [[confirmed]] names no rule, or no reason")
        _patterns(path, [entry.get("text", ".")], "text of confirmed")
    return Input(
        name=folder.name,
        part="programs",
        folder=folder,
        command=tuple(table.get("command", ["train.py"])),
        expect=Expect(quiet=True, steps=int(table.get("steps", 0))),
        title=table["title"],
        framework=table["framework"],
        style=table["style"],
        python=table["python"],
        timeout_s=float(table.get("timeout_s", 120)),
        env=dict(table.get("env", {})),
        confirmed=tuple(table.get("confirmed", [])),
        uncovered=dict(table.get("uncovered", {})),
        twin=dict(table.get("twin", {})),
    )


def troubles() -> list[tuple[Input, Input]]:
    """All troubles with their cured twins, by name. A folder that links into sealed/ is refused."""
    found = []
    for path in sorted((HERE / "troubles").glob("*/case.toml")):
        refuse_sealed(path)
        found.append(read_trouble(path.parent))
    return found


def cases(folder: Path) -> list[Input]:
    """All runs of cases/*.toml, whose programs lie in the folder."""
    return [one for path in sorted((HERE / "cases").glob("*.toml")) for one in read_case(path, folder)]


def programs() -> list[Input]:
    """All healthy programs, by name."""
    return [read_program(path.parent) for path in sorted((HERE / "programs").glob("*/program.toml"))]
