# SPDX-License-Identifier: Apache-2.0
"""The peer of sampler_bench, sampler_loop and agent_cost.py: psutil reading the same things, as far as it has
them, at the same periods.

It has no pressure, control group, time in run queues, NFS, TCP or swap of a process; ours reads these too.

usage: sampler_psutil.py                    this process, hot and every 500 ms
       sampler_psutil.py --tree PID SECONDS FILE
           every 100 ms, of PID and all its descendants; what is slow every 1, 5 or 10 s; each sample is a JSON line
prints one JSON line: {"hot_us": .., "paced_us": .., "percent_of_a_core": ..}, or the last of these and, of it,
the "writing_percent" of the lines
"""

import json
import os
import sys
import time
from typing import Any, TextIO

import psutil

PERIOD_S = 0.1


class Every:
    """True once in so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.due = 0.0

    def __call__(self, now: float) -> bool:
        if now < self.due:
            return False
        self.due = now + self.seconds - self.seconds / 16
        return True


def sample_member(member: psutil.Process, slow: bool) -> list[Any]:
    with member.oneshot():
        values = [member.cpu_percent(), member.memory_info(), member.io_counters(), member.num_threads()]
        if slow:
            values.append(member.num_ctx_switches())
    return values


def sample_machine() -> dict[str, Any]:
    return {
        "cpu": psutil.cpu_times_percent(percpu=True),
        "memory": psutil.virtual_memory(),
        "swap": psutil.swap_memory(),
        "disks": psutil.disk_io_counters(perdisk=True),
        "network": psutil.net_io_counters(pernic=True),
    }


def sample(process: psutil.Process, slow: bool) -> None:
    sample_machine()
    for member in [process, *process.children(recursive=True)]:
        sample_member(member, slow)


def cost_us(process: psutil.Process, samples: int, period_s: float) -> float:
    every_second = Every(1)
    before = time.process_time()
    for _ in range(samples):
        time.sleep(period_s)
        sample(process, every_second(time.monotonic()))
    return 1e6 * (time.process_time() - before) / samples


def watch_tree(pid: int, seconds: float, out: TextIO) -> dict[str, float]:
    """Percent of a core; new processes are looked for once a second, as the agent does."""
    root = psutil.Process(pid)
    members: dict[int, psutil.Process] = {}
    every_second, every_five, every_ten = Every(1), Every(5), Every(10)
    begin = next_sample = time.monotonic()
    before = time.process_time()
    writing = 0.0
    while (now := time.monotonic()) < begin + seconds:
        slow = every_second(now)
        if slow:
            members = {p.pid: members.get(p.pid, p) for p in [root, *root.children(recursive=True)]}
        values = sample_machine() | {"time": time.time(), "stats": psutil.cpu_stats()}
        if every_five(now):
            values["frequency"] = psutil.cpu_freq(percpu=True)
        if every_ten(now):
            values["file_systems"] = {
                p.mountpoint: os.statvfs(p.mountpoint) for p in psutil.disk_partitions(all=False)
            }
        processes = values["processes"] = {}
        for member in list(members.values()):
            try:
                processes[member.pid] = sample_member(member, slow)
            except psutil.NoSuchProcess:
                del members[member.pid]
        sampled = time.process_time()
        out.write(json.dumps(values) + "\n")
        out.flush()
        writing += time.process_time() - sampled
        next_sample += PERIOD_S
        time.sleep(max(0.0, next_sample - time.monotonic()))
    wall = time.monotonic() - begin
    return {
        "percent_of_a_core": 100 * (time.process_time() - before) / wall,
        "writing_percent": 100 * writing / wall,
    }


def main() -> None:
    if sys.argv[1:2] == ["--tree"]:
        with open(sys.argv[4], "w") as out:
            print(json.dumps(watch_tree(int(sys.argv[2]), float(sys.argv[3]), out)))
        return
    process = psutil.Process()
    sample(process, slow=True)
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
