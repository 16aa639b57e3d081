# SPDX-License-Identifier: Apache-2.0
"""Reading one small tensor of many steps, in Python.

1. 10,000 steps listed and read as one array, by Telltale and by smdebug's trial over the same data: what
   smdebug's own writer wrote, and `telltale import` made a run of. Limit: 30 times as fast.
2. steps() of a run, and of a tensor, of a million steps, and the values at one of them. Limit: 100 ms.

Each is read by a new process with a new run object, the files in the page cache; imports are not counted.
usage: reading_bench.py      exit code 1 beyond a limit, or where smdebug cannot be had
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from smdebug_peer import smdebug_python

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/release"
STEPS = 10_000
RATIO_LIMIT = 30
STEPS_LIMIT_MS = 100
REPEATS = 5

READ = """
import json, sys, time
import numpy, telltale
telltale.open(sys.argv[1]).close()  # Loads the library; what follows is the reading.
begin = time.perf_counter()
tensor = telltale.open(sys.argv[1]).tensor("small")
steps = tensor.steps()
values = tensor.values(steps)
total = time.perf_counter() - begin
print(json.dumps({"seconds": total, "steps": len(steps), "sum": float(values.sum(dtype=numpy.float64))}))
"""
LIST = """
import json, sys, time
import numpy, telltale
telltale.open(sys.argv[1]).close()
def timed(look):
    begin = time.perf_counter()
    steps = look(telltale.open(sys.argv[1]))
    seconds = time.perf_counter() - begin
    assert len(steps) == 1_000_000 and steps[0] == 0 and steps[-1] == 999_999, len(steps)
    return seconds * 1e3
def timed_value():
    begin = time.perf_counter()
    array = telltale.open(sys.argv[1]).tensor("small").at(500_000)
    seconds = time.perf_counter() - begin
    assert array[0] == 500_000, array
    return seconds * 1e3
print(json.dumps({
    "run.tensor(name).at(step)": timed_value(),
    "run.steps()": timed(lambda run: run.steps()),
    "run.tensor(name).steps()": timed(lambda run: run.tensor("small").steps()),
    "run.tensor(name).steps(of='values')": timed(lambda run: run.tensor("small").steps(of="values")),
}))
"""


class BenchmarkError(Exception):
    """What is measured did not run."""


def run(*command: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "lib/telltale/python")}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{command[0]} ended with exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def of_smdebug(folder: pathlib.Path) -> bool:
    """Telltale beside smdebug."""
    peer = smdebug_python()
    if peer is None:
        print("  smdebug is not here: the ratio cannot be judged")
        return False
    data, imported = folder / "smdebug", folder / "imported"
    run(peer, ROOT / "bench/smdebug_record.py", data, STEPS)
    run(BUILD / "bin/telltale", "import", "smdebug", data, "-o", imported)
    theirs = json.loads(run(peer, ROOT / "bench/smdebug_read.py", data).splitlines()[-1])
    ours = [json.loads(run(sys.executable, "-c", READ, imported)) for _ in range(REPEATS)]
    for one in ours:
        if (one["steps"], one["sum"]) != (theirs["steps"], theirs["sum"]) or one["steps"] != STEPS:
            raise BenchmarkError(f"not the same data: {one}, {theirs}")
    seconds = sorted(one["seconds"] for one in ours)
    median = seconds[REPEATS // 2]
    ratio = theirs["seconds"] / median
    print(
        f"  {STEPS} steps as one array {median * 1e3:9.1f} ms ({seconds[0] * 1e3:.1f} to"
        f" {seconds[-1] * 1e3:.1f})   smdebug {theirs['seconds'] * 1e3:9.0f} ms   x {ratio:.0f}"
        f"   limit x {RATIO_LIMIT}"
    )
    return bool(ratio >= RATIO_LIMIT)


def of_a_million(folder: pathlib.Path) -> bool:
    """steps() and at() of a long run."""
    long = folder / "million"
    run(BUILD / "bench/million_steps", long)
    times = [json.loads(run(sys.executable, "-c", LIST, long)) for _ in range(REPEATS)]
    good = True
    for name in times[0]:
        milliseconds = sorted(one[name] for one in times)
        print(
            f"  {name:36} {milliseconds[REPEATS // 2]:6.1f} ms ({milliseconds[0]:.1f} to"
            f" {milliseconds[-1]:.1f}), a million steps   limit {STEPS_LIMIT_MS} ms"
        )
        good = good and milliseconds[REPEATS // 2] < STEPS_LIMIT_MS
    return good


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="telltale-reading-") as name:
        folder = pathlib.Path(name)
        try:
            results = [of_smdebug(folder), of_a_million(folder)]
        except BenchmarkError as error:
            print(f"reading_bench: {error}", file=sys.stderr)
            return 1
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
