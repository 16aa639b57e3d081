# SPDX-License-Identifier: Apache-2.0
"""The peer of sampler_bench, sampler_loop and agent_cost.py: psutil reading the same things, as far as it has
them, at the same periods.

It has no pressure, control group, page faults, time in run queues, TCP or swap of a process, which ours reads too: with
--tree these are read by plain Python, as often as ours reads them, from the files where ours finds them, of which
psutil may have read some already; what that takes is told apart. GPUs, NFS and the pressure in a control group are left
out.

usage: sampler_psutil.py                    this process, hot and every 500 ms
       sampler_psutil.py --tree PID SECONDS FILE
           every 100 ms, of PID and all its descendants; what is slow every 1, 5 or 10 s; each sample is a JSON line
prints one JSON line: {"hot_us": .., "paced_us": .., "percent_of_a_core": ..}, or the last of these and, of it,
the "writing_percent" of the lines and the "beyond_percent" of what psutil does not have
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


GROUP_FILES = "memory.current memory.events cpu.stat memory.usage_in_bytes memory.failcnt memory.oom_control cpuacct.usage"


def group_files() -> list[str]:
    """Files of the control groups that this process is in, versions 1 and 2."""
    with open("/proc/self/cgroup") as text:
        entries = [line.rstrip("\n").split(":", 2)[1:] for line in text]
    folders = ["/sys/fs/cgroup" + ("/" + which if which else "") + path for which, path in entries]
    paths = [f"{folder}/{name}" for folder in folders for name in GROUP_FILES.split()]
    # Of version 1, whose cpu.stat is of limits alone, ours reads that one where there is a limit.
    second = "/sys/fs/cgroup" + next((path for which, path in entries if not which), "")
    return [
        path
        for path in paths
        if os.path.exists(path) and (not path.endswith("cpu.stat") or os.path.dirname(path) == second)
    ]


def numbers(path: str, wanted: tuple[str, ...] = ("",)) -> dict[str, list[str]]:
    """The lines of such a file that begin so, by their first words."""
    with open(path) as text:
        lines = (line.split() for line in text if line.startswith(wanted))
        return {words[0]: words[1:] for words in lines if words}


def sample_beyond(pids: list[int], groups: list[str], slow: bool) -> dict[str, Any]:
    """What psutil does not have, of the machine and of these processes."""
    stat = numbers("/proc/stat", ("processes", "procs_"))
    memory = numbers("/proc/vmstat", ("pgfault", "pgmajfault"))
    values: dict[str, Any] = {
        "tasks": [int(stat[name][0]) for name in ("processes", "procs_running", "procs_blocked")],
        "faults": [int(memory[name][0]) for name in ("pgfault", "pgmajfault")],
    }
    for path in groups:
        values[path] = {name: words and int(words[0]) for name, words in numbers(path).items()}
    if slow:
        for resource in ("cpu", "io", "memory") if os.path.exists("/proc/pressure") else ():
            shares = numbers(f"/proc/pressure/{resource}")
            values[f"pressure.{resource}"] = {how: float(words[0][6:]) for how, words in shares.items()}
        with open("/proc/net/snmp") as text:
            values["tcp"] = [line.split()[1:] for line in text if line.startswith("Tcp:")]
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as text:
                fields = text.read().rsplit(")", 1)[1].split()
            values[f"faults.{pid}"] = int(fields[7]), int(fields[9])
            if slow:
                with open(f"/proc/{pid}/schedstat") as text:
                    values[f"run_delay.{pid}"] = int(text.read().split()[1])
                values[f"swap.{pid}"] = int(numbers(f"/proc/{pid}/status", ("VmSwap",))["VmSwap:"][0])
        except (OSError, LookupError):
            pass  # It has ended.
    return values


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
    writing = beyond = 0.0
    groups = group_files()
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
        common = time.process_time()
        values["beyond"] = sample_beyond(list(members), groups, slow)
        sampled = time.process_time()
        beyond += sampled - common
        out.write(json.dumps(values) + "\n")
        out.flush()
        writing += time.process_time() - sampled
        next_sample += PERIOD_S
        time.sleep(max(0.0, next_sample - time.monotonic()))
    wall = time.monotonic() - begin
    return {
        "percent_of_a_core": 100 * (time.process_time() - before) / wall,
        "writing_percent": 100 * writing / wall,
        "beyond_percent": 100 * beyond / wall,
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
