# SPDX-License-Identifier: Apache-2.0
"""The statistics kernel beside torch's and numpy's separate reductions, interleaved in one process.

usage: stats_peers.py [--mib N] [--rounds N] [--library FILE]
The same nine statistics each time: min, max, mean, std, L1, L2, NaN, Inf, zeros. One thread.
exit code 1 where it is not LEAST_RATIO times as fast as a peer, or the values differ from numpy's
"""

import argparse
import ctypes
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[1]
LEAST_RATIO = 15


class Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("count", "nan", "inf", "zero")] + [
        (name, ctypes.c_double) for name in ("min", "max", "mean", "std", "l1", "l2")
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--library", default=str(ROOT / "build/release/bench/libstats_shared.so"))
    args = parser.parse_args()

    import numpy as np

    library = ctypes.CDLL(args.library)
    library.bench_plain_sum.restype = ctypes.c_float
    data = np.random.default_rng(1).standard_normal(args.mib << 18, dtype=np.float32) * np.float32(0.02)
    address = ctypes.c_void_p(data.ctypes.data)
    count = ctypes.c_size_t(data.size)
    out = Stats()

    def ours() -> None:
        library.bench_stats(address, count, ctypes.byref(out))

    def plain() -> None:
        library.bench_plain_sum(address, count, 1)

    def with_numpy() -> list[float]:
        return [
            float(data.min()),
            float(data.max()),
            float(data.mean()),
            float(data.std()),
            float(np.abs(data).sum()),
            float(np.linalg.norm(data)),
            int(np.isnan(data).sum()),
            int(np.isinf(data).sum()),
            int((data == 0).sum()),
        ]

    rows: dict[str, Callable[[], object]] = {
        "telltale, one pass": ours,
        "plain sum": plain,
        "numpy, nine reductions": with_numpy,
    }
    try:
        import torch
    except ImportError:
        print("  torch is not installed: left out")
    else:
        torch.set_num_threads(1)
        tensor = torch.from_numpy(data)

        def with_torch() -> list[float]:
            return [
                float(tensor.min()),
                float(tensor.max()),
                float(tensor.mean()),
                float(tensor.std(unbiased=False)),
                float(tensor.abs().sum()),
                float(tensor.norm()),
                int(torch.isnan(tensor).sum()),
                int(torch.isinf(tensor).sum()),
                int(torch.eq(tensor, 0).sum()),
            ]

        rows[f"torch {torch.__version__}, nine reductions"] = with_torch

    times: dict[str, list[float]] = {name: [] for name in rows}
    for round_ in range(-1, args.rounds):
        for name, run in rows.items():
            begin = time.perf_counter()
            run()
            if round_ >= 0:
                times[name].append(time.perf_counter() - begin)
    base = statistics.median(times["telltale, one pass"])
    for name, values in times.items():
        median = statistics.median(values)
        print(
            f"  {name:32} {median * 1e3:8.1f} ms [{min(values) * 1e3:.1f}..{max(values) * 1e3:.1f}]"
            f"   x {median / base:.1f}" + (f"   limit {LEAST_RATIO}" if "reductions" in name else "")
        )
    problems = [
        f"not {LEAST_RATIO} times as fast as {name}"
        for name, values in times.items()
        if "reductions" in name and statistics.median(values) < LEAST_RATIO * base
    ]
    expected = with_numpy()
    same = out.min == expected[0] and out.max == expected[1] and out.zero == expected[8]
    if not same or abs(out.std - expected[3]) >= 1e-4 * expected[3]:
        problems.append("the values differ from numpy's")
    for problem in problems:
        print(f"stats_peers: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
