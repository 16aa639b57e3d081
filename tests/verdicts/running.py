# SPDX-License-Identifier: Apache-2.0
"""Runs one program under `telltale run`, reads its verdict by `telltale check`, and its records by `telltale query`.
The program runs in a copy of its folder, so it writes nothing into the tree.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layout import HERE, ONE_THREAD, PYTHONS, Input, refuse_sealed
from prepare import PREPARE

# With a /dev/shm of its own of 16 MB: a container's, small. Wants root.
_SHM16 = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"', "sh")
_COPY_LEAVES = shutil.ignore_patterns("__pycache__", "telltale-runs")


@dataclass
class Ran:
    """What came of one program."""

    out: Path
    exit: int | None = None  # None: it was still running at its limit
    stdout: str = ""
    stderr: str = ""
    findings: list[dict[str, Any]] = field(default_factory=list)
    run: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    problem: str = ""  # why there is no verdict, or none that counts


class Runner:
    """Runs inputs one after another, each in a folder of its own below `kept`."""

    def __init__(self, telltale: Path, kept: Path, again: bool = False) -> None:
        """`again`: no program runs; what an earlier one left in `kept` is judged anew."""
        self.telltale = telltale
        self.kept = kept
        self.again = again
        self._prepared: dict[str, Path] = {}

    def _environment(self, one: Input) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("TELLTALE_")}
        # A job starts `python` and `telltale` by itself.
        path = f"{PYTHONS[one.python].parent}:{self.telltale.parent}:{plain.get('PATH', '')}"
        if one.runner == "job":
            # What it reads the run with, as docs/guide/smdebug.md says.
            smdebug = subprocess.run(
                [self.telltale, "smdebug-path"], capture_output=True, text=True, check=True
            ).stdout.strip()
            plain.update(
                PYTHONPATH=f"{HERE.parents[1] / 'python'}:{smdebug}",
                TELLTALE_BIN=str(self.telltale),
                TELLTALE=str(self.telltale),
            )
        return {**plain, **ONE_THREAD, "PATH": path, **one.env}

    def _files(self, one: Input) -> Path:
        """The folder of what the input reads; made once."""
        name = one.prepare or "none"
        if name not in self._prepared:
            folder = self.kept / f".prepared-{name}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if one.prepare:
                PREPARE[one.prepare](folder, PYTHONS[one.python])
            self._prepared[name] = folder
        return self._prepared[name]

    def missing(self, one: Input) -> str:
        """Why the input cannot run here; empty where it can."""
        python = PYTHONS[one.python]
        if not python.exists():
            return (
                f"no {one.python} interpreter: tools/setup {'test' if one.python == 'debian' else one.python}"
            )
        if not one.folder.is_dir():
            return f"{one.folder.name} is not there"
        if one.runner == "shm16":
            tried = subprocess.run([*_SHM16, "true"], capture_output=True, check=False)
            if tried.returncode != 0:
                return "needs root and mounts of its own (unshare -m)"
        return ""

    def run(self, one: Input, suffix: str = "", more: tuple[str, ...] = ()) -> Ran:
        """Runs the input and checks it. `more`: options of `telltale run` besides the input's own."""
        refuse_sealed(one.folder)
        name = one.name.replace("/", "-") + ("-cured" if one.cured else "") + suffix
        # The run lies beside the copy: what is in the folder of the program is the program's business.
        work, out = self.kept / f"{name}.work", self.kept / name
        if self.again:
            return self._kept(out)
        for folder in (work, out):
            shutil.rmtree(folder, ignore_errors=True)
        ran = Ran(out=out, problem=self.missing(one))
        if ran.problem:
            return ran
        shutil.copytree(one.folder, work, ignore=_COPY_LEAVES)
        words = [word.replace("{tmp}", str(self._files(one))) for word in one.command]
        command = [str(PYTHONS[one.python]), *words]
        if one.runner != "job":
            command = [
                *(_SHM16 if one.runner == "shm16" else ()),
                *(
                    str(self.telltale),
                    "run",
                    "--quiet",
                    "--no-serve",
                    "-o",
                    str(out),
                    *one.options,
                    *more,
                    "--",
                ),
                *command,
            ]
        self._start(one, command, work, ran)
        if one.runner == "job":
            self._find_job(work, ran)
        if not ran.problem or one.kind == "hang":
            self.check(ran)
        shutil.rmtree(work, ignore_errors=True)
        if not ran.problem:
            ran.problem = _not_as_it_should(one, ran)
        return ran

    def _kept(self, out: Path) -> Ran:
        ran = Ran(out=out, problem="" if out.is_dir() else "no run was kept")
        if not ran.problem:
            self.check(ran)
        return ran

    def _start(self, one: Input, command: list[str], work: Path, ran: Ran) -> None:
        begun = time.monotonic()
        # Files, and not pipes: what the program leaves running keeps no pipe of ours open.
        with (
            open(work / ".stdout", "wb+") as stdout,
            open(work / ".stderr", "wb+") as stderr,
            subprocess.Popen(
                command,
                cwd=work,
                env=self._environment(one),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            ) as process,
        ):
            try:
                ran.exit = process.wait(one.timeout_s)
            except subprocess.TimeoutExpired:
                # A program that hangs is ended by its user, and the verdict is read then.
                if one.kind != "hang":
                    ran.problem = f"took above {one.timeout_s:.0f} s"
            finally:
                ran.seconds = time.monotonic() - begun
                # Ctrl-C reaches us alone: the program has a session of its own, and so have workers that outlive it.
                end_group(process)
            for file, name in ((stdout, "stdout"), (stderr, "stderr")):
                file.seek(0)
                setattr(ran, name, file.read().decode(errors="replace"))
        if ran.exit in (126, 127) or "NOT RECORDED" in ran.stderr:
            ran.problem = f"could not be recorded: {_last_line(ran.stderr)}"

    def _find_job(self, work: Path, ran: Ran) -> None:
        """A job names its own run; it is moved out of the folder, which is removed."""
        runs = sorted(path for path in work.glob("telltale-runs/*") if not path.name.endswith(".job"))
        if not runs:
            ran.problem = ran.problem or f"the job left no run: {_last_line(ran.stderr)}"
            return
        shutil.move(runs[-1], ran.out)

    def check(self, ran: Ran, *words: str) -> None:
        """Reads the verdict of a run into it; words: more options of `telltale check`."""
        try:
            done = self._ask("check", str(ran.out), "--json", *words)
        except (OSError, subprocess.TimeoutExpired) as error:
            ran.problem = f"telltale check: {error}"
            return
        # 7: salvaged, with a verdict on what was there.
        if done.returncode not in (0, 7):
            ran.problem = f"telltale check: {_last_line(done.stderr)}"
            return
        document = json.loads(done.stdout)
        ran.findings, ran.run = document["findings"], document["run"]

    def query(self, out: Path, table: str) -> list[dict[str, Any]]:
        """All rows of a table of a run."""
        done = self._ask("query", str(out), table, "--format", "json")
        if done.returncode not in (0, 7):
            raise RuntimeError(f"telltale query {table}: {_last_line(done.stderr)}")
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.telltale), *words], capture_output=True, text=True, check=False, timeout=300
        )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, and by force where that does not help. The group is ours: start_new_session."""
    for number, patience in ((signal.SIGINT, 20), (signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
        break
    # Workers that outlived it belong to the same group.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "no word"


def _not_as_it_should(one: Input, ran: Ran) -> str:
    """Why this run proves nothing: the program itself did not do what the file says of it."""
    if one.exit is not None and ran.exit != one.exit and one.kind != "hang":
        return f"exit code {ran.exit}, not {one.exit}: {_last_line(ran.stderr)}"
    if one.truth:
        lines = [line for line in ran.stdout.splitlines() if line.startswith("truth:")]
        if not any(re.search(one.truth, line) for line in lines):
            return f"the program's own figure is '{lines[-1] if lines else 'not there'}', not '{one.truth}'"
    return ""
