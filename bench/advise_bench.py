# SPDX-License-Identifier: Apache-2.0
"""A trace of a million events to the finished advice, on two cores.

Of an imported run, which is what the limit is for, and of the gzipped file itself, import included. Limit: 1.5 s.
usage: advise_bench.py      exit code 1 beyond the limit
"""

import json
import pathlib
import sys
import tempfile
import time

from import_bench import TELLTALE, BenchmarkError, imported, make_trace, output_of, two_cores

EVENTS = 1_000_000
ROUNDS = 5
LIMIT_S = 1.5


def advised(run: pathlib.Path) -> tuple[float, int]:
    """Seconds, the process's start included, and findings."""
    begin = time.perf_counter()
    text = output_of(TELLTALE, "advise", run, "--format", "json")
    return time.perf_counter() - begin, len(json.loads(text)["findings"])


def main() -> int:
    two_cores()
    with tempfile.TemporaryDirectory() as name:
        trace, run = pathlib.Path(name) / "trace.json.gz", pathlib.Path(name) / "run"
        make_trace(trace, EVENTS)
        imported(trace, run)
        of_run = sorted(advised(run) for _ in range(ROUNDS))
        of_file = sorted(advised(trace) for _ in range(ROUNDS))
    for what, took in (("imported run", of_run), ("gzipped file", of_file)):
        seconds, findings = took[ROUNDS // 2]
        print(
            f"  {what:14s} {seconds:6.3f} s  ({took[0][0]:.3f} to {took[-1][0]:.3f})  {findings} findings"
            f"{f'  limit {LIMIT_S} s' if took is of_run else ''}"
        )
    return 0 if of_run[ROUNDS // 2][0] <= LIMIT_S else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        print(f"advise_bench: {error}", file=sys.stderr)
        sys.exit(1)
