# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks of `make bench`, each with its peer in the same run, and prints the ratios.

usage: run.py [NAME...]     names: the table below (default: all)
exit code 1 where one is beyond its limit, did not run or is not built, 2 for an unknown name
`make overhead`, which needs a quiet machine and half an hour, is apart: bench/overhead.py.
"""

import json
import pathlib
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from smdebug_peer import smdebug_python

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/release"
SAMPLER_LIMIT_PERCENT = 0.2  # Of a core.
PROGRAMS = BUILD / "bench"
STREAMS_TEST = BUILD / "tests/serve_streams_test"


class BenchmarkError(Exception):
    """A benchmark did not run, or what it measured is beyond its limit."""


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise BenchmarkError(
            f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr.strip()}"
        )
    return done.stdout


def show(*command: str) -> None:
    """Runs a benchmark that prints its own peer and ratio."""
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code != 0:
        raise BenchmarkError(f"{' '.join(command)} ended with exit code {code}")


def google_benchmark(program: str) -> dict[str, dict[str, Any]]:
    text = output_of(str(PROGRAMS / program), "--benchmark_format=json")
    return {entry["name"]: entry for entry in json.loads(text)["benchmarks"]}


def sampler() -> None:
    """One sample of machine and process tree, beside psutil reading the same."""
    ours = google_benchmark("sampler_bench")
    # Debian's interpreter has psutil; nothing of ours is loaded.
    peer = json.loads(output_of("/usr/bin/python3", "bench/sampler_psutil.py"))
    hot = ours["SampleHot"]["real_time"]
    paced = next(entry for name, entry in ours.items() if name.startswith("SamplePaced/500"))
    print(
        f"  one sample, hot        {hot:9.0f} us   psutil {peer['hot_us']:7.0f} us   x {peer['hot_us'] / hot:.1f}"
    )
    print(
        f"  one sample each 500 ms {paced['cpu_us_per_sample']:9.0f} us   psutil {peer['paced_us']:7.0f} us"
        f"   x {peer['paced_us'] / paced['cpu_us_per_sample']:.1f}"
    )
    print(
        f"  share of a core        {paced['percent_of_a_core']:9.3f} %    psutil"
        f" {peer['percent_of_a_core']:7.3f} %    limit {SAMPLER_LIMIT_PERCENT:g} %"
    )
    if paced["percent_of_a_core"] > SAMPLER_LIMIT_PERCENT:
        raise BenchmarkError(f"the sampler takes more than {SAMPLER_LIMIT_PERCENT:g} % of a core")


def agent() -> None:
    """The agent at 100 ms with everything on, beside a psutil loop for the same metrics."""
    show(sys.executable, "bench/agent_cost.py", "agent")


def node() -> None:
    """The agent at 100 ms on a node of 192 cores and 8 GPUs made of files."""
    show(sys.executable, "bench/agent_cost.py", "node")


def stats() -> None:
    """One pass for nine statistics, beside a plain sum and the reductions of torch and numpy."""
    show(str(PROGRAMS / "stats_bench"))
    show(sys.executable, "bench/stats_peers.py")


def span() -> None:
    """A span from C++ with the agent's consumer draining."""
    show(str(PROGRAMS / "span_bench"))


def span_python() -> None:
    """A span from Python, beside torch's record_function and smdebug's writer."""
    show(smdebug_python() or sys.executable, "bench/span_python.py")


def capture() -> None:
    """Every weight and gradient at every step, beside smdebug."""
    show(sys.executable, "bench/capture_bench.py")


def serve() -> None:
    """The server over a run of 1 million steps and 5 million samples."""
    show(str(PROGRAMS / "serve_bench"))


def page() -> None:
    """The page over the same run, and over a live one, in a browser."""
    show(sys.executable, "bench/page_bench.py")


def latency() -> None:
    """From the journal to the page and to a finding."""
    show(str(PROGRAMS / "latency_bench"))


def streams() -> None:
    """Requests beside 500 event streams of a run that grows."""
    show(
        "env", "TELLTALE_STREAMS_SECONDS=10", str(STREAMS_TEST), "--gtest_brief=1",
        "--gtest_filter=*FiveHundred*",
    )  # fmt: skip


def ingest() -> None:
    """A recording beside 500 event streams, and without."""
    show(str(PROGRAMS / "ingest_bench"))


def reading() -> None:
    """Steps and values of one small tensor, beside smdebug's trial over the same data."""
    show(sys.executable, "bench/reading_bench.py")


def importing() -> None:
    """A gzipped trace of a million events into a run, beside simdjson alone and HTA's load."""
    show(sys.executable, "bench/import_bench.py")


def advise() -> None:
    """A trace of a million events to the finished advice."""
    show(sys.executable, "bench/advise_bench.py")


def smdebug_profile() -> None:
    """A profiler output folder of SageMaker Debugger into a run, beside its PandasFrame."""
    show(sys.executable, "bench/smdebug_profile_bench.py")


def replay() -> None:
    """A finished run of a million steps and 20 tensors through all rules, beside reading it."""
    show(str(PROGRAMS / "replay_bench"))


BENCHMARKS: dict[str, tuple[Callable[[], None], pathlib.Path]] = {
    "sampler": (sampler, PROGRAMS / "sampler_bench"),
    "agent": (agent, BUILD / "tests/fake_nvml/libnvidia-ml.so.1"),
    "node": (node, BUILD / "tests/fake_nvml/libnvidia-ml.so.1"),
    "stats": (stats, PROGRAMS / "stats_bench"),
    "span": (span, PROGRAMS / "span_bench"),
    "capture": (capture, BUILD / "bin/telltale"),
    "span_python": (span_python, ROOT / "bench/span_python.py"),
    "reading": (reading, PROGRAMS / "million_steps"),
    "import": (importing, PROGRAMS / "import_limits"),
    "advise": (advise, BUILD / "bin/telltale"),
    "smdebug_profile": (smdebug_profile, BUILD / "bin/telltale"),
    "replay": (replay, PROGRAMS / "replay_bench"),
    "serve": (serve, PROGRAMS / "serve_bench"),
    "page": (page, PROGRAMS / "serve_bench"),
    "latency": (latency, PROGRAMS / "latency_bench"),
    "streams": (streams, STREAMS_TEST),
    "ingest": (ingest, PROGRAMS / "ingest_bench"),
}


def processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> int:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"bench: unknown benchmark {unknown[0]}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    print(
        f"{processor()}, Linux {platform.release()}, load {pathlib.Path('/proc/loadavg').read_text().split()[0]}"
    )
    failed = []
    for name in names:
        run, needed = BENCHMARKS[name]
        if not needed.exists():
            failed.append(name)
            print(
                f"bench: {name}: skipped, {needed} is missing; run: make bench", file=sys.stderr, flush=True
            )
            continue
        print(f"{name}: {run.__doc__}", flush=True)
        try:
            run()
        except BenchmarkError as failure:
            failed.append(name)
            print(f"bench: {name}: {failure}", file=sys.stderr, flush=True)
    if failed:
        print(f"bench: beyond their limits, or not run: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
