# SPDX-License-Identifier: Apache-2.0
"""A profiler output folder of SageMaker Debugger, of a million samples and a million events: by smdebug's
PandasFrame into tables in memory, by `telltale import` into a run on the disk.

Both are new processes that find the files in the page cache. Limit: 40 times as fast, medians.
usage: smdebug_profile_bench.py [--rows N]      exit code 1 beyond the limit, or where smdebug cannot be had
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from smdebug_peer import smdebug_python

ROOT = pathlib.Path(__file__).resolve().parents[1]
TELLTALE = ROOT / "build/release/bin/telltale"
LIMIT = 40
START_S = 1_700_000_040  # A full minute.
CORES = 8
GPUS = 8
SAMPLE_S = 0.5
MINUTE_US = 60_000_000

PEER = """
import json, logging, sys, time
from smdebug.core.logger import get_logger
get_logger().setLevel(logging.ERROR)
from smdebug.profiler.analysis.utils.profiler_data_to_pandas import PandasFrame
begin = time.perf_counter()
frame = PandasFrame(sys.argv[1])
samples = len(frame.get_all_system_metrics())
events = len(frame.get_all_framework_metrics())
print(json.dumps({"seconds": time.perf_counter() - begin, "samples": samples, "events": events}))
"""


def hour(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y%m%d%H")


def write_samples(folder: pathlib.Path, rows: int, dice: random.Random) -> None:
    """Of a machine of 8 cores and 8 GPUs twice a second, a file a minute, as SageMaker writes them."""
    series = [("cpu", f"cpu{i}", d) for i in range(CORES) for d in ("CPUUtilization", "I/OWaitPercentage")]
    series += [("gpu", f"gpu{i}", d) for i in range(GPUS) for d in ("GPUUtilization", "GPUMemoryUtilization")]
    files: dict[int, list[str]] = {}
    for sample in range(rows // len(series)):
        at = START_S + sample * SAMPLE_S
        lines = files.setdefault(int(at) // 60 * 60, [])
        for kind, name, dimension in series:
            lines.append(
                f'{{"Type": "{kind}", "Name": "{name}", "Dimension": "{dimension}", '
                f'"Value": {dice.random() * 50:.2f}, "NodeId": "algo-1", "Timestamp": {at + 1e-4:.6f}}}\n'
            )
    for minute, lines in files.items():
        into = folder / "system/incremental" / hour(minute)
        into.mkdir(parents=True, exist_ok=True)
        (into / f"{minute}.algo-1.json").write_text("".join(lines))


def write_events(folder: pathlib.Path, rows: int, minutes: int, dice: random.Random) -> None:
    """Steps with their operators and kernels, two files a minute, as smdebug's hook writes them."""
    phases = ["Step:ModeKeys.TRAIN", "Forward-SubModuleInternal", "DataLoaderIter", "cpu_functions"]
    phases += [f"gpu_functions-dev:{i}" for i in range(4)]
    names = [
        "aten::conv2d",
        "aten::batch_norm",
        "aten::relu_",
        "aten::mm",
        "volta_sgemm_128x64_nn",
        "Memcpy HtoD",
    ]
    head = ['{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}}']
    for number, phase in enumerate(phases, 1):
        head.append(f'{{"name": "process_name", "ph": "M", "pid": {number}, "args": {{"name": "{phase}"}}}}')
    a_file = rows // (2 * minutes)
    for minute in range(minutes):
        base_us = START_S * 1_000_000 + minute * MINUTE_US
        into = folder / "framework/pevents" / hour(base_us / 1e6)
        into.mkdir(parents=True, exist_ok=True)
        for kind in ("pythontimeline", "model_timeline"):
            lines = [
                '{"name": "process_name", "ph": "M", "pid": 0, '
                f'"args": {{"start_time_since_epoch_in_micros": {base_us}}}}}',
                *head,
            ]
            for event in range(a_file):
                ts = event * 59_000_000 // a_file
                step = minute * 100 + ts // 590_000
                phase_at = event % len(phases)
                name, extra = names[event % len(names)], f'"tid": {event % 7}, "step_num": "{step}"'
                if phase_at == 0:
                    name, extra = phases[0], f'"step_num": "{step}"'
                elif phase_at == 2:
                    name, extra = "DataLoaderIter::GetNext", f'"worker_id": {event % 4}'
                lines.append(
                    f'{{"name": "{name}", "pid": {phase_at + 1}, "ph": "X", "ts": {ts}, '
                    f'"dur": {dice.randint(5, 3000)}, "args": {{"pid": 97, {extra}}}}}'
                )
            name = f"{base_us + MINUTE_US - 1}_97-algo-1_{kind}.json"
            (into / name).write_text("[\n" + ",\n".join(lines) + "\n]")


def generate(folder: pathlib.Path, rows: int) -> int:
    dice = random.Random(1)
    write_samples(folder, rows, dice)
    minutes = len(list((folder / "system").rglob("*.json")))
    write_events(folder, rows, minutes, dice)
    return sum(path.stat().st_size for path in folder.rglob("*.json"))


def import_once(folder: pathlib.Path, run: pathlib.Path) -> tuple[float, dict[str, int]]:
    shutil.rmtree(run, ignore_errors=True)
    begin = time.perf_counter()
    done = subprocess.run(
        [TELLTALE, "import", str(folder), "-o", str(run), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(f"bench: import failed: {done.stderr.strip()}")
    return seconds, json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000, help="samples, and as many events")
    arguments = parser.parse_args()
    python = smdebug_python()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        folder = pathlib.Path(scratch) / "profile"
        size = generate(folder, arguments.rows)
        ours = []
        said: dict[str, int] = {}
        for _ in range(5):
            seconds, said = import_once(folder, pathlib.Path(scratch) / "run")
            ours.append(seconds)
        mine = statistics.median(ours)
        print(
            f"telltale import: {mine:.2f} s ({size / 1e6 / mine:.0f} MB/s of JSON), "
            f"{said['slices']} slices, {said['metrics']} rows of metrics",
            flush=True,
        )
        if python is None:
            return 1
        theirs = []
        for _ in range(2):
            done = subprocess.run(
                [python, "-c", PEER, str(folder)], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                print(f"bench: smdebug failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
                return 1
            peer = json.loads(done.stdout.strip().splitlines()[-1])
            theirs.append(peer["seconds"])
        ratio = min(theirs) / mine
        print(
            f"PandasFrame: {min(theirs):.1f} s, {peer['events']} events, {peer['samples']} samples; "
            f"{ratio:.0f} times as fast (limit {LIMIT})"
        )
        return 0 if ratio >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
