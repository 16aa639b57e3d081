# SPDX-License-Identifier: Apache-2.0
"""Runs every planted training under telltale, with its defect and cured, and prints which rules fired
and which were silent.

usage: planted_table.py [--telltale PATH] [--python PATH] [--keep FOLDER] [NAME ...]

The trainings and what they must fire are the tables of tests/e2e/planted/*.toml:

    [dead_relu]                    # runs planted/dead_relu.py, then the same with --cured
    rules = ["DeadRelu"]           # given as --rule
    args = ["--level", "tensors"]  # more options of telltale run
    fires = ["DeadRelu"]           # the expected set, the rule that is meant first
    may = ["Overfit"]              # may fire besides
    first = true                   # before both the cured one is trained, as the run dead_relu-first

A rule has fired where a finding of it is medium or high, or where it is of the expected set; what other
programs on the machine do to a training is not held against it. Where CPUBottleneck says that they had most of
the cores, a line names the rules of the expected set that they may have called or silenced, and these are not
judged. The budget of the recording is 10 % here. Exit code 1 where a set is another, the rule that is meant is not
ranked first, or a cured twin fires one of the set.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomllib

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tools"))
from crowded import crowded as crowded  # noqa: E402

PLANTED = Path(__file__).resolve().parent / "planted"
# What these find is other programs on the machine, unless the training is meant for them.
OF_THE_MACHINE = {"CPUBottleneck", "StepOutlier", "StepTimeDrift", "Throttled", "MemoryForecast"}
# What is silent where the training waits for a core instead.
SILENCED_BY_OTHERS = {"IOBottleneck"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass
class Case:
    """One training."""

    name: str
    fires: list[str]
    rules: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    may: list[str] = field(default_factory=list)
    script: str = ""
    cured: str = ""
    first: bool = False

    def command(self, cured: bool) -> list[str]:
        if self.script:
            return [str(REPO / (self.cured if cured else self.script))]
        return [str(PLANTED / f"{self.name}.py"), *(["--cured"] if cured else [])]


def cases(folder: Path) -> list[Case]:
    """All tables of the folder, in the order of their names."""
    found: dict[str, Case] = {}
    for path in sorted(folder.glob("*.toml")):
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if name in found:
                raise SystemExit(f"{path}: [{name}] is there twice: give one another name")
            if not table.get("fires"):
                raise SystemExit(f"{path}: [{name}] says nothing of what it fires")
            found[name] = Case(name=name, **table)
    return [found[name] for name in sorted(found)]


def fired(findings: list[dict[str, Any]], case: Case) -> list[str]:
    """Rules that have fired, as findings are ranked, each once."""
    names = []
    for finding in findings:
        rule = finding["rule"]
        serious = finding["severity"] in ("medium", "high") and rule not in OF_THE_MACHINE
        if (serious or rule in case.fires) and rule not in names:
            names.append(rule)
    return names


@dataclass
class Fired:
    """What has fired in a run, and whether other programs had most of the cores."""

    rules: list[str]
    crowded: bool = False


def not_judged(case: Case, sick: Fired, cured: Fired) -> list[str]:
    """Rules of the expected set about which a crowded machine has the say."""
    silenced = [
        rule
        for rule in case.fires
        if sick.crowded and rule not in sick.rules and rule in OF_THE_MACHINE | SILENCED_BY_OTHERS
    ]
    called = [rule for rule in case.fires if cured.crowded and rule in cured.rules and rule in OF_THE_MACHINE]
    return silenced + called


def judge(case: Case, sick_run: Fired, cured_run: Fired) -> list[str]:
    """What is not as expected, in words."""
    sick, cured = sick_run.rules, cured_run.rules
    left_out = not_judged(case, sick_run, cured_run)
    wrong = []
    missing = [rule for rule in case.fires if rule not in sick and rule not in left_out]
    more = [rule for rule in sick if rule not in (*case.fires, *case.may)]
    if missing:
        wrong.append(f"silent: {', '.join(missing)}")
    if more:
        wrong.append(f"not expected: {', '.join(more)}")
    ranked = [rule for rule in sick if rule not in case.may]
    first = next((rule for rule in case.fires if rule in sick), None)
    if not missing and not more and first is not None and ranked[0] != first:
        wrong.append(f"{ranked[0]} is ranked before {first}")
    still = [rule for rule in cured if rule in case.fires and rule not in left_out]
    if still:
        wrong.append(f"fired by the cured twin: {', '.join(still)}")
    return wrong


def train(telltale: str, python: str, case: Case, cured: bool, out: Path) -> None:
    """Trains under telltale. SystemExit: the training could not begin."""
    if out.exists():
        # It would be a second attempt of the run that is there.
        raise SystemExit(f"{out} is there already: give --keep another folder")
    options = [word for rule in case.rules for word in ("--rule", rule)]
    # Steps of a millisecond, to be over soon: at 1 % the governor would take next to nothing of them.
    options += [] if "--overhead" in case.args else ["--overhead", "10%"]
    done = subprocess.run(
        [telltale, "run", "-o", str(out), "--quiet", "--no-serve", *options, *case.args]
        + ["--", python, *case.command(cured)],
        capture_output=True,
        text=True,
        env={**os.environ, **ONE_THREAD},
        check=False,
        timeout=900,
    )
    # A training may die of what ails it; one that cannot begin is no test.
    if done.returncode in (2, 126, 127):
        raise SystemExit(f"{case.name}: {done.stderr.strip()}")


def run(telltale: str, python: str, case: Case, cured: bool, folder: Path) -> Fired:
    """Trains under telltale and returns what fired. SystemExit: the training or the check failed."""
    out = folder / f"{case.name}-{'cured' if cured else 'sick'}"
    train(telltale, python, case, cured, out)
    checked = subprocess.run(
        [telltale, "check", str(out), "--json"], capture_output=True, text=True, check=False, timeout=300
    )
    if checked.returncode not in (0, 7):
        raise SystemExit(f"{case.name}: {checked.stderr.strip()}")
    findings = json.loads(checked.stdout)["findings"]
    return Fired(fired(findings, case), crowded(findings))


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n", 1)[0])
    parser.add_argument("--telltale", default=str(REPO / "build/release/bin/telltale"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--keep", type=Path, help="folder for the runs; without it they are removed")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    chosen = [case for case in cases(PLANTED) if not options.names or case.name in options.names]
    if not chosen:
        raise SystemExit(f"no training of these names in {PLANTED}")
    width = max(len(case.name) for case in chosen)
    print(f"{'training':<{width}}  as    fired")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        kept = options.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        for case in chosen:
            if case.first:
                before = replace(case, rules=[])
                train(options.telltale, options.python, before, True, kept / f"{case.name}-first")
            # The cured one first: averages of the machine still hold what the sick one did to it.
            cured = run(options.telltale, options.python, case, True, kept)
            sick = run(options.telltale, options.python, case, False, kept)
            wrong = judge(case, sick, cured)
            failed += bool(wrong)
            print(f"{case.name:<{width}}  sick  {', '.join(sick.rules) or '(silent)'}")
            print(f"{'':<{width}}  cured {', '.join(cured.rules) or '(silent)'}", flush=True)
            if left_out := not_judged(case, sick, cured):
                crowd = f"not judged, since other programs had the cores: {', '.join(left_out)}"
                print(f"{'':<{width}}  {crowd}", flush=True)
            for line in wrong:
                print(f"{'':<{width}}  WRONG {line}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} trainings as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
