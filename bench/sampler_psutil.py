# SPDX-License-Identifier: Apache-2.0
"""The peer of sampler_bench: psutil reading the same things, as far as it has them, at the same periods.

It has no pressure, control group, or swap of a process; ours reads these too.

prints one JSON line: {"hot_us": .., "paced_us": .., "percent_of_a_core": ..}
"""

import json
import time

import psutil


def sample(process: psutil.Process) -> None:
    psutil.cpu_times_percent(percpu=True)
    psutil.virtual_memory()
    psutil.swap_memory()
    psutil.disk_io_counters(perdisk=True)
    psutil.net_io_counters(pernic=True)
    for member in [process, *process.children(recursive=True)]:
        with member.oneshot():
            member.cpu_percent()
            member.memory_info()
            member.io_counters()
            member.num_threads()
            member.num_ctx_switches()


def cost_us(process: psutil.Process, samples: int, period_s: float) -> float:
    before = time.process_time()
    for _ in range(samples):
        time.sleep(period_s)
        sample(process)
    return 1e6 * (time.process_time() - before) / samples


def main() -> None:
    process = psutil.Process()
    sample(process)
    paced_us = cost_us(process, 20, 0.5)
    print(
        json.dumps(
            {
                "hot_us": cost_us(process, 500, 0.0),
                "paced_us": paced_us,
                "percent_of_a_core": paced_us / 0.5e6 * 100,
            }
        )
    )


if __name__ == "__main__":
    main()
