# SPDX-License-Identifier: Apache-2.0
"""A span from Python, both ends and clock included, while its records are drained, beside torch's
record_function (profiler off and on), smdebug's trace writer and a lock, which records nothing. Medians of
bursts of 20,000, behind each of which the reader of the records has 5 ms to catch up: a loop of nothing but
spans is faster than any reader. A peer that is not here has a row that says why.

usage: span_python.py [--build DIR]
exit code 1 where a span costs more than its limit or one was dropped, 5 where nothing was measured
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMIT_NS = 200.0

INNER = """
import contextlib, io, json, os, sys, threading, time
import telltale

LOOPS, RUNS, RUNS_OF_PEERS = 20_000, 45, 9

def cost(function, n, runs=RUNS):
    times = []
    for _ in range(runs):
        time.sleep(0.005)
        begin = time.perf_counter_ns()
        function(n)
        times.append((time.perf_counter_ns() - begin) / n)
    return sorted(times)[runs // 2]

def empty(n):
    for _ in range(n): pass

def span_new(n):
    span = telltale.span
    for _ in range(n):
        with span("bench"): pass

def span_kept(n):
    span = telltale.span("bench")
    for _ in range(n):
        with span: pass

def lock_kept(n):
    # What Python's own `with` costs: a lock reads no clock and records nothing.
    lock = threading.Lock()
    for _ in range(n):
        with lock: pass

def lock_new(n):
    make = threading.Lock
    for _ in range(n):
        with make(): pass

assert telltale.active()
loop = cost(empty, LOOPS)
left_out = {}
result = {"span": cost(span_new, LOOPS) - loop, "span kept": cost(span_kept, LOOPS) - loop,
          "new lock": cost(lock_new, LOOPS) - loop,
          "lock kept": cost(lock_kept, LOOPS) - loop}
try:
    import torch
    record_function = torch.autograd.profiler.record_function
    def record(n):
        for _ in range(n):
            with record_function("bench"): pass
    result["torch record_function, profiler off"] = cost(record, 5_000, RUNS_OF_PEERS) - loop
    with contextlib.redirect_stdout(io.StringIO()), torch.autograd.profiler.profile():
        result["torch record_function, profiler on"] = cost(record, 500, RUNS_OF_PEERS) - loop
except ImportError as reason:
    left_out["torch record_function"] = str(reason)
try:
    import logging, tempfile
    folder = tempfile.mkdtemp()
    config = os.path.join(folder, "config.json")
    with open(config, "w") as file:
        json.dump({"ProfilingParameters": {"ProfilerEnabled": True, "LocalPath": folder}}, file)
    os.environ["SMPROFILER_CONFIG_PATH"] = config
    from smdebug.core.logger import get_logger
    from smdebug.core.tfevent.timeline_file_writer import TimelineFileWriter
    from smdebug.profiler.profiler_config_parser import ProfilerConfigParser
    get_logger().setLevel(logging.ERROR)
    parser = ProfilerConfigParser()
    parser.load_config()
    writer = TimelineFileWriter(profiler_config_parser=parser)
    def trace(n):
        for step in range(n):
            writer.write_trace_events(training_phase="bench", op_name="bench", step_num=step,
                                      timestamp=time.time(), duration=0.0001)
        writer._event_queue.join()
    result["smdebug write_trace_events"] = cost(trace, 1000, RUNS_OF_PEERS) - loop
    writer.close()
except Exception as reason:  # Whatever an old library raises on a new system.
    left_out["smdebug write_trace_events"] = f"{type(reason).__name__}: {reason}"
print(json.dumps({"ns": result, "left_out": left_out}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(ROOT / "build" / "release"))
    build = pathlib.Path(parser.parse_args().build)
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "inner.py"
        script.write_text(INNER)
        host = [str(build / "tests/bin/probe_host"), os.path.join(folder, "records.counts"), "0"]
        done = subprocess.run(
            [*host, str(build / "lib/telltale/python"), sys.executable, str(script)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            print(f"span_python: the measured process failed: {done.stderr.strip()}", file=sys.stderr)
            return 5
        records = pathlib.Path(folder, "records.counts").read_text().splitlines()
        producer = json.loads(records[-1])
    result = json.loads(done.stdout.splitlines()[-1])  # Behind what old libraries log there.
    ours = result["ns"]["span"]
    for name, cost in result["ns"].items():
        note = f"   limit {LIMIT_NS:.0f} ns" if name == "span" else ""
        print(f"  {name:38} {cost:10.0f} ns   x {cost / ours:7.1f}{note}")
    for name, reason in result["left_out"].items():
        print(f"  {name:38} {'-':>10}      left out: {' '.join(reason.split())}")
    print(f"  records written {producer['produced']}, dropped {producer['dropped']}   limit 0")
    return 0 if ours <= LIMIT_NS and producer["produced"] > 0 and producer["dropped"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
