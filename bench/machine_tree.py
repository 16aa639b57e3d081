# SPDX-License-Identifier: Apache-2.0
"""A large node made of files: 192 cores, 8 GPUs, 8 ranks with 8 loader workers each, as /proc, /sys and the
control group of Linux 6 show it. The agent samples it in place of this machine (TELLTALE_SYSTEM_ROOT).

What a kernel would spend on making these texts is not in it: files lie in memory.
"""

import os
import pathlib

CORES = 192
GPUS = 8
RANKS = 8
WORKERS = 8  # Of each rank.
FIRST_PID = 9_000_000  # Beyond any of this machine's.
ROOT_PID = FIRST_PID
DISKS = 10
INTERFACES = 12
TICKS = 10  # Of a core between two rounds.


def stat_text(round_: int) -> str:
    """Every number has its full width, so that a new round is written over the old one in place."""
    lines = []
    for core in range(-1, CORES):
        many = CORES if core < 0 else 1
        busy = (core * 7 + round_) % TICKS if core >= 0 else TICKS // 2
        user = (1_000_000 + round_ * busy) * many
        idle = (9_000_000 + round_ * (TICKS - busy)) * many
        name = "cpu " if core < 0 else f"cpu{core}"
        lines.append(f"{name} {user:012} 0000000120 {user // 5:012} {idle:012} 0000001234 0 0000000456 0 0 0")
    lines.append("intr 123456789 " + "0 " * 4000)
    lines.append(f"ctxt {10**12 + round_ * 20_000}\nbtime 1700000000\nprocesses {5_000_000 + round_:09}")
    lines.append("procs_running 9\nprocs_blocked 0\nsoftirq 1 2 3 4 5 6 7 8 9 10 11\n")
    return "\n".join(lines)


def schedstat_text() -> str:
    lines = ["version 17", "timestamp 4300000000"]
    mask = ",".join(["ffffffff"] * (CORES // 32))
    for core in range(CORES):
        lines.append(f"cpu{core} 0 0 0 0 0 0 {10**13 + core} {10**11 + core} 123456789")
        lines += [
            f"domain{level} {name} {mask} " + "1234567 " * 45
            for level, name in enumerate(("SMT", "MC", "NUMA"))
        ]
    return "\n".join(lines) + "\n"


def process(folder: pathlib.Path, pid: int, parent: int, children: list[int], threads: int) -> None:
    folder.mkdir(parents=True)
    (folder / "stat").write_text(
        f"{pid} (python) S {parent} {pid} {pid} 0 -1 4194304 5000000 0 120 0 360000 42000 0 0 20 0 {threads} 0 "
        f"123456 98765432100 2345678 18446744073709551615 " + "1 " * 27 + "\n"
    )  # fmt: skip
    (folder / "io").write_text(
        "rchar: 123456789012\nwchar: 1234567890\nsyscr: 12345678\nsyscw: 1234567\nread_bytes: 99999744\n"
        "write_bytes: 4096000\ncancelled_write_bytes: 0\n"
    )
    lines = [f"{key}:\t{value}" for key, value in (
        ("Name", "python"), ("Umask", "0022"), ("State", "S (sleeping)"), ("Tgid", pid), ("Pid", pid),
        ("PPid", parent), ("VmPeak", "98765432 kB"), ("VmSize", "98765432 kB"), ("VmRSS", "9382712 kB"),
        ("VmSwap", "0 kB"), ("Threads", threads), *((f"Other{i}", "0000000000000000") for i in range(40)),
        ("voluntary_ctxt_switches", 1234567), ("nonvoluntary_ctxt_switches", 12345))]  # fmt: skip
    (folder / "status").write_text("\n".join(lines) + "\n")
    (folder / "schedstat").write_text("402000000000 123456789 4567890\n")
    (folder / "cgroup").write_text("0::/\n")
    for thread in range(threads):
        task = folder / "task" / str(pid + thread * 1000)
        task.mkdir(parents=True)
        (task / "children").write_text(" ".join(map(str, children)) + " " if thread == 0 and children else "")


def make(root: pathlib.Path) -> None:
    """Writes the node below `root`, which is there and empty."""
    proc = root / "proc"
    (proc / "net").mkdir(parents=True)
    (proc / "pressure").mkdir()
    (proc / "self").mkdir()
    (proc / "stat").write_text(stat_text(0))
    (proc / "schedstat").write_text(schedstat_text())
    (proc / "meminfo").write_text(
        "MemTotal: 2113929216 kB\nMemFree: 1013929216 kB\nMemAvailable: 1513929216 kB\nBuffers: 12345 kB\n"
        "Cached: 412345678 kB\nSwapCached: 0 kB\n" + "".join(f"Other{i}: 12345 kB\n" for i in range(45))
        + "SwapTotal: 0 kB\nSwapFree: 0 kB\n"
    )  # fmt: skip
    (proc / "vmstat").write_text(
        "".join(f"nr_other_{i} 123456\n" for i in range(90))
        + "pswpin 0\npswpout 0\npgfault 123456789\npgmajfault 1234\n"
        + "".join(f"pgother_{i} 123456\n" for i in range(90))
    )
    (proc / "diskstats").write_text("".join(
        f" 259 {i} nvme{i}n1 1234567 12 987654321 345678 234567 34 87654321 456789 0 567890 802467 0 0 0 0 12 34\n"
        for i in range(DISKS)))  # fmt: skip
    (proc / "net/dev").write_text("Inter-|   Receive  |  Transmit\n face |bytes\n" + "".join(
        f"  eth{i}: 123456789012 987654321 0 0 0 0 0 0 98765432109 87654321 0 0 0 0 0 0\n"
        for i in range(INTERFACES)))  # fmt: skip
    (proc / "net/snmp").write_text(
        "Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs "
        "OutSegs RetransSegs InErrs OutRsts InCsumErrors\nTcp: 1 200 120000 -1 1 2 3 4 5 600000 700000 80 0 1 0\n"
    )
    for kind in ("cpu", "io", "memory"):
        (proc / "pressure" / kind).write_text(
            "some avg10=1.00 avg60=1.00 avg300=1.00 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        )
    (proc / "self/mountinfo").write_text(
        "20 1 259:1 / / rw - ext4 /dev/nvme0n1 rw\n21 20 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        "22 20 0:31 / /dev/shm rw - tmpfs tmpfs rw\n"
        + "".join(f"{30 + i} 20 0:{40 + i} / /mnt/data{i} rw - nfs4 server:/data{i} rw\n" for i in range(4))
    )
    (proc / "self/cgroup").write_text("0::/\n")
    operations = "".join(f"\tOP{i}: 100 100 0 1000 1000 1 2 3 0\n" for i in range(60))
    (proc / "self/mountstats").write_text("".join(
        f"device server:/data{i} mounted on /mnt/data{i} with fstype nfs4 statvers=1.1\n\tbytes:\t1 2 3 4 5 6 7 8\n"
        f"\tper-op statistics\n\tREAD: 1 1 0 1 1 1 1 1 0\n{operations}\n" for i in range(4)))  # fmt: skip
    for folder in (
        "dev/shm",
        *(f"mnt/data{i}" for i in range(4)),
        *(f"sys/block/nvme{i}n1" for i in range(DISKS)),
    ):
        (root / folder).mkdir(parents=True)
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    for name, text in (
        ("cgroup.controllers", "cpu io memory pids\n"), ("cpu.max", "max 100000\n"), ("memory.max", "max\n"),
        ("cpu.stat", "usage_usec 123456789\nuser_usec 1\nsystem_usec 1\nnr_periods 0\nnr_throttled 0\n"
                     "throttled_usec 0\n"),
        ("memory.current", "98765432100\n"), ("memory.swap.current", "0\n"), ("pids.current", "1234\n"),
        ("pids.max", "max\n"), ("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"),
        *((f"{kind}.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
                               "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n") for kind in ("cpu", "io", "memory")),
    ):  # fmt: skip
        (group / name).write_text(text)
    for core in range(CORES):
        core_folder = root / f"sys/devices/system/cpu/cpu{core}/cpufreq"
        core_folder.mkdir(parents=True)
        (core_folder / "scaling_cur_freq").write_text("2600000\n")
    ranks = [ROOT_PID + 1 + i for i in range(RANKS)]
    process(proc / str(ROOT_PID), ROOT_PID, 1, ranks, 8)
    for index, rank in enumerate(ranks):
        workers = [ROOT_PID + 100 + index * WORKERS + i for i in range(WORKERS)]
        process(proc / str(rank), rank, ROOT_PID, workers, 64)
        for worker in workers:
            process(proc / str(worker), worker, rank, [], 2)


def stand_for_root(root: pathlib.Path, pids: range) -> None:
    """Whichever of `pids` the training's command gets: in the node it is the root of the ranks."""
    for pid in pids:
        folder = root / "proc" / str(pid)
        folder.mkdir()
        for name in ("stat", "io", "status", "schedstat", "cgroup"):
            os.symlink(f"../{ROOT_PID}/{name}", folder / name)
        (folder / "task" / str(pid)).mkdir(parents=True)
        os.symlink(f"../../../{ROOT_PID}/task/{ROOT_PID}/children", folder / "task" / str(pid) / "children")


def gpu_script() -> str:
    """For tests/support/fake_nvml.cc."""
    return (
        f"gpus {GPUS}\nutilization 87\nmemory_activity 40\nmemory_used 60000000000\npower 412000\ntemperature 61\n"
        "gpm 1\nsm_active 70\ntensor_active 30\nmemory_bandwidth 45\npcie_sent 1000\npcie_received 2000\n"
        "nvlink_sent 123456789\nnvlink_received 123456789\nnvlink_errors 0\n"
        + "".join(f"{i}.process.{ROOT_PID + 1 + i} 60000000000\n" for i in range(GPUS))
    )
