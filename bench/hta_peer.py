# SPDX-License-Identifier: Apache-2.0
"""HolisticTraceAnalysis as a peer, in a virtual environment of its own (.venv-hta), made on first use."""

import pathlib
import subprocess

HTA_VENV = pathlib.Path(__file__).resolve().parents[1] / ".venv-hta"
HTA_PACKAGES = ["HolisticTraceAnalysis==0.5.0", "pandas<3", "numpy<3"]
LOAD = """
import json, logging, resource, sys, time, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=".")
seconds = time.perf_counter() - begin
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(json.dumps({"seconds": seconds, "rows": len(analysis.t.get_trace(0)), "rss_mib": rss}))
"""


def hta_python() -> str | None:
    """An interpreter that has HTA, made where it can be; None where it does not install."""
    python = HTA_VENV / "bin/python"
    has = [str(python), "-c", "import hta.trace_analysis"]
    if python.exists() and subprocess.run(has, capture_output=True, check=False).returncode == 0:
        return str(python)
    print("bench: installing HolisticTraceAnalysis into .venv-hta", flush=True)
    for command in (
        ["/usr/bin/python3", "-m", "venv", str(HTA_VENV)],
        [str(python), "-m", "pip", "install", "--quiet", *HTA_PACKAGES],
        has,
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"bench: HTA does not install here ({reason}); it is left out", flush=True)
            return None
    return str(python)
