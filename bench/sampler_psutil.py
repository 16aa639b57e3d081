# SPDX-License-Identifier: Apache-2.0
"""The peer of sampler_bench and agent_cost.py: psutil reading the same things, as far as it has them, at the same periods.

It has no pressure, control group, time in run queues, NFS, TCP or swap of a process; ours reads these too.

usage: sampler_psutil.py                    this process, hot and every 500 ms
       sampler_psutil.py --tree PID SECONDS every 100 ms, of PID and all its descendants; what is slow every 5 or 10 s
prints one JSON line: {"hot_us": .., "paced_us": .., "percent_of_a_core": ..}, or the last of these
"""

import json
import os
import sys
import time

import psutil

PERIOD_S = 0.1


def sample_member(member: psutil.Process) -> None:
    with member.oneshot():
        member.cpu_percent()
        member.memory_info()
        member.io_counters()
        member.num_threads()
        member.num_ctx_switches()


def sample_machine() -> None:
    psutil.cpu_times_percent(percpu=True)
    psutil.virtual_memory()
    psutil.swap_memory()
    psutil.disk_io_counters(perdisk=True)
    psutil.net_io_counters(pernic=True)


def sample(process: psutil.Process) -> None:
    sample_machine()
    for member in [process, *process.children(recursive=True)]:
        sample_member(member)


def cost_us(process: psutil.Process, samples: int, period_s: float) -> float:
    before = time.process_time()
    for _ in range(samples):
        time.sleep(period_s)
        sample(process)
    return 1e6 * (time.process_time() - before) / samples


def watch_tree(pid: int, seconds: float) -> float:
    """Percent of a core; new processes are looked for once a second, as the agent does."""
    root = psutil.Process(pid)
    members: dict[int, psutil.Process] = {}
    begin = next_sample = time.monotonic()
    next_look = next_frequency = next_disks = begin
    before = time.process_time()
    while (now := time.monotonic()) < begin + seconds:
        if now >= next_look:
            next_look = now + 1
            members = {p.pid: members.get(p.pid, p) for p in [root, *root.children(recursive=True)]}
        if now >= next_frequency:
            next_frequency = now + 5
            psutil.cpu_freq(percpu=True)
        if now >= next_disks:
            next_disks = now + 10
            for partition in psutil.disk_partitions(all=False):
                os.statvfs(partition.mountpoint)
        sample_machine()
        psutil.cpu_stats()
        for member in list(members.values()):
            try:
                sample_member(member)
            except psutil.NoSuchProcess:
                del members[member.pid]
        next_sample += PERIOD_S
        time.sleep(max(0.0, next_sample - time.monotonic()))
    return 100 * (time.process_time() - before) / (time.monotonic() - begin)


def main() -> None:
    if sys.argv[1:2] == ["--tree"]:
        print(json.dumps({"percent_of_a_core": watch_tree(int(sys.argv[2]), float(sys.argv[3]))}))
        return
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
