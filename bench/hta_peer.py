# SPDX-License-Identifier: Apache-2.0
"""HolisticTraceAnalysis as a peer, in a virtual environment of its own (.venv-hta), made on first use."""

from peer_venv import ROOT, peer_python

# As `tools/setup hta` installs it: the tests use the same environment.
HTA_PACKAGES = ["--require-hashes", "--no-deps", "-r", str(ROOT / "requirements-hta.lock")]
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
    return peer_python("HTA", ".venv-hta", "hta.trace_analysis, torch_tb_profiler", HTA_PACKAGES)
