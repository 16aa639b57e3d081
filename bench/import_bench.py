# SPDX-License-Identifier: Apache-2.0
"""A gzipped PyTorch trace of a million events into a stored run, on two cores.

Beside it in the same run: what simdjson needs to read every top-level field (one thread), what inflating takes,
and how long HTA takes to load the same file. Limits: 300 MB/s of JSON, 1.3 million events/s, 30 times as fast as
HTA's load. With --large GB also a plain trace of that size: at most 512 MiB of memory.
usage: import_bench.py [--large GB]      exit code 1 beyond a limit, or where HTA cannot be had
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from hta_peer import LOAD, hta_python

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/release"
TELLTALE = BUILD / "bin/telltale"
EVENTS = 1_000_000
ROUNDS = 5
MB_LIMIT = 300
EVENTS_LIMIT = 1.3e6
RATIO_LIMIT = 30
MEMORY_LIMIT_MIB = 512
LARGE_EVENT_BYTES = 225


class BenchmarkError(Exception):
    """What is measured did not run."""


def output_of(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"{command[0]} ended with exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def make_trace(path: pathlib.Path, events: int) -> None:
    output_of(sys.executable, ROOT / "bench/make_trace.py", path, events)


def imported(trace: pathlib.Path, run: pathlib.Path) -> float:
    """Seconds, the process's start included."""
    begin = time.perf_counter()
    output_of(TELLTALE, "import", trace, "-o", run)
    return time.perf_counter() - begin


def two_cores() -> None:
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:2]))


def speed(folder: pathlib.Path) -> bool:
    trace = folder / "trace.json.gz"
    make_trace(trace, EVENTS)
    limits = json.loads(output_of(BUILD / "bench/import_limits", trace))
    mb, events = limits["bytes"] / 1e6, limits["events"]
    seconds = sorted(imported(trace, folder / f"run{i}") for i in range(ROUNDS))
    size = sum(file.stat().st_size for file in (folder / "run0").rglob("*")) / 1e6
    median = seconds[ROUNDS // 2]
    print(
        f"  {mb:.0f} MB of JSON, {events} events, packed {trace.stat().st_size / 1e6:.0f} MB, run {size:.0f} MB"
    )
    print(
        f"  telltale import       {median:6.3f} s  {mb / median:6.0f} MB/s {events / median / 1e6:5.2f} M events/s"
        f"  ({seconds[0]:.3f} to {seconds[-1]:.3f})  limits {MB_LIMIT} MB/s, {EVENTS_LIMIT / 1e6} M events/s"
    )
    for name, key in (
        ("simdjson, all fields", "simdjson_s"),
        ("inflate, ISA-L", "isal_s"),
        ("inflate, zlib", "zlib_s"),
    ):
        took = limits[key]
        print(f"  {name:21s} {took:6.3f} s  {mb / took:6.0f} MB/s {events / took / 1e6:5.2f} M events/s")
    good = mb / median >= MB_LIMIT and events / median >= EVENTS_LIMIT
    peer = hta_python()
    if peer is None:
        print("  HTA is not here: the ratio cannot be judged")
        return False
    theirs = json.loads(output_of(peer, "-c", LOAD, trace).splitlines()[-1])
    ratio = theirs["seconds"] / median
    print(
        f"  HTA's load            {theirs['seconds']:6.1f} s, {theirs['rss_mib']} MiB: "
        f"x {ratio:.0f}  limit x {RATIO_LIMIT}"
    )
    return good and ratio >= RATIO_LIMIT


def memory(folder: pathlib.Path, gigabytes: float) -> bool:
    trace = folder / "large.json"
    make_trace(trace, int(gigabytes * 1e9 / LARGE_EVENT_BYTES))
    size = trace.stat().st_size
    seconds = imported(trace, folder / "large")
    # Of all children, the largest: the process that reads.
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"  {size / 1e9:.1f} GB plain: {seconds:.1f} s, {size / 1e6 / seconds:.0f} MB/s, {used:.0f} MiB of memory"
        f"  limit {MEMORY_LIMIT_MIB} MiB"
    )
    return used <= MEMORY_LIMIT_MIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=float, default=0, metavar="GB")
    arguments = parser.parse_args()
    two_cores()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        good = memory(folder, arguments.large) if arguments.large > 0 else True
        good = speed(folder) and good
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        print(f"import_bench: {error}", file=sys.stderr)
        sys.exit(1)
